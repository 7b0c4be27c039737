"""Score a few thousand images on several processes, with Dask and with Ray, and compare with one process.

    python examples/score_images.py [--engine dask|ray|both] [--images 5000] [--workers 2]

It needs scikit-learn (its digits are the images) and the engines: pip install -e ".[dask,ray]" scikit-learn. A network
is trained, quantized and saved as a model file; each worker maps it. The engines show progress bars and dashboards.
"""
from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable

import numpy as np
from digits_int8 import build

import graphq as gq
from graphq.quantization import quantize
from graphq.scoring import score

BATCH = 256


def make_model(path: str) -> None:
    """Train a network on the digits, quantize and compile it, and save it at `path`."""
    from sklearn.datasets import load_digits  # imported here because the engines' new processes import this file
    from sklearn.neural_network import MLPClassifier

    pixels, labels = load_digits(return_X_y=True)
    pixels = (pixels / 16).astype(np.float32)
    net = MLPClassifier(hidden_layer_sizes=(128, 64), random_state=0, max_iter=400).fit(pixels, labels)
    gq.compile(quantize(build(net), [{"x": pixels[:512]}])).save(path)


def make_images(count: int) -> np.ndarray:
    """Draw `count` digits in f32, with noise."""
    from sklearn.datasets import load_digits

    pixels, _ = load_digits(return_X_y=True)
    rng = np.random.default_rng(0)
    noisy = np.resize(pixels / 16, (count, 64)) + rng.normal(0, 0.05, (count, 64))
    return noisy.clip(0, 1).astype(np.float32)


def on_dask(images: np.ndarray, model: str, workers: int) -> np.ndarray:
    """Score the images on processes of Dask's local cluster; returns the logits."""
    import dask.array
    from dask.distributed import Client, LocalCluster, progress

    with LocalCluster(n_workers=workers, threads_per_worker=1, dashboard_address=":0") as cluster, \
            Client(cluster) as client:
        print(f"Dask's dashboard: {client.dashboard_link}")
        future = client.compute(score(dask.array.from_array(images, chunks=(BATCH, -1)), model))
        progress(future)
        print()
        return np.asarray(future.result())


def on_ray(images: np.ndarray, model: str, workers: int) -> np.ndarray:
    """Score the images on actors of Ray Data. Rows are numbered, because Ray Data does not keep their order."""
    import ray
    import ray.data

    context = ray.init(num_cpus=workers)
    print(f"Ray's dashboard: {context.dashboard_url or 'not installed (pip install ray[default])'}")
    try:
        rows = ray.data.from_items([{"number": k, "pixels": image} for k, image in enumerate(images)])
        scored = score(rows, model, columns={"x": "pixels"}, keep=["number"], batch_size=BATCH, concurrency=workers)
        found = scored.to_pandas().sort_values("number")
    finally:
        ray.shutdown()
    assert list(found["number"]) == list(range(len(images))), "each row once"
    return np.stack(found["logits"].to_list())


ENGINES: dict[str, Callable[[np.ndarray, str, int], np.ndarray]] = {"dask": on_dask, "ray": on_ray}


def main() -> None:
    """Score on the chosen engines, and compare."""
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("--engine", choices=[*ENGINES, "both"], default="both")
    args.add_argument("--images", type=int, default=5000)
    args.add_argument("--workers", type=int, default=2)
    options = args.parse_args()

    images = make_images(options.images)
    with tempfile.TemporaryDirectory() as folder:
        model = os.path.join(folder, "digits.graphq")
        make_model(model)
        expected = gq.Predictor(model)({"x": images})["logits"]
        for engine in ENGINES if options.engine == "both" else [options.engine]:
            start = time.perf_counter()
            logits = ENGINES[engine](images, model, options.workers)
            seconds = time.perf_counter() - start
            same = np.array_equal(logits, expected)
            print(f"{engine}: {len(logits)} images in {seconds:.1f} s, the cluster's start included; "
                  f"bits {'equal to' if same else 'DIFFERENT FROM'} the bits of one process")
            if not same:
                raise SystemExit(1)


if __name__ == "__main__":
    main()

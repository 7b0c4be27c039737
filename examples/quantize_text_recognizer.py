"""Quantize a text recognizer from f32 to int8, and compare accuracy, size and time.

    python examples/quantize_text_recognizer.py [--lines 24] [--batches 6] [--threads N] [--save FILE.onnx]

The model is PP-OCRv4's in f32, from the package rapidocr-onnxruntime (Apache-2.0). Pillow draws the text. It needs

    pip install -e ".[onnx]" pillow && pip install --no-deps rapidocr-onnxruntime==1.4.4
"""
from __future__ import annotations

import argparse
import random
import string
import sys
import tempfile
from pathlib import Path

import numpy as np
from onnx_int8 import milliseconds, picture, read, recognizer

import graphq as gq
from graphq.quantization import Scheme, automatic, calibrate, quantize


def lines(count: int, seed: int) -> list[str]:
    """Make random words and numbers that fit into a picture."""
    rng = random.Random(seed)
    words = ["".join(rng.choices(string.ascii_letters + string.digits, k=rng.randint(2, 7))) for _ in range(3 * count)]
    return [" ".join(words[3 * k:3 * k + 3]) for k in range(count)]


def letters_right(model: gq.CompiledGraph, texts: list[str], characters: list[str]) -> float:
    """The fraction of letters that the model reads correctly at their position, without blanks."""
    right = total = 0
    for text in texts:
        want, got = text.replace(" ", ""), read(model(x=picture(text)), characters).replace(" ", "")
        right += sum(a == b for a, b in zip(want, got, strict=False))
        total += max(len(want), len(got))
    return right / total


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    x, y = a.astype(np.float64).ravel(), b.astype(np.float64).ravel()
    return float(x @ y / (np.linalg.norm(x) * np.linalg.norm(y)))


def main() -> int:
    """Quantize with plain settings and with automatic settings, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lines", type=int, default=24, help="lines of text to read")
    parser.add_argument("--batches", type=int, default=6, help="lines of text to calibrate with")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--save", type=Path, metavar="FILE.onnx", help="write the best model there")
    options = parser.parse_args()
    path, characters = recognizer()
    graph = gq.load_onnx(path)
    graph = graph.specialize({"x": gq.TensorType(gq.dtypes.f32, picture("").shape)})
    batches = [{"x": picture(text)} for text in lines(options.batches, seed=1)]
    texts = lines(options.lines, seed=2)

    statistics = calibrate(graph, batches)
    best = automatic(graph, batches)
    graphs = {"f32": graph, "dynamic": quantize(graph, scheme=Scheme(mode="dynamic"))}
    graphs |= {m: quantize(graph, statistics, Scheme(method=m)) for m in ("min_max", "percentile", "mse")}
    graphs["automatic"] = best.graph
    models = {name: gq.compile(g, threads=options.threads) for name, g in graphs.items()}
    wanted = [models["f32"](x=picture(t)) for t in texts]
    times = milliseconds(list(models.values()), {"x": picture(texts[0])})
    print(f"{'':10s} {'letters right':>14s} {'worst cosine':>13s} {'MB':>6s} {'ms':>7s}  in integers")
    for (name, model), time in zip(models.items(), times, strict=True):
        worst = min(cosine(model(x=picture(t)), w) for t, w in zip(texts, wanted, strict=True))
        with tempfile.TemporaryDirectory() as folder:
            gq.save_onnx(graphs[name], Path(folder) / "model.onnx")
            size = (Path(folder) / "model.onnx").stat().st_size / 1e6
        right = 100 * letters_right(model, texts, characters)
        print(f"{name:10s} {right:12.1f} % {worst:13.5f} {size:6.2f} {time:7.2f}  {100 * model.coverage().share:.0f} %")
    print(f"\nautomatic is {best.setting}; tried were (cosine in cross-validation)\n{best}")
    if options.save is not None:
        gq.save_onnx(best.graph, options.save)
    return 0


if __name__ == "__main__":
    sys.exit(main())

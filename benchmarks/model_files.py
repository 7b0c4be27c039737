"""Helpers for benchmarks of model files: inputs, literal outputs, decisions, first results of new processes.

    python benchmarks/model_files.py SIDE FILE.onnx FEEDS.npz THREADS

runs FILE once on one engine ("graphq", "ONNX Runtime" or "OpenVINO") and prints the peak resident memory in MB as JSON.
`models.py` starts this command as a separate process. Literal outputs are the outputs without optimizations.
"""
from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from graphq.kernels.target import LevelName

Feeds = dict[str, np.ndarray]
Run = Callable[[Mapping[str, np.ndarray]], list[np.ndarray]]

BYTECODE = {"PYTHONDONTWRITEBYTECODE": ""}
"""Environment that lets Python cache the compiled sources of graphq, as pip does for its peers: it saves 0.15 s."""


def inputs_of(path: Path, dims: Mapping[str, tuple[int, ...]]) -> tuple[list[Feeds], list[list[np.ndarray]] | None]:
    """The sets of inputs and literal outputs of a model, from the .npz next to it.

    The .npz has arrays "k/in/NAME" and "k/out/NAME". Without it, there is one set of random inputs, and None for the
    outputs. Random inputs are normal floats, and integers 0 and 1 (valid tokens, types and masks). `dims` gives the
    shapes of inputs with open dimensions; otherwise these dimensions are 1.
    """
    stored = path.with_suffix(".npz")
    if stored.exists():
        with np.load(stored) as z:
            arrays = {name: z[name] for name in z.files}
        sets = sorted({name.split("/")[0] for name in arrays})
        feeds = [{n.split("/", 2)[2]: x for n, x in arrays.items() if n.startswith(f"{k}/in/")} for k in sets]
        return feeds, [[x for n, x in arrays.items() if n.startswith(f"{k}/out/")] for k in sets]
    import graphq as gq

    rng = np.random.default_rng(0)
    out = {}
    for v in gq.load_onnx(path).inputs:
        name = str(v.name)
        shape = dims.get(name) or tuple(1 if d is None else d for d in v.shape or ())
        kind = v.dtype.numpy
        floats = v.dtype.kind == "float"
        out[name] = (rng.standard_normal(shape) if floats else rng.integers(0, 2, shape)).astype(kind)
    return [out], None


def listed(out: object) -> list[np.ndarray]:
    """A model's outputs as a list, from a dict or a single array."""
    return [np.asarray(x) for x in (out.values() if isinstance(out, dict) else [out])]


def classes(y: np.ndarray) -> tuple[int, ...]:
    """The index of the greatest number along the last axis, for each position."""
    return tuple(y.reshape(-1, y.shape[-1]).argmax(-1).tolist())


def ctc(y: np.ndarray) -> tuple[tuple[int, ...], ...]:
    """The texts of [batch, steps, characters], without repeats and blanks (0)."""
    steps = y.argmax(-1)
    return tuple(tuple(int(c) for k, c in enumerate(row) if c and (k == 0 or row[k - 1] != c)) for row in steps)


def mask(y: np.ndarray) -> tuple[bool, ...]:
    """True for pixels above 0.3."""
    return tuple((y.ravel() > 0.3).tolist())


DECISIONS: dict[str, Callable[[np.ndarray], Sequence[object]]] = {"argmax": classes, "ctc": ctc, "mask": mask}


def decision_of(y: np.ndarray) -> str:
    """The key of DECISIONS for an output: "mask" for images, "ctc" for steps of probabilities, otherwise "argmax"."""
    if y.ndim == 4:
        return "mask"
    return "ctc" if y.ndim == 3 and y.min() >= 0 and y.max() <= 1 else "argmax"


def agreement(decide: Callable[[np.ndarray], Sequence[object]], ours: list[list[np.ndarray]],
              want: list[list[np.ndarray]]) -> tuple[int, float]:
    """Compare decisions from the first output; returns the number of equal sets and the fraction of equal decisions."""
    sets = [[a == b for a, b in zip(decide(x[0]), decide(y[0]), strict=True)] for x, y in zip(ours, want, strict=True)]
    pairs = [same for one in sets for same in one]
    return sum(map(all, sets)), sum(pairs) / max(1, len(pairs))


def side(name: str, path: Path, feeds: Feeds, threads: int, isa: LevelName | None = None) -> Run:
    """Load `path` on one engine; returns a function that runs it."""
    if name == "graphq":
        import graphq as gq

        model = gq.compile(gq.load_onnx(path), threads=threads, isa=isa)
        return lambda f: listed(model(f))
    from graphq.commands.peers import model_file

    return model_file(name, str(path), feeds, threads)


def first_results(name: str, path: Path, feeds: Feeds, threads: int, runs: int) -> dict[str, float]:
    """Median seconds from a new process to its first result, with empty and with filled caches; its peak MB.

    The cache folders of graphq and OpenVINO are empty for the first process and filled for the second.
    """
    cold: list[float] = []
    warm: list[float] = []
    memory: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        stored = Path(folder) / "feeds.npz"
        np.savez(stored, **feeds)  # type: ignore[arg-type]  # mypy takes an array for the option
        for k in range(runs):
            for times in (cold, warm):
                start = time.perf_counter()
                done = subprocess.run([sys.executable, __file__, name, str(path), str(stored), str(threads)],
                                      capture_output=True, text=True, check=False,
                                      env={**os.environ, **BYTECODE, "GRAPHQ_CACHE_DIR": f"{folder}/cache{k}",
                                           "OPENVINO_CACHE": f"{folder}/openvino{k}"})
                times.append(time.perf_counter() - start)
                if done.returncode:
                    sys.exit(f"{name} on {path} failed:\n{done.stderr}")
            memory.append(json.loads(done.stdout.splitlines()[-1])["peak_mb"])
    return {"cold_s": float(np.median(cold)), "warm_s": float(np.median(warm)), "peak_mb": float(np.median(memory))}


def peak_mb() -> float:
    """The peak resident memory of this process in MB (getrusage would include the parent's memory)."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


def main() -> None:
    """Run a model once in this process."""
    name, path, stored, threads = sys.argv[1:]
    with np.load(stored) as z:
        feeds = {n: z[n] for n in z.files}
    side(name, Path(path), feeds, int(threads))(feeds)
    print(json.dumps({"peak_mb": peak_mb()}))


if __name__ == "__main__":
    main()

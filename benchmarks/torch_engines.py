"""Time networks of PyTorch in graphq, PyTorch, inductor and ONNX Runtime, in f32 and int8, and the first call of each.

    python benchmarks/torch_engines.py [NET ...] [--threads 1 2] [--seconds S] [--cpu-time]
                                       [--first N] [--limit S] [--without TEXT ...]

The networks are the CNN and the encoder of examples/torch_int8.py, torchvision's ResNet-18, and an encoder like BERT
with 6 layers of 384 channels and 128 tokens. Weights are random. The example's ways to run a network are timed in turns
in one process: a table has the medians in ms, the ratio of each median to graphq's int8, and the cosine of the results
with PyTorch's in f32. Above 1, graphq is faster. `--cpu-time` takes the processor time of the process, which other work
on the machine changes less; it is the time of a call only with one thread.

`--first N` times the first call instead, in N new processes with an empty cache and N with the cache that they
filled: the table has medians in seconds. A first call includes tracing and compiling, but not imports or quantization.
A process that takes more than `--limit` seconds is ended, and counts as longer than this.

It needs torch and torchao. It says what it leaves out: inductor without g++, ONNX Runtime and torchvision if they are
not installed.
"""
from __future__ import annotations

import argparse
import math
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import nn

from graphq.commands.peers import alternate, cosine

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))

import torch_int8 as example  # noqa: E402

EAGER, OURS = "eager f32", "graphq int8"


class Bert(nn.Module):
    """An encoder of tokens with learned positions, and a classifier on the first token."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(30522, 384), nn.Parameter(torch.randn(128, 384) / 10)
        self.layers = nn.Sequential(*(example.Layer(384, 12) for _ in range(6)))
        self.norm, self.head = nn.LayerNorm(384), nn.Linear(384, 10)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Scores of ten classes for texts."""
        return self.head(self.norm(self.layers(self.tokens(ids) + self.positions))[:, 0])


def resnet18() -> nn.Module:
    """torchvision's ResNet-18 with random weights."""
    from torchvision.models import resnet18

    net: nn.Module = resnet18(weights=None)
    return net


NETS: dict[str, tuple[Callable[[], nn.Module], Callable[[], torch.Tensor], int]] = {
    "cnn": (example.Cnn, lambda: torch.rand(64, 1, 8, 8), 1),
    "encoder": (example.Encoder, lambda: torch.rand(64, 1, 8, 8), 8),
    "resnet18": (resnet18, lambda: torch.randn(4, 3, 224, 224), 1),
    "bert": (Bert, lambda: torch.randint(0, 30522, (8, 128)), 1)}
"""The networks: functions that make the module and its calibration data, and the number of rows of a call."""


def made(name: str, threads: int, without: list[str]) -> tuple[torch.Tensor, dict[str, Callable[[], example.Way]]]:
    """The input of a call, and for each way that is not left out the function that prepares it."""
    torch.manual_seed(0)
    torch.set_num_threads(threads)
    module, data, batch = NETS[name]
    calibration = data()
    ways = example.ways(module().eval(), calibration, batch, threads)
    return calibration[:batch], {w: f for w, f in ways if not any(text in w for text in without)}


def measure(name: str, threads: int, options: argparse.Namespace) -> None:
    """Time all ways of a network in turns, and print its table."""
    x, prepare = made(name, threads, options.without)
    ways = {way: f() for way, f in prepare.items()}
    results = {way: run(x).numpy() for way, run in ways.items()}
    clock = time.process_time if options.cpu_time else time.perf_counter
    times = alternate([partial(run, x) for run in ways.values()], options.seconds, clock)
    medians = {way: statistics.median(t) for way, t in zip(ways, times, strict=True)}
    print(f"\n{name}, batch {len(x)}, threads: {threads}, load: {os.getloadavg()[0]:.1f}\n")
    print("| | ms | against graphq int8 | cosine |\n|---|---|---|---|")
    for way, t in medians.items():
        print(f"| {way} | {t:.3f} | {t / medians[OURS]:.2f} | {cosine(results[way], results[EAGER]):.4f} |", flush=True)


def first_call(name: str, way: str, threads: int) -> float:
    """The seconds of the first call in this process, from the module or the quantized network to the result."""
    x, prepare = made(name, threads, [])
    start = time.perf_counter()
    prepare[way]()(x)
    return time.perf_counter() - start


def in_process(name: str, way: str, threads: int, caches: dict[str, str], limit: float) -> float:
    """The seconds of the first call in a new process; infinite if the process takes more than `limit` seconds."""
    command = [sys.executable, __file__, name, "--threads", str(threads), "--way", way]
    # files, because workers of inductor may keep pipes open
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
        try:
            done = subprocess.run(command, env={**os.environ, **caches}, stdout=out, stderr=errors, timeout=limit)
        except subprocess.TimeoutExpired:
            return math.inf
        for file in (out, errors):
            file.seek(0)
        if done.returncode:
            sys.exit(f"{name}, {way}: the measured process failed:\n{errors.read().decode(errors='replace')}")
        return float(out.read().split()[-1])


def first_calls(name: str, threads: int, options: argparse.Namespace) -> None:
    """Start processes for each way of a network, and print the medians of their first calls."""
    _, prepare = made(name, threads, options.without)
    print(f"\n{name}, threads: {threads}, load: {os.getloadavg()[0]:.1f}\n")
    print("| first call | empty cache, s | filled cache, s |\n|---|---|---|")
    for way in prepare:
        seconds: list[list[float]] = [[], []]
        for _ in range(options.first):
            with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
                caches = {"GRAPHQ_CACHE_DIR": f"{folder}/graphq", "TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor"}
                for found in seconds:
                    found.append(in_process(name, way, threads, caches, options.limit))
        medians = [statistics.median(found) for found in seconds]
        shown = (f"{s:.2f}" if math.isfinite(s) else f"over {options.limit:g}" for s in medians)
        print(f"| {way} | {' | '.join(shown)} |", flush=True)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("nets", nargs="*", metavar="NET", help=f"networks (default: {' '.join(NETS)})")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2], metavar="N", help="default: 1 2")
    parser.add_argument("--seconds", type=float, default=30.0, help="for each network and thread count (default 30)")
    parser.add_argument("--cpu-time", action="store_true", help="measure processor time (with --threads 1)")
    parser.add_argument("--first", type=int, default=0, metavar="N", help="time first calls in N processes each")
    parser.add_argument("--limit", type=float, default=240.0, metavar="S", help="for a first call (default 240)")
    parser.add_argument("--without", nargs="+", default=[], metavar="TEXT", help="leave out ways with this text")
    parser.add_argument("--way", help=argparse.SUPPRESS)
    options = parser.parse_args()
    warnings.simplefilter("ignore")  # of torch.export and torchao
    if unknown := sorted({*options.nets} - {*NETS}):
        parser.error(f"unknown network {unknown[0]}: choose from {', '.join(NETS)}")
    if options.cpu_time and options.threads != [1]:
        parser.error("--cpu-time adds the times of all threads: use it with --threads 1")
    torch.set_grad_enabled(False)
    if options.way:
        print(first_call(options.nets[0], options.way, options.threads[0]))
        return
    needed = {"inductor (needs g++)": shutil.which("g++"), "ResNet-18 (needs torchvision)": find_spec("torchvision"),
              "ONNX Runtime": find_spec("onnxruntime")}
    print(f"left out: {', '.join(name for name, found in needed.items() if not found) or 'nothing'}")
    for name in options.nets or [n for n in NETS if n != "resnet18" or find_spec("torchvision")]:
        for threads in options.threads:
            (first_calls if options.first else measure)(name, threads, options)


if __name__ == "__main__":
    main()

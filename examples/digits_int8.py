"""Handwritten digits in int8: train a network, build and quantize its graph, compile it, and compare it with f32.

    python examples/digits_int8.py [--seconds 1.0] [--threads N] [--isa LEVEL]
    python examples/digits_int8.py --files

The data are scikit-learn's digits (1797 pictures of 8x8 pixels, inside that package). `--seconds` limits the time to
measure each of the three ways to classify. `--files` only trains: it writes digits.onnx, the network in f32, and
digits.npz, some of its inputs, for the `graphq` command. This needs the package onnx.
"""
from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import TYPE_CHECKING

import numpy as np

import graphq as gq
import graphq.kernels.jit.modules
from graphq.quantization import quantize

if TYPE_CHECKING:
    from sklearn.neural_network import MLPClassifier

SHADES = " ░▒▓█"


def build(net: MLPClassifier) -> gq.Graph:
    """Build the network as an f32 graph."""
    g = gq.Graph("digits")
    x = g.input("x", shape=(None, 64), dtype="f32")
    for k, (w, b) in enumerate(zip(net.coefs_, net.intercepts_, strict=True)):
        if k > 0:
            x = g.relu(x)
        x = g.matmul(x, g.constant(w.astype(np.float32), name=f"weights{k}"), b.astype(np.float32), name=f"layer{k}")
    g.output(x, name="logits")
    return g


def per_second(classify: Callable[[np.ndarray], np.ndarray], x: np.ndarray, seconds: float) -> float:
    """Pictures per second, from the median time of repeated calls on all of `x`. The first call is not counted."""
    classify(x)
    times: list[float] = []
    while sum(times) < seconds or len(times) < 3:
        start = time.perf_counter()
        classify(x)
        times.append(time.perf_counter() - start)
    return len(x) / statistics.median(times)


def first_result(text: str, x: np.ndarray, folder: str) -> tuple[float, int]:
    """Seconds from a graph's text to its first result in a new process, and the number of compiled kernel modules."""
    os.environ["GRAPHQ_CACHE_DIR"] = folder
    start = time.perf_counter()
    gq.compile(gq.parse(text))(x=x)
    return time.perf_counter() - start, graphq.kernels.jit.modules.statistics().compiled


def print_start_times(graph: gq.Graph, x: np.ndarray) -> None:
    """Print the time to the first result with an empty and with a filled kernel cache."""
    with tempfile.TemporaryDirectory() as folder:
        for state in ("cold", "warm"):
            with ProcessPoolExecutor(1, get_context("spawn")) as process:
                seconds, compiled = process.submit(first_result, gq.to_text(graph), x, folder).result()
            print(f"first result, {state} kernel cache: {seconds:.3f} s ({compiled} kernels compiled)")


def print_digits(pixels: np.ndarray, labels: np.ndarray, f32: np.ndarray, int8: np.ndarray) -> None:
    """Print pictures side by side in shades of gray, with both predictions and the label under each."""
    for row in pixels.reshape(-1, 8, 8).swapaxes(0, 1):
        print("  ".join("".join(2 * SHADES[int(v) * 4 // 16] for v in line) for line in row))
    for name, values in (("label", labels), ("f32", f32), ("int8", int8)):
        print("  ".join(f"{name:>7s} {v:<8d}" for v in values))


def main() -> None:
    """Run all parts and print their results."""
    # imported here because new processes of `print_start_times` import this file
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split
    from sklearn.neural_network import MLPClassifier

    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("--seconds", type=float, default=1.0)
    args.add_argument("--threads", type=int)
    args.add_argument("--isa")
    args.add_argument("--files", action="store_true")
    options = args.parse_args()

    pixels, labels = load_digits(return_X_y=True)
    train, test, train_labels, test_labels = train_test_split(pixels.astype(np.float32), labels, test_size=0.25,
                                                              random_state=0, stratify=labels)
    mean = train.mean(axis=0)
    x_train, x_test = (train - mean) / 16, (test - mean) / 16
    net = MLPClassifier(hidden_layer_sizes=(128, 64), random_state=0).fit(x_train, train_labels)
    if options.files:
        gq.save_onnx(build(net), "digits.onnx")
        np.savez("digits.npz", x=x_train[:1024].astype(np.float32))
        return

    # The quantized graph dequantizes the u8 activations and s8 weights of each layer and multiplies in f32. The
    # compiler finds the layers where integers give the same numbers.
    batches = [{"x": x.astype(np.float32)} for x in np.array_split(x_train, 8)]
    graph = quantize(build(net), batches)
    print(f"quantized by {graph.meta['quantization']['setting']}\n")
    model = gq.compile(graph, threads=options.threads, isa=options.isa)

    def int8(x: np.ndarray) -> np.ndarray:
        return model(x=x).argmax(axis=1)

    def reference(x: np.ndarray) -> np.ndarray:
        return gq.reference(graph, x=x).argmax(axis=1)

    f32, quantized = net.predict(x_test), int8(x_test)
    print(model.explain(), end="\n\n")
    for name, classify in (("scikit-learn f32", net.predict), ("graphq int8", int8), ("graphq.reference", reference)):
        accuracy = 100 * np.mean(classify(x_test) == test_labels)
        speed = per_second(classify, x_test, options.seconds)
        print(f"{name:17s} accuracy {accuracy:6.2f} %   {speed:11,.0f} images/s  (batch of {len(x_test)})")
    print()
    print_start_times(graph, x_test)
    print()

    # Up to three digits whose predictions and label differ, and three digits with correct predictions.
    shown = np.argsort((f32 == quantized) & (f32 == test_labels), kind="stable")[[0, 1, 2, -3, -2, -1]]
    print_digits(test[shown], test_labels[shown], f32[shown], quantized[shown])


if __name__ == "__main__":
    main()

"""Generate text with a small language model: trained, compressed to 4 bits, with KV caches that are updated in place.

    python examples/generate_text.py [--threads N] [--tokens 160] [--layers 2]

The model is a transformer with random layers: attention with rotary positions and a KV cache, and two matmuls. Only its
last matrix is trained, by least squares (an echo state network, Jaeger 2001), to predict the next letter of the Zen of
Python. A step takes one letter and writes its keys and values into the caches, whose inputs and outputs share memory.
"""
from __future__ import annotations

import argparse
import codecs
import contextlib
import io
import os
import time

import numpy as np

import graphq as gq
from graphq.quantization import Scheme, quantize

with contextlib.redirect_stdout(io.StringIO()):
    import this

TEXT = codecs.decode(this.s, "rot13")
LETTERS = sorted(set(TEXT))
TOKENS = np.array([[LETTERS.index(letter) for letter in TEXT]])
WIDTH, HEADS, GROUPS, ROWS = 768, 8, 2, 1024
SIZE = WIDTH // HEADS
CACHES = "keys", "values"


def build(layers: int, head: np.ndarray | None = None) -> gq.Graph:
    """Build the model. It returns scores of the next letters or, without `head`, the input of the last matrix."""
    rng, g = np.random.default_rng(0), gq.Graph("language_model")

    def weights(*shape: int) -> gq.ir.Value:
        return g.constant((rng.standard_normal(shape) / np.sqrt(shape[0])).astype(np.float32))

    angles = np.arange(ROWS)[:, None] / 1000 ** np.linspace(0, 1, SIZE // 2)
    cos, sin = (g.constant(f(angles).astype(np.float32)) for f in (np.cos, np.sin))
    ones, rows = g.constant(np.ones(WIDTH, np.float32)), g.constant(np.array([ROWS], np.int32))
    letters = g.input("letters", shape=(1, None), dtype="s64")
    length = g.input("length", shape=(1,), dtype="s32")
    table = g.constant(rng.standard_normal((len(LETTERS), WIDTH)).astype(np.float32))
    x = g.gather(table, letters)
    for k in range(layers):
        keys, values = (g.input(f"{name}{k}", shape=(1, GROUPS, ROWS, SIZE), dtype="f32") for name in CACHES)
        parts = g.matmul(g.rms_norm(x, ones, epsilon=1e-5), weights(WIDTH, WIDTH + 2 * GROUPS * SIZE))
        y, *caches = g.cached_attention(parts, length, rows, None, None, keys, values, cos, sin, heads=HEADS,
                                        groups=GROUPS, scale=2 / np.sqrt(SIZE), capacity=ROWS)
        x = g.add(x, g.matmul(y, weights(WIDTH, WIDTH)))
        wide = g.gelu(g.matmul(g.rms_norm(x, ones, epsilon=1e-5), weights(WIDTH, 4 * WIDTH)))
        x = g.add(x, g.matmul(wide, weights(4 * WIDTH, WIDTH)))
        for name, cache in zip(CACHES, caches, strict=True):
            g.output(cache, name=f"new_{name}{k}")
    x = g.rms_norm(x, ones, epsilon=1e-5)
    g.output(x if head is None else g.matmul(x, g.constant(head), name="last"), name="scores")
    return g


def compressed(graph: gq.Graph, *exclude: str) -> gq.Graph:
    """Compress weights to 4 bits in blocks of 32, except in the layers `exclude`."""
    return quantize(graph, scheme=Scheme(mode="weight_only", weight_bits=4, exclude=exclude))


class Generator:
    """A compiled model with its caches; each cache is both an input and an output."""

    def __init__(self, graph: gq.Graph, threads: int) -> None:
        self.model = gq.compile(graph, threads=threads, strict=True)
        self.caches = {name: np.zeros(t.dims, np.float32) for name, t in self.model.inputs.items()
                       if name not in ("letters", "length")}
        *_, width = self.model.outputs["scores"].shape or ()
        assert width is not None
        self.width, self.length = width, 0

    def __call__(self, letters: np.ndarray) -> np.ndarray:
        """Process the next letters [1, count]; returns the scores of the letter after each of them."""
        count = letters.shape[1]
        self.length += count
        out = {f"new_{name}": cache for name, cache in self.caches.items()}
        out["scores"] = np.empty((1, count, self.width), np.float32)
        self.model({"letters": letters, "length": np.array([self.length - 1], np.int32), **self.caches}, out=out)
        return out["scores"][0]


def fitted(layers: int, threads: int) -> np.ndarray:
    """Fit the last matrix by least squares to the results of the layers for the text, in f32 and in 4 bits."""
    graph = build(layers)
    x = np.concatenate([Generator(g, threads)(TOKENS)[:-1] for g in (graph, compressed(graph))]).astype(np.float64)
    wanted = np.tile(np.eye(len(LETTERS))[TOKENS[0, 1:]], (2, 1))
    return np.linalg.solve(x.T @ x + 1e-3 * np.eye(WIDTH), x.T @ wanted).astype(np.float32)


def generate(graph: gq.Graph, start: str, count: int, threads: int) -> tuple[str, float]:
    """Generate `count` letters after `start`, always the likeliest; returns them, and letters per second after 8."""
    generator, out, begin = Generator(graph, threads), [], 0.0
    scores = generator(np.array([[LETTERS.index(letter) for letter in start]]))[-1]
    for k in range(count):
        if k == 8:
            begin = time.perf_counter()
        out.append(int(scores.argmax()))
        scores = generator(np.array([[out[-1]]]))[-1]
    return "".join(LETTERS[n] for n in out), (count - 8) / (time.perf_counter() - begin)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--tokens", type=int, default=160)
    parser.add_argument("--layers", type=int, default=2)
    args = parser.parse_args()
    start = TEXT[:60]
    graph = build(args.layers, fitted(args.layers, args.threads))
    for name, g in (("f32", graph), ("4 bits", compressed(graph, "last"))):
        text, speed = generate(g, start, args.tokens, args.threads)
        right = sum(a == b for a, b in zip(text, TEXT[len(start):], strict=False)) / len(text)
        print(f"{name}: {speed:,.0f} letters/s, {right:.0%} of them as in the text\n{start[34:]}|{text}\n")


if __name__ == "__main__":
    main()

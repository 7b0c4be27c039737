"""Time a model at several thread counts, ISA levels and precisions, and in other engines.

All rows run in one process and take turns, so a change of the machine's speed affects all rows alike. `speedup over` is
a row's median time divided by the median time of graphq's first row with the same number of threads: above 1, that
first row is faster. The speedup in brackets uses the shortest times instead of the medians. `differs` is the largest
difference between a row's outputs and the first row's outputs: for integers in units of 1, otherwise relative to the
largest number. All graphq rows of one precision must give the same bits; otherwise the exit code is 1.

With other engines, `cosine` is the cosine similarity of a row's outputs and the graph as written: ONNX Runtime runs it
operation by operation, without optimizations. The least similar output counts. An engine that is fast because its
products saturate, or because it computes in bf16, has a smaller cosine. Other engines run the ONNX file itself, or the
file that `save_onnx` writes for a model of another kind. Install the engines with the extra `bench`.

The inputs are the arrays of --input. Without --input, they come from the file MODEL.npz next to the model. Without that
file, they are random, in the ranges that the model's scales state.
"""
import argparse
import statistics
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple, get_args

import numpy as np

from graphq.base.platform import process_cores
from graphq.commands.arrays import INPUTS, input_arrays, realistic, sample_beside
from graphq.commands.peers import PEERS, alternate, as_written, cosine, difference, model_file
from graphq.commands.shared import MODEL, NUMBERS, Arguments, comma_separated, compiled, option, save_graph, write
from graphq.compile import Precision
from graphq.errors import ParseError
from graphq.ir import Graph, counted, named_outputs
from graphq.kernels.threads.team import run_until_settled
from graphq.model.files import load_graph


class Variant(NamedTuple):
    """One row of the table: graphq at an ISA level, or another engine, with `threads` threads."""

    name: str
    threads: int
    run: Callable[[Mapping[str, np.ndarray]], list[np.ndarray]]
    precision: Precision | None
    """The precision of graphq's row; None for another engine."""


ARGUMENTS: Arguments = (
    *MODEL,
    option("--threads", metavar="N,...",
           help="thread counts (default: 1, and all cores); graphq uses at most one for each core"),
    option("--isa", type=comma_separated, metavar="LEVEL,...", help="ISA levels of graphq (default: the best)"),
    option("--precision", type=comma_separated, default=["f32"], metavar="NAME,...",
           help=f"precisions of graphq: {', '.join(get_args(Precision))} (default f32)"), *NUMBERS,
    option("--peer", type=comma_separated, default=[], metavar="NAME,...", help=f"other engines: {', '.join(PEERS)}"),
    option("--seconds", type=float, default=1.0, metavar="S", help="seconds per row (default 1)"), *INPUTS)


def run(options: argparse.Namespace) -> int:
    """Time all rows; returns 1 if graphq's own results differ."""
    if not 0 <= options.seconds <= 3600:
        raise ParseError(f"--seconds must be in [0, 3600], got {options.seconds}")
    counts = _threads(options.threads)
    for name in options.peer:
        if name not in PEERS:
            raise ParseError(f"--peer: there is no engine '{name}'; there are {', '.join(PEERS)}")
    peers = [PEERS[name] for name in options.peer]
    graph = load_graph(options.file)
    arrays, source = _arrays(graph, options)
    wanted: list[np.ndarray] = []
    compared = None
    with tempfile.TemporaryDirectory() as folder:
        variants = [_ours(graph, argparse.Namespace(**vars(options) | {"isa": level, "threads": threads,
                                                                    "precision": precision}))
                 for threads, level, precision in product(counts, options.isa or [None], options.precision or ["f32"])]
        if peers:
            path = str(options.file)
            if options.file.suffix != ".onnx":
                path = f"{folder}/model.onnx"
                save_graph(graph, Path(path))
            wanted, compared = as_written(path, graph, arrays)
            variants += [Variant(name, threads, model_file(name, path, arrays, threads), None)
                      for threads, name in product(counts, peers)]
        variants.sort(key=lambda variant: counts.index(variant.threads))
        for variant in variants:
            run_until_settled(partial(variant.run, arrays))
        results = [variant.run(arrays) for variant in variants]
        times = alternate([partial(variant.run, arrays) for variant in variants], options.seconds * len(variants))
    rows: list[dict[str, Any]] = []
    for variant, result, spent in zip(variants, results, times, strict=True):
        first = next(k for k, x in enumerate(variants) if x.threads == variant.threads)
        median, base = statistics.median(spent), times[first]
        speedup, of_least = median / statistics.median(base), min(spent) / min(base)
        rows.append({"name": variant.name, "threads": variant.threads, "median_ms": median, "least_ms": min(spent),
                     "speedup": speedup, "speedup_of_least": of_least,
                     "runs": len(spent),
                     "difference": max(map(difference, results[first], result), default=0.0),
                     "cosine": min(map(cosine, wanted, result), default=None)})
    ours = [[result for variant, result in zip(variants, results, strict=True) if variant.precision == p]
            for p in get_args(Precision)]
    equal = all(same_results(results[0], other) for results in ours for other in results[1:])
    title = f"; {source}; cosines to {compared}" if peers else ""
    write(options, "\n".join([table(graph, arrays, rows, title), *["graphq's own results differ"] * (not equal)]),
          {"graph": graph.name, "inputs": {n: list(x.shape) for n, x in arrays.items()}, "source": source,
           "compared_with": compared, "rows": rows, "equal": equal})
    return 0 if equal else 1


def _arrays(graph: Graph, options: argparse.Namespace) -> tuple[dict[str, np.ndarray], str]:
    """Make the arrays of all inputs. The second result says where the arrays come from."""
    if not options.input and not options.shape and (sample := sample_beside(options.file, graph)):
        return sample, f"inputs from {options.file.with_suffix('.npz').name}"
    arrays = input_arrays(graph, options)
    return (arrays, "given inputs") if options.input else (realistic(graph, arrays), "random inputs")


def _threads(text: str | None) -> list[int]:
    if text is None:
        return sorted({1, len(process_cores())})
    if not all(n.isascii() and n.isdecimal() and 0 < int(n) < 1 << 16 for n in text.split(",")):
        raise ParseError(f"--threads takes thread counts such as 1,2, got {text}")
    return list(dict.fromkeys(map(int, text.split(","))))


def _ours(graph: Graph, options: argparse.Namespace) -> Variant:
    model, precision = compiled(graph, options), options.precision

    def call(arrays: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        return list(named_outputs(model.outputs, model(arrays)).values())

    name = f"graphq {model.level.name}" + f", {precision}" * (precision != "f32")
    return Variant(name, options.threads, call, precision)


def same_results(left: list[np.ndarray], right: list[np.ndarray]) -> bool:
    """Whether both lists have the same arrays, bit for bit."""
    return all(x.dtype == y.dtype and x.shape == y.shape and x.tobytes() == y.tobytes()
               for x, y in zip(left, right, strict=True))


def table(graph: Graph, arrays: Mapping[str, np.ndarray], rows: list[dict[str, Any]], title: str) -> str:
    """The rows as text, a table for each thread count."""
    shapes = ", ".join(f"{name}=" + "x".join(map(str, x.shape)) for name, x in arrays.items())
    lines, cosines = [f"{graph.name}, {shapes}{title}"], "" if rows[0]["cosine"] is None else "   cosine"
    width = max(18, *(len(row["name"]) for row in rows))
    for threads in dict.fromkeys(row["threads"] for row in rows):
        titles = f"{'median ms (least)':>18s} {'speedup over':>14s} differs{cosines}"
        lines.append(f"{counted(threads, 'thread'):{width + 2}s} {titles}")
        for row in (r for r in rows if r["threads"] == threads):
            times = f"{row['median_ms']:.4g} ({row['least_ms']:.4g})"
            faster = f"{row['speedup']:.2f} ({row['speedup_of_least']:.2f})"
            near = f" {row['cosine']:8.6f}" if cosines else ""
            lines.append(f"  {row['name']:{width}s} {times:>18s} {faster:>14s} {row['difference']:7.2g}{near}")
    return "\n".join(lines)

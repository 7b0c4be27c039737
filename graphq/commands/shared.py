"""Helpers for commands: save graphs, add options, compile a model with the options, print text or JSON."""
from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

import numpy as np

from graphq.compile import Precision, Ties, compile
from graphq.errors import ParseError
from graphq.ir import Graph
from graphq.ir.names import counted
from graphq.ir.text import to_text
from graphq.model.compiled_graph import CompiledGraph
from graphq.model.loading import load_compiled
from graphq.onnx import save_onnx

MODEL = "an ONNX file, a oneDNN Graph file, a saved model or a text form"


def save_graph(graph: Graph, path: Path, opset: int = 21) -> None:
    """Write a graph to a file in the format of its suffix; `opset` is for ONNX. Raises GraphqError or OSError."""
    from graphq.onednn.files import save_onednn_json

    if path.suffix == ".onnx":
        save_onnx(graph, path, opset=opset)
    elif path.suffix == ".json":
        save_onednn_json(graph, path)
    else:
        path.write_text(to_text(graph) + "\n", encoding="utf-8")


def add_model(parser: argparse.ArgumentParser) -> None:
    """Add the argument MODEL and the option --json."""
    parser.add_argument("file", type=Path, metavar="MODEL", help=MODEL)
    add_json(parser)


def add_json(parser: argparse.ArgumentParser) -> None:
    """Add the option --json."""
    parser.add_argument("--json", action="store_true", help="print JSON (docs/command_line.md has the fields)")


def add_target(parser: argparse.ArgumentParser) -> None:
    """Add the options --isa, --threads, --precision and --ties of `compile`, and --ranges-by-row."""
    parser.add_argument("--isa", metavar="LEVEL", help="the highest ISA level to use")
    parser.add_argument("--threads", type=int, metavar="N",
                        help="at most N threads, and at most one for each core")
    parser.add_argument("--precision", choices=get_args(Precision), default="f32",
                        help="the type in which f32 matmuls and convolutions read their operands (default f32)")
    add_numbers(parser)


def add_numbers(parser: argparse.ArgumentParser) -> None:
    """Add the options --ties and --ranges-by-row."""
    parser.add_argument("--ties", choices=get_args(Ties), default="settled",
                        help="compute outputs near rounding ties as the graph is written (settled, the default), or "
                             "leave them as the formula has them, which takes less time")
    parser.add_argument("--ranges-by-row", action="store_true",
                        help="quantize activations of dynamically quantized matmuls per token; this changes numbers")


def numbers(options: argparse.Namespace) -> dict[str, Any]:
    """The arguments of `compile` that affect the numerical results, not only the speed."""
    if not options.ranges_by_row:
        return {"precision": options.precision, "ties": options.ties}
    from graphq.passes import PRECISIONS, RangesByRow

    return {"passes": (RangesByRow, *PRECISIONS[options.precision]), "ties": options.ties}


def compiled(graph: Graph, options: argparse.Namespace) -> CompiledGraph:
    """Load the model if the file is a saved model; otherwise compile the file's graph.

    Compiled models in the cache are not used, because a command's report must not depend on earlier commands.
    """
    path, isa, threads = options.file, options.isa, options.threads
    if path.suffix != ".graphq":
        made = compile(graph, isa=isa, threads=threads, cache="kernels", **numbers(options))
        return _told(made, threads)
    for option, is_given in (("--ranges-by-row", options.ranges_by_row), ("--ties formula", options.ties != "settled"),
                             (f"--precision {options.precision}", options.precision != "f32")):
        if is_given:
            raise ParseError(f"{option}: {path} is already compiled; give the option to `graphq compile`")
    return _told(load_compiled(path, isa=isa, threads=threads), threads)


def _told(model: CompiledGraph, threads: int | None) -> CompiledGraph:
    """Return the model; print a warning to stderr if it uses fewer threads than --threads asks for."""
    if threads is not None and model.threads < threads:
        print(f"--threads {threads}: {counted(model.threads, 'thread')}, at most one for each core", file=sys.stderr)
    return model


def comma_separated(text: str) -> list[str]:
    """Split a text such as `a, b` into names; used as the type of options that take several names."""
    return [name.strip() for name in text.split(",") if name.strip()]


def write(options: argparse.Namespace, text: object, data: Any) -> None:
    """Print `text` or, with --json, `data`."""
    print(json.dumps(plain(data), indent=1) if options.json else text, flush=True)


def plain(data: Any) -> Any:
    """Convert `data` for JSON: NumPy's numbers become Python's numbers; NaN and infinities become null."""
    if isinstance(data, Mapping):
        return {str(name): plain(x) for name, x in data.items()}
    if isinstance(data, list | tuple):
        return [plain(x) for x in data]
    if isinstance(data, np.generic):
        return plain(data.item())
    if isinstance(data, float) and not math.isfinite(data):
        return None
    return data

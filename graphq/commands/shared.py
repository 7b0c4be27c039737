"""Helpers for commands: options, save graphs, compile a model with the options, print text or JSON."""
import argparse
import json
import math
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias, get_args

import numpy as np

from graphq.compile import Precision, Ranges, Ties, compile
from graphq.errors import ParseError
from graphq.ir import Graph, counted, to_text
from graphq.model.compiled_graph import CompiledGraph
from graphq.model.files import load_graph
from graphq.model.kept import load_compiled
from graphq.onnx import save_onnx
from graphq.passes import RangesByRow, run_passes

Arguments: TypeAlias = tuple[Callable[[argparse.ArgumentParser], object], ...]
"""Functions that add arguments to the parser of a command."""


def option(*names: str, **settings: Any) -> Callable[[argparse.ArgumentParser], object]:
    """An argument for the tuple `ARGUMENTS` of a command; `add_argument` of a parser gets these names and settings."""
    return lambda parser: parser.add_argument(*names, **settings)


ELIDE = option("--elide", type=int, metavar="N", help="cut lists and arrays after N elements")
JSON = option("--json", action="store_true", help="print JSON (docs/command_line.md has the fields)")
MODEL: Arguments = (
    option("file", type=Path, metavar="MODEL",
           help="an ONNX, PyTorch (.pt2) or oneDNN Graph file, a saved model or a text form"),
    JSON)
RANGES = option("--ranges", choices=get_args(Ranges), default="tensor",
                help="per-token dynamic quantization (rows): each row of an activation that the model quantizes at "
                     "run time gets its own range, instead of the whole tensor (the default)")
NUMBERS: Arguments = (  # without the precision: `graphq bench` takes several
    option("--ties", choices=get_args(Ties), default="settled",
           help="compute outputs near rounding ties as the graph is written (settled, the default), or leave them as "
                "the formula has them, which takes less time"),
    RANGES)
PRECISION = option("--precision", choices=get_args(Precision), default="f32",
                   help="the type in which f32 matmuls and convolutions read their operands (default f32)")
TARGET: Arguments = (
    option("--isa", metavar="LEVEL", help="the highest ISA level to use"),
    option("--threads", type=int, metavar="N", help="at most N threads, and at most one for each core"),
    PRECISION, *NUMBERS)


def save_graph(graph: Graph, path: Path, opset: int = 21) -> None:
    """Write a graph to a file in the format of its suffix; `opset` is for ONNX. Raises GraphqError or OSError."""
    from graphq.onednn.files import save_onednn_json

    if path.suffix == ".onnx":
        save_onnx(graph, path, opset=opset)
    elif path.suffix == ".json":
        save_onednn_json(graph, path)
    else:
        path.write_text(to_text(graph) + "\n", encoding="utf-8")


def with_ranges(options: argparse.Namespace) -> Graph:
    """Load the file's graph. With `--ranges rows`, its run-time ranges become ranges by row."""
    graph = load_graph(options.file)
    if options.ranges == "rows":
        run_passes(graph, [RangesByRow])
    return graph


def numbers(options: argparse.Namespace) -> dict[str, Any]:
    """The arguments of `compile` that affect the numerical results, not only the speed."""
    return {"precision": options.precision, "ties": options.ties, "ranges": options.ranges}


def is_saved(options: argparse.Namespace) -> bool:
    """Whether the file is a saved model. Raises ParseError if it is, and an option would change its numbers."""
    path: Path = options.file
    if path.suffix != ".graphq":
        return False
    for name, usual in ("ranges", "tensor"), ("ties", "settled"), ("precision", "f32"):
        if (given := getattr(options, name)) != usual:
            raise ParseError(f"--{name} {given}: {path} is already compiled; give the option to `graphq compile`")
    return True


def compiled(graph: Graph, options: argparse.Namespace) -> CompiledGraph:
    """Load the model if the file is a saved model; otherwise compile the file's graph.

    Compiled models in the cache are not used, because a command's report must not depend on earlier commands. A line on
    stderr says if the model uses fewer threads than --threads asks for.
    """
    isa, threads = options.isa, options.threads
    if is_saved(options):
        model = load_compiled(options.file, isa=isa, threads=threads)
    else:
        model = compile(graph, isa=isa, threads=threads, cache="kernels", **numbers(options))
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

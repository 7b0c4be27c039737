"""The commands `graphq quantize` and `graphq compare`."""
from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

from graphq.errors import GraphError, ParseError
from graphq.onnx import load_onnx, save_onnx
from graphq.quantization.automatic import automatic
from graphq.quantization.calibrate import Batch
from graphq.quantization.compare import compare
from graphq.quantization.data import load_data
from graphq.quantization.quantize import quantize
from graphq.quantization.scheme import Scheme


def run_quantize(options: argparse.Namespace) -> None:
    """Quantize a file, and say by which setting."""
    graph = load_onnx(options.file)
    given = {name: value for name in ("method", "activations", "mode", "weight_bits", "symmetric", "exclude")
             if (value := getattr(options, name))}
    scheme = Scheme(**given) if given else None
    needs_data = scheme is None or scheme.mode == "static"
    if needs_data and options.data is None:
        raise ParseError("quantize needs --data, but for --mode dynamic and weight_only")
    batches = load_data(options.data, graph) if options.data else None
    if scheme is None:
        assert batches is not None
        with bar(None, "settings") as tried:
            choice = automatic(graph, batches, progress=lambda setting: shown(tried, setting))
        made = choice.graph
        print(f"1 - cosine with f32 of the settings tried:\n{choice}")
    else:
        with bar(batches, "batches") as read:
            made = quantize(graph, read if needs_data else batches, scheme)
    if not any(n.op.name.endswith("quantize") for n in made.nodes):
        raise GraphError(f"{options.file} has no matmul or convolution in f32 to quantize")
    save_onnx(made, options.out)
    sizes = [path.stat().st_size / 1e6 for path in (options.file, options.out)]
    print(f"{options.out}: {sizes[1]:.2f} MB, {options.file} has {sizes[0]:.2f} MB")


def run_compare(options: argparse.Namespace) -> None:
    """Print how two files' tensors differ."""
    left, right = load_onnx(options.file), load_onnx(options.against)
    found = compare(left, right, load_data(options.data, right), rank=not options.no_rank)
    print(found.json() if options.json else found)


def bar(items: Sequence[Batch] | None, what: str) -> Any:
    """A progress bar over items, or one that is updated, on a terminal where tqdm is installed; else the items."""
    if sys.stderr.isatty():
        try:
            from tqdm import tqdm
        except ImportError:
            pass
        else:
            return tqdm(items, desc=what, leave=False)
    return nullcontext(items)


def shown(bar: Any, text: str) -> None:
    """One more step of a bar, if there is one."""
    if bar is not None:
        bar.set_postfix_str(text)
        bar.update()

"""What most commands need: graphs of files of any kind, and text or JSON as their output."""
from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from graphq.errors import ParseError
from graphq.ir import Graph
from graphq.ir.text import parse, to_text
from graphq.ir.verify import verify
from graphq.onnx import load_onnx, save_onnx


def load_graph(path: Path) -> Graph:
    """The graph of a file, of the kind that its name says: .onnx, oneDNN Graph's .json, else the text form.

    Raises GraphqError or OSError.
    """
    from graphq.onednn.files import load_onednn_json

    if path.suffix == ".json":
        return load_onednn_json(path)
    if path.suffix == ".onnx":
        return load_onnx(path)
    try:
        graph = parse(path.read_text(encoding="utf-8"))
    except UnicodeDecodeError as error:
        raise ParseError(f"{path}: not a graph's text form (it cannot be decoded: {error.reason}); the names of ONNX "
                         "models end in .onnx, those of oneDNN Graph files in .json") from None
    verify(graph)
    return graph


def save_graph(graph: Graph, path: Path) -> None:
    """Write a file of the kind that its name says; raises GraphqError or OSError."""
    from graphq.onednn.files import save_onednn_json

    if path.suffix == ".onnx":
        save_onnx(graph, path)
    elif path.suffix == ".json":
        save_onednn_json(graph, path)
    else:
        path.write_text(to_text(graph) + "\n", encoding="utf-8")


def add_model(parser: argparse.ArgumentParser) -> None:
    """A MODEL, and --json."""
    parser.add_argument("file", type=Path, metavar="MODEL", help="an ONNX file, a oneDNN Graph file or a text form")
    add_json(parser)


def add_json(parser: argparse.ArgumentParser) -> None:
    """The option for scripts."""
    parser.add_argument("--json", action="store_true", help="print JSON (docs/command_line.md has the fields)")


def write(options: argparse.Namespace, text: object, data: Any) -> None:
    """Print the text, or with --json the data."""
    print(json.dumps(data, indent=1) if options.json else text, flush=True)

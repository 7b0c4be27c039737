"""Write one HTML page that shows a model before and after the passes: partitions, reasons, times, memory."""
from __future__ import annotations

import argparse
from pathlib import Path

from graphq.commands.arrays import add_inputs, input_arrays
from graphq.commands.shared import add_target, compiled, load_graph


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """MODEL, --out, --profile with arrays, the target."""
    parser.add_argument("file", type=Path, metavar="MODEL", help="an ONNX file, a oneDNN Graph file or a text form")
    parser.add_argument("--out", type=Path, required=True, metavar="PAGE.html", help="the file to write")
    parser.add_argument("--profile", action="store_true", help="run it, and show times and the timeline")
    add_inputs(parser)
    add_target(parser)


def run(options: argparse.Namespace) -> None:
    """Compile it, run it if that is asked for, and write the page. Open shapes are known after a run alone."""
    graph = load_graph(options.file)
    model = compiled(options, graph)
    if options.profile:
        model.report(options.out, input_arrays(graph, options))
    else:
        model.report(options.out)

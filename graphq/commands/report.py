"""Write an HTML page that shows a model before and after the passes: partitions, reasons, kernels, times, memory."""
from __future__ import annotations

import argparse
from pathlib import Path

from graphq.commands.arrays import add_inputs, input_arrays
from graphq.commands.shared import add_model, add_target, compiled, write
from graphq.model.files import load_graph


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add MODEL, --out, --profile with the options for its input arrays, and the target."""
    add_model(parser)
    parser.add_argument("-o", "--out", type=Path, metavar="PAGE.html", help="the file to write (default: MODEL.html)")
    parser.add_argument("--profile", action="store_true", help="run the model, and show times and the timeline")
    add_inputs(parser)
    add_target(parser)


def run(options: argparse.Namespace) -> None:
    """Compile the model, profile it with --profile, and write the page."""
    graph = load_graph(options.file)
    out = options.out or options.file.with_suffix(".html")
    model = compiled(graph, options)
    if options.profile:
        model.report(out, input_arrays(graph, options), title=options.file.name)
    else:
        model.report(out, title=options.file.name)
    nbytes = out.stat().st_size
    write(options, f"{out}: {nbytes} bytes", {"page": str(out), "bytes": nbytes})

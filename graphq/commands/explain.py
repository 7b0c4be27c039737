"""Explain a compiled model: which operations fused, which did not and why, and which kernels run (docs/explain.md)."""
from __future__ import annotations

import argparse

from graphq.commands.arrays import add_inputs, input_arrays
from graphq.commands.shared import add_model, add_target, compiled, write
from graphq.model.files import load_graph


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add MODEL, the options of the report, and the target."""
    add_model(parser)
    parser.add_argument("--value", metavar="NAME",
                        help="only the partition of one value or ONNX node, or why it is in no partition")
    parser.add_argument("--full", action="store_true", help="print all lines of a large model's report")
    parser.add_argument("--kernels", action="store_true", help="also show the kernels' instructions and speed")
    parser.add_argument("--profile", action="store_true",
                        help="run the model, and show the share of the time of each cause")
    add_inputs(parser)
    add_target(parser)


def run(options: argparse.Namespace) -> None:
    """Compile the model, and print the report."""
    graph = load_graph(options.file)
    model = compiled(graph, options)
    profile = model.profile(input_arrays(graph, options)) if options.profile else None
    what = {"kernels": options.kernels, "full": options.full, "profile": profile}
    if options.json:
        write(options, "", model.explain(options.value, **what, format="json"))
    else:
        print(model.explain(options.value, **what))

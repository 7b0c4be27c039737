"""Explain a compiled model: which operations fused, which did not and why, and which kernels run (docs/explain.md)."""
import argparse

from graphq.commands.arrays import INPUTS, input_arrays
from graphq.commands.shared import MODEL, TARGET, Arguments, compiled, option, write
from graphq.model.files import load_graph

ARGUMENTS: Arguments = (
    *MODEL,
    option("--value", metavar="NAME",
           help="only the partition of one value or ONNX node, or why it is in no partition"),
    option("--full", action="store_true", help="print all lines of a large model's report"),
    option("--kernels", action="store_true", help="also show the kernels' instructions and speed"),
    option("--profile", action="store_true", help="run the model, and show the share of the time of each cause"),
    *INPUTS, *TARGET)


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

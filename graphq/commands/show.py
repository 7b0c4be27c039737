"""Print a graph in text form, verified and in normal form.

With --json: name, types of inputs and outputs, the number of nodes per operation, and the text.
"""
import argparse
from collections import Counter

from graphq.commands.shared import ELIDE, MODEL, write
from graphq.ir.text import to_text
from graphq.model.files import load_graph

ARGUMENTS = (*MODEL, ELIDE)


def run(options: argparse.Namespace) -> None:
    """Print the graph."""
    graph = load_graph(options.file)
    text = to_text(graph, elide=options.elide)
    outputs = dict(zip(graph.output_names, graph.outputs, strict=True))
    write(options, text, {"name": graph.name, "inputs": {str(v.name): str(v.type) for v in graph.inputs},
                          "outputs": {name: str(v.type) for name, v in outputs.items()},
                          "operations": dict(Counter(n.op.name for n in graph.nodes)), "text": text})

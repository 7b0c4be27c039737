"""Say what fused in a model, what did not and why, and which kernels run it (docs/explain.md)."""
from __future__ import annotations

import argparse

from graphq.commands.shared import add_model, add_target, compiled, write
from graphq.files import load_graph


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """MODEL, what to say, the target."""
    add_model(parser)
    parser.add_argument("--value", metavar="NAME", help="say of one value in which partition it is, or why in none")
    parser.add_argument("--full", action="store_true", help="all lines of a large model's report")
    parser.add_argument("--kernels", action="store_true", help="also the kernels' instructions and speed")
    add_target(parser)


def run(options: argparse.Namespace) -> None:
    """Compile it, and print the report."""
    model = compiled(options.file, load_graph(options.file), options.isa, options.threads)
    what = {"kernels": options.kernels, "full": options.full}
    if options.json:
        write(options, "", model.explain(options.value, **what, format="json"))
    else:
        print(model.explain(options.value, **what))

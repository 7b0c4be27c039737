"""Say what fused in a model, what did not and why, and which kernels run it."""
from __future__ import annotations

import argparse

from graphq.commands.shared import add_model, add_target, compiled, load_graph


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """MODEL, --kernels, the target."""
    add_model(parser)
    add_target(parser)
    parser.add_argument("--kernels", action="store_true", help="also their instructions and speed on this machine")


def run(options: argparse.Namespace) -> None:
    """Compile it, and print the report."""
    print(compiled(options, load_graph(options.file)).explain(kernels=options.kernels))

"""Print a graph after the passes, and the near misses of their rewrites."""
from __future__ import annotations

import argparse

from graphq.commands.shared import add_model, load_graph, write
from graphq.ir.text import to_text
from graphq.passes import run_passes


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """MODEL, --elide."""
    add_model(parser)
    parser.add_argument("--elide", type=int, metavar="N", help="cut lists and arrays after N elements")


def run(options: argparse.Namespace) -> None:
    """Run the passes, and print."""
    graph = load_graph(options.file)
    refusals = run_passes(graph)
    text = to_text(graph, elide=options.elide)
    lines = [f"# {r.rewrite}: {r.node}: {r.reason}" for r in refusals]
    write(options, "\n".join([text, *lines]), {"graph": text, "near_misses": [
        {"rewrite": r.rewrite, "node": r.node, "reason": r.reason} for r in refusals]})

"""Print a model's fingerprint, a digest of all that decides its outputs (docs/numbers.md)."""
import argparse
import sys

from graphq.commands.shared import MODEL, NUMBERS, PRECISION, Arguments, is_saved, write
from graphq.model import fingerprint
from graphq.model.files import load_graph
from graphq.model.kept import load_compiled
from graphq.passes import PIPELINE
from graphq.passes.pipeline import passes_of

ARGUMENTS: Arguments = (*MODEL, PRECISION, *NUMBERS)


def run(options: argparse.Namespace) -> None:
    """Print the fingerprint. A graph is not compiled; a saved model has its own options.

    Operations that it does not cover, because their bits may differ between machines, are named on stderr.
    """
    graph = load_graph(options.file)
    if is_saved(options):
        found = load_compiled(options.file).fingerprint
    else:
        passes = passes_of(None, options.precision, options.ranges, options.ties)
        found = fingerprint.fingerprint(graph, passes or PIPELINE)
    loose = fingerprint.not_covered(graph)
    write(options, found, {"fingerprint": found, "numbers": fingerprint.NUMBERS, "not_covered": loose})
    for line in loose:
        print(f"bits may differ between machines: {line}", file=sys.stderr)

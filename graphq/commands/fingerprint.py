"""Print a model's fingerprint, a digest of all that decides its outputs (docs/numbers.md)."""
import argparse
from typing import get_args

from graphq.commands.shared import MODEL, NUMBERS, Arguments, option, write
from graphq.compile import Precision
from graphq.model import fingerprint
from graphq.model.files import load_graph
from graphq.model.kept import load_compiled
from graphq.passes import PIPELINE
from graphq.passes.pipeline import passes_of

ARGUMENTS: Arguments = (
    *MODEL, option("--precision", choices=get_args(Precision), default="f32", help="as for `graphq compile`"), *NUMBERS)


def run(options: argparse.Namespace) -> None:
    """Print the fingerprint. Nothing is compiled; a saved model has its own options."""
    if options.file.suffix == ".graphq":
        found = load_compiled(options.file).fingerprint
    else:
        passes = passes_of(None, options.precision, options.ranges, options.ties)
        found = fingerprint.fingerprint(load_graph(options.file), PIPELINE if passes is None else passes)
    write(options, found, {"fingerprint": found, "numbers": fingerprint.NUMBERS})

"""Shrink a failing graph to a small graph that still fails, as llvm-reduce does.

    graphq reduce MODEL --check ./still-fails.sh --out small.txt
    graphq reduce MODEL --check 'python check.py {}'
    graphq reduce MODEL --pass mine.py:MyRewrite

--check COMMAND gets the path of a smaller graph, a candidate, as its last argument or instead of {}. The command must
exit with 0 if the candidate still fails, and with another code if not. The command runs in a shell, on a file in text
form, or with --same-kind in MODEL's own format. --pass NAME is a ready-made check: a candidate fails if the pass
changes the candidate's numbers or leaves the graph inconsistent. A candidate with open dimensions is also checked with
sizes for these dimensions. A candidate that makes the pass raise does not count as failing; use --check to shrink a
graph that makes something raise. The smallest graph is printed, or written to --out; the suffix selects the format:
.onnx, .json or text. The exit code is 1 if MODEL itself does not fail: then there is nothing to shrink.

With --json: graph, nodes, trials, and test (with --pass, else null).
"""
import argparse
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from graphq.commands.passes import named_pass
from graphq.commands.shared import MODEL, Arguments, option, save_graph, write
from graphq.errors import GraphqError, ParseError
from graphq.ir import Graph, to_text
from graphq.model.files import load_graph
from graphq.rewrite.rule import Pass
from graphq.validation.printed import as_test
from graphq.validation.reduce import TRIALS, reduce_graph
from graphq.validation.validator import failing, failure, variants


def _add_checks(parser: argparse.ArgumentParser) -> None:
    check = parser.add_mutually_exclusive_group(required=True)
    check.add_argument("--check", metavar="COMMAND", help="exits with 0 if a candidate still fails")
    check.add_argument("--pass", dest="step", metavar="NAME", help="a pass that gets the graph wrong")


ARGUMENTS: Arguments = (
    *MODEL, _add_checks,
    option("--out", type=Path, metavar="FILE", help="write the graph there instead of printing it"),
    option("--same-kind", action="store_true", help="candidates are files of MODEL's kind"),
    option("--trials", type=int, default=TRIALS, metavar="N", help=f"try at most N graphs (default {TRIALS})"))


def run(options: argparse.Namespace) -> int:
    """Shrink the graph; returns 1 if MODEL itself does not fail."""
    if options.trials < 0:
        raise ParseError(f"--trials must not be negative, got {options.trials}")
    graph, tried = load_graph(options.file), 0
    step = None if options.step is None else named_pass(options.step)
    with tempfile.TemporaryDirectory(prefix="graphq-reduce-") as folder:
        suffix = options.file.suffix if options.same_kind else ".txt"
        check = _command(options.check, Path(folder) / f"candidate{suffix}") if step is None else partial(failure, step)

        def interesting(candidate: Graph) -> bool:
            nonlocal tried
            tried += 1
            found = bool(check(candidate))
            if found and sys.stderr.isatty():
                print(f"{tried} of at most {options.trials} graphs tried, {len(candidate.nodes)} nodes left",
                      file=sys.stderr)
            return found

        start = graph if step is None else failing(step, graph) or graph
        if not interesting(start):
            print(f"graphq: {options.file} itself does not fail: "
                  + ("the check does not exit with 0" if step is None else _no_fault(step, graph)),
                  file=sys.stderr)
            return 1
        least = reduce_graph(start, interesting, trials=options.trials)
    if options.out is not None:
        save_graph(least, options.out)
    text, test = to_text(least), None if step is None else as_test(step, least)
    shown = f"{len(least.nodes)} nodes after {tried} trials: {options.out}" if options.out else test or text
    write(options, shown, {"graph": text, "nodes": len(least.nodes), "trials": tried, "test": test})
    return 0


def _command(command: str, path: Path) -> Callable[[Graph], bool]:
    """Make the check for --check COMMAND: save a graph at `path`; the graph still fails if the command exits with 0."""
    def interesting(graph: Graph) -> bool:
        try:
            save_graph(graph, path)
        except GraphqError:
            return False
        place = shlex.quote(str(path))
        whole = command.replace("{}", place) if "{}" in command else f"{command} {place}"
        return subprocess.run(whole, shell=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode == 0

    return interesting


def _no_fault(step: Pass, graph: Graph) -> str:
    """Say why MODEL does not fail with --pass: the pass raises, or it keeps the results."""
    for copy in variants(graph):
        try:
            step(copy)
        except Exception as e:  # a user's pass may raise anything
            return f"the pass raises {type(e).__name__}: {e}"
    return "the pass gets it right"

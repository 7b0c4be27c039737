"""Run passes on a graph and print it, as opt of LLVM and mlir-opt do.

    graphq passes MODEL                                       the graph after the whole pipeline, and near misses
    graphq passes MODEL --list                                the names of the pipeline's passes, in their order
    graphq passes MODEL --passes eliminate_dead_code,canonicalize --print-after all
    graphq passes MODEL --passes mine.py:MyRewrite --verify numeric
    graphq passes MODEL --ranges rows                         RangesByRow runs first

--passes takes names of the pipeline's passes, including the passes inside canonicalize, and your own passes as
FILE.py:NAME or module:NAME. --print-after prints to stderr. --verify numeric compares the graph's results before and
after each pass on adversarial inputs, and prints one line per pass instead of the graph. If a pass changes numbers, the
command prints a test with the smallest graph that shows the change, and exits with 1.

With --json: graph, near_misses (rewrite, node, reason), changes (pass, count) and fault (pass, message, test) or null.
"""
import argparse
import sys
from collections.abc import Sequence
from typing import Any, TextIO

from graphq.base.paths import named_object
from graphq.base.progress import bars
from graphq.commands.shared import ELIDE, MODEL, RANGES, Arguments, comma_separated, option, write
from graphq.errors import ParseError, PassError
from graphq.ir import SHORT, Graph, counted, to_text
from graphq.ir.verify import verify
from graphq.model.files import load_graph
from graphq.passes import PIPELINE, Pass, RangesByRow, find_pass, run_passes
from graphq.rewrite.fixpoint import Fixpoint, pass_name
from graphq.validation.validator import validate

ARGUMENTS: Arguments = (
    *MODEL,
    option("--passes", type=comma_separated, metavar="A,B", help="run these passes instead of the pipeline"),
    option("--print-after", type=comma_separated, default=[], metavar="all|changed|A,B",
           help="print the graph after every pass, after passes that changed it, or after named passes"),
    option("--verify", choices=["graph", "numeric"],
           help="check after each pass that the graph is consistent, or (numeric) also that numbers stay"),
    option("--list", action="store_true", help="print the names of the passes instead"),
    RANGES, ELIDE)


def run(options: argparse.Namespace) -> int:
    """Run the passes, and print; returns 1 if --verify numeric finds a pass that changes numbers."""
    steps = PIPELINE if options.passes is None else [named_pass(name) for name in options.passes]
    steps = [RangesByRow, *steps] if options.ranges == "rows" else steps
    if options.list:
        names = list(_listed(steps))
        write(options, "\n".join(names), [name.strip() for name in names])
        return 0
    graph = load_graph(options.file)
    watch, source = _Watch(options), graph.copy()
    refusals = run_passes(graph, steps, after=watch)
    verdicts = _Verdicts(steps, sys.stderr if options.json else sys.stdout)
    try:
        if options.verify == "numeric":
            with bars(False):  # no bars, because the lines of `verdicts` show the progress
                validate(source, steps, verdicts)
    except PassError as error:
        verdicts.line(error.name, "WRONG")
        write(options, str(error), {"graph": None, "near_misses": [], "changes": watch.changes,
                                    "fault": {"pass": error.name, "message": str(error), "test": error.test}})
        return 1
    text = to_text(graph, elide=options.elide)
    lines = [f"# {r.rewrite}: {r.node}: {r.reason}" for r in refusals]
    misses = [{"rewrite": r.rewrite, "node": r.node, "reason": r.reason} for r in refusals]
    write(options, verdicts.end() if options.verify == "numeric" else "\n".join([text, *lines]),
          {"graph": text, "near_misses": misses, "changes": watch.changes, "fault": None})
    return 0


class _Watch:
    """Called after each pass: records its changes and, if the options say so, prints and verifies the graph."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options, self.changes = options, list[dict[str, Any]]()
        self.after = {name if name in ("all", "changed") else pass_name(named_pass(name))
                      for name in options.print_after}

    def __call__(self, step: Pass, count: int, graph: Graph) -> None:
        name = pass_name(step)
        if count:
            self.changes.append({"pass": name, "count": count})
        if self.after & {"all", name} or count and "changed" in self.after:
            print(f"# after {name}: {count}\n{to_text(graph, elide=self.options.elide or SHORT)}\n", file=sys.stderr)
        if self.options.verify:
            verify(graph)


WIDTH = 12
"""The length of a progress bar in characters."""


class _Verdicts:
    """Called after each pass whose changes kept the results: prints a line with a progress bar."""

    def __init__(self, steps: Sequence[Pass], file: TextIO) -> None:
        self.steps, self.file = steps, file
        self.graph: Graph | None = None
        self.at, self.checked, self.graphs = 0, 0, 0

    def __call__(self, step: Pass, count: int, graph: Graph) -> None:
        if graph is not self.graph:
            self.graph, self.at, self.graphs = graph, 0, self.graphs + 1
            types = ", ".join(f"{graph.label(v)}: {v.type}" for v in graph.inputs)
            print(f"graph {graph.name}({types})", file=self.file, flush=True)
        last = len(self.steps) - 1
        self.at = next((k for k, now in enumerate(self.steps[self.at:last], self.at)
                        if step is now or isinstance(now, Fixpoint) and step in now.passes), last)
        inner = self.steps[self.at] is not step
        self.checked += bool(count)
        if count or not inner:
            self.line(pass_name(step), f"{counted(count, 'change')}, numbers are right" if count else "no change")

    def end(self) -> str:
        """The last line: the number of changes and of graphs that were checked."""
        return f"numbers are right after each of {counted(self.checked, 'change')} of {counted(self.graphs, 'graph')}"

    def line(self, name: str, verdict: str) -> None:
        """Print the verdict on a pass."""
        done = WIDTH * (self.at + 1) // len(self.steps)
        print(f"[{'#' * done}{'.' * (WIDTH - done)}] {self.at + 1}/{len(self.steps)} {name}: {verdict}", file=self.file,
              flush=True)


def _listed(steps: Sequence[Pass], indent: str = "") -> list[str]:
    lines = []
    for step in steps:
        lines.append(indent + pass_name(step))
        if isinstance(step, Fixpoint):
            lines += _listed(step.passes, indent + "  ")
    return lines


def named_pass(name: str) -> Pass:
    """The pass of this name in the pipeline, or the pass FILE.py:NAME or module:NAME.

    For a class, return an instance made without arguments. Raises GraphqError if no pass has the name.
    """
    if ":" not in name:
        return find_pass(PIPELINE, name)
    try:
        found = named_object(name)
        made = found() if isinstance(found, type) else found
    except (AttributeError, ImportError, SyntaxError, TypeError) as error:
        raise ParseError(f"pass {name}: {error}") from None
    if not callable(made):
        raise ParseError(f"pass {name}: {made!r} is not a pass: it must be callable")
    return made

"""Check after each pass that the pass kept the graph's numbers; if not, raise PassError with a test."""
from collections.abc import Sequence
from functools import partial

from graphq.errors import GraphError, GraphqError, PassError, VerifyError
from graphq.ir import Graph, counted
from graphq.ir.verify import verify
from graphq.passes import run_passes
from graphq.rewrite.fixpoint import After, pass_name, single_passes, tolerance_of
from graphq.rewrite.rule import Pass
from graphq.validation.compare import Baseline
from graphq.validation.inputs import adversarial_inputs, sized_copies
from graphq.validation.printed import as_test
from graphq.validation.reduce import reduce_graph
from graphq.validation.subgraphs import Snapshot, detached

TRIALS = 600
"""The most graphs to try while shrinking a graph that a pass gets wrong."""


def validate(graph: Graph, passes: Sequence[Pass], told: After | None = None) -> None:
    """Run the passes on a copy of `graph`, and compare the references before and after each pass.

    If the graph has open dimensions, the passes also run on copies with several sets of sizes, because the compiler
    specializes graphs for sizes before it runs passes. The passes also run on the bodies of if_else, loop and scan.
    The function `told` is called after each correct pass. Raises PassError for a pass that changes numbers by more than
    its `tolerance`, leaves the graph inconsistent or raises GraphError. Raises GraphError if the graph accepts none of
    the inputs.
    """
    for body in (x for n in graph.nodes for x in n.attrs.values() if isinstance(x, Graph) and x.outputs):
        validate(body, passes, told)
    for copy in variants(graph):
        check = Validator(copy)

        def after(step: Pass, count: int, graph: Graph, check: Validator = check) -> None:
            check(step, count, graph)
            if told is not None:
                told(step, count, graph)

        try:
            run_passes(copy, passes, after=after)
        except PassError:
            raise
        except GraphError as e:
            raise check.raised(passes, e) from e


def variants(graph: Graph) -> list[Graph]:
    """Copies of a graph to try passes on: the graph as it is, and the graph with sizes for its open dimensions."""
    sized = sized_copies(graph)
    return [detached(graph) for graph in (sized if sized[0] is graph else [graph, *sized])]


class Validator:
    """A callback that `run_passes` calls after each pass. It compares the graph with its state before the pass.

    The changed part of the graph is compared first, and then the whole graph. References run only after a pass that
    changed the graph. The reference of the whole graph runs once for each state of the graph.
    """

    def __init__(self, graph: Graph) -> None:
        self.snapshot = Snapshot(graph)
        self.baseline: Baseline | None = None

    def __call__(self, step: Pass, count: int, graph: Graph) -> None:
        """Raise PassError if the pass changed numbers."""
        changed = self.snapshot.changed(graph)
        if not (changed or count):
            return
        text = _inconsistent(graph)
        region = self._region(step, count) if changed else None
        if text is None and region is None and changed:
            text = self._difference(step, graph)
        if text is not None or region is not None:
            raise self._error(step, text, region)
        self.snapshot = Snapshot(graph)

    def raised(self, passes: Sequence[Pass], error: GraphError) -> GraphqError:
        """Make the error for a pass that raised `error`, with a test on the smallest failing graph.

        Returns `error` itself if no pass raises again on the graph from before the pass.
        """
        for step in single_passes(passes):
            if _raises(step, self.snapshot.graph):
                least = reduce_graph(self.snapshot.graph, partial(_raises, step), trials=TRIALS)
                return _with_test(step, f"raises {type(error).__name__}: {error}", least)
        return error

    def _difference(self, step: Pass, graph: Graph) -> str | None:
        """How the whole graph's results differ from the results before the pass; None if they do not.

        For a pass with a tolerance, only `_region` compares results. The graph after that pass is then the baseline for
        later passes.
        """
        if tolerance_of(step):
            self.baseline = None
            return None
        if self.baseline is None:
            self.baseline = Baseline(self.snapshot.graph, adversarial_inputs(self.snapshot.graph))
        return self.baseline.difference(graph)

    def _region(self, step: Pass, count: int) -> Graph | None:
        """Find a part of the old graph (before the pass) whose numbers the pass changes; None if there is no such part.

        The parts grow from the changed nodes until the pass applies to a part as often as to the whole graph. The whole
        graph is tried only for a pass with a tolerance; for other passes, `_difference` compares the whole graph.
        """
        for region in self.snapshot.regions():
            if len(region.nodes) == len(self.snapshot.graph.nodes) and not tolerance_of(step):
                return None
            applied, text = _tried(step, region)
            if text is not None:
                return region
            if applied >= max(count, 1):
                return None
        return None

    def _error(self, step: Pass, text: str | None, region: Graph | None) -> PassError:
        """Make the error. `text` says how the results of the graph differ; `region` is a part whose results differ."""
        name, start = pass_name(step), region or self.snapshot.graph
        if failure(step, start) is None:
            return PassError(f"pass {name} changed the graph's numbers: {text}; a second run on the same graph does "
                             "not, so there is no smaller graph", name, None)
        least = reduce_graph(start, lambda g: failure(step, g) is not None, trials=TRIALS)
        nodes = counted(len(start.nodes), "node")
        where = text or f"in a part of the graph, {nodes}: {failure(step, start)}"
        return _with_test(step, f"changed the graph's numbers: {where}", least, f", {failure(step, least)}")


def _with_test(step: Pass, fault: str, least: Graph, how: str = "") -> PassError:
    test, nodes = as_test(step, least), counted(len(least.nodes), "node")
    return PassError(f"pass {pass_name(step)} {fault}\nThe smallest graph that was found has {nodes}{how}. "
                     f"As a test:\n\n{test}", pass_name(step), test)


def _raises(step: Pass, graph: Graph) -> bool:
    try:
        step(detached(graph))
    except Exception as e:  # a user's pass may raise anything
        return isinstance(e, GraphError)
    return False


def failing(step: Pass, graph: Graph) -> Graph | None:
    """The first of a graph's `variants` that the pass gets wrong, or None. Raises GraphError if no size is accepted."""
    return next((copy for copy in variants(graph) if failure(step, copy) is not None), None)


def failure(step: Pass, graph: Graph, tolerance: float | None = None, *, may_raise: bool = True) -> str | None:
    """Run a pass on a copy of `graph`. Returns None, or a text on the fault: changed results, or an inconsistent graph.

    The pass may move results by `tolerance` (default: the pass's own). An exception of the pass is a fault only if
    `may_raise` is False.
    """
    return _tried(step, graph, tolerance, may_raise)[1]


def _tried(step: Pass, graph: Graph, tolerance: float | None = None, may_raise: bool = True) -> tuple[int, str | None]:
    after = detached(graph)
    snapshot = Snapshot(after)
    try:
        count = step(after)
    except Exception as e:  # a user's pass may raise anything
        return 0, None if may_raise else f"it raises {type(e).__name__}: {e}"
    changed = snapshot.changed(after)
    if not (changed or count):
        return 0, None
    text = _inconsistent(after)
    if text is None and changed:
        try:
            baseline = Baseline(snapshot.graph, adversarial_inputs(snapshot.graph))
        except GraphqError:
            return count, None
        tolerance = tolerance_of(step) if tolerance is None else tolerance
        text = baseline.difference(after, tolerance, tolerance)
    return count, text


def _inconsistent(graph: Graph) -> str | None:
    try:
        verify(graph)
    except VerifyError as e:
        return f"the graph is inconsistent: {e}"
    return None

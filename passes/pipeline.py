"""PIPELINE: the passes in their order, top to bottom."""
from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from functools import partial

from graphq.budget import recount, reserve
from graphq.errors import GraphError, VerifyError
from graphq.ir import Graph
from graphq.ir.text import SHORT, to_text
from graphq.ir.verify import verify
from graphq.kernels.families import FAMILIES
from graphq.passes.canonicalise import canonicalise
from graphq.passes.channels_last import channels_last
from graphq.passes.cleanup import eliminate_common_subexpressions, eliminate_dead_code
from graphq.passes.duplicate_dequantize import duplicate_dequantize
from graphq.passes.fold_constants import fold_constants, fold_dequantized_constants, fold_dequantized_operands
from graphq.passes.fold_scales import fold_scales
from graphq.passes.fuse import Fuse
from graphq.passes.normalise_groups import NormaliseGroupsAsRows
from graphq.passes.rows_last import RowsLast
from graphq.passes.widen_floats import WidenProducts
from graphq.rewrite.rule import Pass, Refusal, Rewrite

PIPELINE: tuple[Pass, ...] = (
    eliminate_dead_code,
    duplicate_dequantize,
    canonicalise,
    eliminate_common_subexpressions,
    fold_constants,
    fold_scales,
    WidenProducts(),
    channels_last,
    canonicalise,
    eliminate_common_subexpressions,
    duplicate_dequantize,
    fold_dequantized_operands,
    *(Fuse(f.name) for f in FAMILIES if f.quantised),
    fold_dequantized_constants,
    eliminate_common_subexpressions,
    NormaliseGroupsAsRows(),
    RowsLast(),
    *(Fuse(f.name, floats=True) for f in FAMILIES if f.floats),
    eliminate_dead_code,
)


def run_passes(graph: Graph, passes: Sequence[Pass] = PIPELINE) -> list[Refusal]:
    """Run the passes on `graph` in order; the near misses of the rewrites among them.

    Unnamed values keep the numbers that they have in the graph's text now, in all reports and debug prints.
    GRAPHQ_DEBUG=passes prints the graph to stderr after each pass that changed it. Under pytest, or with
    GRAPHQ_DEBUG=verify, the graph is verified after each pass. Raises GraphError for what is not a pass, VerifyError,
    naming the pass, for one that leaves the graph inconsistent.
    """
    debug = os.environ.get("GRAPHQ_DEBUG", "").split(",")
    check = "verify" in debug or "PYTEST_CURRENT_TEST" in os.environ
    refusals: list[Refusal] = []
    if not isinstance(graph, Graph):
        raise GraphError(f"run_passes takes a Graph, got {graph!r}")
    check_passes(passes)
    graph.labels.keep()
    reserve(_constant_bytes(graph), "the graph's constants")
    for step in passes:
        if isinstance(step, Rewrite):
            count, missed = step.apply(graph)
            refusals += missed
        else:
            count = _run(step, graph)
        if not isinstance(count, int):
            raise GraphError(f"pass {pass_name(step)} must return the number of its changes, got {count!r}")
        if count and "passes" in debug:
            print(f"# {pass_name(step)}: {count}\n{to_text(graph, elide=SHORT)}\n", file=sys.stderr)
        recount(partial(_constant_bytes, graph))
        if check:
            _verify_after(step, graph)
    return refusals


def _constant_bytes(graph: Graph) -> int:
    """What the graph's constants take."""
    return sum(node.attrs["value"].nbytes for node in graph.nodes_of(("constant",)))


def check_passes(passes: Sequence[Pass]) -> None:
    """Raise GraphError for what is not a list of passes."""
    if not isinstance(passes, list | tuple):
        raise GraphError(f"passes must be a list of passes, got {passes!r}")
    for step in passes:
        if isinstance(step, type) or not callable(step):
            raise GraphError(f"a pass is a function or an instance of a Rewrite, got {step!r}")


def _run(step: Pass, graph: Graph) -> int:
    try:
        return step(graph)
    except Exception as e:
        e.add_note(f"in pass {pass_name(step)}")
        raise


def _verify_after(step: Pass, graph: Graph) -> None:
    try:
        verify(graph)
    except VerifyError as e:
        raise VerifyError(f"after pass {pass_name(step)}: {e}") from None


def pass_name(step: Pass) -> str:
    """The name of a pass in reports."""
    return step.name if isinstance(step, Rewrite) else getattr(step, "__name__", type(step).__name__)

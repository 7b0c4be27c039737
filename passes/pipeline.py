"""The passes that `graphq.compile` runs, in order (PIPELINE), and the function that runs passes.

The pass `canonicalize` consists of many small rewrites, also listed here.
"""
import os
import sys
from collections.abc import Mapping, Sequence
from functools import partial

from graphq.base.budget import recount, reserve
from graphq.base.progress import progress
from graphq.errors import GraphError, VerifyError
from graphq.ir import SHORT, Graph, to_text
from graphq.ir.interpret import constant_bytes
from graphq.ir.verify import Consistent, verify
from graphq.kernels.families import FAMILIES
from graphq.passes import cleanup, float_products, move_quantization, normal_forms, requantize, simplify_moves
from graphq.passes.channels_last import channels_last
from graphq.passes.fold_scales import fold_scales
from graphq.passes.fuse import Fuse, duplicate_dequantize, duplicate_masks, leave_ties
from graphq.passes.normalizations import NormalizeChannelsAsPool, NormalizeGroupsAsRows, RowsLast
from graphq.passes.ranges_by_row import RangesByRow
from graphq.rewrite.fixpoint import After, Fixpoint, History, apply, pass_name
from graphq.rewrite.partition import Fusion
from graphq.rewrite.rule import Pass, Refusal, Rewrite

canonicalize = Fixpoint(
    "canonicalize",
    requantize.DequantizeByGroups(),  # first, because the other passes do not handle group_axis
    simplify_moves.DropNoopReshape(),
    simplify_moves.MergeReshapes(),
    simplify_moves.MergeTransposes(),
    simplify_moves.DropNoopTranspose(),
    move_quantization.TransposeBeforeDequantize(),
    move_quantization.ReshapeBeforeDequantize(),
    float_products.CastIntegers(),
    float_products.ScaleIntegers(),
    float_products.MoveWeights(),
    float_products.CastDequantizedWeights(),
    move_quantization.QuantizeBeforeReshape(),
    move_quantization.QuantizeBeforeTranspose(),
    move_quantization.CastBeforeMoves(),
    simplify_moves.TransposeAsReshape(),
    requantize.positive_axis,
    requantize.UniformChannelsArePerTensor(),
    normal_forms.SplitBiasOfRows(),
    normal_forms.DropMultiplyByOne(),
    normal_forms.DropRepeatedRelu(),
    normal_forms.CubeAsProducts(),
    normal_forms.RowScalesAsGroups(),
    requantize.StaticDequantize(),
    requantize.StaticQuantize(),
    normal_forms.ConvIntegerAsConvolution(),
    move_quantization.GatherBeforeDequantize(),
    float_products.GatherWeights(),
    move_quantization.PickBeforeDequantize(),
    move_quantization.PadBeforeDequantize(),
    move_quantization.QuantizeBeforePad(),
    move_quantization.ConcatBeforeDequantize(),
    requantize.DropRequantize(),
    requantize.DropLimitBeforeQuantize(),
    requantize.DropLimitAfterDequantize(),
    requantize.RequantizePicked(),
    simplify_moves.FoldPadIntoConvolution(),
    simplify_moves.MoveRepeat(),
    simplify_moves.ShareHeads(),
)
"""The pass that rewrites equivalent graphs to one form; later passes then need fewer patterns."""

PIPELINE: tuple[Pass, ...] = (
    cleanup.eliminate_dead_code,
    duplicate_dequantize,
    canonicalize,
    cleanup.eliminate_common_subexpressions,
    cleanup.fold_constants,
    fold_scales,
    float_products.PadWeights(),
    float_products.CastDequantizedWeights(),  # again, after transposes of constants are folded
    float_products.WidenProducts(),
    NormalizeChannelsAsPool(),
    channels_last,
    duplicate_dequantize,  # again, because TransposeBeforeDequantize needs a dequantize with one user
    canonicalize,
    cleanup.eliminate_common_subexpressions,
    duplicate_dequantize,
    cleanup.fold_dequantized_operands,
    duplicate_masks,
    *(Fuse(f.name) for f in FAMILIES if f.quantized),
    cleanup.fold_dequantized_constants,
    cleanup.eliminate_common_subexpressions,
    NormalizeGroupsAsRows(),
    RowsLast(),
    requantize.SplitGroups(),
    duplicate_masks,
    *(Fuse(f.name, floats=True) for f in FAMILIES if f.floats),
    cleanup.eliminate_dead_code,
)

_WIDEN = next(k for k, p in enumerate(PIPELINE) if isinstance(p, float_products.WidenProducts))
PRECISIONS: Mapping[str, tuple[Pass, ...]] = {
    "f32": PIPELINE, "bf16": (*PIPELINE[:_WIDEN], float_products.RoundProducts(), *PIPELINE[_WIDEN:])}
"""The passes for each `precision` that `graphq.compile` takes; "bf16" adds RoundProducts."""


def passes_of(passes: Sequence[Pass] | None, precision: str, ranges: str, ties: str) -> tuple[Pass, ...] | None:
    """The passes for these arguments of `graphq.compile`; None stands for PIPELINE."""
    chosen = PRECISIONS[precision] if passes is None else check_passes(passes)
    if ranges == "rows":
        chosen = (RangesByRow, *chosen)
    if ties == "formula":
        chosen = (*chosen, leave_ties)
    return None if chosen is PIPELINE else chosen


_SAVED: tuple[Pass, ...] = (*PRECISIONS["bf16"], RangesByRow, leave_ties)
_NAMED: Mapping[str, Pass] = {pass_name(p): p for p in _SAVED}
"""The passes that a saved model can name."""


def run_passes(graph: Graph, passes: Sequence[Pass] = PIPELINE, *, after: After | None = None,
               history: History | None = None) -> list[Refusal]:
    """Run the passes on `graph` in order; returns the refusals of rewrites that nearly matched.

    In all reports and debug prints, unnamed values keep the numbers that they have in the graph's text before the
    passes. GRAPHQ_DEBUG=passes prints the graph to stderr after each pass that changed it. Under pytest, or with
    GRAPHQ_DEBUG=verify, the graph is verified after each pass that changed it, and at the end.

    `after(pass, changes, graph)` is called after each pass, and after each pass inside a Fixpoint; it must not change
    the graph. With a `history` of `graph`, the graph after the passes is `history.after`.

    Raises GraphError for an object that is not a pass, and VerifyError, naming the pass, if a pass leaves the graph
    inconsistent.
    """
    debug = os.environ.get("GRAPHQ_DEBUG", "").split(",")
    check = "verify" in debug or "PYTEST_CURRENT_TEST" in os.environ
    refusals: list[Refusal] = []
    consistent: Consistent = {}
    if not isinstance(graph, Graph):
        raise GraphError(f"run_passes takes a Graph, got {graph!r}")
    check_passes(passes)
    graph.labels.keep()
    reserve(constant_bytes(graph), "the graph's constants")
    for step in progress(passes, "passes"):
        if history is not None and isinstance(step, Fusion):
            graph = history.fork()
        nodes = list(graph.nodes)
        count, missed = apply(step, graph, after=after)
        refusals += missed
        if count and "passes" in debug:
            print(f"# {pass_name(step)}: {count}\n{to_text(graph, elide=SHORT)}\n", file=sys.stderr)
        recount(partial(constant_bytes, graph))
        try:
            if check and (count or graph.nodes != nodes or step is passes[-1]):
                verify(graph, consistent)
        except VerifyError as e:
            raise VerifyError(f"after pass {pass_name(step)}: {e}") from None
    return refusals


def check_passes(passes: Sequence[Pass]) -> tuple[Pass, ...]:
    """The passes as a tuple. Raises GraphError if `passes` is not a list of passes."""
    if not isinstance(passes, list | tuple):
        raise GraphError(f"passes must be a list of passes, got {passes!r}")
    for step in passes:
        if isinstance(step, type) or not callable(step):
            raise GraphError(f"a pass is a function or an instance of a Rewrite, got {step!r}")
    return tuple(passes)


def names_of(passes: Sequence[Pass]) -> list[str]:
    """The names of passes, for `named`. Raises GraphError for a pass that a saved model cannot name."""
    for step in passes:
        known = _NAMED.get(pass_name(step))
        same = repr(step) == repr(known) if isinstance(step, Fixpoint) else \
            step is known or isinstance(step, Rewrite) and type(step) is type(known)
        if not same:
            raise GraphError("a saved model may have RangesByRow, leave_ties and the passes of PIPELINE and "
                             f"PRECISIONS, not {pass_name(step)}")
    return list(map(pass_name, passes))


def named(names: Sequence[str]) -> tuple[Pass, ...]:
    """The passes with these names, as in a saved model. Raises KeyError for an unknown name."""
    return tuple(_NAMED[name] for name in names)

"""`attach`, the only function that other rooms call: it lets an epilogue compute outputs near rounding ties again."""
from __future__ import annotations

from dataclasses import replace
from functools import partial, reduce

import numpy as np

from graphq.ir import Graph, Node
from graphq.kernels.family.epilogue import EpilogueBuilder, of_bytes
from graphq.kernels.family.lower import Arrays, Lowered, StatedSum
from graphq.kernels.family.tables import decided_by_one_byte
from graphq.kernels.lanes import quantizing
from graphq.kernels.lanes.expression import Expr, acc, const, op, select, substitute
from graphq.kernels.lanes.outputs import register_second_look
from graphq.kernels.lanes.requantize import fast_form
from graphq.kernels.lanes.stores import FastForm, SecondLook
from graphq.kernels.operands.windows import MOST_TAPS
from graphq.kernels.ties.error_bounds import Band, BodyBounds
from graphq.kernels.ties.tie_kernels import tie_kernels

register_second_look(tie_kernels)


def attach(body: Graph, lowered: Lowered, constants: Arrays, *, settle: bool) -> Lowered:
    """Make the epilogue of `lowered` recompute outputs near rounding ties; returns the new Lowered.

    The field `ties` of the result has one string for each quantize of a sum, for `explain()`. The string is "proved" or
    "estimated", the kind of the bound on the sum's error. If outputs near a tie cannot be computed again, the string is
    the reason. Unless `settle`, the epilogue only gets its fast form; the string is "formula" or the reason.

    `constants` are the arrays of the inputs of `body`, in order, with None for inputs that are not constant. A body
    without a quantize of an integer sum does not change.
    """
    if not lowered.values:
        return lowered
    exprs, lowered = lowered.values, replace(lowered, values={})
    p, quantizes = lowered.products, [n for n in body.nodes if _rounds_a_sum(n, exprs.get(n.output))]
    if p is None or all(n.attrs["dtype"].bits > 8 for n in quantizes):
        return replace(lowered, ties=tuple(_refused(n, None) for n in quantizes))
    e = EpilogueBuilder(lowered.out, True, lowered.sources)
    last = len(e.out) - 1
    bounds = BodyBounds.after(p, body, e.out[-1] if e.out else 1, constants, settle=settle)
    scalars = {x for x in e.numbers(constants) if x.value[2] == "scalar"}
    as_written, near, kinds, refused = {p.total: acc("f32")}, list[Expr](), list[str](), list[str]()
    fast, all_fast = dict[Expr, tuple[np.ndarray, float]](), True
    for node in body.nodes:
        if node is p.node or node.output not in exprs:
            continue
        bounds.follow(node)
        if node.op.name != "quantize":
            continue
        q, of_sum, bits = exprs[node.output], node in quantizes, node.attrs["dtype"].bits
        # a fast form needs finite numbers, and scales per tensor or per column
        is_fast = bits == 8 and e.axis(node) in (None, last) and bounds.finite(node)
        if of_sum and (bits > 8 or node.inputs[0] in bounds.unbounded):
            refused.append(_refused(node, bounds))
        elif of_sum and settle:
            band = bounds.band(node)
            kinds.append("proved" if band.proved else "estimated")
            near.append(_near(e, node, q, band, as_written))
            fast[q], all_fast = (band.half, band.relative), all_fast and is_fast
        elif of_sum:
            kinds.append("formula")
        if is_fast and (not settle if of_sum else
                        q.op == "quantize_quotient_to" and not decided_by_one_byte(q, scalars)):
            fast[q] = np.zeros(1), 0.0
    lowered = replace(lowered, ties=(*kinds, *refused))
    if settle and not near:
        return lowered
    look = SecondLook(tuple(as_written.items()), reduce(partial(op, "or"), near), _factors(e, p)) if near else None
    if all_fast or look is None:
        form = fast_form(fast, lowered.store.expr, e.numbers(constants), lambda x, dtype, role: e.parameter(
            np.atleast_1d(x), dtype, last, role))
    else:
        form = FastForm((), select(look.needed, const(0, "s32"), const(1, "s32")), const(1, "s32"))
    return replace(lowered, store=replace(lowered.store, fast=form, second_look=look), sources=tuple(e.sources))


def _factors(e: EpilogueBuilder, p: StatedSum) -> tuple[Expr, ...]:
    """The operands that the f32 sum reads: the scale and zero point of the weights, and the number to start from."""
    last, zps = len(e.out) - 1, p.packed_zps[:1] if (p.packed_zps == p.packed_zps[:1]).all() else p.packed_zps
    return (e.parameter(p.sum.w_scale, "f32", last, "w_scale"), e.parameter(zps, "s32", last, "w_zp"),
            e.parameter(p.sum.start, "f32", last, "start"))


def _rounds_a_sum(node: Node, q: Expr | None) -> bool:
    """Whether `node` quantizes a sum, and not only values computed from quantized bytes; `q` is the lowered node."""
    return node.op.name == "quantize" and q is not None and q.op in ("quantize_to", "quantize_quotient_to") \
        and not of_bytes(q.args[0])


def _refused(node: Node, bounds: BodyBounds | None) -> str:
    if node.attrs["dtype"].bits > 8:
        return f"quantize to {node.attrs['dtype']} is not settled: at 16 bits f32 sums decide too many outputs"
    if bounds is None:
        return ("quantize is not settled: the sum before it does not multiply operands with constant scales, "
                f"in windows of at most {MOST_TAPS} taps")
    (value,) = node.operands
    return f"quantize is not settled: no bound says how far {bounds.unbounded[value]} carries differences"


def _near(e: EpilogueBuilder, node: Node, q: Expr, band: Band, as_written: dict[Expr, Expr]) -> Expr:
    """Whether the result of a quantize of a sum is in the band around ties; `q` is the lowered quantize.

    Adds the quantize as the graph states it, with a division of the f32 sum by the scale, to `as_written`.
    """
    a, axis, dtype = node.attrs, e.axis(node), node.attrs["dtype"].name
    y, inverse, zps, *_ = q.args
    quotient = substitute(y, as_written) / e.parameter(a["scales"], "f32", axis)
    as_written[q] = quantizing.quantize(quotient, 1.0, zps, dtype)
    relative = e.parameter([band.relative], "f32", None)
    threshold = e.parameter(np.atleast_1d(0.5 - band.half), "f32", len(e.out) - 1)
    return quantizing.near_tie(y, inverse, zps, dtype, relative) >= threshold

"""`attach`, the only function for other folders: it lets an epilogue compute outputs near rounding ties again."""
from collections.abc import Mapping
from dataclasses import replace
from functools import partial, reduce

import numpy as np

from graphq.ir import Graph, Node, Value
from graphq.kernels.family.epilogue import EpilogueBuilder, of_bytes
from graphq.kernels.family.lower import Arrays, Lowered, StatedSum
from graphq.kernels.family.tables import decided_by_one_byte
from graphq.kernels.lanes import quantizing
from graphq.kernels.lanes.epilogues import FastForm, SecondLook
from graphq.kernels.lanes.expression import Expr, acc, const, op, select, substitute
from graphq.kernels.lanes.fast_form import fast_form
from graphq.kernels.lanes.outputs import register_second_look
from graphq.kernels.operands.windows import MOST_TAPS
from graphq.kernels.ties.error_bounds import HUGE, Band, BodyBounds
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
    exprs, p, lowered = lowered.values, lowered.stated_sum, replace(lowered, values={})
    quantizes = [n for n in body.nodes if n.op.name == "quantize" and n.output in exprs]
    of_sums = [n for n in quantizes if exprs[n.output].op in ("quantize_to", "quantize_quotient_to")
               and not of_bytes(exprs[n.output].args[0])]
    if p is None or all(n.attrs["dtype"].bits > 8 for n in of_sums):
        return replace(lowered, ties=tuple(_refused(n, None) for n in of_sums))
    e = EpilogueBuilder(lowered.out, True, lowered.sources)
    last, scalars = len(e.out) - 1, {x for x in e.numbers(constants) if x.value[2] == "scalar"}
    bounds = BodyBounds.after(p, body, e.out[-1] if e.out else 1, constants, settle=settle)
    for node in body.nodes:
        if node is not p.node and node.output in exprs:
            bounds.follow(node)
    bounded = [n for n in of_sums if n.attrs["dtype"].bits <= 8 and n.inputs[0] not in bounds.unbounded]
    bands = {n: bounds.band(n) for n in bounded} if settle else {}
    kinds = ["formula" if not settle else "proved" if bands[n].proved else "estimated" for n in bounded]
    lowered = replace(lowered, ties=(*kinds, *(_refused(n, bounds) for n in of_sums if n not in bounded)))
    if settle and not bands:
        return lowered
    look = _second_look(e, p, exprs, bands) if settle else None
    # a fast form needs finite operands and quotients, and scales per tensor or per column
    can_be_fast = {n for n in quantizes if n.attrs["dtype"].bits == 8 and e.axis(n) in (None, last)
                   and bounds.largest_size(n.inputs[0]) < HUGE and all(1 / HUGE < s < HUGE for s in n.attrs["scales"])}
    fast = dict[Expr, tuple[np.ndarray, float]]()
    for node in quantizes:
        q = exprs[node.output]
        if node in bands:
            fast[q] = bands[node].half, bands[node].relative
        elif node in can_be_fast and (not settle if node in of_sums else
                                      q.op == "quantize_quotient_to" and not decided_by_one_byte(q, scalars)):
            fast[q] = np.zeros(1), 0.0
    if look is None or can_be_fast.issuperset(bands):
        form = fast_form(fast, lowered.epilogue.expr, e.numbers(constants), lambda x, dtype, role: e.parameter(
            np.atleast_1d(x), dtype, last, role))
    else:
        form = FastForm((), select(look.needed, const(0, "s32"), const(1, "s32")), const(1, "s32"))
    return replace(lowered, epilogue=replace(lowered.epilogue, fast=form, second_look=look), sources=tuple(e.sources))


def _second_look(e: EpilogueBuilder, p: StatedSum, exprs: Mapping[Value, Expr],
                 bands: Mapping[Node, Band]) -> SecondLook:
    """The second look at quantizes with these bands. It computes them as the graph states them.

    The f32 sum reads the scale and zero point of the weights, and the number to start from.
    """
    as_written = {p.total: acc("f32")}
    near = [_near(e, n, exprs[n.output], band, as_written) for n, band in bands.items()]
    last, zps = len(e.out) - 1, p.packed_zps[:1] if (p.packed_zps == p.packed_zps[:1]).all() else p.packed_zps
    factors = (e.parameter(p.sum.w_scale, "f32", last, "w_scale"), e.parameter(zps, "s32", last, "w_zp"),
               e.parameter(p.sum.start, "f32", last, "start"))
    return SecondLook(tuple(as_written.items()), reduce(partial(op, "or"), near), factors)


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

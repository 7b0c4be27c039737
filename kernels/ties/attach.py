"""`attach`, the only function that other rooms call: it lets an epilogue compute outputs near rounding ties again."""
from __future__ import annotations

from dataclasses import replace
from functools import partial, reduce

import numpy as np

from graphq.ir import Graph, Node
from graphq.kernels.family.epilogue import EpilogueBuilder, of_bytes
from graphq.kernels.family.lower import Arrays, Lowered
from graphq.kernels.family.tables import decided_by_one_byte
from graphq.kernels.lanes import requantize
from graphq.kernels.lanes.expression import Expr, acc, const, op, select, substitute
from graphq.kernels.lanes.fast_requantize import FastRequantize, Rounding, span
from graphq.kernels.lanes.outputs import register_second_look
from graphq.kernels.lanes.stores import SecondLook
from graphq.kernels.operands.windows import MOST_TAPS
from graphq.kernels.ties.error_bounds import Band, BodyBounds
from graphq.kernels.ties.tie_kernels import tie_kernels

register_second_look(tie_kernels)


def attach(body: Graph, lowered: Lowered, constants: Arrays) -> Lowered:
    """Make the epilogue of `lowered` recompute outputs near rounding ties; returns the new Lowered.

    The field `ties` of the result has one string for each quantize of a sum; `explain()` counts and prints the strings.
    A string is "proved" or "estimated", after the bound that gives the width of the band around ties. If outputs near a
    tie are not computed again, the string is the reason.

    `constants` are the arrays of the inputs of `body`, in order, with None for inputs that are not constant. A body
    without a quantize of an integer sum does not change.
    """
    if not lowered.values:
        return lowered
    exprs, lowered = lowered.values, replace(lowered, values={})
    p, quantizes = lowered.products, [n for n in body.nodes if _rounds_a_sum(n, exprs.get(n.output))]
    if p is None or all(n.attrs["dtype"].bits > 8 for n in quantizes):
        return replace(lowered, ties=tuple(_refused(n, None) for n in quantizes))
    e = EpilogueBuilder(lowered.out, True, list(lowered.sources))
    bounds = BodyBounds.after(p, body, e.out[-1] if e.out else 1, constants)
    as_written, roundings, bands, refused = {p.total: acc("f32")}, list[Rounding](), list[Band](), list[str]()
    scalars = {x for x in e.numbers(constants) if x.value[2] == "scalar"}
    for node in body.nodes:
        if node is p.node or node.output not in exprs:
            continue
        if node in quantizes and (node.attrs["dtype"].bits > 8 or node.inputs[0] in bounds.unbounded):
            refused.append(_refused(node, bounds))
        elif node in quantizes and (band := bounds.band(node)) is not None:
            bands.append(band)
            roundings.append(_rounding_of_sum(e, node, exprs[node.output], band, bounds, as_written))
        elif node.op.name == "quantize" and not decided_by_one_byte(exprs[node.output], scalars):
            roundings += _roundings_of_bytes(e, node, exprs[node.output], bounds)
        bounds.follow(node)
    if not bands:
        return replace(lowered, ties=tuple(refused))
    near, last = reduce(partial(op, "or"), [r.near for r in roundings if r.near is not None]), len(e.out) - 1
    zps = p.packed_zps[:1] if (p.packed_zps == p.packed_zps[:1]).all() else p.packed_zps
    factors = (e.parameter(p.sum.w_scale, "f32", last, "w_scale"), e.parameter(zps, "s32", last, "w_zp"),
               e.parameter(p.sum.start, "f32", last, "start"))
    if all(r.near is None or r.width is not None for r in roundings):
        fast = FastRequantize(e.numbers(constants), lambda x, role: e.parameter(np.atleast_1d(x), "f32", last, role))
        distance, limit, pairs = fast.build(roundings, lowered.store.expr)
        look = SecondLook(near, tuple(as_written.items()), factors, distance, e.parameter(limit, "s32", last), pairs)
    else:
        one = const(1, "s32")
        look = SecondLook(near, tuple(as_written.items()), factors, select(near, const(0, "s32"), one), one, ())
    kinds = ["proved" if band.proved else "estimated" for band in bands]
    store = replace(lowered.store, second_look=look)
    return replace(lowered, store=store, sources=tuple(e.sources), ties=(*kinds, *refused))


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


def _rounding_of_sum(e: EpilogueBuilder, node: Node, q: Expr, band: Band, bounds: BodyBounds,
                     as_written: dict[Expr, Expr]) -> Rounding:
    """Return the `Rounding` of a quantize of a sum; add the quantize, as the graph states it, to `as_written`.

    `q` is the lowered expression of the quantize. The added expression divides the f32 sum by the scale.
    """
    a, axis, dtype = node.attrs, e.axis(node), node.attrs["dtype"].name
    y, inverse, zps, *_ = q.args
    quotient = substitute(y, as_written) / e.parameter(a["scales"], "f32", axis)
    as_written[q] = requantize.quantize(quotient, 1.0, zps, dtype)
    relative = e.parameter([band.relative], "f32", None)
    threshold = e.parameter(np.atleast_1d(0.5 - band.half), "f32", len(e.out) - 1)
    near = requantize.near_tie(y, inverse, zps, dtype, relative) >= threshold
    scales, zero_points = _parameters(node)
    width = None
    if axis in (None, len(e.out) - 1) and bounds.finite(node):
        width = band.half + span(dtype, zero_points) * band.relative
    steps = 1 / (1 / scales).astype(np.float32).astype(np.float64)
    return Rounding(q, y, dtype, steps, zero_points, inverse, near, width)


def _roundings_of_bytes(e: EpilogueBuilder, node: Node, q: Expr, bounds: BodyBounds) -> list[Rounding]:
    """A list with the `Rounding` of a quantize whose operand depends only on bytes; [] if it has no fast form."""
    if q.op != "quantize_quotient_to" or node.attrs["dtype"].bits > 8 or not bounds.finite(node) \
            or e.axis(node) not in (None, len(e.out) - 1):
        return []
    return [Rounding(q, q.args[0], node.attrs["dtype"].name, *_parameters(node))]


def _parameters(node: Node) -> tuple[np.ndarray, np.ndarray]:
    return np.asarray(node.attrs["scales"], np.float32).astype(np.float64), np.asarray(node.attrs["zps"] or [0], float)

"""How an anchor's Store gets its second form: which outputs lie near a rounding tie, and what they are then.

An output near a tie is computed a second time, from the f32 sum of the products in the order of the graph as written
(its literal sum, `ties.literal`) instead of the exact integer sum. What makes the difference is `ties.drift`.
"""
from __future__ import annotations

from collections.abc import Container
from functools import partial, reduce
from typing import Any, NamedTuple

import numpy as np

from graphq.ir import Graph, Node
from graphq.kernels.family.epilogue import EpilogueBuilder, translate
from graphq.kernels.family.lower import Accumulator, Arrays, Lowered
from graphq.kernels.family.scales import RANGES, QuantParameter, wrapped
from graphq.kernels.lanes.expression import Expr, acc, const, op, select
from graphq.kernels.lanes.stores import Store, Ties
from graphq.kernels.ties.drift import Drift, ErrorBounds, constants_of
from graphq.kernels.ties.literal import Literal, Order
from graphq.kernels.ties.quick import Quick
from graphq.kernels.ties.sum_errors import UNIT, SumError, sum_error

CHUNK = 2**22
"""Factors of literal sums that a formula takes at a time."""
ROUNDINGS = 6
"""After a sum: of it to f32, of the product of scales, of their product, of both sums with a bias; and one to spare."""


class LiteralSums(NamedTuple):
    """The literal sums of an anchor of `k` products, with what kernels take from operands.

    `error` is how far a column's sum may lie from the exact one, `shift` the zero points of weights as they are packed.
    """

    literal: Literal
    k: int
    error: SumError
    shift: np.ndarray
    starts_at_bias: bool


def literal_sums(x_scale: QuantParameter, w_scale: QuantParameter, x_zp: QuantParameter, w_zp: QuantParameter,
                 order: Order, block: int, x_dtype: str, weights: np.ndarray | tuple[int, int], *,
                 batch: int = 1, shift: int = 0, packed_zps: bool = True, start: np.ndarray | None = None,
                 taps: int = 1) -> LiteralSums | None:
    """The literal sums of dequantized operands; None where scales or zero points are known when it runs only.

    `weights` are as in `sum_error`, those of `batch` matrices side by side, with their zero points. Packed weights are
    raw ones plus `shift`, or (not `packed_zps`) less their zero points. `start`: the bias when sums start from it.
    """
    xs, ws, xz, wz = (n.data for n in (x_scale, w_scale, x_zp, w_zp))
    if xs is None or ws is None or xz is None or wz is None or ws.ndim > 1 or wz.ndim > 1:
        return None
    literal = Literal(order, block, np.float32(xs), int(xz), np.atleast_1d(ws), np.atleast_1d(wz).astype(np.int32),
                      np.zeros(1, np.float32) if start is None else start.ravel(), taps)
    low, high = (x - int(xz) for x in RANGES[x_dtype])
    k = weights[0] if isinstance(weights, tuple) else len(weights)
    return LiteralSums(literal, k, sum_error(literal, low, high, weights, batch),
                       wrapped(wz + shift) if packed_zps else np.zeros(1, np.int32), start is not None)


def anchored(e: EpilogueBuilder, body: Graph, node: Node, total: Expr, producers: list[Node], anchor: Accumulator,
             accumulated: Expr, constants: Arrays = (), sums: LiteralSums | None = None,
             own: Container[int] = range(2)) -> Lowered:
    """Lower a body whose anchor `node` gives `total`, and a bias where it has one; raises Unsupported.

    `accumulated` is that part of `total` which is what the anchor accumulates. `producers` are the nodes that only the
    anchor's kernel reads. With `sums` outputs near a tie are settled by them.
    """
    dtype = body.outputs[0].dtype.name

    def dense(args: list[Any]) -> Expr:
        if len(args) < 3 or args[2] is None:
            return total
        y = total + args[2]
        if e.drift is not None and sums is not None and sums.starts_at_bias:
            e.drift.sums[y] = acc("f32")
        return y

    last, e.constants = len(e.out) - 1, constants
    if sums is not None:
        columns, known = e.out[-1] if e.out else 1, constants_of(body.inputs, constants)
        e.drift = Drift(columns, known, {total: acc("f32")})
        bias = node.inputs[2] if len(node.inputs) > 2 else None
        e.drift.of[node.output] = ErrorBounds(*sums.error, 0.0).plus(3 * UNIT * e.drift.size(bias), ROUNDINGS * UNIT)
        scale = float(sums.literal.x_scale) * float(sums.literal.w_scale.max(initial=0))
        most = e.drift.bound(bias)
        e.drift.bounds[node.output] = sums.k * 2.0**16 * scale + most
    expr = translate(e, body, (node, dense), producers, own=own)
    tests = [r.near for r in e.roundings if r.near is not None]
    if sums is None or e.drift is None or not tests:
        return Lowered(e.out, Store(expr, dtype), tuple(e.sources), anchor, accumulated, ties=tuple(e.unsettled))
    literal, near = sums.literal, reduce(partial(op, "or"), tests)
    factors = (e.parameter(literal.w_scale, "f32", last, "w_scale"), e.parameter(sums.shift, "s32", last, "w_zp"),
               e.parameter(literal.start, "f32", last, "start"))
    settled = tuple((e.drift.sums | e.drift.settled).items())
    if all(r.near is None or r.width is not None for r in e.roundings):
        quick = Quick(e.numbers(), lambda x, role: e.parameter(np.atleast_1d(x), "f32", last, role))
        distance, below, pairs = quick.make(e.roundings, expr)
        ties = Ties(near, settled, factors, distance, e.parameter(below, "s32", last), pairs)
    else:
        ties = Ties(near, settled, factors, select(near, const(0, "s32"), const(1, "s32")), const(1, "s32"), ())
    store = Store(expr, dtype, ties)
    found = ["proved" if band.proved else "estimated" for band in e.drift.bands]
    return Lowered(e.out, store, tuple(e.sources), anchor, accumulated, literal, (*found, *e.unsettled))

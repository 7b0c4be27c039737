"""Lowering of anchors with literal sums: the Store that marks outputs near a tie and says what they are."""
from __future__ import annotations

from collections.abc import Container
from functools import partial, reduce
from math import prod
from string import ascii_lowercase
from typing import Any, NamedTuple

import numpy as np

from graphq.ir import Graph, Node
from graphq.kernels.drift import Drift, constants_of
from graphq.kernels.epilogue import Epilogue, translate
from graphq.kernels.expression import Expr, acc, const, op, select
from graphq.kernels.literal import TYPICAL, Literal, Order
from graphq.kernels.lower import Accumulator, Arrays, Lowered
from graphq.kernels.quick import Quick
from graphq.kernels.scales import Numbers, wrapped
from graphq.kernels.stores import Store, Ties

CHUNK = 2**22
"""Factors of literal sums that a formula takes at a time."""
PART = 2**16
"""Weights that `rms` takes at a time, so that their squares stay in the cache."""


class LiteralSums(NamedTuple):
    """The literal sums of an anchor of `k` products, with what kernels take from operands.

    `drift` is how far a column's sum may lie from the exact one, `shift` the zero points of weights as they are packed.
    """

    literal: Literal
    k: int
    drift: np.ndarray
    shift: np.ndarray
    starts_at_bias: bool


def literal_sums(x_scale: Numbers, w_scale: Numbers, x_zp: Numbers, w_zp: Numbers, k: int, order: Order, block: int,
                 size: np.ndarray | None, *, shift: int = 0, packed_zps: bool = True,
                 start: np.ndarray | None = None, taps: int = 1) -> LiteralSums | None:
    """The literal sums of dequantized operands; None where scales or zero points are known when it runs only.

    `size` is the `rms` of the weights, when they are constant. Packed weights are raw ones plus `shift`, or (not
    `packed_zps`) less their zero points. `start`: the bias when sums start from it.
    """
    xs, ws, xz, wz = (n.data for n in (x_scale, w_scale, x_zp, w_zp))
    if xs is None or ws is None or xz is None or wz is None or ws.ndim > 1 or wz.ndim > 1:
        return None
    literal = Literal(order, block, np.float32(xs), int(xz), np.atleast_1d(ws), np.atleast_1d(wz).astype(np.int32),
                      np.zeros(1, np.float32) if start is None else start.ravel(), taps)
    size = np.full(1, TYPICAL) if size is None or not size.size else size
    return LiteralSums(literal, k, literal.error(k, size * literal.w_scale),
                       wrapped(wz + shift) if packed_zps else np.zeros(1, np.int32), start is not None)


def rms(w: np.ndarray, zps: np.ndarray) -> np.ndarray:
    """The root mean squares of columns of integers [groups, k..., columns], less zero points that broadcast to them.

    None at all where there are no weights. Squares and their sums are exact.
    """
    if not w.size:
        return np.zeros(0)
    columns, k = w.shape[-1], prod(w.shape[1:-1])
    axes = ascii_lowercase[:w.ndim]
    squares = np.zeros((len(w), columns))
    step = max(1, PART // (len(w) * k))
    for first in range(0, columns, step):
        some = slice(first, first + step)
        part = w[..., some].astype(np.float64)
        if zps.any():
            part -= zps if zps.shape[-1:] in ((), (1,)) else zps[..., some]
        squares[:, some] = np.einsum(f"{axes},{axes}->{axes[0]}{axes[-1]}", part, part)
    return np.sqrt(squares.ravel() / k)


def anchored(e: Epilogue, body: Graph, node: Node, total: Expr, producers: list[Node], anchor: Accumulator,
             constants: Arrays = (), sums: LiteralSums | None = None, own: Container[int] = range(2)) -> Lowered:
    """Lower a body whose anchor `node` gives `total`, and a bias where it has one; raises Unsupported.

    `producers` are the nodes that only the anchor's kernel reads. With `sums` outputs near a tie are settled by them.
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
        e.drift = Drift(sums.literal.slope(sums.k), columns, known, {total: acc("f32")})
        bias = e.drift.size(node.inputs[2]) if len(node.inputs) > 2 else np.zeros(())
        e.drift.of[node.output] = sums.drift + e.drift.slope * bias
        scale = float(sums.literal.x_scale) * float(sums.literal.w_scale.max(initial=0))
        most = e.drift.bound(node.inputs[2]) if len(node.inputs) > 2 else 0.0
        e.drift.bounds[node.output] = sums.k * 2.0**16 * scale + most
    expr = translate(e, body, (node, dense), producers, own=own)
    tests = [r.near for r in e.roundings if r.near is not None]
    if sums is None or e.drift is None or not tests:
        return Lowered(e.out, Store(expr, dtype), tuple(e.sources), anchor)
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
    return Lowered(e.out, store, tuple(e.sources), anchor, literal)

"""Lowering of a body around an anchor, with a description of the f32 sum that the graph as written has in its place."""
from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import replace
from typing import Any

import numpy as np

from graphq.ir import Graph, Node
from graphq.kernels.family.epilogue import EpilogueBuilder, translate
from graphq.kernels.family.lower import Accumulator, Lowered, Products
from graphq.kernels.family.scales import RANGES, QuantParameter, wrapped
from graphq.kernels.lanes.expression import Expr
from graphq.kernels.lanes.stores import Store
from graphq.kernels.numbers.sum_orders import DequantizedSum, Order


def dequantized_products(
        node: Node, total: Expr, k: int, x_scale: QuantParameter, w_scale: QuantParameter, x_zp: QuantParameter,
        w_zp: QuantParameter, order: Order, block: int, x_dtype: str, weights: Callable[[], np.ndarray] | int, *,
        batch: int = 1, shift: int = 0, packed_zps: bool = True, start: np.ndarray | None = None, taps: int = 1
        ) -> Products | None:
    """Describe the products that the written graph adds up; it dequantizes operands before it multiplies them.

    Returns None if scales or zero points are tensors that are known only at run time, or vary along more than one
    dimension. `start` is the bias if the sums start from it. With `packed_zps`, the packed weights still contain their
    zero points, increased by `shift`; otherwise zero points are subtracted before packing. The other arguments are the
    fields of Products and DequantizedSum.
    """
    xs, ws, xz, wz = (n.data for n in (x_scale, w_scale, x_zp, w_zp))
    if xs is None or ws is None or xz is None or wz is None or ws.ndim > 1 or wz.ndim > 1:
        return None
    sum_ = DequantizedSum(order, block, np.float32(xs), int(xz), np.atleast_1d(ws), np.atleast_1d(wz).astype(np.int32),
                          np.zeros(1, np.float32) if start is None else start.ravel(), taps)
    low, high = (x - int(xz) for x in RANGES[x_dtype])
    zps = wrapped(wz + shift) if packed_zps else np.zeros(1, np.int32)
    return Products(node, total, sum_, k, (low, high), weights, batch, zps, start is not None)


def anchored(e: EpilogueBuilder, body: Graph, node: Node, total: Expr, producers: list[Node], anchor: Accumulator,
             accumulated: Expr, products: Products | None = None, own: Container[int] = range(2)) -> Lowered:
    """Lower a body whose anchor `node` gives the expression `total`, plus its bias if it has one; raises Unsupported.

    `accumulated` is the part of `total` that `anchor` accumulates. `producers` are the nodes whose results only the
    anchor's kernel reads. `own` are the numbers of the operands that the anchor's kernel reads itself. `products`
    describes the sum in the graph as written.
    """
    def dense(args: list[Any]) -> Expr:
        return total if len(args) < 3 or args[2] is None else total + args[2]

    expr = translate(e, body, (node, dense), producers, own=own)
    if products is not None and products.starts_at_bias:
        products = replace(products, total=e.values[node.output])
    store = Store(expr, body.outputs[0].dtype.name)
    return Lowered(e.out, store, tuple(e.sources), anchor, accumulated, e.values, products)

"""Lower bodies with an anchor: find scales and zero points, and describe the f32 sum that the graph states.

A body is the graph inside a partition. Its anchor is the operation that decides the kernel family, such as a matmul.
"""
from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from graphq.ir import Graph, Node, Value
from graphq.kernels.family.epilogue import EpilogueBuilder, OperandSource, expect_positive
from graphq.kernels.family.lower import Accumulator, Arrays, Lowered, StatedSum, lower_body
from graphq.kernels.lanes.expression import COMPUTE, Expr
from graphq.kernels.numbers.sum_orders import DequantizedSum, Order

RANGES = {"u8": (0, 255), "s8": (-128, 127)}


@dataclass(frozen=True, eq=False)
class QuantParameter:
    """The scales or the zero points of a quantized operand.

    Constants are in `data`; otherwise the numbers are input `index` of the partition. `plus` is added to zero points
    that are not constant. Reshaped to `shape`, the numbers broadcast to the quantized operand and to the result.
    """

    dtype: str
    shape: tuple[int, ...] = ()
    data: np.ndarray | None = None
    index: int = 0
    plus: int = 0

    @property
    def absent(self) -> bool:
        """Whether all numbers are the constant 0. Then there is nothing to subtract."""
        return self.data is not None and not self.data.any()

    def shifted(self, by: int) -> QuantParameter:
        """The same zero points with the number `by` added."""
        if self.data is not None:
            return replace(self, data=self.data + by)
        return replace(self, plus=self.plus + by)

    def array(self, inputs: Sequence[np.ndarray]) -> np.ndarray:
        """The numbers as an array (s64 for integers). `inputs` are the arrays of the partition's inputs."""
        x = inputs[self.index] if self.data is None else self.data
        if COMPUTE[self.dtype] == "s32":
            x = x.astype(np.int64) + self.plus
        return x.reshape(self.shape)

    def expr(self, e: EpilogueBuilder) -> Expr:
        """The epilogue's expression for the numbers; integers wrap modulo 2**32."""
        if self.data is None:
            x = e.slot(OperandSource("input", self.dtype, self.shape, self.index))
            return x + self.plus if self.plus else x
        data = np.atleast_1d(self.data) if self.dtype == "f32" else wrapped(self.data)
        dtype: Literal["f32", "s32"] = "f32" if self.dtype == "f32" else "s32"
        return e.slot(OperandSource("parameter", dtype, self.shape, data=data, role="operand"))


def known(values: object, shape: tuple[int, ...] = (), dtype: Literal["f32", "s32"] = "s32") -> QuantParameter:
    """Make a parameter of constants. The shape of a single number is ()."""
    data = np.asarray(values, np.float32 if dtype == "f32" else np.int64)
    return QuantParameter(dtype, () if data.size == 1 else shape, data.reshape(() if data.size == 1 else shape))


def given(value: Value, body: Graph, constants: Arrays, shape: tuple[int, ...]) -> QuantParameter:
    """Make a parameter from the body's input `value`: a constant, or a tensor that is known only at run time."""
    index, dtype = body.inputs.index(value), value.dtype.name
    data = constants[index]
    if data is not None:
        return known(data, shape, "f32" if dtype == "f32" else "s32")
    return QuantParameter(dtype, () if value.type.size == 1 else shape, index=index)


def parameters_of(node: Node, body: Graph, constants: Arrays,
                  shape: tuple[int, ...] = ()) -> tuple[QuantParameter, QuantParameter]:
    """The scales and zero points of a dequantize or dynamic_dequantize. `shape` is the shape of per-channel numbers.

    Raises Unsupported if a constant scale is 0 or negative.
    """
    if node.op.name == "dequantize":
        scales, zps = known(node.attrs["scales"], shape, "f32"), known(node.attrs["zps"] or 0, shape)
    else:
        of_zps = node.inputs[2] if len(node.inputs) > 2 else None
        scales = given(node.operand(1), body, constants, shape)
        zps = known(0) if of_zps is None else given(of_zps, body, constants, shape)
    if scales.data is not None:
        expect_positive(scales.data)
    return scales, zps


def scaled(e: EpilogueBuilder, y: Expr, left: QuantParameter, right: QuantParameter) -> Expr:
    """The expression y * f32(sx * sw), where sx and sw are the scales `left` and `right`.

    Constant scales are multiplied here, in f64. A kernel's f32 multiplication gives the same result, because the
    product of two f32 is exact in f64.
    """
    if left.data is None or right.data is None:
        return y * (left.expr(e) * right.expr(e))
    with np.errstate(over="ignore"):
        product = np.multiply(left.data, right.data, dtype=np.float32)
    if (product == 1).all():
        return y
    return y * known(product, np.broadcast_shapes(left.shape, right.shape), "f32").expr(e)


def wrapped(x: np.ndarray) -> np.ndarray:
    """`x` modulo 2**32, as an s32 array of at least one dimension."""
    return np.atleast_1d(x).astype(np.int64).astype(np.uint32).view(np.int32)


def reach(dtype: str, zps: QuantParameter) -> int:
    """The largest |q - zp| of a quantized number q. A zp known only at run time can be any number of the type."""
    low, high = RANGES[dtype]
    if zps.data is None:
        return high - low
    return max(int(np.abs(x - zps.data).max(initial=0)) for x in (low, high))


def dequantized_products(
        node: Node, total: Expr, k: int, x_scale: QuantParameter, w_scale: QuantParameter, x_zp: QuantParameter,
        w_zp: QuantParameter, order: Order, block: int, x_dtype: str, weights: Callable[[], np.ndarray] | int, *,
        batch: int = 1, shift: int = 0, packed_zps: bool = True, start: np.ndarray | None = None, taps: int = 1
        ) -> StatedSum | None:
    """Describe the f32 sum of products of dequantized operands that the graph states.

    Returns None if scales or zero points are known only at run time, or vary along more than one dimension. `start` is
    the bias if the sums start from it. If the packed weights still contain their zero points, `packed_zps` are these
    zero points, and `shift` was added to them. The other arguments are fields of StatedSum and DequantizedSum.
    """
    xs, ws, xz, wz = (n.data for n in (x_scale, w_scale, x_zp, w_zp))
    if xs is None or ws is None or xz is None or wz is None or ws.ndim > 1 or wz.ndim > 1:
        return None
    sum_ = DequantizedSum(order, block, np.float32(xs), int(xz), np.atleast_1d(ws), np.atleast_1d(wz).astype(np.int32),
                          np.zeros(1, np.float32) if start is None else start.ravel(), taps)
    low, high = (x - int(xz) for x in RANGES[x_dtype])
    zps = wrapped(wz + shift) if packed_zps else np.zeros(1, np.int32)
    return StatedSum(node, total, sum_, k, (low, high), weights, batch, zps, start is not None)


def plus_bias(total: Expr) -> Callable[[list[Any]], Expr]:
    """Make the function from an anchor's operands to its result: `total`, plus a bias if the anchor has one."""
    return lambda args: total if len(args) < 3 or args[2] is None else total + args[2]


def anchored(e: EpilogueBuilder, body: Graph, node: Node, total: Expr, producers: list[Node], anchor: Accumulator,
             accumulated: Expr | None = None, products: StatedSum | None = None,
             own: Container[int] = range(2)) -> Lowered:
    """Lower a body with an anchor, the node `node`. Raises Unsupported.

    The anchor's result is `total`, plus a bias if the node has one. `accumulated` is the part of `total` that `anchor`
    computes. `producers` are nodes whose results only the anchor's kernel reads. `own` are the indices of the operands
    that the anchor's kernel reads itself. `products` describes the f32 sum that the graph states.
    """
    lowered = lower_body(e, body, (node, plus_bias(total)), producers, own, anchor=anchor, accumulated=accumulated,
                         values=e.values, products=products)
    if products is not None and products.starts_at_bias:
        lowered = replace(lowered, products=replace(products, total=e.values[node.output]))
    return lowered

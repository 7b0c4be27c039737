"""Scales and zero points of an anchor's quantized operands: constants, or tensors that are known only at run time."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from graphq.ir import Graph, Node, Value
from graphq.kernels.family.epilogue import EpilogueBuilder, Source
from graphq.kernels.family.lower import Arrays
from graphq.kernels.lanes.expression import COMPUTE, Expr

RANGES = {"u8": (0, 255), "s8": (-128, 127)}


@dataclass(frozen=True, eq=False)
class QuantParameter:
    """The scales or the zero points of a quantized operand.

    If they are constants, `data` has them; otherwise they are input `index` of the partition. `plus` is added to them.
    `shape` is the shape under which they broadcast both to the operand that is multiplied and to the result.
    """

    dtype: str
    shape: tuple[int, ...] = ()
    data: np.ndarray | None = None
    index: int = 0
    plus: int = 0

    @property
    def absent(self) -> bool:
        """Whether all numbers are constants and equal 0, so that there is nothing to apply."""
        return self.data is not None and not self.data.any()

    def shifted(self, by: int) -> QuantParameter:
        """The parameter with `by` added to its integers."""
        if self.data is not None:
            return replace(self, data=self.data + by)
        return replace(self, plus=self.plus + by)

    def array(self, inputs: Sequence[np.ndarray]) -> np.ndarray:
        """The numbers as an array (s64 for integers), given the arrays of the partition's inputs."""
        x = inputs[self.index] if self.data is None else self.data
        if COMPUTE[self.dtype] == "s32":
            x = x.astype(np.int64) + self.plus
        return x.reshape(self.shape)

    def expr(self, e: EpilogueBuilder) -> Expr:
        """The expression of the numbers for the epilogue; integers are taken modulo 2**32."""
        if self.data is None:
            x = e.slot(Source("input", self.dtype, self.shape, self.index))
            return x + self.plus if self.plus else x
        data = np.atleast_1d(self.data) if self.dtype == "f32" else wrapped(self.data)
        dtype: Literal["f32", "s32"] = "f32" if self.dtype == "f32" else "s32"
        return e.slot(Source("parameter", dtype, self.shape, data=data, role="operand"))


def known(values: object, shape: tuple[int, ...] = (), dtype: Literal["f32", "s32"] = "s32") -> QuantParameter:
    """A parameter of constant numbers; a single number gets the shape ()."""
    data = np.asarray(values, np.float32 if dtype == "f32" else np.int64)
    return QuantParameter(dtype, () if data.size == 1 else shape, data.reshape(() if data.size == 1 else shape))


def given(value: Value, body: Graph, constants: Arrays, shape: tuple[int, ...]) -> QuantParameter:
    """The parameter whose numbers are the input `value` of the body; that input may be a constant."""
    index, dtype = body.inputs.index(value), value.dtype.name
    data = constants[index]
    if data is not None:
        return known(data, shape, "f32" if dtype == "f32" else "s32")
    return QuantParameter(dtype, () if value.type.size == 1 else shape, index=index)


def scales_of(node: Node, body: Graph, constants: Arrays, shape: tuple[int, ...]) -> QuantParameter:
    """The scales of a dequantize or dynamic_dequantize; `shape` is the shape of scales that vary by channel."""
    if node.op.name == "dequantize":
        return known(node.attrs["scales"], shape, "f32")
    return given(node.operand(1), body, constants, shape)


def zero_points_of(node: Node, body: Graph, constants: Arrays, shape: tuple[int, ...]) -> QuantParameter:
    """The zero points of a dequantize or dynamic_dequantize; constant 0 if it has none."""
    if node.op.name == "dequantize":
        return known(node.attrs["zps"] or 0, shape)
    zps = node.inputs[2] if len(node.inputs) > 2 else None
    return known(0) if zps is None else given(zps, body, constants, shape)


def scaled(e: EpilogueBuilder, y: Expr, left: QuantParameter, right: QuantParameter) -> Expr:
    """The expression y * f32(sx * sw), where sx and sw are two scales.

    The product of two f32 is exact in f64, so it makes no difference whether NumPy or the kernel rounds it to f32.
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
    """The largest distance between a quantized number and its zero point.

    An unknown zero point may be any number of the type.
    """
    low, high = RANGES[dtype]
    if zps.data is None:
        return high - low
    return max(int(np.abs(x - zps.data).max(initial=0)) for x in (low, high))

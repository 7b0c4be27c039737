"""Dequantize the taps of means as the reference does, and make the tables that kernels read for this.

    d(x) = (x - zp[c]) * s[c]  for u8 and s8, in f32, rounded once        d(x) = x  for floats

The mean of four integers, requantized to the same scale, is exactly halfway between two integers in one case of four.
The f32 rounding errors of d and of the sum then decide whether the reference rounds up or down. Kernels therefore
dequantize every tap before they add it, in the reference's order (`numbers.mean_sums`).
"""
from typing import NamedTuple

import numpy as np

from graphq.base.sizes import recorded
from graphq.kernels.jit.intrinsics import Record
from graphq.kernels.jit.values import F32, Builder, Value, vector
from graphq.kernels.lanes.epilogues import evaluate
from graphq.kernels.lanes.expression import COMPUTE, Expr, load, op
from graphq.kernels.lanes.vector import STORAGE_IR, emit, widen

TABLES = Record("table_bytes")
"""The header of the tables of means; `table_bytes` are the bytes of one f32 table.

The zero points, the scales and f64 numbers (the divisors of a pool) follow the header.
"""
TABLES_BYTES = TABLES.nbytes


@recorded("means.Scales")
class Scales(NamedTuple):
    """The scales and zero points of u8 or s8 images, f32 [channels]."""

    scales: np.ndarray
    zps: np.ndarray


def _tap(dtype: str) -> Expr:
    x = load(0, dtype, "vector")
    if COMPUTE[dtype] == "f32":
        return x
    return (op("to_f32", x) - load(1, "f32", "vector")) * load(2, "f32", "vector")


def dequantized(x: np.ndarray, dtype: str, scales: Scales | None) -> np.ndarray:
    """Dequantize an array [..., channels] to f32; floats are only widened."""
    operands = [x] if scales is None else [x, scales.zps, scales.scales]
    return evaluate(_tap(dtype), None, operands)


@recorded("means.tables")
def tables(scales: Scales | None, numbers: np.ndarray) -> np.ndarray:
    """Pack a TABLES header, the zero points, the scales and f64 `numbers` into one array."""
    f32 = [] if scales is None else [scales.zps, scales.scales]
    each = len(f32) and -(-f32[0].size // 2)
    block = np.zeros(1 + 2 * each + numbers.size)
    block[:1].view(np.int64)[0] = 8 * each
    for k, table in enumerate(f32):
        block[1 + k * each:1 + (k + 1) * each].view(np.float32)[:table.size] = table
    block[1 + 2 * each:] = numbers.ravel()
    return block


def numbers_of(block: Value) -> Value:
    """Emit the address of the f64 numbers in `tables` at address `block`."""
    return block + TABLES_BYTES + TABLES.load(block, "table_bytes") * 2


class Taps:
    """Loads `width` channels of a tap from channel `c` on, dequantized with the `tables` at address `block`."""

    def __init__(self, b: Builder, dtype: str, width: int, block: Value, c: Value) -> None:
        self.b, self.dtype, self.width = b, dtype, width
        self.parameters = []
        if COMPUTE[dtype] != "f32":
            each = TABLES.load(block, "table_bytes")
            zps = block + TABLES_BYTES + c * 4
            self.parameters = [x.load(vector(F32, width)) for x in (zps, zps + each)]

    def load(self, address: Value) -> Value:
        """Emit the load of the elements at `address`, dequantized to f32."""
        b, width = self.b, self.width
        raw = address.load(vector(STORAGE_IR[self.dtype], width))
        values = [widen(b, raw, self.dtype, width), *self.parameters]
        return emit(b, _tap(self.dtype), width, lambda node: values[node.value[0]])

"""Products of floats for tiles in vector registers: one fused multiply-add each, in f32.

bf16 is the upper half of an f32: a group of two takes a shift or a mask. f16 takes vcvtph2ps. vdpbf16ps and AMX's
tdpbf16ps are not used: they flush subnormals and round pairs in ways of their own.
"""
from __future__ import annotations

from graphq.kernels.jit.values import F16, F32, I32, Builder, Value, vector
from graphq.kernels.lanes import elementary
from graphq.kernels.lanes.expression import acc
from graphq.kernels.lanes.vector import emit
from graphq.kernels.matmul.vector import Factor, Products
from graphq.kernels.numbers.float_sums import BLOCK


def _chain(b: Builder, total: Value, x: Factor, w: Factor) -> Value:
    for left, right in zip(x, w, strict=True):
        total = left.math("fma", right, total)
    return total


def floats(dtype: str, lanes: int, emulated: bool) -> Products:
    """The products of f32, bf16 or f16, `lanes` columns a part; `emulated` code goes without vcvtph2ps."""
    kind, itemsize = vector(F32, lanes), 4 if dtype == "f32" else 2
    widen = {"f32": lambda b, x: (x.as_type(kind),), "bf16": _widen_bf16,
             "f16": _emulate_f16 if emulated else _widen_f16}[dtype]
    return Products(16 // lanes, kind, lambda b, group: widen(b, group.splat(lanes)),
                    lambda b, address: widen(b, address.load(vector(I32, lanes))), _chain,
                    itemsize=itemsize, block=BLOCK * itemsize // 4)


def _widen_bf16(b: Builder, x: Value) -> tuple[Value, Value]:
    kind = vector(F32, x.type.count)
    return (x << 16).as_type(kind), (x & -0x10000).as_type(kind)


def _widen_f16(b: Builder, x: Value) -> tuple[Value, Value]:
    lanes = x.type.count
    halves = x.as_type(vector(F16, 2 * lanes))
    low, high = (halves.shuffle(halves, range(k, 2 * lanes, 2)) for k in (0, 1))
    return low.to_float(vector(F32, lanes)), high.to_float(vector(F32, lanes))


def _emulate_f16(b: Builder, x: Value) -> tuple[Value, Value]:
    lanes = x.type.count
    low, high = x & 0xFFFF, x.shr(16)
    value = elementary.f16_value(acc())
    return emit(b, value, lanes, lambda _: low), emit(b, value, lanes, lambda _: high)

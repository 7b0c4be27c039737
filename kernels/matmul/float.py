"""Products of floats for tiles in vector registers: one fused multiply-add each, in f32.

bf16 is the upper half of an f32: a group of two takes a shift or a mask. f16 takes vcvtph2ps. vdpbf16ps and AMX's
tdpbf16ps are not used: they flush subnormals and round pairs in ways of their own.
"""
from __future__ import annotations

from typing import Any

from graphq.kernels.jit.intrinsics import F16, F32, I32, declare, splat
from graphq.kernels.jit.x86 import filled, load, shuffle, vector
from graphq.kernels.lanes import elementary
from graphq.kernels.lanes.expression import acc
from graphq.kernels.lanes.vector import emit
from graphq.kernels.matmul.vector import Products
from graphq.kernels.numbers.float_sums import BLOCK


def fma(b: Any, x: Any, w: Any, total: Any) -> Any:
    """Emit x * w + total, rounded once."""
    kind = total.type
    return b.call(declare(b, f"llvm.fma.v{kind.count}f32", kind, [kind] * 3), [x, w, total])


def _chain(b: Any, total: Any, x: Any, w: Any) -> Any:
    for left, right in zip(x, w, strict=True):
        total = fma(b, left, right, total)
    return total


def floats(dtype: str, lanes: int, emulated: bool) -> Products:
    """Multiply f32, bf16 or f16, `lanes` columns a part; `emulated`: without vcvtph2ps."""
    kind, itemsize = vector(F32, lanes), 4 if dtype == "f32" else 2
    widen = {"f32": lambda b, x: (b.bitcast(x, kind),), "bf16": _widen_bf16,
             "f16": _emulate_f16 if emulated else _widen_f16}[dtype]
    return Products(16 // lanes, kind, lambda b, group: widen(b, splat(b, group, lanes)),
                    lambda b, address: widen(b, load(b, address, vector(I32, lanes))), _chain,
                    itemsize=itemsize, block=BLOCK * itemsize // 4)


def _widen_bf16(b: Any, x: Any) -> tuple[Any, Any]:
    kind, lanes = x.type, x.type.count
    low, high = b.shl(x, filled(kind, 16)), b.and_(x, filled(kind, -0x10000))
    return b.bitcast(low, vector(F32, lanes)), b.bitcast(high, vector(F32, lanes))


def _widen_f16(b: Any, x: Any) -> tuple[Any, Any]:
    lanes = x.type.count
    halves = b.bitcast(x, vector(F16, 2 * lanes))
    low, high = (shuffle(b, halves, halves, range(k, 2 * lanes, 2)) for k in (0, 1))
    return b.fpext(low, vector(F32, lanes)), b.fpext(high, vector(F32, lanes))


def _emulate_f16(b: Any, x: Any) -> tuple[Any, Any]:
    lanes = x.type.count
    low, high = b.and_(x, filled(x.type, 0xFFFF)), b.lshr(x, filled(x.type, 16))
    value = elementary.f16_value(acc())
    return emit(b, value, lanes, lambda _: low), emit(b, value, lanes, lambda _: high)

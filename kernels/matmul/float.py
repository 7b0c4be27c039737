"""Multiply f32, bf16 and f16 for tiles in vector registers, with sums in f32.

Each product of f32 or f16 is a fused multiply-add. f16 is widened first.

bf16 is multiplied by a level's instruction for pairs if it has one: the instruction adds two products to each sum.
Other levels widen bf16 to f32 by a shift or a mask, and use fused multiply-adds. The bits are the same, because
this code also adds the second product first and treats subnormal numbers as zeros. Subnormal numbers become zeros by a
mode of the CPU or, if emulated, by code. AMX's instruction for bf16 is not used, because it adds in another order.
"""
from functools import partial

from graphq.kernels.jit import flushed
from graphq.kernels.jit.values import F16, F32, I16, I32, Builder, Value, vector
from graphq.kernels.lanes import elementary
from graphq.kernels.lanes.expression import acc
from graphq.kernels.lanes.vector import emit
from graphq.kernels.matmul.pack import PANEL
from graphq.kernels.matmul.vector import DotProducts
from graphq.kernels.numbers.float_sums import BLOCK, SCALE, SMALLEST_NORMAL
from graphq.kernels.target.level import Level
from graphq.kernels.target.products import Factor


def _chain(b: Builder, total: Value, x: Factor, w: Factor) -> Value:
    for left, right in zip(x, w, strict=True):
        total = left.math("fma", right, total)
    return total


def floats(dtype: str, level: Level) -> DotProducts:
    """Multiply f32, bf16 or f16 as a level does: bf16 by its instruction for pairs, otherwise by multiply-adds.

    If the level is emulated or has no vectors, no special instructions multiply pairs, widen elements or flush
    subnormals.
    """
    lanes, emulated = level.fma.lanes, level.emulated or not level.f16
    kind, itemsize, is_bf16 = vector(F32, lanes), 4 if dtype == "f32" else 2, dtype == "bf16"
    total = flushed if is_bf16 and (emulated or level.bf16 is not None) else lambda b, x: x
    make = partial(DotProducts, PANEL // lanes, kind, itemsize=itemsize, block=BLOCK * itemsize // 4, total=total,
                   by_element=level.by_element)
    words = vector(I32, lanes)
    if is_bf16 and level.bf16 is not None and not emulated:
        dot = level.bf16.dot
        return make(lambda b, x: (x,), lambda b, address: (address.load(words),),
                    lambda b, acc, x, w: dot(b, acc, x[0], w[0]))
    widen = {"f32": lambda b, x: (x.as_type(kind),), "f16": _emulate_f16 if emulated else _widen_f16,
             "bf16": lambda b, x: tuple(flushed(b, part) if emulated else part for part in _widen_bf16(b, x))}[dtype]
    flushes = is_bf16 and not emulated
    return make(widen, lambda b, address: widen(b, address.load(words)),
                _flushed_chain if is_bf16 and emulated else _chain,
                flushing=level.fma.flushing if flushes else None,
                plain=floats(dtype, level.emulation) if flushes else None)


def _widen_bf16(b: Builder, x: Value) -> tuple[Value, Value]:
    """Widen pairs of bf16 to f32; returns a vector of the second elements and one of the first elements."""
    kind = vector(F32, x.type.count)
    return (x & -0x10000).as_type(kind), (x << 16).as_type(kind)


def _flushed_chain(b: Builder, total: Value, x: Factor, w: Factor) -> Value:
    """Add the products one after the other; a subnormal sum becomes zero.

    The instruction for pairs compares the sum with the smallest normal number before it rounds. The test therefore uses
    2^64 times the sum, which f32 rounds as a normal number.
    """
    for left, right in zip(x, w, strict=True):
        scaled = (left * float(SCALE)).math("fma", right, total * float(SCALE)).math("fabs")
        exact = left.math("fma", right, total)
        zero = exact.as_type(vector(I32, exact.type.count)) & -0x80000000
        total = (scaled < float(SCALE * SMALLEST_NORMAL)).select(zero.as_type(exact.type), exact)
    return total


def _widen_f16(b: Builder, x: Value) -> tuple[Value, Value]:
    lanes, kind = x.type.count, vector(F32, x.type.count)
    if b.level.by_element:  # of shuffles, LLVM makes Arm's ld2, and moves the loads of all weights to the front
        low, high = (y.trunc(I16).as_type(vector(F16, lanes)) for y in (x, x.shr(16)))
    else:
        halves = x.as_type(vector(F16, 2 * lanes))
        low, high = (halves.shuffle(halves, range(k, 2 * lanes, 2)) for k in (0, 1))
    return low.to_float(kind), high.to_float(kind)


def _emulate_f16(b: Builder, x: Value) -> tuple[Value, Value]:
    lanes = x.type.count
    low, high = x & 0xFFFF, x.shr(16)
    value = elementary.small_float_value(acc(), "f16")
    return emit(b, value, lanes, lambda _: low), emit(b, value, lanes, lambda _: high)

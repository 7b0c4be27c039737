"""Pools: maxima and sums over the windows of channels-last images, and a Store of them.

    acc[i, c] = max or sum over taps t of x[window(i, t), c]      padding reads the pad row of the `Windows` block
    out[i, c] = Store(acc[i, c], operands)

Maxima and sums of u8 and s8 are s32, of floats f32; sums of floats go tap by tap, from -0. A maximum that keeps scale
and zero point writes bytes directly, in half the time.
"""
from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numba import types

from graphq.kernels.expression import COMPUTE, STORAGE, Expr, Store, load, op, select
from graphq.kernels.intrinsics import F32, I8, I16, I32, I64, c64, intrinsic
from graphq.kernels.isa import Level
from graphq.kernels.pixels import load_tile, over_channels, plan_pixels, unrolled
from graphq.kernels.registry import Step
from graphq.kernels.vector import STORAGE_IR, constant, emit, narrow, vec, widen
from graphq.kernels.windows import Windows
from graphq.kernels.x86 import Loop, at, store
from graphq.kernels.x86 import load as load_vector

How = Literal["max", "sum"]

TAPS = 128
"""Taps of one call of `reduce`: so many u8 still sum in 16 bits."""
ADDRESSES = 8 * (TAPS + 1)

_SETUP = "reduce = reduction({how!r}, {dtype!r}, {lanes}, {direct}, {taps})"
_LOOP = """for tap in range(0, taps, TAPS):
            count = min(TAPS, taps - tap)
            place(windows, image, outer, inner, tap, count, addresses)
            reduce(addresses, count, left * {itemsize}, channels, target, tap)"""
_ONCE = """place(windows, image, outer, inner, 0, taps, addresses)
        reduce(addresses, taps, left * {itemsize}, channels, target, 0)"""


def maximum(x: Expr, y: Expr) -> Expr:
    """The greater of two f32, NaN where one is; the second of equal ones."""
    return select(op("or", x > y, op("ne", x, x)), x, y)


COMBINE = {"max": maximum(load(0, "f32", "vector"), load(1, "f32", "vector")),
           "sum": load(0, "f32", "vector") + load(1, "f32", "vector")}
"""How f32 accumulators (operand 0) take the next tap (operand 1)."""


def start(how: How, dtype: str) -> float:
    """The accumulator of no tap."""
    if how == "sum":
        return -0.0 if COMPUTE[dtype] == "f32" else 0
    return -np.inf if COMPUTE[dtype] == "f32" else int(np.iinfo(STORAGE[dtype]).min)


def reduction(how: How, dtype: str, lanes: int, direct: bool, taps: int = 0) -> Any:
    """Make the intrinsic (taps, count, offset, channels, target, going): accumulators of one output pixel.

    `taps` holds `count` addresses, of which `channels` elements at `offset` bytes are reduced into f32 or s32, or into
    `dtype` when `direct`, at `target`; unless `going` is 0 the accumulators there go on. With `taps` not 0
    the count is that, and `going` is 0.
    """
    kind, itemsize = STORAGE_IR[dtype], STORAGE[dtype].itemsize

    def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
        places, count, offset, channels, target, going = args
        first = b.icmp_signed("==", going, c64(0))

        def tap(step: _Reduce, carried: list[Any], k: Any, skip: Any) -> list[Any]:
            address = load_vector(b, at(b, places, b.mul(k, c64(8))), I64, 8)
            return step.take(carried, load_vector(b, at(b, address, skip), vec(kind, step.width)))

        def vectors(width: int, c: Any) -> None:
            step = _Reduce(b, how, dtype, width, direct)
            into = at(b, target, b.mul(c, c64(itemsize if direct else 4)))
            skip = at(b, offset, b.mul(c, c64(itemsize)))
            before = step.fresh if taps else b.select(first, step.fresh, load_vector(b, into, step.fresh.type))
            carried = step.begin(before)
            for k in range(taps):
                carried = tap(step, carried, c64(k), skip)
            if not taps:
                with Loop(b, count, carried) as loop:
                    loop.update(tap(step, loop.values, loop.k, skip))
                carried = loop.values
            store(b, step.end(carried, before), into)

        over_channels(b, channels, lanes, vectors)
        return context.get_dummy_value()

    @intrinsic
    def reduce(_typing: Any, taps: Any, count: Any, offset: Any, channels: Any, target: Any, going: Any) -> Any:
        return types.void(*[types.intp] * 6), codegen

    return reduce


class _Reduce:
    """How vectors of `width` elements are reduced: maxima of bytes as bytes, sums of bytes in 16 bits.

    `fresh` is what accumulators start from, in the type that they have in memory.
    """

    def __init__(self, b: Any, how: How, dtype: str, width: int, direct: bool) -> None:
        self.b, self.how, self.dtype, self.width, self.direct = b, how, dtype, width, direct
        self.floats = COMPUTE[dtype] == "f32"
        kind = F32 if self.floats else I8 if direct else I32
        self.fresh = constant(kind, start(how, dtype), width)

    def begin(self, before: Any) -> list[Any]:
        """What the loop over taps carries, from the accumulators before it."""
        if self.floats or self.direct:
            return [before]
        if self.how == "max":
            return [narrow(self.b, before, self.dtype, self.width)]
        return [constant(I16, 0, self.width)]

    def take(self, carried: list[Any], x: Any) -> list[Any]:
        """One tap."""
        b, (have,) = self.b, carried
        if self.floats:
            values = [have, widen(b, x, self.dtype, self.width)]
            return [emit(b, COMBINE[self.how], self.width, lambda node: values[node.value[0]])]
        if self.how == "max":
            greater = b.icmp_unsigned if self.dtype == "u8" else b.icmp_signed
            return [b.select(greater(">", have, x), have, x)]
        extend = b.zext if self.dtype == "u8" else b.sext
        return [b.add(have, extend(x, vec(I16, self.width)))]

    def end(self, carried: list[Any], before: Any) -> Any:
        """The accumulators after the loop."""
        (have,) = carried
        if self.floats or self.direct:
            return have
        if self.how == "max":
            return widen(self.b, have, self.dtype, self.width)
        return self.b.add(before, self.b.sext(have, vec(I32, self.width)))


def is_direct(store: Store, how: How, dtype: str) -> bool:
    """Whether the output is the accumulator, in the type in which it is reduced."""
    same = dtype == "f32" or how == "max" and COMPUTE[dtype] == "s32"
    return same and store.expr.op == "acc" and store.dtype == dtype


def plan_pool(store: Store, how: How, dtype: str, windows: Windows, channels: int, batch: int, m: int, level: Level, *,
              threads: int = 1, cache: bool = True) -> Step:
    """Plan a pool of images of `dtype` to batch * m output pixels; see `pixels` for the words to fill in."""
    direct, itemsize = is_direct(store, how, dtype), STORAGE[dtype].itemsize
    ko, ki = unrolled(windows.outer.shape[1], windows.inner.shape[1])
    setup = _SETUP.format(how=how, dtype=dtype, lanes=level.lanes, direct=direct, taps=ko * ki)
    tile = load_tile(f"pool_{how}_{dtype}", (ko, ki), setup=setup, room="ADDRESSES",
                     imports="from graphq.kernels.pool import ADDRESSES, TAPS, reduction",
                     body=(_ONCE if ko else _LOOP).format(itemsize=itemsize), cache=cache)
    cycles = 20 + windows.taps * (3 + channels * itemsize / 32)
    return plan_pixels(f"pool_{how}_{dtype}_{level.name}", store, tile, windows.image_bytes, windows.pixels, channels,
                       batch, m, level, cycles=cycles, direct=itemsize if direct else 0, threads=threads, cache=cache)

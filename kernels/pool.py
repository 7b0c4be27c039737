"""Pools: maxima and means over the windows of channels-last images, and a Store of them.

    acc[i, c] = max over taps t of x[window(i, t), c]                             s32 of u8 and s8, f32 of floats
    acc[i, c] = f32(rate[i] * sum over taps t of d(x[window(i, t), c]))           in f64, tap by tap from -0; d: `means`
    out[i, c] = Store(acc[i, c], operands)                                        padding reads the block's pad row

rate is 1/count, rounded to f64. A maximum that keeps scale and zero point writes bytes directly, in half the time.
"""
from __future__ import annotations

from typing import Any, Literal, Protocol

import numpy as np

from graphq.kernels.expression import COMPUTE, STORAGE, Expr, Store, load, op, select
from graphq.kernels.intrinsics import F32, I8, I32, I64, c64, intrinsic, splat
from graphq.kernels.isa import Level
from graphq.kernels.jit import types
from graphq.kernels.means import F64, Taps, rounded
from graphq.kernels.pixels import CHANNELS, load_tile, over_channels, plan_pixels, unrolled
from graphq.kernels.registry import Step
from graphq.kernels.vector import STORAGE_IR, constant, emit, narrow, vec, widen
from graphq.kernels.windows import Windows
from graphq.kernels.x86 import Loop, at, store
from graphq.kernels.x86 import load as load_vector

How = Literal["max", "mean"]

TAPS = 128
"""Taps of one call of `reduce`."""
ADDRESSES = 8 * (TAPS + 1)
ROOM = ADDRESSES + 8 * CHANNELS
"""Bytes of the addresses, and of the sums after them."""

_IMPORTS = """from graphq.kernels.means import numbers_of
from graphq.kernels.pool import ADDRESSES, ROOM, TAPS, division, reduction"""
_SETUP = "reduce, divide = reduction({how!r}, {dtype!r}, {lanes}, {direct}, {taps}), division({lanes})"
_LOOP = """for tap in range(0, taps, TAPS):
            count = min(TAPS, taps - tap)
            place(windows, image, outer, inner, tap, count, addresses)
            reduce(addresses, count, left, channels, {into}, tap, word(frame, 10))"""
_ONCE = """place(windows, image, outer, inner, 0, taps, addresses)
        reduce(addresses, taps, left, channels, {into}, 0, word(frame, 10))"""
_DIVIDE = """
        divide(addresses + ADDRESSES, channels, numbers_of(word(frame, 10)) + 8 * (outer * ow + inner), target)"""


def maximum(x: Expr, y: Expr) -> Expr:
    """The greater of two f32, NaN where one is; the second of equal ones."""
    return select(op("or", x > y, op("ne", x, x)), x, y)


GREATER = maximum(load(0, "f32", "vector"), load(1, "f32", "vector"))
"""How a maximum of f32 (operand 0) takes the next tap (operand 1)."""


def least(dtype: str) -> float:
    """The maximum of no tap."""
    return -np.inf if COMPUTE[dtype] == "f32" else int(np.iinfo(STORAGE[dtype]).min)


def reduction(how: How, dtype: str, lanes: int, direct: bool, taps: int = 0) -> Any:
    """Make the intrinsic (taps, count, left, channels, target, going, tables): accumulators of one output pixel.

    `taps` holds `count` addresses of pixels, whose `channels` elements from `left` on are reduced at `target`: maxima
    into f32 or s32, or into `dtype` when `direct`, sums into f64, by the `means.tables` there. Unless `going` is 0 the
    accumulators there go on. With `taps` not 0 the count is that, and `going` is 0.
    """
    itemsize = STORAGE[dtype].itemsize
    size = 8 if how == "mean" else itemsize if direct else 4

    def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
        places, count, left, channels, target, going, tables = args
        first = b.icmp_signed("==", going, c64(0))

        def vectors(width: int, c: Any) -> None:
            channel = at(b, left, c)
            step = _Sum(b, dtype, width, tables, channel) if how == "mean" else _Maximum(b, dtype, width, direct)
            into, skip = at(b, target, b.mul(c, c64(size))), b.mul(channel, c64(itemsize))

            def take(have: Any, k: Any) -> Any:
                return step.take(have, at(b, load_vector(b, at(b, places, b.mul(k, c64(8))), I64, 8), skip))

            have = step.begin(step.fresh if taps else b.select(first, step.fresh,
                                                               load_vector(b, into, step.fresh.type)))
            for k in range(taps):
                have = take(have, c64(k))
            if not taps:
                with Loop(b, count, [have]) as loop:
                    loop.update([take(loop.values[0], loop.k)])
                (have,) = loop.values
            store(b, step.end(have), into)

        over_channels(b, channels, lanes, vectors)
        return context.get_dummy_value()

    @intrinsic
    def reduce(_typing: Any, taps: Any, count: Any, left: Any, channels: Any, target: Any, going: Any,
               tables: Any) -> Any:
        return types.void(*[types.intp] * 7), codegen

    return reduce


class _Reduction(Protocol):
    """How vectors of elements are reduced; `fresh` are accumulators of no tap, in the type they have in memory."""

    fresh: Any

    def begin(self, before: Any) -> Any:
        """What the loop over taps carries, from the accumulators before it."""

    def take(self, have: Any, address: Any) -> Any:
        """One tap."""

    def end(self, have: Any) -> Any:
        """The accumulators after the loop."""


class _Maximum:
    """Maxima; those of bytes are bytes until the end."""

    def __init__(self, b: Any, dtype: str, width: int, direct: bool) -> None:
        self.b, self.dtype, self.width = b, dtype, width
        self.floats = COMPUTE[dtype] == "f32"
        self.widens = not self.floats and not direct
        self.fresh = constant(F32 if self.floats else I8 if direct else I32, least(dtype), width)

    def begin(self, before: Any) -> Any:
        return narrow(self.b, before, self.dtype, self.width) if self.widens else before

    def take(self, have: Any, address: Any) -> Any:
        b = self.b
        x = load_vector(b, address, vec(STORAGE_IR[self.dtype], self.width))
        if self.floats:
            values = [have, widen(b, x, self.dtype, self.width)]
            return emit(b, GREATER, self.width, lambda node: values[node.value[0]])
        greater = b.icmp_unsigned if self.dtype == "u8" else b.icmp_signed
        return b.select(greater(">", have, x), have, x)

    def end(self, have: Any) -> Any:
        return widen(self.b, have, self.dtype, self.width) if self.widens else have


class _Sum:
    """Sums in f64."""

    def __init__(self, b: Any, dtype: str, width: int, tables: Any, channel: Any) -> None:
        self.b, self.taps = b, Taps(b, dtype, width, tables, channel)
        self.fresh = constant(F64, -0.0, width)

    def begin(self, before: Any) -> Any:
        return before

    def take(self, have: Any, address: Any) -> Any:
        return self.b.fadd(have, self.taps.load(address))

    def end(self, have: Any) -> Any:
        return have


def division(lanes: int) -> Any:
    """Make the intrinsic (sums, channels, rate, target): f32 of sums in f64 times the f64 at `rate`."""

    def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
        sums, channels, rate, target = args
        factor = load_vector(b, rate, F64, 8)

        def vectors(width: int, c: Any) -> None:
            x = load_vector(b, at(b, sums, b.mul(c, c64(8))), vec(F64, width))
            y = rounded(b, b.fmul(x, factor if width == 1 else splat(b, factor, width)), width)
            store(b, y, at(b, target, b.mul(c, c64(4))))

        over_channels(b, channels, lanes, vectors)
        return context.get_dummy_value()

    @intrinsic
    def divide(_typing: Any, sums: Any, channels: Any, rate: Any, target: Any) -> Any:
        return types.void(*[types.intp] * 4), codegen

    return divide


def is_direct(store: Store, how: How, dtype: str) -> bool:
    """Whether the output is the accumulator, in the type in which the tile leaves it."""
    left = "f32" if how == "mean" else dtype
    return store.expr.op == "acc" and store.dtype == left and left not in ("bf16", "f16")


def plan_pool(store: Store, how: How, dtype: str, windows: Windows, channels: int, batch: int, m: int, level: Level, *,
              threads: int = 1, cache: bool = True) -> Step:
    """Plan a pool of images of `dtype` to batch * m output pixels; see `pixels` for the words to fill in.

    The weights of means are `means.tables` of the rates of an image's pixels.
    """
    direct, itemsize = is_direct(store, how, dtype), STORAGE[dtype].itemsize
    ko, ki = unrolled(windows.outer.shape[1], windows.inner.shape[1])
    mean = how == "mean"
    body = (_ONCE if ko else _LOOP).format(into="addresses + ADDRESSES" if mean else "target")
    setup = _SETUP.format(how=how, dtype=dtype, lanes=level.lanes, direct=direct and not mean, taps=ko * ki)
    tile = load_tile(f"pool_{how}_{dtype}", (ko, ki), setup=setup, room="ROOM" if mean else "ADDRESSES",
                     imports=_IMPORTS, body=body + _DIVIDE * mean, cache=cache)
    cycles = 20 + windows.taps * (3 + channels * (1 / level.lanes if mean else itemsize / 32))
    return plan_pixels(f"pool_{how}_{dtype}_{level.name}", store, tile, windows.image_bytes, windows.pixels, channels,
                       batch, m, level, cycles=cycles, direct=STORAGE[store.dtype].itemsize if direct else 0,
                       threads=threads, cache=cache)

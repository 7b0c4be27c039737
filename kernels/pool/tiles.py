"""Kernels of pools: maxima and means over the windows of channels-last images, followed by an epilogue.

    acc[i, c] = max over taps t of x[window(i, t), c]                             s32 for u8 and s8, f32 for floats
    acc[i, c] = (sum over taps t of d(x[window(i, t), c])) / count[i]             f32
    out[i, c] = epilogue(acc[i, c], operands)                                     padding reads the pad row of WINDOWS

`numbers.mean_sums` describes the order of the f32 sums, `means` the function d. If the epilogue of a maximum does
nothing, tiles write the outputs directly, in half the time. For each small window size, code is compiled that reads a
list of tap addresses. All other sizes share code that finds taps by the tables of offsets.
"""
import functools
from collections.abc import Callable
from math import prod
from typing import Literal, TypeAlias

import numpy as np

from graphq.kernels.jit import Functions, Loop, modules
from graphq.kernels.jit.values import F32, F64, I8, I64, Builder, Value, c64, constant, vector
from graphq.kernels.lanes.epilogues import Epilogue
from graphq.kernels.lanes.expression import COMPUTE, STORAGE, Expr, load, op, select
from graphq.kernels.lanes.vector import STORAGE_IR, emit, widen
from graphq.kernels.numbers.mean_sums import QUAD, Order, halved, lanes_of, start_of, total
from graphq.kernels.operands.windows import WINDOWS
from graphq.kernels.pixels import blocks
from graphq.kernels.pixels.blocks import Pixels, Spot
from graphq.kernels.pool.means import Taps, numbers_of
from graphq.plan.plan import Step, Target

How = Literal["max", "mean"]
Take: TypeAlias = Callable[[Value, Value], Value]
"""A function that combines a value with the next tap: its arguments are the value and the tap's address."""

SUMS = 16
"""The registers for sums of a pixel's channels. With half as many, tap addresses take longer than the sums."""
ADDRESSES = 8 * (blocks.UNROLLED + 1)


def maximum(x: Expr, y: Expr) -> Expr:
    """The greater of two f32; NaN if x or y is NaN."""
    return select(op("or", x > y, op("ne", x, x)), x, y)


GREATER = maximum(load(0, "f32", "vector"), load(1, "f32", "vector"))
"""The new maximum of f32, from the maximum so far (operand 0) and the next tap (operand 1)."""


def least(dtype: str) -> float:
    """The number that a maximum starts from: the least number of the dtype."""
    return -np.inf if COMPUTE[dtype] == "f32" else int(np.iinfo(STORAGE[dtype]).min)


def pool_tiles(how: How, dtype: str, lanes: int, direct: bool, order: Order, ko: int, ki: int) -> Functions:
    """Make the module of tiles of one pixel, for windows of ko x ki or, if these are 0, of any size.

    Maxima are stored as f32 or s32, or as `dtype` if `direct`. Means are stored as f32; the frame's `weights` is then
    the address of `means.tables`, whose numbers are the pixels' divisors.
    """
    itemsize = STORAGE[dtype].itemsize
    size = itemsize if direct else 4

    def reduce(b: Builder, spot: Spot) -> int:
        tables, left, channels = spot.fields("weights", "first", "channels")
        place, number, target = (spot.image, spot.outer, spot.inner), None, spot.target
        if ko:
            blocks.store_taps(b, spot.windows, *place, spot.addresses, ko, ki)
        if how == "mean":
            count = spot.outer * WINDOWS.load(spot.windows, "width") + spot.inner
            number = (numbers_of(tables) + count * 8).load(F64).to_float(F32)
        window: _Listed | _Walked = _Listed(b, spot.addresses, ko, ki) if ko else _Walked(b, spot.windows, *place)

        def vectors(width: int, c: Value) -> None:
            channel = left + c
            skip, into = channel * itemsize, target + c * size
            if number is None:
                _maximum(b, dtype, width, direct, window, skip).store(into)
                return
            have = Taps(b, dtype, width, tables, channel)
            sums = _WindowSums(order, lambda address: have.load(address + skip), width)
            (window.total(sums) / number.splat(width)).store(into)

        blocks.over_channels(b, channels, lanes, vectors, min(4, SUMS // lanes_of(order)))
        return 1

    return blocks.tile_functions(ADDRESSES, reduce)


class _WindowSums:
    """A sum over a window in the order `order`; `load` loads the element at an address."""

    def __init__(self, order: Order, load: Callable[[Value], Value], width: int) -> None:
        self.order, self.load = order, load
        self.zero = constant(vector(F32, width), start_of(order))

    def take(self, have: Value, address: Value) -> Value:
        """Add the element at `address` to the sum `have`."""
        return have + self.load(address)


class _Listed:
    """A window of ko x ki taps, given as a list of addresses."""

    def __init__(self, b: Builder, places: Value, ko: int, ki: int) -> None:
        self.b, self.places, self.n, self.ki = b, places, ko * ki, ki

    def address(self, tap: int) -> Value:
        return (self.places + 8 * tap).load(I64, 8)

    def reduce(self, have: Value, take: Take) -> Value:
        """Apply `take` to all taps, in row-major order."""
        return functools.reduce(take, map(self.address, range(self.n)), have)

    def total(self, sums: _WindowSums) -> Value:
        """Add all taps, in the order of `sums`."""
        return total(sums.order, lambda k: sums.load(self.address(k)), self.n, self.ki, sums.zero, self.b.fadd)


class _Walked:
    """A window of any size; a WINDOWS record locates its taps."""

    def __init__(self, b: Builder, windows: Value, image: Value, outer: Value, inner: Value) -> None:
        field = functools.partial(WINDOWS.load, windows)
        self.b, self.image, self.ko, self.ki = b, image, field("ko"), field("ki")
        self.outers = windows + field("outer_table") + outer * self.ko * 8
        self.inners = windows + field("inner_table") + inner * self.ki * 8
        self.pad = windows + field("pad_row")
        self.n = self.ko * self.ki

    def address(self, row: Value, column: Value) -> Value:
        down, across = ((table + k * 8).load(I64, 8) for table, k in ((self.outers, row), (self.inners, column)))
        offset = down + across
        return (offset >= 0).select(self.image + offset, self.pad)

    def walk(self, turns: Value, have: list[Value], place: list[Value], take: Take) -> tuple[list[Value], list[Value]]:
        """Emit `turns` iterations. In each, every value of `have` in turn takes the next tap, from `place` on.

        Returns the values, and the place after the last tap. A place is the row and the column of a tap.
        """
        b = self.b
        with Loop(b, turns, [*have, *place]) as loop:
            *sums, row, column = loop.values
            for lane, x in enumerate(sums):
                sums[lane] = take(x, self.address(row, column))
                column = column + 1
                ends = column.eq(self.ki)
                row, column = row + ends.zext(I64), ends.select(0, column)
            loop.update([*sums, row, column])
        *sums, row, column = loop.values
        return sums, [row, column]

    def reduce(self, have: Value, take: Take) -> Value:
        b = self.b
        with Loop(b, self.ko, [have]) as down:
            with Loop(b, self.ki, down.values) as across:
                across.update([take(across.values[0], self.address(down.k, across.k))])
            down.update(across.values)
        return down.values[0]

    def total(self, sums: _WindowSums) -> Value:
        if sums.order == "taps":
            return self.reduce(sums.zero, sums.take)
        return self._columns(sums) if sums.order == "columns" else self._lanes(sums)

    def _columns(self, sums: _WindowSums) -> Value:
        b = self.b
        with Loop(b, self.ki, [sums.zero]) as across:
            with Loop(b, self.ko, [sums.zero]) as down:
                down.update([sums.take(down.values[0], self.address(down.k, across.k))])
            across.update([across.values[0] + down.values[0]])
        return across.values[0]

    def _lanes(self, sums: _WindowSums) -> Value:
        b, count, rest = self.b, lanes_of(sums.order), self.n
        have, place = [sums.zero] * count, [c64(0), c64(0)]
        while count >= QUAD:
            have, place = self.walk(rest.udiv(count), have, place, sums.take)
            have, rest, count = halved(have, b.fadd), rest.urem(count), count // 2
        return self.walk(rest, halved(have, b.fadd), place, sums.take)[0][0]


def _maximum(b: Builder, dtype: str, width: int, direct: bool, window: _Listed | _Walked, skip: Value) -> Value:
    floats = COMPUTE[dtype] == "f32"

    def take(have: Value, address: Value) -> Value:
        x = (address + skip).load(vector(STORAGE_IR[dtype], width))
        if floats:
            values = [have, widen(b, x, dtype, width)]
            return emit(b, GREATER, width, lambda node: values[node.value[0]])
        return (have.ugt(x) if dtype == "u8" else have > x).select(have, x)

    have = window.reduce(constant(vector(F32 if floats else I8, width), least(dtype)), take)
    return have if floats or direct else widen(b, have, dtype, width)


def plan_pool(epilogue: Epilogue, how: How, x: Pixels, target: Target, order: Order = "taps") -> Step:
    """Plan a pool; the caller fills in the address fields of `pixels.blocks.PIXELS`.

    Means are summed in `order`. Their word `weights` is the address of `means.tables`, whose numbers are the divisors
    of an image's output pixels.
    """
    itemsize, lanes, mean, name = STORAGE[x.dtype].itemsize, target.level.lanes, how == "mean", f"pool_{how}_{x.dtype}"
    left = "f32" if mean else x.dtype
    # without an epilogue, accumulators that have the dtype of the outputs are the outputs
    direct = epilogue.expr.op == "acc" and epilogue.dtype == left and left not in ("bf16", "f16")
    ko, ki = blocks.unrolled(prod(x.windows.kernel[:-1]), x.windows.kernel[-1])
    tile = modules.load(name, pool_tiles, how, x.dtype, lanes, direct and not mean, order, ko, ki,
                        level=target.level.base, cache=target.cache)
    cycles = 20 + x.windows.taps * (3 + x.channels * (1 / lanes if mean else itemsize / 32))
    written = STORAGE[epilogue.dtype].itemsize if direct else 0
    return blocks.plan_pixels(epilogue, x, target, name, tile, cycles, direct=written)

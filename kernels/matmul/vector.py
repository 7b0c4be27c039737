"""Matmul tiles in vector registers.

A tile is `rows` x `columns` outputs, whose accumulators stay in registers over all of k. A group is 4 bytes along k.
With AVX-512 VNNI, a tile of 6 x 64 has its accumulators in 24 of the 32 registers. Per group, 4 loads of weights and 6
broadcasts of activations feed 24 dot products. On a Zen 4 core this gives 0.465 TOPS, the limit at one dot product per
cycle.

Levels without a dot product of four bytes add the products of two bytes in 16 bits, and such sums can saturate. Sorted
weights (`pack.sort`) therefore list the groups whose sums cannot saturate. The bytes of all other groups are widened to
16 bits in registers, and their products are added in 32 bits.
"""
from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from graphq.kernels.jit import LINE, Loop, Type
from graphq.kernels.jit.values import I32, I64, Builder, Value, c64, constant, smaller, vector
from graphq.kernels.lanes.epilogue_code import emitter_of
from graphq.kernels.lanes.epilogues import Epilogue
from graphq.kernels.matmul.pack import PAIRED, PANEL, SORTED
from graphq.kernels.operands.tile_frame import FRAME, ColumnGroups, Frame, Groups, RowGroups, Window, clamped
from graphq.kernels.target.arm_tiles import ByElement, RowPairs
from graphq.kernels.target.level import Level
from graphq.kernels.target.products import ByteProduct, Factor, Flushing, shift


@dataclass(frozen=True)
class DotProducts:
    """How a tile multiplies groups. A group is 4 bytes along k, in a row of activations or a column of weights.

    A panel of 16 columns has `parts` vectors of weights and as many accumulators of type `kind`. `activations(b, x)`
    makes a factor of a vector of groups (s32), `weights(b, address)` loads the weights of a part, and `dot(b, acc, x,
    w)` adds their products to an accumulator. A vector of groups has one group in all lanes or, `by_element`, the
    next groups of a row. With `pairs`, an instruction multiplies two rows, columns and groups. `exact_first`, if given,
    multiplies the groups of sorted weights that cannot saturate.

    Elements have `itemsize` bytes. If `block` is not 0, each run of `block` groups is summed from 0, and the sums of
    the runs are added in order, for smaller rounding errors of floats. `total(b, sum)` is applied to each sum of two
    runs. `flushing`, if given, makes the tile treat subnormal numbers as zeros (see `Fma`), as `plain` does without it.
    A pixel of `silent` bytes (padding) adds nothing to the sums, so tiles may skip it. If `from_columns`, the
    instruction multiplies s8 by s8: it gets activations minus 128, and sums start from 128 times the column sums of the
    weights.
    """

    parts: int
    kind: Type
    activations: Callable[[Builder, Value], Factor]
    weights: Callable[[Builder, Value], Factor]
    dot: Callable[[Builder, Value, Factor, Factor], Value]
    itemsize: int = 1
    block: int = 0
    silent: int | None = None
    from_columns: bool = False
    exact_first: DotProducts | None = None
    total: Callable[[Builder, Value], Value] = lambda b, x: x
    flushing: Flushing | None = None
    plain: DotProducts | None = None
    by_element: ByElement | None = None
    pairs: RowPairs | None = None

    def sums(self, b: Builder, emit: Callable[[DotProducts], Sequence[Value]]) -> list[Value]:
        """Emit the sums that `emit` makes of these products, with `flushing` if given."""
        if self.flushing is None or self.plain is None:
            return list(emit(self))
        return self.flushing(b, partial(emit, self), partial(emit, self.plain))


def byte_products(level: Level, a_dtype: str, w_dtype: str) -> DotProducts:
    """How vectors of a level multiply 8-bit activations and weights; s8 activations are added up as a + 128.

    Sorted weights begin with groups that cannot saturate. These are multiplied by a saturating instruction.
    """
    def products(product: ByteProduct | None, first: DotProducts | None = None) -> DotProducts:
        assert product is not None
        how = product(level.lanes, level.emulated)
        return DotProducts(PANEL // how.lanes, vector(I32, how.lanes), lambda b, x: how.left(b, x, a_dtype),
                           lambda b, address: how.right(b, address.load(how.loads)), how.dot,
                           silent=how.silent(a_dtype), from_columns=how.shift(a_dtype) != shift(a_dtype),
                           exact_first=first, by_element=pairs or level.by_element, pairs=pairs)

    pairs = level.paired[a_dtype] if level.paired is not None and w_dtype == PAIRED else None
    if pairs is not None:
        return products(pairs.product)
    return products(level.dot4 or level.pairs, products(level.saturating) if w_dtype == SORTED else None)


NEAR = 8
"""How many groups ahead of their use float tiles prefetch weights to L1; a sentence encoder saves 3 % (Xeon)."""

Turn = Callable[[Value, list[Value], list[Value]], list[Value]]
"""A function that emits the products of one group.

Its arguments are the index of the group, the addresses of the cursors, and the sums before the group. It returns the
sums after the group.
"""


class Cursor(NamedTuple):
    """An address that moves by `step` bytes with every group.

    Without cursors, LLVM keeps and moves a separate address for each row and panel of a tile, and spills these
    addresses to the stack. For a group, a tile of 8 x 48 floats then took 85 instructions instead of 48. A 3.2 GHz Xeon
    with two multiply-add units did 66 G multiply-adds per second instead of 83.
    """

    start: Value
    step: Value


def vector_tile(b: Builder, address: Value, index: Value, *, rows: int, columns: int, products: DotProducts,
                layout: str, epilogue: Epilogue | None = None) -> None:
    """Emit the tile of `rows` x `columns` outputs, for activations in `layout`.

    `columns` is a multiple of the columns of a vector. In memory, a row of sums has space for whole panels of 16.

    With an `epilogue`, the code writes whole tiles from registers. It writes partial tiles from sums in memory, unless
    the epilogue has a fast form: then the caller writes them.
    """
    f = Frame.read(address)
    x = _Tile(b, f, rows, columns, products)

    def emit_sums(products: DotProducts) -> list[Value]:
        y = _Tile(b, f, rows, columns, products)
        return y.sums.totals(b, f, y.accumulate(layout))

    sums = products.sums(b, emit_sums)
    if epilogue is None or epilogue.fast is not None:
        x.sums.store(f, sums)
    if epilogue is not None:
        _write(b, f, epilogue, x, sums)


class _Tile:
    def __init__(self, b: Builder, f: Frame, rows: int, columns: int, products: DotProducts) -> None:
        self.b, self.f, self.rows, self.columns, self.products = b, f, rows, columns, products
        self.panels, self.lanes = -(-columns // PANEL), PANEL // products.parts
        self.at_once = 1 if products.pairs is None else 2  # rows, columns and groups that an instruction multiplies
        self.sums = (_BlockSums if products.block else _TileSums)(products, rows, columns)

    def accumulate(self, layout: str) -> list[Value]:
        """Emit the products of all activations; returns the sums, as the state that loops carry (`_TileSums`)."""
        b, f, state = self.b, self.f, self.sums.start(self.b, self.f)
        tap_bytes = ((f.k + 3) >> 2) << 6  # the bytes of a panel's weights for one tap
        if layout == "windows":
            return self.over_taps(Window(b, f), tap_bytes, state)
        itemsize = self.products.itemsize
        groups: Groups = (RowGroups(f, clamped(f, self.rows), itemsize) if layout == "rows"
                          else ColumnGroups(f, self.rows, itemsize))
        return self.over_k(groups, f.w, tap_bytes, state)

    def over_taps(self, window: Window, tap_bytes: Value, state: list[Value]) -> list[Value]:
        """Emit the products of all taps of the tile's pixels; rows of taps that lie in the padding are skipped."""
        b, f, rows, silent = self.b, self.f, self.rows, self.products.silent
        panel_bytes = tap_bytes * (window.outer * window.inner)
        with Loop(b, window.outer, state) as outer:
            inner_taps = window.inner if silent is None else window.inner_taps(outer.k, rows, silent)
            with Loop(b, inner_taps, outer.values) as inner:
                tap = outer.k * window.inner + inner.k
                addresses = [window.address(b.value(I64, i), outer.k, inner.k) for i in range(rows)]
                groups = RowGroups(f, addresses, self.products.itemsize, of_tap=True)
                inner.update(self.over_k(groups, f.w + tap * tap_bytes, panel_bytes, inner.values, tap))
            outer.update(inner.values)
        return outer.values

    def over_k(self, groups: Groups, w: Value, panel_bytes: Value, state: list[Value],
               tap: Value | None = None) -> list[Value]:
        """Emit the products of all groups of k, or of one tap's k; returns the new state of the sums.

        The weights of the first panel are at `w`, and the weights of each further panel `panel_bytes` later. Sorted
        weights are multiplied in the order that `pack.sort` gives for the `tap`.
        """
        b, f, products, at_once, whole = self.b, self.f, self.products, self.at_once, self.f.k >> self.at_once + 1
        fetched, step = (FRAME.load(f.address, name) for name in ("ahead", "step"))
        ahead = Cursor(fetched + ((w - f.w) >> 6) * step, step)
        # The CPU itself prefetches the weights of a single row. With one vector of weights per iteration, loads are the
        # bottleneck, and a prefetch is a load: without prefetches, tiles of 8 x 16 floats take 7 to 10 % less time.
        prefetches = self.rows > 1 and self.panels * products.parts > 1

        def turn(number: Value, places: list[Value], acc: list[Value]) -> list[Value]:
            source, line, ahead = places
            if prefetches:
                ahead.prefetch(level=2)
            if prefetches and products.block:
                for j in range(self.panels):
                    (line + panel_bytes * j + LINE * NEAR).prefetch()
            return self.multiply(products, self.spread(products, groups.at(number, source)), line, panel_bytes, acc)

        def by_element(how: ByElement, groups: RowGroups, count: int, number: Value, places: list[Value],
                       acc: list[Value]) -> list[Value]:
            rows = [products.activations(b, x) for x in groups.several(places[0], count)]
            for g in range(0, count, at_once):
                factors = how.factors(rows, g, count)
                acc = self.multiply_in_columns(products, factors, self.vectors(places[1], panel_bytes, g), acc)
            return acc

        def sorted_turn(products: DotProducts, number: Value, places: list[Value], acc: list[Value]) -> list[Value]:
            place, ahead = places
            if self.rows > 1:
                ahead.prefetch(level=2)
            k = place.load(I32, 4).sext(I64)
            factors = self.spread(products, groups.at(number, groups.first + k))
            return self.multiply(products, factors, w + (k << 4), panel_bytes, acc)

        if products.exact_first is None:
            cursors, turns = [Cursor(groups.first, c64(4 * at_once)), Cursor(w, c64(LINE * at_once)), ahead], [turn]
            if products.by_element is not None and isinstance(groups, RowGroups):
                several = partial(by_element, products.by_element, groups)
                turns = [turn if at_once == 1 else partial(several, at_once), partial(several, self.lanes)]
            state = self.sums.over(b, f, whole, state, cursors, *turns)
        else:
            order = FRAME.load(f.address, "order")
            if tap is not None:
                order = order + tap * ((whole << 2) + 4)
            exact = order.load(I32, 4).sext(I64)
            for how, done, count in ((products.exact_first, b.value(I64, 0), exact), (products, exact, whole - exact)):
                cursors = [Cursor(order + 4 + (done << 2), c64(4)), Cursor(ahead.start + done * step, step)]
                state = self.sums.over(b, f, count, state, cursors, partial(sorted_turn, how))
        if products.itemsize == 4 or products.pairs is not None:
            return state
        left = f.k & 3
        return self.sums.over(b, f, (left > 0).zext(I64), state, [], lambda _, places, acc: self.multiply(
            products, self.spread(products, groups.tail(left)), w + whole * LINE, panel_bytes,
            acc))  # this loop runs at most once

    def spread(self, products: DotProducts, groups: Iterable[Value]) -> Iterator[Factor]:
        """Emit the factor of each row's group, in all lanes."""
        return (products.activations(self.b, group.splat(self.lanes)) for group in groups)

    def multiply(self, products: DotProducts, factors: Iterable[Factor], w: Value, panel_bytes: Value,
                 acc: list[Value]) -> list[Value]:
        """Emit the products of each row's factor and the weights at `w` of each panel; returns the new sums."""
        b, out = self.b, []
        weights = [products.weights(b, place) for place in self.vectors(w, panel_bytes)]
        for i, x in enumerate(factors):
            row = acc[i * len(weights):(i + 1) * len(weights)]
            out += [products.dot(b, value, x, weight) for value, weight in zip(row, weights, strict=True)]
        return out

    def multiply_in_columns(self, products: DotProducts, factors: Sequence[Factor], places: Sequence[Value],
                            acc: list[Value]) -> list[Value]:
        """Emit the products of each row's factor and the weights at `places`, one vector of weights after the other.

        Factors by element stay in registers for several groups. In the order of `multiply`, LLVM then keeps all vectors
        of weights as well, and spills sums of a tile of 6 x 16.
        """
        out = list(acc)
        for j, place in enumerate(places):
            weight = products.weights(self.b, place)
            for i, x in enumerate(factors):
                at = i * len(places) + j
                out[at] = products.dot(self.b, acc[at], x, weight)
        return out

    def vectors(self, w: Value, panel_bytes: Value, group: int = 0) -> list[Value]:
        """Emit the addresses of the vectors of weights of group `group`; the first panel begins at `w`."""
        columns = range(0, self.columns, self.lanes // self.at_once)
        return [w + panel_bytes * (column // PANEL) + (LINE * group + column % PANEL * 4 * self.at_once)
                for column in columns]


def _write(b: Builder, f: Frame, epilogue: Epilogue, tile: _Tile, values: list[Value]) -> None:
    """Emit the epilogue: for a whole tile from sums in registers, otherwise for floats from sums in memory.

    With a fast form, the frame's word `entries` becomes the number of listed outputs (near a rounding tie), or -1 if
    the tile is partial.
    """
    args, batch, i, j, columns = (FRAME.load(f.address, x) for x in ("args", "batch", "i", "j", "columns"))
    emitter = partial(emitter_of, b, epilogue, tile.lanes, (args, batch, i, j))
    whole, each = f.rows.eq(tile.rows) & (columns >= tile.columns), len(values) // tile.rows
    rows = [values[r * each:(r + 1) * each] for r in range(tile.rows)]
    if epilogue.fast is None:
        with b.if_else(whole) as (then, otherwise):
            with then:
                emitter().emit_registers(rows)
            with otherwise:
                tile.sums.store(f, values)
                emitter(entries=c64(0)).emit(f.rows, columns, f.acc, c64(LINE * tile.panels))
        return
    entries = f.address + 8 * FRAME.number("entries")
    before, room = b.block, entries.load(I64, 8)
    with b.if_then(whole):
        fast = emitter(entries=room)
        fast.emit_registers(rows)
        assert fast.entries is not None
        count, inside = b.load(fast.entries.count), b.block
    (number,) = b.merged((before, [c64(-1)]), (inside, [count]))
    number.store(entries, 8)


class _TileSums:
    """The sums of a tile of `rows` x `columns` outputs, in registers over all of k.

    The `state`, the values that loops carry, is the list of sums. `places` are the byte offsets of the sums in memory.
    """

    def __init__(self, products: DotProducts, rows: int, columns: int) -> None:
        self.products, self.size, line = products, LINE // products.parts, -(-columns // PANEL) * LINE
        self.vectors, self.rows = range(0, 4 * columns, self.size), rows
        self.places = [row * line + at for row in range(rows) for at in self.vectors]
        self.count = len(self.places)
        self.zeros = [constant(products.kind, 0)] * self.count

    def start(self, b: Builder, f: Frame) -> list[Value]:
        if not self.products.from_columns:
            return list(self.zeros)
        pairs = self.products.pairs
        sums = [(f.sums + at).load(self.products.kind, self.size) << 7 for at in self.vectors]
        return sums * self.rows if pairs is None else pairs.start(sums, self.rows)

    def over(self, b: Builder, f: Frame, count: Value, state: list[Value], cursors: Sequence[Cursor],
             turn: Turn, several: Turn | None = None) -> list[Value]:
        return self.turns(b, b.value(I64, 0), count, state, cursors, turn, several)

    def turns(self, b: Builder, done: Value, count: Value, acc: list[Value], cursors: Sequence[Cursor],
              turn: Turn, several: Turn | None = None) -> list[Value]:
        """Emit the products of `count` groups after `done` groups: `several` take as many groups as a vector has."""
        if several is not None:
            lanes = self.size // (4 if self.products.pairs is None else 8)
            many = count >> lanes.bit_length() - 1
            start = [Cursor(c.start + done * c.step, c.step * lanes) for c in cursors]
            acc = self.turns(b, b.value(I64, 0), many, acc, start, several)
            done, count = done + many * lanes, count - many * lanes
        with Loop(b, count, [*acc, *(c.start + done * c.step for c in cursors)]) as loop:
            acc, places = loop.values[:self.count], loop.values[self.count:]
            acc = turn(done + loop.k, places, acc)
            loop.update([*acc, *((place + c.step).opaque() for place, c in zip(places, cursors, strict=True))])
        return loop.values[:self.count]

    def totals(self, b: Builder, f: Frame, state: list[Value]) -> list[Value]:
        pairs = self.products.pairs
        return state if pairs is None else pairs.rows(state, len(self.vectors))

    def store(self, f: Frame, sums: list[Value]) -> None:
        for place, value in zip(self.places, sums, strict=True):
            value.store(f.acc + place, self.size)


class _BlockSums(_TileSums):
    """Sums of floats in blocks of `block` groups, in the order of k through all taps.

    The totals of all full blocks are in memory. The state has the sums of the current block, the number of groups that
    the block still lacks, and whether the block is the first.
    """

    def start(self, b: Builder, f: Frame) -> list[Value]:
        """The state before the first product."""
        return [*self.zeros, c64(self.products.block), c64(1)]

    def over(self, b: Builder, f: Frame, count: Value, state: list[Value], cursors: Sequence[Cursor],
             turn: Turn, several: Turn | None = None) -> list[Value]:
        block = self.products.block
        rest = count - state[-2]  # the number of groups beyond the current block
        more = (rest + (block - 1)) // block
        pieces = (rest > 0).select(more, 0) + 1
        with Loop(b, pieces, [c64(0), *state]) as loop:
            done, *acc, room, first = loop.values
            now = smaller(count - done, room)
            acc = self.turns(b, done, now, acc, cursors, turn, several)
            loop.update([done + now, *self.end_block(b, f, [*acc, room - now, first])])
        return loop.values[1:]

    def end_block(self, b: Builder, f: Frame, state: list[Value]) -> list[Value]:
        """Emit the end of a block: if the block is full, its sums are added to the totals and become 0."""
        full, before = state[-2].eq(0), b.block
        with b.if_then(full):
            self.store(f, self.totals(b, f, state))
            inside = b.block
        return b.merged((before, state), (inside, [*self.zeros, c64(self.products.block), c64(0)]))

    def totals(self, b: Builder, f: Frame, state: list[Value]) -> list[Value]:
        """Emit the addition of a block's sums to the totals. The first block is added to +0, so no total is -0."""
        paths = []
        with b.if_else(state[-1].ne(0)) as branches:
            for branch, first in zip(branches, (True, False), strict=True):
                with branch:
                    before = self.zeros if first else [
                        (f.acc + place).load(self.products.kind, self.size) for place in self.places]
                    added = [x + y for x, y in zip(before, state, strict=False)]
                    sums = added if first else [self.products.total(b, x) for x in added]
                    paths.append((b.block, sums))
        return b.merged(*paths)

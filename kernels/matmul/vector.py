"""Tiles of a matmul in vector registers, and integer products by vpdpbusd (VNNI) or by vpmaddwd and vpmaddubsw.

A tile is `rows` x `columns` outputs. Their accumulators stay in registers over all of k. On VNNI the tile of 6 rows x
64 columns keeps its accumulators in 24 of the 32 registers; 4 loads of weights and 6 broadcasts of activations feed 24
products. It reaches 0.465 TOPS on one Zen 4 core. The limit of the core is the same: one 64-byte product a cycle.

Older CPUs multiply u8 and s8 by vpmaddubsw, whose sums of two products saturate. It multiplies the groups of sorted
weights (`pack.sort`) that cannot make it saturate. The other groups are widened to 16 bits in registers and multiplied
by vpmaddwd.
"""
from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple, TypeAlias

from graphq.kernels.jit.deferred import Intrinsic, emits
from graphq.kernels.jit.memory import LINE
from graphq.kernels.jit.values import I16, I32, I64, Builder, Type, Value, c64, constant, smaller, vector
from graphq.kernels.jit.x86 import Loop, dot_u8s8, flipped, flushing, madd8, madd16
from graphq.kernels.lanes.store_code import EpilogueEmitter
from graphq.kernels.lanes.stores import Store
from graphq.kernels.matmul.pack import PANEL
from graphq.kernels.operands.tile_frame import FRAME, ColumnGroups, Frame, Groups, RowGroups, Window, clamped

FLIP = 0x80808080  # xor with this number turns four s8 into s8 + 128 as u8

Factor: TypeAlias = tuple[Value, ...]
"""A group of activations or of weights, split into the vectors that are multiplied one after the other."""


@dataclass(frozen=True)
class Products:
    """How an instruction multiplies groups: the 4 bytes of a row, or of a column of weights, in one lane.

    A panel of 16 columns takes `parts` vectors of weights and as many accumulators (of type `kind`). `activations(b,
    group)` spreads a group (s32) over a vector, `weights(b, address)` loads the vectors of weights of a part, and
    `dot(b, acc, x, w)` accumulates.

    Elements have `itemsize` bytes. If `block` is not 0, each run of `block` groups is summed from 0, and the sums of
    runs are added in order: floats then have smaller rounding errors. `total(b, sum)` is applied to each sum of two
    runs. With `flushes` the tile treats subnormal numbers as zeros, by `x86.flushing`. A pixel of `silent` bytes
    (padding) adds nothing to the sums, so it may be left out.

    `exact_first`, if given, multiplies the first groups of sorted weights into the same accumulators; these groups
    cannot saturate.
    """

    parts: int
    kind: Type
    activations: Callable[[Builder, Value], Factor]
    weights: Callable[[Builder, Value], Factor]
    dot: Callable[[Builder, Value, Factor, Factor], Value]
    itemsize: int = 1
    block: int = 0
    silent: int | None = None
    exact_first: Products | None = None
    total: Callable[[Builder, Value], Value] = lambda b, x: x
    flushes: bool = False


def unsigned(b: Builder, group: Value, a_dtype: str, lanes: int, emulated: bool) -> Value:
    """Spread a group of four activations over a vector as u8; s8 becomes s8 + 128."""
    x = group.splat(lanes)
    return flipped(b, x, FLIP, emulated) if a_dtype == "s8" else x


def silent(a_dtype: str) -> int:
    """The activation byte that `unsigned` turns into 0; padding with this byte adds nothing to sums."""
    return FLIP & 0xFF if a_dtype == "s8" else 0


def vnni(a_dtype: str, lanes: int, emulated: bool) -> Products:
    """Products by vpdpbusd: a vector holds `lanes` columns, and each 32-bit lane adds four products to its sum."""
    kind = vector(I32, lanes)
    return Products(16 // lanes, kind, lambda b, group: (unsigned(b, group, a_dtype, lanes, emulated),),
                    lambda b, address: (address.load(kind),),
                    lambda b, acc, x, w: dot_u8s8(b, acc, x[0], w[0], emulated), silent=silent(a_dtype))


def saturating(a_dtype: str, lanes: int, emulated: bool) -> Products:
    """Products by vpmaddubsw, for weights that cannot make it saturate; a vector holds `lanes` columns."""

    def dot(b: Builder, acc: Value, x: Factor, w: Factor) -> Value:
        return acc + madd16(b, madd8(b, x[0], w[0], emulated), b.value(vector(I16, 2 * lanes), 1), emulated)

    return replace(vnni(a_dtype, lanes, emulated), dot=dot)


def widened(a_dtype: str, lanes: int, emulated: bool) -> Products:
    """Products by vpmaddwd: a vector holds `lanes` columns; even and odd bytes of each lane are widened to 16 bits."""
    kind, words = vector(I32, lanes), vector(I16, 2 * lanes)

    def activations(b: Builder, group: Value) -> Factor:
        x = unsigned(b, group, a_dtype, lanes, emulated).as_type(words)
        return x & 0xFF, x.shr(8)

    def dot(b: Builder, acc: Value, x: Factor, w: Factor) -> Value:
        for left, right in zip(x, w, strict=True):
            acc = acc + madd16(b, left, right, emulated)
        return acc

    return Products(16 // lanes, kind, activations, lambda b, address: signed_halves(address.load(words)), dot,
                    silent=silent(a_dtype))


def in_order(a_dtype: str, lanes: int, emulated: bool) -> Products:
    """Products for sorted weights: vpmaddubsw for the groups that cannot saturate, then vpmaddwd."""
    return replace(widened(a_dtype, lanes, emulated), exact_first=saturating(a_dtype, lanes, emulated))


def signed_halves(x: Value) -> tuple[Value, Value]:
    """The even and the odd s8 of 32-bit words, as s16."""
    return (x << 8) >> 8, x >> 8


NEAR = 8
"""How many groups ahead tiles of floats prefetch weights to L1. A sentence encoder takes 3 % less time (Xeon)."""

Turn = Callable[[Value, list[Value], list[Value]], list[Value]]
"""A function that emits the products of one group.

It gets the index of the group, the addresses of the cursors and the sums before the group. It returns the sums after
the group.
"""


class Cursor(NamedTuple):
    """An address that moves `step` bytes with every group.

    Without cursors, LLVM gives every row and panel of a tile a separate address; all of them move and are spilled to
    the stack. A group of 8 x 48 floats then took 85 instructions instead of 48. A 3.2 GHz Xeon with two units for them
    did 66 G multiply-adds a second instead of 83.
    """

    start: Value
    step: Value


def vector_tile(rows: int, columns: int, products: Products, layout: str, result: Store | None = None,
                packs: bool = False) -> Intrinsic:
    """Make the tile function of `rows` x `columns` outputs; `layout` says how it finds activations (Frame).

    `columns` is a multiple of the lanes of `products`. In memory, a row of sums has room for whole panels of 16.

    With `result`, an epilogue, the tile function writes the outputs itself, from registers if the whole tile is valid.
    In a partial tile, it writes floats from sums in memory, and leaves outputs that may be near rounding ties to the
    caller. `packs` is the parameter of `store_code.epilogue`.
    """

    @emits
    def tile(b: Builder, address: Value, index: Value) -> None:
        f = Frame.read(address)
        x = _Tile(b, f, rows, columns, products)

        def emit_sums() -> list[Value]:
            return x.sums.totals(b, f, x.accumulate(layout))

        sums = flushing(b, emit_sums) if products.flushes else emit_sums()
        if result is None or result.second_look is not None:
            x.sums.store(f, sums)
        if result is not None and result.second_look is None:
            _write(b, f, result, x, sums)
        elif result is not None:
            _write_whole(b, f, result, x, sums, packs)

    return tile


class _Tile:
    def __init__(self, b: Builder, f: Frame, rows: int, columns: int, products: Products) -> None:
        self.b, self.f, self.rows, self.columns, self.products = b, f, rows, columns, products
        self.panels, self.lanes = -(-columns // PANEL), PANEL // products.parts
        self.sums = (_Blocks if products.block else _TileSums)(products, rows, columns)

    def accumulate(self, layout: str) -> list[Value]:
        """Emit the products of all activations; returns the state of the sums after them."""
        b, f, state = self.b, self.f, self.sums.start(self.b, self.f)
        tap_bytes = ((f.k + 3) >> 2) << 6  # bytes of a panel's weights at one tap
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
        """Emit the products of all groups of k (with windows, of one tap's k); returns the new state of the sums.

        The first panel's weights are at `w`, and each next panel's weights `panel_bytes` further. Sorted weights are
        multiplied in their sorted order; each `tap` has its own.
        """
        b, f, products, whole = self.b, self.f, self.products, self.f.k >> 2
        fetched, step = (FRAME.load(f.address, name) for name in ("ahead", "step"))
        ahead = Cursor(fetched + ((w - f.w) >> 6) * step, step)
        # The CPU prefetches the weights of a single row by itself. With one vector of weights per iteration, loads
        # limit the tile, and prefetches are loads: without them, tiles of 8 x 16 floats take 7 to 10 % less time.
        prefetches = self.rows > 1 and self.panels * products.parts > 1

        def turn(number: Value, places: list[Value], acc: list[Value]) -> list[Value]:
            source, line, ahead = places
            if prefetches:
                ahead.prefetch(level=2)
            if prefetches and products.block:
                for j in range(self.panels):
                    (line + panel_bytes * j + LINE * NEAR).prefetch()
            return self.multiply(products, groups.at(number, source), line, panel_bytes, acc)

        def sorted_turn(products: Products, number: Value, places: list[Value], acc: list[Value]) -> list[Value]:
            place, ahead = places
            if self.rows > 1:
                ahead.prefetch(level=2)
            k = place.load(I32, 4).sext(I64)
            return self.multiply(products, groups.at(number, groups.first + k), w + (k << 4), panel_bytes, acc)

        if products.exact_first is None:
            cursors = [Cursor(groups.first, c64(4)), Cursor(w, c64(LINE)), ahead]
            state = self.sums.over(b, f, whole, state, cursors, turn)
        else:
            order = FRAME.load(f.address, "order")
            if tap is not None:
                order = order + tap * ((whole << 2) + 4)
            exact = order.load(I32, 4).sext(I64)
            for how, done, count in ((products.exact_first, b.value(I64, 0), exact), (products, exact, whole - exact)):
                cursors = [Cursor(order + 4 + (done << 2), c64(4)), Cursor(ahead.start + done * step, step)]
                state = self.sums.over(b, f, count, state, cursors, partial(sorted_turn, how))
        if products.itemsize == 4:
            return state
        left = f.k & 3
        return self.sums.over(b, f, (left > 0).zext(I64), state, [], lambda _, places, acc: self.multiply(
            products, groups.tail(left), w + whole * LINE, panel_bytes, acc))  # this loop runs once or not at all

    def multiply(self, products: Products, groups: Iterable[Value], w: Value, panel_bytes: Value,
                 acc: list[Value]) -> list[Value]:
        """Emit the products of one group of each row with the weights at `w` of each panel; returns the new sums."""
        b = self.b
        weights = [products.weights(b, w + panel_bytes * (column // PANEL) + column % PANEL * 4)
                   for column in range(0, self.columns, self.lanes)]
        out = []
        for i, group in enumerate(groups):
            x = products.activations(b, group)
            row = acc[i * len(weights):(i + 1) * len(weights)]
            out += [products.dot(b, value, x, weight) for value, weight in zip(row, weights, strict=True)]
        return out


class _OutputBlock:
    """The position of a tile's outputs: the argument block, and the first output's batch element, row and column."""

    def __init__(self, f: Frame, tile: _Tile) -> None:
        args, batch, i, j, self.columns = (
            FRAME.load(f.address, x) for x in ("args", "batch", "i", "j", "columns"))
        self.first = args, batch, i, j
        self.whole = f.rows.eq(tile.rows) & (self.columns >= tile.columns)


def _lines(values: Sequence[Value], rows: int) -> list[Sequence[Value]]:
    each = len(values) // rows
    return [values[r * each:(r + 1) * each] for r in range(rows)]


def _write(b: Builder, f: Frame, result: Store, tile: _Tile, values: list[Value]) -> None:
    block, lanes = _OutputBlock(f, tile), tile.lanes
    with b.if_else(block.whole) as (then, otherwise):
        with then:
            EpilogueEmitter(b, result, lanes, block.first).emit_registers(_lines(values, tile.rows))
        with otherwise:
            tile.sums.store(f, values)
            epilogue = EpilogueEmitter(b, result, lanes, block.first, entries=c64(0))
            epilogue.emit(f.rows, block.columns, f.acc, c64(LINE * tile.panels))


def _write_whole(b: Builder, f: Frame, result: Store, tile: _Tile, values: list[Value], packs: bool) -> None:
    """Emit the epilogue for sums in registers if the tile is whole.

    Also stores the number of entries for outputs near rounding ties, or -1 if the tile is not whole.
    """
    block, entries = _OutputBlock(f, tile), f.address + 8 * FRAME.number("entries")
    before, room = b.block, entries.load(I64, 8)
    with b.if_then(block.whole):
        epilogue = EpilogueEmitter(b, result, tile.lanes, block.first, packs=packs, entries=room)
        epilogue.emit_registers(_lines(values, tile.rows))
        assert epilogue.entries is not None
        count, inside = b.load(epilogue.entries.count), b.block
    number = b.phi(I64)
    number.add_incoming(c64(-1), before)
    number.add_incoming(count, inside)
    number.store(entries, 8)


class _TileSums:
    """The sums of a tile of `rows` x `columns` outputs. They stay in registers over all of k.

    The `state` of the sums is a list of values that loops carry: here the sums themselves. In memory the sums lie at
    `places`, in bytes from the first sum.
    """

    def __init__(self, products: Products, rows: int, columns: int) -> None:
        self.products, self.size, line = products, LINE // products.parts, -(-columns // PANEL) * LINE
        self.places = [row * line + at for row in range(rows) for at in range(0, 4 * columns, self.size)]
        self.count = len(self.places)
        self.zeros = [constant(products.kind, 0)] * self.count

    def start(self, b: Builder, f: Frame) -> list[Value]:
        return list(self.zeros)

    def over(self, b: Builder, f: Frame, count: Value, state: list[Value], cursors: Sequence[Cursor],
             turn: Turn) -> list[Value]:
        """Emit `turn` for `count` groups; returns the state of the sums after them."""
        return self.turns(b, b.value(I64, 0), count, state, cursors, turn)

    def turns(self, b: Builder, done: Value, count: Value, acc: list[Value], cursors: Sequence[Cursor],
              turn: Turn) -> list[Value]:
        """Emit `turn` for `count` groups after the first `done` groups; returns the sums after them."""
        with Loop(b, count, [*acc, *(c.start + done * c.step for c in cursors)]) as loop:
            acc, places = loop.values[:self.count], loop.values[self.count:]
            acc = turn(done + loop.k, places, acc)
            loop.update([*acc, *((place + c.step).opaque() for place, c in zip(places, cursors, strict=True))])
        return loop.values[:self.count]

    def totals(self, b: Builder, f: Frame, state: list[Value]) -> list[Value]:
        return state

    def store(self, f: Frame, sums: list[Value]) -> None:
        for place, value in zip(self.places, sums, strict=True):
            value.store(f.acc + place, self.size)


class _Blocks(_TileSums):
    """Sums of floats that are added up in blocks of `block` groups, in the order of k through all taps.

    The totals of the blocks are in memory. The state has the registers, the number of groups that the current block
    still lacks, and whether it is the first block, whose sums are not yet added to totals.
    """

    def start(self, b: Builder, f: Frame) -> list[Value]:
        """The state before the first product; no code is emitted."""
        return [*self.zeros, c64(self.products.block), c64(1)]

    def over(self, b: Builder, f: Frame, count: Value, state: list[Value], cursors: Sequence[Cursor],
             turn: Turn) -> list[Value]:
        block = self.products.block
        rest = count - state[-2]  # the groups that belong to further blocks
        more = (rest + (block - 1)) // block
        pieces = (rest > 0).select(more, 0) + 1
        with Loop(b, pieces, [c64(0), *state]) as loop:
            done, *acc, room, first = loop.values
            now = smaller(count - done, room)
            acc = self.turns(b, done, now, acc, cursors, turn)
            loop.update([done + now, *self.end_block(b, f, [*acc, room - now, first])])
        return loop.values[1:]

    def end_block(self, b: Builder, f: Frame, state: list[Value]) -> list[Value]:
        """Emit the end of a block; it runs only if the block is full."""
        full, before = state[-2].eq(0), b.block
        with b.if_then(full):
            self.store(f, self.totals(b, f, state))
            inside = b.block
        out = []
        for value, fresh in zip(state, [*self.zeros, c64(self.products.block), c64(0)], strict=True):
            out.append(b.phi(value.type))
            out[-1].add_incoming(value, before)
            out[-1].add_incoming(fresh, inside)
        return out

    def totals(self, b: Builder, f: Frame, state: list[Value]) -> list[Value]:
        """Emit the additions to the totals. The first block adds its sums to +0: no total is -0."""
        sums: list[list[Value]] = []
        blocks = []
        with b.if_else(state[-1].ne(0)) as branches:
            for branch, first in zip(branches, (True, False), strict=True):
                with branch:
                    before = self.zeros if first else [
                        (f.acc + place).load(self.products.kind, self.size) for place in self.places]
                    added = [x + y for x, y in zip(before, state, strict=False)]
                    sums.append(added if first else [self.products.total(b, x) for x in added])
                    blocks.append(b.block)
        out = []
        for pair in zip(*sums, strict=True):
            out.append(b.phi(self.products.kind))
            for value, block in zip(pair, blocks, strict=True):
                out[-1].add_incoming(value, block)
        return out

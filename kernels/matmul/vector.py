"""Tiles of a matmul in vector registers, and the products of integers: vpdpbusd (VNNI), or vpmaddwd and vpmaddubsw.

A tile is `rows` x `panels` * 16 outputs, whose accumulators stay in registers over all of k. On VNNI the 6 x 4 tile
keeps 24 of the 32 registers as accumulators; 4 loads of weights and 6 broadcasts of activations feed 24 products.
Measured: 0.465 TOPS on one Zen 4 core, its limit (one 64-byte product a cycle).

Older CPUs multiply u8 and s8 by vpmaddubsw, whose sums of two products saturate. It multiplies the groups of sorted
weights (`pack.sort`) that cannot make it; vpmaddwd multiplies the others, widened to 16 bits in registers.
"""
from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

from llvmlite import ir

from graphq.kernels.jit.deferred import intrinsic
from graphq.kernels.jit.intrinsics import I16, I32, I64, c64, splat
from graphq.kernels.jit.memory import LINE
from graphq.kernels.jit.x86 import (
    Loop,
    at,
    dot_u8s8,
    filled,
    flipped,
    load,
    madd8,
    madd16,
    opaque,
    prefetch,
    smaller,
    store,
    vector,
)
from graphq.kernels.lanes.store_code import EpilogueEmitter
from graphq.kernels.lanes.stores import Store
from graphq.kernels.matmul.pack import PANEL
from graphq.kernels.operands.tile_frame import (
    FRAME,
    Frame,
    Window,
    clamped,
    frame_signature,
    read_columns,
    tail_group,
)

FLIP = 0x80808080  # xor turns four s8 into s8 + 128 as u8


@dataclass(frozen=True)
class Products:
    """How an instruction multiplies groups: the 4 bytes of a row, or of a column of weights, that share a lane.

    A panel of 16 columns takes `parts` vectors of weights and of accumulators (of type `kind`). `activations(b, group)`
    spreads a group (s32) over a vector, `weights(b, address)` loads the part at an address, and `dot(b, acc, x, w)`
    accumulates.

    Elements have `itemsize` bytes. With `block`, sums begin anew after so many groups, and the sums of blocks are added
    in order: floats so lose less. A pixel of `silent` bytes adds nothing to sums, nor would it if it were left out.

    `exact_first` multiplies the groups of sorted weights that come first, into the same accumulators.
    """

    parts: int
    kind: Any
    activations: Callable[..., Any]
    weights: Callable[..., Any]
    dot: Callable[..., Any]
    itemsize: int = 1
    block: int = 0
    silent: int | None = None
    exact_first: Products | None = None


def unsigned(b: Any, group: Any, a_dtype: str, lanes: int, emulated: bool) -> Any:
    """Spread four activations over a vector as u8: s8 become s8 + 128."""
    x = splat(b, group, lanes)
    return flipped(b, x, FLIP, emulated) if a_dtype == "s8" else x


def silent(a_dtype: str) -> int:
    """The byte that `unsigned` makes 0."""
    return FLIP & 0xFF if a_dtype == "s8" else 0


def vnni(a_dtype: str, lanes: int, emulated: bool) -> Products:
    """Multiply by vpdpbusd: `lanes` columns a part, four products a lane."""
    kind = vector(I32, lanes)
    return Products(16 // lanes, kind, lambda b, group: unsigned(b, group, a_dtype, lanes, emulated),
                    lambda b, address: load(b, address, kind),
                    lambda b, acc, x, w: dot_u8s8(b, acc, x, w, emulated), silent=silent(a_dtype))


def saturating(a_dtype: str, lanes: int, emulated: bool) -> Products:
    """Multiply by vpmaddubsw, of weights that cannot make it saturate: `lanes` columns a part."""
    ones = filled(vector(I16, 2 * lanes), 1)

    def dot(b: Any, acc: Any, x: Any, w: Any) -> Any:
        return b.add(acc, madd16(b, madd8(b, x, w, emulated), ones, emulated))

    return replace(vnni(a_dtype, lanes, emulated), dot=dot)


def widened(a_dtype: str, lanes: int, emulated: bool) -> Products:
    """Multiply by vpmaddwd: `lanes` columns a part, of each lane the even bytes and the odd ones, as 16 bits."""
    kind, words = vector(I32, lanes), vector(I16, 2 * lanes)

    def activations(b: Any, group: Any) -> Any:
        x = b.bitcast(unsigned(b, group, a_dtype, lanes, emulated), words)
        return b.and_(x, filled(words, 0xFF)), b.lshr(x, filled(words, 8))

    def dot(b: Any, acc: Any, x: Any, w: Any) -> Any:
        for pair in zip(x, w, strict=True):
            acc = b.add(acc, madd16(b, *pair, emulated))
        return acc

    return Products(16 // lanes, kind, activations, lambda b, address: signed_halves(b, load(b, address, words)), dot,
                    silent=silent(a_dtype))


def in_order(a_dtype: str, lanes: int, emulated: bool) -> Products:
    """Multiply sorted weights."""
    return replace(widened(a_dtype, lanes, emulated), exact_first=saturating(a_dtype, lanes, emulated))


def signed_halves(b: Any, x: Any) -> tuple[Any, Any]:
    """The even and the odd s8 of words, as s16."""
    eight = filled(x.type, 8)
    return b.ashr(b.shl(x, eight), eight), b.ashr(x, eight)


NEAR = 8
"""How many groups ahead tiles of floats bring weights from L2 to L1: a sentence encoder takes 3 % less time (Xeon)."""

Groups = Callable[[Any, Any], Iterable[Any]]
"""The groups of all rows at a group number, and at the address of the first one."""
Turn = Callable[[Any, list[Any], list[Any]], list[Any]]
"""The sums after a group number from the places of cursors there and the sums before."""


class Cursor(NamedTuple):
    """An address that moves `step` bytes with every group.

    LLVM would give every row and panel of a tile an address of its own, all of which move and spill: 85 instructions a
    group of 8 x 48 floats, not 48, and 66 G multiply-adds a second, not 83 (a 3.2 GHz Xeon with two units for them).
    """

    start: Any
    step: Any


def vector_tile(rows: int, panels: int, products: Products, layout: str, result: Store | None = None,
                packs: bool = False) -> Any:
    """Make the tile intrinsic of `rows` x 16 * `panels` outputs; `layout` says how it finds activations (Frame).

    With `result` it writes the outputs, from registers where all of the tile is valid; where not, sums of floats from
    memory, and those that may need a second look not at all. `packs` as in `store_code.epilogue`.
    """
    parts, itemsize = products.parts, products.itemsize
    sums = _Blocks(products, rows * panels) if products.block else _TileSums(products, rows * panels)

    def multiply(b: Any, groups: Iterable[Any], w: Any, acc: list[Any], stride: Any,
                 products: Products = products) -> list[Any]:
        weights = [products.weights(b, at(b, w, b.mul(stride, c64(j)), part * (64 // parts)))
                   for j in range(panels) for part in range(parts)]
        out = []
        for i, group in enumerate(groups):
            x = products.activations(b, group)
            row = acc[i * len(weights):(i + 1) * len(weights)]
            out += [products.dot(b, value, x, weight) for value, weight in zip(row, weights, strict=True)]
        return out

    def run(b: Any, f: Frame, state: list[Any], first: Any, w: Any, stride: Any, whole: Groups,
            tail: Callable[[Any], list[Any]], tap: Any = 0) -> list[Any]:
        """Accumulate over k, of the first row from `first` on and of weights from `w` on, `stride` bytes a panel.

        Groups of sorted weights are taken in the order of the tap.
        """
        groups = b.ashr(f.k, c64(2))
        ahead, step = (FRAME.load(b, f.address, name) for name in ("ahead", "step"))
        ahead = Cursor(at(b, ahead, b.mul(b.ashr(b.sub(w, f.w), c64(6)), step)), step)

        def turn(g: Any, places: list[Any], acc: list[Any]) -> list[Any]:
            source, line, next_ = places
            if rows > 1:  # one row waits for its own weights, which the CPU prefetches
                prefetch(b, next_, level=2)
            if rows > 1 and products.block:
                for j in range(panels):
                    prefetch(b, at(b, line, b.mul(stride, c64(j)), LINE * NEAR))
            return multiply(b, whole(g, source), line, acc, stride)

        def sorted_turn(how: Products, g: Any, places: list[Any], acc: list[Any]) -> list[Any]:
            place, next_ = places
            if rows > 1:
                prefetch(b, next_, level=2)
            k = b.sext(load(b, place, I32, 4), I64)
            return multiply(b, whole(g, at(b, first, k)), at(b, w, b.shl(k, c64(4))), acc, stride, how)

        if products.exact_first is None:
            state = sums.over(b, f, groups, state, [Cursor(first, c64(4)), Cursor(w, c64(LINE)), ahead], turn)
        else:
            order = FRAME.load(b, f.address, "order")
            if layout == "windows":
                order = at(b, order, b.mul(tap, at(b, b.shl(groups, c64(2)), 4)))
            exact = b.sext(load(b, order, I32, 4), I64)
            for how, done, count in ((products.exact_first, c64(0), exact), (products, exact, b.sub(groups, exact))):
                cursors = [Cursor(at(b, order, 4, b.shl(done, c64(2))), c64(4)),
                           Cursor(at(b, ahead.start, b.mul(done, step)), step)]
                state = sums.over(b, f, count, state, cursors, partial(sorted_turn, how))
        if itemsize == 4:
            return state
        left = b.and_(f.k, c64(3))
        some = b.zext(b.icmp_signed(">", left, c64(0)), left.type)
        return sums.over(b, f, some, state, [], lambda _, places, acc: multiply(  # no turn or one
            b, tail(left), at(b, w, b.mul(groups, c64(LINE))), acc, stride))

    def from_rows(b: Any, f: Frame, state: list[Any], addresses: list[Any], w: Any, stride: Any,
                  tap: Any = 0) -> list[Any]:
        done, beyond = b.and_(f.k, c64(-4)), [b.sub(row, addresses[0]) for row in addresses]

        def whole(g: Any, first: Any) -> Iterator[Any]:
            if layout == "rows" and itemsize == 1:
                bring_next(b, f, g, first)
            return (load(b, at(b, first, row), I32) for row in beyond)

        return run(b, f, state, addresses[0], w, stride, whole,
                   lambda left: [tail_group(b, at(b, row, done), left, itemsize) for row in addresses], tap)

    def bring_next(b: Any, f: Frame, g: Any, first: Any) -> None:
        """Prefetch from the next tile's rows, one in each group: of 16 rows all in the 16 groups of a cache line.

        Where activations are not in L2, 3,136 x 256 x 64 of vpdpbusd takes 7 % less time (Zen 4). Floats, with a line
        of each row every 16 k, lose by it: MobileNetV2 3 %, a sentence encoder 5 % (Xeon).
        """
        row = b.add(b.and_(g, c64((1 << (rows - 1).bit_length()) - 1)), c64(rows))
        prefetch(b, at(b, first, b.mul(row, f.stride)))

    def accumulate(b: Any, f: Frame, state: list[Any]) -> list[Any]:
        line = b.shl(b.ashr(at(b, f.k, 3), c64(2)), c64(6))  # bytes of a panel's k
        if layout == "rows":
            return from_rows(b, f, state, clamped(b, f, rows), f.w, line)
        if layout == "columns":
            done = b.ashr(f.k, c64(2))
            return run(b, f, state, f.a, f.w, line, lambda g, _: read_columns(b, f, rows, g, c64(4), itemsize),
                       lambda left: read_columns(b, f, rows, done, left, itemsize))
        window = Window(b, f)
        stride = b.mul(line, b.mul(window.outer, window.inner))
        with Loop(b, window.outer, state) as outer:
            inner_taps = window.inner if products.silent is None else window.inner_taps(outer.k, rows, products.silent)
            with Loop(b, inner_taps, outer.values) as inner:
                tap = b.add(b.mul(outer.k, window.inner), inner.k)
                values = from_rows(b, f, inner.values, [window.address(c64(i), outer.k, inner.k) for i in range(rows)],
                                   at(b, f.w, b.mul(tap, line)), stride, tap)
                inner.update(values)
            outer.update(inner.values)
        return outer.values

    @intrinsic
    def tile(_typing: Any, address: Any) -> Any:
        def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
            f = Frame.read(b, args[0])
            state = accumulate(b, f, sums.start(b, f))
            if result is None:
                sums.finish(b, f, state)
            elif result.second_look is None:
                _write(b, f, result, rows, panels, sums.totals(b, f, state))
            else:
                sums.finish(b, f, state)
                _write_whole(b, f, EpilogueEmitter(b, result, PANEL // parts, packs=packs), rows, panels, state)
            return context.get_dummy_value()

        return frame_signature(), codegen

    return tile


class _OutputBlock:
    """Where a tile's outputs are: the argument block, and the batch element, row and column of the first one."""

    def __init__(self, b: Any, f: Frame, rows: int, panels: int) -> None:
        args, batch, i, j, self.columns = (
            FRAME.load(b, f.address, x) for x in ("args", "batch", "i", "j", "columns"))
        self.first = args, batch, i, j
        self.whole = b.and_(b.icmp_signed("==", f.rows, c64(rows)),
                            b.icmp_signed(">=", self.columns, c64(PANEL * panels)))


def _lines(values: Sequence[Any], rows: int) -> list[Sequence[Any]]:
    each = len(values) // rows
    return [values[r * each:(r + 1) * each] for r in range(rows)]


def _write(b: Any, f: Frame, result: Store, rows: int, panels: int, values: list[Any]) -> None:
    """Emit the outputs of sums in registers, rows of vectors."""
    block, lanes = _OutputBlock(b, f, rows, panels), PANEL * panels * rows // len(values)
    with b.if_else(block.whole) as (then, otherwise):
        with then:
            EpilogueEmitter(b, result, lanes).emit_registers(*block.first, _lines(values, rows))
        with otherwise:
            for n, value in enumerate(values):
                store(b, value, at(b, f.acc, 4 * lanes * n), 4 * lanes)
            line = c64(4 * PANEL * panels)
            EpilogueEmitter(b, result, lanes).emit(*block.first, f.rows, block.columns, f.acc, line, c64(0))


def _write_whole(b: Any, f: Frame, epilogue: EpilogueEmitter, rows: int, panels: int, values: list[Any]) -> None:
    """Emit the outputs of sums in registers if the tile is whole; the number of entries, or -1."""
    block, entries = _OutputBlock(b, f, rows, panels), at(b, f.address, 8 * FRAME.number("entries"))
    before, room = b.block, load(b, entries, I64, 8)
    with b.if_then(block.whole):
        epilogue.emit_registers(*block.first, _lines(values, rows), entries=room)
        count, inside = b.load(epilogue.count), b.block
    number = b.phi(I64)
    number.add_incoming(c64(-1), before)
    number.add_incoming(count, inside)
    store(b, number, entries, 8)


class _TileSums:
    """The sums of a tile of `vectors` x 16 outputs, in registers over all of k: its state is these registers."""

    def __init__(self, products: Products, vectors: int) -> None:
        self.products, self.count = products, vectors * products.parts
        self.zeros = [ir.Constant(products.kind, None)] * self.count
        self.size = 64 // products.parts

    def start(self, b: Any, f: Frame) -> list[Any]:
        """Emit the state before the first product."""
        return list(self.zeros)

    def over(self, b: Any, f: Frame, count: Any, state: list[Any], cursors: Sequence[Cursor],
             turn: Turn) -> list[Any]:
        """Emit `turn` for `count` groups; the state after them."""
        return self.turns(b, c64(0), count, state, cursors, turn)

    def turns(self, b: Any, done: Any, count: Any, acc: list[Any], cursors: Sequence[Cursor],
              turn: Turn) -> list[Any]:
        """Emit `turn` for `count` groups after the `done` ones; the sums after them."""
        with Loop(b, count, [*acc, *(at(b, c.start, b.mul(done, c.step)) for c in cursors)]) as loop:
            acc, places = loop.values[:self.count], loop.values[self.count:]
            acc = turn(b.add(done, loop.k), places, acc)
            loop.update([*acc, *(opaque(b, at(b, place, c.step)) for place, c in zip(places, cursors, strict=True))])
        return loop.values[:self.count]

    def totals(self, b: Any, f: Frame, state: list[Any]) -> list[Any]:
        """The sums of floats at the end."""
        raise NotImplementedError

    def finish(self, b: Any, f: Frame, state: list[Any]) -> None:
        """Emit the stores of the sums."""
        for n, value in enumerate(state):
            store(b, value, at(b, f.acc, self.size * n), self.size)


class _Blocks(_TileSums):
    """Sums in blocks of `block` groups, in k's order through all taps.

    Totals are in memory; besides registers the state has the groups that the block still takes, and whether it is the
    first one, whose sums need no totals yet.
    """

    def start(self, b: Any, f: Frame) -> list[Any]:
        """Emit nothing."""
        return [*self.zeros, c64(self.products.block), c64(1)]

    def over(self, b: Any, f: Frame, count: Any, state: list[Any], cursors: Sequence[Cursor],
             turn: Turn) -> list[Any]:
        """Emit `turn` for `count` groups; the state after them."""
        block = self.products.block
        rest = b.sub(count, state[-2])  # what the present block does not take; the pieces are its part and more blocks
        more = b.sdiv(b.add(rest, c64(block - 1)), c64(block))
        pieces = b.add(b.select(b.icmp_signed(">", rest, c64(0)), more, c64(0)), c64(1))
        with Loop(b, pieces, [c64(0), *state]) as loop:
            done, *acc, room, first = loop.values
            now = smaller(b, b.sub(count, done), room)
            acc = self.turns(b, done, now, acc, cursors, turn)
            loop.update([b.add(done, now), *self.settle(b, f, [*acc, b.sub(room, now), first])])
        return loop.values[1:]

    def settle(self, b: Any, f: Frame, state: list[Any]) -> list[Any]:
        """Emit the end of a block, if it has no room left."""
        full, before = b.icmp_signed("==", state[-2], c64(0)), b.block
        with b.if_then(full):
            self.finish(b, f, state)
            inside = b.block
        out = []
        for value, fresh in zip(state, [*self.zeros, c64(self.products.block), c64(0)], strict=True):
            out.append(b.phi(value.type))
            out[-1].add_incoming(value, before)
            out[-1].add_incoming(fresh, inside)
        return out

    def totals(self, b: Any, f: Frame, state: list[Any]) -> list[Any]:
        """Emit the additions to the totals, the first ones to +0: none is -0."""
        sums: list[list[Any]] = []
        blocks = []
        with b.if_else(b.icmp_signed("!=", state[-1], c64(0))) as branches:
            for branch, first in zip(branches, (True, False), strict=True):
                with branch:
                    before = self.zeros if first else [
                        load(b, at(b, f.acc, self.size * n), self.products.kind, self.size) for n in range(self.count)]
                    sums.append([b.fadd(x, y) for x, y in zip(before, state, strict=False)])
                    blocks.append(b.block)
        out = []
        for pair in zip(*sums, strict=True):
            out.append(b.phi(self.products.kind))
            for value, block in zip(pair, blocks, strict=True):
                out[-1].add_incoming(value, block)
        return out

    def finish(self, b: Any, f: Frame, state: list[Any]) -> None:
        """Emit the stores of the totals."""
        for n, total in enumerate(self.totals(b, f, state)):
            store(b, total, at(b, f.acc, self.size * n), self.size)

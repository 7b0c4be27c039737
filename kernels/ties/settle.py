"""Literal sums in kernels: block functions that compute one of them from packed weights and activations as they lie.

A block function takes the address of words, and the column c of the output within its tile:

    0 the tile's frame (`tile_frame`), or the address of tap addresses   1 the output's row in the tile
    2 a spec (`spec`)   3 bytes of a panel   4 the column in all   5 scale, 6 zero point, 7 start: factors of the column
    8 the sum (f32), which it stores

Weights are read where they lie packed, 64 bytes apart. The f32 factors of a piece of the channels and taps are stored
first (`factors`), in the order of sums, then `ordered_sums` takes them: so there is one loop for each order, whatever
the layout.
"""
from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir

from graphq.kernels.jit import modules
from graphq.kernels.jit.codegen import Functions
from graphq.kernels.jit.deferred import njit, types
from graphq.kernels.jit.intrinsics import (
    I64,
    call_block,
    intrinsic,
    load_s8,
    load_s64,
    load_u8,
    stack,
    store_s32,
    store_s64,
    word,
)
from graphq.kernels.jit.records import Record
from graphq.kernels.lanes.outputs import HEAD, LANES, exact, rewrite
from graphq.kernels.lanes.store_code import GROUP
from graphq.kernels.operands.tile_frame import ROWS_AT
from graphq.kernels.operands.windows import KI, KO, PAD_ROW
from graphq.kernels.ties.factors import FACTORS_BYTES, PIECE, PIECE_BYTES, TAPS_BYTES, factors_of, packed_factors
from graphq.kernels.ties.literal import ORDERS, Literal
from graphq.kernels.ties.ordered_sums import TAPS, begin, bits_of, clear, end, f32_of, take

WORDS_BYTES = 80
view_head = Record(*HEAD).view
TIES_BYTES = 8 * (GROUP + 1)
"""Entries of a group of rows of a vector of columns, and one more."""


def spec(literal: Literal, channels: int, *, signed: bool, tap_k: int = 0, merged: int = 1, parts: int = 1,
         pixel: int = 0, per: int = 0) -> np.ndarray:
    """Give the constants of a layer's literal sums, s64 words.

    0 order   1 block   2 channels   3 merged taps   4 packed k of a tap   5 parts whose sum the weights are
    6 whether activations are s8   7 their zero point   8 their scale (f32)   9 columns of a group, 0: all
    10 bytes of a pixel
    """
    scale = int(np.float32(literal.x_scale).view(np.uint32))
    return np.array([ORDERS.index(literal.order), literal.block, channels, merged, tap_k, parts, signed, literal.x_zp,
                     scale, per, pixel], np.int64)


@intrinsic
def first_bit(_typing: Any, bits: Any) -> Any:
    """The number of the lowest bit that is set, of bits that are not 0."""

    def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
        kind = ir.FunctionType(I64, [I64, ir.IntType(1)])
        return b.call(b.module.declare_intrinsic("llvm.cttz.i64", (), kind), [args[0], ir.IntType(1)(1)])

    return types.intp(types.intp), codegen


@njit
def entry_of(entries: int, number: int) -> Any:
    """The row, the first column and the bits of columns of an entry."""
    entry = load_s64(entries + 8 * number)
    return entry >> 16 & 0xFFFF, entry >> 32, entry & 0xFFFF


def settler(prepare: Any) -> Any:
    """Make the function that settles what `outputs.write` left uncertain, of the tile at (i, left) of a batch element.

    There are `uncertain` entries in `groups`. `sums` are the tile's accumulators, `stride` bytes a row. `words` are
    those of a literal sum: `prepare(args, batch, row, column, r, words)` stores what differs by output, which is
    (row, column) of the batch element, in row r of the tile. What is the same for all of a tile the caller has stored.
    """

    @njit
    def settle(args: int, batch: int, i: int, left: int, rows: int, columns: int, sums: int, stride: int, groups: int,
               uncertain: int, words: int) -> None:
        a = view_head(args)
        ties, lanes, literal = stack(TIES_BYTES), word(a.functions, LANES), a.literal
        store_s64(words + 16, a.spec)
        for group in range(uncertain):
            top, c0, _ = entry_of(groups, group)
            for tie in range(exact(args, batch, i + top, left + c0, min(GROUP, rows - top), min(lanes, columns - c0),
                                   sums + stride * top + 4 * c0, stride, ties)):
                down, c, bits = entry_of(ties, tie)
                while bits:
                    r, c1 = top + down, c0 + c + first_bit(bits)
                    bits &= bits - 1
                    prepare(args, batch, i + r, left + c1, r, words)
                    call_block(literal, words, c1)
                    rewrite(args, batch, i + r, left + c1, 1, 1, words + 64, 0, 0)

    return settle


@njit
def _settle(words: int, column: int, addresses: int, places: int, taps: int, step: int, part: int) -> None:
    spec, frame = load_s64(words + 16), load_s64(words)
    panel = load_s64(frame + 16) + column // 16 * load_s64(words + 24) + column % 16 * 4
    order, block, channels = word(spec, 0), word(spec, 1), word(spec, 2)
    factors, lines, lanes, total = stack(FACTORS_BYTES), stack(TAPS_BYTES), stack(32), f32_of(load_s64(words + 56))
    each = 1 if order == TAPS else max(1, taps)  # taps of a sum
    most = PIECE // each // 4 * 4
    vectors = step == 1 and word(spec, 5) == 1
    for t in range(taps + 7 if each > 1 else taps):  # the last vector of taps repeats the last one
        tap = min(t, taps - 1)
        place = load_s64(places + 8 * tap)
        vectors = vectors and place & 3 == 0
        store_s64(addresses + 8 * t, load_s64(addresses + 8 * tap))
        store_s64(lines + 8 * t, panel + 16 * place)
    clear(lanes)
    for tap in range(0, taps, each):
        so_far, chain, left = begin(order, block, total)
        for first in range(0, channels, most):
            now, row = min(most, channels - first), 8 * tap
            packed_factors(words, panel, factors, first, now, addresses + row, places + row,
                           lines + row if vectors else 0, each, step, part)
            so_far, chain, left = take(order, block, now * each, factors, factors + PIECE_BYTES, lanes, so_far, chain,
                                       left)
        total = end(order, block, lanes, total, so_far, chain, left)
    store_s64(words + 64, bits_of(total))


@njit
def _first_channel(words: int) -> int:
    """The first channel of the column's group, where panels hold several groups."""
    spec = load_s64(words + 16)
    return load_s64(words + 32) // word(spec, 9) * word(spec, 2) if word(spec, 9) else 0


def rows_sum(words: int, column: int) -> None:
    """Sum over k of a row of activations."""
    frame, first, address, place = load_s64(words), _first_channel(words), stack(8), stack(8)
    store_s64(address, load_s64(frame) + load_s64(words + 8) * load_s64(frame + 8) + first)
    store_s64(place, first)
    _settle(words, column, address, place, 1, 1, 0)


def columns_sum(words: int, column: int) -> None:
    """Sum over k of a column of activations."""
    frame, first, address, place = load_s64(words), _first_channel(words), stack(8), stack(8)
    step = load_s64(frame + 8)
    store_s64(address, load_s64(frame) + load_s64(words + 8) + first * step)
    store_s64(place, first)
    _settle(words, column, address, place, 1, step, 0)


def windows_sum(words: int, column: int) -> None:
    """Sum over the taps of a window, which packed weights may hold merged, and in several parts."""
    frame, r, spec = load_s64(words), load_s64(words + 8), load_s64(words + 16)
    image, windows = load_s64(frame), load_s64(frame + 8)
    outer = load_s64(frame + 8 * ROWS_AT + 16 * r)
    inner = load_s64(frame + 8 * ROWS_AT + 16 * r + 8)
    channels, merged, tap_k, parts = word(spec, 2), word(spec, 3), word(spec, 4), word(spec, 5)
    first = _first_channel(words)
    ki, pad = word(windows, KI), windows + word(windows, PAD_ROW)
    lines = word(windows, KO) // parts
    addresses, places = stack(TAPS_BYTES), stack(TAPS_BYTES)
    t = 0
    for a in range(lines):
        for b in range(ki):
            offset = load_s64(outer + 8 * a) + load_s64(inner + 8 * b)
            address = image + offset if offset >= 0 else pad
            for q in range(merged):
                store_s64(addresses + 8 * t, address + q * word(spec, 10) + first)
                store_s64(places + 8 * t, (a * ki + b) * tap_k + q * channels + first)
                t += 1
    _settle(words, column, addresses, places, t, 1, lines * ki * tap_k)


def pixels_sum(words: int, channel: int) -> None:
    """Sum over the taps of the one channel that an output channel reads, from the tap addresses in word 0.

    Word 1 is how many taps there are. Their weights, of word 4 bytes, lie where word 3 and the table of word 6 say.
    """
    spec, addresses, taps, place = load_s64(words + 16), load_s64(words), load_s64(words + 8), load_s64(words + 24)
    order, block, signed, zp = word(spec, 0), word(spec, 1), word(spec, 6), word(spec, 7)
    channel = channel // word(spec, 9) if word(spec, 9) else channel
    offsets, x_scale, w_scale = load_s64(words + 48), f32_of(word(spec, 8)), f32_of(load_s64(words + 40))
    factors, lanes, total = stack(FACTORS_BYTES), stack(32), f32_of(load_s64(words + 56))
    weights = factors + PIECE_BYTES
    clear(lanes)
    for t in range(taps):
        weight = place + load_s64(offsets + 8 * t)
        w = load_s8(weight) if load_s64(words + 32) == 1 else load_u8(weight) | load_s8(weight + 1) << 8
        store_s32(factors + 4 * t, load_u8(load_s64(addresses + 8 * t) + channel))
        store_s32(weights + 4 * t, w)
    flip = 128 if signed else 0
    factors_of(factors, taps, flip, zp + flip, x_scale)
    factors_of(weights, taps, 0, 0, w_scale)
    each = 1 if order == TAPS else max(1, taps)  # taps of a sum
    for t in range(0, taps, each):
        so_far, chain, left = begin(order, block, total)
        so_far, chain, left = take(order, block, each, factors + 4 * t, weights + 4 * t, lanes, so_far, chain, left)
        total = end(order, block, lanes, total, so_far, chain, left)
    store_s64(words + 64, bits_of(total))


SUMS = {"rows": rows_sum, "columns": columns_sum, "windows": windows_sum, "pixels": pixels_sum}
"""The block functions of matmuls by their layout, and of depthwise convolutions."""


def literal_sums() -> Functions:
    """Make the module of all layouts, as they share most code."""
    return Functions(speed=3, **SUMS)


def load_literal(layout: str, cache: bool) -> modules.Function:
    """The block function of a layout of activations (`SUMS`)."""
    return getattr(modules.load("literal_sums", literal_sums, cache=cache), layout)

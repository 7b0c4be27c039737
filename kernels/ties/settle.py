"""Literal sums in kernels: block functions that compute one of them from packed weights and activations as they lie.

A block function takes the address of an output's record (`sum_records`), whose sum it stores, and the column of the
output within its tile. Weights are read where they lie packed, 64 bytes apart. The f32 factors of a piece of the
channels and taps are stored first (`factors`), in the order of sums, then `ordered_sums` takes them: so there is one
loop for each order, however activations lie.
"""
from __future__ import annotations

from typing import Any

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
)
from graphq.kernels.jit.records import Record
from graphq.kernels.lanes.outputs import HEAD, STORE_FUNCTIONS, exact, rewrite
from graphq.kernels.lanes.store_code import GROUP
from graphq.kernels.operands.tile_frame import FRAME, ROWS_AT
from graphq.kernels.operands.windows import WINDOWS
from graphq.kernels.ties.factors import FACTORS_BYTES, PIECE, PIECE_BYTES, TAPS_BYTES, factors_of, packed_factors
from graphq.kernels.ties.ordered_sums import TAPS, begin, bits_of, clear, end, f32_of, take
from graphq.kernels.ties.sum_records import HEAD as SUM_HEAD
from graphq.kernels.ties.sum_records import PANEL_SUM, PIXEL_SUM, SPEC

view_head, view_functions = Record(*HEAD).view, STORE_FUNCTIONS.view
view_sum, view_panel, view_pixel, view_spec = Record(*SUM_HEAD).view, PANEL_SUM.view, PIXEL_SUM.view, SPEC.view
view_frame, view_windows = FRAME.view, WINDOWS.view
TIES_BYTES = 8 * (GROUP + 1)
"""Entries of a group of rows of a vector of columns, and one more."""


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

    There are `uncertain` entries in `groups`. `sums` are the tile's accumulators, `stride` bytes a row. `words` has
    the record of a literal sum: `prepare(args, batch, row, column, r, words)` fills in what differs by output, which is
    (row, column) of the batch element, in row r of the tile. What is the same for all of a tile the caller has stored.
    """

    @njit
    def settle(args: int, batch: int, i: int, left: int, rows: int, columns: int, sums: int, stride: int, groups: int,
               uncertain: int, words: int) -> None:
        a = view_head(args)
        ties, lanes, literal = stack(TIES_BYTES), view_functions(a.functions).lanes, a.literal
        view_sum(words).spec = a.spec
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
                    rewrite(args, batch, i + r, left + c1, 1, 1, words, 0, 0)

    return settle


@njit
def _settle(words: int, column: int, addresses: int, places: int, taps: int, step: int, part: int) -> None:
    x = view_panel(words)
    spec = view_spec(x.spec)
    panel = view_frame(x.frame).w + column // 16 * x.panel_bytes + column % 16 * 4
    order, block, channels = spec.order, spec.block, spec.channels
    factors, lines, lanes, total = stack(FACTORS_BYTES), stack(TAPS_BYTES), stack(32), f32_of(x.start)
    each = 1 if order == TAPS else max(1, taps)  # taps of a sum
    most = PIECE // each // 4 * 4
    vectors = step == 1 and spec.parts == 1
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
    x.sum = bits_of(total)


@njit
def _first_channel(words: int) -> int:
    """The first channel of the column's group, where panels hold several groups."""
    x = view_panel(words)
    spec = view_spec(x.spec)
    return x.column // spec.per * spec.channels if spec.per else 0


def rows_sum(words: int, column: int) -> None:
    """Sum over k of a row of activations."""
    x, first, address, weight = view_panel(words), _first_channel(words), stack(8), stack(8)
    frame = view_frame(x.frame)
    store_s64(address, frame.a + x.row * frame.stride + first)
    store_s64(weight, first)
    _settle(words, column, address, weight, 1, 1, 0)


def columns_sum(words: int, column: int) -> None:
    """Sum over k of a column of activations."""
    x, first, address, weight = view_panel(words), _first_channel(words), stack(8), stack(8)
    frame = view_frame(x.frame)
    step = frame.stride
    store_s64(address, frame.a + x.row + first * step)
    store_s64(weight, first)
    _settle(words, column, address, weight, 1, step, 0)


def windows_sum(words: int, column: int) -> None:
    """Sum over the taps of a window, which packed weights may hold merged, and in several parts."""
    x = view_panel(words)
    spec, image, windows = view_spec(x.spec), view_frame(x.frame).a, view_frame(x.frame).stride
    entries, w = x.frame + ROWS_AT + 16 * x.row, view_windows(windows)
    outer, inner = load_s64(entries), load_s64(entries + 8)
    channels, merged, tap_k, pixel = spec.channels, spec.merged, spec.tap_k, spec.pixel
    first = _first_channel(words)
    ki, pad, lines = w.ki, windows + w.pad_row, w.ko // spec.parts
    addresses, places = stack(TAPS_BYTES), stack(TAPS_BYTES)
    t = 0
    for a in range(lines):
        for b in range(ki):
            offset = load_s64(outer + 8 * a) + load_s64(inner + 8 * b)
            address = image + offset if offset >= 0 else pad
            for q in range(merged):
                store_s64(addresses + 8 * t, address + q * pixel + first)
                store_s64(places + 8 * t, (a * ki + b) * tap_k + q * channels + first)
                t += 1
    _settle(words, column, addresses, places, t, 1, lines * ki * tap_k)


def pixels_sum(words: int, channel: int) -> None:
    """Sum over the taps of the one channel that an output channel reads."""
    x = view_pixel(words)
    spec, addresses, taps, first, item = view_spec(x.spec), x.addresses, x.taps, x.weights, x.item
    order, block, signed, zp = spec.order, spec.block, spec.signed, spec.zero_point
    channel = channel // spec.per if spec.per else channel
    offsets, x_scale, w_scale = x.offsets, f32_of(spec.scale), f32_of(x.scale)
    factors, lanes, total = stack(FACTORS_BYTES), stack(32), f32_of(x.start)
    weights = factors + PIECE_BYTES
    clear(lanes)
    for t in range(taps):
        weight = first + load_s64(offsets + 8 * t)
        w = load_s8(weight) if item == 1 else load_u8(weight) | load_s8(weight + 1) << 8
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
    x.sum = bits_of(total)


SUMS = {"rows": rows_sum, "columns": columns_sum, "windows": windows_sum, "pixels": pixels_sum}
"""The block functions of matmuls by their layout, and of depthwise convolutions."""


def literal_sums() -> Functions:
    """Make the module of all layouts, as they share most code."""
    return Functions(speed=3, **SUMS)


def load_literal(layout: str, cache: bool) -> modules.Function:
    """The block function of a layout of activations (`SUMS`)."""
    return getattr(modules.load("literal_sums", literal_sums, cache=cache), layout)

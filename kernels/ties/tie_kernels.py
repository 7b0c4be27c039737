"""The block function that recomputes outputs near rounding ties.

Kernels list groups of outputs that could be near a tie as the entries of a tile (`lanes.outputs`). For each entry, the
block function evaluates the exact form of the epilogue to find the outputs that are near a tie. It then computes the
sums of these outputs as written, and stores the outputs by another form of the epilogue.

To compute a sum, the block function first stores the f32 factors of some channels and taps, in the order of the sum.
`ordered_sums` then adds their products, whatever the layouts of activations and weights are.
"""
from __future__ import annotations

from collections.abc import Callable

from graphq.kernels.jit import Functions, emits, njit
from graphq.kernels.jit.intrinsics import load_s8, load_s64, load_u8, stack, store_s32, store_s64
from graphq.kernels.jit.values import I1, I64, Builder, Value, constant
from graphq.kernels.lanes.epilogue_code import GROUP
from graphq.kernels.lanes.outputs import EPILOGUE_FUNCTIONS, HEAD, LOOK, entry_of, exact, rewrite, start, w_scale, w_zp
from graphq.kernels.matmul.plan import MATMUL_BLOCK
from graphq.kernels.operands.space import TERMS
from graphq.kernels.operands.tile_frame import FRAME, IN_COLUMNS, IN_WINDOWS, ROWS_AT
from graphq.kernels.operands.windows import WINDOWS, tap_addresses
from graphq.kernels.pixels.blocks import ADDRESSES, PIXELS
from graphq.kernels.ties.ordered_sums import (
    FACTORS_BYTES,
    PIECE,
    PIECE_BYTES,
    TAPS,
    TAPS_BYTES,
    begin,
    bits_of,
    clear,
    end,
    f32_of,
    factors_of,
    factors_of_packed,
    take,
)

TIES_BYTES = 8 * (GROUP + 1)
"""The bytes of a list of entries: one per row of a group of rows (in one vector of columns), and a spare entry."""


@emits
def first_bit(b: Builder, bits: Value) -> Value:
    """The index of the lowest set bit of `bits`; `bits` must not be 0."""
    return b.call_named("llvm.cttz.i64", I64, bits, constant(I1, 1))


@njit
def _line(frame: int, r: int, first: int, transposed: int, addresses: int, places: int) -> int:
    """Write a row of activations into the tables of taps, as one entry: k = `first`, and the address of this k.

    Returns the bytes between neighbors along k: 1, or the bytes of a row of the `transposed` operand.
    """
    f = FRAME(frame)
    step = f.stride if transposed else 1
    store_s64(addresses, f.a + r * (1 if transposed else f.stride) + first * step)
    store_s64(places, first)
    return step


@njit
def _window(terms: int, frame: int, r: int, first: int, addresses: int, places: int) -> int:
    """Write a window's taps into the tables, one entry per tap, even if weights merge taps; returns their number."""
    f, x = FRAME(frame), TERMS(terms)
    image, windows, entries = f.a, f.stride, frame + ROWS_AT + 16 * r
    outer, inner, w = load_s64(entries), load_s64(entries + 8), WINDOWS(windows)
    channels, merged, tap_k, pixel = x.channels, x.merged, x.tap_k, x.pixel
    ki, pad = w.ki, windows + w.pad_row
    t = 0
    for a in range(w.ko // x.parts):
        for b in range(ki):
            offset = load_s64(outer + 8 * a) + load_s64(inner + 8 * b)
            address = image + offset if offset >= 0 else pad
            for q in range(merged):
                store_s64(addresses + 8 * t, address + q * pixel + first)
                store_s64(places + 8 * t, (a * ki + b) * tap_k + q * channels + first)
                t += 1
    return t


def packed_sum(unit: int) -> Callable[..., int]:
    """Make the function that adds a matmul's sums, of weights of which `unit` bytes of a column are neighbors."""
    mask, packed_factors = unit - 1, factors_of_packed(unit)

    @njit
    def _packed_sum(args: int, batch: int, row: int, column: int, frame: int, r: int, c: int) -> int:
        """The sum as written of row r of a tile and column c; a weight may be the sum of several packed weights."""
        f, product = FRAME(frame), MATMUL_BLOCK(args)
        terms, layout = product.terms, product.layout
        x = TERMS(terms)
        first = column // x.per * x.channels if x.per else 0  # the first channel that the column's group reads
        addresses, places, lines = stack(TAPS_BYTES), stack(TAPS_BYTES), stack(TAPS_BYTES)
        taps, all_taps, part, step = 1, 1, 0, 1
        if layout == IN_WINDOWS:
            w = WINDOWS(f.stride)
            taps, all_taps = _window(terms, frame, r, first, addresses, places), w.ko * w.ki
            part = all_taps // x.parts * x.tap_k
        else:
            step = _line(frame, r, first, layout == IN_COLUMNS, addresses, places)
        panel = f.w + c // 16 * ((f.k + 3) // 4 * 64 * all_taps) + c % 16 * unit
        order, block, channels = x.order, x.block, x.channels
        zp, scale = w_zp(args, batch, column), f32_of(w_scale(args, batch, column))
        total = f32_of(start(args, batch, column))
        factors, lanes = stack(FACTORS_BYTES), stack(32)
        sum_taps = 1 if order == TAPS else max(1, taps)  # in the order "taps" each tap has a sum of its own
        piece_channels = PIECE // sum_taps // unit * unit
        vectors = step == 1 and x.parts == 1
        # A vector of 8 taps may reach beyond the last tap: repeat the last tap's entry.
        for t in range(taps + 7 if sum_taps > 1 else taps):
            tap = min(t, taps - 1)
            place = load_s64(places + 8 * tap)
            vectors = vectors and place & mask == 0
            store_s64(addresses + 8 * t, load_s64(addresses + 8 * tap))
            store_s64(lines + 8 * t, panel + 16 * place)
        clear(lanes)
        for tap in range(0, taps, sum_taps):
            so_far, chain, left = begin(order, block, total)
            for first in range(0, channels, piece_channels):
                count, row = min(piece_channels, channels - first), 8 * tap
                packed_factors(terms, zp, scale, panel, factors, first, count, addresses + row, places + row,
                               lines + row if vectors else 0, sum_taps, step, part)
                so_far, chain, left = take(order, block, count * sum_taps, factors, factors + PIECE_BYTES, lanes,
                                           so_far, chain, left)
            total = end(order, block, lanes, total, so_far, chain, left)
        return bits_of(total)

    return _packed_sum


@njit
def _pixels_sum(args: int, batch: int, row: int, column: int, frame: int, r: int, c: int) -> int:
    """The sum as written over the taps of the one input channel that an output channel reads."""
    a, x, addresses = PIXELS(args), TERMS(HEAD(args).terms), stack(ADDRESSES)
    windows, pixels, channels, offsets = a.windows, a.pixels, a.channels, a.offsets
    w, pixel = WINDOWS(windows), batch * a.m + row
    taps, ow = w.ko * w.ki, w.width
    image, inside = a.images + pixel // pixels * a.image_bytes, pixel % pixels
    tap_addresses(windows, image, inside // ow, inside % ow, addresses)
    chunk, half, item = column // x.chunk, x.half, x.item
    lane = column - max(0, min(chunk * x.chunk, channels - x.chunk))
    if half:
        lane = lane % 16 // 8 * half + lane // 16 * 8 + lane % 8
    first = a.weights + (channels + 15) // 16 * 64 + chunk * x.chunk_bytes + lane * 4
    order, block, signed, zp = x.order, x.block, x.signed, x.zero_point
    channel = column // x.per if x.per else column
    scale, total = f32_of(w_scale(args, batch, column)), f32_of(0)
    factors, lanes = stack(FACTORS_BYTES), stack(32)
    weights = factors + PIECE_BYTES
    clear(lanes)
    for t in range(taps):
        weight = first + load_s64(offsets + 8 * t)
        store_s32(factors + 4 * t, load_u8(load_s64(addresses + 8 * t) + channel))
        store_s32(weights + 4 * t, load_s8(weight) if item == 1 else load_u8(weight) | load_s8(weight + 1) << 8)
    flip = 128 if signed else 0
    factors_of(factors, taps, flip, zp + flip, f32_of(x.scale))
    factors_of(weights, taps, 0, 0, scale)
    sum_taps = 1 if order == TAPS else max(1, taps)  # in the order "taps" each tap has a sum of its own
    for t in range(0, taps, sum_taps):
        so_far, chain, left = begin(order, block, total)
        so_far, chain, left = take(order, block, sum_taps, factors + 4 * t, weights + 4 * t, lanes, so_far, chain, left)
        total = end(order, block, lanes, total, so_far, chain, left)
    return bits_of(total)


def tie_kernels(of_pixels: bool, paired: bool) -> Functions:
    """Make the module that recomputes outputs near rounding ties, for kernels over pixels or for matmuls.

    There are two modules, because the code of a sum takes longer to compile than any other module, and few models need
    both. Both functions for sums take the same parameters; each function ignores some.
    """
    sum_of = _pixels_sum if of_pixels else packed_sum(8 if paired else 4)

    def look_again(look: int, uncertain: int) -> None:
        """Recompute outputs of a tile, for its first `uncertain` entries; `look` is the address of its LOOK."""
        x, ties, total = LOOK(look), stack(TIES_BYTES), stack(8)
        args, batch, i, left, rows, columns, frame = x.args, x.batch, x.row, x.column, x.rows, x.columns, x.frame
        sums, stride, entries = x.sums, x.stride, x.entries
        head = HEAD(args)
        lanes = EPILOGUE_FUNCTIONS(head.functions).lanes
        for group in range(uncertain):
            top, c0, _ = entry_of(entries, group)
            for tie in range(exact(args, batch, i + top, left + c0, min(GROUP, rows - top), min(lanes, columns - c0),
                                   sums + stride * top + 4 * c0, stride, ties)):
                down, c, bits = entry_of(ties, tie)
                while bits:
                    r, c1 = top + down, c0 + c + first_bit(bits)
                    bits &= bits - 1
                    row, column = i + r, left + c1
                    store_s64(total, sum_of(args, batch, row, column, frame, r, c1))
                    rewrite(args, batch, row, column, 1, 1, total, 0, 0)

    return Functions(speed=3, look_again=look_again)

"""The f32 factors of sums as written: activations and packed weights, dequantized and put into the order of the sum.

The sum as written adds products x * w of dequantized numbers. These functions read the bytes in place, dequantize them,
and store all x and all w in two arrays in the same order, from which `ordered_sums` reads them.

Vectors have eight lanes on purpose: on Granite Rapids, each product of a sum takes 6.7 cycles instead of 4 after
instructions on 16 lanes. Bytes are read as unsigned. Signed bytes become unsigned by a `flip` of their highest bit,
with a zero point that is 128 higher.
"""
from __future__ import annotations

import numpy as np

from graphq.kernels.jit.deferred import emits, njit
from graphq.kernels.jit.intrinsics import counted, load_s8, load_s32, load_s64, load_u8, store_s32
from graphq.kernels.jit.shuffles import columns_of
from graphq.kernels.jit.values import F32, I8, I32, I64, Builder, F32Value, Value, c64, joined, vector
from graphq.kernels.operands.sum_terms import TERMS
from graphq.kernels.operands.windows import MOST_TAPS
from graphq.kernels.ties.ordered_sums import f32_of

view_terms = TERMS.view
PIECE = 4 * MOST_TAPS
"""The largest number of products whose factors are stored at a time, enough for at least four channels."""
PIECE_BYTES = 4 * (PIECE + 16)
"""Bytes for a piece's f32 activations, with slack for whole vectors; the f32 weights of the piece follow."""
FACTORS_BYTES, TAPS_BYTES = 2 * PIECE_BYTES, 8 * (MOST_TAPS + 8)


def _fours(address: Value, apart: int) -> Value:
    """Emit loads of four groups of four bytes that are `apart` bytes apart."""
    return joined([(address + apart * n).load(I32) for n in range(4)])


def _store_factors(q: Value, zp: Value, scale: Value, target: Value) -> None:
    x = (q - zp.trunc(I32).splat(8)).to_float(vector(F32, 8))
    (x * scale.splat(8)).store(target)


@emits
def _channels(b: Builder, apart: int, address: Value, flip: Value, zp: Value, scale: F32Value, target: Value) -> None:
    """Store the factors of 16 channels of one tap (one position of the window).

    The channels are in groups of four; neighbouring groups begin `apart` bytes apart.
    """
    q = _fours(address, apart).as_type(vector(I8, 16))
    q = q ^ flip.trunc(I8).splat(16)
    for n in range(0, 16, 8):
        half = q.shuffle(q, range(n, n + 8)).zext(vector(I32, 8))
        _store_factors(half, zp, scale, target + 4 * n)


@emits
def _taps(b: Builder, apart: int, table: Value, offset: Value, flip: Value, zp: Value, scale: F32Value, target: Value,
          taps: Value) -> None:
    """Store the factors of 16 channels of 8 taps, as `_channels` does; `table` has the taps' addresses minus `offset`.

    The factors are stored in the order of the sum: all `taps` of a channel, then those of the next channel.
    """
    rows = [_fours((table + 8 * n).load(I64) + offset, apart) for n in range(8)]
    flips = (flip.trunc(I32) * 0x01010101).splat(8)
    for n, fours in enumerate(x ^ flips for x in columns_of(rows)):
        for k in range(4):
            q = fours.shr(8 * k) & 255
            _store_factors(q, zp, scale, target + taps * (4 * (4 * n + k)))


@emits
def factors_of(b: Builder, numbers: Value, count: Value, flip: Value, zp: Value, scale: F32Value) -> None:
    """Turn `count` s32 at `numbers` into f32 factors in place; up to seven numbers after them are overwritten."""
    with counted(b, c64(0), count, 8, unroll=False) as k:
        place = numbers + (k << 2)
        q = place.load(vector(I32, 8)) ^ flip.trunc(I32).splat(8)
        _store_factors(q, zp, scale, place)


@njit
def packed_factors(terms: int, w_zp: int, w_scale: np.float32, panel: int, factors: int, first: int, channels: int,
                   addresses: int, places: int, lines: int, taps: int, step: int, part: int) -> None:
    """Store the factors of `channels` channels from `first` on for `taps` taps; tables locate activations and weights.

    `addresses` are the addresses of the taps' activations, `places` the places of their weights. `lines` are the
    addresses of the taps' weights, or 0. If `lines` are given, vectors take 16 channels at a time, and the last vector
    may overlap the one before. The last taps are stored first: a vector stores more than its own taps, and the vector
    of the next channel then overwrites the surplus.
    """
    x = view_terms(terms)
    parts, signed, zp, x_scale = x.parts, x.signed, x.zero_point, f32_of(x.scale)
    weights = factors + PIECE_BYTES
    flip, vectorised = 128 if signed else 0, channels & -4 if lines and channels >= 16 else 0
    for start in range(0, vectorised, 16):
        c = min(start, vectorised - 16)
        k = first + c
        if taps == 1:
            _channels(4, load_s64(addresses) + k, flip, zp + flip, x_scale, factors + 4 * c)
            _channels(64, load_s64(lines) + 16 * k, 128, w_zp + 128, w_scale, weights + 4 * c)
        else:
            for t in range((taps - 1) & -8, -1, -8):
                place = 4 * (c * taps + t)
                _taps(4, addresses + 8 * t, k, flip, zp + flip, x_scale, factors + place, taps)
                _taps(64, lines + 8 * t, 16 * k, 128, w_zp + 128, w_scale, weights + place, taps)
    for p in range(parts):
        for t in range(taps):
            address, k = load_s64(addresses + 8 * t) + first * step, load_s64(places + 8 * t) + first + p * part
            for c in range(vectorised, channels):
                place, w = 4 * (c * taps + t), load_s8(panel + (k + c >> 2) * 64 + (k + c & 3))
                store_s32(factors + place, load_u8(address + c * step))
                store_s32(weights + place, w + load_s32(weights + place) if p else w)
    done, rest = 4 * vectorised * taps, (channels - vectorised) * taps
    factors_of(factors + done, rest, flip, zp + flip, x_scale)
    factors_of(weights + done, rest, 0, w_zp, w_scale)

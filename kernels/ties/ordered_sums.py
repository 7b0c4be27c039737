"""Compute f32 sums exactly as the user's graph writes them, in an order of `sum_orders`.

The sums add products x * w of dequantized numbers. Functions here read the bytes of activations and weights, dequantize
them, and store all x and all w, the factors, in two arrays, in the order of the sum. To compute a sum, call `begin`,
then `take` for each piece of the arrays, then `end`. Between calls, the sum in progress is three numbers (`State`). The
order "octets" also keeps eight sums at the address `lanes`. Orders are indices into ORDERS.

A chain is a run of products that are added one after another before their sum is added to the total. Each product of a
chain waits 4 cycles for the previous product, so eight chains are summed at a time.

Vectors have only eight lanes: on Granite Rapids, after instructions on 16 lanes, each product of a sum takes 6.7 cycles
instead of 4. Bytes are read as unsigned. For s8, `flip` is 128, to flip the highest bit, and zero points grow by 128.
"""
from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from graphq.kernels.jit import Loop, emits, njit
from graphq.kernels.jit.intrinsics import columns_of, load_s8, load_s32, load_s64, load_u8, store_s32, store_s64
from graphq.kernels.jit.values import F32, I8, I32, I64, Builder, F32Value, Value, joined, smaller, vector
from graphq.kernels.numbers.sum_orders import ORDERS
from graphq.kernels.operands.space import TERMS
from graphq.kernels.operands.windows import MOST_TAPS

CHAINS, QUADS, OCTETS, TAPS = range(len(ORDERS))
State: TypeAlias = tuple[np.float32, np.float32, int]
"""A sum in progress: the total, the sum of the current chain, and a count.

The count is the number of products that the current chain still needs. In the orders "quads" and "octets" it is the
index of the next product.
"""


@emits
def fma(b: Builder, x: F32Value, w: F32Value, total: F32Value) -> F32Value:
    """x * w + total in f32, rounded once."""
    return x.math("fma", w, total)


@emits
def f32_of(b: Builder, bits: Value) -> F32Value:
    """The f32 with these bits."""
    return bits.trunc(I32).as_type(F32)


@emits
def bits_of(b: Builder, x: F32Value) -> Value:
    """The bits of an f32."""
    return x.as_type(I32).zext(I64)


@emits
def load_f32(b: Builder, address: Value) -> F32Value:
    """Load the f32 at `address`."""
    return address.load(F32)


@emits
def eight_chains(b: Builder, count: Value, apart: Value, chains: Value, xs: Value, ws: Value, lanes: Value) -> None:
    """Add `count` products, a multiple of four, to each of eight chains, whose sums are at `lanes`.

    Neighboring chains begin `apart` products apart. With fewer than 8 `chains`, the other lanes repeat the last chain.
    """
    starts = [smaller(n, chains - 1) * (apart << 2) for n in range(8)]
    kind = vector(F32, 8)

    def factors(address: Value) -> list[Value]:
        """The next four factors of each chain.

        Without `opaque`, LLVM would keep 16 addresses, most of them on the stack, and sums would take 4 % longer.
        """
        address = address.opaque()
        return columns_of([(address + start).load(vector(F32, 4)) for start in starts])

    with Loop(b, count.shr(2), [lanes.load(kind)]) as loop:
        place, (sums,) = loop.k << 4, loop.values
        for x, w in zip(factors(xs + place), factors(ws + place), strict=True):
            sums = x.math("fma", w, sums)
        loop.update([sums])
    loop.values[0].store(lanes)


@njit
def _chains(block: int, count: int, xs: int, ws: int, lanes: int, total: np.float32, chain: np.float32,
            left: int) -> State:
    """Add the products of a piece to a sum in chains of `block` products; returns the new State."""
    k = 0
    while k < count:
        if left == block and k + block <= count:
            full = min(8, (count - k) // block)
            rest = count - k - full * block & -4 if full < 8 else 0  # products of the shorter last chain
            clear(lanes)
            eight_chains(rest, block, full + 1, xs + 4 * k, ws + 4 * k, lanes)
            chain = load_f32(lanes + 4 * full) if rest else np.float32(0)
            eight_chains(block - rest, block, full, xs + 4 * (k + rest), ws + 4 * (k + rest), lanes)
            for one in range(full):
                total += load_f32(lanes + 4 * one)
            k += full * block + rest
            left -= rest
        else:
            step = min(left, count - k)
            for one in range(k, k + step):
                chain = fma(load_f32(xs + 4 * one), load_f32(ws + 4 * one), chain)
            k += step
            left -= step
            if left == 0:
                total += chain
                chain, left = np.float32(0), block
    return total, chain, left


@njit
def _quads(count: int, xs: int, ws: int, total: np.float32, chain: np.float32, number: int) -> State:
    """Add the products of a piece in the order "quads": four products to each other, then to the total."""
    for k in range(count):
        x = load_f32(xs + 4 * k) * load_f32(ws + 4 * k)
        chain = x if number & 3 == 0 else chain + x
        number += 1
        if number & 3 == 0:
            total += chain
    return total, chain, number


@njit
def _octets(count: int, xs: int, ws: int, lanes: int, number: int) -> int:
    """Add the products of a piece in the order "octets": product k to sum k % 8. Returns the next product's index."""
    for k in range(count):
        lane = lanes + 4 * (number & 7)
        store_s32(lane, bits_of(load_f32(lane) + load_f32(xs + 4 * k) * load_f32(ws + 4 * k)))
        number += 1
    return number


@njit
def take(order: int, block: int, count: int, xs: int, ws: int, lanes: int, total: np.float32, chain: np.float32,
         left: int) -> State:
    """Add the products of a piece (`count` factors at `xs` and at `ws`) to a sum in progress; returns the new State."""
    if order == QUADS:
        return _quads(count, xs, ws, total, chain, left)
    if order == OCTETS:
        return total, chain, _octets(count, xs, ws, lanes, left)
    return _chains(block, count, xs, ws, lanes, total, chain, left)


@njit
def begin(order: int, block: int, total: np.float32) -> State:
    """The state of a sum before its first product.

    The total is the number that the sum starts from; in the order "taps" the total is 0, because each tap has a sum.
    """
    zero = np.float32(0)
    return zero if order == TAPS else total, zero, 0 if order == QUADS or order == OCTETS else block


@njit
def end(order: int, block: int, lanes: int, total: np.float32, so_far: np.float32, chain: np.float32,
        left: int) -> np.float32:
    """The result of a sum after its last product.

    `so_far` is the total. In the order "taps" it is the total of one tap, to be added to `total`.
    """
    so_far = _total(order, block, lanes, so_far, chain, left)
    return total + so_far if order == TAPS else so_far


@njit
def _total(order: int, block: int, lanes: int, total: np.float32, chain: np.float32, left: int) -> np.float32:
    if order == QUADS:
        return total if left & 3 == 0 else total + chain
    if order == OCTETS:
        half = np.float32(0)
        for first in (0, 16):
            s = load_f32(lanes + first) + load_f32(lanes + first + 4)
            s = (s + load_f32(lanes + first + 8)) + load_f32(lanes + first + 12)
            half = s if first == 0 else half + s
        return total + half
    return total + chain if left != block else total


@njit
def clear(lanes: int) -> None:
    """Set the eight sums at `lanes` to 0."""
    for lane in range(4):
        store_s64(lanes + 8 * lane, 0)


PIECE = 4 * MOST_TAPS
"""The most products whose factors are stored at a time, enough for at least four channels."""
PIECE_BYTES = 4 * (PIECE + 16)
"""The bytes of a piece's f32 activations, with slack for whole vectors; the piece's f32 weights follow."""
FACTORS_BYTES, TAPS_BYTES = 2 * PIECE_BYTES, 8 * (MOST_TAPS + 8)


def _fours(address: Value, apart: int) -> Value:
    """Load four groups, `apart` bytes from one to the next; of paired weights (128), every two are neighbors."""
    places = (0, 4, 128, 132) if apart == 128 else [apart * n for n in range(4)]
    return joined([(address + place).load(I32) for place in places])


def _store_factors(q: Value, zp: Value, scale: Value, target: Value) -> None:
    x = (q - zp.trunc(I32).splat(8)).to_float(vector(F32, 8))
    (x * scale.splat(8)).store(target)


@emits
def _channels(b: Builder, apart: int, address: Value, flip: Value, zp: Value, scale: F32Value, target: Value) -> None:
    """Store the factors of 16 channels at one tap (a position of the window).

    The channels are in groups of four; neighboring groups begin `apart` bytes apart.
    """
    q = _fours(address, apart).as_type(vector(I8, 16))
    q = q ^ flip.trunc(I8).splat(16)
    for n in range(0, 16, 8):
        half = q.shuffle(q, range(n, n + 8)).zext(vector(I32, 8))
        _store_factors(half, zp, scale, target + 4 * n)


@emits
def _taps(b: Builder, apart: int, table: Value, offset: Value, flip: Value, zp: Value, scale: F32Value, target: Value,
          taps: Value) -> None:
    """Store the factors of 16 channels at 8 taps; `table` has the taps' addresses minus `offset`.

    The memory at `target` has the order of the sum: `taps` factors of a channel, then those of the next channel. One
    call stores 8 factors of each channel.
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
    with Loop(b, count, step=8, unroll=False) as loop:
        place = numbers + (loop.k << 2)
        q = place.load(vector(I32, 8)) ^ flip.trunc(I32).splat(8)
        _store_factors(q, zp, scale, place)


def factors_of_packed(unit: int) -> Callable[..., None]:
    """Make the function that stores the factors of packed weights, of which `unit` bytes of a column are neighbors."""
    mask, shift, line = unit - 1, unit.bit_length() - 1, 16 * unit

    @njit
    def packed_factors(terms: int, w_zp: int, w_scale: np.float32, panel: int, factors: int, first: int, channels: int,
                       addresses: int, places: int, lines: int, taps: int, step: int, part: int) -> None:
        """Store the factors of `channels` channels from `first` on at `taps` taps, for packed weights.

        Three tables have an entry per tap: `addresses` has the addresses of the activations, `places` the first k of
        the weights in the panel, and `lines` the addresses of the weights. If `lines` is not 0, vectors take 16
        channels at a time, and the last vector may overlap the previous vector. A vector of 8 taps can reach into the
        next channel. The last taps are stored first, so that the next channel's first taps overwrite this surplus.
        """
        x = TERMS(terms)
        parts, signed, zp, x_scale = x.parts, x.signed, x.zero_point, f32_of(x.scale)
        weights = factors + PIECE_BYTES
        flip, vectorized = 128 if signed else 0, channels & -unit if lines and channels >= 16 else 0
        for start in range(0, vectorized, 16):
            c = min(start, vectorized - 16)
            k = first + c
            if taps == 1:
                _channels(4, load_s64(addresses) + k, flip, zp + flip, x_scale, factors + 4 * c)
                _channels(line, load_s64(lines) + 16 * k, 128, w_zp + 128, w_scale, weights + 4 * c)
            else:
                for t in range((taps - 1) & -8, -1, -8):
                    place = 4 * (c * taps + t)
                    _taps(4, addresses + 8 * t, k, flip, zp + flip, x_scale, factors + place, taps)
                    _taps(line, lines + 8 * t, 16 * k, 128, w_zp + 128, w_scale, weights + place, taps)
        for p in range(parts):
            for t in range(taps):
                address, k = load_s64(addresses + 8 * t) + first * step, load_s64(places + 8 * t) + first + p * part
                for c in range(vectorized, channels):
                    place, w = 4 * (c * taps + t), load_s8(panel + (k + c >> shift) * line + (k + c & mask))
                    store_s32(factors + place, load_u8(address + c * step))
                    store_s32(weights + place, w + load_s32(weights + place) if p else w)
        done, rest = 4 * vectorized * taps, (channels - vectorized) * taps
        factors_of(factors + done, rest, flip, zp + flip, x_scale)
        factors_of(weights + done, rest, 0, w_zp, w_scale)

    return packed_factors

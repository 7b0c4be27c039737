"""Sums of f32 products in the orders of `sum_orders`, computed piece by piece by functions that kernels call.

An order is given by its number in ORDERS. A sum is a call of `begin`, one of `take` for each piece of the products, and
one of `end`. Between these calls its state is three numbers (`State`). The order "octets" also keeps eight sums side by
side in memory, at the address `lanes`.

A chain is a run of products that are added one after another before their sum is added to the total. Each product of a
chain waits 4 cycles for the one before. Therefore eight chains are summed at a time; the last one may be shorter.
"""
from __future__ import annotations

from typing import TypeAlias

import numpy as np

from graphq.kernels.jit.deferred import emits, njit
from graphq.kernels.jit.intrinsics import store_s32, store_s64
from graphq.kernels.jit.shuffles import columns_of
from graphq.kernels.jit.values import F32, I32, I64, Builder, F32Value, Value, smaller, vector
from graphq.kernels.jit.x86 import Loop
from graphq.kernels.numbers.sum_orders import ORDERS

CHAINS, QUADS, OCTETS, TAPS = range(len(ORDERS))
State: TypeAlias = tuple[np.float32, np.float32, int]
"""A sum in progress: the total, the sum of the current chain, and a count.

The count says how many products the current chain still takes. In the orders "quads" and "octets" it is the number of
the next product.
"""


@emits
def fma(b: Builder, x: F32Value, w: F32Value, total: F32Value) -> F32Value:
    """x * w + total in f32, rounded once."""
    return x.math("fma", w, total)


@emits
def f32_of(b: Builder, bits: Value) -> F32Value:
    """The f32 that has these bits."""
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
    """Add `count` products, a multiple of four, to each of eight chains, whose sums are stored at `lanes`.

    At most 8 `chains` exist; neighbouring chains begin `apart` products apart. If there are fewer than 8, the last one
    is computed again in the remaining lanes.
    """
    starts = [smaller(n, chains - 1) * (apart << 2) for n in range(8)]
    kind = vector(F32, 8)

    def factors(address: Value) -> list[Value]:
        """The next four factors of each chain.

        Without `opaque` LLVM would keep 16 addresses, most of them in memory, which is 4 % slower.
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
    """Add a piece of the factors to a sum whose chains have `block` products each.

    Returns the total, the sum of the last chain, and how many products that chain still takes.
    """
    k = 0
    while k < count:
        if left == block and k + block <= count:
            full = min(8, (count - k) // block)
            rest = count - k - full * block & -4 if full < 8 else 0  # products of a shorter chain beside the full ones
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
    """Add a piece of the factors to a sum of groups of four products.

    Returns the total, the sum of the last group, and the number of the next product.
    """
    for k in range(count):
        x = load_f32(xs + 4 * k) * load_f32(ws + 4 * k)
        chain = x if number & 3 == 0 else chain + x
        number += 1
        if number & 3 == 0:
            total += chain
    return total, chain, number


@njit
def _octets(count: int, xs: int, ws: int, lanes: int, number: int) -> int:
    """Add a piece of the factors to eight sums, each of which takes every eighth product.

    Returns the number of the next product.
    """
    for k in range(count):
        lane = lanes + 4 * (number & 7)
        store_s32(lane, bits_of(load_f32(lane) + load_f32(xs + 4 * k) * load_f32(ws + 4 * k)))
        number += 1
    return number


@njit
def take(order: int, block: int, count: int, xs: int, ws: int, lanes: int, total: np.float32, chain: np.float32,
         left: int) -> State:
    """Add the products of a piece of factors, in order, to a sum in progress."""
    if order == QUADS:
        return _quads(count, xs, ws, total, chain, left)
    if order == OCTETS:
        return total, chain, _octets(count, xs, ws, lanes, left)
    return _chains(block, count, xs, ws, lanes, total, chain, left)


@njit
def begin(order: int, block: int, total: np.float32) -> State:
    """The state of a sum before its first product.

    The total is the number that the sum starts from; in the order of taps it is 0, since each tap has a sum of its
    own.
    """
    zero = np.float32(0)
    return zero if order == TAPS else total, zero, 0 if order == QUADS or order == OCTETS else block


@njit
def end(order: int, block: int, lanes: int, total: np.float32, so_far: np.float32, chain: np.float32,
        left: int) -> np.float32:
    """The result of a sum after its last product.

    In the order of taps, `so_far` is the sum of one tap, which is added to `total`. In the other orders `so_far` is
    the total.
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
    """Make eight sums 0."""
    for lane in range(4):
        store_s64(lanes + 8 * lane, 0)

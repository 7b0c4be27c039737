"""Sums of f32 products in the orders of `literal`, taken piece by piece: njit functions of kernels.

An order is its number in ORDERS. A sum is `begin`, `take` for each piece, and `end`; between them it is three numbers,
the total, the chain under way, and what is left of that or how many products there were; and of eight sums side by side
their memory, `lanes`. A chain waits for its last product, 4 cycles a k; so four chains of a piece are summed at a time.
"""
from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir

from graphq.kernels.intrinsics import F32, I32, I64, intrinsic, store_s32, store_s64
from graphq.kernels.jit import njit, types
from graphq.kernels.literal import ORDERS
from graphq.kernels.x86 import load

CHAINS, QUADS, OCTETS, TAPS = range(len(ORDERS))


@intrinsic
def fma(_typing: Any, x: Any, w: Any, total: Any) -> Any:
    """x * w + total in f32, rounded once."""

    def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
        kind = ir.FunctionType(F32, [F32] * 3)
        return b.call(b.module.declare_intrinsic("llvm.fma.f32", (), kind), args)

    return types.float32(types.float32, types.float32, types.float32), codegen


@intrinsic
def f32_of(_typing: Any, bits: Any) -> Any:
    """The f32 of these bits."""

    def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
        return b.bitcast(b.trunc(args[0], I32), F32)

    return types.float32(types.intp), codegen


@intrinsic
def bits_of(_typing: Any, x: Any) -> Any:
    """The bits of an f32."""

    def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
        return b.zext(b.bitcast(args[0], I32), I64)

    return types.intp(types.float32), codegen


@intrinsic
def load_f32(_typing: Any, address: Any) -> Any:
    """Load the f32 at `address`."""

    def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
        return load(b, args[0], F32)

    return types.float32(types.intp), codegen


@njit
def _product(chain: Any, xs: int, ws: int, k: int) -> Any:
    return fma(load_f32(xs + 4 * k), load_f32(ws + 4 * k), chain)


@njit
def _chains(block: int, count: int, xs: int, ws: int, total: Any, chain: Any, left: int) -> Any:
    """Take a piece into chains of `block` products; the total, the last chain, and what is left of it."""
    k, zero = 0, np.float32(0)
    while k < count:
        if left == block and k + 2 * block <= count:
            second, third, fourth = zero, zero, zero
            if k + 4 * block <= count:
                for first in range(k, k + block):
                    chain = _product(chain, xs, ws, first)
                    second = _product(second, xs, ws, first + block)
                    third = _product(third, xs, ws, first + 2 * block)
                    fourth = _product(fourth, xs, ws, first + 3 * block)
                total = (((total + chain) + second) + third) + fourth
                k += 4 * block
            else:
                for first in range(k, k + block):
                    chain = _product(chain, xs, ws, first)
                    second = _product(second, xs, ws, first + block)
                total = (total + chain) + second
                k += 2 * block
            chain = zero
        else:
            some = min(left, count - k)
            for one in range(k, k + some):
                chain = _product(chain, xs, ws, one)
            k += some
            left -= some
            if left == 0:
                total += chain
                chain, left = zero, block
    return total, chain, left


@njit
def _quads(count: int, xs: int, ws: int, total: Any, chain: Any, number: int) -> Any:
    """Take a piece into sums of four; the total, the last sum, and the number of the next product."""
    for k in range(count):
        x = load_f32(xs + 4 * k) * load_f32(ws + 4 * k)
        chain = x if number & 3 == 0 else chain + x
        number += 1
        if number & 3 == 0:
            total += chain
    return total, chain, number


@njit
def _octets(count: int, xs: int, ws: int, lanes: int, number: int) -> int:
    """Take a piece into eight sums, every eighth product each; the number of the next product."""
    for k in range(count):
        lane = lanes + 4 * (number & 7)
        store_s32(lane, bits_of(load_f32(lane) + load_f32(xs + 4 * k) * load_f32(ws + 4 * k)))
        number += 1
    return number


@njit
def take(order: int, block: int, count: int, xs: int, ws: int, lanes: int, total: Any, chain: Any, left: int) -> Any:
    """Take the products of a piece of factors, in the order of products, into what is summed so far."""
    if order == QUADS:
        return _quads(count, xs, ws, total, chain, left)
    if order == OCTETS:
        return total, chain, _octets(count, xs, ws, lanes, left)
    return _chains(block, count, xs, ws, total, chain, left)


@njit
def begin(order: int, block: int, total: Any) -> Any:
    """The sum that one begins with (of taps: 0), the first chain, and what is left of it or the number of a product."""
    zero = np.float32(0)
    return zero if order == TAPS else total, zero, 0 if order == QUADS or order == OCTETS else block


@njit
def end(order: int, block: int, lanes: int, total: Any, so_far: Any, chain: Any, left: int) -> Any:
    """The total, from the sum of what was taken, which is one of a tap where sums are."""
    so_far = _total(order, block, lanes, so_far, chain, left)
    return total + so_far if order == TAPS else so_far


@njit
def _total(order: int, block: int, lanes: int, total: Any, chain: Any, left: int) -> Any:
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

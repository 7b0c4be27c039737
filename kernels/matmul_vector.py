"""Tiles of the integer matmul in vector registers: vpdpbusd (VNNI), or vpmaddwd on products widened to 16 bits.

A tile is `rows` x `panels` * 16 outputs, its accumulators stay in registers over all of k. With 6 x 4 on VNNI 24 of the
32 registers accumulate, and 4 loads of weights and 6 broadcasts of activations feed 24 products: measured 0.465 TOPS on
one Zen 4 core, its limit (one 64-byte product a cycle). vpmaddubsw of older CPUs saturates: it is not used.
"""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from numba import types
from numba.extending import intrinsic

from graphq.kernels.intrinsics import I8, I16, I32, I64, c64, splat
from graphq.kernels.x86 import S32X16, Loop, at, dot_u8s8, filled, load, madd16, shuffle, smaller, store, vector

FRAME = types.void(types.uintp)  # the signature of every tile, see `frame`
FLIP = 0x80808080  # xor turns four s8 into s8 + 128 as u8


@dataclass(frozen=True)
class Products:
    """How an instruction multiplies: a panel of 16 columns takes `parts` vectors of weights and accumulators (`kind`).

    `activations(b, group)` spreads four activations (s32) over a vector, `weights(b, address)` loads the part at an
    address, `dot(b, acc, x, w)` accumulates, and `columns(b, parts)` gives the sums of a panel, lowest column first.
    """

    parts: int
    kind: Any
    activations: Callable[..., Any]
    weights: Callable[..., Any]
    dot: Callable[..., Any]
    columns: Callable[..., list[Any]]


def vnni(emulated: bool) -> Products:
    """Multiply by vpdpbusd: one part, four products a lane."""
    return Products(1, S32X16, lambda b, group: splat(b, group, 16), lambda b, address: load(b, address, S32X16),
                    lambda b, acc, x, w: dot_u8s8(b, acc, x, w, emulated), lambda b, parts: parts)


def widened(lanes: int, emulated: bool) -> Products:
    """Multiply by vpmaddwd: parts of lanes / 2 columns, two neighbouring lanes a column."""
    words = vector(I16, 2 * lanes)

    def activations(b: Any, group: Any) -> Any:
        return b.zext(b.bitcast(splat(b, group, lanes // 2), vector(I8, 2 * lanes)), words)

    def weights(b: Any, address: Any) -> Any:
        return b.sext(load(b, address, vector(I8, 2 * lanes)), words)

    def columns(b: Any, parts: list[Any]) -> list[Any]:
        even, odd = range(0, 2 * lanes, 2), range(1, 2 * lanes, 2)
        pairs = zip(parts[::2], parts[1::2], strict=True)
        return [b.add(shuffle(b, x, y, even), shuffle(b, x, y, odd)) for x, y in pairs]

    return Products(32 // lanes, vector(I32, lanes), activations, weights,
                    lambda b, acc, x, w: b.add(acc, madd16(b, x, w, emulated)), columns)


def frame(b: Any, address: Any) -> list[Any]:
    """Load what a tile function is called with: a, lda, w, k, rows, sums, acc, a word of 8 bytes each.

    `a` and `w` are addresses of the first row and panel, `lda` bytes between rows, `rows` how many are valid, `sums`
    the column sums of the first panel, `acc` where the sums go: dense rows of s32, 16 for each panel.
    """
    return [load(b, at(b, address, 8 * i), I64, 8) for i in range(7)]


def row_addresses(b: Any, a: Any, lda: Any, rows: Any, count: int) -> list[Any]:
    """Give `count` row addresses; those past the last row repeat it, so that a tile at the edge reads valid memory."""
    last = b.sub(rows, c64(1))
    return [at(b, a, b.mul(smaller(b, c64(i), last), lda)) for i in range(count)]


def tail_group(b: Any, address: Any, tail: Any) -> Any:
    """Load the last `tail` (1 to 3) activations of a row as a group of four (s32), reading no byte beyond.

    Bytes past the end repeat the last one: their weights are the packed zeros.
    """
    last = b.sub(tail, c64(1))
    group = I32(0)
    for i in range(3):
        byte = b.zext(load(b, at(b, address, smaller(b, c64(i), last)), I8), I32)
        group = b.or_(group, b.shl(byte, I32(8 * i)))
    return group


def vector_tile(rows: int, panels: int, a_dtype: str, products: Products) -> Any:
    """Make the tile intrinsic of `rows` x 16 * `panels` outputs for activations u8, or s8 (shifted by 128)."""
    parts = products.parts

    def multiply(b: Any, groups: list[Any], w: Any, acc: list[Any], stride: Any) -> list[Any]:
        weights = [products.weights(b, at(b, w, b.mul(stride, c64(j)), part * (64 // parts)))
                   for j in range(panels) for part in range(parts)]
        out = []
        for i, group in enumerate(groups):
            x = products.activations(b, b.xor(group, I32(FLIP)) if a_dtype == "s8" else group)
            row = acc[i * len(weights):(i + 1) * len(weights)]
            out += [products.dot(b, value, x, weight) for value, weight in zip(row, weights, strict=True)]
        return out

    @intrinsic
    def tile(_typing: Any, address: Any) -> Any:
        def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
            a, lda, w, k, m, _, acc = frame(b, args[0])
            sources = row_addresses(b, a, lda, m, rows)
            groups, tail = b.ashr(k, c64(2)), b.and_(k, c64(3))
            stride = b.shl(b.ashr(at(b, k, 3), c64(2)), c64(6))  # bytes of a panel
            with Loop(b, groups, [filled(products.kind, 0)] * (rows * panels * parts)) as loop:
                x = [load(b, at(b, source, b.mul(loop.k, c64(4))), I32) for source in sources]
                loop.update(multiply(b, x, at(b, w, b.mul(loop.k, c64(64))), loop.values, stride))
            done = b.and_(k, c64(-4))
            some = b.zext(b.icmp_signed(">", tail, c64(0)), tail.type)
            with Loop(b, some, loop.values) as last:  # no turn or one
                x = [tail_group(b, at(b, source, done), tail) for source in sources]
                last.update(multiply(b, x, at(b, w, b.mul(groups, c64(64))), last.values, stride))
            for n in range(rows * panels):
                address = at(b, acc, 64 * n)
                for value in products.columns(b, last.values[n * parts:(n + 1) * parts]):
                    store(b, value, address, 4 * value.type.count)
                    address = at(b, address, 4 * value.type.count)
            return context.get_dummy_value()

        return FRAME, codegen

    return tile

"""The ways to multiply u8 by s8: what a level says of its instructions, and the vector code that kernels make of it.

A *group* is four bytes; a lane of 32 bits holds one. All ways give the same sums: exact, modulo 2**32. The functions
`dot4`, `pair_sums` and `saturating_sums` define the instructions, and emulate them on machines that lack them.

    Dot4         one instruction adds the four products of a lane
    Pairs        one instruction adds two products of s16; the even and the odd bytes of a lane are widened
    Saturating   one instruction adds two products in 16 bits, for factors whose sums fit; `Pairs` adds the two sums
    Matrix       an instruction multiplies tiles of bytes in registers of their own
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

from graphq.kernels.jit.values import I16, I32, Builder, Type, Value, vector

FLIP = 0x80808080
"""Xor with this number turns four s8 into s8 + 128 as u8."""
Factor: TypeAlias = tuple[Value, ...]
"""Groups of activations or weights, as the vectors that `Multiply.dot` multiplies one after the other."""
Sums: TypeAlias = Callable[[Builder, Value, Value], Value]
Flip: TypeAlias = Callable[[Builder, Value], Value]
Flushing: TypeAlias = Callable[[Builder, Callable[[], Sequence[Value]]], list[Value]]


class Multiply(NamedTuple):
    """How vectors of `lanes` lanes multiply bytes.

    `spread(x, signed)` makes a factor of a vector of s8 (`signed`) or u8. `dot(b, acc, x, w)` adds the products of u8
    `x` and s8 `w` to a vector of s32. `flip(b, x)` adds 128 to each s8, which makes it a u8. `loads` is the type that a
    load of the bytes has.
    """

    lanes: int
    loads: Type
    spread: Callable[[Value, bool], Factor]
    dot: Callable[[Builder, Value, Factor, Factor], Value]
    flip: Flip


class TileSizes(NamedTuple):
    """The tiles (rows, columns) of a level's kernels; an estimate of costs assumes `rate` operations per cycle.

    Tiles of `columns` also read transposed activations in place.
    """

    sizes: tuple[tuple[int, int], ...]
    rate: float = 1
    columns: tuple[tuple[int, int], ...] = ()


def flipped(b: Builder, x: Value) -> Value:
    """Turn s8 into s8 + 128 as u8."""
    return x ^ FLIP


def dot4(b: Builder, acc: Value, x: Value, w: Value, signed: bool = False) -> Value:
    """Add the four products u8 * s8 of each lane to `acc`, vectors of s32. With `signed`, x is s8."""
    for byte in range(4):
        left = 24 - 8 * byte
        factor = (x << left) >> 24 if signed else (x << left).shr(24)
        acc = acc + factor * ((w << left) >> 24)
    return acc


def pair_sums(b: Builder, x: Value, w: Value) -> Value:
    """The sums of two neighboring products of s16, as s32."""
    s32 = vector(I32, x.type.count // 2)
    x, w = x.as_type(s32), w.as_type(s32)
    low = ((x << 16) >> 16) * ((w << 16) >> 16)
    return low + (x >> 16) * (w >> 16)


def saturating_sums(b: Builder, x: Value, w: Value) -> Value:
    """The sums of two neighboring products u8 * s8, saturated to s16; x and w are vectors of s32."""
    s16 = vector(I16, 2 * x.type.count)
    x, w = x.as_type(s16), w.as_type(s16)
    pair = (x & 0xFF) * ((w << 8) >> 8), x.shr(8) * (w >> 8)
    return b.call_named(f"llvm.sadd.sat.v{s16.count}i16", s16, *pair)


class Dot4(NamedTuple):
    """An instruction that means `dot4`. `tiles` are those of matmuls, `compressed` those of compressed weights."""

    mnemonic: str
    emit: Callable[[Builder, Value, Value, Value], Value]
    tiles: TileSizes
    compressed: TileSizes
    flip: Flip = flipped

    def __call__(self, lanes: int, emulated: bool) -> Multiply:
        """How vectors multiply by this instruction, or by its emulation."""
        dot, flip = (dot4, flipped) if emulated else (self.emit, self.flip)
        return Multiply(lanes, vector(I32, lanes), lambda x, signed: (x,),
                        lambda b, acc, x, w: dot(b, acc, x[0], w[0]), flip)


class Pairs(NamedTuple):
    """An instruction that means `pair_sums`. `compressed` are the tiles of compressed 8-bit weights."""

    mnemonic: str
    emit: Sums
    tiles: TileSizes
    compressed: TileSizes
    flip: Flip = flipped

    def sums(self, emulated: bool) -> Sums:
        """The function that emits the instruction, or its emulation."""
        return pair_sums if emulated else self.emit

    def __call__(self, lanes: int, emulated: bool) -> Multiply:
        """How vectors multiply by this instruction, or by its emulation."""
        words, sums = vector(I16, 2 * lanes), self.sums(emulated)

        def spread(x: Value, signed: bool) -> Factor:
            x = x.as_type(words)
            return ((x << 8) >> 8, x >> 8) if signed else (x & 0xFF, x.shr(8))

        def dot(b: Builder, acc: Value, x: Factor, w: Factor) -> Value:
            for left, right in zip(x, w, strict=True):
                acc = acc + sums(b, left, right)
            return acc

        return Multiply(lanes, words, spread, dot, flipped if emulated else self.flip)


class Saturating(NamedTuple):
    """An instruction that means `saturating_sums`.

    `tiles` are those of sorted weights (`matmul.pack.sort`), `compressed` those of compressed 4-bit weights: with them
    sums cannot saturate, because 2 * 15 * 128 < 2**15.
    """

    mnemonic: str
    emit: Sums
    pairs: Pairs
    tiles: TileSizes
    compressed: TileSizes

    def __call__(self, lanes: int, emulated: bool) -> Multiply:
        """How vectors multiply by this instruction, or by its emulation; the products of a pair must fit into s16."""
        products, sums = saturating_sums if emulated else self.emit, self.pairs.sums(emulated)

        def dot(b: Builder, acc: Value, x: Factor, w: Factor) -> Value:
            return acc + sums(b, products(b, x[0], w[0]), b.value(vector(I16, 2 * lanes), 1))

        return Multiply(lanes, vector(I32, lanes), lambda x, signed: (x,), dot,
                        flipped if emulated else self.pairs.flip)


class Matrix(NamedTuple):
    """Instructions that multiply tiles of bytes: `registers(b, state, emulated)` emits them (see `x86_amx.Tiles`).

    Emulated, they take `state_bytes` of memory at `state`. `granted()` asks whether this process may use them.
    """

    registers: Callable[[Builder, Value, bool], Any]
    state_bytes: int
    granted: Callable[[], bool]
    tiles: TileSizes


class Fma(NamedTuple):
    """Fused multiply-adds of f32 in vectors of `lanes` lanes, and their tiles by the dtype of the activations.

    `flushing(b, emit)` runs `emit`, and makes its code take subnormal operands and results as zeros.
    """

    lanes: int
    f32: TileSizes
    narrow: TileSizes
    compressed_f32: TileSizes
    compressed_bf16: TileSizes
    flushing: Flushing | None = None


class Bf16(NamedTuple):
    """An instruction that multiplies pairs of bf16, and one that makes them of f32.

    `dot(b, acc, x, w)` is fma(x low, w low, fma(x high, w high, acc)) for the bf16 halves of words of 32 bits;
    subnormal operands and results count as zeros. `rounded(b, low, high)` rounds f32 to bf16 halves.
    """

    mnemonic: str
    dot: Callable[[Builder, Value, Value, Value], Value]
    rounded: Callable[[Builder, Value, Value], Value]
    tiles: TileSizes
    compressed: TileSizes


NO_TILES = TileSizes(())
PLAIN_PAIRS = Pairs("", pair_sums, NO_TILES, NO_TILES)
"""For a level without vectors: plain code that multiplies bytes in pairs."""

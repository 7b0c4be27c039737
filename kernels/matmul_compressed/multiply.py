"""The instructions that multiply u8 weights by s8 activations: vpdpbusd, or vpmaddubsw and vpmaddwd."""
from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from graphq.kernels.jit.values import I16, Builder, Value, vector
from graphq.kernels.matmul.vector import Factor, signed_halves
from graphq.kernels.target.x86 import dot_u8s8, madd8, madd16


class Multiply(NamedTuple):
    """How an instruction multiplies groups of four bytes: a vector has one group for each of `lanes` columns.

    `spread(x, signed)` makes the vectors to multiply from a vector of s8 activations (`signed`) or u8 weights. `dot(b,
    acc, w, x)` adds the products of spread weights and activations to a vector of s32.
    """

    lanes: int
    spread: Callable[[Value, bool], Factor]
    dot: Callable[[Builder, Value, Factor, Factor], Value]


def by_dot(lanes: int, emulated: bool) -> Multiply:
    """Multiply by vpdpbusd."""
    return Multiply(lanes, lambda x, signed: (x,), lambda b, acc, w, x: dot_u8s8(b, acc, w[0], x[0], emulated))


def by_saturating(lanes: int, emulated: bool) -> Multiply:
    """Multiply by vpmaddubsw. With 4-bit weights, sums cannot saturate, because 2 * 15 * 128 < 2**15."""
    ones = vector(I16, 2 * lanes)
    return Multiply(lanes, lambda x, signed: (x,), lambda b, acc, w, x: acc + madd16(
        b, madd8(b, w[0], x[0], emulated), b.value(ones, 1), emulated))


def by_words(lanes: int, emulated: bool) -> Multiply:
    """Multiply by vpmaddwd, with even and odd bytes widened to 16 bits."""
    words = vector(I16, 2 * lanes)

    def spread(x: Value, signed: bool) -> Factor:
        x = x.as_type(words)
        return signed_halves(x) if signed else (x & 0xFF, x.shr(8))

    def dot(b: Builder, acc: Value, w: Factor, x: Factor) -> Value:
        for left, right in zip(w, x, strict=True):
            acc = acc + madd16(b, left, right, emulated)
        return acc

    return Multiply(lanes, spread, dot)

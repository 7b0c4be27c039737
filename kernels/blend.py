"""Weighted means of neighbouring pixels of channels-last images, as linear interpolation takes them.

    acc[i, c] = sum over taps t of w[i, t] * x[window(i, t), c]        f32, tap by tap: a product, then a sum

The weight of tap (ko, ki) of pixel (outer, inner) is the f32 product of two, which lie in memory as f32 [outer outputs,
KO], then f32 [ow, KI]. A tap of weight 0 should lie in the padding, of zeros.
"""
from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from numba import types

from graphq.kernels.expression import COMPUTE, STORAGE, Expr, Store, load, op
from graphq.kernels.intrinsics import F32, I64, c64, intrinsic, splat
from graphq.kernels.isa import Level
from graphq.kernels.pixels import load_tile, over_channels, plan_pixels
from graphq.kernels.registry import Step
from graphq.kernels.vector import STORAGE_IR, emit, vec, widen
from graphq.kernels.windows import Windows
from graphq.kernels.x86 import at, store
from graphq.kernels.x86 import load as load_vector

ADDRESSES = 8 * (16 + 1)
"""Four spatial axes have 16 taps."""

_IMPORTS = "from graphq.kernels.blend import ADDRESSES, blending"
_SETUP = "blend = blending({dtype!r}, {lanes}, KO, KI)"
_BODY = """place(windows, image, outer, inner, 0, taps, addresses)
        weights = word(frame, 10)
        across = weights + 4 * KO * outers
        blend(addresses, weights + 4 * KO * outer, across + 4 * KI * inner, left * {itemsize}, channels, target)"""


def widened(dtype: str) -> Expr:
    """Tap (operand 0) as f32."""
    x = load(0, dtype, "vector")
    return x if COMPUTE[dtype] == "f32" else op("to_f32", x)


FIRST = load(0, "f32", "vector") * load(1, "f32", "vector")
NEXT = load(2, "f32", "vector") + FIRST
"""How the accumulator (operand 2) takes a tap (operand 0) of a weight (operand 1)."""


def packed(outer: np.ndarray, inner: np.ndarray) -> np.ndarray:
    """The weights of both tables as the kernel reads them."""
    return np.concatenate([outer.ravel(), inner.ravel()]).astype(np.float32)


def blending(dtype: str, lanes: int, ko: int, ki: int) -> Any:
    """Make the intrinsic (addresses, outer, inner, offset, channels, target): the f32 sums of one output pixel.

    `outer` and `inner` are the addresses of its weights; `addresses` holds those of its ko * ki taps, of which
    `channels` elements at `offset` bytes are read.
    """
    itemsize = STORAGE[dtype].itemsize

    def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
        addresses, outer, inner, offset, channels, target = args
        down, across = ([load_vector(b, at(b, base, 4 * k), F32) for k in range(n)]
                        for base, n in ((outer, ko), (inner, ki)))
        weights = [b.fmul(y, x) for y in down for x in across]
        taps = [load_vector(b, at(b, addresses, 8 * t), I64, 8) for t in range(ko * ki)]

        def vectors(width: int, c: Any) -> None:
            skip, total = at(b, offset, b.mul(c, c64(itemsize))), None
            for address, weight in zip(taps, weights, strict=True):
                raw = widen(b, load_vector(b, at(b, address, skip), vec(STORAGE_IR[dtype], width)), dtype, width)
                x = emit(b, widened(dtype), width, partial(_slot, [raw]))
                values = [x, splat(b, weight, width), total]
                total = emit(b, FIRST if total is None else NEXT, width, partial(_slot, values))
            store(b, total, at(b, target, b.mul(c, c64(4))))

        over_channels(b, channels, lanes, vectors)
        return context.get_dummy_value()

    @intrinsic
    def blend(_typing: Any, addresses: Any, outer: Any, inner: Any, offset: Any, channels: Any, target: Any) -> Any:
        return types.void(*[types.intp] * 6), codegen

    return blend


def _slot(values: list[Any], node: Expr) -> Any:
    """The value of a load."""
    return values[node.value[0]]


def plan_blend(store: Store, dtype: str, windows: Windows, channels: int, batch: int, m: int, level: Level, *,
               threads: int = 1, cache: bool = True) -> Step:
    """Plan the means of images of `dtype` to batch * m output pixels, of at most 16 taps each.

    See `pixels` for the words to fill in.
    """
    window, itemsize = (windows.outer.shape[1], windows.inner.shape[1]), STORAGE[dtype].itemsize
    tile = load_tile(f"blend_{dtype}", window, imports=_IMPORTS, setup=_SETUP.format(dtype=dtype, lanes=level.lanes),
                     room="ADDRESSES", body=_BODY.format(itemsize=itemsize), cache=cache)
    cycles = 20 + windows.taps * (3 + channels / level.lanes)
    return plan_pixels(f"blend_{dtype}_{level.name}", store, tile, windows.image_bytes, windows.pixels, channels, batch,
                       m, level, cycles=cycles, threads=threads, cache=cache)

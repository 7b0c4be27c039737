"""Iteration domains: an output as batch x rows x columns, and the byte offsets of each operand in this domain.

Neighboring dimensions are merged if every operand can step through both with one stride. Merging makes rows long. The
dimensions that remain are the batch; a table has an operand's byte offset for each batch element. TERMS says how to
recompute the f32 sum of an output near a rounding tie.
"""
from collections.abc import Sequence
from math import prod
from typing import NamedTuple

import numpy as np

from graphq.base.budget import reserve
from graphq.base.sizes import later, recorded
from graphq.kernels.jit.intrinsics import Record
from graphq.kernels.numbers.sum_orders import ORDERS, DequantizedSum


def table(dims: Sequence[tuple[int, int]]) -> np.ndarray | None:
    """The byte offsets of all elements of dimensions given as (size, step in bytes); None if all are 0."""
    return later(offsets, tuple(dims)) if any(step and size != 1 for size, step in dims) else None


class Walk(NamedTuple):
    """How an operand is read: byte offsets of batch elements (None: all 0), and the bytes between rows."""

    table: np.ndarray | None
    row: int


class Space(NamedTuple):
    """An iteration domain of `batch` x `m` x `n` outputs with contiguous rows, and a Walk for each operand."""

    batch: int
    m: int
    n: int
    walks: tuple[Walk, ...] = ()


def dense(shape: Sequence[int], itemsize: int) -> list[int]:
    """The bytes between elements along each axis of a dense tensor."""
    return [itemsize * prod(shape[d + 1:]) for d in range(len(shape))]


def broadcast_strides(shape: Sequence[int], out: Sequence[int], itemsize: int) -> tuple[int, ...]:
    """Byte strides of a dense array of `shape`, broadcast to the shape `out`: 0 along repeated dimensions."""
    own = [0 if d == 1 else stride for d, stride in zip(shape, dense(shape, itemsize), strict=True)]
    return (*[0] * (len(out) - len(shape)), *own)


def merged_space(out: Sequence[int], strides: Sequence[Sequence[int]], *, keep: int = 0) -> Space:
    """The iteration domain of an output of shape `out`; `strides` are each operand's byte strides along `out`.

    The last `keep` dimensions (2 for a layer's rows and columns, or less) are not merged with each other. Earlier
    dimensions can still be merged into the rows. Dimensions of size 1 are dropped, except kept dimensions.
    """
    none = (0,) * len(strides)
    dims = [(d, tuple(s)) for d, *s in zip(out, *strides, strict=True)]
    dims = [(1, none)] * (2 - len(dims)) + dims
    free = [x for x in dims[:len(dims) - keep] if x[0] != 1]
    kept = dims[len(dims) - keep:]
    columns = kept[-1] if keep else merge_last(free or [(1, none)])
    free += kept[:-1]
    rows = merge_last(free or [(1, none)])
    walks = [Walk(table([(d, s[k]) for d, s in free]), row) for k, row in enumerate(rows[1])]
    return Space(prod([d for d, _ in free]), rows[0], columns[0], tuple(walks))


def strip_space(out: Sequence[int], strides: Sequence[Sequence[int]], m: int) -> Space:
    """The domain of `merged_space` with `m` rows per batch element, for computing one strip of m rows at a time.

    m divides the size of the last dimension but one.
    """
    *outer, rows, n = out
    parts = rows // m
    walks = [Walk(table([*zip(outer, s[:-2], strict=True), (parts, s[-2] * m)]), s[-2]) for s in strides]
    return Space(prod(outer) * parts, m, n, tuple(walks))


def merge_last(dims: list[tuple[int, tuple[int, ...]]]) -> tuple[int, tuple[int, ...]]:
    """Remove from `dims` the last dimension and all before it that merge with it; returns them as one dimension."""
    size, step = dims.pop()
    while dims and all(outer == inner * size for outer, inner in zip(dims[-1][1], step, strict=True)):
        size *= dims.pop()[0]
    return size, step


@recorded("space.offsets")
def offsets(dims: Sequence[tuple[int, int]]) -> np.ndarray:
    """The byte offsets of all elements, in row-major order, of dimensions given as (size, step in bytes)."""
    reserve(8 * prod(size for size, _ in dims), f"the offsets of {[size for size, _ in dims]} matrices")
    out = np.zeros(1, np.int64)
    for size, step in dims:
        out = (out[:, None] + np.arange(size, dtype=np.int64) * step).ravel()
    return out


TERMS = Record("order", "block", "signed", "zero_point", "scale", "channels", "per", "merged", "tap_k",
               "parts", "pixel", "chunk", "chunk_bytes", "item", "half")
"""The sum of a layer in the order of the graph as written, and how the kernel has packed the weights.

    order, block        the order as an index into ORDERS, and the number of products in a block
    signed, zero_point, scale    of the activations: whether they are s8; the scale as the bits of an f32
    channels            the number of channels that an output reads
    per                 the output columns per group of a grouped convolution, or 0 without groups
    merged, tap_k       how many taps were packed as one, and the packed k of such a tap
    parts               the number of packed weights whose sum is a weight
    pixel               the bytes of a pixel
    chunk, chunk_bytes, item, half    of depthwise weights: channels and bytes of a chunk, bytes of a weight, and the
                        lanes of a half if bytes of pairs of taps are interleaved within 128 bits, otherwise 0
"""


def terms(how: DequantizedSum, *, signed: bool, **layout: int) -> np.ndarray:
    """The TERMS record of a layer as s64 words; `layout` has the other fields, by default 0."""
    return later(np.array, TERMS.words({
        "order": ORDERS.index(how.order), "block": how.block, "signed": signed, "zero_point": how.x_zp,
        "scale": int(np.float32(how.x_scale).view(np.uint32)), **layout}), np.int64)

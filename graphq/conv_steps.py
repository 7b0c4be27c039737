"""From a lowered convolution to plan steps: a matmul over windows, or over pixels where windows are single pixels."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

import numpy as np

from graphq.depthwise_steps import depthwise_steps
from graphq.ir import Node
from graphq.kernels import matmul, pack, pad_rows
from graphq.kernels.expression import STORAGE
from graphq.kernels.lower import Lowered
from graphq.kernels.lower_conv import IntegerConvolution, pixel_strides
from graphq.kernels.space import Space, Walk
from graphq.kernels.tile_frame import RUN
from graphq.kernels.windows import Windows, windows
from graphq.plan_builder import PlanBuilder
from graphq.runtime import Buffer, PythonStep, Ref
from graphq.slots import Strides, place, run, table
from graphq.tensor_type import TensorType

MERGED_BYTES = 16
"""Pixels of fewer bytes are read a line of the kernel at a time."""


def convolution_steps(b: PlanBuilder, node: Node, lowered: Lowered) -> None:
    """Pad the lines of images of few channels, pack weights that are not constant, multiply."""
    c = lowered.anchor
    assert isinstance(c, IntegerConvolution)
    if c.depthwise:
        return depthwise_steps(b, node, lowered)
    value = node.inputs[c.a]
    assert value is not None
    source, view, merged = b.of[value], c.windows, 1
    if _reads_lines(c):
        source, view, merged = _padded(b, c, source, value.type.dims)
    weights, parts = _weights(b, node, c, merged)
    groups, columns, channels = c.filter.groups, c.filter.columns, c.filter.channels * merged
    size = pack.packed_bytes(view.taps * parts * -(-channels // 4) * 4, columns)
    places: list[tuple[Ref, Strides]] = []
    for s in lowered.sources:
        if s.place == "column sums":
            places.append((Ref(weights), (0, size, 0, 4)))
        else:
            ref, strides = place(b, node, s, lowered.out)
            places.append((ref, pixel_strides(strides, lowered.out, groups)))
    item = STORAGE[lowered.store.dtype].itemsize
    dense = (view.pixels * groups * columns * item, columns * item, groups * columns * item, item)
    places.append((Ref(b.result(node.output)), dense))
    places.append((Ref(source), (view.image_bytes, channels, 0, 0)))
    places.append((Ref(weights), (0, size, 0, 0)))
    space = _space(c.images, groups, view.pixels, columns, [strides for _, strides in places])
    pixel = _even(view)
    reading: matmul.Reading = "windows" if pixel is None else "rows"
    step = matmul.plan_matmul(lowered.store, c.a_dtype, space.m, space.n, channels, b.level, batch=space.batch,
                              threads=b.threads, cache=b.cache, reading=reading, taps=view.taps * parts)
    *slots, (a, a_walk), (w, w_walk) = [(ref, walk) for (ref, _), walk in zip(places, space.walks, strict=True)]
    stride: int | Ref = pixel if pixel is not None else Ref(_block(b, c, view, parts, channels))
    header = {matmul.A: a, matmul.A_TABLE: table(b, a_walk), matmul.STRIDE: stride,
              matmul.W: w, matmul.W_TABLE: table(b, w_walk)}
    run(b, step, header, slots)


def _space(images: int, groups: int, pixels: int, columns: int, strides: Sequence[Strides]) -> Space:
    """The space of batch (image, group) x pixels x columns."""
    walks = []
    for image, group, pixel, _ in strides:
        offsets = np.add.outer(np.arange(images, dtype=np.int64) * image, np.arange(groups, dtype=np.int64) * group)
        walks.append(Walk(offsets.ravel() if offsets.any() else None, pixel))
    return Space(images * groups, pixels, columns, tuple(walks))


def _even(view: Windows) -> int | None:
    """The bytes between the pixels that neighbouring outputs read, when windows are single pixels all evenly apart."""
    if view.taps != 1:
        return None
    offsets = view.offsets().ravel()
    step = int(offsets[1] - offsets[0]) if offsets.size > 1 else view.pixel_bytes
    return step if (offsets == np.arange(offsets.size) * step).all() else None


def _block(b: PlanBuilder, c: IntegerConvolution, view: Windows, parts: int, channels: int) -> int:
    """The constant buffer with the tables, repeated for every part of the weights, and a row of zero points."""
    pad = np.full(max(view.pixel_bytes, channels), c.a_zp, np.int64).astype(np.uint8)
    repeated = replace(view, outer=np.tile(view.outer, (1, parts)))
    return b.constant(repeated.block(pad, RUN if b.level.includes("amx") else None))


def _reads_lines(c: IntegerConvolution) -> bool:
    """Whether the taps of a line are read as one: stems of few channels, whose taps alone would not fill vectors."""
    w = c.windows
    if c.filter.transposed or c.filter.groups > 1 or w.inner.shape[1] == 1 or w.pixel_bytes >= MERGED_BYTES:
        return False
    return c.dilations[-1] == 1


def _padded(b: PlanBuilder, c: IntegerConvolution, source: int, dims: tuple[int, ...]) -> tuple[int, Windows, int]:
    """Lines of the image padded with zero points; the windows on them, of merged pixels; how many merge."""
    width, taps, outputs = dims[-2], c.windows.inner.shape[1], c.windows.outputs[-1]
    stride, (begin, _) = c.strides[-1], c.pads[-1]
    end = max(0, (outputs - 1) * stride + taps - begin - width)
    pixel, lines = c.windows.pixel_bytes, prod(dims[:-2])
    out = b.temporary(lines * (begin + width + end) * pixel)
    step = pad_rows.plan_pad_rows(lines, width * pixel, begin * pixel, end * pixel, c.a_zp & 0xFF, threads=b.threads,
                                  cache=b.cache)
    run(b, step, {0: Ref(source), 1: Ref(out)}, [])
    sizes = (*dims[1:-2], begin + width + end)
    view = windows(sizes, (*c.windows.kernel[:-1], 1), c.strides, c.dilations, (*c.pads[:-1], (0, 0)),
                   c.windows.outputs, pixel)
    return out, view, taps


def _weights(b: PlanBuilder, node: Node, c: IntegerConvolution, merged: int) -> tuple[int, int]:
    """The buffer of the packed weights, tap by tap, and the number of s8 parts whose sum they are."""
    value = node.inputs[c.b]
    assert value is not None
    if value.data is not None:
        parts = _s8_parts(c.centred(value.data))
        return b.constant(_packed(parts, merged)), len(parts)
    taps, channels = c.windows.taps // merged, c.filter.channels * merged
    size = pack.packed_bytes(taps * -(-channels // 4) * 4, c.filter.columns)
    out = b.add(Buffer("arena", size * c.filter.groups, TensorType(value.dtype, (c.filter.groups, size))))
    b.steps.append(PythonStep("pack weights", lambda w: _packed([c.filter.matrix(w)], merged).view(w.dtype),
                              (b.of[value],), (out,), reference=False))
    return out, 1


def _s8_parts(w: np.ndarray) -> list[np.ndarray]:
    """s8 arrays whose sum is `w`: one, unless zero points move the weights out of s8's range."""
    parts = [np.clip(w, -128, 127).astype(np.int8)]
    while (rest := w - sum(p.astype(np.int32) for p in parts)).any():
        parts.append(np.clip(rest, -128, 127).astype(np.int8))
    return parts


def _packed(parts: Sequence[np.ndarray], merged: int) -> np.ndarray:
    """Pack weights [groups, taps, channels, columns]: the taps of all parts after one another, each in whole groups."""
    groups, taps, channels, columns = parts[0].shape
    k = -(-channels * merged // 4) * 4
    whole = np.zeros((groups, len(parts), taps // merged, k, columns), np.int8)
    for n, part in enumerate(parts):
        whole[:, n, :, :channels * merged] = part.reshape(groups, taps // merged, channels * merged, columns)
    return pack.pack(whole.reshape(groups, -1, columns))

"""The kernel family of convolutions, including transposed and depthwise ones: its record and its plan steps.

A phase is a set of outputs that sum over the same taps (`conv/filter.py`). Each phase has its own step. Only transposed
convolutions with strides have several phases.
"""
from collections.abc import Sequence
from functools import partial
from math import prod
from typing import NamedTuple

import numpy as np

from graphq.base.arrays import padded
from graphq.base.sizes import largest
from graphq.ir import Node, Value
from graphq.kernels.conv.depthwise import depthwise_steps, line_steps
from graphq.kernels.conv.filter import Phase
from graphq.kernels.conv.lower import CONVOLUTIONS, Convolution, IntegerConvolution, LineConvolution, lower_convolution
from graphq.kernels.conv.padding import pad_address, pad_rows, padding_block
from graphq.kernels.family.epilogue import OperandSource
from graphq.kernels.family.lower import Lowered
from graphq.kernels.family.record import Family, Operand, any_operands, epilogue_operands
from graphq.kernels.matmul import pack
from graphq.kernels.matmul import plan as matmul
from graphq.kernels.matmul.family import dequantized_operands, product_step
from graphq.kernels.moves.transpose import dense
from graphq.kernels.operands.space import Space, merged_space, table
from graphq.kernels.operands.tile_frame import RUN
from graphq.kernels.operands.windows import Windows, windows
from graphq.ops.conv import weight_axes
from graphq.plan.builder import PlanBuilder
from graphq.plan.plan import Ref
from graphq.rewrite.pattern import PatternBuilder, PatternLike


def convolution_steps(b: PlanBuilder, node: Node, lowered: Lowered[Convolution]) -> None:
    """Add the steps that pad images of few channels, pack weights that are not constant, and multiply."""
    c = lowered.anchor
    if isinstance(c, LineConvolution):
        return line_steps(b, node, lowered)
    if c.depthwise:
        return depthwise_steps(b, node, lowered)
    value = node.operand(c.a)
    source, view, merged = b.of[value], c.windows, 1
    if c.reads_lines:
        source, view, merged = _padded(b, node, c, source, value.type.dims)
    sizes = _sizes(c, node.operand(c.b).data, merged)
    for phase in c.phases(view):
        _multiply(b, node, lowered, source, phase, sizes)


class _Sizes(NamedTuple):
    """The weights of a phase as a matmul reads them: groups, channels of a tap, and columns.

    `joined` neighboring groups of the convolution are one group, and `merged` neighboring taps are one tap. Each tap is
    packed as `rows` rows, a multiple of 4 bytes.
    """

    groups: int
    channels: int
    columns: int
    joined: int
    merged: int
    rows: int


def _sizes(c: Convolution, weights: np.ndarray | None, merged: int) -> _Sizes:
    """Choose how many neighboring groups are computed as one larger group, with zeros between their weights.

    As many groups are joined as fit into a panel of 16 columns: this takes fewer tiles. Zen 4, 3x3, one core: 32 groups
    of 4 at 56 x 56 take 0.52 ms instead of 1.60; 256 channels with two columns each at 14 x 14 take 0.11 ms instead of
    1.05. Joining groups into two panels is slower.

    Float groups are never joined, because infinite activations times the added zeros would give NaN. Groups with
    weights that are not constant are not joined either.
    """
    joined = 1
    if c.integer and weights is not None:
        most = max(1, pack.PANEL // max(1, c.filter.columns))
        joined = max(n for n in range(1, most + 1) if c.filter.groups % n == 0)
    channels = c.filter.channels * joined * merged
    rows = -(-channels * c.itemsize // 4) * 4 // c.itemsize
    return _Sizes(c.filter.groups // joined, rows if merged > 1 and c.integer else channels, c.filter.columns * joined,
                  joined, merged, rows)


def _multiply(b: PlanBuilder, node: Node, lowered: Lowered[Convolution], source: int, phase: Phase,
              sizes: _Sizes) -> None:
    """Add the matmul step of one phase, after a step that packs weights if they are not constant."""
    c, view = lowered.anchor, phase.windows
    groups, channels, columns, joined, merged, rows = sizes
    itemsize, value = c.itemsize, node.operand(c.b)
    weights = None if value.data is None else _arranged(c.matrix(value.data), sizes)[:, phase.taps]
    w_dtype = None
    if weights is None:
        packed, parts = _packed_later(b, value, c, phase, sizes), 1
        size = pack.packed_bytes(view.taps * rows, columns, itemsize)
    else:
        arrays = _s8_parts(weights) if c.integer else [weights]
        w_dtype = matmul.weights_dtype(c.a_dtype, "windows", channels, c.windows.taps, b.target.level)
        data = _packed(arrays, rows, channels, w_dtype)
        packed, size, parts = b.constant(data), data.shape[-1], len(arrays)
    in_rows = merged == 1 or lowered.epilogue.second_look is None  # a second look cannot read merged taps as rows
    pixel = _even(c, view) if parts == 1 and in_rows else None
    still = (0,) * len(phase.counts)
    pixels = still if pixel is None else tuple(dense(phase.counts, pixel))

    def compensation(_: OperandSource) -> Operand:
        assert isinstance(c, IntegerConvolution) and weights is not None
        return Ref(b.constant(c.compensation(weights))), (0, 4 * columns, *still, 4)

    own = {"column sums": lambda _: (Ref(packed), (0, size, *still, 4)), "compensation": compensation}
    operands = [(Ref(source), (view.image_bytes, channels * itemsize, *pixels, 0)), (Ref(packed), (0, size, *still, 0)),
                *epilogue_operands(b, node, lowered, own, partial(_of_phase, columns=columns, phase=phase))]
    space = _space((c.images, groups, *phase.counts, columns), operands, in_rows=pixel is not None)
    words = {} if pixel is not None else {"stride": Ref(_block(b, node, c, view, parts, channels * itemsize, space.m))}
    product_step(b, lowered, operands, space, words, k=channels, layout="windows" if pixel is None else "rows",
                 taps=view.taps * parts, w_dtype=w_dtype, joined=joined, channels=c.filter.channels,
                 per=c.filter.columns if joined > 1 else 0, merged=merged, tap_k=rows, parts=parts,
                 pixel=view.pixel_bytes)


def _of_phase(of_result: Operand, columns: int, phase: Phase) -> Operand:
    """Convert strides along the result, [n, spatial..., c], to strides along the dimensions of `_space`."""
    ref, (image, *spatial, column) = of_result
    first = sum(o * s for o, s in zip(phase.origin, spatial, strict=True))
    steps = (s * n for s, n in zip(spatial, phase.step, strict=True))
    return Ref(ref.buffer, ref.offset + first), (image, column * columns, *steps, column)


def _space(sizes: Sequence[int], operands: Sequence[Operand], *, in_rows: bool) -> Space:
    """The iteration domain: images, groups, the phase's outputs along each spatial axis, and columns of a group.

    Lines of pixels merge into longer rows if the strides of all operands allow it. If windows are read as rows
    (`in_rows`) and there is one group, pixels of neighboring images merge as well.
    """
    last = len(sizes) - 1
    several = [k for k in range(2, last) if sizes[k] != 1] or [last - 1]
    axes = 0, 1, *several, last
    return merged_space([sizes[k] for k in axes], [[strides[k] for k in axes] for _, strides in operands],
                        keep=1 if in_rows and sizes[1] == 1 else 2)


def _even(c: Convolution, view: Windows) -> int | None:
    """The distance in bytes between the pixels that neighboring outputs read, if each window is a single pixel.

    None if windows are larger, if the distance varies, or if a pixel is padding.
    """
    if view.taps != 1:
        return None
    if view is c.windows and set(c.strides) == {1} and not any(map(any, c.pads)):
        return view.pixel_bytes
    step = view.even_step()
    return step if step >= 0 else None


def _block(b: PlanBuilder, node: Node, c: Convolution, view: Windows, parts: int, tap_bytes: int, line: int) -> int:
    """Make the buffer of im2col tables and padding; the taps are repeated for each of `parts` weight arrays."""
    pad = np.full(max(view.pixel_bytes, tap_bytes), int(c.padding) & 0xFF, np.uint8)
    repeated = view.repeated(parts)
    runs = repeated.runs(RUN, line) if b.target.level.matrix is not None else None
    return padding_block(b, node, c, repeated.block(pad, runs))


def _padded(b: PlanBuilder, node: Node, c: Convolution, source: int, dims: tuple[int, ...]) -> tuple[int, Windows, int]:
    """Add the step that pads the image's lines. Kernels can then read a line of taps as one tap.

    Returns the padded buffer, windows with one tap per line, and the number of taps that were merged into this tap.
    """
    width, taps, outputs = dims[-2], c.windows.kernel[-1], c.windows.outputs[-1]
    stride, (begin, _) = c.strides[-1], c.pads[-1]
    end = largest(0, (outputs - 1) * stride + taps - begin - width)
    pixel, lines = c.windows.pixel_bytes, prod(dims[:-2])
    value = pad_address(b, node, c) or int(c.padding) & 0xFF
    out = pad_rows(b, source, lines, width * pixel, begin * pixel, end * pixel, value)
    sizes = (*dims[1:-2], begin + width + end)
    view = windows(sizes, (*c.windows.kernel[:-1], 1), c.strides, c.dilations, (*c.pads[:-1], (0, 0)),
                   c.windows.outputs, pixel)
    return out, view, taps


def _packed_later(b: PlanBuilder, value: Value, c: Convolution, phase: Phase, sizes: _Sizes) -> int:
    """Add the step that packs weights that are not constant, tap by tap; returns the buffer of packed weights."""
    item = value.dtype.itemsize
    group, tap, channel, column = c.filter.strides(item)
    # the byte offset of each packed row in the weights; -1 if the row pads a tap with zeros
    offsets = tap * np.arange(c.windows.taps)[:, None] + channel * np.arange(c.filter.channels)
    offsets = offsets.reshape(-1, sizes.merged * c.filter.channels)[phase.taps]
    rows = padded(offsets + 1, (len(offsets), sizes.rows)).ravel() - 1
    step = max(0, int(rows[1])) if len(rows) > 1 else 0
    even = np.array_equal(rows, step * np.arange(len(rows)))
    out = b.temporary(sizes.groups * pack.packed_bytes(len(rows), sizes.columns, item))
    b.run(pack.plan_pack(c.b_dtype, len(rows), sizes.columns, sizes.groups, b.target), {
        "source": Ref(b.of[value]), "table": b.table(table([(sizes.groups, group)])), "packed": Ref(out),
        "along_n": column, "along_k": step, "rows": 0 if even else b.table(rows)})
    return out


def _arranged(w: np.ndarray, sizes: _Sizes) -> np.ndarray:
    """Join groups of weights [groups, taps, channels, columns], and make one tap of each `merged` neighboring taps."""
    (groups, taps, channels, columns), joined, merged = w.shape, sizes.joined, sizes.merged
    w = w.reshape(groups // joined, joined, taps // merged, channels * merged, columns)
    if joined == 1:
        return w[:, 0]
    out = np.zeros((groups // joined, taps // merged, joined, channels * merged, joined, columns), w.dtype)
    for n in range(joined):
        out[:, :, n, :, n] = w[:, n]
    return out.reshape(len(w), taps // merged, joined * channels * merged, joined * columns)


def _s8_parts(w: np.ndarray) -> list[np.ndarray]:
    """Split `w`, weights minus zero points, into s8 arrays whose sum is `w`: one array, or more if `w` exceeds s8."""
    if w.size == 0 or -128 <= w.min() and w.max() <= 127:
        return [w.astype(np.int8, copy=False)]
    parts = [np.clip(w, -128, 127).astype(np.int8)]
    while (rest := w - sum(p.astype(np.int32) for p in parts)).any():
        parts.append(np.clip(rest, -128, 127).astype(np.int8))
    return parts


def _packed(parts: Sequence[np.ndarray], rows: int, channels: int, w_dtype: str | None) -> np.ndarray:
    """Pack arrays [groups, taps, k, columns] one after another, with each tap padded to `rows` rows.

    Sorted weights have `channels` channels per tap.
    """
    w = np.concatenate(parts, axis=1) if len(parts) > 1 else parts[0]
    groups, taps, _, columns = w.shape
    if w_dtype == pack.SORTED:
        return pack.pack_sorted(padded(w, (groups, taps, rows, columns)), channels)
    by_column = padded(w.transpose(0, 3, 1, 2), (groups, columns, taps, rows))
    return pack.pack(by_column.reshape(groups, columns, taps * rows).swapaxes(1, 2), w_dtype == pack.PAIRED)


def quantized(g: PatternBuilder) -> PatternLike:
    """The pattern convolution(dequantize(x), dequantize(w), bias?), and the same for conv_transpose."""
    return dequantized_operands(g, *CONVOLUTIONS)


def macs(node: Node) -> int:
    """Count the multiply-accumulates: the elements of the result times the weights of one output channel.

    For a transposed convolution: the elements of the input times the weights of one input channel. conv_integer always
    has weights OIX.
    """
    source, weights, *_ = node.operands
    dims, transposed = weights.type.dims, node.op.name == "conv_transpose"
    axis = weight_axes(node.attrs.get("weights_format", "OIX"), len(dims) - 2)[int(transposed)]
    return (source if transposed else node.output).type.size * prod(dims) // max(1, dims[axis])


CONVOLUTION = Family(
    "convolution", CONVOLUTIONS, lower_convolution, convolution_steps, quantized,
    any_operands(*CONVOLUTIONS), channels_last=CONVOLUTIONS,
    macs=dict.fromkeys((*CONVOLUTIONS, "conv_integer"), macs))

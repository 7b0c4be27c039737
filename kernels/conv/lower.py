"""Lower convolutions of integers and floats, and define their NumPy formulas.

A convolution of a channels-last image is a matmul whose rows are windows of the image (docs/numbers.md):

    acc[p, o] = sum over taps t and channels c of (x[p, t, c] - zx) * (w[t, c, o] - zw[o])     exact, s32

zx and zw are zero points. x[p, t] are the channels of the pixel that output p reads at tap t; pixels of the padding are
zx. Transposed convolutions differ only in their windows. Each group of a grouped convolution is a matmul. The epilogue
is the same as for a matmul.

For floats, acc is an f32 sum over the taps of the output's `Phase`: all taps, except in transposed convolutions. The
order is `float_sums` for depthwise convolutions and `tile_sums` for others (`numbers/float_sums.py`). Each tap, or a
line of taps read as one long tap, is padded with zeros to a multiple of 4 bytes. Pixels of the padding are 0.0.
"""
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from math import prod
from typing import Any, ClassVar

import numpy as np

from graphq.ir import Graph, Node, Value
from graphq.kernels.conv import filter as filters
from graphq.kernels.conv.filter import Filter, Phase, along_lines
from graphq.kernels.depthwise import packing
from graphq.kernels.family import lower as family
from graphq.kernels.family.epilogue import EpilogueBuilder, OperandSource
from graphq.kernels.family.lower import Arrays, Lowered, QuantParameter, StatedSum, result_dims
from graphq.kernels.family.unsupported import Axes, Unsupported
from graphq.kernels.lanes.expression import STORAGE, Expr, acc, op
from graphq.kernels.matmul.lower import ProductLowering, multiplied, quantized_operands, refuse_overflow
from graphq.kernels.numbers.float_sums import float_sums, tile_sums
from graphq.kernels.numbers.sum_orders import DequantizedSum, Order, matmul_order
from graphq.kernels.operands.windows import MOST_TAPS, Windows, windows
from graphq.kernels.target.products import shift

CONVOLUTIONS = ("convolution", "conv_transpose")
MERGED_BYTES = 16
"""If a pixel has fewer bytes than this, kernels read a line of taps as one long tap."""
CHUNK = 2**22
"""The most window elements in one matrix product of the formula. As f64 they take 32 MB."""


@dataclass(frozen=True, eq=False)
class Convolution(ProductLowering):
    """A convolution: windows of the activations, times weights that are a `filter`."""

    integer: ClassVar[bool]
    images: int
    windows: Windows
    filter: Filter
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: tuple[tuple[int, int], ...]

    @property
    def depthwise(self) -> bool:
        """Whether the depthwise kernel computes this convolution."""
        outputs = (self.filter.outputs,) if self.integer else ()
        return packing.fits(self.windows.taps, self.filter.multiplier, *outputs)

    @property
    def reads_lines(self) -> bool:
        """Whether kernels read a line of taps as one long tap.

        This is faster for few channels, as in an image model's first layer, because one tap does not fill a vector.
        """
        f, few = self.filter, self.windows.pixel_bytes < MERGED_BYTES
        return few and not f.transposed and f.groups == 1 and f.taps[-1] > 1 and self.dilations[-1] == 1

    @property
    def padding(self) -> np.ndarray:
        """The number that padding pixels hold: the activations' zero point, or 0 for floats."""
        return np.asarray(0)

    def phases(self, view: Windows) -> Iterator[Phase]:
        """Split `view` into phases. `view` is `windows`, or other windows that give the same sums.

        Each output of the depthwise kernel of floats reads all taps.
        """
        if self.filter.transposed and (self.integer or not self.depthwise):
            return filters.transposed_phases(view, self.strides, self.dilations, self.pads)
        return iter((filters.whole(view),))

    def matrix(self, w: np.ndarray) -> np.ndarray:
        """The weights minus their zero points, as [groups, taps, channels, columns]."""
        return self.filter.matrix(w)

    def accumulate(self, inputs: Sequence[np.ndarray]) -> np.ndarray:
        """The accumulators, s32 or f32 [images, spatial..., output channels]."""
        x, w = inputs[self.a], self.matrix(inputs[self.b])
        groups, _, channels, columns = w.shape
        x = x.reshape(self.images, prod(x.shape[1:-1]), groups * channels)
        out = np.zeros((self.images, *self.windows.outputs, groups, columns), np.int32 if self.integer else np.float32)
        for phase in self.phases(self.windows):
            pixels, taps, factors = phase.windows.pixels, len(phase.taps), w[:, phase.taps]
            part = np.zeros((self.images, pixels, groups, columns), out.dtype)
            step = max(1, CHUNK // max(1, taps * groups * channels))
            for image, first in product(range(self.images), range(0, pixels if taps else 0, step)):
                rows = phase.windows.gather(x[image:image + 1], self.padding, slice(first, first + step))
                rows = rows.reshape(rows.shape[1], taps, groups, channels).transpose(2, 0, 1, 3)
                part[image, first:first + step] = self.sums(rows, factors).transpose(1, 0, 2)
            out[(slice(None), *phase.outputs)] = part.reshape(self.images, *phase.counts, groups, columns)
        return out.reshape(self.images, *self.windows.outputs, groups * columns)

    def sums(self, rows: np.ndarray, w: np.ndarray) -> np.ndarray:
        """Multiply windows [groups, pixels, taps, channels] by a `matrix`, into sums [groups, pixels, columns]."""
        raise NotImplementedError


@dataclass(frozen=True, eq=False)
class IntegerConvolution(Convolution):
    """A convolution of u8 or s8. The zero points of weights, `b_zp`, are one number, or one per output channel.

    The zero point of activations, `a_zp`, is one number; in the depthwise kernel it can be one per output channel.
    """

    integer: ClassVar[bool] = True
    a_zp: QuantParameter
    b_zp: np.ndarray

    @property
    def shifted_zp(self) -> QuantParameter:
        """The activations' zero point, shifted like activations in the kernel; depthwise kernels do not shift."""
        return self.a_zp.shifted(0 if self.depthwise else shift(self.a_dtype))

    @property
    def padding(self) -> np.ndarray:
        """The activations' zero point: one number, or one per input channel. 0 if it is known only at run time."""
        data = self.a_zp.data
        return np.asarray(0) if data is None else data[::self.filter.columns] if data.ndim else data

    def matrix(self, w: np.ndarray) -> np.ndarray:
        """w - zw as s32 [groups, taps, channels, columns]. If w is s8 and zw is 0, the result stays s8."""
        w = self.filter.matrix(w)
        if w.dtype == np.int8 and not self.b_zp.any():
            return w
        return w.astype(np.int32) - (self.b_zp if self.b_zp.size == 1 else self.b_zp.reshape(len(w), 1, 1, -1))

    def compensation(self, w: np.ndarray) -> np.ndarray:
        """The correction for the activations' zero point zx, s32 per output channel: -zx * colsum(w) modulo 2**32."""
        assert self.shifted_zp.data is not None
        return family.wrapped(-self.shifted_zp.data * w.sum(axis=(1, 2), dtype=np.int64).ravel())

    def accumulate(self, inputs: Sequence[np.ndarray]) -> np.ndarray:
        """The accumulators, s32. If the activations' zero point is a tensor of the graph, it is read from `inputs`."""
        a_zp = family.known(self.a_zp.array(inputs), self.a_zp.shape)
        return Convolution.accumulate(replace(self, a_zp=a_zp), inputs)

    def sums_as_written(self, inputs: Sequence[np.ndarray], indices: np.ndarray, how: DequantizedSum) -> np.ndarray:
        """The f32 sums of the outputs at flat `indices`, added in the graph's order (docs/numbers.md)."""
        x, w = inputs[self.a], self.filter.matrix(inputs[self.b])
        groups, _, channels, columns = w.shape
        x = x.reshape(self.images, prod(x.shape[1:-1]), groups * channels)
        x = np.concatenate([x, np.full((self.images, 1, x.shape[2]), self.padding, x.dtype)], axis=1)
        out = np.zeros(len(indices), np.float32)
        image, *pixel, column = np.unravel_index(indices, (self.images, *self.windows.outputs, groups * columns))
        for phase in self.phases(self.windows):
            inside = [p % s == o for p, s, o in zip(pixel, phase.step, phase.origin, strict=True)]
            members = np.flatnonzero(np.logical_and.reduce(inside))
            local = np.ravel_multi_index([p[members] // s for p, s in zip(pixel, phase.step, strict=True)],
                                         phase.counts)
            offsets, k = phase.windows.offsets(), len(phase.taps) * channels
            at = np.where(offsets < 0, x.shape[1] - 1, offsets // max(1, phase.windows.pixel_bytes))
            step = max(1, CHUNK // max(1, k))
            for first in range(0, len(members) if k else 0, step):
                some = members[first:first + step]
                group, own = np.divmod(column[some], columns)
                channel = group[:, None] * channels + np.arange(channels)
                rows = x[image[some][:, None, None], at[local[first:first + step]][:, :, None], channel[:, None]]
                factors = w[group[:, None], phase.taps, :, own[:, None]]
                if how.order != "taps":
                    rows, factors = rows.swapaxes(1, 2), factors.swapaxes(1, 2)
                out[some] = how._replace(taps=len(phase.taps)).sums(
                    rows.reshape(len(some), k), factors.reshape(len(some), k), column[some])
        return out

    def sums(self, rows: np.ndarray, w: np.ndarray) -> np.ndarray:
        """Compute the sums in f64. They are exact because they are below 2**31."""
        groups, pixels, taps, channels = rows.shape
        x = rows.reshape(groups, pixels, taps * channels).astype(np.float64) - self.padding.reshape(-1, 1, 1)
        return (x @ w.reshape(groups, taps * channels, w.shape[-1]).astype(np.float64)).astype(np.int32)


@dataclass(frozen=True, eq=False)
class FloatConvolution(Convolution):
    """A convolution of f32, bf16 or f16."""

    integer: ClassVar[bool] = False

    def sums(self, rows: np.ndarray, w: np.ndarray) -> np.ndarray:
        """The f32 sums in the order of the kernels. The channels of each tap are padded to a multiple of 4 bytes."""
        groups, pixels, taps, channels = rows.shape
        if self.reads_lines:
            line = self.windows.kernel[-1]
            taps, channels = taps // line, channels * line
            rows, w = rows.reshape(groups, pixels, taps, channels), w.reshape(groups, taps, channels, w.shape[-1])
        more = 0 if self.depthwise else -channels % (4 // rows.dtype.itemsize)
        rows, w = np.pad(rows, [(0, 0)] * 3 + [(0, more)]), np.pad(w, [(0, 0)] * 2 + [(0, more), (0, 0)])
        k = taps * (channels + more)
        sums = float_sums if self.depthwise else tile_sums
        return sums(rows.reshape(groups, pixels, k), w.reshape(groups, k, w.shape[-1]))


@dataclass(frozen=True, eq=False)
class LineConvolution(FloatConvolution):
    """A depthwise convolution along the lines of channels-first tensors (`filter.along_lines`)."""

    def accumulate(self, inputs: Sequence[np.ndarray]) -> np.ndarray:
        """The accumulators, f32 [images, output channels, outputs of a line]."""
        moved = [x.swapaxes(1, 2) if k == self.a else x for k, x in enumerate(inputs)]
        return super().accumulate(moved).swapaxes(1, 2)


def lower_convolution(body: Graph, constants: Arrays) -> Lowered:
    """Lower a body of a convolution; both operands or neither may be dequantized. Raises Unsupported.

    Integer kernels ignore the activations' zero point in sums, so the outputs' expression begins with a correction.
    """
    out = result_dims(body)
    e = EpilogueBuilder(out, anchored=True)
    node = next(n for n in body.nodes if n.op.name in CONVOLUTIONS)
    if node.output.type.dims != out:
        how = "quantize before the operation that changes the shape"
        raise Unsupported("the epilogue changes the shape of {a} to {b}", how, a=node.output, b=body.outputs[0])
    lines = along_lines(node)
    if node.attrs["data_format"] != "NXC" and not lines:
        raise Unsupported("the convolution is channels-first (NCX), kernels are channels-last (NXC)")
    source, weights, *_ = node.operands
    producers = [v.node for v in (source, weights) if v.node is not None]
    if not producers:
        floats = (LineConvolution if lines else FloatConvolution)(**_geometry(body, node, source, weights))
        return family.lower_anchored(e, body, node, acc("f32"), producers, floats, acc("f32"))
    c, scales = _quantized(body, node, constants)
    accumulated = _compensated(e, c, constants[c.b])
    total = family.scaled(e, op("to_f32", accumulated), *scales)
    stated = _stated_sum(node, total, c, scales, constants[c.b])
    return family.lower_anchored(e, body, node, total, producers, c, accumulated, stated)


def _stated_sum(node: Node, total: Expr, c: IntegerConvolution, scales: tuple[QuantParameter, QuantParameter],
              data: np.ndarray | None) -> StatedSum | None:
    """Describe the f32 sum that the graph states. Transposed convolutions add products tap by tap."""
    taps, k = c.windows.taps, c.windows.taps * c.filter.channels
    if taps > MOST_TAPS or scales[0].shape:
        return None
    order: Order
    order, block = ("taps", 128) if c.filter.transposed else matmul_order(c.filter.columns, c.windows.pixels, k)

    def weights() -> np.ndarray:
        assert data is not None
        return c.matrix(data).transpose((0, 3, 1, 2) if order == "taps" else (0, 3, 2, 1)).reshape(c.filter.outputs, k)

    b_zp = family.known(c.b_zp, c.b_zp.shape)
    return family.stated_sum(
        node, total, k, *scales, c.a_zp, b_zp, order, block, c.a_dtype,
        family.reach(c.b_dtype, b_zp) if data is None else weights, packed_zps=False, taps=taps)


def _geometry(body: Graph, node: Node, a: Value, b: Value) -> dict[str, Any]:
    channel, spatial = (-1, slice(1, -1)) if node.attrs["data_format"] == "NXC" else (1, slice(2, None))
    sizes, outputs = (v.type.dims[spatial] for v in (a, node.output))
    filter = filters.filter_of(node, b.type.dims)
    pads, strides, dilations = filters.pads_of(node, sizes, filter), node.attrs["strides"], node.attrs["dilations"]
    pixel, most = a.type.dims[channel] * STORAGE[a.dtype.name].itemsize, filters.MOST_PHASES
    if filter.transposed and (phases := filters.count_phases(strides, outputs)) > most:
        raise Unsupported(f"strides of {list(strides)} make {phases} phases, kernels take at most {most}",
                          "take smaller strides")
    view = windows(sizes, filter.taps, strides, dilations, pads, outputs, pixel, transposed=filter.transposed)
    return dict(**multiplied(body, a, b), images=a.type.dims[0], windows=view, filter=filter, strides=strides,
                dilations=dilations, pads=pads)


def _quantized(body: Graph, node: Node,
               constants: Arrays) -> tuple[IntegerConvolution, tuple[QuantParameter, QuantParameter]]:
    left, right = quantized_operands(node, groups=node.op.name == "conv_transpose")
    a, b = (next(n.operands) for n in (left, right))
    filter = filters.filter_of(node, b.type.dims)
    a_scale, a_zp = _of_source(left, filter, body, constants)
    b_scale, b_zp = _of_weights(right, filter, body, constants)
    if b_zp.data is None:
        raise Unsupported("the zero points of the weights are not constant",
                          "make the zero points constants, or leave them out", 1)
    c = IntegerConvolution(**_geometry(body, node, a, b), a_zp=a_zp, b_zp=np.atleast_1d(b_zp.data).astype(np.int32))
    if a_scale.shape and not c.depthwise:
        raise Unsupported(_INSIDE, PER_TENSOR, 0, own=Axes(a, (left.attrs["axis"],)))
    weights = constants[c.b]
    if weights is None and (c.b_zp.any() or c.b_dtype == "u8") and not c.depthwise:
        raise Unsupported("the weights are u8 or have zero points, and are not constant",
                          "make the weights a constant, or quantize them to s8 without zero points", 1)
    refuse_overflow(c.windows.taps * c.filter.channels, family.reach(c.a_dtype, a_zp), family.reach(c.b_dtype, b_zp),
                    None if weights is None else partial(c.matrix, weights), (1, 2))
    return c, (a_scale, b_scale)


_INSIDE = "the input is quantized per channel along {own}: its scale would vary inside the sum"
PER_TENSOR = "quantize the input per tensor"


def _of_source(left: Node, filter: Filter, body: Graph, constants: Arrays) -> tuple[QuantParameter, QuantParameter]:
    """The scale and the zero point of the activations: single numbers, or one per output channel.

    Raises Unsupported for per-channel scales if an output channel reads several input channels.
    """
    if left.attrs["qtype"] == "per_tensor":
        return family.parameters_of(left, body, constants)
    k, rank = left.attrs["axis"], len(filter.dims)
    if left.op.name != "dequantize" or not filter.multiplier or k % rank != rank - 1:
        raise Unsupported(_INSIDE, PER_TENSOR, 0, own=Axes(next(left.operands), (k,)))
    scales = left.attrs["scales"]
    scale, zp = (np.repeat(x, filter.columns) for x in (scales, left.attrs["zps"] or [0] * len(scales)))
    return family.known(scale, scale.shape, "f32"), family.known(zp, zp.shape)


def _of_weights(right: Node, filter: Filter, body: Graph, constants: Arrays) -> tuple[QuantParameter, QuantParameter]:
    """The scale and the zero point of the weights: single numbers, or one per output channel.

    In a transposed convolution, weights quantized along the output channels of a group have the same scales in all
    groups. If a group reads one input channel, its weights may also be quantized along the input channels, or per
    group. Raises Unsupported for any other axis.
    """
    if right.attrs["qtype"] == "per_group":
        return _of_groups(right, filter, body, constants)
    k = right.attrs["axis"] % len(filter.dims) if right.attrs["qtype"] == "per_channel" else None
    counts = () if k is None else (filter.dims[k],)
    numbers = family.parameters_of(right, body, constants, counts)
    if k is None or k == filter.axes[0] and not filter.transposed:
        return numbers
    if k == filter.axes[0]:
        scale, zp = (_spread(n, filter, lambda x: np.tile(x, filter.groups)) for n in numbers)
    elif k == filter.axes[1] and filter.transposed and filter.multiplier:
        scale, zp = (_spread(n, filter, lambda x: np.repeat(x, filter.columns)) for n in numbers)
    else:
        w = next(right.operands)
        raise Unsupported("the weights are quantized along {own}, not along the output channels",
                          "quantize the weights along the output channels, {outputs} of {weights}, or per tensor", 1,
                          own=Axes(w, (k,)), outputs=Axes(w, (filter.axes[0],)), weights=w)
    return scale, zp


def _of_groups(right: Node, filter: Filter, body: Graph, constants: Arrays) -> tuple[QuantParameter, QuantParameter]:
    """Scale and zero point of a transposed convolution's weights with qtype `per_group`. Raises Unsupported."""
    sizes = right.attrs["group_shape"]
    counts = tuple(d // size for d, size in zip(filter.dims, sizes, strict=True))
    blocks = tuple(counts[k] for k in filter.axes)
    if blocks != (filter.columns, filter.groups, *[1] * len(filter.taps)):
        raise Unsupported(f"the weights have scales of groups of {list(sizes)}, but the convolution has other groups",
                          "give the weights one scale, or one per output channel", 1)
    numbers = family.parameters_of(right, body, constants, counts)
    scale, zp = (_spread(n, filter, lambda x: x.transpose(filter.axes).reshape(blocks[:2]).T.ravel()) for n in numbers)
    return scale, zp


def _spread(numbers: QuantParameter, filter: Filter, by_channel: Callable[[np.ndarray], np.ndarray]) -> QuantParameter:
    """Repeat the weights' scales or zero points to one number per output channel. A single number stays single."""
    if not numbers.shape or numbers.shape == (filter.outputs,):
        return numbers
    if numbers.data is None:
        raise Unsupported(f"the weights have {prod(numbers.shape)} scales for {filter.outputs} output channels of "
                          f"{filter.groups} groups, and the scales are not constant", "make the scales constants", 1)
    return replace(numbers, data=by_channel(numbers.data), shape=(filter.outputs,))


def _compensated(e: EpilogueBuilder, c: IntegerConvolution, weights: np.ndarray | None) -> Expr:
    """Correct the kernel's sum R = sum a' * w' for the zero point of activations: R - zx * colsum(w'), modulo 2**32.

    a' is the activation as kernels read it (u8, or s8 + 128), zx is its zero point plus the same shift, and w' is w -
    zw.
    """
    zx = c.shifted_zp
    if zx.absent:
        return acc()
    shape = (e.out[-1],)
    if weights is not None and zx.data is not None:
        return acc() + e.slot(OperandSource("compensation", "s32", shape))
    return acc() - e.slot(OperandSource("column sums", "s32", shape)) * zx.expr(e)

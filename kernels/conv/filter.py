"""The weights of a convolution (`Filter`), and the phases of transposed convolutions (`Phase`).

A phase is a set of outputs that sum over the same taps. A transposed convolution with a stride of 2 along two axes has
four phases: even and odd coordinates along each axis. A convolution that is not transposed has one phase.
"""
from collections.abc import Iterator, Sequence
from itertools import product
from math import prod
from typing import NamedTuple

import numpy as np

from graphq.ir import Node
from graphq.kernels.operands.windows import Windows
from graphq.ops.conv import transposed_padding, weight_axes
from graphq.ops.quant import DEQUANTIZES
from graphq.ops.window import padding


class Filter(NamedTuple):
    """The weights of a convolution: dimensions, groups, and axes in the order O (output), I (input), spatial.

    In a convolution, O counts all output channels and I the input channels of one group. In a transposed convolution, O
    counts the output channels of one group and I all input channels.
    """

    dims: tuple[int, ...]
    axes: tuple[int, ...]
    groups: int
    transposed: bool

    @property
    def columns(self) -> int:
        """The number of output channels per group."""
        return self.dims[self.axes[0]] // (1 if self.transposed else self.groups)

    @property
    def channels(self) -> int:
        """The number of input channels per group."""
        return self.dims[self.axes[1]] // (self.groups if self.transposed else 1)

    @property
    def taps(self) -> tuple[int, ...]:
        """The size of the convolution's kernel along each spatial axis."""
        return tuple(self.dims[k] for k in self.axes[2:])

    @property
    def multiplier(self) -> int:
        """The number of output channels per input channel of a depthwise convolution; 0 for other convolutions."""
        return self.columns if self.groups > 1 and self.channels == 1 else 0

    @property
    def outputs(self) -> int:
        """The number of output channels of all groups."""
        return self.groups * self.columns

    def matrix(self, w: np.ndarray) -> np.ndarray:
        """Arrange weights as [groups, taps, channels, columns]: a view if possible, otherwise a copy."""
        w = w.reshape(self.dims).transpose(self.axes)
        o, i, *taps = w.shape
        split = (o, self.groups, i // self.groups) if self.transposed else (self.groups, o // self.groups, i)
        w = w.reshape(*split, int(np.prod(taps)))
        return w.transpose(1, 3, 2, 0) if self.transposed else w.transpose(0, 3, 2, 1)

    def strides(self, itemsize: int) -> list[int]:
        """The strides in bytes of `matrix(w)` for contiguous weights `w`."""
        return [itemsize * step for step in self.matrix(np.empty(self.dims, np.int8)).strides]


MOST_PHASES = 4096
"""The most phases of a convolution, because each phase is a step. Strides of 64 along two axes make this many."""
MOST_TAPS = 8
"""The most taps of `along_lines`, because each vector of outputs loads a vector for every tap."""


class Phase(NamedTuple):
    """Outputs that sum over the same taps: `origin + i * step` along each spatial axis, for i < `counts`.

    `taps` are the indices of these taps in the convolution's kernel. `windows` has the pixels that the outputs read.
    """

    windows: Windows
    taps: np.ndarray
    origin: tuple[int, ...]
    step: tuple[int, ...]

    @property
    def counts(self) -> tuple[int, ...]:
        """The number of outputs of the phase along each spatial axis."""
        return self.windows.outputs

    @property
    def outputs(self) -> tuple[slice, ...]:
        """The slice of the convolution's outputs along each spatial axis that belongs to the phase."""
        return tuple(slice(o, None, s) for o, s in zip(self.origin, self.step, strict=True))


def whole(view: Windows) -> Phase:
    """The single phase of a convolution that is not transposed: all outputs and all taps."""
    rank = len(view.outputs)
    return Phase(view, np.arange(view.taps), (0,) * rank, (1,) * rank)


def count_phases(strides: Sequence[int], outputs: Sequence[int]) -> int:
    """The number of phases that `transposed_phases` yields."""
    return prod(min(s, n) for s, n in zip(strides, outputs, strict=True))


def transposed_phases(view: Windows, strides: Sequence[int], dilations: Sequence[int],
                      pads: Sequence[tuple[int, int]]) -> Iterator[Phase]:
    """Yield the phases of a transposed convolution, one per remainder of the output coordinates modulo the strides."""
    numbers = np.arange(view.taps).reshape(view.kernel)
    for origin in product(*(range(min(s, n)) for s, n in zip(strides, view.outputs, strict=True))):
        # tap k of output o reads the input at (o + begin - k * dilation) / stride, if this is an integer
        taps = [np.flatnonzero((o + begin - np.arange(k) * d) % s == 0) for o, (begin, _), k, d, s
                in zip(origin, pads, view.kernel, dilations, strides, strict=True)]
        yield Phase(view.subset(origin, strides, taps), numbers[np.ix_(*taps)].ravel(), origin, tuple(strides))


def filter_of(node: Node, dims: tuple[int, ...]) -> Filter:
    """The filter of a convolution node whose weights have the dimensions `dims`."""
    axes = weight_axes(node.attrs["weights_format"], len(dims) - 2)
    return Filter(dims, axes, node.attrs["groups"], node.op.name == "conv_transpose")


def pads_of(node: Node, sizes: Sequence[int], filter: Filter) -> tuple[tuple[int, int], ...]:
    """The padding at both ends of each spatial axis. A transposed convolution removes this many outputs instead."""
    attrs = node.attrs
    lists = (sizes, filter.taps, attrs["dilations"], attrs["strides"], attrs["pads_begin"], attrs["pads_end"])
    return tuple(transposed_padding(attrs["auto_pad"], (k - 1) * d + 1, s, begin, end) if filter.transposed
                 else padding(attrs["auto_pad"], size, (k - 1) * d + 1, s, begin, end)
                 for size, k, d, s, begin, end in zip(*lists, strict=True))


def along_lines(node: Node) -> bool:
    """Whether kernels compute a channels-first node as it is: a depthwise convolution of floats along lines.

    A line of outputs is a sum of lines of the input. Each tap moves the line and multiplies it by one number.
    """
    if node.op.name != "convolution" or node.attrs["data_format"] != "NCX":
        return False
    (source, weights, *_), a = node.operands, node.attrs
    if not weights.type.known or any(v.node is not None and v.node.op.name in DEQUANTIZES for v in (source, weights)):
        return False
    filter = filter_of(node, weights.type.dims)
    return len(filter.taps) == 1 and filter.multiplier == 1 and filter.taps[0] <= MOST_TAPS \
        and a["strides"] == (1,) and a["pads_end"][0] >= 0

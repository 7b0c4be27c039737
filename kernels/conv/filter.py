"""Filter, the shape and axes of a convolution's weights; phases of transposed convolutions.

A transposed convolution with a stride of 2 along two axes has four phases: the pixels with even and odd coordinates
along each axis. Each phase is a convolution with some of the taps. A convolution that is not transposed has one phase.
"""
from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from math import prod
from typing import NamedTuple

import numpy as np

from graphq.ir import Node
from graphq.kernels.operands.windows import Windows
from graphq.ops.conv import transposed_padding, weight_axes
from graphq.ops.window import padding

MERGED_BYTES = 16
"""If a pixel has fewer bytes than this, all taps along a line of the kernel are read at once."""


class Filter(NamedTuple):
    """The weights of a convolution: their shape, their groups, and the axes O (output), I (input) and spatial.

    For a convolution, axis O has all output channels, and axis I the input channels of a group. For a transposed
    convolution, axis O has the output channels of a group, and axis I all input channels.
    """

    dims: tuple[int, ...]
    axes: tuple[int, ...]
    groups: int
    transposed: bool

    @property
    def columns(self) -> int:
        """The number of output channels of a group."""
        return self.dims[self.axes[0]] // (1 if self.transposed else self.groups)

    @property
    def channels(self) -> int:
        """The number of input channels of a group."""
        return self.dims[self.axes[1]] // (self.groups if self.transposed else 1)

    @property
    def taps(self) -> tuple[int, ...]:
        """The size of the convolution's kernel along each spatial axis."""
        return tuple(self.dims[k] for k in self.axes[2:])

    @property
    def multiplier(self) -> int:
        """Output channels per input channel of a depthwise convolution (one input channel per group); otherwise 0."""
        return self.columns if self.groups > 1 and self.channels == 1 else 0

    @property
    def outputs(self) -> int:
        """The number of output channels of all groups."""
        return self.groups * self.columns

    def reads_lines(self, pixel_bytes: int) -> bool:
        """Whether the taps along a line of the kernel are read as one long tap.

        This is best for few channels, as in the first layer of an image model: a single tap would not fill a vector.
        """
        return not self.transposed and self.groups == 1 and self.taps[-1] > 1 and pixel_bytes < MERGED_BYTES

    def matrix(self, w: np.ndarray) -> np.ndarray:
        """The weights as [groups, taps, channels, columns], a view or a copy."""
        w = w.reshape(self.dims).transpose(self.axes)
        o, i, *taps = w.shape
        split = (o, self.groups, i // self.groups) if self.transposed else (self.groups, o // self.groups, i)
        w = w.reshape(*split, int(np.prod(taps)))
        return w.transpose(1, 3, 2, 0) if self.transposed else w.transpose(0, 3, 2, 1)

    def strides(self, itemsize: int) -> list[int]:
        """The bytes between elements of a `matrix` of dense weights, along each of its axes."""
        return [itemsize * step for step in self.matrix(np.empty(self.dims, np.int8)).strides]


MOST_PHASES = 4096
"""The most phases of a convolution, since each phase needs its own steps; strides of 64 along two axes have as many."""


class Phase(NamedTuple):
    """A part of a convolution's outputs: outputs `origin + i * step` along each spatial axis, for i < `counts`.

    All of these outputs sum over the same taps. `taps` has the indices of these taps among all taps of the
    convolution's kernel. `windows` says where they read the image.
    """

    windows: Windows
    taps: np.ndarray
    origin: tuple[int, ...]
    step: tuple[int, ...]

    @property
    def counts(self) -> tuple[int, ...]:
        """The number of outputs along each spatial axis."""
        return self.windows.outputs

    @property
    def outputs(self) -> tuple[slice, ...]:
        """The slice of the outputs along each spatial axis that the phase computes."""
        return tuple(slice(o, None, s) for o, s in zip(self.origin, self.step, strict=True))


def whole(view: Windows) -> Phase:
    """The single phase of a convolution that is not transposed: all outputs and taps."""
    rank = len(view.outputs)
    return Phase(view, np.arange(view.taps), (0,) * rank, (1,) * rank)


def count_phases(strides: Sequence[int], outputs: Sequence[int]) -> int:
    """The number of phases in `transposed_phases`."""
    return prod(min(s, n) for s, n in zip(strides, outputs, strict=True))


def transposed_phases(view: Windows, strides: Sequence[int], dilations: Sequence[int],
                      pads: Sequence[tuple[int, int]]) -> Iterator[Phase]:
    """The phases of a transposed convolution: one for each remainder of the output coordinates modulo the strides."""
    numbers = np.arange(view.taps).reshape(view.kernel)
    for origin in product(*(range(min(s, n)) for s, n in zip(strides, view.outputs, strict=True))):
        # output o reads, with tap k, the input (o + begin - k * dilation) / stride, if this is a whole number
        taps = [np.flatnonzero((o + begin - np.arange(k) * d) % s == 0) for o, (begin, _), k, d, s
                in zip(origin, pads, view.kernel, dilations, strides, strict=True)]
        yield Phase(view.subset(origin, strides, taps), numbers[np.ix_(*taps)].ravel(), origin, tuple(strides))


def filter_of(node: Node, dims: tuple[int, ...]) -> Filter:
    """The filter of a convolution whose weights have these dimensions."""
    axes = weight_axes(node.attrs["weights_format"], len(dims) - 2)
    return Filter(dims, axes, node.attrs["groups"], node.op.name == "conv_transpose")


def pads_of(node: Node, dims: tuple[int, ...], filter: Filter) -> tuple[tuple[int, int], ...]:
    """The padding of each spatial axis; for transposed convolutions, how much is cut off at the output's ends."""
    attrs = node.attrs
    lists = (dims[1:-1], filter.taps, attrs["dilations"], attrs["strides"], attrs["pads_begin"], attrs["pads_end"])
    return tuple(transposed_padding(attrs["auto_pad"], (k - 1) * d + 1, s, begin, end) if filter.transposed
                 else padding(attrs["auto_pad"], size, (k - 1) * d + 1, s, begin, end)
                 for size, k, d, s, begin, end in zip(*lists, strict=True))

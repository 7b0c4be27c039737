"""Phases of a transposed convolution: a phase is the set of outputs that read the same taps.

A transposed convolution with a stride of 2 along two axes has four phases: the pixels with even and odd coordinates
along each axis. Each phase is a convolution of its own, with some of the taps. A convolution that is not transposed has
one phase.
"""
from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from math import prod
from typing import NamedTuple

import numpy as np

from graphq.kernels.operands.windows import Windows

MOST_PHASES = 4096
"""The largest number of phases, since each needs its own steps. Strides of 64 along two axes give as many."""


class Phase(NamedTuple):
    """A part of a convolution's outputs: those at `origin + i * step` along each spatial axis, for i < `counts`.

    All of these outputs sum over the same taps. `taps` has the numbers of these taps among all taps of the
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
    """The number of phases that `transposed_phases` gives."""
    return prod(min(s, n) for s, n in zip(strides, outputs, strict=True))


def transposed_phases(view: Windows, strides: Sequence[int], dilations: Sequence[int],
                      pads: Sequence[tuple[int, int]]) -> Iterator[Phase]:
    """The phases of a transposed convolution: one for each remainder of the output coordinates modulo the strides."""
    numbers = np.arange(view.taps).reshape(view.kernel)
    for origin in product(*(range(min(s, n)) for s, n in zip(strides, view.outputs, strict=True))):
        # output o reads by tap k the input (o + begin - k * dilation) / stride, if this is a whole number
        taps = [np.flatnonzero((o + begin - np.arange(k) * d) % s == 0) for o, (begin, _), k, d, s
                in zip(origin, pads, view.kernel, dilations, strides, strict=True)]
        yield Phase(view.subset(origin, strides, taps), numbers[np.ix_(*taps)].ravel(), origin, tuple(strides))

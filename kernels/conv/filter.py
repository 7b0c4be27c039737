"""Filter: how the weights of a convolution lie."""
from __future__ import annotations

from typing import NamedTuple

import numpy as np

MERGED_BYTES = 16
"""Below this size of a pixel in bytes, all taps along a line of the kernel are read at once."""


class Filter(NamedTuple):
    """How weights lie: their shape, the axes of O, I and the spatial ones, groups, and whether I counts all groups.

    The weights of a convolution are O = output channels, I = channels of a group; those of a transposed one are
    O = output channels of a group, I = channels.
    """

    dims: tuple[int, ...]
    axes: tuple[int, ...]
    groups: int
    transposed: bool

    @property
    def columns(self) -> int:
        """The number of output channels in a group."""
        return self.dims[self.axes[0]] // (1 if self.transposed else self.groups)

    @property
    def channels(self) -> int:
        """The number of input channels in a group."""
        return self.dims[self.axes[1]] // (self.groups if self.transposed else 1)

    @property
    def taps(self) -> tuple[int, ...]:
        """The kernel's size along every spatial axis."""
        return tuple(self.dims[k] for k in self.axes[2:])

    @property
    def multiplier(self) -> int:
        """Output channels for each input channel if every output channel reads a single input channel, else 0."""
        return self.columns if self.groups > 1 and self.channels == 1 else 0

    @property
    def outputs(self) -> int:
        """The number of output channels."""
        return self.groups * self.columns

    def reads_lines(self, pixel_bytes: int) -> bool:
        """Whether taps that lie side by side in a line are to be read as one long tap.

        This is for images of few channels, such as the first layer's, where the channels of one tap would not fill a
        vector.
        """
        return not self.transposed and self.groups == 1 and self.taps[-1] > 1 and pixel_bytes < MERGED_BYTES

    def matrix(self, w: np.ndarray) -> np.ndarray:
        """A view or copy of weights as [groups, taps, channels, columns]."""
        w = w.reshape(self.dims).transpose(self.axes)
        o, i, *taps = w.shape
        split = (o, self.groups, i // self.groups) if self.transposed else (self.groups, o // self.groups, i)
        w = w.reshape(*split, int(np.prod(taps)))
        return w.transpose(1, 3, 2, 0) if self.transposed else w.transpose(0, 3, 2, 1)

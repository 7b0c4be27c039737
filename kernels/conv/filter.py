"""Filter: the shape and the axes of the weights of a convolution."""
from __future__ import annotations

from typing import NamedTuple

import numpy as np

MERGED_BYTES = 16
"""If a pixel has fewer bytes than this, all taps along a line of the kernel are read at once."""


class Filter(NamedTuple):
    """The weights of a convolution: their shape, which axes are O (output), I (input) and spatial, and their groups.

    For a convolution, the size of axis O is the number of output channels, and that of axis I the number of channels of
    a group. For a transposed convolution, the size of axis O is the number of output channels of a group, and that of
    axis I the number of all input channels.
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
        """Output channels per input channel of a depthwise convolution (one input channel a group); 0 for any other."""
        return self.columns if self.groups > 1 and self.channels == 1 else 0

    @property
    def outputs(self) -> int:
        """The number of output channels of all groups."""
        return self.groups * self.columns

    def reads_lines(self, pixel_bytes: int) -> bool:
        """Whether the taps along a line of the kernel are read as one long tap, as is best for few channels.

        With few channels, as in the first layer of an image model, the channels of a single tap do not fill a vector.
        """
        return not self.transposed and self.groups == 1 and self.taps[-1] > 1 and pixel_bytes < MERGED_BYTES

    def matrix(self, w: np.ndarray) -> np.ndarray:
        """The weights as [groups, taps, channels, columns], a view or a copy."""
        w = w.reshape(self.dims).transpose(self.axes)
        o, i, *taps = w.shape
        split = (o, self.groups, i // self.groups) if self.transposed else (self.groups, o // self.groups, i)
        w = w.reshape(*split, int(np.prod(taps)))
        return w.transpose(1, 3, 2, 0) if self.transposed else w.transpose(0, 3, 2, 1)

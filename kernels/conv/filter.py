"""Filter: the shape and the axes of the weights of a convolution."""
from __future__ import annotations

from typing import NamedTuple

import numpy as np

MERGED_BYTES = 16
"""If a pixel has fewer bytes than this, all taps along a line of the kernel are read at once."""


class Filter(NamedTuple):
    """How weights lie: their shape, the axes O, I and the spatial ones, groups, and whether I counts all groups.

    For a convolution, O is the number of output channels, and I the number of channels of a group. For a transposed
    one, O is the number of output channels of a group, and I the number of channels.
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
        """The size of the kernel along every spatial axis."""
        return tuple(self.dims[k] for k in self.axes[2:])

    @property
    def multiplier(self) -> int:
        """Output channels for each input channel if every output channel reads a single input channel, otherwise 0."""
        return self.columns if self.groups > 1 and self.channels == 1 else 0

    @property
    def outputs(self) -> int:
        """The number of output channels."""
        return self.groups * self.columns

    def reads_lines(self, pixel_bytes: int) -> bool:
        """Whether taps that lie side by side in a line are to be read as one long tap, as is best for few channels.

        The channels of one tap would not fill a vector then, for example in the first layer of an image model.
        """
        return not self.transposed and self.groups == 1 and self.taps[-1] > 1 and pixel_bytes < MERGED_BYTES

    def matrix(self, w: np.ndarray) -> np.ndarray:
        """The weights as [groups, taps, channels, columns], a view or a copy."""
        w = w.reshape(self.dims).transpose(self.axes)
        o, i, *taps = w.shape
        split = (o, self.groups, i // self.groups) if self.transposed else (self.groups, o // self.groups, i)
        w = w.reshape(*split, int(np.prod(taps)))
        return w.transpose(1, 3, 2, 0) if self.transposed else w.transpose(0, 3, 2, 1)

"""The packed weights of depthwise convolutions of u8 and s8, where each output channel reads one input channel.

    R[i, c] = sum over taps t of x[window(i, t), c // m] * w[t, c]   exact, s32
    out[i, c] = epilogue(R[i, c], operands)

m is the number of output channels per input channel. A vector of output channels c loads its input channels c // m once
and repeats each of them m times. Taps outside of the image read a row of padding.

There are two layouts. In *pairs*, two taps share a 32-bit lane. Weights are stored as s16; their values are s8, or u8
minus a zero point. In *quads*, four taps of a column of the window share a lane. Quads need constant weights that fit
into s8, and a level with a dot product of four bytes. Weights are packed in the order of the kernel's loads:

    column sums   s32 [channels padded to 16]
    chunks        s16 [chunk][pair of taps][half][lane][2], or s8 [chunk][four taps][quarter][lane][4]

A chunk is two vectors of channels (pairs) or four (quads). The last chunk can overlap the chunk before it. If there are
fewer channels than in one chunk, loads leave out the others.
"""
from math import prod
from typing import NamedTuple

import numpy as np

from graphq.base.sizes import is_open
from graphq.kernels.jit import lasting_empty
from graphq.kernels.operands.windows import MOST_TAPS, Windows
from graphq.kernels.pixels.blocks import CHANNELS
from graphq.kernels.target.level import Level

MULTIPLIERS = (1, 2, 4, 8)
"""The supported channel multipliers. Each divides the number of channels of a chunk and of a vector."""
PAIR, QUAD = 2, 4
MOST_QUAD_TAPS = 64
"""The most taps of a window in quads, whose code is unrolled over taps.

With 7 x 7 taps, quads take 0.4 of the time of a loop over pairs (Zen 5).
"""


class Layout(NamedTuple):
    """The layout of packed weights with ko x ki taps, for vectors of `lanes` s32.

    If `pixels` is 0, taps are packed in pairs. Otherwise they are packed in quads, and a tile computes `pixels` output
    pixels of a line, whose windows are `stride` pixels apart.
    """

    lanes: int
    ko: int
    ki: int
    pixels: int = 0
    stride: int = 1
    dilation: int = 1

    @property
    def group(self) -> int:
        """The number of taps that share a 32-bit lane: 2 or 4."""
        return QUAD if self.pixels else PAIR

    @property
    def size(self) -> int:
        """The number of channels of a chunk."""
        return self.group * self.lanes

    @property
    def item(self) -> int:
        """Bytes per packed weight."""
        return 4 // self.group

    @property
    def order(self) -> np.ndarray:
        """The channel in each [vector, lane], as an index into the chunk. Pairs interleave bytes within 128 bits."""
        if self.pixels:
            return np.arange(self.size).reshape(-1, self.lanes)
        lane = np.arange(self.lanes)
        return np.stack([lane // 8 * 16 + lane % 8 + min(8, self.lanes) * half for half in range(2)])

    @property
    def taps(self) -> np.ndarray:
        """The row-major index of the tap at each [group, position in the lane]; ko * ki at empty positions."""
        numbers, none = np.arange(self.ko * self.ki), self.ko * self.ki
        if not self.pixels:
            return np.append(numbers, np.full(none % PAIR, none)).reshape(-1, PAIR)
        columns = np.full((self.ki, -(-self.ko // QUAD) * QUAD), none)
        columns[:, :self.ko] = numbers.reshape(self.ko, self.ki).T
        return columns.reshape(-1, QUAD)

    @property
    def half(self) -> int:
        """If `order` interleaves the two halves of a chunk, the number of lanes of a half; otherwise 0."""
        return 0 if self.pixels or self.lanes < 8 else self.lanes

    @property
    def chunk_bytes(self) -> int:
        """Bytes of weights per chunk."""
        return len(self.taps) * 4 * self.size

    def offsets(self) -> np.ndarray:
        """The byte offset of each tap's weight from the start of a chunk, for the first lane, int64."""
        out = np.zeros(self.ko * self.ki + 1, np.int64)
        groups, places = np.indices(self.taps.shape)
        out[self.taps] = groups * 4 * self.size + places * self.item
        return out[:-1]


def choose(channels: int, windows: Windows, weights: np.ndarray | None, level: Level, *, stride: int = 1,
           dilation: int = 1, transposed: bool = False) -> Layout:
    """Choose the layout for `channels` output channels.

    `weights` are the weights minus zero points, or None if not constant. `stride` and `dilation` are the windows'
    values along a line. Quads use the widest vectors whose chunk has at most `channels` channels. Their tiles have
    several pixels of a line, whose sums take half of the registers. In `transposed` convolutions, neighboring pixels
    share no columns, so tiles have one pixel.
    """
    ko, ki = prod(windows.kernel[:-1]), windows.kernel[-1]
    lanes = next((n for n in (16, 8, 4) if n <= level.lanes and QUAD * n <= channels), 0)
    small = weights is not None and weights.size and -128 <= weights.min() and weights.max() <= 127
    if not lanes or not small or windows.taps > MOST_QUAD_TAPS or level.dot4 is None:
        return Layout(level.lanes, ko, ki)
    pixels = 1 if transposed else pixels_within(windows.outputs[-1], level.registers // 8)
    return Layout(lanes, ko, ki, pixels, stride, dilation)


def pixels_within(line: int, most: int) -> int:
    """The number of pixels of a tile: `most`, or the length of a shorter line.

    The number is a constant in the code. If the length is open, the number is a power of two, so one kernel fits many
    lengths.
    """
    if not is_open(line):
        return min(most, line)
    return next(n for n in (most >> k for k in range(most.bit_length())) if n <= line or n == 1)


def fits(taps: int, multiplier: int, channels: int = 0) -> bool:
    """Whether kernels support these numbers of taps, output channels per input channel, and (integers) channels."""
    return 0 < taps <= MOST_TAPS and channels <= CHANNELS and multiplier in MULTIPLIERS


def chunk_starts(channels: int, size: int) -> list[int]:
    """The first channel of each chunk of `size` channels."""
    return [max(0, min(k, channels - size)) for k in range(0, channels, size)]


def header_bytes(channels: int) -> int:
    """The number of bytes of the column sums in front of the chunks, a multiple of 64."""
    return -(-channels // 16) * 64


def packed_bytes(layout: Layout, channels: int) -> int:
    """The number of bytes of packed weights."""
    return header_bytes(channels) + len(chunk_starts(channels, layout.size)) * layout.chunk_bytes


def pack(w: np.ndarray, layout: Layout) -> np.ndarray:
    """Pack weights [taps, channels] as u8 [packed_bytes]. The weights must fit into the 16 or 8 bits of the layout."""
    taps, channels = w.shape
    if not w.size:
        return lasting_empty(0)
    padded = np.zeros((taps + 1, max(channels, layout.size)), np.int8 if layout.item == 1 else np.int16)
    padded[:taps, :channels] = w
    chunks = np.stack([padded[:, start:start + layout.size] for start in chunk_starts(channels, layout.size)])
    out = lasting_empty(packed_bytes(layout, channels))
    head = header_bytes(channels)
    sums = np.zeros(head // 4, np.int32)
    sums[:channels] = w.sum(axis=0, dtype=np.int64)
    out[:head] = sums.view(np.uint8)
    groups = chunks[:, layout.taps][..., layout.order]  # axes: chunk, group, taps of a lane, vector, lane
    out[head:] = np.ascontiguousarray(groups.transpose(0, 1, 3, 4, 2)).reshape(-1).view(np.uint8)
    return out

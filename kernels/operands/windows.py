"""Windows of convolutions and pools on channels-last images, as tables of byte offsets (im2col descriptors).

With such a descriptor, kernels need neither a padded image nor an im2col copy. For output pixel (outer, inner) and tap
(ko, ki) the input pixel is outer_table[outer, ko] + inner_table[inner, ki] bytes from the start of the image. inner and
ki run along the last spatial axis; outer and ko run along all axes before it, merged. If a tap lies in the padding, one
entry or both are INVALID, a number that makes the sum negative. The tap then reads a row of padding. The tables express
strides, dilations, asymmetric padding and transposed convolutions.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np
import numpy.typing as npt

from graphq.base.budget import reserve
from graphq.base.sizes import largest, later, number, recorded, smallest
from graphq.errors import KernelError
from graphq.kernels.jit import Loop, emits
from graphq.kernels.jit.intrinsics import Record
from graphq.kernels.jit.values import I64, Builder, Value

INVALID = -2**62
WINDOWS = Record("width", "ko", "ki", "outer_table", "inner_table", "pad_row", "height", "more", "even_pad")
"""The record that kernels read; its tables follow, then the channels of a padding pixel.

    width, height    the number of outputs along the last axis, and along all axes before it
    ko, ki           the number of taps along all axes before the last one, and along the last one
    outer_table, inner_table, pad_row    the bytes from the record to the tables and to the padding
    more             the bytes to a further table that the kernel needs, such as `Windows.runs`, or 0
    even_pad         whether all bytes of the padding are equal
"""
MOST_TAPS = 1024
"""The most taps of a window in depthwise kernels, and in kernels that recompute outputs near rounding ties."""

_LINE = 64
_COPIES = 4
"""How many arrays of a table's size exist at once while a table is made."""

SharedColumns = list[tuple[int, list[tuple[int, int]]]]
"""Input columns that several neighboring output pixels of a line read, each with its (pixel, tap) pairs."""


def shared_columns(pixels: int, taps: int, stride: int, dilation: int) -> SharedColumns:
    """The input columns, in ascending order, that `pixels` neighboring outputs of a line read with `taps` taps."""
    uses: dict[int, list[tuple[int, int]]] = {}
    for p in range(pixels):
        for k in range(taps):
            uses.setdefault(p * stride + k * dilation, []).append((p, k))
    return sorted(uses.items())


@dataclass(frozen=True, eq=False)
class Windows:
    """An im2col descriptor: int64 tables of byte offsets, `outer` [height, ko] and `inner` [width, ki] (see WINDOWS).

    `outputs` and `kernel` are the sizes along all spatial axes. `image_bytes` are the bytes of one image.
    """

    outputs: tuple[int, ...]
    kernel: tuple[int, ...]
    outer: np.ndarray
    inner: np.ndarray
    pixel_bytes: int
    image_bytes: int

    @property
    def pixels(self) -> int:
        """The number of output pixels of an image."""
        return prod(self.outputs)

    @property
    def taps(self) -> int:
        """The number of taps of a window."""
        return prod(self.kernel)

    def offsets(self) -> np.ndarray:
        """The byte offset of every tap, int64 [pixels, taps] in row-major order; negative in the padding."""
        return _offsets(self.outer, self.inner)

    @property
    def fewest_inside(self) -> int:
        """The fewest taps of a window that lie inside the image; 1 without output pixels."""
        return number(_fewest_inside, self.outer, self.inner)

    def tap_of(self, images: np.ndarray, pad: npt.ArrayLike,
               outputs: slice = slice(None)) -> Callable[[int], np.ndarray]:
        """Make a function from the index of a tap to the pixels that all windows read there: [n, outputs, channels].

        `images` are [n, spatial..., channels], with contiguous pixels. `pad` is a number, or one per channel.
        """
        n, channels, offsets = images.shape[0], images.shape[-1], self.offsets()[outputs]
        at = offsets // self.pixel_bytes if self.pixel_bytes else np.minimum(offsets, 0)
        pixels = images.reshape(n, prod(images.shape[1:-1]), channels)
        row = np.broadcast_to(np.asarray(pad, images.dtype), (n, 1, channels))
        padded = np.concatenate([pixels, row], axis=1)
        return lambda tap: np.asarray(padded[:, np.where(at[:, tap] < 0, pixels.shape[1], at[:, tap])])

    def gather(self, images: np.ndarray, pad: npt.ArrayLike, outputs: slice = slice(None)) -> np.ndarray:
        """The pixels of all taps, as [n, outputs, taps, channels]; see `tap_of` for the arguments."""
        tap = self.tap_of(images, pad, outputs)
        return np.stack([tap(k) for k in range(self.taps)], axis=2)

    def subset(self, origin: Sequence[int], step: Sequence[int], taps: Sequence[np.ndarray]) -> Windows:
        """The windows of the outputs at origin + i * step along each spatial axis, with only the given taps."""
        sizes = tuple(-((o - n) // s) for o, n, s in zip(origin, self.outputs, step, strict=True))
        outer = later(_picked, self.outer, self.outputs[:-1], self.kernel[:-1], tuple(origin[:-1]), tuple(step[:-1]),
                      tuple(taps[:-1]))
        inner = later(_picked, self.inner, self.outputs[-1:], self.kernel[-1:], tuple(origin[-1:]), tuple(step[-1:]),
                      tuple(taps[-1:]))
        return replace(self, outputs=sizes, kernel=tuple(map(len, taps)), outer=outer, inner=inner)

    def repeated(self, times: int) -> Windows:
        """The windows with their list of taps repeated `times` times."""
        kernel = (self.kernel[0] * times, *self.kernel[1:])
        return replace(self, kernel=kernel, outer=later(np.tile, self.outer, (1, times))) if times > 1 else self

    def even_step(self) -> int:
        """For windows of one tap, the bytes between neighboring outputs' input pixels; -1 if uneven or with padding."""
        return number(_even_step, self.outer, self.inner, self.pixel_bytes)

    def runs(self, length: int, line: int) -> np.ndarray:
        """Make the table for kernels that read a run of `length` neighboring output pixels of a line at once.

        The first int64 is `step`; then follow entries [runs, taps]. A line has `line` output pixels; its last run can
        be shorter. An entry is the byte offset of a run's first input pixel if its input pixels are `step` bytes apart,
        otherwise INVALID.
        """
        reserve(8 * _COPIES * self.taps * -(-self.pixels // largest(1, smallest(length, line))),
                f"a table of the runs of {list(self.outputs)} windows of {list(self.kernel)} elements")
        return later(_runs, self.outer, self.inner, self.pixel_bytes, length, line)

    def block(self, pad_row: np.ndarray, more: np.ndarray | None = None) -> np.ndarray:
        """A WINDOWS record with its tables as int64 words, a multiple of 64 bytes; `pad_row` is a padding pixel.

        Kernels may also read 64 bytes past `pad_row`. `more` is a further table that the kernel needs. Raises
        KernelError if `pad_row` is shorter than a pixel.
        """
        if pad_row.nbytes < self.pixel_bytes:
            raise KernelError(f"a pad row must have at least a pixel's {self.pixel_bytes} bytes, got {pad_row.nbytes}")
        return later(_block, self.outer, self.inner, pad_row, more)


@recorded("windows.fewest_inside")
def _fewest_inside(outer: np.ndarray, inner: np.ndarray) -> int:
    if not outer.size or not inner.size:
        return 1
    return int((outer >= 0).sum(axis=1).min() * (inner >= 0).sum(axis=1).min())


@recorded("windows.picked")
def _picked(table: np.ndarray, outputs: Sequence[int], kernel: Sequence[int], origin: Sequence[int],
            step: Sequence[int], taps: Sequence[np.ndarray]) -> np.ndarray:
    some = [np.arange(o, n, s) for o, n, s in zip(origin, outputs, step, strict=True)]
    part = table.reshape((*outputs, *kernel))[np.ix_(*some, *taps)] if some else table
    return part.reshape(prod(map(len, some)), prod(map(len, taps)))


def _offsets(outer: np.ndarray, inner: np.ndarray) -> np.ndarray:
    sums = outer[:, None, :, None] + inner[None, :, None, :]
    return sums.reshape(len(outer) * len(inner), outer.shape[1] * inner.shape[1])


@recorded("windows.even_step")
def _even_step(outer: np.ndarray, inner: np.ndarray, pixel_bytes: int) -> int:
    offsets = _offsets(outer, inner).ravel()
    step = int(offsets[1] - offsets[0]) if offsets.size > 1 else pixel_bytes
    even = (offsets >= 0).all() and (offsets == np.arange(offsets.size) * step).all()
    return step if even else -1


@recorded("windows.runs")
def _runs(outer: np.ndarray, inner: np.ndarray, pixel_bytes: int, length: int, line: int) -> np.ndarray:
    pixels = len(outer) * len(inner)

    def taps_of(some: np.ndarray) -> np.ndarray:
        """Compute only the rows of `_offsets` for the output pixels `some`."""
        down, across = np.divmod(some, len(inner))
        return (outer[down][:, :, None] + inner[across][:, None, :]).reshape(len(some), outer.shape[1] * inner.shape[1])

    starts = np.arange(0, pixels, line or 1)[:, None]
    first = starts + np.arange(0, line, length)
    last = np.minimum(first + length, np.minimum(starts + line, pixels)).ravel() - 1
    first = first.ravel()
    begin, step = taps_of(first), _usual_step(outer, inner, pixel_bytes)
    even = begin >= 0
    for k in range(1, length):
        pixel = np.minimum(first + k, last)
        even &= taps_of(pixel) == begin + step * (pixel - first)[:, None]
    return np.concatenate([[step], np.where(even, begin, INVALID).ravel()])


def _usual_step(outer: np.ndarray, inner: np.ndarray, pixel_bytes: int) -> int:
    """The most frequent distance in bytes between the input pixels of neighboring outputs at the same tap."""
    inside = inner >= 0
    along = np.diff(inner, axis=0)[inside[1:] & inside[:-1]]  # one line suffices: all lines have the same distances
    before, after = _offsets(outer[:-1], inner[-1:]), _offsets(outer[1:], inner[:1])
    across = (after - before)[(before >= 0) & (after >= 0)]
    steps, which = np.unique(np.concatenate([along, across]), return_inverse=True)
    often = np.repeat([(outer >= 0).sum(), 1], [along.size, across.size])
    return int(steps[np.bincount(which, often).argmax()]) if steps.size else pixel_bytes


@recorded("windows.block")
def _block(outer: np.ndarray, inner: np.ndarray, pad_row: np.ndarray, more: np.ndarray | None) -> np.ndarray:
    row = np.ascontiguousarray(pad_row).reshape(-1).view(np.uint8)
    tables = [outer, inner] + ([] if more is None else [np.ascontiguousarray(more)])
    parts = [np.zeros(2 * _LINE, np.uint8), *(x.reshape(-1).view(np.uint8) for x in tables), row]
    starts = np.cumsum([0, *(-(-part.nbytes // _LINE) * _LINE for part in parts)])
    block = np.zeros(starts[-1] + _LINE, np.uint8)
    for start, part in zip(starts, parts, strict=False):
        block[start:start + part.nbytes] = part
    words = block.view(np.int64)
    words[:len(WINDOWS.fields)] = WINDOWS.words({
        "width": len(inner), "height": len(outer), "ko": outer.shape[1], "ki": inner.shape[1],
        "outer_table": starts[1], "inner_table": starts[2], "pad_row": starts[len(parts) - 1],
        "more": 0 if more is None else starts[3], "even_pad": (row == row[:1]).all()})
    return words


def windows(sizes: Sequence[int], kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int],
            pads: Sequence[tuple[int, int]], outputs: Sequence[int], pixel_bytes: int, *,
            transposed: bool = False) -> Windows:
    """Make the im2col descriptor for images of `sizes`; every list has an entry per spatial axis.

    `pads` are numbers, not auto_pad; for a `transposed` convolution they crop the result. Pads at the end are ignored,
    because `outputs` has the sizes of the result. `pixel_bytes` are the bytes between neighboring input pixels. Raises
    KernelError if the lists differ in length or are empty.
    """
    lists = (sizes, kernel, strides, dilations, pads, outputs)
    if not sizes or len({len(x) for x in lists}) != 1:
        raise KernelError(f"windows need one entry a spatial axis in each list, got {[list(x) for x in lists]}")
    entries = sum(prod(outputs[k]) * prod(kernel[k]) for k in (slice(-1), slice(-1, None)))
    reserve(_COPIES * 8 * entries, f"the tables of {list(outputs)} windows of {list(kernel)} elements")
    steps = [pixel_bytes * prod(sizes[k + 1:]) for k in range(len(sizes))]
    axes = [later(_axis, n, taps, stride, dilation, begin, out, step, transposed)
            for n, taps, stride, dilation, (begin, _), out, step
            in zip(sizes, kernel, strides, dilations, pads, outputs, steps, strict=True)]
    return Windows(tuple(outputs), tuple(kernel), later(merged, axes[:-1]), axes[-1], pixel_bytes,
                   pixel_bytes * prod(sizes))


@recorded("windows.merged")
def merged(axes: Sequence[np.ndarray]) -> np.ndarray:
    """Merge the tables [outputs, taps] of several axes into one table."""
    outer = np.zeros((1, 1), np.int64)
    for axis in axes:
        sums = _offsets(outer, axis)
        outer = np.where(sums < 0, INVALID, sums)
    return outer


@recorded("windows.axis")
def _axis(size: int, taps: int, stride: int, dilation: int, begin: int, outputs: int, step: int,
          transposed: bool) -> np.ndarray:
    """The byte offsets [outputs, taps] along one axis; INVALID outside of the image."""
    o, k = np.arange(outputs, dtype=np.int64)[:, None], np.arange(taps, dtype=np.int64) * dilation
    if transposed:  # input i is a tap of output i * stride + k - begin
        place, rest = np.divmod(o + begin - k, stride)
    else:
        place = o * stride + k - begin
        rest = np.zeros_like(place)
    return np.where((rest == 0) & (place >= 0) & (place < size), place * step, INVALID)


def store_addresses(b: Builder, windows: Value, image: Value, outer: Value, inner: Value, addresses: Value) -> None:
    """Emit stores of the addresses that the taps of output pixel (outer, inner) of the image at `image` read.

    The last address is stored twice.
    """
    ko, ki, pad, outers, inners = (
        WINDOWS.load(windows, x) for x in ("ko", "ki", "pad_row", "outer_table", "inner_table"))
    down, across, pad = windows + outers + outer * ko * 8, windows + inners + inner * ki * 8, windows + pad
    with Loop(b, ko, [image]) as rows:
        line, first = (down + rows.k * 8).load(I64, 8), rows.k * ki
        with Loop(b, ki, rows.values) as taps:
            offset = line + (across + taps.k * 8).load(I64, 8)
            address = (offset >= 0).select(image + offset, pad)
            address.store(addresses + (first + taps.k) * 8, 8)
            taps.update([address])
        rows.update(taps.values)
    rows.values[0].store(addresses + ko * ki * 8, 8)


tap_addresses = emits(store_addresses)

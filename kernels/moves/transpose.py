"""Transposes of tensors of any rank.

Neighboring axes that stay neighbors in the same order are merged. Two of the merged axes are the m rows and n columns
of a matrix in the result; each index of the other axes (the batch) has its own matrix. Three block functions write
matrices:

- `transposing`: m x n elements of 1, 2, 4 or 8 bytes, by square tiles in vector registers;
- `weaving`: n or m is 2 to 4 (e.g. channels of images), by shuffles of n or m vectors;
- `copying`: the innermost axis stays the innermost, so runs of bytes are copied.

The code is the same at every ISA level.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from math import prod
from typing import NamedTuple

from llvmlite import ir

from graphq.base.sizes import assumed, is_open, surely_equal
from graphq.kernels.jit import Functions, block_module, emits, load_first, njit, store_first
from graphq.kernels.jit.intrinsics import Record, concatenated, transpose_tiles
from graphq.kernels.jit.values import I8, Builder, Value, c64, smaller, vector
from graphq.kernels.operands.space import dense
from graphq.plan.plan import Step, Target, plan_rows

LANES = {1: 16, 2: 16, 4: 16, 8: 8}
"""The elements of a vector, and the rows and columns of a tile, by the bytes of an element."""

WAYS = 4
"""The most rows or columns that `weaving` takes."""

MOVE = Record("source", "target", "rows", "columns", "source_step", "target_step", "each", "outer")
"""The argument block: `rows` x `columns` elements for each index of the `outer` axes, `each` rows per block.

`source_step` is the bytes between columns of the source, `target_step` the bytes between rows of the target. There are
two exceptions. For copies, `columns` is the bytes of a row, and `source_step` the bytes between rows of the source. For
`weaving` apart, `target_step` is the bytes between columns of the target. The record of each outer axis (AXIS)
follows, the last axis first.
"""
AXIS = Record("size", "source", "target")
"""An outer axis: its size, and the bytes between its elements in the source and in the target."""
MOVE_BYTES, AXIS_BYTES = MOVE.nbytes, AXIS.nbytes


def _tiles(b: Builder, source: Value, stride: Value, target: Value, step: Value, *, itemsize: int) -> None:
    """Transpose 64 bytes of each row of the source, tile by tile."""
    lanes, line = LANES[itemsize], 64 // itemsize
    kind = vector(ir.IntType(8 * itemsize), line)
    rows = transpose_tiles([(source + stride * i).load(kind) for i in range(lanes)])
    for i in range(line):
        row, tile = rows[i % lanes], i // lanes * lanes
        part = row if line == lanes else row.shuffle(row, range(tile, tile + lanes))
        part.store(target + step * i)


def _corner(b: Builder, source: Value, stride: Value, target: Value, step: Value, height: Value, width: Value, *,
            itemsize: int) -> None:
    """Transpose a partial tile of the source: `width` rows of `height` elements."""
    lanes = LANES[itemsize]
    kind = vector(ir.IntType(8 * itemsize), lanes)

    def inside(i: int, size: Value, count: Value) -> Value:
        return (c64(i) < size).select(count, 0)

    rows = [load_first(source + stride * i, inside(i, width, height), kind) for i in range(lanes)]
    for i, row in enumerate(transpose_tiles(rows)):
        store_first(row, target + step * i, inside(i, height, width))


def _weave(b: Builder, source: Value, target: Value, stride: Value, count: Value, *, itemsize: int, ways: int,
           apart: bool, partial: bool) -> None:
    """Interleave one vector from each of `ways` streams, or deinterleave them if `apart`.

    If `partial`, only the first `count` lanes of each vector are valid.
    """
    lanes, element = LANES[itemsize], ir.IntType(8 * itemsize)
    kind = vector(element, lanes)
    # for each element of the result, in order: its place in the vectors that are read, one behind the other
    order = [i % ways * lanes + i // ways for i in range(ways * lanes)]
    if apart:
        order = [i * ways + k for k in range(ways) for i in range(lanes)]
    streams = [stride * k for k in range(ways)]
    parts = [c64(k * lanes * itemsize) for k in range(ways)]
    total = count * ways
    left = [smaller(total - k * lanes, lanes) for k in range(ways)]
    read, write = (parts, streams) if apart else (streams, parts)
    reads, writes = (left, [count] * ways) if apart else ([count] * ways, left)
    if apart and not partial:  # of one wide load or store, LLVM makes Arm's ld2 to ld4, or st2 to st4
        joined = source.load(vector(element, ways * lanes))
    else:
        rows = [load_first(source + x, n, kind) if partial else (source + x).load(kind)
                for x, n in zip(read, reads, strict=True)]
        joined = concatenated(rows + rows[:ways % 2])
    if not apart and not partial:
        joined.shuffle(joined, order).store(target)
        return
    for k in range(ways):
        y, x = joined.shuffle(joined, order[k * lanes:(k + 1) * lanes]), target + write[k]
        if partial:
            store_first(y, x, writes[k])
        else:
            y.store(x)


def _line(b: Builder, source: Value, target: Value, count: Value, *, partial: bool) -> None:
    kind = vector(I8, 64)
    if partial:
        store_first(load_first(source, count, kind), target, count)
    else:
        source.load(kind).store(target)


@njit
def _place(args: int, index: int) -> tuple[int, int, int, int]:
    """The addresses of a block's source and target, its first row, and the row after its last row."""
    a = MOVE(args)
    blocks = (a.rows + a.each - 1) // a.each
    batch, first = index // blocks, index % blocks * a.each
    source, target = a.source, a.target
    for k in range(a.outer):
        axis = AXIS(args + MOVE_BYTES + k * AXIS_BYTES)
        source += batch % axis.size * axis.source
        target += batch % axis.size * axis.target
        batch //= axis.size
    return source, target, first, min(first + a.each, a.rows)


def transposing(itemsize: int) -> Functions:
    """Make the block function that transposes: row i of the target is column i of the source."""
    lanes, line = LANES[itemsize], 64 // itemsize
    tiles, corner = emits(_tiles, itemsize=itemsize), emits(_corner, itemsize=itemsize)

    def block(args: int, index: int) -> None:
        source, target, first, last = _place(args, index)
        a = MOVE(args)
        n, stride, step = a.columns, a.source_step, a.target_step
        whole = last - first >= line and n >= lanes
        # Squares as wide as a cache line use every byte of a fetched line. The last tiles overlap others.
        for left in range(0, n, line):
            for top in range(first, last, line):
                for column in range(left, min(left + line, n), lanes):
                    if whole:
                        i, j = min(top, last - line), min(column, n - lanes)
                        tiles(source + i * itemsize + j * stride, stride, target + i * step + j * itemsize, step)
                        continue
                    x, y = source + column * stride, target + column * itemsize
                    for i in range(top, min(top + line, last), lanes):
                        corner(x + i * itemsize, stride, y + i * step, step, min(lanes, last - i),
                               min(lanes, n - column))

    return Functions(block=block)


def weaving(itemsize: int, ways: int, apart: int) -> Functions:
    """Make the block function that transposes a source of `ways` columns or, if `apart`, of rows of `ways` elements.

    The target, or the source if `apart`, is contiguous.
    """
    lanes, both = LANES[itemsize], ways * itemsize
    full, partial = (emits(_weave, itemsize=itemsize, ways=ways, apart=apart, partial=p) for p in (False, True))
    read, write = (both, itemsize) if apart else (itemsize, both)

    def block(args: int, index: int) -> None:
        source, target, first, last = _place(args, index)
        a = MOVE(args)
        stride = a.target_step if apart else a.source_step
        whole = first + (last - first) // lanes * lanes
        for i in range(first, whole, lanes):
            full(source + i * read, target + i * write, stride, lanes)
        if whole < last:
            partial(source + whole * read, target + whole * write, stride, last - whole)

    return Functions(block=block)


_copy_line, _copy_short = emits(_line, partial=False), emits(_line, partial=True)


@njit
def copy_row(source: int, target: int, nbytes: int) -> None:
    """Copy a row of `nbytes` bytes."""
    for k in range(0, nbytes - 63, 64):
        _copy_line(source + k, target + k, 64)
    if nbytes >= 64:
        _copy_line(source + nbytes - 64, target + nbytes - 64, 64)
    else:
        _copy_short(source, target, nbytes)


@block_module
def copying(args: int, index: int) -> None:
    """Copy rows."""
    source, target, first, last = _place(args, index)
    a = MOVE(args)
    nbytes, stride, step = a.columns, a.source_step, a.target_step
    for i in range(first, last):
        copy_row(source + i * stride, target + i * step, nbytes)


class Axis(NamedTuple):
    """An axis to loop over: its size, and the bytes between its elements in the source and in the target."""

    size: int
    source: int
    target: int


class Loops(NamedTuple):
    """The loops of a transpose. For each index of `outer`, block function `maker(*of)` moves `rows` x `columns`."""

    maker: Callable[..., Functions]
    of: tuple[int, ...]
    rows: int
    columns: int
    source: int
    target: int
    outer: tuple[Axis, ...]


def merged(sizes: Sequence[int], strides: Sequence[int], itemsize: int,
           targets: Sequence[int] | None = None) -> list[Axis]:
    """The axes to loop over in a copy from byte strides `strides` to byte strides `targets`, by default contiguous.

    Axes of size 1 are left out. Neighboring axes are merged into one axis if possible in source and result.
    """
    axes: list[Axis] = []
    targets = dense(sizes, itemsize) if targets is None else targets
    for size, source, target in zip(reversed(sizes), reversed(strides), reversed(targets), strict=True):
        if axes and (source, target) == (axes[0].source * axes[0].size, axes[0].target * axes[0].size):
            axes[0] = Axis(size * axes[0].size, axes[0].source, axes[0].target)
        elif size != 1:
            axes.insert(0, Axis(size, source, target))
    return axes


def transposed(shape: Sequence[int], order: Sequence[int], itemsize: int) -> list[Axis]:
    """The axes to loop over in a transpose of a contiguous tensor. No (open) strides are compared.

    Axes of size 1 are left out. Axes that are neighbors before and after the transpose are merged.
    """
    strides, kept = dense(shape, itemsize), [d for d in range(len(shape)) if shape[d] != 1]
    ranks = [kept.index(d) for d in order if d in kept]
    groups = [[kept[rank] for _, rank in run] for _, run in groupby(enumerate(ranks), lambda x: x[1] - x[0])]
    sizes = [prod(shape[d] for d in group) for group in groups]
    return list(map(Axis, sizes, (strides[group[-1]] for group in groups), dense(sizes, itemsize)))


def loops(shape: Sequence[int], order: Sequence[int], itemsize: int) -> Loops:
    """Choose the loops of a transpose; the tensor must not be empty."""
    axes = transposed(shape, order, itemsize)
    if axes and surely_equal(axes[-1].source, itemsize):
        itemsize *= axes.pop().size
    if not axes:
        return Loops(copying, (), 1, itemsize, 0, 0, ())
    columns = axes.pop()
    if itemsize not in LANES:
        return Loops(copying, (), columns.size, itemsize, columns.source, columns.target, tuple(axes))
    rows = axes.pop(min(range(len(axes)), key=lambda k: assumed(axes[k].source)))  # the same axis at all sizes
    m, n, outer = rows.size, columns.size, tuple(axes)
    if not is_open(n) and n <= WAYS and surely_equal(rows.target, n * itemsize) and m > n:
        return Loops(weaving, (itemsize, n, 0), m, n, columns.source, rows.target, outer)
    if not is_open(m) and m <= WAYS and surely_equal(columns.source, m * itemsize):
        return Loops(weaving, (itemsize, m, 1), n, m, columns.source, rows.target, outer)
    return Loops(transposing, (itemsize,), m, n, columns.source, rows.target, outer)


def is_view(shape: Sequence[int], order: Sequence[int]) -> bool:
    """Whether the transpose keeps the order of the elements in memory."""
    return 0 in shape or len(transposed(shape, order, 1)) <= 1


def plan_transpose(shape: Sequence[int], order: Sequence[int], itemsize: int, target: Target) -> Step:
    """Plan the transpose of a contiguous tensor: axis k of the contiguous result is axis `order[k]` of the source.

    The caller fills in the address fields of MOVE; source and result must not overlap. Empty tensors have no blocks.
    """
    x = loops([1 if 0 in shape else d for d in shape], order, itemsize)
    return _planned(x, 0 in shape, target)


def run_bytes(sizes: Sequence[int], strides: Sequence[int], itemsize: int) -> int:
    """The length in bytes of the runs that are contiguous in the source and in a contiguous result."""
    axes = merged(sizes, strides, itemsize)
    return itemsize * (axes[-1].size if axes and axes[-1].source == itemsize else 1)


def plan_strided_copy(sizes: Sequence[int], strides: Sequence[int], itemsize: int, target: Target,
                      results: Sequence[int] | None = None) -> Step:
    """Plan the copy of a tensor of `sizes` whose elements are `strides` bytes apart along each axis.

    A negative stride reads an axis backwards; a stride of 0 repeats an element. The result has the strides `results`,
    or is contiguous. The caller fills in the address fields of MOVE; source and result must not overlap.
    """
    axes, nbytes = merged(sizes, strides, itemsize, results), itemsize
    if axes and axes[-1].source == axes[-1].target == itemsize:
        nbytes *= axes.pop().size
    rows = axes.pop() if axes else Axis(1, 0, 0)
    x = Loops(copying, (), rows.size, nbytes, rows.source, rows.target, tuple(axes))
    return _planned(x, 0 in sizes, target)


def _planned(x: Loops, empty: bool, target: Target) -> Step:
    batch = 0 if empty else prod(a.size for a in x.outer)
    unit = 1 if x.maker is copying else 64
    words = {"rows": x.rows, "columns": x.columns, "source_step": x.source, "target_step": x.target,
             "outer": len(x.outer)}
    cycles = x.columns * 0.1 * (1 if x.maker is copying else x.of[0])
    step = plan_rows(x.maker, MOVE, words, target, rows=x.rows, cycles=cycles, batch=batch, unit=unit, of=x.of)
    axes = {f"{field} {k}": w for k, axis in enumerate(reversed(x.outer)) for field, w in axis._asdict().items()}
    return step._replace(words={**step.words, **axes})

"""Outputs that a kernel computes once more: what it hands over, and to whom.

A Store may say of a group of outputs that they need a second look; `outputs.write` leaves an entry for each such group.
A kernel hands the entries of a tile over by `look_again`. Who looks is registered; neither knows of the other.
"""
from __future__ import annotations

from collections.abc import Callable

from graphq.kernels.jit import modules
from graphq.kernels.jit.codegen import Functions
from graphq.kernels.jit.deferred import njit
from graphq.kernels.jit.intrinsics import call_block, stack
from graphq.kernels.jit.isa import Level
from graphq.kernels.jit.records import Record
from graphq.kernels.lanes.stores import Store

HEAD = ("functions", "again", "terms", "layout")
"""The first fields of the argument blocks of kernels that write outputs of a Store: the addresses of its table of
functions (`outputs`) and, where some outputs need a second look, of who looks and of what `operands.sum_terms` says;
and the number of the layout in which the kernel finds activations, in `operands.tile_frame.LAYOUTS`."""
LOOK = Record("args", "batch", "row", "column", "rows", "columns", "sums", "stride", "entries", "frame")
"""A tile, some of whose outputs need a second look.

    args             the argument block
    batch, row, column    of the tile's first output
    rows, columns    of the tile
    sums, stride     its accumulators, and the bytes of a row of them
    entries          of groups of outputs, as `store_code.epilogue` leaves them
    frame            what the tile function was called with
"""
view_head, view_look = Record(*HEAD).view, LOOK.view
LOOK_BYTES = LOOK.nbytes

_FACTORIES: list[Callable[[], Functions]] = []


def register_second_look(factory: Callable[[], Functions]) -> None:
    """Say who makes the block function `look_again` (LOOK, number of entries)."""
    _FACTORIES[:] = [factory]


def load_second_look(store: Store, level: Level, cache: bool) -> modules.Function | int:
    """The block function that looks at outputs of a Store, 0 where none needs that."""
    if store.second_look is None:
        return 0
    (factory,) = _FACTORIES
    return modules.load("second_look", factory, level=level.base, cache=cache).look_again


@njit
def look_again(args: int, batch: int, row: int, column: int, rows: int, columns: int, sums: int, stride: int,
               entries: int, count: int, frame: int) -> None:
    """Hand the `count` entries of a tile over (LOOK)."""
    look = stack(LOOK_BYTES)
    x = view_look(look)
    x.args = args
    x.batch = batch
    x.row = row
    x.column = column
    x.rows = rows
    x.columns = columns
    x.sums = sums
    x.stride = stride
    x.entries = entries
    x.frame = frame
    call_block(view_head(args).again, look, count)

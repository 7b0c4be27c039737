"""Second looks: outputs near a rounding tie are computed again, from another accumulator.

A Store has a test for such outputs; `outputs.write` leaves an entry for each group of outputs that contains one. A
kernel hands the entries of a tile over by `look_again`. The function that recomputes the outputs is registered here, so
that kernels and `ties` need not import each other.
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
"""The first fields of the argument blocks of kernels with an epilogue.

`functions` is the address of the epilogue's table of functions (`outputs`). If outputs near a rounding tie are computed
again, `again` is the address of the function that does so, and `terms` that of the TERMS record of
`operands.sum_terms`. `layout` is the number of the layout of activations in `operands.tile_frame.LAYOUTS`.
"""
LOOK = Record("args", "batch", "row", "column", "rows", "columns", "sums", "stride", "entries", "frame")
"""A tile with outputs near a rounding tie: the argument of the function that computes them again.

    args                   the argument block of the kernel
    batch, row, column     the indices of the tile's first output
    rows, columns          the size of the tile
    sums, stride           its accumulators, and the bytes from one row of them to the next
    entries                the groups of outputs near a tie, as the epilogue has listed them (`store_code.epilogue`)
    frame                  the frame that the tile function was called with
"""
view_head, view_look = Record(*HEAD).view, LOOK.view
LOOK_BYTES = LOOK.nbytes

_FACTORIES: list[Callable[[], Functions]] = []


def register_second_look(factory: Callable[[], Functions]) -> None:
    """Register the factory of the block function `look_again`, which takes a LOOK and the number of entries."""
    _FACTORIES[:] = [factory]


def load_second_look(store: Store, level: Level, cache: bool) -> modules.Function | int:
    """Load the block function that computes outputs of a Store near rounding ties again; 0 if the Store needs none."""
    if store.second_look is None:
        return 0
    (factory,) = _FACTORIES
    return modules.load("second_look", factory, level=level.base, cache=cache).look_again


@njit
def look_again(args: int, batch: int, row: int, column: int, rows: int, columns: int, sums: int, stride: int,
               entries: int, count: int, frame: int) -> None:
    """Recompute a tile's outputs near rounding ties, which `count` entries list; other arguments are fields of LOOK."""
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

"""The functions of an epilogue that kernels call by address, in a table.

The table's first function, `write`, writes a block of outputs (`write_outputs`). If the epilogue has a fast form,
`exact` writes outputs by the exact form. The others are for the *second look*, the recomputation of outputs near a
rounding tie from an f32 sum: `rewrite` is another form of the epilogue, and the rest return numbers that the f32 sum
needs, such as a column's weight scale.

`write` also stores an entry for each group of outputs that contains outputs near a tie. Kernels pass the entries of a
tile to `look_again`. With a second look, its function recomputes these outputs, otherwise `exact_form` does.
`ties.attach` registers the former here, so kernels need not import `ties`.
"""
from collections.abc import Callable
from functools import partial

from graphq.kernels.jit import Functions, FunctionTable, emits, modules, njit
from graphq.kernels.jit.intrinsics import Record, call_block, call_entry, load_s64, stack
from graphq.kernels.lanes.epilogue_code import GROUP, factor, write_outputs
from graphq.kernels.lanes.epilogues import Epilogue
from graphq.kernels.lanes.expression import BYTES, lower
from graphq.kernels.target.level import Level

HEAD = Record("functions", "second_look", "terms")
"""The first fields in the argument block of a kernel with an epilogue.

`functions` is the address of EPILOGUE_FUNCTIONS. With a fast form, `second_look` is the address of the function that
recomputes outputs. With a second look, `terms` is the address of the TERMS record of `operands.space`.
"""
LOOK = Record("args", "batch", "row", "column", "rows", "columns", "sums", "stride", "entries", "frame")
"""The argument of the function that recomputes outputs near a rounding tie: a tile and its entries.

    args                   the kernel's argument block
    batch, row, column     the indices of the tile's first output
    rows, columns          the size of the tile
    sums, stride           the tile's accumulators, and the bytes from one row of them to the next
    entries                the groups of outputs that the epilogue listed (see `epilogue_code.write_outputs`)
    frame                  the frame that the tile function was called with
"""
LOOK_BYTES = LOOK.nbytes

_FACTORIES: list[Callable[[bool, bool], Functions]] = []


def register_second_look(factory: Callable[[bool, bool], Functions]) -> None:
    """Register the factory of the block function `look_again`. This function takes a LOOK and the number of entries.

    The factory's arguments are whether kernels go over pixels, and whether a matmul's weights are paired.
    """
    _FACTORIES[:] = [factory]


@njit
def entry_of(entries: int, number: int) -> tuple[int, int, int]:
    """The row, the first column and the bit mask of columns of entry number `number`."""
    entry = load_s64(entries + 8 * number)
    return entry >> 16 & 0xFFFF, entry >> 32, entry & 0xFFFF


def exact_form() -> Functions:
    """Make the module for epilogues without a second look: it computes outputs near ties by their exact form."""

    def look_again(look: int, uncertain: int) -> None:
        """Recompute outputs of a tile, for its first `uncertain` entries; `look` is the address of its LOOK."""
        x = LOOK(look)
        args, batch, i, left, rows, columns = x.args, x.batch, x.row, x.column, x.rows, x.columns
        sums, stride, entries = x.sums, x.stride, x.entries
        lanes = EPILOGUE_FUNCTIONS(HEAD(args).functions).lanes
        for group in range(uncertain):
            top, c0, _ = entry_of(entries, group)
            exact(args, batch, i + top, left + c0, min(GROUP, rows - top), min(lanes, columns - c0),
                  sums + stride * top + 4 * c0, stride, 0)

    return Functions(speed=3, look_again=look_again)


def load_second_look(epilogue: Epilogue, level: Level, cache: bool, *,
                     of_pixels: bool = False, paired: bool = False) -> modules.Function | int:
    """Load the block function that recomputes an epilogue's outputs near rounding ties; 0 without a fast form."""
    if epilogue.fast is None:
        return 0
    if epilogue.second_look is None:
        return modules.load("exact_form", exact_form, level=level.base, cache=cache, first=True).look_again
    (factory,) = _FACTORIES
    return modules.load("second_look", factory, of_pixels, paired, level=level.base, cache=cache, first=True).look_again


ARITIES = {"write": 9, "exact": 9, "rewrite": 9, "w_scale": 3, "w_zp": 3, "start": 3}
NAMES = tuple(ARITIES)
EPILOGUE_FUNCTIONS = Record(*NAMES, "lanes")
"""The table of an epilogue's functions: addresses (0 for missing functions), and the lanes of their vectors."""
write, exact, rewrite, w_scale, w_zp, start = (
    emits(call_entry, arity, number=n) for n, arity in enumerate(ARITIES.values()))


@njit
def finish(args: int, batch: int, row: int, column: int, rows: int, columns: int, sums: int, stride: int, entries: int,
           count: int, frame: int) -> None:
    """Write a tile's outputs, and recompute outputs near a rounding tie.

    If the tile function has already written the outputs, `count` is the number of entries that it has listed. Otherwise
    `count` is -1. The other arguments are fields of LOOK.
    """
    if count < 0:
        count = write(args, batch, row, column, rows, columns, sums, stride, entries)
    if count:
        look = stack(LOOK_BYTES)
        x = LOOK(look)
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
        call_block(HEAD(args).second_look, look, count)


def epilogue_functions(epilogue: Epilogue, lanes: int) -> Functions:
    """Make the module of an epilogue's functions, for vectors of `lanes`."""
    written = partial(emits, write_outputs, epilogue=epilogue)
    functions = {"write": written(lanes=lanes)}
    if epilogue.fast is not None:
        functions["exact"] = written(lanes=lanes, form="exact")
    if epilogue.second_look is not None:
        functions["rewrite"] = written(lanes=1, form="second_look")
        look = epilogue.second_look
        factors = (emits(factor, look=look, number=n) for n in range(len(look.factors)))
        functions |= zip(NAMES[len(functions):], factors, strict=False)
    return Functions(speed=1, **functions)


def lanes_of(epilogue: Epilogue, level: Level) -> int:
    """The lanes of an epilogue's vectors: as many as there are bytes in a register if it only looks up bytes."""
    expr, how = lower(epilogue.expr), level.looks_up
    of_bytes = expr.op == "lookup" and expr.args[1].op == "load" and epilogue.dtype in BYTES and epilogue.fast is None
    return level.lanes if how is None or not of_bytes else max(level.lanes, min(how.size, 16))


def load_outputs(epilogue: Epilogue, level: Level, cache: bool) -> FunctionTable:
    """Load the EPILOGUE_FUNCTIONS of an epilogue for a level. With `cache`, the module is kept on disk."""
    lanes = lanes_of(epilogue, level)
    count = 1 if epilogue.fast is None else 2 if epilogue.second_look is None else 3 + len(epilogue.second_look.factors)
    module = modules.load("outputs", epilogue_functions, epilogue, lanes, level=level.base, cache=cache)
    return FunctionTable([*(getattr(module, x) if n < count else 0 for n, x in enumerate(NAMES)), lanes])

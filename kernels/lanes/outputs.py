"""Functions of an epilogue (Store), called by address, so that block functions are not compiled anew for each Store.

The field `functions` of an argument block has the address of a STORE_FUNCTIONS table. Its `write` is
`store_code.epilogue` of the Store. If outputs near a rounding tie are computed again (`second_look`), `exact` and
`rewrite` are the other two forms of the epilogue, and the remaining functions give the numbers that the second sum
needs for a column. A call takes 2 ns.
"""
from __future__ import annotations

from graphq.kernels.jit import modules
from graphq.kernels.jit.codegen import Functions
from graphq.kernels.jit.deferred import Intrinsic, njit
from graphq.kernels.jit.intrinsics import outer
from graphq.kernels.jit.isa import Level, is_emulated, lowest
from graphq.kernels.jit.modules import FunctionTable
from graphq.kernels.jit.records import Record
from graphq.kernels.lanes.second_look import look_again
from graphq.kernels.lanes.store_code import epilogue, factor
from graphq.kernels.lanes.stores import Store

ARITIES = {"write": 9, "exact": 9, "rewrite": 9, "w_scale": 3, "w_zp": 3, "start": 3}
NAMES = tuple(ARITIES)
STORE_FUNCTIONS = Record(*NAMES, "lanes")
"""The table of an epilogue's functions: their addresses (0 for one that it lacks), and the lanes of vectors."""
write, exact, rewrite, w_scale, w_zp, start = (outer(n, arity) for n, arity in enumerate(ARITIES.values()))


@njit
def finish(args: int, batch: int, row: int, column: int, rows: int, columns: int, sums: int, stride: int, entries: int,
           count: int, frame: int) -> None:
    """Write a tile's outputs; outputs near a rounding tie are handed over, to be computed again.

    If the tile function has written the outputs already, `count` is the number of entries (groups of outputs near a
    tie) that it made, otherwise -1. The other arguments are fields of a `second_look.LOOK`.
    """
    if count < 0:
        count = write(args, batch, row, column, rows, columns, sums, stride, entries)
    if count:
        look_again(args, batch, row, column, rows, columns, sums, stride, entries, count, frame)


def packs(lanes: int, store: Store) -> bool:
    """Whether the byte outputs of a Store are packed four vectors at a time."""
    return lanes == 16 and store.second_look is not None and not is_emulated(lowest(lanes).name)


def store_functions(store: Store, lanes: int, packed: bool) -> Functions:
    """Make the module that writes a Store's outputs in vectors of `lanes`; `packed` is the result of `packs`."""
    functions: dict[str, Intrinsic] = {"write": epilogue(store, lanes, packs=packed)}
    if store.second_look is not None:
        functions |= {"exact": epilogue(store, lanes, form="exact"), "rewrite": epilogue(store, 1, form="again")}
        factors = (factor(store.second_look, n) for n in range(len(store.second_look.factors)))
        functions |= zip(NAMES[len(functions):], factors, strict=False)
    return Functions(speed=3, **functions)


def load_outputs(store: Store, level: Level, cache: bool) -> FunctionTable:
    """Load the STORE_FUNCTIONS of a Store for vectors of a level; with `cache` the module is kept on disk."""
    lanes = level.lanes
    count = 1 if store.second_look is None else 3 + len(store.second_look.factors)
    module = modules.load("outputs", store_functions, store, lanes, packs(lanes, store), level=level.base,
                          cache=cache)
    return FunctionTable([*(getattr(module, x) if n < count else 0 for n, x in enumerate(NAMES)), lanes])

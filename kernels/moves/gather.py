"""Rows of a table by their indices. One outside of it gives row 0, so that no other memory is read, and is told.

Argument words: 0 table   1 indices   2 target   3 where an index outside goes, s64   4 rows of the target
5 indices of a table   6 rows of a table   7 bytes a row   8 bytes an index   9 rows a block

Row r of the target is that of index r % n of table r // n, n being word 5; negative indices count from the end.
"""
from __future__ import annotations

from graphq.kernels.jit.codegen import Functions
from graphq.kernels.jit.intrinsics import load_s32, load_s64, store_s64, word
from graphq.kernels.jit.registry import Step, plan_rows
from graphq.kernels.moves.transpose import row_copier

TABLE, INDICES, TARGET, OUTSIDE = range(4)  # words that the caller fills in


def gathering() -> Functions:
    """Make the block function."""
    copy = row_copier()

    def block(args: int, index: int) -> None:
        table, indices, target = word(args, 0), word(args, 1), word(args, 2)
        n, size, nbytes, each = word(args, 5), word(args, 6), word(args, 7), word(args, 9)
        for row in range(index * each, min(index * each + each, word(args, 4))):
            at = indices + row % n * word(args, 8)
            given = load_s64(at) if word(args, 8) == 8 else load_s32(at)
            k = given + size if given < 0 else given
            if k < 0 or k >= size:
                store_s64(word(args, 3), given)
                k = 0
            copy(table + (row // n * size + k) * nbytes, target + row * nbytes, nbytes)

    return Functions(block=block)


def plan_gather(tables: int, size: int, count: int, nbytes: int, index_bytes: int, *, threads: int = 1,
                cache: bool = True) -> Step:
    """Plan `count` rows of `nbytes` of each of `tables` of `size` rows, at least one; indices are s32 or s64."""
    rows = tables * count
    return plan_rows(gathering, rows, 1, threads, cache,
                     lambda each: (0, 0, 0, 0, rows, count, size, nbytes, index_bytes, each),
                     cycles=20 + nbytes * 0.3, of=())

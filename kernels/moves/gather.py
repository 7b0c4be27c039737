"""Gather: rows of a table by their indices. An index outside of the table reads row 0, and is reported.

There may be several tables. Row r of the target comes from table r // count, at the index number r % count of the
`count` indices; negative indices count from the table's end.
"""
from __future__ import annotations

from graphq.kernels.jit.codegen import Functions
from graphq.kernels.jit.intrinsics import load_s32, load_s64, store_s64
from graphq.kernels.jit.records import Record
from graphq.kernels.moves.transpose import row_copier
from graphq.plan.step import Step, Target, plan_rows

GATHER = Record("table", "indices", "target", "outside", "rows", "count", "size", "nbytes", "index_bytes", "each")
"""The argument block: the target has `rows` rows, in blocks of `each`; each table gives `count` of them.

A table has `size` rows of `nbytes` bytes. The caller fills in the addresses. An index outside of the table is stored as
an s64 at the address `outside`.
"""
view = GATHER.view


def gathering() -> Functions:
    """Make the block function of gathers."""
    copy = row_copier()

    def block(args: int, index: int) -> None:
        a = view(args)
        table, indices, target, outside = a.table, a.indices, a.target, a.outside
        n, size, nbytes, index_bytes = a.count, a.size, a.nbytes, a.index_bytes
        for row in range(index * a.each, min(index * a.each + a.each, a.rows)):
            at = indices + row % n * index_bytes
            signed = load_s64(at) if index_bytes == 8 else load_s32(at)
            k = signed + size if signed < 0 else signed
            if k < 0 or k >= size:
                store_s64(outside, signed)
                k = 0
            copy(table + (row // n * size + k) * nbytes, target + row * nbytes, nbytes)

    return Functions(block=block)


def plan_gather(tables: int, size: int, count: int, nbytes: int, index_bytes: int, target: Target) -> Step:
    """Plan the gather of `count` rows of `nbytes` from each of `tables` tables of `size` > 0 rows, by s32 or s64."""
    rows = tables * count
    words = {"rows": rows, "count": count, "size": size, "nbytes": nbytes, "index_bytes": index_bytes}
    return plan_rows(gathering, GATHER, words, target, rows=rows, cycles=20 + nbytes * 0.3)

"""Elementwise kernel: a Store over the space (batch, m, n), for chains that no anchor takes.

Operands and output follow the record as everywhere (`store_code.SlotOperand`).
"""
from __future__ import annotations

from graphq.kernels.jit import modules
from graphq.kernels.jit.codegen import Functions
from graphq.kernels.jit.records import Record
from graphq.kernels.jit.registry import BLOCK_CYCLES, Step, Target, Word
from graphq.kernels.lanes.expression import lower, walk
from graphq.kernels.lanes.outputs import HEAD, load_outputs, write
from graphq.kernels.lanes.stores import Store
from graphq.kernels.operands.space import Space
from graphq.sizes import assumed, largest

BLOCKS_PER_THREAD = 4
SPACE = Record(*HEAD, "batch", "m", "n", "each", "rows", "columns")
"""The space, and the batch elements, rows and columns of a block."""
view = SPACE.view


def eltwise_blocks() -> Functions:
    """Make the block function of elementwise outputs."""

    def block(args: int, index: int) -> None:
        a = view(args)
        batch, m, n, each, rows, columns = a.batch, a.m, a.n, a.each, a.rows, a.columns
        across, down = (n + columns - 1) // columns, (m + rows - 1) // rows
        first, i, j = index // (across * down) * each, index // across % down * rows, index % across * columns
        for b in range(first, min(first + each, batch)):
            write(args, b, i, j, min(rows, m - i), min(columns, n - j), 0, 0, 0)

    return Functions(block=block)


def plan_eltwise(store: Store, space: Space, target: Target) -> Step:
    """Plan `store` over the outputs of `space`; the caller fills in the slots only."""
    if store.uses_acc:
        raise ValueError("an elementwise kernel has no accumulator")
    made = modules.load("eltwise", eltwise_blocks, cache=target.cache)
    outputs, table = load_outputs(store, target.level.lanes, target.cache)
    batch, m, n = space.batch, space.m, space.n
    each, rows, columns = split(batch, m, n, _parts(store, assumed(batch * m * n), target))
    blocks = -(-batch // each) * -(-m // rows) * -(-n // columns)
    words: dict[str, Word] = {"batch": batch, "m": m, "n": n, "each": each, "rows": rows, "columns": columns,
                              "functions": table}
    return Step(f"eltwise_{target.level.name}", made.block, SPACE, words, blocks, (made, outputs, table))


def _parts(store: Store, elements: int, target: Target) -> int:
    """Choose a number of blocks by the work there is.

    A vector takes a cycle per operation (measured: 0.65 to 0.85), and 4 to be moved.
    """
    cycles = elements * (len(list(walk(lower(store.expr)))) + 4) // target.level.lanes
    return 1 if target.threads == 1 else max(1, min(BLOCKS_PER_THREAD * target.threads, cycles // BLOCK_CYCLES))


def split(batch: int, m: int, n: int, parts: int) -> tuple[int, int, int]:
    """Cut the space into `parts` blocks or somewhat more: batch elements, then rows, then columns by 64.

    Gives batch elements, rows and columns per block, each at least 1.
    """
    if assumed(batch) >= parts or not assumed(batch * m * n):
        return largest(1, batch // parts), largest(1, m), largest(1, n)
    parts = -(-parts // assumed(batch))
    if assumed(m) >= parts:
        return 1, largest(1, m // parts), largest(1, n)
    parts = -(-parts // assumed(m))
    return 1, 1, largest(1, -(-n // (parts * 64))) * 64

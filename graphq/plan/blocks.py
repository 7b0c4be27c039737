"""Into how many blocks a kernel's work is cut, and who shares them."""
from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from graphq.base.sizes import number
from graphq.kernels.jit import modules
from graphq.kernels.jit.codegen import Functions
from graphq.kernels.jit.records import Record
from graphq.kernels.threads.steps import MOST_PIECES
from graphq.plan.step import Step, Target, Word

BLOCK_CYCLES = 10_000
"""A parallel step costs 2.5 us, and far more on a busy machine: a thread's share of less work is not worth it."""


def threads_for(threads: int, cycles: float) -> int:
    """The threads, at most `threads`, that work of so many cycles of one core is worth."""
    return number(_threads_for, threads, cycles) if threads > 1 else 1


def _threads_for(threads: int, cycles: float) -> int:
    return max(1, min(threads, int(cycles // BLOCK_CYCLES)))


def pieces(blocks: int, worth: int, threads: int) -> int:
    """How many pieces `threads` share so many blocks in; 0 for one block, or for work that is `worth` one thread.

    Block i is in piece ((i + 1) * pieces - 1) // blocks.
    """
    return number(_pieces, blocks, worth, threads) if threads > 1 else 0


def _pieces(blocks: int, worth: int, threads: int) -> int:
    return min(blocks, threads, MOST_PIECES) if blocks > 1 and worth > 1 else 0


def rows_of_block(rows: int, batch: int, threads: int, unit: int = 1) -> int:
    """How many of the `rows` of each of `batch` elements a block has, a multiple of `unit`: four blocks a thread."""
    return number(_rows_of_block, rows, batch, threads, unit)


def _rows_of_block(rows: int, batch: int, threads: int, unit: int) -> int:
    parts = max(1, min(-(-rows // unit), -(-4 * threads // max(1, batch)))) if threads > 1 else 1
    return max(1, -(-rows // (parts * unit)) * unit)


class RowLoop(NamedTuple):
    """A loop over the `rows` of each of `batch` elements, whose block function `factory(*of)` makes.

    `record` is its argument block, in which the field `each` is the rows of a block: a multiple of `unit`. `cycles`
    estimates the work of a row.
    """

    factory: Callable[..., Functions]
    record: Record
    rows: int
    cycles: float
    batch: int = 1
    unit: int = 1
    of: tuple[int, ...] = ()


def plan_rows(loop: RowLoop, words: Mapping[str, Word], target: Target) -> Step:
    """Plan a loop over rows, four blocks a thread; `words` are fields of its record."""
    worth = threads_for(target.threads, loop.cycles * loop.rows * loop.batch)
    each = rows_of_block(loop.rows, loop.batch, worth, loop.unit)
    name, blocks = loop.factory.__name__, loop.batch * -(-loop.rows // each)
    made = modules.load(name, loop.factory, *loop.of, cache=target.cache)
    return Step("_".join(map(str, (name, *loop.of))), made.block, loop.record.named({**words, "each": each}), blocks,
                pieces(blocks, worth, target.threads))

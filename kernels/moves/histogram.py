"""Count the elements of an f32 tensor by their highest bits, and find its extremes (operation `histogram`).

Each block counts into tables of its own, and a final step adds the tables. The result is the same for any number of
threads, because counts are integers and extremes do not depend on the order of the search.
"""
from __future__ import annotations

from graphq.base.sizes import largest
from graphq.ir import Node
from graphq.kernels.jit import Functions, emits, modules
from graphq.kernels.jit.intrinsics import Record, load_s32, store_s32
from graphq.kernels.jit.values import I32, Builder, Value, constant, larger, smaller, vector
from graphq.kernels.lanes.vector import Columns, fold, over_columns
from graphq.kernels.numbers.observed import BINS, INFINITY, NAN, SHIFT
from graphq.plan.builder import PlanBuilder
from graphq.plan.plan import Ref, Step, Target, pieces, threads_for

TABLES = 2
"""The number of tables of a block. Neighboring elements use different tables, so a repeated bin causes no wait."""
PART = 4 * TABLES * BINS + 8
"""The bytes that a block writes: its tables, and its two extremes as s32."""
CYCLES = 4
"""Estimated cycles per element, to decide how many threads are worth using."""
PIECE = 4096
"""The number of elements in each block but the last is a multiple of PIECE."""
COUNT = Record("source", "parts", "size", "each")
"""The argument block of the first step. It reads `size` f32, in blocks of `each` * PIECE elements.

Each block writes PART bytes to `parts`.
"""
SUM = Record("parts", "blocks", "counts", "extremes")
"""The argument block of the second step: it combines the results of `blocks` blocks."""
NEGATIVE_INFINITY = ~INFINITY
"""-inf as an s32 that compares like floats (see `numbers.observed.ordered`), as INFINITY does."""

LANES = 64
"""The elements per iteration of the search for extremes: four vectors of 16, independent of each other."""


@emits
def widen_extremes(b: Builder, source: Value, count: Value, extremes: Value) -> None:
    """Extend the range at `extremes` to include the `count` f32 at `source`.

    The range is two s32: the bits of the least and the greatest element in the order of `numbers.observed.ordered`.
    """
    wide = vector(I32, LANES)
    none = [constant(wide, INFINITY), constant(wide, NEGATIVE_INFINITY)]
    takes = smaller, larger

    def turn(vectors: list[Columns], so_far: list[Value]) -> list[Value]:
        (columns,) = vectors
        bits = columns.load(source, I32, 4)
        bits = (bits & 0x7FFFFFFF > INFINITY).select(NAN, bits)
        key = bits ^ ((bits >> 31) & 0x7FFFFFFF)
        return [take(columns.where(key, x), have) for take, x, have in zip(takes, none, so_far, strict=True)]

    for k, (take, x) in enumerate(zip(takes, over_columns(b, count, LANES, none, turn), strict=True)):
        take(fold(x, take), (extremes + 4 * k).load(I32)).store(extremes + 4 * k)


def histogram_block(counting: int) -> Functions:
    """Make the block function that finds a block's extremes and, if `counting`, counts its elements by bin."""

    def block(args: int, index: int) -> None:
        a = COUNT(args)
        source, table = a.source, a.parts + index * PART
        if counting:
            for k in range(TABLES * BINS):
                store_s32(table + 4 * k, 0)
        extremes = table + 4 * TABLES * BINS
        store_s32(extremes, INFINITY)
        store_s32(extremes + 4, NEGATIVE_INFINITY)
        first = index * a.each * PIECE
        # Process one piece at a time, because both loops below read it: it stays in the L1 cache.
        for start in range(first, min(first + a.each * PIECE, a.size), PIECE):
            end = min(start + PIECE, a.size)
            widen_extremes(source + 4 * start, end - start, extremes)
            if counting:
                for k in range(start, end):
                    bits = load_s32(source + 4 * k)
                    if bits & 0x7FFFFFFF > INFINITY:
                        bits = NAN
                    count = table + 4 * (((bits >> SHIFT) & (BINS - 1)) + (k & (TABLES - 1)) * BINS)
                    store_s32(count, load_s32(count) + 1)
        if counting:
            for k in range(BINS):  # add all tables to the first
                entry = table + 4 * k
                store_s32(entry, load_s32(entry) + load_s32(entry + 4 * BINS))

    return Functions(block=block, speed=3)


def histogram_sum(counting: int) -> Functions:
    """Make the block function that combines extremes and, if `counting`, adds the counts of all blocks."""

    def block(args: int, index: int) -> None:
        a = SUM(args)
        parts, counts = a.parts, a.counts
        low, high = INFINITY, NEGATIVE_INFINITY
        if counting:
            for k in range(BINS):
                store_s32(counts + 4 * k, 0)
        for part in range(a.blocks):
            table = parts + part * PART
            if counting:
                for k in range(BINS):
                    store_s32(counts + 4 * k, load_s32(counts + 4 * k) + load_s32(table + 4 * k))
            low = min(low, load_s32(table + 4 * TABLES * BINS))
            high = max(high, load_s32(table + 4 * TABLES * BINS + 4))
        store_s32(a.extremes, low ^ ((low >> 31) & 0x7FFFFFFF))
        store_s32(a.extremes + 4, high ^ ((high >> 31) & 0x7FFFFFFF))

    return Functions(block=block, speed=3)


def plan_histogram(size: int, target: Target, *, counting: bool = True) -> tuple[Step, Step]:
    """Plan the extremes of `size` f32 and, if `counting`, the histogram: a step for blocks, and a step to combine them.

    The caller fills in the address fields of COUNT and SUM; `parts` takes PART bytes per block.
    """
    how = int(counting)
    parts = largest(1, -(-size // PIECE))
    cycles = CYCLES if counting else 0.5
    # one block per thread, because the tables of a block take time
    worth = threads_for(target.threads, cycles * size)
    each = -(-parts // worth)
    blocks = -(-parts // each)
    count = modules.load("histogram_block", histogram_block, how, level=target.level.base, cache=target.cache).block
    add = modules.load("histogram_sum", histogram_sum, how, level=target.level.base, cache=target.cache).block
    return (Step("histogram_block", count, COUNT.named({"size": size, "each": each}), blocks,
                 pieces(blocks, worth, target.threads)),
            Step("histogram_sum", add, SUM.named({"blocks": blocks}), 1))


def histogram_steps(b: PlanBuilder, node: Node) -> None:
    """Add the two steps of a histogram. They skip the counts if nothing uses the counts."""
    (source,) = node.operands
    counts, extremes = node.outputs
    counted, added = plan_histogram(source.type.size, b.target, counting=bool(counts.uses))
    parts = Ref(b.temporary(PART * counted.blocks))
    words = {"counts": Ref(b.result(counts))} if counts.uses else {}
    b.run(counted, {"source": Ref(b.of[source]), "parts": parts})
    b.run(added, {"parts": parts, **words, "extremes": Ref(b.result(extremes))})

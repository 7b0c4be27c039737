"""Sum each row of activations over k: epilogues need these sums to correct for the zero points of weights."""
from __future__ import annotations

import operator

from graphq.kernels.jit import S32X16, Functions, Loop, emits, load_bytes, njit
from graphq.kernels.jit.intrinsics import Record, load_s64, store_s32
from graphq.kernels.jit.values import I8, I32, I64, Builder, Value, constant
from graphq.kernels.lanes.vector import Columns, fold, over_columns
from graphq.kernels.target.products import shift
from graphq.plan.plan import Step, Target, plan_rows

ROW_SUMS = Record("source", "table", "stride", "sums", "sums_bytes", "m", "k", "each", "flip")
"""The argument block of s32 sums over k of m rows. The field `each` is the number of sums per block.

The caller fills in the addresses of the activations, of the table of batch offsets (or 0), and of the sums. Each batch
element has `sums_bytes` bytes of sums. The caller may change `stride`, the bytes between rows or, for transposed
activations, between neighboring indices k. Each byte is xored with `flip`.
"""


def byte_sums(x: Value, signed: bool) -> Value:
    """Sum the four bytes of every s32 lane."""
    tops = [x << (24 - 8 * i) for i in range(4)]
    parts = [top >> 24 if signed else top.shr(24) for top in tops]
    return parts[0] + parts[1] + (parts[2] + parts[3])


@emits
def _sum_row(b: Builder, source: Value, k: Value, flip: Value) -> Value:
    flips = flip.trunc(I8).splat(64)

    def turn(vectors: list[Columns], have: list[Value]) -> list[Value]:
        (columns,) = vectors
        line = columns.where(columns.load(source, I8, 1) ^ flips, 0)
        return [have[0] + byte_sums(line.as_type(S32X16), signed=False)]

    (total,) = over_columns(b, k, 64, [constant(S32X16, 0)], turn)
    return fold(total, operator.add).sext(I64)


@emits
def _sum_columns(b: Builder, source: Value, stride: Value, k: Value, flip: Value, count: Value, target: Value) -> None:
    """Store the sums of `count` (at most 16) columns of `k` bytes; rows are `stride` bytes apart."""
    flips = flip.trunc(I8).splat(16)
    with Loop(b, k, [constant(S32X16, 0)]) as loop:
        line = load_bytes(source + loop.k * stride, count, 16)
        loop.update([loop.values[0] + (line ^ flips).zext(S32X16)])
    with Loop(b, count) as lane:
        total = loop.values[0].lane(lane.k.trunc(I32))
        total.store(target + lane.k * 4)


@njit
def offset(table: int, batch: int) -> int:
    """The byte offset of a batch element in a table; 0 if there is no table."""
    return load_s64(table + 8 * batch) if table else 0


@njit
def _store_row_sum(source: int, stride: int, k: int, flip: int, count: int, target: int) -> None:
    """Store the sum of one row; `stride` and `count` are unused."""
    store_s32(target, _sum_row(source, k, flip))


def sum_block(columns: int) -> Functions:
    """Make the block function that sums a row or, if `columns` (transposed activations), 16 columns at a time."""
    unit, sums = (16, _sum_columns) if columns else (1, _store_row_sum)

    def block(args: int, index: int) -> None:
        a = ROW_SUMS(args)
        m, k, each, flip = a.m, a.k, a.each, a.flip
        blocks = (m + each - 1) // each
        batch, first = index // blocks, index % blocks * each
        source, stride = a.source + offset(a.table, batch), a.stride
        target, last = a.sums + batch * a.sums_bytes, min(first + each, m)
        for i in range(first, last, unit):
            sums(source + (i if columns else i * stride), stride, k, flip, min(unit, last - i), target + 4 * i)

    return Functions(block=block)


def plan_row_sums(a_dtype: str, m: int, k: int, batch: int, target: Target, *, columns: bool = False,
              strip_rows: int | None = None) -> Step:
    """Plan the s32 sums over k of `m` rows of activations; 128 is added to each s8 element.

    If `columns`, the activations are transposed: k rows of m bytes. `strip_rows`, if given, is the number of sums of a
    block. The caller fills in the address fields of ROW_SUMS.
    """
    words = {"stride": m if columns else k, "sums_bytes": 4 * m, "m": m, "k": k, "flip": shift(a_dtype)}
    # measured: rows are summed at 33 GB/s, 0.1 cycles per byte
    return plan_rows(sum_block, ROW_SUMS, words, target, rows=m, cycles=k * (0.25 if columns else 0.1), batch=batch,
                     unit=16 if columns else 1, each=strip_rows, of=(int(columns),))

"""Sums of activations over k, which zero points of weights are multiplied with: of rows, and of transposed ones."""
from __future__ import annotations

from typing import Any

from graphq.kernels.jit.codegen import Functions
from graphq.kernels.jit.deferred import njit, types
from graphq.kernels.jit.intrinsics import I8, I32, I64, c64, intrinsic, load_s64, splat, store_s32
from graphq.kernels.jit.records import Record
from graphq.kernels.jit.registry import RowLoop, Step, Target, plan_rows
from graphq.kernels.jit.x86 import S32X16, Loop, at, filled, first, load, load_bytes, shuffle, store

SUMS = Record("source", "table", "stride", "sums", "sums_bytes", "m", "k", "each", "flip")
"""Sums of m rows over k: of s32, `sums_bytes` a batch element, of which a block has `each`.

The caller fills in the addresses of activations, of their table or 0, and of sums, and may change `stride`, the bytes
between rows (between k of transposed ones). Bytes are xored with `flip`.
"""
view = SUMS.view


def byte_sums(b: Any, x: Any, signed: bool) -> Any:
    """Sum the four bytes of every s32 lane."""
    up, top = filled(S32X16, 24), b.ashr if signed else b.lshr
    parts = [top(b.shl(x, filled(S32X16, 24 - 8 * i)), up) for i in range(4)]
    return b.add(b.add(parts[0], parts[1]), b.add(parts[2], parts[3]))


@intrinsic
def _sum_row(_typing: Any, source: Any, k: Any, flip: Any) -> Any:
    """Sum k bytes as u8, xor `flip`."""

    def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
        source, k, flip = args
        flips, lines = splat(b, b.trunc(flip, I8), 64), b.sdiv(k, c64(64))

        def sums(total: Any, line: Any) -> Any:
            return b.add(total, byte_sums(b, b.bitcast(line, S32X16), signed=False))

        with Loop(b, lines, [filled(S32X16, 0)]) as loop:
            line = load(b, at(b, source, b.mul(loop.k, c64(64))), flips.type)
            loop.update([sums(loop.values[0], b.xor(line, flips))])
        done = b.mul(lines, c64(64))
        left = b.sub(k, done)
        with Loop(b, b.zext(b.icmp_signed(">", left, c64(0)), I64), loop.values) as last:
            line = b.xor(load_bytes(b, at(b, source, done), left), flips)
            last.update([sums(last.values[0], b.select(first(b, left, 64), line, filled(flips.type, 0)))])
        total = last.values[0]
        for half in (8, 4, 2, 1):
            total = b.add(*(shuffle(b, total, total, list(range(start, start + half))) for start in (0, half)))
        return b.sext(b.extract_element(total, I32(0)), I64)

    return types.intp(*[types.intp] * 3), codegen


@intrinsic
def _sum_columns(_typing: Any, source: Any, stride: Any, k: Any, flip: Any, count: Any, target: Any) -> Any:
    """Store the sums over `k` rows, `stride` bytes apart, of `count` (at most 16) columns of u8, xor `flip`."""

    def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
        source, stride, k, flip, count, target = args
        flips = splat(b, b.trunc(flip, I8), 16)
        with Loop(b, k, [filled(S32X16, 0)]) as loop:
            line = load_bytes(b, at(b, source, b.mul(loop.k, stride)), count, 16)
            loop.update([b.add(loop.values[0], b.zext(b.xor(line, flips), S32X16))])
        with Loop(b, count) as lane:
            total = b.extract_element(loop.values[0], b.trunc(lane.k, I32))
            store(b, total, at(b, target, b.mul(lane.k, c64(4))))
        return context.get_dummy_value()

    return types.void(*[types.intp] * 6), codegen


@njit
def offset(table: int, batch: int) -> int:
    """Look up the byte offset of a batch element; 0 without a table."""
    return load_s64(table + 8 * batch) if table else 0


@njit
def _store_row_sum(source: int, stride: int, k: int, flip: int, count: int, target: int) -> None:
    """Store the sum of one row; `stride` and `count` are those of `_sum_columns`."""
    store_s32(target, _sum_row(source, k, flip))


def _sum_blocks(sums: Any, unit: int, columns: bool) -> Functions:
    """The block function of `sums`, which takes `unit` rows at a time, or `columns` of transposed activations."""

    def block(args: int, index: int) -> None:
        a = view(args)
        m, k, each, flip = a.m, a.k, a.each, a.flip
        blocks = (m + each - 1) // each
        batch, first = index // blocks, index % blocks * each
        source, stride = a.source + offset(a.table, batch), a.stride
        target, last = a.sums + batch * a.sums_bytes, min(first + each, m)
        for i in range(first, last, unit):
            sums(source + (i if columns else i * stride), stride, k, flip, min(unit, last - i), target + 4 * i)

    return Functions(block=block)


def row_sum_block() -> Functions:
    """Make the block function that sums rows of activations."""
    return _sum_blocks(_store_row_sum, 1, False)


def column_sum_block() -> Functions:
    """Make the block function that sums columns of activations."""
    return _sum_blocks(_sum_columns, 16, True)


def plan_row_sums(a_dtype: str, m: int, k: int, batch: int, target: Target) -> Step:
    """Plan the s32 sums over k of activations as kernels take them (s8: a + 128), for the caller to complete SUMS."""
    words = {"stride": k, "sums_bytes": 4 * m, "m": m, "k": k, "flip": 0x80 if a_dtype == "s8" else 0}
    return plan_rows(RowLoop(row_sum_block, SUMS, m, k * 0.1, batch), words, target)  # 33 GB/s


def plan_column_sums(a_dtype: str, m: int, k: int, batch: int, target: Target) -> Step:
    """Plan the same sums of transposed activations, k rows of m bytes."""
    words = {"stride": m, "sums_bytes": 4 * m, "m": m, "k": k, "flip": 0x80 if a_dtype == "s8" else 0}
    return plan_rows(RowLoop(column_sum_block, SUMS, m, k * 0.25, batch, unit=16), words, target)

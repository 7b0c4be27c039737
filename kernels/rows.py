"""Kernels on rows of bytes: sums of activations over k, and copies that transpose."""
from __future__ import annotations

from typing import Any

from numba import njit, types

from graphq.kernels.intrinsics import I8, I32, I64, c64, intrinsic, load_s64, load_u8, splat, store_s32, store_u8, word
from graphq.kernels.registry import Step, plan_rows
from graphq.kernels.x86 import S32X16, Loop, at, filled, load, shuffle, store, vector


def byte_sums(b: Any, x: Any, signed: bool) -> Any:
    """Sum the four bytes of every s32 lane."""
    up, top = filled(S32X16, 24), b.ashr if signed else b.lshr
    parts = [top(b.shl(x, filled(S32X16, 24 - 8 * i)), up) for i in range(4)]
    return b.add(b.add(parts[0], parts[1]), b.add(parts[2], parts[3]))


@intrinsic
def _sum_lines(_typing: Any, source: Any, lines: Any, flip: Any) -> Any:
    """Sum `lines` times 64 bytes as u8, xor `flip`."""

    def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
        source, lines, flip = args
        flips = b.bitcast(splat(b, b.trunc(flip, I8), 64), S32X16)
        with Loop(b, lines, [filled(S32X16, 0)]) as loop:
            x = b.xor(load(b, at(b, source, b.mul(loop.k, c64(64))), S32X16), flips)
            loop.update([b.add(loop.values[0], byte_sums(b, x, signed=False))])
        total = I32(0)
        for lane in range(16):
            total = b.add(total, b.extract_element(loop.values[0], I32(lane)))
        return b.sext(total, I64)

    return types.intp(*[types.intp] * 3), codegen


@intrinsic
def _transpose_bytes(_typing: Any, source: Any, stride: Any, target: Any, step: Any) -> Any:
    """Transpose 16 x 16 bytes: rows `stride` apart to rows `step` apart."""

    def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
        source, stride, target, step = args
        rows = [load(b, at(b, source, b.mul(stride, c64(i))), vector(I8, 16)) for i in range(16)]
        halves = [[x for i in range(start, start + 8) for x in (i, i + 16)] for start in (0, 8)]
        for _ in range(4):  # four perfect shuffles of 16 rows transpose them
            rows = [shuffle(b, rows[i], rows[i + 8], half) for i in range(8) for half in halves]
        for i, row in enumerate(rows):
            store(b, row, at(b, target, b.mul(step, c64(i))))
        return context.get_dummy_value()

    return types.void(*[types.intp] * 4), codegen


@njit
def offset(table: int, batch: int) -> int:
    """Look up the byte offset of a batch element; 0 without a table."""
    return load_s64(table + 8 * batch) if table else 0


@njit(error_model="numpy")
def row_sum_block(args: int, index: int) -> None:
    """Sum rows of activations. Words as in `plan_row_sums`."""
    m, k, each, flip = word(args, 6), word(args, 7), word(args, 8), word(args, 9)
    blocks = (m + each - 1) // each
    batch, first = index // blocks, index % blocks * each
    source, stride = word(args, 0) + offset(word(args, 1), batch), word(args, 2)
    target = word(args, 3) + batch * word(args, 4)
    for i in range(first, min(first + each, m)):
        total = _sum_lines(source + i * stride, k // 64, flip)
        for j in range(k // 64 * 64, k):
            total += load_u8(source + i * stride + j) ^ flip
        store_s32(target + 4 * i, total)


@njit(error_model="numpy")
def copy_block(args: int, index: int) -> None:
    """Copy rows of bytes from any strides. Words as in `plan_copy`."""
    m, n, each = word(args, 7), word(args, 8), word(args, 9)
    blocks = (m + each - 1) // each
    batch, first = index // blocks, index % blocks * each
    source, along_m, along_n = word(args, 0) + offset(word(args, 1), batch), word(args, 2), word(args, 3)
    target = word(args, 4) + batch * word(args, 5)
    last = min(first + each, m)
    for top in range(first, last, 16):
        for left in range(0, n, 16):
            x, y = source + top * along_m + left * along_n, target + top * n + left
            if along_m == 1 and top + 16 <= last and left + 16 <= n:
                _transpose_bytes(x, along_n, y, n)
                continue
            for i in range(min(16, last - top)):
                for j in range(min(16, n - left)):
                    store_u8(y + i * n + j, load_u8(x + i * along_m + j * along_n))


def plan_row_sums(a_dtype: str, m: int, k: int, *, batch: int = 1, threads: int = 1, cache: bool = True) -> Step:
    """Plan the s32 sums over k of activations as kernels take them (s8: a + 128). The caller fills in words 0 to 4:

        0 a   1 table of a or 0   2 bytes between rows   3 sums   4 bytes of sums a batch element

    then 5 batch, 6 m, 7 k, 8 rows a block, 9 what bytes are xored with.
    """
    flip = 0x80 if a_dtype == "s8" else 0
    return plan_rows("graphq.kernels.rows", "row_sum_block", m, batch, threads, cache,
                     lambda each: (0, 0, k, 0, 4 * m, batch, m, k, each, flip), cycles=k * 0.1)  # 33 GB/s


def plan_copy(m: int, n: int, *, batch: int = 1, threads: int = 1, cache: bool = True) -> Step:
    """Plan a copy of m x n bytes from any strides into dense rows. The caller fills in words 0 to 5:

        0 source   1 table of source or 0   2 bytes between rows   3 bytes between columns   4 target
        5 bytes of target a batch element

    then 6 batch, 7 m, 8 n, 9 rows a block.
    """
    return plan_rows("graphq.kernels.rows", "copy_block", m, batch, threads, cache,
                     lambda each: (0, 0, n, 1, 0, m * n, batch, m, n, each), cycles=n * 0.2,  # 18 GB/s
                     unit=16)

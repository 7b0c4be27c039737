"""Kernels for integers: casts, and arithmetic, comparisons and row sums in 32 and 64 bits.

Conversions to f32 round to nearest even. The code is the same at every ISA level. Operands and results are viewed as
rows and columns; along a broadcast axis, an operand's stride is 0.
"""
from __future__ import annotations

from collections.abc import Sequence

from llvmlite import ir

from graphq.dtypes import DType, boolean, f32
from graphq.kernels.jit import Functions, Loop, block_module, njit
from graphq.kernels.jit.intrinsics import Record, load_s32, load_s64, store_s32, store_s64, store_u8
from graphq.kernels.jit.values import F32, I8, Builder, Value, c64, smaller, vector
from graphq.kernels.operands.space import broadcast_strides, merge_last
from graphq.plan.plan import Step, Target, plan_rows

LANES = 16
CAST = Record("source", "target", "size", "each")
"""The argument block of a cast of `size` elements, `each` per block. The caller fills in the address fields."""
TO_BOOLEAN, TO_INTEGER, TO_F32 = range(3)


def fits(source: DType, target: DType) -> bool:
    """Whether the cast kernel converts dtype `source` to dtype `target`."""
    wide = all(d.bits == 8 * d.itemsize or d == boolean for d in (source, target))
    return wide and source.kind != "float" and (target.kind != "float" or target == f32)


@block_module
def converting(b: Builder, args: Value, index: Value, *, source_bits: int, signed: int, how: int,
               target_bits: int) -> None:
    """Cast integers; `how` says whether results are integers, booleans or f32."""
    source_type = ir.IntType(source_bits)
    result = F32 if how == TO_F32 else ir.IntType(target_bits)

    def convert(x: Value, lanes: int) -> Value:
        if how == TO_BOOLEAN:
            return x.ne(0).zext(vector(I8, lanes))
        if how == TO_F32:
            return (b.sitofp if signed else b.uitofp)(x, vector(F32, lanes))
        if target_bits <= source_bits:
            return x.trunc(vector(result, lanes)) if target_bits < source_bits else x
        return (b.sext if signed else b.zext)(x, vector(result, lanes))

    source, target, size, each = (CAST.load(args, x) for x in ("source", "target", "size", "each"))
    first = index * each
    count, done = smaller(each, size - first), c64(0)
    for lanes in (LANES, 1):
        with Loop(b, (count - done) // lanes) as loop:
            k = first + done + loop.k * lanes
            x = (source + k * (source_bits // 8)).load(vector(source_type, lanes))
            convert(x, lanes).store(target + k * (target_bits // 8))
        done = count // LANES * LANES


def plan_cast(source: DType, result: DType, size: int, target: Target) -> Step:
    """Plan the cast of `size` elements, for dtypes that `fits` accepts. The caller fills in CAST's addresses."""
    how = TO_BOOLEAN if result == boolean else TO_F32 if result == f32 else TO_INTEGER
    signed = int(source.kind == "int" and source.min < 0)
    of = 8 * source.itemsize, signed, how, 8 * result.itemsize
    return plan_rows(converting, CAST, {"size": size}, target, rows=size, cycles=1, unit=LANES, of=of)


COMBINE = Record("target", "a", "b", "rows", "columns", "a_row", "a_column", "b_row", "b_column", "each")
"""The argument block of a function of two operands: `rows` rows of `columns` results, `each` rows per block.

`a_row`, `a_column`, `b_row` and `b_column` are the bytes between rows and between columns of the operands a and b. The
caller fills in the address fields.
"""
SUM = Record("source", "target", "rows", "columns", "each")
"""The argument block of sums: `rows` rows of `columns` integers, `each` rows per block."""

ARITHMETIC = {"add": njit(lambda x, y: x + y), "subtract": njit(lambda x, y: x - y),
              "multiply": njit(lambda x, y: x * y), "maximum": njit(lambda x, y: max(x, y)),
              "minimum": njit(lambda x, y: min(x, y))}
COMPARISONS = {"less": njit(lambda x, y: int(x < y)), "less_equal": njit(lambda x, y: int(x <= y)),
               "greater": njit(lambda x, y: int(x > y)), "equal": njit(lambda x, y: int(x == y))}


def combining(function: str, bits: int) -> Functions:
    """Make the block function that applies `function` to integers of `bits` bits."""
    load, store, width = (load_s32, store_s32, 4) if bits == 32 else (load_s64, store_s64, 8)
    if function in COMPARISONS:
        store, width = store_u8, 1
    combined = (ARITHMETIC | COMPARISONS)[function]

    def block(args: int, index: int) -> None:
        p = COMBINE(args)
        columns, a_column, b_column = p.columns, p.a_column, p.b_column
        for i in range(index * p.each, min(index * p.each + p.each, p.rows)):
            a, b, target = p.a + i * p.a_row, p.b + i * p.b_row, p.target + i * columns * width
            for j in range(columns):
                store(target + j * width, combined(load(a + j * a_column), load(b + j * b_column)))

    return Functions(block=block)


def summing(bits: int) -> Functions:
    """Make the block function that sums rows of integers of `bits` bits; the sums wrap around."""
    load, store, width = (load_s32, store_s32, 4) if bits == 32 else (load_s64, store_s64, 8)

    def block(args: int, index: int) -> None:
        p = SUM(args)
        columns = p.columns
        for i in range(index * p.each, min(index * p.each + p.each, p.rows)):
            source, total = p.source + i * columns * width, 0
            for j in range(columns):
                total += load(source + j * width)
            store(p.target + i * width, total)

    return Functions(block=block)


def plan_combined(function: str, dtype: DType, dims: Sequence[Sequence[int]], result: Sequence[int],
                  target: Target) -> Step | None:
    """Plan a function of two operands with shapes `dims`; None if rows or columns are not evenly spaced."""
    strides = [broadcast_strides(d, result, dtype.itemsize) for d in dims]
    axes = [(d, tuple(of)) for d, *of in zip(result, *strides, strict=True) if d != 1]
    columns, (a_column, b_column) = merge_last(axes) if axes else (1, (0, 0))
    rows, (a_row, b_row) = merge_last(axes) if axes else (1, (0, 0))
    if axes:
        return None
    words = {"rows": rows, "columns": columns, "a_row": a_row, "a_column": a_column, "b_row": b_row,
             "b_column": b_column}
    return plan_rows(combining, COMBINE, words, target, rows=rows, cycles=10 + columns, of=(function, dtype.bits))

"""Kernel on rows of bytes: copy them with a margin of one value before and after each."""
from __future__ import annotations

from typing import Any

from llvmlite import ir

from graphq.kernels.jit.codegen import Functions
from graphq.kernels.jit.deferred import types
from graphq.kernels.jit.intrinsics import BYTES, I1, I8, I64, declare, intrinsic, load_u8, pointer
from graphq.kernels.jit.records import Record
from graphq.plan.step import Step, Target, plan_rows

PAD = Record("source", "target", "length", "before", "after", "value", "rows", "each", "value_at")
"""`rows` of `length` bytes, `each` a block; `value_at` is the address of the value instead, or 0."""
view = PAD.view


@intrinsic
def copy_bytes(_typing: Any, source: Any, target: Any, count: Any) -> Any:
    """Copy `count` bytes between memory that does not overlap."""

    def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
        source, target, count = args
        kinds = [BYTES, BYTES, I64, I1]
        copy = declare(b, "llvm.memcpy.p0.p0.i64", ir.VoidType(), kinds)
        b.call(copy, [pointer(b, target, I8), pointer(b, source, I8), count, I1(0)])
        return context.get_dummy_value()

    return types.void(*[types.intp] * 3), codegen


@intrinsic
def fill_bytes(_typing: Any, target: Any, value: Any, count: Any) -> Any:
    """Set `count` bytes to the low byte of `value`."""

    def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
        target, value, count = args
        fill = declare(b, "llvm.memset.p0.i64", ir.VoidType(), [BYTES, I8, I64, I1])
        b.call(fill, [pointer(b, target, I8), b.trunc(value, I8), count, I1(0)])
        return context.get_dummy_value()

    return types.void(*[types.intp] * 3), codegen


def pad_rows_block() -> Functions:
    """Make the block function that copies rows into wider ones."""

    def block(args: int, index: int) -> None:
        a = view(args)
        source, target, length, before, after, value = a.source, a.target, a.length, a.before, a.after, a.value
        if a.value_at:
            value = load_u8(a.value_at)
        for i in range(index * a.each, min(index * a.each + a.each, a.rows)):
            row = target + i * (before + length + after)
            fill_bytes(row, value, before)
            copy_bytes(source + i * length, row + before, length)
            fill_bytes(row + before + length, value, after)

    return Functions(block=block)


def plan_pad_rows(rows: int, length: int, before: int, after: int, value: int, target: Target) -> Step:
    """Plan a copy of dense rows of `length` bytes into rows with `before` and `after` bytes of `value` around each.

    The caller fills in the addresses of PAD.
    """
    words = {"length": length, "before": before, "after": after, "value": value, "rows": rows}
    return plan_rows(pad_rows_block, PAD, words, target, rows=rows, cycles=20 + length * 0.2)

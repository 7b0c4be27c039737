"""Kernel on rows of bytes: copy them with a margin of one value before and after each."""
from __future__ import annotations

from typing import Any

from llvmlite import ir

from graphq.kernels.jit.codegen import Functions
from graphq.kernels.jit.deferred import types
from graphq.kernels.jit.intrinsics import BYTES, I1, I8, I64, declare, intrinsic, load_u8, pointer, word
from graphq.kernels.jit.registry import Step, plan_rows


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
    """Make the block function that copies rows into wider ones. Words as in `plan_pad_rows`."""

    def block(args: int, index: int) -> None:
        rows, length, before, after, value, each = (word(args, 6), word(args, 2), word(args, 3), word(args, 4),
                                                    word(args, 5), word(args, 7))
        if word(args, 8):
            value = load_u8(word(args, 8))
        for i in range(index * each, min(index * each + each, rows)):
            target = word(args, 1) + i * (before + length + after)
            fill_bytes(target, value, before)
            copy_bytes(word(args, 0) + i * length, target + before, length)
            fill_bytes(target + before + length, value, after)

    return Functions(block=block)


def plan_pad_rows(rows: int, length: int, before: int, after: int, value: int, *, threads: int = 1,
                  cache: bool = True) -> Step:
    """Plan a copy of dense rows of `length` bytes into rows with `before` and `after` bytes of `value` around each.

    The caller fills in words 0 source and 1 target; then 2 length, 3 before, 4 after, 5 value, 6 rows, 7 rows a block,
    8 the address of the value instead, or 0.
    """
    return plan_rows(pad_rows_block, rows, 1, threads, cache,
                     lambda each: (0, 0, length, before, after, value, rows, each, 0), cycles=20 + length * 0.2)

"""Write the padding of convolutions: constants, or a zero point that is known only at run time."""
from __future__ import annotations

import numpy as np
from llvmlite import ir

from graphq.base.sizes import number, recorded
from graphq.ir import Node
from graphq.kernels.conv.lower import Convolution, IntegerConvolution
from graphq.kernels.jit import block_module, emits
from graphq.kernels.jit.intrinsics import Record, load_u8
from graphq.kernels.jit.values import I1, I8, Builder, Value, constant
from graphq.kernels.operands.windows import WINDOWS
from graphq.plan.builder import PlanBuilder
from graphq.plan.plan import Ref, Step, Target, plan_rows

PAD = Record("source", "target", "length", "before", "after", "value", "rows", "each", "value_at")
"""The argument block: `rows` rows of `length` bytes, copied into rows with margins of `before` and `after` bytes.

`each` is the number of rows per block. Margins have the byte `value`. If the byte is known only at run time, it lies
at `value_at`; otherwise `value_at` is 0.
"""


@emits
def copy_bytes(b: Builder, source: Value, target: Value, count: Value) -> None:
    """Copy `count` bytes between memory ranges that do not overlap."""
    b.call_named("llvm.memcpy.p0.p0.i64", ir.VoidType(), target.pointer(I8), source.pointer(I8), count, constant(I1, 0))


@emits
def fill_bytes(b: Builder, target: Value, value: Value, count: Value) -> None:
    """Set `count` bytes to the low byte of `value`."""
    b.call_named("llvm.memset.p0.i64", ir.VoidType(), target.pointer(I8), value.trunc(I8), count, constant(I1, 0))


@block_module
def pad_rows_block(args: int, index: int) -> None:
    """Copy rows into rows with margins."""
    a = PAD(args)
    source, target, length, before, after, value = a.source, a.target, a.length, a.before, a.after, a.value
    if a.value_at:
        value = load_u8(a.value_at)
    for i in range(index * a.each, min(index * a.each + a.each, a.rows)):
        row = target + i * (before + length + after)
        fill_bytes(row, value, before)
        copy_bytes(source + i * length, row + before, length)
        fill_bytes(row + before + length, value, after)


def plan_pad_rows(rows: int, length: int, before: int, after: int, value: int, target: Target) -> Step:
    """Plan a copy of adjacent rows into rows with margins. The caller fills in the address fields of PAD."""
    words = {"length": length, "before": before, "after": after, "value": value, "rows": rows}
    return plan_rows(pad_rows_block, PAD, words, target, rows=rows, cycles=20 + length * 0.2)


def pad_address(b: PlanBuilder, node: Node, c: Convolution) -> int | Ref:
    """The address of the padding's byte, a zero point known only at run time; 0 if the padding is a constant."""
    if not isinstance(c, IntegerConvolution) or c.a_zp.data is not None:
        return 0
    return Ref(b.of[node.operand(c.a_zp.index)])


def padding_block(b: PlanBuilder, node: Node, c: Convolution, block: np.ndarray) -> int:
    """Make the buffer of the im2col tables `block` (see `Windows.block`), whose last row is a padding pixel.

    If the padding is known only at run time, a step copies the tables and fills this row.
    """
    constant, value = b.constant(block), pad_address(b, node, c)
    if value == 0:
        return constant
    tables, nbytes = number(_tables_bytes, block), b.buffers[constant].nbytes
    out = b.temporary(nbytes)
    step = plan_pad_rows(1, tables, 0, nbytes - tables, 0, b.target)
    b.run(step, {"source": Ref(constant), "target": Ref(out), "value_at": value})
    return out


@recorded("padding.tables_bytes")
def _tables_bytes(block: np.ndarray) -> int:
    return int(block[WINDOWS.number("pad_row")])

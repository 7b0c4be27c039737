"""Compute the scale and zero point of an f32 tensor from its range, for the operation `dynamic_range`.

A first step finds the extremes of each block: top = max(x, 0) and low = min(x, 0), or NaN if an element is NaN. A
second step combines the extremes, and computes scale and zero point as in ONNX's DynamicQuantizeLinear:

    scale = (top - low) / 255, or 1 / 255 if both are 0
    zero point = rint(clip(-low / scale, 0, 255)), or 0 for NaN

The result is the same for any number of threads, because extremes do not depend on the order of the search.
"""
from __future__ import annotations

import operator

from graphq.base.sizes import largest
from graphq.kernels.jit import Loop, block_module, emits, modules
from graphq.kernels.jit.intrinsics import Record
from graphq.kernels.jit.values import F32, I8, I32, Builder, Value, constant, larger, smaller, vector
from graphq.kernels.lanes.vector import Columns, fold, over_columns
from graphq.plan.plan import Step, Target, plan_rows

LANES = 64
"""The elements per iteration: four vectors of 16, independent of each other."""
PIECE = 1024
"""The number of elements in each block but the last is a multiple of PIECE."""
RANGE = Record("source", "extremes", "each", "count")
"""The argument block of the first step. It reads `count` f32, in blocks of `each` * PIECE elements.

Each block stores two f32, top and low, at `extremes`.
"""
SCALE = Record("extremes", "blocks", "scale", "zero_point")
"""The argument block of the second step. It reads the extremes of `blocks` blocks, and stores an f32 and a u8."""


@emits
def extremes(b: Builder, source: Value, count: Value, target: Value) -> None:
    """Store max(x, 0) and min(x, 0) over `count` f32 at `source`; both are NaN if an element is NaN."""
    wide = vector(F32, LANES)
    zero, none = constant(wide, 0), constant(vector(I32, LANES), 0)

    def turn(vectors: list[Columns], so_far: list[Value]) -> list[Value]:
        (x,), (top, low, nan) = (columns.load(source, F32, 4) for columns in vectors), so_far
        # The comparisons ignore a NaN in x, so `nan` records it: in 32 bits, as CPUs without masks compare.
        return [larger(x, top), smaller(x, low), nan | b.fcmp_unordered("uno", x, x).sext(none.type)]

    found = over_columns(b, count, LANES, [zero, zero, none], turn)
    top, low, nan = (fold(x, take) for x, take in zip(found, (larger, smaller, operator.or_), strict=True))
    for k, x in enumerate((top, low)):
        nan.ne(0).select(float("nan"), x).store(target + 4 * k)


@block_module
def extremes_block(args: int, index: int) -> None:
    """Run the first step."""
    a = RANGE(args)
    first = index * a.each * PIECE
    extremes(a.source + 4 * first, min(a.each * PIECE, a.count - first), a.extremes + 8 * index)


@emits
def scale_of(b: Builder, extremes: Value, count: Value, scale: Value, zero_point: Value) -> None:
    """Store the scale and the zero point for `count` pairs of extremes."""
    zero = constant(F32, 0.0)

    def further(sign: str, so_far: Value, x: Value) -> Value:
        # A NaN wins: the result is so_far if so_far is NaN or the comparison holds, otherwise x.
        nan = b.fcmp_unordered("uno", so_far, so_far)
        return (nan | b.fcmp_ordered(sign, so_far, x)).select(so_far, x)

    with Loop(b, count, [zero, zero]) as loop:
        pair = extremes + loop.k * 8
        loop.update([further(sign, so_far, (pair + 4 * k).load(F32))
                     for k, (sign, so_far) in enumerate(zip("><", loop.values, strict=True))])
    top, low = loop.values
    same = top.eq(low)
    s = same.select(1.0, top - low) / 255.0
    z = zero - low / s
    z = smaller(larger(z, zero), 255.0)  # NaN becomes 0
    z = z.math("rint")
    s.store(scale)
    b.fptoui(z, I8).store(zero_point)


@block_module
def scale_block(args: int, index: int) -> None:
    """Run the second step."""
    a = SCALE(args)
    scale_of(a.extremes, a.blocks, a.scale, a.zero_point)


def plan_range(count: int, target: Target) -> tuple[Step, Step]:
    """Plan the two steps for `count` f32. The caller fills in the address fields of RANGE and SCALE."""
    pieces = largest(1, -(-count // PIECE))
    extremes_step = plan_rows(extremes_block, RANGE, {"count": count}, target, rows=pieces, cycles=PIECE / 8)
    module = modules.load("scale_block", scale_block, level=target.level.base, cache=target.cache)
    return extremes_step, Step("scale_block", module.block, SCALE.named({"blocks": extremes_step.blocks}), 1)

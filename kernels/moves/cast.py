"""The kernel of casts from integers and booleans: to integers (which wrap), to booleans (x != 0), and to f32.

Conversions to f32 round to nearest even. The code is plain vector IR, the same at every ISA level.
"""
from __future__ import annotations

from llvmlite import ir

from graphq.dtypes import DType, boolean, f32
from graphq.kernels.jit.codegen import Functions
from graphq.kernels.jit.deferred import emits
from graphq.kernels.jit.records import Record
from graphq.kernels.jit.values import F32, I8, Builder, Value, c64, vector
from graphq.kernels.jit.x86 import Loop
from graphq.plan.step import Step, Target, plan_rows

LANES = 16
CAST = Record("source", "target", "size", "each")
"""The argument block of a cast of `size` elements, `each` in a block. The caller fills in the addresses."""
view = CAST.view
TO_BOOLEAN, TO_INTEGER, TO_F32 = range(3)


def fits(source: DType, target: DType) -> bool:
    """Whether the kernel converts elements of dtype `source` to dtype `target`."""
    wide = all(d.bits == 8 * d.itemsize or d == boolean for d in (source, target))
    return wide and source.kind != "float" and (target.kind != "float" or target == f32)


def converting(source_bits: int, signed: int, how: int, target_bits: int) -> Functions:
    """Make the block function of a cast from integers of `source_bits` bits.

    `how` says what the result is: integers of `target_bits` bits, booleans, or f32.
    """
    source_type = ir.IntType(source_bits)
    result = F32 if how == TO_F32 else ir.IntType(target_bits)

    def convert(b: Builder, x: Value, lanes: int) -> Value:
        if how == TO_BOOLEAN:
            return x.ne(0).zext(vector(I8, lanes))
        if how == TO_F32:
            return (b.sitofp if signed else b.uitofp)(x, vector(F32, lanes))
        if target_bits <= source_bits:
            return x.trunc(vector(result, lanes)) if target_bits < source_bits else x
        return (b.sext if signed else b.zext)(x, vector(result, lanes))

    @emits
    def elements(b: Builder, source: Value, target: Value, count: Value) -> None:
        done = c64(0)
        for lanes in (LANES, 1):
            with Loop(b, (count - done) // lanes) as loop:
                k = done + loop.k * lanes
                x = (source + k * (source_bits // 8)).load(vector(source_type, lanes))
                convert(b, x, lanes).store(target + k * (target_bits // 8))
            done = count // LANES * LANES

    def block(args: int, index: int) -> None:
        a = view(args)
        first = index * a.each
        elements(a.source + first * (source_bits // 8), a.target + first * (target_bits // 8),
                 min(a.each, a.size - first))

    return Functions(block=block)


def plan_cast(source: DType, result: DType, size: int, target: Target) -> Step:
    """Plan the conversion of `size` elements, for which `fits` holds; the caller fills in the addresses of CAST."""
    how = TO_BOOLEAN if result == boolean else TO_F32 if result == f32 else TO_INTEGER
    signed = int(source.kind == "int" and source.min < 0)
    of = 8 * source.itemsize, signed, how, 8 * result.itemsize
    return plan_rows(converting, CAST, {"size": size}, target, rows=size, cycles=1, unit=LANES, of=of)

"""Emit x86 instructions, or emulations with the same results in plain LLVM IR.

`b` is the IR builder, and addresses are 64-bit integers. With `emulated`, a kernel runs slowly on CPUs that lack the
instruction, so every machine can test every kernel. LLVM changes the operand types of its intrinsics between releases
(vpdpbusd takes <64 x i8> operands now). This file uses the old types, and LLVM upgrades them when it parses the module.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence

from llvmlite import ir

from graphq.kernels.jit.values import I8, I16, I32, Builder, Type, Value, constant, vector

DENORMALS_ARE_ZERO, FLUSH_TO_ZERO = 1 << 6, 1 << 15
"""Bits of the register MXCSR: take subnormal operands as zeros, and flush subnormal results to zero."""


def instruction(b: Builder, name: str, result: Type, args: Sequence[Value]) -> Value:
    """Call LLVM's intrinsic `llvm.x86.<name>`."""
    return b.call_named(f"llvm.x86.{name}", result, *args)


def dot_u8s8(b: Builder, acc: Value, a: Value, w: Value, emulated: bool = False, signed: bool = False) -> Value:
    """Emit vpdpbusd: add sums of four u8 * s8 products to `acc`, a vector of 16, 8 or 4 s32 lanes.

    `a` and `w` are vectors of bytes. Sums wrap. For 8 lanes, LLVM chooses the AVX-VNNI or AVX-512 encoding by the CPU's
    features. With `signed` (only if `emulated`), `a` is s8, as for tdpbssd.
    """
    if not emulated:
        return instruction(b, f"avx512.vpdpbusd.{32 * acc.type.count}", acc.type, [acc, a, w])
    for byte in range(4):
        left = 24 - 8 * byte
        x = (a << left) >> 24 if signed else (a << left).shr(24)
        acc = acc + x * ((w << left) >> 24)
    return acc


def dot_bf16(b: Builder, acc: Value, x: Value, w: Value) -> Value:
    """Emit vdpbf16ps for 16 or 8 lanes: acc = fma(x low, w low, fma(x high, w high, acc)).

    low and high are the bf16 halves of 32-bit words. Subnormal operands, and subnormal results of either fma, count as
    zeros of their sign.
    """
    return instruction(b, f"avx512bf16.dpbf16ps.{32 * acc.type.count}", acc.type, [acc, x, w])


def flushing(b: Builder, emit: Callable[[], Sequence[Value]]) -> list[Value]:
    """Run `emit`, and make its code take subnormal operands and results as zeros. `emit` returns vectors of f32.

    Two bits of MXCSR do this, but LLVM does not know about them. Inline assembly before and after the code keeps the
    code's operations in between: no load moves across the first, and the results pass through the second.
    """
    with b.goto_entry_block():
        before, within = (b.alloca(I32) for _ in range(2))
    nothing = ir.VoidType()

    def control(instruction: str, place: Value) -> None:
        kind = ir.FunctionType(nothing, [place.type])
        b.call(ir.InlineAsm(kind, f"{instruction} ($0)", "r,~{memory}", side_effect=True), [place])

    control("stmxcsr", before)
    b.store(b.load(before) | DENORMALS_ARE_ZERO | FLUSH_TO_ZERO, within)
    control("ldmxcsr", within)
    results = []
    for x in emit():
        kind = ir.FunctionType(x.type, [x.type])
        results.append(b.call(ir.InlineAsm(kind, "", "=v,0", side_effect=True), [x]))
    control("ldmxcsr", before)
    return results


def flipped(b: Builder, x: Value, bits: int, emulated: bool = False) -> Value:
    """Emit vpxord of a vector of s32 with the constant `bits`.

    The instruction is inline assembly, because LLVM would flip scalars before it broadcasts them. That takes two
    instructions more than a broadcast from memory. On Zen 4, tiles of 24 x 16 become 1.8 times as fast, tiles of 12 x
    32 1.3 times.
    """
    if emulated:
        return x ^ bits
    wide = x.type.count == 16
    kind = ir.FunctionType(x.type, [x.type, x.type])
    text, place = ("vpxord $2, $1, $0", "v") if wide else ("vpxor $2, $1, $0", "x")
    return b.call(ir.InlineAsm(kind, text, f"={place},{place},{place}"), [x, constant(x.type, bits)])


def madd16(b: Builder, a: Value, w: Value, emulated: bool = False) -> Value:
    """Emit vpmaddwd: s32 sums of two neighboring s16 products. `a` and `w` are vectors of 16 or 32 s16."""
    lanes = a.type.count // 2
    s32 = vector(I32, lanes)
    if not emulated:
        name = "avx512.pmaddw.d.512" if lanes == 16 else "avx2.pmadd.wd"
        return instruction(b, name, s32, [a, w])
    a, w = a.as_type(s32), w.as_type(s32)
    low = ((a << 16) >> 16) * ((w << 16) >> 16)
    return low + (a >> 16) * (w >> 16)


def madd8(b: Builder, a: Value, w: Value, emulated: bool = False) -> Value:
    """Emit vpmaddubsw: s16 sums of two neighboring u8 * s8 products. The sums saturate."""
    s16 = vector(I16, 2 * a.type.count)
    if not emulated:
        name = "avx512.pmaddubs.w.512" if a.type.count == 16 else "avx2.pmadd.ub.sw"
        return instruction(b, name, s16, [x.as_type(vector(I8, 2 * s16.count)) for x in (a, w)])
    a, w = a.as_type(s16), w.as_type(s16)
    pair = (a & 0xFF) * ((w << 8) >> 8), a.shr(8) * (w >> 8)
    return b.call_named(f"llvm.sadd.sat.v{s16.count}i16", s16, *pair)

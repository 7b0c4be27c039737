"""x86: the instructions that kernels emit, and a row for each ISA level.

`b` is the IR builder, and addresses are 64-bit integers. LLVM changes the operand types of its intrinsics between
releases (vpdpbusd takes <64 x i8> operands now). This file uses the old types, and LLVM upgrades them when it parses
the module.
"""
from collections.abc import Sequence

from llvmlite import ir

from graphq.base.platform import grants_tile_registers
from graphq.kernels.jit.code import MASKED
from graphq.kernels.jit.values import F32, I8, I16, I32, Builder, Type, Value, constant, vector
from graphq.kernels.target.level import BytePacking, ByteTable, Level
from graphq.kernels.target.products import (
    FLIP,
    Bf16,
    ByteProduct,
    Emit,
    Fma,
    Matrix,
    Multiplying,
    TileSizes,
    dot4,
    pairs,
    saturating,
)
from graphq.kernels.target.x86_amx import STATE_BYTES, Tiles

DENORMALS_ARE_ZERO, FLUSH_TO_ZERO = 1 << 6, 1 << 15
"""Bits of the register MXCSR: take subnormal operands as zeros, and flush subnormal results to zero."""
BYTES = vector(I8, 64)


def instruction(b: Builder, name: str, result: Type, args: Sequence[Value]) -> Value:
    """Call LLVM's intrinsic `llvm.x86.<name>`."""
    return b.call_named(f"llvm.x86.{name}", result, *args)


def pause(b: Builder) -> None:
    """Emit pause: wait some dozens of cycles."""
    instruction(b, "sse2.pause", ir.VoidType(), [])


def vpdpbusd(b: Builder, acc: Value, x: Value, w: Value) -> Value:
    """Emit vpdpbusd for 16, 8 or 4 lanes; for 8 lanes, LLVM chooses the encoding by the CPU's features."""
    return instruction(b, f"avx512.vpdpbusd.{32 * acc.type.count}", acc.type, [acc, x, w])


def vpmaddwd(b: Builder, acc: Value, x: Value, w: Value) -> Value:
    """Emit vpmaddwd of s16, and add the sums to 16 or 8 lanes."""
    name = "avx512.pmaddw.d.512" if acc.type.count == 16 else "avx2.pmadd.wd"
    return acc + instruction(b, name, acc.type, [x, w])


def vpmaddubsw(b: Builder, acc: Value, x: Value, w: Value) -> Value:
    """Emit vpmaddubsw, and add neighboring sums to 16 or 8 lanes."""
    lanes = acc.type.count
    name, words = "avx512.pmaddubs.w.512" if lanes == 16 else "avx2.pmadd.ub.sw", vector(I16, 2 * lanes)
    sums = instruction(b, name, words, [y.as_type(vector(I8, 4 * lanes)) for y in (x, w)])
    return vpmaddwd(b, acc, sums, b.value(words, 1))


def vpxord(b: Builder, x: Value) -> Value:
    """Emit vpxord with FLIP.

    LLVM would flip scalars before it broadcasts them: two instructions more than a broadcast from memory. On Zen 4,
    tiles of 24 x 16 become 1.8 times as fast, tiles of 12 x 32 1.3 times.
    """
    text, place = ("vpxord $2, $1, $0", "v") if x.type.count == 16 else ("vpxor $2, $1, $0", "x")
    kind = ir.FunctionType(x.type, [x.type, x.type])
    return b.call(ir.InlineAsm(kind, text, f"={place},{place},{place}"), [x, constant(x.type, FLIP)])


def vdpbf16ps(b: Builder, acc: Value, x: Value, w: Value) -> Value:
    """Emit vdpbf16ps for 16 or 8 lanes."""
    return instruction(b, f"avx512bf16.dpbf16ps.{32 * acc.type.count}", acc.type, [acc, x, w])


def bf16_halves(b: Builder, low: Value, high: Value) -> Value:
    """Round vectors of 16 f32 to bf16. vcvtne2ps2bf16 takes subnormal numbers as zeros, as vdpbf16ps does."""
    halves = instruction(b, "avx512bf16.cvtne2ps2bf16.512", vector(I16, 32), [high, low])
    return halves.shuffle(halves, [k // 2 + 16 * (k % 2) for k in range(32)]).as_type(vector(I32, 16))


def flushing(b: Builder, emit: Emit, plain: Emit) -> list[Value]:
    """Run `emit`, and make its code take subnormal operands and results as zeros. `emit` returns vectors of f32.

    Two bits of MXCSR do this, but LLVM does not know about them. Inline assembly before and after the code therefore
    keeps LLVM from moving the code's operations out. The results are always right, so `plain` is not needed.
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
    results = [b.fixed(x, "v", side_effect=True) for x in emit()]
    control("ldmxcsr", before)
    return results


def vpshufb(b: Builder, table: Value, index: Value) -> Value:
    """Look up 64 or 32 bytes from 0 to 15 in a table of 16 bytes."""
    name = "avx512.pshuf.b.512" if index.type.count == 64 else "avx2.pshuf.b"
    return instruction(b, name, index.type, [table, index])


def vpermi2b(b: Builder, quarters: Sequence[Value], index: Value) -> Value:
    """Look up 64 bytes: vpermi2b looks up the low seven bits of each byte in both halves of the table.

    The byte's top bit selects one of the two results.
    """
    low, high = (instruction(b, "avx512.vpermi2var.qi.512", BYTES, [x, index, y])
                 for x, y in (quarters[:2], quarters[2:]))
    return (index < constant(BYTES, 0)).select(high, low)


def high_bytes(b: Builder, vectors: Sequence[Value], dtype: str) -> Value:
    """Emit the upper halves of four vectors of 16 s32, saturated to s8 or u8, with AVX-512's pack instructions."""
    halves = []
    for x, y in zip(vectors[::2], vectors[1::2], strict=True):
        # x >> 16 | y & ~0xFFFF as vpternlogd. LLVM would use vpermt2w: three operations, most on one port.
        args = [x.shr(16), y, constant(vector(I32, 16), -1 << 16), constant(I32, 0b11111000)]
        halves.append(instruction(b, "avx512.pternlog.d.512", vector(I32, 16), args).as_type(vector(I16, 32)))
    packed = instruction(b, f"avx512.pack{'us' if dtype == 'u8' else 'ss'}wb.512", BYTES, halves)
    fours = [8 * (v // 2) + v % 2 + 2 * k for v in range(4) for k in range(4)]  # `packed` interleaves pairs of vectors
    return _in_turn(packed.shuffle(packed, [16 * q + n for q in range(4) for n in fours]))


def low_bytes(b: Builder, vectors: Sequence[Value]) -> Value:
    """Emit the low bytes of four vectors of 16 s32 as one vector, with AVX-512's pack instructions."""
    low = [x & 0xFF for x in vectors]
    pairs = zip(low[::2], low[1::2], strict=True)
    words = [instruction(b, "avx512.packusdw.512", vector(I16, 32), pair) for pair in pairs]
    return _in_turn(instruction(b, "avx512.packuswb.512", BYTES, words))


def _in_turn(bytes_: Value) -> Value:
    """Restore the order of the bytes of four vectors. Pack instructions interleave them, four bytes at a time."""
    fours = bytes_.as_type(vector(I32, 16))
    return fours.shuffle(fours, [4 * q + v for v in range(4) for q in range(4)]).as_type(BYTES)


_FLOATS8 = TileSizes(((6, 16), (4, 16), (2, 32), (1, 64)))
_COMPRESSED8 = TileSizes(((30, 16), (6, 16), (4, 16), (2, 32), (1, 32)))
_FLOATS16 = TileSizes(((8, 48), (7, 48), (6, 64), (4, 64), (2, 64), (1, 64)))
_COMPRESSED16 = TileSizes(((32, 48), (8, 48), (6, 64), (4, 64), (2, 64), (1, 64)))

AVX2 = Level(
    "avx2", 8, features=("avx2", "fma", "f16c"), f16=True, tails=MASKED, nibbles=vpshufb,
    fma=Fma(8, _FLOATS8, _FLOATS8, _COMPRESSED8, _COMPRESSED8, flushing, at_once=6),
    pairs=ByteProduct("vpmaddwd", vpmaddwd, pairs, TileSizes(((6, 16), (4, 16), (2, 32), (1, 32)), rate=3.2),
                      TileSizes(((3, 16), (1, 16)), rate=1.5), widens=True, flip=vpxord),
    saturating=ByteProduct("vpmaddubsw", vpmaddubsw, saturating,
                           TileSizes(((6, 16), (4, 16), (2, 16), (1, 16)), rate=3.2),
                           TileSizes(((4, 16), (2, 32), (1, 32))), flip=vpxord))
AVX_VNNI = AVX2.extended(
    "avx_vnni", "avxvnni",
    dot4=ByteProduct("vpdpbusd", vpdpbusd, dot4, TileSizes(((6, 16), (4, 16), (2, 32), (1, 64))),
                     TileSizes(((6, 16), (4, 16), (2, 32), (1, 32)), rate=2), flip=vpxord))
AVX512 = Level(
    "avx512", 16, features=(*AVX2.features, "avx512f", "avx512bw", "avx512dq", "avx512vl"), registers=32, f16=True,
    tails=MASKED, nibbles=vpshufb, packing=BytePacking(high_bytes, low_bytes), table=ByteTable("avx512vbmi", vpermi2b),
    fma=Fma(16, _FLOATS16, TileSizes(((8, 32), (6, 32), (4, 32), (2, 64), (1, 64))), _COMPRESSED16,
            TileSizes(((32, 32), (8, 32), (4, 32), (2, 64), (1, 64))), flushing, at_once=8),
    pairs=ByteProduct("vpmaddwd", vpmaddwd, pairs, TileSizes(((12, 32), (8, 32), (4, 32), (2, 32), (1, 32)), rate=2.4),
                      TileSizes(((6, 32), (4, 32), (2, 32), (1, 32)), rate=0.8), widens=True, flip=vpxord),
    saturating=ByteProduct("vpmaddubsw", vpmaddubsw, saturating,
                           TileSizes(((12, 16), (8, 16), (4, 16), (2, 16), (1, 16)), rate=2.4),
                           TileSizes(((8, 32), (4, 32), (2, 32), (1, 64)), rate=0.5), flip=vpxord))
AVX512_VNNI = AVX512.extended(
    "avx512_vnni", "avx512vnni",
    dot4=ByteProduct("vpdpbusd", vpdpbusd, dot4,
                     TileSizes(((24, 16),), columns=((12, 32), (7, 48), (6, 64), (4, 64), (2, 64), (1, 64))),
                     TileSizes(((6, 48), (4, 64), (2, 64), (1, 64))), flip=vpxord))
AVX512_BF16 = AVX512_VNNI.extended(
    "avx512_bf16", "avx512bf16",
    bf16=Bf16(vdpbf16ps, bf16_halves, _FLOATS16, _COMPRESSED16))
AMX = AVX512_BF16.extended(
    "amx", "amx-tile", "amx-int8",
    matrix=Matrix("tdpbusd", Tiles, STATE_BYTES, grants_tile_registers, TileSizes(((32, 64), (16, 64)))))
LEVELS = (AVX2, AVX_VNNI, AVX512, AVX512_VNNI, AVX512_BF16, AMX)
"""The levels from lowest to highest."""


def _vpmaddwd(b: Builder, acc: Value, x: Value) -> Value:
    words = vector(I16, 2 * x.type.count)  # multiply the accumulator, because LLVM would move x * x out of the loop
    return vpmaddwd(b, acc, acc.as_type(words), x.as_type(words))


def _vdpbf16ps(b: Builder, acc: Value, x: Value) -> Value:
    x = x.as_type(vector(I32, x.type.count))
    return vdpbf16ps(b, acc, x, x)


MULTIPLYING = {
    "tdpbusd": Multiplying(64, matrix=AMX.matrix), "tdpbssd": Multiplying(64, matrix=AMX.matrix, signed=True),
    "vpdpbusd": Multiplying(4, lambda b, acc, x: vpdpbusd(b, acc, x, x)),
    "vpdpwssd": Multiplying(2, lambda b, acc, x: instruction(
        b, f"avx512.vpdpwssd.{32 * acc.type.count}", acc.type, [acc, x, x])),
    "vpmaddubsw": Multiplying(4, lambda b, acc, x: vpmaddubsw(b, acc, acc, x)),
    "vpmaddwd": Multiplying(2, _vpmaddwd),
    "vpmulld": Multiplying(1, lambda b, acc, x: acc * x + x), "vdpbf16ps": Multiplying(2, _vdpbf16ps, F32),
    **dict.fromkeys(("vfmadd132ps", "vfmadd213ps", "vfmadd231ps"),
                    Multiplying(1, lambda b, acc, x: x.math("fma", x, acc), F32)),
    "vmulps": Multiplying(1, lambda b, acc, x: acc * x + x, F32)}
"""The instructions whose peaks `mnemonics` can measure."""
COUNTED = (
    "tdpbsud tdpbuud tdpbf16ps tdpfp16ps tileloadd tilestored vpdpbusds vpdpwssds vpdpbssd vpdpbsud vpdpbuud "
    "vaddps vdivps vsqrtps vcvtdq2ps vcvtps2dq vcvtph2ps vcvtps2ph vpmovusdb vpmovsdb vpmovdb").split()
"""Further arithmetic instructions that `mnemonics` counts."""
REGISTERS = {"xmm": 4, "ymm": 8, "zmm": 16, "tmm": 256}
"""The 32-bit elements of a register, by its class, from the narrowest to the widest; tiles have 16 x 16."""
REGISTER = r"%({})\d"
"""A register of one of these classes, in AT&T syntax."""

"""Arm (AArch64): the instructions that kernels emit, and a row for each ISA level.

Vectors have 4 lanes, and `arm_tiles` says how products take their operands. There are two dot products of four bytes:
sdot multiplies s8 by s8, usdot multiplies u8 by s8. usmmla and smmla multiply two rows by two columns.
"""
from __future__ import annotations

import operator
from collections.abc import Sequence
from functools import partial, reduce

from llvmlite import ir

from graphq.kernels.jit.code import IN_PIECES, Tails, room_of, tail_mask
from graphq.kernels.jit.intrinsics import stack_memory
from graphq.kernels.jit.values import (
    F32,
    I8,
    I16,
    I32,
    I64,
    Builder,
    Type,
    Value,
    c64,
    constant,
    joined,
    larger,
    numpy_type,
    smaller,
    vector,
)
from graphq.kernels.target.arm_tiles import BYTES, ByElement, instruction, of_bytes, row_pairs
from graphq.kernels.target.level import BytePacking, ByteTable, Level
from graphq.kernels.target.products import ByteProduct, Emit, Fma, Multiplying, TileSizes, dot4, flipped, pairs

VECTORS = "w"
"""Inline assembly's letter for registers of vectors."""
FLUSH_TO_ZERO, UNDERFLOW = 1 << 24, 1 << 3
"""The bit of FPCR that takes subnormal operands of f32 as zeros, and flushes subnormal results to zero; and the bit of
FPSR that says whether a result was flushed."""


def pause(b: Builder) -> None:
    """Emit isb: wait some dozens of cycles. Most CPUs take Arm's `yield` as no operation."""
    b.call_named("llvm.aarch64.isb", ir.VoidType(), b.value(I32, 15))


def sdot(b: Builder, acc: Value, x: Value, w: Value) -> Value:
    """Emit sdot for 4 lanes. The activations x are the last operand, because LLVM takes only that one by element."""
    return of_bytes("sdot")(b, acc, w, x)


def sadalp(b: Builder, acc: Value, x: Value, w: Value) -> Value:
    """Emit mul of 16-bit products of bytes, and sadalp, which adds pairs of them to 4 lanes."""
    return acc + instruction(b, "saddlp.v4i32.v8i16", acc.type, [x * w])


def addp(b: Builder, acc: Value, x: Value, w: Value) -> Value:
    """Emit 32-bit products of s16 (LLVM makes this smull and smull2), and addp, which adds pairs of them."""
    halves = [[y.shuffle(y, range(k, k + 4)).sext(acc.type) for y in (x, w)] for k in (0, 4)]
    return acc + instruction(b, "addp.v4i32", acc.type, [left * right for left, right in halves])


def eor(b: Builder, x: Value) -> Value:
    """Emit eor with FLIP. The empty assembly behind it keeps LLVM from flipping each lane after it was spread."""
    x = flipped(b, x)
    return b.fixed(x, VECTORS) if x.type.count == 4 else x


def flushing(b: Builder, emit: Emit, plain: Emit) -> list[Value]:
    """Run `emit`, and make its code take subnormal operands and results as zeros. `emit` returns vectors of f32.

    Arm also flushes sums just below the normal numbers that round up to a normal number. After any flush, `plain`
    therefore computes everything again. LLVM does not know about the bit of FPCR. Empty assembly before and after the
    code keeps LLVM from moving the code's operations out.
    """
    before = b.call_named("llvm.aarch64.get.fpcr", I64)
    b.call_named("llvm.aarch64.set.fpsr", ir.VoidType(), c64(0))
    b.call_named("llvm.aarch64.set.fpcr", ir.VoidType(), before | FLUSH_TO_ZERO)
    b.call(ir.InlineAsm(ir.FunctionType(ir.VoidType(), []), "", "~{memory}", side_effect=True), [])
    results = [b.fixed(x, VECTORS, side_effect=True) for x in emit()]
    status, flushing_block = b.call_named("llvm.aarch64.get.fpsr", I64), b.block
    b.call_named("llvm.aarch64.set.fpcr", ir.VoidType(), before)
    with b.if_then((status & UNDERFLOW).ne(0), likely=False):
        again, plain_block = plain(), b.block
    return b.merged((flushing_block, results), (plain_block, again))


def tbl(b: Builder, parts: Sequence[Value], index: Value) -> Value:
    """Look up 16 bytes: tbl looks up indices below 64 in four vectors, and tbx the next 64 in the next four."""
    found = instruction(b, "tbl4.v16i8", BYTES, [*parts[:4], index])
    for k in range(4, 16, 4):
        found = instruction(b, "tbx4.v16i8", BYTES, [found, *parts[k:k + 4], index - 16 * k])
    return found


def tbl1(b: Builder, table: Value, index: Value) -> Value:
    """Emit tbl: look up 16 bytes from 0 to 15 in a table of 16 bytes."""
    return instruction(b, "tbl1.v16i8", BYTES, [table, index])


def looked_up(b: Builder, parts: Sequence[Value], index: Value) -> Value:
    """Look up 16 bytes in memory, as `tbl` does in registers."""
    room = stack_memory(b, 256)
    for k, part in enumerate(parts):
        part.store(room + 16 * k)
    return joined([(room + index.lane(k).zext(I64)).load(I8) for k in range(16)])


def high_bytes(b: Builder, vectors: Sequence[Value], dtype: str) -> Value:
    """Emit the upper halves of four vectors of 4 s32, saturated to s8 or u8. LLVM makes this uzp2 and sqxt(u)n."""
    low, high = (0, 255) if dtype == "u8" else (-128, 127)
    x, y = (smaller(larger(halves, low), high).trunc(I8) for halves in _every_other(vectors, I16, 1))
    return x.shuffle(y, range(16))


def low_bytes(b: Builder, vectors: Sequence[Value]) -> Value:
    """Emit the low bytes of four vectors of 4 s32 as one vector. LLVM makes this uzp1."""
    return _every_other(_every_other(vectors, I16, 0), I8, 0)[0]


def _every_other(vectors: Sequence[Value], lane: Type, first: int) -> list[Value]:
    """Take the elements `first`, `first` + 2, ... of each two vectors, with elements of type `lane`."""
    count = 128 // lane.width
    x = [part.as_type(vector(lane, count)) for part in vectors]
    return [a.shuffle(b, range(first, 2 * count, 2)) for a, b in zip(x[::2], x[1::2], strict=True)]


def _places(address: Value, count: Value, kind: Type) -> list[Value]:
    """The address of each lane, or of lane `count` - 1 for lanes from `count` on; of a room if `count` is 0 or less."""
    first = (count > 0).select(address, room_of(address.building, kind))
    last, itemsize = larger(count, 1) - 1, numpy_type(kind).itemsize
    return [first + smaller(k, last) * itemsize for k in range(kind.count)]


def load_lanes(address: Value, count: Value, kind: Type) -> Value:
    """Load the first `count` of up to 4 lanes one by one, followed by zeros.

    The lanes of short vectors are joined in an integer, which takes less time.
    """
    if kind.count > 4:
        return IN_PIECES.load(address, count, kind)
    places, width = _places(address, count, kind), 8 * numpy_type(kind).itemsize
    if width * kind.count > 64:
        x = joined([place.load(kind.element) for place in places])
    else:
        whole = ir.IntType(width * kind.count)
        lanes = [place.load(ir.IntType(width)).zext(whole) << width * k for k, place in enumerate(places)]
        x = reduce(operator.or_, lanes).opaque().as_type(kind)
    return tail_mask(kind.count, count).select(x, constant(kind, 0))


def store_lanes(value: Value, address: Value, count: Value) -> None:
    """Store the first `count` of up to 4 lanes one by one."""
    if value.type.count > 4:
        return IN_PIECES.store(value, address, count)
    places = _places(address, count, value.type)
    for k in reversed(range(value.type.count)):  # the last store to the place of lane `count` - 1 is its own
        value.lane(k).store(places[k])


_TILES = (4, 16), (2, 32), (1, 64)
_FLOATS = TileSizes(((6, 16), *_TILES))
_NARROW = (2, 16), (1, 16)  # to widen or unpack weights of more columns takes more than 32 registers
_COMPRESSED = TileSizes(((6, 16), (4, 16), *_NARROW))
_BYTES_COMPRESSED = TileSizes(((5, 16), (4, 16), (2, 32), (1, 32)))  # LLVM moves sums of six rows to the stack
NEON = Level(
    "neon", 4, features=("neon",), registers=32, f16=True, by_element=ByElement(), block_bytes=16, sum_vectors=4,
    tails=Tails(load_lanes, store_lanes), packing=BytePacking(high_bytes, low_bytes, plain=True),
    table=ByteTable("neon", tbl, 16, looked_up), nibbles=tbl1,
    fma=Fma(4, _FLOATS, TileSizes(((4, 16), *_NARROW)), _COMPRESSED, _COMPRESSED, flushing),
    pairs=ByteProduct("sadalp", sadalp, pairs, TileSizes(((4, 16), (3, 16), (2, 16), (1, 32)), rate=1.4),
                      TileSizes(((3, 16), (1, 16)), rate=0.8), widens=True, words=addp))
NEON_DOT = NEON.extended(
    "neon_dot", "dotprod",
    dot4=ByteProduct("sdot", sdot, partial(dot4, signed=True), TileSizes(((5, 16), *_TILES)), _BYTES_COMPRESSED,
                     signed=True, flip=eor))
NEON_I8MM = NEON_DOT.extended(
    "neon_i8mm", "i8mm",
    dot4=ByteProduct("usdot", of_bytes("usdot"), dot4, TileSizes(((6, 16), (5, 16), *_TILES)), _BYTES_COMPRESSED),
    paired={"u8": row_pairs("usmmla", False), "s8": row_pairs("smmla", True)})
LEVELS = (NEON, NEON_DOT, NEON_I8MM)
"""The levels from lowest to highest."""


def _sadalp(b: Builder, acc: Value, x: Value) -> Value:
    words = vector(I16, 2 * x.type.count)  # multiply the accumulator, because LLVM would move x * x out of the loop
    return sadalp(b, acc, acc.as_type(words), x.as_type(words))


def _of_bytes(macs: int, name: str) -> Multiplying:
    return Multiplying(macs, lambda b, acc, x: of_bytes(name)(b, acc, x, x))


_USDOT = _of_bytes(4, "usdot")
MULTIPLYING = {
    "usmmla": _of_bytes(8, "usmmla"), "smmla": _of_bytes(8, "smmla"), "usdot": _USDOT, "sudot": _USDOT,
    "sdot": _of_bytes(4, "sdot"), "sadalp": Multiplying(2, _sadalp),
    "mul": Multiplying(1, lambda b, acc, x: acc * x + x),
    "fmla": Multiplying(1, lambda b, acc, x: x.math("fma", x, acc), F32),
    "fmul": Multiplying(1, lambda b, acc, x: acc * x + x, F32)}
"""The instructions whose peaks `mnemonics` can measure. sudot is usdot whose u8 operand is a lane of a vector."""
COUNTED = ("ummla udot smull smlal umull umlal mla fmls fadd fdiv fsqrt frintx scvtf fcvtns fcvtzs fcvtl fcvtl2 "
           "fcvtn fcvtn2 xtn sqxtn sqxtun tbl").split()
"""Further arithmetic instructions that `mnemonics` counts."""
REGISTERS = {"8b": 0, "4h": 0, "16b": 0, "8h": 0, "2s": 2, "4s": 4}
"""The 32-bit elements of a register, by its arrangement; 0 if its elements are narrower."""
REGISTER = r"\bv\d+\.({})\b"
"""A register with one of these arrangements."""

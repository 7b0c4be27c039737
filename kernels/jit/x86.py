"""Emit x86 instructions, or emulations with the same results in plain LLVM IR.

`b` is the IR builder, and addresses are 64-bit integers. With `emulated`, a kernel runs slowly on CPUs that lack the
instruction, so every machine can test every kernel. LLVM changes the operand types of its intrinsics between releases
(vpdpbusd takes <64 x i8> operands now). This file uses the old types, and LLVM upgrades them when it parses the module.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from llvmlite import ir

from graphq.kernels.jit.values import I8, I16, I32, I64, Builder, Operand, Type, Value, c64, constant, vector

S32X16 = vector(I32, 16)
DENORMALS_ARE_ZERO, FLUSH_TO_ZERO = 1 << 6, 1 << 15
"""Bits of the register MXCSR: take subnormal operands as zeros, and flush subnormal results to zero."""


def interleave(rows: Sequence[Value], lanes: int) -> Value:
    """Interleave 1, 2 or 4 rows of `lanes` elements: the first element of each row, then the second, and so on."""
    mix = [x for i in range(lanes) for x in (i, i + lanes)]
    bits = rows[0].type.count // lanes * rows[0].type.element.width
    while len(rows) > 1:
        rows = [x.as_type(vector(ir.IntType(bits), lanes)) for x in rows]
        rows = [x.shuffle(y, mix) for x, y in zip(rows[::2], rows[1::2], strict=True)]
        bits *= 2
    return rows[0]


def instruction(b: Builder, name: str, result: Type, args: Sequence[Value]) -> Value:
    """Call LLVM's intrinsic `llvm.x86.<name>`."""
    return b.call_named(f"llvm.x86.{name}", result, *args)


class Loop:
    """Emit `for k in range(count)`, with the context manager's block as the body of the loop.

    `carried` are the initial values of variables that change from iteration to iteration. Inside the loop, `.k` is the
    counter and `.values` are the current values; `update` sets the values of the next iteration. After the loop,
    `.values` are the final values, or the initial values if count <= 0. The counter grows by `.step` (1 by default).
    """

    def __init__(self, b: Builder, count: Value, carried: Sequence[Value] = ()):
        self.b, self.count, self.first = b, count, list(carried)
        self.new: list[Value] = self.first
        self.step: Operand = 1

    def __enter__(self) -> Loop:
        b, before = self.b, self.b.block
        self.head, body, self.after = (b.append_basic_block(f"loop.{part}") for part in ("head", "body", "after"))
        b.branch(self.head)
        b.position_at_end(self.head)
        self.k = b.phi(I64)
        self.k.add_incoming(c64(0), before)
        self.values = [b.phi(x.type) for x in self.first]
        for phi, x in zip(self.values, self.first, strict=True):
            phi.add_incoming(x, before)
        b.cbranch(self.k < self.count, body, self.after)
        b.position_at_end(body)
        return self

    def update(self, values: Sequence[Value]) -> None:
        """Set the carried values for the next iteration."""
        self.new = list(values)

    def __exit__(self, *_: object) -> None:
        b = self.b
        self.k.add_incoming(self.k + self.step, b.block)
        for phi, x in zip(self.values, self.new, strict=True):
            phi.add_incoming(x, b.block)
        b.branch(self.head)
        b.position_at_end(self.after)


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


def flushed(b: Builder, x: Value) -> Value:
    """Replace each subnormal number of x by a zero of the same sign."""
    bits = x.as_type(vector(I32, x.type.count))
    normal = bits & 0x7FFFFFFF
    return normal.ult(0x00800000).select(bits & -0x80000000, bits).as_type(x.type)


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


def shared(b: Builder, name: str, emit: Callable[..., None], *args: Value | int) -> None:
    """Emit a call of a function of 64-bit integers. `emit` makes the function's code, once per module."""
    function = b.module.globals.get(name)
    if function is None:
        function = ir.Function(b.module, ir.FunctionType(ir.VoidType(), [I64] * len(args)), name)
        function.linkage = "linkonce_odr"
        function.attributes.add("noinline")
        inner = Builder(ir.IRBuilder(function.append_basic_block()))
        emit(inner, *(Value(inner, x) for x in function.args))
        inner.ret_void()
    b.call(function, [c64(x) if isinstance(x, int) else x for x in args])


def _row(state: Value, tile: Value, row: Value) -> Value:
    return state + 64 + tile * 1024 + row * 64


def _rows(state: Value, tile: Value) -> Value:
    return (state + 48 + tile).load(I8).zext(I64)


def _tile_zero(b: Builder, state: Value, tile: Value) -> None:
    with Loop(b, c64(16)) as loop:
        constant(S32X16, 0).store(_row(state, tile, loop.k))


def _tile_load(b: Builder, state: Value, tile: Value, address: Value, stride: Value) -> None:
    _tile_zero(b, state, tile)
    with Loop(b, _rows(state, tile)) as loop:
        (address + loop.k * stride).load(S32X16).store(_row(state, tile, loop.k))


def _tile_store(b: Builder, state: Value, tile: Value, address: Value, stride: Value) -> None:
    with Loop(b, _rows(state, tile)) as loop:
        _row(state, tile, loop.k).load(S32X16).store(address + loop.k * stride)


def _tile_dot(b: Builder, state: Value, c: Value, a: Value, w: Value, signed: bool) -> None:
    with Loop(b, _rows(state, c)) as rows:
        total = _row(state, c, rows.k).load(S32X16)
        with Loop(b, _rows(state, w), [total]) as groups:
            x = (_row(state, a, rows.k) + groups.k * 4).load(I32)
            y = _row(state, w, groups.k).load(S32X16)
            groups.update([dot_u8s8(b, groups.values[0], x.splat(16), y, emulated=True, signed=signed)])
        groups.values[0].store(_row(state, c, rows.k))


class Tiles:
    """The AMX instructions on the eight tile registers of 16 rows x 64 bytes, or their emulation in memory.

    `state` is the address of a 64-byte tile configuration; byte 48 + t is the number of rows of tile t. Emulated tile
    registers follow it, 1024 bytes each.
    """

    def __init__(self, b: Builder, state: Value, emulated: bool):
        self.b, self.state, self.emulated = b, state, emulated

    def _x86(self, name: str, tiles: Sequence[int], *args: Value) -> None:
        instruction(self.b, name, ir.VoidType(), [*(constant(I8, t) for t in tiles), *args])

    def configure(self) -> None:
        """Emit ldtilecfg: load the configuration at `state`."""
        if not self.emulated:
            self._x86("ldtilecfg", [], self.state.pointer(I8))

    def release(self) -> None:
        """Emit tilerelease: reset the tile registers to their initial state."""
        if not self.emulated:
            self._x86("tilerelease", [])

    def zero(self, tile: int) -> None:
        """Emit tilezero: clear a tile."""
        if not self.emulated:
            return self._x86("tilezero", [tile])
        shared(self.b, "tile_zero", _tile_zero, self.state, tile)

    def load(self, tile: int, address: Value, stride: Value) -> None:
        """Emit tileloadd: load rows of 64 bytes, `stride` bytes apart. A stride of 0 repeats one row."""
        if not self.emulated:
            return self._x86("tileloadd64", [tile], address.pointer(I8), stride)
        shared(self.b, "tile_load", _tile_load, self.state, tile, address, stride)

    def store(self, tile: int, address: Value, stride: Value) -> None:
        """Emit tilestored: store the configured rows of 64 bytes, `stride` bytes apart."""
        if not self.emulated:
            return self._x86("tilestored64", [tile], address.pointer(I8), stride)
        shared(self.b, "tile_store", _tile_store, self.state, tile, address, stride)

    def dot(self, c: int, a: int, w: int, signed: bool) -> None:
        """Emit tdpbusd, or tdpbssd if `signed`: c s32 += a (rows x 64 bytes) * w (16 groups x 16 columns x 4 bytes).

        c, a and w are indices of tile registers.
        """
        name = "tdpbssd" if signed else "tdpbusd"
        if not self.emulated:
            return self._x86(name, [c, a, w])
        shared(self.b, f"tile_{name}", partial(_tile_dot, signed=signed), self.state, c, a, w)


def tail_mask(lanes: int, left: Value) -> Value:
    """Make the mask of the first `left` lanes."""
    return constant(vector(I32, lanes), range(lanes)) < left.trunc(I32).splat(lanes)


def load_first(address: Value, count: Value, kind: Type) -> Value:
    """Load the first `count` lanes of integers at an address, followed by zeros. Reads no memory beyond them."""
    return address.load_where(tail_mask(kind.count, count), kind)


def store_first(value: Value, address: Value, count: Value) -> None:
    """Store the first `count` lanes of integers at an address. Writes no memory beyond them."""
    value.store_where(tail_mask(value.type.count, count), address)


def load_bytes(address: Value, count: Value, lanes: int = 64) -> Value:
    """Load the first `count` (0 to `lanes`) bytes at an address, followed by zeros."""
    return load_first(address, count, ir.VectorType(I8, lanes))

"""LLVM code for expressions, of scalars and vectors, and the conversions to and from storage types.

Numbers are those of `stores.evaluate`.
"""
from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from llvmlite import ir

from graphq.kernels.jit.intrinsics import F16, F32, I1, I8, I16, I32, c64, declare, pointer, splat
from graphq.kernels.jit.x86 import instruction, shuffle
from graphq.kernels.lanes import elementary  # and what defines operations that stores name
from graphq.kernels.lanes.expression import Expr, acc, load, lower, walk
from graphq.kernels.lanes.lookup import look_up

COMPUTE_IR = {"f32": F32, "s32": I32, "bool": I1}
STORAGE_IR = {"f32": F32, "s32": I32, "s8": I8, "u8": I8, "s16": I16, "u16": I16, "bf16": I16, "f16": I16}


def vec(kind: ir.Type, lanes: int) -> ir.Type:
    """Give the type of `lanes` elements; the element type itself for one."""
    return kind if lanes == 1 else ir.VectorType(kind, lanes)


def constant(kind: ir.Type, value: Any, lanes: int) -> ir.Constant:
    """Give `value` in every lane."""
    return ir.Constant(kind, value) if lanes == 1 else ir.Constant(vec(kind, lanes), [value] * lanes)


def _suffix(lanes: int) -> str:
    return "" if lanes == 1 else f"v{lanes}"


def _float(method: str, b: ir.IRBuilder, lanes: int, *args: ir.Value) -> ir.Value:
    """Call the builder's method of this name with an f before it for f32: add, fadd."""
    scalar = args[0].type.element if lanes > 1 else args[0].type
    return getattr(b, f"f{method}" if scalar == F32 else method)(*args)


def _intrinsic(name: str, b: ir.IRBuilder, lanes: int, *args: ir.Value) -> ir.Value:
    return b.call(declare(b, f"llvm.{name}.{_suffix(lanes)}f32", args[0].type, [x.type for x in args]), args)


def _compare(sign: str, b: ir.IRBuilder, lanes: int, x: ir.Value, y: ir.Value) -> ir.Value:
    scalar = x.type.element if lanes > 1 else x.type
    if scalar != F32:
        return b.icmp_signed(sign, x, y)
    return b.fcmp_unordered(sign, x, y) if sign == "!=" else b.fcmp_ordered(sign, x, y)


def _pick(sign: str, b: ir.IRBuilder, lanes: int, x: ir.Value, y: ir.Value) -> ir.Value:
    """Give `x sign y ? x : y`, which is one vmaxps or vminps."""
    return b.select(_compare(sign, b, lanes, x, y), x, y)


def _round(b: ir.IRBuilder, lanes: int, x: ir.Value) -> ir.Value:
    suffix, result = _suffix(lanes), vec(I32, lanes)
    return b.call(declare(b, f"llvm.lrint.{suffix}i32.{suffix}f32", result, [x.type]), [x])


def min_u16(b: ir.IRBuilder, x: ir.Value, y: ir.Value) -> ir.Value:
    """Emit the lesser of both halves of s32, without signs."""
    halves = vec(I16, 2 * (x.type.count if isinstance(x.type, ir.VectorType) else 1))
    x16, y16 = b.bitcast(x, halves), b.bitcast(y, halves)
    return b.bitcast(b.select(b.icmp_unsigned("<", x16, y16), x16, y16), x.type)


def _high(low: int, high: int, b: ir.IRBuilder, lanes: int, x: ir.Value) -> ir.Value:
    value = b.ashr(x, constant(I32, 16, lanes))
    return _pick("<", b, lanes, _pick(">", b, lanes, value, constant(I32, low, lanes)), constant(I32, high, lanes))


EMIT: dict[str, Callable[..., ir.Value]] = {
    **{name: partial(_float, name) for name in ("add", "sub", "mul")},
    **{name: partial(_intrinsic, llvm) for name, llvm in
       {"abs": "fabs", "sqrt": "sqrt", "rint": "rint", "floor": "floor", "fma": "fma"}.items()},
    **{name: partial(_compare, sign) for name, sign in
       {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!="}.items()},
    "min_u16": lambda b, lanes, x, y: min_u16(b, x, y),
    "high_u8": partial(_high, 0, 255),
    "high_s8": partial(_high, -128, 127),
    "div": lambda b, lanes, x, y: b.fdiv(x, y),
    "neg": lambda b, lanes, x: b.fneg(x),
    "max": partial(_pick, ">"),
    "min": partial(_pick, "<"),
    "select": lambda b, lanes, c, x, y: b.select(c, x, y),
    "and": lambda b, lanes, x, y: b.and_(x, y),
    "or": lambda b, lanes, x, y: b.or_(x, y),
    "xor": lambda b, lanes, x, y: b.xor(x, y),
    "shl": lambda b, lanes, x, y: b.shl(x, y),
    "sar": lambda b, lanes, x, y: b.ashr(x, y),
    "shr": lambda b, lanes, x, y: b.lshr(x, y),
    "as_f32": lambda b, lanes, x: b.bitcast(x, vec(F32, lanes)),
    "as_s32": lambda b, lanes, x: b.bitcast(x, vec(I32, lanes)),
    "to_f32": lambda b, lanes, x: b.sitofp(x, vec(F32, lanes)),
    "to_s32": lambda b, lanes, x: b.fptosi(x, vec(I32, lanes)),
    "round_f16": lambda b, lanes, x: widen(b, narrow(b, x, "f16", lanes), "f16", lanes),
    "round_s32": _round,
    "lookup": lambda b, lanes, table, x: widen(b, look_up(b, lanes, table, x), table.dtype, lanes),
}

Leaf = Callable[[Expr], ir.Value]


def emit_nodes(builder: ir.IRBuilder, nodes: Iterable[Expr], values: dict[Expr, ir.Value], lanes: int,
               leaf: Leaf) -> None:
    """Add the value of each of `nodes` (lowered, arguments first) to `values`; `leaf` gives those of acc and loads."""
    emit_beside(builder, nodes, [values], lanes, [leaf])


def emit_beside(builder: ir.IRBuilder, nodes: Iterable[Expr], values: Sequence[dict[Expr, ir.Value]], lanes: int,
                leaves: Sequence[Leaf]) -> None:
    """The same for several vectors, node by node: so the CPU need not wait for one of them."""
    for node in nodes:
        for known, leaf in zip(values, leaves, strict=True):
            if node.op in ("acc", "load"):
                known[node] = leaf(node)
            elif node.op == "const":
                known[node] = constant(COMPUTE_IR[node.dtype], node.value, lanes)
            else:
                known[node] = EMIT[node.op](builder, lanes, *(known[a] for a in node.args))


def emit(builder: ir.IRBuilder, expr: Expr, lanes: int, leaf: Leaf) -> ir.Value:
    """Emit `expr` for `lanes` outputs at once (1: scalar code); `leaf` gives the values of acc and loads."""
    return emit_each(builder, expr, lanes, [leaf])[0]


def emit_each(builder: ir.IRBuilder, expr: Expr, lanes: int, leaves: Sequence[Leaf]) -> list[ir.Value]:
    """Emit `expr` for several vectors, side by side."""
    values: list[dict[Expr, ir.Value]] = [{} for _ in leaves]
    lowered = lower(expr)
    emit_beside(builder, walk(lowered), values, lanes, leaves)
    return [known[lowered] for known in values]


def widen(builder: ir.IRBuilder, x: ir.Value, dtype: str, lanes: int) -> ir.Value:
    """Convert a loaded storage type to its compute type, exactly."""
    match dtype:
        case "u8" | "u16":
            return builder.zext(x, vec(I32, lanes))
        case "s8" | "s16":
            return builder.sext(x, vec(I32, lanes))
        case "bf16":
            bits = builder.shl(builder.zext(x, vec(I32, lanes)), constant(I32, 16, lanes))
            return builder.bitcast(bits, vec(F32, lanes))
        case "f16" if lanes == 1:  # any CPU: LLVM would call a function that need not exist
            return emit(builder, elementary.f16_value(acc()), 1, lambda _: builder.zext(x, I32))
        case "f16":
            return builder.fpext(builder.bitcast(x, vec(F16, lanes)), vec(F32, lanes))
    return x


def narrow(builder: ir.IRBuilder, x: ir.Value, dtype: str, lanes: int) -> ir.Value:
    """Convert a compute type to a storage type: low bits of integers, floats to nearest even."""
    match dtype:
        case "u8" | "s8":
            return builder.trunc(x, vec(I8, lanes))
        case "u16" | "s16":
            return builder.trunc(x, vec(I16, lanes))
        case "f16" if lanes == 1:
            return builder.trunc(emit(builder, elementary.f16_bits(load(0, "f32", "vector")), 1, lambda _: x), I16)
        case "f16":
            return builder.bitcast(builder.fptrunc(x, vec(F16, lanes)), vec(I16, lanes))
        case "bf16":  # as stores._narrow; vcvtneps2bf16 would flush subnormals
            bits, c = builder.bitcast(x, vec(I32, lanes)), partial(constant, I32, lanes=lanes)
            odd = builder.and_(builder.lshr(bits, c(16)), c(1))
            kept = builder.lshr(builder.add(builder.add(bits, c(0x7FFF)), odd), c(16))
            kept = builder.select(builder.fcmp_unordered("uno", x, x), c(0x7FC0), kept)
            return builder.trunc(kept, vec(I16, lanes))
    return x


def high_bytes(b: ir.IRBuilder, vectors: list[ir.Value], dtype: str) -> ir.Value:
    """Emit the upper halves of four vectors of 16 s32, saturated to s8 or u8, as one vector: by AVX-512's packs."""
    halves = []
    for x, y in zip(vectors[::2], vectors[1::2], strict=True):
        # x >> 16 | y & ~0xFFFF, so that LLVM makes no vpermt2w of it: that is three operations, most on one port
        args = [b.lshr(x, constant(I32, 16, 16)), y, constant(I32, -1 << 16, 16), I32(0b11111000)]
        halves.append(b.bitcast(instruction(b, "avx512.pternlog.d.512", vec(I32, 16), args), vec(I16, 32)))
    packed = instruction(b, f"avx512.pack{'us' if dtype == 'u8' else 'ss'}wb.512", vec(I8, 64), halves)
    fours = [8 * (v // 2) + v % 2 + 2 * k for v in range(4) for k in range(4)]  # bytes of two vectors alternate
    return _in_turn(b, shuffle(b, packed, packed, [16 * q + n for q in range(4) for n in fours]))


def low_bytes(b: ir.IRBuilder, vectors: list[ir.Value]) -> ir.Value:
    """Emit the low bytes of four vectors of 16 s32 as one vector: by AVX-512's packs."""
    low = [b.and_(x, constant(I32, 0xFF, 16)) for x in vectors]
    pairs = zip(low[::2], low[1::2], strict=True)
    words = [instruction(b, "avx512.packusdw.512", vec(I16, 32), pair) for pair in pairs]
    return _in_turn(b, instruction(b, "avx512.packuswb.512", vec(I8, 64), words))


def _in_turn(b: ir.IRBuilder, bytes_: ir.Value) -> ir.Value:
    """Emit the bytes of one vector after the other, of fours of each of four in turn."""
    fours = b.bitcast(bytes_, vec(I32, 16))
    return b.bitcast(shuffle(b, fours, fours, [4 * q + v for v in range(4) for q in range(4)]), vec(I8, 64))


@dataclass(frozen=True)
class Columns:
    """`lanes` neighbouring columns from column `j` of a block on; with a mask, only where it is set."""

    builder: ir.IRBuilder
    lanes: int
    j: ir.Value
    mask: ir.Value | None = None

    def _place(self, row: ir.Value, kind: ir.Type, itemsize: int) -> ir.Value:
        address = self.builder.add(row, self.builder.mul(self.j, c64(itemsize)))
        return pointer(self.builder, address, vec(kind, self.lanes))

    def load(self, row: ir.Value, kind: ir.Type, itemsize: int) -> ir.Value:
        """Load from the row at address `row`; 0 where the mask is not set."""
        place = self._place(row, kind, itemsize)
        if self.mask is None:
            return self.builder.load(place, align=1)
        result = vec(kind, self.lanes)
        name = f"llvm.masked.load.v{self.lanes}{kind.intrinsic_name}.p0"
        load = declare(self.builder, name, result, [place.type, I32, self.mask.type, result])
        return self.builder.call(load, [place, ir.Constant(I32, 1), self.mask, ir.Constant(result, None)])

    def store(self, x: ir.Value, row: ir.Value, kind: ir.Type, itemsize: int) -> None:
        """Store to the row at address `row`."""
        place = self._place(row, kind, itemsize)
        if self.mask is None:
            self.builder.store(x, place, align=1)
            return
        name = f"llvm.masked.store.v{self.lanes}{kind.intrinsic_name}.p0"
        store = declare(self.builder, name, ir.VoidType(), [x.type, place.type, I32, self.mask.type])
        self.builder.call(store, [x, place, ir.Constant(I32, 1), self.mask])


def tail_mask(builder: ir.IRBuilder, lanes: int, left: ir.Value) -> ir.Value:
    """Emit the mask of the first `left` lanes."""
    index = ir.Constant(ir.VectorType(I32, lanes), list(range(lanes)))
    return builder.icmp_signed("<", index, splat(builder, builder.trunc(left, I32), lanes))

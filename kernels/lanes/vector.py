"""LLVM code for expressions, of scalars and vectors, and the conversions to and from storage types.

Numbers are those of `stores.evaluate`.
"""
from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from llvmlite import ir

from graphq.kernels.jit.intrinsics import F16, F32, I1, I8, I16, I32, declare, pointer
from graphq.kernels.jit.values import Builder, Value
from graphq.kernels.jit.x86 import instruction
from graphq.kernels.lanes import elementary  # and what defines operations that stores name
from graphq.kernels.lanes.expression import Expr, acc, load, lower, walk
from graphq.kernels.lanes.lookup import look_up

COMPUTE_IR = {"f32": F32, "s32": I32, "bool": I1}
STORAGE_IR = {"f32": F32, "s32": I32, "s8": I8, "u8": I8, "s16": I16, "u16": I16, "bf16": I16, "f16": I16}


def vec(kind: ir.Type, lanes: int) -> ir.Type:
    """Give the type of `lanes` elements; the element type itself for one."""
    return kind if lanes == 1 else ir.VectorType(kind, lanes)


def constant(kind: ir.Type, value: float, lanes: int) -> Value:
    """Give `value` in every lane."""
    return Value(None, ir.Constant(vec(kind, lanes), value if lanes == 1 else [value] * lanes))


def _suffix(lanes: int) -> str:
    return "" if lanes == 1 else f"v{lanes}"


def _float(method: str, b: Builder, lanes: int, *args: Value) -> Value:
    """Call the builder's method of this name with an f before it for f32: add, fadd."""
    scalar = args[0].type.element if lanes > 1 else args[0].type
    return getattr(b, f"f{method}" if scalar == F32 else method)(*args)


def _intrinsic(name: str, b: Builder, lanes: int, *args: Value) -> Value:
    return b.call(declare(b, f"llvm.{name}.{_suffix(lanes)}f32", args[0].type, [x.type for x in args]), args)


def _compare(sign: str, b: Builder, lanes: int, x: Value, y: Value) -> Value:
    scalar = x.type.element if lanes > 1 else x.type
    if scalar != F32:
        return b.icmp_signed(sign, x, y)
    return b.fcmp_unordered(sign, x, y) if sign == "!=" else b.fcmp_ordered(sign, x, y)


def _pick(sign: str, b: Builder, lanes: int, x: Value, y: Value) -> Value:
    """Give `x sign y ? x : y`, which is one vmaxps or vminps."""
    return _compare(sign, b, lanes, x, y).select(x, y)


def _round(b: Builder, lanes: int, x: Value) -> Value:
    suffix, result = _suffix(lanes), vec(I32, lanes)
    return b.call(declare(b, f"llvm.lrint.{suffix}i32.{suffix}f32", result, [x.type]), [x])


def min_u16(b: Builder, x: Value, y: Value) -> Value:
    """Emit the lesser of both halves of s32, without signs."""
    halves = vec(I16, 2 * (x.type.count if isinstance(x.type, ir.VectorType) else 1))
    x16, y16 = x.as_type(halves), y.as_type(halves)
    return x16.ult(y16).select(x16, y16).as_type(x.type)


def _high(low: int, high: int, b: Builder, lanes: int, x: Value) -> Value:
    value = x >> 16
    return _pick("<", b, lanes, _pick(">", b, lanes, value, constant(I32, low, lanes)), constant(I32, high, lanes))


EMIT: dict[str, Callable[..., Value]] = {
    **{name: partial(_float, name) for name in ("add", "sub", "mul")},
    **{name: partial(_intrinsic, llvm) for name, llvm in
       {"abs": "fabs", "sqrt": "sqrt", "rint": "rint", "floor": "floor", "fma": "fma"}.items()},
    **{name: partial(_compare, sign) for name, sign in
       {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!="}.items()},
    "min_u16": lambda b, lanes, x, y: min_u16(b, x, y),
    "high_u8": partial(_high, 0, 255),
    "high_s8": partial(_high, -128, 127),
    "div": lambda b, lanes, x, y: x / y,
    "neg": lambda b, lanes, x: b.fneg(x),
    "max": partial(_pick, ">"),
    "min": partial(_pick, "<"),
    "select": lambda b, lanes, c, x, y: c.select(x, y),
    "and": lambda b, lanes, x, y: x & y,
    "or": lambda b, lanes, x, y: x | y,
    "xor": lambda b, lanes, x, y: x ^ y,
    "shl": lambda b, lanes, x, y: x << y,
    "sar": lambda b, lanes, x, y: x >> y,
    "shr": lambda b, lanes, x, y: x.shr(y),
    "as_f32": lambda b, lanes, x: x.as_type(vec(F32, lanes)),
    "as_s32": lambda b, lanes, x: x.as_type(vec(I32, lanes)),
    "to_f32": lambda b, lanes, x: x.to_float(vec(F32, lanes)),
    "to_s32": lambda b, lanes, x: x.to_int(vec(I32, lanes)),
    "round_f16": lambda b, lanes, x: widen(b, narrow(b, x, "f16", lanes), "f16", lanes),
    "round_s32": _round,
    "lookup": lambda b, lanes, table, x: widen(b, look_up(b, lanes, table, x), table.dtype, lanes),
}

Leaf = Callable[[Expr], Any]
"""What an expression's accumulator or load is: a Value, or the LookupTable of a lookup."""


def emit_nodes(builder: Builder, nodes: Iterable[Expr], values: dict[Expr, Value], lanes: int,
               leaf: Leaf) -> None:
    """Add the value of each of `nodes` (lowered, arguments first) to `values`; `leaf` gives those of acc and loads."""
    emit_beside(builder, nodes, [values], lanes, [leaf])


def emit_beside(builder: Builder, nodes: Iterable[Expr], values: Sequence[dict[Expr, Value]], lanes: int,
                leaves: Sequence[Leaf]) -> None:
    """The same for several vectors, node by node: so the CPU need not wait for one of them."""
    for node in nodes:
        for known, leaf in zip(values, leaves, strict=True):
            if node.op in ("acc", "load"):
                known[node] = leaf(node)
            elif node.op == "const":
                known[node] = builder.value(vec(COMPUTE_IR[node.dtype], lanes), node.value)
            else:
                known[node] = EMIT[node.op](builder, lanes, *(known[a] for a in node.args))


def emit(builder: Builder, expr: Expr, lanes: int, leaf: Leaf) -> Value:
    """Emit `expr` for `lanes` outputs at once (1: scalar code); `leaf` gives the values of acc and loads."""
    return emit_each(builder, expr, lanes, [leaf])[0]


def emit_each(builder: Builder, expr: Expr, lanes: int, leaves: Sequence[Leaf]) -> list[Value]:
    """Emit `expr` for several vectors, side by side."""
    values: list[dict[Expr, Value]] = [{} for _ in leaves]
    lowered = lower(expr)
    emit_beside(builder, walk(lowered), values, lanes, leaves)
    return [known[lowered] for known in values]


def widen(builder: Builder, x: Value, dtype: str, lanes: int) -> Value:
    """Convert a loaded storage type to its compute type, exactly."""
    match dtype:
        case "u8" | "u16":
            return x.zext(vec(I32, lanes))
        case "s8" | "s16":
            return x.sext(vec(I32, lanes))
        case "bf16":
            bits = x.zext(vec(I32, lanes)) << 16
            return bits.as_type(vec(F32, lanes))
        case "f16" if lanes == 1:  # any CPU: LLVM would call a function that need not exist
            return emit(builder, elementary.f16_value(acc()), 1, lambda _: x.zext(I32))
        case "f16":
            return x.as_type(vec(F16, lanes)).to_float(vec(F32, lanes))
    return x


def narrow(builder: Builder, x: Value, dtype: str, lanes: int) -> Value:
    """Convert a compute type to a storage type: low bits of integers, floats to nearest even."""
    match dtype:
        case "u8" | "s8":
            return x.trunc(vec(I8, lanes))
        case "u16" | "s16":
            return x.trunc(vec(I16, lanes))
        case "f16" if lanes == 1:
            return emit(builder, elementary.f16_bits(load(0, "f32", "vector")), 1, lambda _: x).trunc(I16)
        case "f16":
            return x.to_float(vec(F16, lanes)).as_type(vec(I16, lanes))
        case "bf16":  # as stores._narrow; vcvtneps2bf16 would flush subnormals
            bits, c = x.as_type(vec(I32, lanes)), partial(constant, I32, lanes=lanes)
            odd = bits.shr(c(16)) & c(1)
            kept = (bits + c(0x7FFF) + odd).shr(c(16))
            kept = builder.fcmp_unordered("uno", x, x).select(c(0x7FC0), kept)
            return kept.trunc(vec(I16, lanes))
    return x


def high_bytes(b: Builder, vectors: list[Value], dtype: str) -> Value:
    """Emit the upper halves of four vectors of 16 s32, saturated to s8 or u8, as one vector: by AVX-512's packs."""
    halves = []
    for x, y in zip(vectors[::2], vectors[1::2], strict=True):
        # x >> 16 | y & ~0xFFFF, so that LLVM makes no vpermt2w of it: that is three operations, most on one port
        args = [x.shr(16), y, constant(I32, -1 << 16, 16), I32(0b11111000)]
        halves.append(instruction(b, "avx512.pternlog.d.512", vec(I32, 16), args).as_type(vec(I16, 32)))
    packed = instruction(b, f"avx512.pack{'us' if dtype == 'u8' else 'ss'}wb.512", vec(I8, 64), halves)
    fours = [8 * (v // 2) + v % 2 + 2 * k for v in range(4) for k in range(4)]  # bytes of two vectors alternate
    return _in_turn(b, packed.shuffle(packed, [16 * q + n for q in range(4) for n in fours]))


def low_bytes(b: Builder, vectors: list[Value]) -> Value:
    """Emit the low bytes of four vectors of 16 s32 as one vector: by AVX-512's packs."""
    low = [x & 0xFF for x in vectors]
    pairs = zip(low[::2], low[1::2], strict=True)
    words = [instruction(b, "avx512.packusdw.512", vec(I16, 32), pair) for pair in pairs]
    return _in_turn(b, instruction(b, "avx512.packuswb.512", vec(I8, 64), words))


def _in_turn(b: Builder, bytes_: Value) -> Value:
    """Emit the bytes of one vector after the other, of fours of each of four in turn."""
    fours = bytes_.as_type(vec(I32, 16))
    return fours.shuffle(fours, [4 * q + v for v in range(4) for q in range(4)]).as_type(vec(I8, 64))


@dataclass(frozen=True)
class Columns:
    """`lanes` neighbouring columns from column `j` of a block on; with a mask, only where it is set."""

    builder: Builder
    lanes: int
    j: Value
    mask: Value | None = None

    def _place(self, row: Value, kind: ir.Type, itemsize: int) -> Value:
        address = row + self.j * itemsize
        return pointer(self.builder, address, vec(kind, self.lanes))

    def load(self, row: Value, kind: ir.Type, itemsize: int) -> Value:
        """Load from the row at address `row`; 0 where the mask is not set."""
        place = self._place(row, kind, itemsize)
        if self.mask is None:
            return self.builder.load(place, align=1)
        result = vec(kind, self.lanes)
        name = f"llvm.masked.load.v{self.lanes}{kind.intrinsic_name}.p0"
        load = declare(self.builder, name, result, [place.type, I32, self.mask.type, result])
        return self.builder.call(load, [place, ir.Constant(I32, 1), self.mask, ir.Constant(result, None)])

    def store(self, x: Value, row: Value, kind: ir.Type, itemsize: int) -> None:
        """Store to the row at address `row`."""
        place = self._place(row, kind, itemsize)
        if self.mask is None:
            self.builder.store(x, place, align=1)
            return
        name = f"llvm.masked.store.v{self.lanes}{kind.intrinsic_name}.p0"
        store = declare(self.builder, name, ir.VoidType(), [x.type, place.type, I32, self.mask.type])
        self.builder.call(store, [x, place, ir.Constant(I32, 1), self.mask])


def tail_mask(builder: Builder, lanes: int, left: Value) -> Value:
    """Emit the mask of the first `left` lanes."""
    index = Value(None, ir.Constant(ir.VectorType(I32, lanes), list(range(lanes))))
    return index < left.trunc(I32).splat(lanes)

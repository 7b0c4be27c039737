"""Emit LLVM code for expressions, on scalars or vectors, with operands, conversions of storage types and look-ups.

Results equal `epilogues.evaluate`. Tables are kept in registers if the CPU looks up bytes there, otherwise in memory.
"""
from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeAlias

from llvmlite import ir

from graphq.kernels.jit import Loop, Operand, Type, load_first, store_first, tail_mask
from graphq.kernels.jit.intrinsics import HEADER_WORDS, SLOT
from graphq.kernels.jit.values import F16, F32, F64, I1, I8, I16, I32, I64, Builder, Value, c64, joined, vector
from graphq.kernels.lanes import elementary
from graphq.kernels.lanes.expression import STORAGE, TABLE, Expr, acc, lower, walk
from graphq.kernels.lanes.quantizing import RANGES
from graphq.kernels.target.level import ByteTable


def table_in_registers(b: Builder, lanes: int) -> ByteTable | None:
    """How vectors of `lanes` lanes, or as many bytes, look up bytes in registers at this level; None if they cannot."""
    how: ByteTable | None = None if b.level is None else b.level.looks_up
    return how if how is not None and lanes in (b.level.lanes, how.size) else None


class LookupTable(NamedTuple):
    """A table of `dtype` at `address`. If the CPU looks up bytes in registers, `parts` has the table's 256 bytes."""

    dtype: str
    address: Value
    how: ByteTable | None
    parts: tuple[Value, ...]

    @staticmethod
    def read(b: Builder, dtype: str, address: Value, lanes: int) -> LookupTable:
        """Emit the loads of a table, marked as invariant. LLVM may then hoist them out of loops."""
        how = table_in_registers(b, lanes)
        places = () if how is None else range(0, 256, how.size)
        parts = ((address + k).load_invariant(vector(I8, how.size)) for k in places if how is not None)
        return LookupTable(dtype, address, how, tuple(parts))

    def line(self, b: Builder, index: Value) -> Value:
        """Emit the look-up of the bytes of a whole vector `index` in a table in registers."""
        assert self.how is not None
        return self.how.look_up(b, self.parts, index)


def look_up(b: Builder, lanes: int, table: LookupTable, index: Value) -> Value:
    """Emit a look-up for each s32 lane of `index`; the low byte selects the entry."""
    if lanes == 1:
        return (table.address + index.trunc(I8).zext(I64)).load(I8)
    index = index.trunc(vector(I8, lanes))
    if table.how is None:
        return _loaded(lanes, table, index)
    line = table.line(b, index.shuffle(index, [min(k, lanes) for k in range(table.how.size)]))
    return line.shuffle(line, range(lanes))


def _loaded(lanes: int, table: LookupTable, index: Value) -> Value:
    """Emit one byte load per lane. Gathers are slower on many CPUs, especially with microcode against Downfall."""
    each = min(8, lanes)
    words = index.as_type(ir.VectorType(ir.IntType(8 * each), lanes // each))
    offsets = (words.lane(k // each).zext(I64).shr(8 * (k % each)) & 0xFF for k in range(lanes))
    return joined([(table.address + offset).load(I8) for offset in offsets])


COMPUTE_IR = {"f32": F32, "f64": F64, "s32": I32, "bool": I1}
STORAGE_IR = {name: F32 if name == "f32" else ir.IntType(8 * kind.itemsize) for name, kind in STORAGE.items()}


def _round(b: Builder, lanes: int, x: Value) -> Value:
    suffix = "" if lanes == 1 else f"v{lanes}"
    return b.call_named(f"llvm.lrint.{suffix}i32.{suffix}f32", vector(I32, lanes), x)


def min_u16(x: Value, y: Value) -> Value:
    """Emit the unsigned minimum of each 16-bit half of s32 lanes."""
    halves = vector(I16, 2 * (x.type.count if isinstance(x.type, ir.VectorType) else 1))
    x16, y16 = x.as_type(halves), y.as_type(halves)
    return x16.ult(y16).select(x16, y16).as_type(x.type)


def _high(low: int, high: int, b: Builder, lanes: int, x: Value) -> Value:
    """Emit the upper 16 bits of each s32, saturated to [low, high]."""
    upper = x >> 16
    upper = (upper > low).select(upper, low)
    return (upper < high).select(upper, high)


EMIT: dict[str, Callable[..., Value]] = {
    **{name: partial(lambda of, b, lanes, *xs: of(*xs), of) for name, of in
       {"add": operator.add, "sub": operator.sub, "mul": operator.mul, "div": operator.truediv, "lt": operator.lt,
        "le": operator.le, "gt": operator.gt, "ge": operator.ge, "and": operator.and_, "or": operator.or_,
        "xor": operator.xor, "shl": operator.lshift, "sar": operator.rshift, "shr": Value.shr, "eq": Value.eq,
        "select": Value.select, "min_u16": min_u16}.items()},
    **{name: partial(lambda llvm, b, lanes, x, *others: x.math(llvm, *others), llvm) for name, llvm in
       {"abs": "fabs", "sqrt": "sqrt", "rint": "rint", "floor": "floor", "fma": "fma"}.items()},
    "ne": lambda b, lanes, x, y: b.fcmp_unordered("!=", x, y) if x.is_float else x.ne(y),
    "high_u8": partial(_high, *RANGES["u8"]),
    "high_s8": partial(_high, *RANGES["s8"]),
    "neg": lambda b, lanes, x: b.fneg(x),
    "max": lambda b, lanes, x, y: (x > y).select(x, y),  # LLVM makes this a single vmaxps
    "min": lambda b, lanes, x, y: (x < y).select(x, y),
    "as_f32": lambda b, lanes, x: x.as_type(vector(F32, lanes)),
    "as_s32": lambda b, lanes, x: x.as_type(vector(I32, lanes)),
    "to_f32": lambda b, lanes, x: x.to_float(vector(F32, lanes)),
    "to_f64": lambda b, lanes, x: x.to_float(vector(F64, lanes)),
    "to_s32": lambda b, lanes, x: x.to_int(vector(I32, lanes)),
    "round_f16": lambda b, lanes, x: widen(b, narrow(b, x, "f16", lanes), "f16", lanes),
    "round_s32": _round,
    "lookup": lambda b, lanes, table, x: widen(b, look_up(b, lanes, table, x), table.dtype, lanes),
}

Leaf: TypeAlias = Callable[[Expr], Value | LookupTable]
"""A function that emits a leaf of an expression: a Value, or a LookupTable for the operand of a look-up."""
Emitted: TypeAlias = dict[Expr, Any]
"""The emitted code of each node: a Value, or a LookupTable for a table."""


def emit_beside(builder: Builder, nodes: Iterable[Expr], values: Sequence[Emitted], lanes: int,
                leaves: Sequence[Leaf]) -> None:
    """Emit `nodes` for several vectors, node by node, and add their values to `values`.

    While an operation of one vector waits for its operand, the CPU works on other vectors.
    """
    for node in nodes:
        for of_nodes, leaf in zip(values, leaves, strict=True):
            if node.op in ("acc", "load"):
                of_nodes[node] = leaf(node)
            elif node.op == "const":
                of_nodes[node] = builder.value(vector(COMPUTE_IR[node.dtype], lanes), node.value)
            else:
                of_nodes[node] = EMIT[node.op](builder, lanes, *(of_nodes[a] for a in node.args))


def emit(builder: Builder, expr: Expr, lanes: int, leaf: Leaf) -> Value:
    """Emit `expr` for `lanes` outputs at once (1: scalar code). `leaf` emits accumulators and loads."""
    return emit_each(builder, expr, lanes, [leaf])[0]


def emit_each(builder: Builder, expr: Expr, lanes: int, leaves: Sequence[Leaf]) -> list[Value]:
    """Emit `expr` for several vectors side by side. For each vector, `leaves` has a function that emits its leaves."""
    values: list[Emitted] = [{} for _ in leaves]
    lowered = lower(expr)
    emit_beside(builder, walk(lowered), values, lanes, leaves)
    return [of_nodes[lowered] for of_nodes in values]


def _emulates_f16(b: Builder, lanes: int) -> bool:
    """Whether plain code converts f16: without instructions, LLVM would call a function that may not exist.

    A single lane is always converted by plain code.
    """
    return lanes == 1 or b.level is None or not b.level.f16


def widen(builder: Builder, x: Value, dtype: str, lanes: int) -> Value:
    """Convert a loaded value of a storage type to its compute type, exactly."""
    match dtype:
        case "u8" | "u16":
            return x.zext(vector(I32, lanes))
        case "s8" | "s16":
            return x.sext(vector(I32, lanes))
        case "bf16":
            return (x.zext(I32) << 16).as_type(vector(F32, lanes))
        case "f8_e4m3" | "f8_e5m2" | "f16" if dtype != "f16" or _emulates_f16(builder, lanes):
            return emit(builder, elementary.small_float_value(acc(), dtype), lanes, lambda _: x.zext(I32))
        case "f16":
            return x.as_type(vector(F16, lanes)).to_float(vector(F32, lanes))
    return x


def narrow(builder: Builder, x: Value, dtype: str, lanes: int) -> Value:
    """Convert a compute type to a storage type. Integers keep their low bits; floats are rounded to nearest even."""
    match dtype:
        case "u8" | "s8" | "u16" | "s16":
            return x.trunc(STORAGE_IR[dtype])
        case "f8_e4m3" | "f8_e5m2" | "f16" if dtype != "f16" or _emulates_f16(builder, lanes):
            bits = emit(builder, elementary.small_float_bits(acc("f32"), dtype), lanes, lambda _: x)
            return bits.trunc(STORAGE_IR[dtype])
        case "f16":
            return x.to_float(vector(F16, lanes)).as_type(vector(I16, lanes))
        case "bf16":  # instructions that do this would flush subnormals
            bits = x.as_type(vector(I32, lanes))
            kept = (bits + 0x7FFF + (bits.shr(16) & 1)).shr(16)
            kept = builder.fcmp_unordered("uno", x, x).select(0x7FC0, kept)
            return kept.trunc(I16)
    return x


@dataclass(frozen=True)
class Columns:
    """`lanes` neighboring columns of a block, starting at column `j`. If `left` is given, only `left` of them exist."""

    builder: Builder
    lanes: int
    j: Value
    left: Value | None = None

    def where(self, x: Value, otherwise: Operand) -> Value:
        """`x` in columns that exist, `otherwise` in the others."""
        return x if self.left is None else tail_mask(self.lanes, self.left).select(x, otherwise)

    def load(self, row: Value, kind: Type, itemsize: int) -> Value:
        """Load from the row at address `row`. Columns that do not exist become 0."""
        place, kinds = row + self.j * itemsize, vector(kind, self.lanes)
        return place.load(kinds) if self.left is None else load_first(place, self.left, kinds)

    def store(self, x: Value, row: Value, kind: Type, itemsize: int) -> None:
        """Store to the row at address `row`."""
        place = row + self.j * itemsize
        if self.left is None:
            x.store(place)
        else:
            store_first(x, place, self.left)


Turn: TypeAlias = Callable[[list[Columns], list[Value]], list[Value]]
"""A function of some vectors of columns and the carried values; it returns the new carried values."""


def over_columns(b: Builder, count: Value, lanes: int, carried: Sequence[Value], turn: Turn, beside: int = 1
                 ) -> list[Value]:
    """Emit a loop over vectors of columns: `beside` vectors at a time, then one at a time. The last is masked.

    Each iteration replaces the values `carried` by the result of `turn`. Returns the last values.
    """
    whole = count // lanes
    together = whole // beside
    with Loop(b, together, carried) as loop:
        first = loop.k * (beside * lanes)
        loop.update(turn([Columns(b, lanes, first + n * lanes) for n in range(beside)], loop.values))
    if beside > 1:
        done = together * beside
        with Loop(b, whole - done, loop.values) as loop:
            loop.update(turn([Columns(b, lanes, (done + loop.k) * lanes)], loop.values))
    done = whole * lanes
    left = count - done
    with Loop(b, (left > 0).zext(I64), loop.values) as last:
        last.update(turn([Columns(b, lanes, done, left)], last.values))
    return last.values


def fold(x: Value, take: Callable[[Value, Value], Value], *, pairs: bool = False, to: int = 1) -> Value:
    """Fold a vector to `to` elements (a scalar if `to` is 1), in the order of `numbers.rows.folded`."""
    while x.type.count > to:
        half = x.type.count // 2
        if half == 1:
            return take(x.lane(0), x.lane(1))
        places = [range(k, 2 * half, 2) if pairs else range(k * half, k * half + half) for k in range(2)]
        x = take(*(x.shuffle(x, list(p)) for p in places))
    return x


@dataclass(frozen=True)
class SlotOperand:
    """The operand of one slot (see SLOT), with the address of its first element for a block of outputs.

    The slot's table has a byte offset for each batch index. Element (batch, i, j) of a "vector" operand is at address +
    table[batch] + i * stride + j * itemsize. A "row" operand has no column j. A "scalar" is at the address itself.
    """

    address: Value
    stride: Value
    itemsize: int

    @staticmethod
    def read(builder: Builder, first: Sequence[Value], slot: int, dtype: str, kind: str) -> SlotOperand:
        """Emit the loads of the words of slot `slot`, for the block of outputs that starts at `first`."""
        args, batch, i0, j0 = first
        words = HEADER_WORDS + len(SLOT.fields) * slot
        address, table, stride = ((args + 8 * (words + n)).load_invariant(I64, 8) for n in range(len(SLOT.fields)))
        itemsize = STORAGE[dtype].itemsize
        if kind in ("scalar", TABLE):
            return SlotOperand(address, stride, itemsize)
        zero = builder.ptrtoint(_zero(builder), I64)
        entry = table.eq(0).select(zero, table + batch * 8)
        address = address + entry.load_invariant(I64, 8)
        address = address + i0 * stride
        if kind in ("vector", "column"):
            address = address + j0 * itemsize
        return SlotOperand(address, stride, itemsize)

    def row(self, r: Value) -> Value:
        """Emit the address of row `r` of the block."""
        return self.address + r * self.stride


def _zero(builder: Builder) -> ir.GlobalVariable:
    """The address of a 64-bit zero. Operands without a table use it as their table, so code needs no branch."""
    out = ir.GlobalVariable(builder.module, I64, builder.module.get_unique_name("graphq.zero"))
    out.linkage, out.global_constant, out.initializer = "internal", True, c64(0).ir
    return out

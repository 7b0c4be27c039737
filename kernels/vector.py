"""LLVM code for expressions: `epilogue` turns a Store into the vector loop over a block of outputs.

Numbers are those of `expression.evaluate`. An argument block is read here by one rule (see `Operand`), whatever the
kernel: words HEADER_WORDS + 3*s are operand s, the slot after the last operand is the output.
"""
from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, Literal

from llvmlite import ir

from graphq.kernels import math  # generated modules name its definitions, too
from graphq.kernels.expression import STORAGE, TABLE, Expr, Store, Ties, acc, load, lower, walk
from graphq.kernels.intrinsics import (
    F16,
    F32,
    HEADER_WORDS,
    I1,
    I8,
    I16,
    I32,
    I64,
    c64,
    counted,
    declare,
    invariant_load,
    pointer,
    splat,
)
from graphq.kernels.jit import intrinsic, types
from graphq.kernels.lookup import Table, look_up

SLOT_WORDS = 3
Form = Literal["quick", "exact", "literal"]
GROUP = 8
"""Rows of a vector of columns that are computed again when one of them may be near a tie."""

COMPUTE_IR = {"f32": F32, "s32": I32, "bool": I1}
STORAGE_IR = {"f32": F32, "s32": I32, "s8": I8, "u8": I8, "bf16": I16, "f16": I16}


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


EMIT: dict[str, Callable[..., ir.Value]] = {
    **{name: partial(_float, name) for name in ("add", "sub", "mul")},
    **{name: partial(_intrinsic, llvm) for name, llvm in
       {"abs": "fabs", "sqrt": "sqrt", "rint": "rint", "floor": "floor", "fma": "fma"}.items()},
    **{name: partial(_compare, sign) for name, sign in
       {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!="}.items()},
    "below": lambda b, lanes, x, y: b.icmp_unsigned("<", x, y),
    "lower": lambda b, lanes, x, y: b.select(b.icmp_unsigned("<", x, y), x, y),
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
    for node in nodes:
        if node.op in ("acc", "load"):
            values[node] = leaf(node)
        elif node.op == "const":
            values[node] = constant(COMPUTE_IR[node.dtype], node.value, lanes)
        else:
            values[node] = EMIT[node.op](builder, lanes, *(values[a] for a in node.args))


def emit(builder: ir.IRBuilder, expr: Expr, lanes: int, leaf: Leaf) -> ir.Value:
    """Emit `expr` for `lanes` outputs at once (1: scalar code); `leaf` gives the values of acc and loads."""
    values: dict[Expr, ir.Value] = {}
    lowered = lower(expr)
    emit_nodes(builder, walk(lowered), values, lanes, leaf)
    return values[lowered]


def widen(builder: ir.IRBuilder, x: ir.Value, dtype: str, lanes: int) -> ir.Value:
    """Convert a loaded storage type to its compute type, exactly."""
    match dtype:
        case "u8":
            return builder.zext(x, vec(I32, lanes))
        case "s8":
            return builder.sext(x, vec(I32, lanes))
        case "bf16":
            bits = builder.shl(builder.zext(x, vec(I32, lanes)), constant(I32, 16, lanes))
            return builder.bitcast(bits, vec(F32, lanes))
        case "f16" if lanes == 1:  # any CPU: LLVM would call a function that need not exist
            return emit(builder, math.f16_value(acc()), 1, lambda _: builder.zext(x, I32))
        case "f16":
            return builder.fpext(builder.bitcast(x, vec(F16, lanes)), vec(F32, lanes))
    return x


def narrow(builder: ir.IRBuilder, x: ir.Value, dtype: str, lanes: int) -> ir.Value:
    """Convert a compute type to a storage type: low bits of integers, floats to nearest even."""
    match dtype:
        case "u8" | "s8":
            return builder.trunc(x, vec(I8, lanes))
        case "f16" if lanes == 1:
            return builder.trunc(emit(builder, math.f16_bits(load(0, "f32", "vector")), 1, lambda _: x), I16)
        case "f16":
            return builder.bitcast(builder.fptrunc(x, vec(F16, lanes)), vec(I16, lanes))
        case "bf16":  # as expression._narrow; vcvtneps2bf16 would flush subnormals
            bits, c = builder.bitcast(x, vec(I32, lanes)), partial(constant, I32, lanes=lanes)
            odd = builder.and_(builder.lshr(bits, c(16)), c(1))
            kept = builder.lshr(builder.add(builder.add(bits, c(0x7FFF)), odd), c(16))
            kept = builder.select(builder.fcmp_unordered("uno", x, x), c(0x7FC0), kept)
            return builder.trunc(kept, vec(I16, lanes))
    return x


@dataclass(frozen=True)
class Operand:
    """One slot of the argument block: three words, pointer, table of byte offsets by batch index (or 0), row stride.

    Element (batch, i, j) of a vector operand lies at pointer + table[batch] + i * stride + j * itemsize, of a row
    operand without the last term, a scalar at pointer. `address` is that of the first element of a block of outputs.
    """

    address: ir.Value
    stride: ir.Value
    itemsize: int

    @staticmethod
    def read(builder: ir.IRBuilder, args: ir.Value, slot: int, dtype: str, kind: str, batch: ir.Value, i0: ir.Value,
             j0: ir.Value) -> Operand:
        """Emit the reading of slot `slot` for the block of outputs that starts at (batch, i0, j0)."""
        first = HEADER_WORDS + SLOT_WORDS * slot
        address, table, stride = (invariant_load(builder, builder.add(args, c64(8 * (first + n))), I64, 8)
                                  for n in range(SLOT_WORDS))
        itemsize = STORAGE[dtype].itemsize
        if kind in ("scalar", TABLE):
            return Operand(address, stride, itemsize)
        zero = builder.ptrtoint(_zero(builder), I64)
        entry = builder.select(builder.icmp_unsigned("==", table, c64(0)), zero,
                               builder.add(table, builder.mul(batch, c64(8))))
        address = builder.add(address, invariant_load(builder, entry, I64, 8))
        address = builder.add(address, builder.mul(i0, stride))
        if kind in ("vector", "column"):
            address = builder.add(address, builder.mul(j0, c64(itemsize)))
        return Operand(address, stride, itemsize)

    def row(self, builder: ir.IRBuilder, r: ir.Value) -> ir.Value:
        """Emit the address of row `r` of the block."""
        return builder.add(self.address, builder.mul(r, self.stride))


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


def _rates(nodes: Iterable[Expr]) -> Mapping[Expr, str]:
    """Say for each node how often it changes: with every vector of outputs, every row, every column, or never."""
    rates: dict[Expr, str] = {}
    for node in nodes:
        if node.op == "acc":
            rates[node] = "vector"
        elif node.op == "load":
            rates[node] = "scalar" if node.dtype == TABLE else node.value[2]
        else:
            of = {rates[a] for a in node.args} - {"scalar"}
            rates[node] = of.pop() if len(of) == 1 else "vector" if of else "scalar"
    return rates


class Epilogue:
    """The emission of one epilogue over a block of rows x cols outputs; accumulators are in memory or registers."""

    def __init__(self, builder: ir.IRBuilder, store: Store, lanes: int, into_acc: bool = False,
                 form: Form = "quick") -> None:
        self.builder, self.store, self.lanes, self.into_acc = builder, store, lanes, into_acc
        self.expr = lower({"quick": store.quick, "exact": store.expr, "literal": store.literal}[form])
        self.near: Expr | None = None
        self.distance: Expr | None = None
        self.band: Expr | None = None
        if store.ties is not None and form == "quick":
            self.distance, self.band = lower(store.ties.distance), lower(store.ties.band)
        elif store.ties is not None and form == "exact":
            self.near = lower(store.ties.near)
        roots = [x for x in (self.expr, self.near, self.distance, self.band) if x is not None]
        self.nodes = list(dict.fromkeys(n for x in roots for n in walk(x)))
        self.rates = _rates(self.nodes)
        self.register: ir.Value | None = None  # the accumulators of the vector that is emitted, if not in memory

    def at(self, rate: str) -> list[Expr]:
        """The nodes of a rate."""
        return [n for n in self.nodes if self.rates[n] == rate]

    def emit(self, args: ir.Value, batch: ir.Value, i0: ir.Value, j0: ir.Value, rows: ir.Value, cols: ir.Value,
             acc: ir.Value, ldacc: ir.Value, ties: ir.Value) -> None:
        """Emit the loops: over columns, then rows, where operands vary by column; else as outputs lie in memory."""
        b = self.builder
        self.begin(args, batch, i0, j0)
        self.ties = ties
        with b.goto_entry_block():
            self.count = b.alloca(I64)
        b.store(c64(0), self.count)

        def each_row(r: ir.Value) -> None:
            self.row(r)
            self.acc_row, self.entry = b.add(acc, b.mul(r, ldacc)), b.shl(r, c64(16))
            if self.into_acc:
                self.out_row = self.acc_row

        if self.at("column") or self.store.ties is not None:
            for columns in self.vectors(cols):
                self.rows_of(columns, rows, each_row)
        else:
            with counted(b, c64(0), rows) as r:
                each_row(r)
                for columns in self.vectors(cols):
                    self.outputs(columns, self.column(columns))

    def rows_of(self, columns: Columns, rows: ir.Value, each_row: Callable[[ir.Value], None]) -> None:
        """Emit the outputs of all rows at these columns, and entries of those that have or may have ties near.

        The least distance of each lane in a group of rows says so, for one operation a vector.
        """
        b, per_column = self.builder, self.column(columns)
        if self.distance is None or self.band is None:
            with counted(b, c64(0), rows, unroll=False) as r:
                each_row(r)
                values = self.outputs(columns, per_column)
                if self.near is not None:
                    self.enter(columns, self.entry, values[self.near])
            return
        with b.goto_entry_block():
            least = b.alloca(vec(I32, self.lanes))
        with counted(b, c64(0), rows, GROUP) as first:
            b.store(constant(I32, -1, self.lanes), least)
            last = b.add(first, c64(GROUP))
            with counted(b, first, b.select(b.icmp_signed("<", last, rows), last, rows), unroll=False) as r:
                each_row(r)
                distance, before = self.outputs(columns, per_column)[self.distance], b.load(least)
                b.store(b.select(b.icmp_unsigned("<", distance, before), distance, before), least)
            self.enter(columns, b.shl(first, c64(16)), b.icmp_unsigned("<", b.load(least), per_column[self.band]))

    def enter(self, columns: Columns, row: ir.Value, found: ir.Value) -> None:
        """Append an entry of these columns where some are found: it is stored anyway, and counted if so."""
        b = self.builder
        if columns.mask is not None:
            found = b.and_(found, columns.mask)
        bits = b.zext(b.bitcast(found, ir.IntType(self.lanes)), I64)
        count = b.load(self.count)
        entry = b.or_(b.or_(row, b.shl(columns.j, c64(32))), bits)
        b.store(entry, pointer(b, b.add(self.ties, b.shl(count, c64(3))), I64), align=8)
        b.store(b.add(count, b.zext(b.icmp_unsigned("!=", bits, c64(0)), I64)), self.count)

    def vectors(self, cols: ir.Value) -> Iterator[Columns]:
        """Emit a loop over whole vectors of columns, then a masked one."""
        b, lanes = self.builder, self.lanes
        whole = b.sub(cols, b.urem(cols, c64(lanes)))
        with counted(b, c64(0), whole, lanes) as j:
            yield Columns(b, lanes, j)
        if lanes > 1:
            with b.if_then(b.icmp_signed("<", whole, cols)):
                yield Columns(b, lanes, whole, tail_mask(b, lanes, b.sub(cols, whole)))

    def emit_registers(self, args: ir.Value, batch: ir.Value, i0: ir.Value, j0: ir.Value,
                       rows: Sequence[Sequence[ir.Value]], mask: ir.Value | None = None) -> None:
        """Emit the outputs of the vectors of `rows`; of a row the first lanes that the mask has."""
        self.begin(args, batch, i0, j0)
        for n, vectors in enumerate(zip(*rows, strict=True)):
            columns = Columns(self.builder, self.lanes, c64(n * self.lanes), mask)
            values = self.column(columns)
            for r, self.register in enumerate(vectors):
                self.row(c64(r))
                self.outputs(columns, values)

    def begin(self, args: ir.Value, batch: ir.Value, i0: ir.Value, j0: ir.Value) -> None:
        """Emit what is the same for all outputs of the block."""
        b, store = self.builder, self.store
        read = partial(Operand.read, b, args, batch=batch, i0=i0, j0=j0)
        self.operands = {slot: read(slot, dtype, kind) for slot, dtype, kind in store.loads}
        self.out = None if self.into_acc else read(store.slots, store.dtype, "vector")
        self.fixed: dict[Expr, ir.Value] = {}
        emit_nodes(b, self.at("scalar"), self.fixed, self.lanes, partial(self.broadcast, None))

    def row(self, r: ir.Value) -> None:
        """Emit what is the same for all outputs of row `r`."""
        b = self.builder
        self.per_row: dict[Expr, ir.Value] = dict(self.fixed)
        emit_nodes(b, self.at("row"), self.per_row, self.lanes, partial(self.broadcast, r))
        self.rows = {slot: operand.row(b, r) for slot, operand in self.operands.items()}
        if self.out is not None:
            self.out_row = self.out.row(b, r)

    def column(self, columns: Columns) -> dict[Expr, ir.Value]:
        """Emit what is the same for all outputs of these columns; the values."""
        values = dict(self.fixed)
        emit_nodes(self.builder, self.at("column"), values, self.lanes, partial(self.leaf, columns))
        return values

    def broadcast(self, r: ir.Value | None, node: Expr) -> ir.Value | Table:
        """Load a scalar (`r` is None) or row operand into all lanes, or a table."""
        slot, dtype, _ = node.value
        operand, kind = self.operands[slot], STORAGE_IR[dtype]
        if node.dtype == TABLE:
            return Table.read(self.builder, dtype, operand.address, self.lanes)
        if r is None:
            x = invariant_load(self.builder, operand.address, kind, 1)
        else:
            x = self.builder.load(pointer(self.builder, operand.row(self.builder, r), kind), align=1)
        return splat(self.builder, widen(self.builder, x, dtype, 1), self.lanes)

    def outputs(self, columns: Columns, per_column: Mapping[Expr, ir.Value]) -> dict[Expr, ir.Value]:
        """Compute and store the outputs of the row at these columns; the values of all nodes."""
        values = {**self.per_row, **per_column}
        emit_nodes(self.builder, self.at("vector"), values, self.lanes, partial(self.leaf, columns))
        dtype = self.store.dtype
        columns.store(narrow(self.builder, values[self.expr], dtype, self.lanes), self.out_row, STORAGE_IR[dtype],
                      STORAGE[dtype].itemsize)
        return values

    def leaf(self, columns: Columns, node: Expr) -> ir.Value:
        """Load the accumulators or a vector operand."""
        if node.op == "acc":
            return columns.load(self.acc_row, COMPUTE_IR[node.dtype], 4) if self.register is None else self.register
        slot, dtype, kind = node.value
        row = self.operands[slot].address if kind == "column" else self.rows[slot]
        x = columns.load(row, STORAGE_IR[dtype], self.operands[slot].itemsize)
        return widen(self.builder, x, dtype, self.lanes)


def _zero(builder: ir.IRBuilder) -> ir.GlobalVariable:
    """Memory that holds a 64-bit zero: the offset where there is no table."""
    out = ir.GlobalVariable(builder.module, I64, builder.module.get_unique_name("graphq.zero"))
    out.linkage, out.global_constant, out.initializer = "internal", True, c64(0)
    return out


@cache
def epilogue(store: Store, lanes: int, *, into_acc: bool = False,
             form: Form = "quick") -> Callable[..., None]:
    """Make the intrinsic (args, batch, i0, j0, rows, cols, acc, ldacc, ties) -> count: it writes rows x cols outputs.

    The first is (i0, j0). `args` is the address of the argument block; the accumulator of output (r, c) of the block is
    the s32 or f32 at acc + r * ldacc + 4 * c. Vectors are `lanes` wide (1, 8 or 16); the last one of a row is masked.
    Nothing outside the operands and outputs is read or written. With `into_acc` the outputs go to where accumulators
    would lie, and no slot says where.

    Of a store with ties the "quick" `form` is right but for groups of GROUP rows and `lanes` columns that it enters in
    `ties`: column << 32 | first row << 16 | other bits, 8 bytes each. The "exact" form enters what is near a tie, with
    a bit for each of the columns, and the "literal" one is what that is. They give the number of entries; there is room
    for one more than there are vectors.
    """
    intp, uintp = types.intp, types.uintp
    signature = types.intp(uintp, intp, intp, intp, intp, intp, uintp, intp, intp)

    def codegen(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        made = Epilogue(builder, store, lanes, into_acc, form)
        made.emit(*values)
        return builder.load(made.count)

    @intrinsic
    def write(_typing: Any, args: Any, batch: Any, i0: Any, j0: Any, rows: Any, cols: Any, acc: Any, ldacc: Any,
              ties: Any) -> Any:
        return signature, codegen

    return write


def factor(ties: Ties, number: int) -> Callable[..., int]:
    """Make the intrinsic (args, batch, j): factor `number` for column j, the bits of its 4 bytes."""
    expr = lower(ties.factors[number])

    def codegen(context: Any, b: Any, signature: Any, values: Any) -> Any:
        args, batch, j = values

        def leaf(node: Expr) -> ir.Value:
            slot, dtype, kind = node.value
            operand = Operand.read(b, args, slot, dtype, kind, batch, c64(0), j)
            return widen(b, b.load(pointer(b, operand.address, STORAGE_IR[dtype]), align=1), dtype, 1)

        return b.sext(b.bitcast(emit(b, expr, 1, leaf), I32), I64)

    @intrinsic
    def value(_typing: Any, args: Any, batch: Any, j: Any) -> Any:
        return types.intp(types.uintp, types.intp, types.intp), codegen

    return value

"""Emit LLVM code for the epilogues of kernels: `write_outputs` emits the loops over a block of outputs.

Results equal `epilogues.evaluate`. The argument block of every kernel begins with HEADER_WORDS words for the kernel
itself. Three words (`SLOT`) follow for each operand of the epilogue, and three for its output.
"""
from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial, reduce
from itertools import zip_longest
from typing import Any, NamedTuple

from llvmlite import ir

from graphq.kernels.jit import Loop, tail_mask
from graphq.kernels.jit.values import I8, I16, I32, I64, Builder, Value, c64, constant, vector
from graphq.kernels.lanes.epilogues import Epilogue, FastForm, Form, SecondLook
from graphq.kernels.lanes.expression import BYTES, STORAGE, TABLE, Expr, lower, walk
from graphq.kernels.lanes.vector import (
    COMPUTE_IR,
    STORAGE_IR,
    Columns,
    Emitted,
    LookupTable,
    SlotOperand,
    emit,
    emit_beside,
    min_u16,
    narrow,
    table_in_registers,
    widen,
)
from graphq.kernels.target.level import BytePacking

GROUP = 4
"""The number of rows that share one test for outputs near a rounding tie, per vector of columns.

With 8 rows, ResNet-50 takes 1 to 2 % longer on AMX. On other instruction sets, and in MobileNetV2, nothing changes.
"""
PACKED = 4
"""The number of vectors of 16 columns whose 8-bit outputs fill one vector of 64 bytes."""
GROUP_SIZES, LONG = (4, 2), 16
"""If an output takes more than LONG operations, groups of 4 vectors are computed together, then a group of 2.

Operations of different vectors overlap: gelu, sigmoid and exp take 10 to 20 % less time (Xeon), two vectors 5 % (Zen).
"""


def _rates(nodes: Iterable[Expr]) -> Mapping[Expr, str]:
    """How often each node's value changes: per "vector" of outputs, per "row", per "column", or never ("scalar")."""
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


class Row(NamedTuple):
    """A row in a block of outputs: the addresses of its data, and the values that all its outputs share."""

    values: Emitted
    operands: Mapping[int, Value]  # addresses by slot
    out: Value | None  # the same as `acc` if outputs replace the accumulators
    acc: Value | None  # None if accumulators are in registers


class Entries:
    """The list, at `address`, of outputs that are or could be near a rounding tie, and the number of its entries."""

    def __init__(self, b: Builder, address: Value) -> None:
        self.b, self.address = b, address
        with b.goto_entry_block():
            self.count: Value = b.alloca(I64)
        b.store(c64(0), self.count)

    def append(self, entry: Value, bits: Value) -> None:
        """Store an entry, and count it if any of `bits` is set. Otherwise the next entry overwrites it."""
        count: Value = self.b.load(self.count)
        entry.store(self.address + (count << 3), 8)
        self.b.store(count + bits.ne(0).zext(I64), self.count)


class EpilogueEmitter:
    """Emits an epilogue for a block of outputs whose accumulators are in memory or in registers.

    `first` has the address of the argument block, and the batch element, row and column of the first output. `root` is
    the output's expression. `others` are computed with it: in the exact form of an epilogue with a second look, whether
    an output needs it. Outputs that are or could be near a rounding tie are listed at address `entries` (see
    `write_outputs`). Vectors with long expressions are computed together, in groups of `group_sizes`.
    """

    packs: BytePacking | None = None

    def __init__(self, builder: Builder, epilogue: Epilogue, lanes: int, first: Sequence[Value], root: Expr,
                 *others: Expr, into_acc: bool = False, entries: Value | None = None,
                 group_sizes: Sequence[int] = GROUP_SIZES) -> None:
        self.builder, self.epilogue, self.lanes = builder, epilogue, lanes
        self.expr, *self.others = map(lower, (root, *others))
        self.nodes = list(dict.fromkeys(n for x in (self.expr, *self.others) for n in walk(x)))
        self.rates = _rates(self.nodes)
        self.group_sizes = group_sizes if lanes > 1 and len(self.at("vector")) > LONG else ()
        read = partial(SlotOperand.read, builder, first)
        self.operands = {slot: read(slot, dtype, kind) for slot, dtype, kind in epilogue.loads}
        self.out = None if into_acc else read(epilogue.slots, epilogue.dtype, "vector")
        self.fixed: Emitted = {}  # values that all outputs of the block share
        emit_beside(builder, self.at("scalar"), [self.fixed], lanes, [partial(self.broadcast, None)])
        self.entries = None if entries is None else Entries(builder, entries)

    def at(self, rate: str) -> list[Expr]:
        """The nodes whose values change at this rate (see `_rates`)."""
        return [n for n in self.nodes if self.rates[n] == rate]

    def emit(self, rows: Value, cols: Value, acc: Value, ldacc: Value) -> None:
        """Emit the loops over a block of rows and columns.

        The outer loop is over columns if operands vary by column, because each column's values are then loaded once. It
        is also over columns if there is a fast form. Otherwise the outer loop is over rows, the order in memory.
        """
        if self.at("column") or self.epilogue.fast is not None:
            for group in self.groups(cols):
                self.rows_of(group, rows, lambda r: self.row(r, acc + r * ldacc))
        else:
            with Loop(self.builder, rows) as loop:
                row = self.row(loop.k, acc + loop.k * ldacc)
                for group in self.groups(cols):
                    self.store_group(group, row, self.values_of(group, row, [self.column(x) for x in group]))

    def rows_of(self, group: Sequence[Columns], rows: Value, row_at: Callable[[Value], Row]) -> None:
        """Emit the outputs of all rows at these columns."""
        per_column = [self.column(columns) for columns in group]
        with Loop(self.builder, rows, unroll=False) as loop:
            row = row_at(loop.k)
            of_group = self.values_of(group, row, per_column)
            self.store_group(group, row, of_group)
            for needed in self.others:
                for columns, values in zip(group, of_group, strict=True):
                    self.enter(columns, loop.k, values[needed])

    def enter(self, columns: Columns, row: Value, needed: Value) -> None:
        """Append an entry with one bit per column if an output of the row needs a second look."""
        assert self.entries is not None
        if columns.left is not None:
            needed = needed & tail_mask(self.lanes, columns.left)
        bits = needed.as_type(ir.IntType(self.lanes))
        self.entries.append(row << 16 | (columns.j << 32) | bits.zext(I64), bits)

    def enter_near(self, group: Sequence[Columns], row: Value, of_rows: Sequence[Sequence[Emitted]]) -> None:
        """Append entries for a group of rows from `row` on, from the values of each row at these columns."""

    def groups(self, cols: Value) -> Iterator[list[Columns]]:
        """Emit loops over groups of vectors that are computed together, then a loop over single vectors."""
        b, first = self.builder, self.builder.value(I64, 0)
        for size in self.group_sizes:
            start, first = first, cols - cols.urem(size * self.lanes)
            with Loop(b, first, start=start, step=size * self.lanes) as loop:
                yield [Columns(b, self.lanes, loop.k + n * self.lanes) for n in range(size)]
        for columns in self.vectors(first, cols):
            yield [columns]

    def vectors(self, first: Value, cols: Value) -> Iterator[Columns]:
        """Emit a loop over whole vectors of columns from `first` on, then a masked vector for the tail."""
        b, lanes = self.builder, self.lanes
        whole = cols - cols.urem(lanes)
        with Loop(b, whole, start=first, step=lanes) as loop:
            yield Columns(b, lanes, loop.k)
        if lanes > 1:
            with b.if_then(whole < cols):
                yield Columns(b, lanes, whole, cols - whole)

    def emit_registers(self, rows: Sequence[Sequence[Value]], left: Value | None = None) -> None:
        """Emit the outputs for `rows` of accumulators in registers. If `left` is given, only `left` columns exist."""
        b, each = self.builder, len(rows[0])
        packed = each // PACKED * PACKED if self.packs else 0
        for first in (*range(0, packed, PACKED), *range(packed, each)):
            last = first + (PACKED if first < packed else 1)
            group = [Columns(b, self.lanes, b.value(I64, n * self.lanes), left) for n in range(first, last)]
            per_column = [self.column(columns) for columns in group]
            for top in range(0, len(rows), GROUP):
                of_rows = []
                for r in range(top, min(top + GROUP, len(rows))):
                    row = self.row(b.value(I64, r))
                    of_rows.append(self.values_of(group, row, per_column, rows[r][first:last]))
                    self.store_group(group, row, of_rows[-1])
                self.enter_near(group, c64(top << 16), of_rows)

    def store_group(self, group: Sequence[Columns], row: Row, of_group: Sequence[Emitted]) -> None:
        """Store the outputs of a row at these columns."""
        dtype = self.epilogue.dtype
        assert row.out is not None
        for columns, values in zip(group, of_group, strict=True):
            x = narrow(self.builder, values[self.expr], dtype, self.lanes)
            columns.store(x, row.out, STORAGE_IR[dtype], STORAGE[dtype].itemsize)

    def row(self, r: Value, acc: Value | None = None) -> Row:
        """Emit the values that all outputs of row `r` share. The row's accumulators are at address `acc`."""
        values = dict(self.fixed)
        emit_beside(self.builder, self.at("row"), [values], self.lanes, [partial(self.broadcast, r)])
        operands = {slot: operand.row(r) for slot, operand in self.operands.items()}
        return Row(values, operands, acc if self.out is None else self.out.row(r), acc)

    def column(self, columns: Columns) -> Emitted:
        """Emit the values that are the same in all rows of these columns."""
        values = dict(self.fixed)
        leaf = partial(self.leaf, columns, None, None)
        emit_beside(self.builder, self.at("column"), [values], self.lanes, [leaf])
        return values

    def broadcast(self, r: Value | None, node: Expr) -> Value | LookupTable:
        """Load the operand of row `r`, or a scalar if `r` is None, into all lanes. Tables become LookupTables."""
        slot, dtype, _ = node.value
        operand, kind = self.operands[slot], STORAGE_IR[dtype]
        if node.dtype == TABLE:
            return LookupTable.read(self.builder, dtype, operand.address, self.lanes)
        x = operand.address.load_invariant(kind) if r is None else operand.row(r).load(kind)
        return widen(self.builder, x, dtype, 1).splat(self.lanes)

    def values_of(self, group: Sequence[Columns], row: Row, per_column: Sequence[Emitted],
                  accs: Sequence[Value] = ()) -> list[Emitted]:
        """Compute all nodes of the row for each of these vectors of columns.

        The vectors are computed side by side, but one after another if outputs are packed. `accs` has the accumulators
        if they are in registers.
        """
        of_group = [{**row.values, **values} for values in per_column]
        leaves = [partial(self.leaf, columns, row, acc) for columns, acc in zip_longest(group, accs)]
        turns = [slice(n, n + 1) for n in range(len(group))] if self.packs else [slice(None)]
        for turn in turns:
            emit_beside(self.builder, self.at("vector"), of_group[turn], self.lanes, leaves[turn])
        return of_group

    def leaf(self, columns: Columns, row: Row | None, acc: Value | None, node: Expr) -> Value:
        """The value of a leaf in these columns: an accumulator, or a loaded operand.

        An accumulator is `acc`, or is loaded if `acc` is None. Without a row, only operands that vary by column are
        loaded.
        """
        if node.op == "acc" and acc is not None:
            return acc
        if node.op == "acc":
            assert row is not None and row.acc is not None
            return columns.load(row.acc, COMPUTE_IR[node.dtype], 4)
        slot, dtype, _ = node.value
        address = self.operands[slot].address if row is None else row.operands[slot]
        x = columns.load(address, STORAGE_IR[dtype], self.operands[slot].itemsize)
        return widen(self.builder, x, dtype, self.lanes)


class FastEmitter(EpilogueEmitter):
    """Emits the fast form of an epilogue: it lists each group of outputs with an output near a rounding tie."""

    def __init__(self, builder: Builder, epilogue: Epilogue, fast: FastForm, *args: Any, **named: Any) -> None:
        super().__init__(builder, epilogue, *args, epilogue.form("fast"), fast.distance, fast.band, **named)
        self.distance, self.band = self.others
        looked_up = self.expr.op == "lookup" and epilogue.dtype in BYTES and \
            table_in_registers(builder, self.lanes) is not None
        if builder.level is not None and (looked_up or self.expr.op.startswith("high_")):
            self.packs = builder.level.packs
        self.group_sizes = (PACKED,) if self.packs else self.group_sizes

    def rows_of(self, group: Sequence[Columns], rows: Value, row_at: Callable[[Value], Row]) -> None:
        """Emit the outputs of all rows at these columns, and entries for outputs near a rounding tie.

        A group of rows shares one test. Each lane keeps the smallest distance to a tie in the group, at the cost of one
        operation per vector.
        """
        b, per_column = self.builder, [self.column(columns) for columns in group]
        with b.goto_entry_block():
            least = [b.alloca(vector(I32, self.lanes)) for _ in group]
        with Loop(b, rows, step=GROUP) as groups:
            for place in least:
                b.store(constant(vector(I32, self.lanes), -1), place)
            last = groups.k + GROUP
            with Loop(b, (last < rows).select(last, rows), start=groups.k, unroll=False) as loop:
                row = row_at(loop.k)
                of_group = self.values_of(group, row, per_column)
                for place, values in zip(least, of_group, strict=True):
                    b.store(min_u16(values[self.distance], b.load(place)), place)
                self.store_group(group, row, of_group)
                if len(group) > 1:
                    self.bring_next(group[0], row, rows)
            for columns, place, values in zip(group, least, per_column, strict=True):
                self.enter_within(columns, groups.k << 16, b.load(place), values)

    def store_group(self, group: Sequence[Columns], row: Row, of_group: Sequence[Emitted]) -> None:
        """Store the outputs of a row at these columns.

        With packing, four vectors are narrowed together: 4 operations on their upper halves, instead of 4 per vector. A
        look-up of 64 bytes takes as many operations as a look-up of 16.
        """
        if self.packs is None or len(group) == 1:
            super().store_group(group, row, of_group)
            return
        b, vectors = self.builder, [values[self.expr.args[-1]] for values in of_group]
        if self.expr.op == "lookup":
            bytes_ = of_group[0][self.expr.args[0]].line(b, self.packs.low(b, vectors))
        else:
            bytes_ = self.packs.high(b, vectors, self.epilogue.dtype)
        assert row.out is not None
        replace(group[0], lanes=len(group) * self.lanes).store(bytes_, row.out, I8, 1)

    def bring_next(self, columns: Columns, row: Row, rows: Value) -> None:
        """Prefetch the operands of the next block: the same columns, `rows` rows further down.

        On AMX, 784 x 512 x 128 with a residual of 401 KB takes 10 % less time.
        """
        for slot, _, kind in self.epilogue.loads:
            if kind == "vector":
                operand = self.operands[slot]
                (row.operands[slot] + rows * operand.stride + columns.j * operand.itemsize).prefetch()

    def enter_near(self, group: Sequence[Columns], row: Value, of_rows: Sequence[Sequence[Emitted]]) -> None:
        """Append entries for a group of rows in registers; `row` is 2**16 times the first row."""
        for columns, of_column in zip(group, zip(*of_rows, strict=True), strict=True):
            least = reduce(lambda have, new: min_u16(new, have), [values[self.distance] for values in of_column])
            self.enter_within(columns, row, least, of_column[0])

    def enter_within(self, columns: Columns, row: Value, least: Value, values: Emitted) -> None:
        """Append an entry for these columns if the `least` distance of a group of rows is within the band."""
        assert self.entries is not None
        halves = vector(I16, 2 * self.lanes)
        lower = columns.where(self.builder.value(vector(I32, self.lanes), 0xFFFF), 0)
        last = values[self.band] - 1
        within = least.as_type(halves).ule(last.as_type(halves))
        near = within & lower.as_type(halves).ne(0)
        self.entries.append(row | (columns.j << 32), near.as_type(ir.IntType(2 * self.lanes)))


def emitter_of(builder: Builder, epilogue: Epilogue, lanes: int, first: Sequence[Value], *, into_acc: bool = False,
               form: Form = "fast", entries: Value | None = None) -> EpilogueEmitter:
    """Make the emitter of a form of an epilogue. Epilogues without a fast form have the same expression as "fast".

    If `into_acc`, each output is stored over its accumulator, and the argument block has no slot for outputs.
    """
    if epilogue.fast is not None and form == "fast":
        return FastEmitter(builder, epilogue, epilogue.fast, lanes, first, into_acc=into_acc, entries=entries)
    needed = [epilogue.second_look.needed] if epilogue.second_look is not None and form == "exact" else []
    return EpilogueEmitter(builder, epilogue, lanes, first, epilogue.form(form), *needed, into_acc=into_acc,
                           entries=entries, group_sizes=GROUP_SIZES if form == "fast" else ())


def write_outputs(b: Builder, args: Value, batch: Value, i0: Value, j0: Value, rows: Value, cols: Value, acc: Value,
                  ldacc: Value, entries: Value, *, epilogue: Epilogue, lanes: int, form: Form = "fast") -> Value:
    """Emit the loops that write a block of outputs; returns the number of entries.

    The block has rows x cols outputs, starting at (i0, j0). `args` is the address of the argument block. The
    accumulator of the block's output (r, c) is the s32 or f32 at acc + r * ldacc + 4 * c. Vectors have `lanes` lanes
    (1, 4, 8 or 16). The code accesses no memory outside of operands and outputs, not even in the tail of a row.

    The code has three forms. If the epilogue has a fast form or a second look (see `epilogues`), it returns the number
    of entries that it wrote to `entries`. It needs memory for an entry per vector and a spare entry:

    - "fast" computes outputs with fewer operations. It writes an 8-byte entry for each group of GROUP rows and `lanes`
      columns that has an output near a tie: column << 32 | first row << 16 | other bits.
    - "exact" writes an entry for the outputs of one row that need a second look, with one bit per column.
    - "second_look" computes these outputs from the accumulators of the second look.
    """
    outputs = emitter_of(b, epilogue, lanes, (args, batch, i0, j0), form=form, entries=entries)
    outputs.emit(rows, cols, acc, ldacc)
    assert outputs.entries is not None
    count: Value = b.load(outputs.entries.count)
    return count


def factor(b: Builder, args: Value, batch: Value, j: Value, *, look: SecondLook, number: int) -> Value:
    """Emit `look.factors[number]` for column j, such as a weight scale.

    The second sum of outputs near rounding ties needs this number. Its 4 bytes are returned as an integer.
    """
    expr = lower(look.factors[number])

    def leaf(node: Expr) -> Value:
        slot, dtype, kind = node.value
        operand = SlotOperand.read(b, (args, batch, b.value(I64, 0), j), slot, dtype, kind)
        return widen(b, operand.address.load(STORAGE_IR[dtype]), dtype, 1)

    return emit(b, expr, 1, leaf).as_type(I32).sext(I64)

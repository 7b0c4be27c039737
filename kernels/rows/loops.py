"""Loops over a row of f32, for kernels of row operations (formulas in `numbers.rows`).

`store_numbers` emits the code of an operation. The code reads the n elements of the row at the address `row`, computes
one or two numbers of the row, such as a mean, and stores them at `stats`, `step` bytes apart. Softmax also stores its
powers at the address `room`. `epsilon` is the address of an f32.

The vectors' lanes determine the order of the sums. They are therefore the same at every ISA level; LLVM splits the
vectors into the machine's vectors.
"""
import operator
from collections.abc import Callable, Sequence
from functools import partial

from graphq.kernels.jit import Loop
from graphq.kernels.jit.values import F32, F64, I64, Builder, Value, constant, larger, smaller, vector
from graphq.kernels.lanes.epilogue_code import GROUP_SIZES
from graphq.kernels.lanes.expression import Expr
from graphq.kernels.lanes.vector import Columns, emit, emit_each, fold, over_columns
from graphq.kernels.numbers import rows
from graphq.kernels.numbers.float_sums import BLOCK

INFINITY = float("inf")


def block_sums(b: Builder, n: Value, zeros: Sequence[Value], add: Callable[[Value, list[Value]], list[Value]]
               ) -> list[Value]:
    """Emit sums of n terms in the order of `float_sums`. `add(k, sums)` adds term k. For n = 0 they are `zeros`."""
    with Loop(b, (n + (BLOCK - 1)) // BLOCK, zeros) as blocks:
        start = blocks.k * BLOCK
        with Loop(b, smaller(n - start, BLOCK), zeros) as chains:
            chains.update(add(start + chains.k, chains.values))
        blocks.update([total + x for total, x in zip(blocks.values, chains.values, strict=True)])
    return blocks.values


class RowEmitter:
    """A row of f32 in memory, and the loops over it that `b` emits."""

    def __init__(self, b: Builder, address: Value, n: Value) -> None:
        self.b, self.address, self.n = b, address, n

    def extreme(self, first: float, take: Callable[[Value, Value], Value]) -> Value:
        """Fold all elements by `take(new, so far)`, in the order of rows.EXTREME_LANES; `first` is the start value."""
        b, low, step = self.b, constant(vector(F32, rows.LANES), first), rows.EXTREME_LANES
        places = range(0, step, rows.LANES)

        def turn(vectors: list[Columns], have: list[Value]) -> list[Value]:
            loads = [columns.load(self.address, F32, 4) for columns in vectors]
            new = [c.where(x, low) for c, x in zip(vectors, loads, strict=True)]
            return [take(x, y) for x, y in zip(new, have, strict=True)]

        with Loop(b, self.n // step, [low] * len(places)) as loop:
            loop.update(turn([Columns(b, rows.LANES, loop.k * step + k) for k in places], loop.values))
        done = self.n // step * step
        left = self.n - done
        with Loop(b, (left > 0).zext(I64), loop.values) as last:
            last.update(turn([Columns(b, rows.LANES, done + k, left - k) for k in places], last.values))
        values = last.values
        while len(values) > 1:
            values = [take(y, x) for x, y in zip(values, values[len(values) // 2:], strict=False)]
        return fold(values[0], lambda x, y: take(y, x))

    def groups(self, start: Value, turn: Callable[[Value, Value], Value]) -> Value:
        """Emit a loop over the whole vectors of 8. `turn(vector, old value)` emits the new value."""
        b = self.b
        with Loop(b, self.n // rows.GROUP, [start]) as loop:
            x = (self.address + loop.k * (4 * rows.GROUP)).load(vector(F32, rows.GROUP))
            loop.update([turn(x, loop.values[0])])
        return loop.values[0]

    def rest(self, first: Value, stop: Value, start: Value, turn: Callable[[Value, Value], Value]) -> Value:
        """Emit a loop over the elements from `first` up to `stop` (exclusive). `turn` is as in `groups`."""
        b = self.b
        with Loop(b, stop - first, [start]) as loop:
            x = (self.address + (first + loop.k) * 4).load(F32)
            loop.update([turn(x, loop.values[0])])
        return loop.values[0]

    def after_groups(self) -> tuple[Value, Value]:
        """The end of the whole vectors of 8, and the end of one more vector of 4 if 4 elements remain."""
        first = self.n // rows.GROUP * rows.GROUP
        return first, first + (self.n & 4)


def computed(b: Builder, expr: Expr, lanes: int, *values: Value) -> Value:
    """Emit an expression with operands 0, 1, ... from `values`."""
    return emit(b, expr, lanes, partial(_operand, values))


def _operand(values: Sequence[Value], load: Expr) -> Value:
    return values[load.value[0]]


def _highest(b: Builder, row: RowEmitter, inf_as_zero: bool = False) -> Value:
    low = constant(vector(F32, rows.LANES), -INFINITY)

    def turn(group: list[Columns], have: list[Value]) -> list[Value]:
        (columns,) = group
        return [larger(columns.where(columns.load(row.address, F32, 4), low), have[0])]

    highest = fold(over_columns(b, row.n, rows.LANES, [low], turn)[0], lambda x, y: larger(y, x))
    if inf_as_zero:
        highest = highest.eq(-INFINITY).select(0.0, highest)
    return highest


def _powers(b: Builder, row: RowEmitter, highest: Value, room: Value | None = None, power: Expr = rows.POWER) -> Value:
    """Emit the sum of the powers exp(x - highest), and stores of the powers at `room`, if given."""
    tops, zero = highest.splat(rows.LANES), constant(vector(F32, rows.LANES), 0.0)

    def turn(group: list[Columns], have: list[Value]) -> list[Value]:
        total, loaded = have[0], [(columns.load(row.address, F32, 4), tops) for columns in group]
        powers = emit_each(b, power, rows.LANES, [partial(_operand, x) for x in loaded])
        for columns, e in zip(group, powers, strict=True):
            if room is not None:
                columns.store(e, room, F32, 4)
            total = total + columns.where(e, zero)
        return [total]

    lanes = over_columns(b, row.n, rows.LANES, [zero], turn, GROUP_SIZES[0])[0]
    return fold(fold(lanes, operator.add, to=rows.GROUP), operator.add, pairs=True)


def _squares(b: Builder, row: RowEmitter, mean: Value | None = None) -> Value:
    def less(x: Value) -> Value:
        return x if mean is None else x - mean.splat(1 if x.type == F32 else rows.GROUP)

    def fused(x: Value, have: Value) -> Value:
        d = less(x)
        return d.math("fma", d, have)

    def unfused(x: Value, have: Value) -> Value:
        d = less(x)
        return have + d * d

    total = fold(row.groups(constant(vector(F32, rows.GROUP), 0.0), fused), operator.add)
    first, after = row.after_groups()
    return row.rest(after, row.n, row.rest(first, after, total, unfused), fused)


def _inverse(b: Builder, row: RowEmitter, total: Value, epsilon: Value) -> Value:
    y = total / row.n.to_float(F32) + epsilon.load(F32)
    return 1.0 / y.math("sqrt")


def _mean(b: Builder, row: RowEmitter) -> Value:
    zero = constant(vector(F64, rows.LANES), -0.0)

    def turn(group: list[Columns], have: list[Value]) -> list[Value]:
        (columns,) = group
        x = columns.load(row.address, F32, 4).to_float(vector(F64, rows.LANES))
        return [have[0] + columns.where(x, zero)]

    total = fold(over_columns(b, row.n, rows.LANES, [zero], turn)[0], operator.add)
    return (total / row.n.to_float(F64)).to_float(F32)


def _sum(b: Builder, row: RowEmitter, term: Expr) -> Value:
    """Emit the sum of `term`, which is 0 for 0, over all elements. Zeros at the end of the row change no bit of it."""
    def turn(group: list[Columns], have: list[Value]) -> list[Value]:
        return [have[0] + computed(b, term, rows.GROUP, columns.load(row.address, F32, 4)) for columns in group]

    zero = constant(vector(F32, rows.GROUP), 0.0)
    return fold(over_columns(b, row.n, rows.GROUP, [zero], turn)[0], operator.add)


def _ordered_sum(b: Builder, row: RowEmitter) -> Value:
    """Emit the sum of all elements, in the order of `mean_sums.row_totals`."""
    def add(x: Value, have: Value) -> Value:
        return have + x

    four = fold(row.groups(constant(vector(F32, rows.GROUP), -0.0), add), operator.add, to=4)
    first, after = row.after_groups()
    with Loop(b, (after > first).zext(I64), [four]) as loop:
        loop.update([add((row.address + first * 4).load(vector(F32, 4)), loop.values[0])])
    return row.rest(after, row.n, fold(loop.values[0], operator.add), add)


def _softmax(b: Builder, row: RowEmitter, room: Value, epsilon: Value, *, inf_as_zero: bool = False) -> list[Value]:
    """Emit the reciprocal of the sum of powers (1 if the sum is 0 and `inf_as_zero`), and stores of the powers."""
    total = _powers(b, row, _highest(b, row, inf_as_zero), room)
    if inf_as_zero:
        total = total.eq(0.0).select(1.0, total)
    return [1.0 / total]


def _stepwise_softmax(b: Builder, row: RowEmitter, room: Value, epsilon: Value, *, dtype: str) -> list[Value]:
    """Emit the sum of powers, and stores of the powers at `room`; both are rounded to `dtype`."""
    total = _powers(b, row, _highest(b, row), room, rows.rounded_power(dtype))
    return [computed(b, rows.ROUNDED[dtype](rows.X), 1, total)]


def _log_softmax(b: Builder, row: RowEmitter, room: Value, epsilon: Value) -> list[Value]:
    highest = _highest(b, row)
    return [highest, computed(b, rows.LOGARITHM, 1, _powers(b, row, highest))]


def _layer_norm(b: Builder, row: RowEmitter, room: Value, epsilon: Value) -> list[Value]:
    mean = _mean(b, row)
    return [mean, _inverse(b, row, _squares(b, row, mean), epsilon)]


def _reduction(b: Builder, row: RowEmitter, room: Value, epsilon: Value, *, how: str) -> list[Value]:
    if how in rows.EXTREMES:
        return [row.extreme(-INFINITY if how == "max" else INFINITY, lambda new, have: computed(
            b, rows.EXTREMES[how], getattr(new.type, "count", 1), new, have))]
    if how == "mean":
        return [_ordered_sum(b, row) / row.n.to_float(F32)]
    total = _sum(b, row, rows.TERMS[how])
    return [total.math("sqrt") if how == "l2" else total]


LOOPS: dict[str, Callable[..., list[Value]]] = {
    "softmax": _softmax, "softmax_inf_as_zero": partial(_softmax, inf_as_zero=True), "log_softmax": _log_softmax,
    **{f"softmax_stepwise_{dtype}": partial(_stepwise_softmax, dtype=dtype) for dtype in rows.ROUNDED},
    "layer_norm": _layer_norm,
    "rms_norm": lambda b, row, room, epsilon: [_inverse(b, row, _squares(b, row), epsilon)],
    **{f"reduce_{how}": partial(_reduction, how=how) for how in (*rows.TERMS, *rows.EXTREMES)},
}
"""For each row operation, the function that emits the numbers of a row."""


def store_numbers(b: Builder, how: str, row: Value, n: Value, room: Value, stats: Value, step: Value,
                  epsilon: Value) -> None:
    """Emit the computation of a row's numbers, and their stores. `how` is a key of LOOPS."""
    for k, x in enumerate(LOOPS[how](b, RowEmitter(b, row, n), room, epsilon)):
        x.store(stats + step * k)

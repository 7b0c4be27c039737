"""The machine code of operations along rows (`numbers.rows`): loops over a row of f32, as intrinsics.

Each is an intrinsic (row, n, room, stats, step, parameter). It reads the n numbers at the address `row`, fills the row
at `room` where the operation needs one (softmax's powers), and stores the numbers of the row, as a mean, from `stats`
on, `step` bytes apart; `parameter` is the address of epsilon. Vectors have as many lanes as the order of the sums says,
whatever the ISA level: LLVM cuts them to the machine's.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from llvmlite import ir

from graphq.kernels.jit.deferred import types
from graphq.kernels.jit.intrinsics import F32, F64, I64, c64, declare, intrinsic, splat
from graphq.kernels.jit.x86 import Loop, at, load, shuffle, store
from graphq.kernels.lanes.expression import Expr
from graphq.kernels.lanes.store_code import BESIDE
from graphq.kernels.lanes.vector import Columns, constant, emit, emit_each, tail_mask, vec
from graphq.kernels.numbers.rows import EXTREMES, GROUP, LANES, LOGARITHM, POWER, TERMS

INFINITY = float("inf")


Turn = Callable[[list[Columns], list[Any]], list[Any]]
"""What is carried on after some vectors of columns."""


class RowEmitter:
    """A row of f32 in memory, and the loops over it that `b` emits."""

    def __init__(self, b: Any, address: Any, n: Any) -> None:
        self.b, self.address, self.n = b, address, n

    def lanes(self, carried: Sequence[Any], turn: Turn, beside: int = 1) -> list[Any]:
        """Carry values over vectors of 16 columns, `beside` at a time, then one by one, the last one masked."""
        b, whole = self.b, self.b.sdiv(self.n, c64(LANES))
        together = b.sdiv(whole, c64(beside))
        with Loop(b, together, carried) as loop:
            first = b.mul(loop.k, c64(beside * LANES))
            loop.update(turn([Columns(b, LANES, at(b, first, n * LANES)) for n in range(beside)], loop.values))
        if beside > 1:
            done = b.mul(together, c64(beside))
            with Loop(b, b.sub(whole, done), loop.values) as loop:
                loop.update(turn([Columns(b, LANES, b.mul(b.add(done, loop.k), c64(LANES)))], loop.values))
        done = b.mul(whole, c64(LANES))
        left = b.sub(self.n, done)
        with Loop(b, b.zext(b.icmp_signed(">", left, c64(0)), I64), loop.values) as last:
            last.update(turn([Columns(b, LANES, done, tail_mask(b, LANES, left))], last.values))
        return last.values

    def groups(self, start: Any, turn: Callable[[Any, Any], Any]) -> Any:
        """Carry one value over the whole vectors of 8 elements."""
        b = self.b
        with Loop(b, b.sdiv(self.n, c64(GROUP)), [start]) as loop:
            x = load(b, at(b, self.address, b.mul(loop.k, c64(4 * GROUP))), vec(F32, GROUP))
            loop.update([turn(x, loop.values[0])])
        return loop.values[0]

    def rest(self, first: Any, stop: Any, start: Any, turn: Callable[[Any, Any], Any]) -> Any:
        """Carry one value over single elements."""
        b = self.b
        with Loop(b, b.sub(stop, first), [start]) as loop:
            x = load(b, at(b, self.address, b.mul(b.add(first, loop.k), c64(4))), F32)
            loop.update([turn(x, loop.values[0])])
        return loop.values[0]

    def after_groups(self) -> tuple[Any, Any]:
        """Where the elements after the vectors of 8 begin, and where a first four of them ends, if there is one."""
        b = self.b
        first = b.mul(b.sdiv(self.n, c64(GROUP)), c64(GROUP))
        return first, b.add(first, b.and_(self.n, c64(4)))


def computed(b: Any, expr: Expr, lanes: int, *values: Any) -> Any:
    """Emit an expression of operands 0, 1 ..."""
    return emit(b, expr, lanes, partial(_operand, values))


def _operand(values: Sequence[Any], load: Expr) -> Any:
    return values[load.value[0]]


def fma(b: Any, x: Any, y: Any, z: Any) -> Any:
    """Emit x * y + z of f32 or vectors of 8, rounded once."""
    suffix = "f32" if x.type == F32 else f"v{GROUP}f32"
    return b.call(declare(b, f"llvm.fma.{suffix}", x.type, [x.type] * 3), [x, y, z])


def root(b: Any, x: Any) -> Any:
    """Emit the square root of an f32."""
    return b.call(declare(b, "llvm.sqrt.f32", F32, [F32]), [x])


def fold(b: Any, x: Any, take: Callable[[Any, Any], Any], *, pairs: bool = False, to: int = 1) -> Any:
    """Fold a vector to one of `to` elements (1: its scalar), as `numbers.rows.folded`."""
    while x.type.count > to:
        half = x.type.count // 2
        if half == 1:
            return take(*(b.extract_element(x, ir.Constant(ir.IntType(32), k)) for k in range(2)))
        places = [range(k, 2 * half, 2) if pairs else range(k * half, k * half + half) for k in range(2)]
        x = take(*(shuffle(b, x, x, list(p)) for p in places))
    return x


def _picked(b: Any, new: Any, have: Any) -> Any:
    return b.select(b.fcmp_ordered(">", new, have), new, have)


def _highest(b: Any, row: RowEmitter, inf_as_zero: bool = False) -> Any:
    """The row's maximum, NaN passed over."""
    low = constant(F32, -INFINITY, LANES)

    def turn(group: list[Columns], have: list[Any]) -> list[Any]:
        (columns,) = group
        x = columns.load(row.address, F32, 4)
        x = x if columns.mask is None else b.select(columns.mask, x, low)
        return [_picked(b, x, have[0])]

    highest = fold(b, row.lanes([low], turn)[0], lambda x, y: _picked(b, y, x))
    if inf_as_zero:
        empty = b.fcmp_ordered("==", highest, ir.Constant(F32, -INFINITY))
        highest = b.select(empty, ir.Constant(F32, 0.0), highest)
    return highest


def _powers(b: Any, row: RowEmitter, highest: Any, room: Any = None) -> Any:
    """The sum of exp(x - highest), which go to `room`."""
    tops, zero = splat(b, highest, LANES), constant(F32, 0.0, LANES)

    def turn(group: list[Columns], have: list[Any]) -> list[Any]:
        total, rows = have[0], [(columns.load(row.address, F32, 4), tops) for columns in group]
        powers = emit_each(b, POWER, LANES, [partial(_operand, x) for x in rows])
        for columns, e in zip(group, powers, strict=True):
            if room is not None:
                columns.store(e, room, F32, 4)
            total = b.fadd(total, e if columns.mask is None else b.select(columns.mask, e, zero))
        return [total]

    lanes = row.lanes([zero], turn, BESIDE)[0]
    return fold(b, fold(b, lanes, b.fadd, to=GROUP), b.fadd, pairs=True)


def _squares(b: Any, row: RowEmitter, mean: Any = None) -> Any:
    """The sum of (x - mean)**2."""
    def less(x: Any) -> Any:
        return x if mean is None else b.fsub(x, splat(b, mean, 1 if x.type == F32 else GROUP))

    def fused(x: Any, have: Any) -> Any:
        d = less(x)
        return fma(b, d, d, have)

    def unfused(x: Any, have: Any) -> Any:
        d = less(x)
        return b.fadd(have, b.fmul(d, d))

    total = fold(b, row.groups(constant(F32, 0.0, GROUP), fused), b.fadd)
    first, after = row.after_groups()
    return row.rest(after, row.n, row.rest(first, after, total, unfused), fused)


def _inverse(b: Any, row: RowEmitter, total: Any, epsilon: Any) -> Any:
    y = b.fadd(b.fdiv(total, b.sitofp(row.n, F32)), load(b, epsilon, F32))
    return b.fdiv(ir.Constant(F32, 1.0), root(b, y))


def _mean(b: Any, row: RowEmitter) -> Any:
    """The mean in f64, rounded to f32."""
    zero = constant(F64, -0.0, LANES)

    def turn(group: list[Columns], have: list[Any]) -> list[Any]:
        (columns,) = group
        x = b.fpext(columns.load(row.address, F32, 4), vec(F64, LANES))
        return [b.fadd(have[0], x if columns.mask is None else b.select(columns.mask, x, zero))]

    total = fold(b, row.lanes([zero], turn)[0], b.fadd)
    return b.fptrunc(b.fdiv(total, b.sitofp(row.n, F64)), F32)


def _total(b: Any, row: RowEmitter, term: Expr) -> Any:
    """The sum of a term of each element, in the order of `mean_sums.row_totals`."""
    def add(x: Any, have: Any) -> Any:
        return b.fadd(have, computed(b, term, 1 if x.type == F32 else x.type.count, x))

    four = fold(b, row.groups(constant(F32, -0.0, GROUP), add), b.fadd, to=4)
    first, after = row.after_groups()
    with Loop(b, b.zext(b.icmp_signed(">", after, first), I64), [four]) as loop:
        loop.update([add(load(b, at(b, row.address, b.mul(first, c64(4))), vec(F32, 4)), loop.values[0])])
    return row.rest(after, row.n, fold(b, loop.values[0], b.fadd), add)


def _extreme(b: Any, row: RowEmitter, how: str) -> Any:
    first = constant(F32, -INFINITY if how == "max" else INFINITY, LANES)

    def take(lanes: int, have: Any, new: Any) -> Any:
        return computed(b, EXTREMES[how], lanes, new, have)

    def turn(group: list[Columns], have: list[Any]) -> list[Any]:
        (columns,) = group
        x = columns.load(row.address, F32, 4)
        return [take(LANES, have[0], x if columns.mask is None else b.select(columns.mask, x, first))]

    return fold(b, row.lanes([first], turn)[0], lambda x, y: take(getattr(x.type, "count", 1), x, y))


def _softmax(b: Any, row: RowEmitter, room: Any, epsilon: Any) -> list[Any]:
    """1 / the sum; the powers are in the room."""
    return _normalised(b, row, room, inf_as_zero=False)


def _softmax_inf_as_zero(b: Any, row: RowEmitter, room: Any, epsilon: Any) -> list[Any]:
    """The same, with zeros for a row of -inf."""
    return _normalised(b, row, room, inf_as_zero=True)


def _normalised(b: Any, row: RowEmitter, room: Any, inf_as_zero: bool) -> list[Any]:
    total = _powers(b, row, _highest(b, row, inf_as_zero), room)
    one = ir.Constant(F32, 1.0)
    if inf_as_zero:
        total = b.select(b.fcmp_ordered("==", total, ir.Constant(F32, 0.0)), one, total)
    return [b.fdiv(one, total)]


def _log_softmax(b: Any, row: RowEmitter, room: Any, epsilon: Any) -> list[Any]:
    """The maximum, and the logarithm of the sum."""
    highest = _highest(b, row)
    return [highest, computed(b, LOGARITHM, 1, _powers(b, row, highest))]


def _layer_norm(b: Any, row: RowEmitter, room: Any, epsilon: Any) -> list[Any]:
    """The mean, and 1 / the deviation."""
    mean = _mean(b, row)
    return [mean, _inverse(b, row, _squares(b, row, mean), epsilon)]


def _rms_norm(b: Any, row: RowEmitter, room: Any, epsilon: Any) -> list[Any]:
    """1 / the root of the mean square."""
    return [_inverse(b, row, _squares(b, row), epsilon)]


def _reduction(how: str) -> Callable[..., list[Any]]:
    """The reduced number."""
    def numbers(b: Any, row: RowEmitter, room: Any, epsilon: Any) -> list[Any]:
        if how in EXTREMES:
            return [_extreme(b, row, how)]
        total = _total(b, row, TERMS[how])
        return [b.fdiv(total, b.sitofp(row.n, F32)) if how == "mean" else root(b, total) if how == "l2" else total]

    return numbers


LOOPS: dict[str, Callable[..., list[Any]]] = {
    "softmax": _softmax, "softmax_inf_as_zero": _softmax_inf_as_zero, "log_softmax": _log_softmax,
    "layer_norm": _layer_norm, "rms_norm": _rms_norm,
    **{f"reduce_{how}": _reduction(how) for how in (*TERMS, *EXTREMES)},
}
"""What emits the numbers of a row, by the row's operation."""


def numbers_of(how: str) -> Any:
    """Make the intrinsic for one of LOOPS."""

    def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
        address, n, room, stats, step, epsilon = args
        for k, x in enumerate(LOOPS[how](b, RowEmitter(b, address, n), room, epsilon)):
            store(b, x, at(b, stats, b.mul(step, c64(k))))
        return context.get_dummy_value()

    @intrinsic
    def numbers(_typing: Any, row: Any, n: Any, room: Any, stats: Any, step: Any, epsilon: Any) -> Any:
        return types.void(*[types.intp] * 6), codegen

    return numbers

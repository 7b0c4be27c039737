"""Repeat the computations of a trace at new sizes, convert traces to data and back, and print guards as text.

`base.sizes` explains open sizes, traces, guards and the example. A slot is the index of a value in a trace. A program
first runs the calls that guards depend on. If a guard has another answer than in the example, the plan of the trace
does not hold for the new sizes, and the program stops.
"""
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from graphq.base.sizes import PLAIN, Later, RecordedCall, Size, Trace, recorded
from graphq.errors import GraphqError


class Program:
    """Computes a trace's `results` for new sizes. Values that neither guards nor results depend on are skipped."""

    def __init__(self, trace: Trace, results: Iterable[Size | Later]) -> None:
        self._results = {x.slot for x in results}
        guards = needed_slots(trace, set(trace.guards))
        needed = needed_slots(trace, self._results) | guards
        calls = [(c.slot, c.function, _getter(c.arguments)) for c in trace.calls if c.slot in needed]
        # The calls that guards depend on come first: if a guard fails, nothing else is computed.
        self._guarded = [(*c, c[0] in trace.guards, trace.guards.get(c[0])) for c in calls if c[0] in guards]
        self._calls = [c for c in calls if c[0] not in guards]
        self._leaves = list(trace.leaves)
        made = {slot for slot, *_ in calls} | set(self._leaves)
        # Values that do not depend on open sizes are kept from the example. All other slots begin with None.
        self._values = [x if k in needed and k not in made else None for k, x in enumerate(trace.values)]

    def at(self, sizes: Sequence[int]) -> "Values | None":
        """All results for these values of the open sizes; None if the plan does not hold for them."""
        values, failed = self._run(sizes)
        return None if failed is not None else Values({k: values[k] for k in self._results})

    def failed(self, sizes: Sequence[int]) -> int | None:
        """The slot where these sizes fail: its guard fails, or its value cannot be computed. None if the plan holds."""
        return self._run(sizes)[1]

    def _run(self, sizes: Sequence[int]) -> tuple[list[Any], int | None]:
        values, slot = self._values.copy(), 0
        for slot, size in zip(self._leaves, sizes, strict=True):
            values[slot] = size
        try:
            for slot, function, arguments, guards, answer in self._guarded:
                value = values[slot] = function(*arguments(values))
                if guards and value != answer:
                    return values, slot
            for slot, function, arguments in self._calls:
                values[slot] = function(*arguments(values))
        except (ArithmeticError, LookupError, ValueError, GraphqError):  # such as a division by a size of 0
            return values, slot
        return values, None


def _getter(slots: Sequence[int]) -> Callable[[list[Any]], Sequence[Any]]:
    """Make a function that reads these slots from a list, in half the time of a loop."""
    if len(slots) > 1:
        return operator.itemgetter(*slots)
    return operator.itemgetter(slice(slots[0], slots[0] + 1) if slots else slice(0))


def needed_slots(trace: Trace, slots: set[int]) -> set[int]:
    """The given slots, and all slots that their values are computed from."""
    out = set(slots)
    for call in reversed(trace.calls):
        if call.slot in out:
            out.update(call.arguments)
    return out


@recorded("TraceRecord")
class TraceRecord(NamedTuple):
    """The parts of a trace that a `Program` needs, as plain data; the keys of `values` and `guards` are slots.

    A call is the slot of its result, the index of its function in `functions`, and the slots of its arguments.
    """

    values: Mapping[int, Any]
    calls: tuple[tuple[int, ...], ...]
    leaves: tuple[int, ...]
    assumed: Mapping[str, int]
    guards: Mapping[int, Any]
    functions: tuple[Callable[..., Any], ...]


def record(trace: Trace, results: Iterable[Size | Later]) -> TraceRecord:
    """Convert a trace to data that suffices to compute `results`. Computed values are kept only if of PLAIN types."""
    needed = needed_slots(trace, {x.slot for x in results} | set(trace.guards) | set(trace.leaves))
    wanted = [c for c in trace.calls if c.slot in needed]
    functions = tuple(dict.fromkeys([c.function for c in wanted]))
    number = {f: k for k, f in enumerate(functions)}
    calls = tuple([(c.slot, number[c.function], *c.arguments) for c in wanted])
    made = {c.slot for c in wanted}
    values = {k: x for k in sorted(needed) if (x := trace.values[k]) is not None and type(x) in PLAIN or k not in made}
    return TraceRecord(values, calls, tuple(trace.leaves), dict(trace.assumed), dict(trace.guards), functions)


def restored(record: TraceRecord) -> Trace:
    """Rebuild a trace from its record. The trace is sealed: it takes no new guards."""
    trace = Trace()
    last = max((*record.values, *record.leaves, *(slot for slot, *_ in record.calls)), default=-1)
    trace.values = [record.values.get(k) for k in range(last + 1)]
    trace.calls = [RecordedCall(slot, record.functions[k], tuple(arguments)) for slot, k, *arguments in record.calls]
    trace.leaves, trace.assumed = list(record.leaves), dict(record.assumed)
    trace.guards, trace.sealed = dict(record.guards), True
    return trace


class Values:
    """The results of a program at given sizes, by slot."""

    def __init__(self, by_slot: Mapping[int, Any]) -> None:
        self.by_slot = by_slot

    def of(self, x: Any) -> Any:
        """`x` with every `Size` and `Later` in it replaced by its value at these sizes."""
        kind = type(x)
        if kind is Size or kind is Later:
            return self.by_slot[x.slot]
        if kind is int:
            return x
        if kind is tuple:
            return tuple([self.of(y) for y in x])
        if isinstance(x, tuple | list):
            items = [self.of(y) for y in x]
            return kind(*items) if hasattr(x, "_fields") else kind(items)
        return {k: self.of(y) for k, y in x.items()} if isinstance(x, Mapping) else x


class Numbers:
    """A list of plain and open numbers (`Size` or `Later`). `at` takes a fifth of the time of `Values.of`."""

    def __init__(self, numbers: Sequence[Any]) -> None:
        self._plain = list(numbers)
        self._open = [(k, x.slot) for k, x in enumerate(numbers) if isinstance(x, Size | Later)]

    def at(self, values: "Values") -> list[Any]:
        """The numbers, with the open numbers replaced by their values."""
        out, known = self._plain.copy(), values.by_slot
        for k, slot in self._open:
            out[k] = known[slot]
        return out


_SYMBOLS = {operator.add: "+", operator.sub: "-", operator.mul: "*", operator.floordiv: "//", operator.truediv: "/",
            operator.mod: "%", operator.eq: "==", operator.ne: "!=", operator.lt: "<", operator.le: "<=",
            operator.gt: ">", operator.ge: ">="}


def text_of(trace: Trace, slot: int, names: Sequence[str]) -> str:
    """The value in `slot` as a formula, such as `(rows * 2) // 3`, with `names` for the open sizes.

    For a function without an operator symbol, the text has the function's name and the open sizes that it depends on.
    """
    calls, leaves = {c.slot: c for c in trace.calls}, dict(zip(trace.leaves, names, strict=True))

    def text(slot: int, depth: int) -> str:
        call = calls.get(slot)
        if call is None:
            return leaves.get(slot) or f"{trace.values[slot]!r:.40}"
        if call.function in _SYMBOLS and depth < 5:
            inner = f" {_SYMBOLS[call.function]} ".join(text(x, depth + 1) for x in call.arguments)
            return f"({inner})" if depth else inner
        of = dict.fromkeys(name for leaf, name in leaves.items() if leaf in needed_slots(trace, {slot}))
        return f"{getattr(call.function, '__name__', 'function').lstrip('_')}({', '.join(of)})"

    return text(slot, 0)


def why_not(program: Program, trace: Trace, sizes: Sequence[int], names: Sequence[str]) -> str:
    """The first guard that fails at these sizes, as text with the `names` of the open sizes; "" if no guard fails."""
    slot = program.failed(sizes)
    if slot is None:
        return ""
    answer = f" is not {trace.guards[slot]!r:.40}" if slot in trace.guards else " cannot be computed"
    return text_of(trace, slot, names) + answer

"""Guards as text, for reports: conditions on open sizes under which a plan holds (`graphq.base.sizes`)."""
from __future__ import annotations

import operator
from collections.abc import Sequence

from graphq.base.programs import Program, needed_slots
from graphq.base.sizes import Trace

_SYMBOLS = {operator.add: "+", operator.sub: "-", operator.mul: "*", operator.floordiv: "//", operator.truediv: "/",
            operator.mod: "%", operator.eq: "==", operator.ne: "!=", operator.lt: "<", operator.le: "<=",
            operator.gt: ">", operator.ge: ">="}


def text_of(trace: Trace, slot: int, names: Sequence[str]) -> str:
    """The number in a `slot` of the trace as a formula of the open sizes `names`; functions go by their names."""
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
    """The first guard that fails at these sizes, as text with the `names` of the open sizes; empty if all hold."""
    slot = program.failed(sizes)
    if slot is None:
        return ""
    answer = f" is not {trace.guards[slot]!r:.40}" if slot in trace.guards else " cannot be computed"
    return text_of(trace, slot, names) + answer

"""The labels of values in text and messages: their names, or numbers for values without a name."""
from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeAlias

from graphq.ir.names import listing, quote
from graphq.ir.node import Value

if TYPE_CHECKING:
    from graphq.ir.graph import Graph


Origin: TypeAlias = "tuple[Value, Sequence[int] | None]"
"""The value of the original graph that a value stands for, and the order of its axes (None: unchanged)."""

SHOWN = 4
"""The most operands that the description of an unnamed value lists."""


class Labels:
    """The labels of a graph's values. Unnamed values are numbered again after each change, unless numbers are `kept`.

    For reports on passes, `origins` maps each value to its `Origin`; values of the original graph map to themselves.
    `origins` is None if nobody has asked for a history; then nodes that are added have no `origin`.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph, self.kept = graph, False
        self.origins: dict[Value, Origin] | None = None
        self._numbers: dict[Value, int] | None = None

    def of(self, value: Value) -> str:
        """The label of a value: an input's name, `%name`, or `%N` for the N-th unnamed value."""
        if value.name is not None:
            return quote(value.name) if value.node is None else f"%{quote(value.name)}"
        if self._numbers is None:
            unnamed = (o for n in self.graph.nodes for o in n.outputs if o.name is None)
            self._numbers = {o: k for k, o in enumerate(unnamed)}
        if self.kept:
            self._numbers.setdefault(value, len(self._numbers))
        return f"%{self._numbers.get(value, '?')}"

    def mention(self, value: Value) -> str:
        """How errors name a value: by its label, or an unnamed one as `the matmul of 'x' and a constant`."""
        node = value.node
        if value.name is not None or node is None:
            return self.of(value)
        if value.data is not None:
            return _unnamed(value)
        operands = [_operand(v) for v in node.inputs]
        if len(operands) > SHOWN:
            operands[SHOWN - 1:] = [f"{len(operands) - SHOWN + 1} more"]
        made = f"the {node.op.title(node.attrs)}" + (f" of {listing(operands, 'and')}" if operands else "")
        return made if len(node.outputs) == 1 else f"output {value.index} of {made}"

    def changed(self) -> None:
        """Note that the graph has changed: unless numbers are kept, unnamed values are numbered again."""
        if not self.kept:
            self._numbers = None

    def trace(self) -> None:
        """Keep the numbers, and from now on record in `origins` which original values new values stand for."""
        self.keep()
        values = (*self.graph.inputs, *(o for n in self.graph.nodes for o in n.outputs))
        self.origins = {v: (v, None) for v in values}

    def stands(self, new: Value, old: Value, order: Sequence[int] | None = None) -> None:
        """Note that `new` equals `old` or, with `order`, static_transpose(old, order)."""
        if self.origins is not None:
            self.origins.setdefault(new, (old, order))

    def replaced(self, old: Value, new: Value) -> None:
        """If numbers are kept, give the number of `old`, which is no longer used, to `new`."""
        if self.kept and self._numbers and old in self._numbers:
            self._numbers.setdefault(new, self._numbers[old])

    def keep(self) -> None:
        """From now on unnamed values keep their numbers. A value that replaces another one gets its number."""
        self._numbers = None
        for v in (o for n in self.graph.nodes for o in n.outputs):
            self.of(v)
        self.kept = True

    def take(self, other: Labels, values: Mapping[Value, Value]) -> None:
        """Take over the numbers of another graph's labels; `values` maps each value of this graph to one of that graph.

        From now on `origins` records which original values new values stand for, as after `trace`, and new nodes get an
        `origin`.
        """
        self.origins = {}
        self._numbers = {new: int(label) for new, old in values.items() if old.name is None
                         and (label := other.of(old)[1:]).isdigit()}
        self.kept = True

    @contextmanager
    def stable(self) -> Iterator[None]:
        """Within the block, unnamed values keep their numbers while the graph changes; new ones get further numbers."""
        saved, self.kept = self.kept, True
        try:
            yield
        finally:
            self.kept = saved
            self.changed()


def _operand(value: Value | None) -> str:
    return "nothing" if value is None else _unnamed(value) if value.name is None else f"'{value.name}'"


def _unnamed(value: Value) -> str:
    """A description of an unnamed value: `an add`, or `the number 2` for a constant."""
    if value.data is not None:
        return f"the number {value.data}" if value.data.ndim == 0 else "a constant"
    assert value.node is not None  # inputs have names, so an unnamed value has a node
    name = value.node.op.name
    return f"{'an' if name[0] in 'aeiou' else 'a'} {name}"

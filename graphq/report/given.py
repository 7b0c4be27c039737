"""Map values, nodes and axes of a graph after passes back to the user's graph, and name them in reports.

Passes before the fusions add values. Most of these have a counterpart in the user's graph: a value with the same
elements, perhaps with its axes in another order (`Counterpart`). If a value has no counterpart, reports name the user's
operation from which passes made the value's operation (`Node.origin`).
"""
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from graphq.ir import Graph, Node, Origin, Value
from graphq.kernels.family.unsupported import Axes, Mention, Unsupported, called_axes
from graphq.ops.quant import DEQUANTIZES
from graphq.passes.move_quantization import kept_axis
from graphq.passes.simplify_moves import transpose_order
from graphq.plan.plan import STAGES

MOVES = frozenset({"static_reshape", "static_transpose", "gather", "slice", "expand", "pad", "concat"})
"""Operations that passes swap with a dequantize before or after them, if the scales allow it."""

QUANTIZES = ("quantize", "dynamic_quantize")

REORDERS = ("static_transpose", "static_reshape")
"""Operations that passes insert around others to change their layout."""

NEAR = 16
"""The largest number of values that the search for a counterpart visits, before and after reorders."""

BORDER = "the graph's border"
"""The check that failed (`Reason.check`) if an input or output of the graph is f32."""

LANES = "lane-wise operations"
"""The check that failed if an operation before or after `node` is not lane-wise."""

FORK = "one user"
"""The check that failed if a value has several users; each such value is one cause."""

COMPUTED = "kernels can compute it"
"""The check that failed if kernels refuse the operation."""


class Reason(NamedTuple):
    """Why `node`, an operation before the fusions, is not in the partition that `fusion` would make.

    `check` is the check that failed when the fusion was tried. `op` and `value` are the obstacle; both are None if the
    obstacle is an input or output of the graph, or a type. `reason` says in English what is in the way, and `edit` how
    to change the graph.
    """

    node: Node
    fusion: str
    check: str
    op: Node | None
    value: Value | None
    reason: str
    edit: str


class Counterpart(NamedTuple):
    """The counterpart of a value in the user's graph.

    `axes` has the counterpart's axis for each axis of the value, or None if no axis corresponds.
    """

    value: Value
    axes: tuple[int | None, ...]


def equal(node: Node) -> list[Node]:
    """All copies of a dequantize (passes make one for each user); for any other node, a list of only the node."""
    if node.op.name not in DEQUANTIZES:
        return [node]
    return [u for u in next(node.operands).users if u.op is node.op and u.inputs == node.inputs
            and u.attrs == node.attrs]


class Given:
    """Finds the user's values and nodes that correspond to values and nodes of a rewritten graph.

    `source` is the user's graph; `before` is the rewritten graph before fusions. `same` maps values that existed before
    the passes to their counterparts in `source`. Arguments of methods may belong to either graph.
    """

    def __init__(self, source: Graph, before: Graph, same: Mapping[Value, Value]) -> None:
        self.source, self.same = source, same
        self._origins = before.labels.origins or {}
        self._places: dict[Value, Counterpart | None] = {}

    # -- values -------------------------------------------------------------------------------------------------

    def place(self, value: Value) -> Counterpart | None:
        """The counterpart of a value in the user's graph; None if there is no counterpart."""
        own = Counterpart(value, tuple(range(len(value.shape or ()))))
        if value.graph is self.source:
            return own
        if value not in self._places:
            self._places[value] = next((Counterpart(self.same[p.value], p.axes) for p in _moved(own, self._origins)
                                        if p.value in self.same), None)
        return self._places[value]

    def _read(self, value: Value, readers: Sequence[Node]) -> Counterpart | None:
        """The counterpart of a value in the user's graph.

        It is the result of a reorder if the nodes `readers` read the value through this reorder of the user's graph.
        """
        place = self.place(value)
        operands = [v for r in readers for v in self.node(r).operands]
        return place if place is None else next((p for p in _moved(place) if p.value in operands), place)

    def value(self, value: Value) -> Value:
        """The counterpart of a value; otherwise the result of its node's counterpart, or the value itself."""
        place = self.place(value)
        if place is not None:
            return place.value
        return value if value.node is None else self.node(value.node).outputs[0]

    # -- nodes --------------------------------------------------------------------------------------------------

    def node(self, node: Node) -> Node:
        """The user's operation that passes replaced by this operation; otherwise the operation itself."""
        same = self.same.get((node.origin or node).outputs[0])
        return node if same is None or same.node is None else same.node

    def added(self, node: Node | None) -> bool:
        """Whether passes added this pad, cast or reorder: its operand and result then have the same counterpart."""
        if node is None or node.graph is self.source:
            return False
        if node.op.name not in REORDERS:
            return node.op.name in ("pad", "type_cast") and self.node(node).op is not node.op
        here, there = self.place(next(node.operands)), self.place(node.outputs[0])
        return here is not None and there is not None and here.value is there.value

    def under(self, value: Value) -> Value:
        """The value before the reorders that passes added in front of `value`."""
        while self.added(value.node):
            value = next(value.maker.operands)
        return value

    def users(self, value: Value) -> list[Node]:
        """The nodes that read a value, also through reorders that passes added."""
        return list(dict.fromkeys(n for u in value.users for n in (self.users(u.outputs[0]) if self.added(u) else [u])))

    def is_output(self, value: Value) -> bool:
        """Whether the graph returns a value, also through reorders that passes added."""
        return value.is_output or any(self.is_output(u.outputs[0]) for u in value.users if self.added(u))

    def origin(self, value: Value) -> Value:
        """The user's value that passes replaced by the constant `value`; any other value itself."""
        given = self.value(value)
        return given if value.data is not None and given.data is None and given.type == value.type else value

    def stage(self, value: Value) -> str | None:
        """The operation of another stage that computes an input or reads an output; None if the graph has no stages."""
        stages: Mapping[str | None, str] = value.graph.meta.get(STAGES, {})
        return stages.get(self.value(value).name)

    def told(self, refused: Unsupported, values: Mapping[Value, Value]) -> Unsupported:
        """Express a refusal in the user's types and axes. `values` maps the partition's values to the graph's."""
        def words(mention: Mention) -> str:
            inner = mention.value if isinstance(mention, Axes) else mention
            readers = [v.node for user in inner.users if (v := values.get(user.outputs[0])) is not None]
            place = self._read(values.get(inner, inner), [r for r in readers if r is not None])
            if place is None:
                return str(mention) if isinstance(mention, Axes) else str(mention.type)
            if not isinstance(mention, Axes):
                return str(place.value.type) if place.value.dtype == inner.dtype else str(inner.type)
            mapped = [place.axes[k] for k in mention.axes]
            return str(mention) if None in mapped else called_axes(sorted(k for k in mapped if k is not None))

        return refused.told(words)

    # -- words --------------------------------------------------------------------------------------------------

    def label(self, thing: Value | Node) -> str:
        """The label of a value of the user's graph, or of an operation's first result."""
        value = self.value(thing) if isinstance(thing, Value) else self.node(thing).outputs[0]
        return value.graph.label(value)

    def title(self, node: Node) -> str:
        """The name of a node's operation in the user's graph."""
        at = self.node(node)
        return at.op.title(at.attrs)

    def say(self, thing: Value | Node) -> str:
        """The words for a value or an operation in a sentence: `%y`, `x` or `%7 (relu)`; `relu (%7)`."""
        label = self.label(thing)
        if isinstance(thing, Node):
            return f"{self.title(thing)} ({label})"
        at = self.value(thing)
        return label if at.name is not None or at.node is None else f"{label} ({at.node.op.title(at.node.attrs)})"

    def line(self, thing: Value | Node) -> str:
        """An operation, or a value with the operation that computes it, in one line; the label of an input."""
        node = thing.node if isinstance(thing, Value) else thing
        return self.label(thing) if node is None else (at := self.node(node)).graph.describe(at)

    def does(self, node: Node) -> str:
        """What a node does in f32 that no partition can contain."""
        return "moves f32" if node.op.name in MOVES else "runs outside of partitions, in f32"


def distinct(texts: Iterable[str]) -> list[str]:
    """The texts in order, without empty and equal ones."""
    return list(dict.fromkeys(filter(None, texts)))


def _moved(place: Counterpart, origins: Mapping[Value, Origin] = MappingProxyType({})) -> Iterator[Counterpart]:
    """Yield `place`, and the Counterparts of values with the same elements before and after reorders, nearest first."""
    work, seen = [place], {place.value}
    for at in work:  # the loop appends to `work`
        yield at
        for v, order in _beside(at.value, origins):
            if v not in seen and len(seen) < NEAR:
                seen.add(v)
                work.append(Counterpart(v, tuple(None if k is None or k >= len(order) else order[k] for k in at.axes)))


def _beside(value: Value, origins: Mapping[Value, Origin]) -> Iterator[tuple[Value, Sequence[int | None]]]:
    """Yield the values that have the same elements as `value` and are one reorder away.

    Each value comes with a list: for each axis of `value`, the corresponding axis or None.
    """
    if value in origins:
        old, order = origins[value]
        yield old, range(len(value.shape or ())) if order is None else order
    maker = value.node
    if maker is not None and maker.op.name in REORDERS:
        source = next(maker.operands)
        yield source, _axes(maker, value, source)
    for u in value.users:
        if u.op.name in REORDERS:
            yield u.outputs[0], _axes(u, value, u.outputs[0])


def _axes(move: Node, here: Value, there: Value) -> list[int | None]:
    if move.op.name == "static_transpose":
        order = transpose_order(move)
        return [*order] if here is move.outputs[0] else [order.index(k) for k in range(len(order))]
    return [kept_axis(k, here.type, there.type) for k in range(len(here.shape or ()))]

"""The parts of a graph: Value (a logical tensor), Node (an operation applied to values), Use (a reader of a value)."""
from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from operator import attrgetter, index
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, NoReturn, TypeAlias, TypeVar

import numpy as np

from graphq.dtypes import DType
from graphq.errors import GraphError
from graphq.ir.op import Op, lookup
from graphq.ir.tensor_type import Dim, TensorType, frozen

if TYPE_CHECKING:
    from graphq.ir.graph import Graph

T = TypeVar("T")
_END = 2**63 - 1
"""A slice end that lies beyond the end of any axis."""


def indexed(value: Value, key: Any) -> Value:
    """Index a value as NumPy does, by ints, slices, `...` and None. Returns `value` if the index selects all elements.

    Raises GraphError for other indices, an index outside of its axis, and an index that needs an unknown dimension.
    """
    where = f"an index of {value.graph.labels.mention(value)}: {value.type}"
    if value.shape is None:
        raise GraphError(f"{where}: the rank must be known")
    keys = _complete(key if isinstance(key, tuple) else (key,), len(value.shape), where)
    limits: dict[int, tuple[int, int, int]] = {}
    axes: list[int | None] = []  # for each axis of the result: an axis of the value, or None for a new axis
    axis = 0
    for k in keys:
        if k is None:
            axes.append(None)
            continue
        if isinstance(k, slice):
            axes.append(axis)
            if k != slice(None):
                limits[axis] = _slice(k, value.shape[axis], where)
        else:
            at, size = index(k), value.shape[axis]
            if size is not None and not -size <= at < size:
                raise GraphError(f"{where}: must be in [{-size}, {size - 1}], got {at}")
            limits[axis] = at, at + 1 or _END, 1
        axis += 1
    if limits:
        starts, ends, steps = zip(*limits.values(), strict=True)
        value = _add(value, "slice", axes=list(limits), starts=starts, ends=ends, steps=steps)
    if axes == list(range(axis)):
        return value
    assert value.shape is not None
    dims = [1 if a is None else value.shape[a] for a in axes]
    if dims.count(None) > 1:
        raise GraphError(f"{where}: at most one unknown dimension may be left if axes are added or removed")
    return _add(value, "static_reshape", shape=[-1 if d is None else d for d in dims])


def _add(value: Value, name: str, **attrs: Any) -> Value:
    return value.graph.add_node(lookup(name), [value], attrs)[0]


def _complete(keys: tuple[Any, ...], rank: int, where: str) -> list[Any]:
    """Check the indices, and replace `...` by slices. Returns an index for each axis, and None for each new axis."""
    for k in keys:
        if not (k is None or k is ... or isinstance(k, slice)
                or isinstance(k, int | np.integer) and not isinstance(k, bool)):
            raise GraphError(f"{where}: must be an int, a slice, ... or None, got {k!r}; use gather for arrays")
    at = [n for n, k in enumerate(keys) if k is ...] or [len(keys)]
    rest = rank - sum(k is not None and k is not ... for k in keys)
    if rest < 0 or len(at) > 1:
        raise GraphError(f"{where}: takes {rank} indices and one ..., got {len(keys)}")
    return [*keys[:at[0]], *[slice(None)] * rest, *keys[at[0] + 1:]]


def _slice(k: slice, size: Dim, where: str) -> tuple[int, int, int]:
    """Start, end and step for the operation `slice`. A negative end counts from the end of the axis."""
    try:
        start, stop, step = (None if x is None else index(x) for x in (k.start, k.stop, k.step))
    except TypeError:
        raise GraphError(f"{where}: a slice must have ints, got {k}") from None
    step = 1 if step is None else step
    if step == 0 or size is None and step < 0 and start is not None:
        raise GraphError(f"{where}: a step must not be 0, nor go back from an index of an unknown dimension, got {k}")
    if size is not None:
        taken = range(*slice(start, stop, step).indices(size))
        return (taken[0], taken.stop if taken.stop >= 0 else -_END, step) if taken else (0, 0, 1)
    first, last = (0, _END) if step > 0 else (_END, -_END)
    return first if start is None else start, last if stop is None else stop, step


Number: TypeAlias = "Value | np.ndarray | np.generic | float"
"""The type of operands: a value, or a number or array that becomes a constant."""

Property: TypeAlias = Literal["undef", "variable", "constant", "host_scalar"]

GRAPH_ORDER = attrgetter("position")
"""The `key` for `sorted` that puts nodes into graph order."""

ONNX_NAME = "onnx name"
"""The key in a node's `meta` for its name in an ONNX file."""
SOURCE_LINE = "source line"
"""The key in a node's `meta` for the line of Python that it is from."""


def number(node: Node) -> int:
    """The index of a node in its graph's list. Raises GraphError if the node was removed."""
    if node.removed:
        raise GraphError(f"a removed node, {node.op.name}, cannot be copied or pickled")
    return node.graph.nodes.index(node)


class Use(NamedTuple):
    """A use of a value: by operand `number` of `node`, or by graph output `number` if `node` is None."""

    node: Node | None
    number: int


def _operator(name: str) -> Callable[[Value, Number], Value]:
    return lambda x, y: _built(name, x, y)


def _reflected(name: str) -> Callable[[Value, Number], Value]:
    return lambda x, y: _built(name, y, x)


class Value:
    """A logical tensor: a graph input (`node` is None) or output `index` of `node`.

    `property` is oneDNN's property of a logical tensor. An input marked "constant" never changes between calls of a
    compiled model. The operators `+ - * / @ **`, `abs` and indexing add nodes to the graph. A number as the other
    operand gets the value's dtype. `==` compares identity.
    """

    __slots__ = ("graph", "index", "name", "node", "property", "type", "uses")

    def __init__(self, graph: Graph, type: TensorType, node: Node | None, index: int, name: str | None = None,
                 property: Property = "undef") -> None:
        self.graph, self.type, self.node, self.index = graph, type, node, index
        self.name, self.property = name, property
        self.uses: list[Use] = []

    @property
    def shape(self) -> tuple[Dim, ...] | None:
        """The dimensions. An unknown dimension is None; if the rank is unknown, the shape is None."""
        return self.type.shape

    @property
    def dtype(self) -> DType:
        """The element type."""
        return self.type.dtype

    @property
    def data(self) -> np.ndarray | None:
        """The array of a constant; None for every other value."""
        return self.node.attrs["value"] if self.node is not None and self.node.op.name == "constant" else None

    @property
    def array(self) -> np.ndarray:
        """The array of a constant. It must be a constant."""
        data = self.data
        assert data is not None, f"{self!r} is not a constant"
        return data

    @property
    def maker(self) -> Node:
        """The node that computes the value. It must not be an input of the graph."""
        assert self.node is not None, f"{self!r} is an input"
        return self.node

    @property
    def users(self) -> list[Node]:
        """The nodes that use this value, without duplicates, in graph order."""
        return sorted({u.node for u in self.uses if u.node is not None}, key=GRAPH_ORDER)

    @property
    def is_output(self) -> bool:
        """Whether the graph returns this value."""
        return any(u.node is None for u in self.uses)

    # None makes `array + value` call Value.__radd__ instead of broadcasting.
    __array_ufunc__ = None
    __iter__ = None

    __add__, __radd__ = _operator("add"), _reflected("add")
    __sub__, __rsub__ = _operator("subtract"), _reflected("subtract")
    __mul__, __rmul__ = _operator("multiply"), _reflected("multiply")
    __truediv__, __rtruediv__ = _operator("divide"), _reflected("divide")

    def __matmul__(self, other: Value | np.ndarray) -> Value:
        return _built("matmul", self, other)

    def __rmatmul__(self, other: np.ndarray) -> Value:
        return _built("matmul", other, self)

    def __neg__(self) -> Value:
        return _built("multiply", self, -1)

    def __abs__(self) -> Value:
        return _built("abs", self)

    def __pow__(self, exponent: float) -> Value:
        if isinstance(exponent, bool) or not isinstance(exponent, int | float):
            return NotImplemented
        return self.graph.add_node(lookup("pow"), [self], {"beta": exponent})[0]

    def __getitem__(self, key: Any) -> Value:
        """Index the value by ints, slices, `...` and None, as NumPy does."""
        return indexed(self, key)

    def __bool__(self) -> NoReturn:
        raise GraphError(f"{self!r} is neither true nor false: its numbers are known only when the graph runs. "
                         "`select` and `choose` choose between values; compare with None by `value is None`")

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        if self.node is None:
            return at, (self.graph, None, self.graph.inputs.index(self))
        return at, (self.graph, number(self.node), self.index)

    def __repr__(self) -> str:
        return f"<value {self.graph.label(self)}: {self.type}>"


def _built(name: str, *operands: Any) -> Any:
    """Build operation `name` for a Python operator. At least one operand is a value.

    A number gets the dtype of the value, as in NumPy: `x * 2` of bf16 stays bf16. Returns NotImplemented, as Python
    expects, for an object that cannot be an operand.
    """
    value = next(x for x in operands if isinstance(x, Value))
    if any(isinstance(x, bool) or not isinstance(x, Value | np.ndarray | np.generic | int | float) for x in operands):
        return NotImplemented
    given = [frozen(x, name, value.dtype) if isinstance(x, int | float) else x for x in operands]
    return value.graph.add_node(lookup(name), given, {})[0]


class Node:
    """An operation applied to operands. `inputs` has None for an absent optional operand; `attrs` has all attributes.

    `position` grows along the graph's list of nodes. `removed` is true after `prune` has removed the node. `meta` has
    facts that do not change the node's results, such as the "id" and "name" of an operation in a file; copies of the
    graph share it. If the graph keeps a history of passes, `origin` is the node of the original graph that this node
    came from. Copies have no `origin`.
    """

    __slots__ = ("attrs", "graph", "inputs", "meta", "op", "origin", "outputs", "position", "removed")

    def __init__(self, graph: Graph, op: Op, inputs: tuple[Value | None, ...], attrs: Mapping[str, Any]) -> None:
        self.graph, self.op, self.inputs, self.attrs = graph, op, inputs, attrs
        self.outputs: tuple[Value, ...] = ()
        self.meta: Mapping[str, Any] = {}
        self.origin: Node | None = None
        self.position, self.removed = 0, False

    @property
    def output(self) -> Value:
        """The only output of a node with one output."""
        (out,) = self.outputs
        return out

    def operand(self, index: int) -> Value:
        """The operand at `index`. It must not be absent."""
        value = self.inputs[index]
        assert value is not None, f"{self!r} has no operand {index}"
        return value

    @property
    def operands(self) -> Iterator[Value]:
        """The operands, without absent optional ones."""
        return (v for v in self.inputs if v is not None)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return at, (self.graph, number(self), -1)

    def __repr__(self) -> str:
        return f"<node {self.graph.describe(self)}>"


def at(graph: Graph, node: int | None, index: int) -> Value | Node:
    """Output `index` of node number `node`, or the node itself for index -1. If `node` is None: graph input `index`."""
    if node is None:
        return graph.inputs[index]
    return graph.nodes[node] if index < 0 else graph.nodes[node].outputs[index]


def sources(value: Value) -> Iterator[Value]:
    """The operands of the node that computes a value; nothing if it is an input."""
    return iter(()) if value.node is None else value.node.operands


def makers_of(node: Node) -> list[Node]:
    """The nodes that compute the operands of a node."""
    return [v.node for v in node.operands if v.node is not None]


def readers_of(node: Node) -> list[Node]:
    """The nodes that read the results of a node."""
    return [n for v in node.outputs for n in v.users]


def reached(start: Iterable[T], after: Callable[[T], Iterable[T]], most: int | None = None) -> Iterator[T]:
    """Yield the items of `start`, then those to which `after` leads, and so on: nearest first, at most `most` items."""
    seen = set(waiting := [*dict.fromkeys(start)])
    for x in waiting:  # new items are appended, so the loop visits them as well
        yield x
        for y in after(x):
            if y not in seen and (most is None or len(seen) < most):
                seen.add(y)
                waiting.append(y)

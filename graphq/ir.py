"""The graph: values (logical tensors), nodes, and the only four ways to change them.

A graph is a list of nodes in topological order. `add_node`, `replace_uses`, `set_outputs` and `prune` are its mutators;
every pass is made of them. Builder methods (`g.matmul(...)`) are `add` under the name of an op.
"""
from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np

from graphq.dtypes import DType, DTypeLike, as_dtype
from graphq.errors import GraphError, GraphqError
from graphq.op import OPS, Op, lookup

Dim: TypeAlias = int | None
Property: TypeAlias = Literal["undef", "variable", "constant", "host_scalar"]


@dataclass(frozen=True)
class TensorType:
    """A dtype and a shape. A dimension of None is unknown, a shape of None has unknown rank."""

    dtype: DType
    shape: tuple[Dim, ...] | None

    def __str__(self) -> str:
        dims = "*" if self.shape is None else ",".join("?" if d is None else str(d) for d in self.shape)
        return f"{self.dtype.name}[{dims}]"

    @property
    def known(self) -> bool:
        """Whether rank and all dimensions are known."""
        return self.shape is not None and None not in self.shape

    @property
    def dims(self) -> tuple[int, ...]:
        """The shape, all dimensions known; raises GraphError when one is not."""
        if self.shape is None or None in self.shape:
            raise GraphError(f"shape of {self} is not known yet")
        return self.shape  # type: ignore[return-value]

    @property
    def size(self) -> int:
        """Number of elements."""
        out = 1
        for d in self.dims:
            out *= d
        return out

    @property
    def nbytes(self) -> int:
        """Bytes of a dense array of this type."""
        return self.size * self.dtype.itemsize


class Use(NamedTuple):
    """One place where a value is used: operand `index` of `node`, or graph output `index` when `node` is None."""

    node: Node | None
    index: int


class Value:
    """A logical tensor: a graph input (`node` is None) or output `index` of `node`.

    `property` is oneDNN's: an input marked "constant" never changes between calls of a compiled model.
    """

    __slots__ = ("graph", "index", "name", "node", "property", "type", "uses")

    def __init__(self, graph: Graph, type: TensorType, node: Node | None, index: int, name: str | None = None,
                 property: Property = "undef") -> None:
        self.graph, self.type, self.node, self.index, self.name, self.property = graph, type, node, index, name, property
        self.uses: list[Use] = []

    @property
    def shape(self) -> tuple[Dim, ...] | None:
        """Dimensions; None stands for an unknown one."""
        return self.type.shape

    @property
    def dtype(self) -> DType:
        """Element type."""
        return self.type.dtype

    @property
    def data(self) -> np.ndarray | None:
        """The array of a constant; None for every other value."""
        return self.node.attrs["value"] if self.node is not None and self.node.op.name == "constant" else None

    @property
    def users(self) -> list[Node]:
        """The nodes that use this value, each once, in graph order of first use."""
        return list(dict.fromkeys(u.node for u in self.uses if u.node is not None))

    @property
    def is_output(self) -> bool:
        """Whether the graph returns this value."""
        return any(u.node is None for u in self.uses)

    def __repr__(self) -> str:
        return f"<value {self.graph.label(self)}: {self.type}>"


class Node:
    """An operation applied: `op`, operands (None for an absent optional one), all attributes, outputs."""

    __slots__ = ("attrs", "graph", "inputs", "op", "outputs")

    def __init__(self, graph: Graph, op: Op, inputs: tuple[Value | None, ...], attrs: Mapping[str, Any]) -> None:
        self.graph, self.op, self.inputs, self.attrs = graph, op, inputs, attrs
        self.outputs: tuple[Value, ...] = ()

    @property
    def output(self) -> Value:
        """The single output."""
        (out,) = self.outputs
        return out

    @property
    def operands(self) -> Iterator[Value]:
        """The operands that are present."""
        return (v for v in self.inputs if v is not None)

    def __repr__(self) -> str:
        return f"<node {self.graph.describe(self)}>"


Operand: TypeAlias = "Value | np.ndarray | float | None"


class Graph:
    """A graph of operations, built by its methods (one for each op) or loaded from a file.

    `inputs` and `outputs` are values; `output_names` are the names under which results are returned.
    """

    def __init__(self, name: str = "graph") -> None:
        self.name = name
        self.inputs: list[Value] = []
        self.outputs: list[Value] = []
        self.output_names: list[str] = []
        self.nodes: list[Node] = []
        self._names: set[str] = set()
        self._before: Node | None = None

    # -- building ---------------------------------------------------------------------------------------------

    def input(self, name: str, *, dtype: DTypeLike, shape: Sequence[Dim] | None = None,
              property: Property = "undef") -> Value:
        """Add a graph input. A dimension of None, or no shape, is taken from the array at the first call.

        Raises GraphError on a name that is taken, an unknown dtype or a negative dimension.
        """
        where = f"input '{name}'"
        if not isinstance(name, str) or not name:
            raise GraphError(f"an input's name must be a non-empty string, got {name!r}")
        if property not in ("undef", "variable", "constant", "host_scalar"):
            raise GraphError(f"{where}: property must be undef, variable, constant or host_scalar, got {property!r}")
        try:
            kind = as_dtype(dtype)
        except GraphError as e:
            raise GraphError(f"{where}: {e}") from None
        value = Value(self, TensorType(kind, _dims(shape, where)), None, 0, self._claim(name, where), property)
        self.inputs.append(value)
        return value

    def constant(self, value: np.ndarray | float | Sequence[Any], *, name: str | None = None) -> Value:
        """Add a constant; the array is copied and never changes. A float or a list becomes f32."""
        array = np.asarray(value)
        if not isinstance(value, np.ndarray | np.generic) and array.dtype in (np.float64, np.int64):
            array = array.astype(np.float32)
        array = np.array(array, order="C", copy=True)
        array.flags.writeable = False
        return self.add_node(lookup("constant"), (), {"value": array}, name=name)[0]

    def output(self, value: Value, *, name: str | None = None) -> Value:
        """Return `value` from the graph, under `name` (its own name or "outN" when not given)."""
        self._own(value, "output")
        if name is None:
            name = value.name or f"out{len(self.outputs)}"
        if name in self.output_names:
            raise GraphError(f"output '{name}': the graph has an output of that name already")
        if value.node is not None and not value.is_output and name not in self._names:
            self._rename(value, name)
        self.set_outputs([*self.outputs, value], [*self.output_names, name])
        return value

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """The builder method of op `name`: tensors positional, attributes by keyword, `name=` for the result."""
        if name.startswith("_"):
            raise AttributeError(name)
        if name not in OPS:
            raise _UnknownOp(_message(lookup, name))
        op = OPS[name]

        def build(*operands: Operand, name: str | None = None, **attrs: Any) -> Any:
            outs = self.add_node(op, operands, attrs, name=name)
            return outs[0] if len(outs) == 1 else outs

        build.__name__, build.__doc__ = op.name, op.doc
        return build

    def __dir__(self) -> Iterable[str]:
        return [*super().__dir__(), *OPS]

    # -- the four mutators ------------------------------------------------------------------------------------

    def add_node(self, op: Op, operands: Sequence[Operand], attrs: Mapping[str, Any], *,
            name: str | None = None) -> tuple[Value, ...]:
        """Add a node after all others (or at the insertion point of `before`); its outputs.

        Arrays and numbers among the operands become constants. Raises GraphError, naming op, rule and values.
        """
        where = op.name if name is None else f"{op.name} '{name}'"
        values = tuple(self._operand(x, where) for x in operands)
        while values and values[-1] is None:
            values = values[:-1]
        try:
            op.check_operands(len(values), lambda k: k >= len(values) or values[k] is None)
            complete = op.complete(attrs)
            types = op.infer(*(v.type if v is not None else None for v in values), **complete)
        except GraphqError as e:
            args = ", ".join("none" if v is None else f"{self.label(v)}: {v.type}" for v in values)
            raise type(e)(f"{where}({args}): {e}") from None
        node = Node(self, op, values, complete)
        outs = (types,) if isinstance(types, TensorType) else types
        node.outputs = tuple(Value(self, t, node, k) for k, t in enumerate(outs))
        if name is not None:
            node.outputs[0].name = self._claim(name, where)
        for k, v in enumerate(values):
            if v is not None:
                v.uses.append(Use(node, k))
        at = len(self.nodes) if self._before is None else self.nodes.index(self._before)
        self.nodes.insert(at, node)
        return node.outputs

    def replace_uses(self, old: Value, new: Value, uses: Iterable[Use] | None = None) -> None:
        """Let the users of `old` (all, graph outputs included, or those of `uses`) use `new`.

        Raises GraphError on a change of type.
        """
        if old is new:
            return
        uses = list(old.uses if uses is None else uses)
        self._own(new, "replace_uses")
        if old.type != new.type:
            raise GraphError(f"replace_uses: {self.label(old)}: {old.type} may not become {self.label(new)}: {new.type}")
        for use in uses:
            old.uses.remove(use)
            if use.node is None:
                self.outputs[use.index] = new
            else:
                use.node.inputs = (*use.node.inputs[:use.index], new, *use.node.inputs[use.index + 1:])
        new.uses.extend(uses)
        if not old.uses and old.name is not None and new.name is None and new.node is not None:
            new.name, old.name = old.name, None

    def set_outputs(self, values: Sequence[Value], names: Sequence[str]) -> None:
        """Return `values` under `names`, in place of the outputs so far."""
        if len(set(names)) != len(names) or len(names) != len(values):
            raise GraphError(f"set_outputs: {len(values)} values need as many different names, got {list(names)}")
        for v in self.outputs:
            v.uses = [u for u in v.uses if u.node is not None]
        self.outputs, self.output_names = list(values), list(names)
        for k, v in enumerate(values):
            v.uses.append(Use(None, k))

    def prune(self, start: Iterable[Node] | None = None) -> int:
        """Remove every node whose outputs have no use (from `start` upwards only, when given); their number."""
        work = list(self.nodes if start is None else start)
        dead: set[Node] = set()
        while work:
            node = work.pop()
            if node in dead or any(out.uses for out in node.outputs):
                continue
            dead.add(node)
            self._names.difference_update(o.name for o in node.outputs if o.name is not None)
            for k, v in enumerate(node.inputs):
                if v is not None:
                    v.uses.remove(Use(node, k))
                    if v.node is not None:
                        work.append(v.node)
        if dead:
            self.nodes = [n for n in self.nodes if n not in dead]
        return len(dead)

    # -- help for passes --------------------------------------------------------------------------------------

    @contextmanager
    def before(self, node: Node) -> Iterator[Graph]:
        """Within the block, nodes are added in front of `node`."""
        saved, self._before = self._before, node
        try:
            yield self
        finally:
            self._before = saved

    def copy(self) -> Graph:
        """An independent copy; constants share their (read-only) arrays, partitions their bodies."""
        return self.specialise({})

    def specialise(self, types: Mapping[str, TensorType], constants: Mapping[str, np.ndarray] | None = None) -> Graph:
        """A copy in which the named inputs have the given types, or are constants; all other types are re-inferred."""
        out, new = Graph(self.name), {}
        for v in self.inputs:
            assert v.name is not None
            if constants and v.name in constants:
                new[v] = out.constant(constants[v.name])
                continue
            t = types.get(v.name, v.type)
            new[v] = out.input(v.name, dtype=t.dtype, shape=t.shape, property=v.property)
        for node in self.nodes:
            outs = out.add_node(node.op, [None if v is None else new[v] for v in node.inputs], node.attrs)
            for a, b in zip(node.outputs, outs, strict=True):
                new[a] = b
                if a.name is not None:
                    out._rename(b, a.name)
        out.set_outputs([new[v] for v in self.outputs], self.output_names)
        return out

    def label(self, value: Value) -> str:
        """The value's name in text: an input's name, `%name`, or `%N` by its place in the graph."""
        if value.node is None:
            return str(value.name)
        if value.name is not None:
            return f"%{value.name}"
        k = 0
        for node in self.nodes:
            for out in node.outputs:
                if out is value:
                    return f"%{k}"
                k += out.name is None
        return "%?"

    def describe(self, node: Node) -> str:
        """One line for errors and reports: `%3 = relu(%2) : f32[4]`."""
        args = ", ".join("none" if v is None else self.label(v) for v in node.inputs)
        types = ", ".join(str(o.type) for o in node.outputs)
        return f"{', '.join(self.label(o) for o in node.outputs)} = {node.op.name}({args}) : {types}"

    def __str__(self) -> str:
        from graphq.text import to_text

        return to_text(self, elide=16)

    def __repr__(self) -> str:
        return f"<graph {self.name}: {len(self.inputs)} inputs, {len(self.nodes)} nodes, {len(self.outputs)} outputs>"

    def _operand(self, x: Operand, where: str) -> Value | None:
        if x is None:
            return None
        if isinstance(x, Value):
            self._own(x, where)
            return x
        if isinstance(x, np.ndarray | np.generic | float | int) and not isinstance(x, bool):
            return self.constant(x)
        raise GraphError(f"{where}: an operand must be a value of this graph, an array or a number, got {x!r}")

    def _own(self, value: Value, where: str) -> None:
        if not isinstance(value, Value):
            raise GraphError(f"{where}: expected a value of graph '{self.name}', got {value!r}")
        if value.graph is not self:
            raise GraphError(f"{where}: {value.graph.label(value)} belongs to graph '{value.graph.name}', "
                             f"not to '{self.name}'")

    def _claim(self, name: str, where: str) -> str:
        if not isinstance(name, str) or not name:
            raise GraphError(f"{where}: a name must be a non-empty string, got {name!r}")
        if name.isdecimal():
            raise GraphError(f"{where}: the name '{name}' is a number, which unnamed values have")
        if name in self._names:
            raise GraphError(f"{where}: the name '{name}' is taken in graph '{self.name}'")
        self._names.add(name)
        return name

    def _rename(self, value: Value, name: str) -> None:
        if value.name is not None:
            self._names.discard(value.name)
            value.name = None
        value.name = self._claim(name, "output")


class _UnknownOp(GraphError, AttributeError):
    """An unknown builder method: a graph error that `hasattr` understands."""


def _message(f: Callable[[str], Any], name: str) -> str:
    try:
        f(name)
    except GraphError as e:
        return str(e)
    return ""


def _dims(shape: Sequence[Dim] | None, where: str) -> tuple[Dim, ...] | None:
    if shape is None:
        return None
    dims = tuple(shape) if not isinstance(shape, int) else (shape,)
    for d in dims:
        if d is not None and (not isinstance(d, int | np.integer) or isinstance(d, bool) or d < 0):
            raise GraphError(f"{where}: a dimension must be a non-negative int or None, got {d!r} in {list(dims)}")
    size = 1
    for d in dims:
        size *= 1 if d is None else max(int(d), 1)
    if size > 2**48:
        raise GraphError(f"{where}: shape {list(dims)} has more than 2**48 elements")
    return tuple(None if d is None else int(d) for d in dims)

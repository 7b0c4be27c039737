"""The class Graph: nodes in topological order, inputs, outputs, and the four methods that change a graph.

Passes change a graph only by `add_node`, `replace_uses`, `set_outputs` and `prune`. A builder method such as
`g.matmul(...)` calls `add_node` with its operation.
"""
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeAlias, get_args

import numpy as np

from graphq.base.sizes import surely_equal
from graphq.dtypes import DType, DTypeLike, as_dtype, f32, f64
from graphq.errors import GraphError, GraphqError
from graphq.ir.names import Labels, check_name
from graphq.ir.node import GRAPH_ORDER, Node, Number, Property, Use, Value
from graphq.ir.op import Op, lookup
from graphq.ir.operations import Operations
from graphq.ir.tensor_type import Dim, TensorType, array_type, check_dims, check_size, frozen

if TYPE_CHECKING:
    import graphq

_GAP = 1 << 60

Operand: TypeAlias = "Number | None"


class Graph(Operations):
    """A graph of operations, built by its methods (one for each operation) or loaded from a file.

    `inputs` and `outputs` are values. `output_names` are the names of the results of a call. `meta` has facts about the
    file that the graph was loaded from. `notes` has what was computed from the graph, for use later; copies and files
    leave it out. `labels` names values in texts.
    """

    def __init__(self, name: str = "graph") -> None:
        if not isinstance(name, str):
            raise GraphError(f"a graph's name must be a string, got {name!r}")
        self.name = name
        self.inputs: list[Value] = []
        self.outputs: list[Value] = []
        self.output_names: list[str] = []
        self._output_names: set[str] = set()
        self.nodes: list[Node] = []
        self.meta: Mapping[str, Any] = {}
        self.notes: dict[str, Any] = {}
        self._names: set[str] = set()
        self._by_op: dict[str, dict[Node, None]] = {}
        self._before: Node | None = None
        self._instead: Sequence[Node] = ()
        self.labels = Labels(self)

    @property
    def values(self) -> list[Value]:
        """The inputs, then all results of nodes, in the order of a copy's values."""
        return [*self.inputs, *(v for n in self.nodes for v in n.outputs)]

    # -- building ---------------------------------------------------------------------------------------------

    def input(self, name: str, *, dtype: DTypeLike, shape: Sequence[Dim] | None = None,
              property: Property = "undef") -> Value:
        """Add a graph input. Dimensions of None are known only at run time. Without `shape`, the rank is unknown.

        Raises GraphError for a name that is in use, an unknown dtype or a negative dimension.
        """
        where = f"input '{name}'"
        if not isinstance(property, str) or property not in get_args(Property):
            raise GraphError(f"{where}: property must be undef, variable, constant or host_scalar, got {property!r}")
        try:
            kind = as_dtype(dtype)
        except GraphError as e:
            raise GraphError(f"{where}: {e}") from None
        return self.add_input(name, TensorType(kind, check_dims(shape, where)), property)

    def add_input(self, name: str, type: TensorType, property: Property = "undef") -> Value:
        """Add a graph input of a type that needs no check. Raises GraphError for a name that is in use."""
        value = Value(self, type, None, 0, self._claim(name, f"input '{name}'"), property)
        self.inputs.append(value)
        return value

    def constant(self, value: np.ndarray | float | Sequence[Any], *, dtype: DTypeLike | None = None,
                 name: str | None = None) -> Value:
        """Add a constant with a read-only copy of the array.

        `dtype` converts the array: a float type rounds as `astype` does; an integer type must hold each number exactly.
        Without `dtype`, an array keeps its own dtype, except that f64 (NumPy's default) becomes f32. Numbers and lists
        of numbers also become f32. Raises GraphError if a number does not fit.
        """
        return self._constant(frozen(value, "constant", None if dtype is None else as_dtype(dtype)), name)

    def output(self, value: Value, *, name: str | None = None) -> Value:
        """Make `value` an output of the graph. The default `name` is the value's own name, or else a free "outN"."""
        self._own(value, "output")
        if name is None:
            name = value.name or next(n for k in range(len(self.outputs), 2 * len(self.outputs) + 1)
                                      if (n := f"out{k}") not in self._output_names)
        check_name(name, "output")
        if name in self._output_names:
            raise GraphError(f"output '{name}': the graph has an output of that name already")
        value.uses.append(Use(None, len(self.outputs)))
        self.outputs.append(value)
        self.output_names.append(name)
        self._output_names.add(name)
        if value.node is not None and value.name is None and name not in self._names:
            self.rename(value, name)
        return value

    # -- the four methods that change a graph -----------------------------------------------------------------

    def add_node(self, op: Op, operands: Sequence[Operand], attrs: Mapping[str, Any], *,
                 name: str | None = None) -> tuple[Value, ...]:
        """Add a node at the end of the graph, or at the place that a `before` block sets. Returns the node's outputs.

        Operands that are arrays or numbers become constants. If the node would not be valid, raises GraphError with the
        operation, the rule and the values; the graph then stays as it was.
        """
        if not isinstance(op, Op):
            raise GraphError(f"add_node takes an Op (see graphq.ir.op.lookup), got {op!r}")
        return self._add(op, operands, attrs, name, complete=False)

    def add_constant(self, array: np.ndarray, *, name: str | None = None) -> Value:
        """Add a constant for a pass or importer. Unlike in `constant`, an f64 array stays f64."""
        return self._constant(frozen(array, "constant", real=f64), name)

    def add_again(self, node: Node, operands: Sequence[Value | None]) -> tuple[Value, ...]:
        """Add a copy of a node of this or another graph, on operands of this graph. Returns the copy's outputs.

        This is faster than `add_node`: attributes are not checked again, and output types are inferred only if the
        types of operands differ.
        """
        old, new = (tuple([None if v is None else (v.dtype, v.shape) for v in values])
                    for values in (node.inputs, operands))
        if not surely_equal(old, new):
            return self._add(node.op, operands, node.attrs, None, complete=True)
        return self.add_checked(node.op, operands, node.attrs, [o.type for o in node.outputs])

    def add_checked(self, op: Op, operands: Sequence[Value | None], attrs: Mapping[str, Any],
                    types: Sequence[TensorType], *, name: str | None = None) -> tuple[Value, ...]:
        """Add a node as `add_node` does, with complete attributes and the known types of its results."""
        where = op.name if name is None else f"{op.name} '{name}'"
        for v in operands:
            self._operand(v, where)
        return self._append(op, tuple(operands), attrs, types, None if name is None else self._claim(name, where))

    def replace_uses(self, old: Value, new: Value, uses: Iterable[Use] | None = None) -> None:
        """Make the users of `old` use `new`: all users and graph outputs, or only the given `uses`.

        Both values must have the same type, except that more dimensions of `new` may be known if the results of all
        users keep their types. Raises GraphError if the types differ, or if a user does not come after `new`.
        """
        self._own(old, "replace_uses")
        self._own(new, "replace_uses")
        if old is new:
            return
        chosen = dict.fromkeys(old.uses if uses is None else uses)
        if old.type != new.type and not (new.type.refines(old.type) and _keep_types(chosen, new.type)):
            raise GraphError(f"replace_uses: {self.label(old)}: {old.type} may not become "
                             f"{self.label(new)}: {new.type}")
        self.labels.stands(new, old)
        for use in chosen:
            if use not in old.uses:
                raise GraphError(f"replace_uses: {use} is not a use of {self.label(old)}")
            if use.node is not None and new.node is not None and use.node.position <= new.node.position:
                raise GraphError(f"replace_uses: {self.describe(use.node)} does not come after {self.label(new)}, "
                                 "which it would use: a cycle, or nodes out of order (see Graph.before)")
        for use in chosen:
            if use.node is None:
                self.outputs[use.number] = new
            else:
                k = use.number
                use.node.inputs = (*use.node.inputs[:k], new, *use.node.inputs[k + 1:])
        old.uses = [u for u in old.uses if u not in chosen]
        new.uses.extend(chosen)
        if not old.uses and old.name is not None and new.name is None and new.node is not None:
            new.name, old.name = old.name, None
            self.labels.changed()
        elif not old.uses and new.node is not None:
            self.labels.replaced(old, new)

    def set_outputs(self, values: Sequence[Value], names: Sequence[str]) -> None:
        """Replace the outputs of the graph by `values`, named `names`."""
        values, names = list(values), list(names)
        for name in names:
            check_name(name, "set_outputs")
        if len(set(names)) != len(names) or len(names) != len(values):
            raise GraphError(f"set_outputs: {len(values)} values need as many different names, got {names}")
        for v in values:
            self._own(v, "set_outputs")
        for v in dict.fromkeys(self.outputs):
            v.uses = [u for u in v.uses if u.node is not None]
        self.outputs, self.output_names, self._output_names = values, names, set(names)
        for k, v in enumerate(values):
            v.uses.append(Use(None, k))

    def prune(self, start: Iterable[Node] | None = None) -> int:
        """Remove nodes without used outputs, and return their number.

        `start` limits the search to the given nodes and their predecessors.
        """
        work = list(self.nodes if start is None else start)
        dead: list[Node] = []
        while work:
            node = work.pop()
            if node.removed or any([out.uses for out in node.outputs]):
                continue
            node.removed = True
            del self._by_op[node.op.name][node]
            dead.append(node)
            self._names.difference_update(o.name for o in node.outputs if o.name is not None)
            for k, v in enumerate(node.inputs):
                if v is not None:
                    v.uses.remove(Use(node, k))
                    if v.node is not None:
                        work.append(v.node)
        if len(dead) > 32:
            self.nodes = [n for n in self.nodes if not n.removed]
        else:
            for node in dead:
                del self.nodes[self._index(node)]
        if dead:
            self.labels.changed()
        return len(dead)

    # -- help for passes --------------------------------------------------------------------------------------

    @contextmanager
    def before(self, node: Node, instead: Sequence[Node] = ()) -> "Iterator[Graph]":
        """Within a `with` block, add new nodes in front of `node`. Raises GraphError if `node` is not in the graph.

        If the graph keeps a history of passes, each new node gets an `origin`, a node of the original graph: the origin
        of the first node in `instead` with the same operation, or else the origin of `node`.
        """
        if not isinstance(node, Node):
            raise GraphError(f"before: expected a node of graph '{self.name}', got {node!r}")
        self._index(node)
        saved, self._before, self._instead = (self._before, self._instead), node, instead
        try:
            yield self
        finally:
            self._before, self._instead = saved

    def copy(self) -> "Graph":
        """An independent copy. It shares only the read-only arrays of constants and the bodies of partitions."""
        out = Graph(self.name)
        new = {v: out.add_input(str(v.name), v.type, v.property) for v in self.inputs}
        for node in self.nodes:  # no checks here: the nodes were checked when they were added
            outs = out._append(node.op, tuple([None if v is None else new[v] for v in node.inputs]), node.attrs,
                               [v.type for v in node.outputs], None)
            out.nodes[-1].meta = node.meta
            for value, old in zip(outs, node.outputs, strict=True):
                value.name, new[old] = old.name, value
        out._names = set(self._names)
        out.set_outputs([new[v] for v in self.outputs], self.output_names)
        out.meta = self.meta
        return out

    def specialize(self, types: Mapping[str, TensorType], constants: Mapping[str, np.ndarray] | None = None) -> "Graph":
        """A copy with other types for some inputs, or constants instead of inputs; all other types are inferred again.

        `types` and `constants` are mappings by input name. The bodies of partitions are specialized to their operands.
        Raises GraphError for an unknown name, a constant of another dtype than the input, or types that do not fit the
        operations.
        """
        from graphq.ir.copies import specialized

        return specialized(self, types, constants or {})

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """Pickle and copy the graph as a flat list of nodes, because long chains would recurse too deeply."""
        from graphq.ir.copies import flat, rebuilt

        return rebuilt, flat(self)

    def nodes_of(self, ops: Iterable[str]) -> list[Node]:
        """All nodes of these operations, unsorted; `sorted(..., key=GRAPH_ORDER)` puts them into graph order."""
        return [n for op in ops for n in self._by_op.get(op, ())]

    def has_name(self, name: str) -> bool:
        """Whether a value of the graph has this name."""
        return name in self._names

    def rename(self, value: Value, name: str) -> None:
        """Rename a value. Raises GraphError for a name that is in use."""
        self._own(value, "rename")
        check_name(name, "rename")
        if name == value.name:
            return
        self._claim(name, "rename")
        if value.name is not None:
            self._names.discard(value.name)
        value.name = name
        self.labels.changed()

    if TYPE_CHECKING:
        def partitions(self) -> list[graphq.Partition]:
            """The partitions that oneDNN Graph would make. `graphq/__init__.py` adds this method (`graphq.onednn`)."""

        def _repr_html_(self) -> str:
            """The drawing that notebooks show. `graphq/__init__.py` adds this method (`graphq.report`)."""

    def to_dot(self) -> str:
        """The graph in Graphviz's language. Partitions are clusters; constants are not shown."""
        from graphq.ir.outline import to_dot

        return to_dot(self)

    def to_mermaid(self) -> str:
        """The graph as a Mermaid flowchart for Markdown pages. Partitions are subgraphs; constants are not shown.

        By default Mermaid refuses more than 500 edges. Use `to_dot` for larger graphs.
        """
        from graphq.ir.outline import to_mermaid

        return to_mermaid(self)

    def label(self, value: Value) -> str:
        """The value's name in texts: an input's name, `%name`, or `%N` for the N-th unnamed value."""
        return self.labels.of(value)

    def describe(self, node: Node) -> str:
        """The node in one line, for errors and reports: `%3 = relu(%2) : f32[4]`."""
        args = ", ".join("none" if v is None else self.label(v) for v in node.inputs)
        types = ", ".join(str(o.type) for o in node.outputs)
        return f"{', '.join(self.label(o) for o in node.outputs)} = {node.op.title(node.attrs)}({args}) : {types}"

    def __str__(self) -> str:
        from graphq.ir.text import SHORT, to_text

        return to_text(self, elide=SHORT)

    def __repr__(self) -> str:
        return f"<graph {self.name}: {len(self.inputs)} inputs, {len(self.nodes)} nodes, {len(self.outputs)} outputs>"

    # -- inside -----------------------------------------------------------------------------------------------

    def _constant(self, array: np.ndarray, name: str | None = None) -> Value:
        return self.add_checked(lookup("constant"), (), {"value": array}, [array_type(array)], name=name)[0]

    def _operand(self, x: Operand, where: str, real: DType = f32) -> Value | np.ndarray | None:
        """Check an operand: a value, None, or an array or number for a constant. Numbers get the dtype `real`."""
        if isinstance(x, Value):
            self._own(x, where)
            if self._before is not None and x.node is not None and x.node.position >= self._before.position:
                raise GraphError(f"{where}: {self.label(x)} is defined after the place of the new node, "
                                 f"before {self.describe(self._before)}")
            return x
        if x is None or isinstance(x, np.ndarray | np.generic | float | int) and not isinstance(x, bool):
            return None if x is None else frozen(x, where, real=real)
        raise GraphError(f"{where}: an operand must be a value of this graph, an array or a number, got {x!r}")

    def _own(self, value: Value, where: str) -> None:
        if not isinstance(value, Value):
            raise GraphError(f"{where}: expected a value of graph '{self.name}', got {value!r}")
        if value.graph is not self:
            raise GraphError(f"{where}: {value.graph.labels.mention(value)} belongs to another graph, "
                             f"'{value.graph.name}', not to '{self.name}'")
        if value.node is not None and value.node.removed:
            raise GraphError(f"{where}: the result of {value.node.op.name}, {value.type}, was removed from the graph")

    def _add(self, op: Op, operands: Sequence[Operand], attrs: Mapping[str, Any], name: str | None, *,
             complete: bool) -> tuple[Value, ...]:
        """Add a node as `add_node` does. If `complete`, `attrs` were checked before and include all defaults."""
        where = op.name if name is None else f"{op.name} '{name}'"
        wide = any([isinstance(x, Value) and x.type.dtype.name == "f64" for x in operands])
        given = [self._operand(x, where, f64 if wide else f32) for x in operands]
        while given and given[-1] is None and not op.variadic:
            given.pop()
        types = [_type_of(x) for x in given]
        try:
            if not complete:
                op.check_keywords(attrs)
            op.check_operands(given)
            if not complete:
                attrs, complete = op.complete(attrs, types), True
            outs = op.types(types, attrs)
            for t in outs:
                check_size(t.shape or (), "result")
        except GraphqError as e:
            args = ", ".join("none" if x is None else f"{self.labels.mention(x)}: {t}" if isinstance(x, Value) else
                             str(t) for x, t in zip(given, types, strict=True))
            hint = op.formats_that_fit(types, attrs) if complete else ""
            raise type(e)(f"{where}({args}): {e}{hint}") from None
        if name is not None:
            name = self._claim(name, where)
        values = tuple([self._constant(x) if isinstance(x, np.ndarray) else x for x in given])
        return self._append(op, values, attrs, outs, name)

    def _append(self, op: Op, operands: tuple[Value | None, ...], attrs: Mapping[str, Any],
                types: Sequence[TensorType], name: str | None) -> tuple[Value, ...]:
        node = Node(self, op, operands, attrs)
        if self._before is not None and self.labels.origins is not None:
            like = next((n for n in self._instead if n.op is op), self._before)
            node.origin = like.origin or like
        node.outputs = tuple([Value(self, t, node, k, None if k else name) for k, t in enumerate(types)])
        self._by_op.setdefault(op.name, {})[node] = None
        for k, v in enumerate(operands):
            if v is not None:
                v.uses.append(Use(node, k))
        self.labels.changed()
        if self._before is None:
            node.position = self.nodes[-1].position + _GAP if self.nodes else 0
            self.nodes.append(node)
            return node.outputs
        at = self._index(self._before)
        low = self.nodes[at - 1].position if at else self._before.position - 2 * _GAP
        node.position = (low + self._before.position) // 2
        self.nodes.insert(at, node)
        if node.position == low:  # no number is left between the neighbors' positions
            for k, n in enumerate(self.nodes):
                n.position = k * _GAP
        return node.outputs

    def _index(self, node: Node) -> int:
        at = bisect_left(self.nodes, node.position, key=GRAPH_ORDER)
        if at == len(self.nodes) or self.nodes[at] is not node:
            raise GraphError(f"{node.graph.describe(node)} is not, or no longer, a node of graph '{self.name}'")
        return at

    def _claim(self, name: str, where: str) -> str:
        check_name(name, where)
        if name in self._names:
            raise GraphError(f"{where}: the name '{name}' is taken in graph '{self.name}'")
        self._names.add(name)
        return name


def _type_of(x: Value | np.ndarray | None) -> TensorType | None:
    if isinstance(x, np.ndarray):
        return array_type(x)
    return None if x is None else x.type


def _keep_types(uses: Iterable[Use], type: TensorType) -> bool:
    """Whether all nodes in `uses` keep their result types if the used value gets this type."""
    found: dict[Node, list[TensorType | None]] = {}
    for node, number in uses:
        if node is None:
            return False
        found.setdefault(node, [_type_of(v) for v in node.inputs])[number] = type
    try:
        return all(node.op.types(types, node.attrs) == tuple([v.type for v in node.outputs])
                   for node, types in found.items())
    except GraphqError:  # a user does not accept the type
        return False

"""The table of exporters, and GraphWriter, the class that collects nodes, constants and names of an ONNX graph."""
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

import numpy as np
import onnx
from onnx import FunctionProto, NodeProto, TensorProto, helper, numpy_helper

from graphq.base.arrays import Content
from graphq.base.sizes import assumed
from graphq.dtypes import DType
from graphq.errors import GraphError
from graphq.ir import SIZED_CONSTANT, Graph, Node, Value, known
from graphq.onnx.importers.importer import RENAMED
from graphq.onnx.protos.fallback import since_version, used_names

OPSET = 21
"""The operator set of saved models by default: the first with 4-bit types and blocked scales."""

Exporter: TypeAlias = "Callable[[GraphWriter, Node], None]"

EXPORTERS: dict[str, Exporter] = {}


def exports(*ops: str) -> Callable[[Exporter], Exporter]:
    """Register the decorated function as the exporter of these operations. Raises GraphError for a second exporter."""

    def declare(f: Exporter) -> Exporter:
        for op in ops:
            if op in EXPORTERS:
                raise GraphError(f"an exporter of {op} is registered already")
            EXPORTERS[op] = f
        return f

    return declare


def names_of(graph: Graph) -> frozenset[str]:
    """The names of the results of a graph's nodes."""
    return frozenset(v.name for n in graph.nodes for v in n.outputs if v.name is not None)


class GraphWriter:
    """Collect nodes, initializers and names of an ONNX graph of `opset`. All writers of a model share `functions`."""

    def __init__(self, opset: int, functions: list[FunctionProto] | None = None) -> None:
        self.opset = opset
        self.functions = [] if functions is None else functions
        self.nodes: list[NodeProto] = []
        self.initializers: list[TensorProto] = []
        self.names: dict[Value, str] = {}
        self._constants: dict[Content, str] = {}
        """Names of initializers by array. Equal arrays share an initializer if the graph does not name their values."""
        self.taken: set[str] = set()
        self.of_values: frozenset[str] = frozenset()
        """The names of the graph's own values. A made-up name must not be one of these."""

    def claim(self, wanted: str, *, made_up: bool = False) -> str:
        """Reserve a name: `wanted`, numbered if it is taken. A `made_up` name also avoids the graph's own names."""
        name, k = wanted, 0
        while name in self.taken or not name or made_up and name in self.of_values:
            k += 1
            name = f"{wanted}_{k}"
        self.taken.add(name)
        return name

    def name(self, value: Value | None) -> str:
        """The value's name in the file, or "" for an absent operand. A constant becomes an initializer."""
        if value is None:
            return ""
        if value not in self.names:
            data = assumed(known(value))
            if data is None or value.is_output or value.name is not None:
                self.names[value] = self.claim(value.name or "value")
                if data is not None:
                    self._initialize(self.names[value], data)
            else:
                self.names[value] = self.constant(data, "value")
        return self.names[value]

    def constant(self, array: np.ndarray | np.generic, wanted: str = "constant") -> str:
        """Find or add an initializer with this array; returns its name. `wanted` is the name for a new initializer."""
        array = np.asarray(array, order="C")
        name = self._constants.get(Content(array))
        return self._initialize(self.claim(wanted), array) if name is None else name

    def _initialize(self, name: str, array: np.ndarray) -> str:
        self.initializers.append(numpy_helper.from_array(array, name))
        self._constants.setdefault(Content(array), name)
        return name

    def integers(self, *values: int) -> str:
        """Add an initializer with these integers as s64; returns its name."""
        return self.constant(np.asarray(values, np.int64))

    def typed(self, dtype: DType, value: float) -> str:
        """Add an initializer with `value` as a scalar of the dtype; returns its name."""
        return self.constant(np.asarray(value).astype(dtype.numpy))

    def add(self, op_type: str, inputs: list[str], outputs: list[str] | None = None, **attrs: Any) -> str:
        """Add a node; returns the name of its first output. Without `outputs`, that output gets a new name."""
        outputs = [self.claim(op_type.lower(), made_up=True)] if outputs is None else outputs
        while inputs and not inputs[-1]:
            inputs = inputs[:-1]
        self.nodes.append(helper.make_node(op_type, inputs, outputs, name=self.claim(f"{op_type}_{outputs[0]}"),
                                           **attrs))
        return outputs[0]

    def node(self, node: Node, op_type: str, *more: str, **attrs: Any) -> None:
        """Write the operation as one ONNX node, with the operation's operands and then the operands `more`."""
        self.add(op_type, [*(self.name(v) for v in node.inputs), *more], [self.name(v) for v in node.outputs], **attrs)

    def prune(self, outputs: Iterable[str]) -> None:
        """Remove nodes with unused results: operations that became part of one ONNX operator leave such nodes."""
        needed, kept = set(outputs), []
        for node in reversed(self.nodes):
            if not needed.isdisjoint(node.output):
                kept.append(node)
                needed.update(used_names(node))
        self.nodes = kept[::-1]
        self.initializers = [t for t in self.initializers if t.name in needed]

    def write(self, node: Node) -> None:
        """Write an operation; raises GraphError, naming the operation, if ONNX cannot express it."""
        if node.op.name in ("constant", SIZED_CONSTANT.name):
            self.name(node.output)
            return
        exporter = EXPORTERS.get(node.op.name, declared if node.op.onnx else None)
        if exporter is None:
            raise GraphError(f"save: {node.graph.describe(node)}: ONNX has no operator for it")
        try:
            exporter(self, node)
        except GraphError as e:
            raise GraphError(f"save: {node.graph.describe(node)}: {e}") from None


def declared(w: GraphWriter, node: Node) -> None:
    """Write the ONNX operator that `Op.onnx` names. Attributes that are inputs of the operator become initializers."""
    op = node.op
    assert op.onnx is not None
    schema = onnx.defs.get_schema(op.onnx, since_version(op.onnx, "", w.opset, "ONNX"))
    given = {RENAMED.get(name, name): int(x) if isinstance(x, bool) else x for name, x in node.attrs.items()}
    attrs = {name: x for name, x in given.items() if name in schema.attributes}
    inputs = {name: given[name] for x in schema.inputs if (name := x.name.lower()) in given}
    for name in given.keys() - attrs.keys() - inputs.keys() - {"auto_broadcast"}:
        if node.attrs[name] != op.attributes[name].default:
            raise GraphError(f"ONNX's operator does not round to {node.attrs[name]}; use a type_cast"
                             if name == "dtype" else f"{op.onnx} has no {name}")
    w.node(node, op.onnx, *(w.constant(np.asarray(x, np.int64)) for x in inputs.values()), **attrs)

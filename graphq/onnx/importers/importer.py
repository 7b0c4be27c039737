"""The table of importers, and the conversion of ONNX nodes to operations.

An importer is a function that takes a `Call` (a node with its operands and attributes) and returns the values of the
node's outputs. If graphq has no operation for these operands, the importer returns None or raises GraphError. The node
then becomes an onnx_node: an operation that ONNX's reference evaluator runs. If a node breaks a rule of its operator,
the importer raises `Refused`. An importer may be called again later, when more types or constants are known.
"""
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn, TypeAlias

import numpy as np
import onnx
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, helper

from graphq.base.locks import lazy_property
from graphq.base.sizes import Later, later, number, recorded
from graphq.dtypes import DType, s8, u8
from graphq.errors import CompileError, GraphError
from graphq.ir import ONNX_NAME, Dim, Graph, Op, Value, listing, lookup, shapes_agree, walk_ops
from graphq.ir.interpret import add_known, computed, evaluate, known
from graphq.ir.node import SOURCE_LINE
from graphq.onnx.importers.operand_types import clash
from graphq.onnx.protos import fallback
from graphq.onnx.protos.labels import label, line_of
from graphq.onnx.protos.tensors import array_of
from graphq.ops.open_arrays import element
from graphq.ops.rules import FLOATS, Shape, show

Outputs: TypeAlias = Value | Sequence[Value] | None
Importer: TypeAlias = "Callable[[Call], Outputs]"

MICROSOFT, ML = "com.microsoft", "ai.onnx.ml"
DOMAINS = {"ai.onnx": ""}
"""Aliases of operator domains, and the names that graphq uses."""

IMPORTERS: dict[tuple[str, str], Importer] = {}

SEQUENCES = "optionals, maps and changing sequences are not supported: graphq has tensors and lists of known lengths"
OF_SEQUENCES = frozenset(("ConcatFromSequence Identity OptionalGetElement SequenceAt SequenceConstruct SequenceEmpty "
                          "SequenceLength SplitToSequence").split())
"""Operators that make or read sequences. Sequences exist only during the import; ONNX's reference never sees them."""
STRINGS = "strings are not supported: graphq has numbers"
REFUSED: dict[str, str] = {
    **dict.fromkeys(fallback.RANDOM, fallback.UNDEFINED),
    **dict.fromkeys(("Optional SequenceErase SequenceInsert SequenceMap ai.onnx.ml.CastMap "
                     "ai.onnx.ml.DictVectorizer ai.onnx.ml.ZipMap").split(), SEQUENCES),
    **dict.fromkeys("RegexFullMatch StringConcat StringNormalizer StringSplit ai.onnx.ml.CategoryMapper".split(),
                    STRINGS),
    "MaxRoiPool": "it is not supported: ONNX's reference does not implement it"}
"""Operators that are refused, and why. ONNX's reference runs a Loop, Scan or If that works on sequences or strings."""

BY_REFERENCE: dict[str, str] = {
    "DeformConv": "offsets of samples are known at run time", "Det": "no kernel factors matrices",
    "ImageDecoder": "a library decodes images", "RoiAlign": "regions are known at run time",
    "TfIdfVectorizer": "n-grams are looked up one by one",
    **dict.fromkeys([f"ai.onnx.ml.{name}" for name in (
        "ArrayFeatureExtractor Binarizer FeatureVectorizer Imputer LabelEncoder LinearClassifier OneHotEncoder "
        "SVMClassifier SVMRegressor Scaler TreeEnsemble TreeEnsembleClassifier TreeEnsembleRegressor").split()],
        "graphq has no operations for classical machine learning")}
"""Operators that ONNX's reference evaluator runs, and why."""

RENAMED = {"keep_dims": "keepdims"}
"""ONNX's names of attributes by graphq's names, if the names differ."""

OLDER = {"bilinear": "linear", "bicubic": "cubic"}
"""Older values of text attributes, and their names today: GridSample's modes before version 20."""

MALFORMED = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""Exceptions that an importer may raise for a malformed node, for example for a wrong rank or length."""


class Refused(GraphError):
    """A node that breaks a rule of its operator."""


def imports(*op_types: str, domain: str = "") -> Callable[[Importer], Importer]:
    """Register the decorated function as the importer of these operators. Raises GraphError for a second importer."""

    def declare(f: Importer) -> Importer:
        for op_type in op_types:
            if (domain, op_type) in IMPORTERS:
                raise GraphError(f"an importer of {op_type} is registered already")
            IMPORTERS[domain, op_type] = f
        return f

    return declare


def imports_each(importers: Mapping[str, Importer], domain: str = "") -> None:
    """Register importers by operator; an importer of one expression needs no function of its own."""
    for op_type, importer in importers.items():
        imports(op_type, domain=domain)(importer)


def operation_of(op_type: str) -> Op | None:
    """The operation whose `Op.onnx` is this operator of ONNX's own domain, or None."""
    return next((op for op in walk_ops() if op.onnx == op_type), None)


def importer_of(domain: str, op_type: str) -> "Importer | None":
    """The importer of an operator, or None. An operator that an `Op.onnx` names has the importer `by_declaration`."""
    return IMPORTERS.get((domain, op_type)) or (by_declaration if not domain and operation_of(op_type) else None)


def has_importer(node: NodeProto) -> bool:
    """Whether graphq has an importer for the node's operator; the importer may still refuse the node."""
    return importer_of(DOMAINS.get(node.domain, node.domain), node.op_type) is not None


@dataclass
class Scope:
    """Values and sequences by their ONNX names, new `names` of some values, and the versions of operator sets."""

    opsets: Mapping[str, int]
    values: dict[str, Value] = field(default_factory=dict)
    folder: str | None = None
    names: Mapping[str, str] = field(default_factory=dict)
    sequences: dict[str, list[Value]] = field(default_factory=dict)


@dataclass
class Call:
    """A node to import: operands, attributes, the version of its operator."""

    graph: Graph
    node: NodeProto
    scope: Scope
    version: int
    inputs: tuple[Value | None, ...]

    @lazy_property
    def attrs(self) -> dict[str, Any]:
        """The node's attributes; tensors are arrays, text is str."""
        out = {}
        for a in self.node.attribute:
            value = helper.get_attribute_value(a)
            if isinstance(value, TensorProto):
                value = array_of(value, self.scope.folder, f"attribute '{a.name}'")
            out[a.name] = value.decode("utf-8", "replace") if isinstance(value, bytes) else value
        return out

    @property
    def outputs(self) -> int:
        """The number of the node's outputs, up to the last output with a name."""
        return max((k + 1 for k, name in enumerate(self.node.output) if name), default=0)

    def attr(self, name: str, default: Any = None) -> Any:
        """The attribute `name`, or `default` if the node does not have it."""
        return self.attrs.get(name, default)

    def has(self, k: int) -> bool:
        """Whether input `k` is present."""
        return self.optional(k) is not None

    def input(self, k: int) -> Value:
        """Input `k`; raises Refused if it is absent."""
        value = self.optional(k)
        if value is None:
            self.refuse(f"input {k} is required")
        return value

    def optional(self, k: int) -> Value | None:
        """Input `k`, or None if it is absent."""
        return self.inputs[k] if k < len(self.inputs) else None

    def data(self, k: int) -> np.ndarray | None:
        """The array of input `k` if it is a constant, else None."""
        value = self.optional(k)
        return None if value is None else value.data

    def array(self, k: int) -> np.ndarray:
        """The array of input `k`; raises GraphError if it is not a constant (yet), Refused if it is absent."""
        data = self.input(k).data
        if data is None:
            raise GraphError(f"input {k} is not known before it runs")
        return data

    def ints(self, name: str, k: int) -> tuple[int, ...] | None:
        """Integers from attribute `name` (older versions of an operator) or input `k` (newer versions).

        Returns None if the node has neither. Raises GraphError if the values of the input are not known yet.
        """
        if name in self.attrs:
            return tuple(self.attrs[name])
        if not self.has(k):
            return None
        return tuple(self.numbers(k, f", the {name},"))

    def numbers(self, k: int, what: str = "") -> list[int]:
        """The integers in input `k`, or Sizes if they depend on open sizes. Raises GraphError if they are unknown."""
        data = known(self.input(k))
        if data is None:
            raise GraphError(f"input {k}{what} is not known before it runs")
        if isinstance(data, np.ndarray):
            return [int(x) for x in data.reshape(-1)]
        return [number(element, data, i) for i in range(number(np.size, data))]  # a guard records the length

    def floats(self) -> bool:
        """Whether each input is f32, bf16 or f16."""
        return len({v.dtype for v in self.inputs if v is not None} - set(FLOATS)) == 0

    def expect(self, k: int, *shapes: Shape) -> None:
        """Refuse input `k` if it is present and fits none of the `shapes`; a size of None allows any size."""
        value = self.optional(k)
        if value is not None and not any(shapes_agree(shape, value.shape) for shape in shapes):
            self.refuse(f"input {k} must be {listing(dict.fromkeys(map(show, shapes)), 'or')}, got {value.type}")

    def positive(self, name: str, default: int | None = None) -> int:
        """The attribute `name`, or `default` if the node does not have it; raises Refused if it is below 1."""
        value = self.attr(name, default)
        if not isinstance(value, int) or value < 1:
            self.refuse(f"attribute '{name}' must be positive, got {value}")
        return value

    def refuse(self, message: str) -> NoReturn:
        """Raise Refused with this message."""
        raise Refused(message)


def width(value: Value) -> Dim:
    """The size of the last axis; None if it is not known."""
    return value.shape[-1] if value.shape else None


def import_graph(graph: Graph, proto: GraphProto, scope: Scope) -> list[Value]:
    """Import the nodes of `proto`; the scope has its inputs and initializers. Returns its outputs' values."""
    for node in proto.node:
        import_node(graph, node, scope, written=True)
    return [scope.values[v.name] for v in proto.output]


def import_node(graph: Graph, node: NodeProto, scope: Scope, *, written: bool = False) -> None:
    """Import one node, and add its outputs to the scope; error messages begin with the node's name.

    If a node is `written` in the model, it must satisfy the type constraints of its operator. Nodes of ONNX's own
    functions are not checked, because some of them break these constraints for valid operands.
    """
    first = len(graph.nodes)
    try:
        outs, why = _translated(graph, node, scope, written=written)
        if outs is None:
            outs = _fallback(graph, node, scope, why)
    except (GraphError, CompileError) as e:
        raise type(e)(f"{label(node)}: {e}") from None
    except MemoryError as e:
        raise CompileError(f"{label(node)}: not enough memory: {e}") from None
    for name, value in outs.items():
        scope.values[name], name = value, scope.names.get(name, name)
        if value.node is not None and value.name is None and not graph.has_name(name):
            graph.rename(value, name)
    facts = {key: fact for key, fact in ((ONNX_NAME, node.name), (SOURCE_LINE, line_of(node))) if fact}
    for made in graph.nodes[first:]:
        made.meta = {**made.meta, **facts}


def _fallback(graph: Graph, node: NodeProto, scope: Scope, why: str) -> dict[str, Value]:
    """Add an onnx_node, or constants if all operands are constants. Reports show the reason `why`."""
    if (wrong := fallback.why_random(node, scope.values)) is not None:
        raise Refused(wrong)
    operands, attrs = fallback.single(node, scope.opsets, scope.values)
    names = [slot.name for slot in fallback.parsed(attrs["model"].tobytes()).graph.input]
    values = {name: x for name, v in zip(names, operands, strict=True)
              if isinstance(x := known(v), Later) and x.assumed.size <= fallback.EMBEDDED}
    if values:
        attrs["model"] = later(fallback.with_values, attrs["model"], tuple(values), tuple(values.values()))
    first = len(graph.nodes)
    outs = graph.add_node(lookup("onnx_node"), operands, attrs)
    graph.nodes[-1].meta = {"why": why}
    return dict(zip(filter(None, node.output), _fold(graph, first, outs), strict=True))


def resolve(graph: Graph, model: bytes, operands: Sequence[Value | None]) -> tuple[Value, ...] | None:
    """Replace an onnx_node by operations, or by a node with fewer operands. Returns None if nothing changes."""
    proto = fallback.parsed(model)
    node = proto.graph.node[0]
    scope = _scope_of(proto, graph, operands)
    outs, why = _translated(graph, node, scope)
    if outs is None:
        if all(v is None or known(v) is None for v in operands):
            return None
        outs = _fallback(graph, node, scope, why)
    return tuple(outs.values())


@recorded("onnx.takes")
def takes(model: np.ndarray, dtypes: Sequence[DType], shapes: Sequence[Shape | None]) -> bool:
    """Whether an importer handles or refuses the node at these shapes: ONNX's reference then never runs it."""
    proto, graph = fallback.parsed(model.tobytes()), Graph()
    if not has_importer(proto.graph.node[0]):
        return False
    operands = [graph.input(f"operand {k}", dtype=dtype, shape=shape)
                for k, (dtype, shape) in enumerate(zip(dtypes, shapes, strict=True))]
    try:
        outs, _ = _translated(graph, proto.graph.node[0], _scope_of(proto, graph, operands))
    except Refused:
        return True
    return outs is not None


def evaluated(model: bytes, operands: Sequence[np.ndarray | None]) -> tuple[np.ndarray, ...] | None:
    """Compute an onnx_node at run time by graphq's operations; returns None if graphq has none for the node."""
    proto = fallback.parsed(model)
    node = proto.graph.node[0]
    if not has_importer(node) or any(fallback.bodies(node)):
        return None
    graph = Graph()
    constants = [graph.add_constant(np.asarray(x)) for x in operands]
    outs, _ = _translated(graph, node, _scope_of(proto, graph, constants))
    if outs is None:
        return None
    graph.set_outputs(list(outs.values()), list(outs))
    graph.prune()
    return tuple(evaluate(graph, {}))


def _scope_of(model: ModelProto, graph: Graph, operands: Sequence[Value | None]) -> Scope:
    scope = Scope({i.domain: i.version for i in model.opset_import})
    for slot, value in zip(model.graph.input, operands, strict=True):
        assert value is not None
        scope.values[slot.name] = value
    for tensor in model.graph.initializer:
        scope.values[tensor.name] = graph.add_constant(array_of(tensor, None, tensor.name))
    return scope


def _translated(graph: Graph, node: NodeProto, scope: Scope, *,
                written: bool = False) -> tuple[dict[str, Value] | None, str]:
    """Import one node; returns (outputs by name, "") or, if graphq has no operation for it, (None, the reason)."""
    domain = DOMAINS.get(node.domain, node.domain)
    if domain not in scope.opsets:
        raise Refused(f"the model imports no operator set of domain '{domain or 'ai.onnx'}'")
    version = scope.opsets[domain]
    importer = importer_of(domain, node.op_type)
    if domain != MICROSOFT:
        version = fallback.since_version(node.op_type, domain, version, label(node))
    elif importer is None:
        raise Refused(f"operator {node.op_type} of domain {domain} is not supported")
    if (wrong := REFUSED.get(fallback.title(domain, node.op_type))) is not None:
        raise (GraphError if wrong in (SEQUENCES, STRINGS) else Refused)(wrong)
    for name in (name for name in fallback.used_names(node) if name not in scope.values):
        if name not in scope.sequences:
            raise Refused(f"input '{name}' is not defined")
        if node.op_type not in OF_SEQUENCES:
            raise GraphError(SEQUENCES)
    inputs = tuple(scope.values.get(name) for name in node.input)
    if written and (wrong := clash(node, domain, version, inputs)) is not None:
        raise Refused(wrong)
    first, outs, why = len(graph.nodes), None, ""
    try:
        outs = (importer or by_body)(Call(graph, node, scope, version, inputs))
    except Refused:
        raise
    except GraphError as e:
        why = str(e)
    except MALFORMED as e:
        why = f"malformed: {type(e).__name__}: {e}"  # if the node is faulty, ONNX's shape inference will say so
    if outs is None:
        why = why or f"graphq has no operation for {node.op_type}({_given(node, inputs)})"
        if domain == MICROSOFT or node.op_type in OF_SEQUENCES:
            raise GraphError(why)
        return None, why
    made = (outs,) if isinstance(outs, Value) else tuple(outs)
    return {name: v for name, v in zip(node.output, _fold(graph, first, made), strict=False) if name}, ""


def _given(node: NodeProto, inputs: Sequence[Value | None]) -> str:
    operands = ["none" if v is None else f"{'constant ' * (v.data is not None)}{v.type}" for v in inputs]
    return ", ".join([*operands, *(str(helper.printable_attribute(a)).replace(" = ", "=")[:80] for a in node.attribute
                                   if not a.HasField("g"))])


def by_declaration(c: Call) -> Outputs:
    """Import an operator that an operation's `Op.onnx` names; missing attributes have ONNX's defaults.

    If an operation's attribute is an input of the operator, this input must be a constant.
    """
    op, schema = operation_of(c.node.op_type), onnx.defs.get_schema(c.node.op_type, c.version)
    assert op is not None
    operands = aligned(c) if len(op.operands) == 2 and "axis" not in op.attributes else \
        [c.optional(k) if p.optional else c.input(k) for k, p in enumerate(op.operands)]
    inputs, attrs = {x.name.lower(): k for k, x in enumerate(schema.inputs)}, dict[str, Any]()
    for name, a in op.attributes.items():
        theirs = RENAMED.get(name, name)
        if theirs in schema.attributes:
            x = c.attrs[theirs] if theirs in c.attrs else attribute_default(schema.attributes[theirs].default_value)
            attrs[name] = bool(x) if a.annotation is bool else OLDER.get(x, x) if isinstance(x, str) else x
        elif theirs in inputs and c.has(inputs[theirs]):
            attrs[name] = c.numbers(inputs[theirs])[0]
    return c.graph.add_node(op, operands, attrs)


def attribute_default(proto: AttributeProto) -> Any:
    """The default of an attribute in an ONNX schema, or None; a float is the shortest decimal that rounds to it."""
    if not proto.type:
        return None
    value = helper.get_attribute_value(proto)
    return value.decode() if isinstance(value, bytes) else float(str(np.float32(value))) if isinstance(value, float) \
        else value


def aligned(c: Call) -> tuple[Value, Value]:
    """Both operands, ready to broadcast as in NumPy; before version 7, the second operand begins at `axis`."""
    a, b, axis = c.input(0), c.input(1), c.attr("axis")
    if c.version >= 7 or axis is None:
        return a, b
    dims, rank = b.type.dims, len(a.type.dims)
    return a, c.graph.static_reshape(b, shape=[*dims, *[1] * (rank - axis % rank - len(dims))])


def by_body(c: Call) -> Outputs:
    """Import the node by the nodes of ONNX's function for the operator; raises GraphError if ONNX defines none."""
    domain = DOMAINS.get(c.node.domain, c.node.domain)
    prefix = f"{c.node.name or next(iter(c.node.output), '')}/"
    body = fallback.body_of(c.node, c.scope.opsets[domain], c.inputs, prefix)
    if body is None:
        raise GraphError(BY_REFERENCE.get(fallback.title(domain, c.node.op_type), "graphq has no operation for it"))
    values = {name: v for name, v in zip(body.input, c.inputs, strict=False) if v is not None}
    absent = set(body.input) - set(values)
    opsets = {**c.scope.opsets, **{i.domain: i.version for i in body.opset_import}}
    inner = Scope(opsets, values, c.scope.folder)
    for node in body.node:
        fallback.leave_out(node, absent)
        import_node(c.graph, node, inner)
    return [inner.values[name] for name in body.output[:c.outputs]]


def _fold(graph: Graph, first: int, outs: Sequence[Value]) -> tuple[Value, ...]:
    """Fold nodes with constant operands, from index `first` on; returns the new `outs`."""
    known: dict[Value, Value] = {}
    for node in graph.nodes[first:]:
        if node.op.name == "cast" and node.operand(0).dtype in (s8, u8) and len(node.operand(0).shape or ()) > 1:
            continue  # passes make a dequantize of the cast and the multiplication by a scale
        results = computed(node.op, node.inputs, node.attrs, [v.type for v in node.outputs])
        for old, array in zip(node.outputs, results or (), strict=results is not None):
            with graph.before(node):
                new = add_known(graph, array)
            if new.type == old.type:
                graph.replace_uses(old, new)
            known[old] = new
    return tuple(known.get(v, v) for v in outs)

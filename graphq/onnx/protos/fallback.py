"""Use ONNX's tools on one node: find its function body, infer shapes, run the reference evaluator."""
import operator
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import onnx
from onnx import helper, numpy_helper, shape_inference

from graphq.base.budget import expect
from graphq.base.sizes import Later, Size, assumed, later, number, parts, plain, recorded
from graphq.dtypes import DType
from graphq.errors import GraphError
from graphq.ir import TensorType, Value
from graphq.onnx.protos.tensors import agree, as_array, symbol, tensor_type, value_info

if TYPE_CHECKING:
    from onnx.reference import ReferenceEvaluator


def body_of(node: onnx.NodeProto, opset: int, inputs: Sequence[Value | None], prefix: str) -> onnx.FunctionProto | None:
    """ONNX's function body for `node`, or None if ONNX defines no function for these operands.

    Names in the body begin with `prefix`. References to attributes of `node` are replaced by the attributes' values.
    """
    schema: Any = onnx.defs.get_schema(node.op_type, opset, node.domain)  # the type stub lacks these methods
    function = onnx.FunctionProto()
    fixed, dependent = schema.function_opset_versions, schema.context_dependent_function_opset_versions
    if fixed:  # one body per operator set; any will do, because each names its operator set
        function.ParseFromString(schema.get_function_with_opset_version(min(fixed)))
    elif dependent:
        types = [b"" if v is None else value_info("", v.type).type.SerializeToString() for v in inputs]
        whole = onnx.NodeProto()
        whole.CopyFrom(node)  # name all outputs, because the body would omit outputs without names
        whole.output[:] = [name or f"output {k}" for k, name in enumerate(node.output)]
        try:
            function.ParseFromString(schema.get_context_dependent_function_with_opset_version(
                min(dependent), whole.SerializeToString(), types))
        except Exception as e:  # no body fits the operands: a C++ exception, whose Python class varies
            raise GraphError(f"ONNX's function: {str(e).strip()[:300]}") from None
    if not function.node:
        return None
    given = {a.name: a for a in (*(a.default_value for a in schema.attributes.values()), *node.attribute) if a.name}
    for inner in function.node:
        name_within(inner, prefix)
        _fill(inner, given)
    for names in (function.input, function.output):
        names[:] = [prefix + name for name in names]
    return function


def name_within(node: onnx.NodeProto, prefix: str) -> None:
    """Prepend the prefix to the names of the node and its values, also in graphs among its attributes."""
    for names in (node.input, node.output):
        names[:] = [prefix + name if name else "" for name in names]
    node.name = prefix + node.op_type
    for graph in bodies(node):
        for named in (*graph.input, *graph.output, *graph.initializer):
            named.name = prefix + named.name
        for inner in graph.node:
            name_within(inner, prefix)


def leave_out(node: onnx.NodeProto, absent: Collection[str]) -> None:
    """Remove the inputs that `absent` names, also in graphs among the node's attributes."""
    node.input[:] = ["" if name in absent else name for name in node.input]
    for graph in bodies(node):
        for inner in graph.node:
            leave_out(inner, absent)


def _fill(node: onnx.NodeProto, given: dict[str, onnx.AttributeProto]) -> None:
    """Replace references to attributes by the values in `given`; drop references to attributes without a value."""
    own = list(node.attribute)
    del node.attribute[:]
    for a in own:
        if not a.ref_attr_name:
            node.attribute.append(a)
        elif a.ref_attr_name in given:
            node.attribute.add().CopyFrom(given[a.ref_attr_name])
            node.attribute[-1].name = a.name


EMBEDDED = 4096
"""Constants of at most this many elements become initializers of a node's model, for shape inference to see."""


RANDOM = "Bernoulli Multinomial RandomNormal RandomNormalLike RandomUniform RandomUniformLike".split()
UNDEFINED = "random numbers are not defined by ONNX: give them as an input"


def why_random(node: onnx.NodeProto, values: Mapping[str, Value]) -> str | None:
    """Why results of a node, or of a node in its bodies, would be other random numbers in each call; None if not."""
    for inner in nodes_of(node):
        if inner.op_type in RANDOM:
            return UNDEFINED
        if inner.op_type == "Dropout" and len(inner.input) > 2 and all(a.name != "seed" for a in inner.attribute):
            training = values.get(inner.input[2])
            if training is None or training.data is None or training.data.any():
                return "dropout in training mode is random: set training_mode to false, or give the attribute seed"
    return None


def single(node: onnx.NodeProto, opsets: Mapping[str, int],
           values: Mapping[str, Value]) -> tuple[list[Value], dict[str, Any]]:
    """The operands and attributes of an operation `onnx_node` that runs `node`; `values` has values by name."""
    graph = onnx.GraphProto(name=node.op_type or "node")
    graph.node.add().CopyFrom(node)
    operands = []
    for name in dict.fromkeys(used_names(node)):
        value = values[name]
        data = value.data
        if data is not None and data.size <= EMBEDDED:
            graph.initializer.add().CopyFrom(numpy_helper.from_array(data, name))
        else:
            graph.input.add().CopyFrom(value_info(name, value.type, symbols=True))
            operands.append(value)
    for name in filter(None, node.output):
        graph.output.add().CopyFrom(onnx.ValueInfoProto(name=name))
    domains = {n.domain for n in nodes_of(node)} | {""}
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid(d, v) for d, v in opsets.items()
                                                    if d in domains])
    text = np.frombuffer(model.SerializeToString(deterministic=True), np.uint8)
    return operands, {"op_type": title(node.domain, node.op_type), "model": text}


def title(domain: str, op_type: str) -> str:
    """An operator's name, after the name of its domain unless that is ONNX's own."""
    return f"{domain}.{op_type}" if domain else op_type


def used_names(node: onnx.NodeProto) -> Iterator[str]:
    """The names of the values that the node reads, also in graphs among its attributes."""
    yield from filter(None, node.input)
    for graph in bodies(node):
        yield from outer_names(graph)


def outer_names(graph: onnx.GraphProto) -> Iterator[str]:
    """The names of the values that a graph among a node's attributes reads from outside."""
    own = {v.name for v in (*graph.input, *graph.initializer)} | {s.values.name for s in graph.sparse_initializer}
    for inner in graph.node:
        yield from (name for name in used_names(inner) if name not in own)
        own.update(inner.output)
    yield from (v.name for v in graph.output if v.name not in own)


def bodies(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """The graphs among a node's attributes."""
    for a in node.attribute:
        if a.HasField("g"):
            yield a.g
        yield from a.graphs


def nodes_of(node: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
    """The node itself, and all nodes of graphs among its attributes."""
    yield node
    for graph in bodies(node):
        for inner in graph.node:
            yield from nodes_of(inner)


def parsed(model: bytes) -> onnx.ModelProto:
    """Parse the model of an onnx_node; raises GraphError if it does not have exactly one node."""
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(model)
    except Exception as e:  # the class of DecodeError depends on protobuf's version
        raise GraphError(f"onnx_node: 'model' is not a serialized ModelProto: {e}") from None
    if len(proto.graph.node) != 1:
        raise GraphError(f"onnx_node: 'model' must hold one node, got {len(proto.graph.node)}")
    return proto


@lru_cache(4096)
def infer(model: bytes, types: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
    """Infer the output types of the node for operands of these types; raises GraphError if ONNX refuses them."""
    proto = parsed(model)
    _set_types(proto, types)
    return _inferred(proto)


def _set_types(proto: onnx.ModelProto, types: Sequence[TensorType]) -> None:
    where = f"ONNX {proto.graph.node[0].op_type}"
    if len(types) != len(proto.graph.input):
        raise GraphError(f"{where}: takes {len(proto.graph.input)} operands, got {len(types)}")
    for slot, type in zip(proto.graph.input, types, strict=True):
        slot.CopyFrom(value_info(slot.name, type, symbols=True))


def _inferred(proto: onnx.ModelProto) -> tuple[TensorType, ...]:
    where = f"ONNX {proto.graph.node[0].op_type}"
    return tuple(tensor_type(v.type, f"{where}: output '{v.name}'") for v in _outputs(proto))


def _outputs(proto: onnx.ModelProto) -> Sequence[onnx.ValueInfoProto]:
    """The outputs of a one-node model, with the types that ONNX infers; dimensions may be symbols.

    The defaults of attributes are written into the node first, because ONNX's inference assumes another default for
    STFT's `onesided`.
    """
    node, = proto.graph.node
    where, given = f"ONNX {node.op_type}", {a.name for a in node.attribute}
    version = {x.domain: x.version for x in proto.opset_import}[node.domain]
    attributes = onnx.defs.get_schema(node.op_type, version, node.domain).attributes
    node.attribute.extend(a.default_value for a in attributes.values() if a.default_value.name and a.name not in given)
    try:
        inferred = shape_inference.infer_shapes(proto, check_type=True, strict_mode=True, data_prop=True)
    except Exception as e:  # InferenceError, ValidationError, or a C++ exception of another class
        raise GraphError(f"{where}: {str(e).strip()[:300]}") from None
    return inferred.graph.output


Shapes: TypeAlias = "tuple[tuple[int | None, ...] | None, ...]"


@recorded("onnx_node.shapes")
def shapes_of(model: np.ndarray, dtypes: Sequence[DType], shapes: Shapes) -> Shapes:
    """Infer the output shapes of the node for these dtypes and shapes; raises GraphError if ONNX refuses them."""
    return tuple([t.shape for t in infer(model.tobytes(), tuple([*map(TensorType, dtypes, shapes)]))])


@recorded("onnx_node.with_values")
def with_values(model: np.ndarray, names: Sequence[str], values: Sequence[np.ndarray]) -> np.ndarray:
    """Copy an onnx_node's model and add the values of the named operands as initializers, for shape inference."""
    proto = parsed(model.tobytes())
    proto.graph.initializer.extend(map(numpy_helper.from_array, values, names))
    return np.frombuffer(proto.SerializeToString(deterministic=True), np.uint8)


def infer_open(model: np.ndarray | Later, types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    """Infer output types for operands with open sizes; `model` is a `Later` if operands' values depend on open sizes.

    ONNX first infers with symbols for open sizes. An output dimension that is then a number, or an operand's symbol,
    holds at all sizes. Other dimensions are inferred again at the sizes of each call, and a guard checks that the
    shapes are as expected. Raises GraphError if ONNX refuses the operands at the example's sizes.
    """
    data: np.ndarray = assumed(model)
    assumptions = (t if t.shape is None else TensorType(t.dtype, tuple(map(assumed, t.shape))) for t in types)
    example, proto = infer(data.tobytes(), tuple(assumptions)), parsed(data.tobytes())
    operands = {slot.name for slot in proto.graph.input}
    fixed = [x for x in proto.graph.initializer if x.name not in operands]
    del proto.graph.initializer[:]
    proto.graph.initializer.extend(fixed)
    _set_types(proto, types)
    symbols = {symbol(d): d for d in parts([t.shape for t in types]) if isinstance(d, Size)}
    found: Any = later(shapes_of, model, tuple([t.dtype for t in types]), tuple([t.shape for t in types]))
    out: list[tuple[Any, ...] | None] = []
    try:
        outputs = _outputs(proto)
    except GraphError:
        outputs = proto.graph.output
    for k, (t, output) in enumerate(zip(example, outputs, strict=True)):
        likely = dict(enumerate(symbols.get(d.dim_param, d.dim_value) for d in output.type.tensor_type.shape.dim))
        out.append(t.shape and tuple([
            d if d is None else likely[axis] if assumed(likely.get(axis)) == d else number(_dimension, found, k, axis)
            for axis, d in enumerate(t.shape)]))
    plain(number(operator.eq, found, tuple(out)))
    return tuple([TensorType(t.dtype, dims) for t, dims in zip(example, out, strict=True)])


@recorded("onnx_node.dimension")
def _dimension(shapes: Sequence[Sequence[int]], output: int, axis: int) -> int:
    return shapes[output][axis]


@lru_cache(1024)
def _evaluator(model: bytes) -> "ReferenceEvaluator":
    from onnx.reference import ReferenceEvaluator  # this import takes 0.2 s, and few models need it

    return ReferenceEvaluator(parsed(model))


def run(model: bytes, srcs: Sequence[np.ndarray | None]) -> tuple[np.ndarray, ...]:
    """Run the node; raises GraphError if the reference evaluator fails."""
    proto = parsed(model)
    feeds = {slot.name: x for slot, x in zip(proto.graph.input, srcs, strict=True)}
    types = infer(model, tuple(TensorType(tensor_type(slot.type, slot.name).dtype, np.asarray(x).shape)
                               for slot, x in zip(proto.graph.input, srcs, strict=True)))
    node = proto.graph.node[0]
    expect(COPIES * _result_bytes(proto, feeds, types), f"ONNX {node.op_type} '{node.name}'")
    try:
        with np.errstate(all="ignore"):
            outs = _evaluator(model).run(None, feeds)
    except Exception as e:  # implementations of operators raise all kinds of exceptions
        raise GraphError(f"ONNX {node.op_type} '{node.name}': {type(e).__name__}: {str(e)[:300]}") from e
    arrays = tuple(as_array(x, t, f"ONNX {node.op_type}") for x, t in zip(outs, types, strict=True))
    for x, t in zip(arrays, types, strict=True):
        if not agree(TensorType(t.dtype, x.shape), t):
            raise GraphError(f"ONNX {node.op_type} '{node.name}': the reference gives shape {list(x.shape)}, ONNX's "
                             f"shape inference {t}")
    return arrays


COPIES = 4
"""Estimated peak memory of the reference evaluator for a node, as a multiple of the bytes of the node's results."""


def _result_bytes(proto: onnx.ModelProto, feeds: Mapping[str, np.ndarray | None], types: Sequence[TensorType]) -> int:
    """Bytes of the node's results; a result whose shape ONNX cannot infer counts as 0.

    If `types` lacks a shape, ONNX infers it again from the values of short integer operands.
    """
    if not all(t.known for t in types):
        slots = {slot.name: tensor_type(slot.type, slot.name).dtype for slot in proto.graph.input}
        del proto.graph.input[:]
        for name, dtype in slots.items():
            x = np.asarray(feeds[name])
            if x.dtype.kind in "iu" and x.size <= EMBEDDED:
                proto.graph.initializer.append(numpy_helper.from_array(x, name))
            else:
                proto.graph.input.append(value_info(name, TensorType(dtype, x.shape)))
        types = _inferred(proto)
    return sum(t.nbytes for t in types if t.known)


def since_version(op_type: str, domain: str, opset: int, where: str) -> int:
    """The version of the operator in operator set `opset`. Raises GraphError if ONNX does not know the operator."""
    version = _since(op_type, domain, opset)
    if version is None:
        first = min((x.since_version for x in onnx.defs.get_all_schemas_with_history()
                     if (x.name, x.domain) == (op_type, domain)), default=opset)
        later = f"; version {first} brought it" if first > opset else ""
        raise GraphError(f"{where}: no operator {op_type} in version {opset} of domain '{domain or 'ai.onnx'}'{later}")
    return version


@lru_cache(4096)
def _since(op_type: str, domain: str, opset: int) -> int | None:
    try:
        return int(onnx.defs.get_schema(op_type, opset, domain).since_version)
    except onnx.defs.SchemaError:
        return None

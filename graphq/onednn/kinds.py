"""Translate oneDNN's operations to graphq's and back: kinds, attributes, and their spelling in files."""
import types
import typing
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Literal

from graphq.errors import GraphError, GraphqError
from graphq.ir import Node, Op, TensorType, spelled, suggestion, walk_ops
from graphq.onednn.document import FileAttribute, FileOp, LogicalTensor, shown
from graphq.ops.conv import weight_axes

KINDS = tuple("""
    Abs Add AvgPool BatchNormInference BiasAdd Clamp Concat ConvTranspose Convolution Dequantize Divide Dropout
    DynamicDequantize DynamicQuantize Elu End Exp GELU GenIndex GreaterEqual GroupNorm HardSigmoid HardSwish
    Interpolate LayerNorm LeakyReLU Log LogSoftmax MatMul MaxPool Maximum Minimum Mish Multiply PReLU Pow
    Quantize RMSNorm ReLU Reciprocal ReduceL1 ReduceL2 ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum
    Reorder Round Select Sigmoid SoftMax SoftPlus Sqrt Square SquaredDifference StaticReshape StaticTranspose
    Subtract Tanh TypeCast Wildcard
""".split())
"""The kinds: oneDNN's names of its forward operations, as ONEDNN_GRAPH_DUMP spells them."""

_ALIASES = {"Softmax": "SoftMax"}  # spelling in oneDNN's documentation -> spelling in files

# The attribute that a file expresses by the number of an operation's outputs.
_BY_OUTPUTS = {"dropout": "keep_mask", "softmax": "keep_stats"}

# Attributes (operation, name) of graphq that files do not contain.
_OURS = {("avg_pool", "in_order"), ("dequantize", "group_axis")}

# Attribute values that graphq has but oneDNN lacks, each with the message of the error.
_VALUES = {"asymmetric": "Interpolate's coordinate_transformation_mode is half_pixel or align_corners, got asymmetric",
           "stepwise": "SoftMax's mode is none or inf_as_zero, got stepwise"}


def expect_value(value: Any) -> None:
    """Raise GraphError for an attribute value that oneDNN lacks."""
    if isinstance(value, str) and value in _VALUES:
        raise GraphError(_VALUES[value])


def canonical_kind(kind: str) -> str:
    """The spelling of a kind in files; oneDNN's documentation may spell it differently."""
    return _ALIASES.get(kind, kind)


def op_of_kind(kind: str) -> Op:
    """graphq's operation for a oneDNN kind; raises GraphError if the kind is unknown."""
    kind = canonical_kind(kind)
    if kind not in KINDS:
        plain = kind.lower().replace("_", "")
        same = next((f"; did you mean {k}?" for k in KINDS if k.lower() == plain), None)
        raise GraphError(f"kind: {shown(kind)} is not one of oneDNN's {len(KINDS)} forward operations"
                         + (same or suggestion(kind, KINDS)))
    return next(op for op in walk_ops() if op.kind == kind)


def read_attributes(op: Op, given: Mapping[str, FileAttribute]) -> dict[str, Any]:
    """Convert attributes of a file to graphq's; raises GraphError if one is unknown, missing or of a wrong type."""
    out = {}
    for name, a in given.items():
        form = attribute_form(op, name)
        if form is None:
            have = ", ".join(n for n in op.attributes if attribute_form(op, n)) or "none"
            raise GraphError(f"attrs: {op.kind} has no attribute {shown(name)}; it has {have}")
        if a.type != form:
            raise GraphError(f"attrs.{name}.type: must be {form}, got {a.type}")
        out[name] = _value(op, name, a.value)
    for b in op.attributes.values():
        if b.required and b.name not in out and attribute_form(op, b.name) is not None:
            raise GraphError(f"attribute '{b.name}' is required")
    return out


def attribute_form(op: Op, name: str) -> str | None:
    """The type of an attribute in files, such as "s64[]"; None if files do not have the attribute."""
    if name not in op.attributes or _BY_OUTPUTS.get(op.name) == name or (op.name, name) in _OURS:
        return None
    annotation = _plain(op.attributes[name].annotation)
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Literal:
        return "string"
    if origin in (list, tuple):
        return {int: "s64[]", float: "f32[]"}.get(args[0])
    return {bool: "bool", int: "s64", float: "f32", str: "string"}.get(annotation)


def _plain(annotation: Any) -> Any:
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return next(a for a in typing.get_args(annotation) if a is not type(None))
    return annotation


def _value(op: Op, name: str, value: Any) -> Any:
    """Convert a file's value to graphq's spelling: 0 and 1 become booleans, "None" becomes "none"."""
    annotation = _plain(op.attributes[name].annotation)
    if annotation is bool:
        return bool(value)
    if isinstance(value, str):
        expect_value(value.lower())
    return spelled(value, typing.get_args(annotation))


def grouped(op: Op, operands: list[TensorType], attrs: dict[str, Any],
            readers: Sequence[tuple[FileOp, int]]) -> dict[str, Any]:
    """Add a `group_axis` to a dequantize's attributes if it dequantizes weights of a grouped ConvTranspose.

    `readers` are the operations that read the dequantize's result, each with the index of the operand. oneDNN 3.13
    accepts scales of these weights for the channels of one group, as its documentation says, or for the channels of
    all groups, one group after another. Only scales for all groups need `group_axis`.
    """
    shape, scales = operands[0].shape if operands else None, attrs.get("scales", ())
    if op.name != "dequantize" or attrs.get("qtype") != "per_channel" or shape is None or len(shape) < 3:
        return attrs
    formats = typing.get_args(op_of_kind("ConvTranspose").attributes["weights_format"].annotation)
    for reader, number in readers:
        if reader.kind != "ConvTranspose" or number != 1:
            continue
        given = {name: a.value for name, a in (reader.attrs or {}).items()}
        groups, format = given.get("groups", 1), given.get("weights_format", "XOI")
        if not isinstance(groups, int) or groups < 2 or format not in formats:
            continue
        outputs, inputs, *_ = weight_axes(format, len(shape) - 2)
        channels = shape[outputs]
        if attrs.get("axis", 1) % len(shape) == outputs and channels and len(scales) == groups * channels:
            return {**attrs, "group_axis": inputs}
    return attrs


def from_outputs(op: Op, operands: list[TensorType], attrs: dict[str, Any],
                  declared: Sequence[LogicalTensor]) -> dict[str, Any]:
    """Add the attributes that the file expresses by the types and the number of the outputs."""
    if op.name == "wildcard":
        shapes = [t.shape for t in declared]
        known = None if None in shapes else [[-1 if d is None else d for d in s or ()] for s in shapes]
        return {**attrs, "dtypes": [t.dtype for t in declared], "shapes": known}
    if op.name in _BY_OUTPUTS and len(declared) > 1:
        attrs = {**attrs, _BY_OUTPUTS[op.name]: True}
    a = op.attributes.get("dtype")
    if a is None or not declared:
        return attrs
    wanted = declared[0].dtype
    with suppress(GraphqError):
        op.check_operands(operands)
        if not a.required and op.types(operands, op.complete(attrs))[0].dtype.name == wanted:
            return attrs
    return {**attrs, "dtype": wanted}


def kind_of(node: Node) -> str:
    """oneDNN's kind of a node; raises GraphError for an operation or a grouped scale that files cannot express."""
    if node.op.kind not in KINDS:
        raise GraphError(f"save: {node.graph.describe(node)} is not a oneDNN operation"
                         + ("; save the graph before its passes" if node.op.name == "partition" else ""))
    if node.attrs.get("group_axis") is not None and not any(
            u.node is not None and u.node.op.name == "conv_transpose" and u.number == 1 for u in node.output.uses):
        raise GraphError(f"save: {node.graph.describe(node)}: only weights of a ConvTranspose have scales of groups")
    return node.op.kind

"""Apply benchdnn's graph knobs: other shapes, attributes, kinds, types, minibatch, tensor properties.

benchdnn_text.py describes and parses the knobs. `apply_knobs` makes a new graph with changed inputs and infers all
following types again. Attributes that depend on a changed shape are adapted: per-channel scales and zero points repeat
up to the new number of channels, and the first dimension of a StaticReshape becomes the minibatch.
"""
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NoReturn

from benchdnn_minibatch import batch_tensors
from benchdnn_text import InShape, Knobs

from graphq.errors import GraphError, GraphqError
from graphq.ir import Graph, Value
from graphq.ir.tensor_type import check_size
from graphq.onednn.document import (
    UNKNOWN,
    FileAttribute,
    FileOp,
    GraphFile,
    LogicalTensor,
    dense_stride,
    shown,
    strides_in_order,
)
from graphq.onednn.files import from_graph, to_graph
from graphq.onednn.kinds import attribute_form, op_of_kind
from graphq.onednn.reader import attribute_value

_FLOATS = ("f32", "bf16", "f16")
_CONVERTING = ("Quantize", "Dequantize", "DynamicQuantize", "DynamicDequantize", "TypeCast")

# Operands and results that stay f32 if --dt gives one type for all tensors: oneDNN's operations require f32 there.
_KEEP_INPUTS = {"BatchNormInference": (1, 2, 3, 4), "LayerNorm": (1, 2), "GroupNorm": (1, 2), "Dropout": (3,)}
_KEEP_OUTPUTS = {"SoftMax": (1,), "Softmax": (1,), "LayerNorm": (1, 2), "GroupNorm": (1, 2)}


def apply_knobs(graph: Graph, knobs: Knobs) -> Graph:
    """Make a new graph with the settings, as if it were loaded from a file with them.

    Raises GraphError, naming the knob, for an id that the graph does not have, and for settings that break a rule.
    """
    constant = next((n for n in graph.nodes if n.op.name == "constant"), None)
    if constant is not None:
        raise GraphError(f"knobs are for graphs without data, as files have them: {graph.describe(constant)}")
    file = from_graph(graph)
    old = file
    for rewrite in (_set_kinds, _set_attributes, _set_dtypes, _set_shapes, _set_properties):
        file = rewrite(file, knobs)
    batch = batch_tensors(file) if knobs.mb else {}
    if knobs.mb:
        file = _set_minibatch(file, knobs.mb, batch)
    if file is not old and (knobs.op_kinds or knobs.op_attrs or knobs.in_shapes or knobs.mb):
        file = _forget_results(file)

    grouped = {n.meta.get("id") for n in graph.nodes_of({"dequantize"}) if n.attrs["group_axis"] is not None}
    groups = {op.inputs[1].id: op.attrs["groups"].value for op in file.ops
              if op.kind == "ConvTranspose" and len(op.inputs) > 1 and op.attrs and "groups" in op.attrs}

    def adjust(op: FileOp, operands: Sequence[Value]) -> FileOp:
        times = groups.get(op.outputs[0].id, 1) if op.id in grouped else 1
        return _follow(op, operands, knobs.mb if any(t.id in batch for t in op.outputs) else 0, times)

    try:
        out = to_graph(file, f"graph '{graph.name}'", name=graph.name, adjust=adjust)
    except GraphqError as e:
        raise type(e)(f"{knobs}: {e}") from None
    out.meta = {"onednn": from_graph(out, fill=True)}
    return out


# -- the settings, one by one ---------------------------------------------------------------------------------


def _set_kinds(file: GraphFile, knobs: Knobs) -> GraphFile:
    return _each_op(file, "--op-kind", knobs.op_kinds, lambda op, kind: replace(op, kind=kind))


def _set_attributes(file: GraphFile, knobs: Knobs) -> GraphFile:
    return _each_op(file, "--op-attrs", knobs.op_attrs, _with_attributes)


def _with_attributes(op: FileOp, texts: Mapping[str, str]) -> FileOp:
    attrs = dict(op.attrs or {})
    for name, text in texts.items():
        where = f"--op-attrs: {op.label}: {name}"
        form = attrs[name].type if name in attrs else attribute_form(op_of_kind(op.kind), name)
        if form is None:
            _refuse(where, f"{op.kind} has no such attribute")
        attrs[name] = FileAttribute(form, attribute_value(form, _typed(form, text, where), where))
        if name in ("sizes", "scales") and op.kind == "Interpolate":  # the size is in one of them
            attrs.pop("scales" if name == "sizes" else "sizes", None)
    return replace(op, attrs=attrs)


def _typed(form: str, text: str, where: str) -> Any:
    """Parse the text of a value to the value that a JSON file would hold."""
    if form.endswith("[]"):
        return [_typed(form[:-2], part, where) for part in text.split("x")]
    if form == "string":
        return text
    if form == "bool":
        return {"true": 1, "false": 0, "1": 1, "0": 0}.get(text.lower(), text)
    try:
        return int(text) if form == "s64" else float(text)
    except ValueError:
        _refuse(where, f"{shown(text)} is not a value of type {form}")


def _set_dtypes(file: GraphFile, knobs: Knobs) -> GraphFile:
    if not knobs.dtypes:
        return file
    everywhere = knobs.dtypes.get(None)
    if everywhere is None:
        return _each_tensor(file, "--dt", knobs.dtypes, lambda t, dtype: replace(t, dtype=dtype))
    mixed = next((op for op in file.ops if op.kind in _CONVERTING), None)
    if mixed is not None:
        _refuse("--dt", f"one type for all is for graphs that convert none, this one has {mixed.label}; give ID:TYPE")
    if everywhere not in _FLOATS:
        _refuse("--dt", f"one type for all must be {', '.join(_FLOATS)}, got {everywhere}")
    keep = {t.id for op in file.ops
            for ports, kept in ((op.inputs, _KEEP_INPUTS), (op.outputs, _KEEP_OUTPUTS))
            for k, t in enumerate(ports) if k in kept.get(op.kind, ())}
    return _map_tensors(file, lambda t: replace(t, dtype=everywhere) if t.dtype in _FLOATS and t.id not in keep else t)


def _set_properties(file: GraphFile, knobs: Knobs) -> GraphFile:
    return _each_tensor(file, "--tensor-property", knobs.properties, lambda t, p: replace(t, property_type=p))


def _set_shapes(file: GraphFile, knobs: Knobs) -> GraphFile:
    producers = {t.id: op for op in file.ops for t in op.outputs}
    for id in knobs.in_shapes:
        if id in producers:
            _refuse("--in-shapes", f"tensor {id} is no input, {producers[id].label} computes it")
    return _each_tensor(file, "--in-shapes", knobs.in_shapes, _with_shape)


def _with_shape(t: LogicalTensor, new: InShape) -> LogicalTensor:
    shape = t.shape if new.shape is None else new.shape
    if new.tag is None:
        return replace(t, shape=shape, stride=dense_stride(shape), layout_type="strided")
    if shape is None or None in shape or len(shape) != len(new.tag):
        _refuse("--in-shapes", f"tensor {t.id} is {t.type}, the order {new.tag} does not fit")
    return replace(t, shape=shape, layout_type="strided",
                   stride=strides_in_order(shape, [ord(c) - ord("a") for c in new.tag]))


def _set_minibatch(file: GraphFile, mb: int, batch: Mapping[int, int]) -> GraphFile:
    if not batch:
        _refuse("--mb", "no input of the graph has a minibatch")

    def change(t: LogicalTensor) -> LogicalTensor:
        if t.id not in batch or not t.shape:
            return t
        return _with_shape(t, InShape((mb, *t.shape[1:])))  # type: ignore[arg-type]  # the other dimensions are known

    return _map_tensors(file, change)


def _forget_results(file: GraphFile) -> GraphFile:
    """Make the shapes of computed tensors unknown; loading infers them again."""
    computed = {t.id for op in file.ops for t in op.outputs}
    return _map_tensors(file, lambda t: replace(t, shape=None, stride=(UNKNOWN,)) if t.id in computed else t)


def _follow(op: FileOp, operands: Sequence[Value], mb: int, groups: int) -> FileOp:
    """Adapt the op's attributes to the shapes of its operands; each of `groups` has its own scales."""
    attrs = op.attrs or {}
    shape = operands[0].shape if operands else None
    if mb and op.kind == "StaticReshape" and "shape" in attrs and attrs["shape"].value[:1] > (0,):
        return _with(op, "shape", (mb, *attrs["shape"].value[1:]))
    per_channel = op.kind in ("Quantize", "Dequantize") and "qtype" in attrs and attrs["qtype"].value == "per_channel"
    if not per_channel or shape is None:
        return op
    axis = attrs["axis"].value if "axis" in attrs else 1
    if not -len(shape) <= axis < len(shape) or shape[axis] is None:
        return op
    for name in ("scales", "zps"):
        if name in attrs and isinstance(attrs[name].value, tuple):
            op = _with(op, name, _repeated(attrs[name].value, groups * int(shape[axis] or 0)))
    return op


def _repeated(values: tuple[Any, ...], count: int) -> tuple[Any, ...]:
    return (values * (count // len(values) + 1))[:count] if values else values


def _with(op: FileOp, name: str, value: Any) -> FileOp:
    attrs = dict(op.attrs or {})
    attrs[name] = attrs[name]._replace(value=value)
    return replace(op, attrs=attrs)


# -- help -----------------------------------------------------------------------------------------------------


def _each_op(file: GraphFile, knob: str, settings: Mapping[int, Any],
             change: Callable[[FileOp, Any], FileOp]) -> GraphFile:
    ids = [op.id for op in file.ops]
    for id in settings:
        if id not in ids:
            _refuse(knob, f"the graph has no op {id}; it has {shown(ids)}")
    if not settings:
        return file
    return file.with_ops([change(op, settings[op.id]) if op.id in settings else op for op in file.ops])


def _each_tensor(file: GraphFile, knob: str, settings: Mapping[Any, Any],
                 change: Callable[[LogicalTensor, Any], LogicalTensor]) -> GraphFile:
    """Change the named tensors of a document wherever they appear.

    Unknown ids in a list are ignored, as two cases of benchdnn itself have some. A single unknown id is refused.
    """
    if not settings:
        return file
    ids = dict.fromkeys(t.id for op in file.ops for t in (*op.inputs, *op.outputs))
    if len(settings) == 1 and not settings.keys() <= ids.keys():
        _refuse(knob, f"the graph has no tensor {next(iter(settings))}; it has {shown(list(ids))}")

    def changed(t: LogicalTensor) -> LogicalTensor:
        if t.id not in settings:
            return t
        new = change(t, settings[t.id])
        check_size(new.shape or (), f"{knob}: tensor {t.id}")
        if new.property_type == "host_scalar" and new.shape not in ((), None):
            _refuse(knob, f"tensor {t.id} is a host_scalar and must stay a scalar, got {new.type}")
        return new

    return _map_tensors(file, changed)


def _map_tensors(file: GraphFile, change: Callable[[LogicalTensor], LogicalTensor]) -> GraphFile:
    return file.with_ops([replace(op, inputs=tuple(map(change, op.inputs)), outputs=tuple(map(change, op.outputs)))
                          for op in file.ops])


def _refuse(where: str, message: str) -> NoReturn:
    raise GraphError(f"{where}: {message}")

"""Exporters of operations that compute: arithmetic, layers, pools, norms, reductions, recurrences, attention."""
import itertools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from graphq.dtypes import f32
from graphq.errors import GraphError
from graphq.ir import OPS, Node, Value
from graphq.kernels.numbers.recurrent import offset_of
from graphq.onnx.exporters.writer import GraphWriter, exports
from graphq.onnx.importers.conv import AUTO_PAD
from graphq.onnx.importers.importer import MICROSOFT
from graphq.onnx.importers.norm import REDUCTIONS
from graphq.onnx.protos.tensors import element_of
from graphq.ops.conv import weight_axes

FROM_AUTO_PAD = {ours: theirs for theirs, ours in AUTO_PAD.items()}

ROWS: Mapping[str, tuple[str, Callable[[Mapping[str, Any]], dict[str, Any]]]] = {
    "bit_cast": ("BitCast", lambda a: {"to": element_of(a["dtype"])}),
    **dict.fromkeys(("cast", "type_cast"), ("Cast", lambda a: {"to": element_of(a["dtype"])})),
    "conv_integer": ("ConvInteger", lambda a: {"group": a["groups"], **_windows(a)}),
    "gelu": ("Gelu", lambda a: {"approximate": "none" if a["mode"] == "gelu_erf" else "tanh"}),
    "rms_norm": ("RMSNormalization", lambda a: {"axis": a["begin_norm_axis"], "epsilon": a["epsilon"]}),
    "static_transpose": ("Transpose", lambda a: {"perm": [k % len(a["order"]) for k in a["order"]]}),
}
"""Operations that become one operator with the same operands: the operator, and its attributes from the operation's."""


@exports(*ROWS)
def by_row(w: GraphWriter, node: Node) -> None:
    """Write an operation of ROWS."""
    op_type, attributes = ROWS[node.op.name]
    w.node(node, op_type, **attributes(node.attrs))


@exports("square", "squared_difference")
def square(w: GraphWriter, node: Node) -> None:
    """Write square as a Mul, and squared_difference as a Sub and a Mul."""
    x = w.name(node.inputs[0]) if node.op.name == "square" else w.add("Sub", [w.name(v) for v in node.inputs])
    w.add("Mul", [x, x], [w.name(node.output)])


@exports("arithmetic")
def arithmetic(w: GraphWriter, node: Node) -> None:
    """Write integer arithmetic: by the operator that floats have as well, by an operator on bits, or by Mod."""
    function = node.attrs["function"]
    if function in OPS:
        w.node(node, str(OPS[function].onnx))
    elif function in ("and", "or", "xor"):
        w.node(node, f"Bitwise{function.capitalize()}")
    elif function.startswith("shift"):
        w.node(node, "BitShift", direction=function.removeprefix("shift_").upper())
    else:
        w.node(node, "Mod", fmod=int(function == "remainder"))


@exports("pow", "clamp")
def with_scalars(w: GraphWriter, node: Node) -> None:
    """Write Pow or Clip, with the exponent or the limits as initializers."""
    names = ("beta",) if node.op.name == "pow" else ("min", "max")
    w.node(node, "Pow" if node.op.name == "pow" else "Clip",
           *(w.typed(node.inputs[0].dtype, node.attrs[n]) for n in names if node.inputs[0] is not None))


@exports("prelu", "bias_add")
def along_channels(w: GraphWriter, node: Node) -> None:
    """Write PRelu or Add. A vector along channels-first data is reshaped to [channels, 1, ...]."""
    x, vector = node.operands
    name, first = w.name(vector), node.attrs["data_format"] == "NCX"
    if first and vector.type.rank == 1 and node.attrs.get("per_channel_broadcast", True):
        name = w.add("Reshape", [name, w.integers(-1, *[1] * (x.type.rank - 2))])
    w.add("PRelu" if node.op.name == "prelu" else "Add", [w.name(x), name], [w.name(node.output)])


@exports("softmax", "log_softmax")
def softmax(w: GraphWriter, node: Node) -> None:
    """Write Softmax or LogSoftmax; raises GraphError for statistics or a result of another dtype.

    ONNX's operators round f16 and bf16 in each step, graphq's operation may round only once. The file then casts to
    f32, applies the operator, and casts back.
    """
    if node.attrs.get("keep_stats") or node.attrs.get("mode") == "inf_as_zero":
        raise GraphError("ONNX's Softmax has no statistics and no mode inf_as_zero")
    _same_dtype(node)
    (source,), axis = node.operands, node.attrs["axis"]
    op_type = "Softmax" if node.op.name == "softmax" else "LogSoftmax"
    if source.dtype == f32 or node.attrs.get("mode") == "stepwise":
        w.node(node, op_type, axis=axis)
    else:
        wide = w.add("Cast", [w.name(source)], to=element_of(f32))
        w.add("Cast", [w.add(op_type, [wide], axis=axis)], [w.name(node.output)], to=element_of(source.dtype))


def _same_dtype(node: Node) -> None:
    if node.outputs[0].dtype != next(node.operands).dtype:
        raise GraphError(f"ONNX's operator cannot give {node.outputs[0].dtype}: its result has the dtype of its input")


@exports("matmul")
def matmul(w: GraphWriter, node: Node) -> None:
    """Write MatMul, with a Transpose before transposed operands and an Add for the bias."""
    _same_dtype(node)
    a, b = (_swapped(w, node.operand(k), node.attrs[name]) for k, name in enumerate(("transpose_a", "transpose_b")))
    if len(node.inputs) < 3:
        w.add("MatMul", [a, b], [w.name(node.output)])
    else:
        w.add("Add", [w.add("MatMul", [a, b]), w.name(node.inputs[2])], [w.name(node.output)])


def _swapped(w: GraphWriter, x: Value, transposed: bool) -> str:
    if not transposed or x.type.rank < 2:
        return w.name(x)
    return w.add("Transpose", [w.name(x)], perm=[*range(x.type.rank - 2), x.type.rank - 1, x.type.rank - 2])


def _channels(w: GraphWriter, node: Node, op_type: str, weights: list[str], attrs: dict[str, Any]) -> None:
    """Write a node with channels first. If the operation has channels last, a Transpose precedes and follows it."""
    x = next(node.operands)
    r = x.type.rank
    if node.attrs["data_format"] == "NCX":
        w.add(op_type, [w.name(x), *weights], [w.name(node.output)], **attrs)
        return
    first = w.add("Transpose", [w.name(x)], perm=[0, r - 1, *range(1, r - 1)])
    y = w.add(op_type, [first, *weights], **attrs)
    w.add("Transpose", [y], [w.name(node.output)], perm=[0, *range(2, r), 1])


def _windows(a: Mapping[str, Any]) -> dict[str, Any]:
    out = {"strides": a["strides"], "dilations": a.get("dilations") or [1] * len(a["strides"])}
    if a["auto_pad"] == "none":
        if min(a["pads_end"]) < 0:
            raise GraphError(f"ONNX has no negative pads, got pads_end {list(a['pads_end'])}")
        return out | {"pads": [*a["pads_begin"], *a["pads_end"]]}
    return out | {"auto_pad": FROM_AUTO_PAD[a["auto_pad"]]}


@exports("convolution", "conv_transpose")
def convolution(w: GraphWriter, node: Node) -> None:
    """Write Conv with weights in format OIX, or ConvTranspose with weights in format IOX."""
    _same_dtype(node)
    transposed = node.op.name == "conv_transpose"
    weights, form = node.operand(1), node.attrs["weights_format"]
    attrs = {"group": node.attrs["groups"], **_windows(node.attrs)}
    if transposed:
        if "auto_pad" in attrs:
            raise GraphError("auto_pad means something else in ONNX's ConvTranspose: use pads_begin and pads_end")
        count = weights.type.rank - 2
        attrs["output_padding"] = list(node.attrs["output_padding"] or [0] * count)[:count]
    name = w.name(weights)
    out, into, *spatial = weight_axes(form, weights.type.rank - 2)
    order = [into, out, *spatial] if transposed else [out, into, *spatial]
    if order != sorted(order):
        name = w.add("Transpose", [name], perm=order)
    bias = [w.name(node.inputs[2])] if len(node.inputs) > 2 else []
    _channels(w, node, "ConvTranspose" if transposed else "Conv", [name, *bias], attrs)


@exports("max_pool", "avg_pool")
def pool(w: GraphWriter, node: Node) -> None:
    """Write MaxPool, AveragePool or GlobalAveragePool; raises GraphError for output sizes that are rounded up."""
    a = node.attrs
    if a["rounding_type"] == "ceil":
        raise GraphError("ONNX rounds sizes up by another rule: use rounding_type floor and larger pads_end")
    attrs = {"kernel_shape": a["kernel"], **_windows(a)}
    if node.op.name == "max_pool":
        return _channels(w, node, "MaxPool", [], attrs)
    dims = next(node.operands).shape or ()
    sizes = dims[2:] if a["data_format"] == "NCX" else dims[1:-1]
    if sizes == tuple(a["kernel"]) and {*a["strides"]} == {1} and not any(attrs.get("pads", [1])) and not a["in_order"]:
        return _channels(w, node, "GlobalAveragePool", [], {})
    del attrs["dilations"]
    _channels(w, node, "AveragePool", [], attrs | {"count_include_pad": int(not a["exclude_pad"])})


@exports("batch_norm_inference", "group_norm", "lrn")
def norm(w: GraphWriter, node: Node) -> None:
    """Write a normalization with channels first; GroupNormalization needs a scale and bias, and has no statistics."""
    a = node.attrs
    if node.op.name == "group_norm" and (a["keep_stats"] or len(node.inputs) < 3 or not a["use_affine"]):
        raise GraphError("GroupNormalization gives no statistics and needs a scale and a bias")
    op_type, attrs = {"batch_norm_inference": ("BatchNormalization", {"epsilon": "epsilon"}),
                      "group_norm": ("GroupNormalization", {"epsilon": "epsilon", "num_groups": "groups"}),
                      "lrn": ("LRN", {name: name for name in a if name != "data_format"})}[node.op.name]
    _channels(w, node, op_type, [w.name(v) for v in node.inputs[1:]], {name: a[of] for name, of in attrs.items()})


@exports("layer_norm")
def layer_norm(w: GraphWriter, node: Node) -> None:
    """Write LayerNormalization; raises GraphError without a scale, or with statistics as results."""
    if node.attrs["keep_stats"] or len(node.inputs) < 2 or not node.attrs["use_affine"]:
        raise GraphError("LayerNormalization has other statistics and needs a scale")
    w.node(node, "LayerNormalization", axis=node.attrs["begin_norm_axis"], epsilon=node.attrs["epsilon"])


@exports(*REDUCTIONS.values(), "integer_sum")
def reduction(w: GraphWriter, node: Node) -> None:
    """Write a reduction with its axes as an initializer; without axes, write Identity."""
    if len(node.inputs) > 1:
        raise GraphError("axes as an operand are s32 in graphq and s64 in ONNX: make them an attribute")
    if not node.attrs["axes"]:
        return w.node(node, "Identity")
    name = next((theirs for theirs, ours in REDUCTIONS.items() if ours == node.op.name), "ReduceSum")
    w.node(node, name, w.integers(*node.attrs["axes"]), keepdims=int(node.attrs["keep_dims"]))


@exports("interpolate")
def interpolate(w: GraphWriter, node: Node) -> None:
    """Write Resize, with the sizes of the result as an initializer."""
    linear = node.attrs["mode"] != "nearest"
    dims = node.output.type.dims
    if node.attrs["data_format"] == "NXC":
        dims = (dims[0], dims[-1], *dims[1:-1])
    _channels(w, node, "Resize", ["", "", w.integers(*dims)], {
        "mode": "linear" if linear else "nearest", "nearest_mode": "round_prefer_ceil",
        "coordinate_transformation_mode": node.attrs["coordinate_transformation_mode"]})


@exports("dynamic_range")
def dynamic_range(w: GraphWriter, node: Node) -> None:
    """Write DynamicQuantizeLinear, and use its scale and zero point."""
    w.add("DynamicQuantizeLinear", [w.name(node.inputs[0])], [w.claim("quantized"), *map(w.name, node.outputs)])


@exports("lstm", "gru", "rnn")
def recurrent(w: GraphWriter, node: Node) -> None:
    """Write an LSTM, GRU or RNN of one direction.

    ONNX's layer multiplies its input by weights; graphq's operation reads these products as `gates`. If a matmul with
    constant f32 weights computes the gates, the layer gets the matmul's operands. Otherwise it gets the gates
    themselves, with the identity matrix as weights; this is exact. An LSTM that quantizes its state becomes
    com.microsoft's DynamicQuantizeLSTM, with the operands that `dynamic_product` finds.
    """
    op, gates, weights = node.op.name, node.operand(0), node.operand(1)
    optional = dict(zip([p.name for p in node.op.operands[2:]], node.inputs[2:], strict=False))
    rows, size = weights.type.dims

    def wide(name: str) -> str:
        return w.add("Unsqueeze", [name, w.integers(0)]) if name else ""

    states = [wide(w.name(optional.get(name))) for name in (("h", "c", "peepholes") if op == "lstm" else ("h",))]
    names = [w.claim("states"), w.claim("last"), w.claim("cells")][:len(node.outputs)]
    attrs: dict[str, Any] = {"linear_before_reset": int(node.attrs["linear_before_reset"])} if op == "gru" else {}
    attrs |= {"hidden_size": size, "direction": "reverse" if node.attrs["reverse"] else "forward"}
    lengths, scales = w.name(optional.get("lengths")), optional.get("scales")
    if scales is None:
        x, own, added = float_product(gates, rows)
        bias = optional.get("bias")
        parts = [(added, rows), *([(None, 2 * size), (bias, size)] if op == "gru" else [(None, rows)])]
        biases = wide(w.add("Concat", [w.constant(np.zeros(n, np.float32)) if v is None else w.name(v)
                                       for v, n in parts], axis=0)) if added is not None or bias is not None else ""
        w.add(op.upper(), [w.name(x), w.constant(own[None]), wide(w.name(weights)), biases, lengths, *states], names,
              **attrs)
    elif node.attrs["by_row"]:
        raise GraphError("DynamicQuantizeLSTM quantizes the state by one range for all rows: leave by_row out")
    else:
        x, factors, bias = dynamic_product(gates)
        biases = "" if bias is None else \
            wide(w.add("Concat", [w.name(bias), w.constant(np.zeros(rows, np.float32))], axis=0))
        of_states = integers_of_states(weights, scales)
        quantized = [[w.constant(array[None]) for array in found] for found in (factors, of_states)]
        w.add("DynamicQuantizeLSTM", [w.name(x), quantized[0][0], quantized[1][0], biases, lengths, *states,
                                      *([""] * (3 - len(states))), *quantized[0][1:], *quantized[1][1:]], names,
              domain=MICROSOFT, **attrs)
    for name, value, axis in zip(names, node.outputs, (1, 0, 0), strict=False):
        w.add("Squeeze", [name, w.integers(axis)], [w.name(value)])


def product_of(gates: Value) -> tuple[Node | None, list[Value]]:
    """Find the matmul that computes `gates` (or None), and the biases that are added to its result."""
    node, biases = gates.node, list[Value]()
    if node is not None and node.op.name == "add":
        found = [(b, a.node) for a, b in itertools.permutations(node.operands, 2)
                 if a.node is not None and a.node.op.name == "matmul"]
        biases, node = ([found[0][0]], found[0][1]) if found else ([], None)
    if node is None or node.op.name != "matmul":
        return None, []
    return node, [*biases, *list(node.operands)[2:]]


def float_product(gates: Value, size: int) -> tuple[Value, np.ndarray, Value | None]:
    """The input, weights [size, I] and bias of the matmul that makes `gates`; without one: `gates`, identity, None."""
    product, biases = product_of(gates)
    x, weights = (None, None) if product is None else (product.operand(0), product.operand(1).data)
    if product is None or x is None or weights is None or weights.ndim != 2 or weights.dtype != np.float32 \
            or len(x.shape or ()) != 3 or product.attrs["transpose_a"] or len(biases) > 1 \
            or any(v.shape != (size,) for v in biases):
        return gates, np.eye(size, dtype=np.float32), None
    return x, weights if product.attrs["transpose_b"] else weights.T, biases[0] if biases else None


def dynamic_product(gates: Value) -> tuple[Value, list[np.ndarray], Value | None]:
    """Find the unquantized input, integer weights [I, 4H], scale, zero point and bias of the matmul that makes `gates`.

    Raises GraphError unless the input is quantized by its range, and the weights are 8-bit constants.
    """
    product, biases = product_of(gates)
    left, right = (None, None) if product is None else (product.operand(0), product.operand(1))
    source, dequantize = _dynamic_source(left), None if right is None else right.node
    weights = None if dequantize is None or dequantize.op.name != "dequantize" else dequantize.operand(0)
    if product is None or dequantize is None or source is None or weights is None or weights.data is None \
            or weights.dtype.bits != 8 or len(biases) > 1 or dequantize.attrs["qtype"] != "per_tensor" \
            and dequantize.attrs["axis"] % 2 == product.attrs["transpose_b"]:
        raise GraphError("ONNX has a recurrence with a quantized state only if its gates are a matmul of constant "
                         "8-bit weights with an input that is quantized by its range")
    a = dequantize.attrs
    scales = np.array(a["scales"], np.float32)
    points = np.broadcast_to(np.array(a["zps"] or (0,), weights.data.dtype), scales.shape)
    parts = [x.reshape(()) if a["qtype"] == "per_tensor" else x for x in (scales, points)]
    data = weights.data.T if product.attrs["transpose_b"] else weights.data
    return source, [data, *parts], biases[0] if biases else None


def _dynamic_source(x: Value | None) -> Value | None:
    """The value that was quantized by its range and then dequantized to `x`; None if there is no such value."""
    dequantize = None if x is None else x.node
    if dequantize is None or dequantize.op.name != "dynamic_dequantize":
        return None
    quantize = dequantize.operand(0).node
    if quantize is None or quantize.op.name != "dynamic_quantize" or quantize.inputs[1:] != dequantize.inputs[1:]:
        return None
    found = quantize.operand(1).node
    same = found is not None and found.op.name == "dynamic_range" and found.operand(0) is quantize.operand(0)
    return quantize.operand(0) if same else None


def integers_of_states(weights: Value, scales: Value) -> list[np.ndarray]:
    """The recurrent weights as s8 [H, 4H], with their scales and zero points."""
    if weights.data is None or scales.data is None:
        raise GraphError("weights and scales of a layer that quantizes the state must be constants")
    zero_point = -offset_of(weights.data)
    q = (weights.data.T + zero_point).astype(np.int8)
    one = scales.data.size == 1
    points = np.full(scales.data.shape, zero_point, np.int8)
    return [q, *(x.reshape(()) if one else x for x in (scales.data, points))]


@exports("rotary_embedding")
def rotary_embedding(w: GraphWriter, node: Node) -> None:
    """Write the products and sums of the rotation: operator sets before 23 have no RotaryEmbedding."""
    x, cos, sin = (w.name(v) for v in node.operands)
    half, neighbors = node.operand(1).type.dims[3], node.attrs["interleaved"]

    def part(*limits: int) -> str:
        return w.add("Slice", [x, *(w.integers(n) for n in (*limits[:2], 3, *limits[2:]))])

    pairs = [(0, 2 * half, 2), (1, 2 * half, 2)] if neighbors else [(0, half), (half, 2 * half)]
    first, second = (part(*limits) for limits in pairs)
    turned = [w.add(op_type, [w.add("Mul", [c, first]), w.add("Mul", [s, second])])
              for op_type, c, s in (("Sub", cos, sin), ("Add", sin, cos))]
    if neighbors:
        apart = [w.add("Unsqueeze", [y, w.integers(4)]) for y in turned]
        turned = [w.add("Reshape", [w.add("Concat", apart, axis=4), w.integers(0, 0, 0, 2 * half)])]
    w.add("Concat", [*turned, part(2 * half, node.output.type.dims[3])], [w.name(node.output)], axis=3)


@exports("linear_attention")
def linear_attention(w: GraphWriter, node: Node) -> None:
    """Write LinearAttention. Its decay is the operand of the exp that computes graphq's, or else the logarithm."""
    *names, decay, beta = [w.name(v) for v in node.inputs] + [""] * (6 - len(node.inputs))
    if decay:
        maker = node.operand(4).node
        decay = w.name(maker.operand(0)) if maker is not None and maker.op.name == "exp" else w.add("Log", [decay])
        decay = w.add("Reshape", [decay, w.integers(0, 0, -1)])
    flat = [w.add("Reshape", [name, w.integers(0, 0, -1)]) for name in names[:3]]
    groups, heads = node.operand(0).type.dims[2:4]
    y = w.add("LinearAttention", [*flat, names[3], decay, beta], [w.claim("attended"), w.name(node.outputs[1])],
              q_num_heads=groups * heads, kv_num_heads=groups, scale=1.0,
              update_rule="_".join(["gated"] * bool(decay) + ["delta"] * bool(beta)) or "linear")
    w.add("Reshape", [y, w.integers(0, 0, groups, heads, -1)], [w.name(node.outputs[0])])


@exports("cached_attention")
def cached_attention(w: GraphWriter, node: Node) -> None:
    """Write com.microsoft's GroupQueryAttention."""
    names = [w.name(v) for v in node.inputs] + [""] * (14 - len(node.inputs))
    query, lengths, total, key, value, past_key, past_value, *others, key_scale, value_scale = names
    a, scales = node.attrs, []
    more: dict[str, int | str] = {} if a["causal"] else {"causal": 0}
    if a["kept"] == "f16":
        more |= {"kv_cache_bit_width": 16}  # the caches are f16, even without past caches
    if a["kept"] == "bf16" and not past_key:
        raise GraphError("GroupQueryAttention cannot start bf16 caches for an f32 query: give past caches")
    if key_scale:
        scales = [w.add("Unsqueeze", [x, w.integers(0, 2)]) for x in (key_scale, value_scale)]
        more |= {"k_quant_type": "PER_CHANNEL", "v_quant_type": "PER_CHANNEL", "kv_cache_bit_width": int(a["kept"][1:])}
    w.add("GroupQueryAttention", [query, key, value, past_key, past_value, lengths, total, *others, *scales],
          [w.name(v) for v in node.outputs], domain=MICROSOFT, num_heads=a["heads"], kv_num_heads=a["groups"],
          scale=a["scale"], softcap=a["softcap"], local_window_size=a["window"] if a["window"] > 0 else -1,
          do_rotary=int(bool(others[0])), rotary_interleaved=int(a["interleaved"]),
          **more)

"""Importers of layers: products, convolutions, pools, normalizations, attention and recurrences."""
from functools import partial
from typing import Any

import numpy as np

from graphq.dtypes import boolean, s8, u8
from graphq.ir import Value
from graphq.torch.operators.importer import AtenCall, Result, imports

ORDER = {"LSTM": (0, 3, 1, 2), "GRU": (1, 0, 2), "RNN": (0,)}
"""For ONNX's gates, their places among PyTorch's: LSTM i, o, f, c; GRU z, r, h."""


def product(c: AtenCall) -> Result:
    """Import a matrix product; a transpose of a matrix becomes an attribute, so that weights are not copied."""
    a, b = c.x, c["mat2"] if "mat2" in c.args else c["other"]
    transposed = b.node is not None and b.node.op.name == "static_transpose" and b.node.attrs["order"] == (1, 0)
    return c.graph.matmul(a, b.node.operand(0) if transposed else b, transpose_b=transposed)


def linear(c: AtenCall) -> Result:
    """Import a product with weights [n, k]; it adds integers if rows and weights have scales that are tensors."""
    rows, weights = by_row(c.x), by_row(c["weight"])
    if rows is None or weights is None or len(weights) > 2:
        return c.graph.matmul(c.x, c["weight"], c["bias"], transpose_b=True)
    zero_points = [c.value(v, rows[0].dtype) for v in rows[2:]]
    sums = c.graph.matmul_integer(rows[0], c.graph.static_transpose(weights[0], order=[1, 0]), *zero_points)
    y = c.graph.multiply(c.value(sums), rows[1])
    y = c.graph.multiply(y, c.graph.static_reshape(weights[1], shape=[-1]))
    return y if c["bias"] is None else c.graph.add(y, c["bias"])


def by_row(x: Value) -> list[Value] | None:
    """The integers of 8 bits, the scales and the zero points of a tensor that has one scale for each row."""
    node = x.node
    if node is None or node.op.name != "dynamic_dequantize" or node.operand(0).dtype not in (s8, u8):
        return None
    dims = x.shape or ()
    return [*node.operands] if node.attrs["group_shape"] == (*[1] * (len(dims) - 1), dims[-1]) else None


def each(x: Any, count: int) -> list[int]:
    """One number for each spatial axis; one number stands for all."""
    values = [x] if isinstance(x, int) else list(x)
    return values * count if len(values) == 1 else values


def convolution(c: AtenCall) -> Result:
    """Import convolutions and transposed convolutions; PyTorch adds a missing batch, and computes the pads "same"."""
    count = len(c.dims(c["weight"])) - 2
    if len(c.dims(c.x)) != count + 2 or isinstance(c["padding"], str):
        return None
    strides, pads, dilations = (each(c[name], count) for name in ("stride", "padding", "dilation"))
    how: dict[str, Any] = {"strides": strides, "pads": pads * 2, "dilations": dilations, "group": c["groups"]}
    more, transposed = c["output_padding"], c["transposed"] or "transpose" in c.op
    if transposed:
        return c.ConvTranspose(c.x, c["weight"], c["bias"], output_padding=each(more, count), **how)
    return c.Conv(c.x, c["weight"], c["bias"], **how)


def pool(c: AtenCall) -> Result:
    """Import a maximum pool, or an average pool; ONNX counts indices from the first image, PyTorch from each image."""
    count = int(c.op[c.op.index("pool") + 4])
    kernel, missing = each(c["kernel_size"], count), [0] * (count + 2 - len(c.dims(c.x)))
    x, dilations = c.Unsqueeze(c.x, missing) if missing else c.x, {"dilations": each(c["dilation"] or 1, count)}
    how = {"kernel_shape": kernel, "strides": each(c["stride"] or kernel, count),
           "pads": each(c["padding"], count) * 2, "ceil_mode": int(c["ceil_mode"])}
    if c["divisor_override"] is not None:
        c.refuse("divisor_override is not supported")
    if "avg" in c.op:
        found = [c.AveragePool(x, **how, count_include_pad=int(c["count_include_pad"]))]
    elif any(user.args[1] for user in c.node.users if "indices" in c.op):
        y, places = c.MaxPool(x, **how, **dilations, outputs=2)
        found = [y, c.Mod(places, c.ReduceProd(c.Shape(x, start=2), None, keepdims=1))]
    else:
        found = [c.MaxPool(x, **how, **dilations)]
    found = [c.Squeeze(y, missing) for y in found] if missing else found
    return found if len(found) > 1 else found[0]


def normalized(op_type: str, c: AtenCall) -> Result:
    """Import a normalization in eval mode, by running statistics if the call uses them; missing factors are 1."""
    shape, statistics, attrs = c["normalized_shape"], [], dict[str, Any]()
    if c["training"] and ("running_mean" in c.args or c.dims(c.x)[0] != 1):
        c.refuse("batch normalization in training mode is not supported: export module.eval()")
    if shape:
        attrs["axis"] = -len(shape)
    elif op_type == "GroupNormalization":
        attrs["num_groups"] = c["num_groups"] or c["group"]
    elif op_type == "BatchNormalization" or c["use_input_stats"] is False:
        op_type, statistics = "BatchNormalization", [c["running_mean"], c["running_var"]]
    like, sizes = (statistics or [c.x])[0].dtype, shape or [n or 0 for n in c.dims(c.x)[1:2]]
    scale = c["weight"] if c["weight"] is not None else c.value(np.ones(sizes), like)
    offset = c["bias"] if c["bias"] is not None or shape else c.value(np.zeros(sizes), like)
    inputs = [v for v in (scale, offset, *statistics) if v is not None]
    return c.onnx(op_type, c.x, *inputs, epsilon=np.finfo(np.float32).eps if c["eps"] is None else c["eps"], **attrs)


def attention(c: AtenCall) -> Result:
    """Import attention of several heads by ONNX's Attention; a mask has booleans (true: seen) or numbers to add."""
    mask = c["attn_mask"]
    if c["dropout_p"] or len(c.dims(c.x)) != 4:
        return None
    if mask is not None and mask.dtype != boolean:
        mask = c.value(mask)
    scale = {} if c["scale"] is None else {"scale": float(c["scale"])}
    return c.Attention(c["query"], c["key"], c["value"], mask, is_causal=int(c["is_causal"]), **scale)


def recurrent(c: AtenCall) -> Result:
    """Import layers of LSTM, GRU and RNN, in one or both directions: one ONNX node for each layer.

    PyTorch decomposes packed sequences, projections of the state and weights that the program computes.
    """
    kind, x, layers = c.op.upper().removesuffix("_TANH"), c.x, c["num_layers"]
    ways, step = 2 if c["bidirectional"] else 1, 4 if c["has_biases"] else 2
    parts = [p.data for p in c["params"] if p.data is not None]
    if "batch_sizes" in c.args or all([c["train"], c["dropout"]]) or len(parts) != layers * ways * step:
        return None
    states = c["hx"] if kind == "LSTM" else [c["hx"]]
    x = c.graph.static_transpose(x, order=[1, 0, 2]) if c["batch_first"] else x
    how = {"direction": "bidirectional" if ways == 2 else "forward", "hidden_size": c.dims(states[0])[-1],
           **({"linear_before_reset": 1} if kind == "GRU" else {})}
    last: list[list[Value]] = []
    for first in range(0, layers * ways, ways):
        own = parts[first * step:(first + ways) * step]
        w, r, *biases = (np.stack([gates(p, kind) for p in own[k::step]]) for k in range(step))
        given = [c.Slice(s, [first], [first + ways], [0]) for s in states]
        bias = np.concatenate(biases, axis=1) if biases else None
        y, *ends = c.onnx(kind, x, w, r, bias, None, *given, outputs=1 + len(states), **how)
        last.append(ends)
        y = c.graph.static_transpose(y, order=[0, 2, 1, 3])
        x = c.graph.static_reshape(y, shape=[0, 0, -1], special_zero=True)
    x = c.graph.static_transpose(x, order=[1, 0, 2]) if c["batch_first"] else x
    return [x, *(c.graph.concat(*(ends[k] for ends in last), axis=0) for k in range(len(states)))]


def gates(weights: np.ndarray, kind: str) -> np.ndarray:
    """Weights or biases with the gates in ONNX's order."""
    parts = np.split(weights, len(ORDER[kind]))
    return np.concatenate([parts[k] for k in ORDER[kind]])


def upsample(c: AtenCall) -> Result:
    """Import nearest, linear and cubic interpolation; places follow from the factors if these are given."""
    sizes = c["output_size"] or c.fake().shape[2:]
    how: dict[str, Any] = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    if "nearest" not in c.op:
        smooth = c.op.endswith("_aa")
        how = {"mode": "linear" if "linear" in c.op else "cubic", "cubic_coeff_a": -0.5 if smooth else -0.75,
               "coordinate_transformation_mode": "align_corners" if c["align_corners"] else "half_pixel",
               "antialias": int(smooth), "exclude_outside": int(smooth)}
    factors = c["scale_factors"] or [c[name] for name, v in c.args.items() if name.startswith("scales") and v]
    whole = [d * s for d, s in zip(c.dims(c.x)[2:], factors, strict=False) if d is not None] == list(sizes)
    if factors and not whole and not (c["align_corners"] and all(isinstance(n, int) for n in sizes)):
        return c.Resize(c.x, None, np.asarray([1, 1, *factors], np.float32), **how)
    return c.Resize(c.x, None, None, [c.size(c.x, 0), c.size(c.x, 1), *sizes], **how)


imports({
    "linear": linear,
    "bmm mm matmul": product,
    "_int_mm": lambda c: c.graph.matmul_integer(c.x, c["mat2"]),
    "einsum": lambda c: c.Einsum(*c["tensors"], equation=c["equation"]),
    "batch_norm native_batch_norm _native_batch_norm_legit_no_training _native_batch_norm_legit_functional":
        partial(normalized, "BatchNormalization"),
    "group_norm native_group_norm": partial(normalized, "GroupNormalization"),
    # core ATen has batch normalization of one image by its statistics instead
    "instance_norm _native_batch_norm_legit": partial(normalized, "InstanceNormalization"),
    "layer_norm native_layer_norm": partial(normalized, "LayerNormalization"),
    "rms_norm _fused_rms_norm": partial(normalized, "RMSNormalization"),
    "grid_sampler_2d grid_sampler_3d": lambda c: c.GridSample(
        c.x, c["grid"], mode=("linear", "nearest", "cubic")[c["interpolation_mode"]],
        padding_mode=("zeros", "border", "reflection")[c["padding_mode"]], align_corners=int(c["align_corners"])),
    "convolution conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d": convolution,
    "max_pool1d max_pool2d max_pool3d max_pool2d_with_indices max_pool3d_with_indices avg_pool1d avg_pool2d avg_pool3d":
        pool,
    "scaled_dot_product_attention _scaled_dot_product_flash_attention_for_cpu": attention,
    "lstm gru rnn_tanh": recurrent,
    "upsample_nearest1d upsample_nearest2d upsample_nearest3d upsample_linear1d upsample_bilinear2d "
    "upsample_trilinear3d upsample_bicubic2d _upsample_bilinear2d_aa _upsample_bicubic2d_aa": upsample,
})

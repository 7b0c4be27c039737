"""Importers of layers: products, convolutions, pools, normalizations, attention and recurrences."""
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from graphq.dtypes import boolean
from graphq.ir import Value, lookup
from graphq.torch.operators.importer import AtenCall, Result, imports, imports_each

ORDER = {"LSTM": (0, 3, 1, 2), "GRU": (1, 0, 2), "RNN": (0,)}
"""For ONNX's gates, their places among PyTorch's: LSTM i, o, f, c; GRU z, r, h."""


def product(c: AtenCall, a: Value, b: Value, bias: Value | None = None) -> Value:
    """The matrix product; a transpose of the second operand's last axes becomes an attribute."""
    node = b.node
    if node is not None and node.op.name == "static_transpose" and node.attrs["order"] == (1, 0):
        return c.graph.add_node(lookup("matmul"), [a, node.inputs[0], bias], {"transpose_b": True})[0]
    return c.graph.add_node(lookup("matmul"), [a, b, bias], {})[0]


@imports("addmm")
def addmm(c: AtenCall) -> Result:
    """Import `beta * bias + alpha * (a @ b)`; a bias per column is part of the product."""
    bias, alpha, beta = c.x, c["alpha"], c["beta"]
    if alpha == beta == 1 and len(c.dims(bias)) == 1:
        return product(c, c["mat1"], c["mat2"], bias)
    return c.Gemm(c["mat1"], c["mat2"], bias, alpha=float(alpha), beta=float(beta))


def each(x: Any, count: int) -> list[int]:
    """One number for each spatial axis; one number stands for all."""
    values = [x] if isinstance(x, int) else list(x)
    return values * count if len(values) == 1 else values


@imports("convolution conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d")
def convolution(c: AtenCall) -> Result:
    """Import convolutions and transposed convolutions; PyTorch adds a missing batch, and computes the pads "same"."""
    count = len(c.dims(c["weight"])) - 2
    if len(c.dims(c.x)) != count + 2 or isinstance(c["padding"], str):
        return None
    strides, pads, dilations = (each(c[name], count) for name in ("stride", "padding", "dilation"))
    how: dict[str, Any] = {"strides": strides, "pads": pads * 2, "dilations": dilations, "group": c["groups"]}
    if c["transposed"] or "transpose" in c.op:
        return c.ConvTranspose(c.x, c["weight"], c["bias"], output_padding=each(c["output_padding"], count), **how)
    return c.Conv(c.x, c["weight"], c["bias"], **how)


@imports("max_pool1d max_pool2d max_pool3d max_pool2d_with_indices max_pool3d_with_indices "
         "avg_pool1d avg_pool2d avg_pool3d")
def pool(c: AtenCall) -> Result:
    """Import a maximum pool, or an average pool; ONNX counts indices from the first image, PyTorch from each image."""
    count = int(c.op[c.op.index("pool") + 4])
    batch = len(c.dims(c.x)) == count + 2
    x, kernel = c.x if batch else c.Unsqueeze(c.x, [0]), each(c["kernel_size"], count)
    how = {"kernel_shape": kernel, "strides": each(c["stride"] or kernel, count),
           "pads": each(c["padding"], count) * 2, "ceil_mode": int(c["ceil_mode"])}
    if "avg" in c.op and c["divisor_override"] is not None:
        c.refuse("divisor_override is not supported")
    if "avg" in c.op:
        found = [c.AveragePool(x, **how, count_include_pad=int(c["count_include_pad"]))]
    elif any(user.args[1] for user in c.node.users if "indices" in c.op):
        y, places = c.MaxPool(x, **how, dilations=each(c["dilation"], count), outputs=2)
        found = [y, c.Mod(places, c.ReduceProd(c.Shape(x, start=2), None, keepdims=1))]
    else:
        found = [c.MaxPool(x, **how, dilations=each(c["dilation"], count))]
    found = found if batch else [c.Squeeze(y, [0]) for y in found]
    return found if len(found) > 1 else found[0]


@imports("adaptive_avg_pool2d _adaptive_avg_pool2d adaptive_max_pool2d")
def adaptive_pool(c: AtenCall) -> Result:
    """Import an adaptive pool of the whole image or with windows of one size; others are decomposed."""
    kind, wanted, sizes = "Max" if "max" in c.op else "Average", each(c["output_size"], 2), c.dims(c.x)[2:]
    if len(sizes) == 2 and wanted == [1, 1] and None in sizes:
        return c.onnx(f"Global{kind}Pool", c.x)
    if None in c.dims(c.x)[-2:]:
        c.refuse(f"an adaptive pool to {wanted} needs known sizes, got {c.x.type}")
    if len(sizes) == 2 and wanted == [1, 1]:
        return c.graph.max_pool(c.x, kernel=sizes, data_format="NCX") if kind == "Max" else \
            c.graph.avg_pool(c.x, kernel=sizes, exclude_pad=True, data_format="NCX")
    if len(sizes) != 2 or any(n % k for n, k in zip(sizes, wanted, strict=True)):
        return None
    kernel = [n // k for n, k in zip(sizes, wanted, strict=True)]
    return c.x if kernel == [1, 1] else c.onnx(f"{kind}Pool", c.x, kernel_shape=kernel, strides=kernel)


def normalized(c: AtenCall, op_type: str, shape: Sequence[int | None], *statistics: Value, **attrs: Any) -> Result:
    """Import a normalization in eval mode; missing factors are 1, missing offsets 0, unless an `axis` is given."""
    if c["training"] and ("running_mean" in c.args or c.dims(c.x)[0] != 1):
        c.refuse("batch normalization in training mode is not supported: export module.eval()")
    like, sizes = (statistics or [c.x])[0].dtype, [n or 0 for n in shape]
    scale = c["weight"] if c["weight"] is not None else c.value(np.ones(sizes), like)
    offset = c["bias"] if c["bias"] is not None or "axis" in attrs else c.value(np.zeros(sizes), like)
    inputs = [v for v in (scale, offset, *statistics) if v is not None]
    return c.onnx(op_type, c.x, *inputs, epsilon=np.finfo(np.float32).eps if c["eps"] is None else c["eps"], **attrs)


def over_last_axes(op_type: str, c: AtenCall) -> Result:
    """Import layer or RMS normalization over the last axes, without their statistics."""
    return normalized(c, op_type, c["normalized_shape"], axis=-len(c["normalized_shape"]))


def over_channels(op_type: str, c: AtenCall) -> Result:
    """Import a normalization with a factor per channel, by running statistics if the call uses them."""
    statistics = [c["running_mean"], c["running_var"]]
    if c["use_input_stats"] is False or op_type == "BatchNormalization":
        return normalized(c, "BatchNormalization", c.dims(c.x)[1:2], *statistics)
    groups = c["num_groups"] or c["group"]
    return normalized(c, op_type, c.dims(c.x)[1:2], **({"num_groups": groups} if groups else {}))


imports_each({
    "linear": lambda c: c.graph.matmul(c.x, c["weight"], c["bias"], transpose_b=True),
    "bmm mm matmul": lambda c: product(c, *c.args.values()),
    "_int_mm": lambda c: c.graph.matmul_integer(c.x, c["mat2"]),
    "einsum": lambda c: c.Einsum(*c["tensors"], equation=c["equation"]),
    "batch_norm native_batch_norm _native_batch_norm_legit_no_training _native_batch_norm_legit_functional":
        partial(over_channels, "BatchNormalization"),
    "group_norm native_group_norm": partial(over_channels, "GroupNormalization"),
    # core ATen has batch normalization of one image by its statistics instead
    "instance_norm _native_batch_norm_legit": partial(over_channels, "InstanceNormalization"),
    "layer_norm native_layer_norm": partial(over_last_axes, "LayerNormalization"),
    "rms_norm _fused_rms_norm": partial(over_last_axes, "RMSNormalization"),
    "grid_sampler_2d grid_sampler_3d": lambda c: c.GridSample(
        c.x, c["grid"], mode=("linear", "nearest", "cubic")[c["interpolation_mode"]],
        padding_mode=("zeros", "border", "reflection")[c["padding_mode"]], align_corners=int(c["align_corners"])),
})


@imports("scaled_dot_product_attention _scaled_dot_product_flash_attention_for_cpu")
def attention(c: AtenCall) -> Result:
    """Import attention by ONNX's Attention; a mask has booleans (true: seen) or numbers to add."""
    operands, mask, missing = [c["query"], c["key"], c["value"]], c["attn_mask"], [*range(4 - len(c.dims(c.x)))]
    if c["dropout_p"]:
        c.refuse("attention with dropout is random: export module.eval()")
    if mask is not None and mask.dtype != boolean:
        mask = c.value(mask)
    if missing:
        operands = [c.Unsqueeze(v, missing) for v in operands]
    scale = {} if c["scale"] is None else {"scale": float(c["scale"])}
    y = c.Attention(*operands, mask, is_causal=int(c["is_causal"]), **scale)
    return c.Squeeze(y, missing) if missing else y


@imports("lstm gru rnn_tanh")
def recurrent(c: AtenCall) -> Result:
    """Import layers of LSTM, GRU and RNN, in one or both directions: one ONNX node for each layer."""
    kind, x, layers = c.op.upper().removesuffix("_TANH"), c.x, c["num_layers"]
    if "batch_sizes" in c.args:
        c.refuse("packed sequences are not supported")
    if c["train"] and c["dropout"]:
        c.refuse("dropout in training mode is random: export module.eval()")
    states = c["hx"] if kind == "LSTM" else [c["hx"]]
    ways, step = 2 if c["bidirectional"] else 1, 4 if c["has_biases"] else 2
    if len(c["params"]) != layers * ways * step:
        c.refuse("projections of the state are not supported")
    x = c.graph.static_transpose(x, order=[1, 0, 2]) if c["batch_first"] else x
    how = {"direction": "bidirectional" if ways == 2 else "forward",
           **({"linear_before_reset": 1} if kind == "GRU" else {})}
    last: list[list[Value]] = []
    for first in range(0, layers * ways, ways):
        own = c["params"][first * step:(first + ways) * step]
        w, r, *biases = (_stacked(c, own[k::step], kind) for k in range(step))
        given = [c.Slice(s, [first], [first + ways], [0]) for s in states]
        bias = c.graph.concat(*biases, axis=1) if biases else None
        y, *ends = c.onnx(kind, x, w, r, bias, None, *given, outputs=1 + len(states), hidden_size=c.dims(r)[-1], **how)
        last.append(ends)
        y = c.graph.static_transpose(y, order=[0, 2, 1, 3])
        x = c.graph.static_reshape(y, shape=[0, 0, -1], special_zero=True)
    x = c.graph.static_transpose(x, order=[1, 0, 2]) if c["batch_first"] else x
    return [x, *(c.graph.concat(*(ends[k] for ends in last), axis=0) for k in range(len(states)))]


def _stacked(c: AtenCall, parts: Sequence[Value], kind: str) -> Value:
    """Weights or biases of all directions, with gates in ONNX's order."""
    gates = [np.split(p.data, len(ORDER[kind])) for p in parts if p.data is not None]
    if len(gates) < len(parts):
        c.refuse("weights must be constants")
    return c.graph.add_constant(np.stack([np.concatenate([g[k] for k in ORDER[kind]]) for g in gates]))


@imports("upsample_nearest1d upsample_nearest2d upsample_nearest3d upsample_linear1d upsample_bilinear2d "
         "upsample_trilinear3d upsample_bicubic2d _upsample_bilinear2d_aa _upsample_bicubic2d_aa")
def upsample(c: AtenCall) -> Result:
    """Import nearest, linear and cubic interpolation; places follow from the factors if these are given."""
    sizes = c["output_size"] or c.fake().shape[2:]
    how: dict[str, Any] = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    if "nearest" not in c.op:
        smooth = c.op.endswith("_aa")
        how = {"mode": "linear" if "linear" in c.op else "cubic", "cubic_coeff_a": -0.5 if smooth else -0.75,
               "coordinate_transformation_mode": "align_corners" if c["align_corners"] else "half_pixel",
               "antialias": int(smooth), "exclude_outside": int(smooth)}
    factors = c["scale_factors"] or [v for name, v in c.args.items() if name.startswith("scales") and v]
    whole = [d * s for d, s in zip(c.dims(c.x)[2:], factors, strict=False) if d is not None] == list(sizes)
    if factors and not whole and not (c["align_corners"] and all(isinstance(n, int) for n in sizes)):
        return c.Resize(c.x, None, np.asarray([1, 1, *factors], np.float32), **how)
    return c.Resize(c.x, None, None, [c.size(c.x, 0), c.size(c.x, 1), *sizes], **how)

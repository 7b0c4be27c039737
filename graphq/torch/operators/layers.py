"""Importers of layers: products, convolutions, pools, normalizations, attention and recurrences."""
from collections.abc import Sequence
from typing import Any

import numpy as np

from graphq.dtypes import boolean
from graphq.ir import Value
from graphq.ir.op import lookup
from graphq.torch.operators.importer import AtenCall, Result, imports, imports_each


def product(c: AtenCall, a: Value, b: Value, bias: Value | None = None) -> Value:
    """The matrix product; a transpose of the second operand's last axes becomes an attribute."""
    node = b.node
    if node is not None and node.op.name == "static_transpose" and node.attrs["order"] == (1, 0):
        return c.graph.add_node(lookup("matmul"), [a, node.inputs[0], bias], {"transpose_b": True})[0]
    return c.graph.add_node(lookup("matmul"), [a, b, bias], {})[0]


@imports("linear")
def linear(c: AtenCall) -> Result:
    """Import a dense layer: weights have one row per output."""
    return c.graph.matmul(c.input(0), c.input(1), c.arg(2, "bias"), transpose_b=True)


imports_each({"bmm": lambda c: product(c, c.input(0), c.input(1)), "mm": lambda c: product(c, c.input(0), c.input(1)),
              "matmul": lambda c: product(c, c.input(0), c.input(1)),
              "einsum": lambda c: c.onnx("Einsum", *c.args[1], equation=c.args[0])})


@imports("addmm", "baddbmm")
def addmm(c: AtenCall) -> Result:
    """Import `beta * bias + alpha * (a @ b)`; a bias per column is part of the product."""
    bias, alpha, beta = c.input(0), c.kwargs.get("alpha", 1), c.kwargs.get("beta", 1)
    if alpha == beta == 1 and len(c.dims(bias)) == 1:
        return product(c, c.input(1), c.input(2), bias)
    y = product(c, c.input(1), c.input(2))
    if alpha != 1:
        y = c.onnx("Mul", y, c.number(alpha, y.dtype))
    return y if beta == 0 else c.onnx("Add", y, bias if beta == 1 else c.onnx("Mul", bias, c.number(beta, y.dtype)))


def each(x: Any, count: int) -> list[int]:
    """One number for each spatial axis; an empty list or one number stands for all."""
    values = [x] if isinstance(x, int) else list(x)
    return values * count if len(values) == 1 else values


@imports("convolution", "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
def convolution(c: AtenCall) -> Result:
    """Import convolutions, transposed ones too; `padding` may be "same" or "valid"."""
    x, w, bias = c.input(0), c.input(1), c.arg(2, "bias")
    count, name = len(c.dims(w)) - 2, c.op
    if name == "convolution":
        transposed, more, groups = c.args[6], c.args[7], c.args[8]
        stride, pads, dilations = c.args[3], c.args[4], c.args[5]
    else:
        transposed = "transpose" in name
        stride, pads = c.arg(3, "stride", 1), c.arg(4, "padding", 0)
        more = c.arg(5, "output_padding", 0) if transposed else 0
        groups = c.arg(6, "groups", 1)
        dilations = c.arg(7 if transposed else 5, "dilation", 1)
    how: dict[str, Any] = dict(strides=each(stride, count), dilations=each(dilations, count), groups=groups,
                               data_format="NCX")
    if isinstance(pads, str):
        total = [d * (k - 1) if pads == "same" else 0 for d, k in zip(how["dilations"], c.dims(w)[2:], strict=True)]
        how |= {"pads_begin": [t // 2 for t in total], "pads_end": [t - t // 2 for t in total]}
    else:
        how |= {"pads_begin": each(pads, count), "pads_end": each(pads, count)}
    unbatched = len(c.dims(x)) == count + 1
    x = c.graph.static_reshape(x, shape=[1, *c.dims(x)]) if unbatched else x
    if transposed:
        y = c.graph.conv_transpose(x, w, bias, weights_format="IOX", output_padding=each(more, count), **how)
    else:
        y = c.graph.convolution(x, w, bias, weights_format="OIX", **how)
    return c.graph.static_reshape(y, shape=c.dims(y)[1:]) if unbatched else y


def _window(c: AtenCall, first: int = 1) -> dict[str, Any]:
    """Kernel, strides and pads of a pool as ONNX's attributes."""
    count = len(c.dims(c.input(0))) - 2
    kernel = each(c.arg(first, "kernel_size"), count)
    return {"kernel_shape": kernel, "strides": each(c.arg(first + 1, "stride") or kernel, count),
            "pads": each(c.arg(first + 2, "padding", 0), count) * 2}


@imports("max_pool1d", "max_pool2d", "max_pool3d", "max_pool2d_with_indices", "max_pool3d_with_indices")
def max_pool(c: AtenCall) -> Result:
    """Import a maximum pool without its indices."""
    how = _window(c)
    how |= {"dilations": each(c.arg(4, "dilation", 1), len(how["kernel_shape"])),
            "ceil_mode": int(c.arg(5, "ceil_mode", False))}
    return c.results(c.onnx("MaxPool", c.input(0), **how))


@imports("avg_pool1d", "avg_pool2d", "avg_pool3d")
def avg_pool(c: AtenCall) -> Result:
    """Import an average pool."""
    if c.arg(6, "divisor_override") is not None:
        c.refuse("divisor_override is not supported")
    return c.onnx("AveragePool", c.input(0), **_window(c), ceil_mode=int(c.arg(4, "ceil_mode", False)),
                  count_include_pad=int(c.arg(5, "count_include_pad", True)))


@imports("adaptive_avg_pool1d", "adaptive_avg_pool2d", "_adaptive_avg_pool2d", "adaptive_max_pool1d",
         "adaptive_max_pool2d")
def adaptive_pool(c: AtenCall) -> Result:
    """Import an adaptive pool: the whole image, or equal windows whose number divides the size."""
    name, x = c.op, c.input(0)
    dims = c.dims(x)
    count = 1 if "1d" in name else 2
    sizes, wanted = dims[-count:], each(c.arg(1, "output_size"), count)
    kind = "Max" if "max" in name else "Average"
    if set(wanted) == {1}:
        y = _over_image(c, x, kind, sizes)
    elif sizes == tuple(wanted):
        y = x
    else:
        if any(n is None or n % k for n, k in zip(sizes, wanted, strict=True)):
            return _uneven(c, x, kind, sizes, wanted)
        kernel = [n // k for n, k in zip(sizes, wanted, strict=True) if n is not None]
        y = c.onnx(f"{kind}Pool", x, kernel_shape=kernel, strides=kernel)
    return c.results(y)


def _over_image(c: AtenCall, x: Value, kind: str, sizes: Sequence[int | None]) -> Value:
    """Pool whole images."""
    kernel = [n for n in sizes if n is not None]
    if len(kernel) < len(sizes):
        found: Value = c.onnx(f"Global{kind}Pool", x)
        return found
    return c.graph.max_pool(x, kernel=kernel, data_format="NCX") if kind == "Max" else \
        c.graph.avg_pool(x, kernel=kernel, exclude_pad=True, data_format="NCX")


def _uneven(c: AtenCall, x: Value, kind: str, sizes: Sequence[int | None], wanted: Sequence[int]) -> Value:
    """Pool windows of several sizes: window k of n goes from floor(k * size / n) up to ceil((k + 1) * size / n)."""
    axes = list(zip(range(len(c.dims(x)) - len(sizes), len(c.dims(x))), sizes, wanted, strict=True))
    for axis, size, n in axes:
        if size is None:
            c.refuse(f"an adaptive pool to {list(wanted)} needs a known size of axis {axis}, got {x.type}")
        parts = [c.graph.slice(x, axes=[axis], starts=[k * size // n], ends=[-(-(k + 1) * size // n)], steps=[1])
                 for k in range(n)]
        means = [c.onnx("ReduceMean" if kind == "Average" else "ReduceMax", p, np.asarray([axis], np.int64), keepdims=1)
                 for p in parts]
        x = c.graph.concat(*means, axis=axis)
    return x


@imports("batch_norm", "_native_batch_norm_legit_no_training", "native_batch_norm", "_batch_norm_with_update")
def batch_norm(c: AtenCall) -> Result:
    """Import batch normalization for inference; missing factors are 1, missing offsets 0."""
    x, gamma, beta, mean, variance = (c.arg(k) for k in range(5))
    legit = "no_training" in c.op
    if not legit and c.arg(5, "training", False):
        c.refuse("batch normalization in training mode is not supported: export module.eval()")
    size = c.dims(mean)
    like = mean.dtype
    gamma = gamma if gamma is not None else c.number(np.ones(size), like)
    beta = beta if beta is not None else c.number(np.zeros(size), like)
    y = c.onnx("BatchNormalization", x, gamma, beta, mean, variance, epsilon=float(c.arg(6 if legit else 7, "eps")))
    return c.results(y)


@imports("_native_batch_norm_legit")
def norm_of_images(c: AtenCall) -> Result:
    """Import what instance normalization becomes in core ATen: batch normalization of one image by its statistics."""
    x, gamma, beta = c.args[:3]
    size = c.dims(x)[1]
    if len(c.args) != 6 or c.dims(x)[0] != 1 or size is None:
        c.refuse("batch normalization in training mode is not supported: export module.eval()")
    gamma = gamma if gamma is not None else c.number(np.ones(size), x.dtype)
    beta = beta if beta is not None else c.number(np.zeros(size), x.dtype)
    return c.results(c.onnx("InstanceNormalization", x, gamma, beta, epsilon=float(c.args[5])))


@imports("layer_norm", "native_layer_norm")
def layer_norm(c: AtenCall) -> Result:
    """Import layer normalization over the last axes, without its statistics."""
    x, shape = c.input(0), c.arg(1, "normalized_shape")
    gamma, beta = (c.arg(k, name) for k, name in ((2, "weight"), (3, "bias")))
    gamma = gamma if gamma is not None else c.number(np.ones(shape), x.dtype)
    y = c.onnx("LayerNormalization", x, gamma, beta, axis=-len(shape), epsilon=float(c.arg(4, "eps", 1e-5)))
    return c.results(y)


@imports("rms_norm", "_fused_rms_norm")
def rms_norm(c: AtenCall) -> Result:
    """Import RMS normalization over the last axes; the default epsilon depends on the dtype."""
    x, shape, epsilon = c.input(0), c.arg(1, "normalized_shape"), c.arg(3, "eps")
    gamma = c.arg(2, "weight") if c.arg(2, "weight") is not None else c.number(np.ones(shape), x.dtype)
    epsilon = float(np.finfo(np.float32).eps) if epsilon is None else epsilon
    y = c.onnx("RMSNormalization", x, gamma, axis=-len(shape), epsilon=epsilon)
    return c.results(y)


@imports("group_norm", "native_group_norm", "instance_norm")
def group_norm(c: AtenCall) -> Result:
    """Import group normalization, and instance normalization: one group per channel."""
    x, name = c.input(0), c.op
    native, instance = "native" in name, "instance" in name
    first = 1 if native or instance else 2
    channels = c.dims(x)[1]
    gamma, beta = c.arg(first, "weight"), c.arg(first + 1, "bias")
    gamma = gamma if gamma is not None else c.number(np.ones(channels or 0), x.dtype)
    beta = beta if beta is not None else c.number(np.zeros(channels or 0), x.dtype)
    if instance:
        if not c.arg(5, "use_input_stats", True):
            return c.onnx("BatchNormalization", x, gamma, beta, c.arg(3), c.arg(4), epsilon=float(c.arg(7)))
        return c.onnx("InstanceNormalization", x, gamma, beta, epsilon=float(c.arg(7)))
    groups = c.args[6] if native else c.args[1]
    epsilon = float(c.args[7] if native else c.arg(4, "eps", 1e-5))
    y = c.onnx("GroupNormalization", x, gamma, beta, num_groups=groups, epsilon=epsilon)
    return c.results(y)


@imports("scaled_dot_product_attention", "_scaled_dot_product_flash_attention_for_cpu",
         "_scaled_dot_product_efficient_attention")
def attention(c: AtenCall) -> Result:
    """Import attention by ONNX's Attention; a mask has booleans (true: seen) or numbers to add."""
    flash = "flash" in c.op
    mask, dropout = (c.kwargs.get("attn_mask"), c.arg(3, "dropout_p", 0.0)) if flash else \
        (c.arg(3, "attn_mask"), c.arg(4, "dropout_p", 0.0))
    if dropout:
        c.refuse("attention with dropout is random: export module.eval()")
    q, k, v = (c.input(n) for n in range(3))
    if mask is not None and mask.dtype not in (boolean, q.dtype):
        mask = c.cast(mask, q.dtype)
    scale: dict[str, Any] = {} if c.kwargs.get("scale") is None else {"scale": float(c.kwargs["scale"])}
    missing = np.arange(4 - len(c.dims(q)))
    if len(c.dims(q)) > 4:
        c.refuse(f"attention needs [batch, heads, tokens, size], got {q.type}")
    if missing.size:
        q, k, v = (c.onnx("Unsqueeze", x, missing) for x in (q, k, v))
    y = c.onnx("Attention", q, k, v, mask, is_causal=int(c.arg(4 if flash else 5, "is_causal", False)), **scale)
    return c.results(c.onnx("Squeeze", y, missing) if missing.size else y)


ORDER = {"LSTM": (0, 3, 1, 2), "GRU": (1, 0, 2), "RNN": (0,)}
"""For ONNX's gates, their places among PyTorch's: LSTM i, o, f, c; GRU z, r, h."""


@imports("lstm", "gru", "rnn_tanh")
def recurrent(c: AtenCall) -> Result:
    """Import layers of LSTM, GRU and RNN, in one or both directions: one ONNX node for each layer."""
    kind = c.op.upper().removesuffix("_TANH")
    if isinstance(c.args[1], Value) and kind == "LSTM":
        c.refuse("packed sequences are not supported")
    x, states, weights, biased, layers, dropout, train, both, batch_first = c.args
    if train and dropout:
        c.refuse("dropout in training mode is random: export module.eval()")
    states = list(states) if kind == "LSTM" else [states]
    ways = 2 if both else 1
    step = 4 if biased else 2
    if len(weights) != layers * ways * step:
        c.refuse("projections of the state are not supported")
    if batch_first:
        x = c.graph.static_transpose(x, order=[1, 0, 2])
    last: list[list[Value]] = []
    for layer in range(layers):
        own = [weights[(layer * ways + d) * step:][:step] for d in range(ways)]
        w, r, *b = (_stacked(c, [o[k] for o in own], kind) for k in range(step))
        first = layer * ways
        given = [c.graph.slice(s, axes=[0], starts=[first], ends=[first + ways], steps=[1]) for s in states]
        bias = c.graph.concat(*b, axis=1) if b else None
        more = {"linear_before_reset": 1} if kind == "GRU" else {}
        y, *ends = c.onnx(kind, x, w, r, bias, None, *given, outputs=1 + len(states), hidden_size=c.dims(r)[-1],
                          direction="bidirectional" if both else "forward", **more)
        last.append(ends)
        y = c.graph.static_transpose(y, order=[0, 2, 1, 3])
        x = c.graph.static_reshape(y, shape=[0, 0, -1], special_zero=True)
    x = c.graph.static_transpose(x, order=[1, 0, 2]) if batch_first else x
    return [x, *(c.graph.concat(*(ends[k] for ends in last), axis=0) for k in range(len(states)))]


def _stacked(c: AtenCall, parts: Sequence[Value], kind: str) -> Value:
    """Weights or biases of all directions, with gates in ONNX's order."""
    arrays = []
    for p in parts:
        if p.data is None:
            c.refuse("weights must be constants")
        gates = np.split(p.data, len(ORDER[kind]), axis=0)
        arrays.append(np.concatenate([gates[k] for k in ORDER[kind]]))
    return c.graph.add_constant(np.stack(arrays))


@imports("upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d", "upsample_bilinear2d", "upsample_linear1d",
         "_upsample_bilinear2d_aa", "upsample_trilinear3d")
def upsample(c: AtenCall) -> Result:
    """Import nearest and linear interpolation to sizes that the program states."""
    name, x = c.op, c.input(0)
    linear = "linear" in name
    align = linear and bool(c.arg(2, "align_corners", False))
    if "_aa" in name:
        c.refuse("interpolation with antialias is not supported")
    sizes = [d if isinstance(d, int) else None for d in c.fake().shape[2:]]
    scales = c.args[-1] if isinstance(c.args[-1], list) and all(isinstance(s, float) for s in c.args[-1]) else None
    how: dict[str, Any] = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    if linear:
        how = {"mode": "linear", "coordinate_transformation_mode": "align_corners" if align else "half_pixel"}
    if None in sizes:
        if not scales:
            c.refuse("interpolation to open sizes needs factors")
        return c.onnx("Resize", x, None, np.asarray([1, 1, *scales], np.float32), **how)
    return c.onnx("Resize", x, None, None, c.vector([c.size(x, 0), c.size(x, 1), *sizes]), **how)

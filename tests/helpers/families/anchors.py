"""Families around one anchor: matmuls, convolutions, pools, norms, chains and moves."""
from families.build import family, form


@family("matmul")
def matmul(b):
    f = form(b)
    m, k, n, tb = 4, 8, 6, bool(b.rng.integers(2))
    wide = b.some((), (2,), (2, 3))
    x = b.source(f, *wide, m, k)
    shape = (n, k) if tb else (k, n)
    w = b.quantized(*shape, dtype="s8", axis=0 if tb else 1, cast="bf16" if f == "int8_bf16" else None) \
        if f.startswith("int8") else b.input(*shape, dtype=f)
    bias = b.some(None, "operand", "op")
    y = b.g.matmul(x, w, *([b.input(n, dtype=x.dtype)] if bias == "operand" else []), transpose_b=tb)
    if bias == "op":
        y = b.g.bias_add(y, b.input(n, dtype=y.dtype))
    return b.finish(b.post(y), f)


@family("matmul")
def matmul_transpose_reshape(b):
    f = form(b)
    x, w = b.source(f, 2, 3, 4, 8), b.source(f, 8, 6)
    y = b.post(b.g.matmul(x, w), 3)
    y = b.g.static_transpose(y, order=[0, 2, 1, 3])
    if b.rng.integers(2):
        y = b.g.static_reshape(y, shape=[2, 4, 18])
    if b.rng.integers(2):
        y = b.g.reorder(y)
    return b.finish(y, f)


@family("matmul")
def matmul_decompressed_weights(b):
    g, k, n = b.g, 8, 6
    x = b.input(4, k, dtype=b.some("f32", "f16", "bf16"))
    per_group = bool(b.rng.integers(2))
    scales = b.input(*((k // 4, n) if per_group else (n,)), dtype=x.dtype)
    w = g.dynamic_dequantize(b.input(k, n, dtype=b.some("u8", "s8", "u4", "s4")), scales, **(
        {"qtype": "per_group", "axis": 0, "group_shape": [4, 1]} if per_group else {"qtype": "per_channel", "axis": 1}))
    if b.rng.integers(2):
        w = g.static_transpose(g.static_transpose(w, order=[1, 0]), order=[1, 0])
    return b.finish(b.post(g.matmul(x, w), 4), "f32")


@family("matmul")
def matmul_dynamic_quantization(b):
    g = b.g
    x = g.dynamic_dequantize(b.input(4, 8, dtype="u8"), b.input(1), b.input(1, dtype="s32"))
    w = g.dynamic_dequantize(b.input(8, 6, dtype="s8"), b.input(6), qtype="per_channel", axis=1)
    y = b.post(g.matmul(x, w), 3)
    g.output(g.dynamic_quantize(y, b.input(1), b.input(1, dtype="s32"), dtype="u8"), name="y")
    return g


@family("matmul")
def binary_matmul_binary(b):
    x, w = b.input(2, 4, 8), b.input(2, 8, 6)
    for _ in range(b.rng.integers(1, 11)):
        x = b.g.multiply(x, b.operand(x))
    for _ in range(b.rng.integers(0, 5)):
        w = b.g.add(w, b.operand(w))
    return b.finish(b.post(b.g.matmul(x, w)), "f32")


def conv_attributes(b, spatial=2, **more):
    return {"strides": [1] * spatial, "pads_begin": [1] * spatial, "pads_end": [1] * spatial,
            "dilations": [1] * spatial, **more}


@family("convolution")
def convolution(b):
    f, spatial, groups = form(b), b.some(1, 2, 3), b.some(1, 2, 4)
    ncx, oix = bool(b.rng.integers(2)), bool(b.rng.integers(2))
    size, taps = (5,) * spatial, (3,) * spatial
    x = b.source(f, *((1, 4, *size) if ncx else (1, *size, 4)))
    shape = (8, 4 // groups, *taps) if oix else (*taps, 4 // groups, 8)
    w = b.quantized(*shape, dtype="s8", axis=0 if oix else len(shape) - 1, cast="bf16" if f == "int8_bf16" else None) \
        if f.startswith("int8") else b.input(*shape, dtype=f)
    bias = [b.input(8, dtype=x.dtype)] if b.rng.integers(2) else []
    y = b.g.convolution(x, w, *bias, groups=groups, data_format="NCX" if ncx else "NXC",
                        weights_format="OIX" if oix else "XIO", **conv_attributes(b, spatial))
    if b.rng.random() < 0.3:
        p = [b.input(8) for _ in range(4)]
        y = b.g.batch_norm_inference(y, *p, epsilon=1e-3, data_format="NCX" if ncx else "NXC")
    return b.finish(b.post(y, b.some(3, 20)), f)


@family("convolution")
def convolution_int8_weights_quantized_here(b):
    w = b.g.quantize(b.input(8, 4, 3, 3), qtype="per_channel", axis=0, scales=[0.1] * 8, dtype="s8")
    w = b.g.dequantize(w, qtype="per_channel", axis=0, scales=[0.1] * 8)
    y = b.g.convolution(b.quantized(1, 4, 5, 5), w, data_format="NCX", weights_format="OIX", **conv_attributes(b))
    return b.finish(b.post(y, 5), "int8")


@family("convolution")
def convolution_depthwise(b):
    f = b.some("f32", "bf16", "f16")
    x, w = b.input(1, 4, 5, 5, dtype=f), b.input(8, 4, 1, 1, dtype=f)
    y = b.g.convolution(x, w, data_format="NCX", weights_format="OIX", strides=[1, 1], pads_begin=[0, 0],
                        pads_end=[0, 0], dilations=[1, 1])
    y = b.post(y, 2)
    bias = [b.input(8, dtype=f)] if b.rng.integers(2) else []
    y = b.g.convolution(y, b.input(8, 1, 3, 3, dtype=f), *bias, data_format="NCX", weights_format="OIX", groups=8,
                        **conv_attributes(b))
    return b.finish(b.post(y, 4), f)


@family("conv_transpose")
def conv_transpose(b):
    f = form(b)
    x, w = b.source(f, 1, 5, 5, 4), b.source(f, 3, 3, 8, 4)
    bias = [b.input(8, dtype=x.dtype)] if b.rng.integers(2) else []
    y = b.g.conv_transpose(x, w, *bias, **conv_attributes(b))
    return b.finish(b.post(y), f)


def unary_anchor(name, build, most=20):
    def f(b):
        kind = form(b)
        x = b.source(kind, 2, 6, 6, 4)
        return b.finish(b.post(build(b, x), most), kind)
    f.__name__ = name
    family(name)(f)


POOL = {"kernel": [2, 2], "strides": [1, 1], "pads_begin": [1, 0], "pads_end": [0, 1]}
unary_anchor("avg_pool", lambda b, x: b.g.avg_pool(x, **POOL, exclude_pad=bool(b.rng.integers(2))))
unary_anchor("max_pool", lambda b, x: b.g.max_pool(x, **POOL))
unary_anchor("batch_norm_inference", lambda b, x: b.g.batch_norm_inference(
    x, *[b.input(4) for _ in range(4)], epsilon=1e-3))
unary_anchor("layer_norm", lambda b, x: b.g.layer_norm(x, b.input(4), b.input(4), keep_stats=False))
unary_anchor("group_norm", lambda b, x: b.g.group_norm(x, b.input(4), b.input(4), groups=2, keep_stats=False))
unary_anchor("rms_norm", lambda b, x: b.g.rms_norm(x, b.input(4)))
unary_anchor("softmax", lambda b, x: b.g.softmax(x, axis=-1))
unary_anchor("log_softmax", lambda b, x: b.g.log_softmax(x, axis=-1))
unary_anchor("interpolate", lambda b, x: b.g.interpolate(
    x, mode=b.some("nearest", "bilinear"), sizes=[3, 9]))
unary_anchor("concat", lambda b, x: b.g.concat(x, x if b.rng.integers(2) else b.input(*x.shape, dtype=x.dtype), axis=1))
for kind in ("l1", "l2", "max", "mean", "min", "prod", "sum"):
    unary_anchor(f"reduce_{kind}", lambda b, x, kind=kind: getattr(b.g, f"reduce_{kind}")(
        x, axes=b.some([1], [-1], [1, 2]), keep_dims=bool(b.rng.integers(2))))


@family("avg_pool")
def int8_avg_pool_moved(b):
    y = b.g.avg_pool(b.quantized(1, 6, 6, 4), **POOL, exclude_pad=False)
    y = b.some(lambda: b.g.static_transpose(y, order=[0, 3, 1, 2]), lambda: b.g.static_reshape(y, shape=[6, -1]))()
    return b.finish(y, "int8")


@family("concat")
def concat_int8(b):
    y = b.g.concat(*[b.quantized(1, 4, 3) for _ in range(b.rng.integers(2, 7))], axis=1)
    return b.finish(y, "int8")


@family("softmax")
def softmax_with_statistics(b):
    x = b.source(form(b), 2, 3, 4)
    y, stats = b.g.softmax(x, axis=-1, keep_stats=True)
    b.g.output(stats, name="stats")
    return b.finish(b.post(y, b.some(0, 4)), "f32")


@family("layer_norm")
def layer_norm_with_statistics(b):
    x = b.source(b.some("f32", "bf16", "int8", "int8_bf16"), 2, 3, 4)
    y, mean, variance = b.g.layer_norm(x, b.input(4), b.input(4))
    b.g.output(mean, name="mean")
    b.g.output(variance, name="variance")
    return b.finish(b.post(y, b.some(0, 4)), "f32")


@family("eltwise")
def eltwise(b):
    kind = form(b)
    x = b.source(kind, 2, 3, 4)
    y = b.g.add(x, b.operand(x)) if b.rng.integers(2) else b.g.tanh(x)
    return b.finish(b.post(y, 19), kind)


@family("eltwise")
def eltwise_dropout(b):
    y = b.g.dropout(b.post(b.input(2, 3), 3), b.input(dtype="s64"), b.input(dtype="s64"), b.input())
    return b.finish(b.post(y, 3), "f32")


@family("eltwise")
def border(b):
    """Quantize, dequantize or a cast alone, or two of them."""
    g, which = b.g, b.some("quantize", "dequantize", "cast", "requantize", "cast_quantize", "dequantize_cast")
    if which == "quantize":
        y = g.quantize(b.input(3, 4), scales=[0.1], dtype=b.some("u8", "s8", "f8_e4m3", "f8_e5m2"))
    elif which == "dequantize":
        y = b.quantized(3, 4)
    elif which == "cast":
        y = g.type_cast(b.input(3, 4), dtype="bf16")
    elif which == "requantize":
        y = g.quantize(b.quantized(3, 4), scales=[0.3], dtype="s8")
    elif which == "cast_quantize":
        y = g.quantize(g.type_cast(b.input(3, 4, dtype="bf16"), dtype="f32"), scales=[0.1], dtype="u8")
    else:
        y = b.quantized(3, 4, cast="f16")
    g.output(y, name="y")
    return g


@family("reorder")
def reorder(b):
    f = b.some("f32", "int8")
    y = b.g.reorder(b.source(f, 2, 3, 4))
    if b.rng.integers(2):
        y = b.g.add(y, b.source(f, 2, 3, 4))
    b.g.output(b.g.quantize(y, dtype="s8", scales=[0.1]) if f == "int8" else y, name="y")
    return b.g


@family("reorder")
def shuffle(b):
    y = b.g.static_reshape(b.input(1, 8, 3, 3), shape=[1, 2, 4, 3, 3])
    y = b.g.static_transpose(y, order=[0, 2, 1, 3, 4])
    return b.finish(b.g.static_reshape(y, shape=[1, 8, 3, 3]), "f32")

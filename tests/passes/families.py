"""Random members of the families of oneDNN's fusion pages: `FAMILIES[name](rng)` gives a graph and its anchor."""
import numpy as np

import graphq as gq

UNARY = {"abs": {}, "clamp": {"min": -0.5, "max": 0.5}, "elu": {"alpha": 0.7}, "exp": {}, "gelu": {}, "hard_sigmoid":
         {"alpha": 0.2, "beta": 0.4}, "hard_swish": {}, "leaky_relu": {"alpha": 0.1}, "mish": {}, "relu": {},
         "round": {}, "sigmoid": {}, "softplus": {}, "square": {}, "tanh": {}}
BINARY = ("add", "divide", "maximum", "minimum", "multiply", "subtract", "squared_difference")
FAMILIES = {}


class Build:
    """A graph under construction, with numbered inputs."""

    def __init__(self, rng):
        self.g, self.rng, self.count = gq.Graph("family"), rng, 0

    def input(self, *shape, dtype="f32"):
        self.count += 1
        return self.g.input(f"t{self.count}", dtype=dtype, shape=shape)

    def some(self, *choices):
        return choices[self.rng.integers(len(choices))]

    def quantised(self, *shape, dtype=None, axis=None, cast=None):
        """An input behind a dequantize, perhaps a cast."""
        dtype = dtype or self.some("u8", "s8")
        q = {"scales": [0.05], "zps": [3]} if axis is None else \
            {"qtype": "per_channel", "axis": axis, "scales": [0.05] * shape[axis], "zps": [0] * shape[axis]}
        y = self.g.dequantize(self.input(*shape, dtype=dtype), **q)
        return y if cast is None else self.g.type_cast(y, dtype=cast)

    def source(self, form, *shape):
        if form == "int8":
            return self.quantised(*shape)
        if form == "int8_bf16":
            return self.quantised(*shape, cast="bf16")
        return self.input(*shape, dtype=form)

    def operand(self, y):
        """A second operand for y: of its shape, of one channel's, a scalar; perhaps dequantized or cast."""
        shape = self.some(y.shape, tuple(1 if k else d for k, d in enumerate(y.shape)), (1,) * len(y.shape),
                          y.shape[-1:])
        if y.dtype == "f32" and self.rng.random() < 0.2:
            return self.quantised(*shape)
        return self.input(*shape, dtype=y.dtype)

    def post(self, y, most=20):
        """A chain of up to `most` unary and binary operations, select, prelu and swish among them."""
        g = self.g
        for _ in range(self.rng.integers(0, most + 1)):
            kind = self.rng.random()
            if kind < 0.45:
                op = self.some(*UNARY)
                y = getattr(g, op)(y, **UNARY[op])
            elif kind < 0.8:
                op, pair = self.some(*BINARY), [y, self.operand(y)]
                if op in ("add", "multiply") and self.rng.random() < 0.5:
                    pair.reverse()
                y = getattr(g, op)(*pair)
            elif kind < 0.87:
                y = g.multiply(g.sigmoid(y), y)
            elif kind < 0.93:
                y = g.select(self.input(*y.shape, dtype="boolean"), y, self.input(1, dtype=y.dtype))
            else:
                y = g.prelu(y, self.input(1, dtype=y.dtype))
        return y

    def finish(self, y, form):
        """The end of a chain: as it is, cast, a smoothing multiply, a quantize."""
        g = self.g
        if form == "int8_bf16" or form == "bf16" and self.rng.random() < 0.5:
            y = g.type_cast(y, dtype="f32") if y.dtype != "f32" else y
        if form.startswith("int8") and self.rng.random() < 0.8:
            if self.rng.random() < 0.3:
                y = g.multiply(y, self.input(y.shape[-1]))
            y = g.quantize(y, dtype=self.some("u8", "s8"), scales=[0.1], zps=[2])
        g.output(y, name="y")
        return g


def family(anchor):
    def declare(f):
        FAMILIES[f.__name__] = lambda rng: (f(Build(rng)), anchor)
        return f
    return declare


def form(b):
    return b.some("f32", "bf16", "f16", "int8", "int8_bf16")


@family("matmul")
def matmul(b):
    f = form(b)
    m, k, n, tb = 4, 8, 6, bool(b.rng.integers(2))
    wide = b.some((), (2,), (2, 3))
    x = b.source(f, *wide, m, k)
    shape = (n, k) if tb else (k, n)
    w = b.quantised(*shape, dtype="s8", axis=0 if tb else 1, cast="bf16" if f == "int8_bf16" else None) \
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
def matmul_dynamic_quantisation(b):
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
    w = b.quantised(*shape, dtype="s8", axis=0 if oix else len(shape) - 1, cast="bf16" if f == "int8_bf16" else None) \
        if f.startswith("int8") else b.input(*shape, dtype=f)
    bias = [b.input(8, dtype=x.dtype)] if b.rng.integers(2) else []
    y = b.g.convolution(x, w, *bias, groups=groups, data_format="NCX" if ncx else "NXC",
                        weights_format="OIX" if oix else "XIO", **conv_attributes(b, spatial))
    if b.rng.random() < 0.3:
        p = [b.input(8) for _ in range(4)]
        y = b.g.batch_norm_inference(y, *p, epsilon=1e-3, data_format="NCX" if ncx else "NXC")
    return b.finish(b.post(y, b.some(3, 20)), f)


@family("convolution")
def convolution_int8_weights_quantised_here(b):
    w = b.g.quantize(b.input(8, 4, 3, 3), qtype="per_channel", axis=0, scales=[0.1] * 8, dtype="s8")
    w = b.g.dequantize(w, qtype="per_channel", axis=0, scales=[0.1] * 8)
    y = b.g.convolution(b.quantised(1, 4, 5, 5), w, data_format="NCX", weights_format="OIX", **conv_attributes(b))
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
    y = b.g.avg_pool(b.quantised(1, 6, 6, 4), **POOL, exclude_pad=False)
    y = b.some(lambda: b.g.static_transpose(y, order=[0, 3, 1, 2]), lambda: b.g.static_reshape(y, shape=[6, -1]))()
    return b.finish(y, "int8")


@family("concat")
def concat_int8(b):
    y = b.g.concat(*[b.quantised(1, 4, 3) for _ in range(b.rng.integers(2, 7))], axis=1)
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
        y = b.quantised(3, 4)
    elif which == "cast":
        y = g.type_cast(b.input(3, 4), dtype="bf16")
    elif which == "requantize":
        y = g.quantize(b.quantised(3, 4), scales=[0.3], dtype="s8")
    elif which == "cast_quantize":
        y = g.quantize(g.type_cast(b.input(3, 4, dtype="bf16"), dtype="f32"), scales=[0.1], dtype="u8")
    else:
        y = b.quantised(3, 4, cast="f16")
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


def head_shapes(b):
    """Shapes of queries and keys: heads, or groups of heads that share a key."""
    return b.some(((2, 3, 4, 8), (2, 3, 5, 8)), ((2, 2, 3, 4, 8), (2, 2, 1, 5, 8)), ((3, 4, 8), (3, 5, 8)))


def scores(b, q, k, tb=True, most=8):
    """matmul(q, k), then scaling, soft-capping and masks."""
    g = b.g
    y = g.matmul(q, k, transpose_b=tb, dtype=None)
    if b.rng.random() < 0.8:
        y = b.some(g.divide, g.multiply)(y, b.input(1, dtype=y.dtype))
    if b.rng.random() < 0.3:
        cap = b.input(1, dtype=y.dtype)
        y = g.multiply(g.tanh(g.divide(y, cap)), cap)
    mask = b.some("none", "add", "select", "select_reversed", "causal", "bottom_right", "both")
    if mask in ("add", "both"):
        y = g.add(y, b.input(*y.shape[-2:], dtype=y.dtype))
    if mask in ("select", "both"):
        y = g.select(b.input(*y.shape[-2:], dtype="boolean"), y, b.input(1, dtype=y.dtype))
    if mask == "select_reversed":
        y = g.select(b.input(*y.shape, dtype="boolean"), b.input(1, dtype=y.dtype), y)
    if mask in ("causal", "bottom_right"):
        rows, columns = g.gen_index(y, axis=-2), g.gen_index(y, axis=-1)
        if mask == "bottom_right":
            rows = g.subtract(g.add(rows, b.input(dtype="s32")), b.input(dtype="s32"))
        y = g.select(g.greater_equal(rows, columns), y, b.input(1, dtype=y.dtype))
    return y


def tail(b, y):
    """Transposes, reshapes and reorders after attention."""
    if b.rng.integers(2):
        order = [*range(len(y.shape) - 3), *[len(y.shape) + k for k in (-2, -3, -1)]]
        y = b.g.static_transpose(y, order=order)
        if b.rng.integers(2):
            y = b.g.static_reshape(y, shape=[*y.shape[:-2], -1])
        elif b.rng.integers(2):
            y = b.g.reorder(y)
    return y


@family("attention")
def attention(b):
    f = b.some("f32", "bf16", "f16")
    sq, sk = head_shapes(b)
    q, k, v = b.input(*sq, dtype=f), b.input(*sk, dtype=f), b.input(*sk, dtype=f)
    if b.rng.random() < 0.3:
        q = b.g.multiply(q, b.input(1, dtype=f))
    if b.rng.random() < 0.3:
        k = b.g.multiply(k, b.input(1, dtype=f))
    y = scores(b, q, k)
    mode = b.some("none", "inf_as_zero")
    if b.rng.random() < 0.3:
        y, stats = b.g.softmax(y, axis=-1, mode=mode, keep_stats=True)
        b.g.output(stats, name="stats")
    else:
        y = b.g.softmax(y, axis=-1, mode=mode)
    if b.rng.random() < 0.2:
        y = b.g.dropout(y, b.input(dtype="s64"), b.input(dtype="s64"), b.input())
    return b.finish(tail(b, b.g.matmul(y, v)), f)


@family("attention")
def attention_f32_between(b):
    """bf16 or f16 outside, f32 scores."""
    f, g = b.some("bf16", "f16"), b.g
    sq, sk = head_shapes(b)
    q, k, v = b.input(*sq, dtype=f), b.input(*sk, dtype=f), b.input(*sk, dtype=f)
    y = g.matmul(q, k, transpose_b=True, dtype="f32")
    y = g.add(g.multiply(y, b.input(1)), b.input(*y.shape[-2:]))
    y = g.softmax(y, axis=-1, dtype=f) if b.rng.integers(2) else g.type_cast(g.softmax(y, axis=-1), dtype=f)
    return b.finish(tail(b, g.matmul(y, v)), f)


@family("attention")
def attention_moved_inputs(b):
    """Queries, keys and values as [batch, sequence, heads * size]."""
    g, n, h, d = b.g, 5, 3, 4

    def heads(order):
        x = g.static_reshape(b.source(f, 2, n, h * d), shape=[2, n, h, d])
        return g.static_transpose(x, order=order)

    f = b.some("f32", "int8", "bf16")
    y = scores(b, heads([0, 2, 1, 3]), heads([0, 2, 3, 1]), tb=False)
    return b.finish(tail(b, g.matmul(g.softmax(y, axis=-1), heads([0, 2, 1, 3]))), f)


@family("attention")
def attention_jax(b):
    g = b.g
    y = g.softmax(scores(b, b.input(2, 3, 4, 8), b.input(2, 3, 5, 8)), axis=-1)
    y = g.reorder(g.static_transpose(y, order=[0, 1, 3, 2]))
    y = g.matmul(b.input(2, 3, 8, 5), y)
    return b.finish(g.static_reshape(g.static_transpose(y, order=[0, 3, 1, 2]), shape=[2, 4, 24]), "f32")


@family("attention")
def attention_multi_query(b):
    """Scores reshaped between the products, as with one key for all heads."""
    g = b.g
    y = g.matmul(g.static_reshape(b.input(2, 3, 4, 8), shape=[2, 12, 8]), b.input(2, 5, 8), transpose_b=True)
    y = g.softmax(g.add(g.static_reshape(y, shape=[2, 3, 4, 5]), b.input(4, 5)), axis=-1)
    y = g.matmul(g.static_reshape(y, shape=[2, 12, 5]), b.input(2, 5, 8))
    return b.finish(g.static_reshape(y, shape=[2, 3, 4, 8]), "f32")


@family("attention")
def attention_int8(b):
    g, cast = b.g, b.some(None, "bf16")
    q, k, v = (b.quantised(2, 3, n, 8, cast=cast) for n in (4, 5, 5))
    y = g.softmax(scores(b, q, k), axis=-1)
    y = y if cast is None else g.type_cast(y, dtype="f32")
    y = g.dequantize(g.quantize(y, dtype="u8", scales=[0.004]), scales=[0.004])
    y = y if cast is None else g.type_cast(y, dtype=cast)
    return b.finish(tail(b, g.matmul(y, v)), "int8_bf16" if cast else "int8")


@family("attention")
def attention_compressed_keys(b):
    g, f = b.g, b.some("f16", "f32")

    def compressed(*shape):
        scales = b.input(*shape[:-1], shape[-1] // 4, dtype=f)
        more = [b.input(*scales.shape, dtype="s8")] if b.rng.integers(2) else []
        return g.dynamic_dequantize(b.input(*shape, dtype=b.some("s8", "s4") if not more else "s8"), scales, *more,
                                    qtype="per_group", axis=-1, group_shape=[1, 1, 1, 4])

    q, v = b.input(2, 3, 4, 8, dtype=f), b.some(compressed, lambda *s: b.input(*s, dtype=f))(2, 3, 5, 8)
    y = scores(b, q, compressed(2, 3, 5, 8))
    return b.finish(tail(b, g.matmul(g.softmax(y, axis=-1), v)), f)


@family("attention")
def attention_shared_key_value(b):
    """Keys are the values; their dequantize and scale are shared by both products."""
    g = b.g
    kv = g.multiply(b.quantised(2, 3, 5, 8), b.input(1))
    return b.finish(g.matmul(g.softmax(scores(b, b.input(2, 3, 4, 8), kv), axis=-1), kv), "f32")


@family("gated_mlp")
def gated_mlp(b):
    g, f = b.g, b.some("f32", "bf16", "f16", "int8")
    wide = "f32" if f in ("bf16", "f16") and b.rng.integers(2) else None
    src = b.input(2, 8, dtype="u8" if f == "int8" else f)

    def x():
        return g.dequantize(src, scales=[0.1], zps=[128]) if f == "int8" else src

    def weights(k, n):
        if f == "int8":
            return b.quantised(k, n, dtype="s8", axis=1)
        if b.rng.random() < 0.3:
            return g.dynamic_dequantize(b.input(k, n, dtype=b.some("s8", "u4")), b.input(k // 4, n, dtype=f),
                                        qtype="per_group", axis=0, group_shape=[4, 1])
        return b.input(k, n, dtype=f)

    shared = x() if b.rng.integers(2) else None
    gate = g.matmul(shared or x(), weights(8, 12), dtype=wide)
    up = g.matmul(shared or x(), weights(8, 12), dtype=wide)
    kind = b.some("swish", "gelu", "gelu_tanh", "relu")
    gate = {"swish": lambda: g.multiply(g.sigmoid(gate), gate), "gelu": lambda: g.gelu(gate), "relu": lambda:
            g.relu(gate), "gelu_tanh": lambda: g.gelu(gate, mode="gelu_tanh")}[kind]()
    y = g.multiply(*b.some((gate, up), (up, gate)))
    if wide:
        y = g.type_cast(y, dtype=f)
    if f == "int8":
        y = g.multiply(y, b.input(12)) if b.rng.integers(2) else y
        y = g.dequantize(g.quantize(y, dtype="s8", scales=[0.2]), scales=[0.2])
    return b.finish(g.matmul(y, weights(12, 8)), f)


def member(name, seed):
    """The `seed`-th member of a family and its anchor."""
    return FAMILIES[name](np.random.default_rng([seed, *name.encode()]))

"""Families of several matmuls: attention and gated feed-forward layers."""
from families.build import family


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
    q, k, v = (b.quantized(2, 3, n, 8, cast=cast) for n in (4, 5, 5))
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
    kv = g.multiply(b.quantized(2, 3, 5, 8), b.input(1))
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
            return b.quantized(k, n, dtype="s8", axis=1)
        if b.rng.random() < 0.3:
            return g.dynamic_dequantize(b.input(k, n, dtype=b.some("s8", "u4")), b.input(k // 4, n, dtype=f),
                                        qtype="per_group", axis=0, group_shape=[4, 1])
        return b.input(k, n, dtype=f)

    shared = x() if b.rng.integers(2) else None
    gate = g.matmul(x() if shared is None else shared, weights(8, 12), dtype=wide)
    up = g.matmul(x() if shared is None else shared, weights(8, 12), dtype=wide)
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

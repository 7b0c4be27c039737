"""Networks of several partitions, and random graphs, to cut."""
import numpy as np

from graphq.ir import Graph, Value

SAME = {"strides": [1, 1], "pads_begin": [1, 1], "pads_end": [1, 1], "dilations": [1, 1]}


def cnn_int8():
    """Convolutions with int8 between them, a residual sum whose dequantize has two users, a pool and a classifier."""
    g = Graph("cnn_int8")
    q = g.input("x", dtype="u8", shape=(1, 6, 6, 4))

    def weights(*shape):
        w = g.constant(np.random.default_rng(len(g.nodes)).integers(-127, 128, shape).astype(np.int8))
        return g.dequantize(w, qtype="per_channel", axis=len(shape) - 1, scales=[0.01] * shape[-1])

    def conv(x):
        return g.convolution(x, weights(3, 3, 4, 4), np.ones(4, np.float32), **SAME)

    for _ in range(2):
        x = g.dequantize(q, scales=[0.1], zps=[128])
        y = g.quantize(g.relu(conv(x)), dtype="u8", scales=[0.1])
        y = conv(g.dequantize(y, scales=[0.1]))
        q = g.quantize(g.relu(g.add(y, x)), dtype="u8", scales=[0.1], zps=[128])
    x = g.reduce_mean(g.dequantize(q, scales=[0.1], zps=[128]), axes=[1, 2])
    y = g.matmul(g.dequantize(g.quantize(x, dtype="u8", scales=[0.1]), scales=[0.1]), weights(4, 10))
    g.output(g.softmax(y, axis=-1), name="y")
    block = ["eltwise", "convolution", "convolution"]  # the dequantize of two users stands alone
    return g, [*block * 2, "reduce_mean", "matmul", "softmax"]


def transformer(layers=2):
    """Blocks of layer norm, projections, attention, residual sums and a gated MLP; also returns what is between."""
    g = Graph("transformer")
    x = g.input("x", dtype="f32", shape=(1, 5, 8))
    mask = g.input("mask", dtype="f32", shape=(5, 5))
    count = iter(range(1000))

    def dense(x, n):
        return g.matmul(x, g.input(f"w{next(count)}", dtype="f32", shape=(x.shape[-1], n)))

    def heads(x):
        return g.static_transpose(g.static_reshape(dense(x, 8), shape=[1, 5, 2, 4]), order=[0, 2, 1, 3])

    for k in range(layers):
        h = g.rms_norm(x, np.ones(8, np.float32))
        s = g.add(g.divide(g.matmul(heads(h), heads(h), transpose_b=True), 2.0), mask)
        y = g.matmul(g.softmax(s, axis=-1), heads(h))
        y = g.static_reshape(g.static_transpose(y, order=[0, 2, 1, 3]), shape=[1, 5, 8])
        x = g.add(x, dense(y, 8))
        h = g.rms_norm(x, np.ones(8, np.float32))
        gate = dense(h, 12)
        x = g.add(x, dense(g.multiply(g.multiply(gate, g.sigmoid(gate)), dense(h, 12)), 8))
        g.output(x, name=f"block{k}")
    return g, [*["rms_norm", "matmul", "matmul", "matmul", "attention", "matmul", "rms_norm", "gated_mlp"] * layers]


def squeeze_excite():
    """A convolution whose result is also pooled, two small ones, and their product with it; depthwise before."""
    g = Graph("squeeze_excite")
    x = g.input("x", dtype="f32", shape=(1, 6, 6, 4))
    rng = np.random.default_rng(0)

    def conv(x, taps, i, o, groups=1):
        pad = [taps // 2] * 2
        return g.convolution(x, rng.standard_normal((taps, taps, i // groups, o)).astype(np.float32), strides=[1, 1],
                             pads_begin=pad, pads_end=pad, dilations=[1, 1], groups=groups)

    y = g.hard_swish(conv(g.relu(conv(x, 1, 4, 8)), 3, 8, 8, 8))
    s = g.avg_pool(y, kernel=[6, 6], strides=[1, 1], pads_begin=[0, 0], pads_end=[0, 0], exclude_pad=True)
    s = g.hard_sigmoid(conv(g.relu(conv(s, 1, 8, 2)), 1, 2, 8), alpha=0.2, beta=0.5)
    y = conv(g.multiply(y, s), 1, 8, 4)
    g.output(g.add(g.batch_norm_inference(y, *[np.ones(4, np.float32)] * 4, epsilon=1e-3), x), name="y")
    return g, ["convolution", "avg_pool", "convolution", "convolution", "eltwise", "convolution"]


def marked():
    """An end on a value in the middle of a chain, and two users of a shared cast."""
    g = Graph("marked")
    x = g.input("x", dtype="u8", shape=(4, 4))
    d = g.dequantize(x, scales=[0.1])
    y = g.matmul(d, np.ones((4, 4), np.float32))
    g.end(y)
    a, b = g.relu(y), g.softmax(g.add(d, y), axis=-1)
    g.output(g.multiply(a, b), name="y")
    g.output(a, name="a")
    return g, ["eltwise", "matmul", "end", "eltwise", "eltwise", "softmax"]


def returning_statistics():
    """Softmax's statistics come back to its chain through a reduction, and stand before its end."""
    g = Graph("returning_statistics")
    x = g.input("x", dtype="f32", shape=(4, 4))
    y, stats = g.softmax(x, axis=-1, keep_stats=True)
    top = g.reduce_max(stats, axes=[0], keep_dims=True)
    g.output(g.tanh(top), name="top")
    z = g.relu(y)
    g.output(g.multiply(z, top), name="z")
    return g, ["softmax", "reduce_max", "eltwise", "eltwise"]


def statistics_used_early():
    """A user of the statistics stands in the graph before the last operation of their group."""
    g = Graph("statistics_used_early")
    x, w = g.input("x", dtype="f32", shape=(4, 4)), g.input("w", dtype="f32", shape=(4, 1))
    y, mean, _ = g.layer_norm(g.type_cast(x, dtype="bf16"), use_affine=False)
    other = g.matmul(mean, w)
    named = g.exp(other, name="named")
    z = g.relu(g.add(y, y))
    g.output(named, name="other")
    g.output(z, name="z")
    return g, ["layer_norm", "matmul"]


NETWORKS = (cnn_int8, transformer, squeeze_excite, marked, returning_statistics, statistics_used_early)


def random_graph(seed, size=18, marks=False):
    """Operations of all kinds on [4,4] tensors, with shared values, several outputs and statistics."""
    rng = np.random.default_rng(seed)
    g = Graph("random")
    values = [g.input(f"x{k}", dtype="f32", shape=(4, 4)) for k in range(2)]
    narrow = [g.input("q", dtype="u8", shape=(4, 4))]

    def pick(recent=4):
        return values[max(0, len(values) - 1 - int(rng.exponential(recent)))]

    def statistics(outs):
        values.append(g.add(outs[1], np.zeros((4, 4), np.float32)) if rng.random() < 0.5 else outs[0])
        return outs[0]

    makers = [
        lambda: g.relu(pick()), lambda: g.tanh(pick()), lambda: g.add(pick(), pick()),
        lambda: g.multiply(pick(), pick()),
        lambda: g.matmul(pick(), pick(2)), lambda: g.matmul(pick(0.5), pick()), lambda: g.softmax(pick(1), axis=-1),
        lambda: g.static_transpose(pick(), order=[1, 0]), lambda: g.static_reshape(pick(1), shape=[4, 4]),
        lambda: g.dequantize(narrow[rng.integers(len(narrow))], scales=[0.1]),
        lambda: narrow.append(g.quantize(pick(0.5), dtype="u8", scales=[0.1], zps=[9])),
        lambda: statistics(g.softmax(pick(1), axis=-1, keep_stats=True)),
        lambda: g.rms_norm(pick()), lambda: g.log_softmax(pick(), axis=0),
    ]
    if marks:
        makers += [lambda: g.wildcard(pick(), dtypes=["f32"], shapes=[[4, 4]]), lambda: g.end(pick())]
    while len(g.nodes) < size:
        made = makers[rng.integers(len(makers))]()
        if isinstance(made, Value):
            values.append(made)
    loose = [o for n in g.nodes for o in n.outputs[:1] if not o.uses]
    for k, v in enumerate([*loose, *[v for v in values if v.node is not None and rng.random() < 0.1 and v.uses]]):
        g.output(v, name=f"y{k}")
    return g


def relu_or_tanh():
    """A graph whose one operation has two bodies."""
    g = Graph()
    x, c = g.input("x", dtype="f32", shape=(4,)), g.input("c", dtype="boolean", shape=())
    bodies = []
    for op in ("relu", "tanh"):
        body = Graph(op)
        body.output(getattr(body, op)(body.input("a", dtype="f32", shape=(4,))))
        bodies.append(body)
    g.output(g.if_else(c, x, then_body=bodies[0], else_body=bodies[1]), name="y")
    return g

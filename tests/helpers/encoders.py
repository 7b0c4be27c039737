"""Small text encoders as graphs: token ids and a mask in, hidden states or one vector per row out."""
import numpy as np

import graphq as gq

WIDTH, HEADS, WORDS, POSITIONS = 16, 2, 30, 100


def encoder(mask="lowest", *, quantized=False, pooling="none", positions="table", layers=1, hidden=-np.inf):
    """An encoder of one or more layers of attention, and a matmul.

    `mask`: none, lowest (adds f32's lowest number), highest (the same by f32's highest number), small (adds -10000),
    where (selects `hidden`), causal (as where), or both (hides padded queries as well).

    `quantized`: False, "static" or "dynamic". `pooling`: none, cls, mean, last.
    `positions`: table, rotary, relative or none.
    """
    g, rng = gq.Graph("encoder"), np.random.default_rng(5)
    ids, seen = (g.input(name, dtype="s64", shape=(None, None)) for name in ("ids", "mask"))

    def weights(*shape):
        return rng.normal(size=shape).astype(np.float32) / np.sqrt(np.float32(shape[0]))

    def product(x, *shape, scale=0.05):
        w = weights(*shape)
        if quantized == "static":
            x = rounded(x, scale)
            w = g.dequantize(g.constant(np.clip(np.rint(w / 0.01), -127, 127).astype(np.int8)), scales=[0.01])
        if quantized == "dynamic":
            s, zp = g.dynamic_range(x)
            x = g.dynamic_dequantize(g.dynamic_quantize(x, s, zp, dtype="u8"), s, zp)
            w = g.dequantize(g.constant(np.clip(np.rint(w / 0.01), -127, 127).astype(np.int8)), scales=[0.01])
        return g.matmul(x, w)

    def rounded(x, scale, zp=128):
        return g.dequantize(g.quantize(x, dtype="u8", scales=[scale], zps=[zp]), scales=[scale], zps=[zp])

    def by_heads(x):
        x = g.static_reshape(x, shape=[0, 0, HEADS, WIDTH // HEADS], special_zero=True)
        return g.static_transpose(x, order=[0, 2, 1, 3])

    def turned(x, angles):
        half = WIDTH // HEADS // 2
        a, b = (g.slice(x, axes=[3], starts=[k], ends=[k + half], steps=[1]) for k in (0, half))
        cos, sin = g.cos(angles), g.sin(angles)
        return g.concat(g.subtract(g.multiply(a, cos), g.multiply(b, sin)),
                        g.add(g.multiply(b, cos), g.multiply(a, sin)), axis=3)

    x = g.gather(g.constant(weights(WORDS, WIDTH)), ids)
    # the position of each token: ones, added up
    places = g.subtract(g.cum_sum(g.cast(g.equal(ids, ids), dtype="f32"), axis=1), 1.0)
    steps = g.cast(places, dtype="s64")
    if positions == "table":
        x = g.add(x, g.gather(g.constant(weights(POSITIONS, WIDTH)), steps))
    real = g.cast(seen, dtype="f32")
    keys = g.static_reshape(real, shape=[0, 1, 1, -1], special_zero=True)
    for _ in range(layers):
        q, k, v = (by_heads(product(x, WIDTH, WIDTH)) for _ in range(3))
        if positions == "rotary":
            rates = g.constant(np.float32([1, 0.3, 0.1, 0.01]))
            angles = g.multiply(g.static_reshape(places, shape=[0, 1, -1, 1], special_zero=True), rates)
            q, k = turned(q, angles), turned(k, angles)
        if quantized == "static":
            q, k, v = (rounded(y, 0.04) for y in (q, k, v))
        scores = g.multiply(g.matmul(q, k, transpose_b=True), 0.35)
        if positions == "relative":
            line, column = (g.static_reshape(places, shape=shape, special_zero=True) for shape in (
                [0, 1, -1, 1], [0, 1, 1, -1]))
            scores = g.subtract(scores, g.multiply(g.abs(g.subtract(line, column)), 0.1))
        if mask in ("lowest", "small"):
            low = np.finfo(np.float32).min if mask == "lowest" else np.float32(-10000)
            scores = g.add(scores, g.multiply(g.subtract(1.0, keys), low))
        elif mask == "highest":
            scores = g.add(scores, g.multiply(g.subtract(keys, 1.0), np.finfo(np.float32).max))
        elif mask != "none":
            shown = g.greater(keys, 0.0)
            if mask != "where":
                queries = g.static_reshape(real if mask == "both" else places, shape=[0, 1, -1, 1], special_zero=True)
                other = g.static_reshape(places, shape=[0, 1, 1, -1], special_zero=True)
                shown = g.logical_and(shown, g.greater(queries, 0.0) if mask == "both" else
                                      g.greater_equal(queries, other))
            scores = g.select(shown, scores, np.float32(hidden))
        p = g.softmax(scores, axis=-1)
        if quantized == "static":
            p = rounded(p, 1 / 255, 0)
        y = g.static_transpose(g.matmul(p, v), order=[0, 2, 1, 3])
        y = g.static_reshape(y, shape=[0, 0, WIDTH], special_zero=True)
        x = g.layer_norm(g.add(x, product(y, WIDTH, WIDTH)), use_affine=False, keep_stats=False)
    if pooling == "cls":
        x = g.gather(x, g.constant(np.array(0)), axis=1)
    elif pooling == "last":
        x = g.gather(x, g.constant(np.array(-1)), axis=1)
    elif pooling == "mean":
        each = g.static_reshape(real, shape=[0, -1, 1], special_zero=True)
        x = g.divide(g.reduce_sum(g.multiply(x, each), axes=[1]), g.reduce_sum(each, axes=[1]))
    elif pooling == "product":  # a mean as a product: 1 x length times length x width
        line = g.static_reshape(real, shape=[0, 1, -1], special_zero=True)
        x = g.matmul(line, x)
    g.output(x, name="y")
    return g


def feed(lengths, width):
    """Token ids and masks of rows of these lengths, padded to `width`."""
    ids = np.zeros((len(lengths), width), np.int64)
    for k, n in enumerate(lengths):
        ids[k, :n] = np.random.default_rng(n).integers(1, WORDS, n)
    return {"ids": ids, "mask": (np.arange(width) < np.array(lengths)[:, None]).astype(np.int64)}

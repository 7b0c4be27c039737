"""A quantized dense layer, with options."""
import numpy as np

import graphq as gq


def dense(m=33, k=130, n=77, *, x="u8", w="s8", zx=7, zw=None, out="u8", constant=True, batch=(), w_batch=(),
          transpose_a=False, transpose_b=False, bias="operand", residual=True, activation="relu", seed=0):
    """dequantize -> matmul -> bias -> activation -> [+ residual] -> [quantize]"""
    rng = np.random.default_rng(seed)
    g = gq.Graph("dense")
    source = g.input("x", shape=(*batch, k, m) if transpose_a else (*batch, m, k), dtype=x)
    shape = (*w_batch, n, k) if transpose_b else (*w_batch, k, n)
    low, high = (-127, 128) if w == "s8" else (0, 256)
    data = rng.integers(low, high, shape).astype(gq.dtypes.as_dtype(w).numpy)
    (data.swapaxes(-1, -2) if transpose_b else data)[..., :k // 2, :] //= 2  # so that vpmaddubsw takes some
    weights = g.constant(data) if constant else g.input("w", shape=shape, dtype=w)
    zps = None if zw is None else rng.integers(*zw, n).tolist()
    a = g.dequantize(source, scales=[0.02], zps=[zx])
    b = g.dequantize(weights, qtype="per_channel", axis=-2 if transpose_b else -1, scales=rng.uniform(1e-3, 4e-3, n),
                     zps=zps)
    offsets = rng.standard_normal(n).astype(np.float32)
    y = g.matmul(a, b, offsets if bias == "operand" else None, transpose_a=transpose_a, transpose_b=transpose_b)
    y = {"operand": lambda: y, "op": lambda: g.bias_add(y, offsets), "add": lambda: g.add(offsets, y),
         "none": lambda: y}[bias]()
    y = getattr(g, activation)(y) if activation else y
    if residual:
        y = g.add(g.dequantize(g.input("z", shape=y.shape, dtype="u8"), scales=[0.01], zps=[3]), y)
    g.output(g.quantize(y, dtype=out, scales=[0.11], zps=[3]) if out != "f32" else y, name="y")
    return g

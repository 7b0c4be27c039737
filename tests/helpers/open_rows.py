"""A network with an open number of rows."""
import numpy as np

import graphq as gq


def network(columns: int) -> gq.Graph:
    """A quantized layer of 64 inputs and so many outputs, and softmax."""
    rng = np.random.default_rng(0)
    g = gq.Graph("net")
    x = g.dequantize(g.input("x", shape=(None, 64), dtype="u8"), scales=[0.02], zps=[120])
    w = g.dequantize(g.constant(rng.integers(-127, 128, (64, columns), dtype=np.int8)), scales=[0.01])
    g.output(g.softmax(x @ w, axis=-1), name="y")
    return g

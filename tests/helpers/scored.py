"""A small model, its artifact and data, for tests of graphq.scoring; and what workers do beside scoring."""
import time

import numpy as np

import graphq as gq


def model():
    """u8 rows of 16 to four floats and their maximum."""
    rng = np.random.default_rng(0)
    g = gq.Graph("net")
    x = g.dequantize(g.input("x", shape=(None, 16), dtype="u8"), scales=[0.02], zps=[120])
    w = g.dequantize(g.constant(rng.integers(-127, 128, (16, 4), dtype=np.int8)), scales=[0.01])
    y = g.softmax(x @ w, axis=-1)
    g.output(y, name="y")
    g.output(g.reduce_max(y, axes=[-1]), name="best")
    return gq.compile(g, threads=1)


def rows(count):
    return np.random.default_rng(1).integers(0, 256, (count, 16), dtype=np.uint8)


def slowly(block):
    """A block after a while, so that there is a midst to kill a worker in."""
    time.sleep(0.05)
    return block


def results(dask_worker):
    """How many results a worker of Dask's holds."""
    return len(dask_worker.data)

"""Random inputs: the same for a seed, around zero points, and of numbers that operations accept."""
import numpy as np

import graphq as gq
from graphq.commands.random_inputs import accepted_inputs


def dense(zp=0):
    return gq.parse(f"""graph(t0: u8[16,64], t1: s8[64,8]) {{
      %0 = dequantize(t0, scales=[0.1], zps=[{zp}])
      %1 = dequantize(t1, scales=[0.1])
      %2 = matmul(%0, %1)
      return %2
    }}""")


def test_inputs_are_the_same_for_a_seed():
    g = dense()
    a, b, c = (accepted_inputs(g, seed) for seed in (0, 0, 1))
    assert all(np.array_equal(a[k], b[k]) and not np.array_equal(a[k], c[k]) for k in a)
    assert a["t0"].max() > 250 and a["t1"].min() < -120


def test_narrow_inputs_lie_around_the_zero_point():
    x = accepted_inputs(dense(zp=120), 0, spread=0.05)["t0"]
    assert 113 <= x.min() < 120 < x.max() <= 127


def test_inputs_by_their_meaning():
    g = gq.Graph()
    x = g.input("x", dtype="f32", shape=(50, 4))
    p = [g.input(n, dtype="f32", shape=(4,)) for n in ("gamma", "beta", "mean", "variance")]
    y = g.dynamic_quantize(g.batch_norm_inference(x, *p, epsilon=0.0), g.input("scale", dtype="f32", shape=(1,)),
                           g.input("zp", dtype="s8", shape=(1,)), dtype="s8")
    g.output(y)
    g.output(g.log(g.input("l", dtype="f32", shape=(9,))))
    values = accepted_inputs(g, 0)
    assert all((values[n] > 0).all() for n in ("variance", "scale", "l")) and (values["x"] < 0).any()
    assert values["zp"].dtype == np.int8

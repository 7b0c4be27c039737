"""What is said of each quantize after a sum: proved or estimated bounds, or why its outputs near ties stay."""
import numpy as np
import pytest

import graphq as gq
from graphq.kernels.families import lower_partition
from graphq.kernels.lanes.expression import load
from graphq.passes.pipeline import run_passes

RNG = np.random.default_rng(0)
W = RNG.integers(-127, 128, (16, 8)).astype(np.int8)
TIES16 = "quantize to u16 is not settled: at 16 bits f32 sums decide too many outputs"
OTHER = ("quantize is not settled: the sum before it does not multiply operands with constant scales, in "
         "windows of at most 1024 taps")
UNBOUNDED = "quantize is not settled: no bound says how far quantize carries differences"


def lowered(after, source=None, constant=True, **weights):
    """The lowered partition of a matmul of 4 x 16 and 16 x 8, and what `after(g, y)` makes of it."""
    g = gq.Graph()
    x = source(g) if source else g.dequantize(g.input("x", dtype="u8", shape=(4, 16)), scales=[0.013], zps=[120])
    w = g.constant(W) if constant else g.input("w", dtype="s8", shape=(16, 8))
    y = g.matmul(x, g.dequantize(w, **{"scales": [0.021], **weights}))
    g.output(after(g, y), name="y")
    run_passes(g)
    (node,) = g.nodes_of(("partition",))
    return lower_partition(node)


def quantize(g, y, dtype="u8", **options):
    return g.quantize(y, dtype=dtype, **{"scales": [0.37], "zps": [3], **options})


def requantized(g, y, scale=0.37, dtype="u8"):
    return g.dequantize(g.quantize(y, dtype=dtype, scales=[scale], zps=[9]), scales=[scale], zps=[9])


@pytest.mark.parametrize("after, constant, ties", [
    (quantize, True, ("proved",)), (lambda g, y: quantize(g, g.relu(y)), True, ("proved",)),
    (lambda g, y: quantize(g, requantized(g, y), scales=[0.21]), True, ("proved",)),
    (lambda g, y: quantize(g, g.add(requantized(g, y), y)), True, ("proved", "proved")),
    (lambda g, y: quantize(g, y, "u16"), True, (TIES16,)), (lambda g, y: y, True, ()),
    (lambda g, y: quantize(g, g.add(requantized(g, y), y), "u16"), True, ("proved", TIES16)),
    (lambda g, y: quantize(g, g.add(requantized(g, y, dtype="u16"), y)), True, (TIES16, UNBOUNDED)),
    (lambda g, y: quantize(g, y, qtype="per_channel", axis=1, scales=[0.3 + 0.1 * k for k in range(8)],
                           zps=[*range(8)]), True, ("proved",)), (quantize, False, ("proved",)),
    (lambda g, y: quantize(g, y, scales=[0.01]), True, ("estimated",))])  # of so small a step bounds are a part
def test_words(after, constant, ties):
    x = lowered(after, constant=constant)
    assert x.ties == ties and x.values == {}
    assert (x.epilogue.second_look is not None) == bool({"proved", "estimated"} & set(ties))


def test_scales_that_are_tensors_say_why():
    def source(g):
        q, s = g.input("x", dtype="u8", shape=(4, 16)), g.input("s", dtype="f32", shape=())
        return g.dynamic_dequantize(q, s)

    assert lowered(quantize, source).ties == (OTHER,)


def test_what_a_second_look_takes():
    x = lowered(lambda g, y: quantize(g, g.relu(y)))
    look = x.epilogue.second_look
    scale, zero_point, start = (x.sources[f.value[0]] for f in look.factors)
    assert (scale.role, zero_point.role, start.role) == ("w_scale", "w_zp", "start")
    assert np.float32(scale.data).tolist() == [np.float32(0.021)] and not zero_point.data.any() and not start.data.any()
    assert all(isinstance(load(*x), type(look.needed)) for x in x.epilogue.loads)


def test_a_second_look_takes_the_zero_points_of_all_columns():
    zps = [3, 3, 0, 3, -5, 3, 3, 3]  # of which the first and the last are equal
    x = lowered(quantize, qtype="per_channel", axis=1, scales=[0.021] * 8, zps=zps)
    _, zero_point, _ = (x.sources[f.value[0]] for f in x.epilogue.second_look.factors)
    assert zero_point.data.tolist() == zps


def test_outputs_near_a_tie_are_those_of_the_graph_as_written():
    g = gq.Graph()
    x = g.dequantize(g.input("x", dtype="u8", shape=(64, 16)), scales=[0.25], zps=[128])
    y = g.matmul(x, g.dequantize(g.constant(W), scales=[0.5]))
    g.output(quantize(g, y, scales=[8.0], zps=[128]), name="y")
    written = g.copy()
    run_passes(g)
    (node,) = g.nodes_of(("partition",))
    data = RNG.integers(120, 137, (64, 16)).astype(np.uint8)
    made = lower_partition(node)
    got = made.formula([data, *(v.data for v in node.operands if v.data is not None)])
    assert np.array_equal(got, gq.reference(written, {"x": data})) and made.ties == ("estimated",)
    assert ((got > 0) & (got < 255)).mean() > 0.9

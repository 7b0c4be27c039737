"""Convolutions and pools as users write them: attributes left out or one number, and formats that are mixed up."""
import inspect

import numpy as np
import pytest

import graphq as gq
from graphq.errors import GraphError
from graphq.ir.op import OPS

RNG = np.random.default_rng(17)


@pytest.mark.parametrize("axes", [1, 2, 3])
@pytest.mark.parametrize("name, w", [("convolution", [4, 3]), ("conv_transpose", [4, 3])])
def test_attributes_of_the_common_case_may_be_left_out(g, name, w, axes):
    x = g.input("x", dtype="f32", shape=(1, *[9] * axes, 3))
    weights = np.ones([3] * axes + (w if name == "conv_transpose" else w[::-1]), np.float32)
    y = getattr(g, name)(x, weights)
    one, zero = (1,) * axes, (0,) * axes
    want = {"strides": one, "dilations": one, "pads_begin": zero, "pads_end": zero}
    assert {k: y.node.attrs[k] for k in want} == want
    z = getattr(g, name)(x, weights, strides=np.int64(2), dilations=2, pads_begin=1, pads_end=[1] * axes)
    assert z.node.attrs["strides"] == z.node.attrs["dilations"] == (2,) * axes
    assert z.node.attrs["pads_begin"] == z.node.attrs["pads_end"] == one
    assert gq.to_text(gq.parse(str_of(g, z))) == str_of(g, z)


def str_of(g, value):
    g.set_outputs([value], ["y"])
    g.prune()
    return gq.to_text(g)


@pytest.mark.parametrize("name, extra", [("max_pool", {}), ("avg_pool", {"exclude_pad": True})])
def test_pools_take_numbers_too(g, name, extra):
    x = g.input("x", dtype="f32", shape=(1, 8, 8, 3))
    y = getattr(g, name)(x, kernel=2, strides=2, **extra)
    assert y.shape == (1, 4, 4, 3) and y.node.attrs["kernel"] == (2, 2) and y.node.attrs["pads_end"] == (0, 0)
    with pytest.raises(GraphError, match="attribute 'kernel' is required"):
        getattr(g, name)(x, **extra)


def test_the_rank_may_be_that_of_the_weights(g):
    x = g.input("x", dtype="f32")
    y = g.convolution(x, np.ones((3, 3, 2, 4), np.float32), pads_begin=1, pads_end=1)
    assert y.node.attrs["strides"] == (1, 1)
    with pytest.raises(GraphError, match=r"attribute 'strides' must be a list, because no operand's rank is known"):
        g.convolution(x, g.input("w", dtype="f32"))
    with pytest.raises(GraphError, match=r"'src' must have a batch, a channel and spatial axes"):
        g.convolution(g.input("flat", dtype="f32", shape=(3,)), x)
    with pytest.raises(GraphError, match="attribute 'strides' must be a list, got True"):
        g.convolution(x, np.ones((3, 3, 2, 4)), strides=True)


def test_signatures_show_what_may_be_left_out():
    shown = str(inspect.signature(gq.Graph().convolution))
    assert "strides: int | list[int] = 1" in shown and "pads_end: int | list[int] = 0" in shown
    assert "kernel: int | list[int]," in str(inspect.signature(gq.Graph().max_pool))
    assert OPS["pad"].per_axis == {}


def test_a_convolution_of_defaults_runs_in_integers():
    g = gq.Graph()
    x = g.dequantize(g.input("x", dtype="u8", shape=(1, 8, 8, 3)), scales=[0.1], zps=[7])
    w = g.dequantize(g.constant(RNG.integers(-9, 9, (3, 3, 3, 5)), dtype="s8"), scales=[0.2])
    g.output(g.quantize(g.convolution(x, w, pads_begin=1, pads_end=1), dtype="u8", scales=[3.0]), name="y")
    model = gq.compile(g, threads=1)
    data = RNG.integers(0, 256, (1, 8, 8, 3), dtype=np.uint8)
    assert model.coverage().share == 1 and np.array_equal(model(data), model.formula(data))


# -- formats that are mixed up --------------------------------------------------------------------------------

NCHW, OIHW = "f32[1,3,32,32]", "f32[8,3,5,5]"


@pytest.mark.parametrize("name, types, attrs, hint", [
    ("convolution", (NCHW, OIHW), {}, "; it fits data_format='NCX', weights_format='OIX'"),
    ("convolution", (NCHW, OIHW), {"data_format": "NCX"}, "; it fits weights_format='OIX'"),
    ("convolution", (NCHW, "f32[5,5,3,8]"), {}, "; it fits data_format='NCX'"),
    ("convolution", ("f32[1,32,32,3]", OIHW), {}, "; it fits weights_format='OIX'"),
    ("convolution", (NCHW, "f32[8,4,5,5]"), {}, None), ("convolution", (NCHW, "f32[8,3,5,5]"), {"strides": 0}, None),
    ("convolution", ("f32[1,5,32,5]", "f32[3,4,5,6]", "f32[7]"), {}, None),
    ("conv_transpose", (NCHW, "f32[3,8,5,5]"), {}, "; it fits data_format='NCX', weights_format='IOX'"),
    ("max_pool", ("f32[1,32,32,1]",), {"data_format": "NCX", "kernel": 2}, "; it fits data_format='NXC'"),
    ("bias_add", (NCHW, "f32[3]"), {}, "; it fits data_format='NCX'"),
    ("bias_add", (NCHW, "f32[4]"), {}, None)])
def test_errors_name_the_formats_that_fit(name, types, attrs, hint):
    g = gq.Graph()
    values = [g.input(f"x{k}", dtype="f32", shape=[int(d) for d in t[4:-1].split(",")]) for k, t in enumerate(types)]
    with pytest.raises(GraphError) as error:
        getattr(g, name)(*values, **attrs)
    assert str(error.value).endswith(hint) if hint else "it fits" not in str(error.value)

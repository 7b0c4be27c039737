"""Lowering of interpolation: refusals with their texts, and formulas against the reference."""
import numpy as np
import pytest

import graphq as gq
from graphq.kernels.family.unsupported import Unsupported
from graphq.kernels.interpolate.family import lower_interpolate

SCALE = {"scales": [0.5], "zps": [7]}
CHANNELS = {"qtype": "per_channel", "axis": 3, "scales": [0.5, 1.0, 2.0], "zps": [1, 2, 3]}


def body(build, dims=(2, 5, 6, 3), dtype="u8", dequantize=None):
    g = gq.Graph("body")
    x = g.input("x", dtype=dtype, shape=dims)
    g.output(build(g, x if dequantize is None else g.dequantize(x, **dequantize)), name="y")
    return g


def formula(g):
    rng = np.random.default_rng(0)
    (v,) = g.inputs
    x = rng.integers(-50 if v.dtype.name != "u8" else 0, 50, v.type.dims).astype(v.dtype.numpy)
    return lower_interpolate(g).formula([x]), gq.reference(g, {"x": x})


def interpolate(mode, sizes, transformation="half_pixel", **attrs):
    return lambda g, x: g.interpolate(x, mode=mode, sizes=list(sizes), coordinate_transformation_mode=transformation,
                                      **{"data_format": "NXC", **attrs})


@pytest.mark.parametrize("mode", ["nearest", "bilinear"])
@pytest.mark.parametrize("transformation", ["half_pixel", "align_corners"])
@pytest.mark.parametrize("sizes", [(10, 12), (7, 4), (1, 9), (5, 6)])
@pytest.mark.parametrize("dequantize", [None, SCALE, CHANNELS])
def test_interpolation(mode, transformation, sizes, dequantize):
    if mode == "nearest" and transformation == "align_corners":
        transformation = "half_pixel"
    got, want = formula(body(interpolate(mode, sizes, transformation), dequantize=dequantize,
                             dtype="f32" if dequantize is None else "u8"))
    assert got.shape == want.shape == (2, *sizes, 3)
    np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize("build, dims, reason", [
    (interpolate("nearest", (6, 3), data_format="NCX"), (2, 5, 6, 3), "kernels take channels last, data_format NXC"),
    (lambda g, x: g.softmax(interpolate("nearest", (10, 12))(g, x), axis=-1), (2, 5, 6, 3),
     "no lane-wise rule for softmax"),
    (lambda g, x: g.static_reshape(interpolate("nearest", (10, 12))(g, x), shape=[2, 120, 3]), (2, 5, 6, 3),
     "an operand of shape [2, 10, 12, 3] does not broadcast into the result")])
def test_interpolation_that_is_refused(build, dims, reason):
    with pytest.raises(Unsupported) as error:
        lower_interpolate(body(build, dims, "f32"))
    assert str(error.value).startswith(reason)


def test_volumes_and_epilogues():
    for mode in ("nearest", "trilinear"):
        def build(g, x, mode=mode):
            return g.relu(interpolate(mode, (4, 6, 3))(g, x))

        got, want = formula(body(build, (1, 2, 3, 4, 2), "f32"))
        np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-5)

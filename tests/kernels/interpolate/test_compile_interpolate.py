"""Compiled interpolates: the formula's bits at every level, close to the reference."""
import numpy as np
import pytest
from all_pairs import all_pairs
from compiled import compiled_beside_reference as check
from levels import WIDTHS

import graphq as gq

SIZES = [  # source, result
    ((5, 6), (10, 12)), ((7, 4), (3, 9)), ((3, 3), (1, 1)), ((1, 4), (6, 4)), ((5,), (8,)), ((3, 4, 2), (5, 4, 7)),
]
MODES = ["nearest", "linear"]
PLACES = ["half_pixel", "align_corners", "asymmetric"]


def graph(dtype, channels, sizes, mode, place, *, scales=(0.0173, 0.0219), batch=2):
    old, new = sizes
    g = gq.Graph()
    x = g.input("x", dtype=dtype, shape=(batch, *old, channels))
    y = g.dequantize(x, scales=[scales[0]], zps=[7]) if dtype in ("u8", "s8") else x
    y = g.interpolate(y, mode=mode, coordinate_transformation_mode=place, sizes=list(new))
    if dtype in ("u8", "s8"):
        y = g.quantize(y, dtype=dtype, scales=[scales[1]], zps=[7])
    g.output(y, name="y")
    return g


@pytest.mark.parametrize("sizes, place, mode, width, operand", all_pairs(
    SIZES, PLACES, MODES, WIDTHS, [("u8", 3), ("s8", 85)]), indirect=["width"])
def test_integers(width, sizes, mode, place, operand):
    got, want, _ = check(graph(*operand, sizes, mode, place), width)
    off = np.abs(got.astype(int) - want.astype(int))
    assert off.max() <= 1 and (off > 0).sum() <= off.size / 10_000


@pytest.mark.parametrize("ratio", [1, 2, 1.37, 0.5])
def test_means_of_commensurate_scales(width, ratio):
    """A sixteenth of the means are ties where the scale stays, which the roundings of the dequantized taps decide."""
    g = graph("u8", 64, ((20, 20), (40, 40)), "linear", "half_pixel", scales=(0.0173, 0.0173 * ratio))
    got, want, _ = check(g, width)
    off = np.abs(got.astype(int) - want.astype(int))
    assert got.size >= 200_000 and off.max() <= 1 and (off > 0).sum() <= off.size / 10_000


@pytest.mark.parametrize("sizes", SIZES[:2])
@pytest.mark.parametrize("dtype", ["u8", "s8"])
def test_nearest_of_one_scale_is_exact(width, sizes, dtype):
    got, want, _ = check(graph(dtype, 17, sizes, "nearest", "half_pixel", scales=(0.05, 0.05)), width)
    assert (got == want).all()


@pytest.mark.parametrize("sizes, mode, width, dtype", all_pairs(
    SIZES, MODES, WIDTHS, ["f32", "bf16", "f16"]), indirect=["width"])
def test_floats(width, sizes, mode, dtype):
    tolerance = {"f32": 1e-6, "bf16": 8e-3, "f16": 1e-3}[dtype]
    got, want = (x.astype(np.float64) for x in check(graph(dtype, 19, sizes, mode, "half_pixel"), width)[:2])
    np.testing.assert_allclose(got, want, rtol=0 if mode == "nearest" else tolerance, atol=1e-6)


@pytest.mark.parametrize("mode", MODES)
def test_infinities_do_not_spread_to_where_their_weight_is_zero(width, mode):
    g = graph("f32", 3, ((3, 4), (5, 4)), mode, "align_corners")
    x = np.random.default_rng(0).choice(np.float32([np.inf, 1, -2, 0.5]), (2, 3, 4, 3))
    got, want = gq.compile(g, isa=width)(x=x), gq.reference(g, x=x)
    np.testing.assert_allclose(got, want, rtol=1e-6)


def test_no_images(width):
    assert check(graph("u8", 3, SIZES[0], "linear", "half_pixel", batch=0), width)[0].size == 0


def test_post_operations(width):
    g = gq.Graph()
    x, z = g.input("x", dtype="s8", shape=(2, 3, 3, 20)), g.input("z", dtype="u8", shape=(2, 6, 6, 20))
    scales = np.linspace(0.01, 0.1, 20).tolist()
    y = g.interpolate(g.dequantize(x, qtype="per_channel", axis=-1, scales=scales, zps=[*range(20)]), mode="bilinear",
                      scales=[2.0, 2.0])
    y = g.relu(g.add(y, g.dequantize(z, scales=[0.01])))
    g.output(g.quantize(y, dtype="s8", scales=[0.05]), name="y")
    check(g, width)

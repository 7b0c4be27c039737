"""What is known of the sums of the graph as written: ranges, zero points, where sums start, and when nothing is."""
import numpy as np
import pytest

import graphq as gq
from graphq.kernels.family.anchored import dequantized_products
from graphq.kernels.family.scales import QuantParameter
from graphq.kernels.lanes.expression import acc

NODE = gq.parse("graph(x: f32[4,8], w: f32[8,3]) {\n %0 = matmul(x, w)\n return %0\n}").nodes[0]


def products(x_dtype="u8", x_zp=0, w_zp=0, start=None, **options):
    parameters = [QuantParameter(dtype, np.shape(x), np.asarray(x)) for dtype, x in
                  (("f32", np.float32(0.5)), ("f32", np.float32([0.25, 2])), (x_dtype, x_zp), ("s8", w_zp))]
    for name, x in options.pop("replaced", {}).items():
        parameters[("x_scale", "w_scale", "x_zp", "w_zp").index(name)] = x
    return dequantized_products(NODE, acc(), 8, *parameters, "chains", 16, x_dtype, 127, start=start, **options)


@pytest.mark.parametrize("dtype, zp, low, high", [
    ("u8", 0, 0, 255), ("u8", 3, -3, 252), ("u8", 255, -255, 0), ("s8", 0, -128, 127), ("s8", -128, 0, 255),
    ("s8", 127, -255, 0)])
def test_activations_are_those_of_the_type_less_the_zero_point(dtype, zp, low, high):
    result = products(dtype, zp)
    assert result.activations == (low, high) and result.sum.x_zp == zp
    assert (result.node, result.k, result.weights, result.batch) == (NODE, 8, 127, 1)


@pytest.mark.parametrize("w_zp, shift, packs, wanted", [
    (0, 0, True, [0]), (7, 0, True, [7]), ([1, -2], 0, True, [1, -2]), (200, -128, True, [72]),
    ([1, -2], 5, False, [0])])
def test_zero_points_that_packing_takes_off(w_zp, shift, packs, wanted):
    result = products(w_zp=w_zp, shift=shift, packed_zps=packs)
    assert result.packed_zps.dtype == np.int32 and result.packed_zps.tolist() == wanted
    assert result.sum.w_zp.tolist() == np.atleast_1d(w_zp).tolist()


def test_sums_start_where_it_is_said():
    bias = np.float32([[1, 2]])
    assert products().sum.start.tolist() == [0] and not products().starts_at_bias
    assert products(start=bias).sum.start.tolist() == [1, 2] and products(start=bias).starts_at_bias
    result = products(taps=9, batch=2)
    assert (result.sum.taps, result.batch, result.sum.order, result.sum.block) == (9, 2, "chains", 16)
    assert result.sum.x_scale == np.float32(0.5) and result.sum.w_scale.tolist() == [0.25, 2]


@pytest.mark.parametrize("name, dtype", [("x_scale", "f32"), ("w_scale", "f32"), ("x_zp", "u8"), ("w_zp", "s8")])
def test_nothing_is_known_where_a_parameter_is_not(name, dtype):
    assert products(replaced={name: QuantParameter(dtype)}) is None


@pytest.mark.parametrize("name, dtype", [("w_scale", "f32"), ("w_zp", "s8")])
def test_nor_where_weights_have_a_scale_or_a_zero_point_for_each_of_several_axes(name, dtype):
    assert products(replaced={name: QuantParameter(dtype, (2, 2), np.ones((2, 2), np.float32))}) is None

"""Scales and zero points, known or tensors: what they are when it runs, in epilogues, and how far integers reach.

What is known of the sums of the graph as written: ranges, zero points, where sums start, and when nothing is.
"""
import numpy as np
import pytest

import graphq as gq
from graphq.kernels.family.epilogue import EpilogueBuilder
from graphq.kernels.family.lower import (
    QuantParameter,
    given,
    known,
    parameters_of,
    reach,
    scaled,
    stated_sum,
    wrapped,
)
from graphq.kernels.family.unsupported import Unsupported
from graphq.kernels.lanes.epilogues import evaluate
from graphq.kernels.lanes.expression import acc

OUT = (2, 3)


def value(make, inputs=(), total=None):
    """What an expression that `make(e)` adds to an epilogue of OUT gives."""
    e = EpilogueBuilder(OUT, anchored=True)
    expr = make(e)
    operands = [(inputs[s.index] if s.data is None else s.data).reshape(s.shape) for s in e.sources]
    return np.broadcast_to(evaluate(expr, total, operands), OUT)


COLUMNS = np.array([3, -4, 5])


@pytest.mark.parametrize("parameter, inputs, wanted", [
    (known(7), [], 7), (known(COLUMNS, (3,)), [], COLUMNS), (known([9], (3,)), [], 9),
    (known(2**32 + 5), [], 5), (known(-1), [], -1), (known(7).shifted(-128), [], -121),
    (known(COLUMNS, (3,)).shifted(1).shifted(2), [], COLUMNS + 3),
    (QuantParameter("s8", (3,), index=1), [None, COLUMNS.astype(np.int8)], COLUMNS),
    (QuantParameter("u8", (), index=0).shifted(-128), [np.array([200], np.uint8)], 72),
    (QuantParameter("u8", (), index=0).shifted(-128).shifted(3), [np.array([0], np.uint8)], -125),
    (QuantParameter("s32", (2, 1), index=0), [np.array([5, -6], np.int32)], [[5], [-6]])])
def test_integers(parameter, inputs, wanted):
    got = value(parameter.expr, inputs)
    assert got.dtype == np.int32 and np.array_equal(got, np.broadcast_to(wanted, OUT))
    array = parameter.array(inputs)
    assert array.dtype == np.int64 and array.shape == parameter.shape
    assert np.array_equal(wrapped(np.broadcast_to(array, OUT)), got)


def test_only_what_is_known_to_be_zero_is_absent():
    assert known(0).absent and known([0, 0], (2,)).absent and known(3).shifted(-3).absent
    assert not known(1).absent and not known([0, 1], (2,)).absent and not QuantParameter("s8").absent
    assert not known(0).shifted(1).absent


TENTHS, HALVES = np.float32([0.1, 0.2, 0.7]), np.float32([[0.5], [0.3]])


@pytest.mark.parametrize("left, right", [
    (known(0.1, (), "f32"), known(0.3, (), "f32")), (known(0.1, (), "f32"), known(TENTHS, (3,), "f32")),
    (known(HALVES, (2, 1), "f32"), known(TENTHS, (3,), "f32")),
    (known(3e38, (), "f32"), known(TENTHS * 99, (3,), "f32")),
    (QuantParameter("f32", (2, 1), index=0), known(TENTHS, (3,), "f32")),
    (known(0.1, (), "f32"), QuantParameter("f32", (3,), index=1)),
    (QuantParameter("f32", (2, 1), index=0), QuantParameter("f32", (3,), index=1))])
def test_a_product_of_scales_is_rounded_once(left, right):
    inputs, total = [HALVES, TENTHS], np.float32([[1.1, -2.3, 3e-30], [7, 0.1, 9e9]])
    with np.errstate(over="ignore"):
        wanted = total * (left.array(inputs) * right.array(inputs))
        got = value(lambda e: scaled(e, acc("f32"), left, right), inputs, total)
    assert np.array_equal(got, wanted)


def test_a_product_of_one_takes_no_operation():
    e = EpilogueBuilder(OUT, anchored=True)
    total = acc("f32")
    assert scaled(e, total, known(0.5, (), "f32"), known(2, (), "f32")) is total and not e.sources
    assert scaled(e, total, known(1, (), "f32"), known([1, 2, 1], (3,), "f32")) is not total


@pytest.mark.parametrize("dtype, zps, wanted", [
    ("u8", 0, 255), ("u8", 255, 255), ("u8", 100, 155), ("u8", 200, 200), ("s8", 0, 128), ("s8", 127, 255),
    ("s8", -128, 255), ("s8", [1, -9, 3], 136), ("u8", [100, 120], 155), ("s8", [], 0)])
def test_how_far_integers_reach(dtype, zps, wanted):
    assert reach(dtype, known(zps, np.shape(zps))) == wanted
    assert reach(dtype, QuantParameter(dtype)) == 255


BODY = gq.parse("""graph(x: u8[2,3], s: f32[3], z: u8[3], one: f32[1], w: s8[3,4]) {
  %0 = dynamic_dequantize(x, s, z, qtype="per_channel", axis=1)
  %1 = dynamic_dequantize(x, one)
  %2 = dequantize(x, qtype="per_channel", axis=1, scales=[1,2,3], zps=[4,5,6])
  %3 = dequantize(x, scales=[0.5])
  return %0, %1, %2, %3
}""")


def test_parameters_of_each_dequantize():
    by_tensors, without, by_numbers, plain = BODY.nodes
    constants = [None] * len(BODY.inputs)
    scales, zps = parameters_of(by_tensors, BODY, constants, (3,))
    assert (scales.dtype, scales.shape, scales.index, scales.data) == ("f32", (3,), 1, None)
    assert (zps.dtype, zps.shape, zps.index, zps.data) == ("u8", (3,), 2, None)
    scale, zp = parameters_of(without, BODY, constants, (3,))
    assert scale.shape == () and zp.absent
    now = [None, np.float32([7, 8.5, 9]), np.uint8([1, 2, 3]), None, None]
    for node, arrays, shape, wanted in (
            (by_tensors, now, (3,), ([7, 8.5, 9], [1, 2, 3])), (by_numbers, constants, (3,), ([1, 2, 3], [4, 5, 6])),
            (plain, constants, (3,), (0.5, 0))):
        assert tuple(n.data.tolist() for n in parameters_of(node, BODY, arrays, shape)) == wanted
    assert given(BODY.inputs[1], BODY, constants, (3, 1)).shape == (3, 1)


@pytest.mark.parametrize("scale", [0.0, -0.5])
def test_constant_scales_that_are_not_positive_do_not_fuse(scale):
    by_tensors, _, by_numbers, _ = BODY.nodes
    with pytest.raises(Unsupported):
        parameters_of(by_tensors, BODY, [None, np.float32([7, scale, 9]), None, None, None], (3,))
    body = gq.parse(f"graph(x: u8[2,3]) {{\n %0 = dequantize(x, scales=[{scale}])\n return %0\n}}")
    with pytest.raises(Unsupported):
        parameters_of(body.nodes[0], body, [None])


NODE = gq.parse("graph(x: f32[4,8], w: f32[8,3]) {\n %0 = matmul(x, w)\n return %0\n}").nodes[0]


def stated(x_dtype="u8", x_zp=0, w_zp=0, start=None, **options):
    parameters = [QuantParameter(dtype, np.shape(x), np.asarray(x)) for dtype, x in
                  (("f32", np.float32(0.5)), ("f32", np.float32([0.25, 2])), (x_dtype, x_zp), ("s8", w_zp))]
    for name, x in options.pop("replaced", {}).items():
        parameters[("x_scale", "w_scale", "x_zp", "w_zp").index(name)] = x
    return stated_sum(NODE, acc(), 8, *parameters, "chains", 16, x_dtype, 127, start=start, **options)


@pytest.mark.parametrize("dtype, zp, low, high", [
    ("u8", 0, 0, 255), ("u8", 3, -3, 252), ("u8", 255, -255, 0), ("s8", 0, -128, 127), ("s8", -128, 0, 255),
    ("s8", 127, -255, 0)])
def test_activations_are_those_of_the_type_less_the_zero_point(dtype, zp, low, high):
    result = stated(dtype, zp)
    assert result.activations == (low, high) and result.sum.x_zp == zp
    assert (result.node, result.k, result.weights, result.batch) == (NODE, 8, 127, 1)


@pytest.mark.parametrize("w_zp, shift, packs, wanted", [
    (0, 0, True, [0]), (7, 0, True, [7]), ([1, -2], 0, True, [1, -2]), (200, -128, True, [72]),
    ([1, -2], 5, False, [0])])
def test_zero_points_that_packing_takes_off(w_zp, shift, packs, wanted):
    result = stated(w_zp=w_zp, shift=shift, packed_zps=packs)
    assert result.packed_zps.dtype == np.int32 and result.packed_zps.tolist() == wanted
    assert result.sum.w_zp.tolist() == np.atleast_1d(w_zp).tolist()


def test_sums_start_where_it_is_said():
    bias = np.float32([[1, 2]])
    assert stated().sum.start.tolist() == [0] and not stated().starts_at_bias
    assert stated(start=bias).sum.start.tolist() == [1, 2] and stated(start=bias).starts_at_bias
    result = stated(taps=9, batch=2)
    assert (result.sum.taps, result.batch, result.sum.order, result.sum.block) == (9, 2, "chains", 16)
    assert result.sum.x_scale == np.float32(0.5) and result.sum.w_scale.tolist() == [0.25, 2]


@pytest.mark.parametrize("name, dtype", [("x_scale", "f32"), ("w_scale", "f32"), ("x_zp", "u8"), ("w_zp", "s8")])
def test_nothing_is_known_where_a_parameter_is_not(name, dtype):
    assert stated(replaced={name: QuantParameter(dtype)}) is None


@pytest.mark.parametrize("name, dtype", [("w_scale", "f32"), ("w_zp", "s8")])
def test_nor_where_weights_have_a_scale_or_a_zero_point_for_each_of_several_axes(name, dtype):
    assert stated(replaced={name: QuantParameter(dtype, (2, 2), np.ones((2, 2), np.float32))}) is None

"""Scales and zero points, known or tensors: what they are when it runs, in epilogues, and how far integers reach."""
import numpy as np
import pytest

import graphq as gq
from graphq.kernels.family.epilogue import EpilogueBuilder
from graphq.kernels.family.scales import (
    QuantParameter,
    given,
    known,
    reach,
    scaled,
    scales_of,
    wrapped,
    zero_points_of,
)
from graphq.kernels.lanes.expression import acc
from graphq.kernels.lanes.stores import evaluate

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
    ("s8", -128, 255), ("s8", [1, -9, 3], 136), ("u8", [100, 120], 155)])
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
    scales, zps = (f(by_tensors, BODY, constants, (3,)) for f in (scales_of, zero_points_of))
    assert (scales.dtype, scales.shape, scales.index, scales.data) == ("f32", (3,), 1, None)
    assert (zps.dtype, zps.shape, zps.index, zps.data) == ("u8", (3,), 2, None)
    assert scales_of(without, BODY, constants, (3,)).shape == ()
    assert zero_points_of(without, BODY, constants, (3,)).absent
    now = [None, np.float32([7, 8, 9]), np.uint8([1, 2, 3]), None, None]
    assert scales_of(by_tensors, BODY, now, (3,)).data.tolist() == [7, 8, 9]
    assert zero_points_of(by_tensors, BODY, now, (3,)).data.tolist() == [1, 2, 3]
    assert scales_of(by_numbers, BODY, constants, (3,)).data.tolist() == [1, 2, 3]
    assert zero_points_of(by_numbers, BODY, constants, (3,)).data.tolist() == [4, 5, 6]
    assert scales_of(plain, BODY, constants, (3,)).data.tolist() == 0.5
    assert zero_points_of(plain, BODY, constants, (3,)).absent
    assert given(BODY.inputs[1], BODY, constants, (3, 1)).shape == (3, 1)

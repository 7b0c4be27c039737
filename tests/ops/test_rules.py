"""Type rules that operations share: broadcasts with unknown dimensions, axes, dtypes, and their refusals."""
from itertools import product

import numpy as np
import pytest

from graphq.dtypes import bf16, f16, f32, s8, s32, u8
from graphq.errors import GraphError
from graphq.ir import TensorType
from graphq.ops.rules import (
    binary_rule,
    broadcast,
    channel_axis,
    combine,
    equal_shapes,
    expect_dtype,
    expect_same_dtype,
    finite_f32,
    infer_unary,
    normal_axis,
    output_dtype,
    show,
)


@pytest.mark.parametrize("a, b", [*product([(), (1,), (3,), (2, 3), (2, 1), (1, 3), (4, 1, 3), (0,), (1, 0)],
                                           repeat=2)])
def test_broadcasts_are_numpys(a, b):
    try:
        wanted = np.broadcast_shapes(a, b)
    except ValueError:
        with pytest.raises(GraphError, match="do not broadcast: "):
            broadcast(a, b)
    else:
        assert broadcast(a, b) == wanted


def test_broadcasts_of_unknown_dimensions():
    assert broadcast((None, 3), (1, 3)) == (None, 3) and broadcast((None, 3), (5, 3)) == (5, 3)
    assert broadcast((None,), (None,)) == (None,) and broadcast((5, 1), (None,)) == (5, None)
    assert broadcast(None, (2,)) is None and broadcast((2,), (1,), (4, 1)) == (4, 2) and broadcast() == ()
    with pytest.raises(GraphError, match=r"shapes \[2,3\], \[1\] and \[4\] do not broadcast: 3 against 4 at axis -1"):
        broadcast((2, 3), (1,), (4,))
    with pytest.raises(GraphError, match="2 against 5 at axis -2"):
        broadcast((2, 3), (5, 3), None)


def test_equal_shapes():
    assert equal_shapes((2, None), (None, 3)) == (2, 3) and equal_shapes((2,), None) == (2,)
    assert equal_shapes(None, None) is None and equal_shapes((None,), (None,)) == (None,)
    for shapes in (((2,), (1,)), ((2,), (2, 2)), ((2, 3), (2, None), (2, 4))):
        with pytest.raises(GraphError, match="auto_broadcast 'none' needs equal shapes, got "):
            equal_shapes(*shapes)
    assert combine("numpy", (2, 1), (3,)) == (2, 3)
    with pytest.raises(GraphError):
        combine("none", (2, 1), (3,))


def test_axes():
    assert [normal_axis(k, (2, 3)) for k in (-2, -1, 0, 1)] == [0, 1, 0, 1]
    for axis in (-3, 2):
        with pytest.raises(GraphError, match=rf"k must be in \[-r, r-1\] with r = 2 for shape \[2,\?\], got {axis}"):
            normal_axis(axis, (2, None), "k")
    assert channel_axis("NCX", (1, 2, 3)) == 1
    assert channel_axis("NXC", (1, 2, 3)) == 2 and channel_axis("NXC", (4,)) == 0
    for data_format, shape in (("NCX", (4,)), ("NXC", ())):
        with pytest.raises(GraphError, match=f"data_format {data_format} needs a channel axis"):
            channel_axis(data_format, shape)
    assert show(None) == "[*]" and show((2, None)) == "[2,?]" and show(()) == "[]"


def test_dtypes():
    t = TensorType(u8, (2,))
    expect_dtype("x", t, (s8, u8))
    with pytest.raises(GraphError, match="'x' must be f32 or s8, got u8"):
        expect_dtype("x", t, (f32, s8))
    expect_same_dtype(a=t, b=None, c=t)
    with pytest.raises(GraphError, match="operands must have the same dtype, got 'a' u8, 'c' s8"):
        expect_same_dtype(a=t, b=None, c=TensorType(s8, (2,)))
    table = {f32: (f16, bf16)}
    assert output_dtype(f32, None, table) is f32 and output_dtype(f32, bf16, table) is bf16
    with pytest.raises(GraphError, match="dtype must be f16 or bf16 for an operand of f32, got s8"):
        output_dtype(f32, s8, table)
    assert infer_unary(TensorType(f16, (2,)), alpha=1) == TensorType(f16, (2,))
    with pytest.raises(GraphError, match="'src' must be"):
        infer_unary(t)


def test_attributes_are_finite_f32():
    assert finite_f32("alpha", 3e38) == 3e38
    for bad in (4e38, -4e38, float("nan"), float("inf")):
        with pytest.raises(GraphError, match="alpha must be a finite f32, got"):
            finite_f32("alpha", bad)


def infer(rule, a, b, dtype=None, auto_broadcast="numpy"):
    try:
        made = rule(TensorType(a, (2, 1)), TensorType(b, (3,)), auto_broadcast=auto_broadcast, dtype=dtype)
    except GraphError:
        return None
    assert made.shape == (2, 3)
    return made.dtype


@pytest.mark.parametrize("options, allowed", [
    ({}, {(f32, f32): f32, (f16, f16): f16, (bf16, bf16): bf16}),
    ({"mixed": True}, {(f32, f32): f32, (f16, f16): f16, (bf16, bf16): bf16, (f32, f16): f32, (bf16, f32): f32}),
    ({"integer": True}, {(f32, f32): f32, (f16, f16): f16, (bf16, bf16): bf16, (s32, s32): s32}),
    ({"mixed": True, "integer": True, "result": u8}, {
        (f32, f32): u8, (f16, f16): u8, (bf16, bf16): u8, (s32, s32): u8, (f32, f16): u8, (bf16, f32): u8})])
def test_binary_rules(options, allowed):
    rule = binary_rule(**options)
    for a, b in product((f32, f16, bf16, s32, u8), repeat=2):
        assert infer(rule, a, b) is allowed.get((a, b), allowed.get((b, a)))
    assert infer(rule, f32, f32, auto_broadcast="none") is None


@pytest.mark.parametrize("integer", [False, True])
def test_binary_rules_with_a_dtype(integer):
    rule = binary_rule(integer=integer)
    for a, b, dtype in product((f32, f16, bf16), (f32, f16, bf16), (f32, f16, bf16)):
        assert infer(rule, a, b, dtype) is dtype
    for a, b in ((s32, s32), (s32, f32), (f32, s32)):
        assert infer(rule, a, b, f32) is (f32 if integer else None)
    assert infer(rule, s32, f16, f32) is None and infer(rule, f32, f32, s32) is None
    assert infer(rule, s32, s32, s32) is (s32 if integer else None)

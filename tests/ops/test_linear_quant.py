"""quantize_linear and dequantize_linear: scales of each form by a formula written out, ends of ranges, refusals."""
import numpy as np
import pytest

import graphq as gq
from graphq.errors import GraphError

RNG = np.random.default_rng(6)
X = (RNG.standard_normal((2, 5, 3)) * 40).astype(np.float32)
FORMS = {  # the shape of the scales, axis, block_size
    "one": ((), 1, 0), "one in a list": ((1,), 1, 0), "axis 1": ((5,), 1, 0), "the last axis": ((3,), -1, 0),
    "blocks": ((2, 3, 3), 1, 2), "blocks of all": ((2, 1, 3), 1, 7), "blocks of one": ((2, 5, 3), -2, 1),
    "a block along a short axis": ((1, 5, 3), 0, 2)}


def wide(values, form):
    """Scales or zero points, one for each element of X."""
    shape, axis, block = form
    out, axis = np.empty(X.shape), axis % 3
    for place in np.ndindex(X.shape):
        if block:
            out[place] = values[tuple(k // block if d == axis else k for d, k in enumerate(place))]
        else:
            out[place] = values.ravel()[place[axis] if values.size > 1 else 0]
    return out


@pytest.mark.parametrize("dtype", ["u8", "s8", "s16", "u4", "s2"])
@pytest.mark.parametrize("with_point", [True, False])
@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_each_form_of_scales(run, form, with_point, dtype):
    d = gq.dtypes.as_dtype(dtype)
    scale = RNG.uniform(0.25, 4, form[0]).astype(np.float32)
    point = RNG.integers(int(d.min), int(d.max), form[0], endpoint=True).astype(d.numpy) if with_point else None
    s, z = wide(scale, form), 0 if point is None else wide(point.astype(np.int64), form)
    attrs = {"axis": form[1], "block_size": form[2]}
    q = run("quantize_linear", X, scale, point, dtype=dtype, **attrs)
    np.testing.assert_array_equal(q.astype(int), np.clip(np.rint(X / np.float32(s)) + z, int(d.min), int(d.max)))
    got = run("dequantize_linear", q, scale, point, **attrs)
    np.testing.assert_array_equal(got, (q.astype(int) - z).astype(np.float32) * np.float32(s))


def test_ties_ends_and_what_is_no_number(run):
    x = np.float32([0.5, 1.5, -0.5, -1.5, np.inf, -np.inf, np.nan, 3e38])
    one = np.float32(1)
    assert run("quantize_linear", x, one, np.uint8(9), dtype="u8").tolist() == [9, 11, 9, 7, 255, 0, 9, 255]
    assert run("quantize_linear", x, one, dtype="s8").tolist() == [0, 2, 0, -2, 127, -128, 0, 127]


def test_floats_as_results(run):
    x = np.float32([1.0625, 1e9, -1e9, np.inf, np.nan, 0.5])
    got = run("quantize_linear", x, np.float32(1), dtype="f8_e4m3").astype(np.float32)
    np.testing.assert_array_equal(got, np.float32([1, 448, -448, 448, np.nan, 0.5]))
    got = run("quantize_linear", x, np.float32(1), dtype="f8_e5m2", saturate=False).astype(np.float32)
    np.testing.assert_array_equal(got, np.float32([1, np.inf, -np.inf, np.inf, np.nan, 0.5]))
    got = run("quantize_linear", x, np.float32(1), dtype="f4_e2m1", saturate=False).astype(np.float32)
    assert got[[1, 2, 3, 5]].tolist() == [6, -6, 6, 0.5]
    point = np.float32(2).astype(gq.dtypes.as_dtype("f8_e4m3").numpy)
    got = run("quantize_linear", x[:1], np.float32(0.5), point, dtype="f8_e4m3")
    assert got.astype(np.float32) == 4  # of 4.125, between 4 and 4.5


def test_the_quotient_is_rounded_to_the_precision(run):
    x, one = np.float32([515, 2049]), np.float32(1)
    for precision, want in (("f32", [515, 2049]), ("f16", [515, 2048]), ("bf16", [516, 2048]), ("f64", [515, 2049])):
        assert run("quantize_linear", x, one, dtype="s16", precision=precision).tolist() == want


def test_products_are_rounded_to_the_result(run):
    q, scale = np.int16([257]), np.float32(1.0)
    assert run("dequantize_linear", q, scale).tolist() == [257]
    assert run("dequantize_linear", q, scale, dtype="bf16").astype(np.float32).tolist() == [256]
    big = np.int32([2**31 - 1])
    assert run("dequantize_linear", big, np.float32(1), np.int32(-2**31)).tolist() == [2.0**32]  # exact differences


@pytest.mark.parametrize("types, attrs", [
    (("f32[2,5]", "f32[4]"), {}), (("f32[2,5]", "f32[5]"), {"axis": 0}), (("f32[2,5]", "f32[2,1]"), {}),
    (("f32[2,5]", "f32[2,2]"), {"block_size": 2}), (("f32[2,5]", "f32[3]"), {"block_size": 2}),
    (("f32[2,5]", "f32[1]"), {"block_size": 2}), (("f32[2,5]", "f32[5]"), {"block_size": -1}),
    (("f32[2,5]", "f32[5]"), {"axis": 2}), (("f64[2,5]", "f32[5]"), {}), (("f32[2,5]", "f64[5]"), {}),
    (("f32[2,5]", "f32[5]", "s8[5]"), {}), (("f32[2,5]", "f32[5]", "u8[4]"), {}), (("f32[2,5]", "f32[5]", "u8[]"), {}),
    (("f32[2,5]", "f32[5]"), {"dtype": "s32"}), (("f32[2,5]", "f32[5]"), {"precision": "s32"})])
def test_what_quantize_refuses(infer, types, attrs):
    with pytest.raises(GraphError):
        infer("quantize_linear", *types, **{"dtype": "u8", **attrs})


def test_what_fits_open_shapes(infer):
    assert infer("quantize_linear", "f32[?,5]", "f32[?]", dtype="u4") == "u4[?,5]"
    assert infer("quantize_linear", "f32[2,?]", "f32[2,?]", "u8[2,3]", dtype="u8", block_size=2) == "u8[2,?]"
    assert infer("dequantize_linear", "s32[*]", "f8_e8m0[7]", dtype="f16") == "f16[*]"
    for types, attrs in ((("u8[2]", "f32[]", "s8[]"), {}), (("f32[2]", "f32[]"), {}), (("u8[2]", "s32[]"), {}),
                         (("u8[2]", "f32[]"), {"dtype": "f64"}), (("u8[?,5]", "f32[4]"), {})):
        with pytest.raises(GraphError):
            infer("dequantize_linear", *types, **attrs)

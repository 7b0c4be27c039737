"""quantize_linear and dequantize_linear: scales of each form by a formula written out, ends of ranges, refusals."""
import ml_dtypes
import numpy as np
import pytest

import graphq as gq
from graphq.dtypes import DTYPES
from graphq.errors import GraphError
from graphq.ir.op import lookup

INF, NAN = np.inf, np.nan


def f32(*values):
    return np.array(values, np.float32)


def onnx_run(op_type, opset, arrays, dtypes_out, **attrs):
    """One node in ONNX's reference evaluator."""
    onnx = pytest.importorskip("onnx")
    from onnx import helper
    from onnx.reference import ReferenceEvaluator

    names = [f"x{k}" for k in range(len(arrays))]
    node = helper.make_node(op_type, names, ["y"], **attrs)
    inputs = [helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
              for n, a in zip(names, arrays, strict=True)]
    output = helper.make_tensor_value_info("y", helper.np_dtype_to_tensor_dtype(np.dtype(dtypes_out)), None)
    model = helper.make_model(helper.make_graph([node], "g", inputs, [output]),
                              opset_imports=[onnx.helper.make_opsetid("", opset)])
    return ReferenceEvaluator(model).run(None, dict(zip(names, arrays, strict=True)))[0]


# -- values -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("dtype, zp, x, want", [
    ("u8", 0, [0.5, 1.5, 2.5, -0.5, 254.5, 255.5, 1e30, INF, -INF, NAN], [0, 2, 2, 0, 254, 255, 255, 255, 0, 0]),
    ("u8", 3, [0.5, 1.5, 2.5, -0.5, -3.6, NAN], [3, 5, 5, 3, 0, 3]),
    ("u8", 255, [-255, -254.5, -256, 0, 1, NAN], [0, 1, 0, 255, 255, 255]),
    ("s8", 0, [0.5, 1.5, -2.5, 127.5, 128, -128.5, -129], [0, 2, -2, 127, 127, -128, -128]),
    ("s8", 0, [INF, -INF, NAN], [127, -128, 0]),
    ("s8", -7, [0, -0.0, NAN, 1e9, -1e9], [-7, -7, -7, 127, -128]),
    ("u16", 9, [0.5, 1.5, 65526, 65526.5, -10, INF, NAN], [9, 11, 65535, 65535, 0, 65535, 9]),
    ("s16", -2, [0.5, 2.5, 32768, 32771, -32766, -INF, NAN], [-2, 0, 32766, 32767, -32768, -32768, -2]),
])
def test_quantize_by_hand(run, dtype, zp, x, want):
    got = run("quantize", f32(*x), dtype=dtype, scales=[1.0], zps=[zp])
    assert got.dtype == DTYPES[dtype].numpy
    assert got.tolist() == want


def test_quantize_divides_in_f32(run):
    # 0.35 / 0.1 is 3.5 in f32 (ties to even: 4), 3.4999... from the decimal values
    assert run("quantize", f32(0.35, 0.25, 0.45), dtype="u8", scales=[0.1]).tolist() == [
        int(np.rint(np.float32(v) / np.float32(0.1))) for v in (0.35, 0.25, 0.45)]


@pytest.mark.parametrize("dtype, x, want", [
    ("f8_e4m3", [1, 17, 448, 449, 1e9, INF, -INF, 1e-9, NAN], [1, 16, 448, 448, 448, 448, -448, 0, NAN]),
    ("f8_e5m2", [1, 9, 57344, 6e4, 1e9, INF, -INF, 1e-9, NAN], [1, 8, 57344, 57344, 57344, 57344, -57344, 0, NAN]),
])
def test_quantize_to_f8_saturates(run, dtype, x, want):
    got = run("quantize", f32(*x), dtype=dtype, scales=[1.0])
    np.testing.assert_array_equal(got.astype(np.float32), f32(*want))


@pytest.mark.parametrize("dtype, zp", [("u8", 0), ("u8", 131), ("s8", 0), ("s8", -11), ("f8_e4m3", None),
                                       ("f8_e5m2", None)])
@pytest.mark.parametrize("axis", [None, 0, 1, -1])
def test_quantize_and_dequantize_as_onnx(run, dtype, zp, axis):
    rng = np.random.default_rng(7)
    x = (rng.standard_normal((3, 5, 4)) * 40).astype(np.float32)
    n = 1 if axis is None else x.shape[axis]
    scales = rng.uniform(0.05, 0.9, n).astype(np.float32)
    zeros = np.full(n, zp or 0).astype(DTYPES[dtype].numpy)
    onnx_scales, onnx_zeros = (scales[0], zeros[0]) if axis is None else (scales, zeros)
    arrays = [np.asarray(a) for a in (onnx_scales, onnx_zeros)]
    attrs = {"scales": scales.tolist(), "zps": None if zp is None else [zp] * n,
             "qtype": "per_tensor" if axis is None else "per_channel", "axis": 1 if axis is None else axis}
    onnx_axis = {} if axis is None else {"axis": axis}

    q = run("quantize", x, dtype=dtype, **attrs)
    np.testing.assert_array_equal(q, onnx_run("QuantizeLinear", 21, [x, *arrays], q.dtype, **onnx_axis))
    y = run("dequantize", q, **attrs)
    np.testing.assert_array_equal(y, onnx_run("DequantizeLinear", 21, [q, *arrays], np.float32, **onnx_axis))


@pytest.mark.parametrize("dtype, zp", [("u8", 0), ("u8", 255), ("s8", 127), ("s8", -128)])
def test_dequantize_subtracts_exactly(run, dtype, zp):
    info = np.iinfo(DTYPES[dtype].numpy)
    x = np.arange(info.min, info.max + 1).astype(DTYPES[dtype].numpy)
    want = np.array([(v - zp) for v in range(info.min, info.max + 1)], np.float32) * np.float32(0.1)
    np.testing.assert_array_equal(run("dequantize", x, scales=[0.1], zps=[zp]), want)


def test_dequantize_s32(run):
    x = np.array([2**31 - 1, -2**31, 16777217, 0], np.int32)
    np.testing.assert_array_equal(run("dequantize", x, scales=[0.5]), f32(2.0**30, -(2.0**30), 8388608, 0))


def test_dequantize_f8_and_overflow_are_quiet(run):
    x = f32(448, -2, 0).astype(ml_dtypes.float8_e4m3fn)
    np.testing.assert_array_equal(run("dequantize", x, scales=[1e38]), f32(INF, np.float32(-2) * np.float32(1e38), 0))


@pytest.mark.parametrize("shape", [(), (0,), (0, 3), (3, 0)])
def test_empty_and_rank_zero(run, shape):
    q = run("quantize", np.zeros(shape, np.float32), dtype="s8", scales=[0.1], zps=[4])
    assert (q == 4).all()
    assert (run("dequantize", q, scales=[0.1], zps=[4]) == 0).all()


def test_per_channel_over_an_empty_axis(run):
    x = np.zeros((2, 0), np.float32)
    assert run("quantize", x, dtype="u8", qtype="per_channel", scales=[], zps=[]).shape == (2, 0)


@pytest.mark.parametrize("axis, group_axis", [(1, 0), (-1, -2)])
def test_scales_of_groups(run, axis, group_axis):
    x = np.full((4, 3), 3, np.int8)
    attrs = dict(qtype="per_channel", axis=axis, group_axis=group_axis, scales=[1, 2, 3, 10, 20, 30])
    want = np.repeat(np.array([[1, 2, 3], [10, 20, 30]], np.float32), 2, axis=0)
    np.testing.assert_array_equal(run("dequantize", x, **attrs), 3 * want)
    np.testing.assert_array_equal(run("dequantize", x, **attrs, zps=[2, 3, 4, 2, 2, 2]),
                                  want * np.repeat([[1, 0, -1], [1, 1, 1]], 2, axis=0))


# -- rules --------------------------------------------------------------------------------------------------------
CHANNEL = {"qtype": "per_channel"}


@pytest.mark.parametrize("type, attrs, match", [
    ("u8[2,3]", {"scales": []}, "per_tensor takes 1 scale, got 0"),
    ("u8[2,3]", {"scales": [1, 2]}, "per_tensor takes 1 scale, got 2"),
    ("u8[*]", {"scales": [1, 2]}, "per_tensor takes 1 scale, got 2"),
    ("u8[2,3]", {**CHANNEL, "scales": [1, 2]}, r"takes 3 scales at axis 1 of shape \[2,3\], got 2"),
    ("u8[2,3]", {**CHANNEL, "axis": -2, "scales": [1, 2, 3]}, r"takes 2 scales at axis -2 of shape \[2,3\], got 3"),
    ("u8[2,3]", {**CHANNEL, "axis": 2, "scales": [1]}, r"axis must be in \[-r, r-1\] with r = 2 for shape .*, got 2"),
    ("u8[2,3]", {**CHANNEL, "axis": -3, "scales": [1]}, r"axis must be in \[-r, r-1\] with r = 2 .*, got -3"),
    ("u8[]", {**CHANNEL, "axis": 0, "scales": [1]}, r"with r = 0 for shape \[\], got 0"),
    ("u8[2,3]", {"scales": [1], "zps": []}, "zps and scales must have the same length, got 0 and 1"),
    ("u8[2,3]", {**CHANNEL, "scales": [1, 1, 1], "zps": [1, 2]},
     "zps and scales must have the same length, got 2 and 3"),
    ("u8[2]", {"scales": [1], "zps": [256]}, r"zero point of u8 must be in \[0, 255\], got 256"),
    ("u8[2]", {"scales": [1], "zps": [-1]}, r"zero point of u8 must be in \[0, 255\], got -1"),
    ("s8[2]", {"scales": [1], "zps": [128]}, r"zero point of s8 must be in \[-128, 127\], got 128"),
    ("s8[2]", {"scales": [1], "zps": [-129]}, r"zero point of s8 must be in \[-128, 127\], got -129"),
    ("s32[2]", {"scales": [1], "zps": [1]}, r"zero point of s32 must be in \[0, 0\], got 1"),
    ("f8_e4m3[2]", {"scales": [1], "zps": [0]}, r"zps must be absent for f8_e4m3, got \[0\]"),
    ("f8_e5m2[2]", {"scales": [1], "zps": [3]}, r"zps must be absent for f8_e5m2, got \[3\]"),
    *(("u8[2]", {"scales": [s]}, f"scales must be finite (and not 0 )?as f32, got {s}")
      for s in (NAN, INF, -INF, 1e60, -1e60)),
])
def test_parameter_rules(infer, type, attrs, match):
    with pytest.raises(GraphError, match="dequantize.*" + match.replace("e+", r"e\+")):
        infer("dequantize", type, **attrs)
    dtype, shape = type.split("[")
    if dtype != "s32":
        with pytest.raises(GraphError, match="quantize.*" + match.replace("e+", r"e\+")):
            infer("quantize", "f32[" + shape, dtype=dtype, **attrs)


@pytest.mark.parametrize("scale", [0.0, -0.0, 1e-60, -1e-60])
def test_only_what_divides_by_scales_refuses_zeros(infer, scale):
    for of in ({"scales": [scale]}, {**CHANNEL, "scales": [1, scale, 1]}):
        assert infer("dequantize", "u8[2,3]", **of) == "f32[2,3]"
        with pytest.raises(GraphError, match=f"scales must be finite and not 0 as f32, got {scale}"):
            infer("quantize", "f32[2,3]", dtype="u8", **of)


def test_quantize_divides_by_negative_scales(infer):
    for of in ({"scales": [-0.5]}, {**CHANNEL, "scales": [1, -2, 1]}):
        assert infer("quantize", "f32[2,3]", dtype="u8", **of) == "u8[2,3]"


def test_scales_of_any_sign():
    x = np.array([[0, 7, 255]], np.uint8)
    of = dict(qtype="per_channel", axis=1, scales=[-0.5, 0.0, -2.0], zps=[3, 9, 255])
    assert lookup("dequantize").reference(x, **of).tolist() == [[1.5, 0, 0]]
    y = np.float32([[-1.25, 1.25, 300]])
    of = dict(dtype=DTYPES["u8"], scales=[-0.5], zps=[7])
    assert lookup("quantize").reference(y, **of).tolist() == [[9, 5, 0]]
    assert lookup("quantize").reference(np.float32([NAN, INF, -INF]), **of).tolist() == [7, 0, 255]


@pytest.mark.parametrize("type, attrs, match", [
    ("s8[4,3]", {"scales": [1], "group_axis": 0}, "group_axis needs qtype per_channel, got 0 with per_tensor"),
    ("s8[4,3]", {**CHANNEL, "scales": [1] * 6, "group_axis": 2}, r"group_axis must be in \[-r, r-1\] with r = 2"),
    ("s8[4,3]", {**CHANNEL, "scales": [1] * 6, "group_axis": -1}, "group_axis must not be axis, got -1 and 1"),
    ("s8[4,3]", {**CHANNEL, "scales": [1] * 5, "group_axis": 0}, "scales must be a multiple of 3,.* got 5"),
    ("s8[4,3]", {**CHANNEL, "scales": [1] * 9, "group_axis": 0}, "as many groups as divide axis 0 .* got 9"),
    ("s8[4,0]", {**CHANNEL, "scales": [1] * 4, "group_axis": 0}, "scales must be a multiple of 0,.* got 4"),
    ("s8[4,3]", {**CHANNEL, "scales": [], "group_axis": 0}, "scales must be a multiple of 3,.* got 0"),
])
def test_rules_of_groups(infer, type, attrs, match):
    with pytest.raises(GraphError, match="dequantize.*" + match):
        infer("dequantize", type, **attrs)


def test_per_tensor_ignores_the_axis(infer):
    assert infer("dequantize", "u8[2]", axis=7, scales=[1]) == "f32[2]"


@pytest.mark.parametrize("type", ["u8[?,?]", "u8[2,?]", "u8[*]", "u8[?,3]"])
def test_unknown_dimensions_pass(infer, type):
    assert infer("dequantize", type, **CHANNEL, scales=[1, 2, 3]) == type.replace("u8", "f32")


def test_unknown_rank_is_kept(infer):
    assert infer("quantize", "f32[*]", dtype="s8", **CHANNEL, axis=9, scales=[1, 2, 3]) == "s8[*]"


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
    fractions = np.float32([0.5, -1.75, 448, np.nan]).astype(gq.dtypes.as_dtype("f8_e4m3").numpy)
    np.testing.assert_array_equal(run("dequantize_linear", fractions, np.float32(0.5)), [0.25, -0.875, 224, np.nan])
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
    assert run("dequantize_linear", np.asarray(np.int8(5)), np.float32([0.5])).tolist() == 2.5
    big = np.int32([2**31 - 1])
    assert run("dequantize_linear", big, np.float32(1), np.int32(-2**31)).tolist() == [2.0**32]  # exact differences


@pytest.mark.parametrize("types, attrs", [
    (("f32[2,5]", "f32[4]"), {}), (("f32[2,5]", "f32[5]"), {"axis": 0}), (("f32[2,5]", "f32[2,1]"), {}),
    (("f32[2,5]", "f32[2,2]"), {"block_size": 2}), (("f32[2,5]", "f32[3]"), {"block_size": 2}),
    (("f32[2,5]", "f32[1]"), {"block_size": 2}), (("f32[2,5]", "f32[5]"), {"block_size": -1}),
    (("f32[2,5]", "f32[2,?]"), {"block_size": -1}),
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

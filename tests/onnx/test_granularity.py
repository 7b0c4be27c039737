"""Scales of a tensor, of an axis, of blocks, and of rows and columns: by formulas that are written down here.

Every shape that the specification allows is tried, with zero points and without, of constants and of inputs.
"""
import ml_dtypes
import numpy as np
import pytest
from onnx.reference import ReferenceEvaluator
from onnx_node import feeds, node_model

import graphq as gq

RNG = np.random.default_rng(2)

GRAINS = [  # shape; attributes; the scale's shape; what it becomes, that it broadcasts
    ((3, 4), {}, (), ()),
    ((3, 4), {}, (1,), ()),
    ((3, 4), {"axis": 0}, (1,), ()),
    ((3, 4), {}, (4,), (1, 4)),
    ((3, 4), {"axis": 0}, (3,), (3, 1)),
    ((3, 4), {"axis": -2}, (3,), (3, 1)),
    ((3, 4, 2), {}, (4,), (1, 4, 1)),
    ((1, 4), {"axis": 0}, (1,), (1, 1)),
    ((5,), {}, (5,), (5,)),  # of one axis there is one
    ((5,), {"axis": 0}, (5,), (5,)),
    ((5,), {"axis": -1}, (5,), (5,)),
    ((4, 6), {"block_size": 2}, (4, 3), 1),
    ((4, 6), {"block_size": 4}, (4, 2), 1),
    ((4, 6), {"axis": 0, "block_size": 3}, (2, 6), 0),
    ((4, 6), {"axis": -1, "block_size": 6}, (4, 1), 1),
    ((6,), {"axis": 0, "block_size": 6}, (1,), 0),
    ((6,), {"axis": 0, "block_size": 4}, (2,), 0),
    ((1, 6), {"axis": 0, "block_size": 1}, (1, 6), 0),
    ((1, 1), {"axis": 1, "block_size": 1}, (1, 1), 1),
]


def spread(values, shape, attrs, how):
    """One value for each element."""
    if isinstance(how, int):
        values = np.repeat(values, attrs["block_size"], how)[tuple(slice(n) for n in shape)]
    else:
        values = values.reshape(how)
    return np.broadcast_to(values, shape)


@pytest.mark.parametrize("kind", ["constant", "given"])
@pytest.mark.parametrize("zero", [True, False])
@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
@pytest.mark.parametrize("shape,attrs,grain,how", GRAINS, ids=str)
def test_quantize_and_dequantize(shape, attrs, grain, how, dtype, zero, kind):
    scale = RNG.uniform(0.01, 0.02, grain).astype(np.float32)
    zp = RNG.integers(3, 9, grain).astype(dtype) if zero else None
    x = RNG.normal(0, 1, shape).astype(np.float32)
    s = spread(scale, shape, attrs, how)
    z = spread(np.zeros(grain) if zp is None else zp, shape, attrs, how)
    low, high = np.iinfo(dtype if zero else np.uint8).min, np.iinfo(dtype if zero else np.uint8).max
    q = np.clip(np.rint(x / s) + z, low, high)
    names = ("S", "Z") if kind == "constant" else ("s", "z")
    for opset in (21, 25) if "block_size" in attrs else (13, 19, 25):
        for op, source, want in (("QuantizeLinear", x, q.astype(dtype if zero else np.uint8)),
                                 ("DequantizeLinear", q.astype(dtype if zero else np.uint8),
                                  (q - z).astype(np.float32) * s)):
            inputs = [("x", source), (names[0], scale)] + ([(names[1], zp)] if zero else [])
            graph = gq.load_onnx(node_model(op, inputs, attrs, domain="", opset=opset))
            assert not graph.nodes_of({"onnx_node"})
            got = gq.reference(graph, feeds(inputs))
            assert got.dtype == want.dtype and np.array_equal(got, want), (op, opset)


@pytest.mark.parametrize("opset", [19, 21, 23])
def test_narrow_floats_divide_in_their_own_precision(opset):
    """Since version 23 that of the scale, before it that of x, which is the same dtype."""
    x, scale = RNG.normal(0, 9, (8, 64)).astype(np.float16), np.float16(0.0313)
    inputs = [("x", x), ("S", scale), ("Z", np.int16(0))][:3 if opset > 20 else 2]
    graph = gq.load_onnx(node_model("QuantizeLinear", inputs, domain="", opset=opset))
    wide = x.astype(np.float64) / np.float64(scale)
    got = gq.reference(graph, {"x": x})
    low, high = np.iinfo(got.dtype).min, np.iinfo(got.dtype).max
    assert np.array_equal(got, np.clip(np.rint(wide.astype(np.float16)), low, high))


@pytest.mark.parametrize("names", ["SZ", "sz"])
@pytest.mark.parametrize("source,scales,attrs,quotients", [
    (np.int32, np.float32, {}, np.float32), (np.float16, np.float16, {"precision": 1}, np.float32),
    (np.float32, np.float16, {}, np.float16), (np.float32, np.float32, {"precision": 10}, np.float16)], ids=str)
def test_quotients_of_other_precisions(source, scales, attrs, quotients, names):
    x = RNG.integers(-500, 500, (8, 64)).astype(source)
    inputs = [("x", x), (names[0], scales(2.998)), (names[1], np.int16(3))]
    graph = gq.load_onnx(node_model("QuantizeLinear", inputs, attrs, domain="", opset=23))
    assert not graph.nodes_of({"onnx_node"})
    quotient = (x.astype(quotients).astype(np.float64) / np.float64(scales(2.998))).astype(quotients)
    assert np.array_equal(gq.reference(graph, feeds(inputs)), np.rint(quotient.astype(np.float64)) + 3)


@pytest.mark.parametrize("names", ["SZ", "sz"])
@pytest.mark.parametrize("block", [0, 2])
@pytest.mark.parametrize("source", [np.float32, np.float16])
@pytest.mark.parametrize("saturate", [0, 1])
@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2"])
def test_what_is_beyond_a_float_of_8_bits(dtype, saturate, source, block, names):
    """The greatest number, or with `saturate` 0 an infinity or NaN, however the scales are given."""
    x = np.array([[0.1, -3, 500, 6e4], [-6e4, np.inf, -np.inf, np.nan]], source)
    scale = np.full((2, 2) if block else (), 1, source)
    inputs = [("x", x), (names[0], scale), (names[1], np.zeros(scale.shape, getattr(ml_dtypes, dtype)))]
    attrs = {"saturate": saturate} | ({"axis": 1, "block_size": block} if block else {})
    model = node_model("QuantizeLinear", inputs, attrs, domain="", opset=21)
    (want,), graph = ReferenceEvaluator(model).run(None, feeds(inputs)), gq.load_onnx(model)
    assert not graph.nodes_of({"onnx_node"})
    got = gq.reference(graph, feeds(inputs))
    assert got.dtype == dtype and np.array_equal(got.astype(source), np.asarray(want).astype(source), equal_nan=True)


ROWS = [  # shapes of a, its scale, b, its scale
    ((3, 4), (), (4, 5), ()), ((3, 4), (1,), (4, 5), (1,)), ((3, 4), (3,), (4, 5), ()), ((3, 4), (3,), (4, 5), (5,)),
    ((2, 3, 4), (), (4, 5), (5,)), ((2, 3, 4), (3,), (2, 4, 5), (5,)), ((4, 4), (4,), (4, 4), (4,)),
    ((2, 3, 4), (2, 3, 1), (2, 4, 5), (2, 1, 5)), ((3, 4), (3, 1), (4, 5), (1, 5)),
    ((2, 3, 4), (), (2, 4, 5), (2, 1, 5)),
    ((1, 3, 4), (1, 1, 1), (1, 4, 5), (1, 1, 1)), ((4,), (), (4, 5), (5,)), ((4,), (), (4,), ()),
]


@pytest.mark.parametrize("a,a_scale,b,b_scale", ROWS, ids=str)
def test_rows_and_columns_of_a_product(a, a_scale, b, b_scale):
    x, w = (RNG.integers(0, 256, shape).astype(np.uint8) for shape in (a, b))
    (sa, za), (sb, zb) = ((RNG.uniform(0.01, 0.02, s).astype(np.float32), RNG.integers(90, 160, s).astype(np.uint8))
                          for s in (a_scale, b_scale))
    inputs = [("x", x), ("SA", sa), ("ZA", za), ("w", w), ("SB", sb), ("ZB", zb), ("Y", np.float32(0.05)),
              ("ZY", np.uint8(120))]
    rows = [v[:, None] if v.ndim == 1 and v.size > 1 else v for v in (sa, za)]
    sums = ((x.astype(float) - rows[1]) * rows[0]) @ ((w.astype(float) - zb) * sb)
    want = np.clip(np.rint(sums / 0.05) + 120, 0, 255).astype(int)
    for opset in (10, 21):
        model = node_model("QLinearMatMul", inputs, domain="", opset=opset)
        got = gq.reference(gq.load_onnx(model), feeds(inputs)).astype(int)
        assert got.shape == want.shape and np.abs(got - want).max() <= 1 and (got != want).mean() < 0.1
        if len(a_scale) != 1 or len(a) == 1:  # ONNX's reference does not broadcast along rows
            assert np.array_equal(got, ReferenceEvaluator(model).run(None, feeds(inputs))[0])

"""oneDNN Graph JSON: dtypes, broadcasts, zero points and pads that the format allows or refuses."""
import json

import numpy as np
import pytest
from onednn_document import document, load, op, tensor

import graphq as gq
from graphq.errors import GraphError
from graphq.onednn.files import save_onednn_json


def test_dtypes_that_only_onnx_has_are_refused(tmp_path):
    g = gq.Graph()
    x = g.input("x", dtype="s16", shape=(2,))
    g.output(g.static_reshape(x, shape=[2, 1]), name="y")
    with pytest.raises(GraphError, match="the format has no dtype s16"):
        save_onednn_json(g, tmp_path / "g.json")


def test_a_transformation_that_onednn_does_not_have(tmp_path):
    message = "coordinate_transformation_mode is half_pixel or align_corners, got asymmetric"
    g = gq.Graph()
    x = g.input("x", dtype="f32", shape=(1, 2, 3))
    g.output(g.interpolate(x, mode="linear", sizes=[4], coordinate_transformation_mode="asymmetric"), name="y")
    with pytest.raises(GraphError, match=message):
        save_onednn_json(g, tmp_path / "g.json")
    doc = document(op(1, "Interpolate", [tensor(0, [1, 2, 3])], [tensor(1, [1, 4, 3])], mode=("string", "linear"),
                      sizes=("s64[]", [4]), coordinate_transformation_mode=("string", "asymmetric")))
    with pytest.raises(GraphError, match=message):
        load(tmp_path, doc)


@pytest.mark.parametrize("kind", ["Add", "Subtract", "Multiply", "Divide"])
@pytest.mark.parametrize("a,b,out", [("bf16", "bf16", "f32"), ("f32", "f32", "bf16"), ("bf16", "f32", "bf16"),
                                     ("f32", "bf16", "f32")])
def test_sums_and_products_have_the_declared_float(kind, a, b, out, tmp_path):
    doc = document(op(1, kind, [tensor(0, [2, 3], a), tensor(1, [3], b)], [tensor(2, [2, 3], out)]))
    g = load(tmp_path, doc)
    assert g.outputs[0].dtype == out
    gq.save_onednn_json(g, tmp_path / "again.json")
    assert json.loads((tmp_path / "again.json").read_text()) == doc
    inputs = gq.testing.random_inputs(g)
    np.testing.assert_array_equal(gq.compile(g, strict=True)(inputs), gq.reference(g, inputs))


def test_zero_points_of_8_bits_beside_data_of_4(tmp_path):
    doc = document(op(1, "DynamicDequantize", [tensor(0, [4, 8], "u4"), tensor(1, [2, 8]), tensor(2, [2, 8], "u8")],
                      [tensor(3, [4, 8])], qtype=("string", "per_group"), axis=("s64", 0),
                      group_shape=("s64[]", [2, 1])))
    g = load(tmp_path, doc)
    x, s, z = (np.arange(32).reshape(4, 8) % 16).astype(g.inputs[0].dtype.numpy), np.ones((2, 8), np.float32), \
        np.full((2, 8), 200, np.uint8)
    got = gq.compile(g)(t0=x, t1=s, t2=z)
    np.testing.assert_array_equal(got, x.astype(np.float32) - 200)


def test_a_matmul_bias_of_rows(tmp_path):
    doc = document(op(1, "MatMul", [tensor(0, [2, 3]), tensor(1, [3, 4]), tensor(2, [2, 1])], [tensor(3, [2, 4])]))
    g = load(tmp_path, doc)
    inputs = gq.testing.random_inputs(g)
    want = inputs["t0"] @ inputs["t1"] + inputs["t2"]
    np.testing.assert_allclose(gq.compile(g, strict=True)(inputs), want, rtol=1e-5, atol=1e-6)


def pool_document(kind, begin, end):
    """A pool of 2 x 2 windows, two apart."""
    more = {"exclude_pad": ("bool", 1)} if kind == "AvgPool" else {}
    return document(op(1, kind, [tensor(0, [1, 1, 4, 4])], [tensor(1, [1, 1, 1, 1])], strides=("s64[]", [2, 2]),
                       pads_begin=("s64[]", begin), pads_end=("s64[]", end), kernel=("s64[]", [2, 2]),
                       data_format=("string", "NCX"), **more))


@pytest.mark.parametrize("kind", ["MaxPool", "AvgPool"])
def test_windows_of_pools_may_end_before_the_source_does(kind, tmp_path):
    g = load(tmp_path, pool_document(kind, [0, 0], [-1, -1]))
    x = np.arange(16, dtype=np.float32).reshape(1, 1, 4, 4)
    assert gq.compile(g)(x).tolist() == gq.reference(g, t0=x).tolist() == [[[[5 if kind == "MaxPool" else 2.5]]]]


@pytest.mark.parametrize("kind", ["MaxPool", "AvgPool"])
def test_negative_pads_before_the_source_are_refused(kind, tmp_path):
    with pytest.raises(GraphError, match=r"pads_begin must be 2 values >= 0.*got \[-1, -1\]"):
        load(tmp_path, pool_document(kind, [-1, -1], [0, 0]))

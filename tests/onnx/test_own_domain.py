"""Normalizations that ONNX Runtime has in ONNX's own domain, and channels-last and quantized operators of its own."""
import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx_node import assert_near, by_graphq, by_onnx_runtime, node_model

import graphq as gq
from graphq.errors import GraphError
from graphq.onnx.loading import read_model

rng = np.random.default_rng(4)


def floats(*shape):
    return rng.standard_normal(shape).astype(np.float32)


def integers(dtype, *shape):
    limits = np.iinfo(dtype)
    return rng.integers(limits.min, limits.max + 1, shape).astype(dtype)


F, U, S = np.float32, np.uint8, np.int8
F16 = floats(3, 16).astype(np.float16)
XU = [("x", integers(U, 2, 9, 8, 4)), ("XS", F(0.02)), ("XZ", U(120))]
XI = [("x", integers(S, 2, 9, 8, 4)), ("XS", F(0.02)), ("XZ", S(-4))]
W = [("W", integers(S, 6, 2, 3, 3)), ("WS", rng.uniform(0.01, 0.02, 6).astype(F)), ("WZ", np.zeros(6, S))]
CONV = {"group": 2, "pads": [1, 1, 1, 1], "strides": [2, 1]}

# operator -> inputs, attributes, outputs, steps that an integer may differ by
CASES = {
    "SimplifiedLayerNormalization": ([("x", floats(2, 3, 16)), ("G", floats(16))], {}, 1, 0),
    "SimplifiedLayerNormalization axis": ([("x", floats(2, 3, 16)), ("g", floats(3, 16))],
                                          {"axis": 1, "epsilon": 0.01, "stash_type": 1}, 1, 0),
    "SimplifiedLayerNormalization f16": ([("x", F16), ("G", F16[0])], {}, 1, 0),
    "SimplifiedLayerNormalization two": ([("x", floats(2, 3, 16)), ("G", floats(16))], {"epsilon": 0.1}, 2, 0),
    "LayerNormalization": ([("x", floats(2, 3, 16)), ("G", floats(16)), ("B", floats(16))], {"epsilon": 0.01}, 1, 0),
    "LayerNormalization axis": ([("x", floats(2, 3, 16)), ("G", floats(3, 16))], {"axis": 1}, 1, 0),
    "QLinearConv last": ([*XU, *W, ("YS", F(0.2)), ("YZ", U(99)), ("B", integers(np.int16, 6).astype(np.int32))],
                         {**CONV, "channels_last": 1}, 1, 1),
    "QLinearConv last s8": ([*XI, *W, ("YS", F(0.2)), ("YZ", S(9))], {**CONV, "channels_last": 1}, 1, 1),
    "QLinearConv": ([*XU, ("W", integers(U, 5, 9, 1, 1)), ("WS", F(0.01)), ("WZ", U(130)), ("YS", F(0.3)),
                     ("YZ", U(99))], {"strides": [2, 2]}, 1, 1),
    "NhwcMaxPool": ([("x", XU[0][1])], {"kernel_shape": [3, 2], "pads": [1, 0, 1, 0], "strides": [2, 1]}, 1, 0),
    "NhwcMaxPool ceil": ([("x", XI[0][1])], {"kernel_shape": [2, 2], "strides": [2, 2], "ceil_mode": 1}, 1, 0),
    "NhwcMaxPool dilated": ([("x", XI[0][1])], {"kernel_shape": [2, 2], "dilations": [3, 2],
                                                "auto_pad": "VALID"}, 1, 0),
    "QLinearWhere": ([("c", rng.random((3, 1, 40)) < 0.5), ("x", integers(U, 5, 40)), ("XS", F(0.02)), ("XZ", U(120)),
                      ("y", integers(U, 3, 5, 1)), ("YS", F(0.03)), ("YZ", U(9)), ("ZS", F(0.04)), ("ZZ", U(100))],
                     {}, 1, 1),
    "QLinearWhere s8": ([("c", rng.random((3, 40)) < 0.5), ("x", integers(S, 3, 40)), ("XS", F(0.02)), ("XZ", S(12)),
                         ("y", integers(S, 1, 40)), ("YS", F(0.02)), ("YZ", S(12)), ("ZS", F(0.02)), ("ZZ", S(12))],
                        {}, 1, 0),
}


def model(name, inputs, attrs, outputs=1, **more):
    op = name.split()[0]
    own = op in ("LayerNormalization", "SimplifiedLayerNormalization")
    return node_model(op, inputs, attrs, outputs, **{"opset": 14, "domain": ""} if own else {}, **more)


@pytest.mark.parametrize("open_shapes", [False, True], ids=["fixed", "open"])
@pytest.mark.parametrize("name", CASES)
def test_operator(name, open_shapes):
    inputs, attrs, outputs, steps = CASES[name]
    m = model(name, inputs, attrs, outputs, open_shapes=open_shapes)
    want = by_onnx_runtime(m, inputs)
    for got in by_graphq(m, inputs):
        assert_near(got, want, steps=steps, tolerance=1e-3 if want[0].dtype == np.float16 else 1e-5)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("domain", ["", "ai.onnx"])
def test_root_mean_squares_by_formula(dtype, domain):
    x, gamma = floats(4, 3, 8).astype(dtype), floats(8).astype(dtype)
    inputs = [("x", x), ("G", gamma)]
    m = node_model("SimplifiedLayerNormalization", inputs, {"epsilon": 0.1}, domain=domain)
    wide = x.astype(np.float64)
    want = wide / np.sqrt(np.square(wide).mean(axis=-1, keepdims=True) + 0.1) * gamma.astype(np.float64)
    for got in by_graphq(m, inputs):
        assert got[0].dtype == dtype
        np.testing.assert_allclose(got[0].astype(np.float64), want, rtol=1e-6 if dtype == np.float32 else 1e-2)


def test_norms_inside_of_branches():
    body = onnx.parser.parse_graph("body () => (float[2, 4] y) { y = SimplifiedLayerNormalization(x, g) }")
    m = node_model("If", [("C", np.bool_(True))], {"then_branch": body, "else_branch": body}, domain="")
    for name, dims in (("x", [2, 4]), ("g", [4])):
        m.graph.input.append(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, dims))
    x = floats(2, 4)
    want = x / np.sqrt(np.square(x).mean(axis=1, keepdims=True) + 1e-5)
    for got in by_graphq(m, [("x", x), ("g", np.ones(4, np.float32))]):
        assert_near(got, [want])


@pytest.mark.parametrize("zero_points", [False, True])
@pytest.mark.parametrize("dtype", [U, S])
def test_means_of_integers_by_formula(dtype, zero_points):
    x = integers(dtype, 3, 4, 5, 6)
    zx, zy = (dtype(7), dtype(20)) if zero_points else (dtype(0), dtype(0))
    inputs = [("x", x), ("XS", F(0.5)), ("XZ", zx if zero_points else None), ("YS", F(0.25)),
              ("YZ", zy if zero_points else None)]
    m = node_model("QLinearReduceMean", inputs, {"axes": [1, -1], "keepdims": 0})
    mean = ((x.astype(int) - int(zx)) * 0.5).mean(axis=(1, 3))
    limits = np.iinfo(dtype)
    want = np.clip(np.rint(mean / 0.25) + int(zy), limits.min, limits.max).astype(dtype)
    for got in by_graphq(m, inputs):
        assert_near(got, [want], steps=1)


def test_channels_last_by_formula():
    x, w = integers(U, 2, 3, 4, 5), integers(S, 6, 5, 1, 1)
    inputs = [("x", x), ("XS", F(0.5)), ("XZ", U(3)), ("W", w), ("WS", F(0.25)), ("WZ", S(0)), ("YS", F(16)),
              ("YZ", U(128))]
    sums = (x.astype(int) - 3) @ w[..., 0, 0].T.astype(int)
    want = np.clip(np.rint(sums * (0.125 / 16)) + 128, 0, 255).astype(U)
    m = node_model("QLinearConv", inputs, {"channels_last": 1})
    for got in by_graphq(m, inputs):
        assert_near(got, [want])
    compiled = gq.compile(gq.load_onnx(m), strict=True)
    assert [n.op.name for n in compiled.graph.nodes if n.inputs] == ["partition"]
    want = x.reshape(2, 3, 2, 2, 5).max(axis=3)
    inputs = [("x", x)]
    for got in by_graphq(node_model("NhwcMaxPool", inputs, {"kernel_shape": [1, 2], "strides": [1, 2]}), inputs):
        assert_near(got, [want])


BAD = {
    "SimplifiedLayerNormalization missing": ([("x", floats(2, 4))], {},
                                             "SimplifiedLayerNormalization 'o0': input 1 is required"),
    "SimplifiedLayerNormalization shape": ([("x", floats(2, 4)), ("G", floats(5))], {},
                                           "SimplifiedLayerNormalization 'o0': "),
    "SimplifiedLayerNormalization stash": ([("x", floats(2, 4)), ("G", floats(4))], {"stash_type": 10},
                                           "SimplifiedLayerNormalization 'o0': .*stash_type"),
    "SimplifiedLayerNormalization dtype": ([("x", integers(U, 2, 4)), ("G", floats(4))], {},
                                           "SimplifiedLayerNormalization 'o0': "),
    "QLinearConv channels": ([*XU, ("W", integers(S, 6, 9, 3, 3)), *W[1:], ("YS", F(1)), ("YZ", U(0))],
                             {"channels_last": 1}, "QLinearConv 'o0': "),
    "QLinearReduceMean missing": ([("x", integers(U, 2, 4)), ("XS", F(1)), ("XZ", U(0))], {"axes": [1]},
                                  "QLinearReduceMean 'o0': input 3 is required"),
    "QLinearReduceMean axes": ([("x", integers(U, 2, 4)), ("XS", F(1)), ("XZ", U(0)), ("YS", F(1)), ("YZ", U(0))],
                               {"axes": [5]}, "QLinearReduceMean 'o0': .*ax"),
    "QLinearReduceMean no axes": ([("x", integers(U, 2, 4)), ("XS", F(1)), ("XZ", U(0)), ("YS", F(1)), ("YZ", U(0))],
                                  {}, "QLinearReduceMean 'o0': .*axes"),
    "QLinearWhere condition": ([("c", integers(U, 2, 4)), *CASES["QLinearWhere s8"][0][1:]], {}, "QLinearWhere 'o0': "),
    "QLinearWhere shapes": ([("c", np.ones((3, 7), bool)), *CASES["QLinearWhere s8"][0][1:]], {},
                            "QLinearWhere 'o0': "),
    "QLinearWhere scale": ([*CASES["QLinearWhere s8"][0][:7], ("ZS", F(0)), ("ZZ", S(0))], {},
                           "QLinearWhere 'o0': scales must not be NaN, -inf or 0"),
    "NhwcMaxPool rank": ([("x", integers(U, 3, 4))], {"kernel_shape": [2]}, "NhwcMaxPool 'o0': needs a batch"),
    "NhwcMaxPool kernel": ([("x", integers(U, 1, 3, 4, 2))], {"kernel_shape": [2]}, "NhwcMaxPool 'o0': "),
    "NhwcMaxPool no kernel": ([("x", integers(U, 1, 3, 4, 2))], {}, "NhwcMaxPool 'o0': .*kernel_shape"),
}


@pytest.mark.parametrize("name", BAD)
def test_malformed_nodes(name):
    inputs, attrs, message = BAD[name]
    with pytest.raises(GraphError, match=message):
        gq.load_onnx(model(name, inputs, attrs))


@pytest.mark.parametrize("name", ["LayerNormalization", "NhwcMaxPool"])
def test_the_operator_set_that_quantizers_forget(name):
    """It is version 1, the only one; a model that names it stays as it is."""
    m = model(name, *CASES[name][:3])
    del m.opset_import[:]
    m.opset_import.add(domain="", version=14)
    read, _, _ = read_model(m)
    assert {i.domain: i.version for i in read.opset_import} == {"": 14, "com.microsoft": 1}
    assert [i.domain for i in m.opset_import] == [""]
    assert read_model(read)[0].opset_import == read.opset_import

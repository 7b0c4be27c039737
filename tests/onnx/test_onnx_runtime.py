"""The sessions that tests compare with multiply u8 by s8 exactly, on CPUs whose kernels saturate, too."""
import numpy as np
import onnx
import pytest
from onnx_node import MICROSOFT, feeds, node_model
from onnx_runtime import OFFSET, exact, results, session

F, U, S = np.float32, np.uint8, np.int8
K = 64
ACTIVATIONS = {"u8": np.full((4, K), 255, U), "s8": np.full((4, K), -128, S)}
EDGES = np.where(np.arange(16) % 2, 127, -128).astype(S)
WEIGHTS = np.tile(EDGES, (K, 1))
"""Columns of 127 and of -128: two products of 255 with either are beyond 16 bits."""


def quantized(x, w, *order):
    """Operands by name in the order of an operator: scales 1, zero points 0."""
    values = {"x": x, "XS": F(1), "XZ": x.dtype.type(0), "W": w, "WS": F(1), "WZ": S(0), "YS": F(1 << 15),
              "YZ": x.dtype.type(0)}
    return [(n, values[n]) for n in order]


def image(x):
    return np.ascontiguousarray(np.broadcast_to(x[:1, :, None, None], (1, K, 3, 3)))


FILTER = np.ascontiguousarray(WEIGHTS.T[:, :, None, None])
OPERATORS = {  # domain, inputs for activations x, whether results are quantized
    "MatMulInteger": ("", lambda x: quantized(x, WEIGHTS, "x", "W"), False),
    "MatMulInteger zero points": ("", lambda x: quantized(x, WEIGHTS, "x", "W", "XZ", "WZ"), False),
    "ConvInteger": ("", lambda x: quantized(image(x), FILTER, "x", "W"), False),
    "QLinearMatMul": ("", lambda x: quantized(x, WEIGHTS, "x", "XS", "XZ", "W", "WS", "WZ", "YS", "YZ"), True),
    "QLinearConv": ("", lambda x: quantized(image(x), FILTER, "x", "XS", "XZ", "W", "WS", "WZ", "YS", "YZ"), True),
    "QGemm": (MICROSOFT, lambda x: quantized(x, WEIGHTS, "x", "XS", "XZ", "W", "WS", "WZ"), False),
    "MatMulIntegerToFloat": (MICROSOFT, lambda x: quantized(x, WEIGHTS, "x", "W", "XS", "WS", "XZ", "WZ"), False),
}


@pytest.mark.parametrize("dtype", ACTIVATIONS)
@pytest.mark.parametrize("name", OPERATORS)
def test_sums_of_the_largest_products(name, dtype):
    domain, operands, requantized = OPERATORS[name]
    x = ACTIVATIONS[dtype]
    inputs = operands(x)
    got, = results(node_model(name.split()[0], inputs, domain=domain), feeds(inputs))
    sums = x.astype(np.int64) @ WEIGHTS.astype(np.int64)
    if requantized:
        limits = np.iinfo(x.dtype)
        sums = np.clip(np.rint(sums / (1 << 15)), limits.min, limits.max)
    if got.ndim == 4:
        sums = np.broadcast_to(sums[:1, :, None, None], got.shape)
    np.testing.assert_array_equal(got, sums)


def test_sums_of_floats_that_a_session_makes_integers():
    """A product between quantizes, as one operation of integers: the same numbers as each operation by itself."""
    text = """<ir_version: 8, opset_import: ["" : 17]> net (uint8[4, 64] x) => (uint8[4, 16] y)
        <float s = {1}, uint8 zx = {0}, int8 zw = {0}, float t = {32768}, uint8 zy = {128}> {
        a = DequantizeLinear (x, s, zx)
        b = DequantizeLinear (w, s, zw)
        c = MatMul (a, b)
        y = QuantizeLinear (c, t, zy) }"""
    model = onnx.parser.parse_model(text)
    model.graph.initializer.append(onnx.numpy_helper.from_array(WEIGHTS, "w"))
    x = ACTIVATIONS["u8"]
    want = np.clip(np.rint((x.astype(np.int64) @ WEIGHTS.astype(np.int64)) / 32768) + 128, 0, 255)
    for optimized in (False, True):
        np.testing.assert_array_equal(session(model, optimized=optimized).run(None, {"x": x})[0], want)


def test_weights_that_are_made_u8():
    """Only those beside u8: weights and zero points 128 higher, each once; the model that was given stays as it is."""
    inputs = quantized(ACTIVATIONS["u8"], WEIGHTS, "x", "W", "XZ", "WZ")
    model = node_model("MatMulInteger", inputs, domain="")
    before = model.SerializeToString()
    made = exact(model)
    arrays = {t.name: t for t in made.graph.initializer}
    w, zero = (onnx.numpy_helper.to_array(arrays[made.graph.node[0].input[k]]) for k in (1, 3))
    assert (w.dtype, zero.dtype, int(zero)) == (U, U, OFFSET) and (w == WEIGHTS.astype(int) + OFFSET).all()
    assert model.SerializeToString() == before
    signed = node_model("MatMulInteger", quantized(ACTIVATIONS["s8"], WEIGHTS, "x", "W"), domain="")
    assert exact(signed).SerializeToString() == signed.SerializeToString()

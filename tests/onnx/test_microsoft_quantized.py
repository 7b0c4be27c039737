"""com.microsoft's quantized nodes that break a rule, and the operations that others become."""
import numpy as np
import pytest
from onnx_node import feeds, node_model

import graphq as gq
from graphq.errors import GraphError

F, U, ABSENT = np.float32, np.uint8, ("", None)
X = np.arange(8, dtype=U).reshape(2, 4)
PAIR = [("a", X), ("AS", F(0.1)), ("AZ", U(1)), ("b", X), ("BS", F(0.1)), ("BZ", U(1)), ("CS", F(0.1)), ("CZ", U(3))]
ONE = [("x", X), ("XS", F(0.1)), ("XZ", U(1)), ("YS", F(0.1)), ("YZ", U(3))]
IMAGE = [("x", X.reshape(1, 1, 2, 4)), *ONE[1:]]
GEMM = [("x", X), ("AS", F(0.1)), ("AZ", U(3)), ("B", np.arange(12, dtype=np.int8).reshape(4, 3)), ("BS", F(0.1)),
        ("BZ", np.int8(0)), ("C", np.int32([1, 2, 3]))]
TO_FLOAT = [("x", X), GEMM[3], ("AS", F(0.1)), ("BS", F(0.1)), ABSENT, ABSENT]
DYNAMIC = [("x", X.astype(F)), GEMM[3], ("BS", F(0.1)), ABSENT]
BLOCKS = [("x", np.linspace(-1, 1, 128, dtype=F).reshape(2, 64)),
          ("B", np.arange(256, dtype=U).reshape(8, 4, 8)), ("S", np.ones((8, 4), F)), ABSENT, ABSENT]
COUNTS = {"K": 64, "N": 8, "bits": 4, "block_size": 16}
ROWS = [("B", np.ones((6, 32), U)), ("i", np.array([1])), ("S", np.ones((6, 4), F)), ABSENT]
ATTRS = {"MatMulNBits": COUNTS, "GatherBlockQuantized": {"block_size": 16}, "QLinearSoftmax": {"opset": 13},
         "QLinearAveragePool": {"kernel_shape": [2, 2]}}
ZERO, PER_AXIS = "scales must not be NaN, -inf or 0, got 0.0", "scale and zero point must have the same shape"
CONSTANT = "weights, zero points and g_idx must be constants; weights have 2, 4 or 8 bits"


def model(op, inputs, arrays=(), attrs=()):
    """A node with other arrays by name; the name in lower case for an input in the place of a constant."""
    arrays = dict(arrays)
    names = {n.upper(): n for n in arrays}
    inputs = [(names.get(n, n), arrays.get(names.get(n, n), x)) for n, x in inputs]
    return node_model(op, inputs, ATTRS.get(op, {}) | dict(attrs)), inputs


REFUSED = [  # operator, inputs, other arrays, attributes, message
    *((op, PAIR, arrays, {}, message) for op in ("QLinearAdd", "QLinearMul") for arrays, message in (
        ({"CS": F(0)}, ZERO), ({"AS": F([1, 1])}, r"input 1 must be \[\] or \[1\]"), ({"CZ": U([1, 2])}, PER_AXIS))),
    ("QLinearAveragePool", IMAGE, {"YS": F(0)}, {}, ZERO),
    ("QLinearAveragePool", IMAGE, {"YS": F([1, 1])}, {}, "scales must have shape"),
    ("QLinearAveragePool", IMAGE, {"YZ": U([1, 2])}, {}, PER_AXIS),
    ("QLinearSigmoid", ONE, {"XS": F([1, 1])}, {}, "input 1 must be"),
    ("QLinearSigmoid", ONE, {"XZ": U([1, 1])}, {}, "input 2 must be"),
    ("QLinearSoftmax", ONE, {}, {"opset": 0}, "attribute 'opset' must be positive, got 0"),
    ("MatMulNBits", BLOCKS, {}, {"bits": 3}, CONSTANT),
    ("MatMulNBits", BLOCKS, {"b": BLOCKS[1][1]}, {}, CONSTANT),
    ("MatMulNBits", BLOCKS, {"s": BLOCKS[2][1]}, {}, CONSTANT),
    ("MatMulNBits", [*BLOCKS[:3], ("z", np.ones((8, 2), U))], {}, {}, CONSTANT),
    *(("MatMulNBits", [*BLOCKS[:4], (name, np.zeros(count, np.int32))], {}, {}, message) for name, count, message in (
        ("i", 64, CONSTANT), ("I", 1, r"input 4 must be \[64\]"), ("I", 64, r"input 4 \(g_idx\) must name each"))),
    ("GatherBlockQuantized", ROWS, {"b": ROWS[0][1]}, {}, "packed integers must be constants"),
    ("GatherBlockQuantized", [*ROWS[:3], ("z", np.ones((6, 2), U))], {}, {}, "packed integers must be constants"),
]


@pytest.mark.parametrize("op, inputs, arrays, attrs, message", REFUSED, ids=range(len(REFUSED)))
def test_nodes_that_break_a_rule(op, inputs, arrays, attrs, message):
    with pytest.raises(GraphError, match=f"{op} 'o0': {message}"):
        gq.load_onnx(model(op, inputs, arrays, attrs)[0])


def operations(op, inputs, arrays=(), attrs=()):
    return [n.op.name for n in gq.load_onnx(model(op, inputs, arrays, attrs)[0]).nodes if n.op.name != "constant"]


def first(op, inputs, arrays=(), attrs=()):
    m, inputs = model(op, inputs, arrays, attrs)
    return gq.reference(gq.load_onnx(m), feeds(inputs))


@pytest.mark.parametrize("op, inputs, name", [
    ("QLinearAdd", PAIR, "CS"), ("QLinearMul", PAIR, "CS"), ("QLinearAdd", PAIR, "AS"),
    ("QLinearAveragePool", IMAGE, "YS")])
def test_infinite_scales_are_scales_of_a_node(op, inputs, name):
    """A formula of numbers would multiply by infinity, or divide by it."""
    found = operations(op, inputs, {name: F(np.inf)})
    assert ("dequantize_linear" if name == "AS" else "quantize_linear") in found


def test_a_softmax_of_a_later_operator_set_is_that_of_13():
    np.testing.assert_array_equal(first("QLinearSoftmax", ONE, (), {"opset": 18}), first("QLinearSoftmax", ONE))


def test_a_factor_of_one_is_no_operation():
    assert operations("QGemm", GEMM) == ["dequantize", "dequantize", "matmul", "dequantize", "add"]
    assert "multiply" in operations("QGemm", GEMM, (), {"alpha": 2.0})


@pytest.mark.parametrize("op, inputs", [("MatMulIntegerToFloat", TO_FLOAT), ("DynamicQuantizeMatMul", DYNAMIC)])
def test_a_bias_may_be_a_row(op, inputs):
    bias = F([[1, 2, 3]])
    got, want = (first(op, [*inputs, ("D", d)]) for d in (bias, bias[0]))
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("bits, zero_points, level, integers", [
    (4, False, 4, True), (4, True, 4, True), (2, True, 4, True), (8, False, 4, True), (8, True, 4, False),
    (4, False, 0, False), (4, False, 3, False)])
def test_activations_are_integers_where_accuracy_level_and_weights_allow(bits, zero_points, level, integers):
    zps = [("Z", np.ones((8, bits // 2), U))] if zero_points else []
    found = operations("MatMulNBits", [*BLOCKS[:3], *zps], {"B": np.ones((8, 4, 2 * bits), U)},
                       {"bits": bits, "accuracy_level": level})
    assert ("quantize" in found) == integers and "pad" not in found


def test_a_short_last_block_of_integers_is_padded():
    found = operations("MatMulNBits", BLOCKS[:3], {"x": np.ones((2, 60), F)}, {"K": 60, "accuracy_level": 4})
    assert found.count("pad") == 1


def test_activations_of_unknown_rank():
    """They stay floats; the mean over the pixels of an image needs a rank."""
    nodes = ("MatMulNBits", BLOCKS[:3], {"accuracy_level": 4}), ("QLinearGlobalAveragePool", IMAGE, {})
    for op, inputs, attrs in nodes:
        m, _ = model(op, inputs, (), attrs)
        m.graph.input[0].type.tensor_type.ClearField("shape")
        if op == "MatMulNBits":
            assert "quantize" not in [n.op.name for n in gq.load_onnx(m).nodes]
        else:
            with pytest.raises(GraphError, match="'o0': the rank is not known"):
                gq.load_onnx(m)


def test_bytes_of_other_widths_than_those_of_packed_integers():
    """They are integers of 8 bits, which an input may give."""
    scales = {"S": np.ones((6, 2), F)}
    assert operations("GatherBlockQuantized", ROWS, scales, {"bits": 3}) == ["dynamic_dequantize", "gather"]
    assert "gather" in operations("GatherBlockQuantized", ROWS, scales | {"b": ROWS[0][1]}, {"bits": 3})

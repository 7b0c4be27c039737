"""Files of older operator sets: equal numbers, and errors that name what needs a later set."""
import numpy as np
import onnx
import pytest
from float_networks import convolutional, perceptron

import graphq as gq
from graphq.cli import main
from graphq.onnx import to_model
from graphq.quantization import Scheme, quantize


def saved(graph, tmp_path, opset):
    gq.save_onnx(graph, tmp_path / "g.onnx", opset=opset)
    return gq.load_onnx(tmp_path / "g.onnx")


@pytest.mark.parametrize("opset", [14, 17, 18, 20])
def test_an_int8_network_is_the_same(tmp_path, opset):
    """It has a hard-swish, which is an operator of set 14, and a mean, whose axes became an operand in 18."""
    graph, batches = convolutional()
    made = quantize(graph, batches, Scheme(between=["*"], wide=["point"]))
    again = saved(made, tmp_path, opset)
    model = onnx.load(tmp_path / "g.onnx")
    assert [i.version for i in model.opset_import] == [opset] and model.ir_version <= 10
    onnx.checker.check_model(model, full_check=True)
    (mean,) = (n for n in model.graph.node if n.op_type == "ReduceMean")
    assert len(mean.input) == (1 if opset < 18 else 2)
    for batch in batches:
        np.testing.assert_array_equal(gq.compile(again)(batch), gq.compile(made)(batch))


def test_the_oldest(tmp_path):
    graph, batches = perceptron()
    made = quantize(graph, batches, Scheme())
    np.testing.assert_array_equal(gq.compile(saved(made, tmp_path, 13))(batches[0]), gq.compile(made)(batches[0]))
    assert onnx.load(tmp_path / "g.onnx").ir_version == 7


def one(op, source=(2, 3), **attrs):
    """The graph of one operation."""
    g = gq.Graph("net")
    g.output(getattr(g, op)(g.input("x", dtype="f32", shape=source), **attrs), name="y")
    return g


@pytest.mark.parametrize("graph, opset, message", [
    (one("hard_swish"), 13, "HardSwish 'y': there is no such operator in opset 13; it needs opset 14"),
    (one("quantize", dtype="u16", scales=[0.5]), 20,
     "QuantizeLinear 'y': 'constant_1' cannot be tensor.uint16. in opset 20; it needs opset 21"),
    (one("static_reshape", (0, 3), shape=[0, 6], special_zero=False), 13,
     "Reshape 'y': there is no attribute 'allowzero' in opset 13; it needs opset 14"),
    (one("pad", pads_begin=[1, 1], pads_end=[0, 0], mode="wrap"), 18,
     "Pad 'y': 'mode' cannot be 'wrap' in opset 18; it needs opset 19")], ids=lambda x: getattr(x, "name", None))
def test_what_needs_a_later_set(graph, opset, message):
    with pytest.raises(gq.GraphError, match=message):
        to_model(graph, opset=opset)
    to_model(graph)


def of_type(dtype, op, *more, **attrs):
    """The graph of one operation of an input of `dtype` and `more` operands."""
    g = gq.Graph("net")
    g.output(getattr(g, op)(g.input("x", dtype=dtype, shape=[4]), *more, **attrs), name="y")
    return g


@pytest.mark.parametrize("opset", [20, 21, 24])
@pytest.mark.parametrize("graph, name, dtype, needed", [
    (one("cast", dtype="u2"), "y", "uint2", "; it needs opset 25"),
    (one("cast", dtype="f6_e2m3"), "y", "float6e2m3", "; it needs opset 28"),
    (of_type("s8", "arithmetic", np.ones(4, np.int8), function="shift_right"), "x", "int8", "; it needs opset 28"),
    (of_type("f8_e5m2", "slice", axes=[0], starts=[1], ends=[3], steps=[1]), "x", "float8e5m2", " or any other")])
def test_types_that_an_operator_does_not_accept(graph, name, dtype, needed, opset):
    """Each operator accepts the types of its operands and results in the set of the file, in older and newer sets."""
    with pytest.raises(gq.GraphError, match=rf"'{name}' cannot be tensor\({dtype}\) in opset {opset}{needed}"):
        to_model(graph, opset=opset)


def test_a_shape_without_zeros_needs_no_attribute():
    graph = one("static_reshape", shape=[3, 2], special_zero=False)
    (node,) = to_model(graph, opset=13).graph.node
    assert not node.attribute and to_model(graph).graph.node[0].attribute


@pytest.mark.parametrize("opset", [12, 99, True, "13"])
def test_other_sets_are_refused(opset):
    with pytest.raises(gq.GraphError, match="opset must be from 13 to"):
        to_model(perceptron()[0], opset=opset)


def test_partitions_are_refused():
    graph, _ = perceptron()
    with pytest.raises(gq.GraphError, match="partitions need opset 21; save the graph before"):
        to_model(gq.compile(graph).graph, opset=20)


def test_the_command(tmp_path, capsys):
    graph, batches = convolutional()
    gq.save_onnx(graph, tmp_path / "m.onnx")
    np.savez(tmp_path / "d.npz", **batches[0])
    args = ["quantize", str(tmp_path / "m.onnx"), "--data", str(tmp_path / "d.npz"), "--out", str(tmp_path / "q.onnx"),
            "--method", "mse", "--opset"]
    assert main([*args, "13"]) == 2
    assert "HardSwish" in capsys.readouterr().err and not (tmp_path / "q.onnx").exists()
    assert main([*args, "14"]) == 0
    assert onnx.load(tmp_path / "q.onnx").opset_import[0].version == 14


def test_the_body_of_a_scan_of_version_8_reads_values_around_it():
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["": 8]>
        net (float[2] s, float[2, 4] x, float c) => (float[2] last, float[2, 4] y) {
            d = Neg(c)
            last, y = Scan <num_scan_inputs = 1, body = turn (float a, float b) => (float t, float u) {
                t = Add(a, b)
                u = Mul(t, d)
            }> ("", s, x)
        }""")
    s, x = np.float32([1, 2]), np.arange(8, dtype=np.float32).reshape(2, 4)
    found = gq.compile(gq.load_onnx(model))(s=s, x=x, c=np.float32(3))
    sums = np.cumsum(np.concatenate([s[:, None], x], axis=1), axis=1)
    assert np.array_equal(found["last"], sums[:, -1]) and np.array_equal(found["y"], -3 * sums[:, 1:])

"""save_onnx of a compiled model's graph: partitions are local functions with the same numbers in every engine."""
import numpy as np
import onnx
import onnx.reference
import pytest
from onnx_runtime import session

import graphq as gq
from graphq.dtypes import as_dtype
from graphq.testing import random_inputs

TEXT = """graph net(x: u8[2,8], out0: f32[16]) {
  %w = constant(value=s8[8,16]{VALUES}) : s8[8,16]
  %0 = dequantize(x, scales=[0.05], zps=[120])
  %1 = dequantize(%w, scales=[0.02])
  %2 = matmul(%0, %1)
  %3 = leaky_relu(%2, alpha=0.5)
  %y = quantize(%3, dtype=u8, scales=[0.03], zps=[0])
  %4 = dequantize(%y, scales=[0.03], zps=[0])
  %5 = add(%4, out0)
  %6 = softmax(%5)
  return %y, %6 as probabilities, %y as again
}"""


def net():
    values = np.random.default_rng(1).integers(-127, 128, 128)
    return gq.parse(TEXT.replace("VALUES", ", ".join(map(str, values))))


def saved(graph, path):
    gq.save_onnx(graph, path)
    onnx.checker.check_model(path, full_check=True)
    return onnx.load(path)


def test_each_partition_is_a_function(tmp_path):
    model = gq.compile(net())
    partitions = [n for n in model.graph.nodes if n.op.name == "partition"]
    proto = saved(model.graph, tmp_path / "g.onnx")
    functions = {f.name: f for f in proto.functions}
    calls = [n for n in proto.graph.node if n.domain == "graphq.partition"]
    assert [n.op_type for n in calls] == list(functions)
    assert [f.name.rpartition("_")[0] for f in proto.functions] == [p.attrs["anchor"] for p in partitions]
    assert functions["matmul_0"].doc_string == "dequantize, dequantize, matmul, leaky_relu, quantize"
    assert {n.op_type for n in functions["matmul_0"].node} == {
        "Constant", "DequantizeLinear", "MatMul", "LeakyRelu", "QuantizeLinear"}
    assert {v.name for v in functions["matmul_0"].value_info} >= {*functions["matmul_0"].input}
    assert {t.name: t.dims for t in proto.graph.initializer}["w"] == [8, 16]  # constants stay outside


def test_the_numbers_are_the_same_everywhere(tmp_path):
    """In graphq, in ONNX's reference evaluator and in ONNX Runtime, with and without its optimizations."""
    g = net()
    feeds = random_inputs(g)
    model = gq.compile(g)
    want = model(feeds)
    saved(model.graph, path := tmp_path / "g.onnx")
    got = gq.compile(gq.load_onnx(path))(feeds)
    for name, x in want.items():
        np.testing.assert_array_equal(got[name], x)
    for optimized in (False, True):
        theirs = session(path, optimized=optimized)
        for name, x in zip(want, theirs.run(None, feeds), strict=True):
            if name == "probabilities":
                np.testing.assert_allclose(want[name], x, rtol=1e-5)  # softmax's sums have no order in ONNX
            else:
                np.testing.assert_array_equal(want[name], x)
    names = [o.name for o in theirs.get_outputs()]
    reference = dict(zip(names, onnx.reference.ReferenceEvaluator(str(path)).run(None, feeds), strict=True))
    np.testing.assert_array_equal(reference["y"], want["y"])


def test_a_body_that_returns_an_input_or_a_value_twice(tmp_path):
    """Names of a function's results are its own: a body may return what it was given."""
    body = gq.parse("graph(a: f32[3], b: f32[3]) {\n %r = relu(a)\n return %r as r, b as b2, %r as s\n}")
    g = gq.Graph()
    x, y = (g.input(n, dtype="f32", shape=[3]) for n in "xy")
    from graphq.ir.op import OPS

    outs = g.add_node(OPS["partition"], [x, y], {"body": body, "anchor": "eltwise"})
    for k, v in enumerate(outs):
        g.output(v, name=f"out{k}")
    (function,) = saved(g, path := tmp_path / "g.onnx").functions
    assert len({*function.output, *function.input}) == 5
    feeds = {"x": np.float32([-1, 2, 3]), "y": np.float32([4, 5, 6])}
    out = gq.reference(gq.load_onnx(path), feeds)
    assert [out[f"out{k}"].tolist() for k in range(3)] == [[0, 2, 3], [4, 5, 6], [0, 2, 3]]


def test_an_operation_that_onnx_lacks_is_named(tmp_path):
    body = gq.parse("graph(a: f32[3,4]) {\n %r = softplus(a, beta=2)\n return %r\n}")
    g = gq.Graph()
    from graphq.ir.op import OPS

    g.output(g.add_node(OPS["partition"], [g.input("x", dtype="f32", shape=[3, 4])],
                        {"body": body, "anchor": "eltwise"})[0], name="y")
    with pytest.raises(gq.GraphError, match=r"save: %y = partition\(x\).*%r = softplus\(a\).*no beta"):
        gq.save_onnx(g, tmp_path / "g.onnx")


def test_open_shapes_are_written_for_those_that_the_graph_shows(tmp_path):
    g = gq.parse("""graph(x: u8[?,4]) {
      %0 = dequantize(x, scales=[0.5], zps=[0])
      %1 = softmax(%0)
      return %1 as y
    }""")
    model = gq.compile(g)
    model(np.ones((3, 4), np.uint8))
    saved(model.graph, path := tmp_path / "g.onnx")
    loaded = gq.load_onnx(path)
    assert loaded.inputs[0].type.dims == model.graph.inputs[0].type.dims
    feeds = random_inputs(loaded)
    np.testing.assert_array_equal(gq.compile(loaded)(feeds), model(feeds))


def test_operators_of_partitions_accept_the_types_as_well(tmp_path):
    g = gq.Graph()
    w = g.constant(np.ones((64, 32), as_dtype("u2").numpy))
    w = g.dynamic_dequantize(w, np.ones((2, 32), np.float32), qtype="per_group", group_shape=[32, 1])
    g.output(g.matmul(g.input("x", dtype="f32", shape=[4, 64]), w))
    gq.passes.run_passes(g)
    assert any(n.op.name == "partition" for n in g.nodes)
    with pytest.raises(gq.GraphError, match=r"cannot be tensor\(uint2\) in opset 21; it needs opset 25"):
        gq.save_onnx(g, tmp_path / "g.onnx")
    gq.save_onnx(g, tmp_path / "g.onnx", opset=25)
    onnx.checker.check_model(tmp_path / "g.onnx", full_check=True)

"""Integer constants that a graph casts to f32, shifts and scales become dequantized weights, with the same bits."""
import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import graphq as gq
from graphq.passes.float_products import CastIntegers, ScaleIntegers
from graphq.testing import check_pass

W = "%w = constant(value=s8[2,3]{1, -2, 3, -4, 5, -128})"


@pytest.mark.parametrize("moved", [
    "", "%m = static_transpose(%w, order=[1,0])", "%m = static_reshape(%w, shape=[3,2])"])
def test_a_cast_of_integer_constants_is_a_dequantize(moved):
    graph = gq.parse(f"graph() {{ {W}\n {moved}\n %y = cast({'%m' if moved else '%w'}, dtype=f32)\n return %y\n }}")
    wanted = gq.reference(graph)
    assert CastIntegers()(graph) == 1
    assert [n.op.name for n in graph.nodes if n.op.name not in ("constant", "static_transpose", "static_reshape")] == \
        ["dequantize"]
    np.testing.assert_array_equal(gq.reference(graph), wanted)


@pytest.mark.parametrize("text", [
    "graph(x: u8[2,3]) {\n %0 = cast(x, dtype=f32)\n return %0\n}",
    "graph() {\n %w = constant(value=s32[2]{1, 2})\n %0 = cast(%w, dtype=f32)\n return %0\n}",
    "graph() {\n %w = constant(value=s8[2]{1, 2})\n %0 = cast(%w, dtype=f16)\n return %0\n}"])
def test_other_casts_stay(text):
    assert CastIntegers()(gq.parse(text)) == 0


@pytest.mark.parametrize("scale, qtype, axis", [
    ("f32[1]{0.1}", "per_tensor", 0), ("f32[3]{0.1, 0.2, -0.3}", "per_channel", 1),
    ("f32[2,1]{0.1, 0}", "per_channel", 0)])
def test_a_scale_after_the_cast(scale, qtype, axis):
    graph = gq.parse(f"""graph() {{ {W}
        %s = constant(value={scale})
        %0 = dequantize(%w, scales=[1.0])
        %1 = multiply(%s, %0)
        return %1
        }}""")
    bits = gq.reference(graph)
    assert ScaleIntegers()(graph) == 1
    (node,) = (n for n in graph.nodes if n.op.name != "constant")
    assert (node.op.name, node.attrs["qtype"], node.attrs["axis"]) == ("dynamic_dequantize", qtype, axis)
    np.testing.assert_array_equal(gq.reference(graph).view(np.int32), bits.view(np.int32))


def test_zero_points_and_scales_of_groups():
    rng = np.random.default_rng(0)
    g = gq.Graph()
    w, z = (g.cast(g.constant(rng.integers(-128, 128, shape, np.int8)), dtype="f32")
            for shape in ((2, 8, 3), (2, 1, 3)))
    g.output((w - z) * rng.uniform(1e-3, 1e-2, (2, 1, 3)).astype(np.float32))
    bits = gq.reference(g)
    assert CastIntegers()(g) == 2 and ScaleIntegers()(g) == 2
    assert [n.op.name for n in g.nodes if n.op.name != "constant"] == ["dynamic_dequantize"]
    np.testing.assert_array_equal(gq.reference(g), bits)


@pytest.mark.parametrize("numbers, rest", [
    ("f32[2,3]{1, 2, 3, 4, 5, 6}", "multiply(%0, %s)"), ("f32[1]{inf}", "multiply(%0, %s)"),
    ("f32[1]{0.5}", "subtract(%0, %s)"), ("f32[1]{200}", "subtract(%0, %s)"), ("f32[1]{1e20}", "subtract(%0, %s)"),
    ("f32[1]{2}", "subtract(%s, %0)"),
    ("f32[2,1,3]{1, 1, 1, 2, 2, 2}", "multiply(%0, %s)")])
def test_numbers_that_are_no_scales_or_zero_points_stay(numbers, rest):
    check_pass(ScaleIntegers(), count=0, before=f"""graph() {{ {W}
        %0 = dequantize(%w, scales=[1.0])
        %s = constant(value={numbers})
        %1 = {rest}
        return %1
        }}""")


def test_a_dequantize_with_other_scales_stays():
    check_pass(ScaleIntegers(), count=0, before=f"""graph() {{ {W}
        %0 = dequantize(%w, scales=[0.5])
        %s = constant(value=f32[1]{{2}})
        %1 = multiply(%0, %s)
        return %1
        }}""")


@pytest.mark.parametrize("after", [True, False], ids=["product * scale", "weights * scale"])
def test_weights_of_onnx_files_stay_integers(after):
    """torchao's weight-only quantization, as PyTorch exports it."""
    rng = np.random.default_rng(0)
    w, s = rng.integers(-127, 128, (64, 32), np.int8), rng.uniform(1e-3, 1e-2, 32).astype(np.float32)
    scaled = [helper.make_node("MatMul", ["x", "f"], ["m"]), helper.make_node("Mul", ["m", "s"], ["y"])] if after else \
        [helper.make_node("Mul", ["f", "s"], ["m"]), helper.make_node("MatMul", ["x", "m"], ["y"])]
    graph = helper.make_graph(
        [helper.make_node("Cast", ["w"], ["f"], to=TensorProto.FLOAT), *scaled], "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 64])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 32])],
        [numpy_helper.from_array(w, "w"), numpy_helper.from_array(s, "s")])
    loaded = gq.load_onnx(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10))
    model = gq.compile(loaded, cache="kernels")
    (record,) = [n for n in model.explain(format="json")["nodes"] if n["partition"]]
    assert record["partition"]["anchor"] == "matmul_compressed"
    x = rng.standard_normal((2, 64)).astype(np.float32)
    np.testing.assert_allclose(model(x), gq.reference(loaded, x), rtol=1e-5, atol=1e-5)

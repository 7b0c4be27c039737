"""How products are chosen, and the automatic setting with the user's choices; ranges that the user gives."""
import numpy as np
import pytest
from float_networks import attention, convolutional, perceptron

import graphq as gq
from graphq.ir.node import ONNX_NAME
from graphq.quantization import Scheme, automatic, calibrate, compare, quantize
from graphq.quantization.calibrate import observed
from graphq.quantization.price import Price
from graphq.quantization.products import prepared, values_by_name
from graphq.quantization.selection import resolved, selected


@pytest.mark.parametrize("wanted, names", [
    (["point"], ["point"]), (["p*"], ["point"]), (["*o*t*", "depthwise"], ["point", "depthwise"]),
    (["op:Conv"], ["first", "depthwise", "point"]), (["op:convolution"], ["first", "depthwise", "point"]),
    (["op:MatMul"], ["classifier"]), (["op:Gemm", "op:matmul"], ["classifier"]),
    (["depthwise..classifier"], ["depthwise", "point", "classifier"]), (["x..relu"], ["first", "depthwise"]),
    (["point..point"], ["point"]), ([], [])])
def test_products_are_chosen(wanted, names):
    assert list(selected(prepared(convolutional()[0]), wanted)) == names


def test_a_layer_has_one_name_if_a_batch_normalization_is_folded_into_it():
    graph, batches = convolutional()
    graph.rename(graph.nodes_of(["batch_norm_inference"])[0].output, "norm")
    for name in "first", "norm":
        made = quantize(graph, batches, Scheme(exclude=[name]))
        assert made.meta["quantization"]["layers_f32"] == ["first"]
        assert "%first = convolution(x," in gq.compile(made).explain(name)
    found = {row.name for row in compare(made, graph, batches, rank=False).tensors}
    assert "first" in found and "norm" not in found
    plain = gq.compile(graph)
    assert "in the convolution partition" in plain.explain("first") and "in the conv" in plain.explain("norm")


def test_a_module_has_the_products_within_it():
    g = gq.Graph()
    y = g.input("input", dtype="f32", shape=(4, 4))
    for name in ("blocks.1.up", "blocks.1.down", "blocks.10.up", "x", "x.1"):
        y = g.relu(g.matmul(y, np.eye(4, dtype=np.float32), name=name))
    g.output(y, name="y")
    assert selected(prepared(g), ["blocks.1"]) == ("blocks.1.up", "blocks.1.down")
    assert selected(prepared(g), ["blocks.1*"]) == ("blocks.1.up", "blocks.1.down", "blocks.10.up")
    assert selected(prepared(g), ["x"]) == ("x",)  # names of values may look like paths
    with pytest.raises(gq.GraphError, match="no matmul or convolution is named 'blocks.2'"):
        selected(prepared(g), ["blocks.2"])


def test_products_are_chosen_by_names_of_onnx_nodes(tmp_path):
    onnx = pytest.importorskip("onnx")
    g = gq.Graph()
    y = g.input("x", dtype="f32", shape=(4, 4))
    for _ in range(2):
        y = g.relu(g.matmul(y, np.eye(4, dtype=np.float32)))
    g.output(y, name="y")
    gq.save_onnx(g, tmp_path / "model.onnx")
    model = onnx.load(tmp_path / "model.onnx")
    for k, node in enumerate(n for n in model.graph.node if n.op_type in ("MatMul", "Gemm")):
        node.name = f"block/dense{k}"
    onnx.save(model, tmp_path / "named.onnx")
    graph = prepared(gq.load_onnx(tmp_path / "named.onnx"))
    first, last = selected(graph, ["op:matmul"])
    assert selected(graph, ["block/dense0"]) == (first,) and selected(graph, ["block/*1"]) == (last,)
    assert selected(graph, ["block/*"]) == (first, last) == selected(graph, ["block/dense0..block/dense1"])
    assert selected(graph, [f"block/dense1..{last}"]) == (last,)
    with pytest.raises(gq.GraphError, match="named 'block/dens1'; did you mean block/dense1"):
        selected(graph, ["block/dens1"])


def test_a_node_of_several_results_stands_for_the_first():
    g = gq.Graph()
    weights = np.eye(4, dtype=np.float32)
    parts = g.top_k(g.input("x", dtype="f32", shape=(4, 8)), k=4, axis=1)
    g.output(g.matmul(parts[0], weights, name="product0"))
    g.output(g.matmul(g.cast(parts[1], dtype="f32"), weights + 1, name="product1"))
    parts[0].node.meta[ONNX_NAME] = "cut"
    graph = prepared(g)
    assert selected(graph, ["cut..product0"]) == ("product0",)
    with pytest.raises(gq.GraphError, match="named 'cut..product1'"):
        selected(graph, ["cut..product1"])


@pytest.mark.parametrize("text, message", [
    ("other*", "no matmul or convolution is named 'other[*]'; there are first"), ("op:LSTM", "named 'op:LSTM'"),
    ("x..nothing", "has no value or ONNX node named 'nothing'; there are x, first"),
    ("point..depthwise", "named 'point..depthwise'")])
def test_what_chooses_nothing_is_refused(text, message):
    with pytest.raises(gq.GraphError, match=message):
        quantize(convolutional()[0], convolutional()[1], Scheme(exclude=[text]))


def test_names_of_nodes_whose_bias_is_added_after_them():
    """A Gemm is a matmul and a sum until it is prepared; a batch normalization folds into weights."""
    onnx = pytest.importorskip("onnx")
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 15]>
        net (float[2, 3, 4, 4] x) => (float[2, 5] y) {
          s = Conv (x, k)
          t = BatchNormalization (s, c, c, c, a)
          f = Flatten (t)
          y = Gemm (f, w, b) }""")
    rng = np.random.default_rng(0)
    for name, shape in {"k": (4, 3, 1, 1), "c": 4, "a": 4, "w": (64, 5), "b": 5}.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(rng.random(shape, np.float32) + 1, name))
    for name, node in zip(("block/conv", "block/norm", "block/flat", "head"), model.graph.node, strict=True):
        node.name = name
    graph = prepared(gq.load_onnx(model))
    first, last = selected(graph, ["op:Conv", "op:Gemm"])
    assert selected(graph, ["block/conv"]) == (first,) and selected(graph, ["head"]) == (last,)
    assert selected(graph, ["block/conv..head"]) == (first, last)
    assert all(n.origin is None for n in graph.nodes) and graph.labels.origins is None


def test_choices_that_would_do_nothing_are_refused():
    graph, batches = convolutional()
    for part in ("wide", "wide_weights"):
        with pytest.raises(gq.GraphError, match=f"{part} 'point' selects only excluded layers"):
            quantize(graph, batches, Scheme(exclude=["p*"], **{part: ["classifier", "point"]}))
        quantize(graph, batches, Scheme(exclude=["p*"], **{part: ["op:Conv"]}))
    with pytest.raises(gq.GraphError, match="limits name 'x', but this tensor is not quantized: no quantized layer"):
        quantize(graph, batches, Scheme(exclude=["first"], limits={"x": (0, 1)}))


def test_values_between_layers_that_a_graph_may_lack():
    graph = prepared(perceptron()[0])
    assert resolved(graph, Scheme(between=("*",))).between == ()
    with pytest.raises(gq.GraphError, match="no value stored between layers is named 'v'; there are none"):
        resolved(graph, Scheme(between=("v",)))


def test_attention_between_two_names():
    graph = prepared(attention()[0])
    assert selected(graph, ["scores..mixed"]) == ("scores", "mixed")
    assert set(selected(graph, ["normalized..mixed"])) == {"q", "k", "v", "scores", "mixed"}


def test_the_automatic_setting_keeps_the_users_choices(monkeypatch):
    monkeypatch.setattr(Price, "faster_exact", lambda self, operands: [])  # more exact layers have 16 bits, not f32
    graph, batches = convolutional(spread=1.5)
    given = Scheme(method="automatic", exclude=["first"], wide=["op:matmul"])
    found = automatic(graph, batches, given)
    floats = ("first", "depthwise")  # the second one is faster in f32
    assert found.setting.scheme.exclude == floats and len(found.setting.scheme.wide) >= 1
    assert {s.scheme.exclude for s in found.losses} == {floats}
    assert all("classifier" in s.scheme.wide for s in found.losses)
    (node,) = [n for n in found.graph.nodes if n.output.name == "first"]
    assert node.inputs[0] is found.graph.inputs[0]
    same = quantize(graph, batches, given)
    assert same.meta["quantization"]["layers_f32"] == list(floats)
    np.testing.assert_array_equal(gq.compile(same)(batches[0]), gq.compile(found.graph)(batches[0]))


def test_limits_are_the_range_of_a_tensor():
    graph, batches = perceptron()
    for scheme in (Scheme(limits={"relu": (0, 25.5)}), Scheme(method="automatic", limits={"relu": (0, 25.5)})):
        made = quantize(graph, batches, scheme)
        scale, *rest = [n.attrs["scales"][0] for n in made.nodes_of(["quantize"]) if n.inputs[0].node is not None]
        assert scale == pytest.approx(0.1) and all(s < 0.1 for s in rest)  # that of a remainder, of 16 bits


def test_what_the_automatic_method_needs():
    graph, batches = perceptron()
    with pytest.raises(gq.GraphError, match="method 'automatic' needs batches"):
        quantize(graph, calibrate(graph, batches), Scheme(method="automatic"))
    with pytest.raises(gq.GraphError, match="needs mode 'static'"):
        Scheme(method="automatic", mode="dynamic")
    with pytest.raises(gq.GraphError, match="method must be 'automatic', got 'mse'"):
        automatic(graph, batches, Scheme())
    with pytest.raises(gq.GraphError, match="limits name 'other', but graph .* has no such tensor"):
        quantize(graph, batches, Scheme(limits={"other": (0, 1)}))
    g = prepared(graph)
    for name in values_by_name(g).keys() - observed(g):
        with pytest.raises(gq.GraphError, match=f"limits name '{name}', but this tensor is not quantized: no q"):
            quantize(graph, batches, Scheme(limits={name: (0, 1)}))
    with pytest.raises(gq.GraphError, match="limits of 'x' must be finite, the first below the second, got 1 and 1"):
        Scheme(limits={"x": (1, 1)})

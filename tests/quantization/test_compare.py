"""compare and accuracy control: by hand on small networks."""
import json
from dataclasses import replace

import numpy as np
import pytest
from float_networks import convolutional, perceptron

import graphq as gq
from graphq.quantization import Scheme, compare, quantize, quantize_with_accuracy_control


def test_differences_are_those_of_the_tensors():
    graph, batches = perceptron()
    made = quantize(graph, batches, Scheme(method="min_max"))
    found = compare(made, graph, batches, rank=False)
    a, b = (np.concatenate([gq.compile(g, outputs=["hidden"])(x) for x in batches]) for g in (made, graph))
    t = found["hidden"]
    assert t.largest == pytest.approx(np.abs(a - b).max(), rel=1e-5)
    assert t.sqnr == pytest.approx(10 * np.log10(np.square(b).sum() / np.square(a - b).sum()), rel=1e-4)
    assert t.cosine == pytest.approx(float(np.vdot(a, b) / np.linalg.norm(a) / np.linalg.norm(b)), abs=1e-6)
    assert t.cost is None and 0 < found.loss < 0.01


def test_saturation_shows_a_range_that_is_too_small():
    graph, batches = perceptron()
    wide, narrow = (compare(quantize(graph, batches, Scheme(method="min_max", headroom=h)), graph, batches, rank=False)
                    for h in (1.5, 0.3))
    assert wide["relu"].saturation == 0
    assert narrow["relu"].saturation > 0.02


@pytest.mark.parametrize("name", ["output/Relu", "output0", "output_0"])
def test_tensors_may_have_any_names(name):
    """Also names such as the outputs have in the model that returns all tensors."""
    def found(name):
        graph, batches = perceptron()
        graph.rename(next(n.output for n in graph.nodes if n.output.name == "hidden"), name)
        return compare(quantize(graph, batches, Scheme(method="min_max")), graph, batches)

    plain, other = found("hidden"), found(name)
    assert other.loss == plain.loss
    assert {t.name.replace(name, "hidden"): t.cost for t in other.tensors} == {t.name: t.cost for t in plain.tensors}


def test_a_product_with_wrong_weights_costs_most():
    graph, batches = convolutional()
    made = quantize(graph, batches, Scheme(method="min_max", exclude=["depthwise"]))
    node = next(n for n in made.nodes if n.output.name == "point")
    with made.before(node):
        rough = made.dequantize(made.quantize(node.inputs[0], dtype="u8", scales=[0.5]), scales=[0.5])
    made.replace_uses(node.inputs[0], rough, [u for u in node.inputs[0].uses if u.node is node])
    found = compare(made, graph, batches)
    assert found.tensors[0].name == "point" and found.tensors[0].cost > 0.5 * found.loss
    assert found["depthwise"].cost is None  # it is not quantized
    assert str(found).splitlines()[2].endswith("point (convolution)")
    rows = json.loads(found.json())
    assert rows["tensors"][0]["name"] == "point" and rows["loss"] == found.loss


@pytest.mark.parametrize("scheme", [
    Scheme(method="min_max"), Scheme(method="min_max", wide=["hidden"], wide_weights=["hidden"]),
    Scheme(mode="dynamic"), Scheme(mode="dynamic", rows=True), Scheme(mode="weight_only")],
    ids=["static", "16 bits", "dynamic", "rows", "weight-only"])
def test_a_product_has_its_cost_whatever_became_of_it(scheme, tmp_path):
    pytest.importorskip("onnx")
    graph, batches = perceptron()
    made = quantize(graph, batches, scheme)
    gq.save_onnx(made, tmp_path / "made.onnx")  # in ONNX a matmul's bias is a sum behind it
    gq.save_onnx(graph, tmp_path / "f32.onnx")  # its relu has another name there
    files = gq.load_onnx(tmp_path / "made.onnx"), gq.load_onnx(tmp_path / "f32.onnx")
    want = [gq.compile(graph)(b) for b in batches]

    def loss(g):
        return max(1 - np.vdot(a, b) / np.linalg.norm(a) / np.linalg.norm(b)
                   for a, b in zip((gq.compile(g)(b).astype(np.float64) for b in batches), want, strict=True))

    for g, against in ((made, graph), files):
        found = compare(g, against, batches)
        assert found.loss == pytest.approx(loss(g), abs=1e-6)
        costs = {{"y": "logits"}.get(t.name, t.name): t.cost for t in found.tensors if t.cost is not None}
        assert set(costs) == {"hidden", "logits"}
        if scheme.mode == "static":
            for name, cost in costs.items():
                others = replace(scheme, exclude=[name], wide=set(scheme.wide) - {name},
                                 wide_weights=set(scheme.wide_weights) - {name})
                assert cost == pytest.approx(found.loss - loss(quantize(graph, batches, others)), abs=1e-6)


def test_compiled_graphs_and_equal_ones():
    graph, batches = perceptron()
    model = gq.compile(graph)
    found = compare(model, model, batches)
    assert found.loss == pytest.approx(0, abs=1e-12)
    assert all(t.sqnr == np.inf and t.largest == 0 for t in found.tensors)
    assert json.loads(found.json())["tensors"][0]["sqnr"] is None


def test_outputs_of_one_element_are_compared_by_their_size():
    """The cosine of two numbers is only their sign. Here outputs are half of f32's, 1 and 3."""
    made, plain = (gq.Graph(), gq.Graph())
    for g, size in ((made, 0.5), (plain, 1.0)):
        x = g.relu(g.input("x", dtype="f32", shape=(1, 1)), name="same")
        g.output(g.multiply(x, np.float32(size), name="y"))
    found = compare(made, plain, [{"x": np.float32([[k]])} for k in (1, 3)], rank=False)
    assert found.loss == pytest.approx(1.5**2 / (2 * np.mean([1, 9])))


def test_what_cannot_be_compared():
    graph, batches = perceptron()
    with pytest.raises(gq.InputError, match="at least one batch"):
        compare(graph, graph, [])
    with pytest.raises(gq.GraphError, match="against must be a Graph"):
        compare(graph, "other", batches)
    g = gq.Graph()
    g.output(g.relu(g.input("x", dtype="f32", shape=(None, 16)), name="other"), name="z")
    with pytest.raises(gq.GraphError, match="have no tensor of the same name"):
        compare(graph, g, batches)


def evaluation(graph, batches, counted):
    """Minus the largest difference of an output."""
    wanted = [gq.compile(graph)(b) for b in batches]

    def evaluate(model):
        counted.append(model)
        return -max(float(np.abs(model(b) - w).max()) for b, w in zip(batches, wanted, strict=True))

    return evaluate


@pytest.mark.parametrize("share", [1.3, 0.08, 0.0135])
def test_the_accuracy_chooses_a_point_of_the_frontier(share):
    graph, batches = convolutional(spread=1.5)
    evaluate = evaluation(graph, batches, [])
    plain = -evaluate(gq.compile(quantize(graph, batches[:3], Scheme(method="min_max"))))
    lines = []
    found = quantize_with_accuracy_control(graph, batches[:3], evaluate, share * plain + 1e-5, report=lines.append)
    assert found.accuracy_f32 - found.accuracy <= share * plain + 1e-5
    assert evaluate(gq.compile(found.graph)) == pytest.approx(found.accuracy)
    assert len(lines) >= 2 and lines[0].startswith("accuracy 0, ") or lines[0].startswith("accuracy -0, ")

"""Networks exported with open lengths: shapes that nodes compute, and settings whose graphs cannot be made."""
import json

import numpy as np
import pytest
from float_networks import perceptron

import graphq as gq
from graphq.cli import main
from graphq.quantization import Scheme, automatic, compare, quantize
from graphq.quantization.compare import distance
from graphq.quantization.scheme import Candidate, with_scheme
from graphq.quantization.search import Search

onnx = pytest.importorskip("onnx")
D, HEADS = 16, 2


class Exported:
    """An ONNX model as torch writes it: nodes, and weights as initializers."""

    def __init__(self, seed=0):
        self.rng, self.nodes, self.weights = np.random.default_rng(seed), [], {}

    def constant(self, x, dtype=np.int64):
        name = f"c{len(self.weights)}"
        self.weights[name] = onnx.numpy_helper.from_array(np.asarray(x, dtype), name)
        return name

    def __call__(self, op, *operands, out=None, **attrs):
        out = out or f"{op}_{len(self.nodes)}"
        self.nodes.append(onnx.helper.make_node(op, operands, [out], **attrs))
        return out

    def linear(self, x, rows, columns, out=None):
        w = self.rng.normal(0, rows**-0.5, (rows, columns)).astype(np.float32)
        return self("MatMul", x, self.constant(w, np.float32), out=out)

    def sizes(self, x, *axes):
        """The sizes of x along axes, as torch computes them, each as a list of one number."""
        shape = self("Shape", x)
        return [self("Unsqueeze", self("Gather", shape, self.constant(k)), self.constant([0])) for k in axes]

    def view(self, x, *parts):
        return self("Reshape", x, self("Concat", *(p if isinstance(p, str) else self.constant([p]) for p in parts),
                                       axis=0))

    def graph(self, inputs, output, rank):
        proto = onnx.helper.make_graph(
            self.nodes, "exported",
            [onnx.helper.make_tensor_value_info(name, 1, shape) for name, shape in inputs.items()],
            [onnx.helper.make_tensor_value_info(output, 1, [f"d{k}" for k in range(rank)])], [*self.weights.values()])
        return gq.load_onnx(onnx.helper.make_model(proto, opset_imports=[onnx.helper.make_opsetid("", 17)],
                                                   ir_version=9))


def transformer(flat=False):
    """One layer of attention: view(b, s, heads, -1) of uneven channels, and view(b, s, -1) or, if `flat`, (b * s, -1).

    The products after the second view read a tensor whose last dimension is unknown in the file.
    """
    m = Exported()
    gamma = m.constant(np.where(np.arange(D) % 5 == 1, 40, 1), np.float32)
    x = m("LayerNormalization", "x", gamma, m.constant(np.zeros(D), np.float32))
    b, s = m.sizes(x, 0, 1)
    heads = [m("Transpose", m.view(m.linear(x, D, D), b, s, HEADS, -1), perm=[0, 2, 3, 1] if k == 1 else [0, 2, 1, 3])
             for k in range(3)]
    probs = m("Softmax", m("Mul", m("MatMul", *heads[:2]), m.constant(0.1, np.float32)))
    mixed = m("Transpose", m("MatMul", probs, heads[2]), perm=[0, 2, 1, 3])
    if flat:
        mixed = m.view(mixed, m("Mul", b, s), -1)
        y = m.linear(mixed, D, D)
    else:
        y = m.linear(m.view(mixed, b, s, -1), D, D)
        y = m.linear(m("Relu", m("Add", "x", y)), D, 8, out="last")
    return m.graph({"x": ["b", "s", D]}, y, 2 if flat else 3)


DATA = [{"x": np.random.default_rng(k).standard_normal((2, s, D)).astype(np.float32)} for k, s in enumerate((5, 3, 5))]


@pytest.fixture(scope="module", params=[False, True], ids=["three dimensions", "two"])
def opened(request):
    graph = transformer(request.param)
    return graph, Search(graph, DATA)


def test_every_setting_can_be_made(opened, tmp_path):
    """In 8 bits, in 16 bits, in f32, dynamic: as the search finds them, and in a file."""
    graph, work = opened
    everything = tuple(work.products)
    plain = work.uniform(Candidate("min_max"))
    wide = {"wide": everything, "wide_weights": [n for n, p in work.products.items() if p.weights is not None]}
    for tried in (plain, with_scheme(plain, **wide), with_scheme(plain, exclude=everything[:2])):
        assert work.loss_made(tried, [0]) < 0.2 and not work.failed
    for scheme in (Scheme(mode="dynamic", rows=True), Scheme(mode="weight_only")):
        gq.save_onnx(quantize(graph, scheme=scheme), tmp_path / "made.onnx")
        assert distance(gq.compile(tmp_path / "made.onnx")(DATA[0]), gq.compile(graph)(DATA[0])) < 0.05


def test_the_command_quantizes_it_and_compares(tmp_path, capsys):
    gq.save_onnx(transformer(), tmp_path / "model.onnx")
    np.savez(tmp_path / "data.npz", **{f"{k}/in/x": b["x"] for k, b in enumerate(DATA)})
    main(["quantize", str(tmp_path / "model.onnx"), "--data", str(tmp_path / "data.npz"), "-o",
          str(tmp_path / "int8.onnx"), "--json"])
    report = json.loads(capsys.readouterr().out)
    assert report["failed"] == {} and None not in report["losses"].values()
    graph = gq.load_onnx(tmp_path / "model.onnx")
    lost = compare(gq.load_onnx(tmp_path / "int8.onnx"), graph, DATA, rank=False).loss
    assert lost <= report["estimate"]["expected"]


def test_a_setting_that_cannot_be_made_costs_itself_alone(monkeypatch):
    """Whatever fails: the next best setting is taken, and the report says what was left out, and why."""
    graph, data = perceptron()
    scheme = Scheme(method="automatic", weight_bits=8)
    made, best = Search.made, automatic(graph, data, scheme)
    assert not best.failed

    def failing(self, setting):
        if setting == best.setting:
            raise ValueError("no such shape")
        return made(self, setting)

    monkeypatch.setattr(Search, "made", failing)
    found = automatic(graph, data, scheme)
    assert found.setting != best.setting and found.losses[best.setting] == np.inf
    assert found.losses[found.setting] == min(found.losses.values())
    assert f"left out, because its graph cannot be made or run: {best.setting}: ValueError: no such shape" in str(found)
    assert found.graph.meta["quantization"]["failed"] == {str(best.setting): "ValueError: no such shape"}
    assert distance(gq.compile(found.graph)(data[0]), gq.compile(graph)(data[0])) < 0.01


def test_no_setting_that_can_be_made_is_an_error_with_its_reason(monkeypatch):
    def failing(self, setting):
        raise gq.GraphError("nothing fits")

    monkeypatch.setattr(Search, "made", failing)
    with pytest.raises(gq.GraphError, match="no setting of the search can be made: GraphError: nothing fits"):
        automatic(*perceptron())


def test_products_that_quantize_does_not_see_are_counted():
    """Nodes that stay ONNX's, whatever their reason: of them nothing is known before shapes are."""
    m = Exported()
    y = m.linear("x", D, D)
    picked = m("Reshape", y, m("Concat", *m.sizes("x", 0, 1), m.constant([4, 4]), axis=0))
    picked = m("Einsum", picked, m.constant(m.rng.normal(size=(4, 3)), np.float32), equation="bsij,jk->bsik")
    graph = m.graph({"x": ["b", "s", D]}, picked, 4)
    found = quantize(graph, DATA, Scheme())
    assert found.meta["quantization"]["not_quantized"] == {"Einsum": 1}
    assert "not quantized: 1 Einsum" in str(automatic(graph, DATA))
    assert quantize(transformer(), DATA, Scheme()).meta["quantization"]["not_quantized"] == {}

"""Inputs of a few integers on which shapes depend are open sizes: one plan holds for many values."""
import threading

import numpy as np
import onnx
import pytest

import graphq as gq
from graphq.errors import GraphError
from graphq.ir.interpret import Signature, named_outputs
from graphq.model import compiled_graph
from graphq.model.open_shapes import SIZE, Places, signature_of

rng = np.random.default_rng(3)

SLICE = """net (float[4, m] x, int64[2] n) => (float[4, k] y, float[r] z) {
    start, end = Split<num_outputs = 2>(n)
    axis = Constant<value_ints = [1]>()
    inner = Slice(x, start, end, axis)
    y = Relu(inner)
    zero = Constant<value_float = 0.0>()
    one = Constant<value_float = 1.0>()
    stop = Squeeze(end)
    last = Cast<to = 1>(stop)
    z = Range(zero, last, one)
}"""


def loaded(text, **dims):
    m = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 18]> {text}')
    for v in m.graph.input:
        for d in v.type.tensor_type.shape.dim:
            if d.dim_param in dims:
                d.dim_value = dims[d.dim_param]
    return gq.load_onnx(m)


def as_reference(graph, model, feeds):
    want, *others = (named_outputs(graph.output_names, f(feeds))
                     for f in (lambda x: gq.reference(graph, x), model, model.formula))
    for got in others:
        for name in want:
            np.testing.assert_array_equal(got[name], want[name])


@pytest.mark.parametrize("dims", [{}, {"m": 40}], ids=["open", "fixed"])
def test_one_plan_for_many_values(dims, tmp_path):
    g = loaded(SLICE, **dims)
    model = gq.compile(g, strict=True)
    x = rng.standard_normal((4, 40)).astype(np.float32)
    for end in (30, 33, 29, 39, 17, 38):
        as_reference(g, model, {"x": x, "n": np.array([3, end])})
    made = len(model.plans.all())
    for end in range(18, 28):
        as_reference(g, model, {"x": x, "n": np.array([3, end])})
    assert len(model.plans.all()) == made and "n[1] = 16 to 127" in model.explain()
    model.save(tmp_path / "m.graphq")
    again = gq.load_compiled(tmp_path / "m.graphq")
    assert not again.origin.count("compiled again")
    as_reference(g, again, {"x": x, "n": np.array([3, 31])})
    assert len(again.plans.all()) == made


def test_values_of_other_classes_and_below_zero():
    g = loaded(SLICE, m=40)
    model = gq.compile(g)
    x = rng.standard_normal((4, 40)).astype(np.float32)
    for n in ((0, 0), (0, 1), (5, 3), (-3, 40), (0, -2), (2, 400)):
        as_reference(g, model, {"x": x, "n": np.array(n)})


def test_a_profile_and_values_that_are_fetched():
    model = gq.compile(loaded(SLICE, m=40))
    feeds = {"x": np.ones((4, 40), np.float32), "n": np.array([1, 20])}
    assert model.profile(feeds, runs=1).steps
    assert model(feeds, fetch="inner").shape == (4, 19)


def test_what_is_no_size():
    """An integer that decides no shape, and integers that do not suffice."""
    g = gq.Graph()
    x, n = g.input("x", dtype="f32", shape=(4,)), g.input("n", dtype="s64", shape=())
    g.output(g.multiply(x, g.cast(n, dtype="f32")), name="y")
    for graph in (g, loaded("""net (float[m] x, int64[1] n) => (int64[1, k] y) {
            start = Constant<value_ints = [0]>()
            places = NonZero(x)
            axis = Constant<value_ints = [1]>()
            y = Slice(places, start, n, axis)
        }""", m=9)):
        assert signature_of(graph) == Signature.of(graph) and Places(signature_of(graph)).all == []
    x = np.float32([0, 1, 2, 0, 3, 0, 4, 0, 5])
    as_reference(graph, gq.compile(graph), {"x": x, "n": np.array([3])})


def test_a_value_that_does_not_fit_is_named():
    g = loaded("""net (float[12] x, int64[2] n) => (float[a, b] y) { y = Reshape(x, n) }""")
    model = gq.compile(g)
    assert [p.property for p in model.signature.inputs] == ["undef", SIZE]
    x = np.arange(12, dtype=np.float32)
    assert model(x, np.array([3, 4]))[1, 1] == 5
    with pytest.raises(GraphError, match="Reshape"):
        model(x, np.array([3, 5]))


def test_a_call_waits_while_another_finds_that_values_are_sizes(monkeypatch):
    """The plans before, which are for each set of shapes, would be refused."""
    model, find = gq.compile(loaded(SLICE), strict=True), compiled_graph.signature_of
    feeds = {"x": np.ones((4, 40), np.float32), "n": np.array([3, 30])}
    found = []
    thread = threading.Thread(target=lambda: found.append(model(feeds)["z"].size))

    def slow(*args):
        monkeypatch.undo()
        thread.start()
        thread.join(0.5)
        return find(*args)

    monkeypatch.setattr(compiled_graph, "signature_of", slow)
    assert model(feeds)["z"].size == 30
    thread.join()
    assert found == [30]


def test_a_profile_while_a_call_finds_that_values_are_sizes():
    """It uses the plans that it has begun with."""
    model = gq.compile(loaded(SLICE))
    feeds = {"x": np.ones((4, 40), np.float32), "n": np.array([3, 30])}
    plans, shapes_of = model.plans, model.plans.shapes_of

    def then_a_call(arrays):
        plans.shapes_of, shapes = shapes_of, shapes_of(arrays)
        model(feeds)
        return shapes

    plans.shapes_of = then_a_call
    assert model.profile(feeds, runs=1).steps and model.plans is not plans


def test_values_near_the_largest_s64_have_examples():
    g = loaded("net (int64[3] x) => (int64[n] y) { y = Unique(x) }")
    most = np.iinfo(np.int64).max
    as_reference(g, gq.compile(g), {"x": np.array([most, most // 3, 1])})

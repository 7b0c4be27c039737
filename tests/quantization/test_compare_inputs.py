"""compare on what users bring: many tensors, names of any kind, open shapes, one batch, infinities, graphs apart."""
import json

import numpy as np
import pytest
from float_networks import attention, perceptron

import graphq as gq
from graphq.quantization import Scheme, compare, quantize

NAMES = ("<b>&amp;{}", 'say "{}"', "line\nbreak\t{}", "層{}ß", "</script>{}", "a b/{}:0", "{}\u2028")


def chain(length, names=NAMES):
    """Layers of three tensors each, whose names have what names seldom have."""
    g, rng = gq.Graph('chain "of" <layers>\n'), np.random.default_rng(0)
    y = g.input('in\n"put" <x>', dtype="f32", shape=(None, 8))
    for k in range(length):
        w = rng.normal(0, 8**-0.5, (8, 8)).astype(np.float32)
        product, positive, bent = (names[(3 * k + i) % len(names)].format(3 * k + i) for i in range(3))
        y = g.add(y, g.tanh(g.abs(g.matmul(y, w, name=product), name=positive), name=bent))
    g.output(y, name='out <"ä">\n')
    return g, [{'in\n"put" <x>': rng.standard_normal((n, 8)).astype(np.float32)} for n in (3, 5)]


def test_many_tensors_with_names_of_any_kind():
    graph, batches = chain(35)
    made = quantize(graph, batches, Scheme(method="min_max"))
    found = compare(made, graph, batches, rank=False)
    names = {NAMES[k % len(NAMES)].format(k) for k in range(105)}
    assert len(found.tensors) == 140 and names <= {t.name for t in found.tensors}
    assert all(t.sqnr > 20 and t.cosine > 0.99 for t in found.tensors)  # a tanh of large numbers is 1 in both
    lines = str(found).splitlines()
    assert len(lines) == 21 and lines[-2] == "... 123 more, as JSON"
    assert len([line for line in lines if line.endswith(r'  "line\nbreak\t2" (tanh)')]) == 1
    assert {row["name"] for row in json.loads(found.json())["tensors"]} >= names


def test_ranks_with_names_of_any_kind():
    graph, batches = chain(3)
    found = compare(quantize(graph, batches, Scheme(method="min_max")), graph, batches)
    assert [t.name for t in found.tensors if t.cost is not None] == [t.name for t in found.tensors[:3]]
    assert {t.op for t in found.tensors[:3]} == {"matmul"} and found.loss > 0


@pytest.mark.parametrize("network", [attention, perceptron])
def test_one_batch_and_open_shapes(network):
    """Batches of other sizes add up; a generator, which can be read once, does as well as a list."""
    graph, batches = network()
    made = quantize(graph, batches, Scheme(method="min_max"))
    alone = [compare(made, graph, [batch], rank=False) for batch in batches]
    together = compare(made, graph, iter(batches))
    assert {t.name for t in together.tensors} == {t.name for t in alone[0].tensors}
    for t in together.tensors:
        parts = [one[t.name] for one in alone]
        assert t.largest == max(p.largest for p in parts)
        assert min(p.sqnr for p in parts) - 1e-6 <= t.sqnr <= max(p.sqnr for p in parts) + 1e-6
    assert together.loss == pytest.approx(max(one.loss for one in alone), abs=1e-12)


def test_saturation_is_a_share_of_all_elements():
    graph, batches = perceptron()
    made = quantize(graph, batches, Scheme(method="min_max", headroom=0.3))
    rows = batches[0]["x"]
    parts = [compare(made, graph, [{"x": x}], rank=False)["relu"].saturation for x in (rows[:1], rows[1:])]
    whole = compare(made, graph, [{"x": rows[:1]}, {"x": rows[1:]}], rank=False)["relu"].saturation
    assert whole == pytest.approx((parts[0] + 5 * parts[1]) / 6) and parts[0] != parts[1]


def test_nothing_to_compare():
    graph, batches = perceptron()
    made, empty = quantize(graph, batches, Scheme(method="min_max")), {"x": np.zeros((0, 16), np.float32)}
    with pytest.raises(gq.InputError, match="no tensor had any elements in 2 batches"):
        compare(made, graph, [empty, empty])
    some, all_of_them = (compare(made, graph, b, rank=False) for b in ([*batches, empty], batches))
    assert some.tensors == all_of_them.tensors


def test_nan_in_the_data():
    graph, batches = perceptron()
    made = quantize(graph, batches, Scheme(method="min_max"))
    wrong = {"x": np.where(np.arange(16) == 3, np.float32(np.nan), batches[0]["x"])}
    with pytest.raises(gq.InputError, match="batch 2: tensor 'hidden' of the f32 graph holds nan"):
        compare(made, graph, [batches[0], wrong])


def masked(gap=-np.inf):
    """Scores of which one column is masked, as attention masks them."""
    g, rng = gq.Graph("masked"), np.random.default_rng(0)
    y = g.matmul(g.input("x", dtype="f32", shape=(2, 4)), rng.standard_normal((4, 4)), name="scores")
    y = g.softmax(g.add(y, np.array([[0, 0, gap, 0]] * 2, np.float32), name="masked"), axis=-1)
    g.output(g.matmul(y, rng.standard_normal((4, 2)), name="mixed"), name="y")
    return g, [{"x": rng.standard_normal((2, 4)).astype(np.float32)}]


def test_infinities_of_a_mask_are_equal():
    graph, batches = masked()
    found = compare(quantize(graph, batches, Scheme(method="min_max")), graph, batches, rank=False)
    t = found["masked"]
    assert 20 < t.sqnr < 80 and 0.99 < t.cosine < 1 and 0 < t.largest < 1


def test_an_infinity_in_one_graph_alone_is_infinitely_far():
    graph, batches = masked()
    found = compare(masked(gap=-9)[0], graph, batches, rank=False)
    assert found["masked"].sqnr == -np.inf and found["masked"].largest == np.inf
    assert json.loads(found.json())["tensors"][0].keys() == {"name", "op", "sqnr", "cosine", "largest", "saturation",
                                                             "cost"}


def net(*, width=16, quantized=False, also=False, named=True):
    g, rng = gq.Graph("net"), np.random.default_rng(0)
    names = ({"name": "hidden"}, {"name": "logits"}) if named else ({}, {})
    h = g.matmul(g.input("x", dtype="f32", shape=(2, 8)), rng.standard_normal((8, width)), **names[0])
    y = g.matmul(g.relu(h), rng.standard_normal((width, 4)), **names[1])
    g.output(g.quantize(y, dtype="u8", scales=[0.1], zps=[128]) if quantized else y, name="y")
    if also:
        g.output(h, name="z")
    return g


BATCH = [{"x": np.random.default_rng(1).standard_normal((2, 8)).astype(np.float32)}]


@pytest.mark.parametrize("left, right, message", [
    (net(quantized=True), net(), r"outputs \(y: u8\[2,4\]\) must match the outputs of the f32 graph \(y: f32\[2,4\]\)"),
    (net(also=True), net(), r"outputs \(y: f32\[2,4\], z: f32\[2,16\]\) must match the outputs"),
    (net(), net(also=True), "must match the outputs of the f32 graph"),
])
def test_outputs_that_cannot_be_compared(left, right, message):
    with pytest.raises(gq.GraphError, match=message):
        compare(left, right, BATCH)


def test_tensors_of_other_shapes_are_others():
    found = compare(net(width=12), net(), BATCH, rank=False)
    assert {t.name for t in found.tensors} == {"logits"}


def test_shapes_that_differ_when_they_run():
    left, right = (gq.parse(f"""graph(x: f32[?,4]) {{
        %0 = {op}
        %y = static_reshape(%0, shape=[-1, 2], special_zero=true) : f32[?,2]
        %z = reduce_sum(%y, axes=[0, 1])
        return %z
    }}""") for op in ("relu(x)", "concat(x, x, axis=0)"))
    with pytest.raises(gq.GraphError, match=r"tensor 'y' is f32\[2,2\] in the quantized graph, f32\[4,2\]"):
        compare(left, right, [{"x": np.ones((1, 4), np.float32)}])


def test_graphs_without_shared_names():
    with pytest.raises(gq.GraphError, match="have no tensor of the same name"):
        compare(gq.parse(gq.to_text(net(named=False)).replace("return %4 as y", "return %4 as other")), net(), BATCH)


@pytest.mark.parametrize("left, right, fits", [
    ("?,4", "2,4", True), ("2,4", "?,4", True), ("2,?", "2,4", True), ("*", "2,4", True), ("2,4", "*", True),
    ("?,5", "?,4", False), ("?", "?,4", False), ("3,4", "2,4", False)])
def test_tensors_fit_where_no_known_dimension_differs(left, right, fits):
    def graph(dims):
        return gq.parse(f"graph(x: f32[{dims}]) {{\n %y = relu(x)\n return %y\n}}")

    batch = [{"x": np.ones((2, 4), np.float32)}]
    if fits:
        assert compare(graph(left), graph(right), batch)["y"].largest == 0
    else:
        with pytest.raises(gq.GraphError, match="have no tensor of the same name"):
            compare(graph(left), graph(right), batch)

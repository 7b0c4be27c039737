"""`graphq diff`: which nodes match, what differs, and by how much."""
import json

import numpy as np
import pytest

import graphq as gq
from graphq.cli import main
from graphq.commands.diff import difference
from graphq.commands.shared import save_graph

TEXT = """graph net(x: f32[2,3], z: f32[2,4]) {
  %w = constant(value=f32[3,4]{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12})
  %0 = matmul(x, %w)
  %1 = relu(%0)
  %2 = softmax(%1, axis=0)
  %3 = add(%2, z)
  return %3 as y
}"""
CHANGES = {
    "nothing": ([], ((4, [], []), [], [])),
    "a name": ([("%1 = relu(%0)", "%r = relu(%0)"), ("softmax(%1", "softmax(%r")], ((4, [], []), [], [])),
    "an attribute": ([("axis=0", "axis=1")], ((4, [], []), [("%2 = softmax", "axis", "0", "default")], [])),
    "a weight": ([("7, 8,", "7, 8.5,")], ((4, [], []), [], [("%w", "f32[3,4]", 1, 12, 0.5, 0)])),
    "a node": ([("%2 = softmax(%1", "%a = abs(%1)\n %2 = softmax(%a")], (
        (4, [], ["%a = abs(%1) : f32[2,4]"]), [("%2 = softmax", "operand 0", "%1", "%a")], [])),
    "an operation": ([("%1 = relu", "%1 = abs")], ((3, ["%1 = relu(%0) : f32[2,4]"], ["%1 = abs(%0) : f32[2,4]"]),
                                                   [("%2 = softmax", "operand 0", "%1", "%1")], [])),
    "an operand": ([("add(%2, z)", "add(z, %2)")], (
        (4, [], []), [("%3 = add", "operand 0", "%2", "z"), ("%3 = add", "operand 1", "z", "%2")], [])),
    "an input": ([("z: f32[2,4]", "v: f32[2,4]"), ("%2, z", "%2, v")], ((4, [], []), [
        ("graph", "input z", "f32[2,4]", "none"), ("graph", "input v", "none", "f32[2,4]"),
        ("%3 = add", "operand 1", "z", "v")], [])),
    "an output": ([("return %3 as y", "return %3 as y, %1 as r")], (
        (4, [], []), [("graph", "output r", "none", "%1")], [])),
}


def changed(edits, text=TEXT):
    for edit in edits:
        assert edit[0] in text
        text = text.replace(*edit)
    return gq.parse(text)


@pytest.mark.parametrize("name", CHANGES)
def test_changes(name):
    edits, ((kept, removed, added), changes, weights) = CHANGES[name]
    found = difference(gq.parse(TEXT), changed(edits))
    assert found == (kept, removed, added, changes, weights)
    assert found.equal == (str(found).endswith("all equal")) == (not (removed or added or changes or weights))


def layers(*ops, names=False):
    """A chain of matmuls by their number, each with the operation after it."""
    g = gq.Graph()
    x = g.input("x", shape=(2, 3), dtype="f32")
    for k, op in enumerate(ops):
        x = g.matmul(x, g.constant(np.full((3, 3), k, np.float32)), name=f"m{k}" if names else None)
        x = getattr(g, op)(x, name=f"y{k}" if names else None)
    g.output(x, name="y")
    return g


def test_values_of_one_name_match_whatever_makes_them():
    found = difference(layers("relu", "relu", names=True), layers("abs", "relu", names=True))
    assert (found.kept, len(found.removed), len(found.added), found.changed, found.weights) == (3, 1, 1, [], [])


def test_nodes_without_names_match_in_their_order():
    """A layer less in front: the others match, with other weights."""
    found = difference(layers("abs", "relu", "exp", "tanh"), layers("relu", "exp", "tanh"))
    assert (found.kept, len(found.removed), found.added) == (6, 2, [])
    assert {w.largest for w in found.weights} == {1.0}


@pytest.mark.parametrize("a, b, gap", [
    ([0.0], [-0.0], (1, 0, 0)), ([np.nan], [np.nan], None), ([np.inf], [1.0], (1, np.inf, 0)),
    ([np.nan, 2.0, 3.0, np.inf], [1.0, 2.5, 3.0, np.nan], (3, 0.5, 2))])
def test_weights_are_compared_by_their_bits(a, b, gap):
    def of(x):
        g = gq.Graph()
        g.output(g.constant(np.float32(x)), name="y")
        return g
    found = difference(of(a), of(b))
    assert [(w.differing, w.largest, w.nan) for w in found.weights] == ([] if gap is None else [gap])
    assert ("2 are NaN in a model" in str(found)) == (gap == (3, 0.5, 2))


def test_texts_show_the_place_that_differs():
    """Of two long lists of scales, the part around the first scale that differs."""
    graphs = [gq.Graph(), gq.Graph()]
    for g, scale in zip(graphs, (0.5, 4.0), strict=True):
        x = g.input("x", shape=(2, 40), dtype="u8")
        g.output(g.dequantize(x, qtype="per_channel", axis=1, scales=[*[0.25] * 30, scale, *[0.125] * 9]), name="y")
    line = str(difference(*graphs)).splitlines()[0]
    before, after = line.split(" -> ")
    assert "0.25, 0.5, 0.125" in before and "0.25, 4.0, 0.125" in after and len(line) < 300


@pytest.mark.parametrize("suffix", ["onnx", "json", "txt", "graphq"])
def test_files(suffix, tmp_path, capsys):
    a, b = gq.parse("graph(x: f32[2,4]) { %y = relu(x) return %y }"), \
        gq.parse("graph(x: f32[2,4]) { %a = relu(x)\n %y = tanh(%a) return %y }")
    for name, g in (("a", a), ("b", b)):
        path = tmp_path / f"{name}.{suffix}"
        if suffix == "graphq":
            gq.compile(g, isa="scalar", threads=1).save(path)
        else:
            save_graph(g, path)
    paths = [str(tmp_path / f"{name}.{suffix}") for name in "ab"]
    assert main(["diff", paths[0], paths[0], "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["equal"]
    assert main(["diff", *paths]) == 1
    out = capsys.readouterr().out
    assert "\n+ " in "\n" + out and "tanh" in out and "1 node in both models, 0 removed, 1 added" in out

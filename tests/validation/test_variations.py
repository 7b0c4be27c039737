"""Variations: one thing changed at a time, everything else as it was; what operations refuse is left out."""
import numpy as np
import pytest

import graphq as gq
from graphq.validation.variations import MOST, other_values, variations

TEXT = """graph(x: f32[2,3], y: f32[3]) {
  %c = constant(value=f32[3]{1.0,-2.0,3.0})
  %a = add(%c, y)
  %b = subtract(x, %a)
  %s = softmax(%b, axis=1)
  %r = static_reshape(%s, shape=[3,2])
  return %r
}"""


def varied(text=TEXT, seed=0):
    return list(variations(gq.parse(text), seed))


def test_words_and_what_is_changed():
    found = varied()
    words = [w for w, _ in found]
    assert words[0] == "other constants" and "constants of the other sign" in words
    by_words = dict(found)
    axis = next(w for w in words if w.startswith("axis=0 in ") and "softmax" in w)
    changed = by_words[axis]
    assert [n.attrs["axis"] for n in changed.nodes if n.op.name == "softmax"] == [0]
    plain = {n.op.name: n.attrs for n in gq.parse(TEXT).nodes}
    for n in changed.nodes:
        if n.op.name not in ("softmax", "constant"):
            assert n.attrs == plain[n.op.name]
    assert not any(w.startswith("axis=2") for w in words)  # which softmax refuses
    assert len(words) == len(set(words)) + words.count("other constants") - 1


def test_constants():
    found = varied()
    drawn = [next(n.attrs["value"] for n in g.nodes if n.op.name == "constant")
             for w, g in found if w == "other constants"]
    assert len(drawn) == 2 and not np.array_equal(*drawn) and {x.shape for x in drawn} == {(3,)}
    (negative,) = (g for w, g in found if w == "constants of the other sign")
    assert next(n.attrs["value"] for n in negative.nodes if n.op.name == "constant").tolist() == [-1, 2, -3]
    again = varied()
    assert all(gq.to_text(a) == gq.to_text(b) for (_, a), (_, b) in zip(found, again, strict=True))
    other = [next(n.attrs["value"] for n in g.nodes if n.op.name == "constant") for w, g in varied(seed=1)
             if w == "other constants"]
    assert not np.array_equal(drawn[0], other[0])


def test_a_single_number_becomes_one_for_each_index_of_an_axis():
    """A pass may take the first number for all of them."""
    found = dict(varied("""graph(x: f32[2,3,1], y: f32[?]) {
      %c = constant(value=f32[1]{2})
      %d = constant(value=f32[3,1]{1,2,3})
      %a = add(%c, x)
      %b = multiply(%a, %d)
      %e = multiply(y, %c)
      return %b, %e
    }"""))
    made = {w: g for w, g in found.items() if "numbers along axis" in w}
    assert list(made) == [f"{n} numbers along axis {k} in %a = add(%c, x) : f32[2,3,1]" for k, n in enumerate((2, 3))]
    for graph, shape in zip(made.values(), ((2, 1, 1), (3, 1)), strict=True):
        first, second = (n.attrs["value"] for n in graph.nodes if n.op.name == "constant")
        assert first.shape == shape and len(set(first.ravel().tolist())) == first.size
        assert second.ravel().tolist() == [1, 2, 3]


def test_integers_of_the_other_sign_stay_in_their_range():
    text = """graph(x: u8[3]) {
      %c = constant(value=u8[3]{0,1,255})
      %d = constant(value=s8[3]{-128,127,5})
      %y = cast(%c, dtype=f32)
      %z = cast(%d, dtype=f32)
      %w = cast(x, dtype=f32)
      %u = add(%w, %y)
      %v = add(%u, %z)
      return %v
    }"""
    (graph,) = (g for w, g in varied(text) if w == "constants of the other sign")
    assert [n.attrs["value"].tolist() for n in graph.nodes if n.op.name == "constant"] == [[0, 0, 0], [127, -127, -5]]


def test_booleans_have_no_sign():
    text = """graph(x: f32[2]) {
      %c = constant(value=boolean[2]{1,0})
      %d = constant(value=f32[2]{1,-2})
      %y = select(%c, x, %d)
      return %y
    }"""
    (graph,) = (g for w, g in varied(text) if w == "constants of the other sign")
    assert [n.attrs["value"].tolist() for n in graph.nodes if n.op.name == "constant"] == [[True, False], [-1, 2]]


def test_floats_of_one_node_move_together():
    found = [w for w, _ in varied("graph(x: f32[2]) {\n %0 = clamp(x, min=-1, max=2)\n"
                                  " %1 = elu(%0, alpha=2)\n return %1\n}")]
    assert [w for w in found if w.startswith("min=99") or w.startswith("min=-101")] == [
        f"min={n - 1.0}, max={n + 2.0} in %0 = clamp(x) : f32[2]" for n in (100, -100)]
    assert not any(w.startswith(("alpha=102", "alpha=-98")) for w in found)


def test_sizes_change_wherever_they_stand():
    by_words = dict(varied("graph(x: f32[2,3], y: f32[3]) {\n %c = constant(value=f32[3]{1.0,2.0,3.0})\n"
                           " %0 = add(x, y)\n %1 = add(%0, %c)\n return %1\n}"))
    larger = by_words["4 instead of the size 3"]
    assert [v.type.dims for v in larger.inputs] == [(2, 4), (4,)]
    assert next(n.attrs["value"] for n in larger.nodes if n.op.name == "constant").tolist() == [1, 2, 3, 1]
    one = by_words["1 instead of the size 2"]
    assert [v.type.dims for v in one.inputs] == [(1, 3), (3,)]
    assert "3 instead of the size 2" in by_words and "1 instead of the size 3" in by_words
    assert not any("of the size 1" in w for w in by_words)
    reshaped = dict(varied("graph(x: f32[6,1]) {\n %0 = static_reshape(x, shape=[6])\n return %0\n}"))
    assert reshaped["7 instead of the size 6"].outputs[0].type.dims == (7,)
    assert "2 instead of the size 1" not in reshaped  # which the reshape refuses


def test_there_are_not_too_many():
    lines = "".join(f" %{k + 1} = clamp(%{k}, min=-{k}.5, max={k}.5)\n" for k in range(60))
    found = varied(f"graph(x: f32[2]) {{\n %0 = relu(x)\n{lines} return %60\n}}")
    assert MOST // 2 < len(found) <= MOST


@pytest.mark.parametrize("text, name, values", [
    ("%0 = softmax(x, axis=1)", "axis", [2, 0]), ("%0 = softmax(x, axis=0)", "keep_stats", [True]),
    ("%0 = elu(x, alpha=2.0)", "alpha", [-2.0, 1.7 * 2.0 + 0.3]), ("%0 = elu(x, alpha=0.0)", "alpha", [-1.0, 0.3]),
    ("%0 = quantize(x, dtype=u8, scales=[0.5])", "dtype", ["s8"]),
    ("%0 = quantize(x, dtype=s8, scales=[0.5])", "dtype", ["u8"]),
    ("%0 = static_transpose(x, order=[1,0])", "order", [[2, 1], [1, 1], [0, 1]]),
    ("%0 = static_reshape(x, shape=[3,3])", "shape", [[4, 4], [3, 4]])])
def test_other_values(text, name, values):
    node = gq.parse(f"graph(x: f32[3,3]) {{\n {text}\n return %0\n}}").nodes[0]
    made = list(other_values(name, node, node.op.attributes[name].annotation, np.random.default_rng(0)))
    assert [getattr(x, "name", x) for x in made] == values


def test_other_scales_zero_points_and_choices():
    node = gq.parse("graph(x: f32[2,3]) {\n %0 = quantize(x, dtype=u8, qtype=\"per_channel\", axis=1, "
                    "scales=[0.1,0.2,0.4])\n return %0\n}").nodes[0]
    rng = np.random.default_rng(0)
    scales, back = other_values("scales", node, node.op.attributes["scales"].annotation, rng)
    assert np.all(np.array(scales) > 0.5 * np.array(node.attrs["scales"]) * 0.99)
    assert np.all(np.array(scales) < 2 * np.array(node.attrs["scales"]) * 1.01) and len(set(scales)) == 3
    assert back == list(node.attrs["scales"][::-1])
    points, none = other_values("zps", node, node.op.attributes["zps"].annotation, rng)
    assert len(points) == 3 and all(1 <= x < 100 for x in points) and none is None
    choices = list(other_values("qtype", node, node.op.attributes["qtype"].annotation, rng))
    assert choices == [x for x in choices if x != "per_channel"] and "per_tensor" in choices

"""Linear attention: the bits of the formula, and the sums of the specification in f64."""
import numpy as np
import onnx
import pytest
from levels import pairs_at_each_width

import graphq as gq

SIZES = [(1, 3, 2, 2, 8, 40), (2, 5, 1, 3, 64, 64), (2, 1, 1, 1, 300, 33), (1, 2, 3, 2, 5, 97)]
"""Batch, tokens, heads of a group, groups, keys and values."""


def attention(sizes, decays, delta):
    """The graph, its inputs, and the outputs in f64."""
    batch, tokens, heads, groups, keys, values = sizes
    rng = np.random.default_rng(keys)
    shapes = {"query": (batch, tokens, groups, heads, keys), "key": (batch, tokens, groups, keys),
              "value": (batch, tokens, groups, values), "state": (batch, groups, keys, values)}
    shapes |= {"decay": shapes["key"]} if decays else {}
    shapes |= {"beta": (batch, tokens, groups)} if delta else {}
    inputs = {name: rng.uniform(-1, 1, shape).astype(np.float32) for name, shape in shapes.items()}
    inputs["key"] /= np.float32(np.sqrt(keys))
    g = gq.Graph("linear")
    given = {name: g.input(name, shape=s, dtype="f32") for name, s in shapes.items()}
    y, last = g.linear_attention(*(given.get(x) for x in ("query", "key", "value", "state", "decay", "beta")))
    g.output(y, name="y")
    g.output(last, name="last")
    q, k, v, state = (inputs[x].astype(np.float64) for x in ("query", "key", "value", "state"))
    out = np.zeros((batch, tokens, groups, heads, values))
    for t in range(tokens):
        if decays:
            state = inputs["decay"][:, t, ..., None] * state
        new = v[:, t]
        if delta:
            new = inputs["beta"][:, t, :, None] * (new - np.einsum("bgk,bgkv->bgv", k[:, t], state))
        state = state + np.einsum("bgk,bgv->bgkv", k[:, t], new)
        out[:, t] = np.einsum("bghk,bgkv->bghv", q[:, t], state)
    return g, inputs, {"y": out, "last": state}


@pytest.mark.parametrize("sizes, decays, delta, level", pairs_at_each_width(SIZES, (False, True), (False, True)),
                         indirect=["level"])
def test_equals_its_formula_and_the_sums(level, sizes, decays, delta):
    g, inputs, sums = attention(sizes, decays, delta)
    for threads in (1, 3):
        model = gq.compile(g, isa=level, threads=threads, strict=True)
        outputs, formula = model(inputs), model.formula(inputs)
        for name, wanted in sums.items():
            assert np.array_equal(outputs[name], formula[name])
            assert np.array_equal(outputs[name], gq.reference(g, inputs)[name])
            np.testing.assert_allclose(outputs[name], wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("decays, delta", [(False, True), (True, False)])
def test_a_file_gives_the_same_numbers(decays, delta, tmp_path):
    """The first file has the logarithm of the decay; the second has the operand of the exp that the first one made."""
    graph, inputs, _ = attention(SIZES[0], decays, delta)
    inputs |= {"decay": np.abs(inputs["decay"])} if decays else {}
    found = [gq.compile(graph)(inputs)]
    for name in ("first.onnx", "second.onnx"):
        gq.save_onnx(graph, tmp_path / name, opset=27)
        graph = gq.load_onnx(tmp_path / name)
        assert "linear_attention" in [n.op.name for n in graph.nodes]
        found.append(gq.compile(graph, strict=True)(inputs))
    for name, want in found[0].items():
        np.testing.assert_allclose(found[1][name], want, rtol=1e-5 if decays else 0, atol=1e-6 if decays else 0)
        np.testing.assert_array_equal(found[2][name], found[1][name])


@pytest.mark.parametrize("name, shape, error", [
    ("key", (1, 3, 3, 8), r"'key' must have shape \[B, T, G, K\], got \[1,3,3,8\], with G = 2"),
    ("state", (1, 2, 8, 41), "'state' must have shape"), ("decay", (1, 3, 2, 7), "'decay' must have shape"),
    ("beta", (1, 3, 2, 8), "'beta' must have shape"), ("value", (3, 2, 40), "'value' must have shape"),
    ("query", (1, 3, 3, 2, 8), r"'key' must have shape \[B, T, G, K\], got \[1,3,2,8\], with G = 3")])
def test_refuses(name, shape, error):
    shapes = {"query": (1, 3, 2, 2, 8), "key": (1, 3, 2, 8), "value": (1, 3, 2, 40), "state": (1, 2, 8, 40),
              "decay": (1, 3, 2, 8), "beta": (1, 3, 2)}
    g = gq.Graph()
    with pytest.raises(gq.GraphError, match=error):
        g.linear_attention(*(g.input(x, shape=s, dtype="f32") for x, s in {**shapes, name: shape}.items()))


def file(shapes, **attrs):
    """A model of one LinearAttention; an operand with the shape None is left out."""
    given = [onnx.helper.make_tensor_value_info(name, 1, shape) for name, shape in shapes.items() if shape is not None]
    operands = [name if shape else "" for name, shape in shapes.items()]
    node = onnx.helper.make_node("LinearAttention", operands, ["y", "t"], kv_num_heads=1, **attrs)
    results = [onnx.helper.make_tensor_value_info(name, 1, None) for name in node.output]
    return onnx.helper.make_model(onnx.helper.make_graph([node], "g", given, results),
                                  opset_imports=[onnx.helper.make_opsetid("", 27)])


@pytest.mark.parametrize("batch, tokens", [(2, 5), (None, None)])
def test_without_a_state_it_starts_from_zeros(batch, tokens):
    shapes = {"q": (batch, tokens, 16), "k": (batch, tokens, 8), "v": (batch, tokens, 4), "s": None, "d": None,
              "b": (batch, tokens, 1)}
    without, given = (gq.compile(gq.load_onnx(file(x, q_num_heads=2, update_rule="delta")))
                      for x in (shapes, {**shapes, "s": (batch, 1, 8, 4)}))
    rng = np.random.default_rng(0)
    inputs = {name: rng.normal(size=(2, 5, s[2])).astype(np.float32) for name, s in shapes.items() if s is not None}
    want = given({**inputs, "s": np.zeros((2, 1, 8, 4), np.float32)})
    for name, x in without(inputs).items():
        assert np.array_equal(x, want[name])
    assert "onnx_node" not in without.explain() and "scan" not in without.explain()


@pytest.mark.parametrize("rule, extra, error", [
    ("foo", {}, "attribute 'update_rule' must be linear, gated, delta or gated_delta, got 'foo'"),
    ("linear", {"d": (1, 2, 8)}, "the rule 'linear' needs no decay and no beta"),
    ("gated", {}, "the rule 'gated' needs a decay and no beta"),
    ("gated_delta", {"d": (1, 2, 8)}, "the rule 'gated_delta' needs a decay and a beta")])
def test_rules_of_files(rule, extra, error):
    shapes = {"q": (1, 2, 8), "k": (1, 2, 8), "v": (1, 2, 4), "s": (1, 1, 8, 4), **extra}
    with pytest.raises(gq.GraphError, match=error):
        gq.load_onnx(file(shapes, q_num_heads=1, update_rule=rule))

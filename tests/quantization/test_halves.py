"""Graphs of f16 and bf16 are computed in f32 before they are quantized."""
import ml_dtypes
import numpy as np
import onnx
import pytest
from float_networks import attention, convolutional, perceptron
from onnx import TensorProto, helper
from onnx_runtime import session

import graphq as gq
from graphq.dtypes import as_dtype
from graphq.quantization import Scheme, compare, quantize
from graphq.quantization.products import in_f32, prepared, products

NUMPY = {"f16": np.float16, "bf16": ml_dtypes.bfloat16}


def of_halves(make, dtype):
    """The network with constants, inputs and operations in f16 or bf16, and its batches.

    Parameters of norms stay in f32, as the operations ask for.
    """
    graph, batches = make()
    out, new = gq.Graph(graph.name), {}
    parameters = {v for n in graph.nodes if "norm" in n.op.name for v in n.inputs[1:]}
    for v in graph.inputs:
        new[v] = out.input(v.name, dtype=dtype, shape=v.shape)
    for node in graph.nodes:
        operands = [None if v is None else new[v] for v in node.inputs]
        kind = np.float32 if node.outputs[0] in parameters else NUMPY[dtype]
        outs = (out.constant(node.attrs["value"].astype(kind)),) if node.op.name == "constant" else \
            out.add_node(node.op, operands, node.attrs)
        for old, value in zip(node.outputs, outs, strict=True):
            new[old] = value
            if old.name is not None:
                out.rename(value, old.name)
    out.set_outputs([new[v] for v in graph.outputs], graph.output_names)
    return out, [{name: x.astype(NUMPY[dtype]) for name, x in b.items()} for b in batches]


@pytest.mark.parametrize("dtype", NUMPY)
@pytest.mark.parametrize("make", [perceptron, attention])
def test_all_products_run_in_integers(make, dtype, tmp_path):
    graph, batches = of_halves(make, dtype)
    made = quantize(graph, batches, Scheme())
    model = gq.compile(made)
    assert str(model.coverage()).startswith("100%") and made.outputs[0].dtype == as_dtype(dtype)
    got, want = (m(batches[0]).astype(np.float64).ravel() for m in (model, gq.compile(graph)))
    assert got @ want / np.linalg.norm(got) / np.linalg.norm(want) > 0.999
    gq.save_onnx(made, tmp_path / "made.onnx")
    loaded = gq.load_onnx(tmp_path / "made.onnx")
    assert np.array_equal(gq.compile(loaded)(batches[0]), model(batches[0]))
    compared = {t.name for t in compare(made, graph, batches, rank=False).tensors}
    assert {p.name for p in products(prepared(graph))} <= compared


@pytest.mark.parametrize("dtype", NUMPY)
@pytest.mark.parametrize("make", [perceptron, attention, convolutional])
def test_saved_files_in_onnx_runtime(make, dtype, tmp_path):
    """Between inputs and outputs of 16 bits, which casts lead to and from, as ONNX Runtime's Python knows no bf16."""
    graph, batches = of_halves(make, dtype)
    made = quantize(graph, batches, Scheme(between=["*"]))
    gq.save_onnx(made, tmp_path / "made.onnx")
    model = onnx.load(tmp_path / "made.onnx")
    (x,), (y,) = model.graph.input, model.graph.output
    kinds = {v.type.tensor_type.elem_type for v in (x, y)}
    assert kinds == {{"f16": TensorProto.FLOAT16, "bf16": TensorProto.BFLOAT16}[dtype]}
    model.graph.node.insert(0, helper.make_node("Cast", ["x in f32"], [x.name], to=kinds.pop()))
    model.graph.node.append(helper.make_node("Cast", [y.name], ["y in f32"], to=TensorProto.FLOAT))
    for v, name in ((x, "x in f32"), (y, "y in f32")):
        v.name, v.type.tensor_type.elem_type = name, TensorProto.FLOAT
    engine = session(model)
    for batch in batches:
        (array,) = batch.values()
        (got,) = engine.run(None, {"x in f32": array.astype(np.float32)})
        want = gq.compile(made)(batch).astype(np.float32)
        np.testing.assert_allclose(got, want, atol=0.01 * np.abs(want).max())


def test_the_automatic_setting_takes_them():
    graph, batches = of_halves(perceptron, "f16")
    made = quantize(graph, batches)
    floats = made.meta["quantization"]["layers_f32"]
    assert set(floats) <= {"logits"}  # of 128 of 640 multiply-accumulates
    assert gq.compile(made).coverage().share == pytest.approx(1 - len(floats) / 5)
    assert made.meta["quantization"]["cosine"] > 0.999


def test_numbers_are_those_of_f32():
    """Of the numbers that f16 can hold: the same constants, and no rounding to 16 bits but that of the result."""
    graph, batches = of_halves(convolutional, "f16")
    wide = in_f32(graph)
    assert [v.dtype for v in (*wide.inputs, *wide.outputs)] == [as_dtype("f16")] * 2
    assert {v.dtype for n in wide.nodes for v in n.outputs if v not in wide.outputs} == {as_dtype("f32")}
    assert {v.name for n in graph.nodes for v in n.outputs} <= {v.name for n in wide.nodes for v in n.outputs}
    constants, halves = ([n for n in g.nodes if n.op.name == "constant"] for g in (wide, graph))
    for n, half in zip(constants, halves, strict=True):
        assert np.array_equal(n.attrs["value"], half.attrs["value"].astype(np.float32))
    got = gq.compile(wide)(batches[0]).astype(np.float32)
    assert np.allclose(got, gq.compile(graph)(batches[0]).astype(np.float32), rtol=0.02, atol=0.01)


def test_nodes_keep_their_facts_and_casts_have_none():
    graph, _ = of_halves(perceptron, "bf16")
    for k, n in enumerate(graph.nodes):
        n.meta = {"place": k}
    wide = in_f32(graph)
    assert [(n.op, n.meta["place"]) for n in wide.nodes if n.meta] == [(n.op, k) for k, n in enumerate(graph.nodes)]
    assert {n.op.name for n in wide.nodes if not n.meta} == {"type_cast"}


def test_casts_between_both_disappear():
    g = gq.Graph()
    x = g.input("x", shape=(2, 3), dtype="f16")
    y = g.relu(g.type_cast(g.relu(g.type_cast(x, dtype="f32")), dtype="f16"))
    g.output(y, name="y")
    assert [n.op.name for n in in_f32(g).nodes] == ["type_cast", "relu", "relu", "type_cast"]


def test_a_type_that_results_are_rounded_to_is_left_out():
    g = gq.Graph()
    x, w = (g.input(n, shape=(4, 4), dtype="f16") for n in "xw")
    g.output(g.relu(g.matmul(x, w, dtype="f16")), name="y")
    wide = in_f32(g)
    (product,) = wide.nodes_of(["matmul"])
    assert product.output.dtype == as_dtype("f32") and wide.outputs[0].dtype == as_dtype("f16")


def test_a_cast_of_integers_gives_f32():
    """As of an attention mask; the operation needs its `dtype`."""
    g = gq.Graph()
    x, mask = g.input("x", shape=(4, 4), dtype="f16"), g.input("mask", shape=(4, 4), dtype="s32")
    g.output(g.matmul(g.add(x, g.cast(mask, dtype="f16")), np.eye(4, dtype=np.float16)), name="y")
    wide = in_f32(g)
    assert wide.nodes_of(["cast"])[0].output.dtype == as_dtype("f32")
    rng = np.random.default_rng(0)
    feeds = {"x": rng.integers(-9, 9, (4, 4)).astype(np.float16), "mask": rng.integers(-9, 9, (4, 4), np.int32)}
    assert np.array_equal(gq.reference(wide, feeds), gq.reference(g, feeds))


def test_bodies_stay_in_halves():
    g = gq.Graph()
    x, choice = g.input("x", shape=(2, 2), dtype="f16"), g.input("choice", shape=(), dtype="boolean")
    bodies = []
    for name in ("relu", "abs"):
        body = gq.Graph(name)
        body.output(getattr(body, name)(body.input("v", shape=(2, 2), dtype="f16")))
        bodies.append(body)
    y = g.if_else(choice, g.matmul(x, np.eye(2, dtype=np.float16)), then_body=bodies[0], else_body=bodies[1])
    g.output(g.relu(y), name="y")
    wide = in_f32(g)
    (node,) = wide.nodes_of(["if_else"])
    assert node.inputs[1].dtype == as_dtype("f16") and node.output.dtype == as_dtype("f16")
    assert wide.nodes_of(["matmul"])[0].output.dtype == as_dtype("f32")
    x = {"x": np.array([[1, -2], [3, -4]], np.float16), "choice": np.array(False)}
    assert np.array_equal(gq.compile(wide)(x), np.abs(x["x"]))


def test_graphs_of_f32_are_copied():
    graph, _ = perceptron()
    assert str(in_f32(graph)) == str(graph) and str(prepared(prepared(graph))) == str(prepared(graph))


def test_softmax_rounds_no_steps():
    """As ONNX's Softmax of f16 does in its file, in which each step is rounded."""
    g = gq.Graph()
    x = g.input("x", shape=(4, 8), dtype="f16")
    p = g.softmax(g.matmul(x, np.eye(8, dtype=np.float16)), axis=-1, mode="stepwise", name="p")
    g.output(g.matmul(p, np.eye(8, dtype=np.float16)), name="y")
    feeds = {"x": np.random.default_rng(0).standard_normal((4, 8)).astype(np.float16)}
    e = np.exp(feeds["x"].astype(np.float64))
    want = (e / e.sum(1, keepdims=True)).astype(np.float32).astype(np.float16)
    assert np.array_equal(gq.reference(in_f32(g), feeds), want)
    assert gq.compile(quantize(g, [feeds], Scheme())).coverage().share == 1


@pytest.mark.parametrize("dtype", NUMPY)
def test_caches_of_attention_stay_what_they_are(dtype):
    g, rng = gq.Graph(), np.random.default_rng(0)
    x = g.input("x", shape=(1, 1, 8), dtype=dtype)
    past = [g.input(name, shape=(1, 1, 4, 4), dtype=dtype) for name in ("keys", "values")]
    wide = g.type_cast(g.matmul(x, rng.standard_normal((8, 16)).astype(NUMPY[dtype]), name="query"), dtype="f32")
    lengths, total = g.constant(np.array([3], np.int32)), g.constant(np.array([4], np.int32))
    y, *caches = g.cached_attention(wide, lengths, total, None, None, *past, heads=2, groups=1, scale=0.5, kept=dtype)
    g.output(g.type_cast(y, dtype=dtype), name="y")
    for cache, name in zip(caches, ("new keys", "new values"), strict=True):
        g.output(cache, name=name)
    feeds = {v.name: rng.standard_normal(v.shape).astype(NUMPY[dtype]) for v in g.inputs}
    got, want = gq.compile(quantize(g, [feeds], Scheme()))(feeds), gq.compile(g)(feeds)
    for name, array in want.items():
        assert got[name].dtype == array.dtype
        np.testing.assert_allclose(got[name].astype(np.float32), array.astype(np.float32), atol=0.05)

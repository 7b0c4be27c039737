"""Partitions that run strip by strip: which do, that numbers stay what they are, and what memory that takes.

Plans of graphs: whose outputs no step writes, and what formulas give.
"""
from itertools import permutations

import numpy as np
import pytest
from levels import at_each_width
from ties import settle_everything

import graphq as gq
from graphq.ir.interpret import named_outputs
from graphq.kernels.target import isa
from graphq.model import build_plan as found
from graphq.model.build_plan import build_plan, evaluate_formulas
from graphq.plan import builder as planned
from graphq.plan.plan import PythonStep, Step
from graphq.report.evidence import gather, modules


def quantized(g, x, dtype, scale, zp):
    return g.dequantize(g.quantize(x, dtype=dtype, scales=[scale], zps=[zp]), scales=[scale], zps=[zp])


def attention(q=(1, 3, 37, 16), k=None, v=None, dtype="f32", mask=None, view=None, after=None, zps=(128, 128, 128),
              causal=False, out="u8", mode="none"):
    """softmax(Q K^T / 4 [+ mask]) V; of u8 or s8 with a quantize after the softmax and after the product."""
    k = k or q
    v = v or k
    g = gq.Graph("attention")
    shapes = dict(q=q, k=k, v=v)
    integers = dtype in ("u8", "s8")
    inputs = [g.input(name, shape=shape, dtype=dtype) for name, shape in shapes.items()]
    if integers:
        zps = [zp - (128 if dtype == "s8" else 0) for zp in zps]
        inputs = [g.dequantize(x, scales=[0.03], zps=[zp]) for x, zp in zip(inputs, zps, strict=True)]
    q, k, v = inputs
    scores = g.multiply(g.matmul(q, k, transpose_b=True), np.asarray(0.25, scale_dtype(dtype)))
    if mask is not None:
        scores = g.add(scores, g.input("mask", shape=mask, dtype="f32"))
    if causal:
        m, n = scores.type.dims[-2:]
        scores = g.add(scores, g.constant(np.triu(np.full((m, n), -np.inf, np.float32), 1)))
    if view is not None:
        scores = g.static_reshape(scores, shape=view)
    p = g.softmax(scores, axis=-1, mode=mode)
    if integers:
        p = quantized(g, p, dtype, 1 / 255, 0 if dtype == "u8" else -128)
    if after is not None:
        p = g.static_reshape(p, shape=after)
    y = g.matmul(p, v)
    g.output(g.quantize(y, dtype=out, scales=[0.02], zps=[0 if out == "s8" else 120]) if integers else y, name="y")
    return g


def scale_dtype(dtype):
    return gq.dtypes.DTYPES[dtype].numpy if dtype in ("bf16", "f16") else np.float32


@pytest.fixture
def strips(monkeypatch):
    """A function that compiles with strips of few rows, for sizes of tests, or without any."""
    def compiled(graph, room=1 << 13, **options):
        monkeypatch.setattr(planned, "ROOM", room)
        monkeypatch.setattr(found, "LEAST_BYTES", 1 if room else 1 << 60)
        monkeypatch.setattr(found, "LEAST_ROWS", 1)
        monkeypatch.setattr(found, "LEAST_SHARE", 0)
        return gq.compile(graph, **options)

    return compiled


def steps_of(model):
    return [s for s in model.plans.fixed.plan.steps if isinstance(s, Step) and s.parts]


def same(a, b):
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


GRAPHS = {
    "f32": attention(),
    "one head": attention((41, 24), (50, 24), (50, 7)),
    "no head, one row": attention((1, 24), (50, 24), (50, 7)),
    "one key": attention((2, 9, 24), (2, 1, 24)),
    "bf16": attention(dtype="bf16"),
    "f16": attention((2, 33, 20), (2, 45, 20), (2, 45, 18), dtype="f16"),
    "bf16, stepwise": attention(dtype="bf16", mode="stepwise"),
    "f16, stepwise": attention((2, 33, 20), (2, 45, 20), (2, 45, 18), dtype="f16", mode="stepwise"),
    "u8": attention(dtype="u8"),
    "u8, uneven": attention((2, 3, 29, 19), (2, 3, 61, 19), (2, 3, 61, 21), dtype="u8", zps=(100, 130, 128)),
    "u8, zero points of V": attention((1, 2, 50, 32), dtype="u8", zps=(100, 130, 117)),
    "s8": attention((1, 2, 50, 32), dtype="s8", zps=(100, 130, 117), out="s8"),
    "mask of keys": attention((2, 3, 37, 16), mask=(2, 1, 1, 37)),
    "mask of rows": attention((2, 3, 37, 16), dtype="u8", mask=(2, 1, 37, 37)),
    "mask of heads": attention((2, 3, 37, 16), dtype="u8", mask=(3, 37, 37)),
    "causal": attention((1, 2, 64, 16), causal=True),
    "grouped queries": attention((2, 2, 3, 30, 16), (2, 2, 1, 40, 16)),
    "one key head": attention((2, 4, 30, 16), (2, 1, 40, 16), dtype="u8"),
    "shared keys": attention((2, 4, 30, 16), (40, 16)),
    "view": attention((1, 3, 37, 16), v=(3, 37, 11), view=(3, 37, 37)),
    "heads of a group as rows": attention((1, 2, 90, 16), (1, 2, 40, 16), view=(1, 6, 30, 40), after=(1, 2, 90, 40)),
    "u8, heads of a group as rows": attention((2, 2, 90, 16), (2, 2, 40, 16), view=(2, 6, 30, 40), after=(2, 2, 90, 40),
                                              dtype="u8", zps=(100, 130, 117)),
    "the result has the fewest rows": attention((1, 4, 60, 16), (1, 4, 30, 16), (1, 4, 1, 30, 16), view=(1, 4, 60, 30),
                                                after=(1, 4, 2, 30, 30)),
    "u8, the result has the fewest rows": attention((1, 4, 60, 16), (1, 4, 30, 16), (1, 4, 1, 30, 16), dtype="u8",
                                                    view=(1, 4, 60, 30), after=(1, 4, 2, 30, 30)),
    "u8, view": attention((1, 3, 37, 16), v=(3, 37, 11), view=(3, 37, 37), dtype="u8"),
}


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_numbers_are_those_of_whole_matrices(strips, name, threads):
    graph = GRAPHS[name]
    x = gq.testing.random_inputs(graph)
    want = strips(graph, room=0, threads=1)
    assert not steps_of(want)
    for room in (1 << 10, 1 << 13, 1 << 20):
        model = strips(graph, room, threads=threads)
        (step,) = steps_of(model)
        assert [part.step.kernel.partition("_")[0] for part in step.parts if part.step.macs or part.moved[1:]] \
            == ["matmul", "softmax", "matmul"]
        for _ in range(2):
            assert same(model(**x), want(**x))
    assert same(model.formula(**x), want(**x))


def test_chains_that_meet_share_no_step(strips):
    """Both end in the sum: one of them runs strip by strip, the other leaves a whole matrix."""
    g = gq.Graph("gated")
    x = g.input("x", shape=(40, 16), dtype="f32")
    a, b = (g.softmax(g.matmul(x, g.input(name, shape=(16, 64), dtype="f32")), axis=-1) for name in "ab")
    g.output(g.matmul(g.softmax(g.add(a, b), axis=-1), g.input("w", shape=(64, 8), dtype="f32")), name="y")
    model, inputs = strips(g), gq.testing.random_inputs(g)
    assert len(steps_of(model)) >= 1
    assert same(model(**inputs), strips(g, room=0)(**inputs)) and same(model(**inputs), model.formula(**inputs))


@pytest.mark.parametrize("name, level", at_each_width([
    "f32", "bf16", "bf16, stepwise", "f16, stepwise", "u8, uneven", "u8, zero points of V", "s8", "mask of heads"]),
    indirect=["level"])
def test_so_they_are_at_every_level(strips, level, name):
    graph = GRAPHS[name]
    x = gq.testing.random_inputs(graph)
    model = strips(graph, threads=2, isa=level)
    assert steps_of(model)
    assert same(model(**x), model.formula(**x))


def test_ties_are_settled_in_strips(strips, monkeypatch):
    """The second look finds the row of each output in the room of its strip."""
    settle_everything(monkeypatch)
    for name in ("u8, uneven", "u8, zero points of V", "s8", "u8, heads of a group as rows"):
        x = gq.testing.random_inputs(GRAPHS[name])
        model = strips(GRAPHS[name], threads=2)
        assert "1 quantize settled" in model.explain() and steps_of(model)
        assert same(model(**x), model.formula(**x))


@pytest.mark.parametrize("dtype", ["f32", "u8"])
def test_open_lengths(strips, dtype):
    """One plan for many lengths of queries and keys."""
    graph = attention((None, 3, None, 16), dtype=dtype, mask=(None, 1, 1, None), zps=(100, 130, 117))
    model = strips(graph, threads=2)
    rng = np.random.default_rng(0)
    for b, m, n in ((1, 37, 37), (2, 20, 45), (1, 1, 1), (1, 1, 60), (3, 13, 9), (1, 200, 300), (0, 4, 4), (1, 0, 5),
                    (2, 17, 127)):
        shapes = {"q": (b, 3, m, 16), "k": (b, 3, n, 16), "v": (b, 3, n, 16)}
        x = {name: rng.integers(0, 256, shape).astype(np.uint8) if dtype == "u8" else
             rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
        x["mask"] = np.where(rng.random((b, 1, 1, n)) < 0.2, -1e9, 0).astype(np.float32)
        for _ in range(2):
            assert same(model(x), model.formula(x))
    plans = model.plans.all()
    assert sum(any(isinstance(s, Step) and s.parts for s in plan.plan.steps) for plan in plans) >= 5


@pytest.mark.parametrize("name", ["u8, zero points of V", "view"])
def test_a_saved_model_on_fewer_threads(strips, name, tmp_path, monkeypatch):
    """Rooms follow the pieces: a thread finds its own by the number of its piece."""
    monkeypatch.setenv("NUMBA_NUM_THREADS", "4")
    graph = GRAPHS[name]
    x = gq.testing.random_inputs(graph)
    model = strips(graph, threads=4)
    model.save(tmp_path / "m")
    for threads in (4, 3, 2, 1):
        again = gq.load_compiled(tmp_path / "m", threads=threads)
        (step,) = steps_of(again)
        assert "anew" not in again.origin and step.pieces <= threads
        assert all(part.step.pieces == step.pieces for part in step.parts)
        for _ in range(3):
            assert same(again(x), model(**x))


@pytest.mark.parametrize("dtype", ["f32", "u8"])
@pytest.mark.parametrize("threads", [1, 2])
def test_memory_grows_with_the_length(dtype, threads):
    """At 4,096 score matrices of 12 heads would take 805 MB."""
    def nbytes(length):
        model = gq.compile(attention((1, 12, length, 64), dtype=dtype), threads=threads)
        assert steps_of(model)
        return model.plans.fixed.arena_bytes

    least, most = nbytes(512), nbytes(4096)
    assert most <= 8 * least and most <= 2 * 2 * 4 * 12 * 4096 * 64 + threads * planned.ROOM + (1 << 20)


def test_small_matrices_and_others_stay_whole():
    """Values that L2 holds, few rows, and values that are not most of what the steps touch."""
    assert not steps_of(gq.compile(attention((1, 2, 128, 64))))
    assert not steps_of(gq.compile(attention((1, 64, 8, 64), (1, 64, 4096, 64))))
    assert steps_of(gq.compile(attention((1, 12, 300, 64))))
    assert steps_of(gq.compile(attention((1, 12, 300, 64), mask=(1, 12, 300, 300))))  # whose rows are read alone
    assert not steps_of(gq.compile(attention((1, 12, 300, 512))))


def test_what_others_read_is_kept_whole(strips):
    """The scores or the probabilities are an output, or are read by rows and by columns."""
    for kept in (0, 1):
        g = attention()
        y = g.outputs[0]
        p = next(y.node.operands)
        g.set_outputs([y, next(p.node.operands) if kept == 0 else p], ["y", "kept"])
        model = strips(g)
        kernels = [part.step.kernel.partition("_")[0] for step in steps_of(model) for part in step.parts]
        assert kernels == (["softmax", "matmul"] if kept == 0 else ["matmul", "softmax"])
        x = gq.testing.random_inputs(g)
        got, want = model(x), model.formula(x)
        assert all(same(got[name], want[name]) for name in ("y", "kept"))
    g = gq.Graph("columns")
    p = g.softmax(g.matmul(g.input("q", shape=(40, 8), dtype="f32"), g.input("k", shape=(8, 40), dtype="f32")), axis=-1)
    v = g.input("v", shape=(40, 12), dtype="f32")
    g.output(g.matmul(p, v, transpose_a=True), name="y")
    model, x = strips(g), gq.testing.random_inputs(g)
    assert [len(step.parts) for step in steps_of(model)] == [2] and same(model(**x), model.formula(**x))
    g = gq.Graph("square")
    p = g.softmax(g.matmul(g.input("q", shape=(40, 8), dtype="f32"), g.input("k", shape=(8, 40), dtype="f32")), axis=-1)
    g.output(g.matmul(p, p), name="y")
    model, x = strips(g), gq.testing.random_inputs(g)
    assert [len(step.parts) for step in steps_of(model)] == [2] and same(model(**x), model.formula(**x))


def test_lane_wise_steps_and_norms_go_strip_by_strip(strips):
    """More operations than one kernel takes, between products; a norm reads what a product leaves."""
    g = gq.Graph("long")
    x = g.matmul(g.input("x", shape=(50, 24), dtype="f32"), g.input("w", shape=(24, 70), dtype="f32"))
    for k in range(30):
        x = g.tanh(g.multiply(x, np.float32(1 + k / 8)))
    x = g.layer_norm(x, keep_stats=False, use_affine=False)
    g.output(g.matmul(x, g.input("v", shape=(70, 20), dtype="f32")), name="y")
    model, x = strips(g, threads=2), gq.testing.random_inputs(g)
    (step,) = steps_of(model)
    assert {part.step.kernel.partition("_")[0] for part in step.parts} == {"matmul", "eltwise", "layer"}
    assert same(model(**x), model.formula(**x))


def test_reports_name_the_steps_of_strips(strips):
    graph = GRAPHS["u8"]
    model, x = strips(graph), gq.testing.random_inputs(graph)
    (step,) = steps_of(model)
    names = [part.step.kernel for part in step.parts]
    assert " + ".join(names) in model.explain()
    (shown,) = [s for s in model.profile(x, runs=2).steps if " + " in s.kernel]
    assert shown.macs == step.macs == 2 * 3 * 37 * 37 * 16
    evidence = gather(model.plans.fixed, model.plans.fixed.plan.steps.index(step))
    alone = [modules(part.step) for part in step.parts]
    assert evidence.macs == step.macs and set(modules(step)) > set().union(*alone)


X = np.float32([[1, -2, 3], [-4, 5, -6]])

TEXT = """graph(x: f32[2,3], e: f32[0,3]) {
  %c = constant(value=f32[2]{7,8})
  %0 = relu(x)
  %1 = static_reshape(x, shape=[3,2])
  %2 = static_reshape(%0, shape=[6])
  return x as input, %c as constant, %0 as result, %0 as again, %1 as view, %2 as flat, e as empty
}"""


def test_outputs_that_no_step_writes():
    g = gq.parse(TEXT)
    want = {"input": X, "constant": [7, 8], "result": np.maximum(X, 0), "again": np.maximum(X, 0),
            "view": X.reshape(3, 2), "flat": np.maximum(X, 0).ravel(), "empty": np.empty((0, 3))}
    feeds = {"x": X, "e": np.empty((0, 3), np.float32)}
    found = gq.compile(g, threads=1)(feeds)
    formulas = dict(zip(g.output_names, evaluate_formulas(g, feeds), strict=True))
    assert list(found) == list(want) == list(formulas)
    for name, y in want.items():
        for out in (found[name], formulas[name]):
            assert out.shape == np.shape(y) and out.dtype == np.float32
            np.testing.assert_array_equal(out, y)
    found["again"][:] = 0  # each has memory of its own
    found["input"][:] = 0
    assert (found["result"] == want["result"]).all() and (found["flat"] == want["flat"]).all() and X[0, 0] == 1


def test_steps_know_their_nodes():
    g = gq.parse(TEXT)
    plan = build_plan(g, isa.available()[-1], 1, True)
    copies = [s.kernel for s in plan.steps if isinstance(s, PythonStep) and s.kernel.startswith("copy")]
    assert "copy to output 'empty'" not in copies and "copy to output 'input'" in copies and len(copies) >= 5
    assert len(plan.nodes) == len(plan.steps) and plan.threads == 1 and plan.level == isa.available()[-1].name
    for step, node in zip(plan.steps, plan.nodes, strict=True):
        assert (node is None) == (isinstance(step, PythonStep) and step.kernel.startswith("copy"))
        assert node is None or g.nodes[node].op.name in ("relu", "static_reshape")
    assert not any(s.reference for s in plan.steps if isinstance(s, PythonStep) and s.kernel.startswith("copy"))


@pytest.mark.parametrize("results", [1, 2])
def test_formulas_of_operations_with_several_results(results):
    g = gq.parse("graph(x: f32[2,3]) {\n %a, %b = top_k(x, k=2)\n return " + ", ".join(["%a as a", "%b as b"][:results])
                 + "\n}")
    wanted = named_outputs(g.output_names, gq.reference(g, {"x": X}))
    for y, name in zip(evaluate_formulas(g, {"x": X}), g.output_names, strict=True):
        assert y.dtype == wanted[name].dtype and (y == wanted[name]).all()


ORDERS = [*((*order, 3) for order in permutations(range(3))), (0, 1, 3, 2), (2, 3, 1, 0)]


@pytest.mark.parametrize("dtype", ["f32", "u8"])
def test_transposes_of_every_order_before_and_after_products(dtype):
    """Partitions read and write with strides where they can; of what others read too, both layouts are kept."""
    g, rng = gq.Graph("turned"), np.random.default_rng(0)
    x = g.input("x", dtype=dtype, shape=(2, 3, 4, 5))
    floats = x if dtype == "f32" else g.dequantize(x, scales=[0.125], zps=[3])
    for n, order in enumerate(ORDERS):
        def product(v, width):
            if dtype == "f32":
                w = g.constant(rng.integers(-3, 4, (v.shape[-1], width)).astype(np.float32))
                return g.relu(g.matmul(v, w))
            w = g.dequantize(g.constant(rng.integers(-9, 9, (v.shape[-1], width)).astype(np.int8)), scales=[0.25])
            return quantized(g, g.matmul(v, w), "u8", 0.5, 128)

        after = g.static_transpose(product(floats, 6), order=list(order))
        g.output(after, name=f"after{n}")
        g.output(product(g.static_transpose(floats, order=list(order)), 6), name=f"before{n}")
        if n < 3:
            whole = product(floats, 6)
            g.output(g.static_transpose(whole, order=list(order)), name=f"turned{n}")
            g.output(whole if n % 2 else -whole, name=f"whole{n}")
    feeds = {"x": rng.integers(-4 if dtype == "f32" else 0, 5, (2, 3, 4, 5)).astype(np.dtype(x.dtype.numpy))}
    want, got = gq.reference(g, feeds), gq.compile(g, threads=1)(feeds)
    assert list(got) == list(want)
    for name, y in want.items():
        np.testing.assert_array_equal(got[name], y, err_msg=name)

"""Models in stages: a compiled head, bodies that a run decides on, and a tail that compiles for each new shapes."""
import threading

import numpy as np
import pytest

import graphq as gq
from graphq.errors import CompileError, InputError

RNG = np.random.default_rng(0)


def body(name, build, **inputs):
    g = gq.Graph(name)
    for n, out in build(g, *(g.input(n, dtype=dtype, shape=shape) for n, (dtype, shape) in inputs.items())).items():
        g.output(out, name=n)
    return g


def graph(shape=(4, 3)):
    """A product, one of two bodies of its result, a loop over it, and a sum; "same" is an input as it is."""
    g = gq.Graph("stages")
    x, c, n = g.input("x", dtype="f32", shape=shape), g.input("c", dtype="boolean", shape=()), \
        g.input("n", dtype="s64", shape=())
    y = g.relu(g.matmul(x, g.constant(np.float32([[1, -2, 0], [0.5, 1, 1], [-1, 0, 2]]))), name="y")
    taken = {"a": ("f32", shape)}
    chosen = g.if_else(c, y, then_body=body("then", lambda b, a: {"o": b.exp(b.multiply(a, np.float32(0.1)))}, **taken),
                       else_body=body("else", lambda b, a: {"o": b.sqrt(a)}, **taken))
    turn = body("turn", lambda b, k, go, a: {"go": b.logical_not(b.logical_not(go)), "s": b.add(a, b.tanh(a))},
                k=("s64", ()), go=("boolean", ()), **taken)
    looped = g.loop(n, g.constant(np.array(True)), chosen, body=turn, states=1)
    g.output(g.add(looped, y), name="z")
    g.output(x, name="same")
    return g


def wanted(x, c, n):
    y = np.maximum(x @ np.float32([[1, -2, 0], [0.5, 1, 1], [-1, 0, 2]]), 0)
    s = np.exp(y * np.float32(0.1)) if c else np.sqrt(y)
    for _ in range(n):
        s = s + np.tanh(s)
    return s + y


@pytest.fixture(scope="module")
def model():
    return gq.compile(graph())


def feeds(c=True, n=2, rows=4):
    return {"x": RNG.standard_normal((rows, 3)).astype(np.float32), "c": np.array(c), "n": np.array(n)}


@pytest.mark.parametrize("c", [True, False])
@pytest.mark.parametrize("n", [0, 1, 3])
def test_calls_formulas_and_outputs_that_are_given(c, n, model):
    batch = feeds(c, n)
    want = wanted(batch["x"], c, n)
    for found in (model(batch), model.formula(batch), gq.reference(graph(), batch)):
        np.testing.assert_allclose(found["z"], want, rtol=1e-5, atol=1e-6)
        assert np.array_equal(found["same"], batch["x"])
    out = {"z": np.zeros((4, 3), np.float32), "same": np.zeros((4, 3), np.float32)}
    given = model(batch, out=out)
    assert given["z"] is out["z"] and np.array_equal(out["z"], model(batch)["z"])
    assert np.array_equal(out["same"], batch["x"])


def test_outputs_of_another_shape_are_refused():
    g = gq.Graph()
    g.output(g.non_zero(g.input("x", dtype="f32", shape=(3, 5))), name="y")
    model, x, out = gq.compile(g), np.zeros((3, 5), np.float32), np.empty((2, 1), np.int64)
    x[2, 3] = 1
    assert np.array_equal(model(x, out=out), [[2], [3]])
    for n in (0, 2):
        with pytest.raises(InputError, match=rf"out 'y' must have shape \[2, 1\] for this call, got \[2, {n}\]"):
            model(x, out=np.empty((2, n), np.int64))


def test_results_are_arrays_of_their_own():
    """Even those that are an input, a constant, a state that a loop passes on, or another result."""
    g = graph()
    state = body("kept", lambda b, k, go, a: {"go": b.logical_not(b.logical_not(go)), "s": b.concat(a, a, axis=0)},
                 k=("s64", ()), go=("boolean", ()), a=("f32", (None, 3)))
    x, _, n = g.inputs
    passed = g.loop(n, g.constant(np.array(True)), x, body=state, states=1)
    for k, v in enumerate((passed, passed, g.outputs[0], g.constant(np.ones(3, np.float32)))):
        g.output(v, name=f"more {k}")
    model, batch = gq.compile(g), feeds(n=0)
    first = model(batch)
    want = {name: y.copy() for name, y in first.items()}
    for name, y in first.items():
        assert not any(np.may_share_memory(y, other) for other in batch.values())
        assert not any(np.may_share_memory(y, other) for key, other in first.items() if key != name)
        y[...] = 7
    assert all(np.array_equal(y, want[name]) for name, y in model(batch).items())


def test_what_runs_is_told_part_by_part():
    """A body is one of the parts once it has run."""
    model, bodies = gq.compile(graph()), ["then_body of n0", "else_body of n0"]
    rest = ["tail, between", "tail, body of n1", "tail, tail"]

    def names():
        return [part.name for part in model.parts()]

    assert names() == ["head", "between", rest[0], rest[2]]
    model(feeds(True, 1))
    assert names() == ["head", "between", bodies[0], *rest]
    assert "exp" in model.explain() and "sqrt" not in model.explain()
    model(feeds(False, 2))
    assert names() == ["head", "between", *bodies, *rest] and "sqrt" in model.explain()
    assert [part.memory is None for part in model.parts()] == [name.endswith("between") for name in names()]
    found = model.coverage()
    assert (found.integer, found.total) == (0, 36) and found.total_by_op == {"matmul": 36}
    several = gq.compile(graph((None, 3)))
    with pytest.raises(CompileError, match="the coverage is known after the first call"):
        several.coverage()
    several(feeds(rows=5))
    assert several.coverage().total == 45


def test_a_profile_has_the_steps_of_all_parts(model):
    steps = model.profile(feeds(True, 1), runs=1).steps
    more = model.profile(feeds(True, 3), runs=1).steps
    assert len(more) > len(steps) > 2


@pytest.mark.parametrize("rows", [1, 4, 9])
def test_open_shapes(rows):
    model = gq.compile(graph((None, 3)))
    for n in (rows, 2, rows):
        batch = feeds(False, 2, n)
        np.testing.assert_allclose(model(batch)["z"], wanted(batch["x"], False, 2), rtol=1e-5, atol=1e-6)


def found_boxes():
    g = gq.Graph("boxes")
    boxes, scores = g.input("boxes", dtype="f32", shape=(1, 5, 4)), g.input("scores", dtype="f32", shape=(1, 1, 5))
    g.output(g.non_max_suppression(boxes, scores), name="y")
    return g


@pytest.mark.parametrize("build, message", [
    (graph, "strict: bodies run as stages: .*if_else"), (found_boxes, "strict: shapes depend on data: .*non_max")])
def test_a_strict_model_runs_in_one_plan(build, message):
    """The first operation that does not is named."""
    with pytest.raises(CompileError, match=message):
        gq.compile(build(), strict=True)


def test_stages_are_not_made_again_while_their_entry_moves():
    """A thread that looks for the stages of some shapes, while another thread moves their entry, finds them."""
    plans = gq.compile(graph((None, 3))).plans
    calls = [(plans.shapes_of(x), x) for x in (feeds(rows=4), feeds(rows=5))]
    first, _ = (plans.at(*call) for call in calls)
    found = []

    class Moving(dict):
        def pop(self, *key):
            out = super().pop(*key)
            if not threads[0].is_alive() and not found:
                threads[0].start()
                threads[0].join(0.5)
            return out

    threads = [threading.Thread(target=lambda: found.append(plans.at(*calls[0])))]
    plans.by_shapes = Moving(plans.by_shapes)
    assert plans.at(*calls[0]) is first
    threads[0].join()
    assert found == [first]

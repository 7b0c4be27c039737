"""How a compiled graph is called, and what it shows of itself: inputs by place, values that are fetched, types."""
import numpy as np
import pytest

import graphq as gq
from graphq.errors import GraphError, InputError
from graphq.testing import random_inputs

X, Y = np.arange(6, dtype=np.float32).reshape(2, 3) - 2, np.float32([[1, 2, 3]])


def net(shape=(2, 3)):
    """x -> relu `h` -> abs `a`, which a multiply by y follows -> out0."""
    g = gq.Graph("net")
    h = g.relu(g.input("x", shape=shape, dtype="f32"), name="h")
    g.output(g.multiply(g.abs(h, name="a"), g.input("y", shape=(1, 3), dtype="f32")))
    return g


# -- inputs by place ------------------------------------------------------------------------------------------


def test_inputs_by_place_by_name_and_in_a_mapping():
    g = net()
    model = gq.compile(g, threads=1)
    for run in (model, model.formula, lambda *a, **k: gq.reference(g, *a, **k)):
        for result in (run(X, Y), run(X, y=Y), run(x=X, y=Y), run({"x": X, "y": Y}), run({"x": X}, y=Y)):
            assert np.array_equal(result, np.maximum(X, 0) * Y)
    assert len(model.profile(X, Y, runs=1).steps) == 1


@pytest.mark.parametrize("arguments, named, message", [
    ((X, Y, X), {}, r"graph 'net' takes inputs \['x', 'y'\], got 3 arrays"),
    ((X, Y), {"x": X}, "input 'x' is given twice"), (({"x": X, "y": Y},), {"x": X}, "input 'x' is given twice"),
    ((X,), {}, r"takes inputs \['x', 'y'\]; missing \['y'\]"), (({"x": X}, Y), {}, "'x' must be .* got dtype object"),
    (([1.0, 2.0],), {"y": Y}, "input 'x' must be f32.2,3., got dtype float64"),
    ((None,), {"y": Y}, "'x' must be .* got dtype object"), ((X.astype(np.float64), Y), {}, "no implicit conversion")])
def test_bad_calls(arguments, named, message):
    model = gq.compile(net(), threads=1)
    for run in (model, model.formula, model.profile):
        with pytest.raises(InputError, match=message):
            run(*arguments, **named)


@pytest.mark.parametrize("name", ["out", "fetch", "runs"])
def test_an_input_that_is_called_as_an_option_is(name):
    g = gq.Graph()
    g.output(g.relu(g.input(name, shape=(2, 3), dtype="f32")))
    model = gq.compile(g, threads=1)
    assert np.array_equal(model(X), model({name: X})) and np.array_equal(model(X), gq.reference(g, **{name: X}))
    for run in (model, model.profile):
        with pytest.raises(InputError, match=f"'{name}' is an option of the call: .* in a mapping, {{'{name}': array"):
            run()


# -- values that are no outputs -------------------------------------------------------------------------------


def test_intermediate_values_are_fetched():
    model = gq.compile(net(), threads=1)
    before = model.explain()
    assert np.array_equal(model(X, Y, fetch="h"), np.maximum(X, 0))
    got = model(X, Y, fetch=["a", "out0"])
    assert list(got) == ["a", "out0"] and np.array_equal(got["out0"], model(X, Y))
    assert list(model(X, Y, fetch=["h"])) == ["h"]
    assert model.explain() == before


def test_what_is_fetched_is_compiled_once():
    model = gq.compile(net((None, 3)), threads=1)
    model(X, Y, fetch=["h"])
    kept = dict(model._fetching)
    model(X[:1], Y, fetch=["h"])
    assert model._fetching == kept and len(kept) == 1
    for k in range(20):
        model(X, Y, fetch=["h", "a", "out0", "x", "y"][k % 5:] + ["h", "a", "out0", "x", "y"][:k % 5])
    assert len(model._fetching) <= 8


def test_fetched_into_arrays_and_from_inputs():
    model = gq.compile(net(), threads=1)
    out = np.empty_like(X)
    assert model(X, Y, fetch="h", out=out) is out and np.array_equal(out, np.maximum(X, 0))
    assert np.array_equal(model(X, Y, fetch="x"), X)
    assert model({"x": X, "y": Y}, fetch=["a"], out={"a": out})["a"] is out


def test_fetching_keeps_constant_inputs():
    g = gq.Graph()
    x, w = g.input("x", shape=(2, 3), dtype="f32"), g.input("w", shape=(3, 3), dtype="f32", property="constant")
    g.output(g.relu(g.matmul(x, w, name="product")))
    model = gq.compile(g, threads=1)
    assert np.array_equal(model(X, np.eye(3, dtype=np.float32), fetch="product"), X)
    with pytest.raises(InputError, match="'w' is marked constant"):
        model(X, np.ones((3, 3), np.float32))


def test_compile_returns_chosen_values():
    g = net()
    model = gq.compile(g, outputs=["a", "h"], threads=1)
    assert list(model(X, Y)) == ["a", "h"] and g.output_names == ["out0"]
    assert np.array_equal(gq.compile(g, outputs=["h"], threads=1)(x=X, y=Y), np.maximum(X, 0))


def test_a_value_that_is_returned_ends_a_partition():
    """What `outputs` costs: matmul and relu fuse no more into one with the quantize."""
    g = gq.Graph()
    x, w = g.input("x", shape=(8, 16), dtype="u8"), g.constant(np.ones((16, 8), np.int8))
    h = g.matmul(g.dequantize(x, scales=[0.1], zps=[3]), g.dequantize(w, scales=[0.5]), name="h")
    g.output(g.quantize(g.relu(h), dtype="u8", scales=[0.9]), name="y")
    model, both = gq.compile(g, threads=1), gq.compile(g, outputs=["h", "y"], threads=1)
    assert "1 partition " in model.explain() and "2 partitions" in both.explain()
    inputs = random_inputs(g)
    assert np.array_equal(both(inputs)["y"], model(inputs))
    assert np.array_equal(both(inputs)["h"], model(inputs, fetch="h"))


@pytest.mark.parametrize("names, message", [
    (["hh"], "graph 'net' has no value named 'hh'; did you mean h"),
    (["zz"], "no value named 'zz'; to give it that name"),
    (["h", "h"], "a list of different names of values, got"), ([1], "different names of values, got .1."),
    (3, "a list of different names of values, got 3"), ({"h"}, "a list of different names"), ([["h"]], "a list of")])
def test_names_that_no_value_has(names, message):
    g = net()
    model = gq.compile(g, threads=1)
    with pytest.raises(GraphError, match=message):
        model(X, Y, fetch=names)
    with pytest.raises(GraphError, match=message):
        gq.compile(g, outputs=names)


def test_outputs_is_a_list_and_not_empty():
    with pytest.raises(GraphError, match="outputs must be a list of different names of values, got 'h'"):
        gq.compile(net(), outputs="h")
    with pytest.raises(GraphError, match="graph 'net' has no outputs"):
        gq.compile(net(), outputs=[])


# -- what a model shows ---------------------------------------------------------------------------------------


def test_a_model_shows_its_inputs_and_outputs():
    model = gq.compile(net((None, 3)), isa="scalar", threads=1)
    assert {k: str(t) for k, t in model.inputs.items()} == {"x": "f32[?,3]", "y": "f32[1,3]"}
    assert {k: str(t) for k, t in model.outputs.items()} == {"out0": "f32[?,3]"}
    assert repr(model) == ("<compiled graph net: x: f32[?,3], y: f32[1,3] -> out0: f32[?,3]; ISA level scalar, "
                           "1 thread>")


def test_the_models_of_eight_sets_of_names_are_kept():
    g = gq.Graph()
    v = g.input("x", dtype="f32", shape=(2,))
    for k in range(10):
        v = g.relu(v, name=f"v{k}")
    g.output(v, name="y")
    model = gq.compile(g, threads=1)
    x = np.float32([-1, 2])
    for k in range(8):
        assert model(x, fetch=f"v{k}").tolist() == [0, 2]
        assert [names for names in model._fetching] == [(f"v{n}",) for n in range(k + 1)]
    kept = dict(model._fetching)
    model(x, fetch="v3")
    assert model._fetching == kept
    model(x, fetch=["v8"])
    assert list(model._fetching) == [(f"v{n}",) for n in range(1, 9)]


# -- out ------------------------------------------------------------------------------------------------------


def read_only():
    out = np.zeros((2, 3), np.float32)
    out.flags.writeable = False
    return out


BAD_OUT = {
    "in columns": (lambda: np.zeros((3, 2), np.float32).T, "must be C-contiguous, aligned and writeable"),
    "not aligned": (lambda: np.zeros(25, np.uint8)[1:].view(np.float32).reshape(2, 3), "must be C-contiguous, aligned"),
    "read-only": (read_only, "must be C-contiguous, aligned and writeable"),
    "another dtype": (lambda: np.zeros((2, 3)), "out 'out0' must be f32"),
    "another shape": (lambda: np.zeros((3, 2), np.float32), "out 'out0' must be f32"),
    "no array": (lambda: [[0.0] * 3] * 2, "out 'out0' must be an array"),
    "the input": (lambda: X, "out 'out0' shares memory with input 'x', which is not its cache"),
    "rows of a larger one": (lambda: np.zeros((4, 3), np.float32)[1:3], None),
}


@pytest.mark.parametrize("kind", BAD_OUT)
@pytest.mark.parametrize("by_name", [False, True])
def test_an_array_for_results_has_what_kernels_ask_of_it(kind, by_name):
    """Each demand alone; rows of a larger array, and a subclass, are as good as any."""
    make, message = BAD_OUT[kind]
    model, out = gq.compile(net(), threads=1), make()
    if message is None:
        for x in (out, out.view(type("Mine", (np.ndarray,), {}))):
            assert model(X, Y, out=x) is x and np.array_equal(x, np.maximum(X, 0) * Y)
        return
    with pytest.raises(InputError, match=message):
        model(X, Y, out={"out0": out} if by_name else out)


def test_arrays_of_several_results_have_their_names_and_memory_of_their_own():
    g = gq.Graph()
    x = g.input("x", shape=(4,), dtype="f32")
    g.output(g.relu(x), name="a")
    g.output(g.abs(x), name="b")
    model, room, x = gq.compile(g, threads=1), np.zeros(12, np.float32), np.float32([-1, 2, -3, 4])
    with pytest.raises(InputError, match=r"out must be a mapping of the outputs \['a', 'b'\] to arrays"):
        model(x, out=room[:4])
    for out in ({"a": room[:4]}, {"a": room[:4], "c": room[4:8]}, {"a": room[:4], "b": room[4:8], "c": room[8:]}):
        with pytest.raises(InputError, match=r"out must hold the outputs \['a', 'b'\]"):
            model(x, out=out)
    with pytest.raises(InputError, match="out 'b' shares memory with an input or another output"):
        model(x, out={"a": room[:4], "b": room[3:7]})
    model(x, out={"b": room[4:8], "a": room[:4]})
    assert room.tolist() == [0, 2, 0, 4, 1, 2, 3, 4, 0, 0, 0, 0]

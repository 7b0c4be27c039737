"""What a comparison of two graphs says: of each output, by each kind of difference, to the last element."""
import re

import numpy as np
import pytest

import graphq as gq
from graphq.errors import CompileError, GraphError
from graphq.validation import compare
from graphq.validation.compare import Baseline, find_difference
from graphq.validation.inputs import Inputs


def graph(body, types="x: f32[300]", returned="%a as a, %b as b"):
    return gq.parse(f"graph({types}) {{\n {body}\n return {returned}\n}}")


def differs(before, after, arrays, **tolerances):
    """The difference on these arrays alone."""
    return Baseline(before, [Inputs("mine", arrays)]).difference(after, **tolerances)


X = np.linspace(-3, 3, 300, dtype=np.float32)
SAME = "%a = abs(x)\n %b = clamp(x, min=-2, max=2)"


@pytest.mark.parametrize("body, said", [
    (SAME, None), ("%a = abs(x)\n %b = clamp(x, min=-2, max=2.0000002)", "output 'b' .*: 50 of 300 elements differ"),
    ("%a = abs(x)\n %b = clamp(x, min=-2, max=2.9999)", "output 'b'"),
    ("%a = relu(x)\n %b = clamp(x, min=-2, max=2)", "output 'a' on inputs of the kind 'mine': 150 of 300 elements "
                                                    r"differ, the first at \[0\]: 3.0 before, 0.0 after"),
    ("%a = abs(x)\n %b = clamp(x, min=-2, max=3)", "output 'b'"),
])
def test_every_output_is_compared(body, said):
    found = differs(graph(SAME), graph(body), {"x": X})
    assert found is None if said is None else re.search(said, found), found


@pytest.mark.parametrize("types, returned, said", [
    ("x: f32[300]", "%b as a, %a as b", "output 'a'"), ("x: f32[300]", "%a as a, %b as c", "the outputs were a: f32"),
    ("x: f32[300]", "%a as a", "the outputs were a: f32.*, b: f32.*, and are a: f32"),
    ("x: f32[300]", "%b as b, %a as a", "the outputs were"), 
    ("x: f32[30]", "%a as a, %b as b", "the inputs were x: f32"),
    ("x: f32[300], y: f32[1]", "%a as a, %b as b", "and are x: f32.*, y: f32"),
    ("x: f16[300]", "%a as a, %b as b", "and are x: f16")])
def test_names_and_types(types, returned, said):
    found = differs(graph(SAME), graph(SAME, types, returned), {"x": X})
    assert found is not None and re.search(said, found), found


NAN, INF = np.nan, np.inf


@pytest.mark.parametrize("before, after, alike", [
    ([NAN, 1], [NAN, 1], True), ([NAN, 1], [1, 1], False), ([1, NAN], [NAN, 1], False), ([0.0], [-0.0], False),
    ([-0.0], [-0.0], True), ([INF], [-INF], False), ([INF], [3e38], False), ([2, 3], [2, 3], True),
    ([1.0], [np.nextafter(1, 2, dtype="f4")], False), ([1e-45], [0.0], False)])
def test_the_bits_of_floats(before, after, alike):
    """Inputs stand for results: one graph returns its first input, the other its second."""
    first, second = (gq.parse(f"graph(x: f32[{len(before)}], y: f32[{len(before)}]) {{\n return {name} as a\n}}")
                     for name in "xy")
    arrays = {"x": np.float32(before), "y": np.float32(after)}
    assert (differs(first, second, arrays) is None) == alike
    swapped = {"x": arrays["y"], "y": arrays["x"]}
    assert (differs(first, second, swapped) is None) == alike


@pytest.mark.parametrize("dtype", ["u8", "s8", "s32", "s64", "boolean"])
def test_integers_are_equal_or_with_tolerances_a_step_apart(dtype):
    kind = gq.dtypes.DTYPES[dtype].numpy
    first, second = (gq.parse(f"graph(x: {dtype}[40], y: {dtype}[40]) {{\n return {name} as a\n}}") for name in "xy")
    x = np.zeros(40, kind)
    for step in (1,) if dtype == "boolean" else (1, 2):
        for places in ([0], [39], [7, 8]):
            y = x.copy()
            y[places] = step
            found = differs(first, second, {"x": x, "y": y})
            assert found.startswith("output 'a'")
            assert f"{len(places)} of 40 elements differ, the first at [{places[0]}]" in found
            tolerated = differs(first, second, {"x": x, "y": y}, rtol=1e-3)
            assert (tolerated is None) == (step == 1 and dtype != "boolean")


def test_tolerances_are_of_the_largest_element():
    first, second = (gq.parse(f"graph(x: f32[5], y: f32[5]) {{\n return {name} as a\n}}") for name in "xy")
    x = np.float32([100, -200, 0, INF, NAN])

    def found(y, **tolerances):
        return differs(first, second, {"x": x, "y": np.float32(y)}, **tolerances)

    assert found([100.19, -200.19, -0.19, INF, NAN], rtol=1e-3) is None
    assert "1 of 5 elements" in found([100, -200, 0.21, INF, NAN], rtol=1e-3)
    assert found([100.09, -200, -0.09, INF, NAN], atol=0.1) is None
    assert "2 of 5 elements" in found([100.11, -200, -0.11, INF, NAN], atol=0.1)
    assert found([100.29, -200, 0, INF, NAN], rtol=1e-3, atol=0.1) is None
    assert "1 of 5 elements" in found([100, -200, 0, -INF, NAN], rtol=1e-3)
    assert "1 of 5 elements" in found([100, -200, 0, 3e38, NAN], rtol=1e-3)
    assert "1 of 5 elements" in found([100, -200, 0, INF, 0], rtol=1e-3)


def test_a_few_ties_may_round_otherwise_in_graphs_that_quantize():
    """One of a hundred elements and one more; without tolerances none, and none of what quantizes nothing."""
    types = "x: f32[300], y: f32[300], f: f32[1]"
    for body, most in (("%q = relu(f)", 0), ("%q = quantize(f, dtype=u8, scales=[1])", 4)):
        first, second = (graph(body, types, f"{name} as a, %q as q") for name in "xy")
        for count in (0, 1, 4, 5):
            y = np.zeros(300, np.float32)
            y[100:100 + count] = 1
            arrays = {"x": np.zeros(300, np.float32), "y": y, "f": np.float32([3])}
            assert (differs(first, second, arrays) is None) == (count == 0)
            assert (differs(first, second, arrays, atol=0.5) is None) == (count <= most)


def test_extremes_count_without_tolerances_alone():
    first, second = (gq.parse(f"graph(x: f32[2], y: f32[2]) {{\n return {name} as a\n}}") for name in "xy")
    arrays = {"x": np.float32([1, 2]), "y": np.float32([1, 3])}
    for kind in ("extremes", "lowest"):
        base = Baseline(first, [Inputs(kind, arrays)])
        assert base.difference(second) is not None
        assert (base.difference(second, rtol=1e-6) is None) == (kind == "extremes")


def test_all_sets_of_inputs_are_compared():
    first, second = (gq.parse(f"graph(x: f32[2], y: f32[2]) {{\n return {name} as a\n}}") for name in "xy")
    equal = {"x": np.float32([1, 2]), "y": np.float32([1, 2])}
    other = {**equal, "y": np.float32([1, 5])}
    base = Baseline(first, [Inputs("one", equal), Inputs("two", equal), Inputs("three", other)])
    assert "on inputs of the kind 'three'" in base.difference(second)


def test_a_graph_that_raises_differs():
    first = gq.parse("graph(x: f32[2,3], k: s64[1]) {\n %a = gather(x, k)\n return %a as a\n}")
    second = gq.parse("graph(x: f32[2,3], k: s64[1]) {\n %b = gather(x, k, axis=0)\n %c = add(k, k)\n"
                      " %a = gather(x, k)\n return %a as a\n}".replace("%c = add(k, k)", "%c = gather(%b, k)"))
    second.prune()
    assert find_difference(first, second) is None
    third = gq.parse("graph(x: f32[2,3], k: s64[1]) {\n %b = slice(x, axes=[0], starts=[0], ends=[1], steps=[1])\n"
                     " %a = gather(%b, k)\n return %a as a\n}")
    found = Baseline(first, [Inputs("mine", {"x": np.ones((2, 3), np.float32), "k": np.array([1])})]).difference(third)
    assert found.startswith("on inputs of the kind 'mine' it raises InputError")


@pytest.mark.parametrize("error", [GraphError, CompileError, ZeroDivisionError, OverflowError, IndexError, KeyError,
                                   ValueError])
def test_integers_that_a_reference_refuses_are_made_small(monkeypatch, error):
    """Whatever the reference raises for large ones; for small ones it has to run."""
    def reference(graph, arrays):
        if arrays["k"].max() > 1:
            raise error("too large")
        return gq.reference(graph, arrays)

    monkeypatch.setattr(compare, "reference", reference)
    g = gq.parse("graph(k: s64[3]) {\n %0 = cast(k, dtype=f32)\n return %0\n}")
    base = Baseline(g, [Inputs("mine", {"k": np.array([7, 4, 0])})])
    ((given, (out,)),) = base.results
    assert given.arrays["k"].tolist() == out.tolist() == [1, 0, 0] and base.difference(g) is None
    monkeypatch.setattr(compare, "small_integers", lambda arrays: arrays)
    with pytest.raises(GraphError, match="runs on none of the inputs that were tried: .*too large"):
        Baseline(g, [Inputs("mine", {"k": np.array([7, 4, 0])})])

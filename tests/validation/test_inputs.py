"""Sizes that are drawn for open dimensions: equal ones first, then unequal ones and 0 and 1 for each axis.

Adversarial inputs: each kind holds what it promises; and what a comparison says.
"""
import numpy as np
import pytest

import graphq as gq
from graphq.dtypes import DTYPES, f32, s8, u8
from graphq.errors import GraphError
from graphq.ir import TensorType
from graphq.validation import inputs as module
from graphq.validation.compare import Baseline, find_difference
from graphq.validation.inputs import (
    Inputs,
    Quantization,
    adversarial_inputs,
    input_types,
    quantizations,
    random_array,
    sized_copies,
    small_integers,
)


def shapes(graph, **options):
    return [{v.name: v.type.dims for v in g.inputs} for g in sized_copies(graph, **options)]


def test_equal_sizes_then_those_of_fixed_dimensions():
    g = gq.parse("graph(x: f32[?,5], y: f32[7,*]) {\n %0 = relu(x)\n return %0\n}".replace("f32[7,*]", "f32[7,9]"))
    drawn = [s["x"] for s in module.equal_sizes(g)]
    assert drawn == [(n, 5) for n in (*module.SAME, 5, 7, 9)]
    unknown = gq.parse("graph(x: f32[*], y: f32[?]) {\n %0 = relu(x)\n return %0\n}")
    drawn = list(module.equal_sizes(unknown))
    assert [len(s["x"]) for s in drawn] == [rank for rank in module.RANKS for _ in module.SAME]
    assert drawn[0] == {"x": (2, 2), "y": (2,)} and drawn[len(module.SAME)]["x"] == (2,) * 4


def test_unequal_sizes():
    base = {"x": (2, 5, 2), "y": (2,)}
    drawn = list(module.unequal_sizes(base, [("x", 0), ("x", 2), ("y", 0)], np.random.default_rng(0)))
    assert len(drawn) == module.DRAWS and all(s["x"][1] == 5 and s["y"] == s["x"][:1] for s in drawn)
    for k, s in enumerate(drawn):
        a, _, b = s["x"]
        assert a != b and all((2 < d <= 7 if k % 2 == 0 else d % 2 == 0 and 2 <= d <= 10) for d in (a, b))
    assert len({s["x"] for s in drawn}) > 3
    assert drawn != list(module.unequal_sizes(base, [("x", 0), ("x", 2), ("y", 0)], np.random.default_rng(1)))


def test_the_same_axis_has_one_size_in_all_inputs():
    g = gq.parse("graph(x: f32[?,3,?], y: f32[?,3,1]) {\n %0 = add(x, y)\n return %0\n}")
    found = shapes(g)
    assert found[0] == {"x": (2, 3, 2), "y": (2, 3, 1)}
    a, b = found[1]["x"][0], found[1]["x"][2]
    assert a != b and found[1]["y"] == (a, 3, 1)
    assert found[2:] == [{"x": x, "y": (x[0], 3, 1)} for x in ((0, 3, b), (1, 3, b), (a, 3, 0), (a, 3, 1))]
    assert shapes(g) == found and shapes(g, seed=3)[0] == found[0]


def test_what_is_not_accepted_is_left_out(monkeypatch):
    g = gq.parse("graph(x: f32[?]) {\n %0 = relu(x)\n return %0\n}")
    asked = []
    monkeypatch.setattr(module, "reference", lambda graph, arrays: asked.append(graph))
    assert len(sized_copies(g)) >= 3 and asked == []  # all inner shapes are known
    with pytest.raises(GraphError, match="runs with no open dimensions of 2, 3, 1, 8, 16, 32, 64 or 224: "):
        sized_copies(gq.parse("graph(x: f32[?]) {\n %0 = static_reshape(x, shape=[5,7,11])\n return %0\n}"))


QUANTIZED = """graph(x: f32[64,64], n: u8[64,64], s: s8[64,64], b: boolean[64]) {
  %0 = quantize(x, dtype=u8, scales=[0.3], zps=[7])
  %1 = dequantize(n, scales=[0.5], zps=[200])
  %2 = clamp(%1, min=-1.75, max=3.0)
  return %0, %2, s, b
}"""


def inputs(text=QUANTIZED, **options):
    return {given.kind: given.arrays for given in adversarial_inputs(gq.parse(text), **options)}


def test_the_kinds():
    made = inputs()
    assert list(made) == ["random", "ties", "NaN and infinities", "extremes", "lowest", "highest"]
    x = made["ties"]["x"]
    scale = np.float32(0.3)
    for n in (0, 1, -1, 255 - 7, -7, -8):
        assert (scale * np.float32(n + 0.5)).item() in x, n
    assert {np.float32(-1.75).item(), 3.0, np.nextafter(np.float32(3), np.float32(9)).item()} <= set(x.ravel().tolist())
    assert {199, 200, 201, 6, 7, 8, 0, 255} <= set(made["ties"]["n"].ravel().tolist())
    assert {np.float32(v).item() for v in (1e-42, -1e-42, 1.1754944e-38)} <= set(x.ravel().tolist())
    assert (np.signbit(x) & (x == 0)).any() and (~np.signbit(x) & (x == 0)).any()
    special = made["NaN and infinities"]["x"]
    assert np.isnan(special).any() and np.isposinf(special).any() and np.isneginf(special).any()
    assert (np.signbit(special) & (special == 0)).any() and ((special != 0) & (np.abs(special) < 1e-40)).any()
    assert set(made["extremes"]["s"].ravel().tolist()) == {-128, 127}
    assert np.finfo(np.float32).max in made["extremes"]["x"] and np.finfo(np.float32).min in made["extremes"]["x"]
    assert set(made["lowest"]["n"].ravel().tolist()) == {0} and set(made["highest"]["s"].ravel().tolist()) == {127}
    assert all(x.dtype == bool for x in (arrays["b"] for arrays in made.values()))


def test_large_numbers_are_among_the_inputs():
    """Those of constants and attributes, and one near the largest of f32; of an f16 what it can hold."""
    made = inputs("""graph(x: f32[80,80], h: f16[80,80]) {
      %0 = clamp(x, min=-5e9, max=2e30)
      %1 = constant(value=f32[2]{7e12, 3.4e38})
      return %0, %1, h
    }""")
    ties = set(made["ties"]["x"].ravel().tolist())
    assert {float(np.float32(v)) for v in (-5e9, 2e30, 7e12)} <= ties and float(np.float32(3.4e38)) not in ties
    assert np.float32(3e38) in made["extremes"]["x"] and np.float16(65504) in made["extremes"]["h"]


@pytest.mark.parametrize("more", [0, 1])
def test_large_graphs_run_on_the_first_kinds_alone(monkeypatch, more):
    monkeypatch.setattr(module, "MOST_ELEMENTS", 2 * 12 - more)  # the input and the result
    made = inputs("graph(x: f32[3,4]) {\n %0 = relu(x)\n return %0\n}")
    assert list(made) == ["random", "ties", "NaN and infinities", "extremes", "lowest", "highest"][:3 if more else 6]


def test_the_smallest_arrays_have_nan_first():
    few = inputs("graph(x: f32[], y: f32[2]) {\n %0 = add(x, y)\n return %0\n}")["NaN and infinities"]
    assert np.isnan(few["x"]) and sorted(map(str, few["y"].tolist())) == ["inf", "nan"]


def test_the_same_seed_gives_the_same_arrays():
    a, b, c = inputs(seed=1), inputs(seed=1), inputs(seed=2)
    same = [[np.array_equal(a[k]["x"], other[k]["x"], equal_nan=True) for k in a] for other in (b, c)]
    assert all(same[0]) and not any(same[1])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (0, 3), (1,), (5, 7)])
def test_all_types_and_sizes(dtype, shape):
    dims = ",".join(map(str, shape))
    for arrays in inputs(f"graph(x: {dtype}[{dims}]) {{\n return x\n}}").values():
        assert arrays["x"].shape == shape and arrays["x"].dtype == DTYPES[dtype].numpy


def test_scales_of_bodies_count():
    g = gq.parse(QUANTIZED)
    gq.passes.run_passes(g)
    assert g.nodes_of(["partition"])
    assert {(round(q.scale, 3), q.zero_point) for q in quantizations(g)} == {(0.3, 7), (0.5, 200)}


def test_indices_become_small_where_large_ones_are_refused():
    g = gq.parse("graph(x: f32[2,3], k: s64[4]) {\n %0 = gather(x, k)\n return %0\n}")
    assert len(Baseline(g, adversarial_inputs(g)).results) == 6
    wrong = gq.parse("graph(x: f32[2,3], k: s64[4]) {\n %0 = gather(x, k)\n %1 = abs(%0)\n return %1 as out0\n}")
    assert "output 'out0' on inputs of the kind 'random'" in find_difference(g, wrong)


def test_a_graph_that_runs_on_nothing_is_said():
    g = gq.parse("graph(x: f32[2]) {\n %0 = relu(x)\n return %0\n}")
    with pytest.raises(gq.GraphError, match="runs on none of the inputs that were tried: input 'x' must be"):
        Baseline(g, [Inputs("mine", {"x": np.zeros(3, np.float32)})])


def test_what_differs():
    def found(a, b, **options):
        texts = (f"graph(x: f32[32]) {{\n %0 = constant(value=f32[1]{{{c}}})\n %y = {op}(x, %0)\n return %y\n}}"
                 for op, c in (a, b))
        return find_difference(*map(gq.parse, texts), **options)

    assert found(("add", 1.0), ("add", 1.0)) is None
    assert "'random'" in found(("add", 1.0), ("add", 1.0000001))
    assert found(("add", 1.0), ("add", 1.0000001), rtol=1e-5) is None
    assert "of 32 elements differ" in found(("add", 1.0), ("add", 1.1), rtol=1e-5)
    assert "0.0 before, -0.0 after" in found(("add", 0.0), ("multiply", 1.0))


@pytest.mark.parametrize("name", [n for n, t in DTYPES.items() if t.kind != "float"])
def test_random_integers_are_of_the_whole_range_or_small(name):
    dtype = DTYPES[name]
    x = random_array(TensorType(dtype, (300, 300)), np.random.default_rng(0)).astype(object)
    ends = (0, 1) if dtype.kind == "bool" else (-1000, 1000) if dtype.bits >= 32 and dtype.min < 0 else None
    if ends is None and dtype.bits >= 32:
        ends = (x.min(), x.max())
        assert ends[0] >= 0
    low, high = ends or (dtype.min, dtype.max)
    assert low <= x.min() <= low + 2 + (dtype.bits == 16) * 40 and high - 2 - (dtype.bits == 16) * 40 <= x.max() <= high


def test_small_integers():
    given = {"k": np.array([-7, 4, 3]), "n": np.int32([5, -2]), "u": np.uint8([7, 200]), "x": np.float32([2.5])}
    found = small_integers(given)
    assert found["k"].tolist() == [1, 0, 1] and found["k"].dtype == np.int64
    assert found["n"].tolist() == [1, 0] and found["n"].dtype == np.int32
    assert found["u"] is given["u"] and found["x"] is given["x"]


def test_quantizations_of_channels_and_of_floats():
    g = gq.parse("""graph(x: f32[2,3], q: u8[2,3], f: f8_e4m3[2,3]) {
      %0 = quantize(x, dtype=s8, qtype="per_channel", scales=[0.5,0.25,2], zps=[1,-2,3])
      %1 = dequantize(q, scales=[4])
      %2 = dequantize(f, scales=[8])
      %3 = dequantize(q, scales=[4])
      return %0, %1, %2, %3
    }""")
    assert quantizations(g) == [Quantization(0.5, 1, s8), Quantization(0.25, -2, s8), Quantization(2, 3, s8),
                                Quantization(4, 0, u8), Quantization(8, 0, DTYPES["f8_e4m3"])]


def test_each_channel_has_a_quantization_without_zero_points_as_well():
    g = gq.parse("""graph(x: f32[2,3]) {
      %0 = quantize(x, dtype=u8, qtype="per_channel", scales=[0.5,0.25,2])
      return %0
    }""")
    assert quantizations(g) == [Quantization(0.5, 0, u8), Quantization(0.25, 0, u8), Quantization(2, 0, u8)]


def test_sizes_to_try_are_tried_once():
    g = gq.parse("graph(x: f32[?,8], y: f32[0,1], z: f32[5,16]) {\n %0 = relu(x)\n return %0\n}")
    assert [s["x"][0] for s in module.equal_sizes(g)] == [*module.SAME, 5]


def test_further_sizes_have_fewer_kinds_and_say_what_was_drawn():
    g = gq.parse("graph(x: f32[?,3], y: f32[?,3], z: f32[2]) {\n %0 = relu(x)\n return %0, y, z\n}")
    found = list(adversarial_inputs(g))
    drawn = list(dict.fromkeys(x.drawn for x in found))
    kinds = [[x.kind for x in found if x.drawn == of] for of in drawn]
    assert len(drawn) > 2 and len(kinds[0]) == 6 and all(k == ["random", "ties"] for k in kinds[1:])
    for x in found:
        assert x.drawn == tuple(f"{name}: f32[{','.join(map(str, x.arrays[name].shape))}]" for name in "xy")
    given = list(adversarial_inputs(g, sizes={"x": (4, 3)}))
    assert all(len(x.drawn) == 1 and x.drawn[0].startswith("y: ") and x.arrays["x"].shape == (4, 3) for x in given)
    assert {x.drawn for x in adversarial_inputs(g, sizes={"x": (4, 3), "y": (1, 3)})} == {()}


def test_the_first_refusal_is_said():
    g = gq.parse("graph(x: f32[?]) {\n %0 = static_reshape(x, shape=[7,11])\n return %0\n}")
    size = module.SAME[0]
    with pytest.raises(GraphError, match=rf"runs with no open dimensions of {size}, .*: .*\[{size}\]"):
        sized_copies(g)


def test_shapes_that_are_given():
    g = gq.parse("graph(x: f32[?,3], y: u8[2]) {\n return x, y\n}")
    assert input_types(g, {"x": (5, 3)}) == {"x": TensorType(f32, (5, 3)), "y": TensorType(u8, (2,))}
    assert next(adversarial_inputs(g, sizes={"x": (4, 3)})).arrays["x"].shape == (4, 3)
    with pytest.raises(gq.GraphError):
        input_types(g)


@pytest.mark.parametrize("name", [n for n, t in DTYPES.items() if t.kind == "int"])
def test_both_ends_of_integers_are_among_the_extremes(name):
    dtype = DTYPES[name]
    g = gq.Graph()
    g.output(g.input("x", dtype=name, shape=(64,)), name="y")
    (made,) = (x.arrays["x"] for x in adversarial_inputs(g) if x.kind == "extremes")
    assert made.dtype == dtype.numpy and set(map(int, made)) == {int(dtype.min), int(dtype.max)}

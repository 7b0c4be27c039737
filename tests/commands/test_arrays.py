"""Random inputs: the same for a seed, around zero points, and of numbers that operations accept.

Arrays of --input and --shape: what is read, what is drawn, and what is refused.
"""
import argparse
from tempfile import TemporaryDirectory

import numpy as np
import pytest

import graphq as gq
from graphq.commands.arrays import INPUTS, accepted_inputs, check_names, input_arrays, pairs
from graphq.errors import GraphError, InputError, ParseError


def dense(zp=0):
    return gq.parse(f"""graph(t0: u8[16,64], t1: s8[64,8]) {{
      %0 = dequantize(t0, scales=[0.1], zps=[{zp}])
      %1 = dequantize(t1, scales=[0.1])
      %2 = matmul(%0, %1)
      return %2
    }}""")


def test_inputs_are_the_same_for_a_seed():
    g = dense()
    a, b, c = (accepted_inputs(g, seed) for seed in (0, 0, 1))
    assert all(np.array_equal(a[k], b[k]) and not np.array_equal(a[k], c[k]) for k in a)
    assert a["t0"].max() > 250 and a["t1"].min() < -120


def test_narrow_inputs_lie_around_the_zero_point():
    x = accepted_inputs(dense(zp=120), 0, spread=0.05)["t0"]
    assert 113 <= x.min() < 120 < x.max() <= 127


def test_wide_integers_are_small():
    g = gq.parse("graph(i: s32[500], k: s64[500]) {\n return i, k\n}")
    assert all(-100 <= x.min() < -80 and 80 < x.max() <= 100 for x in accepted_inputs(g, 0).values())


def test_inputs_by_their_meaning():
    g = gq.Graph()
    x = g.input("x", dtype="f32", shape=(50, 4))
    p = [g.input(n, dtype="f32", shape=(4,)) for n in ("gamma", "beta", "mean", "variance")]
    y = g.dynamic_quantize(g.batch_norm_inference(x, *p, epsilon=0.0), g.input("scale", dtype="f32", shape=(1,)),
                           g.input("zp", dtype="s8", shape=(1,)), dtype="s8")
    g.output(y)
    roots = {"log": g.log, "sqrt": g.sqrt, "pow": lambda x: g.pow(x, beta=0.5), "exp": g.exp}
    for name, function in roots.items():
        g.output(function(g.input(name, dtype="f32", shape=(20,))))
    g.output(g.dropout(g.input("d", dtype="f32", shape=(3,)), *(g.input(n, dtype="s64", shape=()) for n in (
        "seed", "offset")), g.input("probability", dtype="f32", shape=())))
    values = accepted_inputs(g, 0)
    positive = [name for name, x in values.items() if (x > 0).all()]
    assert {"variance", "scale", "log", "sqrt", "pow", "probability"} <= set(positive) and values["zp"].dtype == np.int8
    assert not {"x", "mean", "exp"} & set(positive) and values["probability"] < 1
    assert 0 <= values["seed"] < 1000 and 0 <= values["offset"] < 1000


def test_of_several_meanings_of_an_input_the_first_by_name_counts():
    """Whatever the process: sets of names have another order in each."""
    def of(*meanings):
        g = gq.Graph()
        x, y = (g.input(n, dtype="f32", shape=(1,)) for n in ("x", "of several meanings"))
        seed = g.add_constant(np.zeros((), np.int64))
        for meaning in meanings:
            g.output({"variance": lambda: g.batch_norm_inference(g.static_reshape(x, shape=[1, 1]), x, x, x, y,
                                                                 epsilon=0.1),
                      "scales": lambda: g.dynamic_quantize(x, y, dtype="u8"),
                      "probability": lambda: g.dropout(x, seed, seed, y)}[meaning]())
        return accepted_inputs(g, 5)["of several meanings"].item()

    meanings = ("probability", "scales", "variance")
    alone = [of(meaning) for meaning in meanings]
    assert len(set(alone)) == 3
    assert of(*meanings) == of(*meanings[:2]) == of(meanings[2], meanings[0]) == alone[0]
    assert of(*meanings[1:]) == of(*meanings[:0:-1]) == alone[1]


def graph():
    return gq.parse("graph(x: f32[?,3], n: s64[2], q: u8[4], b=c: f32[*]) {\n %0 = relu(x)\n return %0\n}".replace(
        "b=c", '"b=c"'))


def arrays(*arguments, of=None):
    parser = argparse.ArgumentParser()
    for add in INPUTS:
        add(parser)
    return input_arrays(of or graph(), parser.parse_args(arguments))


def saved(tmp_path, array, name="x.npy"):
    np.save(tmp_path / name, array)
    return tmp_path / name


def test_random_arrays():
    found = arrays("--shape", "x=5x3", "--shape", "b=c=2x1x4")
    assert {n: (x.shape, x.dtype.name) for n, x in found.items()} == {
        "x": ((5, 3), "float32"), "n": ((2,), "int64"), "q": ((4,), "uint8"), "b=c": ((2, 1, 4), "float32")}
    assert -1 <= found["x"].min() < found["x"].max() <= 1 and set(found["n"]) <= {0, 1}
    again = arrays("--shape", "x=5x3", "--shape", "b=c=2x1x4")
    assert all(np.array_equal(found[n], again[n]) for n in found)
    assert arrays("--shape", "b=c=1")["x"].shape == (1, 3)


def test_arrays_of_files(tmp_path):
    own = np.arange(6, dtype=np.float32).reshape(2, 3)
    found = arrays("--input", f"x={saved(tmp_path, own)}", "--shape", "b=c=3")
    assert np.array_equal(found["x"], own) and found["b=c"].shape == (3,) and set(found) == {"x", "n", "q", "b=c"}
    assert arrays("--input", f"b=c={saved(tmp_path, own[0])}")["b=c"].shape == (3,)  # the array has the rank


@pytest.mark.parametrize("arguments, error, message", [
    (("--shape", "z=1"), InputError, "the model has no input 'z'; it has x, n, q, b=c"),
    (("--shape", "x"), ParseError, "--shape takes NAME=..., got x"), (("--shape", "=1"), ParseError, "got 1"),
    (("--input", "x="), ParseError, "--input takes NAME=..., got x"),
    (("--shape", "x=1x-3"), ParseError, "--shape x: must be dimensions such as 1x3x224x224, got 1x-3"),
    (("--shape", "x=1x"), ParseError, "got 1x$"), (("--shape", "x=1x" + "9" * 16), ParseError, "must be dimensions"),
    ((), InputError, "input 'b=c': its rank is open: give its shape with --shape"),
    (("--shape", "b=c=1", "--shape", "x=1x4"), InputError, "x")])
def test_refusals(arguments, error, message):
    with pytest.raises(error, match=message):
        arrays(*arguments)


def test_a_shape_that_does_not_fit_is_said_before_the_graph_is_tried():
    with pytest.raises(InputError, match=r"input 'x' must be f32\[\?,3\], got shape \[1, 4\]"):
        arrays("--shape", "b=c=1", "--shape", "x=1x4")


def test_files_that_are_refused(tmp_path):
    np.savez(tmp_path / "x.npz", a=np.zeros(3), b=np.zeros(3))
    (tmp_path / "text").write_text("no array")
    for path, message in ((tmp_path / "x.npz", "holds several arrays, and none has this name: a, b"),
                          (tmp_path / "text", "text: "), (saved(tmp_path, np.zeros((2, 3))), "input 'x'")):
        with pytest.raises(InputError, match=message):
            arrays("--input", f"x={path}", "--shape", "b=c=1")


def test_an_archive_of_one_array_or_of_named_arrays():
    g = gq.parse("graph(x: f32[2]) {\n %0 = relu(x)\n return %0\n}")
    with TemporaryDirectory() as folder:
        path = f"{folder}/x.npz"
        for held in ({"arr_0": np.float32([1, 2])}, {"x": np.float32([1, 2]), "label": np.zeros(1)},
                     {"1/in/x": np.zeros(2), "0/in/x": np.float32([1, 2])}):
            np.savez(path, **held)
            assert arrays("--input", f"x={path}", of=g)["x"].tolist() == [1, 2]


def test_shapes_that_the_graph_refuses():
    g = gq.parse("graph(x: f32[?], y: f32[?]) {\n %0 = add(x, y)\n return %0\n}")
    with pytest.raises(GraphError, match=r"\(for inputs of shape x=2, y=3; choose others with --shape\)"):
        arrays("--shape", "x=2", "--shape", "y=3", of=g)


def test_pairs():
    assert pairs("--o", ["a=1", "b=c=2", "a=3"]) == {"a": "3", "b=c": "2"}
    check_names("output", ["a"], ["a", "b"])
    with pytest.raises(InputError, match="the model has no output 'c'; it has a, b"):
        check_names("output", ["a", "c"], ["a", "b"])

"""Predictor: batches of any size, the same bits however rows are cut."""
import os
import pickle
import subprocess
import sys
import threading

import numpy as np
import pytest

import graphq as gq


def network(rows):
    """Two inputs, two outputs, and a number for all rows."""
    g = gq.Graph("network")
    rng = np.random.default_rng(0)
    x, y = g.input("x", dtype="f32", shape=(rows, 16)), g.input("y", dtype="s64", shape=(rows, 3))
    factor = g.input("factor", dtype="f32", shape=())
    w = g.dequantize(g.constant(rng.integers(-99, 99, (16, 24)).astype(np.int8)), scales=[0.01])
    q = g.dequantize(g.quantize(x, dtype="u8", scales=[0.03], zps=[128]), scales=[0.03], zps=[128])
    table = g.constant(rng.normal(size=(50, 24)).astype(np.float32))
    sums = g.reduce_sum(g.gather(table, y, axis=0), axes=[1])
    g.output(g.softmax(g.multiply(g.matmul(q, w), factor), axis=-1), name="p")
    g.output(g.add(g.matmul(q, w), sums), name="s")
    return g


def dynamic(rows):
    g = gq.Graph("dynamic")
    x = g.input("x", dtype="f32", shape=(rows, 16))
    scale, zero = g.dynamic_range(x)
    g.output(g.dynamic_dequantize(g.dynamic_quantize(x, scale, zero, dtype="u8"), scale, zero), name="y")
    return g


def some(n, seed=1):
    rng = np.random.default_rng(seed)
    return {"x": rng.normal(size=(n, 16)).astype(np.float32), "y": rng.integers(0, 50, (n, 3)),
            "factor": np.array(0.5, np.float32)}


def one_by_one(model, feeds):
    rows = [model({k: v if v.ndim == 0 else v[n:n + 1] for k, v in feeds.items()}) for n in range(len(feeds["x"]))]
    return {k: np.concatenate([r[k] for r in rows]) for k in rows[0]}


def same(x, y):
    return x.keys() == y.keys() and all(np.array_equal(x[k], y[k]) for k in x)


@pytest.fixture(scope="module")
def want():
    return one_by_one(gq.compile(network(1)), some(23))


@pytest.mark.parametrize("rows", [1, 4, None])
def test_types_are_for_any_number_of_rows(rows):
    predictor = gq.Predictor(gq.compile(network(rows)))
    assert {name: str(type) for name, type in predictor.inputs.items()} == {
        "x": "f32[?,16]", "y": "s64[?,3]", "factor": "f32[]"}
    assert {name: str(type) for name, type in predictor.outputs.items()} == {"p": "f32[?,24]", "s": "f32[?,24]"}


@pytest.mark.parametrize("rows,options", [
    (1, {}), (1, {"batch": 1}), (4, {}), (4, {"batch": 4, "pad_to": 4}), (23, {}), (32, {}), (None, {}),
    (None, {"batch": 5}), (None, {"batch": 100}), (None, {"pad_to": 8}), (None, {"batch": 6, "pad_to": 4}),
    (None, {"threads": 1}), (1, {"threads": 2}),
])
def test_rows_are_the_same_however_they_are_cut(rows, options, want, tmp_path):
    model = gq.compile(network(rows))
    model.save(tmp_path / "m")
    for source in (model, tmp_path / "m", str(tmp_path / "m")):
        assert same(gq.Predictor(source, **options)(some(23)), want)


def test_no_rows():
    for rows in (1, 4, None):
        out = gq.Predictor(gq.compile(network(rows)))(some(0))
        assert {k: (v.shape, v.dtype) for k, v in out.items()} == dict.fromkeys("ps", ((0, 24), np.float32))


@pytest.mark.parametrize("shape", [(None, None, 3), None])
def test_no_rows_of_a_model_whose_rows_have_any_size(shape):
    g = gq.Graph()
    g.output(g.softmax(g.input("x", dtype="f32", shape=shape), axis=-1), name="y")
    predictor = gq.Predictor(gq.compile(g), pad_to=4 if shape else None)
    out = predictor({"x": np.empty((0, 5, 3), np.float32)})["y"]
    assert out.shape == (0, 5, 3) and out.dtype == np.float32
    with pytest.raises(gq.InputError, match="'x'"):
        predictor({"x": np.float32(1)})


def test_one_output_is_a_dict_too():
    g = gq.Graph()
    g.output(g.relu(g.input("x", dtype="f32", shape=(1, 2))), name="y")
    assert gq.Predictor(gq.compile(g))({"x": np.ones((3, 2), np.float32)})["y"].shape == (3, 2)


def test_rows_that_mix_run_one_by_one():
    feeds = {"x": some(5)["x"]}
    model = gq.compile(dynamic(None))
    want = np.concatenate([model(x[None]) for x in feeds["x"]])
    got = gq.Predictor(model)(feeds)["y"]
    assert np.array_equal(got, want) and not np.array_equal(model(feeds), want)
    for options in ({"batch": 2}, {"pad_to": 2}):
        with pytest.raises(gq.CompileError, match="rows run one by one.*dynamic_range"):
            gq.Predictor(model, **options)
    fixed = gq.Predictor(gq.compile(dynamic(2)))
    assert len(fixed({"x": feeds["x"][:4]})["y"]) == 4
    with pytest.raises(gq.InputError, match="multiple of 2.*dynamic_range.*got 5"):
        fixed(feeds)


@pytest.mark.parametrize("build,said", [
    (lambda g: g.output(g.relu(g.input("x", dtype="f32", shape=()))), "axis 0 of all inputs"),
    (lambda g: g.output(g.matmul(g.input("x", dtype="f32", shape=(2, 3)), g.input("w", dtype="f32", shape=(3, 4)))),
     "axis 0 of all inputs"),
    (lambda g: g.output(g.reduce_sum(g.input("x", dtype="f32", shape=(2, 3)), axes=[0])), "output 'out0' is"),
    (lambda g: g.output(g.static_reshape(g.input("x", dtype="f32", shape=(2, 3)), shape=[6])), "output 'out0' is"),
    (lambda g: g.output(g.reduce_sum(g.input("x", dtype="f32", shape=(2, 3)), axes=[0, 1])), "output 'out0' is"),
])
def test_models_without_rows_are_refused(build, said):
    g = gq.Graph()
    build(g)
    with pytest.raises(gq.CompileError, match=said):
        gq.Predictor(gq.compile(g))


def test_bad_settings(tmp_path):
    model = gq.compile(network(4))
    for options in ({"batch": 0}, {"threads": -1}, {"pad_to": True}, {"batch": 2.0}, {"pad_to": 2**70}):
        with pytest.raises(gq.CompileError, match="positive int"):
            gq.Predictor(model, **options)
    for options in ({"batch": 8}, {"pad_to": 2}):
        with pytest.raises(gq.CompileError, match="takes 4 rows at a time"):
            gq.Predictor(model, **options)
    with pytest.raises(gq.ParseError):
        gq.Predictor(tmp_path / "none")
    with pytest.raises(gq.GraphError, match="path"):
        gq.Predictor(7)


def test_bad_inputs():
    predictor = gq.Predictor(gq.compile(network(4)))
    good = some(3)
    for given, said in (([1], "by the names of inputs"), ({}, "takes inputs"), ({**good, "z": 1}, "takes inputs"),
                        ({**good, "x": good["x"].astype(np.float64)}, "'x' must be f32"),
                        ({**good, "x": good["x"][:, :5]}, "'x' must be f32"), ({**good, "x": good["x"][0]}, "'x' must"),
                        ({**good, "x": good["x"][:2]}, "as many rows each, got {'x': 2, 'y': 3}"),
                        ({**good, "factor": np.ones(3, np.float32)}, "'factor' must be f32")):
        with pytest.raises(gq.InputError, match=said.replace("[", r"\[")):
            predictor(given)


def test_it_travels_as_the_path(tmp_path, want, monkeypatch):
    gq.compile(network(1)).save(tmp_path / "m")
    monkeypatch.chdir(tmp_path)
    data = pickle.dumps(gq.Predictor("m", threads=1))
    assert len(data) < 1000
    monkeypatch.chdir("/")
    again = pickle.loads(data)
    assert repr(again) == repr(gq.Predictor(tmp_path / "m", threads=1)) and same(again(some(23)), want)


def test_a_process_loads_a_model_once(tmp_path, want, monkeypatch):
    gq.compile(network(1)).save(tmp_path / "m")
    made = []
    from graphq import predictor
    load = predictor.load_compiled
    monkeypatch.setattr(predictor, "load_compiled", lambda *a, **k: made.append(a) or load(*a, **k))
    data = pickle.dumps(gq.Predictor(tmp_path / "m"))
    assert len(made) == 1
    results = []
    threads = [threading.Thread(target=lambda: results.append(pickle.loads(data)(some(23)))) for _ in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(made) == 1 and all(same(r, want) for r in results)
    gq.compile(dynamic(1)).save(tmp_path / "m")  # another model of that name
    assert list(gq.Predictor(tmp_path / "m")({"x": some(2)["x"]})) == ["y"] and len(made) == 2


def test_a_compiled_graph_travels_as_its_graph(want):
    predictor = gq.Predictor(gq.compile(network(None)), batch=8)
    code = "import pickle, sys; p, x = pickle.load(sys.stdin.buffer); pickle.dump(p(x), sys.stdout.buffer)"
    done = subprocess.run([sys.executable, "-c", code], input=pickle.dumps((predictor, some(23))), capture_output=True,
                          timeout=120, env=dict(os.environ))
    assert done.returncode == 0, done.stderr
    assert same(pickle.loads(done.stdout), want)


@pytest.mark.parametrize("path", [None, "net.onnx"])
def test_what_is_not_compiled_is_compiled_and_said(tmp_path, monkeypatch, caplog, want, path):
    monkeypatch.chdir(tmp_path)
    if path is not None:
        pytest.importorskip("onnx")
        gq.save_onnx(network(None), path)
    predictor = gq.Predictor(path or network(None), threads=1, batch=8)
    (message,) = [record.getMessage() for record in caplog.records]
    assert message.startswith(f"{path or 'a graph'} is compiled, to <compiled graph network: x: f32[?,16]")
    assert same(pickle.loads(pickle.dumps(predictor))(some(23)), want)


def test_numbers_of_tables_are_converted_where_that_is_asked_for():
    predictor = gq.Predictor(gq.compile(network(None), threads=1), convert=True)
    x = some(5)
    wide = {"x": x["x"].astype(np.float64), "y": x["y"].astype(np.float64), "factor": 0.5}
    assert same(predictor(wide), predictor(x))
    for name, wrong in (("y", wide["y"] + 0.5), ("y", np.full((5, 3), np.nan)), ("x", np.full((5, 16), 1e300))):
        with pytest.raises(gq.InputError, match=f"input '{name}' must be .*, which cannot hold all of the numbers"):
            predictor({**wide, name: wrong})
    with pytest.raises(gq.InputError, match=r"got dtype float64 \(no implicit conversion: use astype, or Predictor"):
        gq.Predictor(gq.compile(network(None), threads=1))(wide)


def test_threads_are_the_share_or_what_is_asked_for(tmp_path, monkeypatch):
    monkeypatch.setenv("NUMBA_NUM_THREADS", "4")
    model = gq.compile(network(1), threads=2)
    model.save(tmp_path / "m")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert gq.Predictor(tmp_path / "m")._prepared().model.threads == 1
    assert gq.Predictor(tmp_path / "m", threads=2)._prepared().model.threads == 2
    assert gq.Predictor(model, threads=1)._prepared().model.threads == 1

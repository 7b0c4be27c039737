"""Predictor: batches of any size, the same bits however rows are cut."""
import os
import pickle
import subprocess
import sys
import threading

import numpy as np
import pytest

import graphq as gq
from graphq.scoring.predictor import file_key


def prepared(predictor):
    """The model that a predictor has loaded, and the way it runs on rows."""
    return predictor._prepared()


def model_of(predictor):
    return prepared(predictor).model


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
    for compiled in (model, "net.graphq"):
        with pytest.raises(gq.CompileError, match=r"ranges='rows': .* is already compiled"):
            gq.Predictor(compiled, ranges="rows")
    with pytest.raises(gq.CompileError, match="ranges must be tensor or rows"):
        gq.Predictor(network(4), ranges="whole")
    with pytest.raises(gq.ParseError):
        gq.Predictor(tmp_path / "none")
    with pytest.raises(gq.GraphError, match="path"):
        gq.Predictor(7)


def test_bad_inputs():
    predictor = gq.Predictor(gq.compile(network(4)))
    good = some(3)
    for given, said in (([1], "takes arrays by name"), ({}, "takes inputs"),
                        ({**good, "z": 1}, "takes inputs"),
                        ({**good, "x": good["x"].astype(np.float64)}, "'x' must be f32"),
                        ({**good, "x": good["x"][:, :5]}, "'x' must be f32"), ({**good, "x": good["x"][0]}, "'x' must"),
                        ({**good, "x": good["x"][:2]}, "same number of rows, got {'x': 2, 'y': 3}"),
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
    from graphq.scoring import predictor
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
        with pytest.raises(gq.InputError, match=f"input '{name}' must be .*, which cannot hold all of the given"):
            predictor({**wide, name: wrong})
    for wrong in (x["x"].astype(str), x["x"].astype(object), x["x"].astype(np.complex64)):
        with pytest.raises(gq.InputError, match="input 'x' must be f32"):
            predictor({**wide, "x": wrong})
    with pytest.raises(gq.InputError, match=r"got dtype float64 \(no implicit conversion: use astype, or Predictor"):
        gq.Predictor(gq.compile(network(None), threads=1))(wide)


TABLES = {"pandas": lambda m, columns: m.DataFrame(columns), "pyarrow": lambda m, columns: m.table(columns),
          "polars": lambda m, columns: m.DataFrame(columns)}


@pytest.mark.parametrize("package", TABLES)
def test_tables(package):
    columns = {"a": [1.0, 2.0, -3.0], "b": [4, 5, 6]}
    table = TABLES[package](pytest.importorskip(package), columns)
    rows = gq.Graph("rows")
    rows.output(rows.relu(rows.input("x", dtype="f32", shape=(None, 2))), name="y")
    predictor = gq.Predictor(gq.compile(rows, threads=1), convert=True)
    for given in (table, {"x": table}):
        np.testing.assert_array_equal(predictor(given)["y"], np.float32([[1, 4], [2, 5], [0, 6]]))
    np.testing.assert_array_equal(predictor(np.eye(2))["y"], np.eye(2))
    named = gq.Graph("named")
    named.output(named.relu(named.input("a", dtype="f32", shape=(None,))), name="y")
    with pytest.raises(gq.InputError, match=r"input 'a' must be f32\[\?\], got .*\[3, ?2\]"):
        gq.Predictor(gq.compile(named, threads=1), convert=True)(table)
    named.output(named.input("b", dtype="s64", shape=(None,)), name="z")
    out = gq.Predictor(gq.compile(named, threads=1), convert=True)(table)
    assert out["y"].tolist() == [1, 2, 0] and out["z"].tolist() == columns["b"]
    named.output(named.input("c", dtype="f32", shape=(None,)), name="c")
    with pytest.raises(gq.InputError, match=r"takes inputs \['a', 'b', 'c'\], got \['a', 'b'\]"):
        gq.Predictor(gq.compile(named, threads=1))(table)


def test_threads_are_the_share_or_what_is_asked_for(tmp_path, monkeypatch):
    monkeypatch.setenv("NUMBA_NUM_THREADS", "4")
    model = gq.compile(network(1), threads=2)
    model.save(tmp_path / "m")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert model_of(gq.Predictor(tmp_path / "m")).threads == 1
    assert model_of(gq.Predictor(tmp_path / "m", threads=2)).threads == 2
    assert model_of(gq.Predictor(model, threads=1)).threads == 1


def plain(rows=None, factor=1.0):
    """A model of one operation, whose factor tells files apart."""
    g = gq.Graph("plain")
    x = g.input("x", dtype="f32", shape=(rows, 2))
    g.output(g.add(g.multiply(x, np.full(2, factor, np.float32)), g.input("shift", dtype="f32", shape=())), name="y")
    return g


class Recorded:
    """A model that keeps what it was called with."""

    def __init__(self, model):
        self.model, self.calls = model, []

    def __getattr__(self, name):
        return getattr(self.model, name)

    def __call__(self, arrays):
        self.calls.append(arrays)
        return self.model(arrays)


@pytest.fixture(scope="module")
def compiled():
    return {rows: gq.compile(plain(rows), threads=1) for rows in (None, 1, 4)}


@pytest.mark.parametrize("rows, options, count, met", [
    (None, {}, 7, [7]), (None, {"batch": 3}, 7, [3, 3, 1]), (None, {"batch": 7}, 7, [7]), (None, {"batch": 9}, 7, [7]),
    (None, {"pad_to": 4}, 7, [8]), (None, {"pad_to": 4}, 8, [8]), (None, {"pad_to": 4}, 9, [12]),
    (None, {"batch": 6, "pad_to": 4}, 14, [8, 8, 4]),
    (None, {"batch": 4, "pad_to": 4}, 9, [4, 4, 4]),
    (None, {"pad_to": 1}, 7, [7]),
    (4, {}, 7, [4, 4]), (4, {}, 8, [4, 4]), (4, {}, 1, [4]), (4, {"batch": 4}, 5, [4, 4]),
    (1, {}, 3, [1, 1, 1]), (1, {"pad_to": 1}, 2, [1, 1])])
def test_the_numbers_of_rows_that_a_model_meets(rows, options, count, met, compiled):
    predictor = gq.Predictor(compiled[rows], threads=1, **options)
    cut = prepared(predictor)
    cut.model = Recorded(cut.model)
    x = np.arange(2 * count, dtype=np.float32).reshape(count, 2)
    y = predictor({"x": x, "shift": np.float32(0.5)})["y"]
    np.testing.assert_array_equal(y, x + np.float32(0.5))
    assert [len(call["x"]) for call in cut.model.calls] == met
    at = 0
    for call in cut.model.calls:  # each slice in order, its last row repeated
        took = min(len(call["x"]), count - at, cut.most or count)
        np.testing.assert_array_equal(call["x"][:took], x[at:at + took])
        assert (call["x"][took:] == x[at + took - 1]).all() and call["shift"] == 0.5
        at += took
    assert at == count


def score(path, **options):
    return gq.Predictor(path, **options)({"x": np.ones((1, 2), np.float32), "shift": np.float32(0)})["y"][0, 0]


def test_a_file_that_takes_the_name_of_another_is_loaded(tmp_path):
    """Of the same size and time, in place or under another number, each alone tells them apart."""
    a, b = tmp_path / "a", tmp_path / "b"
    gq.compile(plain(1, 2.0)).save(a)
    gq.compile(plain(1, 3.0)).save(b)
    assert (score(a), score(b)) == (2, 3) and a.stat().st_size == b.stat().st_size
    when, second = a.stat().st_mtime_ns, b.read_bytes()
    os.utime(b, ns=(when, when))
    assert score(b) == 3
    os.replace(b, a)  # another inode, all else alike
    assert score(a) == 3
    gq.compile(plain(1, 5.0)).save(b)
    third = b.read_bytes()
    a.write_bytes(third)  # the same inode, another time
    os.utime(a, ns=(when + 1, when + 1))
    assert score(a) == 5
    a.write_bytes(second + b"")
    os.utime(a, ns=(when + 2, when + 2))
    assert score(a) == 3
    a.unlink()
    with pytest.raises(gq.ParseError):
        score(a)


def test_each_fact_of_a_file_is_of_its_key(tmp_path):
    """A model that is loaded already may follow what is written into its file: its numbers do not show the key."""
    path, other = tmp_path / "model", tmp_path / "other"
    path.write_bytes(b"12")
    first = path.stat()
    keys = [file_key(str(path), 1), file_key(str(path), 2), file_key(str(path), None)]

    def at(when):
        os.utime(path, ns=(first.st_atime_ns, when))
        return file_key(str(path), 1)

    keys.append(at(first.st_mtime_ns + 1))  # only another time
    path.write_bytes(b"123")
    keys.append(at(first.st_mtime_ns))  # only another size
    other.write_bytes(b"12")
    os.replace(other, path)
    assert path.stat().st_ino != first.st_ino
    keys.append(at(first.st_mtime_ns))  # only another inode
    assert len(set(keys)) == len(keys)


def test_threads_are_of_the_key_of_a_model(tmp_path):
    gq.compile(plain(1), threads=2).save(tmp_path / "m")
    for threads in (1, 2, 1):
        assert model_of(gq.Predictor(tmp_path / "m", threads=threads)).threads == threads


def test_the_oldest_of_many_models_goes(tmp_path, monkeypatch):
    from graphq.scoring import predictor
    monkeypatch.setattr(predictor, "models", {})
    monkeypatch.setattr(predictor, "MOST_MODELS", 2)
    gq.compile(plain(1)).save(tmp_path / "m")
    data = (tmp_path / "m").read_bytes()
    loaded = []
    load = predictor.load_compiled
    monkeypatch.setattr(predictor, "load_compiled", lambda path, **k: loaded.append(path[-1]) or load(path, **k))
    for name in "abc":
        (tmp_path / name).write_bytes(data)
    for name in "abacbca":
        score(tmp_path / name)
    assert "".join(loaded) == "abca" and len(predictor.models) == 2


def test_a_compiled_graph_is_kept_for_its_own_threads(compiled):
    x = {"x": np.ones((1, 2), np.float32), "shift": np.float32(0)}
    for threads in (None, 1):
        assert model_of(gq.Predictor(compiled[1], threads=threads)) is compiled[1]
    other = gq.Predictor(compiled[1], threads=2)
    assert model_of(other) is not compiled[1] and model_of(other).threads == 2
    assert model_of(gq.Predictor(compiled[1], threads=2)) is not model_of(other)
    assert (other(x)["y"] == 1).all()

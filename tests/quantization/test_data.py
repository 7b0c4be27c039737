"""Calibration data of files: folders, archives and arrays, and what is none."""
import numpy as np
import pytest

import graphq as gq
from graphq.quantization.data import load_data

ROWS = np.arange(8, dtype=np.float32).reshape(4, 2)


@pytest.fixture
def one(g):
    g.output(g.relu(g.input("x", dtype="f32", shape=(None, 2))), name="y")
    return g


@pytest.fixture
def two(one):
    one.output(one.relu(one.input("k", dtype="f32", shape=())), name="z")
    return one


def same(batches, *wanted):
    assert len(batches) == len(wanted)
    for got, want in zip(list(batches), wanted, strict=True):
        assert got.keys() == want.keys()
        for name, x in want.items():
            np.testing.assert_array_equal(got[name], x)


def test_an_array_and_a_folder_of_arrays(one, tmp_path):
    np.save(tmp_path / "b.npy", ROWS)
    same(load_data(str(tmp_path / "b.npy"), one), {"x": ROWS})
    np.save(tmp_path / "a.npy", ROWS[:1])
    np.savez(tmp_path / "c.npz", x=ROWS[2:], other=ROWS)
    batches = load_data(str(tmp_path), one)
    same(batches, {"x": ROWS[:1]}, {"x": ROWS}, {"x": ROWS[2:]})  # in the order of names
    same(batches[1:], {"x": ROWS}, {"x": ROWS[2:]})
    same([batches[-1]], {"x": ROWS[2:]})


def test_archives_of_one_batch_and_of_several(two, tmp_path):
    path = tmp_path / "data.npz"
    np.savez(path, x=ROWS, k=np.float32(3), label=np.zeros(4))
    same(load_data(str(path), two), {"x": ROWS, "k": 3})
    np.savez(path, **{"1/in/x": ROWS[1:], "0/in/x": ROWS[:1], "1/in/k": np.float32(1), "0/in/k": np.float32(0),
                      "0/out/y": ROWS})
    same(load_data(str(path), two), {"x": ROWS[1:], "k": 1}, {"x": ROWS[:1], "k": 0})


def test_archives_that_do_not_fit(two, tmp_path):
    np.savez(tmp_path / "data.npz", **{f"{b}/in/{n}": ROWS for b in range(2) for n in "xk"})
    with pytest.raises(gq.InputError, match="holds 2 batches; in a folder each file is one: give only this file"):
        load_data(str(tmp_path), two)[0]
    np.savez(tmp_path / "data.npz", x=ROWS)
    with pytest.raises(gq.InputError, match="must hold arrays x, k, or batches of them as 0/in/x; it holds x"):
        load_data(str(tmp_path / "data.npz"), two)


def test_a_file_whose_array_does_not_fit_is_named(one, tmp_path):
    for name, array in (("a", ROWS), ("b", ROWS.astype(np.float64)), ("c", ROWS[:, :1])):
        np.save(tmp_path / f"{name}.npy", array)
    batches = load_data(str(tmp_path), one)
    same(batches[:1], {"x": ROWS})
    for k, name in ((1, "b"), (2, "c")):
        with pytest.raises(gq.InputError, match=rf"{name}\.npy: batch 1: input 'x' must be f32\[\?,2\], got"):
            batches[k]


def test_functions(one, tmp_path):
    (tmp_path / "data.py").write_text(
        "import numpy as np\ndef batches():\n    return [{'x': np.ones((1, 2), np.float32)}] * 3\nnumber = 7\n")
    same(load_data(f"{tmp_path}/data.py:batches", one), *[{"x": np.ones((1, 2))}] * 3)
    with pytest.raises(gq.InputError, match="data .*:none: "):
        load_data(f"{tmp_path}/data.py:none", one)


def test_what_is_no_data(one, two, tmp_path):
    np.savez(tmp_path / "other.npz", z=ROWS)
    np.save(tmp_path / "x.npy", ROWS)
    (tmp_path / "text.npz").write_text("text")
    (tmp_path / "text.npy").write_text("text")
    (tmp_path / "empty").mkdir()
    for name, said in (("empty", "holds no .npz or .npy files"), ("other.npz", "must hold arrays x, k, or batches"),
                       ("text.npz", "text.npz: "), ("x.csv", "data must be a folder, an .npz or .npy file")):
        with pytest.raises(gq.InputError, match=said):
            load_data(str(tmp_path / name), two)
    with pytest.raises(gq.InputError, match="is one array, but the model has inputs x, k: use .npz files"):
        load_data(str(tmp_path / "x.npy"), two)[0]
    g = gq.Graph()
    g.output(g.relu(g.input("x", dtype="f32", shape=(None, 2))))
    with pytest.raises(gq.InputError, match="text.npy: "):
        load_data(str(tmp_path / "text.npy"), g)[0]
    with pytest.raises(FileNotFoundError):
        load_data(str(tmp_path / "none.npz"), g)

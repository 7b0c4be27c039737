"""Predictor with `pad`: rows of different lengths, the same bits as each row alone."""
import logging
import pickle

import numpy as np
import pytest
from encoders import encoder, feed

import graphq as gq

LENGTHS = [9, 2, 40, 17, 2, 9, 1]


class Model:
    """A model that records the shapes of calls: y is x + m, and z the largest |x * m| of a row."""

    def __init__(self, mixes=None, batch=None):
        g = gq.Graph()
        x, m = (g.input(name, dtype="f32", shape=(batch, None)) for name in ("x", "m"))
        g.output(g.add(x, m), name="y")
        g.output(g.reduce_max(g.abs(g.multiply(x, m)), axes=[1]), name="z")
        self.compiled = gq.compile(g, threads=1)
        if mixes is not None:
            self.compiled.plans.padding = self.compiled.plans.padding._replace(mixes=mixes)
        self.shapes = []

    def predictor(self, monkeypatch, **options):
        call = gq.CompiledGraph.__call__

        def recorded(model, given):
            self.shapes.append(given["x"].shape)
            return call(model, given)

        monkeypatch.setattr(gq.CompiledGraph, "__call__", recorded)
        return gq.Predictor(self.compiled, **options)


def rows(lengths=LENGTHS):
    values = [np.arange(1, n + 1, dtype=np.float32) for n in lengths]
    return {"x": values, "m": [np.ones_like(v) for v in values]}


@pytest.mark.parametrize("options,shapes", [
    ({"pad": "longest"}, [(7, 40)]), ({"pad": "longest", "batch": 4}, [(4, 9), (3, 40)]),
    ({"pad": "buckets"}, [(5, 16), (1, 32), (1, 64)]),
    ({"pad": "buckets", "batch": 2}, [(2, 16), (2, 16), (1, 16), (1, 32), (1, 64)]),
    ({"pad": "buckets", "pad_to": 4}, [(8, 16), (4, 32), (4, 64)]),
])
def test_slices(options, shapes, monkeypatch):
    model = Model()
    out = model.predictor(monkeypatch, **options)(rows())
    assert model.shapes == shapes
    for y, x in zip(out["y"], rows()["x"], strict=True):
        assert np.array_equal(y, x + 1)
    assert np.array_equal(out["z"], np.float32(LENGTHS))


def test_buckets(monkeypatch):
    model = Model()
    model.predictor(monkeypatch, pad="buckets")(rows([16, 17, 64, 128, 129, 192, 500]))
    assert model.shapes == [(1, 16), (1, 32), (1, 64), (1, 128), (2, 192), (1, 512)]


def test_rows_of_equal_length_are_an_array(monkeypatch):
    out = Model().predictor(monkeypatch, pad="buckets")(rows([3, 3]))
    assert out["y"].shape == (2, 3)
    ones = np.ones((4, 5), np.float32)
    out = Model().predictor(monkeypatch, pad="longest")({"x": ones, "m": ones})
    assert out["y"].shape == (4, 5)
    none = Model().predictor(monkeypatch, pad="longest")({"x": [], "m": []})
    assert none["y"].shape[0] == 0 and none["z"].shape == (0,)


def test_rows_are_not_padded_if_padding_matters(monkeypatch, caplog):
    model = Model(mixes="an operation is not for padding")
    with caplog.at_level(logging.WARNING):
        out = model.predictor(monkeypatch, pad="buckets")(rows())
    assert "an operation is not for padding" in caplog.text
    assert model.shapes == [(1, 1), (2, 2), (2, 9), (1, 17), (1, 40)]
    assert [y.shape for y in out["y"]] == [(n,) for n in LENGTHS]


def test_a_row_with_zeros_of_its_own_is_not_padded(monkeypatch):
    model = Model()
    given = rows([3, 4, 5])
    given["m"][1][2] = 0
    assert model.compiled.padding_zeros == ("m",)
    model.predictor(monkeypatch, pad="buckets")(given)
    assert sorted(model.shapes) == [(1, 4), (2, 16)]


def test_a_fixed_batch_is_filled_up(monkeypatch):
    model = Model(batch=2)
    out = model.predictor(monkeypatch, pad="buckets")(rows())
    assert model.shapes == [(2, 16)] * 3 + [(2, 32), (2, 64)] and [len(y) for y in out["y"]] == LENGTHS


def test_columns_of_arrays_and_conversion(monkeypatch):
    given = {name: np.array([*map(np.float64, values), None], object)[:-1] for name, values in rows().items()}
    out = Model().predictor(monkeypatch, pad="longest", convert=True)(given)
    assert [y.dtype for y in out["y"]] == [np.float32] * len(LENGTHS)


def test_wrong_rows(monkeypatch):
    predictor = Model().predictor(monkeypatch, pad="longest")
    ones, (first, second, _, *others) = np.ones(3, np.float32), rows()["x"]
    for x, said in ((others, "same number of rows.*'x': 4, 'm': 7"),
                    ([first, second, ones, *others], "row 2.*same length.*'x': 3, 'm': 40"),
                    ([first, np.ones(2)], "row 1 of input 'x' must be f32.*float64"),
                    (ones, "row 0 of input 'x' must be f32"), (ones[0], "row 0 of input 'x' must be f32")):
        with pytest.raises(gq.InputError, match=said):
            predictor({**rows(), "x": x})


def test_settings():
    predictor = gq.Predictor(Model().compiled, pad="buckets")
    assert "pad='buckets'" in repr(predictor) and pickle.loads(pickle.dumps(predictor)).pad == "buckets"
    with pytest.raises(gq.CompileError, match="pad must be 'longest', 'buckets' or None, got 'most'"):
        gq.Predictor(Model().compiled, pad="most")
    g = gq.Graph()
    g.output(g.relu(g.input("x", dtype="f32", shape=(None, 4))))
    with pytest.raises(gq.CompileError, match="pad='longest' needs inputs whose axis 1 is open"):
        gq.Predictor(gq.compile(g), pad="longest")


def test_an_encoder_of_texts(tmp_path):
    model = gq.compile(encoder(), threads=1)
    model.save(tmp_path / "m")
    given = {name: [x[0] for x in values] for name, values in zip(("ids", "mask"), zip(*(
        feed([n], n).values() for n in (9, 2, 17)), strict=True), strict=True)}
    want = [model(feed([n], n))[0] for n in (9, 2, 17)]
    for pad in ("longest", "buckets"):
        got = gq.Predictor(tmp_path / "m", pad=pad, threads=1)(given)["y"]
        assert all(np.array_equal(x.view(np.int32), y.view(np.int32)) for x, y in zip(got, want, strict=True))


def test_ranges_by_row(caplog):
    """A predictor of a graph compiles it with a range for each row, also in another process, and then pads rows."""
    model = gq.compile(encoder(quantized="dynamic"), ranges="rows", threads=1)
    predictor = gq.Predictor(encoder(quantized="dynamic"), ranges="rows", pad="buckets", threads=1)
    given, want = zip(*((feed([n], n), model(feed([n], n))[0]) for n in (9, 2)), strict=True)
    for each in (predictor, pickle.loads(pickle.dumps(predictor))):
        got = each({name: [x[name][0] for x in given] for name in given[0]})["y"]
        assert all(np.array_equal(x.view(np.int32), y.view(np.int32)) for x, y in zip(got, want, strict=True))
    assert "not padded" not in caplog.text

"""Plans that calls add to a kept model: files of their own, next to that of the model."""
import os
import time

import numpy as np
import pytest
from kept_models import FOUND, compiled, feeds, files, same, written

import graphq as gq
from graphq.kernels.jit import cache
from graphq.model import kept, saved_models

pytestmark = pytest.mark.usefixtures("folder")


def open_model(tmp_path):
    """The file of a model with an open size, and weights of 64 KB."""
    g = gq.Graph()
    w = np.random.default_rng(0).standard_normal((128, 128)).astype(np.float32)
    g.output(g.tanh(g.matmul(g.input("x", dtype="f32", shape=(None, 128)), g.constant(w))), name="y")
    gq.save_onnx(g, tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


SIZES = 1, 5, 70, 300
"""Sizes of four classes; the first plan is made for none of them."""


def called(path):
    """A model that was called with SIZES, and its results."""
    model = compiled(path)
    results = []
    for n in SIZES:
        results.append(model(feeds(model, n)))
        written()
    return model, results


def plan_files(folder):
    return sorted(folder.glob("*.plan"))


def test_a_plan_that_a_call_adds_is_written_alone(tmp_path, folder, monkeypatch):
    """The model's file stays as it is, and each plan's file has no weights, which the model's file has."""
    path = open_model(tmp_path)
    compiled(path)
    (model_file,) = files(folder)
    before = model_file.read_bytes()
    model, results = called(path)
    assert model.origin.startswith(FOUND) and model_file.read_bytes() == before
    assert 0 < len(plan_files(folder)) <= len(SIZES) and len(before) > 128 * 128 * 4
    assert all(x.stat().st_size < 128 * 128 * 4 / 2 for x in plan_files(folder))
    assert cache.info().models == 1
    monkeypatch.setattr("graphq.passes.run_passes", None)
    again = compiled(path)
    assert len(again.plans.all()) == len(plan_files(folder)) + 1
    assert all(same(again(feeds(again, n)), y) for n, y in zip(SIZES, results, strict=True))


def test_plans_of_several_processes_are_all_found(tmp_path, folder, monkeypatch):
    """Two models that were found at the same time add other plans."""
    path = open_model(tmp_path)
    compiled(path)
    models = [compiled(path) for _ in range(2)]
    wanted = [model(feeds(model, n)) for n, model in zip((70, 300), models, strict=True)]
    written()
    monkeypatch.setattr("graphq.passes.run_passes", None)
    again = compiled(path)
    assert [same(again(feeds(again, n)), y) for n, y in zip((70, 300), wanted, strict=True)] == [True, True]


@pytest.mark.parametrize("damage", [lambda x: x[:-1], lambda x: x[:100], lambda x: b"", lambda x: x + b"\0",
                                    lambda x: x[:-9] + bytes([x[-9] ^ 1]) + x[-8:]])
def test_damaged_plans_are_made_anew(damage, tmp_path, folder):
    path = open_model(tmp_path)
    _, results = called(path)
    for x in plan_files(folder):
        x.write_bytes(damage(x.read_bytes()))
    again = compiled(path)
    assert again.origin.startswith(FOUND) and len(again.plans.all()) == 1
    assert all(same(again(feeds(again, n)), y) for n, y in zip(SIZES, results, strict=True))
    written()
    assert len(compiled(path).plans.all()) == len(again.plans.all()) > 1  # the damaged files were replaced


def test_plans_of_another_file_are_not_used(tmp_path, folder):
    """They were written for the file as it was before, whose arrays had other numbers."""
    path = open_model(tmp_path)
    model, results = called(path)
    (model_file,) = files(folder)
    key = saved_models.Saved(model_file).index["key"]
    model.plans.rows_mix = "another reason"
    kept.save(model_file, model.plans, key=key)
    for x in plan_files(folder):
        with pytest.raises(gq.errors.ParseError, match="belongs to another model"):
            saved_models.Added(x, saved_models.Saved(model_file))
    again = compiled(path)
    assert again.origin.startswith(FOUND) and same(again(feeds(again, 300)), results[-1])


def test_plans_that_others_can_write_are_not_used(tmp_path, folder):
    path = open_model(tmp_path)
    called(path)
    for x in plan_files(folder):
        x.chmod(0o666)
    assert len(compiled(path).plans.all()) == 1


def test_the_oldest_plans_are_removed(tmp_path, folder, monkeypatch):
    monkeypatch.setattr(kept, "MOST_PLANS", 2)
    path = open_model(tmp_path)
    model = compiled(path)
    for age, n in zip((300, 200, 100), SIZES[1:], strict=True):
        before = set(plan_files(folder))
        model(feeds(model, n))
        written()
        (last,) = set(plan_files(folder)) - before
        os.utime(last, (time.time() - age,) * 2)
    assert len(plan_files(folder)) == 2 and last in plan_files(folder) and len(compiled(path).plans.all()) == 3
    assert all(time.time() - x.stat().st_mtime < 250 for x in plan_files(folder))
    cache.clear()
    assert plan_files(folder) == files(folder) == []


def test_a_model_whose_file_was_removed_is_kept_again(tmp_path, folder):
    path = open_model(tmp_path)
    model = compiled(path)
    cache.clear()
    wanted = model(feeds(model, 300))
    written()
    again = compiled(path)
    assert again.origin.startswith(FOUND) and same(again(feeds(again, 300)), wanted)

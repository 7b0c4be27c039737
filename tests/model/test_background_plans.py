"""Plans that are made in the background, while plans for other sizes serve calls."""
import gc
import logging
import os
import sys
import threading
import time
import weakref

import numpy as np
import pytest
from kept_models import FOUND, compiled, written
from open_rows import network

import graphq as gq
from graphq.errors import CompileError
from graphq.kernels.jit import modules
from graphq.model.open_plans import OpenPlans, background
from graphq.plan.runtime import Runner


def rows(n):
    return np.random.default_rng(n).integers(0, 256, (n, 64), dtype=np.uint8)


@pytest.fixture
def planned():
    """A model with a plan for 2 to 15 rows, whose kernels are compiled, and its plan for one row."""
    model = gq.compile(network(24), threads=1)
    model(rows(5))
    background.join()
    return model


@pytest.fixture
def slow(planned, monkeypatch):
    """An event that further plans wait for."""
    event, made = threading.Event(), OpenPlans._made
    monkeypatch.setattr(OpenPlans, "_made", lambda self, sizes: event.wait() and made(self, sizes))
    yield event
    event.set()
    background.join()


def test_a_call_does_not_wait_for_a_plan(planned, slow):
    before = modules.statistics().compiled
    (small,) = planned.plans.by_class[2,]
    for n in (40, 500, 41):
        np.testing.assert_array_equal(planned(rows(n)), planned.formula(rows(n)))
        assert planned.plans.at(((n, 64),)).made is small
    assert modules.statistics().compiled == before and {*planned.plans.by_class} == {(1,), (2,)}
    slow.set()
    background.join()
    for n, of in ((40, 3), (500, 4)):
        (plan,) = planned.plans.by_class[of,]
        assert planned.plans.at(((n, 64),)).made is plan
        np.testing.assert_array_equal(planned(rows(n)), planned.formula(rows(n)))


def test_a_plan_serves_no_calls_before_its_kernels_are_compiled(planned, monkeypatch):
    compiled, prepare = threading.Event(), Runner.prepare
    monkeypatch.setattr(Runner, "prepare", lambda self: compiled.wait() and prepare(self))
    (small,) = planned.plans.by_class[2,]
    planned(rows(40))
    while (3,) not in planned.plans.by_class:
        time.sleep(0.01)
    assert planned.plans.at(((41, 64),)).made is small
    compiled.set()
    background.join()
    assert planned.plans.at(((41, 64),)).made is planned.plans.by_class[3,][0]


def test_calls_get_python_soon_while_a_plan_is_made(planned, monkeypatch):
    usual, made, seen = sys.getswitchinterval(), OpenPlans._made, []

    def planning(self, sizes):
        seen.append(sys.getswitchinterval())
        return made(self, sizes)

    monkeypatch.setattr(OpenPlans, "_made", planning)
    planned(rows(40))
    background.join()
    assert seen and max(seen) < usual == sys.getswitchinterval()


def test_reports_describe_the_plan_for_the_size_of_the_last_call(planned):
    planned(rows(40))
    text = planned.explain()
    (plan,) = planned.plans.by_class[3,]
    assert planned.plans.at(((40, 64),)).made is plan and "16 to 127: 1 plan" in text


def test_a_plan_that_cannot_be_made_is_reported_once(planned, monkeypatch, caplog):
    tries = []

    def refused(self, sizes):
        tries.append(sizes)
        raise CompileError("not enough memory: some reason")

    monkeypatch.setattr(OpenPlans, "_made", refused)
    with caplog.at_level(logging.WARNING, "graphq"):
        for n in (40, 41, 40):
            np.testing.assert_array_equal(planned(rows(n)), planned.formula(rows(n)))
            background.join()
    assert caplog.text.count("some reason") == 1 and "net: a plan for other sizes serves the sizes (40,)" in caplog.text
    assert len(tries) == 2  # the example of the class, then the size of the call


def test_the_call_makes_the_plan_if_no_thread_can_start(planned, monkeypatch, caplog):
    def refused(self):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refused)
    np.testing.assert_array_equal(planned(rows(40)), planned.formula(rows(40)))
    assert (3,) in planned.plans.by_class and not caplog.text


def test_a_child_of_a_fork_makes_the_plan_that_its_parent_had_begun(planned, slow):
    """The next new size begins it."""
    planned(rows(40))
    want = planned.formula(rows(41))
    child = os.fork()
    if child == 0:
        slow.set()
        right = np.array_equal(planned(rows(41)), want)
        background.join()
        os._exit(0 if right and (3,) in planned.plans.by_class else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.usefixtures("folder")
def test_a_kept_model_whose_sizes_vary_gets_plans_for_sizes_of_one(tmp_path, monkeypatch):
    """A call of another class of sizes begins them, for this process and the next. All kernels begin, then it waits."""
    waits, prepare = [], Runner.prepare
    monkeypatch.setattr(Runner, "prepare", lambda self: waits.append(len(model.plans.all())) or prepare(self))
    g = gq.Graph()
    x = g.input("x", dtype="f32", shape=(None, None, 8))
    g.output(g.softmax(g.relu(g.add(x, np.ones((1, 1, 8), np.float32))), axis=-1), name="y")
    gq.save_onnx(g, tmp_path / "m.onnx")
    model = compiled(tmp_path / "m.onnx")
    with monkeypatch.context() as meanwhile:
        meanwhile.setattr("graphq.model.kept.Saved", None)  # to write a plan, the model's file need not be read
        for n in (40, 41, 300):
            assert len(model.plans.all()) == 1
            model(np.ones((1, n, 8), np.float32))
            written()
    assert waits == [5, 5, 5, 5] and len(model.plans.all()) == 5
    monkeypatch.setattr("graphq.passes.run_passes", None)
    again, before = compiled(tmp_path / "m.onnx"), modules.statistics().compiled
    assert again.origin.startswith(FOUND) and len(again.plans.all()) == 5
    for m, n in ((1, 40), (1, 1), (6, 1), (3, 5)):
        data = np.random.default_rng(m).normal(size=(m, n, 8)).astype(np.float32)
        np.testing.assert_array_equal(again(data), model(data))
    background.join()
    assert modules.statistics().compiled == before


def test_no_plans_are_made_for_a_model_that_was_dropped():
    model, free = gq.compile(network(24), threads=1), threading.Event()
    model(rows(5))
    background.join()
    dropped = weakref.ref(model.plans)
    background.start(free.wait, "it failed")
    model(rows(40))
    del model
    gc.collect()
    assert dropped() is None
    free.set()
    background.join()

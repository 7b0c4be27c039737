"""The collector rests while graphs are compiled and plans are read, and is as before after an error or in a fork."""
import gc
import os
import threading

import numpy as np
import pytest

import graphq as gq
from graphq.base.budget import collector_paused
from graphq.model.saved_values import PlanReader, Writer
from graphq.plan.plan import Plan


@pytest.fixture(autouse=True)
def collecting():
    before = gc.get_threshold()
    gc.enable()
    gc.set_threshold(700)
    yield
    gc.enable()
    gc.set_threshold(*before)


def is_on():
    return gc.isenabled() and gc.get_threshold()[0] == 700


def test_the_collector_is_off_within_and_on_again_after_an_error():
    @collector_paused()
    def fails():
        assert not is_on()
        with collector_paused():
            assert not is_on()
        assert not is_on()
        raise ValueError

    for _ in range(2):
        with pytest.raises(ValueError):
            fails()
        assert is_on()


def test_a_collector_that_was_off_stays_off():
    for turn_off in (gc.disable, lambda: gc.set_threshold(0)):
        turn_off()
        with collector_paused():
            pass
        assert not is_on()
        gc.enable()
        gc.set_threshold(700)


def test_settings_of_the_user_within_stay():
    with collector_paused():
        gc.disable()
    assert not gc.isenabled()
    gc.enable()
    with collector_paused():
        gc.set_threshold(900)
    assert gc.get_threshold()[0] == 900


def test_settings_that_are_read_within_and_restored_later_leave_the_collector_on():
    with collector_paused():
        within = gc.get_threshold()
    gc.set_threshold(*within)
    assert gc.isenabled() and gc.get_threshold()[0] > 0


def test_another_thread_pauses_it_and_leaves_what_the_user_sets():
    seen = []

    def pauses():
        with collector_paused():
            seen.append(is_on())
        seen.append(is_on())
        with collector_paused():
            gc.disable()
        seen.append(gc.isenabled())

    thread = threading.Thread(target=pauses)
    thread.start()
    thread.join()
    assert seen == [False, True, False]


def test_a_fork_within_has_the_collector_on():
    with collector_paused():
        child = os.fork()
        if child == 0:
            os._exit(0 if is_on() else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert not is_on()
    assert is_on()


def test_passes_run_without_the_collector():
    seen = []
    g = gq.Graph()
    g.output(g.relu(g.input("x", dtype="f32", shape=(2,))))
    gq.compile(g, threads=1, passes=[lambda graph: seen.append(is_on()) or 0])
    assert seen == [False] and is_on()


def test_plans_are_written_and_read_without_the_collector(tmp_path, monkeypatch):
    """Also a plan for open sizes, which the first call reads."""
    seen, read, write = [], PlanReader.of, Writer.of
    monkeypatch.setattr(Writer, "of", lambda self, x: isinstance(x, Plan) and seen.append(is_on()) or write(self, x))
    monkeypatch.setattr(PlanReader, "of", lambda self, x: seen.append(is_on()) or read(self, x))
    for rows in (2, None):
        g = gq.Graph()
        g.output(g.relu(g.input("x", dtype="f32", shape=(rows, 4))))
        gq.compile(g, threads=1).save(tmp_path / "m")
        assert seen and not any(seen)
        seen.clear()
        assert gq.load_compiled(tmp_path / "m")(np.ones((2, 4), np.float32)).shape == (2, 4)
        assert seen and not any(seen) and is_on()

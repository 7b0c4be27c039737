"""The collector is off while a graph is compiled, and as it was afterwards, also in a fork and after an error."""
import gc
import os

import pytest

import graphq as gq
from graphq.base.budget import collector_paused


@pytest.fixture(autouse=True)
def collecting():
    gc.enable()
    yield
    gc.enable()


def test_the_collector_is_off_within_and_on_again_after_an_error():
    @collector_paused()
    def fails():
        assert not gc.isenabled()
        with collector_paused():
            assert not gc.isenabled()
        assert not gc.isenabled()
        raise ValueError

    for _ in range(2):
        with pytest.raises(ValueError):
            fails()
        assert gc.isenabled()


def test_a_collector_that_was_off_stays_off():
    gc.disable()
    with collector_paused():
        pass
    assert not gc.isenabled()


def test_a_fork_within_has_the_collector_on():
    with collector_paused():
        child = os.fork()
        if child == 0:
            os._exit(0 if gc.isenabled() else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert not gc.isenabled()
    assert gc.isenabled()


def test_passes_run_without_the_collector():
    seen = []
    g = gq.Graph()
    g.output(g.relu(g.input("x", dtype="f32", shape=(2,))))
    gq.compile(g, threads=1, passes=[lambda graph: seen.append(gc.isenabled()) or 0])
    assert seen == [False] and gc.isenabled()

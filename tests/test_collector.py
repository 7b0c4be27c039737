"""The collector is paused while graphs are rewritten, and left as it was."""
import gc

import pytest

from graphq.collector import uncollected
from graphq.passes import run_passes
from graphq.text import parse


@pytest.fixture(autouse=True)
def enabled():
    gc.enable()
    yield
    gc.enable()


@uncollected
def state(error=None):
    """Its text."""
    if error:
        raise error
    return gc.isenabled()


def test_it_is_paused_and_goes_on():
    assert state() is False and gc.isenabled()
    with pytest.raises(KeyError):
        state(KeyError())
    assert gc.isenabled() and state.__doc__ == "Its text."


def test_one_that_is_off_stays_off():
    gc.disable()
    assert state() is False and not gc.isenabled()


def test_passes_run_without_it():
    seen = []
    graph = parse("graph(x: f32[2]) {\n %0 = relu(x)\n return %0\n}")
    run_passes(graph, [lambda g: seen.append(gc.isenabled()) or 0])
    assert seen == [False] and gc.isenabled()

"""Bars of long work: none but where they are asked for, with a total, under the names of loops."""
import sys
from types import ModuleType

import numpy as np
import pytest

import graphq as gq
from graphq.base.progress import bars, progress
from graphq.quantization import automatic, compare


@pytest.fixture
def shown(monkeypatch):
    """The names and totals of the bars; each stands in the place of one of tqdm's."""
    found = []

    def tqdm(items, *, desc, leave, delay):
        found.append((desc, len(items)))
        return items

    module = ModuleType("tqdm")
    module.tqdm = tqdm
    monkeypatch.setitem(sys.modules, "tqdm", module)
    return found


def network():
    g = gq.Graph("network")
    x = g.input("x", dtype="f32", shape=(1, 8))
    rng = np.random.default_rng(0)
    for _ in range(2):
        x = g.relu(g.matmul(x, rng.normal(size=(8, 8)).astype(np.float32)))
    g.output(x, name="y")
    return g, [{"x": rng.normal(size=(1, 8)).astype(np.float32)} for _ in range(4)]


def test_bars_are_shown_where_they_are_asked_for(shown):
    assert list(progress([1, 2], "numbers")) == [1, 2] and not shown
    with bars():
        assert list(progress([1, 2], "numbers")) == [1, 2]
        with bars(False):
            list(progress([1], "others"))
    list(progress([1], "others"))
    assert shown == [("numbers", 2)]


def test_a_job_has_one_bar_which_shows_the_outermost_loop(shown):
    with bars(job="quantize"):
        for _ in progress([1, 2], "settings"):
            assert list(progress([1, 2, 3], "batches")) == [1, 2, 3]
        for _ in progress([1, 2], "ranges"):
            break
        assert list(progress([1], "kernels")) == [1]
    assert shown == [("quantize: settings", 2), ("quantize: ranges", 2), ("quantize: kernels", 1)]


def test_the_bar_appears_a_second_after_the_job_began(monkeypatch):
    delays, now = [], [10.0]
    module = ModuleType("tqdm")
    module.tqdm = lambda items, *, desc, leave, delay: delays.append(delay) or items
    monkeypatch.setitem(sys.modules, "tqdm", module)
    monkeypatch.setattr("graphq.base.progress.time.monotonic", lambda: now[0])
    with bars():
        for now[0] in (10.0, 10.75, 30.0):
            list(progress([1], "stage"))
    assert delays == [1.0, 0.25, 0.0]


def test_without_tqdm_there_are_none(monkeypatch):
    monkeypatch.setitem(sys.modules, "tqdm", None)
    with bars():
        assert list(progress([1, 2], "numbers")) == [1, 2]


def test_what_takes_long_has_bars_with_a_total(shown):
    graph, batches = network()
    with bars():
        model = gq.compile(graph, cache=False)
        model(batches[0])
        choice = automatic(graph, batches)
        compare(choice.graph, graph, batches)
        model.profile(batches[0], runs=3)
        gq.reference(graph, batches[0])
    assert {"passes", "plan", "kernels", "batches", "ranges", "settings", "products", "runs", "reference"} \
        <= {name for name, _ in shown}
    assert {("batches", 4), ("products", 2), ("runs", 3), ("reference", len(graph.nodes))} <= set(shown)


def test_bars_of_tqdm(capsys, monkeypatch):
    pytest.importorskip("tqdm")
    monkeypatch.setattr("graphq.base.progress.DELAY", 0)
    with bars():
        list(progress(range(3), "numbers"))
    assert "numbers:" in (text := capsys.readouterr().err) and "/3" in text

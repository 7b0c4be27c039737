"""Bars for long loops: none unless a caller asks for them; each loop has its own, with the job's name in its title."""
import io
import re
import sys
from functools import partial
from types import ModuleType

import numpy as np
import pytest

import graphq as gq
from graphq.base.progress import bars, progress
from graphq.cli import main
from graphq.quantization import automatic, compare


class Bar:
    """Stands for a bar of tqdm: it has a title and counts the items that were taken."""

    made: list["Bar"] = []

    def __init__(self, items, title, *, leave, delay):
        assert (leave, delay) == (False, 1.0)
        self.items, self.title, self.count = items, title, 0
        Bar.made.append(self)

    def __iter__(self):
        for item in self.items:
            yield item
            self.count += 1


@pytest.fixture
def shown(monkeypatch):
    """The bars that a test makes."""
    monkeypatch.setattr(Bar, "made", [])
    module = ModuleType("tqdm")
    module.tqdm = Bar
    monkeypatch.setitem(sys.modules, "tqdm", module)
    return Bar.made


def network():
    g = gq.Graph("network")
    x = g.input("x", dtype="f32", shape=(1, 8))
    rng = np.random.default_rng(0)
    for _ in range(2):
        x = g.relu(g.matmul(x, rng.normal(size=(8, 8)).astype(np.float32)))
    g.output(x, name="y")
    return g, [{"x": rng.normal(size=(1, 8)).astype(np.float32)} for _ in range(4)]


def test_a_bar_is_shown_where_it_is_asked_for(shown):
    assert list(progress([1, 2], "numbers")) == [1, 2] and not shown
    with bars():
        assert list(progress([1, 2], "numbers")) == [1, 2]
        with bars(False):
            list(progress([1], "others"))
    list(progress([1], "others"))
    assert [(bar.title, bar.count) for bar in shown] == [("numbers", 2)]


def test_a_loop_in_a_loop_has_a_bar_of_its_own(shown):
    with bars(job="quantize"):
        for _ in progress([1, 2], "batches"):
            assert list(progress([1, 2, 3], "kernels")) == [1, 2, 3]
        with bars(job="inner"):
            list(progress(iter([1, 2]), "unknown number"))
        for _ in progress([1, 2], "settings"):
            break
    assert [(bar.title, bar.count) for bar in shown] == [
        ("quantize: batches", 2), ("quantize: kernels", 3), ("quantize: kernels", 3), ("inner: unknown number", 2),
        ("quantize: settings", 0)]


def test_without_tqdm_there_is_none(monkeypatch):
    monkeypatch.setitem(sys.modules, "tqdm", None)
    with bars():
        assert list(progress([1, 2], "numbers")) == [1, 2]


def test_loops_that_may_take_long_have_bars(shown):
    graph, batches = network()
    with bars():
        model = gq.compile(graph, cache=False)
        model(batches[0])
        choice = automatic(graph, batches)
        compare(choice.graph, graph, batches)
        model.profile(batches[0], runs=3)
        gq.reference(graph, batches[0])
    assert {"passes", "plan", "kernels", "ranges", "settings", "batches", "products", "runs", "reference"} <= {
        bar.title for bar in shown}


def test_the_bars_of_quantize(tmp_path, monkeypatch):
    """On a terminal tqdm writes the bars to stderr, and removes each one at the end of its loop."""
    tqdm = pytest.importorskip("tqdm")
    monkeypatch.setattr("graphq.base.progress.DELAY", 0)
    monkeypatch.setattr(tqdm, "tqdm", partial(tqdm.tqdm, mininterval=0))
    graph, batches = network()
    (tmp_path / "g.txt").write_text(gq.to_text(graph))
    np.savez(tmp_path / "data.npz", x=np.concatenate([b["x"] for b in batches]))

    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    assert main(["quantize", str(tmp_path / "g.txt"), "--data", str(tmp_path / "data.npz"), "-o",
                 str(tmp_path / "out.txt")]) == 0
    found = re.findall(r"quantize: (batches|ranges): +(\d+)%", terminal.getvalue())
    for loop in ("batches", "ranges"):
        counts = [int(n) for name, n in found if name == loop]
        assert counts[0] == 0 and 100 in counts
    assert terminal.getvalue().rpartition("\r")[2].strip() == ""

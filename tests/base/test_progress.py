"""One bar for a long job: none but where it is asked for; it shows the share of the whole job, and never goes back."""
import io
import re
import sys
from functools import partial
from types import ModuleType

import numpy as np
import pytest

import graphq as gq
from graphq.base.progress import bars, job_part, progress
from graphq.cli import main
from graphq.quantization import automatic, compare


class Bar:
    """Stands for a bar of tqdm; `seen` has its name and the percentage after each change."""

    made: list["Bar"] = []

    def __init__(self, *, total, leave, delay, miniters, bar_format):
        assert (total, leave) == (100, False)
        self.n, self.delay, self.seen, self.closed, self.name = 0.0, delay, [], False, ""
        Bar.made.append(self)

    def set_description(self, name, refresh):
        self.name = name

    def update(self, more):
        self.n += more
        self.seen.append((self.name, self.n))

    def close(self):
        self.closed = True


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


def rises(percentages):
    return all(0 <= a <= b <= 100 + 1e-9 for a, b in zip(percentages, percentages[1:], strict=False))


def test_a_bar_is_shown_where_it_is_asked_for(shown):
    assert list(progress([1, 2], "numbers")) == [1, 2] and not shown
    with bars():
        assert list(progress([1, 2], "numbers", 1.0)) == [1, 2]
        with bars(False):
            list(progress([1], "others"))
    list(progress([1], "others"))
    (bar,) = shown
    assert dict.fromkeys(bar.seen) == dict.fromkeys([("numbers", 0), ("numbers", 50), ("numbers", 100)]) and bar.closed


def test_a_job_within_a_job_ends_with_its_block(shown):
    with bars(job="outer"):
        with bars(False):
            list(progress([1], "hidden"))
        with bars(job="inner"):
            list(progress([1], "inside", 1.0))
        list(progress([1], "shown", 1.0))
    list(progress([1], "after"))
    assert {(bar.closed, *{name for name, _ in bar.seen}) for bar in shown} == {(True, "inner: inside"),
                                                                                (True, "outer: shown")}


def test_a_job_has_one_bar_that_names_the_outermost_part(shown):
    with bars(job="quantize"):
        with job_part("ranges", 0.5):
            for _ in progress([1, 2], "batches", 1.0):
                assert list(progress([1, 2, 3], "kernels")) == [1, 2, 3]
        for _ in progress([1, 2], "settings"):
            break
        assert list(progress(iter([1, 2]), "unknown number")) == [1, 2]
    (bar,) = shown
    assert [*dict.fromkeys(name for name, _ in bar.seen)] == ["quantize: ranges", "quantize: settings",
                                                              "quantize: unknown number"]
    percentages = [round(n, 3) for _, n in bar.seen]
    assert rises(percentages) and {25.0, 50.0, 75.0} <= {*percentages} and percentages[-1] == 87.5


def test_shares_are_of_what_is_left_of_the_part_around(shown):
    with bars():
        with job_part("a", 0.5):
            with job_part("b", 0.5):
                pass
            assert shown[0].n == 25
            with job_part("c", 0.5):
                pass
            assert shown[0].n == 37.5
        assert shown[0].n == 50
        with job_part("d", 1.0):
            pass
    assert shown[0].n == 100


def test_a_loop_that_an_error_has_left_moves_nothing_later(shown):
    """The error holds the loop, which ends after the part around it."""
    with bars():
        with pytest.raises(ValueError) as kept, job_part("a", 0.5):
            for _ in progress([1, 2], "loop", 0.5):
                raise ValueError
        with job_part("b", 0.5):
            del kept
            assert shown[0].n == 50
            with job_part("c", 1.0):
                pass
            assert shown[0].n == 75
    assert rises([n for _, n in shown[0].seen])


def test_the_bar_appears_a_second_after_the_job_began(shown, monkeypatch):
    now = [10.0]
    monkeypatch.setattr("graphq.base.progress.time.monotonic", lambda: now[0])
    for start in (10.0, 10.75, 30.0):
        now[0] = 10.0
        with bars():
            now[0] = start
            list(progress([1], "stage"))
    assert [bar.delay for bar in shown] == [1.0, 0.25, 0.0]


def test_without_tqdm_there_is_none(monkeypatch):
    monkeypatch.setitem(sys.modules, "tqdm", None)
    with bars():
        assert list(progress([1, 2], "numbers")) == [1, 2]


def test_what_takes_long_moves_the_bar(shown):
    graph, batches = network()
    with bars():
        model = gq.compile(graph, cache=False)
        model(batches[0])
        choice = automatic(graph, batches)
        compare(choice.graph, graph, batches)
        model.profile(batches[0], runs=3)
        gq.reference(graph, batches[0])
    (bar,) = shown
    assert {"passes", "plan", "kernels", "statistics", "ranges", "settings", "between layers", "estimate", "speed",
            "batches", "products", "runs", "reference"} <= {name for name, _ in bar.seen}
    assert rises([n for _, n in bar.seen])


def test_the_bar_of_quantize(tmp_path, monkeypatch):
    """On a terminal, tqdm writes one bar for the whole job. It rises to 100 % once, from part to part."""
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
    found = re.findall(r"\rquantize: ([a-z0-9 ]+): +(\d+)%", terminal.getvalue())
    parts = [*dict.fromkeys(name for name, _ in found)]
    assert parts[:3] == ["statistics", "ranges", "settings"] and parts[-2:] == ["estimate", "speed"]
    percentages = [int(n) for _, n in found]
    assert rises(percentages) and percentages[-1] == 100 and len({*percentages}) > 20

"""Fixtures and hooks of the whole suite."""
import gc
import sys
from collections import Counter, deque
from contextlib import ExitStack

import pytest
import suite_environment
from levels import LEVELS, WIDTHS

from graphq.kernels.target import isa


@pytest.hookimpl(trylast=True)
def pytest_unconfigure():
    suite_environment.restore()


@pytest.hookimpl(tryfirst=True)
def pytest_collection():
    """Python's collector does not scan what stays to the end, tests and the modules that they import, now or later."""
    gc.disable()


def pytest_collection_finish():
    """Test files have read values as users have them. Garbage is collected seldom: it took a tenth of the time."""
    _set_values(of_compiling=False)
    gc.enable()
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000)


def pytest_terminal_summary(terminalreporter):
    """One line that says how many tests were skipped, and for which reasons; of files that are skipped whole, files."""
    reasons = Counter(report.longrepr[2].removeprefix("Skipped: ")
                      for report in terminalreporter.stats.get("skipped", ()) if isinstance(report.longrepr, tuple))
    if reasons:
        text = "; ".join(f"{count} because {reason}" for reason, count in reasons.most_common())
        terminalreporter.write_line(f"skipped: {sum(reasons.values())} ({text})")


def _available(name):
    with ExitStack() as stack:
        if name not in [x.name for x in isa.available()]:
            stack.enter_context(isa.emulate(name))
        yield name


@pytest.fixture(scope="module", params=LEVELS)
def level(request):
    """Each ISA level in turn: the machine's own, or emulated where it has none."""
    yield from _available(request.param)


@pytest.fixture(scope="module", params=WIDTHS)
def width(request):
    """One level of each width: for families whose code is the same at all of them (tests/kernels/test_widths.py)."""
    yield from _available(request.param)


SESSION = {
    # no test finds the model of a graph that another test compiled; tests/model/test_kept.py is about such models
    "graphq.model.kept.FEWEST": 1 << 60,
    # tests find sentences of a report on one line; tests/report/test_wrapping.py is about lines
    "graphq.report.explain.columns": lambda: 1 << 20,
    # for the suite's time: one compiling process, which lives as long as its worker (two would compile what functions
    # share twice), and nothing is compiled that no test asks for; tests/kernels/jit is about processes and their jobs
    "graphq.kernels.jit.compiling.MOST_WORKERS": 1,
    "graphq.kernels.jit.compiling.IDLE_SECONDS": 3600.0,
    "graphq.kernels.jit.compiling.POLL_SECONDS": 0.004,  # tests wait most of the time
    "graphq.kernels.jit.compiling.pool.later": deque(maxlen=0),
}
"""All that no user has and every test has: names of modules, and their values during the session."""
_session = pytest.MonkeyPatch()


def _set_values(of_compiling):
    for name, value in SESSION.items():
        if name.startswith("graphq.kernels.jit.compiling.") == of_compiling:
            _session.setattr(name, value)


def pytest_sessionstart():
    """Some test files load kernels as they are read, which already starts the compiling process."""
    _set_values(of_compiling=True)


def pytest_sessionfinish():
    _session.undo()


@pytest.fixture(autouse=True)
def no_plans_later():
    """No plan that a test began in the background takes the time of the next test, or counts there."""
    yield
    if "graphq.model.open_plans" in sys.modules:
        sys.modules["graphq.model.open_plans"].background.join()


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A new folder for the kernel cache, of this process and its children."""
    from kept_models import written

    monkeypatch.setenv("GRAPHQ_CACHE_DIR", str(tmp_path / "kernels"))
    yield tmp_path / "kernels"
    written()


@pytest.fixture
def g():
    """A graph without nodes."""
    from graphq.ir import Graph

    return Graph("test")


@pytest.fixture
def x(g):
    """An f32 input of it, 2 x 3."""
    return g.input("x", dtype="f32", shape=(2, 3))


@pytest.fixture
def onednn_file(tmp_path):
    """A oneDNN file of two partitions, two.json: a product with a relu, and a softmax."""
    import graphq as gq

    g = gq.Graph("two")
    x, w = g.input("t0", dtype="f32", shape=(2, 4)), g.input("t1", dtype="f32", shape=(4, 3))
    g.output(g.softmax(g.relu(g.matmul(x, w)), axis=-1), name="t9")
    gq.save_onednn_json(g, tmp_path / "two.json")
    return tmp_path / "two.json"

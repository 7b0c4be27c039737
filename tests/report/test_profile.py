"""profile: a time for each step in the plan's order, their sums, the text, and what is refused.

The timeline: which thread ran which blocks of which step when, and the file of trace events that says so.
"""
import json
from xml.etree import ElementTree

import numpy as np
import pytest

import graphq as gq
from graphq.report.charts import timeline
from graphq.report.profile import Piece, Profile, StepTime, merged, trace_events

X = np.arange(64, dtype=np.float32).reshape(8, 8)


def products(shape=(8, 8)):
    """A matmul, a norm and an elementwise chain."""
    g = gq.Graph("products")
    x = g.input("x", shape=shape, dtype="f32")
    y = g.matmul(x, np.eye(8, dtype=np.float32))
    y = g.reduce_l2(y, axes=[0], keep_dims=True)
    g.output(g.relu(g.add(y, np.float32(1))), name="y")
    return g


@pytest.mark.parametrize("threads", [1, 2])
def test_every_step_has_a_time(threads):
    model = gq.compile(products(), threads=threads)
    profile = model.profile(x=X, runs=3)
    steps = model.plans.fixed.plan.steps
    assert [s.kernel for s in profile.steps] == [s.kernel for s in steps]
    assert [s.number for s in profile.steps] == list(range(len(steps)))
    assert all(s.seconds >= s.least > 0 for s in profile.steps) and profile.steps[0].macs == 512
    assert [s.nbytes for s in profile.steps][-1] >= 2 * 32 and profile.steps[0].peak is None
    assert profile.seconds == sum(s.seconds for s in profile.steps) > 0


def test_open_shapes_and_a_mapping():
    model = gq.compile(products((None, 8)))
    assert len(model.profile({"x": X}, runs=1).steps) == len(model.profile(x=X[:3], runs=1).steps) > 0
    np.testing.assert_array_equal(model(x=X), gq.reference(products(), x=X))


def test_the_text_sums_by_kernel_and_lists_the_longest_first():
    steps = (StepTime(0, "matmul", 0.001, 10**6), StepTime(1, '%y = softmax(%x) : f32[3]', 0.004, 0),
             StepTime(2, "matmul", 0.002, 10**6), StepTime(3, "softmax(%z)", 0.0, 0))
    profile = Profile(steps)
    assert profile.by_kernel() == {"softmax": 0.004, "matmul": 0.003}
    assert str(profile).splitlines() == [
        "4 steps, 7 ms; by kernel:", "  4 ms, 57.1%: softmax", "  3 ms, 42.9%: matmul", "by step:",
        "  1: 4 ms, %y = softmax(%x) : f32[3]", "  2: 2 ms, 1 GOPS, matmul", "  0: 1 ms, 2 GOPS, matmul",
        "  3: 0 ms, softmax(%z)"]
    assert str(Profile(())) == "0 steps, 0 ms; by kernel:\nby step:"


def test_the_share_of_the_peak():
    steps = products()
    profile = gq.compile(steps, threads=1).profile(x=X, runs=1, peaks=True)
    native = [s for s in profile.steps if s.peak is not None]
    assert native and all(0 < s.share < 100 for s in native)
    assert all(f"{s.share:.0%} of the peak by {s.decisive or 'copying'}" in str(s) for s in native)


def test_rates_are_those_of_the_median_time():
    step = StepTime(3, "matmul", 0.002, 10**6, nbytes=4 * 10**6, decisive="vfmadd231ps zmm", peak=10**9)
    assert (step.gops, step.gigabytes, step.share) == pytest.approx((1, 2, 0.5))
    assert str(step) == "3: 2 ms, 1 GOPS, 2 GB/s, 50% of the peak by vfmadd231ps zmm, matmul"
    assert StepTime(0, "x", 0.0, 1, 1, peak=1.0).share is None


def test_bad_arguments_are_refused():
    model = gq.compile(products())
    with pytest.raises(gq.InputError, match="peaks must be True or False, got 1"):
        model.profile(x=X, peaks=1)
    for runs in (0, -1, 1.5, True):
        with pytest.raises(gq.InputError, match="runs must be a positive int"):
            model.profile(x=X, runs=runs)
    with pytest.raises(gq.InputError, match="x"):
        model.profile(x=X[:2])


X_TIMELINE = np.random.default_rng(0).standard_normal((2048, 64)).astype(np.float32)


def network(sort=False):
    """Parallel steps of several blocks, and one in Python."""
    g = gq.Graph("net")
    y = g.input("x", shape=(None, 64), dtype="f32")
    for _ in range(3):
        y = g.softmax(g.matmul(y, np.full((64, 64), 0.1, np.float32)), axis=1)
    if sort:
        y = g.top_k(y, k=4)[0]
    g.output(y, name="y")
    return g


@pytest.fixture(scope="module", params=[(1, False), (2, False), (2, True)])
def profiled(request):
    threads, python = request.param
    model = gq.compile(network(python), threads=threads)
    profile = model.profile(X_TIMELINE, runs=3)
    return model, profile, threads


def test_each_block_of_each_step_runs_in_one_piece(profiled):
    model, profile, threads = profiled
    plan = model.plans.latest.plan
    assert len(profile.steps) == len(plan.steps)
    for step, timed in zip(plan.steps, profile.steps, strict=True):
        ranges = [(p.first, p.end) for p in timed.pieces]
        assert ranges[0][0] == 0 and ranges[-1][1] == getattr(step, "blocks", 1)
        assert all(end == first for (_, end), (first, _) in zip(ranges, ranges[1:], strict=False))
        assert len(ranges) == (min(step.blocks, threads) if getattr(step, "pieces", 0) else 1)
    assert threads == 1 or any(len(s.pieces) == 2 for s in profile.steps)


def test_a_thread_runs_one_piece_at_a_time_and_steps_follow_one_another(profiled):
    _, profile, threads = profiled
    spans = [(min(p.begin for p in s.pieces), max(p.begin + p.seconds for p in s.pieces)) for s in profile.steps]
    assert spans[0][0] == 0 and spans[-1][1] == profile.elapsed > 0
    assert all(end <= begin + 1e-12 for (_, end), (begin, _) in zip(spans, spans[1:], strict=False))
    assert 1 <= len(profile.threads) <= threads and profile.threads[0] == profile.caller
    for thread in profile.threads:
        mine = sorted((p for s in profile.steps for p in s.pieces if p.thread == thread), key=lambda p: p.begin)
        assert all(p.begin + p.seconds <= q.begin + 1e-12 for p, q in zip(mine, mine[1:], strict=False))


def test_profiling_changes_no_result():
    model = gq.compile(network(), threads=2)
    before = model(X_TIMELINE)
    model.profile(X_TIMELINE, runs=2)
    np.testing.assert_array_equal(model(X_TIMELINE), before)


def test_the_file_is_one_of_trace_events(profiled, tmp_path):
    """By the Trace Event Format: names of process and threads, and complete events in microseconds."""
    _, profile, _ = profiled
    profile.to_chrome_trace(tmp_path / "trace.json")
    found = json.loads((tmp_path / "trace.json").read_text())
    assert set(found) == {"traceEvents", "displayTimeUnit"} and found["displayTimeUnit"] in ("ms", "ns")
    for event in found["traceEvents"]:
        assert {"ph", "name", "pid", "tid", "args"} <= set(event) and isinstance(event["name"], str)
        assert isinstance(event["pid"], int) and isinstance(event["tid"], int) and isinstance(event["args"], dict)
    names = {e["tid"]: e["args"]["name"] for e in found["traceEvents"] if e["name"] == "thread_name"}
    pieces = [e for e in found["traceEvents"] if e["ph"] == "X"]
    assert list(names.values()) == ["caller", "helper 1"][:len(names)] and len(names) == len(profile.threads)
    assert min(names) > 0  # which Perfetto takes for the idle thread, and its pieces for another's
    assert {e["tid"] for e in pieces} == set(names) and {e["ph"] for e in found["traceEvents"]} == {"X", "M"}
    assert len(pieces) == sum(len(s.pieces) for s in profile.steps)
    assert [e["ts"] for e in pieces] == sorted(e["ts"] for e in pieces) and pieces[0]["ts"] == 0
    assert all(e["dur"] >= 0 and {"step", "kernel", "blocks"} <= set(e["args"]) for e in pieces)


def test_events_by_hand():
    steps = (StepTime(0, "%y = softmax(%x) : f32[3]", 0.002, 0, pieces=(Piece(7, 0.0, 0.002),)),
             StepTime(1, "matmul", 0.001, 10**6, 3 * 10**6, pieces=(Piece(7, 0.0025, 0.001, 0, 2),
                                                                   Piece(9, 0.002, 0.0005, 2, 5))))
    process, *others = trace_events(Profile(steps, caller=7))
    assert process["args"] == {"name": "graphq"}
    pieces = [e for e in others if e["ph"] == "X"]
    assert [(e["name"], e["tid"], e["ts"], e["dur"]) for e in pieces] == [
        ("softmax", 1, 0, 2000), ("matmul", 2, 2000, 500), ("matmul", 1, 2500, 1000)]
    assert pieces[1]["args"] == {"step": 1, "kernel": "matmul", "blocks": "2 to 5", "median_ms": 1, "GOPS": 2,
                                 "GB/s": 3}


def test_helpers_that_did_nothing_are_idle():
    profile = Profile((StepTime(0, "matmul", 0.004, 0, pieces=(Piece(7, 0.0, 0.003), Piece(9, 0.003, 0.001))),), 7, 4)
    assert profile.busy == {"caller": 0.75, "helper 1": 0.25, "helper 2": 0, "helper 3": 0}
    assert str(profile).splitlines()[-1] == "a run of 4 ms on 4 threads, busy for 75%, 25%, 0%, 0%"
    shown = ElementTree.fromstring(timeline(profile, lambda step: ("n0", "integer")))
    texts = [x.text for x in shown.iter() if x.tag.endswith("text")]
    assert texts[:8] == ["caller", "75% busy", "helper 1", "25% busy", "helper 2", "idle", "helper 3", "idle"]
    assert Profile(()).busy == {}


def test_parts_follow_one_another():
    one = Profile((StepTime(0, "a", 1.0, 0, pieces=(Piece(7, 0.0, 1.0),)),), 7)
    both = merged([one, one])
    assert [p.begin for s in both.steps for p in s.pieces] == [0, 1] and both.elapsed == 2 and both.threads == (7,)
    assert merged([]).threads == ()
    assert [p.begin for s in merged([one] * 3).steps for p in s.pieces] == [0, 1, 2]
    assert [merged([Profile((), most=a), Profile((), most=b)]).most for a, b in ((1, 2), (3, 2))] == [2, 3]


def test_threads_are_numbered_in_the_order_of_their_first_pieces():
    at = [(9, 3.0), (9, 2.0), (7, 0.0), (5, 1.0)]
    profile = Profile((StepTime(0, "a", 4.0, 0, pieces=tuple(Piece(thread, begin, 1.0) for thread, begin in at)),), 7)
    assert profile.threads == (7, 5, 9)


def test_a_graph_in_stages():
    g = gq.parse("""graph(x: f32[2048,64], axes: s32[1]) {
      %0 = square(x)
      %1 = reduce_sum(%0, axes)
      %2 = sqrt(%1)
      return %2
    }""")
    profile = gq.compile(g, threads=1).profile(X_TIMELINE, np.int32([0]), runs=2)
    begins = [p.begin for s in profile.steps for p in s.pieces]
    assert len(begins) >= 2 and begins == sorted(begins) and profile.threads == (profile.caller,)


def test_a_path_that_cannot_be_written(profiled, tmp_path):
    _, profile, _ = profiled
    with pytest.raises(OSError):
        profile.to_chrome_trace(tmp_path / "none" / "trace.json")
    with pytest.raises(gq.GraphError, match="a path must be"):
        profile.to_chrome_trace(3)

"""profile: a time for each step in the plan's order, their sums, the text, and what is refused."""
import numpy as np
import pytest

import graphq as gq
from graphq.report.profile import Profile, StepTime

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
    steps = model._fixed.plan.steps
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

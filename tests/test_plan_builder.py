"""What PlanBuilder adds to the steps that it collects."""
import numpy as np

import graphq as gq
from graphq.kernels.matmul import AHEAD, W
from graphq.plan_builder import MOST_AHEAD


def mlp(*widths):
    """The plan of matmuls by constants one after another, and their steps."""
    rng = np.random.default_rng(0)
    g = gq.Graph("mlp")
    x = g.input("x", shape=(40, widths[0]), dtype="u8")
    for k, n in zip(widths, widths[1:], strict=False):
        w = g.dequantize(g.constant(rng.integers(-127, 128, (k, n), dtype=np.int8)), scales=[0.01])
        x = g.quantize(g.matmul(g.dequantize(x, scales=[0.02], zps=[3]), w), dtype="u8", scales=[0.5], zps=[9])
    g.output(x, name="y")
    plan = gq.compile(g, threads=1)._fixed.runner.plan
    return plan, [s for s in plan.steps if s.kernel.startswith("matmul")]


def test_a_step_prefetches_the_weights_of_the_next_one():
    plan, (first, second, last) = mlp(48, 64, 32, 700)
    for step, following in ((first, second), (second, last)):
        weights = following.words[W]
        assert plan.buffers[weights.buffer].place == "constant"
        assert step.words[AHEAD:AHEAD + 2] == (weights, plan.buffers[weights.buffer].nbytes)
    assert last.words[AHEAD:AHEAD + 2] == (0, 0)


def test_at_most_a_part_of_l2_is_prefetched():
    _, (first, second) = mlp(64, 700, 700)
    assert first.words[AHEAD:AHEAD + 2] == (second.words[W], MOST_AHEAD)

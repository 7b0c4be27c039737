"""What PlanBuilder adds to the steps that it collects."""
import ctypes

import numpy as np

import graphq as gq
from graphq.ir import TensorType
from graphq.kernels.jit.isa import level_named
from graphq.kernels.lanes.expression import acc
from graphq.kernels.lanes.stores import Store
from graphq.kernels.matmul.plan import MATMUL, Product, plan_matmul
from graphq.plan.arena import Arenas
from graphq.plan.builder import MOST_AHEAD, PlanBuilder
from graphq.plan.plan import Buffer
from graphq.plan.runtime import OpenPlan
from graphq.plan.step import Ref, Target


def mlp(*widths):
    """The plan of matmuls by constants one after another, and their steps."""
    rng = np.random.default_rng(0)
    g = gq.Graph("mlp")
    x = g.input("x", shape=(40, widths[0]), dtype="u8")
    for k, n in zip(widths, widths[1:], strict=False):
        w = g.dequantize(g.constant(rng.integers(-127, 128, (k, n), dtype=np.int8)), scales=[0.01])
        x = g.quantize(g.matmul(g.dequantize(x, scales=[0.02], zps=[3]), w), dtype="u8", scales=[0.5], zps=[9])
    g.output(x, name="y")
    plan = gq.compile(g, threads=1)._fixed.plan
    return plan, [s for s in plan.steps if s.kernel.startswith("matmul")]


def ahead(step):
    return step.words["ahead"], step.words["ahead_bytes"]


def test_a_step_prefetches_the_weights_of_the_next_one():
    plan, (first, second, last) = mlp(48, 64, 32, 700)
    for step, following in ((first, second), (second, last)):
        weights = following.words["w"]
        assert plan.buffers[weights.buffer].storage == "constant"
        assert ahead(step) == (weights, plan.buffers[weights.buffer].nbytes)
    assert ahead(last) == (0, 0)


def test_at_most_a_part_of_l2_is_prefetched():
    _, (first, second) = mlp(64, 700, 700)
    assert ahead(first) == (second.words["w"], MOST_AHEAD)


def test_inputs_of_amx_are_copied_to_lines_where_they_do_not_start_at_one():
    t = TensorType(gq.dtypes.u8, (40, 128))
    x = np.arange(40 * 128 + 128, dtype=np.int64).astype(np.uint8)
    begin = -x.ctypes.data % 64
    for k, n, level, aligned in ((128, 200, "amx", True), (128, 64, "amx", False), (100, 200, "amx", False),
                                 (128, 200, "avx2", False)):
        step = plan_matmul(Store(acc(), "s32"), Product("u8", 40, n, k), Target(level_named(level)))
        assert step.aligned == aligned
        b = PlanBuilder(gq.Graph(), level_named(level), 1, True)
        buffer = b.add(Buffer("input", t.nbytes, t, 0))
        b.run(step, {"a": Ref(buffer)})
        arenas = Arenas()
        runner = OpenPlan(b.plan()).at((), arenas)
        instance, arena = runner._instance(), arenas.take(runner.arena_bytes)
        for skipped in (0, 16):
            given = x[begin + skipped:begin + skipped + 40 * 128].reshape(40, 128)
            instance.point_at([given], arena)
            address = int(instance.words[MATMUL.number("a")])
            assert (address != given.ctypes.data) == (aligned and skipped > 0)
            assert ctypes.string_at(address, given.nbytes) == given.tobytes()


def test_each_piece_of_the_blocks_has_a_room_of_its_own():
    """Pieces of a step run at the same time, so the rooms that they write into must not overlap."""
    for m, threads in ((40, 1), (40, 4), (4000, 1), (4000, 2), (4000, 5)):
        b = PlanBuilder(gq.Graph(), level_named("amx"), threads, True)
        step = plan_matmul(Store(acc(), "s32"), Product("u8", m, 200, 190), b.target)
        b.run(step, {})
        (made,) = b.plan().steps
        assert made.pieces == (threads if m == 4000 and threads > 1 else 0)
        assert made.words["room_count"] == max(1, made.pieces)
        room = b.buffers[made.words["rooms"].buffer]
        assert room.storage == "arena" and room.nbytes == max(1, made.pieces) * made.words["room_bytes"] > 0

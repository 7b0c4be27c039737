"""How rows are cut into strips, which steps run so, and what the step that takes strips through them does.

What PlanBuilder adds to the steps that it collects.
"""
import ctypes

import numpy as np
import pytest
from row_kernels import ROWS, adding_rows

import graphq as gq
from graphq.ir import TensorType
from graphq.kernels.jit import modules
from graphq.kernels.lanes.epilogues import Epilogue
from graphq.kernels.lanes.expression import acc
from graphq.kernels.matmul.plan import MATMUL_BLOCK, Product, plan_matmul
from graphq.kernels.target import isa
from graphq.kernels.target.isa import level_named
from graphq.plan.builder import MOST_AHEAD, ROOM, PlanBuilder, plan_strips, row_stride
from graphq.plan.plan import Buffer, PythonStep, Ref, Step, Target
from graphq.plan.runtime import STEP_WORDS, Arenas, NativePlan, Runner


def test_rows_in_a_room_are_in_different_sets_of_the_cache():
    assert [row_stride(n) for n in (1, 64, 65, 4096, 16384 - 64)] == [64, 64, 192, 4160, 16384 - 64]


@pytest.mark.parametrize("batch, m, row_bytes, threads, each, count", [
    (12, 4096, ROOM // 100, 1, 96, 0), (12, 4096, ROOM // 40, 1, 24, 0), (12, 4096, ROOM // 20, 2, 16, 2),
    (12, 4096, ROOM // 3, 2, 8, 2), (12, 4096, 10 * ROOM, 2, 8, 2), (12, 100, 8, 1, 104, 0), (1, 4096, 8, 4, 256, 4),
    (1, 8, 8, 4, 8, 0), (1, 20, 0, 2, 8, 2)])
def test_strips_fit_into_the_cache_and_are_shared_evenly(batch, m, row_bytes, threads, each, count):
    assert plan_strips((batch, m), [row_bytes], threads) == (each, count)
    assert plan_strips((batch, m), [row_bytes // 2, row_bytes - row_bytes // 2], threads) == (each, count)


def places(b, name, value, m):
    """The words of an operand: whole, or in rooms."""
    buffer = b.result(value)
    stride = b.strips.rooms.get(buffer)
    return {name: Ref(buffer), f"{name}_bytes": 0 if stride else 8 * m, f"{name}_stride": stride or 8}


def added(batch, m, threads, numbers):
    """A plan of an input s64 [batch, m, 1], to which steps in strips add these numbers, one after another."""
    g = gq.Graph()
    values = [g.input("x", dtype="s64", shape=(batch, m, 1))]
    for _ in numbers:
        values.append(g.static_transpose(values[-1], order=[0, 1, 2]))
    g.output(values[-1], name="y")
    b = PlanBuilder(g, isa.LEVELS[0], threads, True)
    block = modules.load("adding_rows", adding_rows).block
    with b.in_strips(values[1:-1], values[-1]):
        for k, number in enumerate(numbers):
            words = {"batch": batch, "m": m, "each": b.strip_rows, "by": number, "room_count": 1, "room_bytes": 8}
            b.run(Step(f"add_{number}", block, ROWS.named(words), b.strips.blocks, macs=number),
                  {**places(b, "source", values[k], m), **places(b, "target", values[k + 1], m)})
        other = b.temporary(8)
        words = {"batch": 1, "m": 1, "each": 1, "room_count": 1, "room_bytes": 8}
        b.run(Step("beside", block, ROWS.named(words), 1), {"source": Ref(other), "target": Ref(other)})
    return b.plan()


@pytest.mark.parametrize("batch, m", [(1, 8), (1, 21), (3, 40), (2, 1), (5, 7)])
@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("numbers", [(3, 5), (1, 10, 100, 1000)])
def test_strips_go_through_all_steps(batch, m, threads, numbers):
    """What does not touch what lies between the steps runs before them, whenever it was added."""
    plan = added(batch, m, threads, numbers)
    assert [s.kernel for s in plan.steps] == ["beside", " + ".join(f"add_{number}" for number in numbers)]
    step = plan.steps[1]
    assert step.macs == sum(numbers) and len(step.parts) == len(numbers)
    arenas = Arenas()
    runner = Runner(NativePlan(plan), arenas)
    x = np.arange(batch * m, dtype=np.int64).reshape(batch, m, 1)
    for _ in range(3):
        (y,) = runner([x])
        np.testing.assert_array_equal(y, x + sum(numbers))
    (arena,) = arenas.idle  # that of all runs
    runner.trace([x], 1)
    assert arenas.idle == [arena]


def test_each_piece_has_a_room_for_what_lies_between_and_for_its_copies():
    plan = added(4, 400, 3, (1, 2, 3))
    step = plan.steps[1]
    assert step.pieces == step.words["room_count"] == 3
    assert all(part.step.pieces == part.step.words["room_count"] == 3 for part in step.parts)
    between = {number for part in step.parts for number in (part.step.words["source"], part.step.words["target"])}
    sizes = [plan.buffers[ref.buffer].nbytes for ref in between if plan.buffers[ref.buffer].storage == "arena"]
    assert sizes == [3 * row_stride(8) * step.words["each"]] * 2
    assert [len(part.moved) for part in step.parts] == [1, 2, 1]
    assert step.words["room_bytes"] == 8 * len(step.parts[0].step.block)
    fewer = step.shared(2)
    assert [s.words["room_count"] for s in (fewer, *(part.step for part in fewer.parts))] == [2] * 4


def test_a_step_in_strips_has_a_block_a_strip():
    g = gq.Graph()
    x = g.input("x", dtype="s64", shape=(40, 1))
    b = PlanBuilder(g, isa.LEVELS[0], 1, True)
    block = modules.load("adding_rows", adding_rows).block
    y = g.static_transpose(x, order=[0, 1])
    with pytest.raises(AssertionError), b.in_strips([y], y):
        b.run(Step("halves", block, ROWS.named({}), 2), {"target": Ref(b.add(Buffer("arena", 8))),
                                                        "source": Ref(next(iter(b.strips.rooms)))})


def mlp(*widths):
    """The plan of matmuls by constants one after another, and their steps."""
    rng = np.random.default_rng(0)
    g = gq.Graph("mlp")
    x = g.input("x", shape=(40, widths[0]), dtype="u8")
    for k, n in zip(widths, widths[1:], strict=False):
        w = g.dequantize(g.constant(rng.integers(-127, 128, (k, n), dtype=np.int8)), scales=[0.01])
        x = g.quantize(g.matmul(g.dequantize(x, scales=[0.02], zps=[3]), w), dtype="u8", scales=[0.5], zps=[9])
    g.output(x, name="y")
    plan = gq.compile(g, threads=1).plans.fixed.plan
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
        step = plan_matmul(Epilogue(acc(), "s32"), Product("u8", 40, n, k), Target(level_named(level)))
        assert step.aligned == aligned
        b = PlanBuilder(gq.Graph(), level_named(level), 1, True)
        buffer = b.add(Buffer("input", t.nbytes, t, 0))
        b.run(step, {"a": Ref(buffer)})
        arenas = Arenas()
        runner = Runner(NativePlan(b.plan()), arenas)
        instance, arena = runner._instance(), arenas.take(runner.arena_bytes)
        for skipped in (0, 16):
            given = x[begin + skipped:begin + skipped + 40 * 128].reshape(40, 128)
            instance.point_at([given], arena)
            address = int(instance.words[STEP_WORDS:][MATMUL_BLOCK.number("a")])
            assert (address != given.ctypes.data) == (aligned and skipped > 0)
            assert ctypes.string_at(address, given.nbytes) == given.tobytes()


def test_each_piece_of_the_blocks_has_a_room_of_its_own():
    """Pieces of a step run at the same time, so the rooms that they write into must not overlap."""
    for m, threads in ((40, 1), (40, 4), (4000, 1), (4000, 2), (4000, 5)):
        b = PlanBuilder(gq.Graph(), level_named("amx"), threads, True)
        step = plan_matmul(Epilogue(acc(), "s32"), Product("u8", m, 200, 190), b.target)
        b.run(step, {})
        (made,) = b.plan().steps
        assert made.pieces == (threads if m == 4000 and threads > 1 else 0)
        assert made.words["room_count"] == max(1, made.pieces)
        room = b.buffers[made.words["rooms"].buffer]
        assert room.storage == "arena" and room.nbytes == max(1, made.pieces) * made.words["room_bytes"] > 0


@pytest.mark.parametrize("readers, pairs", [(1, ((0, 0),)), (2, ())])
def test_an_input_that_a_later_step_reads_is_not_written_in_place(readers, pairs):
    g = gq.Graph()
    x = g.input("x", dtype="f32", shape=(4,))
    values = [g.relu(x) for _ in range(readers)]
    g.set_outputs(values, [f"y{k}" for k in range(readers)])
    b = PlanBuilder(g, isa.LEVELS[0], 1, True)
    b.may_share(b.of[x], b.result(values[0]))
    b.steps += [PythonStep("a step", np.abs, (b.of[x],), (b.result(y),)) for y in values]
    assert b.plan().in_place == pairs


def test_a_reference_gets_the_shape_of_a_view():
    g = gq.Graph()
    g.output(g.trilu(g.static_reshape(g.input("x", dtype="f32", shape=(2, 6)), shape=[3, 4])), name="y")
    x = np.arange(12, dtype=np.float32).reshape(2, 6)
    np.testing.assert_array_equal(gq.compile(g, threads=1)(x), np.triu(x.reshape(3, 4)))


def test_equal_constants_have_one_buffer():
    b = PlanBuilder(gq.Graph(), isa.LEVELS[0], 1, True)
    x = np.arange(6.0)
    first = b.constant(x)
    assert [b.constant(x), b.constant(x.copy()), b.constant(x + 1)] == [first, first, first + 1]
    assert [buffer.nbytes for buffer in b.buffers] == [48, 48]


def test_an_output_that_is_a_view_is_written_without_a_copy():
    g = gq.Graph()
    y = g.static_reshape(g.relu(g.input("x", dtype="f32", shape=(2, 6))), shape=[3, 4])
    g.output(g.static_reshape(y, shape=[12]), name="y")
    plan = gq.compile(g, threads=1).plans.fixed.plan
    assert len(plan.steps) == 1 and {x.storage for x in plan.buffers} == {"input", "output"}


def test_rows_of_several_results_count_as_batch_elements():
    g = gq.Graph()
    x = g.input("x", dtype="s64", shape=(3, 80, 1))
    y = g.static_transpose(x, order=[0, 1, 2])
    z = g.static_reshape(y, shape=[6, 40, 1])
    g.output(g.static_transpose(z, order=[0, 1, 2]), name="y")
    b = PlanBuilder(g, isa.LEVELS[0], 2, True)
    strips = b.in_strips([y], g.outputs[0])
    strips.__enter__()
    assert (b.strips.batch, b.strips.m) == (6, 40)

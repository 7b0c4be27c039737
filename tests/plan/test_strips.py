"""How rows are cut into strips, which steps run so, and what the step that takes strips through them does."""
import numpy as np
import pytest
from row_kernels import ROWS, adding_rows

import graphq as gq
from graphq.kernels.jit import isa, modules
from graphq.plan.arena import Arenas
from graphq.plan.builder import PlanBuilder
from graphq.plan.plan import Buffer
from graphq.plan.runtime import OpenPlan
from graphq.plan.step import Ref, Step
from graphq.plan.strips import ROOM, plan_strips, row_stride


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
    runner = OpenPlan(plan).at((), arenas)
    x = np.arange(batch * m, dtype=np.int64).reshape(batch, m, 1)
    for _ in range(3):
        (y,) = runner([x])
        np.testing.assert_array_equal(y, x + sum(numbers))


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

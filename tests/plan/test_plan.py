"""The argument block of a step: words by their names, slots behind them, rooms at the end; how work is cut.

Plans as data: the buffers that steps touch, what runs as a reference, and all that may be open.
"""
import numpy as np
import pytest
from kernel_factories import multiples

from graphq.dtypes import f32
from graphq.errors import KernelError
from graphq.ir import TensorType
from graphq.kernels.jit.intrinsics import HEADER_WORDS, Record
from graphq.kernels.target import isa
from graphq.kernels.threads.steps import MOST_PIECES
from graphq.plan.plan import (
    BLOCK_CYCLES,
    Buffer,
    Part,
    Plan,
    PythonStep,
    Ref,
    Step,
    Target,
    open_numbers,
    pieces,
    plan_rows,
    rows_of_block,
    threads_for,
    touched,
)


def test_arguments_of_a_step_are_filled_in_by_their_names():
    record = Record("source", "target", "size")
    step = Step("x", 0, {**record.named({"size": 7}), "more": 8}, 1)
    assert record.number("size") == 2 and record.nbytes == 24
    args = step.arguments({"target": 5, "source": 4}, [(1, 2, 3), (7, 8, 9)])
    assert args.dtype == np.int64 and args.tolist() == [4, 5, 7, 8, *[0] * (HEADER_WORDS - 4), 1, 2, 3, 7, 8, 9]
    for fill, words in ((step.arguments, "source, target, size, more"), (record.words, "source, target, size")):
        with pytest.raises(KernelError, match=rf"no fields \['length'\] in an argument block of {words}"):
            fill({"length": 1})


def test_rooms_follow_the_argument_block():
    step = Step("x", 0, {"rooms": 0, "room_count": 3, "room_bytes": 12}, 1)
    args = step.arguments({}, [(1, 2, 3)])
    assert args.size == HEADER_WORDS + 3 + 5 and args[0] == args.ctypes.data + 8 * (HEADER_WORDS + 3)
    for count, words in ((1, 2), (5, 8), (0, 0)):
        assert step.arguments({"room_count": count}).size == HEADER_WORDS + words


def test_each_piece_has_a_room_of_its_own():
    words = {"rooms": 0, "room_count": 1, "room_bytes": 12}
    part = Part(Step("inner", 0, words, 1), ((1, 2),))
    step = Step("x", 0, words, 8, parts=(part, part._replace(step=Step("plain", 0, {"n": 5}, 1)))).shared(3)
    assert (step.pieces, step.room, step.words["room_count"]) == (3, 36, 3)
    assert [(p.step.pieces, p.step.room) for p in step.parts] == [(3, 36), (3, 0)]
    alone = Step("x", 0, words, 8).shared(0)
    assert (alone.pieces, alone.room) == (0, 12)


def test_blocks_are_cut_in_pieces_of_neighbors():
    for blocks, threads in ((2, 2), (7, 2), (40, 40), (40, 7), (3, 8), (10_000, 9000)):
        count = pieces(blocks, 2, threads)
        assert count == min(blocks, threads, MOST_PIECES)
        bounds = [p * blocks // count for p in range(count + 1)]
        assert [((i + 1) * count - 1) // blocks for i in range(blocks)] \
            == [p for p in range(count) for _ in range(bounds[p], bounds[p + 1])]
    assert [pieces(*of) for of in ((1, 2, 2), (0, 2, 2), (9, 1, 2), (9, 2, 1))] == [0] * 4


@pytest.mark.parametrize("rows, batch, threads, unit, each", [
    (100, 1, 1, 1, 100), (100, 1, 2, 1, 13), (100, 1, 2, 16, 16), (100, 9, 2, 1, 100), (3, 1, 8, 1, 1),
    (0, 1, 2, 1, 1)])
def test_rows_are_cut_in_four_blocks_a_thread(rows, batch, threads, unit, each):
    assert rows_of_block(rows, batch, threads, unit) == each


@pytest.mark.parametrize("threads, cycles, worth", [
    (1, 1e9, 1), (2, 0, 1), (2, 2 * BLOCK_CYCLES - 1, 1), (2, 2 * BLOCK_CYCLES, 2), (8, 5.5 * BLOCK_CYCLES, 5),
    (8, 100 * BLOCK_CYCLES, 8)])
def test_threads_have_work_enough(threads, cycles, worth):
    assert threads_for(threads, cycles) == worth


@pytest.mark.parametrize("rows, batch, unit, threads, cycles, each, blocks, count", [
    (100, 1, 1, 2, BLOCK_CYCLES, 13, 8, 2), (100, 1, 1, 2, 100, 100, 1, 0), (100, 3, 16, 2, BLOCK_CYCLES, 48, 9, 2),
    (100, 3, 1, 1, BLOCK_CYCLES, 100, 3, 0), (0, 3, 1, 2, BLOCK_CYCLES, 1, 0, 0), (1, 5, 1, 4, BLOCK_CYCLES, 1, 5, 4)])
def test_rows_are_planned(rows, batch, unit, threads, cycles, each, blocks, count):
    step = plan_rows(multiples, Record("source", "each", "more"), {"source": 5, "more": 6},
                     Target(isa.LEVELS[0], threads), rows=rows, cycles=cycles, batch=batch, unit=unit, of=(3,))
    assert (step.kernel, step.blocks, step.pieces) == ("multiples_3", blocks, count)
    assert step.words == {"source": 5, "each": each, "more": 6} and step.function.name == "block"
    assert step.function.module.source.arguments == (3,) and step.function.module.name == "multiples"


def test_touched_buffers():
    step = Step("k", None, {"x": Ref(4), "n": 7, "y": Ref(2, 8)}, 1, slots=((Ref(5), Ref(9), 3),))
    assert touched(step) == [4, 2, 5, 9]
    assert touched(PythonStep("p", abs, (3, None, 1), (6, 7))) == [3, 1, 6, 7]


def test_references_are_marked():
    steps = (Step("k", None, {}, 1), PythonStep("a", abs, (0,), (1,)), PythonStep("b", abs, (0,), (1,), False))
    assert Plan((), steps, (), 1).references == ["a"]


def test_numbers_that_may_be_open():
    data = np.ones(2, np.float32)
    buffers = (Buffer("constant", 8, TensorType(f32, (2,)), data=data), Buffer("arena", 64))
    plan = Plan(buffers, (), (TensorType(f32, (3, 4)),), 1, errors=(ValueError,))
    assert open_numbers(plan) == [[(8, data, (2,)), (64, None, None)], (), [(3, 4)], (ValueError,)]
    assert Buffer("constant", 8, data=data) == Buffer("constant", 8) != Buffer("arena", 8)

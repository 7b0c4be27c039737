"""The argument block of a step: words by their names, slots behind them, rooms at the end; how work is cut."""
import numpy as np
import pytest

from graphq.errors import KernelError
from graphq.kernels.jit.intrinsics import HEADER_WORDS
from graphq.kernels.jit.records import Record
from graphq.kernels.threads.steps import MOST_PIECES
from graphq.plan.step import Step, pieces, rows_of_block


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


def test_blocks_are_cut_in_pieces_of_neighbours():
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

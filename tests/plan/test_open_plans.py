"""A plan with open sizes at other sizes: each field of buffers and steps, offsets of each kind of word."""
import ctypes

import numpy as np
import pytest
from kernel_factories import adding as adding_module

from graphq.base.sizes import Trace, later
from graphq.dtypes import f32
from graphq.ir import TensorType
from graphq.kernels.jit import modules
from graphq.kernels.jit.intrinsics import HEADER_WORDS
from graphq.plan.open_plans import OpenPlan
from graphq.plan.plan import Buffer, Plan, PythonStep, Ref, ReportedError, Step
from graphq.plan.runtime import STEP_WORDS, Arenas

adding = modules.load("adding", adding_module).block


@pytest.fixture
def sizes():
    """Two open sizes, which are 12 and 5, and what makes a plan open in them."""
    trace = Trace()
    n, m = trace.leaf(12, "n"), trace.leaf(5, "m")
    return n, m, lambda plan: OpenPlan(plan, trace)


def one(*buffers, steps=(), **fields):
    return Plan(buffers, steps, (), 1)._replace(**fields)


def test_each_open_field_of_a_buffer_alone(sizes):
    n, m, opened = sizes
    table = later(np.arange, n)
    plan = one(Buffer("arena", 64), Buffer("arena", 4 * n), Buffer("input", 48, TensorType(f32, (n, m)), 3),
               Buffer("constant", 8, data=table), Buffer("output", 4 * m, TensorType(f32, (m,)), 2))
    got = opened(plan).at((7, 9), Arenas()).plan
    assert [b.nbytes for b in got.buffers] == [64, 28, 48, 8, 36]
    assert [b.storage for b in got.buffers] == [b.storage for b in plan.buffers]
    assert got.buffers[2] == Buffer("input", 48, TensorType(f32, (7, 9)), 3)
    assert got.buffers[3].data.tolist() == list(range(7))
    assert got.buffers[4] == Buffer("output", 36, TensorType(f32, (9,)), 2)
    assert got.buffers[0] is plan.buffers[0]


def test_a_plan_has_no_size_of_another_trace(sizes):
    *_, opened = sizes
    plan = opened(one(Buffer("arena", 4 * Trace().leaf(5, "other"))))
    with pytest.raises(TypeError, match="another trace"):
        plan.at((7, 9), Arenas())


@pytest.mark.parametrize("field, value, want", [
    ("kernel", ("rows", 0), ("rows", 7)), ("blocks", 0, 7), ("pieces", 0, 7), ("macs", 0, 7)])
def test_each_open_field_of_a_step_alone(sizes, field, value, want):
    """In `value` n stands for each 0."""
    n, _, open_plan = sizes

    def opened(x):
        return tuple(map(opened, x)) if isinstance(x, tuple) else n if x == 0 and isinstance(x, int) else x

    plain = {"kernel": "k", "function": adding, "words": {"x": 3}, "blocks": 2, "pieces": 4, "slots": ((1, 2, 3),),
             "macs": 5, "exact": 0.5, "aligned": False}
    step, other = Step(**{**plain, field: opened(value)}), Step(**plain)
    plan = one(steps=(other, step))
    got = open_plan(plan).at((7, 9), Arenas()).plan.steps
    assert got[0] is other
    for name, x in {**plain, field: want}.items():
        assert getattr(got[1], name) == x, name


def test_words_that_follow_from_sizes(sizes):
    """The tile of a kernel that is chosen by its size, say; reports read it in the plan at given sizes."""
    n, _, opened = sizes
    chosen = later(max, n, 9)
    step = Step(later(str, n), adding, {"tile": chosen, "rows": n, "columns": 3}, n)
    for rows, tile in ((7, 9), (17, 17)):
        (got,) = opened(one(steps=(step,))).at((rows, 9), Arenas()).plan.steps
        assert (got.kernel, got.words["tile"], got.words["columns"], got.blocks) == (str(rows), tile, 3, rows)


def test_python_steps_and_types_of_outputs(sizes):
    n, m, opened = sizes

    def call(*arrays):
        return arrays

    plan = one(Buffer("arena", 8), steps=(PythonStep(("reshape", n), call, (0,), (0,)),),
               output_types=(TensorType(f32, (m, n)), TensorType(f32, (3,))))
    got = opened(plan).at((7, 9), Arenas()).plan
    assert got.steps[0].kernel == ("reshape", 7) and got.steps[0].call is call
    assert got.output_types == (TensorType(f32, (9, 7)), TensorType(f32, (3,)))


def test_offsets_of_all_kinds_of_words(sizes):
    """Fixed ones stay; each open one is of its own word, in the third step too."""
    n, m, opened = sizes
    fixed, table = np.arange(8), later(np.arange, n)
    buffers = (Buffer("input", 800, index=0), Buffer("input", 800, index=1), Buffer("arena", 8 * n),
               Buffer("constant", 64, data=fixed), Buffer("constant", 8 * n, data=table),
               Buffer("output", 800, index=0), Buffer("report", 8, index=1))
    words = [{"a": Ref(0, 4 * n), "b": 5, "c": Ref(2, 16)}, {"a": Ref(2, n + m), "b": Ref(3, 24), "c": Ref(4, 2 * m)},
             {"a": Ref(1, 8), "b": Ref(5, m), "c": Ref(6)}]
    steps = tuple(Step("k", adding, w, n, m, slots=((Ref(2, 3 * n), n, m * n),)) for w in words)
    flat = opened(one(*buffers, steps=steps, errors=(ReportedError("index", "a", ()), ReportedError("index", "b", ()))))
    block, table_words = HEADER_WORDS + 3, 3 * STEP_WORDS
    assert flat.starts.tolist() == [table_words + k * block for k in range(3)]
    assert flat.template.size == table_words + 3 * block
    arrays = [np.zeros(800, np.uint8) for _ in range(3)]
    for at in ((7, 9), (12, 5)):
        n, m = at
        runner, arenas = flat.at(at, Arenas()), Arenas()
        instance, arena = runner._instance(), arenas.take(runner.arena_bytes)
        instance.point_at(arrays, arena)
        first, second, third = (x.ctypes.data for x in arrays)
        begin, report = arena.address + runner.allocations()[0].offset, ctypes.addressof(instance.reports)
        rows, got = instance.words[:table_words].reshape(3, -1), instance.words[table_words:].reshape(3, block)
        assert rows.tolist() == [[int(adding), x.ctypes.data, n, m] for x in got]
        assert got[:, HEADER_WORDS:].tolist() == [[begin + 3 * n, n, m * n]] * 3
        assert got[0, :3].tolist() == [first + 4 * n, 5, begin + 16]
        assert got[1, :3].tolist() == [begin + n + m, fixed.ctypes.data + 24,
                                       runner.plan.buffers[4].data.ctypes.data + 2 * m]
        assert got[2, :3].tolist() == [second + 8, third + m, report + 8]
        assert not got[:, 3:HEADER_WORDS].any()


def test_buffers_that_are_as_large_as_before_keep_their_places(sizes):
    n, m, opened = sizes
    steps = (Step("k", adding, {"a": Ref(0), "b": Ref(1, 4 * m)}, n),)
    plan, arenas = opened(one(Buffer("arena", 8 * n), Buffer("arena", 64), steps=steps)), Arenas()
    first, again, other = (plan.at(at, arenas) for at in ((7, 9), (7, 5), (70, 9)))
    assert first.allocations() == again.allocations() != other.allocations()
    assert first._offsets is again._offsets and other.arena_bytes == 576 + 64
    for runner, within in ((first, 36), (again, 20), (other, 36)):
        instance, arena = runner._instance(), arenas.take(runner.arena_bytes)
        instance.point_at([], arena)
        a, b = runner.allocations()
        assert instance.words[STEP_WORDS:][:2].tolist() == [arena.address + a.offset, arena.address + b.offset + within]

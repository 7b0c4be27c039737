"""A plan with open sizes at other sizes: each field of buffers and steps, offsets of each kind of word."""
import numpy as np
import pytest

from graphq.base.sizes import Trace, later
from graphq.dtypes import f32
from graphq.ir import TensorType
from graphq.plan.arena import Arenas
from graphq.plan.plan import Buffer, NativeStep, Plan, PythonStep, Ref
from graphq.plan.runtime import OpenPlan


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
    plan = one(Buffer("arena", 64), Buffer("arena", 4 * n), Buffer("input", 48, TensorType(f32, (n, m)), 3, None, True),
               Buffer("constant", 8, data=table), Buffer("output", 4 * m, TensorType(f32, (m,)), 2))
    got = opened(plan).at((7, 9), Arenas()).plan
    assert [b.nbytes for b in got.buffers] == [64, 28, 48, 8, 36]
    assert [b.storage for b in got.buffers] == [b.storage for b in plan.buffers]
    assert got.buffers[2] == Buffer("input", 48, TensorType(f32, (7, 9)), 3, None, True)
    assert got.buffers[3].data.tolist() == list(range(7))
    assert got.buffers[4] == Buffer("output", 36, TensorType(f32, (9,)), 2)
    assert got.buffers[0] is plan.buffers[0]


@pytest.mark.parametrize("field, value, want", [
    ("kernel", ("rows", 0), ("rows", 7)), ("blocks", 0, 7), ("parallel", 0, 7), ("keep", (0, (1,)), (7, (1,))),
    ("macs", 0, 7)])
def test_each_open_field_of_a_native_step_alone(sizes, field, value, want):
    """In `value` n stands for each 0."""
    n, _, open_plan = sizes

    def opened(x):
        return tuple(map(opened, x)) if isinstance(x, tuple) else n if x == 0 and isinstance(x, int) else x

    plain = {"kernel": "k", "function": None, "words": (3,), "blocks": 2, "parallel": True, "keep": (1,), "macs": 5,
             "rooms": 6}
    step, other = NativeStep(**{**plain, field: opened(value)}), NativeStep(**plain)
    plan = one(steps=(other, step))
    got = open_plan(plan).at((7, 9), Arenas()).plan.steps
    assert got[0] is other
    for name, x in {**plain, field: want}.items():
        assert getattr(got[1], name) == x, name


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
               Buffer("output", 800, index=0), Buffer("report", 8, index=4))
    words = [(Ref(0, 4 * n), 5, Ref(2, 16)), (Ref(2, n + m), Ref(3, 24), Ref(4, 2 * m), n),
             (Ref(1, 8), Ref(5, m), Ref(2, 3 * n), Ref(6), m * n)]
    steps = tuple(NativeStep("k", None, w, 1, False) for w in words)
    plan = one(*buffers, steps=steps)
    flat = opened(plan)
    assert flat.starts == [0, 3, 7]
    values, example = flat.program.at((7, 9)), flat.program.at((12, 5))
    for places, numbers, want, assumed in (
            (flat.arena, [2, 2, 2], [16, 16, 21], [16, 17, 36]), (flat.tables, [4], [18], [10]),
            (flat.arrays, [0, 1, 2], [28, 8, 9], [48, 8, 5]), (flat.reports, [4], [0], [0])):
        assert places.numbers == numbers and places.at(values) == want and places.at(example) == assumed
    assert (flat.arena.words, flat.tables.words, flat.arrays.words) == ([2, 3, 9], [5], [0, 7, 8])
    assert [(at_, values.of(x)) for at_, x in flat.numbers] == [(6, 7), (11, 63)]
    assert flat.template[1] == 5 and flat.template[4] == fixed.ctypes.data + 24

"""Plans as data: the buffers that steps touch, what runs as a reference, and all that may be open."""
import numpy as np

from graphq.dtypes import f32
from graphq.ir import TensorType
from graphq.plan.plan import Buffer, Plan, PythonStep, open_numbers, touched
from graphq.plan.step import Ref, Step


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

"""The elementwise kernel at every level of this machine, its blocks, and the team that runs them."""
import numpy as np
import pytest

from graphq.kernels.eltwise import family as eltwise
from graphq.kernels.lanes import elementary, quantizing
from graphq.kernels.lanes.epilogues import Epilogue, evaluate
from graphq.kernels.lanes.expression import acc, load, maximum, op
from graphq.kernels.operands.space import Space
from graphq.kernels.target import isa
from graphq.kernels.threads import team
from graphq.plan.plan import Target

LEVELS = isa.available()


def chain():
    """dequantize -> add -> tanh -> quantize."""
    x = op("to_f32", load(0, "u8", "vector") - 120) * 0.02
    y = elementary.tanh(maximum(x + load(1, "f32", "row"), -0.75) * load(2, "f32", "vector"))
    return Epilogue(quantizing.quantize(y, load(3, "f32", "scalar"), load(4, "f32", "scalar"), "s8"), "s8")


def run(step, arrays):
    """Run on arrays of shape (batch, m, n), the output last; broadcast operands have strides of 0."""
    tables = [np.arange(a.shape[0], dtype=np.int64) * a.strides[0] for a in arrays]
    step.run(step.arguments({}, [(a.ctypes.data, t.ctypes.data, a.strides[1])
                                 for a, t in zip(arrays, tables, strict=True)]))


@pytest.mark.parametrize("level", LEVELS, ids=lambda level: level.name)
@pytest.mark.parametrize("shape", [(1, 1, 1), (1, 1, 1000), (1, 200, 3), (5, 7, 70), (70, 1, 9), (1, 3, 0), (0, 4, 4)])
@pytest.mark.parametrize("threads", [1, 8])
def test_equals_its_meaning(level, shape, threads):
    rng, (batch, m, n) = np.random.default_rng(8), shape
    x = rng.integers(0, 256, shape, dtype=np.uint8)
    row = np.broadcast_to(rng.standard_normal((1, m, 1), np.float32), (batch, m, 1))
    column = np.broadcast_to(rng.standard_normal((1, 1, n), np.float32), shape)
    scalars = [np.full((1, 1, 1), v, np.float32) for v in (50, 3)]
    out = np.full(shape, 99, np.int8)
    step = eltwise.plan_eltwise(chain(), Space(*shape), Target(level, threads))
    run(step, [x, row, column, *scalars, out])
    np.testing.assert_array_equal(out, evaluate(chain(), None, [x, row, column, *scalars]))


@pytest.mark.parametrize("space", [(1, 1, 1), (1, 1, 10_000), (1, 17, 300), (3, 2, 500), (100, 3, 3), (7, 0, 3)])
@pytest.mark.parametrize("parts", [1, 2, 8, 64])
def test_blocks_cover_the_space(space, parts):
    sizes = eltwise.split(*space, parts)
    assert all(size >= 1 for size in sizes)
    blocks = np.prod([-(-d // s) for d, s in zip(space, sizes, strict=True)])
    if np.prod(space) >= 64 * parts and space[2] < 500:
        assert blocks >= min(parts, space[0] * space[1])


def test_little_work_is_one_block():
    assert eltwise.plan_eltwise(chain(), Space(1, 2, 64), Target(LEVELS[0], 16)).blocks == 1
    assert eltwise.plan_eltwise(chain(), Space(1, 1024, 1024), Target(LEVELS[0], 16)).blocks == 64
    assert eltwise.plan_eltwise(chain(), Space(1, 1, 1 << 20), Target(LEVELS[0], 16)).blocks == 64
    assert eltwise.plan_eltwise(chain(), Space(1, 1024, 1024), Target(LEVELS[0], 1)).blocks == 1


def test_a_store_of_an_accumulator_is_refused():
    with pytest.raises(ValueError, match="no accumulator"):
        eltwise.plan_eltwise(Epilogue(acc(), "s32"), Space(1, 1, 1), Target(LEVELS[0]))


def test_the_team_runs_steps_in_order():
    level, x = LEVELS[-1], np.arange(400_000, dtype=np.float32).reshape(400, 1000)
    y, z = np.empty_like(x), np.empty_like(x)
    double = eltwise.plan_eltwise(Epilogue(load(0, "f32", "vector") * 2.0, "f32"), Space(1, *x.shape), Target(level, 2))
    plus = eltwise.plan_eltwise(Epilogue(load(0, "f32", "vector") + 1.0, "f32"), Space(1, *x.shape), Target(level))
    slots = [(a.ctypes.data, 0, a.strides[0]) for a in (x, y, z)]
    args = [double.arguments({}, slots[:2]), plus.arguments({}, slots[1:])]
    assert (double.blocks > 1, double.pieces, plus.blocks, plus.pieces) == (True, 2, 1, 0)
    team.StepTable([(step.function, x.ctypes.data, step.blocks, step.pieces)
                    for step, x in zip((double, plus), args, strict=True)]).run()
    np.testing.assert_array_equal(z, x * 2 + 1)

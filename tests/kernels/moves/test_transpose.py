"""Transposes against NumPy: every loop, every size of element, odd sizes; nothing outside of the tensors is touched."""
from itertools import permutations
from math import prod

import numpy as np
import pytest
from all_pairs import all_pairs

import graphq as gq
from graphq.kernels.moves.transpose import is_view, loops, plan_transpose
from graphq.kernels.target.isa import LEVELS
from graphq.plan.plan import Target

DTYPES = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
GUARD = 64


def numbers(shape, itemsize):
    """Different elements, as far as there are any."""
    bits = np.arange(prod(shape), dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15) >> np.uint64(64 - 8 * itemsize)
    return bits.astype(DTYPES[itemsize]).reshape(shape)


def check(shape, order, itemsize, threads=1):
    """Run between guards: source and target lie at odd places, what is around the target stays."""
    x = numbers(shape, itemsize)
    held = np.zeros(x.nbytes + 1, np.uint8)
    held[1:] = x.reshape(-1).view(np.uint8)
    room = np.full(x.nbytes + 2 * GUARD + 1, 0x55, np.uint8)
    step = plan_transpose(shape, order, itemsize, Target(LEVELS[0], threads))
    step.run(step.arguments({"source": held.ctypes.data + 1, "target": room.ctypes.data + GUARD + 1}))
    got = room[GUARD + 1:GUARD + 1 + x.nbytes]
    wanted = np.ascontiguousarray(x.transpose(order)).reshape(-1).view(np.uint8)
    np.testing.assert_array_equal(got, wanted, err_msg=f"{shape} {order} {itemsize}")
    assert (room[:GUARD + 1] == 0x55).all() and (room[GUARD + 1 + x.nbytes:] == 0x55).all()
    return step


@pytest.mark.parametrize("itemsize", DTYPES)
@pytest.mark.parametrize(("m", "n"), [(1, 9), (9, 1), (5, 7), (16, 16), (64, 64), (64, 17), (65, 16), (63, 15),
                                      (130, 71), (49, 40), (7, 200), (200, 7)])
def test_matrices(m, n, itemsize):
    check((n, m), (1, 0), itemsize)


@pytest.mark.parametrize("size, itemsize, ways", all_pairs([1, 2, 5, 15, 16, 17, 50, 64, 129], DTYPES, [2, 3, 4]))
def test_channels(ways, size, itemsize):
    check((2, ways, size), (0, 2, 1), itemsize)
    check((2, size, ways), (0, 2, 1), itemsize)


@pytest.mark.parametrize("itemsize", DTYPES)
@pytest.mark.parametrize("run", [1, 2, 3, 4, 5, 8, 16, 21, 64, 100])
def test_runs(run, itemsize):
    """The innermost dimension stays: it becomes a longer element, or its bytes are copied."""
    check((3, 18, 5, run), (0, 2, 1, 3), itemsize)


@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (3, 1, 17, 18), (1, 20, 1, 33), (19, 2, 2, 16)])
@pytest.mark.parametrize("itemsize", [1, 4])
def test_all_orders(shape, itemsize):
    for order in permutations(range(4)):
        check(shape, order, itemsize)


def test_random_shapes():
    rng = np.random.default_rng(0)
    for _ in range(60):
        shape = tuple(int(d) for d in rng.choice([1, 2, 3, 4, 5, 7, 16, 17, 33], rng.integers(1, 7)))
        if prod(shape) < 200_000:
            check(shape, tuple(int(d) for d in rng.permutation(len(shape))), int(rng.choice([1, 2, 4, 8])))


@pytest.mark.parametrize(("shape", "order"), [((), ()), ((5,), (0,)), ((0,), (0,)), ((3, 0, 2), (2, 1, 0)),
                                              ((1, 1), (1, 0)), ((2, 3), (0, 1))])
def test_nothing_to_move(shape, order):
    step = check(shape, order, 4)
    assert step.blocks == (0 if 0 in shape else 1)
    assert is_view(shape, order)


@pytest.mark.parametrize(("shape", "order", "maker"), [
    ((1, 64, 56, 56), (0, 2, 3, 1), ("transposing", 1)), ((1, 448, 448, 3), (0, 3, 1, 2), ("weaving", 1, 3, 1)),
    ((1, 3, 448, 448), (0, 2, 3, 1), ("weaving", 1, 3, 0)), ((2, 96, 12, 65), (0, 2, 1, 3), ("copying",)),
    ((2, 96, 12, 4), (0, 2, 1, 3), ("transposing", 4))])
@pytest.mark.parametrize("threads", [1, 2])
def test_blocks_of_threads(shape, order, maker, threads):
    found = loops(shape, order, 1)
    assert (found.maker.__name__, *found.of) == maker
    step = check(shape, order, 1, threads)
    assert step.blocks >= threads


@pytest.mark.parametrize(("shape", "order", "view"), [
    ((2, 8, 1, 1), (0, 2, 3, 1), True), ((1, 8, 5, 1), (1, 0, 3, 2), True), ((2, 1, 5, 6), (0, 2, 3, 1), True),
    ((2, 8, 5, 1), (0, 2, 3, 1), False), ((8, 5), (1, 0), False)])
def test_views(shape, order, view):
    assert is_view(shape, order) == view
    x = numbers(shape, 4)
    assert view == (x.transpose(order).tobytes() == x.tobytes())


ELEMENTS = ["u8", "s8", "f16", "bf16", "f32", "s32", "s64", "boolean", "f8_e4m3"]


@pytest.mark.parametrize("dtype", ELEMENTS)
@pytest.mark.parametrize("threads", [1, 2])
def test_compiled(width, dtype, threads):
    """Transposes of all dtypes are steps of a plan: between other steps, as outputs, and of views."""
    g = gq.Graph()
    x = g.input("x", dtype=dtype, shape=(2, 6, 40, 35))
    y = g.static_transpose(x, order=[0, -2, -1, 1])
    z = g.static_transpose(g.static_reshape(y, shape=[40, 70, 6]), order=[2, 1, 0])
    view = g.static_transpose(g.static_reshape(x, shape=[2, 8400, 1]), order=[2, 0, 1])
    g.set_outputs([y, z, view], ["y", "z", "view"])
    model = gq.compile(g, isa=width, threads=threads, strict=True)
    data = numbers((2, 6, 40, 35), 1).astype(x.dtype.numpy)
    for name, wanted in gq.reference(g, x=data).items():
        assert model(x=data)[name].tobytes() == wanted.tobytes()
    size = 16800 * x.dtype.itemsize / 1000
    text = model.explain()
    assert f"layouts: 2 reorders, {2 * size:.0f} KB" in text
    assert f"reorder {dtype}[2,6,40,35] -> [2,40,35,6] ({size:.0f} KB)" in text
    assert text.count(" by transposing_") == 2


def test_little_work_is_serial_however_many_its_blocks():
    steps = [plan_transpose((n, 12, 3, 64), (0, 2, 1, 3), 1, Target(LEVELS[0], 2)) for n in (2, 2000)]
    assert [s.pieces for s in steps] == [0, 2] and steps[0].blocks > 1

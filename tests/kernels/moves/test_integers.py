"""Arithmetic, comparisons and sums of integers run as kernels, and give what the references give."""
import numpy as np
import pytest

import graphq as gq
from graphq.dtypes import s32, s64
from graphq.errors import CompileError
from graphq.kernels.moves.integers import ARITHMETIC, COMPARISONS, plan_combined
from graphq.kernels.target.isa import LEVELS
from graphq.plan.plan import Target

rng = np.random.default_rng(4)
SHAPES = [((7,), (7,)), ((3, 5), ()), ((1, 1), (5,)), ((3, 1), (1, 5)), ((2, 3, 1), (2, 3, 4)), ((2, 3, 4), (4,)),
          ((4,), (2, 3, 4)), ((1,), (1,)), ((2, 0), (1, 1))]


def integers(shape, dtype):
    """Small numbers, of which many are equal, and the limits of the dtype."""
    x = np.asarray(rng.integers(-3, 4, shape), dtype)
    info = np.iinfo(dtype)
    return np.where(rng.random(shape) < 0.2, rng.choice(np.array([info.min, info.max], dtype), shape), x).astype(dtype)


def graph(function, dtype, *shapes):
    g = gq.Graph()
    a, b = (g.input(n, dtype=dtype, shape=s) for n, s in zip("ab", shapes, strict=True))
    g.output(g.arithmetic(a, b, function=function) if function in ARITHMETIC else getattr(g, function)(a, b), name="y")
    return g


@pytest.mark.parametrize("function", [*ARITHMETIC, *COMPARISONS])
@pytest.mark.parametrize("dtype", ["s32", "s64"])
def test_as_the_reference(function, dtype):
    numpy = {"s32": np.int32, "s64": np.int64}[dtype]
    for shapes in SHAPES:
        g = graph(function, dtype, *shapes)
        feeds = {n: integers(s, numpy) for n, s in zip("ab", shapes, strict=True)}
        model = gq.compile(g, strict=True)
        np.testing.assert_array_equal(model(feeds), gq.reference(g, feeds))


def test_open_shapes():
    g = graph("add", "s64", (None, 1), (1, None))
    model = gq.compile(g, strict=True)
    for rows, columns in ((3, 4), (5, 9), (1, 4), (4, 1)):
        feeds = {"a": integers((rows, 1), np.int64), "b": integers((1, columns), np.int64)}
        np.testing.assert_array_equal(model(feeds), gq.reference(g, feeds))


@pytest.mark.parametrize("function, dtype, shapes", [
    ("add", "s64", ((2, 1, 3), (1, 4, 1))), ("less", "s16", ((3,), (3,))), ("divide", "s64", ((3,), (3,)))])
def test_what_is_left_to_the_reference(function, dtype, shapes):
    g = gq.Graph()
    a, b = (g.input(n, dtype=dtype, shape=s) for n, s in zip("ab", shapes, strict=True))
    g.output(getattr(g, function)(a, b) if function == "less" else g.arithmetic(a, b, function=function), name="y")
    with pytest.raises(CompileError, match="1 operation would run by NumPy references"):
        gq.compile(g, strict=True)
    numpy = {"s16": np.int16, "s64": np.int64}[dtype]
    feeds = {n: np.arange(1, 1 + np.prod(s), dtype=numpy).reshape(s) for n, s in zip("ab", shapes, strict=True)}
    np.testing.assert_array_equal(gq.compile(g)(feeds), gq.reference(g, feeds))


@pytest.mark.parametrize("dtype, dims, wanted", [
    (s64, (3, 5), (1, 15, 0, 8)), (s64, (3, 1), (3, 5, 8, 0)), (s32, (1, 5), (3, 5, 0, 4)),
    (s32, (1, 1), (1, 15, 0, 0))])
def test_strides(dtype, dims, wanted):
    step = plan_combined("add", dtype, [dims, (3, 5)], (3, 5), Target(LEVELS[0]))
    assert tuple(step.words[name] for name in ("rows", "columns", "a_row", "a_column")) == wanted


def test_operands_that_are_not_evenly_spaced():
    assert plan_combined("add", s64, [(2, 1, 3), (1, 4, 1)], (2, 4, 3), Target(LEVELS[0])) is None


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("shape, axes", [((3, 40), [1]), ((3, 4, 5), [-1, 1]), ((6,), [0]), ((3, 4), []),
                                         ((0, 3), [1])])
def test_sums(dtype, shape, axes):
    for keep in (False, True):
        g = gq.Graph()
        x = g.input("x", dtype=f"s{8 * np.dtype(dtype).itemsize}", shape=shape)
        g.output(g.integer_sum(x, axes=axes, keep_dims=keep), name="y")
        feeds = {"x": integers(shape, dtype)}
        np.testing.assert_array_equal(gq.compile(g, strict=True)(feeds), gq.reference(g, feeds))


def test_a_sum_along_another_axis():
    g = gq.Graph()
    g.output(g.integer_sum(g.input("x", dtype="s64", shape=(3, 4)), axes=[0]), name="y")
    x = integers((3, 4), np.int64)
    np.testing.assert_array_equal(gq.compile(g)(x), x.sum(axis=0))

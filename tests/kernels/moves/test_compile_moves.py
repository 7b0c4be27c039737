"""Compiled slices, gathers and casts of integers: by kernels, equal to the reference."""
import numpy as np
import pytest
from all_pairs import all_pairs
from compiled import compiled_beside_reference
from guarded_memory import guarded
from levels import WIDTHS

import graphq as gq
from graphq.errors import GraphError, InputError
from graphq.kernels.moves.transpose import dense, plan_strided_copy, run_bytes
from graphq.kernels.target.isa import LEVELS
from graphq.plan.plan import Target

SLICES = [  # shape, axes, starts, ends, steps
    ((1, 40, 3, 8, 15), [2], [1], [2], [1]),
    ((6, 7, 33), [0, 2], [-1, 30], [-99, 3], [-2, -1]),
    ((5, 9, 20), [-2], [2], [-1], [3]),
    ((4, 70), [0, 1], [1, 3], [3, 69], [1, 1]),
    ((4, 6), [0], [3], [1], [1]),
    ((130,), [0], [-1], [-200], [-1]),
]


def sliced(shape, axes, starts, ends, steps, dtype="f32"):
    g = gq.Graph()
    x = g.input("x", dtype=dtype, shape=shape)
    g.output(g.slice(x, axes=axes, starts=starts, ends=ends, steps=steps), name="y")
    return g


def gathered(shape, axis, indices, dtype="f32", index="s64"):
    g = gq.Graph()
    x, i = g.input("x", dtype=dtype, shape=shape), g.input("i", dtype=index, shape=indices)
    g.output(g.gather(x, i, axis=axis), name="y")
    return g


@pytest.mark.parametrize("case", SLICES)
@pytest.mark.parametrize("dtype", ["u8", "f32", "s64", "boolean"])
@pytest.mark.parametrize("threads", [1, 2])
def test_slices(case, dtype, threads):
    got, want, text = compiled_beside_reference(sliced(*case, dtype=dtype), None, threads)
    assert (got == want).all() and ("copying" in text or not got.size)


def test_slices_of_many_elements_that_lie_apart_are_numpys():
    g = sliced((100, 64), [1], [0], [64], [2])
    model = gq.compile(g)
    assert "NumPy reference" in model.explain()
    x = np.arange(6400, dtype=np.float32).reshape(100, 64)
    assert (model(x=x) == x[:, ::2]).all()


@pytest.mark.parametrize("shape,axis,count", [((50, 70), 0, (3, 4)), ((3, 20, 7, 5), 1, (9,)), ((2, 3, 5), -1, ()),
                                              ((40,), 0, (6,)), ((2000, 8), 0, (900,))])
@pytest.mark.parametrize("dtype,index", [("f32", "s64"), ("u8", "s32"), ("boolean", "s64")])
@pytest.mark.parametrize("threads", [1, 2])
def test_gathers(shape, axis, count, dtype, index, threads):
    model = gq.compile(gathered(shape, axis, count, dtype, index), threads=threads, strict=True)
    rng = np.random.default_rng(0)
    x = rng.integers(0, 2, shape).astype(model.source.inputs[0].dtype.numpy)
    i = np.asarray(rng.integers(-shape[axis], shape[axis], count), np.int64 if index == "s64" else np.int32)
    assert (model(x=x, i=i) == np.take(x, i, axis=axis)).all() and "gathering" in model.explain()


@pytest.mark.parametrize("index", [50, -51, 2**40, -2**63])
def test_an_index_outside_is_an_error_and_reads_nothing(index):
    model = gq.compile(gathered((50, 70), 0, (3,)), strict=True)
    x = np.ones((50, 70), np.float32)
    for _ in range(2):
        with pytest.raises(InputError, match=rf"must be in \[-50, 49\] for axis 0 of shape \[50,70\], got {index}$"):
            model(x=x, i=np.asarray([1, index, 2]))
        assert (model(x=x, i=np.asarray([1, -50, 2])) == 1).all()
    with pytest.raises(InputError, match="must be in"):
        model.profile(x=x, i=np.asarray([1, index, 2]), runs=1)


def test_gathers_of_nothing():
    assert gq.compile(gathered((3, 0), 0, (2,)))(x=np.zeros((3, 0), np.float32), i=np.asarray([0, 2])).shape == (2, 0)
    with pytest.raises(InputError, match="must be in"):
        gq.compile(gathered((0, 3), 0, (2,)))(x=np.zeros((0, 3), np.float32), i=np.asarray([0, 2]))


def test_slices_touch_nothing_beyond_the_buffers():
    x, out = guarded(np.arange(130, dtype=np.uint8)), guarded(np.zeros(130, np.uint8))
    step = plan_strided_copy((130,), (-1,), 1, Target(LEVELS[0]))
    step.run(step.arguments({"source": x.ctypes.data + 129, "target": out.ctypes.data}, []))
    assert (out == x[::-1]).all()


def test_bytes_that_lie_together():
    assert run_bytes((4, 5, 6), dense((4, 5, 6), 4), 4) == 480
    assert run_bytes((4, 2, 6), dense((4, 5, 6), 4), 4) == 48
    assert run_bytes((4, 5, 3), dense((4, 5, 6), 4), 4) == 12 and run_bytes((4, 5), (8, 40), 4) == 4


INTEGERS = ["s64", "s32", "s16", "s8", "u64", "u32", "u16", "u8", "boolean"]


def as_dtype(source, target, size):
    g = gq.Graph()
    g.output(g.cast(g.input("x", dtype=source, shape=(size,)), dtype=target), name="y")
    return g


@pytest.mark.parametrize("target, source, width", all_pairs([*INTEGERS, "f32"], INTEGERS, WIDTHS), indirect=["width"])
def test_casts_of_integers(width, source, target):
    """Also numbers that f32 rounds, ties and carries among them, and numbers that wrap."""
    g = as_dtype(source, target, 151)
    model = gq.compile(g, isa=width, threads=2, strict=True)
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 2**64, 151, np.uint64) >> rng.integers(0, 64, 151).astype(np.uint64)
    bits[:8] = 0, 1, 2**24 + 1, 2**24 + 3, 2**63, 2**64 - 1, 2**63 - 1, 2**40 + 2**16
    dtype = g.inputs[0].dtype.numpy
    x = bits % 2 == 1 if source == "boolean" else bits.astype(dtype)
    got = model(x=x)
    assert got.tobytes() == gq.reference(g, x=x).tobytes()


@pytest.mark.parametrize("size", [0, 1, 15, 16, 100_003])
def test_casts_of_many_elements(size):
    g = as_dtype("s64", "boolean", size)
    x = np.random.default_rng(0).integers(-1, 2, size)
    assert (gq.compile(g, threads=2)(x=x) == (x != 0)).all()


def test_casts_of_floats_to_64_bits_are_numpys():
    g = as_dtype("f32", "s64", 4)
    model = gq.compile(g)
    assert "1 operation outside" in model.explain() and "NumPy reference" in model.explain()
    assert model(x=np.float32([1.5, -2.5, np.nan, 1e20])).tolist() == [1, -2, 0, 2**63 - 1]


PADS = [  # shape, pads at the beginning, pads at the end
    ((3, 5), (1, 0), (0, 2)), ((2, 3, 4, 5), (0, 0, 2, 1), (0, 0, 1, 3)), ((4, 5, 6), (1, -2, 2), (2, 1, -3)),
    ((6,), (3,), (5,)), ((2, 3, 40, 7), (1, 2, 3, 4), (0, 1, 2, 3)), ((3, 4), (0, 0), (0, 0)),
    ((3, 4), (-1, 0), (-2, 0)), ((5, 6, 7), (-1, -2, 1), (0, -1, -3)), ((), (), ()),
    # as far as reflect and wrap reach within a copy, and one further
    ((5, 40), (4, 39), (4, 39)), ((5, 40), (5, 0), (0, 40)), ((5, 40), (0, 40), (5, 0)), ((5, 40), (6, 0), (0, 41)),
]


@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "wrap"])
@pytest.mark.parametrize("dtype", ["f32", "u8", "f16", "s64"])
@pytest.mark.parametrize("shape, begin, end", PADS)
def test_pads(shape, begin, end, dtype, mode):
    g = gq.Graph()
    x = g.input("x", dtype=dtype, shape=shape)
    g.output(g.pad(x, pads_begin=begin, pads_end=end, mode=mode, value=3), name="y")
    given = np.random.default_rng(0).integers(0, 100, shape).astype(x.dtype.numpy)
    for threads in (1, 2):
        got = gq.compile(g, threads=threads)(x=given)
        np.testing.assert_array_equal(got, gq.reference(g, x=given))
        assert got.dtype == given.dtype


def test_pads_run_in_kernels():
    g = gq.Graph()
    x = g.input("x", dtype="f32", shape=(2, 3, 9, 8))
    y = g.pad(x, pads_begin=[0, 0, 2, 2], pads_end=[0, 0, 2, 2], mode="reflect")
    g.output(g.expand(g.pad(y, pads_begin=[0, 1, 0, 0], pads_end=[0, 0, 0, 1]), shape=[5, 1, 4, 13, 13]), name="y")
    gq.compile(g, strict=True)


@pytest.mark.parametrize("shape, to", [((1, 4, 1, 9, 8), (2, 4, 3, 9, 8)), ((4, 1), (4, 6)), ((), (3, 2)),
                                       ((5,), (2, 0, 5)), ((3, 1, 500), (2, 1, 7, 1)), ((2000, 1), (2000, 3))])
def test_expands(shape, to):
    g = gq.Graph()
    g.output(g.expand(g.input("x", dtype="f32", shape=shape), shape=to), name="y")
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    np.testing.assert_array_equal(gq.compile(g)(x=x), gq.reference(g, x=x))


@pytest.mark.parametrize("mode", ["edge", "reflect", "wrap"])
@pytest.mark.parametrize("shape", [(2, 0), (None, None)])
def test_pads_that_repeat_need_an_element(mode, shape):
    g = gq.Graph()
    with pytest.raises(GraphError, match=f"pad.*mode {mode} has no element to repeat along axis 1 of f32.2,0."):
        g.output(g.pad(g.input("x", dtype="f32", shape=shape), pads_begin=[0, 1], pads_end=[0, 0], mode=mode))
        gq.compile(g)(x=np.zeros((2, 0), np.float32))

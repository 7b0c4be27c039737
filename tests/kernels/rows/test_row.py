"""Compiled operations along rows against their formulas, bit for bit, and against the reference."""
import numpy as np
import pytest
from all_pairs import all_pairs
from compiled import compiled_beside_reference
from guarded_memory import guarded
from levels import WIDTHS

import graphq as gq
from graphq.dtypes import DTYPES
from graphq.kernels.lanes import quantizing
from graphq.kernels.lanes.epilogues import Epilogue
from graphq.kernels.lanes.expression import STORAGE, acc, load
from graphq.kernels.numbers import rows
from graphq.kernels.numbers.mean_sums import row_totals
from graphq.kernels.numbers.rows import reduced, squares
from graphq.kernels.operands.space import Space
from graphq.kernels.rows import family as row
from graphq.kernels.rows.lower import NUMBERS, REDUCTIONS, ROWS, RowLowering
from graphq.kernels.target import isa
from graphq.plan.plan import Target

LENGTHS = (1, 2, 5, 8, 13, 16, 23, 40, 70)
TOLERANCE = {"f32": 1e-5, "bf16": 8e-3, "f16": 1e-3}


def apply(g, op, x, **attrs):
    """The operation along the last axis of x, with gamma and beta as inputs where it takes them."""
    n = x.type.dims[-1:]
    if op in REDUCTIONS:
        return getattr(g, op)(x, axes=[-1], keep_dims=True)
    if op in ("softmax", "log_softmax"):
        return getattr(g, op)(x, axis=-1, **attrs)
    gamma, beta = (g.input(name, dtype="f32", shape=n) for name in ("gamma", "beta"))
    return g.rms_norm(x, gamma) if op == "rms_norm" else g.layer_norm(x, gamma, beta, keep_stats=False)


def graph(op, n, dtype="f32", shape=(3, 4), **attrs):
    g = gq.Graph()
    g.output(apply(g, op, g.input("x", dtype=dtype, shape=(*shape, n)), **attrs), name="y")
    return g


@pytest.mark.parametrize("n, op, width", all_pairs(LENGTHS, sorted(ROWS), WIDTHS), indirect=["width"])
def test_rows_of_floats(width, op, n):
    got, want, text = compiled_beside_reference(graph(op, n), width)
    assert f"row partition ({op})" in text
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("op", sorted(ROWS))
@pytest.mark.parametrize("shape", [(), (1, 1), (0, 3)])
def test_one_row_and_none(width, op, shape):
    g = graph(op, 19, shape=shape)
    got, want, _ = compiled_beside_reference(g, width)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("op, width, dtype", all_pairs(sorted(ROWS), WIDTHS, ["bf16", "f16"]), indirect=["width"])
def test_rows_of_halves(width, op, dtype):
    got, want, _ = compiled_beside_reference(graph(op, 37, dtype), width)
    wide = got.astype(np.float64), want.astype(np.float64)
    np.testing.assert_allclose(*wide, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


@pytest.mark.parametrize("op", ["softmax", "layer_norm"])
def test_a_chain_before_and_after(width, op):
    """Dequantize, a residual and a mask before; scale, residual and quantize after."""
    g = gq.Graph()
    x, z = g.input("x", dtype="u8", shape=(2, 3, 5, 40)), g.input("z", dtype="s8", shape=(2, 3, 5, 40))
    mask, rows = g.input("mask", dtype="f32", shape=(2, 1, 1, 40)), g.input("rows", dtype="f32", shape=(5, 1))
    y = g.add(g.add(g.dequantize(x, scales=[0.02], zps=[100]), g.dequantize(z, scales=[0.1])), mask)
    y = g.multiply(g.add(apply(g, op, y), g.input("r", dtype="f32", shape=(2, 3, 5, 40))), rows)
    g.output(g.quantize(y, dtype="u8", scales=[0.01], zps=[100]), name="y")
    got, want, text = compiled_beside_reference(g, width)
    assert text.count("row partition (") == 1
    off = np.abs(got.astype(int) - want)
    assert off.max() <= 1 and (off > 0).sum() <= 1


@pytest.mark.parametrize("op", ["reduce_mean", "reduce_max"])
def test_an_epilogue_of_reduced_rows(width, op):
    g = gq.Graph()
    x, z = g.input("x", dtype="u8", shape=(2, 7, 40)), g.input("z", dtype="f32", shape=(7, 1))
    y = g.multiply(apply(g, op, g.square(g.dequantize(x, scales=[0.02], zps=[100]))), z)
    g.output(g.quantize(g.add(y, g.input("b", dtype="f32", shape=(1,))), dtype="s8", scales=[0.1]), name="y")
    got, want, text = compiled_beside_reference(g, width)
    assert text.count("row partition (") == 1 and np.abs(got.astype(int) - want).max() <= 1


@pytest.mark.parametrize("mode", ["none", "inf_as_zero"])
def test_softmax_of_infinities_and_nan(width, mode):
    inf, nan = np.inf, np.nan
    x = np.float32([[0, -inf, 1, -200], [-inf] * 4, [nan, 0, 1, 2], [inf, 0, 1, 2], [-0.0, 0, -0.0, 0],
                    [3e38, -3e38, 0, 1]])
    g = graph("softmax", 4, shape=(6,), mode=mode)
    model = gq.compile(g, isa=width, strict=True)
    with np.errstate(all="ignore"):
        got, want, reference = model(x=x), model.formula(x=x), gq.reference(g, x=x)
    np.testing.assert_array_equal(got, want)
    np.testing.assert_allclose(got, reference, rtol=1e-6)
    assert got[0, 1] == got[0, 3] == 0


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
@pytest.mark.parametrize("n", [1, 15, 64, 300])
def test_stepwise_softmax(width, dtype, n):
    """Equal bits at every level; beside the reference only the order of a sum and the last bit of a power matter."""
    kind, rng = DTYPES[dtype].numpy, np.random.default_rng(n)
    x = (rng.standard_normal((3, 9, n)) * 5).astype(kind)
    x[0] = rng.choice(np.float32([np.nan, np.inf, -np.inf, -0.0, 0.0, 1, -2, 6e4, 6e-8]), (9, n)).astype(kind)
    x[1, 0] = -np.inf
    g = gq.Graph()
    y = g.softmax(g.add(g.input("x", dtype=dtype, shape=(3, 9, n)), kind.type(0.5)), axis=-1, mode="stepwise")
    g.output(g.multiply(y, kind.type(3)), name="y")
    model = gq.compile(g, isa=width, strict=True)
    with np.errstate(all="ignore"):
        got, want, reference = (y.astype(np.float32) for y in (model(x=x), model.formula(x=x), gq.reference(g, x=x)))
    np.testing.assert_array_equal(got, want)
    step = 2**-7 if dtype == "bf16" else 2**-10
    np.testing.assert_allclose(got, reference, rtol=2.1 * step, atol=1e-6)
    assert (got == reference)[1:].mean() > 0.9


@pytest.mark.parametrize("op", ["reduce_max", "reduce_min", "reduce_sum"])
@pytest.mark.parametrize("n", [4, 19])
def test_reductions_of_special_values(width, op, n):
    x = np.random.default_rng(0).choice(np.float32([np.nan, np.inf, -np.inf, -0.0, 0.0, 1, -2, 3e38]), (3, 64, n))
    x[0] = np.nan_to_num(x[0], nan=5)
    model = gq.compile(graph(op, n, shape=(3, 64)), isa=width, strict=True)
    with np.errstate(all="ignore"):
        got, want, reference = model(x=x), model.formula(x=x), gq.reference(graph(op, n, shape=(3, 64)), x=x)
    np.testing.assert_array_equal(got, want)
    if op != "reduce_sum":
        np.testing.assert_array_equal(got, reference)


@pytest.mark.parametrize("how", ["sum", "l1", "l2"])
def test_zeros_behind_a_row_change_no_bit_of_its_sum(how):
    """Of rows of -0, too, whose sum is +0 with any padding. Kernels equal the formula."""
    x = np.random.default_rng(0).standard_normal((12, 70)).astype(np.float32)
    x[:4] = -0.0
    for n in range(1, 70):
        alone = reduced(how, x[:, :n])
        assert not np.signbit(alone[:4]).any()
        for more in (1, 3, 8, 33):
            assert reduced(how, np.pad(x[:, :n], [(0, 0), (0, more)])).tobytes() == alone.tobytes(), (n, more)


def test_a_small_deviation_beside_a_large_mean():
    """The mean is exact to the last bit, and subtracted before squares are taken."""
    x = np.float32(1000) + np.random.default_rng(0).normal(size=(3, 4, 70)).astype(np.float32) * np.float32(0.01)
    g = graph("layer_norm", 70)
    arrays = {"x": x, "gamma": np.ones(70, np.float32), "beta": np.zeros(70, np.float32)}
    np.testing.assert_allclose(gq.compile(g)(**arrays), gq.reference(g, arrays), rtol=2e-4, atol=5e-3)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_thread_counts_and_splits(threads):
    g = graph("softmax", 100, shape=(7, 130))
    x = gq.testing.random_inputs(g)
    assert gq.compile(g, threads=threads)(**x).tobytes() == gq.compile(g, isa="scalar", threads=1)(**x).tobytes()


@pytest.mark.parametrize("how, width, n, dtype", all_pairs(sorted(ROWS), WIDTHS, [1, 7, 37], ["f32", "u8"]),
                         indirect=["width"])
def test_nothing_beyond_the_buffers_is_touched(width, how, n, dtype):
    """Source, room, numbers and result lie at the end of readable memory."""
    chosen = next(one for one in isa.available() if one.name == width)
    reduces = how in REDUCTIONS
    x, out = guarded(np.ones((2, n), np.float32)), guarded(np.zeros((2, 1 if reduces else n), STORAGE[dtype]))
    result = acc("f32") if dtype == "f32" else quantizing.quantize(acc("f32"), 100.0, 3.0, "u8")
    epilogue, prologue = Epilogue(result, dtype), Epilogue(load(0, "f32", "vector"), "f32")
    step = row.plan_row(RowLowering(how, (2, n), prologue, ()), epilogue, Space(1, 2, n), Target(chosen))
    room = guarded(np.zeros((step.words["room_count"], n), np.float32))
    numbers = guarded(np.zeros((NUMBERS.get(how, 1), 2), np.float32))
    epsilon = guarded(np.float32([1e-5]))
    header = {"numbers": numbers.ctypes.data, "epsilon": epsilon.ctypes.data}
    args = step.arguments(header, [(x.ctypes.data, 0, 4 * n), (out.ctypes.data, 0, out.strides[0])])
    args[list(step.words).index("rooms")] = room.ctypes.data
    step.run(args)
    assert (out[0] == out[1]).all() and np.isfinite(out).all()


def test_sums_in_their_order():
    """Chains of 8 lanes, then halves; the rest follows, four squares of it unfused."""
    big = np.float32(2**24)
    x = np.zeros((1, 13), np.float32)
    x[0, [0, 4, 8]] = big, -big, 1
    assert row_totals(x)[0] == 1  # lanes 0 and 4 cancel first
    x[0, [0, 4, 8, 12]] = 1, 2, 3, 4
    assert squares(x)[0] == 30
    d = np.float32([[1] + [0] * 7 + [1 + 2**-12, 0, 0, 0, 0]])
    assert squares(d)[0] == np.float32(1) + np.float32(1 + 2**-11)  # the square loses 2**-24
    assert STORAGE["f32"] == squares(d).dtype


@pytest.mark.parametrize("op", ["rms_norm", "layer_norm"])
@pytest.mark.parametrize("size, epsilon, in_range", [
    (1e-18, 0.0, True), (1e-23, 0.0, False), (1e-40, 0.0, False), (1e-23, 1e-5, True), (1e-40, 1e-5, True)])
def test_norms_of_numbers_whose_squares_vanish_are_infinite_without_epsilon(op, size, epsilon, in_range):
    """The limit that docs/onnx.md states: with an epsilon, and of larger numbers, they are the reference's."""
    x = (np.linspace(-1, 0.7, 16) * size).astype(np.float32).reshape(1, 16)
    with np.errstate(all="ignore"):
        numbers = getattr(rows, op)(x, epsilon)
    g = gq.Graph()
    v, attrs = g.input("x", shape=(1, 16), dtype="f32"), {"epsilon": epsilon}
    g.output(g.rms_norm(v, **attrs) if op == "rms_norm" else
             g.layer_norm(v, keep_stats=False, use_affine=False, **attrs), name="y")
    want = gq.reference(g, x=x)
    want = want if in_range else np.copysign(np.inf, want)
    np.testing.assert_allclose(numbers, want, rtol=1e-4, atol=1e-42)


@pytest.mark.parametrize("size, in_range", [(1e18, True), (1e20, False), (1e38, False)])
@pytest.mark.parametrize("op", ["layer_norm", "rms_norm"])
def test_norms_of_numbers_whose_squares_leave_f32_are_0(op, size, in_range):
    """The limit that docs/onnx.md states."""
    g = gq.Graph()
    more = {"use_affine": False, "keep_stats": False} if op == "layer_norm" else {}
    g.output(getattr(g, op)(g.input("x", dtype="f32", shape=(1, 20)), **more))
    x = (np.linspace(-1, 3, 20) * size).astype(np.float32)[None]
    want = gq.reference(g, x=x)
    assert np.abs(want).max() > 1
    np.testing.assert_allclose(gq.compile(g)(x=x), want if in_range else 0 * want, rtol=1e-5)

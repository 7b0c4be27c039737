"""Every float matmul kernel, in every way to read activations, against the NumPy sums bit for bit."""
from contextlib import nullcontext
from functools import cache

import numpy as np
import pytest
from float_arrays import float_array, tiny_arrays
from guarded_memory import guarded

from graphq.kernels import levels
from graphq.kernels.lanes.epilogues import Epilogue, evaluate
from graphq.kernels.lanes.expression import STORAGE, acc, load, maximum
from graphq.kernels.matmul import kernel_table, pack
from graphq.kernels.matmul import plan as matmul
from graphq.kernels.matmul.kernel_table import KERNELS, select
from graphq.kernels.numbers.float_sums import BLOCK, SMALLEST_NORMAL, float_sums, tile_sums
from graphq.kernels.operands.windows import windows
from graphq.kernels.target import isa
from graphq.plan.plan import Target

RAW = Epilogue(acc("f32"), "f32")
NATIVE = [level.name for level in isa.available()]
FLOATS = [k for k in KERNELS.values() if k.dtypes in kernel_table.FLOATS]
FIRST = {(k.level, k.dtypes): k for k in reversed(FLOATS)}
LAST = {(k.level, k.dtypes): k for k in FLOATS}
# Only bf16 and f16 have instructions to emulate; levels that the machine lacks are tried on one tile shape, and others
# on the smallest, since emulated kernels compile slowly.
# f16 differs from f32 only in how numbers are loaded: the largest tile and the tile of one row suffice.
RUNS = [pytest.param(k, False, id=k.name) for k in FLOATS if k.level in NATIVE and (
    k.dtypes[0] != "f16" or k in (FIRST[k.level, k.dtypes], LAST[k.level, k.dtypes]))]
RUNS += [pytest.param(k, True, id=f"{k.name}-emulated") for k in FLOATS if k.level != "scalar" and (
    k is FIRST[k.level, k.dtypes] if k.level not in NATIVE else k.dtypes[0] != "f32" and k is LAST[k.level, k.dtypes])]
SHAPES = [(1, 1, 1), (1, 64, 16), (2, 3, 5), (5, 70, 37), (9, 64, 33), (13, 129, 80), (17, 2, 130), (3, BLOCK, 17),
          (2, BLOCK + 1, 20), (9, 2 * BLOCK + 3, 3)]


def level_of(kernel, emulated):
    return isa.emulate(kernel.level) if emulated else nullcontext(isa.level_named(kernel.level))


@cache
def case(dtype, m, k, n, special=False):
    """Operands and their sums."""
    a, w = float_array(dtype, (m, k), m, special), float_array(dtype, (k, n), k + n, special)
    return a, w, tile_sums(a, w)


def assert_same(got, expected):
    """Equal bits, except that all NaNs are one."""
    assert got.dtype == expected.dtype and got.shape == expected.shape
    np.testing.assert_array_equal(np.isnan(got), np.isnan(expected))
    bits = [np.where(np.isnan(x), np.float32(0), x).view(np.int32) for x in (got, expected)]
    np.testing.assert_array_equal(*bits)


def run(kernel, level, a, w, *, threads=1, layout="rows"):
    """Run the kernel on a (m, k) and w (k, n); the sums."""
    (m, k), n, dtype = a.shape, w.shape[1], kernel.dtypes[0]
    packed, out = guarded(pack.pack(w)), guarded(np.full((m, n), 7, np.float32))
    source = guarded(a.T if layout == "columns" else a)
    step = matmul.plan_matmul(RAW, matmul.Product(dtype, m, n, k, layout=layout), Target(level, threads), kernel)
    step.run(step.arguments({"a": source.ctypes.data, "w": packed.ctypes.data,
                             "stride": source.strides[0]}, [(out.ctypes.data, 0, 4 * n)]))
    return np.array(out)


@pytest.mark.parametrize(("kernel", "emulated"), RUNS)
def test_sums_are_those_of_numpy(kernel, emulated):
    """Of each level and dtype, one tile shape reads columns of all sizes: how, is the same for all shapes."""
    dtype = kernel.dtypes[0]
    columns = emulated or kernel is FIRST[kernel.level, kernel.dtypes]
    with level_of(kernel, emulated) as level:
        for shape in (*SHAPES, (9, 5, 40, True), (14, 37, 65, True)):
            a, w, expected = case(dtype, *shape)
            assert_same(run(kernel, level, a, w, threads=2), expected)
            if columns:
                assert_same(run(kernel, level, a, w, layout="columns"), expected)
        a, w = float_array(dtype, (9, 0)), float_array(dtype, (0, 21))
        assert_same(run(kernel, level, a, w), np.zeros((9, 21), np.float32))
        for m, n in ((0, 5), (5, 0)):
            assert run(kernel, level, float_array(dtype, (m, 8)), float_array(dtype, (8, n))).shape == (m, n)


@pytest.mark.parametrize(("kernel", "emulated"), RUNS)
def test_padding_is_never_multiplied(kernel, emulated):
    """Rows, columns and k past the end have no say: an infinite last element stays inf, not inf * 0."""
    dtype = kernel.dtypes[0]
    a, w = np.ones((3, 7), np.float32), np.ones((7, 5), np.float32)
    a[:, -1], w[-1] = np.inf, 2
    with level_of(kernel, emulated) as level:
        for layout in ("rows", "columns"):
            got = run(kernel, level, a.astype(STORAGE[dtype]), w.astype(STORAGE[dtype]), layout=layout)
            assert (got == np.inf).all()


@cache
def tiny_case(m, k, n):
    """Operands whose sums are subnormal now and then, in chains and of blocks; which matters; and the sums."""
    a, w = tiny_arrays(m, k, n)
    order, expected = np.arange(k) ^ 1, tile_sums(a, w)
    assert (float_sums(a[:, order], w[order]) != expected).mean() > 0.5 and (expected != 0).mean() > 0.5
    assert not ((expected != 0) & (np.abs(expected) < SMALLEST_NORMAL)).any()
    return a, w, expected


@pytest.mark.parametrize(("kernel", "emulated"), [x for x in RUNS if x.values[0].dtypes[0] == "bf16"])
def test_subnormal_numbers_of_bf16_are_zeros(kernel, emulated):
    with level_of(kernel, emulated) as level:
        for shape in ((13, 26, 37), (9, 2 * BLOCK + 44, 20)):
            a, w, expected = tiny_case(*shape)
            assert_same(run(kernel, level, a, w), expected)
            assert_same(run(kernel, level, a, w, layout="columns"), expected)


@pytest.mark.parametrize(("kernel", "emulated"), [x for x in RUNS if x.values[0].dtypes[0] == "bf16"])
def test_sums_of_bf16_that_round_up_to_the_smallest_normal_number_stay(kernel, emulated):
    """CPUs differ: Arm's mode flushes every sum below 2^-126, x86's only sums that 24 bits round to less."""
    parts, expected = zip((2**-160, 2**-126), (2**-151, 2**-126), (1.5 * 2**-151, 0), (2**-150, 0), strict=True)
    a = np.full((1, 2), 2**-70, np.float32).astype(STORAGE["bf16"])
    w = np.array([np.negative(parts), [2**-126] * 4]) * 2**70
    w, expected = np.hstack([w, -w]).astype(STORAGE["bf16"]), np.float32([[*expected, *np.negative(expected)]]) + 0
    with level_of(kernel, emulated) as level:
        assert_same(run(kernel, level, a, w), expected)
        assert_same(tile_sums(a, w), expected)


@pytest.mark.parametrize(("kernel", "emulated"), [
    x for x in RUNS if x.values[0].dtypes[0] == "bf16" and (x.values[1] or x.values[0] in FIRST.values())])
def test_subnormal_numbers_of_f32_in_the_epilogue_of_a_tile_of_bf16_stay(kernel, emulated):
    with level_of(kernel, emulated) as level:
        a, w = (np.full(shape, x, np.float32).astype(STORAGE["bf16"])
                for shape, x in (((2048, 4), 1), ((4, 16), 2**-120)))
        step = matmul.plan_matmul(Epilogue(acc("f32") * np.float32(2**-10), "f32"), matmul.Product("bf16", 2048, 16, 4),
                                  Target(level), kernel)
        packed, out = pack.pack(w), np.zeros((2048, 16), np.float32)
        step.run(step.arguments({"a": a.ctypes.data, "w": packed.ctypes.data, "stride": 8}, [(out.ctypes.data, 0, 64)]))
        assert (out == np.float32(2**-128)).all()


@cache
def convolution(dtype, channels, n):
    """An image, the windows on it, packed weights, and the sums; each tap's channels are padded to whole groups."""
    itemsize = STORAGE[dtype].itemsize
    image, w = float_array(dtype, (5, 6, channels), 1), float_array(dtype, (9, channels, n), 2)
    view = windows((5, 6), (3, 3), (2, 1), (1, 1), ((1, 1), (1, 1)), (3, 6), channels * itemsize)
    k = -(-channels * itemsize // 4) * 4 // itemsize
    padded, taps = np.zeros((9, k, n), w.dtype), np.zeros((18, 9, k), w.dtype)
    padded[:, :channels] = w
    taps[:, :, :channels] = view.gather(image[None], 0)[0]
    flat = padded.reshape(9 * k, n)
    return image, view, pack.pack(flat), tile_sums(taps.reshape(18, 9 * k), flat)


@pytest.mark.parametrize(("kernel", "emulated"), RUNS)
def test_windows_sum_through_all_taps(kernel, emulated):
    dtype, n = kernel.dtypes[0], 19
    with level_of(kernel, emulated) as level:
        for channels in (3, 33, 200):
            image, view, packed, expected = convolution(dtype, channels, n)
            out, block, source = np.zeros((18, n), np.float32), view.block(image[0, 0] * 0), guarded(image)
            product = matmul.Product(dtype, 18, n, channels, layout="windows", taps=9)
            step = matmul.plan_matmul(RAW, product, Target(level), kernel)
            step.run(step.arguments({"a": source.ctypes.data, "w": packed.ctypes.data,
                                     "stride": block.ctypes.data}, [(out.ctypes.data, 0, 4 * n)]))
            assert_same(out, expected)


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
@pytest.mark.parametrize("threads", [1, 3])
def test_batches_and_epilogue(level, dtype, threads):
    m, k, n = 11, 75, 53
    a, w = float_array(dtype, (3, m, k), 1), float_array(dtype, (3, k, n), 2)
    packed, out = pack.pack(w), np.zeros((3, m, n), STORAGE[dtype])
    bias, rest = float_array("f32", (n,), 3), float_array(dtype, (3, m, n), 4)
    epilogue = Epilogue(maximum(0, acc("f32") + load(0, "f32", "vector")) + load(1, dtype, "vector"), dtype)
    step = matmul.plan_matmul(epilogue, matmul.Product(dtype, m, n, k, 3), Target(levels.resolve(level), threads))
    order = np.array([2, 0, 1], np.int64)
    tables = [order * x.strides[0] for x in (a, packed, rest, out)]
    at = [t.ctypes.data for t in tables]
    step.run(step.arguments({"a": a.ctypes.data, "a_table": at[0], "w": packed.ctypes.data,
                             "w_table": at[1]},
                            [(bias.ctypes.data, 0, 0), (rest.ctypes.data, at[2], rest.strides[1]),
                             (out.ctypes.data, at[3], out.strides[1])]))
    assert (out == evaluate(epilogue, tile_sums(a, w), [bias, rest])).all()


@pytest.mark.parametrize("k", [256, 1024, 3072])
def test_sums_are_close_to_f64(k):
    rng = np.random.default_rng(k)
    a, w = rng.uniform(0, 1, (16, k)).astype(np.float32), rng.uniform(0, 1, (k, 16)).astype(np.float32)
    exact = a.astype(np.float64) @ w.astype(np.float64)
    assert np.abs(float_sums(a, w) / exact - 1).max() < 16 * 2.0**-24


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
def test_levels_from_avx512_on_take_its_kernels(dtype):
    for level in (x for x in isa.LEVELS if x.includes(isa.level_named("avx512"))):
        for m in (1, 8, 64, 1000):
            own = "avx512_bf16" if dtype == "bf16" and level.bf16 is not None else "avx512"
            assert select((dtype, dtype), m, 768, 3072, level).level == own

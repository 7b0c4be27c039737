"""Packed weights, row sums and transposing copies against NumPy."""
import numpy as np
import pytest

from graphq.errors import KernelError
from graphq.kernels.lanes.expression import STORAGE
from graphq.kernels.matmul import pack
from graphq.kernels.matmul import row_sums as rows
from graphq.kernels.target.isa import LEVELS
from graphq.plan.plan import Target

SHAPES = [(1, 1), (4, 16), (3, 17), (64, 32), (70, 37), (129, 48), (0, 5), (5, 0)]


def unpack(packed, k, n):
    """Weights (k, n) as s8 from the documented layout, and everything beside them."""
    panels, groups = -(-n // 16), -(-k // 4)
    sums = packed[:64 * panels].view(np.int32)
    body = packed[64 * panels:64 * panels * (1 + groups)].view(np.int8).reshape(panels, groups, 16, 4)
    padded = body.transpose(1, 3, 0, 2).reshape(groups * 4, panels * 16)
    return padded, sums


def weights(dtype, shape, seed=0):
    if dtype not in (np.int8, np.uint8):
        return np.random.default_rng(seed).standard_normal(shape).astype(dtype)
    info = np.iinfo(dtype)
    return np.random.default_rng(seed).integers(info.min, info.max + 1, shape, dtype=dtype)


@pytest.mark.parametrize("dtype", [STORAGE[x] for x in ("s8", "u8", "f32", "bf16", "f16")])
@pytest.mark.parametrize(("k", "n"), SHAPES)
def test_weights_in_any_layout_pack_alike(dtype, k, n):
    w = weights(dtype, (2, k, n))
    by_column = np.ascontiguousarray(w.swapaxes(1, 2)).swapaxes(1, 2)
    assert (pack.pack(by_column) == pack.pack(w)).all() and (pack.pack(by_column[1]) == pack.pack(w)[1]).all()


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
@pytest.mark.parametrize(("k", "n"), SHAPES)
def test_pack_follows_the_layout(dtype, k, n):
    w = weights(dtype, (k, n))
    packed = pack.pack(w)
    assert packed.nbytes == pack.packed_bytes(k, n) and packed.ctypes.data % 64 == 0
    padded, sums = unpack(packed, k, n)
    shifted = w.astype(np.int32) - (128 if dtype == np.uint8 else 0)
    assert (padded[:k, :n] == shifted).all()
    assert not padded[k:].any() and not padded[:, n:].any()
    assert (sums[:n] == shifted.sum(0)).all() and not sums[n:].any()


def saturates(w):
    """Whether u8 activations can make the sum of two products leave 16 bits."""
    w = w.astype(int)
    return 255 * np.maximum(w, 0).sum() >= 2**15 or 255 * np.minimum(w, 0).sum() < -2**15


@pytest.mark.parametrize(("taps", "k", "n"), [(1, 9, 17), (3, 8, 40), (2, 3, 5), (9, 0, 3), (2, 5, 0), (1, 64, 2)])
def test_sorted_groups_that_cannot_saturate_come_first(taps, k, n):
    """Of each panel and tap, in their order; whatever the rows after k are."""
    rows = -(-k // 4) * 4
    w = weights(np.int8, (2, taps, rows, n))
    w[:, :, 4:] //= 2
    w[:, :, :4] = np.array([65, 64, 64, 64])[:rows, None]
    packed = pack.pack_sorted(w, k)
    size = pack.packed_bytes(rows * taps, n)
    numbers = pack.panel_count(n) * taps * (1 + k // 4)
    assert packed.shape[-1] % 64 == 0 and 0 <= packed.shape[-1] - size - 4 * numbers < 64
    assert (packed[..., :size] == pack.pack(w.reshape(2, taps * rows, n))).all()
    order = packed[..., size:].view(np.int32)[:, :numbers]
    order = order.reshape(2, pack.panel_count(n), taps, 1 + k // 4)
    for batch, panel, tap in np.ndindex(order.shape[:3]):
        columns = w[batch, tap, :, 16 * panel:16 * panel + 16]
        exact = [g for g in range(0, k // 4 * 4, 4) if not any(
            saturates(column[g + half:g + half + 2]) for column in columns.T for half in (0, 2))]
        count, *places = order[batch, panel, tap].tolist()
        assert count == len(exact) and places == exact + sorted(set(range(0, k // 4 * 4, 4)) - set(exact))


@pytest.mark.parametrize(("k", "n"), [(8, 1), (64, 37), (0, 5), (16, 0)])
def test_each_two_groups_of_a_column_of_paired_weights_are_side_by_side(k, n):
    w = weights(np.int8, (2, k, n))
    packed, paired = pack.pack(w), pack.pack(w, paired=True)
    head, end = 64 * pack.panel_count(n), 64 * pack.panel_count(n) * (1 + k // 4)
    assert (paired[:, :head] == packed[:, :head]).all() and not paired[:, end:].any()
    columns = paired[:, head:end].view(np.int8).reshape(2, pack.panel_count(n), k // 8, 16, 8)
    columns = columns.transpose(0, 2, 4, 1, 3).reshape(2, k, 16 * pack.panel_count(n))
    assert (columns[..., :n] == w).all() and not columns[..., n:].any()


def test_no_matrices_to_sort():
    packed = pack.pack_sorted(np.zeros((0, 3, 8, 20), np.int8), 8)
    assert packed.shape == (0, pack.packed_bytes(24, 20) + 128)  # 2 panels, 3 taps, 1 + 2 numbers: 72 bytes
    assert pack.exact_share(packed, 8, 20, 3) == 0


def test_sorted_u8_weights_are_those_less_128():
    w = weights(np.uint8, (2, 8, 20))
    assert (pack.pack_sorted(w, 8) == pack.pack_sorted((w ^ np.uint8(128)).view(np.int8), 8)).all()


def strided(w, layout):
    if layout == "rows":
        return w
    if layout == "columns":
        return np.ascontiguousarray(w.swapaxes(-1, -2)).swapaxes(-1, -2)
    room = np.zeros((*w.shape[:-2], 2 * w.shape[-2], 3 * w.shape[-1]), w.dtype)
    view = room[..., ::2, ::3]
    view[...] = w
    return view


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
@pytest.mark.parametrize(("k", "n"), SHAPES)
def test_pack_of_floats_follows_the_layout(dtype, k, n):
    w = weights(STORAGE[dtype], (k, n))
    packed, items = pack.pack(w), 4 // w.itemsize
    panels, groups = -(-n // 16), -(-k // items)
    assert packed.nbytes == pack.packed_bytes(k, n, w.itemsize)
    body = packed[64 * panels:64 * panels * (1 + groups)].view(w.dtype).reshape(panels, groups, 16, items)
    padded = body.transpose(1, 3, 0, 2).reshape(groups * items, panels * 16)
    assert (padded[:k, :n] == w).all()
    assert not padded[k:].any() and not padded[:, n:].any()


@pytest.mark.parametrize("layout", ["rows", "columns", "spread"])
@pytest.mark.parametrize("dtype", ["s8", "u8", "f32", "bf16", "f16"])
@pytest.mark.parametrize(("k", "n"), SHAPES)
@pytest.mark.parametrize("threads", [1, 2])
def test_pack_kernel_equals_numpy(layout, dtype, k, n, threads):
    w = strided(weights(STORAGE[dtype], (3, k, n)), layout)
    expected = pack.pack(w)
    size = pack.packed_bytes(k, n, w.itemsize)
    out = pack.lasting_empty(3 * size)
    out[:] = 0x55
    table = np.array([2, 0, 1], np.int64)
    offsets = table * w.strides[0]
    step = pack.plan_pack(dtype, k, n, 3, Target(LEVELS[0], threads))
    step.run(step.arguments({"source": w.ctypes.data, "table": offsets.ctypes.data, "along_k": w.strides[1],
                             "along_n": w.strides[2], "packed": out.ctypes.data}))
    used, first = size - pack.SLACK, 0 if w.itemsize == 1 else 64 * pack.panel_count(n)
    assert (out.reshape(3, size)[:, first:used] == expected[table, first:used]).all()
    assert (out.reshape(3, size)[:, used:] == 0x55).all()  # the slack is never written


@pytest.mark.parametrize("dtype", ["s8", "u8", "f32", "bf16"])
@pytest.mark.parametrize(("k", "n"), SHAPES)
def test_pack_kernel_takes_rows_by_a_table_which_has_rows_of_zeros(dtype, k, n):
    w = weights(STORAGE[dtype], (k, n))
    rng = np.random.default_rng(k)
    order, zeros = rng.integers(0, max(1, k), k), rng.random(k) < 0.3
    offsets = np.where(zeros, -1, order * w.strides[0])
    expected = pack.pack(np.where(zeros[:, None], w.dtype.type(0x80 if dtype == "u8" else 0), w[order]))
    out = pack.lasting_empty(len(expected))
    step = pack.plan_pack(dtype, k, n, 1, Target(LEVELS[0]))
    step.run(step.arguments({"source": w.ctypes.data, "rows": offsets.ctypes.data, "packed": out.ctypes.data}))
    used, first = len(out) - pack.SLACK, 0 if w.itemsize == 1 else 64 * pack.panel_count(n)
    assert (out[first:used] == expected[first:used]).all()


def test_pack_refuses_other_arrays():
    for bad in (np.zeros((2, 2), np.int32), np.zeros(4, np.int8)):
        with pytest.raises(KernelError, match="matrices of s8, u8, f32, bf16, f16"):
            pack.pack(bad)


@pytest.mark.parametrize("a_dtype", ["u8", "s8"])
@pytest.mark.parametrize(("m", "k"), [(1, 1), (5, 63), (7, 64), (33, 200), (4, 0), (0, 9)])
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("transposed", [False, True])
def test_row_sums(a_dtype, m, k, threads, transposed):
    a = weights(np.uint8 if a_dtype == "u8" else np.int8, (2, k, m + 3) if transposed else (2, m, k + 3))[:, :, :-3]
    out = np.full((2, m), -1, np.int32)
    step = rows.plan_row_sums(a_dtype, m, k, 2, Target(LEVELS[0], threads), columns=transposed)
    offsets = np.array([0, a.strides[0]], np.int64)
    step.run(step.arguments({"source": a.ctypes.data, "table": offsets.ctypes.data, "stride": a.strides[1],
                             "sums": out.ctypes.data}))
    assert (out == a.astype(np.int32).sum(1 if transposed else 2) + (128 * k if a_dtype == "s8" else 0)).all()

"""Kernels with packed 4-bit weights, native where the machine has them and emulated, against NumPy."""
from contextlib import nullcontext

import numpy as np
import pytest
from guarded_memory import guarded

from graphq.errors import KernelError
from graphq.kernels.jit import isa
from graphq.kernels.lanes.expression import acc
from graphq.kernels.lanes.stores import Store
from graphq.kernels.matmul import plan as matmul
from graphq.kernels.matmul.table import KERNELS, select
from graphq.kernels.matmul_4bit import tiles as matmul_4bit
from graphq.kernels.matmul_4bit.pack import pack_4bit, panel_bytes
from graphq.plan.step import Target

NATIVE = [level.name for level in isa.available()]
FOUR_BIT = [k for k in KERNELS.values() if k.dtypes in matmul_4bit.DTYPES]
# Emulated kernels compile slowly: levels that the machine has are emulated in one tile shape.
RUNS = [pytest.param(k, False, id=k.name) for k in FOUR_BIT if k.level in NATIVE]
RUNS += [pytest.param(k, True, id=f"{k.name}-emulated") for k in FOUR_BIT if k.level != "scalar" and (
    k.level not in NATIVE or k.tile == next(x.tile for x in FOUR_BIT if x.level == k.level))]
SHAPES = [  # m, groups, group, n
    (1, 1, 1, 1), (1, 4, 32, 64), (2, 3, 8, 17), (3, 2, 7, 16), (5, 3, 12, 37), (7, 1, 131, 80), (13, 5, 4, 130)]


def weights(groups, group, n, seed=0):
    """u, z, scales and corrections; the first columns have extreme weights and zero points."""
    rng = np.random.default_rng(seed)
    u = rng.integers(0, 16, (groups * group, n), dtype=np.uint8)
    z = rng.integers(-112, 129, (groups, n))
    u[:, 0], z[:, 0] = 15, -112
    u[:, -1], z[:, -1] = 0, 128
    return (u, z, rng.uniform(1e-3, 1e-2, (groups, n)).astype(np.float32),
            rng.integers(-2**31, 2**31, (groups, n)).astype(np.int32))


def expected(a, u, z, scales, corrections):
    """The module's formula, integers modulo 2**32."""
    shift = 128 if a.dtype == np.int8 else 0
    size, total = len(u) // len(z), np.zeros((len(a), u.shape[1]), np.float32)
    for g in range(len(z)):
        k = slice(g * size, (g + 1) * size)
        exact = (a[:, k].astype(np.int64) + shift) @ (u[k].astype(np.int64) - z[g]) + corrections[g]
        total += exact.astype(np.uint32).view(np.int32).astype(np.float32) * scales[g]
    return total


def run(guarded, kernel, level, a, packed, n, threads=1):
    m, k = a.shape
    out, source, packed = guarded(np.full((m, n), np.nan, np.float32)), guarded(a), guarded(packed)
    product = matmul.Product(kernel.dtypes[0], m, n, k, w_dtype=matmul_4bit.W_DTYPE)
    step = matmul.plan_matmul(Store(acc("f32"), "f32"), product, Target(level, threads), kernel)
    words = {"a": source.ctypes.data, "w": packed.ctypes.data, "panel_bytes": panel_bytes(packed)}
    step.run(step.arguments(words, [(out.ctypes.data, 0, 4 * n)]))
    return np.array(out)


@pytest.mark.parametrize(("kernel", "emulated"), RUNS)
@pytest.mark.parametrize("extreme", [False, True])
def test_equals_the_formula(kernel, emulated, extreme):
    low, high, dtype = (0, 255, np.uint8) if kernel.dtypes[0] == "u8" else (-128, 127, np.int8)
    rng = np.random.default_rng(1)
    with isa.emulate(kernel.level) if emulated else nullcontext(isa.level_named(kernel.level)) as level:
        for m, groups, group, n in SHAPES:
            a = rng.integers(low, high + 1, (m, groups * group), dtype=dtype)
            if extreme:
                a = rng.choice(np.array([low, high], dtype), a.shape)
            w = weights(groups, group, n)
            got = run(guarded, kernel, level, a, pack_4bit(*w), n, threads=1 + extreme)
            assert got.tobytes() == expected(a, *w).tobytes(), (m, groups, group, n)


@pytest.mark.parametrize(("groups", "group", "n"), [(1, 1, 1), (3, 12, 37), (2, 8, 16), (4, 5, 20)])
def test_pack_follows_the_layout(groups, group, n):
    u, z, scales, corrections = weights(groups, group, n)
    packed = pack_4bit(u, z, scales, corrections)
    panels, lines = -(-n // 16), -(-group // 8)
    words = packed[:64 * panels].view(np.int64).reshape(panels, 8)
    size, zero_points, start = words[0, 2:5]
    assert packed.ctypes.data % 64 == 0 and (words == words[0]).all() and words[0, :2].tolist() == [group, groups]
    assert size % 64 == zero_points % 64 == start % 64 == 0 and packed.nbytes == panels * (64 + size)
    for k in range(groups * group):
        g, row = divmod(k, group)
        for j in range(n):
            panel = packed[64 * panels + j // 16 * size:]
            byte = panel[start + (g * lines + row // 8) * 64 + 4 * (j % 16) + row % 4]
            assert byte >> (row // 4 % 2 * 4) & 15 == u[k, j]
            head = panel[128 * g + 4 * (j % 16):]
            assert head[:4].view(np.float32)[0] == scales[g, j] and head[64:68].view(np.int32)[0] == corrections[g, j]
            assert panel[zero_points + 16 * g + j % 16] == z[g, j] % 256


def test_pack_refuses():
    u, z, scales, corrections = weights(2, 4, 3)
    with pytest.raises(KernelError, match="do not take groups of"):
        pack_4bit(u[:7], z, scales, corrections)
    with pytest.raises(KernelError, match="do not take groups of"):
        pack_4bit(u, z, scales[:, :2], corrections)
    for bad in ((u + 1, z), (u, z + 1)):
        with pytest.raises(KernelError, match="0 to 15, and fit in s8"):
            pack_4bit(*bad, scales, corrections)


@pytest.mark.parametrize("level", isa.LEVELS, ids=lambda x: x.name)
@pytest.mark.parametrize("dtypes", matmul_4bit.DTYPES)
def test_every_level_has_a_kernel(level, dtypes):
    for m in (1, 3, 1000):
        assert level.includes(select(dtypes, m, 64, 64, level).level)

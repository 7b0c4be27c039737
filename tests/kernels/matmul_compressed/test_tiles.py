"""Kernels with compressed weights, native where the machine has them and emulated, against NumPy."""
from contextlib import nullcontext
from functools import cache

import ml_dtypes
import numpy as np
import pytest
from guarded_memory import guarded
from levels import LEVELS

from graphq.errors import KernelError
from graphq.kernels.lanes.epilogues import Epilogue
from graphq.kernels.lanes.expression import STORAGE, acc
from graphq.kernels.matmul import plan as matmul
from graphq.kernels.matmul.kernel_table import KERNELS, select
from graphq.kernels.matmul_compressed import tiles
from graphq.kernels.matmul_compressed.floats import FORMS
from graphq.kernels.matmul_compressed.pack import BITS, HEAD, pack_floats, pack_integers, panel_bytes
from graphq.kernels.numbers.float_sums import tile_sums
from graphq.kernels.target import isa
from graphq.plan.plan import Target

FLOATS = tiles.FLOATS + tiles.BF16
NATIVE = [level.name for level in isa.available()]
ALL = [k for k in KERNELS.values() if k.dtypes in tiles.DTYPES + FLOATS and k.level in LEVELS]
FIRST = {(k.level, k.dtypes): k for k in reversed(ALL)}
LAST = {(k.level, k.dtypes): k for k in ALL}
# u8 is s8 without a xor: one tile shape of u8 suffices. Kernels of floats differ only in how they unpack weights. For
# 8 bits, and for all rounded types except one, the largest tile and the tile of one row suffice. Codes other than s4
# and s8 differ only in how they become integers: the tile of one row suffices, of bf16 for one code. Emulated kernels
# compile slowly: where native kernels run, the last tile, of one row, suffices. f32 has no instruction to emulate.
ALIKE = {k for k in ALL if FORMS[k.dtypes[1]][1] != "f32" and k.dtypes != ("bf16", "s4bf16")
         or k.dtypes == ("f32", "s8groups")}
OTHERS = {k for k in ALL if FORMS[k.dtypes[1]][0] not in ("s4", "s8")}
COMPRESSED = [k for k in ALL if k not in OTHERS and k is FIRST[k.level, k.dtypes] or k.dtypes[0] != "u8" and (
    k not in ALIKE | OTHERS or k is LAST[k.level, k.dtypes] and (k not in OTHERS or k.dtypes[1] in (*BITS, "e4m3bf16"))
)]
RUNS = [pytest.param(k, False, id=k.name) for k in COMPRESSED if k.level in NATIVE]
RUNS += [pytest.param(k, True, id=f"{k.name}-emulated") for k in COMPRESSED if k.level != "scalar" and (
    k.level not in NATIVE or k.dtypes[0] not in ("u8", "f32") and k is LAST[k.level, k.dtypes])]
SHAPES = [  # m, groups, group, n
    (1, 1, 1, 1), (1, 4, 32, 64), (2, 3, 8, 17), (3, 2, 7, 16), (5, 3, 12, 37), (7, 1, 131, 80), (13, 5, 4, 130)]
FLOAT_SHAPES = [(1, 1, 8, 1), (1, 9, 32, 64), (3, 2, 256, 16), (5, 3, 128, 37), (9, 5, 64, 50), (13, 33, 8, 130),
                (43, 3, 128, 49)]
TWO_BIT_SHAPES = [(m, groups, max(group, 16), n) for m, groups, group, n in FLOAT_SHAPES]


FLOAT_CODES = {"f4": (ml_dtypes.float4_e2m1fn, 2, 12), "e4m3": (ml_dtypes.float8_e4m3fn, 2.0**9, 0),
               "e5m2": (ml_dtypes.float8_e5m2, 2.0**16, 0)}
"""The type that has the bits of each code, and the factor and the offset that make its numbers integers."""


def integers(codes, code):
    """The integers that codes stand for, in f64."""
    if code not in FLOAT_CODES:
        return codes.astype(np.float64)
    dtype, factor, low = FLOAT_CODES[code]
    return codes.view(dtype).astype(np.float64) * factor + low


def weights(groups, group, n, bits, seed=0):
    """u, z, scales and corrections; the first columns have extreme weights and zero points."""
    rng = np.random.default_rng(seed)
    most = (1 << bits) - 1
    u = rng.integers(0, most + 1, (groups * group, n), dtype=np.uint8)
    z = rng.integers(0, most + 1, (groups, n), dtype=np.int32)
    u[:, 0], z[:, 0] = most, -1000
    u[:, -1], z[:, -1] = 0, 1 << 21
    return (u, z, rng.uniform(1e-3, 1e-2, (groups, n)).astype(np.float32),
            rng.integers(-2**31, 2**31, (groups, n)).astype(np.int32))


def expected(a, row_scales, u, z, scales, corrections):
    """The module's formula for the integers u, modulo 2**32."""
    shift = 128 if a.dtype == np.uint8 else 0
    size, total = len(u) // len(z), np.zeros((len(a), u.shape[1]), np.float32)
    for g in range(len(z)):
        k = slice(g * size, (g + 1) * size)
        exact = (a[:, k].astype(np.int64) - shift) @ (u[k].astype(np.int64) - z[g]) + corrections[g]
        total += exact.astype(np.uint32).view(np.int32).astype(np.float32) * (row_scales[:, g, None] * scales[g])
    return total


def run(kernel, level, a, packed, n, threads=1, **words):
    m, k = a.shape
    out, source, packed = guarded(np.full((m, n), np.nan, np.float32)), guarded(a), guarded(packed)
    product = matmul.Product(kernel.dtypes[0], m, n, k, w_dtype=kernel.dtypes[1])
    step = matmul.plan_matmul(Epilogue(acc("f32"), "f32"), product, Target(level, threads), kernel)
    words = {"a": source.ctypes.data, "w": packed.ctypes.data, "panel_bytes": panel_bytes(packed), **words}
    step.run(step.arguments(words, [(out.ctypes.data, 0, 4 * n)]))
    return np.array(out)


@pytest.mark.parametrize(("kernel", "emulated"), [p for p in RUNS if p.values[0].dtypes in tiles.DTYPES])
@pytest.mark.parametrize("extreme", [False, True])
def test_integers_equal_the_formula(kernel, emulated, extreme):
    low, high, dtype = (0, 255, np.uint8) if kernel.dtypes[0] == "u8" else (-128, 127, np.int8)
    code, rng = FORMS[kernel.dtypes[1]][0], np.random.default_rng(1)
    with isa.emulate(kernel.level) if emulated else nullcontext(isa.level_named(kernel.level)) as level:
        for m, groups, group, n in SHAPES:
            a = rng.integers(low, high + 1, (m, groups * group), dtype=dtype)
            if extreme:
                a = rng.choice(np.array([low, high], dtype), a.shape)
            w = weights(groups, group, n, BITS[code])
            scales = guarded(rng.uniform(0.5, 2, (m, groups)).astype(np.float32))
            shift = 128 if dtype == np.int8 else 0
            sums = guarded((a.reshape(m, groups, group).astype(np.int32) + shift).sum(-1, dtype=np.int32))
            if m % 2:  # terms and zero points that are the same in all groups lie before them
                w = w[0], w[1][:1].repeat(groups, 0), w[2], w[3][:1].repeat(groups, 0)
            got = run(kernel, level, a, pack_integers(*w, BITS[code]), n, threads=1 + extreme,
                      row_scales=scales.ctypes.data, row_scales_row=4 * groups, row_scales_step=4,
                      row_sums=sums.ctypes.data, row_sums_row=4 * groups)
            assert got.tobytes() == expected(a, scales, integers(w[0], code), *w[1:]).tobytes(), (m, groups, group, n)


@cache
def float_case(dtypes, m, groups, group, n):
    """Activations, packed weights, and the sums of the expanded weights."""
    a = np.random.default_rng(m).standard_normal((m, groups * group)).astype(STORAGE[dtypes[0]])
    code, rounding = FORMS[dtypes[1]]
    codes, z, scales, _ = weights(groups, group, n, BITS[code])
    z[:, n // 2] = 300  # beyond the weights
    scales[0] *= -1
    if code in ("e4m3", "e5m2"):  # without infinities, NaN and zero points
        codes, z = np.where(codes & 0x7C == 0x7C, codes - 4, codes), np.zeros_like(z)
    expanded = (integers(codes, code).reshape(groups, group, n) - z[:, None]).astype(np.float32) * scales[:, None]
    return (a, pack_floats(codes, z, scales, BITS[code]),
            tile_sums(a, expanded.astype(STORAGE[rounding]).reshape(-1, n)))


@pytest.mark.parametrize(("kernel", "emulated"), [p for p in RUNS if p.values[0].dtypes in FLOATS])
def test_floats_equal_the_sums_of_expanded_weights(kernel, emulated):
    with isa.emulate(kernel.level) if emulated else nullcontext(isa.level_named(kernel.level)) as level:
        for shape in FLOAT_SHAPES if BITS[FORMS[kernel.dtypes[1]][0]] > 2 else TWO_BIT_SHAPES:
            a, packed, sums = float_case(kernel.dtypes, *shape)
            assert run(kernel, level, a, packed, shape[-1]).tobytes() == sums.tobytes(), shape


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("same", ["", "zero points", "corrections", "zero points but the last",
                                  "zero points but a middle one", "corrections but a middle one"])
@pytest.mark.parametrize(("groups", "group", "n"), [(1, 1, 1), (3, 12, 37), (2, 8, 16), (4, 5, 20)])
def test_pack_follows_the_layout(groups, group, n, same, bits):
    u, z, scales, corrections = weights(groups, group, n, bits)
    if same:
        mostly = corrections if same.startswith("corrections") else z
        mostly[:] = 7
        if "but" in same:
            mostly[-1 if same.endswith("last") else groups // 2, -1] = 8
    none = np.zeros_like(z)
    for packed, terms, points in ((pack_integers(u, z, scales, corrections, bits), corrections, z),
                                  (pack_floats(u, z, scales, bits), (2**23 + z).astype("f4").view(np.int32), none)):
        rows, panels = 32 // bits, -(-n // 16)
        lines = -(-group // rows)
        words = packed[:64 * panels].view(np.int64).reshape(panels, 8)
        size, each, *places = words[0, 2:]
        assert packed.ctypes.data % 64 == 0 and (words == words[0]).all() and words[0, :2].tolist() == [group, groups]
        assert size == HEAD + groups * each and packed.nbytes == panels * (64 + size)
        differ = [bool((x != x[0]).any()) for x in (terms, points)]
        assert places[1::2] == [each if d else 0 for d in differ] and each == 64 * (1 + sum(differ) + lines)
        for k in range(groups * group):
            g, row = divmod(k, group)
            for j in range(n):
                panel = packed[64 * panels + j // 16 * size:]
                own = panel[HEAD + g * each:]
                byte = own[each - 64 * lines + row // rows * 64 + 4 * (j % 16) + row % 4]
                assert own[4 * (j % 16):][:4].view(np.float32)[0] == scales[g, j]
                for x, (first, step) in ((terms, places[:2]), (points, places[2:])):
                    assert panel[first + g * step + 4 * (j % 16):][:4].view(np.int32)[0] == x[g, j]
                assert byte >> (row // 4 % (8 // bits) * bits) & (1 << bits) - 1 == u[k, j]


@pytest.mark.parametrize("bits", [4, 8])
def test_pack_refuses(bits):
    u, z, scales, corrections = weights(2, 4, 3, bits)
    with pytest.raises(KernelError, match="do not take groups of"):
        pack_integers(u[:7], z, scales, corrections, bits)
    with pytest.raises(KernelError, match="do not take groups of"):
        pack_integers(u, z, scales[:, :2], corrections, bits)
    with pytest.raises(KernelError, match="do not take groups of"):
        pack_floats(u[:7], z, scales, bits)
    wide = u.astype(np.int16) + 1
    for pack in (lambda: pack_integers(wide, z, scales, corrections, bits), lambda: pack_floats(wide, z, scales, bits)):
        with pytest.raises(KernelError, match=f"of {bits} bits must be 0 to {2**bits - 1}"):
            pack()


@pytest.mark.parametrize("level", isa.LEVELS, ids=lambda x: x.name)
@pytest.mark.parametrize("dtypes", tiles.DTYPES + FLOATS)
def test_every_level_has_a_kernel(level, dtypes):
    for m in (1, 3, 1000):
        assert level.includes(select(dtypes, m, 64, 64, level).isa)

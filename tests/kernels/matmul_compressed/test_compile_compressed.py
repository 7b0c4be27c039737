"""Matmuls with compressed weights: the numbers at every ISA level and thread count."""
from itertools import product

import ml_dtypes
import numpy as np
import pytest
from levels import at_each_width

import graphq as gq
from graphq.testing import random_inputs

RANGES = {"s2": (-2, 2), "u2": (0, 4), "u4": (0, 16), "s4": (-8, 8), "s8": (-128, 128), "u8": (0, 256),
          "s32": (-56, 57), "far": (-1000, 1000)}
FLOATS = {"f4_e2m1": 4, "f6_e2m3": 6, "f6_e3m2": 6, "f8_e4m3": 8, "f8_e5m2": 8}
NUMPY = {"s2": np.dtype(ml_dtypes.int2), "u2": np.dtype(ml_dtypes.uint2), "u4": np.dtype(ml_dtypes.uint4),
         "s4": np.dtype(ml_dtypes.int4), "s32": np.dtype(np.int32), "far": np.dtype(np.int32),
         "s8": np.dtype(np.int8), "u8": np.dtype(np.uint8)}


def floats(rng, dtype, shape):
    """Random bits of a float type, without infinities and NaN."""
    w = rng.integers(0, 1 << FLOATS[dtype], shape, np.uint8).view(gq.dtypes.as_dtype(dtype).numpy)
    return np.where(np.isfinite(w.astype(np.float32)), w, np.zeros((), w.dtype))


def dense(m=5, k=128, n=37, group=32, *, w="u4", x="u8", zx=7, zw=None, qtype="per_group", along_n=1, out="u8",
          batch=(), residual=False, transpose_b=False, rows=None, rounds=None, powers=False, seed=0):
    """[dequantize], dynamic_dequantize -> matmul -> relu -> [+ residual] -> [quantize]; the parameters beside it.

    `x` may be f32 or bf16; with `rows`, the size of groups, its scales are a tensor. With `rounds` weights are
    dequantized to that type, and cast to f32 unless `x` is of that type. With `powers` scales are f8_e8m0.
    """
    rng = np.random.default_rng(seed)
    g = gq.Graph("dense")
    swap = (lambda a: np.ascontiguousarray(a.T)) if transpose_b else (lambda a: a)
    weights = floats(rng, w, (k, n)) if w in FLOATS else rng.integers(*RANGES[w], (k, n)).astype(NUMPY[w])
    shape = {"per_group": (k // group, n // along_n), "per_channel": (n,), "per_tensor": (1,)}[qtype]
    scales = rng.uniform(1e-3, 2e-2, shape).astype(np.float32)
    scales = scales.astype(ml_dtypes.float8_e8m0fnu) if powers else scales
    zps = None if zw is None else rng.integers(*RANGES[zw], shape).astype(NUMPY[zw])
    options = {"per_group": dict(group_shape=[along_n, group] if transpose_b else [group, along_n]),
               "per_channel": dict(axis=0 if transpose_b else 1), "per_tensor": {}}[qtype]
    parameters = [g.constant(swap(p) if p.ndim == 2 else p) for p in (scales, zps) if p is not None]
    wf = g.dynamic_dequantize(g.constant(swap(weights)), *parameters, qtype=qtype, dtype=rounds or "f32", **options)
    wf = wf if rounds in (None, x) else g.type_cast(wf, dtype="f32")
    bias = rng.standard_normal(n).astype(wf.dtype.numpy)
    source = g.input("x", shape=(*batch, m, k), dtype=x)
    if rows is not None:
        row_scales = g.multiply(g.input("s", shape=(*batch, m, k // rows), dtype="f32"), np.float32(0.03))
        source = g.dynamic_dequantize(source, row_scales, qtype="per_group", group_shape=[*(1 for _ in batch), 1, rows])
    elif x not in ("f32", "bf16"):
        source = g.dequantize(source, scales=[0.02], zps=[zx])
    y = g.relu(g.matmul(source, wf, bias, transpose_b=transpose_b, **(dict(dtype="f32") if x == "bf16" else {})))
    if residual:
        y = g.add(g.dequantize(g.input("z", shape=(m, n), dtype="u8"), scales=[0.01], zps=[3]), y)
    g.output(g.quantize(y, dtype=out, scales=[0.05], zps=[3]) if out != "f32" else y, name="y")
    return g, (weights, scales, zps, bias)


VARIANTS = {
    "u4 with zero points": dict(zw="u4"), "s4": dict(w="s4"), "s4 with s32 zero points": dict(w="s4", zw="s32"),
    "s8 source": dict(x="s8", zx=-5, zw="u4"), "groups of both axes": dict(n=36, along_n=9, zw="s4"),
    "groups that are no multiple of 8": dict(k=75, group=15, zw="u4"), "groups of 1": dict(k=3, group=1, x="s8"),
    "transpose b": dict(transpose_b=True, zw="u4"), "per channel": dict(qtype="per_channel", k=131, zw="u4"),
    "per channel, transposed": dict(qtype="per_channel", transpose_b=True),
    "per tensor": dict(qtype="per_tensor", w="s4"), "one row": dict(m=1, n=200), "f32 out": dict(out="f32", zw="u4"),
    "batch and residual": dict(batch=(3,), residual=True, zw="u4", m=7),
    "s8 in groups": dict(w="s8", x="s8"), "s8, groups no multiple of 4": dict(w="s8", k=75, group=15),
    "s8 in groups, transposed": dict(w="s8", transpose_b=True, m=9, out="f32"),
    "u8 with zero points of groups": dict(w="u8", zw="u8", m=3), "groups of 16, one row": dict(m=1, group=16, zw="u4"),
    "far zero points": dict(w="s8", zw="far", x="s8", out="f32"),
    "scales of rows": dict(rows=128, x="s8", group=128, out="f32"),
    "scales of rows and groups": dict(rows=32, x="s8", zw="u4", out="f32", m=6),
    "scales of rows, groups of weights": dict(rows=128, w="s8", x="u8", out="f32", m=3),
    "scales of row groups, weights per channel": dict(rows=16, qtype="per_channel", w="s4", out="f32"),
    "scales of rows, s8 per channel": dict(rows=128, x="s8", w="s8", qtype="per_channel", out="f32", m=4),
    "scales of rows of batches": dict(rows=32, x="s8", batch=(2,), residual=True, out="f32"),
    "f32 source": dict(x="f32", zw="u4", out="f32"), "f32 source, s8": dict(x="f32", w="s8", zw="s8", out="f32", m=9),
    "f32 source, u8 of zero points beyond 8 bits": dict(x="f32", w="u8", zw="s32", out="f32", group=8, m=1),
    "f32 source, groups beyond a block": dict(x="f32", w="s4", k=1024, group=512, out="f32"),
    "f32 source, groups across blocks": dict(x="f32", w="s4", k=1152, group=384, zw="s4", out="f32"),
    "f32 source, transposed": dict(x="f32", w="s8", transpose_b=True, qtype="per_channel", k=384),
    "f32 source, rounded to f16": dict(x="f32", w="s8", rounds="f16", zw="s8", out="f32", m=9),
    "f32 source, rounded to bf16": dict(x="f32", rounds="bf16", zw="u4", out="f32", n=70, transpose_b=True),
    "f32 source, one row rounded to f16": dict(x="f32", w="s4", rounds="f16", out="f32", m=1, k=64),
    "f32 source, batch and residual": dict(x="f32", batch=(2,), residual=True, zw="u4", m=13, n=200),
    "u2 in groups": dict(w="u2", zw="u2", group=16), "s2, scales of rows": dict(w="s2", rows=128, x="s8", out="f32"),
    "f4 in groups of 16": dict(w="f4_e2m1", group=16, x="s8"), "f4, one row": dict(w="f4_e2m1", powers=True, m=1),
    "f32 source, f4": dict(x="f32", w="f4_e2m1", powers=True, out="f32", n=70, transpose_b=True),
    "f32 source, one row of s2": dict(x="f32", w="s2", zw="s2", out="f32", m=1),
    "f32 source, f6_e2m3": dict(x="f32", w="f6_e2m3", group=8, m=13, out="f32"),
    "f32 source, one row of f6_e3m2": dict(x="f32", w="f6_e3m2", qtype="per_channel", m=1, out="f32"),
    "f32 source, f8_e4m3": dict(x="f32", w="f8_e4m3", powers=True, m=9, out="f32"),
    "f32 source, f8_e5m2 per channel": dict(x="f32", w="f8_e5m2", qtype="per_channel", k=600, out="f32"),
    "f32 source, f8_e5m2 rounded to f16": dict(x="f32", w="f8_e5m2", rounds="f16", m=1, out="f32"),
    "bf16 source, f4": dict(x="bf16", rounds="bf16", w="f4_e2m1", group=16, m=13, out="f32"),
    "bf16 source, u2": dict(x="bf16", rounds="bf16", w="u2", zw="s32", out="f32"),
    "bf16 source, f8_e5m2": dict(x="bf16", rounds="bf16", w="f8_e5m2", m=37, powers=True, out="f32"),
    "bf16 source": dict(x="bf16", rounds="bf16", zw="u4", out="f32", n=70, transpose_b=True),
    "bf16 source, one row": dict(x="bf16", rounds="bf16", w="s4", out="f32", m=1, k=1152, group=384),
    "bf16 source, s8 per channel": dict(x="bf16", rounds="bf16", w="s8", zw="s8", qtype="per_channel", m=37, k=600),
    "bf16 source, batch": dict(x="bf16", rounds="bf16", batch=(2,), group=8, w="u8", zw="s32", m=13, n=200, out="f32"),
}


@pytest.mark.parametrize("variant, level", at_each_width(VARIANTS), indirect=["level"])
def test_equals_its_formula_and_the_reference(level, variant):
    g, _ = dense(**VARIANTS[variant])
    inputs = random_inputs(g)
    reference, formula = gq.reference(g, inputs), None
    for threads in (1, 3):
        model = gq.compile(g, isa=level, threads=threads, strict=True)
        partition = [n for n in model.graph.nodes if n.op.name == "partition"][-1]
        assert partition.attrs["anchor"] == "matmul_compressed" and partition.output in model.graph.outputs
        weights = max(v.type.size for v in partition.operands if v.data is not None and v.dtype.bits <= 8)
        assert all(v.type.size <= weights for v in partition.operands if v.data is not None)
        y = model(inputs)
        formula = model.formula(inputs) if formula is None else formula
        assert np.array_equal(y, formula)
    steps = np.abs(y.astype(np.float64) - reference)
    if y.dtype == np.float32:
        assert steps.max() <= 1e-5 * np.abs(reference).max()
    else:
        assert steps.max() <= 1 and (steps > 0).mean() <= 1e-4 + 1 / steps.size


@pytest.mark.parametrize("case, level", at_each_width(product(["u8", "s8"], ["random", "low", "high"])),
                         indirect=["level"])
def test_the_formula_is_the_written_one(level, case):
    (x, fill), k, group = case, 96, 24
    g, (w, scales, zps, bias) = dense(m=4, k=k, group=group, x=x, zx=3, zw="u4", out="f32")
    low, high = RANGES[x]
    rng = np.random.default_rng(7)
    data = {"random": lambda: rng.integers(low, high, (4, k)), "low": lambda: np.full((4, k), low),
            "high": lambda: np.full((4, k), high - 1)}[fill]().astype(gq.dtypes.as_dtype(x).numpy)
    y = np.zeros((4, 37), np.float32)
    for j in range(k // group):
        rows = slice(j * group, (j + 1) * group)
        exact = (data[:, rows].astype(int) - 3) @ (w[rows].astype(int) - zps[j].astype(int))
        m = (np.float64(np.float32(0.02)) * scales[j].astype(np.float64)).astype(np.float32)
        y = y + exact.astype(np.float32) * m
    assert np.array_equal(gq.compile(g, isa=level, threads=1)(x=data), np.maximum(y + bias, np.float32(0)))


@pytest.mark.parametrize("scale", [2.0**-127, np.inf])
def test_scales_that_kernels_of_bf16_do_not_round(scale, level):
    """Such weights are expanded, to the same numbers."""
    g = gq.Graph()
    x, w = g.input("x", shape=(2, 8), dtype="bf16"), np.arange(1, 17, dtype=np.int8).reshape(8, 2)
    w = g.dynamic_dequantize(g.constant(w), g.constant(np.float32([scale, 1])), qtype="per_channel", dtype="bf16")
    g.output(g.matmul(x, w, dtype="f32"), name="y")
    ones = np.ones((2, 8), ml_dtypes.bfloat16)
    model = gq.compile(g, isa=level)
    assert "compressed" not in model.explain().splitlines()[2]
    assert np.array_equal(model(x=ones), [[np.inf if scale > 1 else 0, 72]] * 2 if scale > 1 else model.formula(x=ones))


def test_large_sizes_split_over_threads():
    g, _ = dense(m=3, k=1024, n=1000, group=128, zw="u4")
    inputs = random_inputs(g)
    outs = [gq.compile(g, threads=threads)(inputs) for threads in (1, 2, 3)]
    assert np.array_equal(outs[0], outs[1]) and np.array_equal(outs[0], outs[2])
    assert np.array_equal(outs[0], gq.compile(g, threads=1).formula(inputs))


def test_weights_marked_constant_are_packed_at_the_first_call():
    g = gq.Graph()
    x = g.dequantize(g.input("x", shape=(2, 16), dtype="u8"), scales=[0.1])
    w = g.input("w", shape=(16, 5), dtype="u4", property="constant")
    s = g.input("s", shape=(2, 5), dtype="f32", property="constant")
    g.output(g.matmul(x, g.dynamic_dequantize(w, s, qtype="per_group", group_shape=[8, 1])))
    model = gq.compile(g)
    inputs = random_inputs(g)
    assert np.array_equal(model(inputs), model.formula(inputs))
    assert "1 partition (1 integer)" in model.explain()


@pytest.mark.parametrize("x", ["f32", "s8"])
def test_open_rows(level, x):
    """A plan of any number of rows, and batches of them."""
    g = gq.Graph("open")
    source = a = g.input("x", shape=(None, None, 64), dtype=x)
    if x == "s8":
        scales = g.input("s", shape=(None, None, 2), dtype="f32")
        source = g.dynamic_dequantize(a, scales, qtype="per_group", group_shape=[1, 1, 32])
    rng = np.random.default_rng(3)
    w, s = rng.integers(-8, 8, (64, 40)).astype(NUMPY["s4"]), rng.uniform(0.1, 1, (2, 40)).astype(np.float32)
    w = g.dynamic_dequantize(g.constant(w), g.constant(s), qtype="per_group", group_shape=[32, 1])
    g.output(g.matmul(source, w), name="y")
    model = gq.compile(g, isa=level, threads=2, strict=True)
    for dims in ((1, 1), (2, 7), (1, 40), (3, 0)):
        inputs = {"x": (10 * rng.standard_normal((*dims, 64))).astype(gq.dtypes.as_dtype(x).numpy)}
        if x == "s8":
            inputs["s"] = rng.uniform(0.1, 1, (*dims, 2)).astype(np.float32)
        y = model(inputs)
        assert np.array_equal(y, model.formula(inputs))
        np.testing.assert_allclose(y, gq.reference(g, inputs), rtol=1e-5, atol=1e-2)


def test_rows_do_not_depend_on_each_other():
    """With a scale a row, a row's numbers are those that it has alone."""
    g, _ = dense(m=6, rows=32, x="s8", out="f32")
    one, _ = dense(m=1, rows=32, x="s8", out="f32")
    inputs = random_inputs(g)
    y, alone = gq.compile(g)(inputs), gq.compile(one)
    for k in range(6):
        assert np.array_equal(y[k:k + 1], alone({name: v[k:k + 1] for name, v in inputs.items()}))


@pytest.mark.parametrize("rows, group", [(48, 24), (24, 32), (32, 24), (32, 48), (12, 96), (96, 12), (24, 48)])
def test_groups_of_sources_and_weights_that_match_or_not(rows, group):
    """Kernels take the same groups, groups of rows that divide those of weights, and one group; others are refused."""
    g, _ = dense(m=3, k=96, group=group, rows=rows, x="s8", zw="u4", out="f32")
    model, inputs = gq.compile(g, threads=1), random_inputs(g)
    want, fits = gq.reference(g, inputs), rows == 96 or group % rows == 0
    np.testing.assert_allclose(model(inputs), want, rtol=1e-4, atol=1e-5 * np.abs(want).max())
    assert ("(1 integer)" in model.explain()) == fits
    reason = f"the input has scales of {96 // rows} groups, the weights of {96 // group}"
    assert (reason in model.explain(full=True)) == (not fits)


@pytest.mark.parametrize("w, x, zx, most", [("u4", "u8", 0, 255), ("u4", "s8", -128, 255), ("s8", "s8", 0, 128),
                                            ("s4", "u8", 255, 255)])
@pytest.mark.parametrize("sign", [1, -1])
def test_zero_points_whose_sums_come_to_the_limit_of_s32_and_beyond(width, w, x, zx, most, sign):
    """The largest sum of a group of 2048 rows is just below 2**31, then just above."""
    k, low = 2048, RANGES[w][0] if sign > 0 else RANGES[w][1] - 1
    zero_point, extreme = (2**31 - 1) // (most * k), max(RANGES[x][0], RANGES[x][1] - 1, key=lambda v: abs(v - zx))
    for far, fits in ((zero_point, True), (zero_point + 1, False)):
        g = gq.Graph()
        source = g.dequantize(g.input("x", shape=(2, k), dtype=x), scales=[0.5], zps=[zx])
        weights, zps = np.full((k, 16), low, NUMPY[w]), np.full((1, 16), low + sign * far, np.int32)
        wf = g.dynamic_dequantize(g.constant(weights), g.constant(np.ones((1, 16), np.float32)), g.constant(zps),
                                  qtype="per_group", group_shape=[k, 1])
        g.output(g.matmul(source, wf), name="y")
        inputs = {"x": np.full((2, k), extreme).astype(gq.dtypes.as_dtype(x).numpy)}
        model = gq.compile(g, isa=width, threads=1)
        assert ("matmul_compressed" in model.explain()) == fits
        np.testing.assert_allclose(model(inputs), np.full((2, 16), -sign * (extreme - zx) * 0.5 * far * k), rtol=1e-6)


@pytest.mark.parametrize("w, least", [("u4", 0), ("s4", 8)])
@pytest.mark.parametrize("sign", [1, -1])
def test_zero_points_of_22_bits(w, least, sign):
    """Beside f32, whose kernels hold them in 23 bits: the greatest that fits, then the next one."""
    x = np.zeros((1, 8), np.float32)
    x[:, 0] = 1
    for far, fits in (((1 << 22) - 1, True), (1 << 22, False)):
        g = gq.Graph()
        zps = np.full((1, 16), sign * far - least, np.int32)
        wf = g.dynamic_dequantize(g.constant(np.ones((8, 16), NUMPY[w])), g.constant(np.ones((1, 16), np.float32)),
                                  g.constant(zps), qtype="per_group", group_shape=[8, 1])
        g.output(g.matmul(g.input("x", shape=(1, 8), dtype="f32"), wf), name="y")
        model = gq.compile(g, threads=1)
        assert ("matmul_compressed" in model.explain()) == fits
        assert np.array_equal(model(x=x), np.full((1, 16), 1 - int(zps[0, 0])))


@pytest.mark.parametrize("options, shape, zps", [
    ({"qtype": "per_group", "group_shape": [1, 16]}, (4, 4), "u8"),
    ({"qtype": "per_group", "group_shape": [1, 64]}, (4, 1), "u8"),
    ({"qtype": "per_group", "group_shape": [2, 16]}, (2, 4), None),
    ({"qtype": "per_group", "group_shape": [2, 16]}, (2, 4), "u8"), ({"axis": 0, "qtype": "per_channel"}, (4,), None),
    ({"axis": 1, "qtype": "per_channel"}, (64,), "u8"), ({}, (1,), None), ({}, (1,), "u8")])
def test_sources_that_the_kernels_do_not_take(options, shape, zps):
    """With zero points, or scales of anything but groups of a row: they count where the input is dequantized."""
    rng = np.random.default_rng(5)
    g = gq.Graph()
    x, parameters = g.input("x", shape=(4, 64), dtype="u8"), [g.input("s", shape=shape, dtype="f32")]
    parameters += [g.input("z", shape=shape, dtype=zps)] if zps else []
    w, s = rng.integers(-8, 8, (64, 20)).astype(NUMPY["s4"]), rng.uniform(0.1, 1, (4, 20)).astype(np.float32)
    w = g.dynamic_dequantize(g.constant(w), g.constant(s), qtype="per_group", group_shape=[16, 1])
    g.output(g.matmul(g.dynamic_dequantize(x, *parameters, **options), w), name="y")
    inputs = {"x": rng.integers(0, 256, (4, 64)).astype(np.uint8), "s": rng.uniform(0.1, 1, shape).astype(np.float32),
              **({"z": rng.integers(0, 256, shape).astype(np.uint8)} if zps else {})}
    want = gq.reference(g, inputs)
    np.testing.assert_allclose(gq.compile(g)(inputs), want, rtol=1e-4, atol=1e-5 * np.abs(want).max())


def test_scales_of_dequantize_and_sums_of_floats():
    """Weights with a scale a column, as ONNX's files have them, multiply f32 in the order of all float products."""
    rng = np.random.default_rng(1)
    w, scales = rng.integers(-128, 128, (520, 20)).astype(np.int8), rng.uniform(0.01, 0.1, 20)
    x = rng.standard_normal((3, 520)).astype(np.float32)
    g, plain = gq.Graph(), gq.Graph()
    right = g.dequantize(g.constant(w), qtype="per_channel", axis=1, scales=scales.tolist(), zps=[*range(-10, 10)])
    g.output(g.matmul(g.input("x", shape=x.shape, dtype="f32"), right), name="y")
    expanded = (w.astype(np.float32) - np.arange(-10, 10, dtype=np.float32)) * scales.astype(np.float32)
    plain.output(plain.matmul(plain.input("x", shape=x.shape, dtype="f32"), expanded), name="y")
    model = gq.compile(g)
    assert "matmul_compressed" in model.explain()
    assert np.array_equal(model(x=x), gq.compile(plain)(x=x))

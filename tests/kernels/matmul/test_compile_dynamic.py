"""Dynamic quantization compiled: equal to the reference, op by op, at every ISA level and thread count."""
import numpy as np
import pytest
from levels import at_each_width, pairs_at_each_width

import graphq as gq
from graphq.testing import check_same_numbers, random_inputs


def s8(rng, *shape):
    return rng.integers(-128, 128, shape).astype(np.int8)


def dynamic_linear(g, x, rng, n, *, w_dtype="s8", zw="column", tail="bias", quantized=None):
    """DynamicQuantizeLinear -> MatMulInteger -> Cast -> Mul -> Add ... as ONNX files have them; and the quantized x."""
    k = x.shape[-1]
    scale, zp = g.dynamic_range(x) if quantized is None else quantized[1:]
    q = g.dynamic_quantize(x, scale, zp, dtype="u8") if quantized is None else quantized[0]
    kind = np.int8 if w_dtype == "s8" else np.uint8
    w = g.constant(s8(rng, k, n).view(kind))
    zps = {"column": s8(rng, n), "one": s8(rng), "none": None, "zero": np.zeros(n, np.int8)}[zw]
    acc = g.matmul_integer(q, w, zp, None if zps is None else g.constant(np.asarray(zps).view(kind)))
    if tail == "s32":
        return acc, (q, scale, zp)
    m = g.multiply(scale, g.constant(rng.uniform(1e-3, 4e-3, n).astype(np.float32)))
    y = g.multiply(g.cast(acc, dtype="f32"), m)
    y = g.add(g.constant(rng.standard_normal(n).astype(np.float32)), y)
    if tail == "gelu":
        erf = g.erf(g.divide(y, g.constant(np.float32(2**0.5))))
        y = g.multiply(g.multiply(y, g.add(erf, g.constant(np.float32(1)))), g.constant(np.float32(0.5)))
    return (g.add(y, g.input("z", shape=y.shape, dtype="f32")) if tail == "residual" else y), (q, scale, zp)


def partitions(model):
    return [" ".join(n.op.name for n in p.attrs["body"].nodes) for p in model.graph.nodes if p.op.name == "partition"]


def check(g, level, inputs=None, exact=True):
    """Compile for one and two threads; the outputs equal the formula's and the reference's. The last model."""
    inputs = inputs or random_inputs(g)
    want = gq.reference(g, inputs)
    for threads in (1, 2):
        model = gq.compile(g, isa=level, threads=threads, strict=True)
        got, formula = model(inputs), model.formula(inputs)
        if not isinstance(got, dict):
            got, formula, want = {"y": got}, {"y": formula}, want if isinstance(want, dict) else {"y": want}
        for name, y in got.items():
            assert np.array_equal(y, formula[name], equal_nan=y.dtype.kind == "f")
            if exact:
                assert np.array_equal(y, want[name], equal_nan=y.dtype.kind == "f")
            else:
                np.testing.assert_allclose(y, want[name], rtol=1e-5, atol=1e-5)
    return model


@pytest.mark.parametrize("zw, tail, w_dtype, level", pairs_at_each_width(
    ["column", "one", "none", "zero"], ["bias", "s32", "residual"], ["s8", "u8"]), indirect=["level"])
def test_a_dynamic_linear_layer_is_one_partition(level, tail, w_dtype, zw):
    g, rng = gq.Graph(), np.random.default_rng(1)
    y, _ = dynamic_linear(g, g.input("x", shape=(3, 7, 70), dtype="f32"), rng, 37, w_dtype=w_dtype, zw=zw, tail=tail)
    g.output(y, name="y")
    model = check(g, level)
    ends = {"bias": " multiply cast multiply add", "s32": "", "residual": " multiply cast multiply add add"}[tail]
    assert partitions(model) == ["dynamic_quantize", "matmul_integer" + ends]
    assert "(1 integer)" in model.explain()


def test_gelu_behind_it(level):
    """erf is a polynomial: the formula's, within 2 ulp of the reference's."""
    g, rng = gq.Graph(), np.random.default_rng(1)
    g.output(dynamic_linear(g, g.input("x", shape=(9, 33), dtype="f32"), rng, 40, tail="gelu")[0], name="y")
    model = check(g, level, exact=False)
    assert partitions(model)[1] == "matmul_integer multiply cast multiply add divide erf add multiply multiply"


def test_several_matmuls_share_the_quantized_activations(level):
    g, rng = gq.Graph(), np.random.default_rng(2)
    x = g.input("x", shape=(11, 64), dtype="f32")
    first, shared = dynamic_linear(g, x, rng, 16)
    for k, y in enumerate([first, *(dynamic_linear(g, x, rng, n, quantized=shared)[0] for n in (5, 33))]):
        g.output(y, name=f"y{k}")
    model = check(g, level)
    assert len(partitions(model)) == 4 and model.explain().count("extremes_block") == 1


@pytest.mark.parametrize("rows", ["constant", "input"])
def test_zero_points_of_rows(level, rows):
    g, rng = gq.Graph(), np.random.default_rng(3)
    zx = g.constant(s8(rng, 6)) if rows == "constant" else g.input("zx", shape=(6,), dtype="s8")
    g.output(g.matmul_integer(g.input("x", shape=(2, 6, 19), dtype="s8"), g.constant(s8(rng, 19, 21)), zx,
                              g.input("zw", shape=(21,), dtype="s8")), name="y")
    assert partitions(check(g, level)) == ["matmul_integer"]


@pytest.mark.parametrize("shapes, level", at_each_width([
    ((5, 4, 30), (5, 30, 9), (5, 4, 1), (5, 1, 9)), ((30,), (30, 9), (), (9,)), ((30,), (30, 9), (1,), ()),
    ((2, 1, 4, 30), (5, 30, 9), (1,), (5, 1, 1)), ((4, 0), (0, 9), (4,), ()), ((0, 30), (30, 9), (), ())]),
    indirect=["level"])
def test_zero_points_of_any_shape_when_nothing_is_constant(level, shapes):
    g = gq.Graph()
    dtypes = {"x": "u8", "w": "u8", "zx": "u8", "zw": "u8"}
    g.output(g.matmul_integer(*(g.input(name, shape=shape, dtype=dtypes[name])
                                for name, shape in zip(dtypes, shapes, strict=True))), name="y")
    assert partitions(check(g, level)) == ["matmul_integer"]


def test_sums_wrap_as_in_the_reference(level):
    g = gq.Graph()
    g.output(g.matmul_integer(g.input("x", shape=(1, 70_000), dtype="u8"), g.input("w", shape=(70_000, 1), dtype="u8")),
             name="y")
    y = check(g, level, {"x": np.full((1, 70_000), 255, np.uint8), "w": np.full((70_000, 1), 255, np.uint8)})
    assert partitions(y) == ["matmul_integer"]


@pytest.mark.parametrize("values, level", at_each_width(["zero", "constant", "nan", "inf", "negative", "tiny"]),
                         indirect=["level"])
def test_special_activations(level, values):
    g, rng = gq.Graph(), np.random.default_rng(4)
    y, (q, scale, zp) = dynamic_linear(g, g.input("x", shape=(5, 48), dtype="f32"), rng, 17)
    for name, v in {"y": y, "q": q, "scale": scale, "zp": zp}.items():
        g.output(v, name=name)
    x = rng.standard_normal((5, 48)).astype(np.float32)
    x = {"zero": 0 * x, "constant": np.full_like(x, -3), "negative": -abs(x), "tiny": x * np.float32(1e-44),
         "nan": np.where(x > 2, np.nan, x), "inf": np.where(x > 2, np.inf, x)}[values].astype(np.float32)
    check(g, level, {"x": x})


def test_shapes_that_are_open(level):
    g, rng = gq.Graph(), np.random.default_rng(5)
    g.output(dynamic_linear(g, g.input("x", shape=(None, None, 40), dtype="f32"), rng, 24)[0], name="y")
    model = gq.compile(g, isa=level, threads=2)
    for shape in ((1, 3, 40), (2, 1, 40), (3, 65, 40), (0, 4, 40)):
        x = rng.standard_normal(shape).astype(np.float32)
        assert np.array_equal(model(x=x), gq.reference(g, x=x))
        assert partitions(model)[-1] == "matmul_integer multiply cast multiply add"


# -- oneDNN's form: dynamic_dequantize around a matmul -----------------------------------------------------------


def onednn_linear(*, x="u8", w="s8", zps=True, w_zps=None, constant=True, transpose_b=False, quantize=None):
    """matmul(dynamic_dequantize(x), dynamic_dequantize(w)) with bias, relu, and a dynamic_quantize."""
    g = gq.Graph()
    zp = [g.input("zx", shape=(1,), dtype=zps)] if zps else []
    a = g.dynamic_dequantize(g.input("x", shape=(6, 40), dtype=x), g.input("sx", shape=(1,), dtype="f32"), *zp)
    shape, axis = ((18, 40), 0) if transpose_b else ((40, 18), 1)
    weights = g.input("w", shape=shape, dtype=w, property="constant" if constant else "variable")
    more = [g.input("zw", shape=(18,), dtype=w_zps)] if w_zps else []
    b = g.dynamic_dequantize(weights, g.input("sw", shape=(18,), dtype="f32"), *more, qtype="per_channel", axis=axis)
    y = g.relu(g.bias_add(g.matmul(a, b, transpose_b=transpose_b), g.input("bias", shape=(18,), dtype="f32")))
    if quantize:
        zq = [g.input("zq", shape=(), dtype=quantize)]
        y = g.dynamic_quantize(y, g.input("sq", shape=(), dtype="f32"), *zq, dtype="u8")
    g.output(y, name="y")
    inputs = random_inputs(g)
    small = {n: np.abs(v) * np.float32(0.05) + np.float32(0.01) for n, v in inputs.items() if n in ("sx", "sw", "sq")}
    return g, {**inputs, **small}


@pytest.mark.parametrize("options, level", at_each_width([
    {}, {"zps": "s8", "x": "s8"}, {"zps": "s32"}, {"zps": False}, {"w_zps": "s8"}, {"w_zps": "s32", "w": "u8"},
    {"constant": False}, {"constant": False, "w_zps": "s8"}, {"transpose_b": True}, {"w": "u8"}]),
    ids=str, indirect=["level"])
def test_scales_that_are_tensors(level, options):
    g, inputs = onednn_linear(**{"zps": "u8", **options})
    want = gq.reference(g, inputs)
    for threads in (1, 2):
        model = gq.compile(g, isa=level, threads=threads, strict=True)
        got = model(inputs)
        assert np.array_equal(got, model.formula(inputs)) and partitions(model)[-1].startswith("dynamic_dequantize")
        assert np.abs(got - want).max() <= 1e-6 * np.abs(want).max()
        assert "(1 integer)" in model.explain()


@pytest.mark.parametrize("zq", ["u8", "s8", "s32"])
def test_a_result_quantized_by_tensors(level, zq):
    g, inputs = onednn_linear(zps="u8", quantize=zq)
    want = gq.reference(g, inputs)
    model = gq.compile(g, isa=level, threads=2, strict=True)
    got = model(inputs)
    assert np.array_equal(got, model.formula(inputs)) and partitions(model)[-1].endswith("dynamic_quantize")
    assert np.abs(got.astype(int) - want).max() <= 1


@pytest.mark.parametrize("zq, value", [("s8", -128), ("u8", 255), ("s32", -(2**31)), ("s32", 2**31 - 1), ("s32", 1000)])
@pytest.mark.parametrize("dtype", ["s8", "u8"])
def test_zero_points_outside_of_the_quantized_type(width, dtype, zq, value):
    g = gq.Graph()
    y = g.dynamic_quantize(g.input("x", shape=(7,), dtype="f32"), g.input("s", shape=(), dtype="f32"),
                           g.input("z", shape=(), dtype=zq), dtype=dtype)
    g.output(y, name="y")
    x = np.array([np.nan, np.inf, -np.inf, 0, 100, -100, 1e6], np.float32)
    inputs = {"x": x, "s": np.float32(0.5), "z": np.array(value, gq.dtypes.as_dtype(zq).numpy)}
    assert partitions(check(g, width, inputs)) == ["dynamic_quantize"]


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_scales_of_channels_in_a_chain(width, axis):
    g = gq.Graph()
    x, n = g.input("x", shape=(4, 6, 5), dtype="f32"), (4, 6, 5)[axis]
    s, z = g.input("s", shape=(n,), dtype="f32"), g.input("z", shape=(n,), dtype="s8")
    q = g.dynamic_quantize(x, s, z, dtype="s8", qtype="per_channel", axis=axis)
    g.output(g.relu(g.dynamic_dequantize(q, s, z, qtype="per_channel", axis=axis)), name="y")
    inputs = random_inputs(g)
    model = check(g, width, {**inputs, "s": np.abs(inputs["s"]) + np.float32(0.01)})
    assert partitions(model) == ["dynamic_quantize dynamic_dequantize relu"]


# -- what does not fuse, and why --------------------------------------------------------------------------------


def refused(g):
    return gq.compile(g).explain()


def test_integers_of_four_bits_without_constants():
    g = gq.Graph()
    a = g.dynamic_dequantize(g.input("x", shape=(8, 8), dtype="s4"), g.input("s", shape=(), dtype="f32"))
    g.output(g.matmul(a, a))
    assert "compressed weights are packed at compile time" in refused(g)


def test_scales_that_stand_inside_the_sum():
    g = gq.Graph()
    a = g.dynamic_dequantize(g.input("x", shape=(4, 8), dtype="u8"), g.input("s", shape=(8,), dtype="f32"),
                             qtype="per_channel")
    w = g.dequantize(g.constant(np.ones((8, 3), np.int8)), scales=[0.5])
    g.output(g.matmul(a, w))
    assert "its scale would vary inside the sum" in refused(g)


def test_scales_of_groups_of_rows():
    g = gq.Graph()
    a = g.dynamic_dequantize(g.input("x", shape=(4, 8), dtype="s8"), g.input("s", shape=(2, 2), dtype="f32"),
                             qtype="per_group", group_shape=[2, 4])
    g.output(g.matmul(a, g.dequantize(g.constant(np.ones((8, 3), np.int8)), scales=[0.5])))
    assert "has scales of groups of [2, 4]" in refused(g)


def test_sums_that_are_used_elsewhere_end_the_partition():
    g, rng = gq.Graph(), np.random.default_rng(8)
    q = g.input("x", shape=(3, 8), dtype="u8")
    acc = g.matmul_integer(q, g.constant(s8(rng, 8, 4)))
    g.output(acc, name="acc")
    g.output(g.relu(g.cast(acc, dtype="f32")), name="y")
    model = gq.compile(g)
    assert partitions(model) == ["matmul_integer", "cast relu"]
    check_same_numbers(g, model.graph)

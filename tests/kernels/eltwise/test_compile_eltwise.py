"""compile on elementwise graphs: the numbers of each operation and of chains, at every ISA level."""
from contextlib import suppress
from itertools import cycle, product

import numpy as np
import pytest
from levels import WIDTHS

import graphq as gq
from graphq.dtypes import DType
from graphq.ir.op import walk_ops
from graphq.testing import random_inputs

RNG = np.random.default_rng(11)

LANEWISE = [op for op in walk_ops() if op.lanes is not None and op.name != "arithmetic"]  # its test takes integers
SPECIAL = np.array([0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 1e-42, 3e38, -3e38, 0.5, 2.5, 88.0, -104.0],
                   np.float32)


def one_operation(op, n):
    """A graph of one operation on f32 inputs of shape [n, n], or [n] for a bias; its attributes are 0.25, 0.75, ...

    Where it takes booleans they are comparisons with 0, and where it gives them it chooses between 1 and 0: kernels
    read and write no booleans.
    """
    required = [a for a in op.attributes.values() if a.required]
    attrs = {a.name: "bf16" if a.annotation is DType else 0.25 + 0.5 * k for k, a in enumerate(required)}
    for booleans in product((False, True), repeat=len(op.operands)):
        for last in ((n, n), (n,)):
            g = gq.Graph()
            shapes = [(n, n)] * (len(booleans) - 1) + [last]
            operands = [g.input(f"x{k}", shape=shape, dtype="f32") for k, shape in enumerate(shapes)]
            operands = [g.greater_equal(x, np.float32(0)) if b else x for x, b in zip(operands, booleans, strict=True)]
            with suppress(gq.GraphError):
                y = getattr(g, op.name)(*operands, **attrs)
                g.output(g.select(y, np.float32(1), np.float32(0)) if y.dtype == "boolean" else y)
                return g
    raise AssertionError(f"{op.name} takes none of the operands that this test knows: teach it")


@pytest.mark.parametrize("op, width", list(zip(LANEWISE, cycle(WIDTHS), strict=False)), indirect=["width"],
                         ids=lambda x: getattr(x, "name", x))
def test_each_operation_with_a_lane_rule_equals_its_formula_and_its_reference(width, op):
    """To the last bit where the operation says `exact`, and in f32 to a few units in the last place elsewhere.

    Widths have their turn: of what rules are made of, all widths are in tests/kernels/lanes/test_vector.py.
    """
    x = np.concatenate([SPECIAL, RNG.standard_normal(30).astype(np.float32)])
    g = one_operation(op, len(x))
    every, other = np.meshgrid(x, x)
    given = [RNG.standard_normal(every.shape).astype(np.float32)] * (len(op.operands) > 2) + [every, other]
    inputs = {v.name: a if len(v.shape) == 2 else a[0] for v, a in zip(g.inputs, given, strict=False)}
    model = gq.compile(g, isa=width, strict=True)
    results = model(inputs), model.formula(inputs), gq.reference(g, inputs)
    y, formula, reference = (np.asarray(a, np.float32) for a in results)
    assert np.array_equal(y, formula, equal_nan=True)
    assert np.array_equal(np.isnan(y), np.isnan(reference))
    if op.exact:
        same = ~np.isnan(reference)
        np.testing.assert_array_equal(y[same], reference[same], "its declaration does not say exact=False")
        np.testing.assert_array_equal(np.signbit(y[same]), np.signbit(reference[same]))
    else:
        # gelu multiplies by a small difference from 1: a few ulp of its absolute size
        rtol, atol = (2e-6, 2e-7) if op.name == "gelu" else (5e-7, 1e-44)
        np.testing.assert_allclose(y, reference, rtol=rtol, atol=atol)


@pytest.mark.parametrize("dtype", ["s8", "u8", "s32"])
def test_integers_become_floats(width, dtype):
    x = np.array([0, 1, 127, 100, 2**24 + 1, -2**31, 2**31 - 1], np.int64).astype(gq.dtypes.as_dtype(dtype).numpy)
    g = gq.Graph()
    g.output(g.multiply(g.cast(g.input("x", shape=x.shape, dtype=dtype), dtype="f32"), np.float32(0.5)))
    y = gq.compile(g, isa=width, strict=True)(x=x)
    np.testing.assert_array_equal(y, x.astype(np.float32) * np.float32(0.5))


@pytest.mark.parametrize("dtype", ["s8", "u8", "s16", "u16", "s32"])
def test_functions_of_bits_equal_the_reference(width, dtype):
    """All pairs of small numbers, and numbers near the ends; shifts beyond the width and by less than 0 as well."""
    kind = gq.dtypes.as_dtype(dtype)
    few = np.unique(np.clip([*range(-40, 41), kind.min, kind.min + 1, kind.max, kind.max // 3], kind.min, kind.max))
    x, y = (v.reshape(-1).astype(kind.numpy) for v in np.meshgrid(few, few))
    g = gq.Graph()
    a, b = (g.input(name, shape=x.shape, dtype=dtype) for name in "ab")
    for function in ("and", "or", "xor", "shift_left", "shift_right"):
        g.output(g.arithmetic(a, b, function=function))
    want = gq.reference(g, {"a": x, "b": y})
    for name, got in gq.compile(g, isa=width, strict=True)({"a": x, "b": y}).items():
        np.testing.assert_array_equal(got, want[name])


def test_f8_in_memory_and_between_operations_equals_the_reference(width):
    """All codes are read. Numbers lie on and near ties, and beyond the range."""
    for name in ("f8_e4m3", "f8_e5m2"):
        dtype = gq.dtypes.as_dtype(name).numpy
        codes = np.arange(256, dtype=np.uint8).view(dtype)
        numbers = codes.astype(np.float32)
        ties = (numbers + np.roll(numbers, 1)) / 2
        x = np.concatenate([SPECIAL, numbers * 3, *(np.nextafter(ties, np.float32(to)) for to in (-1e9, 1e9)), ties])
        g = gq.Graph()
        given = g.input("x", shape=x.shape, dtype="f32")
        quantized = g.quantize(given, dtype=name, scales=[1.0])
        g.output(g.cast(given, dtype=name))
        g.output(quantized)
        g.output(g.dynamic_quantize(given, g.input("scale", shape=(1,), dtype="f32"), dtype=name))
        g.output(g.quantize(g.sqrt(g.dequantize(quantized, scales=[1.0])), dtype=name, scales=[1.0]))
        g.output(g.dequantize(g.input("codes", shape=(256,), dtype=name), scales=[0.3]))
        inputs = {"x": x, "codes": codes, "scale": np.float32([0.25])}
        with np.errstate(all="ignore"):
            want = gq.reference(g, inputs)
        got = gq.compile(g, isa=width, strict=True)(inputs)
        for y, expected in zip(got.values(), want.values(), strict=True):
            np.testing.assert_array_equal(y.astype(np.float32), expected.astype(np.float32))
            number = expected == expected
            np.testing.assert_array_equal(y[number].view(np.uint8), expected[number].view(np.uint8))


def test_floats_become_integers_within_a_chain(width):
    """Towards zero, beyond s32 its nearest end, of NaN 0."""
    x = np.concatenate([SPECIAL, np.float32([2**31, -2**31, 2**31 - 128, -2**31 - 256, 7.9, -7.9])])
    g = gq.Graph()
    v = g.cast(g.floor(g.multiply(g.input("x", shape=x.shape, dtype="f32"), np.float32(1))), dtype="s32")
    g.output(g.multiply(g.cast(g.add(v, np.int32(5)), dtype="f32"), np.float32(0.5)), name="y")
    g.output(v, name="v")
    model = gq.compile(g, isa=width, strict=True)
    got, want = model(x=x), gq.reference(g, x=x)
    for name in "vy":
        np.testing.assert_array_equal(got[name], want[name])


@pytest.mark.parametrize("name, attrs", [
    ("elu", dict(alpha=0.5)), ("softplus", dict(beta=1.0)), ("softplus", dict(beta=-2.0)),
    ("hard_sigmoid", dict(alpha=0.2, beta=0.5)), ("leaky_relu", dict(alpha=0.1)), ("clamp", dict(min=-1, max=2)),
    ("gelu", dict(mode="gelu_tanh")),
])
def test_elementwise_operations_with_attributes(width, name, attrs):
    x = np.concatenate([SPECIAL, RNG.standard_normal(300).astype(np.float32) * 4])
    g = gq.Graph()
    g.output(getattr(g, name)(g.input("x", shape=x.shape, dtype="f32"), **attrs))
    model = gq.compile(g, isa=width, strict=True)
    y, reference = model(x=x), gq.reference(g, x=x)
    assert np.array_equal(y, model.formula(x=x), equal_nan=True)
    np.testing.assert_allclose(y, reference, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("shape, options", [((3,), dict(data_format="NCX")), ((5,), {}), ((3, 1, 1), {}), ((1,), {}),
                                            ((5,), dict(data_format="NCX", per_channel_broadcast=False))])
def test_prelu_slopes(width, shape, options):
    g = gq.Graph()
    g.output(g.prelu(g.input("x", shape=(2, 3, 4, 5), dtype="f32"), g.input("z", shape=shape, dtype="f32"), **options))
    inputs = random_inputs(g)
    assert np.array_equal(gq.compile(g, isa=width, strict=True)(inputs), gq.reference(g, inputs))


@pytest.mark.parametrize("shapes", [
    ((5, 7), (7,)), ((3, 1, 4), (2, 1)), ((), ()), ((0, 3), (3,)), ((2, 3, 4, 5), (3, 1, 1)), ((1000,), (1,)),
    ((2, 3, 4, 5), (2, 1, 4, 1)), ((70000,), (70000,)), ((3, 40000), (40000,)),
])
def test_elementwise_chains_broadcast(width, shapes):
    g = gq.Graph()
    x, z = (g.input(n, shape=s, dtype="f32") for n, s in zip("xz", shapes, strict=True))
    y = g.multiply(g.clamp(g.leaky_relu(g.add(z, x), alpha=0.1), min=-1, max=2), g.sigmoid(x))
    a, b, c = g.greater_equal(y, z), g.greater_equal(x, y), g.greater_equal(z, x)
    chosen = g.logical_or(g.logical_and(a, g.logical_not(b)), g.logical_xor(b, c))
    g.output(g.select(chosen, y, g.tanh(z)))
    inputs = random_inputs(g)
    for threads in (1, 2):
        model = gq.compile(g, isa=width, threads=threads, strict=True)
        assert len([n for n in model.graph.nodes if n.op.name == "partition"]) == 1
        y = model(inputs)
        assert np.array_equal(y, model.formula(inputs))
    np.testing.assert_allclose(y, gq.reference(g, inputs), rtol=1e-6, atol=1e-6)


def test_elementwise_quantize_equals_the_reference_at_ties(width):
    g = gq.Graph()
    x, z = (g.dequantize(g.input(n, shape=(256, 256), dtype="u8"), scales=[0.05]) for n in "xz")
    g.output(g.quantize(g.multiply(g.add(x, z), np.float32(0.5)), dtype="u8", scales=[0.1], zps=[1]))
    x, z = (np.ascontiguousarray(a) for a in np.meshgrid(*[np.arange(256, dtype=np.uint8)] * 2))
    assert np.array_equal(gq.compile(g, isa=width, strict=True)(x=x, z=z), gq.reference(g, x=x, z=z))


@pytest.mark.parametrize("exponent", [-110, -100, -20, 0, 70, 100, 110])
@pytest.mark.parametrize(("dtype", "zp"), [("u8", 128), ("s8", -128), ("u16", 40000)])
def test_a_quantize_divides_as_the_reference_at_ties_and_beyond(width, dtype, zp, exponent):
    """By scales that are known, some beyond those that take no division; quotients are ties and their neighbors."""
    rng = np.random.default_rng(0)
    scales = np.ldexp(rng.uniform(1, 2, 24).astype(np.float32), exponent)
    steps = rng.integers(-300, 300, (2000, 1)) + np.float64(0.5)
    with np.errstate(over="ignore"):
        ties = (steps * scales).astype(np.float32)
    x = np.concatenate([ties, np.nextafter(ties, np.float32(0)), np.nextafter(ties, np.float32(np.inf)),
                        np.broadcast_to(SPECIAL[:, None], (len(SPECIAL), 24))])
    g = gq.Graph()
    x_ = g.input("x", shape=x.shape, dtype="f32")
    g.output(g.quantize(g.abs(x_), dtype=dtype, qtype="per_channel", axis=-1, scales=scales.tolist(), zps=[zp] * 24))
    g.output(g.quantize(g.multiply(x_, np.float32(1)), dtype=dtype, scales=[float(scales[0])], zps=[zp]))
    got, want = gq.compile(g, isa=width, strict=True)(x=x), gq.reference(g, x=x)
    for name in got:
        np.testing.assert_array_equal(got[name], want[name])


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_narrow_floats_round_after_each_operation(width, dtype):
    g = gq.Graph()
    x, z = g.input("x", shape=(37, 19), dtype=dtype), g.input("z", shape=(19,), dtype=dtype)
    y = g.type_cast(g.multiply(g.add(g.multiply(x, z), x), g.relu(z)), dtype="f32")
    g.output(g.type_cast(g.add(y, y), dtype=dtype))
    inputs = random_inputs(g)
    model = gq.compile(g, isa=width, strict=True)
    assert [n.op.name for n in model.graph.nodes] == ["partition"]
    assert np.array_equal(model(inputs), model.formula(inputs))
    assert np.array_equal(model(inputs), gq.reference(g, inputs))


@pytest.mark.parametrize("dtype", ["u16", "s16"])
@pytest.mark.parametrize("scales", [[0.0173], np.linspace(1e-4, 0.1, 37).tolist()])
def test_quantize_to_16_bits_equals_the_reference(width, dtype, scales):
    rng = np.random.default_rng(0)
    g = gq.Graph("q16")
    x, z = g.input("x", shape=(5, 37), dtype="f32"), g.input("z", shape=(37,), dtype=dtype)
    attrs = {"qtype": "per_channel" if len(scales) > 1 else "per_tensor", "axis": -1, "scales": scales,
             "zps": [77] * len(scales)}
    q = g.quantize(g.add(x, g.dequantize(z, **attrs)), dtype=dtype, **attrs)
    g.output(q, name="q")
    g.output(g.relu(g.dequantize(q, **attrs)), name="y")
    info = np.iinfo(dtype.replace("s", "int").replace("u", "uint"))
    feeds = {"x": np.float32(scales) * rng.integers(info.min, info.max, (5, 37)).astype(np.float32) / 2,
             "z": rng.integers(info.min, info.max, 37).astype(info.dtype)}
    feeds["x"][0, :4] = [np.nan, np.inf, -np.inf, 1e38]
    got, want = gq.compile(g, isa=width, strict=True)(feeds), gq.reference(g, feeds)
    for name in got:
        assert got[name].dtype == want[name].dtype
        np.testing.assert_array_equal(got[name], want[name])


@pytest.mark.parametrize("shape, axis", [((3, 0), 1), ((0, 3), 0)])
def test_quantizes_of_nothing_along_an_empty_axis(width, shape, axis):
    g = gq.Graph()
    x = g.relu(g.input("x", shape=shape, dtype="f32"))
    g.output(g.quantize(x, dtype="u8", qtype="per_channel", axis=axis, scales=[], zps=[]))
    assert gq.compile(g, isa=width)(x=np.zeros(shape, np.float32)).shape == shape


@pytest.mark.parametrize("axis", [0, -2])
def test_channels_of_an_operand_of_lower_rank(axis):
    g = gq.Graph()
    x = g.input("x", shape=(3, 3, 5), dtype="f32")
    q = g.dequantize(g.input("q", shape=(3, 5), dtype="s8"), qtype="per_channel", axis=axis, scales=[1, 2, 4],
                     zps=[0, 1, 2])
    g.output(g.add(x, q), name="y")
    feeds = gq.testing.random_inputs(g)
    np.testing.assert_array_equal(gq.compile(g, strict=True)(feeds), gq.reference(g, feeds))


@pytest.mark.parametrize("dtype", ["s4", "u4", "s8", "u8"])
@pytest.mark.parametrize("shape, groups", [
    ((3, 32, 40), (1, 16, 1)), ((3, 40, 32), (1, 1, 8)), ((4, 6, 5), (2, 3, 5)), ((2, 3, 37), (1, 3, 1)),
    ((2, 37), (1, 1)), ((0, 4), (1, 2)), ((36,), (4,))], ids=str)
def test_scales_of_groups(width, dtype, shape, groups):
    """Any bytes: of 4 bits the lower half counts."""
    g = gq.Graph()
    x, counts = g.input("x", dtype=dtype, shape=shape), [d // n for d, n in zip(shape, groups, strict=True)]
    scales, zps = g.input("s", dtype="f32", shape=counts), g.input("z", dtype=dtype, shape=counts)
    g.output(g.dynamic_dequantize(x, scales, zps, qtype="per_group", group_shape=groups))
    arrays = {"x": RNG.integers(0, 256, shape, np.uint8).view(x.dtype.numpy),
              "s": RNG.standard_normal(counts).astype(np.float32),
              "z": RNG.integers(0, 256, counts, np.uint8).view(x.dtype.numpy)}
    model = gq.compile(g, isa=width, strict=True)
    got = model(arrays)
    np.testing.assert_array_equal(got, gq.reference(g, arrays))
    np.testing.assert_array_equal(got, model.formula(arrays))

"""What expressions are functions of: bytes, several of them, numbers that are known, or anything else.

Tables for chains on one byte: what becomes one, what stays, and the same numbers for every value.
"""
from dataclasses import replace

import numpy as np
import pytest

import graphq as gq
from graphq.kernels.family.lower import lower_eltwise
from graphq.kernels.family.tables import decided_by_one_byte, origins
from graphq.kernels.lanes import quantizing
from graphq.kernels.lanes.expression import STORAGE, acc, const, load, op, walk
from graphq.kernels.lanes.quantizing import byte_type
from graphq.kernels.target.isa import level_named

A, B = load(0, "u8", "vector"), load(1, "s8", "column")
ROW, WIDE, NUMBER = load(2, "u8", "row"), load(3, "f32", "vector"), load(4, "f32", "scalar")
X, Y = op("to_f32", A), op("to_f32", B)
Q = quantizing.quantized(quantizing.quantize(X * 2.0, NUMBER, 0.0, "s8"), "s8")


@pytest.mark.parametrize("x, dtype", [(A, "u8"), (B, "s8"), (ROW, None), (WIDE, None), (load(5, "u8", "scalar"), None),
                                      (Q, "s8"), (X, None), (acc(), None), (const(1, "s32"), None)])
def test_bytes_that_vary(x, dtype):
    assert byte_type(x) == dtype


def test_origins():
    both = X + Y
    of = origins(both * NUMBER, Q, bytes_={A, B, Q}, known={NUMBER})
    assert of[A] == of[X] == {A} and of[Y] == {B} and of[both] == {A, B} == of[both * NUMBER] and of[NUMBER] == set()
    assert of[Q] == {A}  # a byte that one byte decides is that byte's
    of = origins(Q, op("to_f32", Q) + WIDE, bytes_={A, Q}, known=())
    assert of[Q] == {Q} and of[NUMBER] == {NUMBER} and of[op("to_f32", Q) + WIDE] == {Q, WIDE}
    of = origins(X, bytes_=(), known={X})
    assert of[X] == set() and of[A] == {A}


@pytest.mark.parametrize("x, known, decided", [
    (X * 3.0, (), True), (X + X, (), True), (X + Y, (), False), (X * NUMBER, (), False), (X * NUMBER, {NUMBER}, True),
    (WIDE, (), False), (const(2.0), (), True), (op("to_f32", Q) + 1.0, {NUMBER}, True), (op("to_f32", Q), (), True),
    (op("to_f32", acc()), (), False), (X + op("to_f32", Q), {NUMBER}, True), (op("to_f32", ROW), (), False)])
def test_functions_of_one_byte(x, known, decided):
    assert decided_by_one_byte(x, known) is decided


ALL = np.arange(256, dtype=np.uint8)
SCALAR = replace(level_named("scalar"), lanes=1)  # a look-up replaces few operations


def tabulated(g, constants=()):
    """The lowered graph with tables, and those; its formula is checked to give what it did."""
    before = lower_eltwise(g)
    constants = [*constants, *[None] * (len(g.inputs) - len(constants))]
    after = before.tabulated(constants, SCALAR)
    rng = np.random.default_rng(1)
    inputs = [np.resize(ALL.view(v.dtype.numpy), v.type.dims) if v.dtype.name in ("u8", "s8")
              else rng.standard_normal(v.type.dims).astype(np.float32) for v in g.inputs]
    inputs = [x if c is None else c for x, c in zip(inputs, constants, strict=True)]
    np.testing.assert_array_equal(after.formula(inputs), before.formula(inputs))
    assert [x[0] for x in after.epilogue.loads] == list(range(len(after.sources)))
    return after, [s.data for s in after.sources if s.origin == "table"]


def operations(lowered):
    return [n.op for n in walk(lowered.epilogue.expr) if n.args]


def requantized(g, x, dtype, scale=0.1, zp=0):
    return g.dequantize(g.quantize(x, dtype=dtype, scales=[scale], zps=[zp]), scales=[scale], zps=[zp])


@pytest.mark.parametrize("source", ["u8", "s8"])
@pytest.mark.parametrize("result", ["u8", "s8"])
def test_a_chain_from_byte_to_byte_is_one_lookup(source, result):
    g = gq.Graph()
    q = g.input("q", shape=(2, 300), dtype=source)
    x = g.dequantize(q, scales=[0.05], zps=[9])
    y = requantized(g, g.hard_swish(x), "u8", 0.03, 7)
    g.output(g.quantize(g.multiply(g.sigmoid(y), x), dtype=result, scales=[0.04], zps=[3]), name="y")
    lowered, tables = tabulated(g)
    assert operations(lowered) == ["lookup"] and lowered.epilogue.loads[1] == (1, result, "table")
    assert len(tables) == 1
    values = ALL.view(STORAGE[source])
    want = gq.reference(g, q=np.resize(values, (2, 300)))
    np.testing.assert_array_equal(tables[0][values.view(np.uint8)], want.ravel()[:256])


def test_what_two_tensors_decide_stays_and_chains_before_and_after_become_tables():
    g = gq.Graph()
    a, b = (g.dequantize(g.input(n, shape=(256,), dtype="u8"), scales=[0.05], zps=[100]) for n in "ab")
    both = requantized(g, g.add(requantized(g, g.tanh(a), "s8", 0.01), b), "u8", 0.07, 90)
    g.output(g.quantize(g.sigmoid(both), dtype="u8", scales=[1 / 255], zps=[0]), name="y")
    lowered, tables = tabulated(g)
    assert len(tables) == 2 and operations(lowered).count("lookup") == 2 and "sigmoid" not in operations(lowered)
    assert "add" in operations(lowered)


def test_equal_tables_are_one():
    g = gq.Graph()
    x, z = (g.dequantize(g.input(n, shape=(256,), dtype="u8"), scales=[0.05], zps=[100]) for n in "xz")
    a, b = (requantized(g, g.tanh(v), "s8", 0.01) for v in (x, z))
    g.output(g.quantize(g.multiply(a, b), dtype="s8", scales=[0.01], zps=[0]), name="y")
    lowered, tables = tabulated(g)
    assert len(tables) == 1 and operations(lowered).count("lookup") == 2


def test_tables_of_other_types_stay_two_even_of_equal_bytes():
    """255 - q in u8 and -1 - q in s8 both flip all bits."""
    g = gq.Graph()
    parts = []
    for name, dtype, zp in (("a", "u8", 255), ("b", "s8", -1)):
        x = g.dequantize(g.input(name, shape=(256,), dtype=dtype), scales=[-1.0])
        parts.append(requantized(g, x, dtype, 1.0, zp))
    g.output(g.multiply(*parts), name="y")
    _, (first, second) = tabulated(g)
    assert (first.dtype, second.dtype) == (np.uint8, np.int8) and first.tobytes() == second.tobytes()


def scaled(shape, dtype="f32"):
    """quantize(dequantize(x) * factor)"""
    g = gq.Graph()
    x = g.dequantize(g.input("x", shape=(4, 64), dtype="u8"), scales=[0.05], zps=[100])
    factor = g.input("factor", shape=shape, dtype=dtype)
    factor = factor if dtype == "f32" else g.dequantize(factor, scales=[0.01], zps=[5])
    g.output(g.quantize(g.multiply(x, factor), dtype="u8", scales=[0.1], zps=[50]), name="y")
    return g


def test_numbers_that_the_plan_knows_go_into_tables():
    lowered, tables = tabulated(scaled((1,)), [None, np.array([1.5], np.float32)])
    assert operations(lowered) == ["lookup"] and len(lowered.sources) == 2
    (table,) = tables
    exact = (ALL.astype(np.float32) - 100) * np.float32(0.05) * np.float32(1.5)
    np.testing.assert_array_equal(table, np.clip(np.rint(exact / np.float32(0.1)) + 50, 0, 255))
    assert operations(tabulated(scaled((), "u8"), [None, np.array(77, np.uint8)])[0]) == ["lookup"]


@pytest.mark.parametrize("shape, constant", [((1,), False), ((64,), True), ((4, 1), True)])
def test_numbers_that_vary_or_come_with_the_call_stay_operations(shape, constant):
    lowered, tables = tabulated(scaled(shape), [None, np.full(shape, 1.5, np.float32) if constant else None])
    assert not tables and "lookup" not in operations(lowered)


def test_scales_of_channels_stay_operations():
    g = gq.Graph()
    x = g.dequantize(g.input("x", shape=(4, 64), dtype="u8"), qtype="per_channel", axis=1, scales=[0.05] * 64)
    g.output(g.quantize(g.tanh(x), dtype="u8", scales=[0.1], zps=[50]), name="y")
    assert not tabulated(g)[1]


def test_what_is_not_a_byte_stays():
    g = gq.Graph()
    x = g.dequantize(g.input("x", shape=(256,), dtype="u8"), scales=[0.05], zps=[100])
    g.output(g.sigmoid(x), name="y")
    assert not tabulated(g)[1]
    g = gq.Graph()
    g.output(g.quantize(g.sigmoid(g.input("x", shape=(256,), dtype="f32")), dtype="u8", scales=[0.1]), name="y")
    assert not tabulated(g)[1]


def test_short_chains_stay():
    g = gq.Graph()
    x = g.dequantize(g.input("x", shape=(256,), dtype="u8"), scales=[0.05], zps=[100])
    g.output(g.quantize(x, dtype="u8", scales=[0.1], zps=[50]), name="y")
    taken, left = (lower_eltwise(g).tabulated([None], level) for level in (SCALAR, level_named("avx2")))
    assert [x.origin for x in taken.sources] == ["input", "table"]
    assert "table" not in [x.origin for x in left.sources] and left.epilogue == lower_eltwise(g).epilogue


@pytest.mark.parametrize("dtype, high, clamps", [("u8", 3.0, (9, 69)), ("s8", 3.0, (9, 69)), ("s8", 99.0, (9, 127)),
                                                 ("u8", 3.02, (9, 69))])
def test_a_chain_that_clamps_is_max_and_min(dtype, high, clamps, level):
    g = gq.Graph()
    x = g.dequantize(g.input("x", shape=(256,), dtype=dtype), scales=[0.05], zps=[9])
    g.output(g.quantize(g.clamp(x, min=0.0, max=high), dtype=dtype, scales=[0.05], zps=[9]), name="y")
    lowered = lower_eltwise(g).tabulated([None], level_named("avx2"))
    assert operations(lowered) == ["max", "min"] and [s.origin for s in lowered.sources] == ["input"]
    values = ALL.view(STORAGE[dtype])
    want = gq.reference(g, x=values)
    assert (want.min(), want.max()) == clamps
    np.testing.assert_array_equal(lowered.formula([values]), want)
    np.testing.assert_array_equal(gq.compile(g, isa=level, strict=True)(x=values), want)


@pytest.mark.parametrize("scale, zp", [(0.06, 9), (0.05, 8)])
def test_a_short_chain_with_another_scale_or_zero_point_is_no_clamp(scale, zp):
    g = gq.Graph()
    x = g.dequantize(g.input("x", shape=(256,), dtype="u8"), scales=[0.05], zps=[9])
    g.output(g.quantize(g.clamp(x, min=0.0, max=3.0), dtype="u8", scales=[scale], zps=[zp]), name="y")
    assert lower_eltwise(g).tabulated([None], level_named("avx2")).epilogue == lower_eltwise(g).epilogue


def test_every_value_at_every_level(level):
    g = gq.Graph()
    x = g.dequantize(g.input("x", shape=(3, 256), dtype="s8"), scales=[0.05], zps=[-10])
    y = requantized(g, g.gelu(x), "s8", 0.03, -20)
    y = requantized(g, g.multiply(y, np.float32(1.7)), "u8", 0.05, 10)
    g.output(g.quantize(g.add(g.mish(y), x), dtype="s8", scales=[0.06], zps=[-5]), name="y")
    model = gq.compile(g, isa=level, strict=True)
    inputs = np.stack([ALL.view(np.int8), ALL.view(np.int8)[::-1], np.roll(ALL.view(np.int8), 5)])
    got = model(x=inputs)
    np.testing.assert_array_equal(got, model.formula(x=inputs))
    assert np.abs(got.astype(int) - gq.reference(g, x=inputs)).max() <= 1

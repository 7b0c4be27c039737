"""What an epilogue's functions write, and which outputs they enter for a second look, in vectors of every width."""
import ctypes
from dataclasses import replace

import numpy as np
import pytest
from kernel_factories import from_registers

from graphq.kernels.jit import modules
from graphq.kernels.jit.intrinsics import HEADER_WORDS
from graphq.kernels.lanes.epilogue_code import GROUP
from graphq.kernels.lanes.epilogues import Epilogue, FastForm, SecondLook, evaluate
from graphq.kernels.lanes.expression import STORAGE, acc, const, load, op
from graphq.kernels.lanes.outputs import NAMES, epilogue_functions, load_outputs
from graphq.kernels.target import isa

WIDTHS = [(1, ""), (8, ""), (16, ""), *((x.lanes, x.name) for x in isa.LEVELS if x.own("packing") is not None)] \
    if len(isa.available()) > 1 else [(1, "")]
"""Lanes, and the level whose instructions pack four vectors as one."""


def made(factory, *arguments, packed):
    """A module for the level named `packed`, or for none; the test is skipped if the machine cannot pack."""
    level = isa.level_named(packed) if packed else None
    if level is not None and level.packs is None:
        pytest.skip("the machine lacks AVX-512's packs")
    return modules.load("test", factory, *arguments, level=level, cache=False)


BAND, OTHER = load(0, "s32", "column"), load(1, "u8", "table")


def store(kind, looks=True):
    """An epilogue whose fast form gives other numbers than its exact one: so one sees which was computed."""
    total = acc()
    if kind == "f32":
        exact, fast, dtype = op("to_f32", total), op("to_f32", total) + 1.0, "f32"
    elif kind == "lookup":
        exact, fast, dtype = op("lookup", OTHER, total), op("lookup", OTHER, op("xor", total, const(255, "s32"))), "u8"
    else:
        exact, fast, dtype = op(f"high_{kind}", total), op(f"high_{kind}", total + const(1 << 17, "s32")), kind
    if not looks:
        return Epilogue(exact, dtype)
    needed = op("ge", op("and", total, const(0xFFF, "s32")), BAND)
    return Epilogue(exact, dtype, FastForm(((exact, fast),), total, BAND), SecondLook((), needed, ()))


def arrays(kind, rows, cols):
    """Accumulators whose lower halves are seldom below the bands of their columns, but near them; and operands."""
    rng = np.random.default_rng(rows * 1000 + cols)
    total = rng.integers(-2**24, 2**24, (rows, cols)).astype(np.int32)
    band = rng.integers(1, 3000, (1, cols)).astype(np.int32)
    near = rng.choice([0, 0, -1], (rows, cols)) + band
    total = np.where(rng.random((rows, cols)) < 0.1, total & ~0xFFFF | near, total).astype(np.int32)
    return total, [band, rng.permutation(256).astype(np.uint8)][:2 if kind == "lookup" else 1]


def call(function, x, total, operands):
    """The outputs, and the entries, of which there is room for one more than there are vectors of one lane."""
    (rows, cols), arrays = total.shape, [np.ascontiguousarray(a) for a in operands]
    out, entries = np.full(total.shape, 77, STORAGE[x.dtype]), np.full(total.size + 1, -1, np.int64)
    words = np.zeros(HEADER_WORDS + 3 * (x.slots + 1), np.int64)
    for k, a in enumerate([*arrays[:x.slots], out]):
        first = HEADER_WORDS + 3 * k
        words[first], words[first + 2] = a.ctypes.data, 0 if a is not out else a.strides[0]
    native = ctypes.CFUNCTYPE(*[ctypes.c_ssize_t] * 10)(int(function))
    count = native(words.ctypes.data, 0, 0, 0, rows, cols, total.ctypes.data, total.strides[0], entries.ctypes.data)
    return out, entries[:count]


SHAPES = [(1, 1), (1, 15), (4, 16), (5, 17), (3, 64), (9, 70), (2, 130), (7, 200)]


@pytest.mark.parametrize("kind", ["u8", "s8", "f32", "lookup"])
@pytest.mark.parametrize("lanes, packed", WIDTHS)
def test_the_fast_form_enters_every_group_with_an_output_near_a_tie(kind, lanes, packed):
    x = store(kind)
    module = made(epilogue_functions, x, lanes, packed=packed)
    for shape in SHAPES:
        total, operands = arrays(kind, *shape)
        out, entries = call(module.write, x, total, operands)
        expected = evaluate(Epilogue(x.form("fast"), x.dtype), total, operands)
        np.testing.assert_array_equal(out, expected, err_msg=str(shape))
        near = (total & 0xFFFF) < operands[0]
        wanted = {(top, left) for top in range(0, shape[0], GROUP) for left in range(0, shape[1], lanes)
                  if near[top:top + GROUP, left:left + lanes].any()}
        entered = [(int(e) >> 16 & 0xFFFF, int(e) >> 32) for e in entries]
        assert len(set(entered)) == len(entered) and set(entered) == wanted, shape


@pytest.mark.parametrize("kind", ["u8", "f32"])
@pytest.mark.parametrize("lanes", sorted({lanes for lanes, _ in WIDTHS}))
def test_the_exact_form_enters_each_output_that_needs_it(kind, lanes):
    x = store(kind)
    module = made(epilogue_functions, x, lanes, packed="")
    for shape in SHAPES:
        total, operands = arrays(kind, *shape)
        out, entries = call(module.exact, x, total, operands)
        np.testing.assert_array_equal(out, evaluate(Epilogue(x.expr, x.dtype), total, operands), err_msg=str(shape))
        entered = {(int(e) >> 16 & 0xFFFF, (int(e) >> 32) + lane) for e in entries for lane in range(lanes)
                   if int(e) >> lane & 1}
        assert entered == set(map(tuple, np.argwhere((total & 0xFFF) >= operands[0]).tolist())), shape


@pytest.mark.parametrize("kind", ["u8", "f32", "lookup"])
@pytest.mark.parametrize("lanes, packed", WIDTHS)
def test_without_a_second_look_nothing_is_entered(kind, lanes, packed):
    x = store(kind, looks=False)
    module = made(epilogue_functions, x, lanes, packed=packed)
    total, operands = arrays(kind, 6, 150)
    out, entries = call(module.write, x, total, operands)
    np.testing.assert_array_equal(out, evaluate(x, total, operands))
    assert len(entries) == 0


@pytest.mark.parametrize("kind", ["u8", "f32", "lookup"])
@pytest.mark.parametrize("looks", [True, False])
@pytest.mark.parametrize("lanes, packed", WIDTHS)
def test_outputs_of_vectors_in_registers(kind, looks, lanes, packed):
    """Six vectors of each of seven rows: one and a half groups of packed ones, and one and three quarters of rows."""
    x = store(kind, looks)
    rows, vectors = 7, 6
    module = made(from_registers, x, lanes, rows, vectors, packed=packed)
    total, operands = arrays(kind, rows, vectors * lanes)
    out, entries = call(module.write, x, total, operands)
    np.testing.assert_array_equal(out, evaluate(Epilogue(x.form("fast"), x.dtype), total, operands))
    near = (total & 0xFFFF) < operands[0]
    wanted = {(top, left) for top in range(0, rows, GROUP) for left in range(0, vectors * lanes, lanes)
              if looks and near[top:top + GROUP, left:left + lanes].any()}
    assert {(int(e) >> 16 & 0xFFFF, int(e) >> 32) for e in entries} == wanted and len(entries) == len(wanted)


@pytest.mark.parametrize("factors", [None, "fast form", 0, 1, 3])
def test_the_table_has_the_functions_that_a_store_has(factors):
    """After the one that writes come the exact one, those for a second look, and one for each factor."""
    x = store("u8", looks=factors is not None)
    if factors == "fast form":
        x = replace(x, second_look=None)
    elif factors is not None:
        x = replace(x, second_look=x.second_look._replace(factors=(const(2.0),) * factors))
    *functions, lanes = load_outputs(x, isa.level_named("scalar"), cache=False).entries
    count = {None: 1, "fast form": 2}.get(factors) or 3 + factors
    assert [f != 0 for f in functions] == [k < count for k in range(len(NAMES))]
    assert lanes == isa.level_named("scalar").lanes


def test_factors_of_a_column():
    """Scale, zero point and start of a column are the bits of numbers that vary by column, or not at all."""
    total = acc()
    scale, zp = load(1, "f32", "column"), load(2, "u8", "column")
    factors = scale * const(2.0), op("to_s32", op("to_f32", zp)) - 3, const(-0.5)
    needed = op("ge", op("and", total, const(0xFFF, "s32")), BAND)
    exact, fast = op("high_u8", total), op("high_u8", total + const(1 << 17, "s32"))
    x = Epilogue(exact, "u8", FastForm(((exact, fast),), total, BAND), SecondLook((), needed, factors))
    module = made(epilogue_functions, x, WIDTHS[-1][0], packed=WIDTHS[-1][1])
    arrays = [np.arange(6, dtype=np.int32), np.float32([0.1, -3, 5, 1e9, 0, 7]), np.uint8([9, 0, 255, 3, 2, 1])]
    words = np.zeros(HEADER_WORDS + 3 * (x.slots + 1), np.int64)
    for k, a in enumerate(arrays):
        words[HEADER_WORDS + 3 * k] = a.ctypes.data
    wanted = (arrays[1] * np.float32(2), arrays[2].astype(np.int32) - 3, np.full(6, -0.5, np.float32))
    for name, want in zip(("w_scale", "w_zp", "start"), wanted, strict=True):
        native = ctypes.CFUNCTYPE(*[ctypes.c_ssize_t] * 4)(int(getattr(module, name)))
        found = [native(words.ctypes.data, 0, j) for j in range(6)]
        assert found == want.view(np.int32).tolist()

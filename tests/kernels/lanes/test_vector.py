"""Vector code against `evaluate`: the same bits for every operation, lane count, operand and tail."""
from dataclasses import replace
from functools import partial
from itertools import pairwise

import numpy as np
import pytest
from all_pairs import all_pairs
from guarded_memory import guarded
from kernel_factories import writing

from graphq.kernels.jit import cpu, modules
from graphq.kernels.jit.compiling import Job
from graphq.kernels.jit.intrinsics import HEADER_WORDS
from graphq.kernels.lanes import elementary
from graphq.kernels.lanes import quantizing as rq
from graphq.kernels.lanes.epilogues import Epilogue, evaluate
from graphq.kernels.lanes.expression import BASIC, COMPUTE, DEFINITIONS, STORAGE, acc, const, load, maximum, op, select
from graphq.kernels.target import isa
from graphq.kernels.target import level as target_level

LEVELS = {level.lanes: level for level in isa.available()}
LANES = sorted({4, *LEVELS})
"""Numbers of lanes. If no level has them, code uses no special instructions: no masks, no conversions of f16."""


def compiled(stores, lanes):
    """The module whose functions `write0`, ... are those of the stores."""
    return modules.load("test", writing, tuple(stores), lanes, level=LEVELS.get(lanes), cache=False)


def run(module, epilogue, number, total, operands, shape, guard=lambda x: x):
    """Run store `number` on whole arrays of `shape`; operands are 2-D, with one column (row, scalar) or all."""
    rows, cols = shape
    total = None if total is None else guard(total)
    arrays = [guard(np.ascontiguousarray(x)) for x in operands]
    out = guard(np.full(shape, 77, STORAGE[epilogue.dtype]))
    words = np.zeros(HEADER_WORDS + 3 * (epilogue.slots + 1), np.int64)
    acc, ldacc = (0, 0) if total is None else (total.ctypes.data, total.strides[0])
    for k, x in enumerate([*arrays[:epilogue.slots], out]):
        first = HEADER_WORDS + 3 * k
        words[first], words[first + 2] = x.ctypes.data, 0 if x.shape[0] == 1 else x.strides[0]
    getattr(module, f"write{number}")(words.ctypes.data, 0, 0, 0, rows, cols, acc, ldacc, 0)
    return out


def assert_same(got, expected, label=""):
    """Equal bits, except that all NaNs are one."""
    expected = np.broadcast_to(expected, got.shape)
    assert got.dtype == expected.dtype
    with np.errstate(invalid="ignore"):
        nan = got != got
        np.testing.assert_array_equal(nan, expected != expected, err_msg=label)
    as_bytes = [np.ascontiguousarray(np.where(nan, np.zeros(1, got.dtype), x)).view(np.uint8) for x in (got, expected)]
    np.testing.assert_array_equal(*as_bytes, err_msg=label)


FLOATS = np.array([0, -0.0, 1, -1, 0.5, 1.5, 2.5, -2.5, 3e-45, -1e-45, 1.1e-38, 1.17549435e-38, 3.4e38, -3.4e38,
                   2.0**23, 2.0**23 + 1, 1e10, -7.25, np.inf, -np.inf, np.nan, 0.1, 88, -88], np.float32)
INTS = np.array([0, 1, -1, 2, 127, -128, 255, 65_535, 2**24 + 1, 2**31 - 1, -(2**31), -(2**31) + 1, 123_456_789],
                np.int32)


def cases():
    """(operation, argument types) as a store, and operands: all pairs of edge numbers."""
    rng = np.random.default_rng(3)
    pools = {"f32": np.concatenate([FLOATS, rng.standard_normal(9).astype(np.float32)]), "s32": INTS}
    for name, basic in BASIC.items():
        for types, result in basic.results.items():
            if "table" in types:
                continue
            stored = [{"bool": "s32", "f64": "f32"}.get(t, t) for t in (*types[-2:], "f32")[:2]]
            a, b = loads = [load(k, t, "vector") for k, t in enumerate(stored)]
            x = pools[a.dtype]
            if name == "to_s32":
                x = x[np.abs(x) < 2**31]
            pair = np.meshgrid(x, pools[b.dtype])
            if "f64" in types:
                a, b = (op("to_f64", y) * (1 / 3) for y in loads)
            if name == "select":
                y = select(a < b, a, b)
            elif name in ("shl", "sar", "shr"):
                y = op(name, a, 0) + op(name, a, 1) + op(name, a, 31) + op(name, b, 13)
            elif types == ("bool", "bool"):
                y = op(name, a < b, op("ne", b, 1))
            elif name == "fma":
                y = op(name, a, b, a) + op(name, b, a, a * b * -0.75) - op(name, a, b, -(a * b))
            else:
                y = op(name, *(a, b)[:len(types)])
            if result == "bool":
                y = select(y, const(1, "s32"), const(0, "s32"))
            if result == "f64":  # both halves of its digits
                high = op("to_f32", y)
                y = select(op("lt", b, 0.0), high, op("to_f32", y - op("to_f64", high)))
            yield f"{name} {types}", Epilogue(y, y.dtype), [p.reshape(1, -1) for p in pair]


@pytest.mark.parametrize("lanes", LANES)
def test_every_basic_operation(lanes):
    labels, stores, operands = zip(*cases(), strict=True)
    module = compiled(stores, lanes)
    for k, (label, epilogue, arrays) in enumerate(zip(labels, stores, operands, strict=True)):
        got, want = run(module, epilogue, k, None, arrays, arrays[0].shape), evaluate(epilogue, None, arrays)
        if label.startswith("round_s32"):  # machines differ for other numbers
            x = arrays[0]
            assert not (got[np.isnan(x)] & 0xFFFF).any()
            with np.errstate(invalid="ignore"):
                beyond = np.abs(x) >= 2**31
            nearest = np.where(x > 0, 2**31 - 1, -2**31)
            assert ((got == -2**31) | (got == nearest))[beyond].all() and beyond.any()
            got = np.where(beyond | np.isnan(x), want, got)
        assert_same(got, want, label)


INF, NAN, TINY = np.inf, np.nan, 2.0**-149
X, Y = load(0, "f32", "vector"), load(1, "f32", "vector")
EDGES = {  # an expression, the dtype of its results, the operands, and the results
    "max": (op("max", X, Y), "f32", [[NAN, 1, 0, -0.0, -INF], [1, NAN, -0.0, 0, -INF]], [1, NAN, -0.0, 0, -INF]),
    "min": (op("min", X, Y), "f32", [[NAN, 1, 0, -0.0, INF], [1, NAN, -0.0, 0, INF]], [1, NAN, -0.0, 0, INF]),
    "maximum": (elementary.extreme(maximum, "and", X, Y), "f32",
                [[NAN, 1, 0, -0.0, -0.0], [1, NAN, -0.0, 0, -0.0]], [NAN, NAN, 0, 0, -0.0]),
    "minimum": (elementary.extreme(partial(op, "min"), "or", X, Y), "f32",
                [[NAN, 1, 0, -0.0, 0], [1, NAN, -0.0, 0, 0]], [NAN, NAN, -0.0, -0.0, 0]),
    "rint": (op("rint", X), "f32", [[0.5, -0.5, 1.5, 2.5, -0.0, INF, NAN]], [0, -0.0, 2, 2, -0.0, INF, NAN]),
    "floor": (op("floor", X), "f32", [[-0.5, -0.0, 0.5, -INF, NAN, -TINY]], [-1, -0.0, 0, -INF, NAN, -1]),
    "sqrt": (op("sqrt", X), "f32", [[-0.0, -1, INF, 2.0**-148, NAN]], [-0.0, NAN, INF, 2.0**-74, NAN]),
    "sign": (-op("abs", X), "f32", [[0, -0.0, -TINY, INF]], [-0.0, -0.0, -TINY, -INF]),
    "div": (X / Y, "f32", [[1, -1, 0, 1, INF, 2.0**-126], [0, 0, 0, -0.0, INF, 2]],
            [INF, -INF, NAN, -INF, NAN, 2.0**-127]),
    "mul": (X * Y, "f32", [[2.0**-100, 2.0**-100, -2.0**-100, TINY, TINY], [2.0**-40, 2.0**-50, 2.0**-50, 0.5, 0.75]],
            [2.0**-140, 0, -0.0, 0, TINY]),
    "sub": (X - Y, "f32", [[2.0**-126, 1, -0.0, INF], [TINY, 1, 0, INF]], [2.0**-126 - TINY, 0, -0.0, NAN]),
    "fma": (op("fma", X, Y, TINY), "f32", [[2.0**-75, -2.0**-75, 2.0**-76], [2.0**-75, 2.0**-75, 2.0**-75]],
            [2 * TINY, 0, TINY]),
    "exp": (elementary.exp(X), "f32", [[NAN, -INF, INF, 0, -104, 89]], [NAN, 0, INF, 1, 0, INF]),
    "unordered": (select(op("ne", X, X), const(1, "s32"), select(X < 1, const(2, "s32"), const(3, "s32"))), "s32",
                  [[NAN, -NAN, -INF, INF, -0.0]], [1, 1, 2, 3, 2]),
    "round_s32": (op("round_s32", X), "s32", [[0.5, 1.5, -0.5, -2.0**31, 2.0**31 - 128]],
                  [0, 2, 0, -2**31, 2**31 - 128]),
    "to_s32": (op("to_s32", X), "s32", [[-2.5, 2.9, -0.0, -2.0**31, 2.0**31 - 128]], [-2, 2, 0, -2**31, 2**31 - 128]),
    "quantize": (rq.quantize(X, 2.0, 3.0, "u8"), "u8", [[NAN, -NAN, INF, -INF, 0.25, 0.75, 1e30]],
                 [3, 3, 255, 0, 3, 5, 255]),
    "quantize_quotient": (rq.quantize_quotient(X, const(2.0), const(0.5), -3.0, "s8"), "s8",
                          [[NAN, INF, -INF, 1, 3, TINY]], [-3, 127, -128, -3, -1, -3]),
    "f16": (X, "f16", [[65519, 65520, -65520, 2.0**-25, 1.5 * 2.0**-25, -2.0**-26, 2049, 2051, TINY, NAN]],
            [65504, INF, -INF, 0, 2.0**-24, -0.0, 2048, 2052, 0, NAN]),
    "bf16": (X, "bf16", [[1e-40, 3.4e38, 257, 259, -TINY, INF, NAN]],
             [2.0**-133, INF, 256, 260, -0.0, INF, NAN]),
}


@pytest.mark.parametrize("lanes", LANES)
def test_edges_of_operations_are_the_same_on_every_cpu(lanes):
    stores = [Epilogue(expression, dtype) for expression, dtype, *_ in EDGES.values()]
    module = compiled(stores, lanes)
    for k, (name, (_, dtype, numbers, expected)) in enumerate(EDGES.items()):
        arrays, expected = [np.float32([x * 5]) for x in numbers], np.array([expected * 5]).astype(STORAGE[dtype])
        assert_same(evaluate(stores[k], None, arrays), expected, name)
        assert_same(run(module, stores[k], k, None, arrays, arrays[0].shape), expected, name)


@pytest.mark.parametrize("lanes", LANES)
def test_edges_of_16_bit_floats_are_the_same_on_every_cpu(lanes):
    """The last two are signaling NaNs: NumPy warns of them on some CPUs, kernels make them quiet."""
    bits = {"f16": [0x0001, 0x8001, 0x03FF, 0x0400, 0x7BFF, 0x7C00, 0xFC00, 0x8000, 0x7E00, 0x7C01, 0xFD00],
            "bf16": [0x0001, 0x8001, 0x007F, 0x0080, 0x7F7F, 0x7F80, 0xFF80, 0x8000, 0x7FC0, 0x7F81, 0xFF81]}
    numbers = {"f16": [2.0**-24, -2.0**-24, 1023 * 2.0**-24, 2.0**-14, 65504, INF, -INF, -0.0, NAN, NAN, NAN],
               "bf16": [2.0**-133, -2.0**-133, 127 * 2.0**-133, 2.0**-126, 255 * 2.0**120, INF, -INF, -0.0, *[NAN] * 3]}
    for back in ("f32", "as loaded"):
        stores = [Epilogue(load(0, dtype, "vector"), "f32" if back == "f32" else dtype) for dtype in bits]
        module = compiled(stores, lanes)
        for k, (dtype, epilogue) in enumerate(zip(bits, stores, strict=True)):
            x = np.array([bits[dtype] * 3], np.uint16).view(STORAGE[dtype])
            wanted = np.float32([numbers[dtype] * 3])
            got = run(module, epilogue, k, None, [x], x.shape)
            assert_same(evaluate(epilogue, None, [x]), wanted.astype(got.dtype), dtype)
            assert_same(got, wanted.astype(got.dtype), dtype)


@pytest.mark.parametrize("lanes", LANES)
def test_every_function(lanes):
    x = np.arange(0, 2**32, 65_521, dtype=np.uint64).astype(np.uint32).view(np.float32)
    x = np.concatenate([x, FLOATS, np.linspace(-10, 10, 3001, dtype=np.float32)])[None]
    names = [name for name in vars(elementary) if name in DEFINITIONS and DEFINITIONS[name][:2] == (("f32",), "f32")]
    stores = [Epilogue(getattr(elementary, name)(load(0, "f32", "vector")), "f32") for name in names]
    module = compiled(stores, lanes)
    for k, epilogue in enumerate(stores):
        assert_same(run(module, epilogue, k, None, [x], x.shape), evaluate(epilogue, None, [x]), names[k])


def requantize(dtype):
    """A whole epilogue: compensation, scale, bias, relu, a row factor, quantization."""
    y = op("to_f32", acc() + load(0, "s32", "vector")) * load(1, "f32", "vector") + load(2, "f32", "vector")
    y = maximum(y, -20.0) * load(3, "f32", "row")
    return Epilogue(rq.quantize(y, load(4, "f32", "scalar"), load(5, "f32", "scalar"), dtype), dtype)


@pytest.mark.parametrize("lanes", LANES)
def test_tails_touch_nothing_outside(lanes):
    rng, rows = np.random.default_rng(4), 3
    stores = [requantize("u8"), requantize("s8"), Epilogue(load(0, "s8", "vector"), "s32"),
              Epilogue(load(0, "bf16", "vector") + load(1, "f16", "vector"), "f16")]
    module = compiled(stores, lanes)
    for cols in (*range(71), 257):
        total = rng.integers(-30_000, 30_000, (rows, cols), dtype=np.int32)
        m, b = rng.random((1, cols), np.float32) * 0.01, rng.standard_normal((1, cols), np.float32)
        b[:, 5:6], b[:, 9:10] = np.nan, np.inf
        operands = [rng.integers(-300, 300, (1, cols), dtype=np.int32), m, b, rng.random((rows, 1), np.float32) + 0.5,
                    np.array([[1.7]], np.float32), np.array([[5]], np.float32)]
        small = [[rng.integers(-128, 128, (rows, cols), dtype=np.int8)],
                 [b.astype(STORAGE["bf16"]), m.astype(np.float16)]]
        for k, arrays in enumerate([operands, operands, *small]):
            got = run(module, stores[k], k, total, arrays, (rows, cols), guarded)
            assert_same(got, evaluate(stores[k], total, arrays), f"store {k}, {cols} columns")


@pytest.mark.parametrize("kind, lanes, after", all_pairs(
    ["vector", "row", "column", "scalar"], LANES, ["an anchor", "nothing"]))
def test_operands_of_every_type_and_kind(lanes, kind, after):
    rng, rows, cols = np.random.default_rng(5), 4, 21
    shape = {"vector": (rows, cols), "row": (rows, 1), "column": (1, cols), "scalar": (1, 1)}[kind]
    total = rng.integers(-99, 99, (rows, cols), dtype=np.int32) if after == "an anchor" else None
    stores = []
    for x in (load(0, dtype, kind) for dtype in STORAGE):
        one = acc() if x.dtype == "s32" else op("to_f32", acc())
        stores.append(Epilogue(x if total is None else one - x, x.dtype))
    module = compiled(stores, lanes)
    for k, (dtype, epilogue) in enumerate(zip(STORAGE, stores, strict=True)):
        raw = rng.integers(0, 256, (*shape, STORAGE[dtype].itemsize), dtype=np.uint8)
        x = raw.view(STORAGE[dtype]).reshape(shape)
        got = run(module, epilogue, k, total, [x], (rows, cols), guarded)
        assert_same(got, evaluate(epilogue, total, [x]), f"{dtype} {kind}")


@pytest.mark.parametrize("lanes", LANES)
def test_tables_are_looked_up_by_the_low_byte(lanes):
    rng = np.random.default_rng(8)
    stores = [Epilogue(op("lookup", load(0, t, "table"), load(1, t, "vector")), t) for t in ("u8", "s8")]
    stores += [Epilogue(op("lookup", load(0, t, "table"), acc() * 3), "s32") for t in ("u8", "s8")]
    stores.append(Epilogue(op("lookup", load(0, "u8", "table"), op("lookup", load(1, "s8", "table"), acc())), "u8"))
    module = compiled(stores, lanes)
    for cols in (*range(1, 34), 256):
        table, second = rng.integers(0, 256, (2, 256), dtype=np.uint8)
        for k, epilogue in enumerate(stores):
            dtype = STORAGE[epilogue.loads[0][1]]
            index = np.arange(3 * cols, dtype=np.int32).reshape(3, cols) * 7919
            other = second.view(np.int8) if k == 4 else index.astype(np.uint8).view(dtype)
            arrays = [table.view(dtype), other]
            got = run(module, epilogue, k, index, arrays, index.shape, guarded)
            assert_same(got, evaluate(epilogue, index, arrays), f"store {k}, {cols} columns")
            if k < 2:
                np.testing.assert_array_equal(got, table.view(dtype)[index % 256])


@pytest.mark.parametrize("lanes", LANES)
def test_results_of_every_type(lanes):
    rng = np.random.default_rng(6)
    bits = rng.integers(0, 2**32, (6, 501), dtype=np.uint64).astype(np.uint32)
    # about ties of bf16 and f16
    bits[1:4] = bits[1:4] & ~np.uint32(0xFFFF) | np.array([[0x8001], [0x7FFF], [0x8000]], np.uint32)
    bits[4:] = bits[4:] & ~np.uint32(0x1FFF) & 0xC7FFFFFF | np.array([[0xFFF], [0x1000]], np.uint32)
    x = bits.view(np.float32)
    x[0, :FLOATS.size] = FLOATS
    stores = [Epilogue(load(0, COMPUTE[t], "vector"), t) for t in STORAGE]
    module = compiled(stores, lanes)
    for k, epilogue in enumerate(stores):
        arrays = [x.view(STORAGE[epilogue.loads[0][1]])]
        assert_same(run(module, epilogue, k, None, arrays, x.shape), evaluate(epilogue, None, arrays), epilogue.dtype)


@pytest.mark.parametrize("lanes", LANES)
def test_blocks_are_found_by_batch_row_and_column(lanes):
    rng = np.random.default_rng(7)
    epilogue = Epilogue(load(0, "f32", "vector") + op("to_f32", load(1, "s8", "row")), "f32")
    x, r = rng.standard_normal((3, 9, 40)).astype(np.float32), rng.integers(-9, 9, (3, 9), dtype=np.int8)
    out = np.zeros((3, 9, 40), np.float32)
    tables = [np.arange(3, dtype=np.int64) * a.strides[0] for a in (x, r, out)]
    module = compiled([epilogue], lanes)
    for batch in range(3):
        for i0, i1 in pairwise((0, 4, 9)):
            for j0, j1 in pairwise((0, 17, 18, 40)):
                words = [0] * HEADER_WORDS
                for a, table in zip((x, r, out), tables, strict=True):
                    words += [a.ctypes.data, table.ctypes.data, a.strides[1]]
                words = np.array(words, np.int64)
                module.write0(words.ctypes.data, batch, i0, j0, i1 - i0, j1 - j0, 0, 0, 0)
    np.testing.assert_array_equal(out, x + r[..., None].astype(np.float32))


def test_the_output_may_be_an_operand():
    x = np.arange(100, dtype=np.float32).reshape(2, 50)
    epilogue = Epilogue(load(0, "f32", "vector") * 2.0, "f32")
    module = compiled([epilogue], 16)
    words = np.array([*[0] * HEADER_WORDS, *[x.ctypes.data, 0, x.strides[0]] * 2], np.int64)
    module.write0(words.ctypes.data, 0, 0, 0, 2, 50, 0, 0, 0)
    np.testing.assert_array_equal(x, np.arange(100).reshape(2, 50) * 2)


@pytest.mark.parametrize("lanes", sorted({level.lanes for level in isa.available()} & {8, 16}))
def test_requantizing_is_straight_vector_code(lanes):
    y = op("to_f32", acc() + load(0, "s32", "vector")) * load(1, "f32", "vector") + load(2, "f32", "vector")
    epilogue = Epilogue(rq.quantize(maximum(y, 0.0), load(3, "f32", "scalar"), load(4, "f32", "scalar"), "u8"), "u8")
    text, register = Job("assembly", compiled([epilogue], lanes).source).result(), {8: "%ymm", 16: "%zmm"}[lanes]
    for instruction in ("vcvtdq2ps", "vmaxps", "vminps", "vcvtps2dq", *["vpmovdb"] * (lanes == 16)):
        lines = [line for line in text.splitlines() if f"\t{instruction}\t" in line]
        assert any(register in line for line in lines), instruction
    assert "call" not in text


def test_look_ups_in_registers_replace_shorter_chains_than_those_in_memory(monkeypatch):
    """In registers a look-up is a few instructions for a whole vector, in memory it is a load for each lane."""
    having = {"avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512dq", "avx512vl"}
    monkeypatch.setattr(cpu, "features", lambda: having)
    levels = [next(x for x in isa.LEVELS if x.lanes == lanes) for lanes in sorted({x.lanes for x in isa.LEVELS})]
    memory = [replace(level).least_saved for level in levels]  # copies, which know nothing yet
    having.add("avx512vbmi")
    registers = [replace(level).least_saved for level in levels]
    assert memory == sorted(memory) and registers[:2] == memory[:2] and registers[2] < memory[2]


def test_emulated_levels_look_up_and_pack_by_plain_code_or_not_at_all(monkeypatch):
    """Whatever the machine has."""
    monkeypatch.setattr(target_level, "has", lambda *names: True)
    own = [x for x in isa.LEVELS if x.own("table") is not None]
    assert own
    for level in map(replace, own):
        emulated = level.emulation
        assert level.looks_up is level.table and level.packs is level.packing
        if level.table.emulate is None:
            assert emulated.looks_up is None and emulated.packs is None
        else:
            assert emulated.looks_up.look_up is level.table.emulate and emulated.packs is level.packing
            assert level.packing.plain

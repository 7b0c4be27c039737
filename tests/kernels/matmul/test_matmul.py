"""Every matmul kernel, native where the machine has it and emulated, against NumPy."""
from contextlib import nullcontext

import numpy as np
import pytest
from all_pairs import all_pairs
from bound import BOUND
from guarded_memory import guarded
from levels import LEVELS

from graphq.kernels import levels
from graphq.kernels.jit.values import Builder, Value
from graphq.kernels.lanes import quantizing
from graphq.kernels.lanes.epilogues import Epilogue, evaluate
from graphq.kernels.lanes.expression import acc, load, maximum, op
from graphq.kernels.matmul import kernel_table, matrix, pack
from graphq.kernels.matmul import plan as matmul
from graphq.kernels.matmul.kernel_table import KERNELS
from graphq.kernels.operands.tile_frame import RUN
from graphq.kernels.operands.windows import windows
from graphq.kernels.target import isa
from graphq.plan.plan import Target
from graphq.report import evidence

RAW = Epilogue(acc(), "s32")
NATIVE = [level.name for level in isa.available()]
INTEGERS = (*kernel_table.DTYPES, *kernel_table.SORTED_DTYPES, *kernel_table.PAIRED_DTYPES)
MATMULS = [k for k in KERNELS.values() if k.dtypes in INTEGERS]
# Emulated kernels compile slowly: one tile shape of each level and dtype is emulated where the level exists, and no
# level of another architecture.
RUNS = [pytest.param(k, False, id=k.name) for k in MATMULS if k.level in NATIVE]
FIRST = {(k.level, k.dtypes): k for k in reversed(MATMULS)}
RUNS += [pytest.param(k, True, id=f"{k.name}-emulated") for k in MATMULS if k.level in LEVELS[1:] and (
    k.level not in NATIVE or k is FIRST[k.level, k.dtypes])]
SHAPES = [(1, 1, 1), (1, 64, 16), (2, 3, 5), (5, 70, 37), (7, 4, 64), (17, 64, 33), (33, 129, 80), (40, 63, 130)]


def level_of(kernel, emulated):
    return isa.emulate(kernel.level) if emulated else nullcontext(isa.level_named(kernel.level))


def operands(a_dtype, m, k, n, extreme=False, batch=()):
    rng = np.random.default_rng(m + 10 * k + 100 * n)
    lo, hi = (0, 255) if a_dtype == "u8" else (-128, 127)
    dtype = np.uint8 if a_dtype == "u8" else np.int8
    if extreme:
        return (rng.choice(np.array([lo, hi], dtype), (*batch, m, k)),
                rng.choice(np.array([-128, 127], np.int8), (*batch, k, n)))
    w = rng.integers(-128, 128, (*batch, k, n), dtype=np.int8)
    return rng.integers(lo, hi + 1, (*batch, m, k), dtype=dtype), halved(w)


def halved(w):
    """Weights (..., k, n), half of whose groups of four k, at random, cannot make vpmaddubsw saturate."""
    some = np.random.default_rng(0).random(-(-w.shape[-2] // 4)) < 0.5
    w[..., np.repeat(some, 4)[:w.shape[-2]], :] >>= 1
    return w


def packed_for(kernel, w, k):
    """Weights (..., taps, rows, n), of which taps have k, packed as the kernel takes them."""
    *outer, taps, rows, n = w.shape
    if kernel.dtypes[1] == kernel_table.SORTED:
        return pack.pack_sorted(w, k)
    return pack.pack(w.reshape(*outer, taps * rows, n), paired=kernel.dtypes[1] == kernel_table.PAIRED)


def rounded(kernel, k):
    """k, or the next multiple of 8 if the kernel's weights are paired."""
    return -(-k // 8) * 8 if kernel.dtypes[1] == kernel_table.PAIRED else k


def raw_sum(a, w):
    """The accumulator that kernels promise: activations shifted to u8."""
    shift = 128 if a.dtype == np.int8 else 0
    return (a.astype(np.int64) + shift).astype(np.float64) @ w.astype(np.float64)


def run(kernel, level, a, w, *, threads=1, layout="rows"):
    """Run the kernel on a (m, k), laid out as `layout` says, and w (k, n); the raw accumulator."""
    (m, k), n = a.shape, w.shape[1]
    packed, out = guarded(packed_for(kernel, w[None], k)), guarded(np.full((m, n), -1, np.int32))
    source = guarded(a.T if layout == "columns" else a)
    product = matmul.Product(kernel.dtypes[0], m, n, k, layout=layout, w_dtype=kernel.dtypes[1])
    step = matmul.plan_matmul(RAW, product, Target(level, threads), kernel)
    words = {"a": source.ctypes.data, "stride": source.strides[0], "w": packed.ctypes.data}
    step.run(step.arguments(words, [(out.ctypes.data, 0, 4 * n)]))
    return np.array(out)


@pytest.mark.parametrize(("kernel", "emulated"), RUNS)
def test_sums_are_exact(kernel, emulated):
    with level_of(kernel, emulated) as level:
        for m, k, n in SHAPES:
            a, w = operands(kernel.dtypes[0], m, rounded(kernel, k), n)
            assert (run(kernel, level, a, w) == raw_sum(a, w)).all(), (m, k, n)
        for m, k, n in ((6, 300, 20), (35, 256, 40)):
            a, w = operands(kernel.dtypes[0], m, rounded(kernel, k), n, extreme=True)
            assert (run(kernel, level, a, w, threads=2) == raw_sum(a, w)).all(), (m, k, n)
        a, w = operands(kernel.dtypes[0], 9, 0, 21)
        assert not run(kernel, level, a, w).any()
        for m, n in ((0, 5), (5, 0)):
            a, w = operands(kernel.dtypes[0], m, 8, n)
            assert run(kernel, level, a, w).shape == (m, n)


@pytest.mark.parametrize(("kernel", "emulated"), [r for r in RUNS if "columns" in r.values[0].layouts])
def test_transposed_activations(kernel, emulated):
    with level_of(kernel, emulated) as level:
        for m, k, n in [*SHAPES, (8, 1, 3), (9, 2, 16), (13, 8, 70), (3, 130, 20)]:
            a, w = operands(kernel.dtypes[0], m, k, n)
            assert (run(kernel, level, a, w, layout="columns", threads=2) == raw_sum(a, w)).all(), (m, k, n)
        a, w = operands(kernel.dtypes[0], 9, 0, 21)
        assert not run(kernel, level, a, w, layout="columns").any()


WINDOWS = [  # sizes, kernel, strides, dilations, pads, outputs; channels
    (((5, 6), (3, 2), (1, 1), (1, 2), ((1, 1), (1, 1)), (5, 6)), 7),
    (((9, 9), (3, 3), (2, 2), (1, 1), ((1, 1), (0, 0)), (5, 4)), 64),
    (((40,), (4,), (1,), (1,), ((3, 0),), (40,)), 70),
    (((3, 24), (3, 3), (1, 1), (1, 1), ((1, 1), (1, 1)), (3, 24)), 128),
]


@pytest.mark.parametrize(("kernel", "emulated", "window", "channels", "pads"), [
    pytest.param(*run.values, *window, pads, id=f"{run.id}-{window[1]} channels-{pads}")
    for run, window, pads in all_pairs(RUNS, WINDOWS, ["loud", "silent", "mixed"])])
def test_windows_of_an_image(kernel, emulated, window, channels, pads):
    """Tiles may leave out taps of padding that adds nothing to sums, but not where only its first channels do."""
    rng, channels = np.random.default_rng(channels), rounded(kernel, channels)
    view = windows(*window, channels)
    image, _ = operands(kernel.dtypes[0], int(np.prod(window[0])), channels, 1)
    pad, n = np.full(channels, 77, image.dtype), 85
    pad[:{"loud": 0, "silent": channels, "mixed": 1}[pads]] = -128 if kernel.dtypes[0] == "s8" else 0
    rows = view.gather(image.reshape(1, *window[0], channels), pad)[0].reshape(view.pixels, -1)
    w = halved(rng.integers(-128, 128, (view.taps, channels, n), dtype=np.int8))
    whole = np.zeros((view.taps, -(-channels // 4) * 4, n), np.int8)
    whole[:, :channels] = w
    block = guarded(view.block(pad, view.runs(RUN, view.pixels)))
    source, packed = guarded(image), guarded(packed_for(kernel, whole, channels))
    out = guarded(np.full((view.pixels, n), -1, np.int32))
    with level_of(kernel, emulated) as level:
        product = matmul.Product(kernel.dtypes[0], view.pixels, n, channels, layout="windows", taps=view.taps,
                                 w_dtype=kernel.dtypes[1])
        step = matmul.plan_matmul(RAW, product, Target(level, 2), kernel)
        words = {"a": source.ctypes.data, "stride": block.ctypes.data, "w": packed.ctypes.data}
        step.run(step.arguments(words, [(out.ctypes.data, 0, 4 * n)]))
    assert (out == raw_sum(rows, w.reshape(-1, n))).all()


def test_windows_too_long_for_copies_are_not_for_amx():
    with level_of(KERNELS["matmul_u8s8_32x64_amx"], isa.here("amx").emulated) as level:
        longest = (matrix.COPIES // matrix.ROWS - 96) // 9 // 64 * 64
        for channels, chosen in ((longest, "amx"), (longest + 1, "avx512_vnni")):
            product = matmul.Product("u8", 196, 256, channels, layout="windows", taps=9)
            step = matmul.plan_matmul(RAW, product, Target(level, cache=False))
            assert step.kernel.endswith(chosen)


@pytest.mark.parametrize(("kernel", "emulated"), RUNS)
def test_pairs_of_weights_on_the_bound(kernel, emulated):
    """255 * 128 is within 16 bits, 255 * 129 is not; activations are the largest, the smallest, or alternate."""
    w = np.array([(*x, *y) for x in BOUND for y in BOUND], np.int8).reshape(-1, 1)
    lo, hi = (0, 255) if kernel.dtypes[0] == "u8" else (-128, 127)
    with level_of(kernel, emulated) as level:
        for k in ([896] if kernel.dtypes[1] == kernel_table.PAIRED else [len(w), len(w) - 1, len(w) - 3]):
            columns = np.hstack([np.roll(w, 4 * turn, axis=0)[:k] for turn in range(3)] + [np.zeros((k, 20), np.int8)])
            for some in (columns, columns[:, 1:2]):
                a = np.array([[hi] * k, [lo] * k, ([lo, hi] * k)[:k], ([hi, lo] * k)[:k]] * 2,
                             np.uint8 if hi == 255 else np.int8)
                for layout in sorted({"rows", "columns"} & set(kernel.layouts)):
                    assert (run(kernel, level, a, some, layout=layout) == raw_sum(a, some)).all(), layout


@pytest.mark.parametrize(("kernel", "emulated"), RUNS)
def test_sums_wrap(kernel, emulated):
    k = 66_056  # all products at their largest: beyond 2**31
    high = 255 if kernel.dtypes[0] == "u8" else 127
    a = np.full((1, k), high, np.uint8 if high == 255 else np.int8)
    w = np.full((k, 3), -128, np.int8)
    with level_of(kernel, emulated) as level:
        exact = -(255 * 128) * k
        assert exact < -2**31
        assert (run(kernel, level, a, w) == np.array(exact % 2**32).astype(np.uint32).view(np.int32)).all()


@pytest.mark.parametrize(("kernel", "emulated"), RUNS)
def test_batches_strides_and_epilogue(kernel, emulated):
    m, k, n = 11, rounded(kernel, 75), 53
    a, w = operands(kernel.dtypes[0], m, k, n, batch=(3,))
    wide = np.zeros((3, m, k + 9), a.dtype)
    wide[..., :k] = a
    packed, out = packed_for(kernel, w[:, None], k), np.zeros((3, m, n), np.uint8)
    rng = np.random.default_rng(5)
    comp = rng.integers(-9999, 9999, n, dtype=np.int32)
    scale, bias = rng.uniform(1e-4, 1e-3, n).astype(np.float32), rng.standard_normal((3, 1, n)).astype(np.float32)
    rows, inv, zp = rng.integers(-99, 99, (m, 1), dtype=np.int32), np.float32([7]), np.float32([3])
    y = op("to_f32", acc() + load(0, "s32", "vector") + load(3, "s32", "row")) * load(1, "f32", "vector")
    y = maximum(0, y + load(2, "f32", "vector"))
    epilogue = Epilogue(quantizing.quantize(y, load(4, "f32", "scalar"), load(5, "f32", "scalar"), "u8"), "u8")
    with level_of(kernel, emulated) as level:
        step = matmul.plan_matmul(epilogue, matmul.Product(kernel.dtypes[0], m, n, k, 3, w_dtype=kernel.dtypes[1]),
                                  Target(level, 2), kernel)
        order = np.array([2, 0, 1], np.int64)
        tables = [order * wide.strides[0], order * packed.strides[0], order * bias.strides[0],
                  order * out.strides[0]]
        address = [t.ctypes.data for t in tables]
        slots = [(comp.ctypes.data, 0, 0), (scale.ctypes.data, 0, 0), (bias.ctypes.data, address[2], 0),
                 (rows.ctypes.data, 0, 4), (inv.ctypes.data, 0, 0), (zp.ctypes.data, 0, 0),
                 (out.ctypes.data, address[3], n)]
        step.run(step.arguments({"a": wide.ctypes.data, "a_table": address[0], "stride": wide.strides[1],
                                 "w": packed.ctypes.data, "w_table": address[1]}, slots))
    total = raw_sum(a, w).astype(np.int32)
    assert (out == evaluate(epilogue, total, [comp, scale, bias, rows, inv, zp])).all()


@pytest.mark.parametrize("threads", [1, 2, 3, 16])
@pytest.mark.parametrize(("m", "n"), [(1, 16), (1, 500), (500, 16), (64, 4096), (13, 77)])
def test_blocks_cover_the_output_once(threads, m, n):
    level = levels.resolve("scalar")
    step = matmul.plan_matmul(RAW, matmul.Product("u8", m, n, 4), Target(level, threads))
    rows, panels = step.words["each_rows"], step.words["each_panels"]
    assert rows % step.words["rows"] == 0 and panels % step.words["panels"] == 0
    assert step.blocks == -(-m // rows) * -(-pack.panel_count(n) // panels)
    assert step.blocks <= 16 * threads


def test_little_work_is_serial_however_many_its_blocks():
    level = isa.level_named("scalar")
    steps = [matmul.plan_matmul(RAW, matmul.Product("u8", m, 16, 4, 16), Target(level, 2)) for m in (2, 2000)]
    assert [s.pieces for s in steps] == [0, 2] and steps[0].blocks >= 16


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_split_uses_all_threads(threads):
    for tiles, groups in ((64, 1), (1, 64), (8, 8), (171, 16)):
        rows, columns = matmul.split(tiles, groups, 1, 1, threads, 10**6)
        assert -(-tiles // rows) * -(-groups // columns) >= threads


def test_split_counts_the_panels_of_narrow_last_tiles():
    """Of 33 tiles x 21 panels in tiles of 4 two threads take 17 x 21 and 16 x 21, not 33 x 12 and 33 x 9."""
    assert matmul.split(33, 21, 4, 1, 2, 10**6) == (17, 24)
    assert matmul.split(33, 21, 4, 1, 1, 10**6) == (33, 24)


def compiled(body, cpu, **settings):
    """What LLVM makes of an emitting function for a CPU that this machine need not be: assembly text."""
    import llvmlite.binding as llvm
    from llvmlite import ir

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    llvm.initialize_native_asmparser()
    try:
        target = llvm.Target.from_triple("x86_64-unknown-linux-gnu")
    except RuntimeError:
        pytest.skip("this LLVM has no x86 target")
    module = ir.Module()
    module.triple = "x86_64-unknown-linux-gnu"
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [ir.IntType(64)] * 2), "f")
    b = Builder(ir.IRBuilder(function.append_basic_block()))
    body(b, *(Value(b, x) for x in function.args), **settings)
    b.ret_void()
    parsed = llvm.parse_assembly(str(module))
    parsed.verify()
    return target.create_target_machine(cpu=cpu, opt=3).emit_assembly(parsed)


@pytest.mark.parametrize(("row_tiles", "panels"), [(2, 2), (2, 1), (1, 4), (1, 3)])
@pytest.mark.parametrize(("a_dtype", "instruction"), [("u8", "tdpbusd"), ("s8", "tdpbssd")])
def test_amx_compiles_to_its_instructions(row_tiles, panels, a_dtype, instruction):
    amx = isa.level_named("amx").matrix
    settings = {"matrix": amx, "row_tiles": row_tiles, "emulated": False}
    text = compiled(matrix.matrix_tile, "sapphirerapids", panels=panels, a_dtype=a_dtype, **settings)
    found = evidence.count(text)
    for name in ("tdpbusd", "tdpbssd", "tileloadd", "tilestored"):
        assert found.get(f"{name} tmm", 0) == text.count(f"\t{name}\t"), name
    text += compiled(matrix.matrix_setup, "sapphirerapids", **settings)
    count = row_tiles * panels * 2 + (panels * 2 if row_tiles == 2 else 0)  # loop and tail, and again for 16 rows
    assert text.count(instruction) == count
    for name in ("ldtilecfg", "tilerelease", "tileloadd", "tilestored"):
        assert name in text
    assert ("tilezero" in text) == (a_dtype == "u8")


@pytest.mark.parametrize("kernel", [k for k in MATMULS if k.level == "avx_vnni"], ids=lambda k: k.name)
def test_avx_vnni_compiles_to_its_instruction(kernel):
    """In the form of AVX-VNNI, on its 16 registers without spills."""
    from graphq.kernels.matmul.vector import byte_products, vector_tile

    rows, panels = kernel.tile[0], kernel.tile[1] // 16
    products = byte_products(kernel.isa, kernel.dtypes[0], False)
    text = compiled(vector_tile, "alderlake", rows=rows, columns=16 * panels, products=products, layout="rows")
    lines = text.splitlines()
    products = [i for i, line in enumerate(lines) if "vpdpbusd" in line]
    assert len(products) == 2 * rows * panels * 2  # two vectors a panel; loop and tail
    assert all("{vex}" in lines[i] and "%ymm" in lines[i] for i in products)
    loop = lines[products[0]:products[2 * rows * panels - 1]]
    spilled = [line for line in loop if "%ymm" in line and "%rsp" in line]
    assert not spilled, "the tile is too large: its sums, weights and an activation take more than 16 registers"
    assert "vpmulld" not in text


@pytest.mark.parametrize("index", [0, -1])
def test_blocks_of_different_pieces_copy_activations_into_rooms_of_their_own(index):
    """Of two rooms a block of the first piece writes to the first alone, one of the last to the last."""
    kernel = next(k for k in MATMULS if k.level == "amx" and k.dtypes[0] == "u8")
    m, k, n = 512, 100, 256
    a, w = operands("u8", m, k, n)
    packed, out = pack.pack(w), np.zeros((m, n), np.int32)
    with level_of(kernel, kernel.level not in NATIVE) as level:
        step = matmul.plan_matmul(RAW, matmul.Product("u8", m, n, k), Target(level, 8), kernel)
        nbytes = step.words["room_bytes"]
        assert step.blocks > 1 and nbytes > 0
        rooms = np.full((2, nbytes + 64), 0xA5, np.uint8)
        rooms = rooms.reshape(-1)[-rooms.ctypes.data % 64:][:2 * nbytes].reshape(2, nbytes)
        words = {"a": a.ctypes.data, "stride": k, "w": packed.ctypes.data, "room_count": 2}
        args = step.arguments(words, [(out.ctypes.data, 0, 4 * n)])
        args[list(step.words).index("rooms")] = rooms.ctypes.data
        step.function(args.ctypes.data, index % step.blocks)
    written = (rooms != 0xA5).any(axis=1)
    assert written.tolist() == [index == 0, index == -1]

"""x86 instructions that kernels emit by themselves, by hand; what the kernels' own tests cover is not repeated."""
import re

import numpy as np
import pytest
from guarded_memory import guarded
from kernel_factories import (
    flipping,
    instructions,
    interleaving,
    moving_first,
    multiplying_tiles,
    packing_bytes,
)
from llvmlite import ir

from graphq.kernels.jit import codegen, modules
from graphq.kernels.jit.code import MASKED
from graphq.kernels.jit.compiling import Job
from graphq.kernels.jit.modules import Source
from graphq.kernels.jit.values import I64, Builder
from graphq.kernels.target import isa
from graphq.kernels.target.x86_amx import Tiles

WIDE = any(level.name.startswith("avx512") for level in isa.available())
LANES = [8] * any(level.name == "avx2" for level in isa.available()) + [16] * WIDE


def ran(source, target, factory, *arguments):
    """What the block of a module writes to `target`."""
    module = modules.load("x86", factory, *arguments, cache=False)
    module.block(np.array([source.ctypes.data, target.ctypes.data]).ctypes.data, 0)
    return target


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("emulated", [False, True])
def test_flipped(lanes, emulated):
    source = np.random.default_rng(0).integers(-2**31, 2**31, lanes).astype(np.int32)
    got = ran(source, np.zeros_like(source), flipping, lanes, emulated)
    assert np.array_equal(got.view(np.uint8), source.view(np.uint8) ^ 0x80)


def test_instructions_on_tiles_have_their_names_and_operands():
    """Of machines with AMX, which the tests' machines need not have."""
    module = ir.Module()
    b = Builder(ir.IRBuilder(ir.Function(module, ir.FunctionType(ir.VoidType(), []), "f").append_basic_block()))
    state, address, stride = (b.value(I64, x) for x in (64, 128, 256))
    tiles = Tiles(b, state, False)
    tiles.configure({})
    tiles.zero(3)
    tiles.load(1, address, stride)
    tiles.dot(3, 1, 2, signed=False)
    tiles.dot(4, 5, 6, signed=True)
    tiles.store(3, address, stride)
    tiles.release()
    calls = re.findall(r'call void @"?llvm\.x86\.(\w+)(?:\.internal)?"?\((.*)\)', str(module))
    operands = [(name, re.findall(r"i8 (\d+)", text)) for name, text in calls]
    assert operands == [("ldtilecfg", []), ("tilezero", ["3"]), ("tileloadd64", ["1"]), ("tdpbusd", ["3", "1", "2"]),
                        ("tdpbssd", ["4", "5", "6"]), ("tilestored64", ["3"]), ("tilerelease", [])]
    assert all(text.endswith("i64 256") for name, text in calls if name in ("tileloadd64", "tilestored64"))


@pytest.mark.parametrize("lanes", LANES)
def test_inline_assembly_compiles_here_and_in_another_process(lanes):
    """LLVM parses it only where the parser is initialized."""
    source = Source(flipping, (lanes, False))
    assert "#APP" in Job("assembly", source).result() and "#APP" in codegen.assembly(source)
    for code, names in Job("object_code", source).result(), codegen.object_code(source):
        assert code and names == ("block",)


@pytest.mark.skipif(not WIDE, reason="needs AVX-512")
@pytest.mark.parametrize("saturated, dtype, meaning", [
    ("s8", np.int8, lambda x: np.clip(x >> 16, -128, 127)),
    ("u8", np.uint8, lambda x: np.clip(x >> 16, 0, 255)),
    (None, np.uint8, lambda x: x & 0xFF)])
def test_bytes_of_four_vectors(saturated, dtype, meaning):
    """The upper halves of 64 numbers, saturated, or the low bytes, whatever is above them; in their order."""
    halves = np.array([-2**15, -129, -128, -127, -1, 0, 1, 126, 127, 128, 254, 255, 256, 2**15 - 1], np.int32)
    source = np.resize(halves, 64) * 65536 + np.random.default_rng(0).integers(0, 65536, 64)
    source = source.astype(np.int32)
    got = ran(source, np.zeros(64, dtype), packing_bytes, saturated)
    assert np.array_equal(got, meaning(source))


def dots(acc, a, w, signed=False):
    """acc plus the sums of four products of bytes, modulo 2**32."""
    x = a.view(np.int8 if signed else np.uint8).astype(np.int64).reshape(-1, 4)
    return (acc + (x * w.view(np.int8).astype(np.int64).reshape(-1, 4)).sum(axis=1)).astype(np.uint64).astype(
        np.uint32).view(np.int32)


def of_pairs(acc, a, w):
    """acc plus the sums of two products of 16 bits, modulo 2**32."""
    return acc + (a.view(np.int16).astype(np.int32) * w.view(np.int16)).reshape(-1, 2).sum(axis=1, dtype=np.int32)


def saturated(acc, a, w):
    """acc plus the sums of two sums of two products of bytes, each saturated to 16 bits."""
    sums = (a.view(np.uint8).astype(np.int32) * w.view(np.int8)).reshape(-1, 2).sum(axis=1)
    return of_pairs(acc, np.clip(sums, -2**15, 2**15 - 1).astype(np.int16), np.ones_like(sums, np.int16))


MEANINGS = {"dot": dots, "signed dot": lambda acc, a, w: dots(acc, a, w, signed=True), "pairs": of_pairs,
            "saturating": saturated}


@pytest.mark.parametrize("name", MEANINGS)
@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("emulated", [False, True])
def test_products_of_bytes_and_words(name, lanes, emulated):
    if name == "dot" and not emulated and isa.here("avx512_vnni" if lanes == 16 else "avx_vnni").emulated:
        pytest.skip("the machine lacks vpdpbusd")
    rng = np.random.default_rng(0)
    source = rng.integers(-2**31, 2**31, (3, lanes)).astype(np.int32)
    source[1:, 0] = -1, 0x7F7F7F7F  # sums of pairs saturate
    source[1:, 1] = -1, -0x7F7F7F80
    got = ran(source, np.zeros(lanes, np.int32), instructions, name, lanes, emulated)
    assert np.array_equal(got, MEANINGS[name](*source))


@pytest.mark.parametrize("count, lanes, dtype", [
    (1, 8, np.uint8), (2, 8, np.uint16), (4, 8, np.uint8), (4, 16, np.uint8), (2, 16, np.uint16), (1, 8, np.uint32)])
def test_woven_rows(count, lanes, dtype):
    source = np.random.default_rng(0).integers(0, 2**8, (count, lanes)).astype(dtype) * dtype(3)
    got = ran(source, np.zeros((lanes, count), dtype), interleaving, count, lanes, source.itemsize)
    assert np.array_equal(got, source.T)


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("masks", [True, False])
def test_the_first_lanes_alone_are_read_and_written(lanes, masks):
    level = next(x for x in isa.available() if (x.tails is MASKED) == masks)
    module = modules.load("x86", moving_first, lanes, level=level, cache=False)
    assert ("masked" in str(codegen.whole_module(module.source)[0])) == masks
    for loaded in (1, 3, lanes):
        for stored in (1, lanes - 1, lanes):
            source, target = guarded(np.arange(10, 10 + loaded, dtype=np.int32)), guarded(np.full(stored, -9, np.int32))
            module.block(np.array([source.ctypes.data, target.ctypes.data, loaded, stored]).ctypes.data, 0)
            want = np.where(np.arange(stored) < loaded, np.arange(11, 11 + stored), 1)
            assert np.array_equal(target, want)


@pytest.mark.parametrize("rows, signed", [(16, False), (5, True)])
def test_emulated_tiles(rows, signed):
    rng = np.random.default_rng(0)
    source, target = rng.integers(0, 256, (2, 16, 64)).astype(np.uint8), np.full((2, 16, 16), -7, np.int32)
    ran(source, target, multiplying_tiles, rows, signed)
    a = source[0].view(np.int8 if signed else np.uint8).astype(np.int64).reshape(16, 16, 4)
    w = source[1].view(np.int8).astype(np.int64).reshape(16, 16, 4)  # groups, columns, bytes
    want = np.einsum("rgb,gcb->rc", a, w)[:rows]
    assert np.array_equal(target[0, :rows], want) and np.array_equal(target[1, :rows], 2 * want)
    assert (target[:, rows:] == -7).all()

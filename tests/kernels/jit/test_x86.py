"""x86 instructions that kernels emit by themselves, by hand; what the kernels' own tests cover is not repeated."""
import re

import numpy as np
import pytest
from kernel_factories import flipping, packing_bytes
from llvmlite import ir

from graphq.kernels.jit import codegen, isa, modules
from graphq.kernels.jit.codegen import Source
from graphq.kernels.jit.compiling import Job
from graphq.kernels.jit.values import I64, Builder
from graphq.kernels.jit.x86 import Tiles

WIDE = any(level.name.startswith("avx512") for level in isa.available())
LANES = [8] * (len(isa.available()) > 1) + [16] * WIDE


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
    tiles.configure()
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
    """LLVM parses it only where the parser is initialised."""
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

"""x86 instructions that kernels emit by themselves, by hand; what the kernels' own tests cover is not repeated."""
import numpy as np
import pytest

from graphq.kernels.jit import codegen, isa, modules
from graphq.kernels.jit.compiling import Job

HEAD = """
from graphq.kernels.jit.codegen import block
from graphq.kernels.jit.intrinsics import I8, I32, c64, word
from graphq.kernels.jit.deferred import intrinsic, types
from graphq.kernels.lanes.vector import high_bytes, low_bytes
from graphq.kernels.jit.x86 import at, flipped, load, store, vector


@intrinsic
def run(_typing, source, target):
    def codegen(context, b, signature, args):
        source, target = args
{body}
        return context.get_dummy_value()

    return types.void(types.intp, types.intp), codegen


@block
def BLOCK(args, index):
    run(word(args, 0), word(args, 1))
"""
FLIP = """
        x = load(b, source, vector(I32, {lanes}))
        store(b, flipped(b, x, 0x80808080, {emulated}), target)
"""
FOUR_VECTORS = """
        parts = [load(b, at(b, source, c64(64 * k)), vector(I32, 16)) for k in range(4)]
        store(b, {call}, target)
"""
WIDE = any(level.name.startswith("avx512") for level in isa.available())
LANES = [8] * (len(isa.available()) > 1) + [16] * WIDE


def ran(body, source, target):
    """What the block function with this body writes to `target`."""
    module = modules.load("x86", HEAD.format(body=body), cache=False)
    module.BLOCK(np.array([source.ctypes.data, target.ctypes.data]).ctypes.data, 0)
    return target


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("emulated", [False, True])
def test_flipped(lanes, emulated):
    source = np.random.default_rng(0).integers(-2**31, 2**31, lanes).astype(np.int32)
    got = ran(FLIP.format(lanes=lanes, emulated=emulated), source, np.zeros_like(source))
    assert np.array_equal(got.view(np.uint8), source.view(np.uint8) ^ 0x80)


@pytest.mark.parametrize("lanes", LANES)
def test_inline_assembly_compiles_here_and_in_another_process(lanes):
    """LLVM parses it only where the parser is initialised."""
    source = HEAD.format(body=FLIP.format(lanes=lanes, emulated=False))
    assert "#APP" in Job("assembly", source).result() and "#APP" in codegen.assembly(source)
    for code, names in Job("object_code", source).result(), codegen.object_code(source):
        assert code and names == ("BLOCK",)


@pytest.mark.skipif(not WIDE, reason="needs AVX-512")
@pytest.mark.parametrize("call, dtype, meaning", [
    ("high_bytes(b, parts, 's8')", np.int8, lambda x: np.clip(x >> 16, -128, 127)),
    ("high_bytes(b, parts, 'u8')", np.uint8, lambda x: np.clip(x >> 16, 0, 255)),
    ("low_bytes(b, parts)", np.uint8, lambda x: x & 0xFF)])
def test_bytes_of_four_vectors(call, dtype, meaning):
    """The upper halves of 64 numbers, saturated, or the low bytes, whatever is above them; in their order."""
    halves = np.array([-2**15, -129, -128, -127, -1, 0, 1, 126, 127, 128, 254, 255, 256, 2**15 - 1], np.int32)
    source = np.resize(halves, 64) * 65536 + np.random.default_rng(0).integers(0, 65536, 64)
    source = source.astype(np.int32)
    got = ran(FOUR_VECTORS.format(call=call), source, np.zeros(64, dtype))
    assert np.array_equal(got, meaning(source))

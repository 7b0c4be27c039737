"""Capabilities for vectors of 16 bytes, on every machine: tails lane by lane, transposes in blocks, tables, packs."""
import numpy as np
import pytest
from guarded_memory import guarded
from kernel_factories import moving_first, shuffling, writing

from graphq.kernels.jit import modules
from graphq.kernels.jit.intrinsics import HEADER_WORDS
from graphq.kernels.lanes.epilogues import Epilogue
from graphq.kernels.lanes.expression import acc, load, op
from graphq.kernels.lanes.outputs import lanes_of
from graphq.kernels.target import isa

NEON = isa.here("neon")


def test_lanes_of_a_tail_are_moved_one_by_one():
    module = modules.load("first", moving_first, 4, level=NEON, cache=False)
    for loaded in range(-1, 6):
        for stored in range(-1, 6):
            source, target = (guarded(np.full(max(0, min(4, n)), x, np.int32)) for n, x in ((loaded, 10), (stored, -9)))
            module.block(np.array([source.ctypes.data, target.ctypes.data, loaded, stored]).ctypes.data, 0)
            assert target.tolist() == [11] * max(0, min(loaded, target.size)) + [1] * (target.size - max(0, loaded))


@pytest.mark.parametrize("count, lanes", [(4, 4), (8, 8), (4, 16), (16, 16), (16, 4)])
def test_tiles_are_transposed_in_blocks(count, lanes):
    source, target = np.arange(count * lanes, dtype=np.int32), np.zeros(count * lanes, np.int32)
    module = modules.load("blocks", shuffling, "transposed", count, lanes, level=NEON, cache=False)
    module.block(np.array([source.ctypes.data, target.ctypes.data]).ctypes.data, 0)
    tiles = source.reshape(count, -1, min(count, lanes))
    assert np.array_equal(target, tiles.transpose(2, 1, 0).ravel())


def test_bytes_are_looked_up_in_whole_vectors():
    store = Epilogue(op("lookup", load(0, "u8", "table"), load(1, "u8", "vector")), "u8")
    of_sums = Epilogue(op("lookup", load(0, "u8", "table"), acc()), "u8")
    lanes = lanes_of(store, NEON)
    assert (lanes, lanes_of(of_sums, NEON), lanes_of(store, isa.SCALAR)) == (16, 4, 4)
    table = np.random.default_rng(0).permutation(256).astype(np.uint8)
    for lanes in (4, 16):
        module = modules.load("tables", writing, (store,), lanes, level=NEON, cache=False)
        for columns in (1, 15, 33, 256):
            index, out = guarded(np.arange(columns)[::-1].astype(np.uint8)), guarded(np.zeros(columns, np.uint8))
            words = np.zeros(HEADER_WORDS + 9, np.int64)
            words[HEADER_WORDS::3] = table.ctypes.data, index.ctypes.data, out.ctypes.data
            module.write0(words.ctypes.data, 0, 0, 0, 1, columns, 0, 0, 0)
            assert np.array_equal(out, table[index])

"""Look-ups in tables of 256 bytes, for all lanes of a vector at a time.

If the CPU can permute bytes across a register (AVX-512 VBMI), the table is in registers, else in memory.
"""
from __future__ import annotations

from typing import NamedTuple

from llvmlite import ir

from graphq.kernels.jit import isa
from graphq.kernels.jit.values import I8, I64, Builder, Value, constant, joined, vector
from graphq.kernels.jit.x86 import instruction

_LINE = 64


def permutes(lanes: int) -> bool:
    """Whether tables are in registers: vpermi2b of AVX-512 VBMI looks up 64 bytes at once among 128 entries."""
    return lanes == 16 and isa.has("avx512vbmi")


def least_saved(lanes: int) -> int:
    """The least number of operations that a look-up replaces with a gain."""
    return 8 if permutes(lanes) else 3 * lanes


class LookupTable(NamedTuple):
    """A table of `dtype` at `address`, and its four quarters of 64 bytes if tables are in registers."""

    dtype: str
    address: Value
    quarters: tuple[Value, ...]

    @staticmethod
    def read(dtype: str, address: Value, lanes: int) -> LookupTable:
        """Emit the loads of a table; they are marked invariant, so that LLVM may move them out of loops."""
        kind = vector(I8, _LINE)
        quarters = ((address + _LINE * k).load_invariant(kind) for k in range(4 * permutes(lanes)))
        return LookupTable(dtype, address, tuple(quarters))


def look_up(b: Builder, lanes: int, table: LookupTable, index: Value) -> Value:
    """Emit the look-up of the low byte of each s32 lane of `index`."""
    if lanes == 1:
        return (table.address + index.trunc(I8).zext(I64)).load(I8)
    index = index.trunc(vector(I8, lanes))
    if not table.quarters:
        return _loaded(lanes, table, index)
    line = look_up_line(b, table, index.shuffle(index, [min(k, lanes) for k in range(_LINE)]))
    return line.shuffle(line, range(lanes))


def look_up_line(b: Builder, table: LookupTable, index: Value) -> Value:
    """Emit the look-up of the 64 bytes of `index` in a table that is in registers.

    The low seven bits of an index look up in both halves of the table; the eighth bit selects one of the two results.
    """
    kind = vector(I8, _LINE)
    low, high = (instruction(b, "avx512.vpermi2var.qi.512", kind, [x, index, y])
                 for x, y in (table.quarters[:2], table.quarters[2:]))
    return (index < constant(kind, 0)).select(high, low)


def _loaded(lanes: int, table: LookupTable, index: Value) -> Value:
    """Emit a byte load for each lane: vpgatherdd is slower on many CPUs, above all with microcode against Downfall."""
    words = index.as_type(ir.VectorType(I64, lanes // 8))
    offsets = (words.lane(k // 8).shr(8 * (k % 8)) & 0xFF for k in range(lanes))
    return joined([(table.address + offset).load(I8) for offset in offsets])

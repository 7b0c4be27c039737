"""The operands of a Store, as the kernel's argument block describes them: three words (`SLOT`) for each operand."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from llvmlite import ir

from graphq.kernels.jit.intrinsics import HEADER_WORDS, SLOT
from graphq.kernels.jit.values import I64, Builder, Value, c64
from graphq.kernels.lanes.expression import STORAGE, TABLE


@dataclass(frozen=True)
class SlotOperand:
    """The operand of one slot (see SLOT), with the address of its first element for a block of outputs.

    The slot's table has a byte offset for each batch index. Element (batch, i, j) of a "vector" operand is at address +
    table[batch] + i * stride + j * itemsize. A "row" operand has no column j. A "scalar" is at the address itself.
    """

    address: Value
    stride: Value
    itemsize: int

    @staticmethod
    def read(builder: Builder, first: Sequence[Value], slot: int, dtype: str, kind: str) -> SlotOperand:
        """Emit the loads of the words of slot `slot`, for the block of outputs that starts at `first`."""
        args, batch, i0, j0 = first
        words = HEADER_WORDS + len(SLOT.fields) * slot
        address, table, stride = ((args + 8 * (words + n)).load_invariant(I64, 8) for n in range(len(SLOT.fields)))
        itemsize = STORAGE[dtype].itemsize
        if kind in ("scalar", TABLE):
            return SlotOperand(address, stride, itemsize)
        zero = builder.ptrtoint(_zero(builder), I64)
        entry = table.eq(0).select(zero, table + batch * 8)
        address = address + entry.load_invariant(I64, 8)
        address = address + i0 * stride
        if kind in ("vector", "column"):
            address = address + j0 * itemsize
        return SlotOperand(address, stride, itemsize)

    def row(self, r: Value) -> Value:
        """Emit the address of row `r` of the block."""
        return self.address + r * self.stride


def _zero(builder: Builder) -> ir.GlobalVariable:
    """The address of a 64-bit zero. Operands without a table use it as their table, so code needs no branch."""
    out = ir.GlobalVariable(builder.module, I64, builder.module.get_unique_name("graphq.zero"))
    out.linkage, out.global_constant, out.initializer = "internal", True, c64(0).ir
    return out

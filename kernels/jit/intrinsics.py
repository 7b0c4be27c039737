"""Building blocks of kernel code: shuffles, memory access, calls, and layouts of argument blocks (`Record`).

Addresses are signed integers (`intp`), because intp + uintp is a float in Numba. Offsets and sizes are in bytes by
default.

A kernel file starts with `GATHER = Record(...)`. The kernel uses `a = GATHER(args)`, then `a.rows` or `a.rows = n`; a
wrong name is an error when the kernel is compiled. Read a loop's bounds into variables before the loop; otherwise LLVM
reads the field again after each store.
"""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
from llvmlite import ir

from graphq.errors import KernelError
from graphq.kernels.jit.deferred import Deferred, Intrinsic, emits, numba_intrinsic, types
from graphq.kernels.jit.values import I8, I32, I64, Builder, Type, Value, numpy_type

FUNCTIONS = 0
"""The index of the word that holds the address of the epilogue's function table (see `lanes/outputs.py`)."""
HEADER_WORDS = 40
"""The number of words of an argument block before its slots. The kernel's own fields come first."""


def stack_memory(b: Builder, nbytes: int) -> Value:
    """Reserve `nbytes` (a literal) of stack once per function call. Returns the address, aligned to 64 bytes."""
    with b.goto_entry_block():
        room = b.alloca(ir.ArrayType(I8, nbytes))
        room.ir.align = 64
    address: Value = b.ptrtoint(room, I64)
    return address


stack = emits(stack_memory)


@emits
def call_block(b: Builder, function: Value, args: Value, index: Value) -> None:
    """Call the block function `void f(intp args, intp index)` at address `function`."""
    b.call(function.pointer(ir.FunctionType(ir.VoidType(), [I64, I64])), [args, index])


def call_entry(b: Builder, *values: Value, number: int) -> Value:
    """Call entry `number` of a function table, and return its result, an intp.

    The first value is the address of an argument block; its word FUNCTIONS is the table's address.
    """
    table = (values[0] + 8 * FUNCTIONS).load_invariant(I64, 8)
    function = (table + 8 * number).load_invariant(I64, 8)
    return b.call(function.pointer(ir.FunctionType(I64, [I64] * len(values))), values)


def _load(b: Builder, address: Value, *, kind: Type, signed: bool = True) -> Value:
    """Load the integer of type `kind` at `address`, as a 64-bit integer."""
    x = address.load(kind)
    return x if kind == I64 else x.sext(I64) if signed else x.zext(I64)


def _store(b: Builder, address: Value, value: Value, *, kind: Type) -> None:
    """Store the low bits of `value` at `address`, as an integer of type `kind`."""
    (value if kind == I64 else value.trunc(kind)).store(address)


KINDS = {"s8": I8, "s32": I32, "s64": I64}
load_u8, store_u8 = emits(_load, named="load_u8", kind=I8, signed=False), emits(_store, named="store_u8", kind=I8)
load_s8, load_s32, load_s64 = (emits(_load, named=f"load_{text}", kind=kind) for text, kind in KINDS.items())
store_s32, store_s64 = (emits(_store, named=f"store_{text}", kind=KINDS[text]) for text in ("s32", "s64"))


def concatenated(vectors: Sequence[Value]) -> Value:
    """Make one vector of the lanes of 2**n vectors."""
    while len(vectors) > 1:
        vectors = [x.shuffle(y, range(2 * x.type.count)) for x, y in zip(vectors[::2], vectors[1::2], strict=True)]
    return vectors[0]


def transpose_tiles(rows: list[Value]) -> list[Value]:
    """Transpose all n x n blocks in n vectors, by log2(n) rounds of perfect shuffles.

    If a block is wider than the level's `block_bytes`, it is cut into smaller blocks; vectors may be as short as these.
    """
    n, lanes = len(rows), rows[0].type.count
    level = rows[0].building.level
    size = n if level is None else min(n, level.block_bytes // numpy_type(rows[0].type).itemsize)
    if size < n:
        parts = [[row.shuffle(row, range(k, k + size)) for k in range(0, lanes, size)] for row in rows]
        blocks = [[transpose_tiles([parts[top + i][k] for i in range(size)]) for k in range(lanes // size)]
                  for top in range(0, n, size)]
        each = n // size  # blocks of a row
        return [concatenated([blocks[i][tile + c // size][c % size] for tile in range(0, lanes // size, each)
                              for i in range(each)]) for c in range(min(n, lanes))]
    halves = [[x for tile in range(0, lanes, n) for i in range(tile + start, tile + start + n // 2)
               for x in (i, i + lanes)] for start in (0, n // 2)]
    for _ in range(n.bit_length() - 1):
        rows = [rows[i].shuffle(rows[i + n // 2], half) for i in range(n // 2) for half in halves]
    return rows


def columns_of(rows: Sequence[Value]) -> list[Value]:
    """The four columns of an 8 x 4 matrix, given as eight rows."""
    return transpose_tiles([rows[n].shuffle(rows[n + 4], range(8)) for n in range(4)])


def repeated(x: Value, multiplier: int, lanes: int) -> Value:
    """Make a vector of `lanes` lanes that repeats each lane of `x` `multiplier` times."""
    if lanes <= multiplier:
        return x.splat(lanes)
    return x if multiplier == 1 else x.shuffle(x, [k // multiplier for k in range(lanes)])


T = TypeVar("T")


class Record(Deferred):
    """The layout of an argument block: its fields in order, one 64-bit word each.

    Compiled code calls a record with an address; the result gives access to the fields there.
    """

    __call__: Intrinsic

    def __init__(self, *fields: str) -> None:
        assert len(fields) <= HEADER_WORDS, "slots begin after so many words"
        super().__init__(self._view, numba_intrinsic)
        self.fields = fields
        self.dtype = np.dtype([(name, np.int64) for name in fields], align=True)

    @property
    def nbytes(self) -> int:
        """The size of the record in bytes."""
        return self.dtype.itemsize

    def number(self, name: str) -> int:
        """The index of a field."""
        return self.fields.index(name)

    def _view(self, _typing: object, address: object) -> object:
        from numba import from_dtype

        def code(context: Any, builder: ir.IRBuilder, signature: Any, args: list[ir.Value]) -> ir.Value:
            return builder.inttoptr(args[0], context.get_value_type(signature.return_type))

        return from_dtype(self.dtype)(types.intp), code

    def load(self, address: Value, name: str) -> Value:
        """Emit the load of a field of the record at an address; only for functions decorated with `@emits`."""
        return (address + 8 * self.number(name)).load(I64, 8)

    def named(self, values: Mapping[str, T]) -> dict[str, T | int]:
        """The values of all fields by name; 0 for fields without a value. Raises KernelError for an unknown name."""
        return filled(dict.fromkeys(self.fields, 0), values)

    def words(self, values: Mapping[str, T]) -> list[T | int]:
        """The values of all fields in order; 0 for fields without a value. Raises KernelError for an unknown name."""
        return [*self.named(values).values()]


def filled(words: Mapping[str, T], values: Mapping[str, T]) -> dict[str, T]:
    """Copy the words of an argument block, and set `values` in the copy. Raises KernelError for an unknown name."""
    if unknown := values.keys() - words.keys():
        raise KernelError(f"no fields {sorted(unknown)} in an argument block of {', '.join(words)}")
    return {**words, **values}


SLOT = Record("address", "table", "stride")
"""The three words in an argument block for an operand or output of an epilogue.

`address` is the data's address. `table` is the address of a table of byte offsets by batch index, or 0. `stride` is the
number of bytes from one row to the next.
"""
SLOTS = 8 * HEADER_WORDS
"""The number of bytes of an argument block before its slots."""

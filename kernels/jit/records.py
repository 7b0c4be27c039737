"""Records: layouts of kernels' argument blocks, whose 8-byte fields have names, in planning and in kernel code.

A kernel has `GATHER = Record(...)` and `view = GATHER.view` at the top of its file. Its code says `a = view(args)`,
then `a.rows`, or `a.rows = n`; a wrong name is an error when the kernel is compiled. A loop's bounds should be read
into variables before the loop, because LLVM would read a field again after each store that might have changed it.
"""
from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar, cast

import numpy as np
from llvmlite import ir

from graphq.base.locks import lazy_property
from graphq.errors import KernelError
from graphq.kernels.jit.deferred import Deferred, Intrinsic, numba_intrinsic, types
from graphq.kernels.jit.intrinsics import HEADER_WORDS
from graphq.kernels.jit.values import I64, Value

T = TypeVar("T")


class Record:
    """The fields of an argument block, in their order."""

    def __init__(self, *fields: str) -> None:
        assert len(fields) <= HEADER_WORDS, "slots begin after so many words"
        self.fields = fields
        self.dtype = np.dtype([(name, np.int64) for name in fields], align=True)

    @property
    def nbytes(self) -> int:
        """The size of the record in bytes."""
        return self.dtype.itemsize

    def number(self, name: str) -> int:
        """The index of a field."""
        return self.fields.index(name)

    @lazy_property
    def view(self) -> Intrinsic:
        """A function for compiled code that gives the record at an address."""

        def view(_typing: object, address: object) -> object:
            from numba import from_dtype

            def code(context: Any, builder: ir.IRBuilder, signature: Any, args: list[ir.Value]) -> ir.Value:
                return builder.inttoptr(args[0], context.get_value_type(signature.return_type))

            return from_dtype(self.dtype)(types.intp), code

        return cast(Intrinsic, Deferred(view, numba_intrinsic))

    def load(self, address: Value, name: str) -> Value:
        """Emit the load of a field of the record at an address, in a function that `emits` marks."""
        return (address + 8 * self.number(name)).load(I64, 8)

    def named(self, values: Mapping[str, T]) -> dict[str, T | int]:
        """The values of all fields by name, in the order of the fields; fields without a value are 0.

        Raises KernelError for a name that is no field.
        """
        return filled(dict.fromkeys(self.fields, 0), values)

    def words(self, values: Mapping[str, T]) -> list[T | int]:
        """The values of all fields in order; fields without a value are 0. Raises KernelError for an unknown field."""
        return [*self.named(values).values()]


def filled(words: Mapping[str, T], values: Mapping[str, T]) -> dict[str, T]:
    """A copy of an argument block's words, by name, with these values set. Raises KernelError for an unknown name."""
    if unknown := values.keys() - words.keys():
        raise KernelError(f"no fields {sorted(unknown)} in an argument block of {', '.join(words)}")
    return {**words, **values}


SLOT = Record("address", "table", "stride")
"""An operand or the output of a Store in an argument block: three words.

`address` is its address, `table` the address of a table of byte offsets by batch index (or 0), and `stride` the bytes
from one row to the next.
"""
SLOTS = 8 * HEADER_WORDS
"""The bytes of an argument block that precede its slots."""

"""Building blocks of emitted code that every CPU has: loops, interleaved rows, and the last elements of a row.

Addresses are 64-bit integers. Masks are LLVM's; on a CPU without masked instructions, LLVM emits a branch per element.
"""
from __future__ import annotations

from collections.abc import Sequence

from llvmlite import ir

from graphq.kernels.jit.values import I8, I32, I64, Builder, Operand, Type, Value, c64, constant, vector

S32X16 = vector(I32, 16)


def interleave(rows: Sequence[Value], lanes: int) -> Value:
    """Interleave 1, 2 or 4 rows of `lanes` elements: the first element of each row, then the second, and so on."""
    mix = [x for i in range(lanes) for x in (i, i + lanes)]
    bits = rows[0].type.count // lanes * rows[0].type.element.width
    while len(rows) > 1:
        rows = [x.as_type(vector(ir.IntType(bits), lanes)) for x in rows]
        rows = [x.shuffle(y, mix) for x, y in zip(rows[::2], rows[1::2], strict=True)]
        bits *= 2
    return rows[0]


class Loop:
    """Emit `for k in range(count)`, with the context manager's block as the body of the loop.

    `carried` are the initial values of variables that change from iteration to iteration. Inside the loop, `.k` is the
    counter and `.values` are the current values; `update` sets the values of the next iteration. After the loop,
    `.values` are the final values, or the initial values if count <= 0. The counter grows by `.step` (1 by default).
    """

    def __init__(self, b: Builder, count: Value, carried: Sequence[Value] = ()):
        self.b, self.count, self.first = b, count, list(carried)
        self.new: list[Value] = self.first
        self.step: Operand = 1

    def __enter__(self) -> Loop:
        b, before = self.b, self.b.block
        self.head, body, self.after = (b.append_basic_block(f"loop.{part}") for part in ("head", "body", "after"))
        b.branch(self.head)
        b.position_at_end(self.head)
        self.k = b.phi(I64)
        self.k.add_incoming(c64(0), before)
        self.values = [b.phi(x.type) for x in self.first]
        for phi, x in zip(self.values, self.first, strict=True):
            phi.add_incoming(x, before)
        b.cbranch(self.k < self.count, body, self.after)
        b.position_at_end(body)
        return self

    def update(self, values: Sequence[Value]) -> None:
        """Set the carried values for the next iteration."""
        self.new = list(values)

    def __exit__(self, *_: object) -> None:
        b = self.b
        self.k.add_incoming(self.k + self.step, b.block)
        for phi, x in zip(self.values, self.new, strict=True):
            phi.add_incoming(x, b.block)
        b.branch(self.head)
        b.position_at_end(self.after)


def flushed(b: Builder, x: Value) -> Value:
    """Replace each subnormal number of x by a zero of the same sign."""
    bits = x.as_type(vector(I32, x.type.count))
    normal = bits & 0x7FFFFFFF
    return normal.ult(0x00800000).select(bits & -0x80000000, bits).as_type(x.type)


def tail_mask(lanes: int, left: Value) -> Value:
    """Make the mask of the first `left` lanes."""
    return constant(vector(I32, lanes), range(lanes)) < left.trunc(I32).splat(lanes)


def load_first(address: Value, count: Value, kind: Type) -> Value:
    """Load the first `count` lanes of integers at an address, followed by zeros. Reads no memory beyond them."""
    return address.load_where(tail_mask(kind.count, count), kind)


def store_first(value: Value, address: Value, count: Value) -> None:
    """Store the first `count` lanes of integers at an address. Writes no memory beyond them."""
    value.store_where(tail_mask(value.type.count, count), address)


def load_bytes(address: Value, count: Value, lanes: int = 64) -> Value:
    """Load the first `count` (0 to `lanes`) bytes at an address, followed by zeros."""
    return load_first(address, count, ir.VectorType(I8, lanes))

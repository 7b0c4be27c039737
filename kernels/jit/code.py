"""Building blocks of emitted code that every CPU has: loops, interleaved rows, and the last elements of a row.

Addresses are 64-bit integers. A level says how it loads and stores the first lanes of a vector (`Tails`).
"""
from collections.abc import Callable, Sequence
from typing import NamedTuple

from llvmlite import ir

from graphq.kernels.jit.values import (
    I8,
    I32,
    I64,
    Builder,
    Operand,
    Type,
    Value,
    c64,
    constant,
    larger,
    numpy_type,
    smaller,
    vector,
)

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
    """Emit `for k in range(start, stop, step)`, with the context manager's block as the body of the loop.

    `carried` are the initial values of variables that change from iteration to iteration. Inside the loop, `.k` is the
    counter and `.values` are the current values; `update` sets the values of the next iteration. After the loop,
    `.values` are the final values, or the initial values if stop <= start. The body may set `.step`. With `unroll`,
    LLVM is allowed to unroll the loop. Unrolling adds dozens of instructions in front of the loop.
    """

    def __init__(self, b: Builder, stop: Value, carried: Sequence[Value] = (), *, start: Value | None = None,
                 step: Operand = 1, unroll: bool = True):
        self.b, self.stop, self.first = b, stop, list(carried)
        self.new: list[Value] = self.first
        self.start, self.step, self.unroll = c64(0) if start is None else start, step, unroll

    def __enter__(self) -> "Loop":
        b, before = self.b, self.b.block
        self.head, body, self.after = (b.append_basic_block(f"loop.{part}") for part in ("head", "body", "after"))
        b.branch(self.head)
        b.position_at_end(self.head)
        self.k = b.phi(I64)
        self.k.add_incoming(self.start, before)
        self.values = [b.phi(x.type) for x in self.first]
        for phi, x in zip(self.values, self.first, strict=True):
            phi.add_incoming(x, before)
        b.cbranch(self.k < self.stop, body, self.after)
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
        back = b.branch(self.head)
        if not self.unroll:
            back.ir.set_metadata("llvm.loop", _loop_without_unrolling(b.module))
        b.position_at_end(self.after)


def _loop_without_unrolling(module: ir.Module) -> ir.MDValue:
    """LLVM's metadata for a loop that must not be unrolled; its first element must be the metadata itself."""
    option = module.add_metadata([ir.MetaDataString(module, "llvm.loop.unroll.disable")])
    loop = ir.MDValue(module, (option,), name=str(len(module.metadata)))
    loop.operands = (loop, option)
    return loop


def flushed(b: Builder, x: Value) -> Value:
    """Replace each subnormal number of x by a zero of the same sign."""
    bits = x.as_type(vector(I32, x.type.count))
    normal = bits & 0x7FFFFFFF
    return normal.ult(0x00800000).select(bits & -0x80000000, bits).as_type(x.type)


def tail_mask(lanes: int, left: Value) -> Value:
    """Make the mask of the first `left` lanes."""
    return constant(vector(I32, lanes), range(lanes)) < left.trunc(I32).splat(lanes)


def _copy_first(b: Builder, source: Value, target: Value, count: Value, kind: Type) -> None:
    """Copy the first `count` lanes of a vector of type `kind` in pieces, from the largest to the smallest."""
    count, done = larger(smaller(count, kind.count), 0), c64(0)
    for bit in reversed(range(kind.count.bit_length())):
        piece, size = vector(kind.element, 1 << bit), count & 1 << bit
        with b.if_then(size.ne(0)):
            (source + done).load(piece).store(target + done)
        done = done + size * numpy_type(kind).itemsize


def room_of(b: Builder, kind: Type) -> Value:
    """Emit memory on the stack for a value of type `kind`; returns its address."""
    with b.goto_entry_block():
        room = b.alloca(kind)
    address: Value = b.ptrtoint(room, I64)
    return address


class Tails(NamedTuple):
    """How code does `load_first` and `store_first`."""

    load: Callable[[Value, Value, Type], Value]
    store: Callable[[Value, Value, Value], None]


def _load_in_pieces(address: Value, count: Value, kind: Type) -> Value:
    room = room_of(address.building, kind)
    constant(kind, 0).store(room)
    _copy_first(address.building, address, room, count, kind)
    return room.load(kind)


def _store_in_pieces(value: Value, address: Value, count: Value) -> None:
    room = room_of(address.building, value.type)
    value.store(room)
    _copy_first(address.building, room, address, count, value.type)


IN_PIECES = Tails(_load_in_pieces, _store_in_pieces)
"""For any CPU: in pieces of 1, 2, 4, ... lanes, through memory on the stack."""
MASKED = Tails(lambda address, count, kind: address.load_where(tail_mask(kind.count, count), kind),
               lambda value, address, count: value.store_where(tail_mask(value.type.count, count), address))
"""For CPUs with instructions that load and store the lanes of a mask."""


def _tails(b: Builder) -> Tails:
    return IN_PIECES if b.level is None else b.level.tails


def load_first(address: Value, count: Value, kind: Type) -> Value:
    """Load the first `count` lanes at an address, followed by zeros. Reads no memory beyond them."""
    return _tails(address.building).load(address, count, kind)


def store_first(value: Value, address: Value, count: Value) -> None:
    """Store the first `count` lanes of a vector at an address. Writes no memory beyond them."""
    _tails(address.building).store(value, address, count)


def load_bytes(address: Value, count: Value, lanes: int = 64) -> Value:
    """Load the first `count` (0 to `lanes`) bytes at an address, followed by zeros."""
    return load_first(address, count, ir.VectorType(I8, lanes))

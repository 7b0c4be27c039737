"""Building blocks of emitted code that every CPU has: loops, interleaved rows, and the last elements of a row.

Addresses are 64-bit integers. Levels with `masks` load and store some lanes of a vector by masked instructions. Levels
with `single_lanes` move the lanes of a register one by one. Other code moves the elements in pieces of 1, 2, 4, ...
elements, through memory on the stack.
"""
from __future__ import annotations

import operator
from collections.abc import Sequence
from functools import reduce

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
    joined,
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

    def __enter__(self) -> Loop:
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


def _masked(b: Builder) -> bool:
    return b.level is not None and b.level.masks


def _lane_by_lane(b: Builder, kind: Type) -> bool:
    return b.level is not None and b.level.single_lanes and kind.count <= b.level.lanes


def _lane_places(address: Value, count: Value, kind: Type) -> list[Value]:
    """The address of each lane, or of lane `count` - 1 for lanes from `count` on; of a room if `count` is 0 or less."""
    first = (count > 0).select(address, _room(address.building, kind))
    last, itemsize = larger(count, 1) - 1, numpy_type(kind).itemsize
    return [first + smaller(k, last) * itemsize for k in range(kind.count)]


def _load_lanes(places: Sequence[Value], kind: Type) -> Value:
    """Load one lane from each address. The lanes of short vectors are joined in an integer, which takes less time."""
    width = 8 * numpy_type(kind).itemsize
    if width * kind.count > 64:
        return joined([place.load(kind.element) for place in places])
    whole = ir.IntType(width * kind.count)
    lanes = [place.load(ir.IntType(width)).zext(whole) << width * k for k, place in enumerate(places)]
    return reduce(operator.or_, lanes).opaque().as_type(kind)


def _copy_first(b: Builder, source: Value, target: Value, count: Value, kind: Type) -> None:
    """Copy the first `count` lanes of a vector of type `kind` in pieces, from the largest to the smallest."""
    count, done = larger(smaller(count, kind.count), 0), c64(0)
    for bit in reversed(range(kind.count.bit_length())):
        piece, size = vector(kind.element, 1 << bit), count & 1 << bit
        with b.if_then(size.ne(0)):
            (source + done).load(piece).store(target + done)
        done = done + size * numpy_type(kind).itemsize


def _room(b: Builder, kind: Type) -> Value:
    with b.goto_entry_block():
        room = b.alloca(kind)
    address: Value = b.ptrtoint(room, I64)
    return address


def load_first(address: Value, count: Value, kind: Type) -> Value:
    """Load the first `count` lanes at an address, followed by zeros. Reads no memory beyond them."""
    b = address.building
    if _masked(b):
        return address.load_where(tail_mask(kind.count, count), kind)
    if _lane_by_lane(b, kind):
        x = _load_lanes(_lane_places(address, count, kind), kind)
        return tail_mask(kind.count, count).select(x, constant(kind, 0))
    room = _room(b, kind)
    constant(kind, 0).store(room)
    _copy_first(b, address, room, count, kind)
    return room.load(kind)


def store_first(value: Value, address: Value, count: Value) -> None:
    """Store the first `count` lanes of a vector at an address. Writes no memory beyond them."""
    b = address.building
    if _masked(b):
        return value.store_where(tail_mask(value.type.count, count), address)
    if _lane_by_lane(b, value.type):
        places = _lane_places(address, count, value.type)
        for k in reversed(range(value.type.count)):  # the last store to the place of lane `count` - 1 is its own
            value.lane(k).store(places[k])
        return None
    room = _room(b, value.type)
    value.store(room)
    _copy_first(b, room, address, count, value.type)


def load_bytes(address: Value, count: Value, lanes: int = 64) -> Value:
    """Load the first `count` (0 to `lanes`) bytes at an address, followed by zeros."""
    return load_first(address, count, ir.VectorType(I8, lanes))

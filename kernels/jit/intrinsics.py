"""Loops for functions that emit IR, and intrinsics for block functions: memory access, stack memory, function calls.

Addresses are signed integers (`intp`), because in Numba uintp + intp is a float. Offsets and sizes are in bytes unless
the text says otherwise.
"""
from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from llvmlite import ir

from graphq.kernels.jit.deferred import Intrinsic, emits
from graphq.kernels.jit.values import I8, I32, I64, Builder, Type, Value

FUNCTIONS = 0
"""The number of the argument block's word that has the address of the epilogue's table of functions (`outputs`)."""
HEADER_WORDS = 40
"""How many words of an argument block precede its slots; each kernel gives the first of them its own fields."""


def _loop_without_unrolling(module: ir.Module) -> ir.MDValue:
    """LLVM's metadata for a loop that is not to be unrolled; by LLVM's rules, the node is its own first element."""
    option = module.add_metadata([ir.MetaDataString(module, "llvm.loop.unroll.disable")])
    loop = ir.MDValue(module, (option,), name=str(len(module.metadata)))
    loop.operands = (loop, option)
    return loop


@contextmanager
def counted(b: Builder, start: Value, stop: Value, step: int = 1, *, unroll: bool = True) -> Iterator[Value]:
    """Emit `for k in range(start, stop, step)` over 64-bit integers, and yield `k`. The body may run zero times.

    If `unroll` is true, LLVM may unroll the loop, which puts dozens of instructions in front of it.
    """
    before = b.block
    head, body, after = (b.append_basic_block(f"loop.{part}") for part in ("head", "body", "after"))
    b.branch(head)
    b.position_at_end(head)
    k: Value = b.phi(I64)
    k.add_incoming(start, before)
    b.cbranch(k < stop, body, after)
    b.position_at_end(body)
    yield k
    k.add_incoming(k + step, b.block)
    back = b.branch(head)
    if not unroll:
        back.ir.set_metadata("llvm.loop", _loop_without_unrolling(b.module))
    b.position_at_end(after)


@emits
def stack(b: Builder, nbytes: int) -> Value:
    """Reserve `nbytes` (a literal) of stack memory once per function call; returns its address, aligned to 64 bytes."""
    with b.goto_entry_block():
        room = b.alloca(ir.ArrayType(I8, nbytes))
        room.ir.align = 64
    address: Value = b.ptrtoint(room, I64)
    return address


@emits
def call_block(b: Builder, function: Value, args: Value, index: Value) -> None:
    """Call the block function `void f(intp args, intp index)` at address `function`."""
    b.call(function.pointer(ir.FunctionType(ir.VoidType(), [I64, I64])), [args, index])


def outer(number: int, arity: int) -> Intrinsic:
    """Make the function (args, ...) -> intp that calls function `number` of a table.

    The argument block at `args` has the address of the table in its word FUNCTIONS. The function has `arity` arguments,
    including `args`.
    """

    def call(b: Builder, *values: Value) -> Value:
        table = (values[0] + 8 * FUNCTIONS).load_invariant(I64, 8)
        function = (table + 8 * number).load_invariant(I64, 8)
        return b.call(function.pointer(ir.FunctionType(I64, [I64] * arity)), values)

    return emits(call, arity)


def _reader(kind: Type, signed: bool, text: str) -> Callable[[int], int]:
    def read(b: Builder, address: Value) -> Value:
        x = address.load(kind)
        return x if kind == I64 else x.sext(I64) if signed else x.zext(I64)

    read.__name__ = f"load_{text}"
    read.__doc__ = f"Load the {text} at `address`, as a 64-bit integer."
    return emits(read)


def _writer(kind: Type, text: str) -> Callable[[int, int], None]:
    def write(b: Builder, address: Value, value: Value) -> None:
        (value if kind == I64 else value.trunc(kind)).store(address)

    write.__name__ = f"store_{text}"
    write.__doc__ = f"Store the low bits of `value` as the {text} at `address`."
    return emits(write)


load_u8, load_s8 = _reader(I8, False, "u8"), _reader(I8, True, "s8")
load_s32, load_s64 = _reader(I32, True, "s32"), _reader(I64, True, "s64")
store_u8, store_s32, store_s64 = _writer(I8, "u8"), _writer(I32, "s32"), _writer(I64, "s64")

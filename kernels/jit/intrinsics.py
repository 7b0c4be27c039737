"""Instructions and memory access for kernels, one function each.

The first part helps to emit LLVM IR (`builder` first), the second part is the intrinsics that block functions call.
Addresses are integers, `intp` as all others (Numba makes uintp + intp a float); offsets and sizes are bytes unless the
text says otherwise.
"""
from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from llvmlite import ir

from graphq.kernels.jit.deferred import intrinsic, types
from graphq.kernels.jit.values import Value

I1, I8, I16, I32, I64 = (ir.IntType(n) for n in (1, 8, 16, 32, 64))
F16, F32, F64 = ir.HalfType(), ir.FloatType(), ir.DoubleType()
BYTES = I8.as_pointer()

FUNCTIONS = 0
"""The word of an argument block with the address of a table of functions (`outputs`)."""
HEADER_WORDS = 26
"""Words of an argument block before those of its slots; what the first ones say is the kernel's matter."""


def c64(n: int) -> Value:
    """Make a 64-bit constant."""
    return Value(None, ir.Constant(I64, n))


def declare(builder: ir.IRBuilder, name: str, result: ir.Type, args: Sequence[ir.Type]) -> ir.Function:
    """Declare the LLVM intrinsic of this full name (llvmlite cannot mangle vector types)."""
    return builder.module.declare_intrinsic(name, (), ir.FunctionType(result, args))


def pointer(builder: ir.IRBuilder, address: ir.Value, kind: ir.Type) -> ir.Value:
    """`address` as a pointer to `kind`."""
    return builder.inttoptr(address, kind.as_pointer())


def splat(builder: ir.IRBuilder, x: ir.Value, lanes: int) -> ir.Value:
    """`x` in every lane; `x` itself for one lane."""
    if lanes == 1:
        return x
    kind = ir.VectorType(x.type, lanes)
    one = builder.insert_element(ir.Constant(kind, ir.Undefined), x, ir.Constant(I32, 0))
    return builder.shuffle_vector(one, ir.Constant(kind, ir.Undefined), ir.Constant(ir.VectorType(I32, lanes), None))


def invariant_load(builder: ir.IRBuilder, address: ir.Value, kind: ir.Type, align: int) -> ir.Value:
    """Load what no kernel writes while it runs: such a load may leave loops that also store."""
    x = builder.load(pointer(builder, address, kind), align=align)
    x.ir.set_metadata("invariant.load", builder.module.add_metadata([]))
    return x


def _loop_without_unrolling(module: ir.Module) -> ir.MDValue:
    """LLVM's metadata of a loop, a node that begins with itself."""
    option = module.add_metadata([ir.MetaDataString(module, "llvm.loop.unroll.disable")])
    loop = ir.MDValue(module, (option,), name=str(len(module.metadata)))
    loop.operands = (loop, option)
    return loop


@contextmanager
def counted(builder: ir.IRBuilder, start: ir.Value, stop: ir.Value, step: int = 1, *,
            unroll: bool = True) -> Iterator[ir.Value]:
    """`for k in range(start, stop, step)` over 64-bit integers; gives `k`. The body may run no times.

    `unroll` lets LLVM do so, which takes dozens of instructions before the loop.
    """
    before = builder.block
    head, body, after = (builder.append_basic_block(f"loop.{part}") for part in ("head", "body", "after"))
    builder.branch(head)
    builder.position_at_end(head)
    k = builder.phi(I64)
    k.add_incoming(start, before)
    builder.cbranch(builder.icmp_signed("<", k, stop), body, after)
    builder.position_at_end(body)
    yield k
    k.add_incoming(builder.add(k, c64(step)), builder.block)
    back = builder.branch(head)
    if not unroll:
        back.ir.set_metadata("llvm.loop", _loop_without_unrolling(builder.module))
    builder.position_at_end(after)


@intrinsic(literals=True)
def stack(_typing: Any, nbytes: Any) -> Any:
    """Allot `nbytes` (a literal) of stack memory once per function call; its address, aligned to 64 bytes."""
    if not isinstance(nbytes, types.IntegerLiteral):
        return None

    def codegen(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        with builder.goto_entry_block():
            room = builder.alloca(ir.ArrayType(I8, nbytes.literal_value))
            room.ir.align = 64
        return builder.ptrtoint(room, I64)

    return types.intp(nbytes), codegen


@intrinsic
def call_block(_typing: Any, function: Any, args: Any, index: Any) -> Any:
    """Call the block function `void f(intp args, intp index)` at address `function`."""

    def codegen(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        kind = ir.FunctionType(ir.VoidType(), [I64, I64])
        builder.call(pointer(builder, values[0], kind), [values[1], values[2]])
        return context.get_dummy_value()

    return types.void(types.intp, types.intp, types.intp), codegen


def outer(number: int, arity: int) -> Any:
    """Make the intrinsic (args, ...) -> intp that calls function `number` of the table at the block's word FUNCTIONS.

    The function takes `arity` arguments, the address `args` among them.
    """

    @intrinsic(arity=arity)
    def call(_typing: Any, *values: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            table = invariant_load(builder, builder.add(values[0], c64(8 * FUNCTIONS)), I64, 8)
            function = invariant_load(builder, builder.add(table, c64(8 * number)), I64, 8)
            kind = ir.FunctionType(I64, [I64] * len(values))
            return builder.call(pointer(builder, function, kind), values)

        return types.intp(*[types.intp] * len(values)), codegen

    return call


def _reader(kind: ir.Type, signed: bool, text: str) -> Any:
    def read(_typing: Any, address: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            x = builder.load(pointer(builder, values[0], kind), align=1)
            return x if kind == I64 else builder.sext(x, I64) if signed else builder.zext(x, I64)

        return types.intp(types.intp), codegen

    read.__doc__ = f"Load the {text} at `address`, as a 64-bit integer."
    return intrinsic(read)


def _writer(kind: ir.Type, text: str) -> Any:
    def write(_typing: Any, address: Any, value: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            x = values[1] if kind == I64 else builder.trunc(values[1], kind)
            builder.store(x, pointer(builder, values[0], kind), align=1)
            return context.get_dummy_value()

        return types.void(types.intp, types.intp), codegen

    write.__doc__ = f"Store the low bits of `value` as the {text} at `address`."
    return intrinsic(write)


load_u8, load_s8 = _reader(I8, False, "u8"), _reader(I8, True, "s8")
load_s32, load_s64 = _reader(I32, True, "s32"), _reader(I64, True, "s64")
store_u8, store_s32, store_s64 = _writer(I8, "byte"), _writer(I32, "s32"), _writer(I64, "s64")

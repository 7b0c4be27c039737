"""What threads share words of 8 bytes with: atomic memory access, waiting, and Linux's futexes."""
from __future__ import annotations

import platform
from typing import Any

from llvmlite import ir

from graphq.kernels.intrinsics import I64, c64, pointer
from graphq.kernels.jit import intrinsic, njit, types

MACHINE = platform.machine()
_FUTEX, _YIELD = {"aarch64": (98, 124), "riscv64": (98, 124), "ppc64le": (221, 158)}.get(MACHINE, (202, 24))
_WAIT, _WAKE = 128, 129
"""Of one process (FUTEX_PRIVATE_FLAG)."""


@intrinsic
def acquired(_typing: Any, address: Any) -> Any:
    """Load a word: what its storer did before is seen after."""

    def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
        return b.load_atomic(pointer(b, args[0], I64), "acquire", 8)

    return types.intp(types.intp), codegen


@intrinsic
def release(_typing: Any, address: Any, value: Any) -> Any:
    """Store a word: who acquires it sees what was done before."""

    def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
        b.store_atomic(args[1], pointer(b, args[0], I64), "release", 8)
        return context.get_dummy_value()

    return types.void(types.intp, types.intp), codegen


@intrinsic
def added(_typing: Any, address: Any, value: Any) -> Any:
    """Add to a word, in one order for all threads; gives what it was before."""

    def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
        return b.atomic_rmw("add", pointer(b, args[0], I64), args[1], "seq_cst")

    return types.intp(types.intp, types.intp), codegen


@intrinsic
def exchanged(_typing: Any, address: Any, old: Any, new: Any) -> Any:
    """Make a word `new` if it is `old`; whether it was."""

    def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
        done = b.cmpxchg(pointer(b, args[0], I64), args[1], args[2], "seq_cst", "seq_cst")
        return b.zext(b.extract_value(done, 1), I64)

    return types.intp(types.intp, types.intp, types.intp), codegen


@intrinsic
def pause(_typing: Any) -> Any:
    """Wait for some dozens of cycles, on x86."""

    def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
        if MACHINE == "x86_64":
            b.call(b.module.declare_intrinsic("llvm.x86.sse2.pause", (), ir.FunctionType(ir.VoidType(), [])), [])
        return context.get_dummy_value()

    return types.void(), codegen


@intrinsic
def _system(_typing: Any, number: Any, a: Any, b: Any, c: Any) -> Any:
    """Call Linux; a fourth argument is 0."""

    def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
        kind = ir.FunctionType(I64, [I64], var_arg=True)
        function = b.module.globals.get("syscall") or ir.Function(b.module, kind, "syscall")
        return b.call(function, [*args, c64(0)])

    return types.intp(*[types.intp] * 4), codegen


@njit
def sleep(address: int, value: int) -> bool:
    """Sleep until `wake`, or not at all if the word's lower half is not that of `value`; whether it was woken."""
    return _system(_FUTEX, address, _WAIT, value) == 0


@njit
def wake(address: int, count: int) -> int:
    """Wake at most so many threads that sleep at the word; how many there were."""
    return _system(_FUTEX, address, _WAKE, count)


@njit
def give_way() -> None:
    """Let another thread run on this core, if one waits for it."""
    _system(_YIELD, 0, 0, 0)

"""What threads share words of 8 bytes with: atomic memory access, and the C library's semaphores, cores and clocks."""
from __future__ import annotations

import platform
from typing import Any

from llvmlite import ir

from graphq.kernels.jit.deferred import intrinsic, types
from graphq.kernels.jit.intrinsics import I32, I64, pointer

MACHINE = platform.machine()


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
def fence(_typing: Any) -> Any:
    """Order what this thread stored before with what it loads after, for all threads."""

    def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
        b.fence("seq_cst")
        return context.get_dummy_value()

    return types.void(), codegen


def _library(name: str, arity: int) -> Any:
    """Make the intrinsic that calls a function of the C library: of `arity` words, with an int as the result."""

    @intrinsic(arity=arity)
    def call(_typing: Any, *values: Any) -> Any:
        def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
            kind = ir.FunctionType(I32, [I64] * arity)
            found = b.call(b.module.globals.get(name) or ir.Function(b.module, kind, name), args)
            return b.sext(found, I64)

        return types.intp(*[types.intp] * arity), codegen

    return call


semaphore_wait = _library("sem_wait", 1)
"""Wait until the count of the POSIX semaphore at an address is not 0, and take 1 off; 0, or -1 after a signal."""
semaphore_post = _library("sem_post", 1)
"""Add 1 to a semaphore."""
give_way = _library("sched_yield", 0)
"""Let another thread run on this core, if one waits for it."""
this_core = _library("sched_getcpu", 0)
"""The core that this thread runs on, or -1."""
read_clock = _library("clock_gettime", 2)
"""Store seconds and nanoseconds of a clock (CLOCK_MONOTONIC, ...) at an address."""
set_cores = _library("pthread_setaffinity_np", 3)
"""Let a thread run on the cores of a mask: its pthread_t, the mask's bytes and address (Linux)."""


@intrinsic
def this_thread(_typing: Any) -> Any:
    """The pthread_t of this thread."""

    def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
        name, kind = "pthread_self", ir.FunctionType(I64, [])
        return b.call(b.module.globals.get(name) or ir.Function(b.module, kind, name), [])

    return types.intp(), codegen

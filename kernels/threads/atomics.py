"""Atomic access to words of 8 bytes that threads share."""
from __future__ import annotations

from graphq.kernels.jit.deferred import emits
from graphq.kernels.jit.values import I64, Builder, Value
from graphq.kernels.target import isa


@emits
def acquired(b: Builder, address: Value) -> Value:
    """Load a word with acquire order: stores that another thread made before its `release` are then visible."""
    word: Value = b.load_atomic(address.pointer(I64), "acquire", 8)
    return word


@emits
def release(b: Builder, address: Value, value: Value) -> None:
    """Store a word with release order: a thread that acquires the word then sees all earlier stores."""
    b.store_atomic(value, address.pointer(I64), "release", 8)


@emits
def added(b: Builder, address: Value, value: Value) -> Value:
    """Add to a word atomically, in sequentially consistent order; returns the old value."""
    before: Value = b.atomic_rmw("add", address.pointer(I64), value, "seq_cst")
    return before


@emits
def exchanged(b: Builder, address: Value, old: Value, new: Value) -> Value:
    """Set a word to `new` if it equals `old`, atomically. Returns whether it did."""
    word_and_done = b.cmpxchg(address.pointer(I64), old, new, "seq_cst", "seq_cst")
    done: Value = b.extract_value(word_and_done, 1)
    return done.zext(I64)


@emits
def pause(b: Builder) -> None:
    """Wait some dozens of cycles, if the CPU has an instruction for it."""
    isa.pause(b)


@emits
def fence(b: Builder) -> None:
    """Emit a full memory fence: all threads see this thread's earlier stores before its later loads."""
    b.fence("seq_cst")

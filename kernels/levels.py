"""The ISA levels to compile for: levels of this machine whose kernels compute a small matmul correctly."""
from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import suppress
from typing import Literal

import numpy as np

from graphq.base.locks import Lock
from graphq.errors import KernelError
from graphq.kernels.jit.isa import LEVELS, Level, available, level_named, native
from graphq.kernels.lanes.expression import STORAGE, acc
from graphq.kernels.lanes.stores import Store
from graphq.kernels.matmul.pack import pack, pack_sorted
from graphq.kernels.matmul.plan import Product, plan_matmul
from graphq.kernels.matmul.tiles import BF16, DTYPES, KERNELS, SORTED_DTYPES
from graphq.plan.plan import Step, Target

SELF_TEST = 35, 37, 70
"""The sizes m, n and k of the self-test's matmul; it tests tails, since no size is a multiple of a tile's size."""
_lock = Lock()
_checked: dict[Level, bool] = {}


def choices(isa: str | None = None, cache: bool = True) -> Iterator[Level]:
    """The levels to compile for, best first: only `isa` or $GRAPHQ_ISA if given, otherwise all levels of the machine.

    Each level is yielded while the kernels of its self-test are compiled in the background. The caller must call
    `works` before it runs any code of the level, and take the next level if `works` returns False. With `cache=False`
    the self-test neither reads nor writes the kernel cache.

    Raises KernelError if no level is left, for an unknown name, and for a level that this machine lacks.
    """
    name = isa if isa is not None else os.environ.get("GRAPHQ_ISA") or None
    if name is not None:
        level_named(name)
    here = {level.name: level for level in available()}
    if name is not None and name not in here:
        raise KernelError(f"this machine has no ISA level {name!r}; it has {', '.join(here)}")
    for level in (here[name],) if name is not None else reversed(native()):
        if level not in _checked:
            with suppress(Exception):  # `works` reports the error
                plan_self_test(level, cache)
        yield level
    raise KernelError("not even the scalar level passes its self-test" if name is None else
                      f"ISA level {name!r} fails its self-test on this machine")


def resolve(isa: str | None = None, cache: bool = True) -> Level:
    """The first level of `choices` that passes its self-test."""
    return next(level for level in choices(isa, cache) if works(level, cache))


def works(level: Level, cache: bool = True) -> bool:
    """Test once per process whether the level's kernels compute a small matmul correctly; warn if they do not.

    The test finds faults that the CPU's feature bits do not show: an LLVM intrinsic with exchanged operands, or a
    virtual machine that does not save a part of the registers.
    """
    with _lock.hold:
        if level not in _checked:
            try:
                problem = self_test(level, cache)
            except Exception as error:  # any error of code generation makes the level unusable, not the process
                problem = f"{type(error).__name__}: {error}"
            _checked[level] = problem is None
            if problem:
                warnings.warn(f"ISA level {level.name} is not used: {problem}", RuntimeWarning, stacklevel=3)
        return _checked[level]


def plan_self_test(level: Level, cache: bool = True) -> list[Step]:
    """Plan small matmuls by the best kernels of the level: for u8, for s8, and for bf16 if the level has it."""
    order = [x.name for x in LEVELS]
    best = {x.dtypes: x for x in sorted(reversed(KERNELS.values()), key=lambda x: order.index(x.level))
            if level.includes(x.level)}
    sorts = level.lanes > 1 and not level.has("vnni")
    target, steps = Target(level, cache=cache), []
    for dtypes in (*DTYPES, *SORTED_DTYPES * sorts, *[BF16] * level.has("bf16")):
        out: Literal["f32", "s32"] = "f32" if dtypes == BF16 else "s32"
        product = Product(dtypes[0], *SELF_TEST, w_dtype=dtypes[1])
        steps.append(plan_matmul(Store(acc(out), out), product, target, best[dtypes]))
    return steps


def self_test(level: Level, cache: bool = True) -> str | None:
    """Try the level's kernels on small matmuls with tails. Returns the problem, or None."""
    m, n, k = SELF_TEST
    for step, (a, w, expected) in zip(plan_self_test(level, cache), self_test_products(level), strict=False):
        out = np.zeros((m, n), expected.dtype)
        packed = pack(w) if w.dtype == STORAGE["bf16"] else pack_sorted(w[None], k)
        step.run(step.arguments({"a": a.ctypes.data, "w": packed.ctypes.data}, [(out.ctypes.data, 0, 4 * n)]))
        if not (out == expected).all():
            return f"{step.kernel} computes a wrong product"
    return None


def self_test_products(level: Level) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """The operands and the expected result of each product of `plan_self_test`."""
    m, n, k = SELF_TEST
    numbers = np.arange(k * (m + n), dtype=np.uint32) ** 2 * np.uint32(2654435761)  # numpy.random takes 10 ms to import
    digits = (numbers >> 24).astype(np.uint8)
    a, w = digits[:m * k].reshape(m, k), digits[m * k:].view(np.int8).reshape(k, n)
    w[:k // 2] >>= 1  # small, so vpmaddubsw multiplies some groups
    for flip in (0, 0x80) * (2 if level.lanes > 1 and not level.has("vnni") else 1):
        yield a, w, (a ^ np.uint8(flip)).astype(np.int32) @ w.astype(np.int32)
    if level.has("bf16"):
        x, y = a % 16.0, w % 16.0
        # the first six products add up to 0 in pairs, but to 1 in order
        x[:, :6], y[:4], y[4:6], y[:, 0] = (1, 2**24, -2**24, 1, 2**-100, 0), 1, 0, 0
        y[4, 0] = 2**-40  # makes a sum subnormal; it counts as 0
        yield x.astype(STORAGE["bf16"]), y.astype(STORAGE["bf16"]), (x[:, 6:] @ y[6:]).astype(np.float32)

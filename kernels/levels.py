"""Choose the ISA level to compile for: the best level of this machine whose kernels pass a self-test."""
import os
import warnings
from collections.abc import Iterator
from contextlib import suppress
from typing import Literal

import numpy as np

from graphq.base.locks import Lock
from graphq.base.platform import TARGET
from graphq.errors import KernelError
from graphq.kernels.jit.codegen import ONLY_COMPILES
from graphq.kernels.lanes.epilogues import Epilogue
from graphq.kernels.lanes.expression import STORAGE, acc
from graphq.kernels.matmul.kernel_table import BF16, DTYPES, KERNELS, PAIRED_DTYPES, SORTED_DTYPES
from graphq.kernels.matmul.pack import PAIRED, pack, pack_sorted
from graphq.kernels.matmul.plan import Product, plan_matmul
from graphq.kernels.target.isa import LEVELS, available, level_named, native
from graphq.kernels.target.level import Level
from graphq.plan.plan import Step, Target

SELF_TEST = 35, 37, 70
"""The sizes m, n and k of the self-test's matmul. None is a multiple of a tile's size, so tails are tested as well."""
_lock = Lock()
_checked: dict[Level, bool] = {}


def choices(isa: str | None = None, cache: bool = True) -> Iterator[Level]:
    """Yield the levels to compile for, best first: all levels of this machine, or only `isa` or $GRAPHQ_ISA if set.

    Before a level is yielded, the kernels of its self-test start to compile in the background. The caller must call
    `works` before it runs any code of the level, and take the next level if `works` returns False. With `cache=False`
    the self-test does not use the kernel cache.

    Raises KernelError if the level's name is unknown, if this machine lacks the level, if no level is left, or in a
    process with a TARGET.
    """
    if TARGET:
        raise KernelError(ONLY_COMPILES)
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
    """The best level of `choices` that passes its self-test."""
    return next(level for level in choices(isa, cache) if works(level, cache))


def works(level: Level, cache: bool = True) -> bool:
    """Whether the level's kernels compute small matmuls correctly. Tests once per process and warns if they do not.

    The test finds faults that the CPU's feature bits do not show, such as an LLVM intrinsic with exchanged operands, or
    a virtual machine that does not save some of the registers.
    """
    with _lock.hold:
        if level not in _checked:
            try:
                problem = self_test(level, cache)
            except Exception as error:  # an error in code generation rules out this level, not the others
                problem = f"{type(error).__name__}: {error}"
            _checked[level] = problem is None
            if problem:
                warnings.warn(f"ISA level {level.name} is not used: {problem}", RuntimeWarning, stacklevel=3)
        return _checked[level]


def plan_self_test(level: Level, cache: bool = True) -> list[Step]:
    """Plan the self-test: one small matmul for each type of operands, with the level's best kernel for this type."""
    order = [x.name for x in LEVELS]
    best = {x.dtypes: x for x in sorted(reversed(KERNELS.values()), key=lambda x: order.index(x.level))
            if level.includes(x.isa)}
    target, steps = Target(level, cache=cache), []
    for dtypes in (*DTYPES, *SORTED_DTYPES * level.sorts, *PAIRED_DTYPES * (level.paired is not None),
                   *[BF16] * (level.bf16 is not None)):
        out: Literal["f32", "s32"] = "f32" if dtypes == BF16 else "s32"
        k = SELF_TEST[2] // 8 * 8 if dtypes in PAIRED_DTYPES else SELF_TEST[2]
        product = Product(dtypes[0], *SELF_TEST[:2], k, w_dtype=dtypes[1])
        steps.append(plan_matmul(Epilogue(acc(out), out), product, target, best[dtypes]))
    return steps


def self_test(level: Level, cache: bool = True) -> str | None:
    """Run the self-test's matmuls. Returns the problem, or None if all results are correct."""
    m, n, k = SELF_TEST
    for step, (a, w, expected) in zip(plan_self_test(level, cache), self_test_products(level), strict=False):
        out = np.zeros((m, n), expected.dtype)
        paired = KERNELS[step.kernel].dtypes[1] == PAIRED
        packed = pack(w, paired) if paired or w.dtype == STORAGE["bf16"] else pack_sorted(w[None], k)
        step.run(step.arguments({"a": a.ctypes.data, "w": packed.ctypes.data}, [(out.ctypes.data, 0, 4 * n)]))
        if not (out == expected).all():
            return f"{step.kernel} computes a wrong product"
    return None


def self_test_products(level: Level) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Yield operands a and w and the expected result for each matmul of `plan_self_test`."""
    m, n, k = SELF_TEST
    numbers = np.arange(k * (m + n), dtype=np.uint32) ** 2 * np.uint32(2654435761)  # numpy.random takes 10 ms to import
    digits = (numbers >> 24).astype(np.uint8)
    a, w = digits[:m * k].reshape(m, k), digits[m * k:].view(np.int8).reshape(k, n)
    w[:k // 2] >>= 1  # half of the weights are small, so some groups do not saturate
    for size in (k, *[k] * level.sorts, *[k // 8 * 8] * (level.paired is not None)):
        for flip in (0, 0x80):
            first = np.ascontiguousarray(a[:, :size])
            yield first, w[:size], (first ^ np.uint8(flip)).astype(np.int32) @ w[:size].astype(np.int32)
    if level.bf16 is not None:
        x, y = a % 16.0, w % 16.0
        # Kernels must add the second product of each pair first: the first six products then add up to 0, not to 1.
        x[:, :6], y[:4], y[4:6], y[:, 0] = (1, 2**24, -2**24, 1, 2**-100, 0), 1, 0, 0
        y[4, 0] = 2**-40  # times 2^-100 of x, the sum is subnormal; kernels must give 0
        yield x.astype(STORAGE["bf16"]), y.astype(STORAGE["bf16"]), (x[:, 6:] @ y[6:]).astype(np.float32)

"""x86's mnemonics: the instructions that `explain(kernels=True)` counts, and the loops that measure their peaks.

An instruction's name is its mnemonic and the class of its widest register, such as `vpdpbusd zmm`.
"""
from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from graphq.kernels.jit.values import F32, I16, I32, Builder, Type, Value, vector
from graphq.kernels.target import x86
from graphq.kernels.target.isa import LEVELS
from graphq.kernels.target.level import Level
from graphq.kernels.target.products import Matrix

LANES = {"xmm": 4, "ymm": 8, "zmm": 16, "tmm": 256}
"""The 32-bit elements of a register, by its class, from the narrowest to the widest; tiles have 16 x 16."""


class Multiplying(NamedTuple):
    """An instruction that multiplies: `macs` multiply-accumulates for each 32-bit element of its result.

    `step(b, acc, x)` emits the instruction for vectors of `element`, and an addition if the instruction only
    multiplies. Tile instructions of a `matrix` have no `step`; they read s8 or, if not `signed`, u8.
    """

    macs: int
    step: Callable[[Builder, Value, Value], Value] | None = None
    element: Type = I32
    matrix: Matrix | None = None
    signed: bool = False


def _vpmaddwd(b: Builder, acc: Value, x: Value) -> Value:
    words = vector(I16, 2 * x.type.count)  # multiply the accumulator, because LLVM would move x * x out of the loop
    return x86.vpmaddwd(b, acc, acc.as_type(words), x.as_type(words))


def _vpdpwssd(b: Builder, acc: Value, x: Value) -> Value:
    return x86.instruction(b, f"avx512.vpdpwssd.{32 * acc.type.count}", acc.type, [acc, x, x])


def _vdpbf16ps(b: Builder, acc: Value, x: Value) -> Value:
    x = x.as_type(vector(I32, x.type.count))
    return x86.vdpbf16ps(b, acc, x, x)


MULTIPLYING = {
    "tdpbusd": Multiplying(64, matrix=x86.AMX.matrix), "tdpbssd": Multiplying(64, matrix=x86.AMX.matrix, signed=True),
    "vpdpbusd": Multiplying(4, lambda b, acc, x: x86.vpdpbusd(b, acc, x, x)), "vpdpwssd": Multiplying(2, _vpdpwssd),
    "vpmaddubsw": Multiplying(4, lambda b, acc, x: x86.vpmaddubsw(b, acc, acc, x)),
    "vpmaddwd": Multiplying(2, _vpmaddwd),
    "vpmulld": Multiplying(1, lambda b, acc, x: acc * x + x), "vdpbf16ps": Multiplying(2, _vdpbf16ps, F32),
    "vfmadd231ps": Multiplying(1, lambda b, acc, x: x.math("fma", x, acc), F32),
    "vmulps": Multiplying(1, lambda b, acc, x: acc * x + x, F32)}
"""The instructions whose peaks can be measured."""
_OF_BYTES = {how.mnemonic for x in LEVELS for how in (x.dot4, x.pairs, x.saturating, x.matrix) if how and how.mnemonic}
COUNTED = frozenset((*MULTIPLYING, *_OF_BYTES, *(
    "tdpbsud tdpbuud tdpbf16ps tdpfp16ps tileloadd tilestored vpdpbusds vpdpwssds vpdpbssd vpdpbsud vpdpbuud "
    "vfmadd132ps vfmadd213ps vaddps vdivps vsqrtps vcvtdq2ps vcvtps2dq vcvtph2ps vcvtps2ph vpmovusdb vpmovsdb "
    "vpmovdb").split()))
"""The arithmetic instructions that are counted; levels name their own products of bytes."""

_INSTRUCTION = re.compile(r"\s*(?:\{\w+\}\s*)?(\w+)\s+([^#]*)")
"""A line of AT&T syntax: `{vex}` or another prefix in braces, the mnemonic, and the operands up to a comment (`#`)."""
_REGISTER = re.compile(r"%([xyzt]mm)\d")


def count(text: str) -> dict[str, int]:
    """Count the decisive instructions of an assembly text; returns for example {"vpdpbusd zmm": 24}, sorted by name."""
    counts: Counter[str] = Counter()
    for line in text.splitlines():
        part = _INSTRUCTION.match(line)
        if part is not None and part[1] in COUNTED and (registers := _REGISTER.findall(part[2])):
            counts[f"{part[1]} {max(registers, key=[*LANES].index)}"] += 1
    return dict(sorted(counts.items()))


def multiplying(name: str) -> tuple[Multiplying, int] | None:
    """How an instruction multiplies, and the 32-bit elements of its result; None if no loop measures it."""
    mnemonic, register = name.split()
    how = MULTIPLYING.get("vfmadd231ps" if mnemonic.startswith("vfmadd") else mnemonic)
    if how is None or register == "xmm" or (register == "tmm") != (how.matrix is not None):
        return None
    return how, LANES[register]


def decisive(level: Level) -> str | None:
    """The instruction that limits products of bytes at a level; None if it has none."""
    how = level.matrix or level.dot4 or level.saturating
    if how is None:
        return None
    return f"{how.mnemonic} {next(x for x, n in LANES.items() if n == (256 if how is level.matrix else level.lanes))}"

"""Mnemonics: the instructions that `explain(kernels=True)` counts, and the loops that measure their peaks.

An instruction's name is its mnemonic and the class of its widest register, such as `vpdpbusd zmm`.
"""
from __future__ import annotations

import re
from collections import Counter

from graphq.kernels.target import x86
from graphq.kernels.target.isa import LEVELS
from graphq.kernels.target.level import Level
from graphq.kernels.target.products import Multiplying

MULTIPLYING, LANES = x86.MULTIPLYING, x86.REGISTERS
_OF_BYTES = {how.mnemonic for x in LEVELS for how in (x.dot4, x.pairs, x.saturating, x.matrix) if how and how.mnemonic}
COUNTED = frozenset((*MULTIPLYING, *_OF_BYTES, *x86.COUNTED))
"""The arithmetic instructions that are counted; levels name their own products of bytes."""

_INSTRUCTION = re.compile(r"\s*(?:\{\w+\}\s*)?(\w+)\s+([^#]*)")
"""A line of AT&T syntax: `{vex}` or another prefix in braces, the mnemonic, and the operands up to a comment (`#`)."""
_REGISTER = re.compile(rf"%({'|'.join(LANES)})\d")


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

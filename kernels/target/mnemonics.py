"""Mnemonics: the instructions that `explain(kernels=True)` counts, and the loops that measure their peaks.

An instruction's name is its mnemonic and the class of its widest register, such as `vpdpbusd zmm` or `sdot 4s`. The
functions take the module of an architecture (`x86`, `arm`); the default is this machine's.
"""
import re
from collections import Counter
from functools import cache
from types import ModuleType

from graphq.kernels.target.isa import HERE
from graphq.kernels.target.level import Level
from graphq.kernels.target.products import Multiplying

_INSTRUCTION = re.compile(r"\s*(?:\{\w+\}\s*)?(\w+)\s+([^#/]*)")
"""A line of assembly: `{vex}` or another prefix in braces, the mnemonic, and the operands up to an immediate operand of
Arm (`#`) or a comment (`#` on x86, `//` on Arm)."""


@cache
def counted(machine: ModuleType | None = HERE) -> frozenset[str]:
    """The arithmetic instructions that are counted; levels name their own products of bytes."""
    if machine is None:
        return frozenset()
    of_bytes = {how.mnemonic for x in machine.LEVELS for how in (x.dot4, x.pairs, x.saturating, x.matrix) if how}
    return frozenset((*machine.MULTIPLYING, *of_bytes, *machine.COUNTED))


def count(text: str, machine: ModuleType | None = HERE) -> dict[str, int]:
    """Count the decisive instructions of an assembly text; returns for example {"vpdpbusd zmm": 24}, sorted by name."""
    counts: Counter[str] = Counter()
    if machine is None:
        return {}
    classes = [*machine.REGISTERS]
    register = re.compile(machine.REGISTER.format("|".join(classes)))
    for line in text.splitlines():
        part = _INSTRUCTION.match(line)
        if part is not None and part[1] in counted(machine) and (registers := register.findall(part[2])):
            counts[f"{part[1]} {max(registers, key=classes.index)}"] += 1
    return dict(sorted(counts.items()))


def multiplying(name: str, machine: ModuleType | None = HERE) -> tuple[Multiplying, int] | None:
    """How an instruction multiplies, and the 32-bit elements of its result; None if no loop measures it.

    Loops measure vectors as wide as the vectors of a level, and tiles.
    """
    mnemonic, register = name.split()
    how = None if machine is None else machine.MULTIPLYING.get(mnemonic)
    if machine is None or how is None:
        return None
    elements = machine.REGISTERS.get(register, 0)
    widths = {level.lanes for level in machine.LEVELS}
    measured = elements in widths if how.matrix is None else elements > max(widths)
    return (how, elements) if measured else None


def decisive(level: Level, machine: ModuleType | None = HERE) -> str | None:
    """The instruction that limits products of bytes at a level of `machine`; None without such an instruction."""
    how = level.matrix or level.dot4 or level.saturating or level.pairs
    if machine is None or not how.mnemonic:
        return None
    elements = max(machine.REGISTERS.values()) if how is level.matrix else level.lanes
    return f"{how.mnemonic} {next(x for x, n in machine.REGISTERS.items() if n == elements)}"

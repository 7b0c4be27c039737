"""Counts of the arithmetic instructions that decide a kernel module's speed, from the assembly that LLVM prints.

All code of the modules that a step runs is counted, whether or not a call reaches it. Most modules have the code of a
single kernel. The module that computes outputs near rounding ties a second time has code for all layouts of
activations, and a step uses one of them.
"""
from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress

from graphq.errors import KernelError
from graphq.kernels.jit.compiling import Job
from graphq.kernels.jit.modules import Module

DECISIVE = frozenset((
    "tdpbusd", "tdpbssd", "tdpbsud", "tdpbuud", "tdpbf16ps", "tdpfp16ps", "tileloadd", "tilestored",
    "vpdpbusd", "vpdpbusds", "vpdpwssd", "vpdpwssds", "vpdpbssd", "vpdpbsud", "vpdpbuud", "vdpbf16ps",
    "vpmaddwd", "vpmaddubsw", "vpmulld", "vfmadd132ps", "vfmadd213ps", "vfmadd231ps",
    "vmulps", "vaddps", "vdivps", "vsqrtps", "vcvtdq2ps", "vcvtps2dq", "vcvtph2ps", "vcvtps2ph",
    "vpmovusdb", "vpmovsdb", "vpmovdb"))
"""The x86 arithmetic instructions that are counted. Code for other architectures contains none of them."""
WIDTHS = ("xmm", "ymm", "zmm", "tmm")
"""The register classes of x86, from the narrowest to the widest."""

_INSTRUCTION = re.compile(r"\s*(?:\{\w+\}\s*)?(\w+)\s+([^#]*)")
"""A line of AT&T syntax: `{vex}` or another prefix in braces, the mnemonic, and the operands up to a comment (`#`)."""
_REGISTER = re.compile(r"%([xyzt]mm)\d")

_counts: dict[str, dict[str, int]] = {}
"""The instruction counts of modules, by the text of their sources (`Source.text`)."""


def count(text: str) -> dict[str, int]:
    """Count the decisive instructions of an assembly text; returns for example {"vpdpbusd zmm": 24}, sorted by name.

    A name is the mnemonic and the widest register class among the operands.
    """
    counts: Counter[str] = Counter()
    for line in text.splitlines():
        part = _INSTRUCTION.match(line)
        if part is not None and part[1] in DECISIVE and (registers := _REGISTER.findall(part[2])):
            counts[f"{part[1]} {max(registers, key=WIDTHS.index)}"] += 1
    return dict(sorted(counts.items()))


def prepare(modules: Iterable[Module]) -> None:
    """Make and count the assembly of modules in parallel; if this fails for a module, `instructions` tries it again."""
    sources = {module.source.text: module.source for module in modules if module.source.text not in _counts}
    jobs = [(text, Job("assembly", source)) for text, source in sources.items()]
    for text, job in jobs:
        with suppress(KernelError):
            _counts[text] = count(job.result())


def instructions(module: Module) -> dict[str, int]:
    """Count the decisive instructions of a module, once per process. Raises KernelError when it cannot be compiled."""
    text = module.source.text
    if text not in _counts:
        _counts[text] = count(Job("assembly", module.source).result())
    return _counts[text]

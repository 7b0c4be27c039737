"""The CPU of this machine: a description that tells it from other CPUs, and the features that programs may use."""
from __future__ import annotations

import ctypes
import platform
from functools import cache
from itertools import takewhile

from graphq.base.locks import late_imports

_KIND = frozenset(("vendor_id", "cpu family", "model", "stepping", "CPU implementer", "CPU part"))
_HWCAP, _HWCAP2 = 16, 26
_ARM = {"neon": (_HWCAP, 1), "dotprod": (_HWCAP, 20), "i8mm": (_HWCAP2, 13), "bf16": (_HWCAP2, 14)}
"""The features of Arm CPUs that levels ask for: the word of Linux's auxiliary vector, and the bit."""


@cache
def _first_processor() -> dict[str, str]:
    """What Linux says about the first processor; empty on other systems."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            lines = (line.split(":", 1) for line in takewhile(str.strip, file) if ":" in line)
            return {key.strip(): value.strip() for key, value in lines}
    except OSError:
        return {}


@cache
def describe() -> str:
    """Describe the CPU by its model and features. Two CPUs with equal descriptions can run the same compiled code."""
    kind = [f"{key}:{value}" for key, value in _first_processor().items() if key in _KIND]
    return " ".join((platform.machine(), *kind, *sorted(features())))


@cache
def features() -> frozenset[str]:
    """The CPU features that programs may use, by LLVM's names without hyphens and underscores.

    On x86, Linux lists them in a file, on Arm in the auxiliary vector: LLVM's list has no dotprod, i8mm and bf16.
    Elsewhere LLVM lists them, and loading LLVM takes 50 MB of memory and 50 ms.
    """
    if platform.machine() == "aarch64":
        ask = ctypes.CDLL(None).getauxval
        ask.argtypes, ask.restype = (ctypes.c_ulong,), ctypes.c_ulong
        return frozenset(name for name, (word, bit) in _ARM.items() if ask(word) >> bit & 1)
    if (flags := _first_processor().get("flags")) is not None:
        return frozenset(flag.replace("_", "") for flag in flags.split())
    with late_imports():
        import llvmlite.binding as llvm

        return frozenset(name.replace("-", "") for name, has in llvm.get_host_cpu_features().items() if has)


def has(*names: str) -> bool:
    """Whether programs may use all these features (LLVM's names) on this machine."""
    return all(name.replace("-", "") in features() for name in names)


def target_features() -> str:
    """The features to give LLVM: those that it finds itself, and on Arm those that it does not find."""
    import llvmlite.binding as llvm

    more = features() if platform.machine() == "aarch64" else ()
    return ",".join((llvm.get_host_cpu_features().flatten(), *(f"+{x}" for x in sorted(more))))

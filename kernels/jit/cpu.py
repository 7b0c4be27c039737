"""The CPU that kernels are compiled for: a description of it, and the features that programs may use.

This is the machine's CPU, or in a process with a TARGET every CPU that has the target's features.
"""
from functools import cache

from graphq.base.locks import late_imports
from graphq.base.platform import ARM_FEATURES, MACHINE, SYSTEM, TARGET, processor, system_features

_KIND = frozenset(("vendor_id", "cpu family", "model", "stepping", "CPU implementer", "CPU part"))


@cache
def describe() -> str:
    """Describe the system and the CPU's model and features. Equal descriptions can run the same compiled code."""
    if TARGET:
        return " ".join((SYSTEM, MACHINE, "any", *TARGET[1:]))
    kind = [f"{key}:{value}" for key, value in processor().items() if key in _KIND]
    return " ".join((SYSTEM, MACHINE, *kind, *sorted(features())))


def is_target(described: str) -> bool:
    """Whether `describe` described a target, not the CPU of a machine."""
    return described.split()[2:3] == ["any"]


def fits(described: str) -> bool:
    """Whether code for a CPU or target with this description (`describe`) runs on this CPU."""
    return described == describe() or is_target(described) and described.split()[:2] == [SYSTEM, MACHINE] \
        and has(*described.split()[3:])


@cache
def features() -> frozenset[str]:
    """The CPU features that programs may use, by LLVM's names without hyphens and underscores.

    If the system does not list them, LLVM does, and loading LLVM takes 50 MB of memory and 50 ms.
    """
    if (found := system_features()) is not None:
        return found
    with late_imports():
        import llvmlite.binding as llvm

        return frozenset(name.replace("-", "") for name, has in llvm.get_host_cpu_features().items() if has)


def has(*names: str) -> bool:
    """Whether programs may use all these features (LLVM's names) on this machine."""
    return all(name.replace("-", "") in features() for name in names)


def target_features() -> str:
    """LLVM's list of features, which the system corrects on Arm. SVE is left out there: vectors have four lanes."""
    import llvmlite.binding as llvm

    found: str = ",".join(f"+{x}" for x in TARGET[1:]) if TARGET else llvm.get_host_cpu_features().flatten()
    if MACHINE != "aarch64":
        return found
    corrected = [f"{'+' if has(x) else '-'}{x}" for x in ARM_FEATURES]
    if has("i8mm"):  # LLVM's model of Neoverse V2 counts a load of two vectors as three operations
        corrected.append("+ldp-aligned-only")
    return ",".join((found, *corrected, "-sve"))

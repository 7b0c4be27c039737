"""The CPU of this machine: a description that tells it from other CPUs, and the features that programs may use."""
from functools import cache

from graphq.base.locks import late_imports
from graphq.base.platform import ARM_FEATURES, MACHINE, SYSTEM, processor, system_features

_KIND = frozenset(("vendor_id", "cpu family", "model", "stepping", "CPU implementer", "CPU part"))


@cache
def describe() -> str:
    """Describe the system and the CPU's model and features. Equal descriptions can run the same compiled code."""
    kind = [f"{key}:{value}" for key, value in processor().items() if key in _KIND]
    return " ".join((SYSTEM, MACHINE, *kind, *sorted(features())))


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

    found: str = llvm.get_host_cpu_features().flatten()
    if MACHINE != "aarch64":
        return found
    corrected = [f"{'+' if has(x) else '-'}{x}" for x in ARM_FEATURES]
    if has("i8mm"):  # LLVM's model of Neoverse V2 counts a load of two vectors as three operations
        corrected.append("+ldp-aligned-only")
    return ",".join((found, *corrected, "-sve"))

"""The ISA levels, and which of them this machine has.

A machine has a level if its CPU reports all features of the level; CPU names are not reliable. A level includes every
level whose features are a subset of its own, and runs its kernels. Tests can `emulate` a level that the machine lacks:
plain LLVM IR then replaces its special instructions.
"""
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

from graphq.base.locks import Lock
from graphq.base.platform import MACHINE, TARGET
from graphq.errors import KernelError
from graphq.kernels.jit.cpu import has
from graphq.kernels.jit.values import Builder
from graphq.kernels.target import arm, x86
from graphq.kernels.target.level import Level
from graphq.kernels.target.products import ByteProduct, Fma, TileSizes, pairs

_SIZES, _RATE = ((4, 16),), 1.25  # fitted on Zen 4: four products of bytes take a cycle
_FLOATS = TileSizes(_SIZES, 1 / 16)
SCALAR = Level("scalar", 4, pairs=ByteProduct("", pairs, pairs, TileSizes((), _RATE, columns=_SIZES),
                                              TileSizes(_SIZES, _RATE), widens=True),
               fma=Fma(4, _FLOATS, _FLOATS, _FLOATS, _FLOATS))
"""The level without special instructions, for any CPU: LLVM makes what it can of vectors of four lanes."""
LEVELS = (SCALAR, *x86.LEVELS, *arm.LEVELS)
"""The levels of each architecture from lowest to highest. The best level of a machine is the last that it has."""
ARCHITECTURES = {"x86_64": x86, "aarch64": arm}
HERE = ARCHITECTURES.get(MACHINE)
"""The instructions of this machine's architecture; None if graphq has no levels for it."""
_BY_NAME = {level.name: level for level in LEVELS}
_lock = Lock()
_emulated: list[str] = []


def pause(b: Builder) -> None:
    """Emit a wait of some dozens of cycles; on CPUs without such an instruction, emit nothing."""
    if HERE is not None:
        HERE.pause(b)


def level_named(name: str, emulated: bool = False) -> Level:
    """Look up a level by name. Raises KernelError with the names of all levels if the name is unknown."""
    level = _BY_NAME.get(name) if isinstance(name, str) else None
    if level is None:
        raise KernelError(f"unknown ISA level {name!r}; the levels are {', '.join(_BY_NAME)}")
    return level.emulation if emulated else level


@cache
def native() -> tuple[Level, ...]:
    """The levels whose instructions this machine has, lowest first."""
    by_features = (level for level in LEVELS if has(*level.features))
    return tuple(level for level in by_features if level.matrix is None or TARGET or level.matrix.granted())


def available() -> tuple[Level, ...]:
    """The levels that can be used now, lowest first: native levels and emulated levels."""
    here = native()
    return tuple(level.emulation if level.name in _emulated else level
                 for level in LEVELS if level in here or level.name in _emulated)


def here(name: str) -> Level:
    """The level as kernels here use it: emulated by `emulate`, or because the machine lacks its instructions."""
    return level_named(name, name in _emulated or level_named(name) not in native())


@contextmanager
def emulate(name: str) -> Iterator[Level]:
    """Make level `name` available for tests. Its special instructions are emulated on every machine."""
    level = level_named(name, emulated=True)
    with _lock.hold:
        _emulated.append(name)
    try:
        yield level
    finally:
        with _lock.hold:
            _emulated.remove(name)

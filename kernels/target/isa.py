"""ISA levels: sets of instructions that kernels may use, and which levels this machine has.

A machine has a level if its CPU reports all features of the level; CPU names are not reliable. A level includes every
level whose features are a subset of its own: all levels before it in LEVELS, except that AVX-512 levels do not include
avx_vnni. Tests can `emulate` a level that the machine lacks: plain IR then replaces the level's special instructions.
"""
from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Literal, NamedTuple, TypeAlias

from graphq.base.locks import Lock
from graphq.errors import KernelError
from graphq.kernels.jit.cpu import has


class Level(NamedTuple):
    """An ISA level: the number of f32 or s32 `lanes` of its vectors, and its CPU `features` by LLVM's names."""

    name: str
    lanes: int
    features: tuple[str, ...] = ()
    emulated: bool = False

    def includes(self, name: str) -> bool:
        """Whether this level can run kernels of level `name`, because it has all features of that level."""
        return set(level_named(name).features) <= set(self.features)

    def has(self, extension: str) -> bool:
        """Whether the level has a feature, at any vector width: "vnni" is avxvnni or avx512vnni, "bf16" avx512bf16."""
        return any(extension in (x, x.removeprefix("avx512"), x.removeprefix("avx")) for x in self.features)

    @property
    def base(self) -> Level:
        """The lowest level with vectors of this width. All code except integer products is compiled for it."""
        return lowest(self.lanes)

    @property
    def of_products(self) -> Level:
        """The level that code of integer products is compiled for: the lowest with this width and, if available, VNNI.

        Code without vpdpbusd gains from VNNI as well: LLVM uses VNNI for sums of two 16-bit products.
        """
        return lowest(self.lanes, *["vnni"] * self.has("vnni"))

    @property
    def withheld(self) -> tuple[str, ...]:
        """The features of this machine that the level lacks and other levels have. Its code must not use them."""
        return _withheld(self.features)


_AVX2 = ("avx2", "fma", "f16c")
_AVX512 = (*_AVX2, "avx512f", "avx512bw", "avx512dq", "avx512vl")
_AVX512_BF16 = (*_AVX512, "avx512vnni", "avx512bf16")
LevelName: TypeAlias = Literal["scalar", "avx2", "avx_vnni", "avx512", "avx512_vnni", "avx512_bf16", "amx"]
"""The names of LEVELS, for type checkers."""

LEVELS = (
    Level("scalar", 1),
    Level("avx2", 8, _AVX2),
    Level("avx_vnni", 8, (*_AVX2, "avxvnni")),
    Level("avx512", 16, _AVX512),
    Level("avx512_vnni", 16, (*_AVX512, "avx512vnni")),
    Level("avx512_bf16", 16, _AVX512_BF16),
    Level("amx", 16, (*_AVX512_BF16, "amx-tile", "amx-int8")),
)
"""The levels from lowest to highest. The best level of a machine is the last level that it has."""
_BY_NAME = {level.name: level for level in LEVELS}
_lock = Lock()
_emulated: list[str] = []


@cache
def _withheld(without: tuple[str, ...]) -> tuple[str, ...]:
    others = {feature for x in LEVELS for feature in x.features if feature not in without}
    return tuple(sorted(feature for feature in others if has(feature)))


def lowest(lanes: int, *extensions: str) -> Level:
    """The lowest level with vectors of `lanes` lanes and these extensions."""
    return next(level for level in LEVELS if level.lanes == lanes and all(map(level.has, extensions)))


def level_named(name: str) -> Level:
    """Look up a level by name. Raises KernelError with the names of all levels if the name is unknown."""
    level = _BY_NAME.get(name) if isinstance(name, str) else None
    if level is None:
        raise KernelError(f"unknown ISA level {name!r}; the levels are {', '.join(_BY_NAME)}")
    return level


@cache
def native() -> tuple[Level, ...]:
    """The levels whose instructions this machine has, lowest first."""
    by_features = (level for level in LEVELS if has(*level.features))
    return tuple(level for level in by_features if not level.has("amx-tile") or _request_amx())


def _request_amx() -> bool:
    """Ask Linux for tile registers in all threads: arch_prctl(ARCH_REQ_XCOMP_PERM, XTILEDATA)."""
    try:
        return ctypes.CDLL(None).arch_prctl(0x1023, 18) == 0
    except (OSError, AttributeError):
        return False


def available() -> tuple[Level, ...]:
    """The levels that can be used now, lowest first: native levels and emulated levels."""
    here = native()
    return tuple(level._replace(emulated=True) if level.name in _emulated else level
                 for level in LEVELS if level in here or level.name in _emulated)


def is_emulated(name: str) -> bool:
    """Whether kernels of level `name` emulate instructions, because of `emulate` or because the machine lacks them."""
    return name in _emulated or level_named(name) not in native()


@contextmanager
def emulate(name: str) -> Iterator[Level]:
    """Make level `name` available for tests. Its special instructions are emulated on every machine."""
    level = level_named(name)._replace(emulated=True)
    with _lock.hold:
        _emulated.append(name)
    try:
        yield level
    finally:
        with _lock.hold:
            _emulated.remove(name)

"""The table of matmul kernels, from which they are selected, tested and benchmarked.

The name of a Kernel follows from its fields, and two kernels of one name are refused. Selection filters by dtypes,
level and layout of activations, then takes the kernel with the least estimated cost.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from inspect import signature
from typing import Literal, NamedTuple, TypeAlias

from graphq.base.sizes import assumed
from graphq.errors import KernelError
from graphq.kernels.jit.codegen import Functions
from graphq.kernels.jit.isa import Level, level_named

ActivationLayout: TypeAlias = Literal["rows", "columns", "windows"]
Builder: TypeAlias = Callable[..., Functions]
Dtypes: TypeAlias = tuple[str, ...]
"""The dtypes of activations and packed weights."""
ACTIVATION_LAYOUTS: tuple[ActivationLayout, ...] = ("rows", "columns", "windows")


class Kernel(NamedTuple):
    """A kernel: it multiplies `dtypes` in tiles of `tile` (rows, columns), on machines of ISA level `level` and up.

    A tile has at most `tile_frame.MOST_ROWS` rows, and columns in whole panels of 16; neither is checked.
    `build(dtypes, rows, columns, emulated, layout)` makes the module of its tiles, whose `columns` are a multiple of
    16, or of 8 if the kernel `takes_halves`. The module has the block functions `tile` and, if the machine needs
    preparation, `setup`. Kernels whose tiles write outputs take two more arguments: a Store, and whether its bytes are
    `packed` (`lanes.outputs.packs`). `cost(kernel, m, n, k)` estimates cycles of one core. `layouts` are the layouts of
    activations that it can read (see `tile_frame`).
    """

    dtypes: Dtypes
    tile: tuple[int, int]
    level: str
    build: Builder
    cost: Callable[[Kernel, int, int, int], float]
    layouts: tuple[ActivationLayout, ...] = ACTIVATION_LAYOUTS

    @property
    def name(self) -> str:
        """The derived name, such as `matmul_u8s8_6x64_avx512_vnni`."""
        return f"matmul_{''.join(self.dtypes)}_{self.tile[0]}x{self.tile[1]}_{self.level}"

    @property
    def isa(self) -> Level:
        """The ISA level that the kernel needs."""
        return level_named(self.level)

    @property
    def in_tile_registers(self) -> bool:
        """Whether its sums are in AMX's tile registers; it then needs a `setup`, and copies of some activations."""
        return self.isa.has("amx-tile")

    @property
    def takes_halves(self) -> bool:
        """Whether its tiles may leave out the second half of their last panel: it is a vector of its own."""
        return self.takes_store and self.isa.lanes == 8

    @property
    def takes_store(self) -> bool:
        """Whether its tiles can write the outputs of a Store."""
        return _takes_store(self.build)


@cache
def _takes_store(build: Builder) -> bool:
    return "store" in signature(build).parameters


KERNELS: dict[str, Kernel] = {}


def register_kernel(dtypes: Sequence[Dtypes], tiles: Sequence[tuple[int, int]], level: str,
                    cost: Callable[[Kernel, int, int, int], float],
                    layouts: tuple[ActivationLayout, ...] = ACTIVATION_LAYOUTS) -> Callable[[Builder], Builder]:
    """Make a decorator that registers a builder as a kernel for each of `dtypes` and `tiles`.

    Raises KernelError if a kernel of the same name exists.
    """

    def register(build: Builder) -> Builder:
        for kernel in (Kernel(d, tile, level, build, cost, layouts) for d in dtypes for tile in tiles):
            if kernel.name in KERNELS:
                raise KernelError(f"a second kernel named {kernel.name}")
            KERNELS[kernel.name] = kernel
        _fitting.cache_clear()
        return build

    return register


def select(dtypes: Dtypes, m: int, n: int, k: int, level: Level, *,
           layout: ActivationLayout = "rows") -> Kernel:
    """Choose the cheapest kernel for m x n outputs over k. Raises KernelError if no kernel fits."""
    sizes = assumed(m), assumed(n), assumed(k)
    return min(_fitting(dtypes, level, layout), key=lambda kernel: kernel.cost(kernel, *sizes))


@cache
def _fitting(dtypes: Dtypes, level: Level, layout: ActivationLayout) -> list[Kernel]:
    fitting = [x for x in KERNELS.values() if x.dtypes == dtypes and level.includes(x.level) and layout in x.layouts]
    if not fitting:
        raise KernelError(f"no kernel for matmul on {' '.join(dtypes)} at ISA level {level.name}")
    return fitting

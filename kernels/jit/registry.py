"""The table of matmul kernels, from which they are selected, tested and benchmarked; and the plan step of any kernel.

A Kernel's name is derived from what it is, and a second one of a name is refused. Selection filters by operation,
dtypes, level and layout of activations, then takes the least estimated cost.
"""
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np

from graphq.base.sizes import assumed, number
from graphq.errors import KernelError
from graphq.kernels.jit import modules
from graphq.kernels.jit.codegen import Functions
from graphq.kernels.jit.intrinsics import HEADER_WORDS
from graphq.kernels.jit.isa import Level
from graphq.kernels.jit.modules import Function, FunctionTable
from graphq.kernels.jit.records import Record

ActivationLayout: TypeAlias = Literal["rows", "columns", "windows"]
Word: TypeAlias = int | Function | FunctionTable
"""A word of an argument block: a function stands for its address, which is known once it is compiled."""
Builder: TypeAlias = Callable[..., Functions]
ACTIVATION_LAYOUTS: tuple[ActivationLayout, ...] = ("rows", "columns", "windows")


class Target(NamedTuple):
    """What steps are planned for: the ISA level, the threads that share blocks, and whether code is kept on disk."""

    level: Level
    threads: int = 1
    cache: bool = True


class Kernel(NamedTuple):
    """A way to compute `op` on `dtypes` in tiles of `tile` (rows, columns), on machines of ISA level `level` and up.

    `build(dtype, rows, panels, emulated, layout)` is the factory of its tiles of `panels` (16 columns each) at a time:
    the module has the block functions `tile` and, when the machine needs preparing, `setup`. `dtype` is the first of
    `dtypes`. Kernels whose tiles write outputs take a Store, too. `cost(kernel, m, n, k)` estimates cycles of one core.
    `layouts` are the ways to find activations (see `tile_frame`) that it has.
    """

    op: str
    dtypes: tuple[str, ...]
    tile: tuple[int, int]
    level: str
    build: Builder
    cost: Callable[[Kernel, int, int, int], float]
    layouts: tuple[ActivationLayout, ...] = ACTIVATION_LAYOUTS

    @property
    def name(self) -> str:
        """The derived name, as `matmul_u8s8_6x64_avx512_vnni`."""
        return f"{self.op}_{''.join(self.dtypes)}_{self.tile[0]}x{self.tile[1]}_{self.level}"


@dataclass(frozen=True)
class Step:
    """What a plan needs to run a kernel: the block function, the header words, and the number of blocks.

    `words` are fields of `record`, and `more` follow the record. Addresses of data are 0: the caller fills them in.
    `keep` are the modules of all its functions. `macs` are the multiply-accumulates that the result asks for. `threads`
    are those that the work is worth, where more are not. `weights` is the field with the address of weights, `ahead`
    the first of two fields for the address and size of what to prefetch, the weights of the next step. `room` are the
    first of two fields for the address of rooms that blocks write into and for how many there are, and the bytes of
    one: each piece of the blocks (`team.pieces`) has its own. `aligned` is the field of an operand that is better read
    from a multiple of 64 bytes. `exact` is the share of products that vpmaddubsw takes, where weights are
    sorted by that.
    """

    name: str
    function: Function
    record: Record
    words: Mapping[str, Word]
    blocks: int
    keep: object = field(default=None, repr=False, compare=False)
    macs: int = 0
    threads: int | None = None
    more: Sequence[int] = ()
    weights: str | None = None
    ahead: str | None = None
    room: tuple[str, int] | None = None
    aligned: str | None = None
    exact: float | None = None

    def filled(self, words: Mapping[str, Any]) -> list[Any]:
        """The fields with `words` filled in, and what follows, as long as slots need it."""
        header = [*self.record.words({**self.words, **words}), *self.more]
        return header + [0] * (HEADER_WORDS - len(header))

    def arguments(self, words: Mapping[str, int], slots: Sequence[tuple[int, int, int]] = ()) -> np.ndarray:
        """Make the argument block: `words` are filled in, `slots` are (pointer, offset table, row stride)."""
        header = map(int, self.filled(words))
        block = [*header, *(x for slot in slots for x in slot)]
        if self.room is None:
            return np.array(block, np.int64)
        at, nbytes = self.room
        out = np.array([*block, *[0] * -(-nbytes // 8)], np.int64)
        out[self.record.number(at)] = out.ctypes.data + 8 * len(block)
        return out

    def run(self, args: np.ndarray) -> None:
        """Run all blocks one after another, by way of ctypes: for tests and self-tests."""
        for index in range(self.blocks):
            self.function(args.ctypes.data, index)


BLOCK_CYCLES = 10_000
"""A parallel step costs 2.5 us, and far more on a busy machine: a thread's share of less work is not worth it."""


def threads_for(threads: int, cycles: float) -> int:
    """The threads, at most `threads`, that work of so many cycles of one core is worth."""
    return number(_threads_for, threads, cycles) if threads > 1 else 1


def _threads_for(threads: int, cycles: float) -> int:
    return max(1, min(threads, int(cycles // BLOCK_CYCLES)))


def rows_of_block(rows: int, batch: int, threads: int, unit: int = 1) -> int:
    """How many of the `rows` of each of `batch` elements a block has, a multiple of `unit`: four blocks a thread."""
    return number(_rows_of_block, rows, batch, threads, unit)


def _rows_of_block(rows: int, batch: int, threads: int, unit: int) -> int:
    parts = max(1, min(-(-rows // unit), -(-4 * threads // max(1, batch)))) if threads > 1 else 1
    return max(1, -(-rows // (parts * unit)) * unit)


class RowLoop(NamedTuple):
    """A loop over the `rows` of each of `batch` elements, whose block function `factory(*of)` makes.

    `record` is its argument block, in which the field `each` is the rows of a block: a multiple of `unit`. `cycles`
    estimates the work of a row.
    """

    factory: Callable[..., Functions]
    record: Record
    rows: int
    cycles: float
    batch: int = 1
    unit: int = 1
    of: tuple[int, ...] = ()


def plan_rows(loop: RowLoop, words: Mapping[str, Word], target: Target, more: Sequence[int] = ()) -> Step:
    """Plan a loop over rows, four blocks a thread; `words` are fields of its record, `more` words after it."""
    threads = threads_for(target.threads, loop.cycles * loop.rows * loop.batch)
    each = rows_of_block(loop.rows, loop.batch, threads, loop.unit)
    name = loop.factory.__name__
    made = modules.load(name, loop.factory, *loop.of, cache=target.cache)
    return Step("_".join(map(str, (name, *loop.of))), made.block, loop.record, {**words, "each": each},
                loop.batch * -(-loop.rows // each), made, threads=threads, more=more)


KERNELS: dict[str, Kernel] = {}


def register_kernel(op: str, dtypes: Sequence[tuple[str, ...]], tiles: Sequence[tuple[int, int]], level: str,
                    cost: Callable[[Kernel, int, int, int], float],
                    layouts: tuple[ActivationLayout, ...] = ACTIVATION_LAYOUTS) -> Callable[[Builder], Builder]:
    """Register the decorated builder as a kernel for each of `dtypes` and `tiles`.

    Raises KernelError for a name that exists.
    """

    def register(build: Builder) -> Builder:
        for kernel in (Kernel(op, d, tile, level, build, cost, layouts) for d in dtypes for tile in tiles):
            if kernel.name in KERNELS:
                raise KernelError(f"a second kernel named {kernel.name}")
            KERNELS[kernel.name] = kernel
        return build

    return register


def select(op: str, dtypes: tuple[str, ...], m: int, n: int, k: int, level: Level,
           log: list[str] | None = None, *, layout: ActivationLayout = "rows") -> Kernel:
    """Choose the cheapest kernel for m x n outputs over k; `log` receives a line for every kernel considered.

    Raises KernelError when no kernel fits.
    """
    fitting = [x for x in KERNELS.values() if (x.op, x.dtypes) == (op, dtypes) and level.includes(x.level)
               and layout in x.layouts]
    if not fitting:
        raise KernelError(f"no kernel for {op} on {' '.join(dtypes)} at ISA level {level.name}")
    costs = {kernel: kernel.cost(kernel, *map(assumed, (m, n, k))) for kernel in fitting}
    chosen = min(costs, key=costs.__getitem__)
    if log is not None:
        log += [f"{x.name}: {cycles:.0f} cycles{' (chosen)' if x is chosen else ''}" for x, cycles in costs.items()]
    return chosen

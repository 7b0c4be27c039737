"""Measure this machine's peaks: multiply-accumulates per second in registers, and bytes copied per second.

Each instruction that multiplies has a peak. A loop runs the instruction on independent accumulators. If the
instruction only multiplies, the loop also runs an addition.
"""
from __future__ import annotations

import functools
import time
from collections.abc import Callable

import numpy as np

from graphq.errors import KernelError
from graphq.kernels.jit import Functions, Loop, emits, modules
from graphq.kernels.jit.intrinsics import Record, stack
from graphq.kernels.jit.values import Builder, Value, vector
from graphq.kernels.matmul.matrix import STATE, matrix_setup
from graphq.kernels.moves.transpose import MOVE, copying
from graphq.kernels.operands.tile_frame import FRAME, FRAME_BYTES
from graphq.kernels.target.level import Level
from graphq.kernels.target.mnemonics import multiplying
from graphq.kernels.target.products import Matrix, Multiplying
from graphq.kernels.threads import team

PEAK = Record("memory", "turns")
CHAINS = 12
"""The accumulators of a vector loop: enough for two instructions a cycle with a latency of 6 cycles."""
TURNS = 20_000
TILE_CHAINS = 4
"""The accumulators of a tile loop: four instructions take 64 cycles, longer than their latency of 52."""
MEMORY = 16_384
"""The bytes of memory for a loop's operands and sums, or for the tile configuration."""
LARGE = 1 << 28
"""The most bytes that are copied to measure bandwidth; larger copies would be as fast."""
ROUNDS = 11
MOST = 200
"""The most repetitions in one of the ROUNDS runs."""


def products(name: str) -> int:
    """The multiply-accumulates of one instruction (see `mnemonics`); 0 if no loop measures the instruction."""
    found = multiplying(name)
    return 0 if found is None else found[0].macs * found[1]


def _measured(name: str) -> tuple[Multiplying, int]:
    found = multiplying(name)
    if found is None:
        raise KernelError(f"no loop measures {name}")
    return found


def peak_module(name: str) -> Functions:
    """Make the module with the loop that runs instruction `name`; its argument block is a PEAK."""
    how, lanes = _measured(name)
    if how.matrix is not None:
        return _on_tiles(how.matrix, how.signed)
    run = emits(vector_loop, how=how, lanes=lanes)

    def block(args: int, index: int) -> None:
        a = PEAK(args)
        run(a.memory, a.turns)

    return Functions(block=block)


def _on_tiles(matrix: Matrix, signed: bool) -> Functions:
    setup = emits(matrix_setup, matrix=matrix, row_tiles=1, emulated=False)
    run = emits(tile_loop, matrix=matrix, signed=signed)

    def block(args: int, index: int) -> None:
        a = PEAK(args)
        frame = stack(FRAME_BYTES)
        FRAME(frame).acc = a.memory
        setup(frame, 16)
        run(a.memory, a.turns)
        setup(frame, 0)

    return Functions(block=block)


def vector_loop(b: Builder, memory: Value, turns: Value, *, how: Multiplying, lanes: int) -> None:
    """Loop over CHAINS instructions, with operands from `memory`."""
    kind, step = vector(how.element, lanes), how.step
    assert step is not None
    x, *first = ((memory + 64 * i).load(kind) for i in range(1 + CHAINS))
    with Loop(b, turns, first) as loop:
        loop.update([step(b, acc, x) for acc in loop.values])
    for i, acc in enumerate(loop.values):
        acc.store(memory + 64 * (1 + i))


def tile_loop(b: Builder, memory: Value, turns: Value, *, matrix: Matrix, signed: bool) -> None:
    """Loop over TILE_CHAINS instructions on configured tiles."""
    tiles = matrix.registers(b, memory + STATE, False)
    with Loop(b, turns):
        for sums in range(TILE_CHAINS):
            tiles.dot(sums, 4, 5, signed)


@functools.cache
def peak(name: str, level: Level, cache: bool = True) -> float:
    """Measure the multiply-accumulates per second of one core by instruction `name`.

    `level` and the machine must have the instruction. Raises KernelError if Linux does not grant this process the tile
    registers that the instruction needs: Linux would kill the process.
    """
    matrix = _measured(name)[0].matrix
    if matrix is not None and not matrix.granted():
        raise KernelError(f"{name} needs tile registers, but Linux does not grant them to this process")
    memory = np.zeros(MEMORY, np.uint8)
    args = np.array(PEAK.words({"memory": memory.ctypes.data, "turns": TURNS}), np.int64)
    chains = CHAINS if matrix is None else TILE_CHAINS
    loop = modules.load("peak", peak_module, name, level=level, cache=cache)
    return chains * TURNS * products(name) / min(_samples(loop, args, 1, cache))


def bandwidth(nbytes: int, threads: int = 1, cache: bool = True) -> float:
    """Measure the bytes per second of a copy that reads half of the `nbytes` and writes the other half."""
    share = max(1, min(nbytes, LARGE) // (128 * threads)) * 64
    source, target = (np.zeros(share * threads, np.uint8) for _ in range(2))
    words = MOVE.words({"source": source.ctypes.data, "target": target.ctypes.data, "rows": threads, "columns": share,
                        "source_step": share, "target_step": share, "each": 1, "outer": 0})
    copies = modules.load("copying", copying, cache=cache)
    return 2 * share * threads / min(_samples(copies, np.array(words, np.int64), threads, cache))


def _samples(module: modules.Module, args: np.ndarray, threads: int, cache: bool) -> list[float]:
    """Run `threads` blocks of a module at the same time, several times; returns the seconds of each time."""
    row = module.block, args.ctypes.data, threads, threads if threads > 1 else 0

    def prepare(times: int) -> Callable[[], None]:
        return team.StepTable([row] * times, cache).run

    return samples(prepare)


def samples(prepare: Callable[[int], Callable[[], object]], seconds: float = 0.02) -> list[float]:
    """Measure the seconds of one repetition in each of ROUNDS runs; all runs together take about `seconds`.

    `prepare(times)` returns a function that does `times` repetitions.
    """
    call = prepare(1)
    call()
    times = max(1, min(MOST, int(seconds / ROUNDS / max(_timed(call), 1e-7))))
    call = prepare(times)
    call()
    return [_timed(call) / times for _ in range(ROUNDS)]


def _timed(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start

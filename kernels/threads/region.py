"""The parallel region: graphq's only prange; threads in its iterations run parts of steps (see `team`).

A process that runs plans on several threads imports this module in the background (see `team`), and Numba with it.
"""
from typing import Any, cast

import numba
from numba import njit, prange

from graphq.kernels.jit import Deferred, intrinsics

call_block = cast(Deferred, intrinsics.call_block).made


def _region(function: int, argument: int, threads: int) -> None:
    for k in prange(threads):
        call_block(function, argument, k)


def _compiled(cache: bool) -> Any:
    return njit("void(intp, intp, intp)", parallel=True, nogil=True, cache=cache)(_region)


try:
    _enter = _compiled(True)  # Numba caches it on disk: loading takes a tenth of the time of compiling
except Exception:  # there is no writable folder, the disk is full, or a cached file is damaged
    _enter = _compiled(False)


def enter(function: int, argument: int, threads: int) -> None:
    """Call a native function as `function(argument, k)` for k in range(threads), each k on one thread.

    `function` is an address. Returns when all calls have returned. Some calls begin only after other calls have ended,
    if Numba's threading layer is busy or grants fewer threads.
    """
    config: Any = numba.config  # Any, because Numba's type stubs lack some settings
    before = numba.get_num_threads()
    try:
        numba.set_num_threads(min(threads, config.NUMBA_NUM_THREADS))
        _enter(function, argument, threads)
    finally:
        numba.set_num_threads(before)


def layer(nothing: int) -> str:
    """Numba's threading layer: "omp", "tbb" or "workqueue". `nothing` is a native function that does nothing."""
    enter(nothing, 0, 1)
    name: str = numba.threading_layer()
    return name

"""Limit the memory that loading or compiling a model may take, and pause Python's cyclic garbage collector meanwhile.

A model file of a hundred bytes can ask for terabytes, for example by a padding of 2^40 elements. Code therefore calls
`reserve` before it allocates an array whose size depends on numbers in the model. For a short-lived array, code calls
`expect`, and the array is not counted. Both functions raise CompileError if the memory would exceed the limit.
Reserved memory stays counted until the `budget` ends or a `recount` replaces the count.
"""
import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from graphq.base.locks import lazy_property
from graphq.base.platform import address_limit, at_fork, machine_memory
from graphq.base.sizes import assumed, is_open
from graphq.errors import CompileError

SMALL = 1 << 20
"""Totals below this many bytes are within every default limit. To save 0.1 ms, the limit is then not computed."""
_CGROUP = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


@dataclass
class _Budget:
    """A memory limit, the bytes reserved so far (`used`), and the bytes that the last `recount` found (`live`)."""

    given: int | None = None
    used: int = 0
    live: int = 0

    @lazy_property
    def limit(self) -> int:
        return default_limit() if self.given is None else self.given


_CURRENT: ContextVar[_Budget | None] = ContextVar("graphq_budget", default=None)


def default_limit() -> int:
    """Half of the machine's memory in bytes, or half of the limit of the process's control group if that is lower.

    If the address space is limited (`ulimit -v`), the result is at most a quarter of that limit, because libraries,
    the stacks of threads and temporary copies of arrays also take addresses.
    """
    memory = machine_memory()
    for path in _CGROUP:
        try:
            memory = min(memory, int(Path(path).read_text()))
        except (OSError, ValueError):  # the file is missing, or it says "max": no limit
            continue
    return int(min(memory / 2, address_limit() / 4))


def check_limit(memory: Any) -> None:
    """Raise CompileError unless `memory` is a positive number of bytes, or None (the default limit)."""
    if memory is not None and (not isinstance(memory, int) or isinstance(memory, bool) or memory < 1):
        raise CompileError(f"memory must be a positive number of bytes, got {memory!r}")


@contextmanager
def budget(memory: int | None) -> Iterator[None]:
    """Limit the memory that a `with` block reserves to `memory` bytes (None: `default_limit()`).

    Within another budget, only the outer limit counts. If the block raises, its reservations no longer count.
    """
    check_limit(memory)
    outer = _CURRENT.get()
    now = outer or _Budget(memory)
    used = now.used
    try:
        _CURRENT.set(now)
        yield
    except BaseException:
        now.used = used
        raise
    finally:
        _CURRENT.set(outer)


def expect(nbytes: int, what: str) -> None:
    """Raise CompileError if `nbytes`, added to the bytes reserved so far, exceed the limit of the `budget`.

    Outside of a budget, `nbytes` is compared with the default limit. `what` begins the message.
    """
    if is_open(nbytes):  # the size is known only at run time, when `plan.runtime.Runner` checks the memory
        return
    current = _CURRENT.get()
    now = current or _Budget()
    total = now.used + nbytes
    if total >= (SMALL if now.given is None else 0) and total > now.limit:
        hint = "; the option memory=BYTES of load_onnx and compile raises it"
        taken = f", which with the {size_text(now.used)} reserved so far" if now.used else ", which"
        raise CompileError(f"{what} would take {size_text(nbytes)}{taken} is more than the limit of "
                           f"{size_text(now.limit)}{hint if current else ', half of the memory here'}")


def reserve(nbytes: int, what: str) -> None:
    """Count `nbytes` that are about to be allocated for `what`. Raises CompileError as `expect` does.

    If `nbytes` depends on open sizes (`base.sizes`), its value at the assumed sizes is counted.
    """
    nbytes = assumed(nbytes)
    expect(nbytes, what)
    now = _CURRENT.get()
    if now is not None:
        now.used += nbytes


def recount(live: Callable[[], int]) -> None:
    """Set the count of reserved bytes to `live()`, the bytes in use, if bytes were reserved since the last recount."""
    now = _CURRENT.get()
    if now is not None and now.used > now.live:
        now.used = now.live = live()


def size_text(nbytes: int) -> str:
    """A number of bytes as text: `3.5 GiB`."""
    for unit, scale in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if nbytes > 999 / 1024 * scale:  # more than 999 of the smaller unit
            return f"{nbytes / scale:.3g} {unit}"
    return f"{nbytes} B"


SELDOM = 5_000_000
"""The collector's threshold in a pause: not 0, because code that restores what it read meanwhile would turn it off."""
_before: tuple[int, int, int] | None = None
"""The collector's thresholds before the pause; None if there is none."""


@contextmanager
def collector_paused() -> Iterator[None]:
    """Let the collector run seldom, in all threads, within a `with` block or a decorated function.

    Compiling makes hundreds of thousands of long-lived objects, and scanning them takes a tenth of the compile time;
    other threads would wait. If the user's code sets a threshold meanwhile, or calls `gc.disable`, that stays.
    """
    global _before
    before = gc.get_threshold()
    if before[0] in (0, SELDOM):  # it is off, or an outer block or another thread pauses it
        yield
        return
    try:
        _before = before
        gc.set_threshold(SELDOM, *before[1:])
        yield
    finally:
        _resume()


def _resume() -> None:
    global _before
    if _before is not None and gc.get_threshold()[0] == SELDOM:
        gc.set_threshold(*_before)
    _before = None


at_fork(after_in_child=_resume)  # the child lacks the thread that would end the pause

"""Python's cyclic garbage collector, which is off while a graph is loaded, changed and planned."""
from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager

_paused = False


@contextmanager
def collector_paused() -> Iterator[None]:
    """Keep the collector off within a block; as a decorator, within a function.

    Compiling makes hundreds of thousands of objects that live on. The collector would look through them a hundred times
    and free next to nothing, for a tenth of the time. It stays as it is where it is off already. If threads do this at
    once, it is on again when the first of them ends, even if another thread has switched it off meanwhile.
    """
    global _paused
    if not gc.isenabled():
        yield
        return
    try:
        _paused = True
        gc.disable()
        yield
    finally:
        _on_again()


def _on_again() -> None:
    global _paused
    if _paused:
        _paused = False
        gc.enable()


os.register_at_fork(after_in_child=_on_again)  # the thread that would end the pause is not in the child

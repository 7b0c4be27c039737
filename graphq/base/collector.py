"""Pause Python's cyclic garbage collector while a graph is loaded, changed and planned."""
from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager

_paused = False


@contextmanager
def collector_paused() -> Iterator[None]:
    """Keep the collector off within a `with` block or a decorated function.

    Compiling makes hundreds of thousands of long-lived objects, and scanning them takes a tenth of the compile time. If
    the collector is already off, it stays off. If several threads pause the collector at once, the first thread to
    finish switches it on again.
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


os.register_at_fork(after_in_child=_on_again)  # the child lacks the thread that would end the pause

"""Python's collector of cyclic garbage, paused while graphs are built and rewritten."""
from __future__ import annotations

import gc
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


def uncollected(f: Callable[P, T]) -> Callable[P, T]:
    """`f`, during which nothing is looked for.

    What it makes lives, and the collector walks all objects each time that their number grows: that took 6 % of the
    time from a model's file to its first result.
    """

    @wraps(f)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        if not gc.isenabled():
            return f(*args, **kwargs)
        gc.disable()
        try:
            return f(*args, **kwargs)
        finally:
            gc.enable()

    return run

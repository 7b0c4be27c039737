"""Names in files for the functions that traces of open sizes record (`base.sizes`), and for the classes in plans."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])

RECORDED: dict[str, Callable[..., Any]] = {}
"""The functions and classes by name. A plan in a file can reach nothing else."""
_names: dict[int, str] = {}


def recorded(name: str) -> Callable[[F], F]:
    """Give a function or class its name in files, which stays the same if the source calls it otherwise or moves it.

    The name is `group.name`, with a group of `model.saved_values.GROUPS`: a reader of plans imports the group's module
    when it needs the function. Functions that such a process always has need no group. Raises ValueError if the name is
    taken.
    """
    def enter(function: F) -> F:
        if RECORDED.setdefault(name, function) is not function:
            raise ValueError(f"{function.__module__}.{function.__qualname__} cannot have the name {name!r} in files: "
                             f"{RECORDED[name]!r} has it")
        _names[id(function)] = name  # RECORDED keeps the function alive, so no other object gets its id
        return function

    return enter


def name_of(x: object) -> str | None:
    """The name of a function or class in files; None if it has none."""
    return _names.get(id(x))

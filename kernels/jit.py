"""Numba's decorators, put off: a process that finds all its kernels compiled never imports Numba.

`njit` and `intrinsic` give `Deferred` objects. Numba asks what it meets while it compiles for `_numba_type_`, and only
then is the function made what the decorator would have made it. `types` are Numba's types, imported at first use.
"""
from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any


class Deferred:
    """A function for compiled code to call; `make` gives the Numba object for it."""

    def __init__(self, body: Callable[..., Any], make: Callable[[Callable[..., Any]], Any]) -> None:
        self.body, self._make = body, make
        self.__doc__ = body.__doc__

    def __repr__(self) -> str:
        return f"<deferred {self.body.__name__}>"

    @cached_property
    def made(self) -> Any:
        """The Numba object."""
        return self._make(self.body)

    @cached_property
    def _numba_type_(self) -> Any:
        return self.made


class _Types:
    """numba.types, imported when it is asked for a type."""

    def __getattr__(self, name: str) -> Any:
        from numba import types

        return getattr(types, name)


types: Any = _Types()


def njit(body: Callable[..., Any]) -> Any:
    """Mark a function that other compiled code calls. Division by zero is not checked: such code has no exceptions."""

    def make(body: Callable[..., Any]) -> Any:
        from graphq.kernels.frontend import Helper

        return Helper(body)

    return Deferred(body, make)


def intrinsic(body: Callable[..., Any] | None = None, *, literals: bool = False) -> Any:
    """Mark a function `(typing context, *types) -> (signature, code generator)`; `literals`: of literal types."""

    def make(body: Callable[..., Any]) -> Any:
        from graphq.kernels.frontend import Intrinsic

        return Intrinsic(body, literals)

    return Deferred(body, make) if body is not None else lambda body: Deferred(body, make)

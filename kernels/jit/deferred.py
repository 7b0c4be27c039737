"""Numba's decorators, put off until a kernel is compiled: processes that find all kernels compiled never import Numba.

`njit` and `intrinsic` mark functions of the files in kernels/. What they give becomes Numba's object (`Deferred.made`)
in the process that compiles (`compiling`). `types` are Numba's types, imported at first use.
"""
from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import wraps
from inspect import Parameter, Signature, signature
from types import CellType, CodeType, FunctionType
from typing import Any, TypeAlias

from graphq.base.locks import lazy_property
from graphq.kernels.jit.values import Builder, Value, raw

Intrinsic: TypeAlias = Callable[..., Any]
"""A function for compiled code to call, as type checkers see it: of integers, or of what Numba has types for."""


class Deferred:
    """A function for compiled code to call."""

    def __init__(self, body: Any, make: Callable[[Any], Any]) -> None:
        self.body, self._make = body, make
        self.__doc__ = body.__doc__

    def __repr__(self) -> str:
        return f"<deferred {self.body.__name__}>"

    @lazy_property
    def made(self) -> Any:
        """The object that Numba's decorator gives."""
        return self._make(self.body)


class _Types:
    """numba.types, imported when it is asked for a type."""

    def __getattr__(self, name: str) -> Any:
        from numba import types

        return getattr(types, name)


types: Any = _Types()


def njit(body: Callable[..., Any]) -> Any:
    """Mark a function that other compiled code calls. Division by zero is not checked: such code has no exceptions."""
    return Deferred(body, _helper)


def intrinsic(body: Callable[..., Any] | None = None, *, literals: bool = False, arity: int | None = None) -> Any:
    """Mark a function `(typing context, *types) -> (signature, code generator)`; `literals`: of literal types.

    `code generator(context, builder, signature, arguments)` emits LLVM's IR (numba.extending.intrinsic), by a Builder
    and of Values. A body with `*types` says by `arity` how many arguments it takes.
    """

    def mark(body: Any) -> Deferred:
        body = _of_values(body)
        if arity is not None:
            names = ("typing", *(f"x{k}" for k in range(arity)))
            body.__signature__ = Signature([Parameter(x, Parameter.POSITIONAL_OR_KEYWORD) for x in names])
        return Deferred(body, _literal_intrinsic if literals else _intrinsic)

    return mark if body is None else mark(body)


def emits(body: Callable[..., Value | None]) -> Intrinsic:
    """Mark `body(b, *values)`, which emits code for 64-bit integers: an intrinsic that returns one, or nothing."""
    names = ("typing", *list(signature(body).parameters)[1:])
    nothing = body.__annotations__["return"] == "None"

    @wraps(body)
    def typed(_typing: Any, *kinds: Any) -> Any:
        def code(context: Any, b: Builder, signature: Any, values: Sequence[Value]) -> Any:
            result = body(b, *values)
            return context.get_dummy_value() if nothing else result

        return (types.void if nothing else types.intp)(*[types.intp] * len(kinds)), code

    typed.__dict__["__signature__"] = Signature([Parameter(x, Parameter.POSITIONAL_OR_KEYWORD) for x in names])
    emitted: Intrinsic = intrinsic(typed)
    return emitted


def _of_values(body: Callable[..., Any]) -> Any:
    """An intrinsic of llvmlite's values, which Numba knows, from one of Values."""

    @wraps(body)
    def typed(*kinds: Any) -> Any:
        result = body(*kinds)
        if result is None:
            return None
        signature, code = result

        def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            b = Builder(builder)
            return raw(code(context, b, signature, [Value(b, x) for x in args]))

        return signature, emit

    return typed


def _helper(body: FunctionType) -> Any:
    """Of one signature where all annotations are int, float or None; else of one for each call's types and literals."""
    kinds: dict[str, Any] = {"int": types.intp, "float": types.float32, "None": types.void}
    *given, result = (kinds.get(body.__annotations__.get(x, "")) for x in (*signature(body).parameters, "return"))
    return jitted(bound(body), *(() if result is None or None in given else (result(*given),)))


def jitted(body: FunctionType, *signatures: Any) -> Any:
    """Numba's function, of one signature or of any, without wrappers for Python and its exceptions."""
    import numba

    decorator: Any = numba.njit  # its stubs lack two options
    return decorator(*signatures, error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True)(body)


def _intrinsic(body: FunctionType) -> Any:
    from numba.extending import intrinsic

    return intrinsic(body)


def _literal_intrinsic(body: FunctionType) -> Any:
    from numba.extending import intrinsic

    return intrinsic(prefer_literal=True)(body)


def bound(body: FunctionType) -> FunctionType:
    """A copy of a function that sees Numba's objects where its module, or the function around it, has deferred ones."""
    known = {name: _made(body.__globals__[name]) for name in _names(body.__code__) if name in body.__globals__}
    cells = tuple(CellType(_made(cell.cell_contents)) for cell in body.__closure__ or ())
    copy = FunctionType(body.__code__, {**known, "__name__": body.__module__, "__builtins__": __builtins__},
                        body.__name__, body.__defaults__, cells)
    copy.__kwdefaults__, copy.__qualname__, copy.__doc__ = body.__kwdefaults__, body.__qualname__, body.__doc__
    return copy


def _made(x: Any) -> Any:
    return x.made if isinstance(x, Deferred) else x


def _names(code: CodeType) -> Iterator[str]:
    """The global names of code, and of the functions and comprehensions in it."""
    yield from code.co_names
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _names(inner)

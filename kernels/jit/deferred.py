"""Deferred versions of Numba's decorators. Without them, a process would import Numba even if all kernels are compiled.

`@njit` marks functions that Numba compiles; `@emits` marks functions that emit LLVM IR themselves. Only a compiling
process turns these functions into Numba's objects (`Deferred.made`).
"""
from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial, update_wrapper, wraps
from inspect import Parameter, Signature, signature
from types import CellType, CodeType, FunctionType
from typing import Any, TypeAlias, TypeVar, cast

from llvmlite import ir

from graphq.kernels.jit.values import LEVEL, Builder, Value

F = TypeVar("F", bound=Callable[..., object])

Intrinsic: TypeAlias = Callable[..., Any]
"""The type of functions that compiled code calls. Arguments are integers or values of other Numba types."""


class Deferred:
    """A function that compiled code calls. Numba's decorator is applied at the first use of the function."""

    def __init__(self, body: Callable[..., object], make: Callable[..., object]) -> None:
        self.body, self._make = body, make
        self._made: dict[object, Any] = {}
        self.__doc__ = body.__doc__

    def __repr__(self) -> str:
        return f"<deferred {self.body.__name__}>"

    @property
    def made(self) -> Any:
        """The decorated function, an object of Numba. There is one for each base level, because it keeps its code."""
        level = LEVEL.get()
        base = None if level is None else level.base
        if base not in self._made:
            self._made[base] = self._make(self.body)
        return self._made[base]


class _Types:

    def __getattr__(self, name: str) -> object:
        from numba import types

        return getattr(types, name)


types: Any = _Types()


def njit(body: F) -> F:
    """Mark a function that other compiled code calls. It cannot raise: division by zero is not checked."""
    return cast(F, Deferred(body, _helper))


def emits(body: Callable[..., Value | None], arity: int | None = None, named: str = "", **settings: Any) -> Intrinsic:
    """Mark `body(b, *arguments)` as a function that emits LLVM IR into the compiled code that calls it.

    The annotations of `body` are the types of arguments and result. Value is a 64-bit integer and F32Value an f32. An
    int must be a literal, and the body gets it as a Python number. The result None means no result. If the body takes
    `*values`, these are 64-bit integers, and `arity` is their number. `settings` are the body's keyword-only arguments,
    Python objects that the code depends on. Errors call it `named`. Raises TypeError for other annotations.
    """
    with_settings = update_wrapper(partial(body, **settings), body)
    with_settings.__name__ = named or body.__name__
    return cast(Intrinsic, Emitter(with_settings, arity))


ARGUMENTS, RESULTS = ("Value", "F32Value", "int"), ("Value", "F32Value", "None")
"""The annotations that functions decorated with `@emits` can have, for parameters and for the result."""


class Emitter(Deferred):
    """A function decorated with `@emits`. For Numba it becomes a numba.extending.intrinsic.

    `kinds` are the annotations of the parameters after the builder; `result` is the annotation of the result.
    """

    def __init__(self, body: Callable[..., Value | None], arity: int | None) -> None:
        super().__init__(body, self._intrinsic)
        taken = [name for name, p in signature(body).parameters.items() if p.kind is not Parameter.KEYWORD_ONLY]
        names = taken[1:] if arity is None else [f"x{k}" for k in range(arity)]
        self.kinds = {name: body.__annotations__.get(name, "Value") for name in names}
        self.result: str = body.__annotations__.get("return", "nothing")
        for annotation, allowed in (*((x, ARGUMENTS) for x in self.kinds.values()), (self.result, RESULTS)):
            if annotation not in allowed:
                raise TypeError(f"{body.__name__}: annotate an emitting function's parameters with one of "
                                f"{', '.join(ARGUMENTS)} and its result with one of {', '.join(RESULTS)}, in a module "
                                f"with `from __future__ import annotations`; got {annotation!r}")

    def _intrinsic(self, body: Callable[..., Value | None]) -> object:
        of_annotation = {"Value": types.intp, "F32Value": types.float32, "None": types.void}
        wanted = list(self.kinds.values())

        @wraps(body)
        def typed(_typing: object, *arguments: Any) -> object:
            if len(arguments) != len(wanted):
                raise TypeError(f"{body.__name__} takes {len(wanted)} arguments, got {len(arguments)}")
            literals = [x.literal_value if isinstance(x, types.IntegerLiteral) else None for x in arguments]
            if any(kind == "int" and x is None for kind, x in zip(wanted, literals, strict=True)):
                return None  # for Numba, None means that no signature fits

            def code(context: Any, builder: ir.IRBuilder, signature: object, values: Sequence[ir.Value]) -> ir.Value:
                b = Builder(builder)
                result = body(b, *(literal if kind == "int" else Value(b, x)
                                   for kind, literal, x in zip(wanted, literals, values, strict=True)))
                return context.get_dummy_value() if result is None else result.ir

            kinds = [of_annotation.get(kind, x) for kind, x in zip(wanted, arguments, strict=True)]
            return of_annotation[self.result](*kinds), code

        names = ("typing", *self.kinds)
        typed.__dict__["__signature__"] = Signature([Parameter(x, Parameter.POSITIONAL_OR_KEYWORD) for x in names])
        return numba_intrinsic(typed, prefer_literal="int" in wanted)


def numba_intrinsic(body: Callable[..., object], prefer_literal: bool = False) -> object:
    """Make a Numba intrinsic from a function `(typing context, *types) -> (signature, code generator)`."""
    from numba.extending import intrinsic

    function: object = intrinsic(prefer_literal=prefer_literal)(body)
    return function


def _helper(body: FunctionType) -> Any:
    """Compile a function with Numba.

    If all annotations are int, float or None, they are the only signature. Otherwise Numba compiles the function for
    each list of argument types.
    """
    kinds: dict[str, Any] = {"int": types.intp, "float": types.float32, "None": types.void}
    *parameters, result = (kinds.get(body.__annotations__.get(x, "")) for x in (*signature(body).parameters, "return"))
    return jitted(bound(body), *(() if result is None or None in parameters else (result(*parameters),)))


def jitted(body: FunctionType, *signatures: Any) -> Any:
    """Compile with Numba, for the given signatures or any, without wrappers for Python and without exceptions."""
    import numba

    decorator: Any = numba.njit  # Any, because Numba's type stubs lack two options
    return decorator(*signatures, error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True)(body)


def bound(body: FunctionType) -> FunctionType:
    """Copy a function and make the copy refer to Numba's objects instead of deferred functions."""
    global_names = {name: _made(body.__globals__[name]) for name in _names(body.__code__) if name in body.__globals__}
    cells = tuple(CellType(_made(cell.cell_contents)) for cell in body.__closure__ or ())
    copy = FunctionType(body.__code__, {**global_names, "__name__": body.__module__, "__builtins__": __builtins__},
                        body.__name__, body.__defaults__, cells)
    copy.__kwdefaults__, copy.__qualname__, copy.__doc__ = body.__kwdefaults__, body.__qualname__, body.__doc__
    return copy


def _made(x: Any) -> Any:
    return x.made if isinstance(x, Deferred) else x


def _names(code: CodeType) -> Iterator[str]:
    """The global names that a code object uses, also in its inner functions and comprehensions."""
    yield from code.co_names
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _names(inner)

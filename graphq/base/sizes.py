"""Compute with open sizes (dimensions that are known only at run time), and record the computations in a trace.

A graph with open dimensions is compiled once and runs at many shapes. The compiler works on one example: a `Size`
replaces each open dimension, and has an assumed value. The `Trace` records how further numbers are computed from Sizes.
A decision that depends on a Size (a comparison, a conversion to int) is made for the example, and the trace records the
answer as a guard. For other sizes, a `programs.Program` repeats the computations. If a guard then has another answer,
the plan does not hold for these sizes.

Code that is written for ints is therefore correct for Sizes as well. At worst the code converts a Size to an int; the
plan then holds for one size only. The method is symbolic shapes with guards, as in PyTorch 2 (Ansel et al., ASPLOS
2024, section 4).
"""
from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])


class RecordedCall(NamedTuple):
    """A recorded call of `function`: the slots of its arguments, and the `slot` of its result (see `Trace`)."""

    slot: int
    function: Callable[..., Any]
    arguments: tuple[int, ...]


PLAIN = frozenset({int, float, str, bool, type(None)})
"""Types whose values contain no Size, are compared by their contents, and can be written to a file."""


class Trace:
    """The record of all computations with open sizes.

    Each value has an index, its slot. `values` has the values of all slots in the example, and `calls` the calls that
    computed them. `leaves` has the slots of the open sizes, and `names` their symbols by slot. `assumed` maps the place
    of each open size (such as "x.0", axis 0 of input x) to its value in the example. `guards` maps slots to the answers
    that a plan relies on. A `sealed` trace takes no new guards.
    """

    exists = False
    """Whether this process has made a trace. Until then no size is open, and nobody needs to look for one."""

    def __init__(self) -> None:
        Trace.exists = True
        self.values: list[Any] = []
        self.calls: list[RecordedCall] = []
        self.leaves: list[int] = []
        self.assumed: dict[str, int] = {}
        self.names: dict[int, str] = {}
        self.guards: dict[int, Any] = {}
        self.sealed = False
        self._known: dict[Any, int] = {}
        self._multiples: dict[int, tuple[int, int]] = {}

    def leaf(self, assumed: int, place: str, name: str = "") -> int:
        """Add an open size with value `assumed` in the example. Messages call it `name`, or else `place`."""
        slot = self._new(assumed)
        self.leaves.append(slot)
        self.assumed[place], self.names[slot] = assumed, name or place
        return cast(int, Size(self, slot))  # for type checkers, a Size is an int

    def call(self, function: Callable[..., Any], *arguments: Any) -> int:
        """Call a function on the example's values and record the call; returns its slot. Equal calls share a slot."""
        slots = tuple([self.slot(x) for x in arguments])
        key = function, slots
        if key not in self._known:
            slot = self._new(function(*[self.values[k] for k in slots]))
            # The call is recorded before `_known` has its slot, because other threads may use slots in `_known`.
            self.calls.append(RecordedCall(slot, function, slots))
            self._known[key] = slot
        return self._known[key]

    def slot(self, x: Any) -> int:
        """The slot of an argument of a call.

        A `Size` or `Later` already has a slot. If a list, tuple or dict contains a `Size` or `Later`, the trace records
        a call that builds the container. Any other object gets a slot that equal objects share. Raises TypeError for a
        `Size` or `Later` of another trace.
        """
        kind = type(x)
        if kind is Size or kind is Later:
            if x.trace is not self:
                raise TypeError(f"{x!r} was computed from the open sizes of another trace: a plan has one trace, and "
                                "whatever outlives the plan must be a plain number")
            return x.slot
        if isinstance(x, Mapping) and is_open(x):
            return self.call(_mapping, tuple(x), tuple(x.values()))
        if isinstance(x, list | tuple) and is_open(x):
            return self.call(kind if hasattr(x, "_fields") else _sequence, *x)
        key = _key(x)
        if key not in self._known:
            self._known[key] = self._new(x)  # `values` keeps x alive, so no other object gets the id of x
        return self._known[key]

    def factors(self, slot: int) -> tuple[int, int]:
        """If `multiple` computed `slot`: the slot of the size, and the plain factor. Otherwise (slot, 1)."""
        return self._multiples.get(slot, (slot, 1))

    def multiple(self, slot: int, factor: int) -> Size:
        """The size in `slot` times a positive plain number. The size must not be a result of `multiple`."""
        if factor == 1:
            return Size(self, slot)
        product = self.call(operator.mul, Size(self, slot), factor)
        self._multiples[product] = slot, factor
        return Size(self, product)

    def decide(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Return the function's result in the example. Record the result as a guard if the trace is not sealed."""
        if self.sealed:
            return function(*[assumed(x) for x in arguments])
        slot = self.call(function, *arguments)
        self.guards[slot] = self.values[slot]
        return self.values[slot]

    def _new(self, value: Any) -> int:
        self.values.append(value)
        return len(self.values) - 1


def _key(x: Any) -> tuple[Any, ...]:
    """A key that is equal for equal plain values, small arrays and containers of them; other objects are unique."""
    kind = type(x)
    if kind in PLAIN:
        return kind, x.hex() if kind is float else x  # as text, -0.0 differs from 0.0 and NaN equals NaN
    if kind is np.ndarray and x.nbytes <= 64:
        return kind, x.dtype.str, x.shape, x.tobytes()
    if kind is dict:
        return kind, *[(k, _key(y)) for k, y in x.items()]
    return (kind, *map(_key, x)) if isinstance(x, tuple | list) else (object, id(x))


RECORDED: dict[str, Callable[..., Any]] = {}
"""Functions that traces record, and classes of values in plans, by name. A plan in a file can reach nothing else."""
_names: dict[int, str] = {}


def recorded(name: str) -> Callable[[F], F]:
    """Give a function or class its name in files, which stays the same if the source calls it otherwise or moves it.

    The name is `group.name`, with a group of `model.saved_values.GROUPS`, or a name of a function that every reader of
    plans has. Raises ValueError if it is taken.
    """
    def enter(function: F) -> F:
        if RECORDED.setdefault(name, function) is not function:
            raise ValueError(f"{function.__module__}.{function.__qualname__} cannot have the name {name!r} in files: "
                             f"{RECORDED[name]!r} has it")
        _names[id(function)] = name  # RECORDED keeps the function alive, so no other object gets its id
        return function

    return enter


def name_of(x: object) -> str | None:
    """The name of a function or class in files; None without a name."""
    return _names.get(id(x))


@recorded("mapping")
def _mapping(keys: Sequence[Any], values: Sequence[Any]) -> dict[Any, Any]:
    return dict(zip(keys, values, strict=True))


@recorded("sequence")
def _sequence(*items: Any) -> tuple[Any, ...]:
    return items


def _computes(function: Callable[..., Any], *, swapped: bool = False, neutral: int | None = None,
              exact: Callable[[Size, int], Any] | None = None) -> Any:
    """Make an operator method of Size for `function`. If the other operand is `neutral`, the result is the Size.

    If the other operand is a positive plain number, `exact` may return a simpler result, or None.
    """
    def method(self: Size, other: Any) -> Any:
        if not _is_number(other):
            return NotImplemented
        if type(other) is int and (other == neutral or other == 0 and function is operator.mul):
            return self if other == neutral else 0
        if exact is not None and type(other) is int and other > 0 and (simple := exact(self, other)) is not None:
            return simple
        return Size(self.trace, self.trace.call(function, *((other, self) if swapped else (self, other))))

    return method


def _product(size: Size, factor: int) -> Size:
    """(n * a) * b -> n * (a * b)"""
    slot, known = size.trace.factors(size.slot)
    return size.trace.multiple(slot, known * factor)


def _quotient(size: Size, divisor: int) -> Size | None:
    """(n * a) // b -> n * (a // b), if b divides a"""
    slot, known = size.trace.factors(size.slot)
    return size.trace.multiple(slot, known // divisor) if known % divisor == 0 else None


def _remainder(size: Size, divisor: int) -> int | None:
    """(n * a) % b -> 0, if b divides a"""
    return 0 if size.trace.factors(size.slot)[1] % divisor == 0 else None


def _defers(function: Callable[..., Any], *, swapped: bool = False) -> Any:
    """Make an operator method of the class `Later` for `function`; the method returns a `Later`."""
    return lambda self, other: later(function, *((other, self) if swapped else (self, other)))


def _changes(function: Callable[..., Any]) -> Any:
    return lambda self: Size(self.trace, self.trace.call(function, self))


def _decides(function: Callable[..., Any]) -> Any:
    """Make a method of Size that compares the Size with a number; a guard records the answer."""
    def method(self: Size, other: Any) -> Any:
        if not _is_number(other) or isinstance(other, Size) and other.trace is not self.trace:
            return NotImplemented
        if isinstance(other, Size) and other.slot == self.slot:
            return function(0, 0)
        return self.trace.decide(function, self, other)

    return method


def _converts(function: Callable[..., Any]) -> Any:
    """Make a method of Size that converts the Size to a plain number; a guard records the number."""
    return lambda self: self.trace.decide(function, self)


def _is_number(x: Any) -> bool:
    kind = type(x)
    return kind is int or kind is Size or isinstance(x, int | float | np.integer)


class _Recorded:
    """A value of a trace, in the slot with this index."""

    __slots__ = ("slot", "trace")

    def __init__(self, trace: Trace, slot: int) -> None:
        self.trace, self.slot = trace, slot

    @property
    def assumed(self) -> Any:
        """The value in the example."""
        return self.trace.values[self.slot]


class Size(_Recorded):
    """A number that depends on open sizes. It acts like an int that has its value in the trace's example.

    Arithmetic returns Sizes. Comparisons, conversions, and uses as an index or by NumPy need the value, so each adds a
    guard to the trace. Texts (`str`, `format`) and `hash` add no guard: texts show the symbol of an open size, and `?`
    for a number that is computed from open sizes. Sizes of two traces are never equal.
    """

    __slots__ = ()

    @property
    def name(self) -> str:
        """The symbol of an open size; "" for a number that is computed from open sizes."""
        return self.trace.names.get(self.slot, "")

    __add__, __radd__ = _computes(operator.add, neutral=0), _computes(operator.add, swapped=True, neutral=0)
    __sub__, __rsub__ = _computes(operator.sub, neutral=0), _computes(operator.sub, swapped=True)
    __mul__ = _computes(operator.mul, neutral=1, exact=_product)
    __rmul__ = _computes(operator.mul, swapped=True, neutral=1, exact=_product)
    __floordiv__ = _computes(operator.floordiv, neutral=1, exact=_quotient)
    __rfloordiv__ = _computes(operator.floordiv, swapped=True)
    __truediv__, __rtruediv__ = _computes(operator.truediv), _computes(operator.truediv, swapped=True)
    __mod__, __rmod__ = _computes(operator.mod, exact=_remainder), _computes(operator.mod, swapped=True)
    __pow__, __rpow__ = _computes(operator.pow), _computes(operator.pow, swapped=True)
    __and__, __rand__ = _computes(operator.and_), _computes(operator.and_, swapped=True)
    __or__, __ror__ = _computes(operator.or_), _computes(operator.or_, swapped=True)
    __lshift__, __rshift__ = _computes(operator.lshift), _computes(operator.rshift)
    __eq__, __ne__ = _decides(operator.eq), _decides(operator.ne)
    __lt__, __le__ = _decides(operator.lt), _decides(operator.le)
    __gt__, __ge__ = _decides(operator.gt), _decides(operator.ge)
    __int__, __index__ = _converts(int), _converts(operator.index)
    __float__, __bool__ = _converts(float), _converts(bool)

    __neg__, __abs__ = _changes(operator.neg), _changes(operator.abs)
    __round__, __floor__, __ceil__ = _changes(round), _changes(math.floor), _changes(math.ceil)

    def __divmod__(self, other: Any) -> Any:
        return self // other, self % other

    def __rdivmod__(self, other: Any) -> Any:
        return other // self, other % self

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        return np.asarray(self.trace.decide(_same, self), dtype)

    def __hash__(self) -> int:
        return hash(self.assumed)

    def __repr__(self) -> str:
        return self.name or "?"

    def __format__(self, spec: str) -> str:
        return format(self.assumed, spec) if spec else repr(self)


class Later(_Recorded):
    """An array or other object that depends on open sizes: the result of `later`.

    NumPy's functions and Python's operators accept a `Later` instead of an array, and return a `Later`. A use that
    needs the value, such as a condition, adds a guard.
    """

    __slots__ = ()

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any) -> Any:
        return later(getattr(ufunc, method) if method != "__call__" else ufunc, *inputs)

    def __array_function__(self, function: Callable[..., Any], types: Any, args: tuple[Any, ...],
                           kwargs: Mapping[str, Any]) -> Any:
        return later(function, *args) if not kwargs else NotImplemented

    __add__, __radd__ = _defers(operator.add), _defers(operator.add, swapped=True)
    __sub__, __rsub__ = _defers(operator.sub), _defers(operator.sub, swapped=True)
    __mul__, __rmul__ = _defers(operator.mul), _defers(operator.mul, swapped=True)
    __truediv__, __rtruediv__ = _defers(operator.truediv), _defers(operator.truediv, swapped=True)
    __lt__, __le__, __gt__, __ge__ = map(_defers, (operator.lt, operator.le, operator.gt, operator.ge))
    __bool__, __float__ = _converts(bool), _converts(float)

    def all(self) -> Any:
        """Whether all elements are true, as a `Later`."""
        return later(np.all, self)

    def any(self) -> Any:
        """Whether any element is true, as a `Later`."""
        return later(np.any, self)

    def astype(self, dtype: Any) -> Any:
        """The elements converted to `dtype`."""
        return later(np.asarray, self, dtype)

    @property
    def size(self) -> int:
        """The number of elements, recorded as a guard."""
        return self.trace.decide(np.size, self)


def later(function: Callable[..., T], *arguments: Any) -> T:
    """Call `function(*arguments)`. If an argument contains a `Size` or `Later`, the result is a `Later`.

    A `Later` can be an argument of further calls of `later`, or a constant of a plan; its value is known at run time.
    The function gets plain values. Its result must depend only on its arguments, and it must not change the arguments.
    Plans are saved only if all their functions have names in files (`recorded`).
    """
    trace = trace_of(arguments) if Trace.exists else None
    if trace is None:
        return function(*arguments)
    return cast(T, Later(trace, trace.call(function, *arguments)))


def parts(x: Any) -> Iterator[Size | Later]:
    """Every `Size` and `Later` in `x`, also inside lists, tuples and dicts."""
    if (kind := type(x)) is Size or kind is Later:
        yield x
    elif isinstance(x, list | tuple) or kind not in PLAIN and isinstance(x, Mapping):
        for y in x.values() if isinstance(x, Mapping) else x:
            if type(y) not in PLAIN:
                yield from parts(y)


def trace_of(x: Any) -> Trace | None:
    """The trace of the first `Size` or `Later` in `x`; None if `x` contains neither."""
    if (kind := type(x)) in PLAIN or kind is np.ndarray:
        return None
    if kind is Size or kind is Later:
        return x.trace
    for y in x if isinstance(x, list | tuple) else x.values() if isinstance(x, Mapping) else ():
        if (trace := trace_of(y)) is not None:
            return trace
    return None


def is_open(x: Any) -> bool:
    """Whether `x` is or contains a `Size` or `Later`."""
    return Trace.exists and trace_of(x) is not None


def assumed(x: Any) -> Any:
    """The value of `x` in the example, without a guard. Use it only for choices that cannot affect results."""
    return x.assumed if isinstance(x, Size | Later) else x


def surely_equal(x: Any, y: Any) -> bool:
    """Whether two values, or tuples of values, are equal at all open sizes. Unlike `==`, this adds no guard."""
    if isinstance(x, tuple) and isinstance(y, tuple):
        return len(x) == len(y) and all(map(surely_equal, x, y))
    if isinstance(x, Size) and isinstance(y, Size):
        return x.trace is y.trace and x.slot == y.slot
    return not (isinstance(x, Size) or isinstance(y, Size)) and x == y


def plain(x: T) -> T:
    """Replace a Size, or the Sizes in a tuple, by plain numbers; guards record the numbers."""
    if isinstance(x, Size):
        return x.trace.decide(_same, x)
    if isinstance(x, tuple) and is_open(x):
        items = map(plain, x)
        return type(x)(*items) if hasattr(x, "_fields") else type(x)(items)
    return x


@recorded("same")
def _same(x: Any) -> Any:
    return x


def smallest(*numbers: T) -> T:
    """The smallest number, as a Size if any number is a Size; `min` would add a guard."""
    return number(min, *numbers)


def largest(*numbers: T) -> T:
    """The largest number, as a Size if any number is a Size; `max` would add a guard."""
    return number(max, *numbers)


def number(function: Callable[..., Any], *arguments: Any) -> Any:
    """The number that `function(*arguments)` returns: a `Size` if an argument contains a `Size` or `Later`."""
    trace = trace_of(arguments) if Trace.exists else None
    return function(*arguments) if trace is None else Size(trace, trace.call(function, *arguments))


def numbers(count: int, function: Callable[..., Any], *arguments: Any) -> tuple[Any, ...]:
    """The `count` numbers that the function returns: Sizes, if an argument contains a `Size` or `Later`."""
    found: Any = later(function, *arguments)
    return found if isinstance(found, tuple) else tuple([number(operator.getitem, found, k) for k in range(count)])

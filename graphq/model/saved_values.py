"""Convert graphs and plans to JSON and back.

Numbers, strings and null stay as they are; any other value becomes a list `[kind, ...]`. Arrays, long tuples of floats
and kernel modules are written as indices, because their bytes lie in other sections of the file. The parts of a plan
are written as the names of their classes, and their fields. A trace of open sizes also has functions, which are written
as names. Only functions and classes with a name (`base.sizes`) can be written and read.

A `Reader` makes only data. A `PlanReader` also calls functions with a name and returns addresses of code, so it must
not read files that others could have written.
"""
import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from functools import cache
from importlib import import_module
from typing import Any

import numpy as np

from graphq.base.arrays import Content
from graphq.base.budget import expect
from graphq.base.sizes import RECORDED, Later, Size, Trace, name_of, recorded
from graphq.dtypes import DTYPES, DType, as_dtype
from graphq.errors import GraphError, ParseError
from graphq.ir import OPS, SIZED_CONSTANT, Graph, Op, TensorType, check_dims, flat, lookup, rebuilt
from graphq.kernels.jit import Function, FunctionTable, Module
from graphq.plan.plan import Ref


def _name_all(prefix: str, functions: Iterable[Any]) -> None:
    for function in functions:
        recorded(prefix + function.__name__)(function)


_name_all("", (
    int, float, bool, min, max, round, len, sum, tuple, math.ceil, math.floor, math.prod,
    *(getattr(operator, name) for name in operator.__all__ if not isinstance(getattr(operator, name), type))))
_name_all("numpy.", (
    *(f for f in list(vars(np).values()) if isinstance(f, np.ufunc)),  # a copy, because NumPy adds to its dict
    np.array, np.asarray, np.ascontiguousarray, np.where, np.atleast_1d, np.tile, np.full, np.eye, np.all, np.any,
    np.size, np.prod, np.broadcast_to, *(t.numpy.type for t in DTYPES.values())))

GROUPS = {
    "builder": "plan.builder", "depthwise": "kernels.depthwise.floats", "eltwise": "kernels.eltwise.family",
    "interpolate": "kernels.interpolate.family", "matmul": "kernels.matmul.plan", "means": "kernels.pool.means",
    "onnx": "onnx.importers.importer", "onnx_node": "onnx.protos.fallback", "onnx_pool": "onnx.importers.pool",
    "padding": "kernels.conv.padding", "pixels": "kernels.pixels.blocks", "pool": "kernels.pool.family",
    "space": "kernels.operands.space", "sum_errors": "kernels.ties.sum_errors", "sums": "kernels.numbers.sum_orders",
    "windows": "kernels.operands.windows"}
"""The modules of functions with names `group.name`, which are imported when a plan needs a function of the group."""

FEW = 16
"""Longer tuples of floats, such as the scales of channels, are written as arrays: JSON takes longer."""
FLOATS_GROWTH = 4
"""The bytes of memory that each byte of such an array takes: 24 for a float and 8 for its place in the tuple."""
_PLAIN = frozenset({bool, int, float, str, type(None)})


class Unsaved(Exception):
    """Raised for a value that cannot be written to a file, such as a lambda."""


class Writer:
    """Converts values to JSON, and collects their arrays and kernel modules without duplicates."""

    def __init__(self) -> None:
        self.arrays: list[np.ndarray] = []
        self.modules: dict[str, tuple[int, Module | None]] = {}
        """Each kernel module with its index, by the module's recipe; None for a module in another file."""
        self._numbers: dict[Content, int] = {}

    def of(self, x: Any) -> Any:
        """The JSON of a value. Raises Unsaved if JSON cannot express it."""
        kind = type(x)
        if kind in _PLAIN:
            return x
        if isinstance(x, Ref):
            return ["ref", x.buffer, self.of(x.offset)]
        if kind in (tuple, list):
            kinds = set(map(type, x))
            if kind is tuple and kinds == {float} and len(x) > FEW:
                return ["floats", self.array(np.array(x))]
            return [kind.__name__, *(x if kinds <= _PLAIN else map(self.of, x))]
        if isinstance(x, np.ndarray):
            return ["array", self.array(x)]
        if isinstance(x, np.generic):
            return ["scalar", self.array(np.asarray(x))]
        if isinstance(x, bytes):
            return ["bytes", self.array(np.frombuffer(x, np.uint8))]
        if isinstance(x, DType):
            return ["dtype", x.name]
        if isinstance(x, np.dtype):
            return ["numpy dtype", as_dtype(x).name]
        if isinstance(x, TensorType):
            return ["type", x.dtype.name, None if x.shape is None else [self.of(d) for d in x.shape]]
        if isinstance(x, Op):
            return ["op", x.name] if OPS.get(x.name) is x or x is SIZED_CONSTANT else self._refuse(x)
        if isinstance(x, Mapping):
            return ["dict", *([self.of(k), self.of(v)] for k, v in x.items())]
        if isinstance(x, Graph):
            return ["graph", *map(self.of, _without_strange_facts(flat(x), self))]
        return self._of_plan(x)

    def _of_plan(self, x: Any) -> Any:
        if isinstance(x, Size):
            return ["size", x.slot, x.name]
        if isinstance(x, Later):
            return ["later", x.slot]
        if isinstance(x, Function):
            return ["code", self.module(x.module), x.name]
        if isinstance(x, FunctionTable):
            return ["table", *map(self.of, x.entries)]
        if name := name_of(x):
            return ["name", name]
        if name := name_of(type(x)):
            values = x if isinstance(x, tuple) else [getattr(x, f.name) for f in fields(x)]
            return ["record", name, *map(self.of, values)]
        return self._refuse(x)

    def module(self, module: Module) -> int:
        """The index of a kernel module; modules with the same code share an index."""
        return self.modules.setdefault(module.recipe, (len(self.modules), module))[0]

    def _refuse(self, x: Any) -> Any:
        raise Unsaved(f"{type(x).__name__} {x!r:.80}")

    def array(self, x: np.ndarray) -> int:
        """The index of an array; equal arrays share an index."""
        try:
            as_dtype(x.dtype)
        except GraphError:
            self._refuse(x)
        content = Content(x)
        if content not in self._numbers:
            self._numbers[content] = len(self.arrays)
            self.arrays.append(x)
        return self._numbers[content]


def _without_strange_facts(parts: tuple[Any, ...], writer: Writer) -> tuple[Any, ...]:
    """Leave out what JSON cannot express in the `meta` of a graph and its nodes. `parts` is the result of `flat`."""
    def plain(facts: Mapping[Any, Any]) -> dict[Any, Any]:
        return {k: v for k, v in facts.items() if _is_plain(k) and _is_plain(v)}

    name, inputs, nodes, outputs, names, facts = parts
    return name, inputs, [(*node, plain(meta)) for *node, meta in nodes], outputs, names, plain(facts)


def _is_plain(x: Any) -> bool:
    if isinstance(x, Mapping):
        return all(_is_plain(y) for pair in x.items() for y in pair)
    return type(x) in _PLAIN or type(x) in (tuple, list) and all(map(_is_plain, x))


class Reader:
    """Reads values from JSON with functions that check their arguments.

    `array` returns the array of an index, `op` the operation of a name.
    """

    def __init__(self, array: Callable[[Any], np.ndarray], op: Callable[[str], Op] = lookup) -> None:
        self._array = array
        self._kinds: dict[str, Callable[..., Any]] = {
            "tuple": lambda *items: tuple(self.all(items)),
            "list": lambda *items: self.all(items),
            "dict": lambda *items: {self.of(k): self.of(v) for k, v in items},
            "floats": cache(self._floats),
            "array": array,
            "scalar": lambda number: array(number)[()],
            # Cached, as floats are, because many values may have the same bytes.
            "bytes": cache(lambda number: array(number).tobytes()),
            "dtype": lambda name: DTYPES[name],
            "numpy dtype": lambda name: DTYPES[name].numpy,
            "type": lambda dtype, dims: TensorType(
                DTYPES[dtype], check_dims(None if dims is None else self.all(dims), "type")),
            "op": op,
            "graph": lambda *parts: rebuilt(*self.all(parts)),
        }

    def of(self, x: Any) -> Any:
        """The value that `Writer.of` converted to `x`. Raises errors of any kind if `Writer` did not make `x`."""
        if type(x) is not list:
            return x
        kind, *rest = x
        return self._kinds[kind](*rest)

    def all(self, items: Sequence[Any]) -> list[Any]:
        """The values of several items; most items are plain."""
        return [self.of(x) if type(x) is list else x for x in items]

    def _floats(self, number: Any) -> tuple[float, ...]:
        numbers = self._array(number)
        assert numbers.dtype == np.float64 and numbers.ndim == 1
        expect(FLOATS_GROWTH * numbers.nbytes, "the numbers of the file")
        return tuple(numbers.tolist())


def lookup_given(name: str) -> Op:
    """`lookup` for files that anybody may have written. Partitions are refused, because only graphq makes them."""
    if name == "partition":
        raise GraphError("a partition, in a file that others than this user can write to")
    return lookup(name)


def want(holds: bool, what: str) -> None:
    """Raise ParseError unless a condition on a file's data `holds`. Unlike `assert`, this is never switched off."""
    if not holds:
        raise ParseError(f"a plan that graphq does not make: {what}")


class PlanReader(Reader):
    """Reads plans. `modules` has the code of kernels. `trace` has the computations with open sizes (`base.sizes`)."""

    def __init__(self, array: Callable[[Any], np.ndarray], modules: Sequence[Module],
                 trace: Trace | None = None) -> None:
        super().__init__(array)
        self._kinds |= {
            "ref": lambda buffer, offset: Ref(buffer, self.of(offset)),
            "size": self._size,
            "later": self._later,
            "code": lambda number, name: _function(modules, number, name),
            "table": lambda *entries: FunctionTable(tuple(self.all(entries))),
            "name": _named,
            "record": lambda name, *items: _named(name)(*self.all(items)),
            "op": lambda name: SIZED_CONSTANT if name == SIZED_CONSTANT.name else lookup(name),
        }
        self.trace = trace
        self._computed = set() if trace is None else {call.slot for call in trace.calls}
        self._numbers = self._computed.union(() if trace is None else trace.leaves)

    def _size(self, slot: int, name: str) -> Size:
        want(slot in self._numbers and type(name) is str, f"size {slot!r:.40}")
        assert self.trace is not None  # it has the slot
        if name:
            self.trace.names[slot] = name
        return Size(self.trace, slot)

    def _later(self, slot: int) -> Later:
        want(slot in self._computed, f"slot {slot!r:.40} of a trace")
        assert self.trace is not None  # it has the slot
        return Later(self.trace, slot)


def _function(modules: Sequence[Module], number: Any, name: Any) -> Function:
    want(type(number) is int and 0 <= number < len(modules) and name in modules[number].code.names, "a kernel")
    found: Function = getattr(modules[number], name)
    return found


def _named(name: str) -> Any:
    if name not in RECORDED:
        import_module(f"graphq.{GROUPS[name.partition('.')[0]]}")
    return RECORDED[name]

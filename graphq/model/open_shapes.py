"""Open sizes of a graph: its inputs' dimensions, and values. Classes of sizes, and arrays that plans for them share."""
from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import replace
from itertools import chain, islice
from typing import NamedTuple, TypeAlias

import numpy as np

from graphq.base.sizes import later
from graphq.dtypes import s32, s64
from graphq.errors import GraphqError
from graphq.ir import Graph, TensorType, Value
from graphq.ir.copies import specialised
from graphq.ir.signature import Parameter, Signature
from graphq.plan.stages import in_one_plan

Sizes: TypeAlias = tuple[int, ...]
"""The open sizes of all inputs, in the order of `Places`."""
Shapes: TypeAlias = tuple[tuple[int, ...], ...]
"""The shapes of all inputs, in their order; behind them the values that are sizes, if there are any."""

EXAMPLES = {0: (0,), 1: (1,), 2: (12, 10, 14, 6, 9), 3: (52, 76, 92, 116, 44), 4: (352, 544, 416, 608, 736)}
"""Example sizes of each class. They are rare in models, so that none equals another number by chance.

Sizes of images are multiples of 32, since networks that halve an image five times need that.
"""


def size_class(size: int) -> int:
    """The class of a size: 0 and 1 have their own, class 2 are sizes up to 15, 3 up to 127, and so on by factors of 8.

    Plans of one class differ little in speed: tiles and shares of threads are chosen for one size of it.
    """
    return size if size < 2 else 2 + (size.bit_length() - 2) // 3


def range_of(of: int) -> str:
    """The range of sizes of the class `of`, as text."""
    return str(of) if of < 2 else f"{2 << 3 * (of - 2)} to {(2 << 3 * (of - 1)) - 1}"


def examples(sizes: Sequence[int]) -> Sizes:
    """An example for each size, of its class.

    Equal sizes get the same example, different ones different examples if possible.
    """
    chosen: dict[int, int] = {}
    for size in sizes:
        of = size_class(size)
        known = (size,) if size < 0 else EXAMPLES.get(of) or tuple(n * 8 ** (of - 4) for n in EXAMPLES[4])
        free = [n for n in known if n not in chosen.values()]
        if size not in chosen:
            chosen[size] = free[0] if free else known[0] if of < 2 else size
    return tuple(chosen[size] for size in sizes)


class Place(NamedTuple):
    """Where a call tells an open size: an axis of input number `input` or, if `of_value`, an element of its array."""

    input: int
    axis: int
    of_value: bool


class Places:
    """The places of all open sizes: open dimensions of an input, then the elements of one whose values are sizes."""

    def __init__(self, signature: Signature) -> None:
        self._inputs = signature.inputs
        self.all = [Place(k, axis, of_value) for k, p in enumerate(self._inputs) for axis, of_value in (
            *((axis, False) for axis, d in enumerate(p.type.shape or ()) if d is None),
            *((n, True) for n in range(p.type.size if p.property == SIZE else 0)))]
        self._valued = [p.name for p in self._inputs if p.property == SIZE]

    def shapes_of(self, arrays: Mapping[str, np.ndarray], with_values: bool = True) -> Shapes:
        """The shapes of a call's arrays, and the values."""
        shapes = tuple([arrays[p.name].shape for p in self._inputs])
        if not self._valued or not with_values:
            return shapes
        return (*shapes, tuple([x for name in self._valued for x in arrays[name].reshape(-1).tolist()]))

    def sizes(self, shapes: Shapes) -> Sizes:
        """The open sizes in these shapes and values."""
        values = chain(*shapes[len(self._inputs):])
        return tuple([next(values) if p.of_value else shapes[p.input][p.axis] for p in self.all])

    def shapes(self, sizes: Sizes) -> Shapes:
        """Shapes and values with these open sizes."""
        at = dict(zip(self.all, sizes, strict=True))
        values = tuple([size for p, size in at.items() if p.of_value])
        shapes = tuple([tuple([at[Place(k, axis, False)] if d is None else d for axis, d in
                               enumerate(p.type.shape or ())]) for k, p in enumerate(self._inputs)])
        return (*shapes, values) if values else shapes

    def graph(self, source: Graph, shapes: Shapes, constants: Mapping[str, np.ndarray]) -> Graph:
        """The graph with inputs of these shapes, these values if there are any, and constants in place of inputs."""
        left = chain(*shapes[len(self._inputs):])
        values = {p.name: later(_array, p.dtype.numpy, p.type.dims, *islice(left, p.type.size))
                  for p in self._inputs if p.property == SIZE} if len(shapes) > len(self._inputs) else None
        types = {p.name: TensorType(p.dtype, shape) for p, shape in zip(self._inputs, shapes, strict=False)}
        return specialised(source, types, constants, values)


def _array(dtype: np.dtype, dims: tuple[int, ...], *numbers: int) -> np.ndarray:
    return np.array(numbers, dtype).reshape(dims)


class Dimension(NamedTuple):
    """An open size; `name` is its name in the file, or tells its place."""

    input: str
    axis: int
    name: str


def open_dimensions(graph: Graph, places: Sequence[Place] | None = None) -> list[Dimension]:
    """The open sizes at these places, by default all open dimensions; names come from `graph.meta`, if it has any."""
    places = Places(Signature.of(graph)).all if places is None else places
    names = graph.meta.get("dimensions", {})
    inputs = [str(graph.inputs[p.input].name) for p in places]
    return [Dimension(of, p.axis, f"{of}[{p.axis}]" if p.of_value else names.get((of, p.axis)) or f"{of}.{p.axis}")
            for of, p in zip(inputs, places, strict=True)]


SIZE = "size"
"""The property, in a model's signature, of inputs whose values are open sizes: shapes depend on them."""
MOST_VALUES = 8
"""The most elements of an input whose values are open sizes."""


def _is_small(value: Value | Parameter) -> bool:
    return value.dtype in (s32, s64) and value.type.known and 0 < value.type.size <= MOST_VALUES


def signature_of(graph: Graph, arrays: Mapping[str, np.ndarray] | None = None) -> Signature:
    """The signature of a graph, in which inputs of a few integers have the property SIZE if shapes depend on them.

    None has it if shapes depend on more than such inputs, or if dimensions are open and no call's `arrays` are given.
    """
    signature = Signature.of(graph)
    sizes = _sizes(graph, arrays) if has_integers(signature) else ()
    return signature._replace(inputs=tuple([replace(p, property=SIZE) if p.name in sizes else p
                                            for p in signature.inputs]))


def has_integers(signature: Signature) -> bool:
    """Whether inputs of a few integers may be open sizes that are not taken as such."""
    return any(map(_is_small, signature.inputs)) and not any(p.property in (SIZE, "constant") for p in signature.inputs)


def _sizes(graph: Graph, arrays: Mapping[str, np.ndarray] | None) -> Container[str]:
    """The names of the inputs whose values decide shapes."""
    types = {str(v.name): v.type if arrays is None else TensorType(v.dtype, arrays[str(v.name)].shape)
             for v in graph.inputs}
    if not all(t.known for t in types.values()):
        return ()
    values: dict[str, np.ndarray] = {}
    few = {str(v.name) for v in graph.inputs if _is_small(v)}
    if arrays is None and in_one_plan(graph):
        return ()
    try:
        while not in_one_plan(trial := specialised(graph, types, {}, values)):
            found = [name for name in _deciding(trial) & few if name not in values]
            if not found:
                return ()
            values |= {name: np.full(types[name].dims, EXAMPLES[3][0], types[name].dtype.numpy) if arrays is None
                       else arrays[name] for name in found}
    except GraphqError:  # an example's value does not fit the graph
        return ()
    return values


def _deciding(graph: Graph) -> set[str]:
    """The inputs of a few integers from which operands of the first operations with unknown shapes are computed."""
    found, seen = set(), set()
    ready = [v for n in graph.nodes if all(x.type.known for x in n.operands)
             and not all(x.type.known for x in n.outputs) for v in n.operands]
    while ready:
        value = ready.pop()
        if value in seen or not _is_small(value):
            continue
        seen.add(value)
        if value.node is None:
            found.add(str(value.name))
        else:
            ready += value.node.operands
    return found


class Shared:
    """Shares equal arrays between plans. The arrays of the first plan are not compared among themselves."""

    def __init__(self) -> None:
        self._first: list[np.ndarray] | None = None
        self._known: dict[tuple[object, ...], list[np.ndarray]] = {}

    @property
    def empty(self) -> bool:
        """Whether there has been no plan yet."""
        return self._first is None

    def of(self, arrays: list[np.ndarray]) -> list[np.ndarray]:
        """A plan's arrays, replaced by equal ones of earlier plans, so that the plan can free its own."""
        if self._first is None:
            self._first = arrays
            return arrays
        made = [self._one_for(x) for x in (*self._first, *arrays)][len(self._first):]
        self._first = []
        return made

    def _one_for(self, array: np.ndarray) -> np.ndarray:
        """The first array that was seen with these bits, or this array itself."""
        data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        sample = data[::max(1, data.size // 64)].tobytes()
        alike = self._known.setdefault((array.dtype.str, array.shape, sample), [])
        for known in alike:
            if known is array or np.array_equal(np.ascontiguousarray(known).reshape(-1).view(np.uint8), data):
                return known
        alike.append(array)
        return array

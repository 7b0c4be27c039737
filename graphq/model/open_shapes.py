"""Find open sizes of inputs (known only at run time). Divide sizes into classes, such as 16 to 127, for plans."""
from collections.abc import Container, Mapping, Sequence
from dataclasses import replace
from itertools import chain, islice
from typing import NamedTuple, TypeAlias

import numpy as np

from graphq.base.sizes import later, recorded
from graphq.dtypes import s32, s64
from graphq.errors import GraphqError
from graphq.ir import Graph, GraphInput, Signature, TensorType, Value, reached, sources, specialized
from graphq.plan.plan import in_one_plan

Sizes: TypeAlias = tuple[int, ...]
"""The open sizes of a call's inputs, in the order of `Places`."""
Shapes: TypeAlias = tuple[tuple[int, ...], ...]
"""The shapes of all inputs, in order. If some inputs contain sizes (SIZE), one more tuple has their elements."""

EXAMPLES = {0: (0,), 1: (1,), 2: (12, 10, 14, 6, 9), 3: (52, 76, 92, 116, 44), 4: (352, 544, 416, 608, 736)}
"""Example sizes of each class (`size_class`). The first plan of a class is made for its examples.

Other dimensions of models rarely have these sizes. Large examples are multiples of 32, because some networks halve an
image five times.
"""


def size_class(size: int) -> int:
    """The class of a size. Class 0 has size 0, class 1 size 1, class 2 sizes 2 to 15, class 3 sizes 16 to 127, ...

    A plan chooses tiles and divides work for one size, and is nearly as fast at other sizes of the class.
    """
    return size if size < 2 else 2 + (size.bit_length() - 2) // 3


def class_of(sizes: Sizes) -> Sizes:
    """The class of each size."""
    return tuple(map(size_class, sizes))


def is_single(of: int) -> bool:
    """Whether a class has only one size. The size then equals `of`, the number of the class."""
    return of < 2


def range_of(of: int) -> str:
    """The range of sizes in a class, as text. `of` is the number of the class."""
    return str(of) if is_single(of) else f"{2 << 3 * (of - 2)} to {(2 << 3 * (of - 1)) - 1}"


def examples(sizes: Sequence[int]) -> Sizes:
    """For each size, an example of the same class.

    Equal sizes get the same example. Different sizes get different examples, if the class has enough examples.
    """
    chosen: dict[int, int] = {}
    for size in sizes:
        of = size_class(size)
        known = (size,) if size < 0 else EXAMPLES.get(of) or tuple(
            n * 8 ** (of - 4) for n in EXAMPLES[4] if n * 8 ** (of - 4) < 1 << 63)
        free = [n for n in known if n not in chosen.values()]
        if size not in chosen:
            chosen[size] = free[0] if free else known[0] if of < 2 else size
    return tuple(chosen[size] for size in sizes)


class Place(NamedTuple):
    """The place of an open size in a call's inputs: dimension `axis` of the input at index `input`.

    If `of_value`, the size is not a dimension but element `axis` of the input's array.
    """

    input: int
    axis: int
    of_value: bool


class Places:
    """The places of all open sizes, input by input: the open dimensions, then the elements of an input with SIZE.

    `keys` has a text such as "x.0" (axis 0 of input x) for each place.
    """

    def __init__(self, signature: Signature) -> None:
        self._inputs = signature.inputs
        self.all = [Place(k, axis, of_value) for k, p in enumerate(self._inputs) for axis, of_value in (
            *((axis, False) for axis, d in enumerate(p.type.shape or ()) if d is None),
            *((n, True) for n in range(p.type.size if p.property == SIZE else 0)))]
        self.keys = [f"{self._inputs[p.input].name}.{p.axis}" for p in self.all]
        self._valued = [p.name for p in self._inputs if p.property == SIZE]

    def names(self, graph: Graph) -> list[str]:
        """The names of the open sizes for reports: from the model's file (`graph.meta`), or else made-up names."""
        known, inputs = graph.meta.get("dimensions", {}), [self._inputs[p.input].name for p in self.all]
        return [f"{of}[{p.axis}]" if p.of_value else known.get((of, p.axis)) or key
                for p, of, key in zip(self.all, inputs, self.keys, strict=True)]

    def shapes_of(self, arrays: Mapping[str, np.ndarray], with_values: bool = True) -> Shapes:
        """The shapes of a call's arrays; `with_values` adds the elements of inputs with SIZE."""
        shapes = tuple([arrays[p.name].shape for p in self._inputs])
        if not self._valued or not with_values:
            return shapes
        return (*shapes, tuple([x for name in self._valued for x in arrays[name].reshape(-1).tolist()]))

    def sizes(self, shapes: Shapes) -> Sizes:
        """The open sizes in these shapes, in the order of `all`."""
        values = chain(*shapes[len(self._inputs):])
        return tuple([next(values) if p.of_value else shapes[p.input][p.axis] for p in self.all])

    def shapes(self, sizes: Sizes) -> Shapes:
        """The shapes that have these open sizes: the inverse of `sizes`."""
        at = dict(zip(self.all, sizes, strict=True))
        values = tuple([size for p, size in at.items() if p.of_value])
        shapes = tuple([tuple([at[Place(k, axis, False)] if d is None else d for axis, d in
                               enumerate(p.type.shape or ())]) for k, p in enumerate(self._inputs)])
        return (*shapes, values) if values else shapes

    def graph(self, source: Graph, shapes: Shapes, constants: Mapping[str, np.ndarray]) -> Graph:
        """A copy of the graph `source` for inputs of these shapes.

        Inputs in `constants` become constants. If `shapes` has the elements of inputs, operations use these elements
        instead of the inputs.
        """
        left = chain(*shapes[len(self._inputs):])
        values = {p.name: later(_array, p.dtype.numpy, p.type.dims, *islice(left, p.type.size))
                  for p in self._inputs if p.property == SIZE} if len(shapes) > len(self._inputs) else None
        types = {p.name: TensorType(p.dtype, shape) for p, shape in zip(self._inputs, shapes, strict=False)}
        return specialized(source, types, constants, values)


@recorded("array_of_numbers")
def _array(dtype: np.dtype, dims: tuple[int, ...], *numbers: int) -> np.ndarray:
    return np.array(numbers, dtype).reshape(dims)


SIZE = "size"
"""The `property` of an input that consists of a few integers on which shapes depend. Each integer is an open size."""
MOST_VALUES = 8
"""The most elements of an input whose values may be open sizes."""


def _is_small(value: Value | GraphInput) -> bool:
    return value.type.dtype in (s32, s64) and value.type.known and 0 < value.type.size <= MOST_VALUES


def signature_of(graph: Graph, arrays: Mapping[str, np.ndarray] | None = None) -> Signature:
    """The signature of a graph. Inputs of a few integers get the property SIZE if shapes depend on their elements.

    No input gets SIZE if shapes also depend on other data, or if dimensions are open and no `arrays` of a call are
    given.
    """
    signature = Signature.of(graph)
    sizes = _sizes(graph, arrays) if has_integers(signature) else ()
    return signature._replace(inputs=tuple([replace(p, property=SIZE) if p.name in sizes else p
                                            for p in signature.inputs]))


def has_integers(signature: Signature) -> bool:
    """Whether an input might have the property SIZE. Only the arrays of a call can decide it."""
    return any(map(_is_small, signature.inputs)) and not any(p.property in (SIZE, "constant") for p in signature.inputs)


def _sizes(graph: Graph, arrays: Mapping[str, np.ndarray] | None) -> Container[str]:
    types = {str(v.name): v.type if arrays is None else TensorType(v.dtype, arrays[str(v.name)].shape)
             for v in graph.inputs}
    if not all(t.known for t in types.values()):
        return ()
    values: dict[str, np.ndarray] = {}
    few = {str(v.name) for v in graph.inputs if _is_small(v)}
    if arrays is None and in_one_plan(graph):
        return ()
    try:
        while not in_one_plan(trial := specialized(graph, types, {}, values)):
            found = [name for name in _deciding(trial) & few if name not in values]
            if not found:
                return ()
            values |= {name: np.full(types[name].dims, EXAMPLES[3][0], types[name].dtype.numpy) if arrays is None
                       else arrays[name] for name in found}
    except GraphqError:  # the graph refuses the elements in `values`
        return ()
    return values


def _deciding(graph: Graph) -> set[str]:
    """The names of the small integer inputs on which the first unknown shapes depend.

    A shape is one of the first unknown shapes if all operands of its node have known shapes.
    """
    ready = [v for n in graph.nodes if all(x.type.known for x in n.operands)
             and not all(x.type.known for x in n.outputs) for v in n.operands if _is_small(v)]
    return {str(v.name) for v in reached(ready, lambda v: filter(_is_small, sources(v))) if v.node is None}

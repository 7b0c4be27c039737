"""Vary a graph's constants, sizes and attributes, to reveal passes that check too little.

A pass may forget to check a zero point, an axis or a padding, and still be right for the graph in its test.
"""
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import zip_longest
from typing import Any, Literal, TypeAlias, get_args, get_origin

import numpy as np

from graphq.dtypes import DType, s8, u8
from graphq.errors import GraphqError
from graphq.ir import Graph, Node, TensorType, Value
from graphq.validation.inputs import random_array
from graphq.validation.subgraphs import changed, rebuilt

MOST = 64
"""The most variations of a graph."""

Change: TypeAlias = "tuple[str, Callable[[Node], Mapping[str, Any]], Mapping[int, int]]"
"""A change: its description, a function from a node to its new attributes, and a map from old to new input sizes."""


def variations(graph: Graph, seed: int = 0) -> Iterator[tuple[str, Graph]]:
    """Yield copies of a graph with one change each, and the description of the change.

    Four kinds of changes alternate:

    - constants: all constants are redrawn, or all are negated
    - single numbers: a constant of one number gets a number for each index of an axis
    - attributes: an attribute gets another value, or all float attributes of a node are shifted
    - sizes: a size of the inputs grows by one or becomes 1, wherever the size occurs in the graph

    Copies that an operation refuses are left out. The same seed and graph give the same copies.
    """
    rng = np.random.default_rng(seed)
    kinds = (_constants(rng), _single_numbers(graph, rng), _attributes(graph, rng), _sizes(graph))
    changes = [c for turn in zip_longest(*kinds) for c in turn if c is not None]
    for words, attrs, sizes in changes[:MOST]:
        try:
            yield words, rebuilt(graph, types=partial(_resized, sizes=sizes), attributes=attrs)
        except (GraphqError, ValueError, TypeError, IndexError):  # type rules call NumPy, which raises the last three
            continue


def _resized(value: Value, sizes: Mapping[int, int]) -> TensorType:
    shape = value.shape
    return TensorType(value.dtype, None if shape is None else tuple(_replaced(shape, sizes)))


def _constants(rng: np.random.Generator) -> Iterator[Change]:
    def drawn(node: Node) -> Mapping[str, Any]:
        if node.op.name != "constant":
            return node.attrs
        return {"value": random_array(node.output.type, rng)}

    def negated(node: Node) -> Mapping[str, Any]:
        if node.op.name != "constant" or node.output.dtype.kind == "bool":
            return node.attrs
        value = node.attrs["value"]
        return {"value": (-value.astype(np.float64)).clip(node.output.dtype.min, node.output.dtype.max)
                .astype(value.dtype)}

    yield "other constants", drawn, {}
    yield "constants of the other sign", negated, {}
    yield "other constants", drawn, {}


def _single_numbers(graph: Graph, rng: np.random.Generator) -> Iterator[Change]:
    """Yield changes that give a constant operand of one number a number for each index of an axis of the result."""
    for node in graph.nodes:
        if not (node.op.elementwise and node.output.type.known):
            continue
        dims = node.output.type.dims
        for value in dict.fromkeys(v for v in node.operands if v.data is not None and v.data.size == 1):
            for axis, size in enumerate(dims):
                if size > 1:
                    type = TensorType(value.dtype, (size, *[1] * (len(dims) - axis - 1)))
                    yield f"{size} numbers along axis {axis} in {graph.describe(node)}", \
                        partial(changed, value.node, {"value": random_array(type, rng)}), {}


def _attributes(graph: Graph, rng: np.random.Generator) -> Iterator[Change]:
    for node in graph.nodes:
        for name, attribute in node.op.attributes.items():
            if isinstance(node.attrs[name], np.ndarray | Graph):
                continue
            for value in other_values(name, node, attribute.annotation, rng):
                yield f"{name}={value!r} in {graph.describe(node)}", partial(changed, node, {name: value}), {}
        numbers = {name: value for name, value in node.attrs.items() if isinstance(value, float)}
        for by in (100.0, -100.0) if len(numbers) > 1 else ():  # shift all floats of the node together
            moved = {name: value + by for name, value in numbers.items()}
            yield f"{', '.join(f'{k}={v!r}' for k, v in moved.items())} in {graph.describe(node)}", \
                partial(changed, node, moved), {}


def other_values(name: str, node: Node, annotation: Any, rng: np.random.Generator) -> Iterator[Any]:
    """Other values for the attribute `name` of a node."""
    value = node.attrs[name]
    if name == "zps":
        count = len(node.attrs["scales"])
        yield rng.integers(1, 100, count).tolist()
        yield None
    elif isinstance(value, DType):
        yield from {"u8": [s8], "s8": [u8]}.get(value.name, [])
    elif isinstance(value, bool):
        yield not value
    elif isinstance(value, int):
        yield from (value + 1, value - 1)
    elif isinstance(value, float):
        yield from (-value if value else -1.0, 1.7 * value + 0.3)
    elif isinstance(value, str):
        yield from (x for x in get_args(annotation) if get_origin(annotation) is Literal and x != value)
    elif isinstance(value, tuple) and value and all(isinstance(x, int) and not isinstance(x, bool) for x in value):
        yield [x + 1 for x in value]
        yield [*value[:-1], value[-1] + 1]
        if value[::-1] != value:
            yield list(value[::-1])
    elif isinstance(value, tuple) and value and all(isinstance(x, float) for x in value):
        yield (np.array(value) * rng.uniform(0.5, 2.0, len(value))).astype(np.float32).tolist()
        if value[::-1] != value:
            yield list(value[::-1])


def _sizes(graph: Graph) -> Iterator[Change]:
    found = dict.fromkeys(d for v in graph.inputs for d in v.shape or () if d)
    for size in found:
        for other in dict.fromkeys((size + 1, 1)):
            if other == size:
                continue
            sizes = {size: other}

            def resized(node: Node, sizes: Mapping[int, int] = sizes) -> Mapping[str, Any]:
                if node.op.name == "constant":
                    value = node.attrs["value"]
                    return {"value": np.resize(value, _replaced(value.shape, sizes))}
                return {**node.attrs, **{name: _replaced(node.attrs[name], sizes) for name in ("shape", "sizes")
                                         if isinstance(node.attrs.get(name), tuple)}}

            yield f"{other} instead of the size {size}", resized, sizes


def _replaced(shape: Sequence[Any], sizes: Mapping[int, int]) -> list[Any]:
    return [sizes.get(d, d) for d in shape]

"""Indexing of values: `value[...]` builds a slice, and a reshape if an index drops an axis or None adds one."""
from __future__ import annotations

from operator import index
from typing import TYPE_CHECKING, Any

import numpy as np

from graphq.errors import GraphError
from graphq.ir.op import lookup
from graphq.ir.tensor_type import Dim

if TYPE_CHECKING:
    from graphq.ir.node import Value

_END = 2**63 - 1
"""The end of a slice that reaches to the end of any axis."""


def indexed(value: Value, key: Any) -> Value:
    """`value[key]` as for an array, for ints, slices, `...` and None; `value` itself if the key selects all elements.

    Raises GraphError for other indices, for one outside of its axis, and for one that needs a dimension that is
    unknown.
    """
    where = f"an index of {value.graph.labels.mention(value)}: {value.type}"
    if value.shape is None:
        raise GraphError(f"{where}: the rank must be known")
    keys = _complete(key if isinstance(key, tuple) else (key,), len(value.shape), where)
    limits: dict[int, tuple[int, int, int]] = {}
    axes: list[int | None] = []  # per axis of the result: the axis of the value, or None for a new axis
    axis = 0
    for k in keys:
        if k is None:
            axes.append(None)
            continue
        if isinstance(k, slice):
            axes.append(axis)
            if k != slice(None):
                limits[axis] = _slice(k, value.shape[axis], where)
        else:
            limits[axis] = _single(index(k), value.shape[axis], where)
        axis += 1
    if limits:
        starts, ends, steps = zip(*limits.values(), strict=True)
        value = _add(value, "slice", axes=list(limits), starts=starts, ends=ends, steps=steps)
    if axes == list(range(axis)):
        return value
    assert value.shape is not None
    dims = [1 if a is None else value.shape[a] for a in axes]
    if dims.count(None) > 1:
        raise GraphError(f"{where}: at most one unknown dimension may be left where axes come or go")
    return _add(value, "static_reshape", shape=[-1 if d is None else d for d in dims])


def _add(value: Value, name: str, **attrs: Any) -> Value:
    return value.graph.add_node(lookup(name), [value], attrs)[0]


def _complete(keys: tuple[Any, ...], rank: int, where: str) -> list[Any]:
    """The indices, checked: exactly one for each axis, and each None in its place."""
    for k in keys:
        if not (k is None or k is ... or isinstance(k, slice)
                or isinstance(k, int | np.integer) and not isinstance(k, bool)):
            raise GraphError(f"{where}: must be an int, a slice, ... or None, got {k!r}; gather takes others")
    at = [n for n, k in enumerate(keys) if k is ...] or [len(keys)]
    rest = rank - sum(k is not None and k is not ... for k in keys)
    if rest < 0 or len(at) > 1:
        raise GraphError(f"{where}: takes {rank} indices and one ..., got {len(keys)}")
    return [*keys[:at[0]], *[slice(None)] * rest, *keys[at[0] + 1:]]


def _single(k: int, size: Dim, where: str) -> tuple[int, int, int]:
    if size is not None and not -size <= k < size:
        raise GraphError(f"{where}: must be in [{-size}, {size - 1}], got {k}")
    return k, k + 1 or _END, 1


def _slice(k: slice, size: Dim, where: str) -> tuple[int, int, int]:
    """Start, end and step for the operation slice, in which a negative end counts from the end of the axis."""
    try:
        start, stop, step = (None if x is None else index(x) for x in (k.start, k.stop, k.step))
    except TypeError:
        raise GraphError(f"{where}: a slice must have ints, got {k}") from None
    step = 1 if step is None else step
    if step == 0 or size is None and step < 0 and start is not None:
        raise GraphError(f"{where}: a step must not be 0, nor go back from an index of an unknown dimension, got {k}")
    if size is not None:
        taken = range(*slice(start, stop, step).indices(size))
        return (taken[0], taken.stop if taken.stop >= 0 else -_END, step) if taken else (0, 0, 1)
    first, last = (0, _END) if step > 0 else (_END, -_END)
    return first if start is None else start, last if stop is None else stop, step

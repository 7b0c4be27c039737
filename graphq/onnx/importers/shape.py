"""Importers of operators that return, take or change shapes."""
from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

import numpy as np

from graphq.base.budget import reserve
from graphq.base.sizes import Later, assumed, later
from graphq.dtypes import s64, u64
from graphq.errors import GraphError
from graphq.ir import Value, interpret
from graphq.ir.interpret import add_known
from graphq.onnx.importers.importer import Call, Outputs, Refused, imports
from graphq.onnx.protos.tensors import dense
from graphq.ops.open_arrays import filled, numbers_between
from graphq.ops.rules import normal_axis


def dims_of(value: Value) -> tuple[int, ...]:
    """The value's dimensions; raises GraphError if they are not known yet."""
    return value.type.dims


@imports("Shape")
def shape(c: Call) -> Outputs:
    """Import Shape: the operand's dimensions from `start` up to `end` (exclusive)."""
    dims = dims_of(c.input(0))[slice(c.attr("start", 0), c.attr("end"))]
    return add_known(c.graph, _s64(dims))


def _s64(numbers: int | Sequence[int]) -> np.ndarray | Later:
    return later(np.asarray, numbers, np.int64)


@imports("Size")
def size(c: Call) -> Outputs:
    """Import Size: the number of elements of the operand, s64."""
    return add_known(c.graph, _s64(math.prod(dims_of(c.input(0)))))


@imports("Constant")
def constant(c: Call) -> Outputs:
    """Import Constant; exactly one of value, value_float(s), value_int(s) and sparse_value is given."""
    (name, value), = c.attrs.items()
    if name == "sparse_value":
        return c.graph.add_constant(dense(value, "attribute 'sparse_value'"))
    if "string" in name:
        return None
    dtype = None if name == "value" else np.float32 if "float" in name else np.int64
    return c.graph.add_constant(np.asarray(value, dtype))


@imports("ConstantOfShape")
def constant_of_shape(c: Call) -> Outputs:
    """Import ConstantOfShape: a tensor of the given dimensions filled with one value."""
    value = c.attr("value", np.zeros(1, np.float32)).reshape(())
    dims = limited(tuple(c.numbers(0)), value.dtype)
    return add_known(c.graph, later(filled, value, dims))


@imports("Range")
def range_(c: Call) -> Outputs:
    """Import Range: `start + k * delta`, for max(ceil((limit - start) / delta), 0) elements."""
    numbers = [interpret.known(c.input(k)) for k in range(3)]
    if any(x is None for x in numbers):
        raise GraphError("start, limit and delta are not known before it runs")
    start, _, delta = map(assumed, numbers)
    if start.dtype.kind not in "iuf" or start.dtype.itemsize < 4 or delta == 0:
        return None
    return add_known(c.graph, later(numbers_between, *numbers))


@imports("OneHot")
def one_hot(c: Call) -> Outputs:
    """Import OneHot as comparisons of the indices with 0 to depth - 1, and with -depth to -1.

    Negative indices count from the end. Before version 11 the specification lacks them, but engines accept them.
    """
    c.expect(1, (), (1,))
    c.expect(2, (2,))
    (depth,), x, g, dims = c.numbers(1), c.input(0), c.graph, list(dims_of(c.input(0)))
    axis, one = c.attr("axis", -1), np.int64(1)
    if not -len(dims) - 1 <= axis <= len(dims):
        c.refuse(f"axis must be in [-r - 1, r] with r = {len(dims)}, got {axis}")
    if depth < 1:
        c.refuse(f"input 1, the depth, must be positive, got {depth}")
    if x.dtype == u64:
        return None
    axis += len(dims) + 1 if axis < 0 else 0
    index = g.static_reshape(x if x.dtype == s64 else g.cast(x, dtype=s64), shape=[*dims[:axis], 1, *dims[axis:]])
    hits = [g.equal(index, g.static_reshape(add_known(g, later(numbers_between, _s64(a), _s64(b), one)),
                                            shape=[depth, *[1] * (len(dims) - axis)]))
            for a, b in ((0, depth), (depth * -1, 0))]
    return g.gather(c.input(2), g.cast(g.logical_or(*hits), dtype=s64), axis=0)


@imports("Reshape")
def reshape(c: Call) -> Outputs:
    """Import Reshape; 0 copies the input's dimension (without `allowzero`), and -1 is computed."""
    wanted = c.attr("shape") if c.version < 5 else c.numbers(1)
    x = c.input(0)
    if not x.type.known and (-1 in wanted or 0 in wanted):
        # static_reshape would accept unknown dimensions, but importers of later nodes do not.
        raise GraphError(f"the shape of {x.type} is not known yet")
    return c.graph.static_reshape(x, shape=wanted, special_zero=not c.attr("allowzero", 0))


@imports("Flatten")
def flatten(c: Call) -> Outputs:
    """Import Flatten: a reshape to two dimensions, one for all dimensions before `axis` and one for the others."""
    dims = dims_of(c.input(0))
    axis = c.attr("axis", 1)
    if not -len(dims) <= axis <= len(dims):
        c.refuse(f"axis must be in [-r, r] with r = {len(dims)}, got {axis}")
    axis += len(dims) if axis < 0 else 0
    return c.graph.static_reshape(c.input(0), shape=[math.prod(dims[:axis]), math.prod(dims[axis:])])


@imports("Unsqueeze")
def unsqueeze(c: Call) -> Outputs:
    """Import Unsqueeze: insert dimensions of 1 at `axes`, counted in the result."""
    axes, dims = c.ints("axes", 1) or (), list(dims_of(c.input(0)))
    rank = len(dims) + len(axes)
    ones = (1,) * rank
    places = {normal_axis(a, ones, "axes") for a in axes}
    if len(places) < len(axes):
        c.refuse(f"axes must be different, got {list(axes)}")
    return c.graph.static_reshape(c.input(0), shape=[1 if k in places else dims.pop(0) for k in range(rank)])


@imports("Squeeze")
def squeeze(c: Call) -> Outputs:
    """Import Squeeze: remove the dimensions of 1 at `axes`, or all dimensions of 1."""
    axes, dims = c.ints("axes", 1), dims_of(c.input(0))
    places = {k for k, d in enumerate(dims) if d == 1} if axes is None else {normal_axis(a, dims, "axes") for a in axes}
    if any(dims[k] != 1 for k in places):
        c.refuse(f"dimensions at axes {list(axes or ())} of {c.input(0).type} must be 1")
    return c.graph.static_reshape(c.input(0), shape=[d for k, d in enumerate(dims) if k not in places])


def parts(x: Value, axis: int, sizes: Sequence[int]) -> Iterator[Value]:
    """Cut `x` along an axis into consecutive parts of these sizes; each part is a node that is added when needed."""
    for n, end in zip(sizes, itertools.accumulate(sizes), strict=True):
        yield x.graph.slice(x, axes=[axis], starts=[end - n], ends=[end], steps=[1])


def known(c: Call, k: int) -> np.ndarray:
    """The array of input `k`; raises GraphError if it is not known yet."""
    data = c.input(k).data
    if data is None:
        raise GraphError(f"input {k} is not known before it runs")
    return data


def limited(dims: tuple[int, ...], dtype: np.dtype) -> tuple[int, ...]:
    """Check the shape of a new constant. Raises Refused for negative dimensions, CompileError for too much memory."""
    if any(d < 0 for d in dims):
        raise Refused(f"a constant must have no negative dimensions, got shape {list(dims)}")
    reserve(math.prod(dims) * dtype.itemsize, f"a constant {dtype}{list(dims)}")
    return dims

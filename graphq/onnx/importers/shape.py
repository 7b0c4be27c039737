"""Importers of operators that return, take or change shapes, or move elements."""
import itertools
import math
from collections.abc import Iterator, Sequence

import numpy as np

from graphq.base.budget import reserve
from graphq.base.sizes import Later, assumed, later
from graphq.dtypes import s64, u64
from graphq.errors import GraphError
from graphq.ir import Value, add_known, known
from graphq.onnx.importers.composed import one, places, standard
from graphq.onnx.importers.importer import Call, Outputs, Refused, imports, imports_each
from graphq.onnx.protos.tensors import dense, dtype_of
from graphq.ops.open_arrays import numbers_between
from graphq.ops.rules import broadcast, normal_axis


def _s64(numbers: int | Sequence[int]) -> np.ndarray | Later:
    return later(np.asarray, numbers, np.int64)


imports_each({
    # the slices along `axis`, or the elements, where the condition is true
    "Compress": lambda c: c.graph.gather(
        c.input(0) if "axis" in c.attrs else c.graph.static_reshape(c.input(0), shape=[-1]),
        c.graph.static_reshape(*standard(c, "NonZero", [c.input(1)]), shape=[-1]), axis=c.attr("axis", 0)),
    "Concat": lambda c: c.graph.concat(*(c.input(k) for k in range(len(c.inputs))), axis=c.attr("axis", 1)),
    "ConcatFromSequence": lambda c: c.graph.concat(*(
        standard(c, "Unsqueeze", [x, np.asarray([c.attr("axis")])])[0] if c.attr("new_axis", 0)
        else x for x in _elements(c)), axis=c.attr("axis")),
    "EyeLike": lambda c: _eye(c, *c.input(0).type.dims),
    **dict.fromkeys(("Identity", "OptionalGetElement"), lambda c: c.input(0) if c.has(0) else _keep(c, _elements(c))),
    "OptionalHasElement": lambda c: c.graph.add_constant(np.asarray(c.has(0))),
    "Scatter": lambda c: c.graph.scatter_elements(c.input(0), c.input(1), c.input(2), axis=c.attr("axis", 0)),
    "SequenceAt": lambda c: _elements(c)[c.numbers(1)[0]],
    "SequenceConstruct": lambda c: _keep(c, [c.input(k) for k in range(len(c.inputs))]),
    "SequenceEmpty": lambda c: _keep(c, []),
    "SequenceLength": lambda c: c.graph.add_constant(np.asarray(len(_elements(c)))),
    "Shape": lambda c: add_known(c.graph, _s64(c.input(0).type.dims[slice(c.attr("start", 0), c.attr("end"))])),
    "Size": lambda c: add_known(c.graph, _s64(math.prod(c.input(0).type.dims))),
    # without `perm`, the dimensions are reversed
    "Transpose": lambda c: c.graph.static_transpose(c.input(0), order=c.attr(
        "perm", list(range(len(c.input(0).shape or c.input(0).type.dims)))[::-1])),
})


def _keep(c: Call, sequence: list[Value]) -> Outputs:
    c.scope.sequences[c.node.output[0]] = sequence
    return ()


def _elements(c: Call) -> list[Value]:
    if c.has(0):
        c.refuse(f"input 0 must be a sequence, got {c.input(0).type}")
    return c.scope.sequences[c.node.input[0]]


def _eye(c: Call, rows: int, columns: int) -> Value:
    """A diagonal of ones, in the dtype of the attribute or of the input."""
    dtype = dtype_of(c.attr("dtype"), "attribute 'dtype'") if "dtype" in c.attrs else c.input(0).dtype
    limited((rows, columns), dtype.numpy)
    return add_known(c.graph, later(np.eye, rows, columns, c.attr("k", 0), dtype.numpy))


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
    return add_known(c.graph, later(np.broadcast_to, value, dims))


@imports("Range")
def range_(c: Call) -> Outputs:
    """Import Range: `start + k * delta`, for max(ceil((limit - start) / delta), 0) elements."""
    numbers = [known(c.input(k)) for k in range(3)]
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
    (depth,), x, g, dims = c.numbers(1), c.input(0), c.graph, list(c.input(0).type.dims)
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
    dims = c.input(0).type.dims
    axis = c.attr("axis", 1)
    if not -len(dims) <= axis <= len(dims):
        c.refuse(f"axis must be in [-r, r] with r = {len(dims)}, got {axis}")
    axis += len(dims) if axis < 0 else 0
    return c.graph.static_reshape(c.input(0), shape=[math.prod(dims[:axis]), math.prod(dims[axis:])])


@imports("Unsqueeze")
def unsqueeze(c: Call) -> Outputs:
    """Import Unsqueeze: insert dimensions of 1 at `axes`, counted in the result."""
    axes, dims = c.ints("axes", 1) or (), list(c.input(0).type.dims)
    rank = len(dims) + len(axes)
    ones = (1,) * rank
    places = {normal_axis(a, ones, "axes") for a in axes}
    if len(places) < len(axes):
        c.refuse(f"axes must be different, got {list(axes)}")
    return c.graph.static_reshape(c.input(0), shape=[1 if k in places else dims.pop(0) for k in range(rank)])


@imports("Squeeze")
def squeeze(c: Call) -> Outputs:
    """Import Squeeze: remove the dimensions of 1 at `axes`, or all dimensions of 1."""
    axes, dims = c.ints("axes", 1), c.input(0).type.dims
    places = {k for k, d in enumerate(dims) if d == 1} if axes is None else {normal_axis(a, dims, "axes") for a in axes}
    if any(dims[k] != 1 for k in places):
        c.refuse(f"dimensions at axes {list(axes or ())} of {c.input(0).type} must be 1")
    return c.graph.static_reshape(c.input(0), shape=[d for k, d in enumerate(dims) if k not in places])


def parts(x: Value, axis: int, sizes: Sequence[int]) -> Iterator[Value]:
    """Cut `x` along an axis into consecutive parts of these sizes; each part is a node that is added when needed."""
    for n, end in zip(sizes, itertools.accumulate(sizes), strict=True):
        yield x.graph.slice(x, axes=[axis], starts=[end - n], ends=[end], steps=[1])


def limited(dims: tuple[int, ...], dtype: np.dtype) -> tuple[int, ...]:
    """Check the shape of a new constant. Raises Refused for negative dimensions, CompileError for too much memory."""
    if any(d < 0 for d in dims):
        raise Refused(f"a constant must have no negative dimensions, got shape {list(dims)}")
    reserve(math.prod(dims) * dtype.itemsize, f"a constant {dtype}{list(dims)}")
    return dims


@imports("Slice")
def slice_(c: Call) -> Outputs:
    """Import Slice; starts, ends, axes and steps are attributes before version 10 and constants since then."""
    starts, ends = c.ints("starts", 1), c.ints("ends", 2)
    if starts is None or ends is None:
        c.refuse("starts and ends are required")
    axes = c.ints("axes", 3) or range(len(starts))
    steps = c.ints("steps", 4) or (1,) * len(starts)
    return c.graph.slice(c.input(0), axes=axes, starts=starts, ends=ends, steps=steps)


@imports("Split")
def split(c: Call) -> Outputs:
    """Import Split as one slice per output. Without sizes, outputs are equal, but the last may be smaller."""
    dims, outputs = c.input(0).type.dims, len(c.node.output)
    if c.attr("num_outputs", outputs) != outputs:
        c.refuse(f"num_outputs must be the number of outputs, {outputs}, got {c.attr('num_outputs')}")
    axis = normal_axis(c.attr("axis", 0), dims)
    sizes = c.ints("split", 1)
    if sizes is None:
        each = -(-dims[axis] // outputs)
        sizes = (*[each] * (outputs - 1), dims[axis] - each * (outputs - 1))
    if sum(sizes) != dims[axis] or min(sizes) < 0 or len(sizes) != len(c.node.output):
        c.refuse(f"sizes {list(sizes)} do not split {dims[axis]} elements into {len(c.node.output)} outputs")
    return list(parts(c.input(0), axis, sizes))


@imports("SplitToSequence")
def split_to_sequence(c: Call) -> Outputs:
    """Import SplitToSequence by Split: into parts of one size, or of the sizes that a vector gives at run time."""
    x, axis, sizes, most = c.input(0), c.attr("axis", 0), c.optional(1), 1 << 16
    size, step = x.type.dims[axis], 1 if sizes is None or sizes.type.dims else c.numbers(1)[0]
    count = sizes.type.dims[0] if sizes is not None and sizes.type.dims else -(-size // max(step, 1))
    if step < 1 or not 0 < count <= most:
        c.refuse(f"{size} elements must be split into 1 to {most} parts, got {count} parts of {step}")
    if sizes is None and not c.attr("keepdims", 1):
        return _keep(c, [c.graph.gather(x, np.asarray(k), axis=axis) for k in range(size)])
    if sizes is None or not sizes.type.dims:
        sizes = c.graph.add_constant(np.asarray([min(step, size - k) for k in range(0, size, step)]))
    return _keep(c, standard(c, "Split", [x, sizes], count, axis=axis))


@imports("Expand")
def expand(c: Call) -> Outputs:
    """Import Expand: broadcast the operand with `shape`."""
    shape, x = tuple(c.numbers(1)), c.input(0)
    if min(shape, default=0) < 0:
        c.refuse(f"a shape must have no negative dimensions, got {list(shape)}")
    dims = x.type.dims
    return x if broadcast(dims, shape) == dims else c.graph.expand(x, shape=shape)


@imports("Pad")
def pad(c: Call) -> Outputs:
    """Import Pad in modes constant, edge, reflect and wrap; pads apply to `axes`, by default to all axes."""
    pads, axes = c.ints("pads" if c.version > 1 else "paddings", 1), c.ints("axes", 3)
    rank = len(c.input(0).type.dims)
    if pads is None:
        c.refuse("pads are required")
    places = [normal_axis(a, (1,) * rank, "axes") for a in (range(rank) if axes is None else axes)]
    if len(pads) != 2 * len(places):
        c.refuse(f"pads must be {2 * len(places)} numbers, got {list(pads)}")
    begin, end = [0] * rank, [0] * rank
    for k, axis in enumerate(places):
        begin[axis], end[axis] = pads[k], pads[k + len(places)]
    value = float(c.array(2).reshape(())) if c.has(2) else float(c.attr("value", 0.0))
    return c.graph.pad(c.input(0), pads_begin=begin, pads_end=end, mode=c.attr("mode", "constant"), value=value)


@imports("Tile")
def tile(c: Call) -> Outputs:
    """Import Tile: add dimensions of 1, expand them, and merge them."""
    dims, repeats = c.input(0).type.dims, c.numbers(1)
    if c.version < 6:  # in old versions, input 1 is the number of repetitions, input 2 the axis
        axis = c.numbers(2)[0] % len(dims)
        repeats = [repeats[0] if k == axis else 1 for k in range(len(dims))]
    if len(repeats) != len(dims) or min(repeats, default=0) < 0:
        raise GraphError(f"repeats {repeats} do not fit {c.input(0).type}")
    out = [d * r for d, r in zip(dims, repeats, strict=True)]
    apart = c.graph.static_reshape(c.input(0), shape=[n for d in dims for n in (1, d)])
    wide = c.graph.expand(apart, shape=[n for d, r in zip(dims, repeats, strict=True) for n in (r, d)])
    return c.graph.static_reshape(wide, shape=out)


@imports("DepthToSpace", "SpaceToDepth")
def blocks(c: Call) -> Outputs:
    """Import DepthToSpace or SpaceToDepth, in modes DCR and CRD, as a reshape, a transpose and a reshape."""
    n, channels, h, w = c.input(0).type.dims
    b, mode = c.attr("blocksize"), c.attr("mode", "DCR")
    if mode not in ("DCR", "CRD"):
        c.refuse(f"attribute 'mode' must be DCR or CRD, got {mode!r}")
    depth_first = mode == "DCR"
    if c.node.op_type == "SpaceToDepth":
        shape, out = [n, channels, h // b, b, w // b, b], [channels * b * b, h // b, w // b]
        order = [0, 3, 5, 1, 2, 4] if depth_first else [0, 1, 3, 5, 2, 4]
    else:
        depth = channels // (b * b)
        out = [depth, h * b, w * b]
        shape, order = ([n, b, b, depth, h, w], [0, 3, 4, 1, 5, 2]) if depth_first else \
            ([n, depth, b, b, h, w], [0, 1, 4, 2, 5, 3])
    x = c.graph.static_transpose(c.graph.static_reshape(c.input(0), shape=shape), order=order)
    return c.graph.static_reshape(x, shape=[n, *out])


@imports("ReverseSequence")
def reverse_sequence(c: Call) -> Outputs:
    """Import ReverseSequence: gather the steps of each sequence, with the order of the first steps reversed."""
    x, g, rank = c.input(0), c.graph, len(c.input(0).type.dims)
    order, time = [1, 0, *range(2, rank)], c.attr("time_axis", 0)
    if rank < 2 or {time, c.attr("batch_axis", 1)} != {0, 1}:
        c.refuse(f"time_axis and batch_axis must be 0 and 1 of {x.type}, got {time} and {c.attr('batch_axis', 1)}")
    c.expect(1, (x.type.dims[1 - time],))
    rows = x if time else g.static_transpose(x, order=order)
    lengths, steps = g.static_reshape(c.input(1), shape=[-1, 1]), g.cast(places(c, x, time), dtype=s64)
    last = g.arithmetic(lengths, one(lengths, 1), function="subtract")
    taken = g.choose(g.less(steps, lengths), g.arithmetic(last, steps, function="subtract"), steps)
    y = g.gather_nd(rows, g.static_reshape(taken, shape=[0, 0, 1], special_zero=True), batch_dims=1)
    return y if time else g.static_transpose(y, order=order)

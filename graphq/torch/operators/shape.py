"""Importers of operators that return, take or change shapes, make tensors, or move elements."""
import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from graphq.dtypes import DType, s64
from graphq.ir import Value
from graphq.torch.operators.importer import AtenCall, Result, imports, imports_each

END = 2**63 - 1
"""What `slice` has for "up to the end"."""


def reshaped(c: AtenCall, x: Value, old: Sequence[Any], new: Sequence[Any], given: Any = None) -> Value:
    """Reshape `x` from `old` to `new`, shapes with the program's symbols; `given` may have the new sizes as values.

    A dimension with the same symbol at the same place is copied, and one other open dimension follows from the others.
    If more remain, the sizes of the call are computed.
    """
    sizes = [n if isinstance(n, int) else 0 if k < len(old) and str(n) == str(old[k]) else -1
             for k, n in enumerate(new)]
    if not any(isinstance(n, int) and n == 0 for n in new) and sizes.count(-1) <= 1:
        return c.graph.static_reshape(x, shape=sizes, special_zero=0 in sizes)
    symbols = [str(n) for n in old]
    sizes = [n if isinstance(n, int) else c.size(x, symbols.index(str(n))) if str(n) in symbols else
             given[k] if isinstance(given, list) else -1 for k, n in enumerate(new)]
    found: Value = c.onnx("Reshape", x, c.vector(sizes), allowzero=1)
    return found


@imports("view", "_unsafe_view", "reshape", "flatten", "unflatten", "squeeze", "unsqueeze", "view_as", "ravel")
def view(c: AtenCall) -> Result:
    """Import a change of shape that the program's own types state.

    Integers are reshaped before they are dequantized at run time, because fusions match a product of dequantized
    operands.
    """
    x, node = c.input(0), c.input(0).node
    if node is not None and node.op.name == "dynamic_dequantize" and node.attrs["qtype"] == "per_tensor":
        return c.graph.add_node(node.op, [_viewed(c, node.operand(0)), *node.inputs[1:]], node.attrs)[0]
    return _viewed(c, x)


def _viewed(c: AtenCall, x: Value) -> Value:
    old, new = c.fake(0).shape, c.fake().shape
    if c.op == "unsqueeze" and sum(not isinstance(n, int) for n in old) > 1:
        wide: Value = c.onnx("Unsqueeze", x, np.asarray([c.args[1]], np.int64))  # keeps the other dimensions' sizes
        return wide
    return reshaped(c, x, old, new, c.arg(1))


@imports("permute", "transpose", "t", "numpy_T", "swapaxes", "movedim")
def permute(c: AtenCall) -> Result:
    """Import a permutation of axes, or an exchange of two axes (of a matrix by default)."""
    x = c.input(0)
    order = list(range(len(c.dims(x))))
    if len(c.args) == 3:
        a, b = c.args[1:]
        order[a], order[b] = order[b], order[a]
    elif len(c.args) == 2:
        order = [k % len(order) for k in c.args[1]]
    else:
        order.reverse()
    return c.graph.static_transpose(x, order=order)


@imports("expand", "expand_as", "broadcast_to")
def expand(c: AtenCall) -> Result:
    """Import a broadcast; -1 and equal dimensions stay."""
    x, old, new = c.input(0), c.fake(0).shape, c.fake().shape
    wanted = c.arg(1)
    if isinstance(wanted, Value):  # expand_as
        wanted = [c.size(wanted, k) for k in range(len(new))]
    more = len(new) - len(old)
    stays = [k >= more and (n is old[k - more] or str(n) == str(old[k - more])) for k, n in enumerate(new)]
    sizes = [1 if stays[k] else n for k, n in enumerate(wanted)]
    if all(stays):
        return x
    if all(isinstance(n, int) for n in sizes):
        return c.graph.expand(x, shape=sizes)
    return c.onnx("Expand", x, c.vector(sizes))


@imports("cat", "concat", "concatenate")
def cat(c: AtenCall) -> Result:
    """Import a concatenation; PyTorch skips empty vectors."""
    parts = [c.cast(v) for v in c.args[0] if v.shape != (0,)]
    return c.graph.concat(*parts, axis=c.arg(1, "dim", 0)) if len(parts) > 1 else parts[0]


@imports("stack")
def stack(c: AtenCall) -> Result:
    """Import a concatenation along a new axis."""
    axis = c.arg(1, "dim", 0) % len(c.fake().shape)
    parts = [c.onnx("Unsqueeze", c.cast(v), np.asarray([axis], np.int64)) for v in c.args[0]]
    return c.graph.concat(*parts, axis=axis)


def cut(c: AtenCall, x: Value, axis: int, start: Any, end: Any, step: int = 1) -> Value:
    """The elements from `start` up to `end` along an axis; `end` may be open."""
    start, end = 0 if start is None else start, END if end is None else end
    if start == 0 and end == END and step == 1:
        return x
    if isinstance(start, int) and isinstance(end, int):
        return c.graph.slice(x, axes=[axis], starts=[start], ends=[end], steps=[step])
    sliced: Value = c.onnx("Slice", x, c.vector([start]), c.vector([end]), np.asarray([axis], np.int64),
                           np.asarray([step], np.int64))
    return sliced


@imports("slice")
def slice_(c: AtenCall) -> Result:
    """Import a slice with a step along one axis."""
    return cut(c, c.input(0), c.arg(1, "dim", 0), c.arg(2, "start"), c.arg(3, "end"), c.arg(4, "step", 1))


@imports("narrow")
def narrow(c: AtenCall) -> Result:
    """Import `length` elements from `start` on."""
    start, length = c.args[2:4]
    return cut(c, c.input(0), c.args[1], start, start + length)


@imports("diff")
def diff(c: AtenCall) -> Result:
    """Import differences of neighbors along an axis, `n` times; `prepend` and `append` are joined first."""
    axis = c.arg(2, "dim", -1)
    parts = [v for v in (c.arg(3, "prepend"), c.input(0), c.arg(4, "append")) if v is not None]
    x = c.graph.concat(*parts, axis=axis) if len(parts) > 1 else parts[0]
    for _ in range(c.arg(1, "n", 1)):
        x = c.onnx("Sub", cut(c, x, axis, 1, END), cut(c, x, axis, 0, -1))
    return x


@imports("select")
def select(c: AtenCall) -> Result:
    """Import one element of an axis, without the axis."""
    index = c.args[2]
    place = c.graph.add_constant(np.asarray(index, np.int64)) if isinstance(index, int) else \
        c.graph.static_reshape(index, shape=[])
    return c.graph.gather(c.input(0), place, axis=c.args[1])


@imports("split", "split_with_sizes", "chunk", "unbind", "tensor_split")
def split(c: AtenCall) -> Result:
    """Import consecutive parts along an axis, as many and as large as the program's types state."""
    x, fakes, name = c.input(0), c.fake(), c.op
    axis = c.arg(1, "dim", 0) if "unbind" in name else c.arg(2, "dim", 0)
    axis %= len(c.dims(x))
    if "unbind" in name:
        return [c.graph.gather(x, np.asarray(k, np.int64), axis=axis) for k in range(len(fakes))]
    sizes = c.args[1] if "with_sizes" in name else [f.shape[axis] for f in fakes]
    parts: list[Value] = []
    start: Any = 0
    for k, n in enumerate(sizes):
        last = k == len(sizes) - 1
        if not isinstance(n, int) and not last and not isinstance(n, Value):
            c.refuse("parts of an open axis must have known sizes")
        end = END if last else start + n if isinstance(n, int) and isinstance(start, int) else \
            c.onnx("Add", c.vector([start]), c.vector([n]))
        parts.append(cut(c, x, axis, start, end))
        start = end
    return parts


@imports("embedding")
def embedding(c: AtenCall) -> Result:
    """Import rows of a table."""
    return c.graph.gather(c.input(0), c.input(1), axis=0)


@imports("index_select")
def index_select(c: AtenCall) -> Result:
    """Import the elements at indices along an axis."""
    return c.graph.gather(c.input(0), c.input(2), axis=c.args[1])


@imports("index")
def index(c: AtenCall) -> Result:
    """Import indexing by tensors: one tensor, or several for consecutive axes, which broadcast; or one mask."""
    x, places = c.input(0), list(c.args[1])
    axes = [k for k, p in enumerate(places) if p is not None]
    if any(p.dtype.kind == "bool" for p in places if p is not None):
        c.refuse("the size of the result depends on data: use where or masked_fill")
    if len(axes) == 1:
        return c.graph.gather(x, c.cast(places[axes[0]], s64), axis=axes[0])
    if axes != list(range(axes[0], axes[-1] + 1)):
        c.refuse("indices of axes that are not neighbors are not supported")
    found = [c.cast(places[k], s64) for k in axes]
    rank = len(c.dims(x))
    if axes[0]:
        x = c.graph.static_transpose(x, order=[*axes, *(k for k in range(rank) if k not in axes)])
    whole = found[0]
    for f in found[1:]:
        whole = c.onnx("Add", whole, c.onnx("Mul", f, c.number(0, s64)))
    shape = c.onnx("Shape", whole)
    last = [c.onnx("Unsqueeze", c.onnx("Expand", f, shape), np.asarray([-1], np.int64)) for f in found]
    y = c.onnx("GatherND", x, c.graph.concat(*last, axis=-1))
    if not axes[0]:
        return y
    count = len(c.dims(whole))
    rest = list(range(count, count + rank - len(axes)))
    return c.graph.static_transpose(y, order=[*rest[:axes[0]], *range(count), *rest[axes[0]:]])


imports_each({
    "gather": lambda c: c.onnx("GatherElements", c.input(0), c.input(2), axis=c.args[1]),
    "scatter_add": lambda c: c.onnx("ScatterElements", c.input(0), c.input(2), c.input(3), axis=c.args[1],
                                    reduction="add"),
    "item": lambda c: c.refuse("a number depends on data"),
    "_local_scalar_dense": lambda c: c.refuse("a number depends on data"),
    "nonzero": lambda c: c.refuse("the size of the result depends on data"),
    "sym_size": lambda c: c.size(c.input(0), c.args[1]),
    ".getitem": lambda c: c.args[0][c.args[1]],
    "tril": lambda c: c.onnx("Trilu", c.input(0), c.number(c.arg(1, "diagonal", 0), s64), upper=0),
    "triu": lambda c: c.onnx("Trilu", c.input(0), c.number(c.arg(1, "diagonal", 0), s64), upper=1),
    "copy": lambda c: expanded_like(c, c.cast(c.input(1)), c.input(0)),
    "sym_numel": lambda c: c.onnx("ReduceProd", c.onnx("Shape", c.input(0)), None, keepdims=1),
})


def expanded_like(c: AtenCall, x: Value, like: Value) -> Value:
    """Broadcast `x` to the shape of another value."""
    if x.shape == like.shape and x.type.known:
        return x
    return c.onnx("Expand", x, c.vector([c.size(like, k) for k in range(len(c.dims(like)))]))


@imports("scatter")
def scatter(c: AtenCall) -> Result:
    """Import a scatter of a tensor or a number along an axis."""
    updates = c.args[3]
    if not isinstance(updates, Value):
        updates = expanded_like(c, c.number(updates, c.dtype()), c.input(2))
    return c.onnx("ScatterElements", c.input(0), c.input(2), updates, axis=c.args[1])


@imports("slice_scatter")
def slice_scatter(c: AtenCall) -> Result:
    """Import a copy with other elements between `start` and `end` along an axis."""
    x, new, axis = c.input(0), c.input(1), c.arg(2, "dim", 0)
    start, end, step = c.arg(3, "start"), c.arg(4, "end"), c.arg(5, "step", 1)
    if step != 1:
        c.refuse("a step other than 1 is not supported")
    start = 0 if start is None else start
    parts = [] if start == 0 else [cut(c, x, axis, 0, start)]
    after = [] if end is None or end == END else [cut(c, x, axis, end, END)]
    return c.graph.concat(*parts, new, *after, axis=axis) if parts or after else new


@imports("select_scatter")
def select_scatter(c: AtenCall) -> Result:
    """Import a copy with another element at one index of an axis."""
    x, axis, at = c.input(0), c.args[2], c.args[3]
    new = c.onnx("Unsqueeze", c.input(1), np.asarray([axis % len(c.dims(x))], np.int64))
    after = [] if at == -1 else [cut(c, x, axis, at + 1, END)]
    before = [] if at == 0 else [cut(c, x, axis, 0, at)]
    return c.graph.concat(*before, new, *after, axis=axis)


@imports("repeat")
def repeat(c: AtenCall) -> Result:
    """Import repetitions along each axis; missing axes are added in front."""
    x, times = c.input(0), c.args[1]
    more = len(times) - len(c.dims(x))
    if more:
        x = c.onnx("Unsqueeze", x, np.arange(more))
    return c.onnx("Tile", x, c.vector(times))


@imports("repeat_interleave")
def repeat_interleave(c: AtenCall) -> Result:
    """Import `times` copies of each element along an axis, next to each other."""
    x, times, axis = c.input(0), c.args[1], c.arg(2, "dim")
    rank = len(c.dims(x))
    if not isinstance(times, int) or axis is None:
        c.refuse("repetitions must be one number, along an axis")
    axis %= rank
    apart = c.onnx("Unsqueeze", x, np.asarray([axis + 1], np.int64))
    wide = c.graph.expand(apart, shape=[times if k == axis + 1 else 1 for k in range(rank + 1)])
    old = list(c.fake(0).shape)
    old.insert(axis + 1, times)
    return reshaped(c, wide, old, c.fake().shape)


PADDING: dict[str, Any] = {
    "constant": "constant", "reflect": "reflect", "replicate": "edge", "circular": "wrap", "reflection": "reflect",
    "replication": "edge"}
"""graphq's modes of padding by PyTorch's."""


@imports("constant_pad_nd", "pad", "reflection_pad1d", "reflection_pad2d", "replication_pad1d", "replication_pad2d")
def pad(c: AtenCall) -> Result:
    """Import padding; PyTorch lists the last axis first."""
    x, pads, name = c.input(0), c.args[1], c.op
    given = c.arg(2, "mode", "constant") if name == "pad" else name.rpartition("_pad")[0]
    value = c.arg(3 if name == "pad" else 2, "value", 0) or 0
    rank = len(c.dims(x))
    if not all(isinstance(p, int) for p in pads):
        c.refuse("pads must be known numbers")
    begin, end = [0] * rank, [0] * rank
    for k in range(len(pads) // 2):
        begin[rank - 1 - k], end[rank - 1 - k] = pads[2 * k:2 * k + 2]
    return c.graph.pad(x, pads_begin=begin, pads_end=end, mode=PADDING[given], value=float(value))


@imports("flip")
def flip(c: AtenCall) -> Result:
    """Import the reverse order along axes."""
    axes = c.args[1]
    return c.graph.slice(c.input(0), axes=axes, starts=[END] * len(axes), ends=[-END] * len(axes),
                         steps=[-1] * len(axes))


@imports("roll")
def roll(c: AtenCall) -> Result:
    """Import a cyclic shift along axes."""
    x = c.input(0)
    axes = c.arg(2, "dims", [])
    if not axes:
        c.refuse("a shift of all elements needs axes")
    for shift, axis in zip(c.args[1], axes, strict=True):
        size = c.dims(x)[axis]
        shift = shift % size if size is not None else shift
        if shift:
            x = c.graph.concat(cut(c, x, axis, -shift, END), cut(c, x, axis, 0, -shift), axis=axis)
    return x


@imports("pixel_shuffle", "pixel_unshuffle", "channel_shuffle")
def shuffle(c: AtenCall) -> Result:
    """Import an exchange of channels and pixels, or of channels among groups."""
    x, n, name = c.input(0), c.args[1], c.op
    _, channels, *sizes = c.dims(x)
    if "channel" in name:
        apart = c.graph.static_reshape(x, shape=[0, n, channels // n, *sizes], special_zero=True)
        order = [0, 2, 1, *range(3, 3 + len(sizes))]
        return c.graph.static_reshape(c.graph.static_transpose(apart, order=order), shape=[0, channels, *sizes],
                                      special_zero=True)
    if "unshuffle" in name:
        c.refuse("pixel_unshuffle is not supported")
    return c.onnx("DepthToSpace", x, blocksize=n, mode="CRD")


def filled(c: AtenCall, sizes: Sequence[Any], value: Any, dtype: DType) -> Value:
    """A tensor of one value."""
    known = all(isinstance(n, int) for n in sizes)
    if known and not isinstance(value, Value):
        return c.graph.add_constant(np.full(sizes, value).astype(dtype.numpy))
    one = c.cast(value, dtype) if isinstance(value, Value) else c.number(value, dtype)
    full: Value = c.graph.expand(one, shape=sizes) if known else c.onnx("Expand", one, c.vector(sizes))
    return full


def _like(value: Any, c: AtenCall) -> Result:
    x = c.input(0)
    return filled(c, [c.size(x, k) for k in range(len(c.dims(x)))], c.args[1] if value is None else value, c.dtype())


imports_each({
    "full": lambda c: filled(c, c.args[0], c.args[1], c.dtype()),
    **{name: partial(lambda value, c: filled(c, c.args[0], value, c.dtype()), value)
       for name, value in (("zeros", 0), ("ones", 1), ("empty", 0), ("empty_permuted", 0))},
    **{name: partial(lambda value, c: filled(c, c.args[1], value, c.dtype()), value)
       for name, value in (("new_zeros", 0), ("new_ones", 1), ("new_empty", 0))},
    "new_full": lambda c: filled(c, c.args[1], c.args[2], c.dtype()),
    "scalar_tensor": lambda c: c.number(c.args[0], c.dtype()),
    **{name: partial(_like, value) for name, value in (
        ("zeros_like", 0), ("ones_like", 1), ("empty_like", 0), ("full_like", None), ("fill", None))},
})


@imports("arange")
def arange(c: AtenCall) -> Result:
    """Import a range of numbers; open ends are computed when shapes are known."""
    given = list(c.args)
    start, end, step = {1: (0, *given, 1), 2: (*given, 1), 3: tuple(given)}[len(given)]
    dtype = c.dtype()
    if not any(isinstance(n, Value) for n in (start, end, step)):
        count = math.ceil((end - start) / step)
        return c.number(start + np.arange(count) * step, dtype)
    ends = [c.graph.static_reshape(c.vector([n]), shape=[]) if isinstance(n, Value) else c.number(n, s64)
            for n in (start, end, step)]
    return c.cast(c.onnx("Range", *ends), dtype)

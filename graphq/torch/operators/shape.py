"""Importers of operators that return, take or change shapes, make tensors, or move elements."""
import math
from functools import partial
from itertools import accumulate
from typing import Any

import numpy as np

from graphq.dtypes import s64
from graphq.ir import Value
from graphq.torch.operators.importer import AtenCall, Result, imports, imports_each

END = 2**63 - 1
"""What `slice` has for "up to the end"."""

PADDING: dict[str, Any] = {"constant": "constant", "reflect": "reflect", "replicate": "edge", "circular": "wrap",
                           "reflection": "reflect", "replication": "edge"}
"""graphq's modes of padding by PyTorch's."""

MADE = {"zeros": 0, "ones": 1, "empty": 0, "full": None}
"""Operators that make a tensor of one value; `full` has the value as an argument."""

SCATTERED = {"sum": "add", "prod": "mul", "amax": "max", "amin": "min"}
"""ONNX's reductions of scattered elements by PyTorch's."""


@imports("view _unsafe_view reshape flatten unflatten squeeze unsqueeze view_as ravel")
def view(c: AtenCall) -> Result:
    """Import a change of shape that the program's own types state.

    A dimension with the same symbol at the same place is copied, and one other open dimension follows from the others.
    If more remain, the sizes of the call are computed. Integers are reshaped before they are dequantized at run time,
    because fusions match a product of dequantized operands.
    """
    node: Any = c.x.node
    late = node is not None and node.op.name == "dynamic_dequantize" and node.attrs["qtype"] == "per_tensor"
    x, old, new = node.operand(0) if late else c.x, [str(n) for n in c.fake("input").shape], c.fake().shape
    sizes = [n if isinstance(n, int) else 0 if old[k:k + 1] == [str(n)] else -1 for k, n in enumerate(new)]
    if sizes.count(-1) <= 1 and 0 not in [n for n in new if isinstance(n, int)]:
        y = c.graph.static_reshape(x, shape=sizes, special_zero=0 in sizes)
    else:
        given = c["size"] or [-1] * len(new)
        y = c.Reshape(x, [n if isinstance(n, int) else c.size(x, old.index(str(n))) if str(n) in old else given[k]
                          for k, n in enumerate(new)], allowzero=1)
    return c.graph.add_node(node.op, [y, *node.inputs[1:]], node.attrs)[0] if late else y


@imports("transpose swapaxes")
def transpose(c: AtenCall) -> Result:
    """Import an exchange of two axes."""
    order = list(range(len(c.dims(c.x))))
    _, a, b = c.args.values()
    order[a], order[b] = order[b], order[a]
    return c.graph.static_transpose(c.x, order=order)


@imports("expand expand_as broadcast_to")
def expand(c: AtenCall) -> Result:
    """Import a broadcast; -1 and equal dimensions stay."""
    old, new = [str(n) for n in c.fake("input").shape], [str(n) for n in c.fake().shape]
    if old == new:
        return c.x
    old = [""] * (len(new) - len(old)) + old
    return c.Expand(c.x, [1 if n == was else given for n, was, given in zip(
        new, old, c["size"] or c.sizes(c["other"]), strict=True)])


@imports("as_strided")
def as_strided(c: AtenCall) -> Result:
    """Import a view that changes only the strides of axes of size 1; others depend on how PyTorch stores the tensor."""
    x, y = c.fake("input"), c.fake()
    same = x.shape == y.shape and x.storage_offset() == y.storage_offset() and all(
        n == 1 or a == b for n, a, b in zip(x.shape, x.stride(), y.stride(), strict=True))
    return c.x if same else c.refuse("the view depends on how its operand is stored: index or reshape it instead")


def cut(c: AtenCall, x: Value, axis: int, start: Any, end: Any, step: int = 1) -> Value:
    """The elements from `start` up to `end` along an axis; `end` may be open."""
    start, end = 0 if start is None else start, END if end is None else end
    if start == 0 and end == END and step == 1:
        return x
    sliced: Value = c.Slice(x, [start], [end], [axis], [step])
    return sliced


def replaced(c: AtenCall, new: Value, start: Any, end: Any) -> Value:
    """The first argument with other elements between `start` and `end` along the axis `dim`."""
    if c["step"] not in (None, 1):
        c.refuse("a step other than 1 is not supported")
    before = [] if start in (None, 0) else [cut(c, c.x, c["dim"], 0, start)]
    after = [] if end in (None, END) else [cut(c, c.x, c["dim"], end, END)]
    return c.graph.concat(*before, new, *after, axis=c["dim"]) if before or after else new


@imports("split split_with_sizes chunk")
def split(c: AtenCall) -> Result:
    """Import consecutive parts along an axis, as many and as large as the program's types state."""
    axis = c["dim"] % len(c.dims(c.x))
    sizes = c["split_sizes"] or [f.shape[axis] for f in c.fake()]
    if not all(isinstance(n, int | Value) for n in sizes[:-1]):
        c.refuse("parts of an open axis must have known sizes")
    ends = [*accumulate(sizes[:-1], lambda a, b: a + b if isinstance(a, int) and isinstance(b, int) else
                        c.Add(c.vector([a]), c.vector([b]))), END]
    return [cut(c, c.x, axis, start, end) for start, end in zip([0, *ends[:-1]], ends, strict=True)]


@imports("index")
def index(c: AtenCall) -> Result:
    """Import indexing by one tensor."""
    (axis, places), *more = [(k, p) for k, p in enumerate(c["indices"]) if p is not None]
    if any(p.dtype.kind == "bool" for p in c["indices"] if p is not None):
        c.refuse("the size of the result depends on data: use where or masked_fill")
    return None if more else c.graph.gather(c.x, c.value(places, s64), axis=axis)


@imports("pad constant_pad_nd reflection_pad1d reflection_pad2d replication_pad1d replication_pad2d")
def pad(c: AtenCall) -> Result:
    """Import padding; PyTorch lists the last axis first."""
    pads = c["pad"] or c["padding"]
    zeros = [0] * (len(c.dims(c.x)) - len(pads) // 2)
    return c.graph.pad(c.x, pads_begin=zeros + pads[-2::-2], pads_end=zeros + pads[::-2], value=float(c["value"] or 0),
                       mode=PADDING[c["mode"] or c.op.split("_")[0]])


def filled(value: Any, c: AtenCall) -> Result:
    """Import a new tensor of one value: an argument, or `value`."""
    sizes = c["size"] if "size" in c.args else c.sizes(c.x)
    value = next((c[name] for name in ("fill_value", "value") if name in c.args), value)
    if isinstance(value, Value) or not all(isinstance(n, int) for n in sizes):
        return c.Expand(c.value(value), sizes)
    return c.value(np.full(sizes, value))


@imports("arange")
def arange(c: AtenCall) -> Result:
    """Import a range of numbers; open ends are computed when shapes are known."""
    start, end, step = c.args.get("start", 0), c["end"], c.args.get("step", 1)
    if any(isinstance(n, Value) for n in (start, end, step)):
        return c.value(c.Range(*(c.scalar(n, s64) for n in (start, end, step))))
    return c.value(start + np.arange(math.ceil((end - start) / step)) * step)


def updates(c: AtenCall) -> Value:
    """The part of `src` that has indices; PyTorch takes fewer indices than elements."""
    src, sizes = c.value(c["src"]), c.sizes(c["index"])
    for axis, (n, all_of) in enumerate(zip(sizes, c.dims(src), strict=True)):
        src = src if n == all_of else cut(c, src, axis, 0, n)
    return src


imports_each({name: partial(filled, value) for kind, value in MADE.items() for name in (
    kind, f"new_{kind}", f"{kind}_like")})
imports_each({
    # PyTorch skips empty vectors
    "cat concat concatenate": lambda c: c.graph.concat(
        *(c.value(v) for v in c["tensors"] if v.shape != (0,)), axis=c["dim"]),
    "copy": lambda c: c.Expand(c.value(c["src"]), c.sizes(c.x)),
    "embedding": lambda c: c.graph.gather(c.x, c["indices"], axis=0),
    "empty_permuted": partial(filled, 0),
    "fill": partial(filled, None),
    "flip": lambda c: c.graph.slice(c.x, axes=c["dims"], starts=[END] * len(c["dims"]), ends=[-END] * len(c["dims"]),
                                    steps=[-1] * len(c["dims"])),
    "gather": lambda c: c.GatherElements(c.x, c["index"], axis=c["dim"]),
    "index_select": lambda c: c.graph.gather(c.x, c["index"], axis=c["dim"]),
    "item _local_scalar_dense": lambda c: c.refuse("a number depends on data"),
    "narrow": lambda c: cut(c, c.x, c["dim"], c["start"], c["start"] + c["length"]),
    "nonzero": lambda c: c.refuse("the size of the result depends on data"),
    "permute": lambda c: c.graph.static_transpose(c.x, order=[k % len(c["dims"]) for k in c["dims"]]),
    "pixel_shuffle": lambda c: c.DepthToSpace(c.x, blocksize=c["upscale_factor"], mode="CRD"),
    "repeat": lambda c: c.Tile(c.x if len(c["repeats"]) == len(c.dims(c.x)) else c.Unsqueeze(
        c.x, list(range(len(c["repeats"]) - len(c.dims(c.x))))), c["repeats"]),
    "scalar_tensor": lambda c: c.scalar(c["s"]),
    "scatter": lambda c: c.ScatterElements(c.x, c["index"], c.Expand(c.value(c["value"]), c.sizes(c["index"]))
                                           if "value" in c.args else updates(c), axis=c["dim"]),
    "scatter_add": lambda c: c.ScatterElements(c.x, c["index"], updates(c), axis=c["dim"], reduction="add"),
    "scatter_reduce": lambda c: c.ScatterElements(
        c.x, c["index"], updates(c), axis=c["dim"], reduction=SCATTERED[c["reduce"]]) if c["include_self"] else None,
    "select": lambda c: c.graph.gather(c.x, c.scalar(c["index"], s64), axis=c["dim"]),
    "select_scatter": lambda c: replaced(c, c.Unsqueeze(c["src"], [c["dim"] % len(c.dims(c.x))]), c["index"],
                                         END if c["index"] == -1 else c["index"] + 1),
    "slice_scatter": lambda c: replaced(c, c["src"], c["start"], c["end"]),
    "slice": lambda c: cut(c, c.x, c["dim"], c["start"], c["end"], c["step"]),
    "stack": lambda c: c.graph.concat(*(c.Unsqueeze(c.value(v), [c["dim"] % c.fake().dim()]) for v in c["tensors"]),
                                      axis=c["dim"] % c.fake().dim()),
    "sym_numel": lambda c: c.ReduceProd(c.Shape(c.x), None, keepdims=1),
    "sym_size": lambda c: c.size(c.x, c["dim"]),
    "t numpy_T": lambda c: c.graph.static_transpose(c.x, order=range(len(c.dims(c.x)))[::-1]),
    "tril": lambda c: c.Trilu(c.x, c.value(c["diagonal"], s64), upper=0),
    "triu": lambda c: c.Trilu(c.x, c.value(c["diagonal"], s64), upper=1),
    "unbind": lambda c: [c.graph.gather(c.x, np.asarray(k, np.int64), axis=c["dim"]) for k in range(len(c.fake()))],
})

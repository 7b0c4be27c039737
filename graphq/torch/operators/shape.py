"""Importers of operators that return, take or change shapes, make tensors, or move elements."""
import math

import numpy as np

from graphq.dtypes import s64
from graphq.ir import Value
from graphq.torch.operators.importer import AtenCall, Result, imports

END = 2**63 - 1
"""What `slice` has for "up to the end"."""

SCATTERED = {None: "none", "sum": "add", "add": "add", "prod": "mul", "multiply": "mul", "amax": "max", "amin": "min"}
"""ONNX's reductions of scattered elements by PyTorch's."""


def view(c: AtenCall) -> Result:
    """Import a change of shape that the program's own types state.

    A dimension with the same symbol at the same place is copied, and one other open dimension follows from the others.
    If more remain, the sizes of the call are computed. Integers are reshaped before they are dequantized at run time,
    because fusions match a product of dequantized operands.
    """
    c.read.update(c.args)
    node = c.x.node
    late = node is not None and node.op.name == "dynamic_dequantize" and node.attrs["qtype"] == "per_tensor"
    x, old, new = node.operand(0) if node and late else c.x, c.symbols("input"), c.fake().shape
    sizes = [n if isinstance(n, int) else 0 if old[k:k + 1] == [str(n)] else -1 for k, n in enumerate(new)]
    if sizes.count(-1) <= 1 and 0 not in [n for n in new if isinstance(n, int)]:
        y = c.graph.static_reshape(x, shape=sizes, special_zero=0 in sizes)
    else:
        given = c["size"] or c["shape"] or [-1] * len(new)
        y = c.Reshape(x, [n if isinstance(n, int) else c.size(x, old.index(str(n))) if str(n) in old else given[k]
                          for k, n in enumerate(new)], allowzero=1)
    return c.graph.add_node(node.op, [y, *node.inputs[1:]], node.attrs)[0] if node and late else y


def expand(c: AtenCall) -> Result:
    """Import a broadcast; -1 and equal dimensions stay."""
    old, new = c.symbols("input"), c.symbols()
    old = [""] * (len(new) - len(old)) + old
    return c.Expand(c.x, [1 if n == was else given for n, was, given in zip(new, old, c["size"], strict=True)])


def as_strided(c: AtenCall) -> Result:
    """Import a view that changes only the strides of axes of size 1; others depend on how PyTorch stores the tensor."""
    c.read.update(c.args)
    x, y = c.fake("input"), c.fake()
    same = x.shape == y.shape and x.storage_offset() == y.storage_offset() and all(
        n == 1 or a == b for n, a, b in zip(x.shape, x.stride(), y.stride(), strict=True))
    return c.x if same else c.refuse("the view depends on how its operand is stored: index or reshape it instead")


def cut(c: AtenCall) -> Result:
    """Import a slice; its end may be open."""
    start, end = 0 if c["start"] is None else c["start"], END if c["end"] is None else c["end"]
    axis, step = c["dim"], c["step"]
    return c.x if (start, end, step) == (0, END, 1) else c.Slice(c.x, [start], [end], [axis], [step])


def index(c: AtenCall) -> Result:
    """Import indexing by one tensor."""
    (axis, places), *more = [(k, p) for k, p in enumerate(c["indices"]) if p is not None]
    if any(p.dtype.kind == "bool" for p in c["indices"] if p is not None):
        c.refuse("the size of the result depends on data: use where or masked_fill")
    return None if more else c.graph.gather(c.x, c.value(places, s64), axis=axis)


def pad(c: AtenCall) -> Result:
    """Import padding; PyTorch lists the last axis first."""
    pads, zeros = c["pad"], [0] * (len(c.dims(c.x)) - len(c["pad"]) // 2)
    mode = {"replicate": "edge", "circular": "wrap"}.get(c["mode"], c["mode"] or "constant")
    return c.Pad(c.x, zeros + pads[-2::-2] + zeros + pads[::-2], c["value"] or 0, mode=mode)


def filled(c: AtenCall) -> Result:
    """Import a new tensor of one value: an argument, or 0."""
    sizes, value = c["size"] if "size" in c.args else c.sizes(c.x), c["fill_value"]
    if isinstance(value, Value) or not all(isinstance(n, int) for n in sizes):
        return c.Expand(c.value(0 if value is None else value), sizes)
    return c.value(np.full(sizes, 0 if value is None else value))


def arange(c: AtenCall) -> Result:
    """Import a range of numbers; open ends are computed when shapes are known."""
    start, end, step = c["start"] if "start" in c.args else 0, c["end"], c["step"] if "step" in c.args else 1
    if any(isinstance(n, Value) for n in (start, end, step)):
        return c.Range(*(c.scalar(n, s64) for n in (start, end, step)))
    return c.value(start + np.arange(math.ceil((end - start) / step)) * step)


def scatter(c: AtenCall, **how: str) -> Result:
    """Import a scatter; PyTorch takes fewer indices than `src` has elements."""
    sizes = c.sizes(c["index"])
    new = c.Expand(c.value(c["value"]), sizes) if "value" in c.args else c.value(c["src"])
    if list(c.dims(new)) != sizes:
        new = c.Slice(new, [0] * len(sizes), sizes)
    return c.ScatterElements(c.x, c["index"], new, axis=c["dim"], **how)


imports({
    "arange": arange,
    "as_strided": as_strided,
    # PyTorch skips empty vectors
    "cat": lambda c: c.graph.concat(*(c.value(v) for v in c["tensors"] if v.shape != (0,)), axis=c["dim"]),
    "copy": lambda c: c.Expand(c.value(c["src"]), c.sizes(c.x)),
    "embedding": lambda c: c.graph.gather(c.x, c["indices"], axis=0),
    "empty empty_permuted full full_like": filled,
    "expand": expand,
    "flip": lambda c: c.graph.slice(c.x, axes=c["dims"], starts=[END] * len(c["dims"]), ends=[-END] * len(c["dims"]),
                                    steps=[-1] * len(c["dims"])),
    "gather": lambda c: c.GatherElements(c.x, c["index"], axis=c["dim"]),
    "index": index,
    "index_select": lambda c: c.graph.gather(c.x, c["index"], axis=c["dim"]),
    "item _local_scalar_dense": lambda c: c.refuse("a number depends on data"),
    "nonzero": lambda c: c.refuse("the size of the result depends on data"),
    "pad constant_pad_nd": pad,
    "permute": lambda c: c.graph.static_transpose(c.x, order=[k % len(c["dims"]) for k in c["dims"]]),
    "pixel_shuffle": lambda c: c.DepthToSpace(c.x, blocksize=c["upscale_factor"], mode="CRD"),
    "repeat": lambda c: c.Tile(c.Unsqueeze(c.x, [*range(len(c["repeats"]) - len(c.dims(c.x)))]), c["repeats"]),
    "scalar_tensor": lambda c: c.scalar(c["s"]),
    "scatter": lambda c: scatter(c, reduction=SCATTERED[c["reduce"]]),
    "scatter_add": lambda c: scatter(c, reduction="add"),
    "scatter_reduce": lambda c: scatter(c, reduction=SCATTERED[c["reduce"]]) if (
        c["include_self"] and c["reduce"] != "mean") else None,
    "select": lambda c: c.graph.gather(c.x, c.scalar(c["index"], s64), axis=c["dim"]),
    "slice": cut,
    "sym_numel": lambda c: c.ReduceProd(c.Shape(c.x), None, keepdims=1),
    "sym_size": lambda c: c.size(c.x, c["dim"]),
    "sym_sum": lambda c: c.ReduceSum(c.vector(c["input"]), None, keepdims=1),
    "tril": lambda c: c.Trilu(c.x, c.value(c["diagonal"], s64), upper=0),
    "triu": lambda c: c.Trilu(c.x, c.value(c["diagonal"], s64), upper=1),
    "aten.view.dtype": lambda c: c.refuse("graphq does not reinterpret the bits of elements as another type"),
    "view _unsafe_view reshape flatten squeeze unsqueeze": view,
})

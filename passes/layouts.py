"""Find out how operations compute on channels-last tensors: [n, c, spatial...] stored as [n, spatial..., c].

A value of rank 3 or more has two possible layouts: the layout in the given graph, and channels last, with axis 1 moved
to the end. `channels_last_form` says whether a node can compute channels last, and how its attributes, operands and
results then change.
"""
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np

from graphq.ir import OPS, Dim, Graph, Node, Value

Port: TypeAlias = Literal["stays", "moves", "aligned"]
"""The treatment of an operand if its node computes channels last.

- "stays": the operand keeps its layout.
- "moves": axis 1 of the operand moves to the end.
- "aligned": the operand has a lower rank than the result, and is reshaped to fit the result without copying data.
"""


class Form(NamedTuple):
    """How a node computes channels last: a Port per operand, a flag per result (true: it moves), changed attributes."""

    operands: tuple[Port, ...]
    outputs: tuple[bool, ...]
    attrs: Mapping[str, Any]


def to_last(rank: int) -> tuple[int, ...]:
    """The `order` of the static_transpose that moves axis 1 to the end."""
    return (0, *range(2, rank), 1)


def to_first(rank: int) -> tuple[int, ...]:
    """The `order` of the static_transpose that undoes `to_last`."""
    return (0, rank - 1, *range(1, rank - 1))


def has_layouts(value: Value) -> bool:
    """Whether the value has two possible layouts. A value of unknown rank has only one."""
    return value.shape is not None and len(value.shape) >= 3


def is_view(shape: Sequence[Dim]) -> bool:
    """Whether axis 1 of a tensor of this shape can be moved to the end by a reshape."""
    unknown = list(shape).count(None)
    resolved = unknown == 0 or unknown == 1 and 0 not in shape
    return resolved and (shape[1] == 1 or all(d == 1 for d in shape[2:]))


def moved(graph: Graph, value: Value, order: Sequence[int]) -> Value:
    """`value` with its axes in `order`: a constant, a reshape if only dimensions of 1 move, or a static_transpose."""
    assert value.shape is not None
    if value.data is not None:
        constant = graph.add_constant(np.transpose(value.data, order))
        graph.labels.stands(constant, value, order)
        return constant
    shape = [value.shape[d] for d in order]
    first = shape if tuple(order) == to_first(len(order)) else value.shape
    if is_view(first):
        return graph.add_node(OPS["static_reshape"], [value], {"shape": [-1 if d is None else d for d in shape]})[0]
    return graph.add_node(OPS["static_transpose"], [value], {"order": order})[0]


def aligned(graph: Graph, value: Value, rank: int) -> Value:
    """Pad `value` with leading 1s to `rank`, and bring it to channels last without a copy at run time."""
    shape = (1,) * (rank - len(value.type.dims)) + value.type.dims
    order = to_last(rank)
    if value.data is not None:
        return graph.add_constant(np.transpose(value.data.reshape(shape), order))
    return graph.add_node(OPS["static_reshape"], [value], {"shape": [shape[d] for d in order]})[0]


def channels_last_form(node: Node) -> Form | None:
    """How the node computes on channels-last tensors; None if it cannot."""
    rule = node.op.layout or ("lane_wise" if node.op.elementwise else None)
    moving = [v for v in (*node.operands, *node.outputs) if has_layouts(v)]
    return RULES[rule](node) if rule is not None and moving and node.inputs[0] is not None else None


def _anchor(node: Node) -> Form | None:
    """The rule of convolutions and pools: operand 0 and the result become channels last; the weights stay."""
    src = node.inputs[0]
    if src is None or not has_layouts(src) or node.attrs["data_format"] != "NCX":
        return None
    return Form(_first_moves(node), tuple(has_layouts(v) for v in node.outputs), {"data_format": "NXC"})


def _first_moves(node: Node) -> tuple[Port, ...]:
    others: list[Port] = ["stays"] * (len(node.inputs) - 1)
    return "moves", *others


def _lane_wise(node: Node) -> Form | None:
    """The rule of lane-wise operations: operands have the result's rank, or become aligned by a reshape."""
    shape = node.outputs[0].shape
    ports = [None if v is None or shape is None else _broadcast(v, len(shape)) for v in node.inputs]
    if shape is None or len(shape) < 3 or None in ports:
        return None
    return Form(tuple(p for p in ports if p is not None), (True,), {})


def _broadcast(value: Value, rank: int) -> Port | None:
    if value.shape is None:
        return None
    if len(value.shape) < rank and all(d == 1 for d in value.shape):
        return "stays"
    if len(value.shape) == rank:
        return "moves"
    padded = (1,) * (rank - len(value.shape)) + value.shape
    return "aligned" if value.data is not None or value.type.known and is_view(padded) else None


def _along_axis(node: Node) -> Form | None:
    """The rule of operations along an axis: all operands and results become channels last; `axis` is adjusted."""
    ranks = {None if v is None or v.shape is None else len(v.shape) for v in node.inputs}
    if None in ranks or len(ranks) > 1:
        return None
    (rank,) = ranks
    assert rank is not None
    ports: list[Port] = ["moves"] * len(node.inputs)
    return Form(tuple(ports), (True,) * len(node.outputs), {"axis": to_last(rank).index(node.attrs["axis"] % rank)})


def _softmax(node: Node) -> Form | None:
    """The rule of softmax: as `_along_axis`, unless the axis is last already, as kernels need."""
    rank = len(node.outputs[0].shape or ())
    return None if rank and node.attrs["axis"] % rank == rank - 1 else _along_axis(node)


def _scaled(node: Node) -> Form | None:
    """The rule of (de)quantize: operand 0, the result and `axis` become channels last; scales and zero points stay."""
    src = node.inputs[0]
    if src is None or src.shape is None or node.attrs["qtype"] == "per_group":
        return None
    rank, axis = len(src.shape), node.attrs["axis"]
    if node.attrs["qtype"] == "per_channel":
        axis = to_last(rank).index(axis % rank)
    return Form(_first_moves(node), (True,), {"axis": axis})


def _sloped(node: Node) -> Form | None:
    """The rule of prelu: as for convolutions if it has one slope per channel, else as for lane-wise operations."""
    slope = node.operand(1)
    if node.attrs["per_channel_broadcast"] and slope.shape is not None and len(slope.shape) == 1:
        return _anchor(node)
    return _lane_wise(node)


def _reduced(node: Node) -> Form | None:
    """The rule of reductions: the operand becomes channels last; the result does as well, or keeps its axes' order."""
    src = node.inputs[0]
    if src is None or src.shape is None or len(node.inputs) > 1:
        return None
    rank = len(src.shape)
    axes = {a % rank for a in node.attrs["axes"]}
    order = to_last(rank)
    left = list(range(rank)) if node.attrs["keep_dims"] or not axes else [d for d in range(rank) if d not in axes]
    result = [left.index(d) for d in order if d in left]
    follows = len(left) >= 3 and result == list(to_last(len(left)))
    if not follows and result != sorted(result):
        return None
    return Form(("moves",), (follows,), {"axes": sorted(order.index(a) for a in axes)})


def _reshaped(node: Node) -> Form | None:
    """The rule of reshapes that merge or split spatial dimensions only, such as [n, c, h, w] -> [n, c, h * w]."""
    src, out = node.inputs[0], node.output
    if src is None or not (src.type.known and out.type.known and has_layouts(src) and has_layouts(out)):
        return None
    (n, c, *_), (images, channels, *spatial) = src.type.dims, out.type.dims
    if (n, c) != (images, channels):
        return None
    return Form(("moves",), (True,), {"shape": [n, *spatial, c], "special_zero": False})


def _unordered(node: Node) -> Form | None:
    """The rule of operations that ignore the order of elements. Their results have only one layout."""
    return Form(("moves",), (False,) * len(node.outputs), {}) if has_layouts(next(node.operands)) else None


RULES: dict[str, Callable[[Node], Form | None]] = {
    "lane_wise": _lane_wise, "anchor": _anchor, "scaled": _scaled, "along_axis": _along_axis, "softmax": _softmax,
    "sloped": _sloped, "reduced": _reduced, "reshaped": _reshaped, "unordered": _unordered}
"""The rules, by the name that `Op.layout` states."""

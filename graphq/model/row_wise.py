"""Find out whether the results for each row of a batch are independent of the other rows.

The analysis goes from the inputs to the outputs, and tracks which axis of each value has the rows of the batch. A value
that is the same for all rows has no row axis (None). A reshape may merge the row axis with neighboring axes, and split
it again. An operation declares the name of its rule (`Op.rows`). The rule, a function in RULES, returns the row axis of
the results, or None if rows may mix. An operation without a rule counts as mixing rows.

The answer "rows do not mix" is proved, provided that the graph is the same for any sizes; graphs that differ for SIZES
are refused. The answer "rows may mix" can be wrong; that only costs speed.
"""
from collections.abc import Callable, Sequence
from itertools import zip_longest
from math import prod
from typing import NamedTuple

import numpy as np

from graphq.errors import GraphqError
from graphq.ir import Graph, Node, TensorType, Value
from graphq.ops.recurrent import shares_range
from graphq.passes import PIPELINE, Pass, leave_ties, run_passes

OTHER = 32
"""The size that the analysis assumes for open axes after the second."""
SIZES = (13, OTHER), (211, OTHER), (13, 131)
"""The sizes that the analysis assumes for open axes 0 and 1. Few other dimensions of models have 13, 131 or 211."""
COMPARES = "clamp equal greater greaterequal greaterorequal less lessequal lessorequal max maximum min minimum".split()
"""Operations of graphq and ONNX, in lower case, without _, by which other sizes may give another graph."""


class RowAxis(NamedTuple):
    """The row axis of a value, and the other axes that a reshape has merged with it.

    `before` is the product of the merged dimensions before the rows, `after` the product of the merged dimensions after
    the rows. Index i along `axis` belongs to row `i // after % rows`.
    """

    axis: int
    before: int = 1
    after: int = 1


Axes = Sequence[int | None]
"""The row axis of each operand; None if the operand is the same for all rows."""
Rule = Callable[[Node, Axes], int | None]
"""A function from a node and the row axes of its operands to the row axis of its results, or None if rows may mix."""


def why_rows_mix(graph: Graph, passes: Sequence[Pass] = PIPELINE) -> str | None:
    """Why results for one row may depend on other rows, if `passes` run on the graph; None if they cannot.

    Axis 0 of each input has the rows. An input that is a single number is the same for all rows. The analysis runs the
    passes that may change numbers, and those before them: all up to the last one that PIPELINE does not have.
    """
    if any(v.shape is None for v in graph.inputs):
        return "the ranks of inputs are not known"
    try:
        few, many, long = (with_sizes(graph, passes, *sizes) for sizes in SIZES)
    except GraphqError as e:
        return f"the graph or a pass rejects {SIZES[0][0]} or {SIZES[1][0]} rows: {e}"
    for node, twin, other in zip_longest(many.nodes, few.nodes, long.nodes):
        if None in (node, twin, other) or not node.op is twin.op is other.op or \
                node.op.name == "constant" and not agree(node.attrs["value"], twin.attrs["value"]).all():
            of = many.describe(node or twin or other)
            return f"sizes of inputs decide what the graph computes, from here on: {of}"
    return sizes_decide(graph) or _why(few) or _why(many) or _why(long)


def sizes_decide(graph: Graph) -> str | None:
    """Why other sizes than the analyses try may give another graph: one is compared with a number outside 11 to 131."""
    sizes = set[Value]()  # and values that are computed from sizes alone
    for node in graph.nodes:
        name = (node.attrs.get("op_type") or node.attrs.get("function") or node.op.name).lower().replace("_", "")
        if name == "shape" or (given := [v for v in node.operands if v.data is None]) and sizes.issuperset(given):
            sizes.update(node.outputs)
            numbers = [v.data.item() for v in node.operands if v.data is not None and v.data.size == 1]
            numbers += [node.attrs[k] for k in ("min", "max") if k in node.attrs]
            one = name in COMPARES and node.outputs[0].shape in ((), (1,))
            if one and any(1 < n < 11 or 131 < n < 2**31 for n in numbers):
                return f"sizes of inputs decide what the graph computes, from here on: {graph.describe(node)}"
    return None


def agree(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Where `y` equals the first elements of `x` along each axis; False if the ranks or dtypes differ."""
    if x is y or x.ndim != y.ndim or x.dtype != y.dtype or not np.greater_equal(x.shape, y.shape).all():
        return np.array(x is y)
    both = x[tuple(map(slice, y.shape))]
    return np.asarray((both == y) | (both != both) & (y != y))


def _why(graph: Graph) -> str | None:
    rows = next((v.type.dims[0] for v in graph.inputs if v.shape), 1)
    places: dict[Value, RowAxis | None] = {v: RowAxis(0) if v.shape else None for v in graph.inputs}
    for node in graph.nodes:
        given = [None if v is None else places[v] for v in node.inputs]
        place = _result(node, given, rows) if any(given) else None
        if place is None and any(given):
            return f"an operation may mix rows: {graph.describe(node)}"
        places.update(dict.fromkeys(node.outputs, place))
        if place is not None and node.op.rows == "recurrent":  # the last states lack the axis of the steps
            places.update(dict.fromkeys(node.outputs[1:], place._replace(axis=0)))
    wrong = [name for name, v in zip(graph.output_names, graph.outputs, strict=True) if places[v] != RowAxis(0)]
    return f"axis 0 of output '{wrong[0]}' does not have the rows" if wrong else None


def with_sizes(graph: Graph, passes: Sequence[Pass], rows: int, length: int) -> Graph:
    """A copy with these sizes for open axes 0 and 1 of the inputs, after the passes that may change numbers."""
    graph = graph.specialize({str(v.name): TensorType(v.dtype, tuple(
        d if d is not None else OTHER if k > 1 else length if k else rows for k, d in enumerate(v.shape or ())))
        for v in graph.inputs if not v.type.known})
    graph.prune()  # removes nodes that computed shapes
    others = [k for k, step in enumerate(passes) if step not in PIPELINE and step is not leave_ties]
    run_passes(graph, passes[:max(others, default=-1) + 1])
    return graph


def _result(node: Node, given: Sequence[RowAxis | None], rows: int) -> RowAxis | None:
    """The place of the rows in a node's results; None if rows may mix. At least one operand must have rows."""
    if not all(v.type.known for v in (*node.operands, *node.outputs)):
        return None
    if node.op.name == "static_reshape":
        return _reshaped(node, given[0] or RowAxis(0), rows)
    if node.op.name == "gather" and given[0] is not None and given[1] is None:
        chosen = _own_rows(node, given[0], rows)
        if chosen is not None:
            return chosen
    merged = {(p.before, p.after) for p in given if p is not None}
    rule = node.op.rows or ("broadcast" if node.op.elementwise else None)
    if rule is None or len(merged) > 1:
        return None
    axis = RULES[rule](node, [None if p is None else p.axis for p in given])
    return None if axis is None else RowAxis(axis, *merged.pop())


def _reshaped(node: Node, place: RowAxis, rows: int) -> RowAxis | None:
    """The place of the rows after a reshape; None if no single axis has all rows."""
    # A reshape keeps the products of the dimensions before the rows (outer) and after the rows (inner).
    (source,) = node.operands
    old, new = source.type.dims, node.output.type.dims
    outer, inner = prod(old[:place.axis]) * place.before, place.after * prod(old[place.axis + 1:])
    for k, size in enumerate(new):
        prefix, suffix = max(prod(new[:k]), 1), max(prod(new[k + 1:]), 1)
        if outer % prefix == 0 and inner % suffix == 0 and size == outer // prefix * rows * (inner // suffix):
            return RowAxis(k, outer // prefix, inner // suffix)
    return None


def _own_rows(node: Node, place: RowAxis, rows: int) -> RowAxis | None:
    """The place of the rows after a gather along the row axis by constant indices; None if it mixes rows."""
    source, indices = node.operands
    axis, numbers = node.attrs["axis"] % _rank(source), indices.data
    if axis != place.axis or numbers is None:
        return None
    row_of = np.where(numbers < 0, numbers + source.type.dims[axis], numbers) // place.after % rows
    for k, size in enumerate(numbers.shape):
        if size == rows and np.all(row_of == np.arange(rows).reshape(-1, *[1] * (numbers.ndim - 1 - k))):
            return RowAxis(axis + k)
    return None


def _rank(value: Value | None) -> int:
    assert value is not None
    return len(value.type.dims)


def _broadcast(node: Node, axes: Axes) -> int | None:
    """The rule of elementwise operations. Broadcasting aligns their operands at the last axis."""
    if len(node.outputs) != 1:
        return None
    rank = _rank(node.output)
    found = {a + rank - _rank(v) for v, a in zip(node.inputs, axes, strict=True) if a is not None}
    p = found.pop()
    by_channel = node.attrs.get("qtype") == "per_channel" and node.attrs["axis"] % rank == p
    if found or by_channel or p and "data_format" in node.attrs:
        return None
    alike = all(_alike(v, p - (rank - _rank(v)))
                for v, a in zip(node.inputs, axes, strict=True) if v is not None and a is None)
    return p if alike else None


def _alike(value: Value, axis: int) -> bool:
    """Whether an operand without rows is the same for all rows; `axis` is another operand's row axis."""
    if axis < 0 or value.type.dims[axis] < 2:
        return True
    return value.data is not None and bool(np.all(value.data == value.data.take([0], axis)))


def _first_alone(node: Node, axes: Axes) -> bool:
    """Whether only the first operand has rows. Most rules require this."""
    return axes[0] is not None and all(a is None for a in axes[1:])


def axes_of(node: Node) -> set[int] | None:
    """The axes along which a softmax, norm, reduction or the like computes; None if only the run determines them."""
    a, rank = node.attrs, _rank(node.inputs[0])
    if "axes" in a and len(node.inputs) > 1 and node.inputs[1] is not None:
        given = node.inputs[1].data
        return None if given is None else {int(k) % rank for k in given.ravel()}
    over = a["axes"] if "axes" in a else [a["axis"]] if "axis" in a else range(a["begin_norm_axis"] % rank, rank)
    return {k % rank for k in over}


def _along(node: Node, axes: Axes) -> int | None:
    """The rule of operations along some axes, of which none may be the row axis. Reductions may drop these axes."""
    p, over = axes[0], axes_of(node)
    if p is None or not over or p in over or not _first_alone(node, axes):
        return None
    return p if node.attrs.get("keep_dims", True) else p - sum(k < p for k in over)


def _joined(node: Node, axes: Axes) -> int | None:
    found = {a for a in axes if a is not None}
    p, rank = min(found), _rank(node.output)
    alike = all(_alike(v, p) for v, a in zip(node.operands, axes, strict=True) if a is None)
    return p if len(found) == 1 and node.attrs["axis"] % rank != p and alike else None


def _padded(node: Node, axes: Axes) -> int | None:
    p = axes[0] or 0
    return p if node.attrs["pads_begin"][p] == node.attrs["pads_end"][p] == 0 else None


def _gathered(node: Node, axes: Axes) -> int | None:
    (source, indices), (p, q) = node.inputs, axes
    axis = node.attrs["axis"] % _rank(source)
    if p is None:
        return None if q is None else axis + q
    return None if q is not None or p == axis else p if p < axis else p + _rank(indices) - 1


def _product(node: Node, axes: Axes) -> int | None:
    """The rule of matmuls: the row axis may be any axis of an operand except the axis that is summed."""
    a, b = node.operand(0), node.operand(1)
    rank, (p, q), last = _rank(node.output), axes[:2], [_rank(a) - 1, _rank(b) - 1]
    if any(x is not None for x in axes[2:]) or min(last) < 1:
        return None
    turned = node.attrs.get("transpose_a", False), node.attrs.get("transpose_b", False)
    summed = last[0] - turned[0], last[1] - (not turned[1])
    if p == summed[0] or q == summed[1]:
        return None
    found = set()  # for each operand with rows, the axis of the result where the rows go
    for x, end, to in ((p, last[0], rank - 2), (q, last[1], rank - 1)):
        if x is not None:
            found.add(to if x >= end - 1 else x + rank - 1 - end)
    out = found.pop()
    if found or out >= rank - 2 and None not in (p, q):
        return None
    if out < rank - 2:
        alike = all(x is not None or _alike(v, out - (rank - 1 - end))
                    for v, x, end in ((a, p, last[0]), (b, q, last[1])))
        return out if alike else None
    bias_along = len(node.inputs) > 2 and node.inputs[2] is not None
    return None if out == rank - 1 and (bias_along or columns_matter(node, b.type.dims[summed[1]])) else out


def _recurrent(node: Node, axes: Axes) -> int | None:
    """The rule of recurrent layers: axis 1 of the gates has the rows, and axis 0 of states and lengths."""
    operands = zip(node.op.operands[1:], node.inputs[1:], axes[1:], strict=False)
    fit = all(v is None or (_alike(v, 0) if axis is None else axis == 0) if p.name in ("h", "c", "lengths")
              else axis is None for p, v, axis in operands)
    return 1 if fit and axes[0] == 1 and not shares_range(node) else None


def columns_matter(node: Node, k: int) -> bool:
    """Whether the number of columns may decide the order of a matmul's sums of `k` products (`chain_block`)."""
    return k > 128 and bool(node.graph.nodes_of(["quantize"]))


RULES: dict[str, Rule] = {
    "broadcast": _broadcast, "kept": lambda node, axes: axes[0], "along": _along,
    # operations that compute each image of a batch (axis 0) separately
    "images": lambda node, axes: 0 if _first_alone(node, axes) and axes[0] == 0 else None,
    "transposed": lambda node, axes: [d % _rank(node.output) for d in node.attrs["order"]].index(axes[0] or 0),
    "sliced": lambda node, axes: None if axes[0] in {
        a % _rank(node.inputs[0]) for a in node.attrs["axes"]} else axes[0],
    "product": _product, "joined": _joined, "padded": _padded, "gathered": _gathered, "recurrent": _recurrent}
"""The rules, by the name that `Op.rows` states."""

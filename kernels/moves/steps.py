"""The plan steps of operations outside partitions: moves of elements, casts, integer arithmetic, and ranges."""
from collections.abc import Sequence
from math import prod

import numpy as np

from graphq.base.budget import expect, reserve
from graphq.base.sizes import assumed, later
from graphq.dtypes import s32, s64
from graphq.ir import Node, TensorType
from graphq.kernels.jit import block_module
from graphq.kernels.jit.intrinsics import Record, load_s32, load_s64, store_s64
from graphq.kernels.moves import integers
from graphq.kernels.moves.extremes import plan_range
from graphq.kernels.moves.transpose import copy_row, plan_strided_copy, plan_transpose, run_bytes
from graphq.kernels.operands.space import broadcast_strides, dense
from graphq.ops.move import bounds
from graphq.ops.rules import normal_axis
from graphq.plan.builder import PlanBuilder, reference_steps
from graphq.plan.plan import Ref, plan_rows

GATHER = Record("table", "indices", "target", "outside", "rows", "count", "size", "nbytes", "index_bytes", "each")
"""The argument block of gathers. The target has `rows` rows, and a block has `each` of them.

Row r of the target comes from table r // count, at index r % count of the `count` indices. Negative indices count from
the end of a table. A table has `size` rows of `nbytes` bytes. The caller fills in the address fields. An index out of
range is stored as an s64 at the address `outside`.
"""


@block_module
def gathering(args: int, index: int) -> None:
    """Gather rows."""
    a = GATHER(args)
    table, indices, target, outside = a.table, a.indices, a.target, a.outside
    n, size, nbytes, index_bytes = a.count, a.size, a.nbytes, a.index_bytes
    for row in range(index * a.each, min(index * a.each + a.each, a.rows)):
        at = indices + row % n * index_bytes
        signed = load_s64(at) if index_bytes == 8 else load_s32(at)
        k = signed + size if signed < 0 else signed
        if k < 0 or k >= size:
            store_s64(outside, signed)
            k = 0
        copy_row(table + (row // n * size + k) * nbytes, target + row * nbytes, nbytes)


SCATTER = Record("past", "update", "places", "target", "outside", "heads", "group", "rows", "count", "nbytes", "linear",
                 "each")
"""The argument block: `heads` caches of `rows` rows of `nbytes` bytes, `group` per batch element, `each` per block.

An update has `count` rows per cache. It begins at the batch element's place; `places` 0 means 0. If a `linear` update
begins outside of its cache or does not fit, its place is stored at `outside`.
"""


@block_module
def scattering(args: int, index: int) -> None:
    """Copy caches and write updates. A cache that shares the memory of the past cache is not copied."""
    a = SCATTER(args)
    rows, count, nbytes, places, linear = a.rows, a.count, a.nbytes, a.places, a.linear
    for head in range(index * a.each, min(index * a.each + a.each, a.heads)):
        first = load_s64(places + head // a.group * 8) if places else 0
        if linear and (first < 0 or first > rows - count):
            store_s64(a.outside, first)
            return
        first = first % rows
        past, target, update = a.past + head * rows * nbytes, a.target + head * rows * nbytes, \
            a.update + head * count * nbytes
        if past != target:
            copy_row(past, target, rows * nbytes)
        until = min(count, rows - first)
        copy_row(update, target + first * nbytes, until * nbytes)
        copy_row(update + until * nbytes, target, (count - until) * nbytes)


SHORT, MANY = 16, 1000
"""If there are more than MANY rows of fewer than SHORT bytes, NumPy moves them instead of a kernel.

NumPy moves a short row in 0.9 ns, kernels in 1.5 ns (slices) to 4.3 ns (gathers).
"""


def slice_steps(b: PlanBuilder, node: Node) -> None:
    """Add a strided copy."""
    (source,) = node.operands
    dims, itemsize, a = source.type.dims, source.dtype.itemsize, node.attrs
    strides, offset = dense(dims, itemsize), 0
    for axis, *limits in zip(a["axes"], a["starts"], a["ends"], a["steps"], strict=True):
        k = normal_axis(axis, dims)
        start, _, every = bounds(dims[k], *limits)
        offset += start * strides[k]
        strides[k] *= every
    _strided_copy(b, node, strides, offset)


def _strided_copy(b: PlanBuilder, node: Node, strides: Sequence[int], offset: int = 0) -> None:
    """Add the copy of the node's operand from `offset` on, by the byte strides `strides` along the result's axes."""
    (source,), dims, itemsize = node.operands, node.output.type.dims, node.output.dtype.itemsize
    if is_tiny(node.output.type.nbytes, run_bytes(dims, strides, itemsize)):
        return reference_steps(b, node)
    step = plan_strided_copy(dims, strides, itemsize, b.target)
    b.run(step, {"source": Ref(b.of[source], offset), "target": Ref(b.result(node.output))})


def gather_steps(b: PlanBuilder, node: Node) -> None:
    """Add a gather; an index out of range raises InputError after the run. The reference runs for empty tensors."""
    source, indices = node.operands
    dims = source.type.dims
    axis = normal_axis(node.attrs["axis"], dims)
    row = prod(dims[axis + 1:]) * source.dtype.itemsize
    if 0 in (source.type.size, indices.type.size) or is_tiny(node.output.type.nbytes, row):
        return reference_steps(b, node)
    count = indices.type.size
    rows = prod(dims[:axis]) * count
    words = {"rows": rows, "count": count, "size": dims[axis], "nbytes": row, "index_bytes": indices.dtype.itemsize}
    step = plan_rows(gathering, GATHER, words, b.target, rows=rows, cycles=20 + row * 0.3)
    outside = b.report("index", node, dims, axis)
    b.run(step, {"table": Ref(b.of[source]), "indices": Ref(b.of[indices]), "target": Ref(b.result(node.output)),
                 "outside": Ref(outside)})


def scatter_steps(b: PlanBuilder, node: Node) -> None:
    """Add the step of tensor_scatter. The reference runs for empty tensors."""
    past, update, *places = node.operands
    dims, size = past.type.dims, update.type.dims
    k = normal_axis(node.attrs["axis"], dims)
    if 0 in (past.type.size, update.type.size):
        return reference_steps(b, node)
    heads, row = prod(dims[:k]), prod(dims[k + 1:]) * past.dtype.itemsize
    words = {"heads": heads, "group": prod(dims[1:k]), "rows": dims[k], "count": size[k], "nbytes": row,
             "linear": int(node.attrs["mode"] == "linear")}
    step = plan_rows(scattering, SCATTER, words, b.target, rows=heads, cycles=50 + dims[k] * row * 0.1)
    target, outside = b.result(node.output), b.report("cache place", node, dims[k] - size[k])
    b.may_share(b.of[past], target)
    b.run(step, {"past": Ref(b.of[past]), "update": Ref(b.of[update]), "target": Ref(target), "outside": Ref(outside),
                 "places": Ref(b.of[places[0]]) if places else 0})


def cast_steps(b: PlanBuilder, node: Node) -> None:
    """Add a cast from integers or booleans; the reference casts floats."""
    (source,) = node.operands
    if not integers.fits(source.dtype, node.output.dtype):
        return reference_steps(b, node)
    step = integers.plan_cast(source.dtype, node.output.dtype, source.type.size, b.target)
    b.run(step, {"source": Ref(b.of[source]), "target": Ref(b.result(node.output))})


def is_tiny(nbytes: int, row: int) -> bool:
    """Whether `nbytes` bytes consist of many rows of `row` bytes that NumPy moves faster than a kernel (see SHORT)."""
    return assumed(row) < SHORT and assumed(nbytes) > MANY * assumed(row)


def transpose_steps(b: PlanBuilder, node: Node) -> None:
    """Add a transpose."""
    (source,) = node.operands
    order = [d % len(node.attrs["order"]) for d in node.attrs["order"]]
    step = plan_transpose(source.type.dims, order, source.dtype.itemsize, b.target)
    kernel = f"{reorder_text(source.type, node.output.type)} by {step.kernel}"
    b.run(step._replace(kernel=kernel), {"source": Ref(b.of[source]), "target": Ref(b.result(node.output))})


def reorder_text(source: TensorType, result: TensorType) -> str:
    """Describe a reorder, as in `reorder u8[1,64,56,56] -> [1,56,56,64] (201 KB)`."""
    size = f" ({kilobytes(result.nbytes)})" if result.known else ""
    return f"reorder {source} -> {str(result).removeprefix(result.dtype.name)}{size}"


def kilobytes(nbytes: int) -> str:
    """Format a number of bytes, as in `201 KB`."""
    nbytes = assumed(nbytes)
    return f"{nbytes / 1000:,.0f} KB" if nbytes >= 10_000 else f"{nbytes / 1000:.2g} KB"


def range_steps(b: PlanBuilder, node: Node) -> None:
    """Add two steps: the extremes of blocks, then scale and zero point of the whole tensor."""
    (source,) = node.operands
    extremes_step, scale_step = plan_range(source.type.size, b.target)
    extremes = b.temporary(8 * extremes_step.blocks)
    scale, zero_point = (Ref(b.result(v)) for v in node.outputs)
    b.run(extremes_step, {"source": Ref(b.of[source]), "extremes": Ref(extremes)})
    b.run(scale_step, {"extremes": Ref(extremes), "scale": scale, "zero_point": zero_point})


def combine_steps(b: PlanBuilder, node: Node) -> None:
    """Add arithmetic or a comparison of integers; the reference computes other dtypes and some broadcasts."""
    function, operands = node.attrs.get("function", node.op.name), list(node.operands)
    dtype, step = operands[0].dtype, None
    if dtype in (s32, s64) and function in (*integers.ARITHMETIC, *integers.COMPARISONS):
        step = integers.plan_combined(function, dtype, [v.type.dims for v in operands], node.output.type.dims, b.target)
    if step is None:
        return reference_steps(b, node)
    b.run(step, {"a": Ref(b.of[operands[0]]), "b": Ref(b.of[operands[1]]), "target": Ref(b.result(node.output))})


def sum_steps(b: PlanBuilder, node: Node) -> None:
    """Add a sum of integers along the last axes; the reference sums along other axes."""
    (source,) = node.operands
    dims = source.type.dims
    first = len(dims) - len(node.attrs["axes"])
    if {normal_axis(k, dims) for k in node.attrs["axes"]} != set(range(first, len(dims))):
        return reference_steps(b, node)
    rows, columns = prod(dims[:first]), prod(dims[first:])
    step = plan_rows(integers.summing, integers.SUM, {"rows": rows, "columns": columns}, b.target, rows=rows,
                     cycles=10 + columns, of=(source.dtype.bits,))
    b.run(step, {"source": Ref(b.of[source]), "target": Ref(b.result(node.output))})


def expand_steps(b: PlanBuilder, node: Node) -> None:
    """Add a strided copy whose source stride is 0 along the repeated axes."""
    (source,) = node.operands
    _strided_copy(b, node, broadcast_strides(source.type.dims, node.output.type.dims, source.dtype.itemsize))


def pad_steps(b: PlanBuilder, node: Node) -> None:
    """Add a copy of the source, then copies that fill the padding of the result, axis by axis from the last axis on.

    The reference runs instead if a pad repeats more elements than the source has.
    """
    (source,) = node.operands
    dims, out, a = source.type.dims, node.output.type.dims, node.attrs
    before, after = ([max(p, 0) for p in a[name]] for name in ("pads_begin", "pads_end"))
    kept = [n + min(p, 0) + min(q, 0) for n, p, q in zip(dims, a["pads_begin"], a["pads_end"], strict=True)]
    sides = [_sides(a["mode"], *of) for of in zip(kept, before, after, strict=True)]
    if 0 in (*kept, *out) or any(s is None for s in sides):
        return reference_steps(b, node)
    # check the memory limit before any padding is allocated
    expect(assumed(node.output.type.nbytes), "the result")
    itemsize, target = source.dtype.itemsize, b.result(node.output)
    source_strides, strides = dense(dims, itemsize), dense(out, itemsize)
    first = sum(max(-p, 0) * s for p, s in zip(a["pads_begin"], source_strides, strict=True))
    inside = sum(p * s for p, s in zip(before, strides, strict=True))
    _copy(b, kept, Ref(b.of[source], first), source_strides, Ref(target, inside), strides, itemsize)
    for k in reversed(range(len(out))):
        inside -= before[k] * strides[k]  # `inside` now starts with the padding of axis k
        for start, size, origin, step in sides[k] or ():
            sizes = [*kept[:k], size, *out[k + 1:]]
            place = Ref(target, inside + start * strides[k])
            if a["mode"] == "constant":
                reserve(prod(sizes[k:]) * itemsize, f"{b.graph.describe(node)}: its padding")
                value = np.asarray(a["value"]).astype(source.dtype.numpy)
                tail = later(np.ascontiguousarray, later(np.broadcast_to, value, sizes[k:]))
                _copy(b, sizes, Ref(b.constant(tail)), [0] * k + dense(sizes[k:], itemsize), place, strides, itemsize)
            else:
                copied = Ref(target, inside + origin * strides[k])
                moved = [*strides[:k], step * strides[k], *strides[k + 1:]]
                _copy(b, sizes, copied, moved, place, strides, itemsize)


def _sides(mode: str, n: int, before: int, after: int) -> list[tuple[int, int, int, int]] | None:
    """The paddings before and after an axis of n elements; None if they repeat too many elements.

    Each padding has a start, a size, a source and a step: the positions of the result from the start on get copies of
    the result's positions source, source + step, source + 2 * step, ...
    """
    end = before + n
    if max(before, after) > {"reflect": n - 1, "wrap": n}.get(mode, before + after):
        return None
    source, step = {"reflect": ((2 * before, end - 2), -1), "wrap": ((n, before), 1),
                    "edge": ((before, end - 1), 0)}.get(mode, ((0, 0), 0))
    return [x for x in ((0, before, source[0], step), (end, after, source[1], step)) if x[1]]


def _copy(b: PlanBuilder, sizes: Sequence[int], source: Ref, strides: Sequence[int], target: Ref,
          targets: Sequence[int], itemsize: int) -> None:
    if prod(sizes):
        step = plan_strided_copy(sizes, strides, itemsize, b.target, targets)
        b.run(step, {"source": source, "target": target})

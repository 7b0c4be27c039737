"""The plan steps of transposes, slices, gathers, casts, integer operations, and the range of a tensor."""
from __future__ import annotations

from functools import partial
from math import prod

from graphq.base.sizes import assumed
from graphq.dtypes import s32, s64
from graphq.errors import InputError
from graphq.ir import Node, TensorType
from graphq.kernels.moves import cast, integers
from graphq.kernels.moves.extremes import plan_range
from graphq.kernels.moves.gather import plan_gather
from graphq.kernels.moves.transpose import dense, plan_strided_copy, plan_transpose, run_bytes
from graphq.ops.infer import normal_axis
from graphq.ops.move import bounds, index_error
from graphq.plan.builder import PlanBuilder
from graphq.plan.reference import reference_steps
from graphq.plan.step import Ref

SHORT, MANY = 16, 1000
"""If there are more than MANY rows of fewer than SHORT bytes, NumPy moves them instead of a kernel.

NumPy moves a short row in 0.9 ns, kernels in 1.5 ns (slices) to 4.3 ns (gathers).
"""


def slice_steps(b: PlanBuilder, node: Node) -> None:
    """Add the step, a strided copy."""
    (source,) = node.operands
    dims, itemsize, a = source.type.dims, source.dtype.itemsize, node.attrs
    strides, offset = dense(dims, itemsize), 0
    for axis, *limits in zip(a["axes"], a["starts"], a["ends"], a["steps"], strict=True):
        k = normal_axis(axis, dims)
        start, _, every = bounds(dims[k], *limits)
        offset += start * strides[k]
        strides[k] *= every
    if is_tiny(node.output.type.nbytes, run_bytes(node.output.type.dims, strides, itemsize)):
        return reference_steps(b, node)
    step = plan_strided_copy(node.output.type.dims, strides, itemsize, b.target)
    b.run(step, {"source": Ref(b.of[source], offset), "target": Ref(b.result(node.output))})


def gather_steps(b: PlanBuilder, node: Node) -> None:
    """Add the step; an index out of range raises an error after the run. Empty rows are left to the reference."""
    source, indices = node.operands
    dims = source.type.dims
    axis = normal_axis(node.attrs["axis"], dims)
    row = prod(dims[axis + 1:]) * source.dtype.itemsize
    if 0 in (source.type.size, indices.type.size) or is_tiny(node.output.type.nbytes, row):
        return reference_steps(b, node)
    step = plan_gather(prod(dims[:axis]), dims[axis], indices.type.size, row, indices.dtype.itemsize,
                       b.target)
    outside = b.report(partial(_index_error, b.graph.describe(node), dims, axis))
    b.run(step, {"table": Ref(b.of[source]), "indices": Ref(b.of[indices]), "target": Ref(b.result(node.output)),
                 "outside": Ref(outside)})


def _index_error(where: str, dims: tuple[int, ...], axis: int, index: int) -> InputError:
    return InputError(f"{where}: {index_error(dims, axis, index)}")


def cast_steps(b: PlanBuilder, node: Node) -> None:
    """Add one step for a cast from integers and booleans; casts from floats are left to the reference."""
    (source,) = node.operands
    if not cast.fits(source.dtype, node.output.dtype):
        return reference_steps(b, node)
    step = cast.plan_cast(source.dtype, node.output.dtype, source.type.size, b.target)
    b.run(step, {"source": Ref(b.of[source]), "target": Ref(b.result(node.output))})


def is_tiny(nbytes: int, row: int) -> bool:
    """Whether `nbytes` bytes are more than MANY rows of `row` bytes, and such a row is too short for a kernel."""
    return assumed(row) < SHORT and assumed(nbytes) > MANY * assumed(row)


def transpose_steps(b: PlanBuilder, node: Node) -> None:
    """Add the step, a transpose."""
    (source,) = node.operands
    order = [d % len(node.attrs["order"]) for d in node.attrs["order"]]
    step = plan_transpose(source.type.dims, order, source.dtype.itemsize, b.target)
    kernel = f"{reorder_text(source.type, node.output.type)} by {step.kernel}"
    b.run(step._replace(kernel=kernel), {"source": Ref(b.of[source]), "target": Ref(b.result(node.output))})


def reorder_text(source: TensorType, result: TensorType) -> str:
    """The text of a reorder, as in `reorder u8[1,64,56,56] -> [1,56,56,64] (201 KB)`."""
    size = f" ({kilobytes(result.nbytes)})" if result.known else ""
    return f"reorder {source} -> {str(result).removeprefix(result.dtype.name)}{size}"


def kilobytes(nbytes: int) -> str:
    """The text of a size, as in `201 KB`."""
    nbytes = assumed(nbytes)
    return f"{nbytes / 1000:,.0f} KB" if nbytes >= 10_000 else f"{nbytes / 1000:.2g} KB"


def range_steps(b: PlanBuilder, node: Node) -> None:
    """Add two steps: the extremes of blocks, then the scale and zero point of the whole tensor."""
    (source,) = node.operands
    extremes_step, scale_step = plan_range(source.type.size, b.target)
    extremes = b.temporary(8 * extremes_step.blocks)
    scale, zero_point = (Ref(b.result(v)) for v in node.outputs)
    b.run(extremes_step, {"source": Ref(b.of[source]), "extremes": Ref(extremes)})
    b.run(scale_step, {"extremes": Ref(extremes), "scale": scale, "zero_point": zero_point})


def combine_steps(b: PlanBuilder, node: Node) -> None:
    """Add one step for arithmetic or a comparison of integers, if the kernel takes their shapes."""
    function, operands = node.attrs.get("function", node.op.name), list(node.operands)
    dtype, step = operands[0].dtype, None
    if dtype in (s32, s64) and function in (*integers.ARITHMETIC, *integers.COMPARISONS):
        step = integers.plan_combined(function, dtype, [v.type.dims for v in operands], node.output.type.dims, b.target)
    if step is None:
        return reference_steps(b, node)
    b.run(step, {"a": Ref(b.of[operands[0]]), "b": Ref(b.of[operands[1]]), "target": Ref(b.result(node.output))})


def sum_steps(b: PlanBuilder, node: Node) -> None:
    """Add one step for a sum along the last axes."""
    (source,) = node.operands
    dims = source.type.dims
    first = len(dims) - len(node.attrs["axes"])
    if {normal_axis(k, dims) for k in node.attrs["axes"]} != set(range(first, len(dims))):
        return reference_steps(b, node)
    step = integers.plan_sums(prod(dims[:first]), prod(dims[first:]), source.dtype, b.target)
    b.run(step, {"source": Ref(b.of[source]), "target": Ref(b.result(node.output))})

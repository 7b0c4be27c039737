"""The kernel that writes new rows into caches. A cache that shares the memory of the past cache is not copied."""
from math import prod

from graphq.ir import Node
from graphq.kernels.jit import block_module
from graphq.kernels.jit.intrinsics import Record, load_s64, store_s64
from graphq.kernels.moves.transpose import copy_row
from graphq.ops.rules import normal_axis
from graphq.plan.builder import PlanBuilder, reference_steps
from graphq.plan.plan import Ref, plan_rows

SCATTER = Record("past", "update", "places", "target", "outside", "heads", "group", "rows", "count", "nbytes", "linear",
                 "each")
"""The argument block: `heads` caches of `rows` rows of `nbytes` bytes, `group` per batch element, `each` per block.

An update has `count` rows per cache. It begins at the batch element's place; `places` 0 means 0. If a `linear` update
begins outside of its cache or does not fit, its place is stored at `outside`.
"""


@block_module
def scattering(args: int, index: int) -> None:
    """Copy caches and write updates."""
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

"""The plan steps of pads and expands: strided copies, one of the source and up to two for each padded axis."""
from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

import numpy as np

from graphq.base.budget import reserve
from graphq.ir import Node
from graphq.kernels.moves.steps import is_tiny
from graphq.kernels.moves.transpose import dense, plan_strided_copy, run_bytes
from graphq.plan.builder import PlanBuilder
from graphq.plan.reference import reference_steps
from graphq.plan.step import Ref


def expand_steps(b: PlanBuilder, node: Node) -> None:
    """Add one strided copy, whose source stride is 0 along the axes that are repeated."""
    (source,) = node.operands
    out, itemsize = node.output.type.dims, source.dtype.itemsize
    dims = (1,) * (len(out) - len(source.type.dims)) + source.type.dims
    strides = [0 if d == 1 else s for d, s in zip(dims, dense(dims, itemsize), strict=True)]
    if is_tiny(node.output.type.nbytes, run_bytes(out, strides, itemsize)):
        return reference_steps(b, node)
    step = plan_strided_copy(out, strides, itemsize, b.target)
    b.run(step, {"source": Ref(b.of[source]), "target": Ref(b.result(node.output))})


class Side(NamedTuple):
    """One side of a padded axis: `size` elements from `start` on, copied from `source` on in strides of `step`."""

    start: int
    size: int
    source: int
    step: int


def pad_steps(b: PlanBuilder, node: Node) -> None:
    """Add the steps of a pad: a copy of the source, then along each axis copies of the elements before and after it.

    The later copies read the result itself, so the padding along one axis is padded along the next axes, too. Pads that
    repeat more elements than the source has run by the reference.
    """
    (source,) = node.operands
    dims, out, a = source.type.dims, node.output.type.dims, node.attrs
    before, after = ([max(p, 0) for p in a[name]] for name in ("pads_begin", "pads_end"))
    kept = [n + min(p, 0) + min(q, 0) for n, p, q in zip(dims, a["pads_begin"], a["pads_end"], strict=True)]
    sides = [_sides(a["mode"], *of) for of in zip(kept, before, after, strict=True)]
    if 0 in (*kept, *out) or any(s is None for s in sides):
        return reference_steps(b, node)
    itemsize, target = source.dtype.itemsize, b.result(node.output)
    source_strides, strides = dense(dims, itemsize), dense(out, itemsize)
    first = sum(max(-p, 0) * s for p, s in zip(a["pads_begin"], source_strides, strict=True))
    inside = sum(p * s for p, s in zip(before, strides, strict=True))
    _copy(b, kept, Ref(b.of[source], first), source_strides, Ref(target, inside), strides, itemsize)
    for k in reversed(range(len(out))):
        inside -= before[k] * strides[k]  # from here on, axes from k on include their padding
        for side in sides[k] or ():
            sizes = [*kept[:k], side.size, *out[k + 1:]]
            place = Ref(target, inside + side.start * strides[k])
            if a["mode"] == "constant":
                reserve(prod(sizes[k:]) * itemsize, f"{b.graph.describe(node)}: its padding")
                tail = np.full(sizes[k:], np.asarray(a["value"]).astype(source.dtype.numpy))
                _copy(b, sizes, Ref(b.constant(tail)), [0] * k + dense(tail.shape, itemsize), place, strides, itemsize)
            else:
                origin = Ref(target, inside + side.source * strides[k])
                moved = [*strides[:k], side.step * strides[k], *strides[k + 1:]]
                _copy(b, sizes, origin, moved, place, strides, itemsize)


def _sides(mode: str, n: int, before: int, after: int) -> list[Side] | None:
    """The two sides of an axis of n elements, padded by `before` and `after`; None if they repeat too many."""
    end = before + n
    if max(before, after) > {"reflect": n - 1, "wrap": n}.get(mode, before + after):
        return None
    source, step = {"reflect": ((2 * before, end - 2), -1), "wrap": ((n, before), 1),
                    "edge": ((before, end - 1), 0)}.get(mode, ((0, 0), 0))
    sides = Side(0, before, source[0], step), Side(end, after, source[1], step)
    return [s for s in sides if s.size]


def _copy(b: PlanBuilder, sizes: Sequence[int], source: Ref, strides: Sequence[int], target: Ref,
          targets: Sequence[int], itemsize: int) -> None:
    if prod(sizes):
        step = plan_strided_copy(sizes, strides, itemsize, b.target, targets)
        b.run(step, {"source": source, "target": target})

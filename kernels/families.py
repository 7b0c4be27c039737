"""ANCHORS: for each kind of partition what its kernels compute, and the plan steps that run them."""
from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from graphq.errors import CompileError
from graphq.ir import Node
from graphq.kernels.concat.lower import lower_concat
from graphq.kernels.concat.steps import concat_steps
from graphq.kernels.conv.lower import lower_convolution
from graphq.kernels.conv.steps import convolution_steps
from graphq.kernels.eltwise.steps import eltwise_steps
from graphq.kernels.family.lower import Lower, Lowered, Lowering, lower_eltwise
from graphq.kernels.interpolate.lower import lower_interpolate
from graphq.kernels.interpolate.steps import interpolate_steps
from graphq.kernels.matmul.lower import lower_matmul
from graphq.kernels.matmul.steps import matmul_steps
from graphq.kernels.matmul_4bit.lower import lower_matmul_4bit
from graphq.kernels.matmul_4bit.steps import matmul_4bit_steps
from graphq.kernels.pool.lower import lower_pool
from graphq.kernels.pool.steps import pool_steps
from graphq.kernels.rows.lower import lower_row
from graphq.kernels.rows.steps import row_steps
from graphq.plan.builder import PlanBuilder


class Anchor(NamedTuple):
    """`lower` says what is computed, `steps(builder, node, lowered)` adds the steps."""

    lower: Lower
    steps: Callable[[PlanBuilder, Node, Lowered], None]


ANCHORS: dict[str, Anchor] = {
    "convolution": Anchor(lower_convolution, convolution_steps),
    "matmul": Anchor(lower_matmul, matmul_steps),
    "matmul_4bit": Anchor(lower_matmul_4bit, matmul_4bit_steps),
    "pool": Anchor(lower_pool, pool_steps),
    "row": Anchor(lower_row, row_steps),
    "interpolate": Anchor(lower_interpolate, interpolate_steps),
    "concat": Anchor(lower_concat, concat_steps),
    "eltwise": Anchor(lower_eltwise, eltwise_steps),
}


def lower_partition(node: Node) -> Lowered:
    """What the kernels compute for a partition; it is worked out once, unless constants become others.

    Raises CompileError for an anchor that is none of ANCHORS.
    """
    kind = node.attrs["anchor"]
    if kind not in ANCHORS:
        raise CompileError(f"a partition's anchor must be one of {', '.join(ANCHORS)}, got {kind!r}")
    constants = [v.data for v in node.operands]
    known = node.derived
    lowered = known.lowered if isinstance(known, Lowering) and known.holds(constants) else \
        ANCHORS[kind].lower(node.attrs["body"], constants)
    node.derived = Lowering(constants, lowered)
    return lowered

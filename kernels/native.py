"""NATIVE: operations that have a kernel of their own, outside of partitions."""
from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from math import prod
from typing import NamedTuple

from graphq.ir import Node, TensorType
from graphq.kernels.family.record import Count
from graphq.kernels.moves.extremes import plan_range
from graphq.kernels.moves.pad import expand_steps, pad_steps
from graphq.kernels.moves.steps import cast_steps, gather_steps, slice_steps
from graphq.kernels.moves.transpose import plan_transpose
from graphq.plan.builder import PlanBuilder
from graphq.plan.runtime import Ref
from graphq.plan.slots import run


class Native(NamedTuple):
    """`steps` adds the plan steps of a node, `macs` counts its multiply-accumulates if it has any."""

    steps: Callable[[PlanBuilder, Node], None]
    macs: Count | None = None


def transpose_steps(b: PlanBuilder, node: Node) -> None:
    """One step."""
    (source,) = node.operands
    order = [d % len(node.attrs["order"]) for d in node.attrs["order"]]
    step = plan_transpose(source.type.dims, order, source.dtype.itemsize, threads=b.threads, cache=b.cache)
    name = f"{reorder_text(source.type, node.output.type)} by {step.name}"
    run(b, replace(step, name=name), {"source": Ref(b.of[source]), "target": Ref(b.result(node.output))}, [])


def reorder_text(source: TensorType, result: TensorType) -> str:
    """`reorder u8[1,64,56,56] -> [1,56,56,64] (201 KB)`"""
    size = f" ({kilobytes(result.nbytes)})" if result.known else ""
    return f"reorder {source} -> {str(result).removeprefix(result.dtype.name)}{size}"


def kilobytes(nbytes: int) -> str:
    """`201 KB`"""
    return f"{nbytes / 1000:,.0f} KB" if nbytes >= 10_000 else f"{nbytes / 1000:.2g} KB"


def range_steps(b: PlanBuilder, node: Node) -> None:
    """Two steps: the extremes of blocks, then the scale and zero point of all."""
    (source,) = node.operands
    found, made = plan_range(source.type.size, threads=b.threads, cache=b.cache)
    extremes = b.temporary(8 * found.blocks)
    scale, zero_point = (Ref(b.result(v)) for v in node.outputs)
    run(b, found, {"source": Ref(b.of[source]), "extremes": Ref(extremes)}, [])
    run(b, made, {"extremes": Ref(extremes), "scale": scale, "zero_point": zero_point}, [])


def recurrent_steps(b: PlanBuilder, node: Node) -> None:
    """Those of LSTM, GRU and RNN, whose kernels most models do without."""
    from graphq.kernels.recurrent.steps import STEPS

    STEPS[node.op.name](b, node)


def recurrent_macs(node: Node) -> int:
    """Each row of each step takes all weights of the state."""
    gates, weights, *_ = (v.type.dims for v in node.operands)
    return gates[0] * gates[1] * prod(weights)


NATIVE: Mapping[str, Native] = {
    "static_transpose": Native(transpose_steps), "dynamic_range": Native(range_steps), "slice": Native(slice_steps),
    "gather": Native(gather_steps), "pad": Native(pad_steps), "expand": Native(expand_steps),
    "cast": Native(cast_steps), **dict.fromkeys(("lstm", "gru", "rnn"), Native(recurrent_steps, recurrent_macs))}

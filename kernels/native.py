"""NATIVE: plan steps and costs of the operations that have kernels of their own, outside of partitions."""
from collections.abc import Callable, Mapping
from math import prod
from typing import NamedTuple

from graphq.ir import Node
from graphq.kernels.family.record import Count
from graphq.kernels.moves import steps as moves
from graphq.kernels.moves.histogram import histogram_steps
from graphq.kernels.moves.integers import COMPARISONS
from graphq.kernels.moves.rotate import rotary_steps
from graphq.kernels.recurrent.linear import linear_attention_steps
from graphq.plan.builder import PlanBuilder


class Native(NamedTuple):
    """The functions for an operation: `steps` adds its plan steps, `macs` counts its multiply-accumulates."""

    steps: Callable[[PlanBuilder, Node], None]
    macs: Count | None = None


def recurrent_steps(b: PlanBuilder, node: Node) -> None:
    """Add the plan steps of an LSTM, GRU or RNN. Its kernels are imported only here, because few models need them."""
    from graphq.kernels.recurrent import steps

    steps.recurrent_steps(b, node)


def recurrent_macs(node: Node) -> int:
    """Count the multiply-accumulates: each time step multiplies each batch row by all recurrent weights."""
    gates, weights, *_ = (v.type.dims for v in node.operands)
    return gates[0] * gates[1] * prod(weights)


def attention_steps(b: PlanBuilder, node: Node) -> None:
    """Add the plan steps of attention with KV caches. Its kernels are imported only here (few models need them)."""
    from graphq.kernels.attention import steps

    steps.attention_steps(b, node)


NATIVE: Mapping[str, Native] = {
    "static_transpose": Native(moves.transpose_steps), "dynamic_range": Native(moves.range_steps),
    "slice": Native(moves.slice_steps), "gather": Native(moves.gather_steps), "pad": Native(moves.pad_steps),
    "expand": Native(moves.expand_steps), "cast": Native(moves.cast_steps), "histogram": Native(histogram_steps),
    "integer_sum": Native(moves.sum_steps), **dict.fromkeys(("arithmetic", *COMPARISONS), Native(moves.combine_steps)),
    "rotary_embedding": Native(rotary_steps), "tensor_scatter": Native(moves.scatter_steps),
    # each token's key reads and updates a state, and its queries read it
    "linear_attention": Native(linear_attention_steps, lambda node: node.operand(1).type.dims[3] * (
        2 * prod(node.operand(2).type.dims) + prod(node.outputs[0].type.dims))),
    # one multiply-accumulate per element of a query for each row of either cache
    "cached_attention": Native(
        attention_steps, lambda node: 2 * prod(node.outputs[0].type.dims) * node.outputs[1].type.dims[2]),
    **dict.fromkeys(("lstm", "gru", "rnn"), Native(recurrent_steps, recurrent_macs))}

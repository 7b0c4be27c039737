"""Build the plan of a graph after the passes: buffers for its values, and steps for its nodes.

A chain of partitions may run strip by strip: a strip of rows goes through all partitions before the next strip does
(`graphq.plan.builder`). This saves memory traffic if the values between the partitions are large. No other node may
read these values.

A transpose needs no step if the kernels before or after it can write or read with strides. Attention has such
transposes: they move the axis of the heads before the axis of the rows, and back. A matmul can read the rows of one
head with strides, and write its result with strides.
"""
from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache as cache_of
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from graphq.base.arrays import Arrays
from graphq.base.progress import progress
from graphq.base.sizes import assumed
from graphq.errors import CompileError
from graphq.ir import Graph, Node, Value
from graphq.ir.interpret import SIZED_CONSTANT
from graphq.kernels.families import TIES, family_named, lower_partition
from graphq.kernels.family.lower import Lowered
from graphq.kernels.native import NATIVE
from graphq.kernels.operands.space import dense
from graphq.kernels.target.level import Level
from graphq.plan.builder import PlanBuilder, reference_steps
from graphq.plan.plan import VIEWS, Buffer, Copy, Plan, PythonStep

Lower: TypeAlias = Callable[[Node], Lowered]
"""A function that lowers a partition: it describes the computation for kernels."""

LEAST_BYTES, LEAST_ROWS = 1 << 20, 16
"""The fewest bytes and the fewest rows that a value between partitions must have to make strips worthwhile.

Values of fewer bytes fit into an L2 cache, and strips of fewer rows are too short for matmul tiles.
"""
LEAST_SHARE = 2
"""The values between the partitions must take at least this many times the bytes of all other operands and results.

Each strip reads all weights of a matmul, so the weights must be small in comparison. Operands with the rows and columns
of a result, such as attention masks, do not count, because a strip reads only some of their rows.
"""


def find_strips(graph: Graph, lower: Lower) -> Mapping[Node, tuple[Node, ...]]:
    """Map each node that runs strip by strip to the nodes of its chain, in order: partitions, and views between them.

    The choice affects only speed and memory, so open sizes count with their example values. `lower` lowers a partition.
    """
    found: dict[Node, tuple[Node, ...]] = {}
    for node in graph.nodes:
        if node not in found and node.op.name == "partition" and family_named(node.attrs["anchor"]).follows is not None:
            nodes = node, *_after(node, lower)
            if len(nodes) > 1 and found.keys().isdisjoint(nodes) and _fit(nodes) and _pays(nodes):
                found |= dict.fromkeys(nodes, nodes)
    return found


def between(nodes: Sequence[Node]) -> list[Value]:
    """The results of a chain's partitions, without the result of the last node."""
    return [node.output for node in nodes[:-1] if node.op.name == "partition"]


def _after(node: Node, lower: Lower) -> Iterator[Node]:
    """Yield the nodes that can follow `node` in the same strips. Each reads the result of the previous node."""
    views: list[Node] = []
    while (follower := _follower(node, lower)) is not None:
        views.append(follower)
        if follower.op.name == "partition":
            yield from views
            views = []
        node = follower


def _follower(node: Node, lower: Lower) -> Node | None:
    """The only node that reads the result of `node`, if both nodes can run in the same strips; else None.

    The result of `node` must be large. Each row of the reader's result must depend only on the same row of the result
    of `node`.
    """
    value, users = node.output, node.output.users
    dims = value.type.dims
    if value.is_output or len(users) != 1 or len(dims) < 2 or assumed(value.type.nbytes) < LEAST_BYTES \
            or assumed(dims[-2]) < LEAST_ROWS:
        return None
    (user,) = users
    if user.op.name in VIEWS:
        return user if user.output.type.dims[-1:] == dims[-1:] else None
    if user.op.name != "partition" or (follows := family_named(user.attrs["anchor"]).follows) is None:
        return None
    return user if all(follows(lower(user), k) for k, v in enumerate(user.operands) if v is value) else None


def _fit(nodes: Sequence[Node]) -> bool:
    """Whether every result's number of rows is a multiple of the smallest number of rows among the results."""
    rows = sorted([node.output.type.dims[-2] for node in nodes], key=assumed)
    return all(m % rows[0] == 0 for m in rows)


def _pays(nodes: Sequence[Node]) -> bool:
    """Whether the values between the nodes are large compared with the other operands and results (LEAST_SHARE)."""
    inside = [node.output for node in nodes[:-1]]
    beside = {v for node in nodes for v in (*node.operands, node.output)
              if v is node.output or v.type.dims[-2:] != node.output.type.dims[-2:]}.difference(inside)
    least = LEAST_SHARE * sum(assumed(v.type.nbytes) for v in beside)
    return sum(assumed(v.type.nbytes) for v in between(nodes)) > least


def find_read(graph: Graph, lower: Lower) -> set[Node]:
    """The transposes whose users are all partitions that can read the transpose's operand with strides instead."""
    return {node for node in graph.nodes if _moves(node) and node.output.users and not node.output.is_output
            and all(_reads(user, node.output, _order(node), lower) for user in node.output.users)}


def find_written(graph: Graph, lower: Lower) -> Mapping[Value, Node]:
    """Map results of partitions to transposes that are their only users, if the partitions can write with strides."""
    found = {}
    for node in graph.nodes:
        if _moves(node):
            (source,) = node.operands
            order = _order(node)
            if order[-1] == len(order) - 1 and not source.is_output and len(source.users) == 1 \
                    and source.node is not None and _family(source.node, lower) is not None:
                found[source] = node
    return found


def read_strides(node: Node) -> tuple[int, ...]:
    """The byte strides for reading a transpose's result from the memory of its dense operand."""
    (source,) = node.operands
    strides = dense(source.type.dims, source.dtype.itemsize)
    return tuple([strides[k] for k in _order(node)])


def written_strides(node: Node) -> tuple[int, ...]:
    """The byte strides for writing a transpose's operand to the memory of its dense result."""
    strides = dense(node.output.type.dims, node.output.dtype.itemsize)
    order = _order(node)
    return tuple([strides[order.index(k)] for k in range(len(order))])


def _moves(node: Node) -> bool:
    return node.op.name == "static_transpose" and node.output.dtype.bits >= 8 and len(node.attrs["order"]) > 2


def _order(node: Node) -> Sequence[int]:
    return [k % len(node.attrs["order"]) for k in node.attrs["order"]]


def _family(node: Node, lower: Lower) -> Lowered | None:
    """The lowered partition, if its kernel family supports strides; else None."""
    if node.op.name != "partition" or family_named(node.attrs["anchor"]).strided is None:
        return None
    return lower(node)


def _reads(node: Node, value: Value, order: Sequence[int], lower: Lower) -> bool:
    lowered = _family(node, lower)
    if lowered is None:
        return False
    strided = family_named(node.attrs["anchor"]).strided
    assert strided is not None
    return all(strided(lowered, k, order) for k, v in enumerate(node.operands) if v is value)


def build_plan(graph: Graph, level: Level, threads: int, cache: bool, arrays: Arrays | None = None) -> Plan:
    """Build the plan of `graph`. All types must be known. The plan shares `arrays` with other plans."""
    b = PlanBuilder(graph, level, threads, cache, arrays)
    nodes: list[int | None] = []
    numbers = {node: k for k, node in enumerate(graph.nodes)}
    lower = cache_of(partial(lower_partition, level=level))
    strips, written = find_strips(graph, lower), find_written(graph, lower)
    writes = set(written.values())
    read = find_read(graph, lower) - writes

    def add(node: Node) -> None:
        try:
            if node in read:
                (source,) = node.operands
                b.of[node.output], b.strides[node.output] = b.of[source], read_strides(node)
            elif node not in writes:
                if (move := written.get(node.outputs[0])) is not None:
                    b.of[node.output], b.strides[node.output] = b.result(move.output), written_strides(move)
                _node(b, node, lower)
        except CompileError as e:
            raise CompileError(f"{graph.describe(node)}: {e}") from None
        nodes.extend([numbers[node]] * (len(b.steps) - len(nodes)))

    for node in progress(graph.nodes, "plan"):
        if node not in strips:
            add(node)
        elif node is strips[node][-1]:  # earlier, operands of the chain may lack buffers
            with b.in_strips(between(strips[node]), node.output):
                for one in strips[node]:
                    add(one)
            nodes.append(numbers[node])
    _copies(b)
    nodes += [None] * (len(b.steps) - len(nodes))
    return b.plan(nodes)


def _node(b: PlanBuilder, node: Node, lower: Lower) -> None:
    if node.op.name == "constant":
        data = node.attrs["value"]
        b.of[node.output] = b.add(Buffer("constant", data.nbytes, node.output.type, data=data))
    elif node.op is SIZED_CONSTANT:
        b.of[node.output] = b.constant(node.attrs["value"], node.output.type)
    elif node.op.name in VIEWS:
        source = b.of[next(node.operands)]
        b.of[node.output] = source
    elif node.op.name == "partition":
        lowered = lower(node)
        node.meta = {**node.meta, TIES: lowered.ties}
        family_named(node.attrs["anchor"]).steps(b, node, lowered)
    elif node.op.name in NATIVE:
        NATIVE[node.op.name].steps(b, node)
    else:
        reference_steps(b, node)


def _copies(b: PlanBuilder) -> None:
    """Add steps that copy outputs that no step writes: inputs, constants, views, and values that are output twice."""
    for k, value in enumerate(b.graph.outputs):
        if value.type.size == 0:
            continue
        source = b.of[value]
        if b.buffers[source].storage != "output" or b.buffers[source].index != k:
            target = b.add(Buffer("output", value.type.nbytes, value.type, k))
            b.steps.append(PythonStep(f"copy to output '{b.graph.output_names[k]}'", Copy(), (source,), (target,),
                                      reference=False))


def evaluate_formulas(graph: Graph, inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """The outputs of `graph` computed in NumPy; partitions are computed by their formulas."""
    env = {v: inputs[str(v.name)] for v in graph.inputs}
    for node in graph.nodes:
        args = [None if v is None else env[v] for v in node.inputs]
        if node.op.name == "partition":
            out: Any = lower_partition(node).formula([x for x in args if x is not None])
        else:
            out = node.op.reference(*args, **node.attrs)
        for v, x in zip(node.outputs, out if isinstance(out, tuple) else (out,), strict=True):
            env[v] = np.asarray(x, v.dtype.numpy).reshape(v.type.dims)
    return [env[v] for v in graph.outputs]

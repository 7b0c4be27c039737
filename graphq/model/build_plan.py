"""Build the plan of a graph after the passes: buffers for its values, and steps for its nodes.

A chain of partitions may run strip by strip: a strip of rows goes through all partitions before the next strip does
(`graphq.plan.builder`). This saves memory traffic if the values between the partitions are large. No other node may
read these values.

A transpose needs no step if the kernels before or after it can write or read with strides. Attention has such
transposes: they move the axis of the heads before the axis of the rows, and back. A matmul can read the rows of one
head with strides, and write its result with strides.
"""
from collections.abc import Callable, Container, Mapping, Sequence
from contextlib import nullcontext
from functools import cache as cache_of
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from graphq.base.arrays import Arrays
from graphq.base.progress import progress
from graphq.base.sizes import assumed, surely_equal
from graphq.errors import CompileError
from graphq.ir import SIZED_CONSTANT, Graph, Node, Value
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
        if node in found or node.op.name != "partition" or family_named(node.attrs["anchor"]).follows is None:
            continue
        nodes = [node]
        while (follower := _follower(nodes[-1], lower)) is not None:
            nodes.append(follower)
        while nodes[-1].op.name in VIEWS:
            nodes.pop()
        if len(nodes) > 1 and found.keys().isdisjoint(nodes) and _pays(nodes):
            found |= dict.fromkeys(nodes, tuple(nodes))
    return found


def between(nodes: Sequence[Node]) -> list[Value]:
    """The results of a chain's partitions, without the result of the last node."""
    return [node.output for node in nodes[:-1] if node.op.name == "partition"]


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


def _pays(nodes: Sequence[Node]) -> bool:
    """Whether strips can have the rows of all results, and the values between the nodes are large (LEAST_SHARE).

    The smallest number of rows among the results must divide all numbers of rows.
    """
    rows = sorted([node.output.type.dims[-2] for node in nodes], key=assumed)
    if not all(m % rows[0] == 0 for m in rows):
        return False
    inside = [node.output for node in nodes[:-1]]
    values = {v for node in nodes for v in (*node.operands, node.output)
              if v is node.output or not surely_equal(v.type.dims[-2:], node.output.type.dims[-2:])}.difference(inside)
    least = LEAST_SHARE * sum(assumed(v.type.nbytes) for v in values)
    return sum(assumed(v.type.nbytes) for v in between(nodes)) > least


def find_strided(graph: Graph, lower: Lower) -> tuple[Mapping[Value, Node], set[Node]]:
    """The transposes that need no step, because partitions write or read with strides instead.

    Maps results of partitions that can write so to transposes that are their only users. The set has other transposes
    whose users are all partitions that can read the transpose's operand.
    """
    written: dict[Value, Node] = {}
    read: set[Node] = set()
    for node in graph.nodes:
        if node.op.name != "static_transpose" or node.output.dtype.bits < 8 or len(node.attrs["order"]) < 3:
            continue
        (source,), value, order = node.operands, node.output, _order(node)
        if order[-1] == len(order) - 1 and not source.is_output and len(source.users) == 1 \
                and source.node is not None and _strided(source.node) is not None:
            written[source] = node
        elif value.users and not value.is_output and all(
                (strided := _strided(user)) is not None
                and all(strided(lower(user), k, order) for k, v in enumerate(user.operands) if v is value)
                for user in value.users):
            read.add(node)
    return written, read


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


def _order(node: Node) -> Sequence[int]:
    return [k % len(node.attrs["order"]) for k in node.attrs["order"]]


def _strided(node: Node) -> Callable[..., bool] | None:
    """The function with which a partition's kernel family says which operands it reads with strides; else None."""
    return family_named(node.attrs["anchor"]).strided if node.op.name == "partition" else None


def build_plan(graph: Graph, level: Level, threads: int, cache: bool, arrays: Arrays | None = None) -> Plan:
    """Build the plan of `graph`. All types must be known. The plan shares `arrays` with other plans."""
    b = PlanBuilder(graph, level, threads, cache, arrays)
    numbers = {node: k for k, node in enumerate(graph.nodes)}
    nodes: list[int | None] = []
    lower = cache_of(partial(lower_partition, level=level))
    strips = find_strips(graph, lower)
    written, read = find_strided(graph, lower)
    for last in progress(graph.nodes, "plan"):
        chain = strips.get(last, (last,))
        if last is not chain[-1]:  # a chain is planned at its last node: all its operands have buffers then
            continue
        with b.in_strips(between(chain), last.output) if last in strips else nullcontext():
            for node in chain:
                try:
                    _node(b, node, lower, written, read)
                except CompileError as e:
                    raise CompileError(f"{graph.describe(node)}: {e}") from None
                nodes += [numbers[node]] * (len(b.steps) - len(nodes))
        nodes += [numbers[last]] * (len(b.steps) - len(nodes))
    for k, value in enumerate(graph.outputs):  # copy outputs that no step writes: inputs, views, values returned twice
        if value.type.size == 0:
            continue
        have = b.of[value]
        if (b.buffers[have].storage, b.buffers[have].index) != ("output", k):
            target = b.add(Buffer("output", value.type.nbytes, value.type, k))
            b.steps.append(PythonStep(f"copy to output '{graph.output_names[k]}'", Copy(), (have,), (target,),
                                      reference=False))
    return b.plan([*nodes, *[None] * (len(b.steps) - len(nodes))])


def _node(b: PlanBuilder, node: Node, lower: Lower, written: Mapping[Value, Node], read: Container[Node]) -> None:
    """Add the steps of a node; `written` and `read` have the transposes without steps (`find_strided`)."""
    if any(written.get(v) is node for v in node.operands):
        return
    if node in read:
        (source,) = node.operands
        b.of[node.output], b.strides[node.output] = b.of[source], read_strides(node)
        return
    if (move := written.get(node.outputs[0])) is not None:
        b.of[node.output], b.strides[node.output] = b.result(move.output), written_strides(move)
    if node.op.name == "constant":
        data = node.attrs["value"]
        b.of[node.output] = b.add(Buffer("constant", data.nbytes, node.output.type, data=data))
    elif node.op is SIZED_CONSTANT:
        b.of[node.output] = b.constant(node.attrs["value"], node.output.type)
    elif node.op.name in VIEWS:
        b.of[node.output] = b.of[next(node.operands)]
    elif node.op.name == "partition":
        lowered = lower(node)
        node.meta = {**node.meta, TIES: lowered.ties}
        family_named(node.attrs["anchor"]).steps(b, node, lowered)
    elif node.op.name in NATIVE:
        NATIVE[node.op.name].steps(b, node)
    else:
        reference_steps(b, node)


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

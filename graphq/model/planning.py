"""Build the Plan of a graph after the passes: buffers for its values, steps for its nodes."""
from __future__ import annotations

from collections.abc import Mapping
from functools import cache as cache_of
from functools import partial
from typing import Any

import numpy as np

from graphq.base.progress import progress
from graphq.errors import CompileError
from graphq.ir import Graph, Node
from graphq.ir.constants import SIZED_CONSTANT
from graphq.kernels.families import TIES, family_named, lower_partition
from graphq.kernels.jit.isa import Level
from graphq.kernels.native import NATIVE
from graphq.model.strips import Lower, between, find_strips
from graphq.model.transposed import find_read, find_written, read_strides, written_strides
from graphq.plan.builder import PlanBuilder
from graphq.plan.plan import VIEWS, Buffer, Plan, PythonStep
from graphq.plan.reference import reference_steps


def build_plan(graph: Graph, level: Level, threads: int, cache: bool) -> Plan:
    """The plan of `graph`, whose types are all known."""
    b = PlanBuilder(graph, level, threads, cache)
    nodes: list[int | None] = []
    numbers = {node: k for k, node in enumerate(graph.nodes)}
    lower = cache_of(partial(lower_partition, level=level))
    strips, written = find_strips(graph, lower), find_written(graph, lower)
    read = find_read(graph, lower).difference(written.values())

    def add(node: Node) -> None:
        try:
            if node in read:
                (source,) = node.operands
                b.of[node.output], b.strides[node.output] = b.of[source], read_strides(node)
            elif node not in written.values():
                if (move := written.get(node.outputs[0])) is not None:
                    b.of[node.output], b.strides[node.output] = b.result(move.output), written_strides(move)
                _node(b, node, lower)
        except CompileError as e:
            raise CompileError(f"{graph.describe(node)}: {e}") from None
        nodes.extend([numbers[node]] * (len(b.steps) - len(nodes)))

    for node in progress(graph.nodes, "plan"):
        if node not in strips:
            add(node)
        elif node is strips[node][-1]:  # at the last node all operands of the chain have buffers
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
    """Add steps that copy to outputs that no step writes: inputs, constants, views, and values returned twice."""
    for k, value in enumerate(b.graph.outputs):
        if value.type.size == 0:
            continue
        source = b.of[value]
        if b.buffers[source].storage != "output" or b.buffers[source].index != k:
            target = b.add(Buffer("output", value.type.nbytes, value.type, k))
            b.steps.append(PythonStep(f"copy to output '{b.graph.output_names[k]}'", np.asarray, (source,), (target,),
                                      reference=False))


def evaluate_formulas(graph: Graph, inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """The outputs of `graph` computed in NumPy, partitions by their formulas."""
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

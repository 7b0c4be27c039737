"""Build the Plan of a graph after the passes: buffers for its values, steps for its nodes."""
from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from graphq.ir import Graph, Node, TensorType, Value
from graphq.kernels.isa import Level
from graphq.kernels.lower import Lowered, lower_eltwise, lower_matmul
from graphq.kernels.registry import Step as KernelStep
from graphq.partition_steps import eltwise_steps, matmul_steps
from graphq.runtime import VIEWS, Buffer, NativeStep, Plan, PythonStep, Ref, Step


class PlanBuilder:
    """Collects buffers and steps; `level`, `threads` and `cache` are for those who make steps."""

    def __init__(self, graph: Graph, level: Level, threads: int, cache: bool) -> None:
        self.graph, self.level, self.threads, self.cache = graph, level, threads, cache
        self.buffers: list[Buffer] = []
        self.steps: list[Step] = []
        self.of: dict[Value, int] = {}
        for k, v in enumerate(graph.inputs):
            self.of[v] = self.add(Buffer("input", v.type.nbytes, v.type, k))

    def add(self, buffer: Buffer) -> int:
        """The number of a new buffer."""
        self.buffers.append(buffer)
        return len(self.buffers) - 1

    def constant(self, data: np.ndarray, type: TensorType | None = None) -> int:
        """A buffer with the data of an array, made contiguous."""
        return self.add(Buffer("constant", data.nbytes, type, data=np.ascontiguousarray(data)))

    def temporary(self, nbytes: int) -> int:
        """A buffer in the arena."""
        return self.add(Buffer("arena", nbytes))

    def native(self, step: KernelStep, words: list[int | Ref]) -> None:
        """Add a kernel's step, unless it has nothing to do; one block, or no second thread, runs serially."""
        if step.blocks > 0:
            parallel = step.blocks > 1 and self.threads > 1
            self.steps.append(NativeStep(step.name, step.address, tuple(words), step.blocks, parallel, step.keep))

    def result(self, value: Value) -> int:
        """The buffer that a node writes `value` to: an output's own array where that can be."""
        if value not in self.of:
            ks = [k for k, v in enumerate(self.graph.outputs) if v is value]
            place = Buffer("output", value.type.nbytes, value.type, ks[0]) if ks else \
                Buffer("arena", value.type.nbytes, value.type)
            self.of[value] = self.add(place)
        return self.of[value]


def build_plan(graph: Graph, level: Level, threads: int, cache: bool) -> Plan:
    """The plan of `graph`, all of whose types are known."""
    b = PlanBuilder(graph, level, threads, cache)
    for node in graph.nodes:
        _node(b, node)
    _copies(b)
    return Plan(tuple(b.buffers), tuple(b.steps), tuple(v.type for v in graph.outputs), threads, level.name)


def _node(b: PlanBuilder, node: Node) -> None:
    if node.op.name == "constant":
        b.of[node.output] = b.constant(node.attrs["value"], node.output.type)
    elif node.op.name in VIEWS:
        source = b.of[next(node.operands)]
        b.of[node.output] = source
    elif node.op.name == "partition":
        lowered = lower_partition(node, compensate=True)
        (matmul_steps if lowered.matmul else eltwise_steps)(b, node, lowered)
    else:
        inputs = tuple(None if v is None else b.of[v] for v in node.inputs)
        shapes = tuple(None if v is None else v.type.dims for v in node.inputs)
        b.steps.append(PythonStep(b.graph.describe(node), partial(_reference, node, shapes), inputs,
                                  tuple(b.result(v) for v in node.outputs)))


def _reference(node: Node, shapes: tuple[tuple[int, ...] | None, ...], *arrays: np.ndarray | None) -> Any:
    """The node's reference; a view's buffer has the shape of what it views."""
    args = (x if x is None or s is None else x.reshape(s) for x, s in zip(arrays, shapes, strict=True))
    return node.op.reference(*args, **node.attrs)


def _copies(b: PlanBuilder) -> None:
    """Outputs that no step writes: inputs, constants, views, and a value returned twice."""
    for k, value in enumerate(b.graph.outputs):
        if value.type.size == 0:
            continue
        source = b.of[value]
        if b.buffers[source].place != "output" or b.buffers[source].index != k:
            target = b.add(Buffer("output", value.type.nbytes, value.type, k))
            b.steps.append(PythonStep(f"copy to output '{b.graph.output_names[k]}'", np.asarray, (source,), (target,),
                                      reference=False))


def lower_partition(node: Node, *, compensate: bool = False) -> Lowered:
    """What the kernels compute for a partition."""
    body = node.attrs["body"]
    if node.attrs["anchor"] == "matmul":
        return lower_matmul(body, [None if v is None else v.data for v in node.inputs], compensate=compensate)
    return lower_eltwise(body)


def evaluate_formulas(graph: Graph, inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """The outputs of `graph` in NumPy, partitions by their formulas."""
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

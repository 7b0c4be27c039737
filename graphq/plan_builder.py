"""PlanBuilder: collects the buffers and steps of a plan."""
from __future__ import annotations

import numpy as np

from graphq.ir import Graph, TensorType, Value
from graphq.kernels.isa import Level
from graphq.kernels.registry import Step as KernelStep
from graphq.runtime import VIEWS, Buffer, MakeError, NativeStep, Ref, Step


class PlanBuilder:
    """Collects buffers and steps; `level`, `threads` and `cache` are for those who make steps."""

    def __init__(self, graph: Graph, level: Level, threads: int, cache: bool) -> None:
        self.graph, self.level, self.threads, self.cache = graph, level, threads, cache
        self.buffers: list[Buffer] = []
        self.steps: list[Step] = []
        self.errors: list[MakeError] = []
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

    def report(self, make: MakeError) -> int:
        """A buffer of one s64, where a step stores what is wrong, not 0; `make` gives the error that a run raises."""
        self.errors.append(make)
        return self.add(Buffer("report", 8, index=len(self.errors) - 1))

    def native(self, step: KernelStep, words: list[int | Ref]) -> None:
        """Add a kernel's step, unless it has nothing to do; one block, little work, or no second thread: serially."""
        if step.blocks > 0:
            parallel = step.blocks > 1 and self.threads > 1 and not step.serial
            self.steps.append(NativeStep(step.name, step.address, tuple(words), step.blocks, parallel, step.keep,
                                         step.macs))

    def result(self, value: Value) -> int:
        """The buffer that a node writes `value` to: where it can be, the array of an output that is it or views it."""
        if value not in self.of:
            outputs = self.graph.outputs
            k = next((k for k, v in enumerate(outputs) if v is value), None)
            if k is None:
                k = next((k for k, v in enumerate(outputs) if _viewed(v) is value), None)
            place = Buffer("arena", value.type.nbytes, value.type) if k is None else \
                Buffer("output", value.type.nbytes, value.type, k)
            self.of[value] = self.add(place)
        return self.of[value]


def _viewed(value: Value) -> Value:
    """What `value` is a view of, or itself."""
    while value.node is not None and value.node.op.name in VIEWS:
        value = next(value.node.operands)
    return value

"""PlanBuilder: collects the buffers and steps of a plan."""
from __future__ import annotations

from dataclasses import replace

import numpy as np

from graphq.base.budget import expect, reserve
from graphq.base.sizes import Later, number
from graphq.ir import Graph, TensorType, Value
from graphq.kernels.jit.isa import Level
from graphq.kernels.jit.registry import Step as KernelStep
from graphq.kernels.jit.registry import Target
from graphq.plan.plan import VIEWS, Argument, Buffer, MakeError, NativeStep, Ref, Step, rooms_of

MOST_AHEAD = 1 << 18
"""Bytes of the next step's weights that are prefetched at the most, a quarter of L2."""


class PlanBuilder:
    """Collects buffers and steps; `target` is for those who make steps."""

    def __init__(self, graph: Graph, level: Level, threads: int, cache: bool) -> None:
        self.graph, self.target = graph, Target(level, threads, cache)
        self.buffers: list[Buffer] = []
        self.steps: list[Step] = []
        self.errors: list[MakeError] = []
        self.of: dict[Value, int] = {}
        self._ahead: tuple[int, int] | None = None  # the last step that prefetches, and the word for it
        for k, v in enumerate(graph.inputs):
            self.of[v] = self.add(Buffer("input", v.type.nbytes, v.type, k))

    def add(self, buffer: Buffer) -> int:
        """The number of a new buffer."""
        self.buffers.append(buffer)
        return len(self.buffers) - 1

    def constant(self, data: np.ndarray | Later, type: TensorType | None = None) -> int:
        """A buffer with the data of an array that steps need beside the graph's constants, made contiguous."""
        if isinstance(data, Later):
            return self.add(Buffer("constant", number(_nbytes, data), type, data=data))
        reserve(data.nbytes, "packed weights and tables")
        return self.add(Buffer("constant", data.nbytes, data=np.ascontiguousarray(data)))

    def temporary(self, nbytes: int) -> int:
        """A buffer in the arena."""
        expect(nbytes, "a buffer between steps")
        return self.add(Buffer("arena", nbytes))

    def report(self, make: MakeError) -> int:
        """A buffer of one s64, where a step stores what is wrong, not 0; `make` gives the error that a run raises."""
        self.errors.append(make)
        return self.add(Buffer("report", 8, index=len(self.errors) - 1))

    def native(self, step: KernelStep, words: list[Argument]) -> None:
        """Add a kernel's step, unless it has nothing to do; one block, little work, or no second thread: serially."""
        if step.blocks > 0:
            self._announce(step, words)
            threads = self.target.threads if step.threads is None else step.threads
            parallel = self.target.threads > 1 and number(_is_parallel, threads, step.blocks)
            at = None
            if step.room is not None:
                at, nbytes = step.record.number(step.room[0]), step.room[1]
                rooms = number(rooms_of, parallel, step.blocks, self.target.threads)
                words[at:at + 2] = Ref(self.temporary(nbytes * rooms)), rooms
            if step.aligned is not None and isinstance(operand := words[step.record.number(step.aligned)], Ref):
                self.buffers[operand.buffer] = replace(self.buffers[operand.buffer], aligned=True)
            self.steps.append(NativeStep(step.name, step.function, tuple(words), step.blocks, parallel, step.keep,
                                         step.macs, None if at is None else at + 1, step.exact))

    def _announce(self, step: KernelStep, words: list[Argument]) -> None:
        """Let the last step that prefetches bring the constant weights of this one."""
        weights = None if step.weights is None else words[step.record.number(step.weights)]
        if isinstance(weights, Ref) and self.buffers[weights.buffer].storage == "constant":
            if self._ahead is not None:
                number, at = self._ahead
                before = self.steps[number]
                assert isinstance(before, NativeStep)
                what = (weights, min(self.buffers[weights.buffer].nbytes - weights.offset, MOST_AHEAD))
                self.steps[number] = replace(before, words=(*before.words[:at], *what, *before.words[at + 2:]))
            self._ahead = None
        if step.ahead is not None:
            self._ahead = len(self.steps), step.record.number(step.ahead)

    def result(self, value: Value) -> int:
        """The buffer that a node writes `value` to: where it can be, the array of an output that is it or views it."""
        if value not in self.of:
            expect(value.type.nbytes, "the result")
            outputs = self.graph.outputs
            k = next((k for k, v in enumerate(outputs) if v is value), None)
            if k is None:
                k = next((k for k, v in enumerate(outputs) if _viewed(v) is value), None)
            buffer = Buffer("arena", value.type.nbytes, value.type) if k is None else \
                Buffer("output", value.type.nbytes, value.type, k)
            self.of[value] = self.add(buffer)
        return self.of[value]


def _is_parallel(threads: int, blocks: int) -> bool:
    return threads > 1 and blocks > 1


def _nbytes(array: np.ndarray) -> int:
    return array.nbytes


def _viewed(value: Value) -> Value:
    """What `value` is a view of, or itself."""
    while value.node is not None and value.node.op.name in VIEWS:
        value = next(value.node.operands)
    return value

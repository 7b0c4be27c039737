"""PlanBuilder: collects the buffers and steps of a plan."""
from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from math import prod

import numpy as np

from graphq.base.budget import expect, reserve
from graphq.base.sizes import Later, assumed, is_open, largest, number
from graphq.ir import Graph, TensorType, Value
from graphq.kernels.jit.isa import Level
from graphq.plan.plan import VIEWS, AnyStep, Buffer, MakeError, Plan, touched
from graphq.plan.step import Ref, Slot, Step, Target, Word
from graphq.plan.strips import Strips, plan_strips, row_stride

MOST_AHEAD = 1 << 18
"""The most bytes of the next step's weights that a step prefetches: a quarter of an L2 cache of 1 MiB."""


class PlanBuilder:
    """Collects the buffers and steps of a plan; `target` is the machine that the steps are made for.

    `of` has the buffers of values. A value in `strides` is not dense there: these are its bytes from element to element
    along each axis.
    """

    def __init__(self, graph: Graph, level: Level, threads: int, cache: bool) -> None:
        self.graph, self.target = graph, Target(level, threads, cache)
        self.buffers: list[Buffer] = []
        self.steps: list[AnyStep] = []
        self.errors: list[MakeError] = []
        self.strips: Strips | None = None
        self._in_place: list[tuple[int, int]] = []
        self.strides: dict[Value, Sequence[int]] = {}
        self.of: dict[Value, int] = {}
        for k, v in enumerate(graph.inputs):
            self.of[v] = self.add(Buffer("input", v.type.nbytes, v.type, k))

    def add(self, buffer: Buffer) -> int:
        """Add a buffer to the plan; returns its number."""
        self.buffers.append(buffer)
        return len(self.buffers) - 1

    def constant(self, data: np.ndarray | Later, type: TensorType | None = None) -> int:
        """Add a constant buffer for an array that steps need besides the graph's constants, such as packed weights.

        The array is made contiguous. Returns the buffer's number.
        """
        if isinstance(data, Later):
            return self.add(Buffer("constant", number(_nbytes, data), type, data=data))
        reserve(data.nbytes, "packed weights and tables")
        return self.add(Buffer("constant", data.nbytes, data=np.ascontiguousarray(data)))

    def temporary(self, nbytes: int) -> int:
        """Add a buffer in the arena, which one step writes and a later one reads; returns its number."""
        expect(nbytes, "a buffer between steps")
        return self.add(Buffer("arena", nbytes))

    def report(self, make: MakeError) -> int:
        """Add a buffer of one s64, in which a step reports an error by storing a number other than 0.

        `make` takes this number and returns the exception that the run then raises. Returns the buffer's number.
        """
        self.errors.append(make)
        return self.add(Buffer("report", 8, index=len(self.errors) - 1))

    def may_share(self, source: int, target: int) -> None:
        """Allow the step that reads buffer `source` to write buffer `target` in the same memory."""
        self._in_place.append((source, target))

    def table(self, offsets: np.ndarray | Later | None) -> Word:
        """The word of an argument block for a table of offsets, which becomes a constant; 0 if there is no table."""
        return 0 if offsets is None else Ref(self.constant(offsets))

    def run(self, step: Step, words: Mapping[str, Word], slots: Sequence[Slot] = ()) -> None:
        """Add a kernel's step with these words and slots, unless it has no blocks.

        If its argument block has the word `rooms`, scratch memory is added in the arena, one part for each piece of the
        step's blocks. Raises KernelError for a word that the argument block does not have.
        """
        if step.blocks > 0:
            strips = self.strips if self.strips is not None and self.strips.touched_by(words, slots) else None
            if strips is not None:
                step = step.shared(strips.pieces)
            if is_open(step.room) or step.room:
                words = {**words, "rooms": Ref(self.temporary(step.room))}
            if strips is None:
                self.steps.append(step.filled(words, slots))
            else:
                strips.add(step.filled(words, slots))

    @contextmanager
    def in_strips(self, between: Sequence[Value], result: Value) -> Iterator[None]:
        """Within the context, steps that touch one of the values `between` run strip by strip (`Strips`).

        One step writes each of these values, and only the next step reads it: to compute some rows of its output, that
        step may need only the same rows. The last step writes `result`. A strip is a block of rows of the value with
        the fewest rows, m. If another value has r * m rows for each batch element, it has an rth of the batch elements.
        """
        m = min((v.type.dims[-2] for v in (*between, result)), key=assumed)
        *outer, rows, _ = between[0].type.dims
        batch = prod(outer) * (rows // m)
        strides = [row_stride(v.type.dims[-1] * v.dtype.numpy.itemsize) for v in between]
        each, shares = plan_strips((batch, m), strides, self.target.threads)
        rooms: dict[int, int] = {}
        for value, stride in zip(between, strides, strict=True):
            self.of[value] = self.temporary(largest(1, shares) * each * stride)
            rooms[self.of[value]] = stride
        self.strips = strips = Strips(batch, m, each, shares, rooms, [])
        yield
        self.strips = None
        self.run(strips.step(self.target), {})

    @property
    def strip_rows(self) -> int | None:
        """The number of rows of a strip; None outside of `in_strips`."""
        return None if self.strips is None else self.strips.each

    def plan(self, nodes: Sequence[int | None] = ()) -> Plan:
        """The plan; `nodes` has for each step the number of the graph's node that it belongs to.

        A step whose argument block has the word `ahead` prefetches weights: those of the next step that has this word,
        if they are constant, at most MOST_AHEAD bytes.
        """
        steps = list(self.steps)
        prefetching = [(k, s) for k, s in enumerate(self.steps) if isinstance(s, Step) and "ahead" in s.words]
        for (k, step), (_, following) in pairwise(prefetching):
            weights = following.words["w"]
            if isinstance(weights, Ref) and (buffer := self.buffers[weights.buffer]).storage == "constant":
                nbytes = min(buffer.nbytes - weights.offset, MOST_AHEAD)
                steps[k] = step.filled({"ahead": weights, "ahead_bytes": nbytes})
        readers = Counter(b for step in steps for b in set(touched(step)))
        pairs = [(self.buffers[a], self.buffers[b]) for a, b in self._in_place if readers[a] == 1]
        return Plan(tuple(self.buffers), tuple(steps), tuple(v.type for v in self.graph.outputs), self.target.threads,
                    self.target.level.name, tuple(self.errors), tuple(nodes),
                    tuple((a.index, b.index) for a, b in pairs if (a.storage, b.storage) == ("input", "output")))

    def result(self, value: Value) -> int:
        """The number of the buffer that a node writes `value` to; adds the buffer if there is none.

        If `value` is an output of the graph, or an output is a view of it, the buffer is the array of that output.
        """
        if value not in self.of:
            expect(value.type.nbytes, "the result")
            outputs = self.graph.outputs
            places = [k for k, v in enumerate(outputs) if v is value] or \
                [k for k, v in enumerate(outputs) if _viewed(v) is value]
            self.of[value] = self.add(Buffer("output" if places else "arena", value.type.nbytes, value.type,
                                             places[0] if places else 0))
        return self.of[value]


def _nbytes(array: np.ndarray) -> int:
    return array.nbytes


def _viewed(value: Value) -> Value:
    while value.node is not None and value.node.op.name in VIEWS:
        value = next(value.node.operands)
    return value

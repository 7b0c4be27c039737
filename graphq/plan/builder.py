"""Build plans: PlanBuilder collects the buffers and steps of a plan.

Some steps run strip by strip: a strip of rows goes through all of these steps before the next strip does. Memory for a
value between two of the steps is then needed only for one strip.
"""
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain, pairwise
from math import prod
from typing import Any, NamedTuple

import numpy as np

from graphq.base.arrays import Arrays
from graphq.base.budget import expect, reserve
from graphq.base.sizes import Later, assumed, is_open, largest, later, number, recorded
from graphq.ir import Graph, Node, TensorType, Value
from graphq.kernels.jit import modules
from graphq.kernels.target.level import Level
from graphq.kernels.threads import team
from graphq.kernels.threads.strips import STRIPS, strips_module
from graphq.plan import plan as plans

ROOM = 600_000
"""The most bytes for a strip's rows of all values between its steps.

This is about half of an L2 cache of 1 MiB; the other operands of the steps need the rest. Measured on Zen 5 with
attention over 2,048 keys in f32: half of this limit takes 1 to 8 % longer, and twice the limit is never faster.
"""
UNITS = (48, 24, 16, 8)
"""The number of rows of a strip is a multiple of one of these numbers, so a strip consists of whole matmul tiles.

The rows that fit into ROOM are counted. The count is rounded down to a multiple of the largest unit that it reaches.
"""


class Strips(NamedTuple):
    """Steps that run strip by strip. A strip has neighboring rows of one batch element; `each` is the number of rows.

    There are `batch` elements of `m` rows. Threads run the strips in `pieces` pieces; 0 means that one thread runs all
    strips. A value between two steps has a buffer with memory for one strip per piece; `rooms` maps the buffer's index
    to its bytes per row. `steps` are the steps added so far.
    """

    batch: int
    m: int
    each: int
    pieces: int
    rooms: Mapping[int, int]
    steps: list[plans.Step]

    @property
    def blocks(self) -> int:
        """The number of strips."""
        return self.batch * -(-self.m // self.each)

    def add(self, step: plans.Step) -> None:
        """Add a step that has one block per strip."""
        assert assumed(step.blocks) == assumed(self.blocks)
        self.steps.append(step)

    def step(self, target: plans.Target) -> plans.Step:
        """Make the step that runs all added steps strip by strip. Each strip is one block of work for the threads."""
        block = modules.load("strips", strips_module, cache=target.cache).block
        parts = [plans.Part(step, tuple([
            (k, self.rooms[w.buffer]) for k, w in enumerate(step.block)
            if isinstance(w, plans.Ref) and w.buffer in self.rooms])) for step in self.steps]
        words = STRIPS.named({
            "steps": len(parts), "batch": self.batch, "m": self.m, "each": self.each,
            "room_count": largest(1, self.pieces), "room_bytes": 8 * max(len(step.block) for step in self.steps)})
        return plans.Step(later(_joined, [step.kernel for step in self.steps]), block, words, self.blocks, self.pieces,
                    macs=sum(step.macs for step in self.steps), parts=tuple(parts))


@recorded("builder.joined")
def _joined(names: Sequence[str]) -> str:
    return " + ".join(names)


def row_stride(nbytes: int) -> int:
    """The distance in bytes between rows of `nbytes` bytes in a strip's memory: an odd multiple of 64.

    A multiple of 4096 would put the rows of a tile into a few sets of the L1 cache. An odd multiple of 64 saves 2 to 4
    % of the time for attention over 4,096 keys (Zen 5).
    """
    return 64 * (-(-nbytes // 64) | 1)


def plan_strips(rows: tuple[int, int], strides: Sequence[int], threads: int) -> tuple[int, int]:
    """The rows of a strip, and the number of pieces; `strides` has the bytes per row of the values between steps."""
    batch, m = rows
    each = number(_strip, batch, m, sum(strides), threads)
    return each, plans.pieces(batch * -(-m // each), threads, threads)


@recorded("builder.strip")
def _strip(batch: int, m: int, stride: int, threads: int) -> int:
    most = ROOM // max(1, stride)
    unit = next((unit for unit in UNITS if unit <= most), UNITS[-1])
    return min(max(unit, most // unit * unit), plans.rows_of_block(m, batch, threads, UNITS[-1]))


MOST_AHEAD = 1 << 18
"""The most bytes of the next step's weights that a step prefetches: a quarter of an L2 cache of 1 MiB."""


class PlanBuilder:
    """Collects the buffers and steps of a plan for the machine `target`.

    `arrays` has the constant arrays of all of the model's plans, without duplicates. The dict `of` maps values to the
    indices of their buffers. `strides` has the byte strides of values that are not dense in their buffers. Within
    `in_strips`, `strip_rows` is the number of rows of a strip; outside it is None.
    """

    def __init__(self, graph: Graph, level: Level, threads: int, cache: bool, arrays: Arrays | None = None) -> None:
        self.graph, self.target = graph, plans.Target(level, threads, cache)
        team.modules_of_team(threads, cache)  # early, so that the modules of the thread team compile in the background
        self._arrays = Arrays() if arrays is None else arrays
        self._constants: dict[int, int] = {}
        self.buffers: list[plans.Buffer] = []
        self.steps: list[plans.AnyStep] = []
        self.errors: list[plans.ReportedError] = []
        self.strips: Strips | None = None
        self.strip_rows: int | None = None
        self._in_place: list[tuple[int, int]] = []
        self.strides: dict[Value, Sequence[int]] = {}
        self.of: dict[Value, int] = {}
        for k, v in enumerate(graph.inputs):
            self.of[v] = self.add(plans.Buffer("input", v.type.nbytes, v.type, k))

    def add(self, buffer: plans.Buffer) -> int:
        """Add a buffer to the plan; returns its index."""
        self.buffers.append(buffer)
        return len(self.buffers) - 1

    def constant(self, data: np.ndarray | Later, type: TensorType | None = None) -> int:
        """The index of a constant buffer for an array that steps need, such as packed weights or a table.

        Equal arrays share one buffer. The buffer's array is contiguous and aligned to a cache line.
        """
        if isinstance(data, Later):
            return self.add(plans.Buffer("constant", number(_nbytes, data), type, data=data))
        one = self._arrays.one_for(data, aligned=True)
        if id(one) not in self._constants:
            reserve(one.nbytes, "packed weights and tables")
            self._constants[id(one)] = self.add(plans.Buffer("constant", one.nbytes, data=one))
        return self._constants[id(one)]

    def packed(self, pack: Callable[..., np.ndarray], weights: np.ndarray, *args: Any) -> int:
        """The index of a constant buffer with `pack(weights, *args)`. `pack` is called once for equal arguments."""
        return self.constant(self._arrays.made(pack, weights, *args))

    def temporary(self, nbytes: int) -> int:
        """Add a buffer in the arena that one step writes and a later step reads; returns its index."""
        expect(nbytes, "a buffer between steps")
        return self.add(plans.Buffer("arena", nbytes))

    def report(self, kind: str, node: Node, *values: Any) -> int:
        """Add a buffer of one s64 for errors of a step; returns its index.

        If the step stores a number other than 0, the run raises the `ReportedError` of this kind for the number.
        """
        self.errors.append(plans.ReportedError(kind, self.graph.describe(node), values))
        return self.add(plans.Buffer("report", 8, index=len(self.errors) - 1))

    def may_share(self, source: int, target: int) -> None:
        """Allow a step to read buffer `source` and write buffer `target` in the same memory."""
        self._in_place.append((source, target))

    def table(self, offsets: np.ndarray | Later | None) -> plans.Word:
        """Add a table of offsets to the plan as a constant. Returns the table's argument word; 0 for None."""
        return 0 if offsets is None else plans.Ref(self.constant(offsets))

    def run(self, step: plans.Step, words: Mapping[str, plans.Word], slots: Sequence[plans.Slot] = ()) -> None:
        """Add a kernel's step with these argument words and slots. A step without blocks is skipped.

        If the argument block has the field `rooms`, each piece of the step gets scratch memory in the arena. Raises
        KernelError for a word that the argument block does not have.
        """
        if step.blocks > 0:
            strips = self.strips
            if strips is not None and not any(isinstance(w, plans.Ref) and w.buffer in strips.rooms
                                              for w in chain(words.values(), *slots)):
                strips = None  # the step touches no value between two steps of the strips
            if strips is not None:
                step = step.shared(strips.pieces)
            if is_open(step.room) or step.room:
                words = {**words, "rooms": plans.Ref(self.temporary(step.room))}
            if strips is None:
                self.steps.append(step.filled(words, slots))
            else:
                strips.add(step.filled(words, slots))

    @contextmanager
    def in_strips(self, between: Sequence[Value], result: Value) -> Iterator[None]:
        """Within a `with` block, steps that touch one of the values `between` run strip by strip (`Strips`).

        One step writes each of these values, and only the next step reads it. A row of a step's output must depend only
        on the same row of its input. The last step writes `result`. Values may have different numbers of rows per batch
        element if the least number m divides them: r * m rows then count as r batch elements of m rows.
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
        strips = Strips(batch, m, each, shares, rooms, [])
        self.strips, self.strip_rows = strips, each
        yield
        self.strips, self.strip_rows = None, None
        self.run(strips.step(self.target), {})

    def plan(self, nodes: Sequence[int | None] = ()) -> plans.Plan:
        """Make the plan. For each step, `nodes` has the index of the step's node in the graph.

        A step whose argument block has the field `ahead` prefetches the constant weights of the next such step, at most
        MOST_AHEAD bytes.
        """
        steps = list(self.steps)
        prefetching = [(k, s) for k, s in enumerate(self.steps) if isinstance(s, plans.Step) and "ahead" in s.words]
        for (k, step), (_, following) in pairwise(prefetching):
            weights = following.words["w"]
            if isinstance(weights, plans.Ref) and (buffer := self.buffers[weights.buffer]).storage == "constant":
                nbytes = min(buffer.nbytes - weights.offset, MOST_AHEAD)
                steps[k] = step.filled({"ahead": weights, "ahead_bytes": nbytes})
        readers = Counter(b for step in steps for b in set(plans.touched(step)))
        pairs = [(self.buffers[a], self.buffers[b]) for a, b in self._in_place if readers[a] == 1]
        return plans.Plan(tuple(self.buffers), tuple(steps), tuple(v.type for v in self.graph.outputs),
                          self.target.threads, self.target.level.name, tuple(self.errors), tuple(nodes),
                          tuple((a.index, b.index) for a, b in pairs if (a.storage, b.storage) == ("input", "output")))

    def result(self, value: Value) -> int:
        """The index of the buffer that a node writes `value` to; the first call adds the buffer.

        If `value` is an output of the graph, or an output is a view of `value`, the buffer is the output's array.
        """
        if value not in self.of:
            expect(value.type.nbytes, "the result")
            outputs = self.graph.outputs
            places = [k for k, v in enumerate(outputs) if v is value] or \
                [k for k, v in enumerate(outputs) if _viewed(v) is value]
            self.of[value] = self.add(plans.Buffer("output" if places else "arena", value.type.nbytes, value.type,
                                                   places[0] if places else 0))
        return self.of[value]


@recorded("builder.nbytes")
def _nbytes(array: np.ndarray) -> int:
    return array.nbytes


def _viewed(value: Value) -> Value:
    while value.node is not None and value.node.op.name in plans.VIEWS:
        value = next(value.node.operands)
    return value


def reference_steps(b: PlanBuilder, node: Node) -> None:
    """Add the Python step that runs the operation's NumPy reference."""
    inputs = tuple(None if v is None else b.of[v] for v in node.inputs)
    shapes = tuple(None if v is None else v.type.dims for v in node.inputs)
    where = b.graph.describe(node)
    b.steps.append(plans.PythonStep(where, plans.Reference(node.op, node.attrs, where, shapes), inputs,
                                    tuple(b.result(v) for v in node.outputs)))

"""The data types of a plan: Plan, Buffer, Step (runs a kernel) and PythonStep (runs a NumPy reference).

`plan_arena` places a plan's buffers in the arena, the memory for values between steps.

A buffer is the memory of a value: the array of an input, an output or a constant, or a part of the arena. A kernel
reads its arguments from an argument block of 64-bit words. `PlanBuilder.run` sets the words that are addresses of
buffers; `runtime.NativePlan` computes their values.

If the graph has open dimensions, words, bytes, blocks and shapes in the plan may be `Size`s (`graphq.base.sizes`)
instead of ints.
"""
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np

from graphq.base.sizes import Later, largest, number, recorded
from graphq.errors import GraphError, GraphqError, InputError
from graphq.ir import Graph, Op, TensorType
from graphq.kernels.jit import LINE, Function, Functions, FunctionTable, modules
from graphq.kernels.jit.intrinsics import HEADER_WORDS, Record, filled
from graphq.kernels.target.level import Level
from graphq.kernels.threads.steps import MOST_PIECES
from graphq.ops import recurrent
from graphq.ops.attention import length_error, position_error
from graphq.ops.move import index_error
from graphq.ops.positions import place_error


class Target(NamedTuple):
    """The machine that steps are planned for.

    Kernels use ISA level `level`, blocks are divided among `threads` threads, and `cache` keeps kernels on disk.
    """

    level: Level
    threads: int = 1
    cache: bool = True


class Ref(NamedTuple):
    """A word of an argument block that is an address: `offset` bytes after the start of a buffer."""

    buffer: int
    offset: int = 0


Word: TypeAlias = int | Ref | Function | FunctionTable
"""A word (64 bits) of an argument block. The word for a function is its address, known after its compilation."""
Slot: TypeAlias = tuple[Word, Word, Word]
"""The words (`SLOT`) that locate an operand or output of an epilogue.

They are the address, the address of a table of offsets by batch element, and the number of bytes between rows.
"""


def pieces(blocks: int, worth: int, threads: int) -> int:
    """The number of pieces into which blocks are divided for `threads` threads; 0 if one thread runs all blocks.

    One thread runs all blocks if there is only one block, or if the work pays for one thread only: `worth`, the
    result of `threads_for`, is 1. Block i is in piece ((i + 1) * pieces - 1) // blocks.
    """
    return number(_pieces, blocks, worth, threads) if threads > 1 else 0


@recorded("Step")
class Step(NamedTuple):
    """Run `function(argument block, i)` for each i in range(blocks). Numbers and words may depend on open sizes.

        kernel     the name in reports
        words      the first words of the argument block by name, in the order of its record
        pieces     the number of pieces into which blocks are divided for threads; 0 if one thread runs all blocks
        slots      the words of the operands and output of an epilogue; they follow the first HEADER_WORDS words
        macs       the number of multiply-accumulates of the result, for reports
        exact      the share of products that a saturating instruction computes, if the weights are sorted for it
                   (`matmul.pack.pack_sorted`)
        aligned    whether operand `a` must start at a multiple of 64 bytes; a run copies inputs that do not
        parts      the steps that this step runs strip by strip (`builder`)

    A plan fills in these words, if the record has them:

        rooms                 the address of scratch memory: `room_count` rooms of `room_bytes`, one for each piece
        ahead, ahead_bytes    memory to prefetch: the constant weights `w` of the next step that has these words
    """

    kernel: str
    function: Function
    words: Mapping[str, Word]
    blocks: int
    pieces: int = 0
    slots: tuple[Slot, ...] = ()
    macs: int = 0
    exact: float | None = None
    aligned: bool = False
    parts: "tuple[Part, ...]" = ()

    def filled(self, words: Mapping[str, Word], slots: Sequence[Slot] = ()) -> "Step":
        """The step with these argument words set, and with more slots. Raises KernelError for an unknown word."""
        return self._replace(words=filled(self.words, words), slots=(*self.slots, *slots))

    def shared(self, pieces: int) -> "Step":
        """The step with its blocks divided into `pieces` pieces. If it needs scratch memory, each piece has its own."""
        step = self._replace(pieces=pieces, parts=tuple([p._replace(step=p.step.shared(pieces)) for p in self.parts]))
        return step.filled({"room_count": largest(1, pieces)}) if "rooms" in step.words else step

    @property
    def room(self) -> int:
        """The bytes of scratch memory for all pieces."""
        words: Mapping[str, Any] = self.words
        return words["room_bytes"] * words["room_count"] if "rooms" in words else 0

    @property
    def block(self) -> list[Word]:
        """The words of the argument block: `words`, zeros up to HEADER_WORDS, then the slots, then the parts."""
        return [*self.words.values(), *[0] * (HEADER_WORDS - len(self.words)), *chain(*self.slots),
                *chain(*(part.words for part in self.parts))]

    def arguments(self, words: Mapping[str, Word], slots: Sequence[Slot] = ()) -> np.ndarray:
        """The argument block as an array, for tests and self-tests. `words` and `slots` have addresses as ints.

        If the step needs scratch memory, it follows the block in the same array.
        """
        step = self.filled(words, slots)
        block: Sequence[Any] = step.block
        out = np.array([*map(int, block), *[0] * -(-step.room // 8)], np.int64)
        if step.room:
            out[list(step.words).index("rooms")] = out.ctypes.data + 8 * len(block)
        return out

    def run(self, args: np.ndarray) -> None:
        """Run all blocks one after another, for tests and self-tests."""
        for index in range(self.blocks):
            self.function(args.ctypes.data, index)


@recorded("Part")
class Part(NamedTuple):
    """A step that runs strip by strip, as a part of the step that runs all strips.

    `moved` has the step's words that are addresses in a strip's memory: the index of each word, and the bytes between
    rows.
    """

    step: Step
    moved: tuple[tuple[int, int], ...]

    @property
    def words(self) -> list[Word]:
        """The words for this part in the argument block of the step that runs all strips (see `threads.strips`)."""
        block = self.step.block
        return [self.step.function, len(block), len(self.moved), *block, *chain(*self.moved)]


BLOCK_CYCLES = 10_000
"""The least work of a thread, in cycles, that pays for running a step in parallel, which costs at least 2.5 us."""


def threads_for(threads: int, cycles: float) -> int:
    """The number of threads, at most `threads`, that pay for work of `cycles` cycles on one core."""
    return number(_threads_for, threads, cycles) if threads > 1 else 1


@recorded("threads_for")
def _threads_for(threads: int, cycles: float) -> int:
    return max(1, min(threads, int(cycles // BLOCK_CYCLES)))


@recorded("pieces")
def _pieces(blocks: int, worth: int, threads: int) -> int:
    return min(blocks, threads, MOST_PIECES) if blocks > 1 and worth > 1 else 0


def rows_of_block(rows: int, batch: int, threads: int, unit: int = 1) -> int:
    """The number of rows of a block, for a loop over `batch` batch elements with `rows` rows each.

    The number is a multiple of `unit`, chosen so that each thread gets about four blocks.
    """
    return number(_rows_of_block, rows, batch, threads, unit)


@recorded("rows_of_block")
def _rows_of_block(rows: int, batch: int, threads: int, unit: int) -> int:
    parts = max(1, min(-(-rows // unit), -(-4 * threads // max(1, batch)))) if threads > 1 else 1
    return max(1, -(-rows // (parts * unit)) * unit)


def plan_rows(factory: Callable[..., Functions], record: Record, words: Mapping[str, Word], target: Target, *,
              rows: int, cycles: float, batch: int = 1, unit: int = 1, of: tuple[Any, ...] = (),
              each: int | None = None, level: Level | None = None, name: str = "") -> Step:
    """Plan a loop over `batch` batch elements with `rows` rows each. `factory(*of)` makes the function of the loop.

    `words` has the fields of the argument block's `record`, except for the field `each`: the number of rows of a block.
    By default, this number is a multiple of `unit` that gives each thread about four blocks. `cycles` estimates the
    work of a row. Code is compiled for `level`, by default the lowest level with vectors of the target's width. `name`
    is the name in reports, by default the names of factory and arguments.
    """
    worth = threads_for(target.threads, cycles * rows * batch)
    each = rows_of_block(rows, batch, worth, unit) if each is None else each
    blocks = batch * -(-rows // each)
    block = modules.load(factory.__name__, factory, *of, level=level or target.level.base, cache=target.cache).block
    name = name or "_".join(map(str, (factory.__name__, *of)))
    step = Step(name, block, record.named({**words, "each": each}), blocks)
    return step.shared(pieces(blocks, worth, target.threads))


VIEWS = frozenset({"static_reshape"})
"""Operations that only reshape. They need no step, because their result is a view of their operand's buffer."""

STAGES = "stages"
"""The key in the `meta` of a stage's graph for facts about the other stages.

The facts are a mapping from names to texts. An input's text describes the operation of another stage that computes the
input; an output's text describes the operation that uses the output.
"""

CONTROL = frozenset({"if_else", "loop", "scan"})
"""Operations with bodies. A graph with any of them runs in stages."""


def in_one_plan(graph: Graph) -> bool:
    """Whether one plan can run the graph: all shapes are known and no operation has a body."""
    return not graph.nodes_of(CONTROL) and all(v.type.known for n in graph.nodes for v in n.outputs)


@recorded("Buffer")
@dataclass(frozen=True)
class Buffer:
    """The memory of a value of type `type`, or `nbytes` bytes without a type.

    `storage` is the kind of memory. For "input", "output" and "report", `index` is the index of the array or report.
    For "constant", `data` is the array. "arena" is memory for values between steps.
    """

    storage: Literal["input", "output", "report", "constant", "arena"]
    nbytes: int
    type: TensorType | None = None
    index: int = 0
    data: np.ndarray | Later | None = field(default=None, compare=False)


@recorded("Reference")
class Reference(NamedTuple):
    """Run the NumPy reference of an operation on arrays with these shapes. Errors begin with `where`, the node."""

    op: Op
    attrs: Mapping[str, Any]
    where: str
    shapes: tuple[tuple[int, ...] | None, ...]

    def __call__(self, *arrays: np.ndarray | None) -> Any:
        """The results of the operation."""
        args = (x if x is None or s is None else x.reshape(s) for x, s in zip(arrays, self.shapes, strict=True))
        try:
            return self.op.reference(*args, **self.attrs)
        except MemoryError:
            raise GraphError(f"{self.where}: not enough memory") from None
        except GraphqError as e:
            raise type(e)(f"{self.where}: {e}") from e


@recorded("Copy")
class Copy(NamedTuple):
    """Copy an array."""

    def __call__(self, *arrays: np.ndarray | None) -> Any:
        """The array; `Runner` copies it."""
        return arrays[0]


@recorded("PythonStep")
class PythonStep(NamedTuple):
    """Run a Python function on the arrays of `inputs` (None: absent) and copy its results to `outputs`.

    `inputs` and `outputs` are indices of buffers. `kernel` is the step's name in reports. `reference` is true if the
    step runs the NumPy reference of an operation that has no kernel.
    """

    kernel: str
    call: Reference | Copy | Callable[..., Any]
    inputs: tuple[int | None, ...]
    outputs: tuple[int, ...]
    reference: bool = True


AnyStep: TypeAlias = Step | PythonStep


def touched(step: AnyStep) -> list[int]:
    """The buffers that a step reads or writes."""
    if isinstance(step, Step):
        return [w.buffer for w in step.block if isinstance(w, Ref)]
    return [*(b for b in step.inputs if b is not None), *step.outputs]


REPORTS: Mapping[str, Callable[..., InputError]] = {
    # `kernels.attention.cache.reported` adds 1 to lengths that are not negative
    "cache length": lambda rows, most, tokens, report: length_error(rows, most, tokens, report + (report < 0)),
    "cache position": position_error, "cache place": place_error, "index": index_error,
    "sequence length": recurrent.length_error}
"""Functions that make the errors for invalid numbers in run-time inputs, by the kind of a report."""


@recorded("ReportedError")
class ReportedError(NamedTuple):
    """An error that a kernel may report as a number: REPORTS[kind] makes it from `values` and the number."""

    kind: str
    where: str
    values: tuple[Any, ...]

    def error(self, number: int) -> InputError:
        """The error for the number that a step stored. The text begins with `where`, the node."""
        return InputError(f"{self.where}: {REPORTS[self.kind](*self.values, number)}")


@recorded("Plan")
class Plan(NamedTuple):
    """Buffers, and steps in execution order.

    `errors` has the reports of all steps. For each step, `nodes` has the index of the step's node in the graph, or None
    for a copy to an output. `in_place` has index pairs (input, output): both arrays
    may share memory if their shapes are equal.
    """

    buffers: tuple[Buffer, ...]
    steps: tuple[AnyStep, ...]
    output_types: tuple[TensorType, ...]
    threads: int
    level: str = ""
    errors: tuple[ReportedError, ...] = ()
    nodes: tuple[int | None, ...] = ()
    in_place: tuple[tuple[int, int], ...] = ()

    @property
    def references(self) -> list[str]:
        """Descriptions of the nodes that run as NumPy references."""
        return [s.kernel for s in self.steps if isinstance(s, PythonStep) and s.reference]


def open_numbers(plan: Plan) -> list[object]:
    """List everything in the plan that may contain a Size."""
    return [[(b.nbytes, b.data, b.type and b.type.shape) for b in plan.buffers], plan.steps,
            [t.shape for t in plan.output_types], plan.errors]


Clashes: TypeAlias = Mapping[int, tuple[int, ...]]
"""Maps each buffer in the arena to the buffers that must not share its memory, because the lifetimes overlap."""
Lives: TypeAlias = Mapping[int, tuple[int, int]]
"""The lifetime of each buffer, by the buffer's index in the plan: the first and the last step that touch it."""


class Allocation(NamedTuple):
    """A buffer in the arena: its index in the plan, its offset and size in bytes, its first and last step."""

    buffer: int
    offset: int
    nbytes: int
    first: int
    last: int


def find_lives(touched: Iterable[Iterable[int]]) -> tuple[Lives, Clashes]:
    """The lifetimes and the clashes of all buffers. `touched` has the buffers that each step touches, as indices."""
    lives: dict[int, tuple[int, int]] = {}
    for k, buffers in enumerate(touched):
        for b in buffers:
            lives[b] = (lives.get(b, (k, k))[0], k)
    return lives, {b: tuple(o for o, (begin, end) in lives.items() if o != b and begin <= last and first <= end)
                   for b, (first, last) in lives.items()}


def plan_arena(sizes: Mapping[int, int], clashes: Clashes) -> tuple[dict[int, int], int]:
    """The offsets of buffers of these `sizes` in the arena, and the arena's size, all in bytes.

    Buffers that do not clash may share memory. Buffers are placed from the largest to the smallest, each at the lowest
    offset that is free during its lifetime.
    """
    spans: dict[int, tuple[int, int]] = {}
    for b in sorted(sizes, key=lambda b: (-sizes[b], b)):
        at, size = 0, -(-sizes[b] // LINE) * LINE
        for begin, end in sorted([spans[o] for o in clashes[b] if o in spans]):
            if at + size <= begin:
                break
            if end > at:
                at = end
        spans[b] = at, at + size
    return {b: at for b, (at, _) in spans.items()}, max([end for _, end in spans.values()], default=0)

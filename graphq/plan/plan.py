"""The Plan: buffers, and a flat table of steps over them. Running one is `runtime`'s.

A buffer is where a value lives: an input's array, an output's, a constant's, or a piece of the arena whose offset is
planned by lifetime. A native step is (block function, argument words, number of blocks); a word that stands for an
address is a `Ref`. Neighbouring native steps run in one call; a Python step runs a NumPy reference in between.

Where the graph has open sizes (`graphq.base.sizes`), so have numbers of the plan: words, bytes, blocks, shapes.
"""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np

from graphq.base.sizes import Later
from graphq.ir import TensorType
from graphq.kernels.jit.modules import Function
from graphq.kernels.jit.registry import Word
from graphq.kernels.threads.team import pieces

VIEWS = frozenset({"static_reshape"})
"""Operations whose result is their operand's memory under another shape: they take no step."""


class Ref(NamedTuple):
    """An argument word: the address of a buffer plus bytes."""

    buffer: int
    offset: int = 0


Argument: TypeAlias = Word | Ref


@dataclass(frozen=True)
class Buffer:
    """`storage` is "input", "output" or "report" (`index` says which), "constant" (`data`) or "arena".

    Of an `aligned` input a run copies an array that does not start at a multiple of 64 bytes.
    """

    storage: Literal["input", "output", "report", "constant", "arena"]
    nbytes: int
    type: TensorType | None = None
    index: int = 0
    data: np.ndarray | Later | None = field(default=None, compare=False)
    aligned: bool = False


@dataclass(frozen=True)
class NativeStep:
    """Run `function(words, i)` for i in range(blocks), in parallel when there is enough work.

    `keep` are the modules (nested in tuples) whose block functions the step runs, `macs` its multiply-accumulates.
    `rooms` is the word, if there is one, that says how many pieces the blocks may be cut in: each has room of its own.
    `exact` is as of a kernel's step.
    """

    kernel: str
    function: Function
    words: tuple[Argument, ...]
    blocks: int
    parallel: bool
    keep: object = field(default=None, repr=False, compare=False)
    macs: int = 0
    rooms: int | None = None
    exact: float | None = None


def rooms_of(parallel: bool, blocks: int, threads: int) -> int:
    """How many pieces a step's blocks are cut in at the most, which have a room each."""
    return pieces(blocks, threads) if parallel else 1


class PythonStep(NamedTuple):
    """Run Python on the arrays of `inputs` (None: absent) and copy its results to `outputs`.

    `kernel` says what it is; `reference` marks an operation that runs as its NumPy reference, for lack of a kernel.
    """

    kernel: str
    call: Callable[..., Any]
    inputs: tuple[int | None, ...]
    outputs: tuple[int, ...]
    reference: bool = True


Step: TypeAlias = NativeStep | PythonStep


def touched(step: Step) -> list[int]:
    """The buffers that a step reads or writes."""
    if isinstance(step, NativeStep):
        return [w.buffer for w in step.words if isinstance(w, Ref)]
    return [*(b for b in step.inputs if b is not None), *step.outputs]


MakeError: TypeAlias = Callable[[int], Exception]
"""The error of a number that a step reported."""


class Plan(NamedTuple):
    """Buffers, steps in order, and what a run raises when a step stored a number other than 0 in a report.

    `nodes` has for each step the number of the node of the graph that it is of; None for a copy to an output.
    """

    buffers: tuple[Buffer, ...]
    steps: tuple[Step, ...]
    output_types: tuple[TensorType, ...]
    threads: int
    level: str = ""
    errors: tuple[MakeError, ...] = ()
    nodes: tuple[int | None, ...] = ()

    @property
    def references(self) -> list[str]:
        """The nodes that run as NumPy references, by their descriptions."""
        return [s.kernel for s in self.steps if isinstance(s, PythonStep) and s.reference]


def open_numbers(plan: Plan) -> list[object]:
    """All that may follow from open sizes."""
    return [[(b.nbytes, b.data, b.type and b.type.shape) for b in plan.buffers],
            [s if isinstance(s, PythonStep) else (s.kernel, s.words, s.blocks, s.parallel, s.keep, s.macs)
             for s in plan.steps],
            [t.shape for t in plan.output_types], plan.errors]

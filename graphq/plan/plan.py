"""The Plan: buffers, and a flat table of steps over them. Running one is `runtime`'s.

A buffer is where a value lives: an input's array, an output's, a constant's, or a piece of the arena whose offset is
planned by lifetime. Neighbouring steps of kernels (`step.Step`) run in one call; a Python step runs a NumPy reference
in between.

Where the graph has open sizes (`graphq.base.sizes`), so have numbers of the plan: words, bytes, blocks, shapes.
"""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np

from graphq.base.sizes import Later
from graphq.ir import TensorType
from graphq.plan.step import Ref, Step

VIEWS = frozenset({"static_reshape"})
"""Operations that only reshape: their result is a view of their operand's buffer, and they need no step."""


@dataclass(frozen=True)
class Buffer:
    """`storage` is "input", "output" or "report" (`index` says which), "constant" (`data`) or "arena"."""

    storage: Literal["input", "output", "report", "constant", "arena"]
    nbytes: int
    type: TensorType | None = None
    index: int = 0
    data: np.ndarray | Later | None = field(default=None, compare=False)


class PythonStep(NamedTuple):
    """Run Python on the arrays of `inputs` (None: absent) and copy its results to `outputs`.

    `kernel` says what it is; `reference` marks an operation that runs as its NumPy reference, for lack of a kernel.
    """

    kernel: str
    call: Callable[..., Any]
    inputs: tuple[int | None, ...]
    outputs: tuple[int, ...]
    reference: bool = True


AnyStep: TypeAlias = Step | PythonStep


def touched(step: AnyStep) -> list[int]:
    """The buffers that a step reads or writes."""
    if isinstance(step, Step):
        return [w.buffer for w in step.block if isinstance(w, Ref)]
    return [*(b for b in step.inputs if b is not None), *step.outputs]


MakeError: TypeAlias = Callable[[int], Exception]
"""Makes the error to raise for a number that a step stored in a report."""


class Plan(NamedTuple):
    """Buffers, steps in order, and what a run raises when a step stored a number other than 0 in a report.

    `nodes` has for each step the number of the node of the graph that it is of; None for a copy to an output.
    """

    buffers: tuple[Buffer, ...]
    steps: tuple[AnyStep, ...]
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
    """Everything in the plan that may hold an open size."""
    return [[(b.nbytes, b.data, b.type and b.type.shape) for b in plan.buffers], plan.steps,
            [t.shape for t in plan.output_types], plan.errors]

"""The Plan: buffers, and a flat table of steps over them, which `runtime` runs.

A buffer is the memory of a value: the array of an input, an output or a constant, or a piece of the arena whose offset
depends on lifetimes. Neighbouring steps of kernels (`step.Step`) run in one call; a Python step runs a NumPy reference
in between.

If the graph has open sizes, words, bytes, blocks and shapes in the plan may be `Size`s (`graphq.base.sizes`) instead of
ints.
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
    """The memory of a value; `storage` says where it is, `type` is the value's type if it has one.

    For "input", "output" and "report", `index` is the number of the array or report. For "constant", `data` is the
    array. "arena" is memory between steps.
    """

    storage: Literal["input", "output", "report", "constant", "arena"]
    nbytes: int
    type: TensorType | None = None
    index: int = 0
    data: np.ndarray | Later | None = field(default=None, compare=False)


class PythonStep(NamedTuple):
    """Run a Python function on the arrays of `inputs` (None: absent) and copy its results to `outputs`.

    `inputs` and `outputs` are numbers of buffers. `kernel` is the step's name in reports. `reference` is true if the
    step runs the NumPy reference of an operation that has no kernel.
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
"""A function that makes the exception for a number that a step stored in a report."""


class Plan(NamedTuple):
    """Buffers, steps in order, and for each report the function that makes the exception for its number.

    `nodes` has for each step the number of its node in the graph; None for a copy to an output. `in_place` has pairs of
    numbers: an input and an output that may share memory if their shapes are equal.
    """

    buffers: tuple[Buffer, ...]
    steps: tuple[AnyStep, ...]
    output_types: tuple[TensorType, ...]
    threads: int
    level: str = ""
    errors: tuple[MakeError, ...] = ()
    nodes: tuple[int | None, ...] = ()
    in_place: tuple[tuple[int, int], ...] = ()

    @property
    def references(self) -> list[str]:
        """Descriptions of the nodes that run as NumPy references."""
        return [s.kernel for s in self.steps if isinstance(s, PythonStep) and s.reference]


def open_numbers(plan: Plan) -> list[object]:
    """Everything in the plan that may hold an open size."""
    return [[(b.nbytes, b.data, b.type and b.type.shape) for b in plan.buffers], plan.steps,
            [t.shape for t in plan.output_types], plan.errors]

"""The parts of a compiled model that a page shows: one part, or several if the model runs in stages."""
from __future__ import annotations

from dataclasses import dataclass, replace

from graphq.ir import Graph
from graphq.plan.arena import Allocation
from graphq.plan.plan import Plan
from graphq.plan.runtime import Runner
from graphq.report.records import Report


@dataclass(frozen=True)
class Memory:
    """The bytes of a plan's arena, constants, inputs and outputs, and the allocations in the arena."""

    arena: int
    constants: int
    inputs: int
    outputs: int
    allocations: tuple[Allocation, ...]

    @property
    def unshared(self) -> int:
        """The bytes of the arena if its buffers shared no memory."""
        return sum(s.nbytes for s in self.allocations)


@dataclass(frozen=True)
class ModelPart:
    """A graph after the passes with its report. `memory` is None without a plan.

    `source` is the graph as written; None if no passes ran. If the model runs in stages, `name` is the part's name.
    """

    name: str
    source: Graph | None
    graph: Graph
    report: Report
    memory: Memory | None = None

    def within(self, name: str) -> ModelPart:
        """A copy of this part, with `name` in front of the part's name."""
        return replace(self, name=f"{name}, {self.name}" if self.name else name)


def memory_of(runner: Runner) -> Memory:
    """The memory that a run of the plan takes."""
    plan: Plan = runner.plan

    def nbytes(storage: str) -> int:
        return sum(int(b.nbytes) for b in plan.buffers if b.storage == storage)

    return Memory(runner.arena_bytes, nbytes("constant"), nbytes("input"), nbytes("output"),
                  tuple(runner.allocations()))

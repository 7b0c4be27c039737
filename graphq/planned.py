"""What came of a graph that runs in one plan: the graph after the passes (`Passed`), its plan (`Planned`, `Loaded`)."""
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from graphq.errors import CompileError
from graphq.ir import Graph, TensorType
from graphq.ir.signature import Signature
from graphq.kernels.jit.isa import Level
from graphq.passes.pipeline import run_passes
from graphq.plan.arena import Arenas
from graphq.plan.plan import NativeStep, Plan
from graphq.plan.runtime import Runner, Words
from graphq.planning import build_plan, evaluate_formulas
from graphq.rewrite.rule import Pass, Refusal

if TYPE_CHECKING:  # what reports alone need is imported when they are asked for
    from graphq.report.coverage import Coverage
    from graphq.report.profile import Profile


class Options(NamedTuple):
    """The options of `compile`, resolved."""

    level: Level
    threads: int
    strict: bool
    passes: tuple[Pass, ...]
    cache: bool
    memory: int | None


class Reported(Protocol):
    """What came of a graph, as far as reports ask."""

    @property
    def graph(self) -> Graph:
        """The graph after the passes."""

    @property
    def refusals(self) -> list[Refusal]:
        """The near misses of the passes' rewrites."""

    def formula(self, inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """The outputs in NumPy: each partition by its written formula, all else by its reference."""

    def explain(self, *, kernels: bool) -> str:
        """What fused and what did not; `kernels`: also what each kernel does and how fast it is."""

    def coverage(self) -> Coverage:
        """Which share of the multiply-accumulates integer partitions do. Raises CompileError while shapes are open."""


class Runnable(Reported, Protocol):
    """What came of a graph whose shapes are all known: it runs, in one plan or in stages."""

    output_types: tuple[TensorType, ...]

    def run(self, inputs: Sequence[np.ndarray],
            outputs: Sequence[np.ndarray] | None = None, /) -> Sequence[np.ndarray]:
        """Run on checked arrays; the outputs (new ones, or those given, filled)."""

    def profile(self, inputs: Mapping[str, np.ndarray], runs: int) -> Profile:
        """How long each step takes, the least time of so many runs."""


class Passed:
    """A graph after the passes, which change it; without a plan."""

    runner: Runner | None = None
    plan: Plan | None = None
    sizes: Mapping[str, int] = MappingProxyType({})
    """What open dimensions are, or are assumed to be."""

    def __init__(self, graph: Graph, options: Options) -> None:
        self.graph, self.options = graph, options
        self.refusals = run_passes(graph, options.passes)

    def formula(self, inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """The outputs in NumPy, partitions by their formulas."""
        return evaluate_formulas(self.graph, inputs)

    def check_references(self) -> None:
        """Raise CompileError, with the report, for operations without kernels where `strict` refuses them."""
        if self.options.strict and self.plan is not None and (slow := self.plan.references):
            raise CompileError(f"strict: {len(slow)} operations would run as NumPy references: {'; '.join(slow[:5])}\n"
                               + self.explain(kernels=False))

    def explain(self, *, kernels: bool) -> str:
        """The report on the graph, and on its plan if it has one."""
        from graphq.report.evidence import gather
        from graphq.report.explain import explain

        runner, plan, (level, threads, *_) = self.runner, self.plan, self.options
        native = [k for k, s in enumerate(plan.steps) if isinstance(s, NativeStep)] if plan and kernels else []
        evidence = {k: gather(runner, k, self.options.cache) for k in native} if runner else {}
        covered = None if plan is None else self.coverage()
        return explain(self.graph, plan, self.refusals, level, threads, evidence, covered, self.sizes)

    def coverage(self) -> Coverage:
        """Raise CompileError: nothing can be counted without shapes."""
        raise CompileError("shapes are open: the coverage is known after the first call")


class Ready(Passed):
    """A graph after the passes with a plan, all of whose sizes are known, and what runs it."""

    runner: Runner
    plan: Plan

    def run_by(self, runner: Runner) -> None:
        """Take what runs the plan."""
        self.run = self.runner = runner
        self.plan, self.output_types = runner.plan, runner.plan.output_types

    def profile(self, inputs: Mapping[str, np.ndarray], runs: int) -> Profile:
        """How long each step of the plan takes, the least time of so many runs."""
        from graphq.report.profile import profile_steps

        return profile_steps(self.run, [inputs[str(v.name)] for v in self.graph.inputs], runs)


class Planned(Ready):
    """A graph all of whose shapes are known, after the passes, and its plan, ready to run.

    Raises CompileError when it would take too much memory, or for operations without kernels where that is `strict`.
    """

    def __init__(self, graph: Graph, options: Options, arenas: Arenas) -> None:
        super().__init__(graph, options)
        self.plan = build_plan(graph, options.level, options.threads, options.cache)
        self.check_references()
        self.run_by(Runner(Words(self.plan), arenas, options.cache))

    def coverage(self) -> Coverage:
        """Which share of the graph's multiply-accumulates integer partitions do."""
        from graphq.report.coverage import coverage

        return coverage(self.graph)


class Stored(NamedTuple):
    """A model that a file has: `source` reads the graph as the user gave it."""

    plan: Plan
    signature: Signature
    source: Callable[[], Graph]


class Loaded:
    """A plan that a file has, ready to run. What reports ask for is planned anew, from the graph."""

    def __init__(self, stored: Stored, options: Options, arenas: Arenas) -> None:
        self.plan, self.output_types = stored.plan, stored.plan.output_types
        self.run = Runner(Words(self.plan), arenas, options.cache)
        self._source, self._options, self._arenas = stored.source, options, arenas

    @cached_property
    def planned(self) -> Planned:
        """The same plan, made anew."""
        return Planned(self._source(), self._options, self._arenas)

    @property
    def graph(self) -> Graph:
        """The graph after the passes."""
        return self.planned.graph

    @property
    def refusals(self) -> list[Refusal]:
        """The near misses of the passes' rewrites."""
        return self.planned.refusals

    def formula(self, inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """The outputs in NumPy, partitions by their formulas."""
        return self.planned.formula(inputs)

    def explain(self, *, kernels: bool) -> str:
        """The report on the graph and its plan."""
        return self.planned.explain(kernels=kernels)

    def coverage(self) -> Coverage:
        """Which share of the graph's multiply-accumulates integer partitions do."""
        return self.planned.coverage()

    def profile(self, inputs: Mapping[str, np.ndarray], runs: int) -> Profile:
        """How long each step of the plan takes."""
        return self.planned.profile(inputs, runs)

"""The options of a compiled model, its graph after the passes (`Passed`, for reports), and its constant inputs."""
from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from graphq.base.locks import late_imports
from graphq.base.programs import Program
from graphq.base.progress import progress
from graphq.base.sizes import parts, trace_of
from graphq.errors import CompileError, InputError
from graphq.ir import Graph
from graphq.kernels.target.level import Level
from graphq.plan.plan import Plan, Step
from graphq.plan.runtime import NativePlan, Runner
from graphq.rewrite.fixpoint import History
from graphq.rewrite.rule import Pass, Refusal

if TYPE_CHECKING:  # reports import these modules when they run
    from graphq.report.coverage import Coverage
    from graphq.report.parts import ModelPart
    from graphq.report.profile import Profile
    from graphq.report.records import Report


class Options(NamedTuple):
    """The options of `compile`, with their defaults filled in."""

    level: Level
    threads: int
    strict: bool
    passes: tuple[Pass, ...] | None
    """The passes; None means PIPELINE. A process that only runs a saved model then need not import the passes."""
    cache: bool
    memory: int | None

    @property
    def pipeline(self) -> Sequence[Pass]:
        """The passes to run."""
        if self.passes is not None:
            return self.passes
        with late_imports():
            from graphq.passes import PIPELINE
        return PIPELINE


class Passed(NamedTuple):
    """A graph after the passes, for reports. `made` is the graph's plan, or None; `runner` runs it at given sizes.

    `history` has the graph after the passes, and the changes by passes. `again` makes the graph as it was before the
    passes. `sizes` are the open sizes by name: at the runner's shapes, otherwise in the plan's example. If the graph
    has plain numbers for open sizes, `symbolic` may return the same graph with symbols.
    """

    history: History
    refusals: list[Refusal]
    options: Options
    again: Callable[[], Graph]
    made: NativePlan | None = None
    runner: Runner | None = None
    sizes: Mapping[str, int] = {}
    symbolic: Callable[[], Passed | None] = lambda: None

    @classmethod
    def of(cls, again: Callable[[], Graph], options: Options) -> Passed:
        """Run the passes on the graph that `again` returns."""
        with late_imports():
            from graphq.passes import run_passes
        graph = again()
        history = History(graph)
        refusals = run_passes(graph, options.pipeline, history=history)
        history.fork()
        return cls(history, refusals, options, again)

    @property
    def graph(self) -> Graph:
        """The graph after the passes."""
        return self.history.after

    @property
    def plan(self) -> Plan | None:
        """The plan at the runner's sizes, or else the plan with open sizes, or else None."""
        return self.runner.plan if self.runner else self.made.plan if self.made else None

    @property
    def shown(self) -> Passed:
        """The same object with symbols for open sizes in its graph, if possible; otherwise `self`."""
        other = self.symbolic()
        return self if other is None else self._replace(history=other.history, refusals=other.refusals,
                                                        again=other.again, sizes={**other.sizes, **self.sizes})

    @property
    def shown_graph(self) -> Graph:
        """The graph after the passes for pictures, with symbols for open sizes if possible."""
        return self.shown.graph

    def at_sizes(self, x: Any) -> Any:
        """`x` with its open numbers replaced by their values at `sizes`."""
        trace = trace_of(x) if self.sizes else None
        if trace is None:
            return x
        values = Program(trace, parts(x)).at(tuple(self.sizes.values()))
        assert values is not None
        return values.of(x)

    def formula(self, inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """The outputs computed in NumPy; partitions are computed by their formulas."""
        from graphq.model.planning import evaluate_formulas

        return evaluate_formulas(self.graph, inputs)

    def explanation(self, *, kernels: bool) -> Report:
        """The report on the graph, and on its plan if it has one."""
        from graphq.report.evidence import gather
        from graphq.report.survey import survey

        runner, plan, (level, threads, *_) = self.runner, self.plan, self.options
        native = [k for k, s in enumerate(plan.steps) if isinstance(s, Step)] if plan and kernels else []
        evidence = {k: gather(runner, k, self.options.cache) for k in progress(native, "steps")} if runner else {}
        covered, shown = None if plan is None else self.coverage(), self.shown
        return survey(shown.again(), shown.history, self.options.pipeline, shown.refusals, plan, level=level,
                      threads=threads, evidence=evidence, covered=covered, sizes=shown.sizes, at_sizes=shown.at_sizes)

    def parts(self) -> list[ModelPart]:
        """A list of one part: the graph before and after the passes, its report, and the memory of its plan."""
        from graphq.report.parts import ModelPart, memory_of

        memory, shown = None if self.runner is None else memory_of(self.runner), self.shown
        return [ModelPart("", shown.again(), shown.graph, self.explanation(kernels=False), memory)]

    def coverage(self) -> Coverage:
        """The share of the graph's multiply-accumulates that integer partitions compute, at the sizes of the plan.

        Raises CompileError without a plan, since operations cannot be counted without shapes.
        """
        from graphq.report.coverage import coverage

        if self.made is None:
            raise CompileError("shapes are open: the coverage is known after the first call")
        open_counts = coverage(self.graph)
        integer, total = self.at_sizes((open_counts.integer_by_op, open_counts.total_by_op))
        return replace(open_counts, integer_by_op=integer, total_by_op=total)

    def profile(self, inputs: Mapping[str, np.ndarray], runs: int, *, peaks: bool) -> Profile:
        """Measure how long each step takes, as medians of `runs` runs; with `peaks` also the machine's peaks."""
        from graphq.report.profile import profile_steps

        assert self.runner is not None
        arrays = [inputs[str(v.name)] for v in self.graph.inputs]
        return profile_steps(self.runner, arrays, runs, peaks=peaks, cache=self.options.cache, nodes=self.graph.nodes)


class ConstantInputs:
    """The arrays of inputs marked constant, kept from the first call that made a plan.

    A model and the models that it keeps for `fetch` share one object.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self.names = tuple(names)
        self._kept: dict[str, dict[str, np.ndarray]] = {}

    @property
    def kept(self) -> Mapping[str, np.ndarray]:
        """The kept arrays by name; empty before the first plan."""
        return self._kept.get("arrays", {})

    def of(self, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The kept arrays; before the first plan, copies of `arrays`. Raises InputError if the two differ."""
        kept = self._kept.get("arrays")
        if kept is None:
            return {name: arrays[name].copy() for name in self.names}
        for name, first in kept.items():
            x = arrays[name]
            if first.shape != x.shape or not np.array_equal(first.reshape(-1).view(np.uint8),
                                                            x.reshape(-1).view(np.uint8)):
                raise InputError(f"input '{name}' is marked constant: it must stay the array of the first call")
        return kept

    def keep(self, arrays: dict[str, np.ndarray]) -> None:
        """Keep the arrays of a plan. Raises InputError if other arrays are kept; the plan must not be used then."""
        self._kept.setdefault("arrays", arrays)  # atomic: no other thread or signal handler interrupts it
        self.of(arrays)

"""What came of a graph that runs in one plan: the graph after the passes (`Passed`), its plan (`Planned`, `Loaded`)."""
from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

import numpy as np

from graphq.base.locks import importing, lazy_property
from graphq.base.progress import progress
from graphq.base.sizes import Trace
from graphq.errors import CompileError, InputError
from graphq.ir import Graph, TensorType
from graphq.ir.names import counted
from graphq.ir.signature import Signature
from graphq.kernels.jit.isa import Level
from graphq.plan.arena import Arenas
from graphq.plan.plan import NativeStep, Plan
from graphq.plan.runtime import Runner, Words
from graphq.rewrite.history import History
from graphq.rewrite.rule import Pass, Refusal

if TYPE_CHECKING:  # what reports alone need is imported when they are asked for
    from graphq.report.coverage import Coverage
    from graphq.report.parts import Part
    from graphq.report.profile import Profile
    from graphq.report.records import Report


T = TypeVar("T")


class Options(NamedTuple):
    """The options of `compile`, resolved."""

    level: Level
    threads: int
    strict: bool
    passes: tuple[Pass, ...] | None
    """None: those of PIPELINE, which a saved model need not import."""
    cache: bool
    memory: int | None

    @property
    def pipeline(self) -> Sequence[Pass]:
        """The passes."""
        if self.passes is not None:
            return self.passes
        with importing.hold:
            from graphq.passes import PIPELINE
        return PIPELINE


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

    def explanation(self, *, kernels: bool) -> Report:
        """What fused and what did not; `kernels`: also what each kernel does and how fast it is."""

    def parts(self) -> list[Part]:
        """What pages show: one part, or several of a graph in stages."""

    def coverage(self) -> Coverage:
        """Which share of the multiply-accumulates integer partitions do. Raises CompileError while shapes are open."""


class Runnable(Reported, Protocol):
    """What came of a graph whose shapes are all known: it runs, in one plan or in stages."""

    output_types: tuple[TensorType, ...]

    def run(self, inputs: Sequence[np.ndarray],
            outputs: Sequence[np.ndarray] | None = None, /) -> Sequence[np.ndarray]:
        """Run on checked arrays; the outputs (new ones, or those given, filled)."""

    def profile(self, inputs: Mapping[str, np.ndarray], runs: int, *, peaks: bool) -> Profile:
        """How long each step takes, medians of so many runs; with `peaks` also what the machine could do."""


class Passed:
    """A graph after the passes, which change the one that is given; without a plan.

    Reports read its `history`; `again` gives them the graph as it is before the passes.
    """

    runner: Runner | None = None
    plan: Plan | None = None
    sizes: Mapping[str, int] = MappingProxyType({})
    """What open dimensions are, or are assumed to be."""

    def __init__(self, graph: Graph, options: Options, again: Callable[[], Graph]) -> None:
        self.options, self.again, self.history = options, again, History(graph)
        with importing.hold:
            from graphq.passes import run_passes
        self.refusals = run_passes(graph, options.pipeline, history=self.history)
        self.graph = self.history.fork()

    def formula(self, inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """The outputs in NumPy, partitions by their formulas."""
        from graphq.model.planning import evaluate_formulas

        return evaluate_formulas(self.graph, inputs)

    def check_references(self) -> None:
        """Raise CompileError, with the report, for operations without kernels where `strict` refuses them."""
        if self.options.strict and self.plan is not None and (slow := self.plan.references):
            from graphq.report.explain import as_text

            raise CompileError(f"strict: {counted(len(slow), 'operation')} would run by NumPy references: "
                               f"{'; '.join(slow[:5])}\n" + as_text(self.explanation(kernels=False)))

    def explanation(self, *, kernels: bool) -> Report:
        """The report on the graph, and on its plan if it has one."""
        from graphq.report.evidence import gather
        from graphq.report.survey import Facts, survey

        runner, plan, (level, threads, *_) = self.runner, self.plan, self.options
        native = [k for k, s in enumerate(plan.steps) if isinstance(s, NativeStep)] if plan and kernels else []
        evidence = {k: gather(runner, k, self.options.cache) for k in progress(native, "steps")} if runner else {}
        covered = None if plan is None else self.coverage()
        return survey(Facts(self.again(), self.history, self.options.pipeline, plan, self.refusals, level, threads,
                            evidence, covered, self.sizes))

    def parts(self) -> list[Part]:
        """The graph before and after the passes, with its report and what its plan takes."""
        from graphq.report.parts import Part, memory_of

        memory = None if self.runner is None else memory_of(self.runner)
        return [Part("", self.again(), self.graph, self.explanation(kernels=False), memory)]

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

    def profile(self, inputs: Mapping[str, np.ndarray], runs: int, *, peaks: bool) -> Profile:
        """How long each step takes, medians of so many runs; with `peaks` also what the machine could do."""
        from graphq.report.profile import profile_steps

        arrays = [inputs[str(v.name)] for v in self.graph.inputs]
        return profile_steps(self.run, arrays, runs, peaks=peaks, cache=self.options.cache)


class Planned(Ready):
    """A graph all of whose shapes are known, after the passes, and its plan, ready to run.

    Raises CompileError when it would take too much memory, or for operations without kernels where that is `strict`.
    """

    def __init__(self, graph: Graph, options: Options, again: Callable[[], Graph], arenas: Arenas) -> None:
        super().__init__(graph, options, again)
        with importing.hold:
            from graphq.model.planning import build_plan
        self.plan = build_plan(self.graph, options.level, options.threads, options.cache)
        self.check_references()
        self.run_by(Runner(Words(self.plan), arenas, options.cache))

    def coverage(self) -> Coverage:
        """Which share of the graph's multiply-accumulates integer partitions do."""
        from graphq.report.coverage import coverage

        return coverage(self.graph)


class StoredPlan(NamedTuple):
    """A plan that a file has, which is read when it is needed.

    `sizes` are those of the open dimensions in its example; None where all shapes are known. `read(make)` is what
    `make` makes of the plan and of the trace of its open sizes. It raises ParseError where either is not what `save`
    wrote, also where `make` finds that.
    """

    sizes: tuple[int, ...] | None
    read: Callable[[Callable[[Plan, Trace | None], Any]], Any]


class Stored(NamedTuple):
    """A model that a file has: its plans, one for known shapes or several for open ones; `source` reads the graph.

    `rows_mix` is that of `CompiledGraph`, which saves reading the graph for it.
    """

    plans: Sequence[StoredPlan]
    signature: Signature
    source: Callable[[], Graph]
    rows_mix: str | None


class Loaded:
    """A plan that a file has, ready to run. What reports ask for comes of the plan that `anew` makes of the graph."""

    def __init__(self, runner: Runner, anew: Callable[[], Ready]) -> None:
        self.run, self.plan, self.output_types = runner, runner.plan, runner.plan.output_types
        self._anew = anew

    @lazy_property
    def planned(self) -> Ready:
        """The same, made anew."""
        return self._anew()


def in_full(made: T | Loaded) -> T | Ready:
    """What can also report: a plan that a file has is made anew for that."""
    return made.planned if isinstance(made, Loaded) else made


class ConstantInputs:
    """The arrays of inputs marked constant: those of the call whose plan was made first, among all that came together.

    A model and those of the values that it fetches have one of these.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self.names = tuple(names)
        self._kept: dict[str, dict[str, np.ndarray]] = {}

    def of(self, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The arrays that are kept; copies of these while there are none.

        Raises InputError where one has other bits than the one that is kept.
        """
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
        """Keep these, which a plan has. Raises InputError where others are kept: that plan must not be used."""
        self._kept.setdefault("arrays", arrays)  # in one step, for threads and for handlers of signals
        self.of(arrays)

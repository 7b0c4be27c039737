"""Make the plan of a graph, and the objects that reports describe. `OpenPlans` adds open sizes and further plans.

`Options` are the options of a compiled model, `Passed` is its graph after the passes, for reports. Plans share equal
arrays, such as weights, and the memory for values between steps.
"""
from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from graphq.base.arrays import Arrays
from graphq.base.budget import budget, collector_paused
from graphq.base.locks import late_imports, lazy_property
from graphq.base.programs import Program
from graphq.base.progress import progress
from graphq.base.sizes import Size, Trace, parts, trace_of
from graphq.errors import CompileError, InputError
from graphq.ir import Graph, Signature, counted
from graphq.kernels.target.level import Level
from graphq.model.open_shapes import Places, Shapes, Sizes
from graphq.model.staged import Staged, WithSymbols, symbolic
from graphq.plan.open_plans import OpenPlan
from graphq.plan.plan import CONTROL, Plan, Step, in_one_plan
from graphq.plan.runtime import Arenas, NativePlan, Runner

if TYPE_CHECKING:  # passes and reports are imported when they run
    from graphq.model.compiled_graph import CompiledGraph
    from graphq.report.coverage import Coverage
    from graphq.report.profile import Profile
    from graphq.report.records import ModelPart, Report
    from graphq.rewrite.fixpoint import History
    from graphq.rewrite.rule import Pass, Refusal


class Padding(NamedTuple):
    """`CompiledGraph.padding_mixes` and `padding_zeros`, and the axes of outputs that grow with the padded inputs."""

    mixes: str | None
    zeros: tuple[str, ...] = ()
    axes: tuple[tuple[str, int], ...] = ()


class Options(NamedTuple):
    """The options of `compile` that decide plans, with defaults filled in. Its other options become passes."""

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

    `history` has the graph after the passes, and the changes by passes. `rebuild` makes the graph as it was before the
    passes. `sizes` are the open sizes by name: at the runner's shapes, otherwise in the plan's example. If the graph
    has plain numbers for open sizes, `symbolic` returns this record with symbols, or None.
    """

    history: History
    refusals: list[Refusal]
    options: Options
    rebuild: Callable[[], Graph]
    made: NativePlan | None = None
    runner: Runner | None = None
    sizes: Mapping[str, int] = {}
    symbolic: Callable[[], Passed | None] = lambda: None

    @classmethod
    def of(cls, rebuild: Callable[[], Graph], options: Options) -> Passed:
        """Run the passes on the graph that `rebuild` returns."""
        with late_imports():
            from graphq.passes import run_passes
            from graphq.rewrite.fixpoint import History
        graph = rebuild()
        history = History(graph)
        refusals = run_passes(graph, options.pipeline, history=history)
        history.fork()
        return cls(history, refusals, options, rebuild)

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
                                                        rebuild=other.rebuild, sizes={**other.sizes, **self.sizes})

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
        from graphq.model.build_plan import evaluate_formulas

        return evaluate_formulas(self.graph, inputs)

    def explanation(self, *, kernels: bool) -> Report:
        """The report on the graph, and on its plan if it has one."""
        from graphq.report.evidence import gather
        from graphq.report.survey import survey

        runner, plan, (level, threads, *_) = self.runner, self.plan, self.options
        native = [k for k, s in enumerate(plan.steps) if isinstance(s, Step)] if plan and kernels else []
        evidence = {k: gather(runner, k, self.options.cache) for k in progress(native, "steps")} if runner else {}
        covered, shown = None if plan is None else self.coverage(), self.shown
        return survey(shown.rebuild(), shown.history, self.options.pipeline, shown.refusals, plan, level=level,
                      threads=threads, evidence=evidence, covered=covered, sizes=shown.sizes, at_sizes=shown.at_sizes)

    def parts(self) -> list[ModelPart]:
        """A list of one part: the graph before and after the passes, its report, and the memory of its plan."""
        from graphq.report.records import ModelPart, memory_of

        memory, shown = None if self.runner is None else memory_of(self.runner), self.shown
        return [ModelPart("", shown.rebuild(), shown.graph, self.explanation(kernels=False), memory)]

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


Unread: TypeAlias = tuple[Sizes, Callable[[], NativePlan]]
"""A plan in a file that was not read yet: the sizes that it was made for, and a function that reads the plan.

The function raises ParseError if `save` did not write the plan.
"""


class Plans:
    """The one plan, or the stages, of a graph whose input shapes are all known. `OpenPlans` is for other graphs.

    `read_source` returns the graph as the user gave it. `unread` are plans of a file. If the graph is a stage with
    plain numbers instead of open sizes, `symbols` makes the same stage with symbols, for reports. `fixed` is the runner
    or the stages. `constants` has the arrays of inputs marked constant. Any number of threads may call a method.
    """

    fixed: Runner | Staged | None = None
    constants = ConstantInputs(())
    grown: Callable[[Plans], None] | None = None
    """A function that is called with this object after a call has added a plan."""

    def __init__(self, signature: Signature, read_source: Callable[[], Graph], options: Options,
                 unread: Sequence[Unread], part: Callable[..., CompiledGraph], arrays: Arrays,
                 symbols: WithSymbols | None = None) -> None:
        self.signature, self.read_source, self.options, self._part = signature, read_source, options, part
        self.symbols, self._shared, self._arenas = symbols, arrays, Arenas()
        self._anew: dict[NativePlan, NativePlan] = {}
        self._with_symbols: dict[NativePlan, Passed | None] = {}
        self._begin(unread)

    def _begin(self, unread: Sequence[Unread]) -> None:
        """Read the plan, or make it."""
        with budget(self.options.memory):
            if unread:
                self.fixed = Runner(unread[0][1](), self._arenas, self.options.cache)
            else:
                rebuild = self.read_source().copy
                symbols = partial(self._graph_of_symbols, self._places.shapes(())) if self.symbols else None
                self.fixed = self._planned(rebuild(), rebuild, symbols)

    @property
    def source(self) -> Graph:
        """The graph as the user gave it."""
        return self.read_source()

    @lazy_property
    def rows_mix(self) -> str | None:
        """`CompiledGraph.rows_mix`."""
        from graphq.model.row_wise import why_rows_mix

        return why_rows_mix(self.source, self.options.pipeline)

    @lazy_property
    def padding(self) -> Padding:
        """The facts about padding, for `CompiledGraph.padding_mixes` and `padding_zeros`."""
        from graphq.model.padding import padding_of

        return padding_of(self.source, self.options.pipeline)

    @lazy_property
    def _places(self) -> Places:
        return Places(self.signature)

    @lazy_property
    def names(self) -> list[str]:
        """The names of the open sizes of all inputs."""
        return self._places.names(self.source)

    @property
    def latest(self) -> Passed | Staged:
        """The object that reports describe."""
        assert self.fixed is not None
        return self.reported(self._places.shapes(()), self.fixed)

    def reported(self, shapes: Shapes, made: Runner | Staged) -> Passed | Staged:
        """The object that reports describe for a runner. A new plan replaces a plan from a file, which has no graph."""
        if isinstance(made, Staged):
            return made
        plan = self._in_full(made.made)
        return self._passed(plan, shapes, made if plan is made.made else self._runner(plan, made))

    def _passed(self, made: NativePlan, shapes: Shapes, runner: Runner | None = None, given: Sequence[Any] = ()
                ) -> Passed:
        """The object that reports describe. `given` has the open sizes in the plan's graph: a Size or a number each."""
        assert made.passed is not None
        sizes = self._places.sizes(shapes)
        rebuild = partial(self._graph_at, self._places.shapes(tuple(given)) if given else shapes)
        at = dict(zip(self._places.keys, sizes, strict=True))
        passed = Passed(*made.passed, self.options, rebuild, made=made, runner=runner, sizes=at)
        whole = self.symbols is None and all(isinstance(x, Size) for x in given or sizes)
        return passed if whole else passed._replace(symbolic=partial(self._symbolic, made, shapes))

    def _symbolic(self, made: NativePlan, shapes: Shapes) -> Passed | None:
        """The graph after the passes with symbols for open sizes, if graphq can make it."""
        if made not in self._with_symbols:
            assert made.passed is not None
            found: list[Passed] = []

            def run(trace: Trace) -> tuple[Graph]:
                found.append(Passed.of(self._graph_of_symbols(shapes, trace).copy, self.options))
                return found[0].graph,

            made_so = symbolic(run, (made.passed[0].after,), self.options.memory)
            self._with_symbols[made] = None if made_so is None else found[0]._replace(sizes=dict(made_so[1].assumed))
        return self._with_symbols[made]

    def _graph_of_symbols(self, shapes: Shapes, trace: Trace) -> Graph:
        """The user's graph at these input shapes, with symbols for open sizes."""
        source, places = self.source if self.symbols is None else self.symbols(trace), self._places
        own = places.shapes(tuple(map(trace.leaf, places.sizes(shapes), places.keys, self.names)))
        of_inputs = [shapes[k] if v.shape is None else tuple([size if d is None else d for d, size in
                                                              zip(v.shape, own[k], strict=True)])
                     for k, v in enumerate(source.inputs)]
        return places.graph(source, (*of_inputs, *own[len(of_inputs):]), self.constants.kept)

    def formula(self, arrays: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """The outputs computed in NumPy, at the shapes of these arrays."""
        return self.latest.formula(arrays)

    def all(self, read: bool = True) -> Sequence[NativePlan]:
        """All plans; without `read`, no plans of a file that were not read yet."""
        return [self.fixed.made] if isinstance(self.fixed, Runner) else []

    def cover(self) -> None:
        """Make plans for sizes that no call has had (see `OpenPlans.cover`)."""

    def classes(self) -> tuple[str, ...]:
        """The lines of a report on open sizes: the ranges of sizes, how many plans each range has, and why."""
        return ()

    def at(self, shapes: Shapes, arrays: Mapping[str, np.ndarray] | None = None) -> Runner | Staged:
        """The runner for inputs of these shapes; `arrays` has the arrays of inputs marked constant.

        Raises GraphError if the graph rejects the shapes, CompileError if its plan would take too much memory or
        `strict` refuses operations, InputError if constants differ from the first call's.
        """
        assert self.fixed is not None
        return self.fixed

    def shapes_of(self, arrays: Mapping[str, np.ndarray]) -> Shapes:
        """The shapes of a call's arrays, and the elements of inputs that are sizes: they all decide which plan runs."""
        return self._places.shapes(())

    @collector_paused()
    def _planned(self, graph: Graph, rebuild: Callable[[], Graph], symbols: WithSymbols | None) -> Runner | Staged:
        """A runner, or stages, for a graph whose input shapes are all known. `symbols` makes the graph for reports."""
        if in_one_plan(graph):
            return Runner(self._plan(graph, rebuild), self._arenas, self.options.cache)
        if self.options.strict:
            node = next(n for n in graph.nodes if n.op.name in CONTROL or not all(v.type.known for v in n.outputs))
            why = "bodies run as stages" if node.op.name in CONTROL else "shapes depend on data"
            raise CompileError(f"strict: {why}: {graph.describe(node)}")
        return Staged(graph, self._part, symbols)

    def _plan(self, graph: Graph, rebuild: Callable[[], Graph], trace: Trace | None = None) -> NativePlan:
        """Run the passes on a graph and plan the result. For reports, `rebuild` makes the given graph again.

        If sizes are open, `trace` has their computations.

        Raises CompileError if the plan would take too much memory, or if `strict` refuses operations without kernels.
        """
        try:
            passed = Passed.of(lambda: graph, self.options)
            with late_imports():
                from graphq.model.build_plan import build_plan
            if trace is not None or self.fixed is not None:
                self._share(passed.history)
            level, threads, cache = self.options.level, self.options.threads, self.options.cache
            plan = build_plan(passed.history.after, level, threads, cache, self._shared)
        except MemoryError as e:
            raise CompileError(f"not enough memory: {e}") from None
        if trace is not None:
            trace.sealed = True
        of_passes = passed.history, passed.refusals
        made = NativePlan(plan, of_passes) if trace is None else OpenPlan(plan, trace, of_passes)
        if self.options.strict and (slow := plan.references):
            from graphq.report.explain import as_text

            sizes = {} if trace is None else trace.assumed
            report = passed._replace(rebuild=rebuild, made=made, sizes=sizes).explanation(kernels=False)
            raise CompileError(f"strict: {counted(len(slow), 'operation')} would run by NumPy references: "
                               f"{'; '.join(slow[:5])}\n" + as_text(report))
        return made

    def _share(self, history: History) -> None:
        """Replace the arrays of a new plan's graphs with equal arrays of earlier plans, to save memory."""
        if self._shared.empty:
            for plan in self.all():
                for b in plan.plan.buffers:
                    if isinstance(b.data, np.ndarray):
                        self._shared.one_for(b.data)
        for graph in (history.after, history.before):
            for node in graph.nodes_of(["constant"]):
                node.attrs = {**node.attrs, "value": self._shared.one_for(node.attrs["value"])}

    def _in_full(self, plan: NativePlan) -> NativePlan:
        """The plan with its graph after the passes. A plan from a file has no graph; it is replaced by a new plan."""
        if plan.passed is None and plan not in self._anew:
            self._anew.setdefault(plan, self._made_again(plan))
        return self._anew.get(plan, plan)

    def _made_again(self, plan: NativePlan) -> NativePlan:
        with budget(self.options.memory):
            return self._plan(self.source.copy(), self.source.copy)

    def _runner(self, plan: NativePlan, like: Runner) -> Runner:
        """A runner of `plan` at the sizes of another runner."""
        return Runner(plan, self._arenas, self.options.cache)

    def _graph_at(self, shapes: Shapes) -> Graph:
        """The user's graph at these input shapes."""
        return self.source.copy()

"""Make the plan of a graph, and the objects that reports describe. `OpenPlans` adds open sizes and further plans.

Plans share equal arrays, such as weights, and the memory for values between steps.
"""
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

import numpy as np

from graphq.base.arrays import Arrays
from graphq.base.budget import budget
from graphq.base.collector import collector_paused
from graphq.base.locks import late_imports, lazy_property
from graphq.base.sizes import Size, Trace
from graphq.errors import CompileError
from graphq.ir import Graph
from graphq.ir.interpret import Signature
from graphq.ir.names import counted
from graphq.model.open_shapes import Dimension, Places, Shapes, Sizes, open_dimensions
from graphq.model.planned import ConstantInputs, Options, Passed
from graphq.model.staged import Staged
from graphq.model.symbols import WithSymbols, at_symbols, symbolic
from graphq.plan.arena import Arenas
from graphq.plan.open_plans import OpenPlan
from graphq.plan.runtime import NativePlan, Runner
from graphq.plan.stages import CONTROL, in_one_plan
from graphq.rewrite.fixpoint import History

if TYPE_CHECKING:
    from graphq.model.compiled_graph import CompiledGraph

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
                again = self.read_source().copy
                symbols = partial(self._graph_of_symbols, self._places.shapes(())) if self.symbols else None
                self.fixed = self._planned(again(), again, symbols)

    @property
    def source(self) -> Graph:
        """The graph as the user gave it."""
        return self.read_source()

    @lazy_property
    def _places(self) -> Places:
        return Places(self.signature)

    @lazy_property
    def dimensions(self) -> list[Dimension]:
        """The open sizes of all inputs, with their names."""
        return open_dimensions(self.source, self._places.all)

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
        again = partial(self._graph_at, self._places.shapes(tuple(given)) if given else shapes)
        named = {f"{d.input}.{d.axis}": n for d, n in zip(self.dimensions, sizes, strict=True)}
        passed = Passed(*made.passed, self.options, again, made, runner, named)
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
        source = self.source if self.symbols is None else self.symbols(trace)
        return at_symbols(source, self._places, self.dimensions, shapes, self.constants.kept, trace)

    def formula(self, arrays: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """The outputs computed in NumPy, at the shapes of these arrays."""
        return self.latest.formula(arrays)

    def all(self) -> list[NativePlan]:
        """All plans, including the plans in a file."""
        return self.in_memory()

    def in_memory(self) -> list[NativePlan]:
        """The plans that were made, or read from a file."""
        return [self.fixed.made] if isinstance(self.fixed, Runner) else []

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
    def _planned(self, graph: Graph, again: Callable[[], Graph], symbols: WithSymbols | None) -> Runner | Staged:
        """A runner, or stages, for a graph whose input shapes are all known. `symbols` makes the graph for reports."""
        if in_one_plan(graph):
            return Runner(self._plan(graph, again), self._arenas, self.options.cache)
        if self.options.strict:
            _refuse_stages(graph)
        return Staged(graph, self._part, symbols)

    def _plan(self, graph: Graph, again: Callable[[], Graph], trace: Trace | None = None) -> NativePlan:
        """Run the passes on a graph and plan the result. For reports, `again` rebuilds the given graph.

        If sizes are open, `trace` has their computations.

        Raises CompileError if the plan would take too much memory, or if `strict` refuses operations without kernels.
        """
        try:
            passed = Passed.of(lambda: graph, self.options)
            with late_imports():
                from graphq.model.planning import build_plan
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
            report = passed._replace(again=again, made=made, sizes=sizes).explanation(kernels=False)
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


def _refuse_stages(graph: Graph) -> NoReturn:
    node = next(n for n in graph.nodes if n.op.name in CONTROL or not all(v.type.known for v in n.outputs))
    why = "bodies run as stages" if node.op.name in CONTROL else "shapes depend on data"
    raise CompileError(f"strict: {why}: {graph.describe(node)}")

"""Run a graph in stages, if shapes depend on data or operations have bodies (see `graphq.plan.stages`)."""
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from graphq.base.locks import Lock, lazy_property
from graphq.base.sizes import Trace
from graphq.errors import CompileError
from graphq.ir import Graph, Node
from graphq.ir.interpret import evaluate, named_outputs
from graphq.model.symbols import WithSymbols, symbolic
from graphq.plan.stages import Stages, stages
from graphq.rewrite.rule import Refusal

if TYPE_CHECKING:
    from graphq.model.compiled_graph import CompiledGraph
    from graphq.report.coverage import Coverage
    from graphq.report.parts import ModelPart
    from graphq.report.profile import Profile
    from graphq.report.records import Report


Call: TypeAlias = "Callable[[CompiledGraph, Mapping[str, np.ndarray]], np.ndarray | dict[str, np.ndarray]]"
"""A function that runs a compiled part of the graph. Its arguments are the part, and arrays by input name."""


class Body:
    """A body of an operation such as a loop. The first run compiles the body; `call` runs the compiled body."""

    def __init__(self, graph: Graph, model: Callable[[], CompiledGraph], call: Call) -> None:
        self.inputs, self.outputs, self._model, self._call = graph.inputs, graph.outputs, model, call

    def run(self, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
        """Run the body on arrays by input name; returns its outputs in order."""
        model = self._model()
        return list(named_outputs(model.outputs, self._call(model, feeds)).values())


class Staged:
    """A graph in three parts: the compiled head, operations that run as references (the cut), and the compiled tail.

    The tail is compiled for each new set of shapes that the cut computes. A Staged object has the methods of a `Runner`
    for calls, and of `Passed` for reports. `compile` compiles a part, with the options of the whole graph. `symbols`
    makes the graph with symbols for open sizes, for reports; it is None if no size is open.
    """

    in_place: tuple[tuple[int, int], ...] = ()

    def __init__(self, graph: Graph, compile: Callable[..., CompiledGraph], symbols: WithSymbols | None = None) -> None:
        self.graph, self.stages, self._symbols = graph, stages(graph), symbols
        self.refusals: list[Refusal] = []
        self.inputs = [str(v.name) for v in graph.inputs]
        self.output_types = tuple(v.type for v in graph.outputs)
        self.head, self.tail = (compile(part, symbols=self._part_with_symbols(choose)) if part.outputs else None
                                for part, choose in ((self.stages.head, lambda s: s.head),
                                                     (self.stages.tail, lambda s: s.tail)))
        self._compile, self._lock = compile, Lock()
        self._bodies: dict[tuple[Node, str], CompiledGraph] = {}

    def __call__(self, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray] | None = None) -> list[np.ndarray]:
        """Run on checked arrays; returns the outputs: `outputs` if given, otherwise new arrays."""
        outs = self._through(dict(zip(self.inputs, inputs, strict=True)), lambda model, feeds: model(feeds))
        if outputs is None:
            return outs
        for given, x in zip(outputs, outs, strict=True):
            given[...] = x
        return list(outputs)

    def formula(self, inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """The outputs computed in NumPy, by the formulas of the compiled parts."""
        return self._through(inputs, lambda model, feeds: model.formula(feeds))

    def explanation(self, *, kernels: bool) -> Report:
        """The report on the head, the operations of the cut with their bodies, and the tail."""
        from graphq.report.survey import survey_stages

        bodies = [(self.stages.cut.nodes.index(node), name, model.explanation(kernels=kernels, patterns=False))
                  for (node, name), model in list(self._bodies.items())]
        head, tail = (None if part is None else part.explanation(kernels=kernels, patterns=False)
                      for part in (self.head, self.tail))
        graph, cut = self._shown
        return survey_stages(graph, head, cut, bodies, tail, self.stages.outputs)

    def parts(self) -> list[ModelPart]:
        """The parts for reports, in this order: the head, the cut, bodies in the cut, the tail."""
        from graphq.report.parts import ModelPart
        from graphq.report.survey import survey_stages

        graph, cut = self._shown
        between = survey_stages(graph, None, cut, (), None).parts["cut"]
        bodies = [part.within(f"{name} of n{self.stages.cut.nodes.index(node)}")
                  for (node, name), model in list(self._bodies.items()) for part in model.parts()]
        head, tail = ([] if model is None else [part.within(name) for part in model.parts()]
                      for name, model in (("head", self.head), ("tail", self.tail)))
        return [*head, ModelPart("between", None, cut, between), *bodies, *tail]

    def profile(self, inputs: Mapping[str, np.ndarray], runs: int, *, peaks: bool) -> Profile:
        """The profile of all compiled parts, one part after another."""
        from graphq.report.profile import merged

        parts: list[Profile] = []

        def measured(model: CompiledGraph, feeds: Mapping[str, np.ndarray]) -> np.ndarray | dict[str, np.ndarray]:
            parts.append(model.profile(feeds, runs=runs, peaks=peaks))
            return model(feeds)

        self._through(inputs, measured)
        return merged(parts)

    def coverage(self) -> Coverage:
        """The coverage of all parts together. Raises CompileError if the tail has not run yet."""
        from graphq.report.coverage import coverage, merged

        parts = (self.head, self.tail, *self._bodies.values())
        return merged([coverage(self.stages.cut), *(p.coverage() for p in parts if p is not None)])

    def _body(self, node: Node, name: str) -> CompiledGraph:
        with self._lock.hold:
            if (node, name) not in self._bodies:
                number = self.stages.cut.nodes.index(node)
                symbols = self._part_with_symbols(lambda s: s.cut.nodes[number].attrs[name])
                self._bodies[node, name] = self._compile(node.attrs[name], symbols=symbols)
            return self._bodies[node, name]

    def _part_with_symbols(self, choose: Callable[[Stages], Graph]) -> WithSymbols | None:
        whole = self._symbols
        return None if whole is None else lambda trace: choose(stages(whole(trace)))

    @property
    def shown_graph(self) -> Graph:
        """The graph for pictures, with symbols for open sizes if possible."""
        return self._shown[0]

    @lazy_property
    def _shown(self) -> tuple[Graph, Graph]:
        """The graph and the cut for reports: with symbols for open sizes, if graphq can make them."""
        plain, whole = (self.graph, self.stages.cut), self._symbols
        if whole is None:
            return plain

        def both(trace: Trace) -> tuple[Graph, Graph]:
            graph = whole(trace)
            return graph, stages(graph).cut

        made = symbolic(both, plain)
        return plain if made is None else (made[0][0], made[0][1])

    def _attributes(self, call: Call, node: Node) -> Mapping[str, Any]:
        # A loop's body is compiled only if the shapes of its inputs are known: shapes may change between iterations.
        def compiled(x: Any) -> bool:
            return isinstance(x, Graph) and bool(x.outputs) and (
                node.op.name == "if_else" or all(v.type.known for v in x.inputs))

        return {name: Body(x, partial(self._body, node, name), call) if compiled(x) else x
                for name, x in node.attrs.items()}

    def _through(self, inputs: Mapping[str, np.ndarray], call: Call) -> list[np.ndarray]:
        env = {**self.stages.constants, **inputs}
        if self.head is not None:
            env |= named_outputs(self.head.outputs, call(self.head, {n: env[n] for n in self.head.names}))
        cut = self.stages.cut
        results = evaluate(cut, {str(v.name): env[str(v.name)] for v in cut.inputs}, partial(self._attributes, call))
        try:
            env |= dict(zip(cut.output_names, (np.array(x, order="C") for x in results), strict=True))
        except MemoryError as e:
            raise CompileError(f"not enough memory: {e}") from None
        if self.tail is not None:
            env |= named_outputs(self.tail.outputs, call(self.tail, {n: env[n] for n in self.tail.names}))
        outs, taken = list[np.ndarray](), {*self.stages.constants, *inputs}
        for name in self.stages.outputs:  # copies, so that results share no memory with inputs or each other
            outs.append(np.array(env[name]) if name in taken else env[name])
            taken.add(name)
        return outs

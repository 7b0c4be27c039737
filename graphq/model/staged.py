"""Cut a graph that cannot be one plan into three graphs, its stages, and run them.

A plan needs all shapes and has no branches. A graph is therefore cut at its first operations that have a body (loops
and branches) or results whose shapes depend on data.

- The head has the operations that do not depend on the cut. All of their shapes are known.
- The cut has the operations at which the graph is cut. They run as NumPy references; their bodies are compiled.
- The tail has the operations that use results of the cut. It is compiled after the cut has run, because the shapes of
  these results are then known. The tail may be cut again.

Reports show symbols for open sizes instead of numbers, if `symbolic` can make the same graph with symbols.
"""
from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from graphq.base.budget import budget
from graphq.base.locks import Lock, lazy_property
from graphq.base.sizes import Trace
from graphq.errors import CompileError, GraphqError, InputError
from graphq.ir import Graph, Node, Value, named_outputs, part_of
from graphq.ir.interpret import evaluate
from graphq.ops.quant import DEQUANTIZES
from graphq.plan.plan import CONTROL, STAGES

if TYPE_CHECKING:
    from graphq.model.compiled_graph import CompiledGraph
    from graphq.report.coverage import Coverage
    from graphq.report.profile import Profile
    from graphq.report.records import ModelPart, Report
    from graphq.rewrite.rule import Refusal

WithSymbols: TypeAlias = Callable[[Trace], Graph]
"""A function that makes a graph with symbols for open sizes. The trace gets a leaf for each open size."""


class Stages(NamedTuple):
    """Three graphs to run in this order. A value that one graph passes to another has the same name in both.

    `outputs` are the names of the whole graph's outputs. `constants` has the arrays of constant outputs, by name.
    """

    head: Graph
    cut: Graph
    tail: Graph
    outputs: tuple[str, ...]
    constants: Mapping[str, np.ndarray]


FOLLOWS = frozenset({*DEQUANTIZES, "static_reshape", "static_transpose"})
"""Operations of the head that move to the tail if only the tail uses their results.

A dequantize is then in the same stage as the layer that it fuses with.
"""


def stages(graph: Graph) -> Stages:
    """Cut a graph whose inputs have known types into stages."""
    head: list[Node] = []
    cut: list[Node] = []
    tail: list[Node] = []
    early = set(graph.inputs)
    for node in graph.nodes:
        if any(v not in early for v in node.operands):
            tail.append(node)
        elif node.op.name not in CONTROL and all(v.type.known for v in node.outputs):
            head.append(node)
            early.update(node.outputs)
        else:
            cut.append(node)
    late = set(tail)
    for node in reversed(head):
        if node.op.name in FOLLOWS and {u.node for v in node.outputs for u in v.uses} <= late:
            late.add(node)
    head, tail = [n for n in head if n not in late], [n for n in graph.nodes if n in late]
    names = dict(_named(graph))
    return Stages(_part(graph, head, [*cut, *tail], names), _part(graph, cut, tail, names),
                  _part(graph, tail, [], names), tuple(names[v] for v in graph.outputs),
                  {names[v]: v.data for v in graph.outputs if v.data is not None})


def _named(graph: Graph) -> Iterator[tuple[Value, str]]:
    k = 0
    for v in graph.values:
        name = v.name
        while name is None:
            k += 1
            name = None if graph.has_name(f"value {k}") else f"value {k}"
        yield v, name


def _part(graph: Graph, nodes: list[Node], later: list[Node], names: dict[Value, str]) -> Graph:
    """Copy nodes and their constants into a new graph. Values of other nodes become inputs.

    The outputs are the results that `later` nodes read or that the graph returns, without constants.
    """
    own = set(nodes)
    read = dict.fromkeys((*(v for n in later for v in n.operands), *graph.outputs))
    outputs = [v for v in read if v.node in own and v.maker.op.name != "constant"]
    part, new = part_of(nodes, outputs, names, graph.name)
    makers = {names[v]: v.node for v in new if v.node is not None and new[v].node is None}
    users = {names[v]: u for v in outputs for u in reversed(v.users) if u not in own}
    part.meta = {STAGES: {name: graph.describe(node) for name, node in (makers | users).items()}}
    return part


def symbolic(make: Callable[[Trace], Sequence[Graph]], like: Sequence[Graph], memory: int | None = None
             ) -> tuple[Sequence[Graph], Trace] | None:
    """The graphs that `make` makes with symbols, and the trace of the symbols.

    `like` has the same graphs with plain numbers. The result is None if the graphs differ in more than sizes, or if
    some code needs plain numbers.
    """
    trace = Trace()
    with suppress(GraphqError, ArithmeticError, AttributeError, TypeError), budget(memory):
        graphs = make(trace)
        trace.sealed = True
        trace.guards.clear()  # without guards, reports compute numbers at all sizes of a plan
        if list(map(_labels, graphs)) == list(map(_labels, like)) and len(trace.assumed) == len(trace.leaves):
            return graphs, trace
    return None


def _labels(graph: Graph) -> list[list[str]]:
    return [[graph.label(v) for v in node.outputs] for node in graph.nodes]


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
        for name, given, x in zip(self.graph.output_names, outputs, outs, strict=True):
            if given.shape != x.shape:
                raise InputError(f"out '{name}' must have shape {list(x.shape)} for this call, got {list(given.shape)}")
            given[...] = x
        return list(outputs)

    def bound(self, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> Callable[[], object]:
        """A function that runs on these checked arrays."""
        return partial(self, inputs, outputs)

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
        from graphq.report.records import ModelPart
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

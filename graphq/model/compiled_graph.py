"""CompiledGraph: what `compile` makes of a graph, and what the user calls."""
from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeAlias, TypeGuard, cast, overload

import numpy as np

from graphq.base.budget import budget
from graphq.base.locks import Lock, lazy_property
from graphq.base.paths import path_of
from graphq.base.sizes import Trace
from graphq.errors import CompileError, GraphError, InputError
from graphq.ir import Graph, TensorType
from graphq.ir.copies import check_names, returning
from graphq.ir.interpret import check_array, check_inputs, named_inputs, pack_outputs
from graphq.ir.names import counted
from graphq.ir.signature import Signature
from graphq.kernels.jit.isa import Level
from graphq.model.open_shapes import OpenPlans
from graphq.model.planned import (
    ConstantInputs,
    Loaded,
    Options,
    Passed,
    Planned,
    Ready,
    Reported,
    Runnable,
    Stored,
    StoredPlan,
    in_full,
)
from graphq.model.staged import StagedRunner
from graphq.plan.arena import Arenas
from graphq.plan.plan import Plan
from graphq.plan.runtime import Runner, Words
from graphq.plan.stages import CONTROL, in_one_plan
from graphq.rewrite.rule import Refusal

if TYPE_CHECKING:  # what reports alone need is imported when they are asked for
    from graphq.ir.interpret import Result
    from graphq.report.coverage import Coverage
    from graphq.report.parts import Part
    from graphq.report.profile import Profile
    from graphq.report.records import Report

Shapes: TypeAlias = tuple[tuple[int, ...], ...]

MAX_PLANS = 64
"""Plans that a model with open shapes keeps, one for each set of shapes; the oldest goes first."""

MAX_FETCHED = 8
"""Models for values to fetch that a model keeps, one for each list of names; the oldest goes first."""


class CompiledGraph:
    """A compiled graph: `model(array)` or `model(x=array)` runs it, from any number of threads at a time.

    `graph` is the graph after the passes. Where shapes are open, a plan holds for many of them (`open_shapes`);
    `graph` and reports are those of the plan that was used last. Where an input is marked constant, plans are made at
    the first call. Where shapes depend on data, each new set of shapes is planned anew. `origin` says which file the
    model was loaded from, and what of it was made anew; it is empty for a model that was compiled here.
    """

    def __init__(self, graph: Graph | Stored, options: Options) -> None:
        if isinstance(graph, Graph):
            copy = graph.copy()
            self.signature, self._read_source = Signature.of(copy), lambda: copy
        else:
            self.signature, self._read_source = graph.signature, cache(graph.source)
            self.rows_mix = graph.rows_mix
        self.options = options
        self.origin = ""
        self._constants = ConstantInputs(p.name for p in self.signature.inputs if p.property == "constant")
        self._by_shapes: dict[Shapes, Runnable] = {}
        self._building: dict[Shapes, Lock] = {}
        self._fetching: dict[tuple[str, ...], CompiledGraph] = {}
        self._lock = Lock()
        self._arenas = Arenas()
        self.names = [p.name for p in self.signature.inputs]
        self._checks = [(p.name, p.type.shape, p.dtype.numpy) for p in self.signature.inputs]
        constant = bool(self._constants.names)
        fixed = not constant and all(p.type.known for p in self.signature.inputs)
        self._fixed: Runnable | Loaded | None = None
        stored = graph.plans if isinstance(graph, Stored) else ()
        if fixed:
            self._fixed = self._loaded(stored[0]) if stored else self._build(self.source.copy)
        self.open_plans = None if fixed or constant else \
            OpenPlans(self.signature, self._read_source, options, self._arenas)
        if self.open_plans is not None:
            self.open_plans.begin(stored)

    @property
    def source(self) -> Graph:
        """The graph as the user gave it."""
        return self._read_source()

    @lazy_property
    def rows_mix(self) -> str | None:
        """Why the results of a row of the batch may depend on the other rows; None where they cannot."""
        from graphq.model.row_wise import why_rows_mix

        return why_rows_mix(self.source)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model to a file, for `load_compiled`: graph, plans, packed weights and the kernels' object code.

        There is the whole file or what was there before. Raises GraphError where it cannot be written, or where
        `passes` are not those of PIPELINE.
        """
        from graphq.model.saved_models import save

        save(path, self.source, self.options, self.plans(), self.rows_mix)

    def _loaded(self, stored: StoredPlan) -> Loaded:
        """What runs a plan of a file."""
        def made(plan: Plan, _: Trace | None) -> Loaded:
            return Loaded(Runner(Words(plan), self._arenas, self.options.cache),
                          lambda: Planned(self.source.copy(), self.options, self.source.copy, self._arenas))

        with budget(self.options.memory):
            return cast(Loaded, stored.read(made))

    def plans(self) -> list[tuple[Plan, Trace | None]]:
        """What runs: the plan of a graph of fixed shape, or plans with open sizes."""
        if isinstance(self._fixed, Ready | Loaded):
            return [(self._fixed.plan, None)]
        return self.open_plans.plans() if self.open_plans else []

    @property
    def graph(self) -> Graph:
        """The graph after the passes."""
        return self._latest.graph

    @property
    def refusals(self) -> list[Refusal]:
        """The near misses of the passes' rewrites."""
        return self._latest.refusals

    @property
    def level(self) -> Level:
        """The highest instruction set level that kernels use."""
        return self.options.level

    @property
    def threads(self) -> int:
        """The most threads that a call uses."""
        return self.options.threads

    @property
    def _latest(self) -> Reported:
        """What was compiled last; before the first call with open shapes, what can be said without them."""
        made = list(self._by_shapes.values())
        latest = self.open_plans.latest if self.open_plans else None
        return in_full(self._fixed or latest or (made[-1] if made else self._without_shapes))

    @lazy_property
    def _without_shapes(self) -> Passed:
        """What the passes can do before the first call with open shapes; no run needs it."""
        with budget(self.options.memory):
            return Passed(self.source.copy(), self.options, self.source.copy)

    @property
    def inputs(self) -> dict[str, TensorType]:
        """The types of the inputs by name, in the order in which a call takes them."""
        return {p.name: p.type for p in self.signature.inputs}

    @property
    def outputs(self) -> dict[str, TensorType]:
        """The types of the outputs by name, in their order."""
        return dict(self.signature.outputs)

    def __repr__(self) -> str:
        inputs, outputs = (", ".join(f"{name}: {type}" for name, type in types.items())
                           for types in (self.inputs, self.outputs))
        return (f"<compiled graph {self.signature.name}: {inputs} -> {outputs}; ISA level {self.level.name}, "
                f"{counted(self.threads, 'thread')}>")

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled as the graph and the options: kernels are compiled, or loaded from the cache, where it arrives."""
        return CompiledGraph, (self.source, self.options)

    @overload
    def __call__(self, /, *inputs: Any, out: np.ndarray | None = None, fetch: str, **named: Any) -> np.ndarray: ...
    @overload
    def __call__(self, /, *inputs: Any, out: np.ndarray | Mapping[str, np.ndarray] | None = None, fetch: None = None,
                 **named: Any) -> Result: ...  # type: ignore[type-var]
    @overload
    def __call__(self, /, *inputs: Any, out: Mapping[str, np.ndarray] | None = None, fetch: Sequence[str],
                 **named: Any) -> dict[str, np.ndarray]: ...

    def __call__(self, /, *inputs: Any, out: np.ndarray | Mapping[str, np.ndarray] | None = None,
                 fetch: str | Sequence[str] | None = None, **named: Any) -> Any:
        """Run on arrays in the inputs' order, or by name; the output, or a dict of several by name.

        Names are keywords, or keys of one mapping (in which inputs named "out" or "fetch" must be). Inputs must have
        the dtype and shape that the graph states; those that are not C-contiguous are copied. `out` takes the results
        instead of new arrays: C-contiguous, writeable, of the outputs' types, sharing no memory with inputs. Inputs
        marked constant keep the array of the first call.

        `fetch`, names of any values of the graph, returns these instead: a dict by name, or one array for one name
        that is no list. They come from a model of their own, `compile(..., outputs=fetch)`, which the first call with
        these names compiles, and which is kept: so this model stays as it is, fused across them.

        Raises InputError, naming the input, the rule and the values, and GraphError for a name that no value has,
        before anything runs.
        """
        if fetch is not None:
            return self._fetch(fetch, out, inputs, named)
        given = named_inputs(self.signature, inputs, named) if inputs else named
        if self._fixed is not None:
            made, checked = self._fixed, self._fast_check(given)
        else:
            by_name = check_inputs(self.signature, given)
            made = self._at_shapes(by_name)
            checked = [by_name[n] for n in self.names if n not in self._constants.names]
        outs = made.run(checked, None if out is None else self._check_out(made.output_types, out, checked))
        return outs[0] if len(outs) == 1 else dict(zip(self.signature.outputs, outs, strict=True))

    @overload
    def explain(self, name: str | None = None, *, kernels: bool = False, full: bool = False,
                profile: Profile | None = None, format: Literal["text"] = "text") -> str: ...
    @overload
    def explain(self, name: str | None = None, *, kernels: bool = False, full: bool = False,
                profile: Profile | None = None, format: Literal["json"]) -> dict[str, Any]: ...

    def explain(self, name: str | None = None, *, kernels: bool = False, full: bool = False,
                profile: Profile | None = None, format: Literal["text", "json"] = "text") -> str | dict[str, Any]:
        """What fused into which partitions, which kernels run them, and why anything did not fuse (docs/explain.md).

        `name`: of one value alone, or the result of an ONNX node, in which partition it is, or why in none. `full`: all
        lines of a large model's report, and the near misses of all rewrites. `format` "json" gives it as a dict.

        `kernels`: also what each kernel does and how fast it is on this machine, beside the machine's peak: the
        decisive instructions of its assembly counted, for which the first call compiles the kernels once more, and each
        step measured by itself, which takes some 0.1 s a step. `profile`, one of this model: the causes come with their
        share of its time, the longest first (where the model runs in one plan).

        Raises GraphError for a name that no value has, and for another format; InputError for another model's profile.
        """
        from graphq.report.explain import about, as_data, as_text, value_text
        from graphq.report.groups import timed

        if format not in ("text", "json"):
            raise GraphError(f"format must be 'text' or 'json', got {format!r}")
        if name is not None and not isinstance(name, str):
            raise GraphError(f"explain takes the name of a value, got {name!r}")
        report = self.explanation(kernels=kernels)
        if profile is not None and not report.parts:
            report = timed(report, profile)
        value = None if name is None else about(report, name)
        if format == "json":
            return as_data(value or report)
        if value is not None:
            return value_text(value)
        text = as_text(report, full=full)
        return f"{self.origin}\n{text}" if self.origin else text

    def explanation(self, *, kernels: bool = False) -> Report:
        """What `explain` says, as data (`graphq.report.records`)."""
        report = self._latest.explanation(kernels=kernels)
        return report if self.open_plans is None else replace(report, classes=self.open_plans.classes())

    def parts(self) -> list[Part]:
        """What `report` shows: the graph before and after the passes; of a model in stages those of its parts."""
        return self._latest.parts()

    def report(self, path: str | os.PathLike[str], /, *inputs: Any, profile: Profile | None = None,
               title: str | None = None, **named: Any) -> None:
        """Write an HTML page with pictures of the graph before and after the passes, and what is known of each node.

        With `inputs`, as a call takes them, or a `profile` of this model, the page has times and a timeline. It has all
        in it, and needs no network. Pictures need Graphviz (the extra `report`); without it there are tables.
        `title` is the graph's name where there is none. (Inputs named "profile" or "title" go into the mapping.)
        Raises InputError as a call does, OSError where it cannot write.
        """
        from graphq.report.page import page

        if profile is None and (inputs or named):
            profile = self.profile(*inputs, **named)
        text = page(title or self.source.name, self.parts(), profile)
        path_of(path).write_bytes(text.encode("utf-8", "replace"))

    def _repr_html_(self) -> str:
        """A picture of the partitions, for notebooks."""
        from graphq.report.notebook import graph_html

        return graph_html(self.graph, repr(self), bodies=False)

    def profile(self, /, *inputs: Any, runs: int = 20, peaks: bool = False, **named: Any) -> Profile:
        """How long each step takes, and which thread ran which piece of it: medians of `runs` runs on these arrays.

        They run as calls do, after a first one, or as many as it takes until all threads take part. Printed, the result
        is a table; `steps` are the numbers, and `to_chrome_trace(path)` writes the run of median length as a timeline
        for Perfetto, with one track a thread. `peaks`: also which part of the machine's peak each step reaches, for
        which kernels are compiled once more and the peaks are measured. Of a graph in stages the steps are those of all
        parts after one another. (An input named "runs" or "peaks" goes into the mapping.) Raises InputError as a call
        does, and for wrong options.
        """
        if not isinstance(runs, int) or isinstance(runs, bool) or runs < 1:
            raise InputError(f"runs must be a positive int, got {runs!r}")
        if not isinstance(peaks, bool):
            raise InputError(f"peaks must be True or False, got {peaks!r}")
        by_name = check_inputs(self.signature, named_inputs(self.signature, inputs, named))
        return in_full(self._fixed or self._at_shapes(by_name)).profile(by_name, runs, peaks=peaks)

    def coverage(self) -> Coverage:
        """Which share of the multiply-accumulates integer partitions do, in all and by operation.

        Where shapes are open, of the latest new set of them; raises CompileError before the first call.
        """
        return self._latest.coverage()

    def formula(self, /, *inputs: Any, **named: Any) -> Result:  # type: ignore[type-var]
        """The same numbers in NumPy: each partition by its written formula, all else by its reference.

        Equal bit for bit to calling the model, on every CPU and thread count.
        """
        checked = check_inputs(self.signature, named_inputs(self.signature, inputs, named))
        with budget(self.options.memory):
            if self._fixed is not None:
                made: Reported = in_full(self._fixed)
            else:
                again = self._specialised(checked, self._constants.of(checked))
                graph = again()
                made = Passed(graph, self.options, again) if in_one_plan(graph) else StagedRunner(graph, self._part)
            return pack_outputs(self.signature.outputs, made.formula(checked))

    def _fetch(self, fetch: str | Sequence[str], out: np.ndarray | Mapping[str, np.ndarray] | None,
               inputs: Sequence[Any], named: Mapping[str, Any]) -> Any:
        names = check_names((fetch,) if isinstance(fetch, str) else fetch, "fetch")
        with self._lock.hold:
            model = self._fetching.get(names)
            if model is None:
                model = self._part(returning(self.source, names))
                model._constants = self._constants
                for oldest in list(self._fetching)[:1 - MAX_FETCHED]:
                    self._fetching.pop(oldest, None)
                self._fetching[names] = model
        result = model(*inputs, out=out, **named)
        return {names[0]: result} if len(names) == 1 and not isinstance(fetch, str) else result

    def _fast_check(self, given: Mapping[str, Any]) -> list[np.ndarray]:
        """The arrays in order of the inputs; the usual good case without the cost of messages."""
        if len(given) == len(self._checks):
            out = []
            for name, shape, dtype in self._checks:
                x = given.get(name)
                if not _is_plain(x, shape, dtype):
                    break
                out.append(x)
            else:
                return out
        checked = check_inputs(self.signature, given)
        return [checked[n] for n in self.names]

    def _at_shapes(self, arrays: Mapping[str, np.ndarray]) -> Runnable | Loaded:
        """The plan for these shapes. Callers with other shapes do not wait while one is made.

        A signal's handler may come in the midst, and make the plan of the same shapes.
        """
        key = tuple([arrays[n].shape for n in self.names])
        if self.open_plans is not None and (at_shapes := self.open_plans.at(key)) is not None:
            return at_shapes
        made = self._by_shapes.get(key) or self._planned(key, arrays)
        self._constants.of(arrays)  # those of the plan: it is in `_by_shapes` once they are kept
        return made

    def _planned(self, key: Shapes, arrays: Mapping[str, np.ndarray]) -> Runnable:
        """A new plan for these shapes, or that of a caller who was faster."""
        with self._building.setdefault(key, Lock()).hold:
            made = self._by_shapes.get(key)
            if made is None:
                try:
                    constants = self._constants.of(arrays)
                    made = self._build(self._specialised(arrays, constants))
                    self._constants.keep(constants)
                    for oldest in list(self._by_shapes)[:1 - MAX_PLANS]:
                        self._by_shapes.pop(oldest, None)
                    self._by_shapes[key] = made
                finally:
                    self._building.pop(key, None)
        return made

    def _specialised(self, arrays: Mapping[str, np.ndarray],
                     constants: Mapping[str, np.ndarray]) -> Callable[[], Graph]:
        """A function that gives the user's graph with the types of these arrays, and constants in place of inputs."""
        types = {p.name: TensorType(p.dtype, arrays[p.name].shape) for p in self.signature.inputs}
        source = self._read_source
        return lambda: source().specialise(types, constants)

    def _part(self, graph: Graph) -> CompiledGraph:
        """A part of the graph, compiled with the same options."""
        return CompiledGraph(graph, self.options)

    def _build(self, source: Callable[[], Graph]) -> Runnable:
        """What runs the graph that `source` gives: one plan, or stages.

        Raises CompileError when it would take too much memory, or for stages where `strict` refuses them.
        """
        try:
            with budget(self.options.memory):
                graph = source()
                if in_one_plan(graph):
                    return Planned(graph, self.options, source, self._arenas)
                if self.options.strict:
                    _refuse_stages(graph)
                return StagedRunner(graph, self._part)
        except MemoryError as e:
            raise CompileError(f"not enough memory: {e}") from None

    def _check_out(self, types: Sequence[TensorType], out: np.ndarray | Mapping[str, np.ndarray],
                   inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        names = list(self.signature.outputs)
        if not isinstance(out, Mapping):
            if len(names) != 1:
                raise InputError(f"out must be a mapping of the outputs {names} to arrays")
            out = {names[0]: out}
        if set(out) != set(names):
            raise InputError(f"out must hold the outputs {names}, got {list(out)}")
        for name, type in zip(names, types, strict=True):
            x = out[name]
            if _is_plain(x, type.shape, type.dtype.numpy) and x.flags.writeable:
                continue
            if not isinstance(x, np.ndarray):
                raise InputError(f"out '{name}' must be an array, got {x!r}")
            check_array(name, type, x, word="out")
            if not (x.flags.c_contiguous and x.flags.writeable and x.flags.aligned):
                raise InputError(f"out '{name}' must be C-contiguous, aligned and writeable")
        arrays = [out[n] for n in names]
        for k, x in enumerate(arrays):
            if any(np.may_share_memory(x, y) for y in (*inputs, *arrays[:k])):
                raise InputError(f"out '{names[k]}' shares memory with an input or another output")
        return arrays


def _refuse_stages(graph: Graph) -> NoReturn:
    """Raise CompileError that names the first operation for which a graph runs in stages."""
    node = next(n for n in graph.nodes if n.op.name in CONTROL or not all(v.type.known for v in n.outputs))
    why = "bodies run as stages" if node.op.name in CONTROL else "shapes depend on data"
    raise CompileError(f"strict: {why}: {graph.describe(node)}")


def _is_plain(x: Any, shape: Any, dtype: np.dtype) -> TypeGuard[np.ndarray]:
    """Whether `x` is an array that kernels take as it is, found without the cost of messages."""
    return type(x) is np.ndarray and x.shape == shape and x.dtype == dtype and x.flags.c_contiguous and x.flags.aligned

"""CompiledGraph: the result of `compile`, a model that users call."""
from __future__ import annotations

import os
from bisect import bisect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal, TypeGuard, overload

import numpy as np

from graphq.base.arrays import Arrays
from graphq.base.budget import budget
from graphq.base.locks import Lock, lazy_property
from graphq.base.paths import path_of
from graphq.errors import GraphError, InputError
from graphq.ir import Graph, TensorType, check_names, counted, returning
from graphq.ir.interpret import check_array, check_inputs, named_inputs, pack_outputs
from graphq.ir.tensor_type import shapes_agree
from graphq.kernels.jit import address_of
from graphq.kernels.target.level import Level
from graphq.model.open_plans import OpenPlans
from graphq.model.open_shapes import SIZE, has_integers, signature_of
from graphq.model.plans import Options, Plans

if TYPE_CHECKING:  # reports import these modules when they run
    from graphq.ir.interpret import Result
    from graphq.model.saved_models import Saved
    from graphq.model.staged import Staged, WithSymbols
    from graphq.plan.runtime import Runner
    from graphq.report.coverage import Coverage
    from graphq.report.profile import Profile
    from graphq.report.records import ModelPart, Report
    from graphq.rewrite.rule import Refusal

MAX_FETCHED = 8
"""The most models that a model keeps for `fetch`, one for each list of names. The oldest model is dropped first."""


class CompiledGraph:
    """A compiled graph: `model(array)` or `model(x=array)` runs it; any number of threads may call at the same time.

    If shapes are open, a plan holds for many shapes; `graph` and reports then show the plan that was used last. If an
    input is marked constant, plans are made at the first call. If shapes depend on data, each new set of shapes gets a
    plan of its own. `origin` names the file that the model was loaded from, and the reason if it was compiled again; it
    is empty for a model that was compiled here. `arrays` has the weights of other models; equal weights are shared.
    `symbols` is explained in `Plans`.
    """

    def __init__(self, graph: Graph | Saved, options: Options, arrays: Arrays | None = None,
                 symbols: WithSymbols | None = None) -> None:
        if isinstance(graph, Graph):
            copy = graph.copy()
            self.signature, read_source, unread = signature_of(copy), lambda: copy, []
        else:
            self.signature, read_source = graph.signature, cache(lambda: graph.source)
            unread = graph.plans(options.threads)
        self.options = options
        self.origin = ""
        self.names = [p.name for p in self.signature.inputs]
        self._checks = [(p.name, p.type.shape, p.type.known, p.dtype.numpy) for p in self.signature.inputs]
        self._fetching: dict[tuple[str, ...], CompiledGraph] = {}
        self._lock = Lock()
        self._arrays = Arrays() if arrays is None else arrays
        # A partial, because a bound method would keep the model alive after `del model`.
        self._part = partial(CompiledGraph, options=options, arrays=self._arrays)
        fixed = all(p.type.known and p.property not in (SIZE, "constant") for p in self.signature.inputs)
        kind = Plans if fixed else OpenPlans
        self.plans = kind(self.signature, read_source, options, unread, self._part, self._arrays, symbols)
        if not isinstance(graph, Graph):
            graph.tell(self.plans)
        self._fixed = self.plans.fixed
        self._undecided = has_integers(self.signature)

    @property
    def source(self) -> Graph:
        """The graph as the user gave it."""
        return self.plans.source

    @property
    def rows_mix(self) -> str | None:
        """Why results for one row of the batch may depend on other rows; None if they cannot."""
        return self.plans.rows_mix

    @property
    def padding_mixes(self) -> str | None:
        """Why results for a row may depend on how far it is padded at its end; None if not (docs/numbers.md)."""
        return self.plans.padding.mixes

    @property
    def padding_zeros(self) -> tuple[str, ...]:
        """The padded inputs that need zeros behind the end of a row; the others can have anything there."""
        return self.plans.padding.zeros

    @lazy_property
    def fingerprint(self) -> str:
        """A digest of all that decides the outputs, as 32 hexadecimal digits (docs/numbers.md).

        It covers the graph, its constants, options that change numbers, and the version of graphq's numbers. Models
        with equal fingerprints give equal outputs for equal inputs on every machine, at every level and with any number
        of threads, except for steps that run in NumPy. Raises GraphError for passes and operations that are not
        graphq's.
        """
        from graphq.model.fingerprint import fingerprint

        return fingerprint(self.source, self.options.pipeline)

    def save(self, path: str | os.PathLike[str], targets: Sequence[str] | None = None) -> None:
        """Write the model to a file, for `load_compiled`: graph, plans, packed weights and the kernels' object code.

        By default the plans and the code are for this kind of processor. With `targets`, the names of ISA levels or
        "all", the file has plans and code for each of them, and runs on all processors that have such a level. This
        machine need not have it; each target is compiled in a process of its own.

        An existing file is replaced as a whole, or not at all. Raises GraphError if the file cannot be written, or if a
        pass in the option `passes` has no name in files (`passes.pipeline.names_of`). With targets, raises KernelError
        for an unknown name, CompileError if a target cannot be compiled.
        """
        if targets is None:
            from graphq.model.saved_models import save

            save(path, self.plans)
        else:
            from graphq.model.targets import save_for

            save_for(path, self.plans, targets)

    @property
    def graph(self) -> Graph:
        """The graph after the passes."""
        return self.plans.latest.graph

    @property
    def refusals(self) -> list[Refusal]:
        """The rewrites that nearly matched, each with the reason why it did not apply."""
        return self.plans.latest.refusals

    @property
    def level(self) -> Level:
        """The highest instruction set level that kernels use."""
        return self.options.level

    @property
    def threads(self) -> int:
        """The most threads that a call uses."""
        return self.options.threads

    @property
    def inputs(self) -> dict[str, TensorType]:
        """The types of the inputs by name, in the order of a call's arguments."""
        return {p.name: p.type for p in self.signature.inputs}

    @property
    def outputs(self) -> dict[str, TensorType]:
        """The types of the outputs by name, in order."""
        return dict(self.signature.outputs)

    def __repr__(self) -> str:
        inputs, outputs = (", ".join(f"{name}: {type}" for name, type in types.items())
                           for types in (self.inputs, self.outputs))
        return (f"<compiled graph {self.signature.name}: {inputs} -> {outputs}; ISA level {self.level.name}, "
                f"{counted(self.threads, 'thread')}>")

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the graph and the options. Unpickling compiles the graph again, or loads kernels from the cache."""
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
        """Run on arrays in the inputs' order, or by name. Returns the output, or a dict of several outputs by name.

        Names are given as keywords, or as the keys of one mapping. (Inputs named "out" or "fetch" need the mapping.)
        Inputs must have the dtype and shape that the graph states; arrays that are not C-contiguous are copied. Inputs
        marked constant must have the same numbers in each call.

        `out` has arrays for the results: C-contiguous, writeable, and of the outputs' types. The arrays must not share
        memory with inputs. The KV caches of cached_attention are an exception: the past and the new cache may be the
        same array if their shapes are equal. Then only the new rows are written, and the rows after them keep their
        values.

        `fetch` names values of the graph to return instead of the outputs: a single name for an array, or a list of
        names for a dict by name. A separate model, `compile(..., outputs=fetch)`, computes these values, because
        returning them from this model would change its fusions. The first call with these names compiles the separate
        model and keeps it.

        Before any kernel runs, raises InputError for wrong arrays, and GraphError for a name that no value has.
        """
        if fetch is not None:
            return self._fetch(fetch, out, inputs, named)
        given = named_inputs(self.signature, inputs, named) if inputs else named
        run, checked = self._prepared(self._fast_check(given))
        outs = run(checked, None if out is None else self._check_out(run, out, checked))
        return outs[0] if len(outs) == 1 else dict(zip(self.signature.outputs, outs, strict=True))

    def bind(self, /, *inputs: Any, out: np.ndarray | Mapping[str, np.ndarray], **named: Any) -> Callable[[], object]:
        """Check the arrays of a call once. Returns a function that runs the model on these arrays and writes `out`.

        Each call of the function reads the numbers that the inputs then have. It saves the time of the checks, about
        20 us, for example in a loop that decodes tokens with caches in place. Arguments and errors are as in a call,
        but inputs are never copied: raises InputError for an input that is not a C-contiguous array of the graph's
        dtype, and for an input whose elements are open sizes. Inputs marked constant keep the numbers of now. Do not
        resize the arrays, and do not call the function in two threads at once: both write `out`.
        """
        given = named_inputs(self.signature, inputs, named)
        checked = self._fast_check(given)
        run, arrays = self._prepared(checked)
        for name, x, p in zip(self.names, checked, self.signature.inputs, strict=True):
            if address_of(x) != address_of(np.asarray(given[name])):
                raise InputError(f"bind: input '{name}' must be a C-contiguous, aligned array {p.type}")
            if p.property == SIZE:
                raise InputError(f"bind: shapes depend on the elements of input '{name}', so the model must be called")
        return run.bound(arrays, self._check_out(run, out, arrays))

    def _prepared(self, checked: list[np.ndarray]) -> tuple[Runner | Staged, list[np.ndarray]]:
        """What runs a call of these inputs, and the inputs without those marked constant."""
        if self._undecided:
            self._take_values(dict(zip(self.names, checked, strict=True)))
        if self._fixed is not None:
            return self._fixed, checked
        by_name = dict(zip(self.names, checked, strict=True))
        plans = self.plans  # `self.plans` is read once, because another thread may replace it
        run = plans.at(plans.shapes_of(by_name), by_name)
        return run, [x for name, x in by_name.items() if name not in plans.constants.names]

    @overload
    def explain(self, name: str | None = None, *, kernels: bool = False, full: bool = False,
                profile: Profile | None = None, format: Literal["text"] = "text") -> str: ...
    @overload
    def explain(self, name: str | None = None, *, kernels: bool = False, full: bool = False,
                profile: Profile | None = None, format: Literal["json"]) -> dict[str, Any]: ...

    def explain(self, name: str | None = None, *, kernels: bool = False, full: bool = False,
                profile: Profile | None = None, format: Literal["text", "json"] = "text") -> str | dict[str, Any]:
        """Report which operations fused, which kernels run them, and why the others did not fuse (docs/explain.md).

        `name`: report only on the value with this name, on the result of the ONNX node with this name, or on the values
        of a PyTorch module (`blocks.0`): their partitions, or why they are in none. `full`: all lines of a large
        model's report, and all rewrites that nearly matched. `format` "json" returns a dict. `full` and "json" also
        name the partitions that oneDNN Graph would make, `Graph.partitions()`.

        `kernels`: also report the work of each kernel, and its speed on this machine next to the machine's peak. The
        report counts the decisive instructions in each kernel's assembly; for the assembly, the first call compiles the
        kernels once more. Each step is measured separately, in about 0.1 s.

        `profile`: a profile of this model. If the model runs in one plan, each reason why operations did not fuse shows
        its share of the time, the largest share first.

        Raises GraphError for an unknown name or format, InputError for another model's profile.
        """
        from graphq.report.explain import about, as_data, as_text, timed, value_text
        from graphq.report.notebook import ReportText, report_html, text_html

        if format not in ("text", "json"):
            raise GraphError(f"format must be 'text' or 'json', got {format!r}")
        if name is not None and not isinstance(name, str):
            raise GraphError(f"explain takes the name of a value, got {name!r}")
        report = self.explanation(kernels=kernels, patterns=full or format == "json")
        if profile is not None and not report.parts:
            report = timed(report, profile)
        value = None if name is None else about(report, name, self.source)
        if format == "json":
            return as_data(value or report)
        if value is not None:
            return ReportText.of(text := value_text(value), lambda: text_html(text))
        text = as_text(report, full=full)
        text = f"{self.origin}\n{text}" if self.origin else text
        return ReportText.of(text, lambda: report_html(report, text))

    def explanation(self, *, kernels: bool = False, patterns: bool = True) -> Report:
        """The content of `explain` as data (`graphq.report.records`), with oneDNN Graph's partitions if `patterns`."""
        from graphq.report.survey import patterns as found

        report = self.plans.latest.explanation(kernels=kernels)
        return replace(report, classes=self.plans.classes(), patterns=found(self.source) if patterns else ())

    def parts(self) -> list[ModelPart]:
        """The parts of the model that `report` shows: one for each stage, or a single part without stages."""
        return self.plans.latest.parts()

    def report(self, path: str | os.PathLike[str], /, *inputs: Any, profile: Profile | None = None,
               title: str | None = None, **named: Any) -> None:
        """Write an HTML page with pictures of the graph before and after the passes, and the facts about each node.

        With `inputs`, given as in a call, or with a `profile` of this model, the page has times and a timeline. The
        page is one file and needs no network. Pictures need Graphviz (the extra `report`); without Graphviz the page
        has tables. `title` is the graph's name by default. (Inputs named "profile" or "title" need the mapping of names
        to arrays.) Raises InputError as a call does, and OSError if the file cannot be written.
        """
        from graphq.report.page import page

        if profile is None and (inputs or named):
            profile = self.profile(*inputs, **named)
        text = page(title or self.source.name, self.parts(), self.explanation(), profile)
        path_of(path).write_bytes(text.encode("utf-8", "replace"))

    def _repr_html_(self) -> str:
        from graphq.report.page import graph_html

        return graph_html(self.plans.latest.shown_graph, repr(self), bodies=False)

    def profile(self, /, *inputs: Any, runs: int = 20, peaks: bool = False, **named: Any) -> Profile:
        """Measure the time of each step, and record which thread ran which piece of the step.

        The times are medians of `runs` ordinary calls on these arrays, after warm-up calls until all threads take part.
        The result prints as a table. Its `steps` have the numbers, and `to_chrome_trace(path)` writes the run of median
        length as a timeline for Perfetto, with one track per thread. For a graph in stages, the result has the steps of
        all parts, one part after another.

        With `peaks`, the result also has the share of the machine's peak that each step reaches. This takes longer,
        since kernels are compiled once more and the peaks are measured. (Inputs named "runs" or "peaks" need the
        mapping of names to arrays.) Raises InputError as a call does, and for wrong options.
        """
        if not isinstance(runs, int) or isinstance(runs, bool) or runs < 1:
            raise InputError(f"runs must be a positive int, got {runs!r}")
        if not isinstance(peaks, bool):
            raise InputError(f"peaks must be True or False, got {peaks!r}")
        by_name = check_inputs(self.signature, named_inputs(self.signature, inputs, named))
        plans = self.plans  # `self.plans` is read once, because another thread may replace it
        shapes = plans.shapes_of(by_name)
        made = plans.at(shapes, by_name)
        return plans.reported(shapes, made).profile(by_name, runs, peaks=peaks)

    def coverage(self) -> Coverage:
        """The share of the multiply-accumulates that integer partitions compute: in total and by operation.

        If shapes are open, the shares are for the sizes of the last call, or else for a plan's example sizes. Raises
        CompileError if there is no plan yet.
        """
        return self.plans.latest.coverage()

    def formula(self, /, *inputs: Any, **named: Any) -> Result:  # type: ignore[type-var]
        """The outputs computed in NumPy: each partition by its formula, every other operation by its reference.

        The outputs equal the results of a call bit for bit, on every CPU and thread count.
        """
        checked = check_inputs(self.signature, named_inputs(self.signature, inputs, named))
        with budget(self.options.memory):
            return pack_outputs(self.signature.outputs, self.plans.formula(checked))

    def _fetch(self, fetch: str | Sequence[str], out: np.ndarray | Mapping[str, np.ndarray] | None,
               inputs: Sequence[Any], named: Mapping[str, Any]) -> Any:
        names = check_names((fetch,) if isinstance(fetch, str) else fetch, "fetch")
        with self._lock.hold:
            model = self._fetching.get(names)
            if model is None:
                model = self._part(returning(self.source, names))
                model.plans.constants = self.plans.constants
                for oldest in list(self._fetching)[:1 - MAX_FETCHED]:
                    self._fetching.pop(oldest, None)
                self._fetching[names] = model
        result = model(*inputs, out=out, **named)
        return {names[0]: result} if len(names) == 1 and not isinstance(fetch, str) else result

    def _fast_check(self, given: Mapping[str, Any]) -> list[np.ndarray]:
        """The arrays of a call, in order. If an array is not fit for kernels, `check_inputs` converts or refuses it."""
        if len(given) == len(self._checks):
            out = []
            for name, shape, known, dtype in self._checks:
                x = given.get(name)
                if not (_is_plain(x, dtype) and (x.shape == shape if known else shapes_agree(shape, x.shape))):
                    break
                out.append(x)
            else:
                return out
        checked = check_inputs(self.signature, given)
        return [checked[n] for n in self.names]

    def _take_values(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Replace the plans if this call shows that shapes depend on the elements of inputs (`signature_of`)."""
        with self._lock.hold:  # other calls wait, because the old plans may refuse their shapes
            if not self._undecided:
                return
            signature = signature_of(self.source, arrays)
            if not has_integers(signature):
                plans = OpenPlans(signature, self.plans.read_source, self.options, (), self._part, self._arrays,
                                  self.plans.symbols)
                plans.grown = self.plans.grown
                self.signature, self.plans, self._fixed = signature, plans, None
            self._undecided = False

    def _check_out(self, run: Runner | Staged, out: np.ndarray | Mapping[str, np.ndarray],
                   inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        names = list(self.signature.outputs)
        if not isinstance(out, Mapping):
            if len(names) != 1:
                raise InputError(f"out must be a mapping of the outputs {names} to arrays")
            out = {names[0]: out}
        if set(out) != set(names):
            raise InputError(f"out must hold the outputs {names}, got {list(out)}")
        for name, type in zip(names, run.output_types, strict=True):
            x = out[name]
            if _is_plain(x, type.dtype.numpy) and x.shape == type.shape and x.flags.writeable:
                continue
            if not isinstance(x, np.ndarray):
                raise InputError(f"out '{name}' must be an array, got {x!r}")
            check_array(name, type, x, word="out")
            if not (x.flags.c_contiguous and x.flags.writeable and x.flags.aligned):
                raise InputError(f"out '{name}' must be C-contiguous, aligned and writeable")
        arrays = [out[n] for n in names]
        for k, input in _shared(arrays, inputs):
            if input is None:
                raise InputError(f"out '{names[k]}' shares memory with an input or another output")
            x, y = arrays[k], inputs[input]
            if (input, k) not in run.in_place or address_of(x) != address_of(y) or x.shape != y.shape:
                name = [n for n in self.names if n not in self.plans.constants.names][input]
                raise InputError(f"out '{names[k]}' shares memory with input '{name}', which is not its cache, or not "
                                 "the same array")
        return arrays


def _shared(arrays: Sequence[np.ndarray], inputs: Sequence[np.ndarray]) -> Iterator[tuple[int, int | None]]:
    """Find C-contiguous arrays that share memory; yields pairs (index of an array, index of an input).

    If two of `arrays` share memory, the second element is None.
    """
    spans = sorted((address_of(x), x.nbytes, k) for k, x in enumerate(arrays) if x.nbytes)
    for (start, nbytes, k), (following, _, other) in pairwise(spans):
        if following < start + nbytes:
            yield max(k, other), None
    for number, x in enumerate(inputs):
        start = address_of(x)
        # If `arrays` do not overlap each other, only the last of them that begins before the end of x can overlap x.
        last = bisect(spans, (start + x.nbytes,)) - 1
        if x.nbytes and last >= 0 and spans[last][0] + spans[last][1] > start:
            yield spans[last][2], number


def _is_plain(x: Any, dtype: np.dtype) -> TypeGuard[np.ndarray]:
    """Whether kernels can use `x` as it is, apart from its shape: a fast check without error messages."""
    return type(x) is np.ndarray and x.dtype == dtype and x.flags.c_contiguous and x.flags.aligned

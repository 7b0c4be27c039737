"""Write a compiled model to a file (`save`), and read a compiled model from a file (`Saved`).

A file has one or more *builds*: the plans and the kernels' code of a model for one kind of CPU, and the numbers of the
file's sections that the build needs. Builds share equal sections, such as the graph and its weights.
"""
import hashlib
import json
import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache as once
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from graphq.base.arrays import Content
from graphq.base.budget import budget, collector_paused, expect
from graphq.base.locks import late_imports, lazy_property
from graphq.base.platform import TARGET
from graphq.base.programs import record as recorded_of
from graphq.base.programs import restored
from graphq.base.progress import progress
from graphq.base.sizes import parts
from graphq.dtypes import DTYPES, as_dtype
from graphq.errors import CompileError, GraphqError
from graphq.ir import Graph, GraphInput, Signature, TensorType
from graphq.kernels.jit import cache, cpu
from graphq.kernels.jit.cache import Code
from graphq.kernels.jit.modules import Module, saved
from graphq.kernels.target.isa import available
from graphq.kernels.threads.team import modules_of_team
from graphq.model.open_shapes import Places
from graphq.model.plans import Padding, Plans
from graphq.model.saved_file import Fault, File, write
from graphq.model.saved_plans import check, check_record, compact, on_threads
from graphq.model.saved_values import PlanReader, Reader, Unsaved, Writer, lookup_given, want
from graphq.plan.open_plans import OpenPlan
from graphq.plan.plan import open_numbers
from graphq.plan.runtime import NativePlan

if TYPE_CHECKING:
    from graphq.rewrite.rule import Pass

T = TypeVar("T")

log = logging.getLogger("graphq")

JSON_GROWTH = 24
"""The most bytes of memory that one byte of JSON needs when it is parsed.

The worst case is `[],[],[],...`: three bytes make a Python list and an entry of the outer list.
"""


class Written(NamedTuple):
    """The digest of a file, and its arrays and the recipes of its kernels in order, for `save_plan`."""

    digest: str
    arrays: Sequence[np.ndarray]
    recipes: Sequence[str]


def save(path: str | os.PathLike[str], of: Plans, plans: Sequence[NativePlan] | None = None, *,
         key: str | None = None, mode: int = 0o666) -> Written:
    """Write a model: its graph as the user gave it, and its `plans` with the traces of their open sizes.

    By default these are all plans, after the model got plans for more sizes (`Plans.cover`).

    `mode` has the file's permissions; the process's umask may reduce them. With a `key`, the file is for the kernel
    cache. It leaves out the kernels that all plans share, since the cache has them, and the facts about padding, which
    take time to find. In a process with a TARGET, the file also has the kernels of the level's self-test, for the CPUs
    that load it.

    Raises GraphError if the path cannot be written, or for a pass without a name in files (`passes.pipeline.names_of`).
    """
    passes, options = None, of.options
    if options.passes is not None:
        with late_imports():
            from graphq.passes import pipeline
        passes = pipeline.names_of(options.passes)
    writer = Writer()
    graph = writer.of(of.source)
    name, inputs, outputs = of.signature[:3]
    if plans is None and key is None:
        of.cover()
    made = _of_plans(writer, of.all() if plans is None else plans)
    for module in modules_of_team() if made and key is None else ():
        writer.module(module)
    if TARGET:
        with late_imports():
            from graphq.kernels.levels import plan_self_test
        for step in plan_self_test(options.level, options.cache):
            writer.of(step)
    index, sections = _contents(writer, [graph, *(x for x, _ in made)], urgent=key is None)
    digest = write(path, {"builds": [{
        "key": key, "sources": sources(), "cpu": cpu.describe(),
        "options": {"level": options.level.name, "emulated": options.level.emulated, "threads": options.threads,
                    "strict": options.strict, "cache": options.cache, "memory": options.memory,
                    "passes": passes},
        "name": name, "inputs": [writer.of((p.name, p.type, p.property)) for p in inputs],
        "outputs": [writer.of(x) for x in outputs.items()], "graph": 0,
        "rows_mix": of.rows_mix, "padding": None if key else of.padding,
        "plans": [[sizes, k] for k, (_, sizes) in enumerate(made, 1)], **index,
    }]}, sections, mode=mode)
    return Written(digest, writer.arrays, [recipe for _, recipe, *_ in index["code"]])


def merge(path: str | os.PathLike[str], files: Iterable[File]) -> None:
    """Write the builds of several files that `save` wrote into one file, with equal sections only once."""
    numbers: dict[Content, int] = {}
    builds = []
    for file in files:
        file.check()
        for build in file.index["builds"]:
            of = {k: numbers.setdefault(Content(np.frombuffer(file.section(k), np.uint8)), len(numbers))
                  for k in _needed(build)}
            builds.append({**build, "graph": of[build["graph"]],
                           **{name: [[*facts, of[k]] for *facts, k in build[name]] for name in _SECTIONS}})
    write(path, {"builds": builds}, [x.bits.data for x in numbers])


@once
def sources() -> str:
    """A digest of graphq's sources that plans and kernels depend on. Files of other sources are compiled again."""
    digest = hashlib.sha256(cache.sources().encode())
    for folder in ("base", "ops", "plan"):
        cache.add_sources(digest, Path(__file__).parents[1] / folder)
    return digest.hexdigest()


_SECTIONS = "plans", "code", "arrays"
"""The lists of a build whose entries end with the number of a section."""


def _needed(build: Mapping[str, Any]) -> list[Any]:
    """The numbers of the sections that a build needs."""
    return [*([build["graph"]] if "graph" in build else []), *(x[-1] for name in _SECTIONS for x in build[name])]


def save_plan(path: str | os.PathLike[str], plan: NativePlan, to: Written) -> None:
    """Write a plan for the model in the file `to`, without that file's arrays and kernels. `Added` reads the plan."""
    writer = Writer()
    for x in to.arrays:
        writer.array(x)
    writer.modules = {recipe: (k, None) for k, recipe in enumerate(to.recipes)}
    for text, sizes in _of_plans(writer, [plan]):
        index, sections = _contents(writer, [text], len(to.arrays))
        build = {"to": to.digest, "cpu": cpu.describe(), "plans": [[sizes, 0]], **index}
        write(path, {"builds": [build]}, sections, mode=0o600)


def _of_plans(writer: Writer, plans: Iterable[NativePlan]) -> list[tuple[list[Any], list[int]]]:
    """The JSON and the example sizes of each plan that can be saved."""
    return [(x, list(plan.sizes)) for plan in plans
            if min(plan.sizes, default=0) >= 0 and (x := _of_plan(writer, plan))]


def _contents(writer: Writer, texts: Sequence[Any], arrays: int = 0, *,
              urgent: bool = False) -> tuple[dict[str, Any], list[memoryview]]:
    """The entries of a file's index for code and arrays, and the file's sections.

    The first sections have the `texts` as JSON. The first `arrays` arrays are left out, because another file has them.
    Kernels that no run needs are compiled only on idle cores, except if `urgent`.
    """
    new = [module for _, module in writer.modules.values() if module is not None]
    codes = [(m, m.code if urgent else m.code_in_time) for m in progress(new, "kernels")]
    own = writer.arrays[arrays:]
    sections = [memoryview(json.dumps(x, separators=(",", ":")).encode()) for x in texts]
    begin, first = len(sections), len(sections) + len(codes)
    sections += [memoryview(code.object) for _, code in codes]
    sections += [np.ascontiguousarray(x).reshape(-1).view(np.uint8).data for x in own]
    return {"code": [[m.name, m.recipe, list(code.names), begin + k] for k, (m, code) in enumerate(codes)],
            "arrays": [[as_dtype(x.dtype).name, list(x.shape), first + k] for k, x in enumerate(own)]}, sections


@collector_paused()
def _of_plan(writer: Writer, made: NativePlan) -> list[Any] | None:
    """The JSON of a plan and its trace; None if JSON cannot express the plan. Loading then makes the plan again."""
    modules, plan = dict(writer.modules), compact(made.plan)
    try:
        trace = recorded_of(made.trace, parts(open_numbers(plan))) if isinstance(made, OpenPlan) else None
        return [writer.of(trace), writer.of(plan)]
    except Unsaved as e:
        log.info("a plan is not saved, because JSON cannot express a %s", e)
        writer.modules = modules
        return None


class Settings(NamedTuple):
    """The `compile` options of a saved model. `threads` is the most threads that its plans can use."""

    level: str
    emulated: bool
    threads: int
    strict: bool
    cache: bool
    memory: int | None
    passes: "tuple[Pass, ...] | None"


MOST_THREADS = 1 << 20
OF_OTHERS = Settings("", False, MOST_THREADS, False, True, None, None)
"""The settings for a file that other users can write to: the defaults of `compile`. Only the file's graph is used."""


class Saved:
    """A model in a file, whose hashes were checked. `source` reads its graph, and `plans` its plans.

    Of several builds, `index` is the build that runs here at the ISA level `isa`, else at the highest level, else the
    first build, which serves for its graph. `misfit` says why it cannot run here.

    `signature`, `tell`, `modules`, `provide` and `plans` may be used only if `misfit` is None. If `save` did not
    write the file, errors in the index raise ParseError at once, and errors in the graph, the plans or the code when
    these are read.
    """

    def __init__(self, path: str | os.PathLike[str], isa: str | None = None) -> None:
        self.file = File(path)
        if "kernels" in self.file.index:
            self.file.fail("it holds kernels alone: `graphq cache import` reads it")
        builds = self._of(list, self.file.index, "builds")
        if not builds or not all(isinstance(build, dict) for build in builds):
            self.file.fail("its index has no builds")
        self.index: dict[str, Any] = self.read(lambda: max(builds, key=lambda x: self._rank(x, isa)))
        self.file.check(self.read(lambda: _needed(self.index)))
        self.arrays: list[Any] = self._of(list, self.index, "arrays")
        """The element type, shape and section of each array."""
        self.added: list[Added] = []
        """Plans in other files. The method `plans` includes them."""
        self.settings = self._settings() if self.file.private else OF_OTHERS

    def _rank(self, build: Mapping[str, Any], isa: str | None) -> tuple[bool, bool, bool, int]:
        """Builds with a greater rank are preferred. Among equal builds `max` takes the first."""
        level = build.get("options", {}).get("level")
        names = [x.name for x in available()]
        fits = level in names and self._misfit(build) is None
        return fits, level == isa, fits and not cpu.is_target(build["cpu"]), names.index(str(level)) if fits else 0

    def _settings(self) -> Settings:
        options = self._of(dict, self.index, "options")
        names, memory = options.get("passes"), options.get("memory")
        if not (memory is None or type(memory) is int and memory > 0):
            self.file.fail(f"memory must be a positive number of bytes, got {memory!r:.40}")
        made = Settings(
            self._of(str, options, "level"), self._of(bool, options, "emulated"), self._of(int, options, "threads"),
            self._of(bool, options, "strict"), self._of(bool, options, "cache"), memory,
            None if names is None else self._passes(self._of(list, options, "passes")))
        if not 1 <= made.threads <= MOST_THREADS:
            self.file.fail(f"its model cannot have been made for {made.threads} threads")
        return made

    def _passes(self, names: list[Any]) -> "tuple[Pass, ...]":
        with late_imports():
            from graphq.passes import pipeline
        return self.read(lambda: pipeline.named(names))

    @lazy_property
    def misfit(self) -> str | None:
        """Why the file's plans and code cannot be used here, for example on another processor; None if they can."""
        problem = self._misfit(self.index)
        if problem is None and cpu.is_target(self.index["cpu"]):
            with late_imports():
                from graphq.kernels.levels import works
            self.provide()
            level = next((x for x in available() if x.name == self.settings.level), None)
            if level is None or not works(level, self.settings.cache):
                return f"this machine does not pass the self-test of ISA level {self.settings.level}"
        return problem

    def _misfit(self, build: Mapping[str, Any]) -> str | None:
        if not self.file.private:
            return "others than this user can write to the file, so its code does not run"
        if build.get("sources") != sources():
            return "it was saved by another version of graphq"
        described = self._of(str, build, "cpu")
        if cpu.fits(described):
            return None
        if not cpu.is_target(described):
            return "it was saved on another kind of processor"
        levels = [str(x["options"]["level"]) for x in self.file.index["builds"]]
        return f"this processor lacks what {' or '.join(levels)} needs"

    @property
    def source(self) -> Graph:
        """The graph as the user gave it: a new object at each read, with constants in the file's memory."""
        reader = Reader(self.array) if self.file.private else Reader(self.array, lookup_given)
        with budget(self.settings.memory):
            graph = self.read(lambda: reader.of(self._json(self.index.get("graph"))))
        if not isinstance(graph, Graph) or not graph.outputs:
            self.file.fail("no graph")
        return graph

    @lazy_property
    def signature(self) -> Signature:
        """The graph's signature, read from the index."""
        inputs, outputs = self._types("inputs", 3), self._types("outputs", 2)
        name = self._of(str, self.index, "name")
        return Signature(name, tuple(GraphInput(*x) for x in inputs), dict(outputs))

    def tell(self, plans: Plans) -> None:
        """Set the facts about rows and padding that the file has."""
        def padding(mixes: Any, zeros: Any, axes: Any) -> Padding:
            want(all(type(x) is str for x in (*zeros, *(name for name, _ in axes), mixes or "")), "facts about padding")
            return Padding(mixes, tuple(zeros), tuple((name, int(axis)) for name, axis in axes))

        plans.rows_mix = self.index.get("rows_mix") and self._of(str, self.index, "rows_mix")
        if self.index.get("padding") is not None:
            plans.padding = self.read(lambda: padding(*self._of(list, self.index, "padding")))

    @lazy_property
    def modules(self) -> list[Module]:
        """The kernel modules of the file. Their code is not checked."""
        return self._modules()

    def _modules(self) -> list[Module]:
        def module(kind: Any, recipe: Any, names: Any, section: Any) -> Module:
            want(type(kind) is str and type(recipe) is str and type(names) is list
                 and all(type(n) is str for n in names), "a module of kernels")
            return saved(kind, recipe, self._of(str, self.index, "cpu"), Code(self.file.section(section), tuple(names)))

        return self.read(lambda: [module(*x) for x in self._of(list, self.index, "code")])

    def provide(self) -> None:
        """Let new plans use the file's code for kernels with equal keys."""
        cache.provide({m.recipe: m.code for m in self.modules})

    def plans(self, threads: int) -> list[tuple[tuple[int, ...], Callable[[], NativePlan]]]:
        """The example sizes of each plan, and a function that reads the plan for `threads` threads.

        `threads` must not exceed the number in the settings.
        """
        count = len(Places(self.signature).all)

        def unread(sizes: Any, section: Any) -> tuple[tuple[int, ...], Callable[[], NativePlan]]:
            want(type(sizes) is list and len(sizes) == count and all(type(n) is int and n >= 0 for n in sizes), "sizes")
            return tuple(sizes), lambda: self.read(lambda: self._plan(section, tuple(sizes), threads))

        found = self.read(lambda: [unread(*x) for x in self._of(list, self.index, "plans")])
        return list(dict([*found, *(plan for added in self.added for plan in added.plans(threads))]).items())

    @collector_paused()
    def _plan(self, section: Any, sizes: tuple[int, ...], threads: int) -> NativePlan:
        recorded, plan = self._json(section)
        trace = None
        if sizes:
            record = PlanReader(self.array, self.modules).of(recorded)
            check_record(record, sizes)
            trace = restored(record)
        made = PlanReader(self.array, self.modules, trace).of(plan)
        check(made, self.signature)
        if (made.threads, made.level) != (self.settings.threads, self.settings.level):
            self.file.fail(f"a plan for {made.threads} threads and ISA level {made.level!r:.40}")
        made = on_threads(made, threads)
        if trace is None:
            return NativePlan(made)
        out = OpenPlan(made, trace)
        out.prepared = True
        _ = out.program  # computed within `read`, which turns errors in the data into ParseErrors
        return out

    def _json(self, section: Any) -> Any:
        text = self.file.section(section)
        expect(JSON_GROWTH * text.nbytes, "the JSON of the file")
        return json.loads(bytes(text))

    def read(self, make: Callable[[], T]) -> T:
        """Call `make` to read data of the file. Turn every error in the data into a ParseError."""
        try:
            return make()
        except (CompileError, Fault):  # too little memory does not mean that the file is damaged
            raise
        except GraphqError as e:
            self.file.fail(f"{e!s:.500}")
        except Exception as e:
            self.file.fail(f"not as graphq writes it: {type(e).__name__}: {e!s:.200}")

    def _of(self, kind: type[T], index: Mapping[str, Any], name: str) -> T:
        value = index.get(name)
        if type(value) is not kind:
            self.file.fail(f"its index has no {name} of type {kind.__name__}, but {value!r:.40}")
        return value

    def _types(self, name: str, fields: int) -> list[Any]:
        """Read entries of the index: tuples of `fields` elements (a name, a type, further strings)."""
        items = self._of(list, self.index, name)
        items = self.read(lambda: [Reader(self.array).of(x) for x in items])
        for x in items:
            if not (isinstance(x, tuple) and len(x) == fields and isinstance(x[1], TensorType)
                    and all(isinstance(y, str) for y in (x[0], *x[2:]))):
                self.file.fail(f"its index has no {name}")
        return items

    def array(self, number: Any) -> np.ndarray:
        """The array at this index, as a view of the file's memory."""
        if type(number) is not int or not 0 <= number < len(self.arrays):
            self.file.fail(f"there is no array {number!r:.40}")
        dtype, shape, section = self.arrays[number]
        data = self.file.section(section)
        kind = DTYPES[dtype].numpy
        if any(type(n) is not int or n < 0 for n in shape) or prod(shape) * kind.itemsize != data.nbytes:
            self.file.fail(f"array {number}: {dtype}{shape} does not take {data.nbytes} bytes")
        return np.frombuffer(data, np.uint8).view(kind).reshape(shape)


class Added(Saved):
    """A plan in a file of its own, for the model `to` in another file. The plan uses the model's arrays and code.

    Raises ParseError if `save_plan` did not write the file, or wrote it for a model other than `to`.
    """

    def __init__(self, path: str | os.PathLike[str], to: Saved) -> None:
        self._to = to
        super().__init__(path)
        if not self.file.private or self.index.get("to") != to.file.digest:
            self.file.fail("it belongs to another model")

    def _settings(self) -> Settings:
        return self._to.settings

    @lazy_property
    def signature(self) -> Signature:
        """The signature of the model."""
        return self._to.signature

    @lazy_property
    def modules(self) -> list[Module]:
        """The kernel modules of both files."""
        return [*self._to.modules, *super()._modules()]

    def array(self, number: Any) -> np.ndarray:
        """The array at this index; the arrays of the model's file come first."""
        if type(number) is int and number >= len(self._to.arrays):
            return super().array(number - len(self._to.arrays))
        return self._to.array(number)

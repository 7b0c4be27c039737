"""Graphs whose inputs have open dimensions: compiled once, and run at any shapes.

Passes, lowering and packing of weights see a `Size` in place of each open dimension (`base.sizes`). What comes of
that is a `Variant`, a plan for all sizes for which the trace's guards hold; at one set of shapes only numbers, tables
and an arena are filled in (`_AtSizes`). Sizes of another class (`size_class`), and those for which a guard fails, get a
variant of their own when they are first met. Variants share the arrays that are equal, weights above all, and all
shapes share arenas.
"""
from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, TypeVar, cast

import numpy as np

from graphq.base.budget import budget
from graphq.base.guards import why_not
from graphq.base.locks import Lock, importing, lazy_property
from graphq.base.sizes import Program, Trace, parts
from graphq.errors import CompileError, GraphError, GraphqError
from graphq.ir import Graph, TensorType
from graphq.ir.names import counted
from graphq.ir.signature import Signature
from graphq.model.planned import Loaded, Options, Passed, Ready, StoredPlan
from graphq.plan.arena import Arenas
from graphq.plan.plan import Plan, open_numbers
from graphq.plan.runtime import Runner, Words
from graphq.plan.stages import in_one_plan

if TYPE_CHECKING:  # what reports alone need is imported when they are asked for
    from graphq.report.coverage import Coverage

log = logging.getLogger("graphq")

K = TypeVar("K")
V = TypeVar("V")
Sizes: TypeAlias = tuple[int, ...]

MAX_SHAPES = 64
"""Sets of shapes that are kept ready to run; that of the least recent use goes first."""
MAX_CLASSES, MAX_VARIANTS = 32, 8
"""Classes of sizes whose variants are kept, and variants of a class, likewise."""

_EXAMPLES = {0: (0,), 1: (1,), 2: (12, 10, 14, 6, 9), 3: (52, 76, 92, 116, 44), 4: (352, 544, 416, 608, 736)}
"""Sizes that stand for those of a class: few that models have, so that none equals another number by chance. Those of
images are multiples of 32, as networks that halve an image five times want them."""


def size_class(size: int) -> int:
    """The class of a size: 0 and 1 have their own, class 2 are sizes up to 15, 3 up to 127, and so on by factors of 8.

    Plans of one class differ little in speed: tiles and shares of threads are chosen for one size of it.
    """
    return size if size < 2 else 2 + (size.bit_length() - 2) // 3


def range_of(of: int) -> str:
    """The sizes of a class, as text."""
    return str(of) if of < 2 else f"{2 << 3 * (of - 2)} to {(2 << 3 * (of - 1)) - 1}"


def examples(sizes: Sequence[int]) -> Sizes:
    """A size of the same class for each of these; equal ones for equal ones, others for others where there are any."""
    chosen: dict[int, int] = {}
    for size in sizes:
        of = size_class(size)
        known = _EXAMPLES.get(of) or tuple(n * 8 ** (of - 4) for n in _EXAMPLES[4])
        free = [n for n in known if n not in chosen.values()]
        if size not in chosen:
            chosen[size] = free[0] if free else known[0] if of < 2 else size
    return tuple(chosen[size] for size in sizes)


class Dimension(NamedTuple):
    """An open dimension of an input; `name` is that of the file, or says which it is."""

    input: str
    axis: int
    name: str


def open_dimensions(graph: Graph) -> list[Dimension]:
    """The open dimensions of all inputs, in order; names come from `graph.meta`, where a file had any."""
    names = graph.meta.get("dimensions", {})
    return [Dimension(str(v.name), k, names.get((v.name, k)) or f"{v.name}.{k}")
            for v in graph.inputs for k, d in enumerate(v.shape or ()) if d is None]


class _Shared:
    """Arrays of variants: one for all that are equal. Those of the first variant are not compared with one another."""

    def __init__(self) -> None:
        self._first: list[np.ndarray] | None = None
        self._known: dict[tuple[object, ...], list[np.ndarray]] = {}

    def of(self, arrays: list[np.ndarray]) -> list[np.ndarray]:
        """Equal arrays in place of a variant's, where a variant before had such; it may drop its own."""
        if self._first is None:
            self._first = arrays
            return arrays
        made = [self._one_for(x) for x in (*self._first, *arrays)][len(self._first):]
        self._first = []
        return made

    def _one_for(self, array: np.ndarray) -> np.ndarray:
        """The first array with the same bits, which may be this one."""
        data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        sample = data[::max(1, data.size // 64)].tobytes()
        alike = self._known.setdefault((array.dtype.str, array.shape, sample), [])
        for known in alike:
            if known is array or np.array_equal(np.ascontiguousarray(known).reshape(-1).view(np.uint8), data):
                return known
        alike.append(array)
        return array


class Variant(Passed):
    """A graph of open sizes after the passes, and its plan. Raises as `Planned` does.

    `because` says what did not hold of the variants of its class that were there before.
    """

    plan: Plan
    because = ""

    def __init__(self, graph: Graph, options: Options, trace: Trace, shared: _Shared,
                 again: Callable[[Sizes], Graph]) -> None:
        super().__init__(graph, options, lambda: again(tuple(self.sizes.values())))
        self.trace, self.again_at = trace, again
        with importing.hold:
            from graphq.model.planning import build_plan
        plan = build_plan(graph, options.level, options.threads, options.cache)
        trace.sealed = True
        buffers, constants = list(plan.buffers), graph.nodes_of(["constant"])
        held = {k: b.data for k, b in enumerate(buffers) if isinstance(b.data, np.ndarray)}
        arrays = iter(shared.of([*held.values(), *(n.attrs["value"] for n in constants)]))
        for k in held:
            buffers[k] = replace(buffers[k], data=next(arrays))
        for node in constants:
            node.attrs = {**node.attrs, "value": next(arrays)}
        self.words = Words(plan._replace(buffers=tuple(buffers)))
        self.plan = self.words.plan
        self.program = Program(trace, parts(open_numbers(plan)))
        self.sizes = trace.assumed
        self.check_references()

    def at(self, sizes: Sizes, arenas: Arenas) -> AtSizes | None:
        """What runs at these sizes; None where a guard fails."""
        values = self.program.at(sizes)
        return None if values is None else _AtSizes(self, sizes, Runner(self.words, arenas, self.options.cache, values))

    def why_not(self, sizes: Sizes, names: Sequence[str]) -> str:
        """What does not hold at these sizes, of dimensions of these names."""
        return why_not(self.program, self.trace, sizes, names)

    def coverage(self) -> Coverage:
        """Which share of the graph's multiply-accumulates integer partitions do, at the sizes that are assumed."""
        return self.coverage_at(tuple(self.sizes.values()))

    def coverage_at(self, sizes: Sizes) -> Coverage:
        """The same at other sizes, for which the variant holds."""
        from graphq.report.coverage import coverage

        found = coverage(self.graph)
        counts = found.integer_by_op, found.total_by_op
        values = Program(self.trace, parts(counts)).at(sizes)
        assert values is not None
        integer, total = values.of(counts)
        return replace(found, integer_by_op=integer, total_by_op=total)


class StoredVariant:
    """A variant whose plan a file has, read when it is needed; `anew` makes the variant, which reports ask for."""

    because = ""

    def __init__(self, stored: StoredPlan, options: Options, anew: Callable[[Sizes], Variant]) -> None:
        self.sizes, self.options = stored.sizes or (), options
        self._stored, self._anew = stored, anew

    @lazy_property
    def _read(self) -> tuple[Words, Program, Trace]:
        def made(plan: Plan, trace: Trace | None) -> tuple[Words, Program, Trace]:
            assert trace is not None
            return Words(plan), Program(trace, parts(open_numbers(plan))), trace

        return cast(tuple[Words, Program, Trace], self._stored.read(made))

    @property
    def plan(self) -> Plan:
        """The plan, with open sizes."""
        return self._read[0].plan

    @property
    def trace(self) -> Trace:
        """The trace of its sizes."""
        return self._read[2]

    @lazy_property
    def variant(self) -> Variant:
        """The same, made anew."""
        return self._anew(self.sizes)

    def at(self, sizes: Sizes, arenas: Arenas) -> AtSizes | None:
        """What runs at these sizes; None where a guard fails."""
        words, program, _ = self._read
        values = program.at(sizes)
        if values is None:
            return None
        return Loaded(Runner(words, arenas, self.options.cache, values), lambda: self._report(sizes, arenas))

    def why_not(self, sizes: Sizes, names: Sequence[str]) -> str:
        """What does not hold at these sizes, of dimensions of these names."""
        return why_not(self._read[1], self.trace, sizes, names)

    def _report(self, sizes: Sizes, arenas: Arenas) -> Ready:
        made = self.variant.at(sizes, arenas)
        assert isinstance(made, Ready)
        return made


class _AtSizes(Ready):
    """A variant at one set of sizes: it runs, and reports as a graph of fixed shape does."""

    def __init__(self, variant: Variant, sizes: Sizes, runner: Runner) -> None:
        self.graph, self.options, self.refusals = variant.graph, variant.options, variant.refusals
        self.again = partial(variant.again_at, sizes)
        self._variant = variant
        self.sizes = dict(zip(variant.sizes, sizes, strict=True))
        self.run_by(runner)

    def coverage(self) -> Coverage:
        """Which share of the graph's multiply-accumulates integer partitions do, at these sizes."""
        return self._variant.coverage_at(tuple(self.sizes.values()))


AtSizes: TypeAlias = "_AtSizes | Loaded"
"""What runs at one set of sizes."""


class _Anew(Exception):
    """A graph that no variant can hold: each set of shapes is planned by itself."""


class OpenPlans:
    """The variants of a graph, and what they are at the shapes that were met. `read_source` gives the graph."""

    def __init__(self, signature: Signature, read_source: Callable[[], Graph], options: Options,
                 arenas: Arenas) -> None:
        self._read_source, self.options, self.arenas = read_source, options, arenas
        self._shared = _Shared()
        self._variants: dict[tuple[int, ...], list[Variant | StoredVariant]] = {}
        self._by_shapes: dict[tuple[Sizes, ...], AtSizes] = {}
        self._stored: list[StoredVariant] = []
        self._places = [(k, axis) for k, p in enumerate(signature.inputs) for axis, d in enumerate(p.type.shape or ())
                        if d is None]
        self._making: dict[tuple[int, ...], Lock] = {}
        self._order = Lock()
        """Held while entries of `_variants` or `_by_shapes` move, so that none is missing for a moment, or for good."""
        self._latest: Variant | AtSizes | None = None
        self.grown: Callable[[OpenPlans], None] | None = None
        """Told of each plan that a call adds."""
        self.anew = any(p.type.shape is None for p in signature.inputs)

    @property
    def source(self) -> Graph:
        """The graph as the user gave it."""
        return self._read_source()

    @lazy_property
    def dimensions(self) -> list[Dimension]:
        """The open dimensions of all inputs, in order."""
        return open_dimensions(self.source)

    @property
    def latest(self) -> Variant | AtSizes | None:
        """What was used last, or made first."""
        if self._latest is None:
            self._latest = next((v.variant for v in self._all() if isinstance(v, StoredVariant)), None)
        return self._latest

    def plans(self) -> list[tuple[Plan, Trace | None]]:
        """The plans of all variants, and the traces of their sizes."""
        return [(v.plan, v.trace) for v in self._all()]

    def classes(self) -> tuple[str, ...]:
        """Lines on the classes of sizes that were met: the plans of each, and what made it need several."""
        if not self._variants:
            return ()
        names = [d.name for d in self.dimensions]
        plans, ranges = counted(len(self._all()), "plan"), counted(len(self._variants), "range")
        lines = [f"open sizes: {plans} for {ranges}"]
        for of, variants in sorted(self._variants.items()):
            sizes = dict(zip(names, map(range_of, of), strict=True))
            lines.append(f"  {', '.join(f'{n} = {r}' for n, r in sizes.items())}: {counted(len(variants), 'plan')}")
            for v in variants:
                if v.because:
                    made = dict(zip(names, v.sizes.values() if isinstance(v, Variant) else v.sizes, strict=True))
                    lines.append(f"    one for {', '.join(f'{n} = {k}' for n, k in made.items())}: {v.because}")
        return tuple(lines)

    def _all(self) -> list[Variant | StoredVariant]:
        with self._order.hold:
            return [v for variants in self._variants.values() for v in variants]

    def begin(self, stored: Sequence[StoredPlan] = ()) -> None:
        """Take variants from a file, or make one for sizes that are likely, or where the graph refuses them none.

        Raises CompileError where `strict` refuses operations.
        """
        self._stored = [StoredVariant(x, self.options, self._made) for x in stored]
        for variant in reversed(self._stored):  # the last that is kept is that of the latest use
            of = tuple(map(size_class, variant.sizes))
            self._keep(of, variant)
        if self.anew or stored:
            return
        chosen: dict[str, int] = {}
        for d in self.dimensions:
            rank = len(next(v.shape or () for v in self.source.inputs if v.name == d.input))
            usual = 1 if d.axis == 0 and rank > 1 else _EXAMPLES[4 if rank > 3 else 3][len(chosen) % 5]
            chosen.setdefault(d.name, usual)
        try:
            self._variant(tuple(chosen[d.name] for d in self.dimensions))
        except GraphError:
            return
        except CompileError:  # that of `strict`, or these sizes take too much memory
            if self.options.strict:
                raise
        except _Anew:
            self.anew = True

    def at(self, shapes: tuple[Sizes, ...]) -> AtSizes | None:
        """What runs on inputs of these shapes; None where each set of shapes is planned anew.

        Raises GraphError where the graph does not take them. Callers that need the same variant wait for one of them.
        """
        made = self._by_shapes.get(shapes)
        if made is None and not self.anew:
            sizes = tuple([shapes[k][axis] for k, axis in self._places])
            of = tuple(map(size_class, sizes))
            made = self._known(of, sizes)
            if made is None:
                with self._making.setdefault(of, Lock()).hold, budget(self.options.memory):
                    try:
                        made = self._known(of, sizes)
                        if made is None:
                            made = self._new(of, sizes)
                            if self.grown is not None:
                                self.grown(self)
                    except _Anew:
                        self.anew = True
        if made is not None:
            with self._order.hold:
                _put_last(self._by_shapes, shapes, made, MAX_SHAPES)
            self._latest = made
        return made

    def _known(self, of: tuple[int, ...], sizes: Sizes) -> AtSizes | None:
        """What runs by a variant that there is."""
        with self._order.hold:
            variants = self._variants.get(of, [])
        with budget(self.options.memory):
            for variant in variants:
                made = variant.at(sizes, self.arenas)
                if made is not None:
                    self._keep(of, variant)
                    return made
        return None

    def _new(self, of: tuple[int, ...], sizes: Sizes) -> AtSizes:
        """What runs by a new variant: for the class of the sizes, or if that does not hold for them, for themselves."""
        if of not in self._variants:
            try:
                made = self._variant(examples(sizes)).at(sizes, self.arenas)
            except GraphqError:  # which the sizes themselves may not raise
                made = None
            if made is not None:
                return made
        names = [d.name for d in self.dimensions]
        because = "; ".join(dict.fromkeys(v.why_not(sizes, names) for v in self._variants.get(of, ())))
        try:
            variant = self._variant(sizes)
            variant.because = because
            made = variant.at(sizes, self.arenas)
        except GraphError as e:
            self._explain(sizes)
            raise e from None
        if made is None:
            raise _Anew("its plan does not hold for the sizes that it was made for")
        return made

    def _explain(self, sizes: Sizes) -> None:
        """Raise GraphError, with these sizes in it, where the graph of these shapes breaks a rule."""
        try:
            self.source.specialise(self._types(sizes))
        except GraphError as e:
            given = ", ".join(f"{d.name} = {n}" for d, n in zip(self.dimensions, sizes, strict=True))
            raise type(e)(f"{e} ({given})") from None

    def _types(self, sizes: Sizes) -> dict[str, TensorType]:
        """The inputs' types, their open dimensions of these sizes."""
        at = {(d.input, d.axis): n for d, n in zip(self.dimensions, sizes, strict=True)}
        return {str(v.name): TensorType(v.dtype, tuple(at.get((str(v.name), k), d) for k, d in enumerate(v.shape)))
                for v in self.source.inputs if v.shape is not None}

    def _variant(self, assumed: Sizes) -> Variant:
        variant = self._made(assumed)
        self._keep(tuple(map(size_class, assumed)), variant)
        self._latest = self._latest or variant
        return variant

    def _made(self, assumed: Sizes) -> Variant:
        """A new variant, which shares the arrays of those in a file; equal arrays are in a file once."""
        if self._stored:
            self._shared.of([b.data for v in self._stored for b in v.plan.buffers if isinstance(b.data, np.ndarray)])
            self._stored = []
        trace = Trace()
        types = self._types(tuple(trace.leaf(n, f"{d.input}.{d.axis}", d.name)
                                  for d, n in zip(self.dimensions, assumed, strict=True)))
        try:
            with budget(self.options.memory):
                graph = self.source.specialise(types)
                if not in_one_plan(graph):
                    raise _Anew("shapes depend on data, or bodies run")
                return Variant(graph, self.options, trace, self._shared,
                               lambda sizes: self.source.specialise(self._types(sizes)))
        except (AttributeError, TypeError) as e:  # of code that needs an int; so the model is slower, but runs
            log.warning("%s is planned anew for each set of shapes: %s: %s", self.source.name, type(e).__name__, e)
            raise _Anew from e

    def _keep(self, of: tuple[int, ...], variant: Variant | StoredVariant) -> None:
        """Keep a variant of a class, as that of the latest use; the class becomes the latest."""
        with self._order.hold:
            others = [v for v in self._variants.get(of, ()) if v is not variant]
            _put_last(self._variants, of, [variant, *others][:MAX_VARIANTS], MAX_CLASSES)


def _put_last(kept: dict[K, V], key: K, value: V, most: int) -> None:
    """Put an entry at the end of a dict that has at most so many, in the order of their latest use."""
    kept.pop(key, None)
    for oldest in list(kept)[:1 - most]:
        kept.pop(oldest, None)
    kept[key] = value

"""Make, keep and find the plans of a graph with open sizes, and a runner for each set of shapes that is called.

A plan (`OpenPlan`) is made with open sizes (`base.sizes`), on one example of a class of sizes (`size_class`). It holds
for all sizes at which the guards of its trace have the same answers as in the example. If no plan holds, the call waits
for a new plan. If only a plan of another class holds, it serves the call, and a plan of the sizes' own class is made in
the background, or read if the model is from a file. A `Runner` runs a plan at one set of shapes: it has numbers for the
sizes, and uses an arena (memory for values between steps). All runners share arenas.

A graph has no open plan if inputs are marked constant, ranks are unknown, or shapes depend on data. Then each set of
shapes gets its own plan or stages (`model.staged`), with the constants of the first call.
"""
import logging
import os
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import product
from threading import current_thread, main_thread
from typing import Any, TypeVar
from weakref import WeakMethod

import numpy as np

from graphq.base.budget import budget, collector_paused
from graphq.base.locks import Lock, lazy_property
from graphq.base.programs import why_not
from graphq.base.sizes import Size, Trace
from graphq.base.tasks import Tasks
from graphq.errors import CompileError, GraphError, GraphqError
from graphq.ir import Graph, counted
from graphq.model.open_shapes import EXAMPLES, Shapes, Sizes, class_of, examples, is_single, range_of, size_class
from graphq.model.plans import ConstantInputs, Passed, Plans, Unread
from graphq.model.staged import Staged
from graphq.plan.open_plans import OpenPlan
from graphq.plan.plan import in_one_plan
from graphq.plan.runtime import NativePlan, Runner

log = logging.getLogger("graphq")

K = TypeVar("K")
V = TypeVar("V")

MAX_SHAPES = 64
"""The most sets of shapes whose runners are kept; the least recently used is dropped first."""
MOST_COVERED = 3
"""The most open sizes of a model that gets plans for each choice of sizes of 1 (`OpenPlans.cover`)."""
MAX_CLASSES, MAX_VARIANTS = 32, 8
"""The most size classes, and the most plans of a class, that are kept; the least recently used is dropped first."""
background = Tasks("graphq-planning")
"""Makes plans that calls do not wait for, for all models."""


class _Anew(Exception):
    """Raised if a graph cannot have a plan with open sizes; each set of shapes then gets a plan of its own."""


class OpenPlans(Plans):
    """The plans of a graph with open sizes or constant inputs, made when they are needed. `unread` are plans of a file.

    If several threads need the same new plan, one thread makes it and the others wait.
    """

    def _begin(self, unread: Sequence[Unread]) -> None:
        self.constants = ConstantInputs(p.name for p in self.signature.inputs if p.property == "constant")
        self.by_class: dict[Sizes, list[OpenPlan]] = {class_of(sizes): [] for sizes, _ in unread}
        self._unread, self._from_file = list(unread), bool(unread)
        self.by_shapes: dict[Shapes, Runner | Staged] = {}
        self._making: dict[Sizes | Shapes, Lock] = {}
        self._improved: set[tuple[int, Sizes]] = set()
        """The classes for which a process (this one, or one that it is a fork of) began a plan in the background."""
        self._order, self._reading = Lock(), Lock()
        """Held while entries of `by_class` or `by_shapes` move (others could miss one), and while a plan is read."""
        self._latest: tuple[Shapes, Runner | Staged] | OpenPlan | None = None
        self.for_each_shape = bool(self.constants.names) or any(p.type.shape is None for p in self.signature.inputs)
        if not self.for_each_shape and not unread:
            self._plan_likely_sizes()

    @property
    def latest(self) -> Passed | Staged:
        """The object that reports describe: the last used runner, else a plan, else the graph after the passes."""
        background.join()
        if type(self._latest) is tuple and not self.for_each_shape:
            self.at(self._latest[0])  # there may be a better plan now
        latest = self._latest or next(reversed(self.all()), None)
        if isinstance(latest, NativePlan):
            full = self._in_full(latest)
            return self._passed(full, self._places.shapes(full.sizes))
        return self._without_shapes if latest is None else self.reported(*latest)

    def _passed(self, made: NativePlan, shapes: Shapes, runner: Runner | None = None, given: Sequence[Any] = ()
                ) -> Passed:
        if isinstance(made, OpenPlan):
            # In the plan's graph, an open size is a Size, but a plain number if its class has only one size.
            given = [n if is_single(size_class(n)) else Size(made.trace, slot)
                     for n, slot in zip(made.sizes, made.trace.leaves, strict=True)]
        return super()._passed(made, shapes, runner, given)

    def formula(self, arrays: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """The outputs computed in NumPy, at the shapes of these arrays."""
        shapes = self.shapes_of(arrays)
        rebuild = partial(self._graph_at, shapes, self.constants.of(arrays))
        graph = rebuild()
        passed = Passed.of(rebuild, self.options) if in_one_plan(graph) else Staged(graph, self._part)
        return passed.formula(arrays)

    def all(self, read: bool = True) -> Sequence[OpenPlan]:
        """All plans; without `read`, no plans of a file that were not read yet."""
        for of in list(self.by_class) if read else ():
            list(self._of_class(of))
        with self._order.hold:
            return [plan for plans in self.by_class.values() for plan in plans]

    def cover(self) -> None:
        """Make a plan for each choice of open sizes that are 1 or larger, unless plans hold for them.

        `all` then has the new plans first. Only the first axis of an image can have size 1. There are no new plans if
        the model has more than MOST_COVERED open sizes, or if sizes are elements of inputs.
        """
        background.join()
        used, axes = list(self.by_class), dict(zip(self.names, self._axes, strict=True))
        if self.for_each_shape or len(axes) > MOST_COVERED or any(p.of_value for p in self._places.all):
            return
        ones = product(*[(True, False) if axis == 0 or rank < 4 else (False,) for axis, rank in axes.values()])
        for one in sorted(ones, key=lambda one: len({*one})):  # first sizes that are all 1, or all larger
            sizes = self._likely_sizes([name for name, is_one in zip(axes, one, strict=True) if is_one])
            with suppress(GraphqError, _Anew):  # the graph may reject these sizes
                if main_thread().is_alive():  # Python is not ending
                    self._ensured(sizes)
        with self._order.hold:
            for of in used:
                _put_last(self.by_class, of, self.by_class.get(of, []), MAX_CLASSES)

    def classes(self) -> tuple[str, ...]:
        """The lines of a report on open sizes: the ranges of sizes, how many plans each range has, and why."""
        if not self._places.all or not (plans := self.all()):
            return ()
        names = self.names
        lines = [f"open sizes: {counted(len(plans), 'plan')} for {counted(len(self.by_class), 'range')}"]
        for of, of_class in sorted(self.by_class.items()):
            sizes = dict(zip(names, map(range_of, of), strict=True))
            lines.append(f"  {', '.join(f'{n} = {r}' for n, r in sizes.items())}: {counted(len(of_class), 'plan')}")
            for plan in of_class:
                if plan.because:
                    example = dict(zip(names, plan.sizes, strict=True))
                    lines.append(f"    one for {', '.join(f'{n} = {k}' for n, k in example.items())}: {plan.because}")
        return tuple(lines)

    def at(self, shapes: Shapes, arrays: Mapping[str, np.ndarray] | None = None) -> Runner | Staged:
        """The runner for inputs of these shapes (see `Plans.at`)."""
        latest, kept = self._latest, self.by_shapes
        made = kept.get(shapes)
        if type(latest) is tuple and made is latest[1] and not self.constants.names:
            return made  # these shapes are already the most recently used
        if made is None and self.signature.check_shapes is not None:
            self.signature.check_shapes(shapes)
        if made is None and not self.for_each_shape:
            made = self._at_sizes(self._places.sizes(shapes))
        if made is None:
            made = self._at_shapes(shapes, arrays or {})
        else:
            self.constants.of(arrays or {})  # raises InputError if the constants differ
            self._keep_at(kept, shapes, made)
        self._latest = shapes, made
        return made

    def shapes_of(self, arrays: Mapping[str, np.ndarray]) -> Shapes:
        """The shapes of a call's arrays, and the elements of inputs that are sizes: they all decide which plan runs."""
        return self._places.shapes_of(arrays, not self.for_each_shape)

    def _at_shapes(self, shapes: Shapes, arrays: Mapping[str, np.ndarray]) -> Runner | Staged:
        with self._making.setdefault(shapes, Lock()).hold:
            with self._order.hold:  # so that no other thread moves the entry meanwhile
                made = self.by_shapes.get(shapes)
            if made is None:
                try:
                    constants = self.constants.of(arrays)
                    rebuild = partial(self._graph_at, shapes, constants)
                    symbols = partial(self._graph_of_symbols, shapes) if self._places.all or self.symbols else None
                    with budget(self.options.memory):
                        made = self._planned(rebuild(), rebuild, symbols)
                    self.constants.keep(constants)
                    self._keep_at(self.by_shapes, shapes, made)
                finally:
                    self._making.pop(shapes, None)
            self.constants.of(arrays)
        return made

    def _at_sizes(self, sizes: Sizes) -> Runner | None:
        """The runner of a plan that holds at these sizes, or of a new plan; None if no plan can have open sizes."""
        made, of = self._known(sizes), class_of(sizes)
        if made is None:
            try:
                made = self._ensured(sizes)
            except _Anew:
                self.for_each_shape = True
        elif class_of(made.made.sizes) != of and (os.getpid(), of) not in self._improved:
            self._improved.add((os.getpid(), of))
            improve = WeakMethod(self._improve)  # nobody needs the plans of a model that was dropped
            background.start(
                lambda: (method := improve()) and method(sizes),
                f"{self.signature.name}: a plan for other sizes serves the sizes {sizes}, because they have none")
        return made

    def _ensured(self, sizes: Sizes, classes: Sequence[Sizes] = ()) -> Runner:
        """The runner of a plan of these classes (see `_known`), or of a new plan."""
        with self._making.setdefault(class_of(sizes), Lock()).hold, budget(self.options.memory):
            made = self._known(sizes, classes)
            if made is None:
                made = self._new(sizes)
                self._keep(made.made)
                if self.grown is not None:
                    self.grown(self)
            return made

    def _improve(self, sizes: Sizes) -> None:
        """Read or make a plan for the class of these sizes; for a kept model also plans that other calls may need."""
        if current_thread() is not main_thread():  # where no thread can start, this is the call's own
            main_thread().join(0.05)  # the call goes first: threads wait for one another in Python code
        if not main_thread().is_alive():  # Python is ending
            return
        read = self._from_file and self.grown is None
        if self.grown is not None:
            self.cover()
        if not read:
            self._ensured(sizes, [class_of(sizes)])
        new = [plan for plan in self.all(read) if not plan.prepared]
        for plan in new:  # only now, because all kernels have begun to be compiled
            made = plan.at(plan.sizes, self._arenas, self.options.cache)
            if made is not None and main_thread().is_alive():
                made.prepare()
        if new or read:
            self.by_shapes = {}  # not `clear`: a call that has not ended may add a runner to the old dict

    def _known(self, sizes: Sizes, classes: Sequence[Sizes] = ()) -> Runner | None:
        """The runner of a plan of these `classes` that holds; by default of any class, if possible of the sizes' own.

        It is a plan whose kernels are compiled, if one holds. Plans in a file are read only if no plan in memory holds.
        """
        with budget(self.options.memory):
            for ready, read in ((True, False), (False, False), (False, True)):
                for of in classes or self._classes_like(class_of(sizes)):
                    for plan in self._of_class(of, read):
                        made = None if ready and not plan.prepared else plan.at(sizes, self._arenas, self.options.cache)
                        if made is not None:
                            self._keep(plan)
                            return made
        return None

    def _classes_like(self, of: Sizes) -> list[Sizes]:
        """The classes whose plans may hold for sizes of a class, the most similar first. Sizes of 0 and 1 are equal."""
        others = [x for x in list(self.by_class)
                  if all(a == b or not is_single(min(a, b)) for a, b in zip(x, of, strict=True))]
        return sorted({of, *others}, key=lambda x: sum(abs(a - b) for a, b in zip(x, of, strict=True)))

    def _of_class(self, of: Sizes, read: bool = True) -> Iterator[OpenPlan]:
        """Yield the plans of a class: first the plans in memory, then, if `read`, plans of a file, one by one."""
        seen: set[int] = set()
        while True:
            with self._order.hold:
                plans = [plan for plan in self.by_class.get(of, ()) if id(plan) not in seen]
                entry = next((x for x in self._unread if read and class_of(x[0]) == of), None)
            seen.update(map(id, plans))
            yield from plans
            if entry is None:
                return
            with self._reading.hold:
                plan = entry[1]() if entry in self._unread else None
                with self._order.hold:
                    if isinstance(plan, OpenPlan) and entry in self._unread:  # no signal handler has read it meanwhile
                        self._unread.remove(entry)
                        self.by_class.setdefault(of, []).append(plan)

    def _new(self, sizes: Sizes) -> Runner:
        """Make a plan and return its runner. The plan is made for the class's examples, or else for these sizes."""
        of = class_of(sizes)
        with self._order.hold:  # so that no other thread moves the class meanwhile
            known = of in self.by_class
        if not known:
            with suppress(GraphqError):  # the graph may reject the examples, but accept the sizes
                plan = self._made(examples(sizes))
                made = plan.at(sizes, self._arenas, self.options.cache)
                if made is not None:
                    return made
                self._keep(plan)
        because = dict.fromkeys(why_not(v.program, v.trace, sizes, self.names) for v in self.by_class.get(of, ()))
        try:
            plan = self._made(sizes)
            plan.because = "; ".join(because)
            made = plan.at(sizes, self._arenas, self.options.cache)
        except GraphError as e:
            try:
                self._graph_at(self._places.shapes(sizes))
            except GraphError as broken:  # the graph breaks a rule at these sizes
                named = ", ".join(f"{name} = {n}" for name, n in zip(self.names, sizes, strict=True))
                raise type(broken)(f"{broken} ({named})") from None
            raise e from None
        if made is None:
            raise _Anew("its plan does not hold for the sizes that it was made for")
        return made

    def _plan_likely_sizes(self) -> None:
        """Make a plan for likely sizes, if the graph accepts them. Raises CompileError if `strict` refuses."""
        batches = [name for name, (axis, rank) in zip(self.names, self._axes, strict=True) if axis == 0 and rank > 1]
        try:
            self._latest = self._made(self._likely_sizes(batches))
            self._keep(self._latest)
        except GraphError:
            return
        except CompileError:  # `strict` refuses, or these sizes take too much memory
            if self.options.strict:
                raise
        except _Anew:
            self.for_each_shape = True

    @property
    def _axes(self) -> list[tuple[int, int]]:
        """The axis of each open size, and the rank of its input."""
        return [(p.axis, len(self.signature.inputs[p.input].type.shape or ())) for p in self._places.all]

    def _likely_sizes(self, ones: Container[str]) -> Sizes:
        """Sizes that calls are likely to have: 1 for the dimensions with these names."""
        chosen: dict[str, int] = {}
        for name, (axis, rank) in zip(self.names, self._axes, strict=True):
            of = 1 if name in ones else 2 if axis == 0 and rank > 1 else 4 if rank > 3 else 3
            chosen.setdefault(name, EXAMPLES[of][len(chosen) % len(EXAMPLES[of])])
        return tuple([chosen[name] for name in self.names])

    @collector_paused()
    def _made(self, assumed: Sizes) -> OpenPlan:
        """Make a plan for the sizes `assumed`; it may also hold for other sizes."""
        trace = Trace()
        leaves = list(map(trace.leaf, assumed, self._places.keys, self.names))
        # If the class has only one size, a plain number replaces the Size, and no guards are needed.
        sizes = tuple(n if is_single(size_class(n)) else leaf for n, leaf in zip(assumed, leaves, strict=True))
        try:
            with budget(self.options.memory):
                graph = self._graph_at(self._places.shapes(sizes))
                if not in_one_plan(graph):
                    raise _Anew("shapes depend on data, or bodies run")
                plan = self._plan(graph, partial(self._graph_at, self._places.shapes(sizes)), trace)
                assert isinstance(plan, OpenPlan)
        except (AttributeError, TypeError) as e:  # some code cannot compute with a Size
            log.warning("%s is planned anew for each set of shapes: %s: %s", self.source.name, type(e).__name__, e)
            raise _Anew from e
        return plan

    def _made_again(self, plan: NativePlan) -> NativePlan:
        return self._made(plan.sizes)

    def _runner(self, plan: NativePlan, like: Runner) -> Runner:
        assert isinstance(plan, OpenPlan)
        again = plan.at(tuple(like.sizes.values()), self._arenas, self.options.cache)
        assert again is not None
        return again

    @lazy_property
    def _without_shapes(self) -> Passed:
        """The graph after the passes with its open shapes, for reports before the first call."""
        with budget(self.options.memory):
            return Passed.of(self.source.copy, self.options)

    def _graph_at(self, shapes: Shapes, constants: Mapping[str, np.ndarray] | None = None) -> Graph:
        """The user's graph at these input shapes and with these `constants` (None: the first call's constants)."""
        constants = self.constants.kept if constants is None else constants
        return self._places.graph(self.source, shapes, constants)

    def _keep(self, plan: NativePlan) -> None:
        assert isinstance(plan, OpenPlan)
        of = class_of(plan.sizes)
        with self._order.hold:
            others = [v for v in self.by_class.get(of, ()) if v is not plan]
            _put_last(self.by_class, of, [plan, *others][:MAX_VARIANTS], MAX_CLASSES)

    def _keep_at(self, kept: dict[Shapes, Runner | Staged], shapes: Shapes, made: Runner | Staged) -> None:
        with self._order.hold:
            _put_last(kept, shapes, made, MAX_SHAPES)


def _put_last(kept: dict[K, V], key: K, value: V, most: int) -> None:
    """Put an entry at the end of `kept`, as the most recently used. Drop the first entries if there are over `most`."""
    kept.pop(key, None)
    for oldest in list(kept)[:1 - most]:
        kept.pop(oldest, None)
    kept[key] = value

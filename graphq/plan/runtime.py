"""Run plans: fill in the arguments of their kernels, place buffers in an arena, and call the steps.

A kernel's arguments are words of 64 bits. A `NativePlan` has the words of all steps, computed once, because most words
are the same in all runs. Each concurrent run of a `Runner` has an `_Instance` with its own copy of the words, and
writes the addresses of the call's arrays and of an arena into the copy.
"""
from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from itertools import count, groupby
from operator import index
from threading import get_ident
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

import numpy as np

from graphq.base.budget import expect, reserve
from graphq.base.locks import lazy_property
from graphq.base.platform import TARGET, process_cores
from graphq.base.progress import progress
from graphq.base.sizes import is_open
from graphq.errors import CompileError
from graphq.ir import TensorType
from graphq.kernels.jit import LINE, Function, FunctionTable, address_of, aligned_empty
from graphq.kernels.threads import team
from graphq.kernels.threads.steps import STEP
from graphq.plan.plan import Allocation, Plan, PythonStep, Ref, Step, Word, find_lives, plan_arena, touched

if TYPE_CHECKING:
    from graphq.kernels.threads.traced import TracedStep
    from graphq.rewrite.fixpoint import History
    from graphq.rewrite.rule import Refusal

STEP_WORDS = len(STEP.fields)


class NativePlan:
    """A plan with its native form: all words of 64 bits, and the places of the words that each run fills in.

    `passed` has the graphs before the fusions and after all passes, and the refusals of the passes; it is None for a
    plan from a file.

    `template` has a row for each kernel step (`threads.steps.STEP`), then the argument blocks of these steps; each
    block begins at its index in `starts`. Words that a run fills in are 0 in the template. These lists have their
    indices in the template:

        functions    (word, function): addresses of functions that may not be compiled yet
        arrays       (word, index of an array, offset): addresses in a call's arrays, the inputs and then the outputs
        arena        (word, buffer, offset): addresses in the arena
        reports      (word, index): addresses of a run's reports
        constants    (word, buffer, offset): addresses in constants, if the array or the offset depends on open sizes
        numbers      (word, Size or Later): all other words that depend on open sizes

    `segments` has the Python steps, and a slice of the rows for neighboring kernel steps. `aligned` has the indices of
    the inputs that a run copies if they do not start at a cache line. `plan.plan` defines `lives` and `clashes`.
    """

    def __init__(self, plan: Plan, passed: tuple[History, list[Refusal]] | None = None) -> None:
        self.plan, self.errors, self.passed = plan, plan.errors, passed
        self.functions: list[tuple[int, Function | FunctionTable]] = []
        self.arrays: list[tuple[int, int, int]] = []
        self.arena: list[tuple[int, int, int]] = []
        self.reports: list[tuple[int, int]] = []
        self.constants: list[tuple[int, int, int]] = []
        self.numbers: list[tuple[int, Any]] = []
        self.aligned: set[int] = set()
        self._inputs = sum(b.storage == "input" for b in plan.buffers)
        native = [step for step in plan.steps if isinstance(step, Step)]
        template, starts = [0] * (STEP_WORDS * len(native)), []
        for k, step in enumerate(native):
            row: dict[str, Word] = {"function": step.function, "args": 0, "blocks": step.blocks, "pieces": step.pieces}
            template[STEP_WORDS * k:STEP_WORDS * (k + 1)] = map(self._word, count(STEP_WORDS * k), STEP.words(row))
            starts.append(len(template))
            template += [w if type(w) is int else self._word(at, w) for at, w in enumerate(step.block, len(template))]
            for one in (step, *(part.step for part in step.parts)):
                if one.aligned and isinstance(a := one.words["a"], Ref) and plan.buffers[a.buffer].storage == "input":
                    self.aligned.add(plan.buffers[a.buffer].index)
        self.template, self.starts = np.array(template or [0], np.int64), np.array(starts, np.int64)
        self.segments: list[slice | PythonStep] = []
        first = 0
        for _, steps in groupby(plan.steps, type):
            group = list(steps)
            in_python: list[slice | PythonStep] = [step for step in group if isinstance(step, PythonStep)]
            self.segments += in_python or [slice(first, first + len(group))]
            first += len(group) - len(in_python)
        self.lives, self.clashes = find_lives([b for b in touched(step) if plan.buffers[b].storage == "arena"]
                                              for step in plan.steps)

    @property
    def sizes(self) -> tuple[int, ...]:
        """The open sizes of the example that the plan was made for; none here."""
        return ()

    def _word(self, at: int, word: Word) -> int:
        """The template's entry for the word at index `at`. If runs fill in the word, list it and return 0."""
        if isinstance(word, Function | FunctionTable):
            self.functions.append((at, word))
        elif isinstance(word, Ref):
            b, offset = word
            buffer = self.plan.buffers[b]
            if buffer.storage == "arena":
                self.arena.append((at, b, offset))
            elif buffer.storage == "report":
                self.reports.append((at, buffer.index))
            elif buffer.storage != "constant":
                self.arrays.append((at, buffer.index + (self._inputs if buffer.storage == "output" else 0), offset))
            elif isinstance(buffer.data, np.ndarray) and not is_open(offset):
                return address_of(buffer.data) + offset
            else:
                self.constants.append((at, b, offset))
        elif is_open(word):
            self.numbers.append((at, word))
        else:
            return index(word)
        return 0

    def address_functions(self) -> None:
        """Wait until the functions are compiled, and write their addresses into the template."""
        for _, function in self.functions:  # begin all compilations before waiting for one
            function.want()
        for at, function in progress(self.functions, "kernels") if self.functions else ():
            self.template[at] = index(function)
        self.functions = []


PATIENCE = 64
"""An arena is freed after this many runs in a row that did not use it."""


class Arena:
    """The memory of one run: an array of bytes, its address, and the index of the last run that used the memory."""

    __slots__ = ("address", "array", "last")

    def __init__(self, nbytes: int) -> None:
        try:
            self.array = aligned_empty(nbytes)
        except MemoryError:
            raise CompileError(f"not enough memory: values between inputs and outputs need {nbytes} bytes") from None
        self.address: int = self.array.ctypes.data
        self.last = 0


class Arenas:
    """The arenas of one model, for all its shapes and callers.

    Each concurrent run has an arena of its own. If the arena of an earlier run is too small, a larger one replaces it.
    At most one idle arena per core is kept, and an arena that `PATIENCE` runs did not use is freed.
    """

    def __init__(self) -> None:
        self.idle: list[Arena] = []
        self._runs = 0
        self.most = len(process_cores())

    def take(self, nbytes: int) -> Arena:
        """An arena of at least `nbytes` bytes. It belongs to the caller until `give_back`."""
        try:
            arena = self.idle.pop()
        except IndexError:
            return Arena(nbytes)
        return arena if arena.array.size >= nbytes else Arena(nbytes)

    def give_back(self, arena: Arena) -> None:
        """Return an arena to the idle arenas."""
        arena.last = self._runs = self._runs + 1  # not atomic: if two runs end at once, one may not be counted
        idle = self.idle
        idle.append(arena)
        first = idle[:1]  # a slice instead of idle[0], because another thread may empty the list
        if len(idle) > 1 and (len(idle) > self.most or first and first[0].last < self._runs - PATIENCE):
            del idle[:1]


class Runner:
    """Runs a plan; any number of threads may call it at the same time.

    The runner of an open plan (`plan.open_plans`) has open `sizes`, their output types, and the buffers `placed` in the
    arena: their offsets in bytes, and the arena's size.

    Raises CompileError if the arena would take too much memory.
    """

    sizes: Mapping[str, int] = {}

    def __init__(self, made: NativePlan, arenas: Arenas, cache: bool = True,
                 output_types: tuple[TensorType, ...] | None = None,
                 placed: tuple[Mapping[int, int], int] | None = None) -> None:
        self.made, self._arenas, self._cache, plan = made, arenas, cache, made.plan
        self.output_types = plan.output_types if output_types is None else output_types
        self.in_place = plan.in_place
        self._offsets, self.arena_bytes = placed or plan_arena(
            {b: plan.buffers[b].nbytes for b in made.clashes}, made.clashes)
        reserve(self.arena_bytes, "the memory of values between inputs and outputs")
        for type in self.output_types:
            expect(type.nbytes, "the result")
        self._pool: list[_Instance] = []
        self.output_specs = [(t.dims, t.dtype.numpy) for t in self.output_types]

    def __call__(self, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray] | None = None) -> list[np.ndarray]:
        """Run on checked, contiguous arrays; returns the outputs: `outputs` if given, otherwise new arrays."""
        outs = list(outputs) if outputs is not None else [np.empty(*spec) for spec in self.output_specs]
        try:
            instance = self._pool.pop()
        except IndexError:
            instance = self._instance()
        arena = self._arenas.take(self.arena_bytes)
        try:
            instance.point_at([*inputs, *outs], arena)
            for part in instance.segments:
                self._segment(part, instance, inputs, outs)
        finally:
            instance.arena = None
            self._arenas.give_back(arena)
        if self.made.errors:
            self._raise(instance)
        self._pool.append(instance)
        return outs

    def bound(self, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> Callable[[], None]:
        """A function that runs the plan on these checked arrays. It keeps an arena and the arrays' addresses."""
        moves = any(address_of(inputs[k]) % LINE for k in self.made.aligned)
        idle: list[tuple[_Instance, Arena]] = []

        def run() -> None:
            instance, arena = idle.pop() if idle else (self._instance(), Arena(self.arena_bytes))
            if moves or instance.arena is None:
                instance.point_at([*inputs, *outputs], arena)
            for part in instance.segments:
                self._segment(part, instance, inputs, outputs)
            if self.made.errors:
                self._raise(instance)
            idle.append((instance, arena))

        return run

    def prepare(self) -> None:
        """Wait until all kernels are compiled, so that the next run need not wait."""
        if not TARGET:  # for another CPU, no kernel is loaded
            self._pool.append(self._instance())

    def trace(self, inputs: Sequence[np.ndarray], runs: int) -> list[list[np.ndarray]]:
        """Run the plan on checked arrays, and record when and on which thread each piece of each step ran.

        The result has an array of shape [pieces, 3] for each run and step: the thread (`threading.get_ident`), and the
        begin and end in ns (`time.perf_counter_ns`). Warm-up runs come first, until all threads of the plan take part.
        """
        outs = [np.empty(*spec) for spec in self.output_specs]
        instance, arena = self._instance(traced=True), self._arenas.take(self.arena_bytes)
        instance.point_at([*inputs, *outs], arena)

        def run() -> list[np.ndarray]:
            in_python = []
            for part in instance.segments:
                begin = perf_counter_ns()
                self._segment(part, instance, inputs, outs)
                if isinstance(part, PythonStep):
                    in_python.append(np.array([[get_ident(), begin, perf_counter_ns()]]))
            others = iter(in_python)
            return [next(others) if step is None else step.times() for step in instance.traced]

        try:
            team.run_until_settled(run)
            found = [run() for _ in progress(range(runs), "runs")]
        finally:
            instance.arena = None
            self._arenas.give_back(arena)
        self._raise(instance)
        return found

    def allocations(self) -> list[Allocation]:
        """The buffers in the arena, in the order of their first steps."""
        return [Allocation(b, self._offsets[b], self.plan.buffers[b].nbytes, *life)
                for b, life in self.made.lives.items()]

    def repeated(self, step: int, times: int) -> Runner:
        """A runner that runs one step `times` times per call, on an arena of its own that begins with zeros."""
        arenas = Arenas()
        made = Runner(NativePlan(self.plan._replace(steps=(self.plan.steps[step],) * times)), arenas, self._cache)
        arena = arenas.take(made.arena_bytes)
        arena.array[:] = 0
        arenas.give_back(arena)
        return made

    @lazy_property
    def plan(self) -> Plan:
        """The plan with plain numbers."""
        return self.made.plan

    def _ready(self) -> NativePlan:
        """The native plan with plain numbers and the addresses of compiled functions."""
        self.made.address_functions()
        return self.made

    def _instance(self, *, traced: bool = False) -> _Instance:
        return _Instance(self._ready(), self._offsets, self._cache, traced=traced)

    def _raise(self, instance: _Instance) -> None:
        for number, report in zip(instance.reports, instance.errors, strict=True):
            if number:
                raise report.error(number)

    def _segment(self, part: team.StepTable | PythonStep, instance: _Instance, inputs: Sequence[np.ndarray],
                 outputs: Sequence[np.ndarray]) -> None:
        if isinstance(part, team.StepTable):
            part.run()
        else:
            self._raise(instance)  # raise a kernel's error before this step reads the kernel's invalid results
            self._python(part, instance, inputs, outputs)

    def _python(self, step: PythonStep, instance: _Instance, inputs: Sequence[np.ndarray],
                outputs: Sequence[np.ndarray]) -> None:
        def array(b: int) -> np.ndarray:
            buffer = self.plan.buffers[b]
            if buffer.storage == "input":
                return inputs[buffer.index]
            if buffer.storage == "output":
                return outputs[buffer.index]
            if isinstance(buffer.data, np.ndarray):
                return buffer.data
            assert buffer.type is not None and instance.arena is not None
            raw = instance.arena.array[self._offsets[b]:self._offsets[b] + buffer.type.nbytes]
            return raw.view(buffer.type.dtype.numpy).reshape(buffer.type.dims)

        out = step.call(*(None if b is None else array(b) for b in step.inputs))
        for b, x in zip(step.outputs, out if isinstance(out, tuple) else (out,), strict=True):
            target = array(b)
            target[...] = np.asarray(x).reshape(target.shape)


class _Instance:
    """The argument words and `segments` of a plan. Only one run at a time uses them.

    A segment is a Python step, or a table of neighboring kernel steps that run in one native call. With `traced`,
    kernel steps record their times and threads, and `self.traced` lists the recorders (None for a Python step).
    """

    def __init__(self, of: NativePlan, offsets: Mapping[int, int], cache: bool, *, traced: bool = False) -> None:
        self.errors, self.reports = of.errors, (ctypes.c_int64 * len(of.errors))()
        self.words = of.template.copy()
        for at, k in of.reports:
            self.words[at] = ctypes.addressof(self.reports) + 8 * k
        self._arrays, self._aligned = of.arrays, of.aligned
        self._in_arena = np.array([at for at, *_ in of.arena], np.int64)
        self._relative = np.array([offsets[b] + offset for _, b, offset in of.arena], np.int64)
        self._base = 0
        self.arena: Arena | None = None
        self._copies: dict[int, np.ndarray] = {}
        self.traced: list[TracedStep | None] = []
        table = self.words[:STEP_WORDS * len(of.starts)].reshape(-1, STEP_WORDS)
        table[:, STEP.number("args")] = self.words.ctypes.data + 8 * of.starts
        self.segments: list[team.StepTable | PythonStep] = []
        for part in of.segments:
            if isinstance(part, PythonStep):
                self.traced.append(None)
                self.segments.append(part)
                continue
            rows = table[part]
            if traced:
                from graphq.kernels.threads.traced import TracedStep

                watched = [TracedStep(row, cache) for row in rows.tolist()]
                self.traced += watched
                rows[:] = np.array([step.row for step in watched], np.int64)
            self.segments.append(team.StepTable(rows, cache))

    def point_at(self, arrays: Sequence[np.ndarray], arena: Arena) -> None:
        """Write the addresses of a call's inputs and outputs, and of buffers in the arena, into argument words."""
        addresses = [*map(address_of, arrays)]
        for k in self._aligned:
            if addresses[k] % LINE:
                addresses[k] = self._copied(k, arrays[k])
        for word, array, offset in self._arrays:
            self.words[word] = addresses[array] + offset
        self.arena = arena
        if arena.address != self._base:
            self._base = arena.address
            self.words[self._in_arena] = self._relative + self._base

    def _copied(self, number: int, x: np.ndarray) -> int:
        if number not in self._copies:
            self._copies[number] = aligned_empty(x.nbytes)
        room = self._copies[number]
        room[:] = x.reshape(-1).view(np.uint8)
        return room.ctypes.data

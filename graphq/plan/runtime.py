"""Run plans: fill in the arguments of their kernels, place buffers in an arena, and call the steps.

A kernel's arguments are words of 64 bits. An `OpenPlan` has the words of all steps, computed once, because most words
are the same in all runs. A `Runner` fills in the words that depend on sizes. Each concurrent run has an `_Instance`
with its own copy of the words, and writes the addresses of the call's arrays and of an arena into the copy.
"""
from __future__ import annotations

import ctypes
from collections import defaultdict
from collections.abc import Sequence
from itertools import count, groupby
from operator import index
from threading import get_ident
from time import perf_counter_ns
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from graphq.base.budget import expect, reserve
from graphq.base.locks import lazy_property
from graphq.base.programs import Numbers, Program, Values
from graphq.base.progress import MOST, progress
from graphq.base.sizes import Later, Trace, is_open, parts
from graphq.ir import TensorType
from graphq.kernels.jit.memory import LINE, address_of, aligned_empty
from graphq.kernels.jit.modules import Function, FunctionTable
from graphq.kernels.threads import team
from graphq.kernels.threads.steps import STEP
from graphq.plan.arena import Allocation, Arena, Arenas, find_clashes, find_lives, plan_arena
from graphq.plan.plan import Buffer, Plan, PythonStep, Ref, Step, Word, open_numbers, touched
from graphq.rewrite.fixpoint import History
from graphq.rewrite.rule import Refusal

if TYPE_CHECKING:
    from graphq.kernels.threads.traced import TracedStep

STEP_WORDS = len(STEP.fields)


class Places(NamedTuple):
    """The offsets of buffers in the arena, the arena's size in bytes, and the words that are addresses in the arena.

    `relative` has these words (`OpenPlan.arena_words`) relative to the arena's start. Offsets within a buffer are
    included unless they are open sizes.
    """

    offsets: dict[int, int]
    nbytes: int
    relative: np.ndarray


class OpenPlan:
    """A plan for many sizes, with the trace of its open sizes (`base.sizes`).

    The trace is empty if all shapes are fixed. `passed` has the graphs before and after the passes, and the refusals of
    the passes; it is None for a plan from a file. `because` says why earlier plans could not run at these sizes.

    `template` has a row for each kernel step (`threads.steps.STEP`), then the argument blocks of these steps; each
    block begins at its index in `starts`. Words that differ between runs are 0 in the template. `places` lists these
    words if they are addresses; `numbers` and `numbers_at` have the words that are open sizes, and their indices.
    `segments` has the Python steps, and a slice of the rows for neighboring kernel steps. `aligned` has the indices of
    the inputs that a run copies if they do not start at a cache line.
    """

    because = ""

    def __init__(self, plan: Plan, trace: Trace | None = None,
                 passed: tuple[History, list[Refusal]] | None = None) -> None:
        self.plan, self.trace, self.passed = plan, trace or Trace(), passed
        self.functions: list[tuple[int, Function | FunctionTable]] = []
        self._numbers: list[tuple[int, Word]] = []  # (index of the word, its `Size` or `Later`)
        self.places: dict[str, list[tuple[int, int, int]]] = defaultdict(list)  # by storage: (word, buffer, offset)
        self.aligned: set[int] = set()
        native = [step for step in plan.steps if isinstance(step, Step)]
        template, starts = [0] * (STEP_WORDS * len(native)), []
        for k, step in enumerate(native):
            row: dict[str, Word] = {"function": step.function, "args": 0, "blocks": step.blocks, "pieces": step.pieces}
            template[STEP_WORDS * k:STEP_WORDS * (k + 1)] = map(self._word, count(STEP_WORDS * k), STEP.words(row))
            starts.append(len(template))
            template += map(self._word, count(len(template)), step.block)
            for one in (step, *(part.step for part in step.parts)):
                if one.aligned and isinstance(a := one.words["a"], Ref) and plan.buffers[a.buffer].storage == "input":
                    self.aligned.add(plan.buffers[a.buffer].index)
        self.template, self.starts = np.array(template or [0], np.int64), np.array(starts, np.int64)
        self.numbers_at = np.array([at for at, _ in self._numbers], np.int64)
        self.numbers = Numbers([number for _, number in self._numbers])
        self.segments: list[slice | PythonStep] = []
        first = 0
        for _, steps in groupby(plan.steps, type):
            group = list(steps)
            in_python: list[slice | PythonStep] = [step for step in group if isinstance(step, PythonStep)]
            self.segments += in_python or [slice(first, first + len(group))]
            first += len(group) - len(in_python)
        self.open_buffers, self.open_steps = [], []
        if self.trace.leaves:
            self.open_buffers = [k for k, b in enumerate(plan.buffers)
                                 if is_open((b.nbytes, b.data, b.type and b.type.shape))]
            self.open_steps = [k for k, s in enumerate(plan.steps) if is_open(
                s if isinstance(s, PythonStep) else (s.kernel, s.blocks, s.pieces, s.macs))]
        self.lives = find_lives([b for b in touched(step) if plan.buffers[b].storage == "arena"]
                                for step in plan.steps)
        self.clashes = find_clashes(self.lives)
        self._nbytes = Numbers([plan.buffers[b].nbytes for b in self.clashes])
        self._latest: tuple[list[int], Places] = [], Places({}, 0, np.zeros(0, np.int64))

    @lazy_property
    def array_words(self) -> tuple[list[tuple[int, int, int]], bool]:
        """The words that are addresses in a call's arrays, and whether any of their offsets is an open size.

        A word is given as its index in the template, the index of the array among all inputs and outputs, and the
        offset in bytes.
        """
        buffers, inputs = self.plan.buffers, sum(b.storage == "input" for b in self.plan.buffers)
        words = [(at, first + buffers[k].index, offset) for storage, first in (("input", 0), ("output", inputs))
                 for at, k, offset in self.places[storage]]
        return words, is_open(words)

    @lazy_property
    def arena_words(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[tuple[int, int]]]:
        """The words that are addresses in the arena, as three arrays and a list.

        The arrays have the words' indices in the template, their buffers, and their offsets in bytes. An offset that is
        an open size is 0 in the array; the list has the offset's position in the array and the Size.
        """
        places = self.places["arena"]
        numbers = [(at, k, 0 if is_open(offset) else offset) for at, k, offset in places]
        at, k, offsets = np.array(numbers, np.int64).reshape(-1, 3).T.copy()
        return at, k, offsets, [(n, offset) for n, (_, _, offset) in enumerate(places) if is_open(offset)]

    def places_at(self, values: Values) -> Places:
        """Place the buffers in the arena; the latest placement is kept while no buffer changes its size."""
        sizes = self._nbytes.at(values)
        latest, places = self._latest
        if sizes != latest:
            offsets, nbytes = plan_arena(dict(zip(self.clashes, sizes, strict=True)), self.clashes)
            _, of, within, _ = self.arena_words
            places = Places(offsets, nbytes, np.array([offsets[b] for b in of.tolist()], np.int64) + within)
            self._latest = sizes, places
        return places

    @lazy_property
    def program(self) -> Program:
        """The program that computes all numbers of the plan that depend on open sizes."""
        results = list(parts(open_numbers(self.plan)))
        for x in results:
            self.trace.slot(x)  # raises if the Size x belongs to another trace
        return Program(self.trace, results)

    def at(self, sizes: Sequence[int], arenas: Arenas, cache: bool = True) -> Runner | None:
        """Make the runner for these sizes; None if they break an assumption that the plan was made with."""
        values = self.program.at(sizes) if sizes else Values({})
        return None if values is None else Runner(self, sizes, values, arenas, cache)

    def _word(self, at: int, word: Word) -> int:
        """The template's entry for the word at index `at`. If the word differs between runs, record it and return 0."""
        if type(word) is int:
            return word
        if isinstance(word, Function | FunctionTable):
            self.functions.append((at, word))
        elif isinstance(word, Ref):
            data = self.plan.buffers[word.buffer].data
            if isinstance(data, np.ndarray) and not is_open(word.offset):
                return address_of(data) + word.offset
            self.places[self.plan.buffers[word.buffer].storage].append((at, *word))
        elif is_open(word):
            self._numbers.append((at, word))
        else:
            return index(word)
        return 0

    def address_functions(self) -> None:
        """Wait until the functions are compiled, and write their addresses into the template."""
        for at, function in progress(self.functions, "kernels", MOST):
            self.template[at] = index(function)
        self.functions = []


class Runner:
    """Runs a plan at given sizes; any number of threads may call it at the same time.

    Raises CompileError if the arena would take too much memory.
    """

    def __init__(self, open: OpenPlan, sizes: Sequence[int], values: Values, arenas: Arenas, cache: bool) -> None:
        self.open, self._values, self._arenas, self._cache = open, values, arenas, cache
        self.sizes = dict(zip(open.trace.assumed, sizes, strict=True))
        self.output_types = tuple([_type_at(t, values) for t in open.plan.output_types])
        self.in_place = open.plan.in_place
        self._places = open.places_at(values)
        self.arena_bytes = self._places.nbytes
        reserve(self.arena_bytes, "the memory of values between inputs and outputs")
        for type in self.output_types:
            expect(type.nbytes, "the result")
        self._pool: list[_Instance] = []
        self.output_specs = [(t.dims, t.dtype.numpy) for t in self.output_types]

    @lazy_property
    def plan(self) -> Plan:
        """The plan with plain numbers instead of its open sizes."""
        return _plan_at(self.open, self._values) if self.sizes else self.open.plan

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
        if self.open.plan.errors:
            self._raise(instance)
        self._pool.append(instance)
        return outs

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
            found = [run() for _ in progress(range(runs), "runs", MOST)]
        finally:
            instance.arena = None
            self._arenas.give_back(arena)
        self._raise(instance)
        return found

    def allocations(self) -> list[Allocation]:
        """The buffers in the arena, in the order of their first steps."""
        return [Allocation(b, self._places.offsets[b], self.plan.buffers[b].nbytes, *life)
                for b, life in self.open.lives.items()]

    def repeated(self, step: int, times: int) -> Runner:
        """A runner that runs one step `times` times per call, on an arena of its own."""
        plan = self.open.plan._replace(steps=(self.open.plan.steps[step],) * times)
        return Runner(OpenPlan(plan, self.open.trace), tuple(self.sizes.values()), self._values, Arenas(), self._cache)

    def clear_arena(self) -> None:
        """Write zeros to the arena that the next run will take."""
        arena = self._arenas.take(self.arena_bytes)
        arena.array[:] = 0
        self._arenas.give_back(arena)

    def _instance(self, *, traced: bool = False) -> _Instance:
        numbers = self.open.numbers.at(self._values)
        for word in (*(x for _, x in self.open.functions), *numbers):  # begin all compilations before waiting for one
            if isinstance(word, Function | FunctionTable):
                word.want()
        if self.open.functions:
            self.open.address_functions()
        return _Instance(self.open, self._values, numbers, self._places, self._cache, traced=traced)

    def _raise(self, instance: _Instance) -> None:
        for number, make in zip(instance.reports, self.open.plan.errors, strict=True):
            if number:
                raise self._values.of(make)(number)

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
            return outputs[buffer.index] if buffer.storage == "output" else instance.view(b)

        out = step.call(*(None if b is None else array(b) for b in step.inputs))
        for b, x in zip(step.outputs, out if isinstance(out, tuple) else (out,), strict=True):
            target = array(b)
            target[...] = np.asarray(x).reshape(target.shape)


def _plan_at(open: OpenPlan, values: Values) -> Plan:
    """The plan with `values` instead of open sizes, except in argument blocks: an `_Instance` fills in their words."""
    plan, buffers, steps = open.plan, list(open.plan.buffers), list(open.plan.steps)
    for k in open.open_buffers:
        b = buffers[k]
        buffers[k] = Buffer(b.storage, values.of(b.nbytes), b.type and _type_at(b.type, values), b.index,
                            values.of(b.data))
    for k in open.open_steps:
        s = steps[k]
        steps[k] = values.of(s) if isinstance(s, PythonStep) else s._replace(
            kernel=values.of(s.kernel), blocks=values.of(s.blocks), pieces=values.of(s.pieces), macs=values.of(s.macs),
            words={name: values.of(w) if isinstance(w, Later) else w for name, w in s.words.items()},
            parts=values.of(s.parts))
    return plan._replace(buffers=tuple(buffers), steps=tuple(steps), errors=values.of(plan.errors),
                         output_types=tuple([_type_at(t, values) for t in plan.output_types]))


def _type_at(type: TensorType, values: Values) -> TensorType:
    return TensorType(type.dtype, values.of(type.shape))


class _Instance:
    """The argument words and `segments` of a plan. Only one run at a time uses them.

    A segment is a Python step, or a table of neighboring kernel steps that run in one native call. With `traced`,
    kernel steps record their times and threads, and `self.traced` lists the recorders (None for a Python step).
    """

    def __init__(self, open: OpenPlan, values: Values, numbers: Sequence[int | Function | FunctionTable],
                 places: Places, cache: bool, *, traced: bool = False) -> None:
        self._open, self._values, plan = open, values, open.plan
        self._constants: dict[int, np.ndarray | None] = {}
        self.reports = (ctypes.c_int64 * len(plan.errors))()
        self.words = open.template.copy()
        self.words[open.numbers_at] = list(map(index, numbers))
        for at, k, _ in open.places["report"]:
            self.words[at] = ctypes.addressof(self.reports) + 8 * plan.buffers[k].index
        for at, k, offset in open.places["constant"]:
            data = self._data(k)
            assert data is not None
            self.words[at] = address_of(data) + values.of(offset)
        arrays, vary = open.array_words
        self._arrays = values.of(arrays) if vary else arrays
        self._in_arena, _, _, later = open.arena_words
        self._relative, self._offsets = places.relative, places.offsets
        if later:
            self._relative = places.relative.copy()
            for n, offset in later:
                self._relative[n] += values.of(offset)
        self._base = 0
        self.arena: Arena | None = None
        self._aligned = open.aligned
        self._copies: dict[int, np.ndarray] = {}
        self.traced: list[TracedStep | None] = []
        table = self.words[:STEP_WORDS * len(open.starts)].reshape(-1, STEP_WORDS)
        table[:, STEP.number("args")] = self.words.ctypes.data + 8 * open.starts
        self.segments = [self._table(table[x], cache, traced) if isinstance(x, slice) else self._in_python(x)
                         for x in open.segments]

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

    def view(self, b: int) -> np.ndarray:
        data, type = self._data(b), self._open.plan.buffers[b].type
        if data is not None:
            return data
        assert type is not None and self.arena is not None
        type = _type_at(type, self._values)
        raw = self.arena.array[self._offsets[b]:self._offsets[b] + type.nbytes]
        return raw.view(type.dtype.numpy).reshape(type.dims)

    def _data(self, b: int) -> np.ndarray | None:
        """The array of a constant buffer at these sizes. The instance keeps it, because steps have its address."""
        if b not in self._constants:
            self._constants[b] = self._values.of(self._open.plan.buffers[b].data)
        return self._constants[b]

    def _copied(self, number: int, x: np.ndarray) -> int:
        if number not in self._copies:
            self._copies[number] = aligned_empty(x.nbytes)
        room = self._copies[number]
        room[:] = x.reshape(-1).view(np.uint8)
        return room.ctypes.data

    def _in_python(self, step: PythonStep) -> PythonStep:
        self.traced.append(None)
        return self._values.of(step)

    def _table(self, rows: np.ndarray, cache: bool, traced: bool) -> team.StepTable:
        """The table of neighboring kernel steps; if `traced`, recording steps replace the steps in `rows`."""
        if traced:
            from graphq.kernels.threads.traced import TracedStep

            watched = [TracedStep(row, cache) for row in rows.tolist()]
            self.traced += watched
            rows[:] = np.array([step.row for step in watched], np.int64)
        return team.StepTable(rows, cache)

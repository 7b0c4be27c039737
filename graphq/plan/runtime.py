"""The Plan: a flat table of steps over one arena, and running it.

A buffer is where a value lives: an input's array, an output's, a constant's, or a piece of the arena whose offset is
planned by lifetime. A native step is (block function, argument words, number of blocks); a word that stands for an
address is a `Ref`, resolved when an `_Instance` (one arena and one table of words) is made or, for inputs and
outputs, at each call. Neighbouring native steps run in one call; a Python step runs a NumPy reference in between.
"""
from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import index
from time import perf_counter_ns
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np

from graphq.errors import CompileError
from graphq.ir import TensorType
from graphq.kernels.jit.memory import LINE, aligned_empty
from graphq.kernels.jit.modules import Function
from graphq.kernels.jit.registry import Word
from graphq.kernels.threads import team

VIEWS = frozenset({"static_reshape"})
"""Operations whose result is their operand's memory under another shape: they take no step."""


class Ref(NamedTuple):
    """An argument word: the address of a buffer plus bytes."""

    buffer: int
    offset: int = 0


Argument: TypeAlias = Word | Ref


@dataclass(frozen=True)
class Buffer:
    """`storage` is "input", "output" or "report" (`index` says which), "constant" (`data`) or "arena".

    Of an `aligned` input a run copies an array that does not start at a multiple of 64 bytes.
    """

    storage: Literal["input", "output", "report", "constant", "arena"]
    nbytes: int
    type: TensorType | None = None
    index: int = 0
    data: np.ndarray | None = field(default=None, compare=False)
    aligned: bool = False


@dataclass(frozen=True)
class NativeStep:
    """Run `function(words, i)` for i in range(blocks), in parallel when there is enough work.

    `keep` are the modules (nested in tuples) whose block functions the step runs, `macs` its multiply-accumulates.
    """

    kernel: str
    function: Function
    words: tuple[Argument, ...]
    blocks: int
    parallel: bool
    keep: object = field(default=None, repr=False, compare=False)
    macs: int = 0


class PythonStep(NamedTuple):
    """Run Python on the arrays of `inputs` (None: absent) and copy its results to `outputs`.

    `kernel` says what it is; `reference` marks an operation that runs as its NumPy reference, for lack of a kernel.
    """

    kernel: str
    call: Callable[..., Any]
    inputs: tuple[int | None, ...]
    outputs: tuple[int, ...]
    reference: bool = True


Step: TypeAlias = NativeStep | PythonStep
MakeError: TypeAlias = Callable[[int], Exception]
"""The error of a number that a step reported."""


class Plan(NamedTuple):
    """Buffers, steps in order, and what a run raises when a step stored a number other than 0 in a report."""

    buffers: tuple[Buffer, ...]
    steps: tuple[Step, ...]
    output_types: tuple[TensorType, ...]
    threads: int
    level: str = ""
    errors: tuple[MakeError, ...] = ()

    @property
    def references(self) -> list[str]:
        """The nodes that run as NumPy references, by their descriptions."""
        return [s.kernel for s in self.steps if isinstance(s, PythonStep) and s.reference]


def plan_arena(buffers: Sequence[Buffer], steps: Sequence[Step]) -> tuple[dict[int, int], int]:
    """Offsets of the arena's buffers, and its size in bytes; buffers with disjoint lifetimes may share space.

    Greedy by size: the largest first, each at the lowest offset that is free over its lifetime.
    """
    life: dict[int, tuple[int, int]] = {}
    for k, step in enumerate(steps):
        for b in _touched(step):
            if buffers[b].storage == "arena":
                life[b] = (life.get(b, (k, k))[0], k)
    placed: list[tuple[int, int, int]] = []  # buffer, begin, end
    offsets: dict[int, int] = {}
    for b in sorted(life, key=lambda b: (-buffers[b].nbytes, b)):
        first, last = life[b]
        clashes = sorted((begin, end) for o, begin, end in placed if life[o][0] <= last and first <= life[o][1])
        at, size = 0, -(-buffers[b].nbytes // LINE) * LINE
        for begin, end in clashes:
            if at + size <= begin:
                break
            at = max(at, end)
        offsets[b] = at
        placed.append((b, at, at + size))
    return offsets, max((end for _, _, end in placed), default=0)


def _touched(step: Step) -> list[int]:
    if isinstance(step, NativeStep):
        return [w.buffer for w in step.words if isinstance(w, Ref)]
    return [*(b for b in step.inputs if b is not None), *step.outputs]


class _Patch(NamedTuple):
    """words[word] = address of the call's array + offset."""

    word: int
    array: int
    offset: int


class _Instance:
    """What one caller at a time needs to run a plan: an arena, and argument words that point into it.

    Neighbouring native steps run in one call, or with `apart` each in its own.
    """

    def __init__(self, plan: Plan, offsets: Mapping[int, int], size: int, cache: bool, *, apart: bool = False) -> None:
        try:
            self.arena = aligned_empty(size)
        except MemoryError:
            raise CompileError(f"the plan needs {size} bytes for what is between its inputs and outputs") from None
        base = self.arena.ctypes.data
        native = [s for s in plan.steps if isinstance(s, NativeStep)]
        self.reports = (ctypes.c_int64 * len(plan.errors))()
        self.words = np.zeros(max(1, sum(len(s.words) for s in native)), np.int64)
        self.patches: list[_Patch] = []
        self.aligned = [b.index for b in plan.buffers if b.storage == "input" and b.aligned]
        self.copies: dict[int, np.ndarray] = {}
        inputs = sum(b.storage == "input" for b in plan.buffers)
        starts, at = [], 0
        for step in native:
            starts.append(at)
            for word in step.words:
                self.words[at] = self._word(plan, word, at, base, offsets, inputs)
                at += 1
        self.views = {b: self._view(plan.buffers[b], offsets.get(b)) for b in range(len(plan.buffers))
                      if plan.buffers[b].storage in ("arena", "constant") and plan.buffers[b].type is not None}
        self.segments = self._cut(plan, [self.words.ctypes.data + 8 * s for s in starts], cache, apart)

    def point_at(self, arrays: Sequence[np.ndarray]) -> None:
        """Set the addresses of a call's inputs and outputs."""
        addresses = [x.__array_interface__["data"][0] for x in arrays]
        for k in self.aligned:
            if addresses[k] % LINE:
                addresses[k] = self._copied(k, arrays[k])
        for word, array, offset in self.patches:
            self.words[word] = addresses[array] + offset

    def _copied(self, number: int, x: np.ndarray) -> int:
        """The address of an aligned copy of input `number`."""
        if number not in self.copies:
            self.copies[number] = aligned_empty(x.nbytes)
        room = self.copies[number]
        room[:] = x.reshape(-1).view(np.uint8)
        return room.ctypes.data

    def _word(self, plan: Plan, word: Argument, at: int, base: int, offsets: Mapping[int, int], inputs: int) -> int:
        if not isinstance(word, Ref):
            return index(word)
        buffer = plan.buffers[word.buffer]
        if buffer.storage == "arena":
            return base + offsets[word.buffer] + word.offset
        if buffer.storage == "report":
            return ctypes.addressof(self.reports) + 8 * buffer.index
        if buffer.storage == "constant":
            assert buffer.data is not None
            return buffer.data.ctypes.data + word.offset
        self.patches.append(_Patch(at, buffer.index + (inputs if buffer.storage == "output" else 0), word.offset))
        return 0

    def _view(self, buffer: Buffer, offset: int | None) -> np.ndarray | None:
        if buffer.data is not None or offset is None or buffer.type is None:
            return buffer.data
        raw = self.arena[offset:offset + buffer.type.nbytes]
        return raw.view(buffer.type.dtype.numpy).reshape(buffer.type.dims)

    def _cut(self, plan: Plan, addresses: list[int], cache: bool,
             apart: bool) -> list[team.StepTable | PythonStep]:
        out: list[team.StepTable | PythonStep] = []
        native = iter(addresses)
        for alone, steps in groupby(plan.steps, lambda step: isinstance(step, PythonStep)):
            if alone:
                out += steps  # type: ignore[arg-type]
                continue
            rows = [team.StepRow(s.function, next(native), s.blocks, s.parallel)
                    for s in steps if isinstance(s, NativeStep)]
            groups = [[row] for row in rows] if apart else [rows]
            out += [team.StepTable(group, plan.threads, cache) for group in groups]
        return out


class Runner:
    """Runs a plan; any number of threads may call at a time, each with an instance of its own from a pool."""

    def __init__(self, plan: Plan, cache: bool = True) -> None:
        self.plan = plan
        self.offsets, self.arena_bytes = plan_arena(plan.buffers, plan.steps)
        self.pool: list[_Instance] = []
        self.cache = cache
        self.output_specs = [(t.dims, t.dtype.numpy) for t in plan.output_types]

    def __call__(self, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray] | None = None) -> list[np.ndarray]:
        """Run on checked, contiguous arrays; the outputs (new ones, or those given, filled)."""
        outs = list(outputs) if outputs is not None else [np.empty(*spec) for spec in self.output_specs]
        try:
            instance = self.pool.pop()
        except IndexError:
            instance = _Instance(self.plan, self.offsets, self.arena_bytes, self.cache)
        instance.point_at([*inputs, *outs])
        self._run(instance, inputs, outs)
        self.pool.append(instance)
        return outs

    def step_times(self, inputs: Sequence[np.ndarray], runs: int) -> np.ndarray:
        """Run on checked arrays, each step by itself: the seconds of every step, [runs, steps]."""
        outs = [np.empty(*spec) for spec in self.output_specs]
        instance = _Instance(self.plan, self.offsets, self.arena_bytes, self.cache, apart=True)
        instance.point_at([*inputs, *outs])
        times = np.empty((runs, len(instance.segments)))
        for run, step in np.ndindex(*times.shape):
            start = perf_counter_ns()
            self._segment(instance.segments[step], instance, inputs, outs)
            times[run, step] = 1e-9 * (perf_counter_ns() - start)
        self._raise(instance)
        return times

    def _run(self, instance: _Instance, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> None:
        for part in instance.segments:
            self._segment(part, instance, inputs, outputs)
        self._raise(instance)

    def _raise(self, instance: _Instance) -> None:
        """Raise what a step has reported."""
        for number, make in zip(instance.reports, self.plan.errors, strict=True):
            if number:
                raise make(number)

    def _segment(self, part: team.StepTable | PythonStep, instance: _Instance, inputs: Sequence[np.ndarray],
                 outputs: Sequence[np.ndarray]) -> None:
        if isinstance(part, team.StepTable):
            part.run()
        else:
            self._python(part, instance, inputs, outputs)

    def _python(self, step: PythonStep, instance: _Instance, inputs: Sequence[np.ndarray],
                outputs: Sequence[np.ndarray]) -> None:
        def array(b: int) -> np.ndarray:
            buffer = self.plan.buffers[b]
            if buffer.storage == "input":
                return inputs[buffer.index]
            view = outputs[buffer.index] if buffer.storage == "output" else instance.views[b]
            assert view is not None
            return view

        out = step.call(*(None if b is None else array(b) for b in step.inputs))
        for b, x in zip(step.outputs, out if isinstance(out, tuple) else (out,), strict=True):
            target = array(b)
            target[...] = np.asarray(x).reshape(target.shape)

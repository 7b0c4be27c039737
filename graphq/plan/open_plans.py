"""Plans with open sizes: one plan runs at many sizes.

Arguments of kernels that are open sizes are computed for each new set of sizes, and everything else once.
"""
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from operator import index
from typing import TYPE_CHECKING

import numpy as np

from graphq.base.locks import lazy_property
from graphq.base.programs import Numbers, Program, Values
from graphq.base.sizes import Trace, is_open, parts
from graphq.ir import TensorType
from graphq.kernels.jit import Function, FunctionTable, address_of
from graphq.plan.plan import Plan, PythonStep, open_numbers, plan_arena
from graphq.plan.runtime import Arenas, NativePlan, Runner

if TYPE_CHECKING:
    from graphq.rewrite.fixpoint import History
    from graphq.rewrite.rule import Refusal


class OpenPlan(NativePlan):
    """A plan for many sizes, with the trace of its open sizes (`base.sizes`).

    `because` says why earlier plans do not hold at its example; `prepared`, whether a run's kernels are compiled.
    """

    because, prepared = "", False

    def __init__(self, plan: Plan, trace: Trace, passed: "tuple[History, list[Refusal]] | None" = None) -> None:
        super().__init__(plan, passed)
        self.trace = trace
        self._numbers_at = np.array([at for at, _ in self.numbers], np.int64)
        self._numbers = Numbers([number for _, number in self.numbers])
        self._offsets_vary = is_open((self.arrays, self.arena))
        self._nbytes = Numbers([plan.buffers[b].nbytes for b in self.clashes])
        self._latest: tuple[list[int], tuple[Mapping[int, int], int]] = [], ({}, 0)

    @property
    def sizes(self) -> tuple[int, ...]:
        """The sizes of the example that the plan was made for."""
        return tuple(self.trace.assumed.values())

    @lazy_property
    def program(self) -> Program:
        """The program that computes all numbers of the plan that depend on open sizes."""
        results = list(parts(open_numbers(self.plan)))
        for x in results:
            self.trace.slot(x)  # raises if the Size x belongs to another trace
        return Program(self.trace, results)

    def at(self, sizes: Sequence[int], arenas: Arenas, cache: bool = True) -> Runner | None:
        """Make the runner for these sizes; None if they break an assumption that the plan was made with."""
        values = self.program.at(sizes)
        return None if values is None else _RunnerAtSizes(self, sizes, values, arenas, cache)

    def placed(self, values: Values) -> tuple[Mapping[int, int], int]:
        """Place the buffers in the arena; the latest placement is kept while no buffer changes its size."""
        sizes = self._nbytes.at(values)
        latest, placed = self._latest
        if sizes != latest:
            placed = plan_arena(dict(zip(self.clashes, sizes, strict=True)), self.clashes)
            self._latest = sizes, placed
        return placed

    def filled(self, values: Values) -> NativePlan:
        """The native plan with all numbers that depend on open sizes filled in, except in `plan`."""
        numbers = self._numbers.at(values)
        for x in numbers:  # begin all compilations before waiting for one
            if type(x) is not int and isinstance(x, Function | FunctionTable):
                x.want()
        self.address_functions()
        made = copy(self)
        made.template = self.template.copy()
        made.template[self._numbers_at] = list(map(index, numbers))
        for at, b, offset in self.constants:
            made.template[at] = address_of(values.of(self.plan.buffers[b].data)) + values.of(offset)
        if self._offsets_vary:
            made.arrays, made.arena = _offsets_at(self.arrays, values), _offsets_at(self.arena, values)
        made.segments = [values.of(x) if isinstance(x, PythonStep) else x for x in self.segments]
        made.errors = values.of(self.errors)
        self.prepared = True
        return made


def _offsets_at(words: Iterable[tuple[int, int, int]], values: Values) -> list[tuple[int, int, int]]:
    return [(at, of, offset if type(offset) is int else values.of(offset)) for at, of, offset in words]


class _RunnerAtSizes(Runner):
    """The runner of an open plan at given sizes. `values` also keeps constants alive that depend on the sizes."""

    def __init__(self, open: OpenPlan, sizes: Sequence[int], values: Values, arenas: Arenas, cache: bool) -> None:
        self._open, self._values = open, values
        types = tuple([_type_at(t, values) for t in open.plan.output_types])
        super().__init__(open, arenas, cache, types, open.placed(values))
        self.sizes = dict(zip(open.trace.assumed, sizes, strict=True))

    @lazy_property
    def plan(self) -> Plan:
        """The plan with plain numbers."""
        plan, values = self._open.plan, self._values
        return plan._replace(
            buffers=tuple([replace(b, nbytes=values.of(b.nbytes), type=b.type and _type_at(b.type, values),
                                   data=values.of(b.data))
                           if is_open((b.nbytes, b.data, b.type and b.type.shape)) else b for b in plan.buffers]),
            steps=tuple([values.of(s) if is_open(s) else s for s in plan.steps]),
            errors=values.of(plan.errors), output_types=self.output_types)

    def _ready(self) -> NativePlan:
        return self._open.filled(self._values)


def _type_at(type: TensorType, values: Values) -> TensorType:
    return TensorType(type.dtype, values.of(type.shape))

"""From Graph to Plan: passes, partitions, steps; and CompiledGraph, what the user calls."""
from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from graphq.errors import CompileError, GraphError, InputError
from graphq.explain import explain
from graphq.interpret import check_array, check_inputs, pack_outputs, require_outputs
from graphq.ir import Graph, TensorType
from graphq.kernels import isa as isa_levels
from graphq.kernels.isa import Level
from graphq.passes.pipeline import PIPELINE, run_passes
from graphq.plan import build_plan, evaluate_formulas
from graphq.rewrite import Pass, Refusal
from graphq.runtime import Plan, PythonStep, Runner
from graphq.threads import resolve_threads

MAX_PLANS = 64
"""Plans that a model with open shapes keeps, one for each set of shapes; the oldest goes first."""


def compile(graph: Graph, *, isa: str | None = None, threads: int | None = None, strict: bool = False,
            passes: Sequence[Pass] | None = None, cache: bool = True) -> CompiledGraph:
    """Compile `graph`; the graph itself is not changed.

    `isa`: the highest instruction set level to use ("scalar", "avx2", "avx512", "avx512_vnni", "amx"; default
    $GRAPHQ_ISA, else the best that this machine has). `threads`: at most so many (default: all cores the process may
    use). `strict`: refuse operations that would run as NumPy references. `passes`: instead of `passes.PIPELINE`.
    `cache`: keep compiled kernels on disk. Results do not depend on `isa`, `threads` or `cache`.

    Raises GraphError when the graph has no outputs, KernelError for a level that this machine lacks, CompileError when
    `strict` refuses.
    """
    if not isinstance(graph, Graph):
        raise GraphError(f"compile takes a Graph, got {graph!r}")
    require_outputs(graph)
    return CompiledGraph(graph, isa_levels.resolve(isa, cache=cache), resolve_threads(threads), strict,
                         PIPELINE if passes is None else tuple(passes), cache)


class CompiledGraph:
    """A compiled graph: `model(x=array)` runs it, from any number of threads at a time.

    `graph` is the graph after the passes. Where shapes are open, or an input is marked constant, it is that of the
    first call, and each new set of shapes makes a plan of its own.
    """

    def __init__(self, graph: Graph, level: Level, threads: int, strict: bool, passes: tuple[Pass, ...],
                 cache: bool) -> None:
        self.source = graph.copy()
        self.level, self.threads, self.strict, self.passes, self.cache = level, threads, strict, passes, cache
        self.names = [str(v.name) for v in graph.inputs]
        self.constant_inputs = [str(v.name) for v in graph.inputs if v.property == "constant"]
        self._constants: dict[str, np.ndarray] = {}
        self._runners: dict[tuple[tuple[int, ...], ...], tuple[Runner, Graph]] = {}
        self._lock = threading.Lock()
        self.refusals: list[Refusal] = []
        self._runner: Runner | None = None
        self._checks: list[tuple[str, tuple[int, ...], np.dtype]] = []
        if all(v.type.known for v in self.source.inputs) and not self.constant_inputs:
            self._runner, self.graph = self._build(self.source)
            self._checks = [(n, v.type.dims, v.dtype.numpy)
                            for n, v in zip(self.names, self.source.inputs, strict=True)]
        else:
            self.graph = self.source.copy()
            self.refusals = run_passes(self.graph, self.passes)

    def __call__(self, inputs: Mapping[str, Any] | None = None, /, *,
                 out: np.ndarray | Mapping[str, np.ndarray] | None = None, **arrays: Any) -> Any:
        """Run on arrays by input name, as keywords or one mapping; the output, or a dict of several by name.

        Inputs must have the dtype and shape that the graph states; those that are not C-contiguous are copied. `out`
        takes the results instead of new arrays: C-contiguous, writeable, of the outputs' types, sharing no memory with
        inputs. (An input named "out" goes into the mapping.) Raises InputError, naming the input, the rule and the
        values, before anything runs.
        """
        given = arrays if inputs is None else {**inputs, **arrays}
        runner = self._runner
        if runner is not None:
            checked = self._fast_check(given)
        else:
            checked_by_name = check_inputs(self.source, given)
            runner = self._specialised(checked_by_name)
            checked = [checked_by_name[n] for n in self.names if n not in self._constants]
        outs = runner(checked, None if out is None else self._check_out(runner.plan, out, checked))
        return outs[0] if len(outs) == 1 else dict(zip(self.source.output_names, outs, strict=True))

    def explain(self) -> str:
        """What fused into which partitions, which kernels run them, and why anything did not fuse."""
        runner = self._runner or next((r for r, _ in reversed(list(self._runners.values()))), None)
        return explain(self.graph, runner.plan if runner else None, self.refusals, self.level, self.threads)

    def formula(self, inputs: Mapping[str, Any] | None = None, /, **arrays: Any) -> Any:
        """The same numbers in NumPy: each partition by its written formula, all else by its reference.

        Equal bit for bit to calling the model, on every CPU and thread count.
        """
        checked = check_inputs(self.source, {**(inputs or {}), **arrays})
        graph = self._at_shapes(checked)[1] if self._runner is None else self.graph
        return pack_outputs(graph, evaluate_formulas(graph, checked))

    def _fast_check(self, given: Mapping[str, Any]) -> list[np.ndarray]:
        """The arrays in order of the inputs; the usual good case without the cost of messages."""
        if len(given) == len(self._checks):
            out = []
            for name, shape, dtype in self._checks:
                x = given.get(name)
                if type(x) is np.ndarray and x.shape == shape and x.dtype == dtype and x.flags.c_contiguous \
                        and x.flags.aligned:
                    out.append(x)
                    continue
                break
            else:
                return out
        checked = check_inputs(self.source, given)
        return [checked[n] for n in self.names]

    def _specialised(self, arrays: Mapping[str, np.ndarray]) -> Runner:
        return self._at_shapes(arrays)[0]

    def _at_shapes(self, arrays: Mapping[str, np.ndarray]) -> tuple[Runner, Graph]:
        """The plan for these shapes, and its graph. Inputs marked constant keep the arrays of the first call."""
        key = tuple(arrays[n].shape for n in self.names)
        with self._lock:
            for name in self.constant_inputs:
                self._constants.setdefault(name, arrays[name].copy())
            if key not in self._runners:
                while len(self._runners) >= MAX_PLANS:
                    self._runners.pop(next(iter(self._runners)))
                types = {n: TensorType(v.dtype, arrays[n].shape)
                         for n, v in zip(self.names, self.source.inputs, strict=True)}
                self._runners[key] = self._build(self.source.specialise(types, self._constants))
                self.graph = self._runners[key][1]
            return self._runners[key]

    def _build(self, source: Graph) -> tuple[Runner, Graph]:
        graph = source.copy()
        self.refusals = run_passes(graph, self.passes)
        plan = build_plan(graph, self.level, self.threads, self.cache)
        slow = [s.kernel for s in plan.steps if isinstance(s, PythonStep) and s.reference]
        if self.strict and slow:
            raise CompileError(f"strict: {len(slow)} operations would run as NumPy references: {'; '.join(slow[:5])}\n"
                               + explain(graph, plan, self.refusals, self.level, self.threads))
        return Runner(plan, self.cache), graph

    def _check_out(self, plan: Plan, out: np.ndarray | Mapping[str, np.ndarray],
                   inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        names = self.source.output_names
        if not isinstance(out, Mapping):
            if len(names) != 1:
                raise InputError(f"out must be a mapping of the outputs {names} to arrays")
            out = {names[0]: out}
        if set(out) != set(names):
            raise InputError(f"out must hold the outputs {names}, got {list(out)}")
        for name, type in zip(names, plan.output_types, strict=True):
            x = out[name]
            if not isinstance(x, np.ndarray):
                raise InputError(f"out '{name}' must be an array, got {x!r}")
            check_array(name, type, x)
            if not (x.flags.c_contiguous and x.flags.writeable and x.flags.aligned):
                raise InputError(f"out '{name}' must be C-contiguous, aligned and writeable")
        arrays = [out[n] for n in names]
        for k, x in enumerate(arrays):
            if any(np.may_share_memory(x, y) for y in (*inputs, *arrays[:k])):
                raise InputError(f"out '{names[k]}' shares memory with an input or another output")
        return arrays

"""Kernel evidence: instructions of a plan's native steps (kernel calls), and each step's share of the machine's peak.

All code in a step's modules is counted, even code that no call reaches. Most modules have the code of a single kernel.
The module that recomputes outputs near rounding ties has code for all layouts of activations, although a step uses only
one layout.
"""
import statistics
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import numpy as np

from graphq.errors import KernelError
from graphq.ir import counted
from graphq.kernels.jit import Function, FunctionTable, Module
from graphq.kernels.jit.compiling import Job
from graphq.kernels.matmul import peaks
from graphq.kernels.matmul.kernel_table import KERNELS
from graphq.kernels.target.isa import level_named
from graphq.kernels.target.mnemonics import count
from graphq.plan.plan import AnyStep, Plan, Step, touched
from graphq.plan.runtime import Runner

_instruction_counts: dict[str, dict[str, int]] = {}
"""The instruction counts of modules, by the text of their sources (`Source.text`)."""


def prepare_counts(modules: Iterable[Module]) -> None:
    """Make and count the assembly of modules in parallel. A failure is ignored: `instructions` then tries again."""
    sources = {module.source.text: module.source for module in modules if module.source.text not in _instruction_counts}
    jobs = [(text, Job("assembly", source)) for text, source in sources.items()]
    for text, job in jobs:
        with suppress(KernelError):
            _instruction_counts[text] = count(job.result())


def instructions(module: Module) -> dict[str, int]:
    """Count the decisive instructions of a module, once per process. Raises KernelError if it cannot be compiled."""
    text = module.source.text
    if text not in _instruction_counts:
        _instruction_counts[text] = count(Job("assembly", module.source).result())
    return _instruction_counts[text]


@dataclass(frozen=True)
class Evidence:
    """Measurements of a native step; `tile` is None if its kernel has no tile.

    `counts` has the number of each decisive instruction in the assembly of the step's modules, or the reason why there
    is no assembly. `seconds` is the median of single runs with warm caches. `rate` is the step's speed, and `peak` the
    highest speed of this machine: multiply-accumulates per second, reached by the instruction `decisive` on `threads`
    cores. Both `decisive` and `peak` are None if no multiplying instruction is found. For a step without
    multiply-accumulates, both speeds are bytes per second, `peak` is the speed of a copy, and `decisive` is None.
    `exact` is the share of products that a saturating instruction computes, if weights are sorted for it.
    """

    kernel: str
    level: str
    tile: tuple[int, int] | None
    counts: dict[str, int] | str
    seconds: float
    threads: int
    macs: int
    nbytes: int
    decisive: str | None
    peak: float | None
    exact: float | None = None

    @property
    def rate(self) -> float:
        """The speed of the step, in multiply-accumulates or bytes per second."""
        return (self.macs or self.nbytes) / self.seconds


def gather(runner: Runner, k: int, cache: bool = True) -> Evidence:
    """Count the instructions of native step `k` and measure its speed, in separate memory.

    A call takes about 0.1 s. The first call for a plan also compiles all its kernels once more.
    """
    plan = runner.plan
    step = plan.steps[k]
    assert isinstance(step, Step)
    prepare(plan)
    counts = _counts(step)
    seconds = statistics.median(peaks.samples(partial(_alone, runner, k)))
    decisive, peak = ceiling(plan, step, cache)
    kernel = KERNELS.get(step.kernel)
    return Evidence(step.kernel, kernel.level if kernel else plan.level, kernel.tile if kernel else None, counts,
                    seconds, max(1, step.pieces), step.macs, touched_bytes(plan, step), decisive, peak, step.exact)


def prepare(plan: Plan) -> None:
    """Start making the assembly of all kernels of a plan, because no compilation may run during a measurement."""
    prepare_counts(x for s in plan.steps if isinstance(s, Step) for x in modules(s))


def ceiling(plan: Plan, step: Step, cache: bool = True) -> tuple[str | None, float | None]:
    """The bound on a step's speed, measured on this machine: an instruction, and the instruction's peak rate.

    For a step with multiply-accumulates, the result is the instruction that computes most of them, and the
    multiply-accumulates per second that it reaches on the step's threads. Both are None if `peaks` has measured none of
    the step's instructions. For any other step, the instruction is None, and the rate is the bytes per second of a copy
    of the same size.
    """
    threads = max(1, step.pieces)
    if not step.macs:
        return None, peaks.bandwidth(touched_bytes(plan, step), threads, cache)
    counts = _counts(step)
    decisive = max(counts, key=peaks.products, default=None) if isinstance(counts, dict) else None
    if decisive is None or not peaks.products(decisive):
        return None, None
    return decisive, threads * peaks.peak(decisive, level_named(plan.level), cache)


def touched_bytes(plan: Plan, step: AnyStep) -> int:
    """The bytes of the buffers that a step reads and writes, each counted once."""
    return sum(plan.buffers[b].nbytes for b in set(touched(step)))


def modules(step: Step) -> tuple[Module, ...]:
    """The modules whose functions the step runs, each once."""
    words = [step.function, *step.block]
    functions = [x for w in words for x in (w.entries if isinstance(w, FunctionTable) else (w,))]
    return tuple(dict.fromkeys(x.module for x in functions if isinstance(x, Function)))


def _counts(step: Step) -> dict[str, int] | str:
    counts: Counter[str] = Counter()
    try:
        for module in modules(step):
            counts.update(instructions(module))
    except KernelError as error:
        return str(error)
    return dict(sorted(counts.items()))


def _alone(whole: Runner, k: int, times: int) -> Callable[[], object]:
    """A function that runs step number `k` as often as `times` says: on zeros, with its own outputs and arena."""
    runner = whole.repeated(k, times)
    plan = runner.plan
    inputs = sorted((b.index, b.nbytes) for b in plan.buffers if b.storage == "input")
    call = partial(runner, [np.zeros(n, np.uint8) for _, n in inputs],
                   [np.zeros(t.dims, t.dtype.numpy) for t in plan.output_types])
    call()
    return call


def evidence_lines(e: Evidence) -> tuple[str, str]:
    """Two lines of text: the instructions, and the speed next to the peak.

    Examples: `ISA level scalar, tile 4x16: 4 vmulps xmm`; `0.412 ms on 2 threads, 873 GOPS: 93% of 936 by vmulps ymm`
    or `0.412 ms on 2 threads, 25.1 GB/s: 80% of 31.4 by copying`.
    """
    tile = f", tile {e.tile[0]}x{e.tile[1]}" if e.tile else ""
    counts = f"instructions not counted: {e.counts}" if isinstance(e.counts, str) else \
        ", ".join(f"{n} {name}" for name, n in e.counts.items()) or "none of the decisive instructions"
    if e.exact is not None:
        saturating = level_named(e.level).saturating
        assert saturating is not None
        counts += f"; {e.exact:.0%} of the products by {saturating.mnemonic}"
    scale, unit = (2e-9, "GOPS") if e.macs else (1e-9, "GB/s")
    speed = f"{1e3 * e.seconds:.3g} ms on {counted(e.threads, 'thread')}, {scale * e.rate:.3g} {unit}"
    if e.peak is not None:
        speed += f": {e.rate / e.peak:.0%} of {scale * e.peak:.3g} by {e.decisive or 'copying'}"
    return f"ISA level {e.level}{tile}: {counts}", speed

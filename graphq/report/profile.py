"""How long each step of a plan takes, in the plan's order: the report behind `CompiledGraph.profile()`."""
from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from graphq.plan.plan import NativeStep
from graphq.plan.runtime import Runner

_NAME = re.compile(r"%\S+ = ")


@dataclass(frozen=True)
class StepTime:
    """A step: its number in the plan, what it runs, its least time in seconds, and its multiply-accumulates."""

    number: int
    kernel: str
    seconds: float
    macs: int

    def __str__(self) -> str:
        rate = f", {2e-9 * self.macs / self.seconds:.4g} GOPS" if self.macs and self.seconds else ""
        return f"{self.number}: {1e3 * self.seconds:.4g} ms{rate}, {self.kernel}"


@dataclass(frozen=True)
class Profile:
    """The steps of a run in order; as text their sums by kernel and each of them, the longest first."""

    steps: tuple[StepTime, ...]

    @property
    def seconds(self) -> float:
        """The sum of all steps."""
        return sum(s.seconds for s in self.steps)

    def by_kernel(self) -> dict[str, float]:
        """Seconds by kernel, the longest first; NumPy references count by their operation."""
        sums: dict[str, float] = {}
        for s in self.steps:
            name = _NAME.sub("", s.kernel).partition("(")[0]
            sums[name] = sums.get(name, 0.0) + s.seconds
        return dict(sorted(sums.items(), key=lambda x: -x[1]))

    def __str__(self) -> str:
        total = self.seconds or 1.0
        lines = [f"{len(self.steps)} steps, {1e3 * self.seconds:.4g} ms; by kernel:"]
        lines += [f"  {1e3 * t:.4g} ms, {t / total:.1%}: {name}" for name, t in self.by_kernel().items()]
        lines.append("by step:")
        lines += [f"  {t}" for t in sorted(self.steps, key=lambda s: -s.seconds)]
        return "\n".join(lines)


def profile_steps(runner: Runner, inputs: Sequence[np.ndarray], runs: int) -> Profile:
    """The steps of a plan on checked arrays: the least time of each in `runs` runs, one by one in the plan's order.

    So caches are as in a run, and what other processes take does not count; that a call or a parallel step starts does.
    """
    least = runner.step_times(inputs, runs).min(axis=0)
    return Profile(tuple(StepTime(k, s.kernel, float(t), s.macs if isinstance(s, NativeStep) else 0)
                         for k, (s, t) in enumerate(zip(runner.plan.steps, least, strict=True))))

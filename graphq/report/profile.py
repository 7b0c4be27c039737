"""Measure the time of each step of a plan, and which thread ran which piece; write Chrome trace events.

Traces are in Google's "Trace Event Format", as a JSON object. A piece of a step is a complete event (`ph` "X")
on the track of its thread (`tid`), and times are microseconds; metadata events (`ph` "M") name the tracks.
"""
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from threading import get_ident
from typing import Any

import numpy as np

from graphq.base.paths import path_of
from graphq.base.progress import progress
from graphq.ir import Node, counted
from graphq.plan.plan import Plan, Step
from graphq.plan.runtime import Runner
from graphq.report.evidence import ceiling, prepare, touched_bytes

_NAME = re.compile(r"%\S+ = ")


@dataclass(frozen=True)
class Piece:
    """A piece of a step: one thread ran blocks `first` to `end`. Times are in seconds since the run began.

    `thread` is the `threading.get_ident` of that thread.
    """

    thread: int
    begin: float
    seconds: float
    first: int = 0
    end: int = 1


@dataclass(frozen=True)
class StepTime:
    """A step: its number in the plan, its kernel, its median time in seconds, and its multiply-accumulates.

    `nbytes` is the size of the buffers that the step reads and writes, `least` the step's shortest time in seconds.
    `pieces` are from the run that the profile shows. With `peaks`, `peak` is this machine's maximum on the same number
    of threads: multiply-accumulates per second of the `decisive` instruction, or bytes copied per second if the step
    has no multiply-accumulates. `operation` names the node that the step is a part of.
    """

    number: int
    kernel: str
    seconds: float
    macs: int
    nbytes: int = 0
    least: float = 0.0
    pieces: tuple[Piece, ...] = ()
    decisive: str | None = None
    peak: float | None = None
    operation: str = ""

    @property
    def gops(self) -> float:
        """Billions of operations per second, two for each multiply-accumulate."""
        return 2e-9 * self.macs / self.seconds if self.seconds else 0.0

    @property
    def gigabytes(self) -> float:
        """The size of the step's buffers divided by its time, in gigabytes per second."""
        return 1e-9 * self.nbytes / self.seconds if self.seconds else 0.0

    @property
    def share(self) -> float | None:
        """The share of the peak that the step reaches; None if the peak is not known."""
        if not self.peak or not self.seconds:
            return None
        return (self.macs or self.nbytes) / self.seconds / self.peak

    @property
    def name(self) -> str:
        """The kernel's name without details of the node; for a NumPy reference, the operation's name."""
        return _NAME.sub("", self.kernel).partition("(")[0]

    def __str__(self) -> str:
        rates = [f"{self.gops:.4g} GOPS"] * bool(self.gops) + [f"{self.gigabytes:.3g} GB/s"] * bool(self.gigabytes)
        if self.share is not None:
            rates.append(f"{self.share:.0%} of the peak by {self.decisive or 'copying'}")
        return ", ".join([f"{self.number}: {1e3 * self.seconds:.4g} ms", *rates, self.kernel])


@dataclass(frozen=True, repr=False)
class Profile:
    """The steps of a run, in order. Its text is two tables, by kernel and by step, longest times first.

    Times are medians over all runs. The pieces of the steps are from the run of median length; `caller` is the thread
    that called, `most` the largest number of threads that the plan may use.
    """

    steps: tuple[StepTime, ...]
    caller: int = 0
    most: int = 1

    @property
    def seconds(self) -> float:
        """The sum of the times of all steps."""
        return sum(s.seconds for s in self.steps)

    @property
    def elapsed(self) -> float:
        """The seconds from the start of the run to the end of its last piece."""
        return max((p.begin + p.seconds for s in self.steps for p in s.pieces), default=0.0)

    @property
    def threads(self) -> tuple[int, ...]:
        """The threads that ran pieces: the caller, then helpers in the order of their first piece."""
        pieces = sorted((p for s in self.steps for p in s.pieces), key=lambda p: p.begin)
        return tuple(dict.fromkeys([self.caller, *(p.thread for p in pieces)])) if pieces else ()

    @property
    def tracks(self) -> dict[int, str]:
        """The names of the threads in timelines: `caller`, `helper 1` and so on."""
        return {thread: f"helper {k}" if k else "caller" for k, thread in enumerate(self.threads)}

    @property
    def busy(self) -> dict[str, float]:
        """The share of the run that each thread spent on pieces; 0 for helpers without pieces."""
        tracks = self.tracks
        seconds = {**dict.fromkeys(tracks.values(), 0.0), **{f"helper {k}": 0.0 for k in range(len(tracks), self.most)}}
        for p in (p for s in self.steps for p in s.pieces):
            seconds[tracks[p.thread]] += p.seconds
        return {name: t / self.elapsed for name, t in seconds.items()} if self.elapsed else {}

    def by_kernel(self) -> dict[str, float]:
        """Seconds by kernel, the longest first; a NumPy reference counts for its operation."""
        sums: dict[str, float] = {}
        for s in self.steps:
            sums[s.name] = sums.get(s.name, 0.0) + s.seconds
        return dict(sorted(sums.items(), key=lambda x: -x[1]))

    def to_chrome_trace(self, path: str | os.PathLike[str]) -> None:
        """Write the pieces as a file for Perfetto (ui.perfetto.dev) and chrome://tracing, one track for each thread.

        Raises OSError, and GraphError if `path` is not a path.
        """
        data = {"traceEvents": list(trace_events(self)), "displayTimeUnit": "ms"}
        path_of(path).write_text(json.dumps(data, indent=0), encoding="utf-8")

    def __str__(self) -> str:
        total = self.seconds or 1.0
        lines = [f"{counted(len(self.steps), 'step')}, {1e3 * self.seconds:.4g} ms; by kernel:"]
        lines += [f"  {1e3 * t:.4g} ms, {t / total:.1%}: {name}" for name, t in self.by_kernel().items()]
        lines.append("by step:")
        lines += [f"  {t}" for t in sorted(self.steps, key=lambda s: -s.seconds)]
        if self.elapsed:
            lines.append(f"a run of {1e3 * self.elapsed:.4g} ms on {counted(len(self.busy), 'thread')}, busy for "
                         + ", ".join(f"{part:.0%}" for part in self.busy.values()))
        return "\n".join(lines)

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        from graphq.report.notebook import profile_html

        return profile_html(self)


def profile_steps(runner: Runner, inputs: Sequence[np.ndarray], runs: int, *, peaks: bool = False,
                  cache: bool = True, nodes: Sequence[Node] = ()) -> Profile:
    """Run a plan `runs` times on checked arrays, and measure its steps; `nodes` are the plan's nodes.

    A step's time is from the start of its first piece to the end of its last piece. With `peaks`, the machine's peak
    speeds are measured as well.
    """
    plan = runner.plan
    traces = runner.trace(inputs, runs)
    spans = np.array([[(x[:, 1].min(), x[:, 2].max()) for x in trace] for trace in traces], np.int64)
    spans = spans.reshape(runs, len(plan.steps), 2)
    seconds = 1e-9 * (spans[..., 1] - spans[..., 0])
    wholes = np.array([s[:, 1].max() - s[:, 0].min() if len(s) else 0 for s in spans])
    shown = int(np.argsort(wholes, kind="stable")[(runs - 1) // 2])
    start = spans[shown, :, 0].min() if plan.steps else 0
    steps = []
    for k, step in enumerate(plan.steps):
        times = traces[shown][k].tolist()
        blocks = step.blocks if isinstance(step, Step) else 1
        pieces = tuple(Piece(thread, 1e-9 * float(begin - start), 1e-9 * (end - begin),
                             i * blocks // len(times), (i + 1) * blocks // len(times))
                       for i, (thread, begin, end) in enumerate(times))
        steps.append(StepTime(k, step.kernel, float(np.median(seconds[:, k])),
                              step.macs if isinstance(step, Step) else 0, touched_bytes(plan, step),
                              float(seconds[:, k].min()), pieces, operation=_operation(plan, k, nodes)))
    if peaks:
        prepare(plan)
        for k, step in enumerate(progress(plan.steps, "peaks")):
            if isinstance(step, Step):
                decisive, peak = ceiling(plan, step, cache)
                steps[k] = replace(steps[k], decisive=decisive, peak=peak)
    return Profile(tuple(steps), get_ident(), plan.threads)


def _operation(plan: Plan, step: int, nodes: Sequence[Node]) -> str:
    """A text such as `%y = matmul partition`; empty for a step that belongs to no node."""
    number = plan.nodes[step] if step < len(plan.nodes) else None
    if number is None or number >= len(nodes):
        return ""
    node = nodes[number]
    title = f"{node.attrs['anchor']} partition" if node.op.name == "partition" else node.op.title(node.attrs)
    return f"{', '.join(map(node.graph.label, node.outputs))} = {title}"


def merged(parts: Sequence[Profile]) -> Profile:
    """The profile of parts that run one after another."""
    steps: list[StepTime] = []
    begun = 0.0
    for part in parts:
        steps += [replace(s, pieces=tuple(replace(p, begin=p.begin + begun) for p in s.pieces)) for s in part.steps]
        begun += part.elapsed
    return Profile(tuple(steps), parts[0].caller if parts else 0, max((part.most for part in parts), default=1))


PROCESS = 1
"""The `pid` of all events, and the `tid` of the calling thread. It must not be 0, the number of Perfetto's idle thread.
"""


def trace_events(profile: Profile) -> Iterator[dict[str, Any]]:
    """The events: names of the process and its threads, then the pieces in the order of their starts."""
    numbers = {thread: k for k, thread in enumerate(profile.tracks, PROCESS)}
    yield _metadata("process_name", PROCESS, {"name": "graphq"})
    for k, name in enumerate(profile.tracks.values(), PROCESS):
        yield _metadata("thread_name", k, {"name": name})
        yield _metadata("thread_sort_index", k, {"sort_index": k})
    pieces = sorted(((p, s) for s in profile.steps for p in s.pieces), key=lambda x: x[0].begin)
    for piece, step in pieces:
        figures = {"median_ms": 1e3 * step.seconds, "GOPS": step.gops, "GB/s": step.gigabytes,
                   "share of peak": step.share or 0.0}
        yield {"ph": "X", "name": step.name, "cat": "step", "pid": PROCESS, "tid": numbers[piece.thread],
               "ts": round(1e6 * piece.begin, 3), "dur": round(1e6 * piece.seconds, 3),
               "args": {"step": step.number, "kernel": step.kernel, "blocks": f"{piece.first} to {piece.end}",
                        **{name: float(f"{x:.4g}") for name, x in figures.items() if x}}}


def _metadata(name: str, thread: int, args: Mapping[str, object]) -> dict[str, Any]:
    return {"ph": "M", "name": name, "pid": PROCESS, "tid": thread, "args": dict(args)}

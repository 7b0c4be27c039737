"""The timeline of a profile as a file of Chrome's trace events, which Perfetto and chrome://tracing show.

The format is "Trace Event Format" (Google), in its JSON object form. A piece of a step is a complete event (`ph` "X")
on the track of its thread (`tid`), and times are microseconds; metadata events (`ph` "M") name the tracks.
"""
from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from typing import Any

from graphq.base.paths import path_of
from graphq.report.profile import Profile, StepTime

PROCESS = 1
"""The `pid` of all events, and the `tid` of the thread that called; Perfetto takes 0 for the idle thread."""


def write_chrome_trace(profile: Profile, path: str | os.PathLike[str]) -> None:
    """Write the file. Raises OSError if it cannot be written, GraphError if `path` is not a path."""
    data = {"traceEvents": list(trace_events(profile)), "displayTimeUnit": "ms"}
    path_of(path).write_text(json.dumps(data, indent=0), encoding="utf-8")


def trace_events(profile: Profile) -> Iterator[dict[str, Any]]:
    """The events: names of the process and of its threads, then the pieces in the order of their start."""
    numbers = {thread: k for k, thread in enumerate(profile.tracks, PROCESS)}
    yield _metadata("process_name", PROCESS, {"name": "graphq"})
    for k, name in enumerate(profile.tracks.values(), PROCESS):
        yield _metadata("thread_name", k, {"name": name})
        yield _metadata("thread_sort_index", k, {"sort_index": k})
    pieces = sorted(((p, s) for s in profile.steps for p in s.pieces), key=lambda x: x[0].begin)
    for piece, step in pieces:
        yield {"ph": "X", "name": step.name, "cat": "step", "pid": PROCESS, "tid": numbers[piece.thread],
               "ts": _microseconds(piece.begin), "dur": _microseconds(piece.seconds),
               "args": {"step": step.number, "kernel": step.kernel, "blocks": f"{piece.first} to {piece.end}",
                        **_figures(step)}}


def _metadata(name: str, thread: int, args: Mapping[str, object]) -> dict[str, Any]:
    return {"ph": "M", "name": name, "pid": PROCESS, "tid": thread, "args": dict(args)}


def _microseconds(seconds: float) -> float:
    return round(1e6 * seconds, 3)


def _figures(step: StepTime) -> dict[str, float]:
    """Figures of a step's speed: the profile's medians, for all pieces of the step together."""
    found = {"median_ms": 1e3 * step.seconds, "GOPS": step.gops, "GB/s": step.gigabytes,
             "share of peak": step.share or 0.0}
    return {name: float(f"{x:.4g}") for name, x in found.items() if x}

"""Groups of similar causes, each reported as one entry, and the share of a profile's time of each group."""
from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from graphq.errors import InputError
from graphq.report.profile import Profile
from graphq.report.records import Cause, GraphNode, Report

NAMES = re.compile(r'%("(?:[^"\\]|\\.)*"|[\w.]+)|\b\w+\[[\d?, *]*\]')
"""Matches the value labels and tensor types in a text about a graph."""


def alike(causes: Sequence[Cause]) -> list[list[Cause]]:
    """Group causes whose check, reason and edit differ only in names and types; the largest share comes first."""
    groups: dict[tuple[str, str, str], list[Cause]] = {}
    for cause in causes:
        key = (cause.check, NAMES.sub("%", cause.reason), NAMES.sub("%", cause.edit))
        groups.setdefault(key, []).append(cause)
    return sorted(groups.values(), key=lambda group: -(shared(group) or 0))


def shared(causes: Sequence[Cause]) -> float | None:
    """The share of the time of all causes together; None without a profile."""
    known = [c.share for c in causes if c.share is not None]
    return min(sum(known), 1.0) if known else None


def timed(report: Report, profile: Profile) -> Report:
    """The report with each cause's share of the profile's time.

    A cause's share is the time of the nodes that contain its operations after the passes, except integer partitions. A
    node with several causes counts for the first one. Raises InputError for the profile of a different model.
    """
    if len(profile.steps) != len(report.steps):
        raise InputError(f"the profile has {len(profile.steps)} steps, the plan of graph '{report.graph}' "
                         f"{len(report.steps)}: it is not of this model")
    counted: set[int] = set()
    causes = []
    for cause in report.causes:
        found = {cause.id, *(report.became.get(label) for label in (cause.value, *cause.also))}
        nodes = {k for k in found if k is not None and k not in counted and not _integer(report.nodes[k])}
        counted |= nodes
        seconds = sum(profile.steps[k].seconds for n in nodes for k in report.nodes[n].steps)
        causes.append(replace(cause, share=seconds / profile.seconds if profile.seconds else 0.0))
    return replace(report, causes=tuple(causes))


def _integer(node: GraphNode) -> bool:
    return node.partition is not None and node.partition.kind == "integer"

"""The minimum cut of a flow network, by Dinic's algorithm.

E. A. Dinic, "Algorithm for solution of a problem of maximum flow in networks with power estimation", 1970. networkx has
minimum cuts too, but takes 0.1 s to import, as long as most models' passes.
"""
from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from itertools import pairwise
from typing import TypeAlias, TypeVar

T = TypeVar("T", bound=Hashable)
Rest: TypeAlias = dict[T, dict[T, float]]
"""What more can flow from one node to another; all arcs stand in it both ways."""


def least_side(arcs: Iterable[tuple[T, T, float]], start: T, end: T) -> set[T]:
    """The side of `start` in a minimum cut of `arcs` (from, to, capacity) between `start` and `end`: the least such.

    Capacities may be infinite, but not those of a whole path from `start` to `end`.
    """
    rest: Rest[T] = {start: {}, end: {}}
    for a, b, capacity in arcs:
        there, back = rest.setdefault(a, {}), rest.setdefault(b, {})
        there[b] = there.get(b, 0) + capacity
        back.setdefault(a, 0)
    while end in (distance := _distances(rest, start)):
        _saturate(rest, distance, start, end)
    return set(distance)


def _distances(rest: Rest[T], start: T) -> dict[T, int]:
    """How many arcs with room lead from `start` to each node that they reach."""
    distance = {start: 0}
    front = [start]
    while front:
        reached = []
        for a in front:
            for b, room in rest[a].items():
                if room and b not in distance:
                    distance[b] = distance[a] + 1
                    reached.append(b)
        front = reached
    return distance


def _saturate(rest: Rest[T], distance: Mapping[T, int], start: T, end: T) -> None:
    """Send flow along the shortest paths until each has an arc without room."""
    ahead = {a: [b for b in rest[a] if distance.get(b) == step + 1] for a, step in distance.items()}
    path = [start]
    while True:
        at = path[-1]
        if at == end:
            flow = min(rest[a][b] for a, b in pairwise(path))
            for a, b in pairwise(path):
                rest[a][b] -= flow
                rest[b][a] += flow
            del path[next(k for k, (a, b) in enumerate(pairwise(path), 1) if not rest[a][b]):]
        elif ahead[at] and rest[at][ahead[at][-1]]:
            path.append(ahead[at][-1])
        elif ahead[at]:
            ahead[at].pop()
        elif at == start:
            return
        else:
            path.pop()
            ahead[path[-1]].pop()

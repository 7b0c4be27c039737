"""Moves of elements between vector registers by shuffles: transposes, and lanes picked from several vectors."""
from __future__ import annotations

from collections.abc import Sequence

from graphq.kernels.jit.values import Value


def transpose_tiles(rows: list[Value]) -> list[Value]:
    """Emit the transposes of all n x n blocks in n vectors, by log2(n) rounds of perfect shuffles."""
    n, lanes = len(rows), rows[0].type.count
    halves = [[x for tile in range(0, lanes, n) for i in range(tile + start, tile + start + n // 2)
               for x in (i, i + lanes)] for start in (0, n // 2)]
    for _ in range(n.bit_length() - 1):
        rows = [rows[i].shuffle(rows[i + n // 2], half) for i in range(n // 2) for half in halves]
    return rows


def columns_of(rows: Sequence[Value]) -> list[Value]:
    """Emit the four columns of a matrix of eight rows and four columns, given as eight rows."""
    return transpose_tiles([rows[n].shuffle(rows[n + 4], range(8)) for n in range(4)])


def gathered(vectors: Sequence[Value], places: Sequence[tuple[int, int]]) -> Value:
    """Emit a vector of the lanes at `places` (vector, lane), by one shuffle for each vector after the first."""
    n = vectors[0].type.count
    out = vectors[0]
    lanes = [lane if k == 0 else 0 for k, lane in places]
    for v in range(1, len(vectors)):
        # For v > 1 the lanes that come from earlier vectors are already in place.
        lanes = [n + lane if k == v else (i if v > 1 else lanes[i]) for i, (k, lane) in enumerate(places)]
        out = out.shuffle(vectors[v], lanes)
    return out


def repeated(x: Value, multiplier: int, lanes: int) -> Value:
    """Emit a vector of `lanes` lanes in which each lane of `x` is repeated `multiplier` times."""
    if lanes <= multiplier:
        return x.splat(lanes)
    return x if multiplier == 1 else x.shuffle(x, [k // multiplier for k in range(lanes)])

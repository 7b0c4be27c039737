"""The values that an expression depends on, and which of them are bytes.

A function of a single byte can be a table of 256 entries: `family.tables` makes such tables. `ties`, which looks for
quantizes near rounding ties, skips quantizes inside such a function.
"""
from __future__ import annotations

from collections.abc import Container, Mapping

from graphq.kernels.lanes import elementary
from graphq.kernels.lanes.expression import BYTES, Expr, walk

Origins = Mapping[Expr, frozenset[Expr]]


def byte_type(x: Expr) -> str | None:
    """The storage type of an s32 that is a byte, loaded per element or quantized; None for any other expression."""
    if x.op == "load":
        return x.value[1] if x.value[1] in BYTES and x.value[2] in ("vector", "column") else None
    number_and_type = elementary.unquantized(x)
    return None if number_and_type is None else number_and_type[1]


def origins(*exprs: Expr, bytes_: Container[Expr], known: Container[Expr]) -> Origins:
    """For each node of `exprs` the nodes that decide its value, except those in `known`.

    For a node in `bytes_` this is the one byte that decides it or, if no single byte does, the node itself.
    """
    of: dict[Expr, frozenset[Expr]] = {}
    for node in walk(*exprs):
        if node.op == "const" or node in known:
            of[node] = frozenset()
            continue
        decides = frozenset[Expr]().union(*(of[a] for a in node.args))
        alone = not node.args or node in bytes_ and not (len(decides) <= 1 and all(x in bytes_ for x in decides))
        of[node] = frozenset({node}) if alone else decides
    return of


def decided_by_one_byte(x: Expr, known: Container[Expr]) -> bool:
    """Whether x depends on at most one byte, apart from the nodes in `known`."""
    bytes_ = {node for node in walk(x) if byte_type(node) is not None}
    decides = origins(x, bytes_=bytes_, known=known)[x]
    return len(decides) <= 1 and decides <= bytes_

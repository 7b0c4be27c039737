"""Chains of operations on one byte as tables: the numbers of the chain, at the price of one look-up.

Of quantize -> dequantize -> f -> quantize the second quantize is a function of the first one's 256 values, where f's
other operands are numbers that the plan knows: activations of quantised models are such chains, of three operations or
thirty. The table holds what `evaluate` gives for the chain, so nothing changes but the time. Tables are operands:
kernels that differ in them only are one.
"""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from graphq.kernels.epilogue import Source
from graphq.kernels.expression import (
    BYTES,
    STORAGE,
    TABLE,
    Expr,
    Store,
    const,
    evaluate,
    load,
    lower,
    op,
    substitute,
    walk,
)

Origins = Mapping[Expr, frozenset[Expr]]


def tabulate(store: Store, sources: Sequence[Source], constants: Sequence[np.ndarray | None],
             least: int) -> tuple[Store, tuple[Source, ...]]:
    """The store, and the sources of its operands, with tables for chains of at least `least` operations.

    `constants` has the arrays of those inputs of the partition that are constant.
    """
    known = _numbers(store, sources, constants)
    bytes_ = _bytes(store)
    origins = _origins(store, bytes_, known)
    tables: dict[tuple[str, bytes], Source] = {}
    new: dict[Expr, Expr] = {}
    for node in walk(store.expr):
        new[node] = op(node.op, *(new[a] for a in node.args)) if node.args else node
        if node in bytes_ and origins[node] not in (set(), {node}):
            (origin,) = origins[node]
            chain = substitute(node, {**known, origin: load(0, bytes_[origin], "vector")})
            if _operations(chain) >= least:
                index = np.arange(256, dtype=np.uint8).view(STORAGE[bytes_[origin]])
                data = evaluate(Store(chain, bytes_[node]), None, [index])
                key = bytes_[node], data.tobytes()
                tables.setdefault(key, Source("table", key[0], (), data=data))
                slot = len(sources) + list(tables).index(key)
                new[node] = op("lookup", load(slot, key[0], TABLE), new[origin])
    looked_up = {node: x for node, x in new.items() if x.op == "lookup"}
    near = None if store.near is None else substitute(store.near, looked_up)
    settled = tuple((new[a], substitute(b, looked_up)) for a, b in store.settled)
    made = replace(store, expr=new[store.expr], near=near, settled=settled)
    return _renumbered(made, [*sources, *tables.values()])


def _numbers(store: Store, sources: Sequence[Source], constants: Sequence[np.ndarray | None]) -> dict[Expr, Expr]:
    """The operands that are one number each, which the plan knows, as constants."""
    numbers = {}
    for slot, dtype, kind in store.loads:
        source = sources[slot]
        data = constants[source.index] if source.place == "input" else source.data
        if kind == "scalar" and data is not None and data.size == 1:
            x = load(slot, dtype, kind)
            numbers[x] = const(evaluate(load(0, dtype, kind), None, [data.reshape(1)]).item(), x.dtype)
    return numbers


def _bytes(store: Store) -> dict[Expr, str]:
    """The nodes whose values are bytes: vectors of them, what `math.quantized` makes, and what is stored as them."""
    found = {}
    for node in walk(store.expr):
        if node.op == "load" and node.value[1] in BYTES and node.value[2] == "vector":
            found[node] = node.value[1]
        elif node.op == "and" and node.args[1].value == 0xFF:
            found[node] = "u8"
        elif node.op == "sar" and node.args[0].op == "shl" and node.args[1].value == node.args[0].args[1].value == 24:
            found[node] = "s8"
    return found | ({store.expr: store.dtype} if store.dtype in BYTES else {})


def _origins(store: Store, bytes_: Mapping[Expr, str], known: Mapping[Expr, Expr]) -> Origins:
    """For each node the nodes that it is a function of; of bytes the one byte, or the node itself."""
    origins: dict[Expr, frozenset[Expr]] = {}
    for node in walk(store.expr):
        if node.op == "const" or node in known:
            origins[node] = frozenset()
            continue
        of = frozenset[Expr]().union(*(origins[a] for a in node.args))
        alone = not node.args or node in bytes_ and not (len(of) <= 1 and of <= bytes_.keys())
        origins[node] = frozenset({node}) if alone else of
    return origins


def _operations(chain: Expr) -> int:
    """The basic operations of each element; those on constants alone leave loops."""
    varies: dict[Expr, bool] = {}
    for node in walk(lower(chain)):
        varies[node] = node.op == "load" or any(varies[a] for a in node.args)
    return sum(varies[node] and bool(node.args) for node in varies)


def _renumbered(store: Store, sources: Sequence[Source]) -> tuple[Store, tuple[Source, ...]]:
    """Slots from 0 on for what is still loaded."""
    loads = store.loads
    new = {load(*x): load(k, *x[1:]) for k, x in enumerate(loads)}

    def renamed(expr: Expr) -> Expr:
        return substitute(expr, new)

    settled = tuple((renamed(a), renamed(b)) for a, b in store.settled)
    near = None if store.near is None else renamed(store.near)
    made = Store(renamed(store.expr), store.dtype, near, settled, tuple(map(renamed, store.factors)))
    return made, tuple(sources[x[0]] for x in loads)

"""Replace chains of operations on one byte by table look-ups. Look-ups give the same numbers in less time.

In a chain quantize -> dequantize -> f -> quantize, the first quantize has only 256 possible results. If the other
operands of f are constants, a table has the result of the second quantize for each of these 256 results. Activation
functions of quantized models are such chains, of 3 to 30 operations. Tables are operands of a kernel: kernels that
differ only in their tables share code.
"""
from collections.abc import Callable, Container, Mapping, Sequence, Set
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from graphq.kernels.family.epilogue import OperandSource
from graphq.kernels.lanes import expression
from graphq.kernels.lanes.epilogues import Epilogue, evaluate
from graphq.kernels.lanes.expression import Expr
from graphq.kernels.lanes.quantizing import byte_type

Origins = Mapping[Expr, frozenset[Expr]]


def origins(*exprs: Expr, bytes_: Container[Expr], known: Container[Expr]) -> Origins:
    """Map each node of `exprs` to the leaves and bytes that determine its value. Nodes in `known` determine nothing.

    A byte (a node in `bytes_`) maps to itself, unless a single other byte determines it.
    """
    of: dict[Expr, frozenset[Expr]] = {}
    for node in expression.walk(*exprs):
        if node.op == "const" or node in known:
            of[node] = frozenset()
            continue
        decides = frozenset[Expr]().union(*(of[a] for a in node.args))
        alone = not node.args or node in bytes_ and not (len(decides) <= 1 and all(x in bytes_ for x in decides))
        of[node] = frozenset({node}) if alone else decides
    return of


def decided_by_one_byte(x: Expr, known: Container[Expr]) -> bool:
    """Whether at most one byte determines x. Nodes in `known` do not count."""
    bytes_ = {node for node in expression.walk(x) if byte_type(node) is not None}
    decides = origins(x, bytes_=bytes_, known=known)[x]
    return len(decides) <= 1 and decides <= bytes_


def tabulate(epilogue: Epilogue, sources: Sequence[OperandSource], constants: Sequence[np.ndarray | None],
             bytes_: Mapping[Expr, str], least: int, part: Expr | None
             ) -> tuple[Epilogue, Sequence[OperandSource], Expr | None]:
    """Replace chains of at least `least` operations on one byte by look-ups. `bytes_` are the bytes and their types.

    A shorter chain that only clamps the byte, such as a Clip between quantizes of one scale, becomes `max` and `min`.
    `constants` has the arrays of the partition's constant inputs. `part` is a subexpression of the epilogue, or None.
    Returns the new epilogue, the sources of its operands, and the replacement of `part`.
    """
    constant_numbers = _numbers(epilogue, sources, constants)
    operands = [constant_numbers.get(slot) for slot in range(len(sources))]

    def worth(chain: _Chain) -> bool:
        count = _operations(chain.expr, chain.byte)
        return count >= least or count > 2 and chain.bounds(operands) is not None

    known = {expression.load(*x) for x in epilogue.loads if x[0] in constant_numbers}
    chains = _chains(epilogue, bytes_, known, len(sources), worth)
    if not chains:
        return epilogue, sources, part
    tables: dict[tuple[str, bytes], OperandSource] = {}
    new: dict[Expr, Expr] = {}
    for node in expression.walk(epilogue.expr):
        if node not in chains:
            new[node] = expression.with_args(node, tuple([new[a] for a in node.args]))
            continue
        chain = chains[node]
        bounds = chain.bounds(operands)
        if bounds is not None and _operations(chain.expr, chain.byte) < least:
            new[node] = expression.minimum(expression.maximum(new[chain.origin], bounds[0]), bounds[1])
            continue
        data = chain.table(operands)
        key = chain.dtype, data.tobytes()
        tables.setdefault(key, OperandSource("table", key[0], (), data=data))
        slot = len(sources) + list(tables).index(key)
        new[node] = expression.op("lookup", expression.load(slot, key[0], expression.TABLE), new[chain.origin])
    looked_up = {node: new[node] for node in chains}
    return epilogue.renamed(looked_up), [*sources, *tables.values()], None if part is None else new[part]


def _numbers(epilogue: Epilogue, sources: Sequence[OperandSource],
             constants: Sequence[np.ndarray | None]) -> dict[int, np.ndarray]:
    """The operands that are a single constant number: a map from slot to number."""
    numbers = {}
    for slot, _, kind in epilogue.loads:
        source = sources[slot]
        data = constants[source.index] if source.origin == "input" else source.data
        if kind == "scalar" and isinstance(data, np.ndarray) and data.size == 1:
            numbers[slot] = data.reshape(1)
    return numbers


class _Chain(NamedTuple):
    """A chain of operations on one byte. A look-up or a clamp replaces it.

    `expr` computes a result of type `dtype` from `byte`, a load that replaces the node `origin` of the epilogue.
    """

    expr: Expr
    dtype: str
    byte: Expr
    origin: Expr


    def table(self, operands: Sequence[np.ndarray | None]) -> np.ndarray:
        """The chain's results for the bytes 0 to 255. `operands` has the constant numbers by slot."""
        index = np.arange(256, dtype=np.uint8).view(expression.STORAGE[self.byte.value[1]])
        return evaluate(Epilogue(self.expr, self.dtype), None, [*operands, index])

    def bounds(self, operands: Sequence[np.ndarray | None]) -> tuple[int, int] | None:
        """If the chain only clamps the byte, the smallest and the largest number of the range; otherwise None."""
        results = self.table(operands)
        low, high = int(results.min()), int(results.max())
        values = np.arange(256, dtype=np.uint8).view(expression.STORAGE[self.byte.value[1]]).astype(np.int32)
        return (low, high) if (results == values.clip(low, high)).all() else None


def _chains(epilogue: Epilogue, bytes_: Mapping[Expr, str], known: Set[Expr], slot: int,
            worth: Callable[[_Chain], bool]) -> dict[Expr, _Chain]:
    """Find the chains that `worth(chain)` accepts, by the node that they replace. They load their byte from `slot`.

    `bytes_` are the nodes with 8-bit values, and their types.
    """
    of = origins(epilogue.expr, bytes_=bytes_, known=known)
    chains: dict[Expr, _Chain] = {}
    seen: set[Expr] = set()
    todo = list(epilogue.roots)
    while todo:
        node = todo.pop()
        if node in seen:
            continue
        seen.add(node)
        if node in bytes_ and of[node] not in (set(), {node}):
            (origin,) = of[node]
            byte = expression.load(slot, bytes_[origin], "vector")
            chain = _Chain(expression.substitute(node, {origin: byte}), bytes_[node], byte, origin)
            if worth(chain):
                chains[node] = chain
                todo.append(origin)
                continue
        todo += node.args
    return chains


@lru_cache(maxsize=256)
def _operations(chain: Expr, byte: Expr) -> int:
    """Count the basic operations per element of a chain; operations on constants do not count."""
    varies: dict[Expr, bool] = {}
    for node in expression.walk(expression.lower(chain)):
        varies[node] = node is byte or any(varies[a] for a in node.args)
    return sum(varies[node] and bool(node.args) for node in varies)

"""Store: what a kernel writes for each output element, and as what type; its meaning in NumPy is `evaluate`."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from graphq.errors import KernelError
from graphq.kernels.lanes.expression import BASIC, COMPUTE, STORAGE, Expr, lower, make, substitute, walk
from graphq.locks import lazy_property

_NUMPY = {"f32": np.float32, "s32": np.int32, "bool": np.bool_}

Pairs: TypeAlias = tuple[tuple[Expr, Expr], ...]


class Ties(NamedTuple):
    """How an output near a rounding tie is computed a second time.

    Where `near` (a bool) is true, the accumulator is replaced by the f32 sum in the order of the graph as written (its
    literal sum, `kernels/ties/literal.py`), and each expression that depends on it by its partner in `settled`.
    `factors` are what a literal sum takes from operands: scale and zero point of the weights, and where the sum starts.

    A faster test comes first: outputs whose `distance` (the lower half of an s32) is below `band`, which varies by
    column at most, are those near a tie and few others. For all others the expressions in `quick` may be replaced by
    their partners, which take fewer operations.
    """

    near: Expr
    settled: Pairs
    factors: tuple[Expr, ...]
    distance: Expr
    band: Expr
    quick: Pairs

    @property
    def roots(self) -> tuple[Expr, ...]:
        """All its expressions."""
        others = (b for _, b in (*self.settled, *self.quick))
        return self.near, *others, *self.factors, self.distance, self.band

    def renamed(self, new: Mapping[Expr, Expr], done: dict[Expr, Expr] | None = None) -> Ties:
        """The same with these nodes replaced; `done` as in `substitute`."""
        done = {} if done is None else done

        def one(x: Expr) -> Expr:
            return substitute(x, new, done)

        def each(pairs: Pairs) -> Pairs:
            return tuple((one(a), one(b)) for a, b in pairs)

        return Ties(one(self.near), each(self.settled), tuple(map(one, self.factors)), one(self.distance),
                    one(self.band), each(self.quick))


@dataclass(frozen=True)
class Store:
    """What a kernel writes: an expression, the storage type of its results, and how outputs near a tie are computed.

    s8 and u8 take the low byte of an s32, which the expression has brought into range; bf16 and f16 round to even.
    """

    expr: Expr
    dtype: str
    ties: Ties | None = None

    def __post_init__(self) -> None:
        settled = () if self.ties is None else self.ties.settled
        for expr in (self.expr, *(b for a, b in settled if a is self.expr)):
            if COMPUTE.get(self.dtype) != expr.dtype:
                raise KernelError(f"a {expr.dtype} expression cannot be stored as {self.dtype}")
        loads = self.loads
        if len({x[0] for x in loads}) != len(loads):
            raise KernelError(f"a slot is loaded in two ways: {loads}")

    def __reduce__(self) -> tuple[Any, ...]:
        """What the store is pickled as: without recursion, as chains may be long."""
        return _of_flat, _flat(self)

    @lazy_property
    def _text(self) -> str:
        return f"Store{_flat(self)}"

    def __repr__(self) -> str:
        """A text that is equal for equal stores only, in every process."""
        return self._text

    @property
    def literal(self) -> Expr:
        """The expression of an output near a tie, whose accumulator is its literal sum."""
        return self.expr if self.ties is None else substitute(self.expr, dict(self.ties.settled))

    @property
    def quick(self) -> Expr:
        """The expression with fewer operations, right for outputs whose `distance` is not below the band."""
        return self.expr if self.ties is None else substitute(self.expr, dict(self.ties.quick))

    @property
    def roots(self) -> tuple[Expr, ...]:
        """All its expressions."""
        return self.expr, *(() if self.ties is None else self.ties.roots)

    @lazy_property
    def loads(self) -> tuple[tuple[int, str, str], ...]:
        """The operands (slot, dtype, kind) that are read, by slot."""
        return tuple(sorted({x.value for x in walk(*self.roots) if x.op == "load"}))

    @property
    def slots(self) -> int:
        """Number of operand slots; the output is the slot of this number."""
        return max((x[0] + 1 for x in self.loads), default=0)

    @property
    def uses_acc(self) -> bool:
        """Whether the anchor's accumulator is read."""
        return any(x.op == "acc" for x in walk(self.expr))


def _widen(x: np.ndarray, dtype: str) -> np.ndarray:
    """Convert a storage type to its compute type, exactly."""
    if dtype == "bf16":
        return (x.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    return x.astype(_NUMPY[COMPUTE[dtype]])


def _narrow(x: np.ndarray, dtype: str) -> np.ndarray:
    """Convert a compute type to a storage type, as a Store does."""
    if dtype != "bf16":
        return x.astype(STORAGE[dtype])
    bits = x.view(np.uint32)  # add half of the dropped part, less one bit if the kept part is even: ties to even
    kept = (bits + np.uint32(0x7FFF) + (bits >> 16 & 1)) >> 16
    return np.where(np.isnan(x), 0x7FC0, kept).astype(np.uint16).view(STORAGE["bf16"])


def evaluate(what: Expr | Store, acc: Any, operands: Sequence[Any]) -> np.ndarray:
    """Compute in NumPy: the meaning of a kernel. `acc` (of its type, or None) and `operands` broadcast to the output.

    Gives the compute type of an Expr and the storage type of a Store. Raises KernelError when an operand has another
    dtype than its load.
    """
    done: dict[Expr, Any] = {}
    with np.errstate(all="ignore"):
        for node in walk(lower(what.expr if isinstance(what, Store) else what)):
            if node.op == "acc":
                done[node] = np.asarray(acc, _NUMPY[node.dtype])
            elif node.op == "const":
                done[node] = _NUMPY[node.dtype](node.value)
            elif node.op == "load":
                slot, dtype, _ = node.value
                x = np.asarray(operands[slot])
                if x.dtype != STORAGE[dtype]:
                    raise KernelError(f"operand {slot} is {x.dtype}, the expression loads {dtype}")
                done[node] = _widen(x, dtype)
            else:
                done[node] = BASIC[node.op].numpy(*(done[a] for a in node.args))
        result = np.asarray(done[node])
        return _narrow(result, what.dtype) if isinstance(what, Store) else result


Flat: TypeAlias = tuple[tuple[tuple[str, tuple[int, ...], str, Any], ...], int, str, tuple[Any, ...] | None]
"""A store as plain values: its nodes (operation, numbers of its arguments, type, value), arguments before users; the
number of its expression; its storage type; and its ties, with numbers in place of expressions."""


def _flat(store: Store) -> Flat:
    numbers: dict[Expr, int] = {}
    nodes = []
    for node in walk(*store.roots):
        numbers[node] = len(numbers)
        nodes.append((node.op, tuple([numbers[a] for a in node.args]), node.dtype, node.value))
    return tuple(nodes), numbers[store.expr], store.dtype, None if store.ties is None else _mapped(store.ties, numbers)


def _mapped(x: Any, new: Mapping[Any, Any]) -> Any:
    """The leaves of nested tuples replaced."""
    return tuple([_mapped(y, new) for y in x]) if isinstance(x, tuple) else new[x]


def _of_flat(nodes: Any, expr: int, dtype: str, ties: Any) -> Store:
    known: dict[int, Expr] = {}
    for name, args, kind, value in nodes:
        known[len(known)] = make(name, tuple([known[n] for n in args]), kind, value)
    return Store(known[expr], dtype, None if ties is None else Ties(*_mapped(ties, known)))

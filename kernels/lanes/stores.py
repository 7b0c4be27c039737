"""The epilogue of a kernel (`Store`): an expression per output and the outputs' type. `evaluate` runs it in NumPy."""
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from graphq.base.locks import lazy_property
from graphq.errors import KernelError
from graphq.kernels.lanes.expression import BASIC, COMPUTE, STORAGE, Expr, lower, make, substitute, walk

_NUMPY = {"f32": np.float32, "s32": np.int32, "bool": np.bool_}

Pairs: TypeAlias = tuple[tuple[Expr, Expr], ...]


class SecondLook(NamedTuple):
    """How outputs near a rounding tie are computed a second time, from an f32 sum in the graph's order.

    An output is computed again if the bool expression `needed` is true. Then the f32 sum replaces the accumulator, and
    the pairs in `again` replace the subexpressions that depend on the accumulator. `factors` are numbers that the f32
    sum takes from operands: the scale and zero point of the weights, and the initial value of the sum.

    A faster test comes first: an output can need a second look only if its `distance` (the low half of an s32) is below
    `band`. The band may vary by column. Few outputs that need no second look pass this test. For outputs that fail it,
    the pairs in `fast` replace subexpressions by expressions with fewer operations.
    """

    needed: Expr
    again: Pairs
    factors: tuple[Expr, ...]
    distance: Expr
    band: Expr
    fast: Pairs

    @property
    def roots(self) -> tuple[Expr, ...]:
        """All expressions of the second look."""
        others = (b for _, b in (*self.again, *self.fast))
        return self.needed, *others, *self.factors, self.distance, self.band

    def each(self, f: Callable[[Expr], Expr]) -> SecondLook:
        """The second look with each expression x replaced by `f(x)`."""
        return SecondLook(*_mapped(self, f))


@dataclass(frozen=True)
class Store:
    """The epilogue of a kernel: an expression, the storage type of its results, and an optional second look.

    For s8 and u8 the expression is an s32 in range; its low byte is stored. bf16 and f16 are rounded to nearest even.
    """

    expr: Expr
    dtype: str
    second_look: SecondLook | None = None

    def __post_init__(self) -> None:
        again = () if self.second_look is None else self.second_look.again
        for expr in (self.expr, *(b for a, b in again if a is self.expr)):
            if COMPUTE.get(self.dtype) != expr.dtype:
                raise KernelError(f"a {expr.dtype} expression cannot be stored as {self.dtype}")
        loads = self.loads
        if len({x[0] for x in loads}) != len(loads):
            raise KernelError(f"a slot is loaded in two ways: {loads}")

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the store as a flat list of nodes, because nested long chains would exceed the recursion limit."""
        return _of_flat, _flat(self)

    @lazy_property
    def _text(self) -> str:
        return f"Store{_flat(self)}"

    def __repr__(self) -> str:
        """A text that is the same for equal stores in every process, and differs between different stores."""
        return self._text

    @property
    def again(self) -> Expr:
        """The expression for outputs near a rounding tie (see SecondLook)."""
        return self.expr if self.second_look is None else substitute(self.expr, dict(self.second_look.again))

    @property
    def fast(self) -> Expr:
        """The expression with fewer operations. It is exact for outputs whose `distance` is not below the band."""
        return self.expr if self.second_look is None else substitute(self.expr, dict(self.second_look.fast))

    @property
    def roots(self) -> tuple[Expr, ...]:
        """All expressions of the store."""
        return self.expr, *(() if self.second_look is None else self.second_look.roots)

    def renamed(self, new: Mapping[Expr, Expr]) -> Store:
        """The store with the nodes in `new` replaced."""
        one = partial(substitute, new=new, done={})
        return Store(one(self.expr), self.dtype, None if self.second_look is None else self.second_look.each(one))

    @lazy_property
    def loads(self) -> tuple[tuple[int, str, str], ...]:
        """The operands that are read, as (slot, dtype, kind), ordered by slot."""
        return tuple(sorted({x.value for x in walk(*self.roots) if x.op == "load"}))

    @property
    def slots(self) -> int:
        """The number of operand slots. It is also the index of the output's slot."""
        return max((x[0] + 1 for x in self.loads), default=0)

    @property
    def uses_acc(self) -> bool:
        """Whether the expression reads the anchor's accumulator."""
        return any(x.op == "acc" for x in walk(self.expr))


def _widen(x: np.ndarray, dtype: str) -> np.ndarray:
    """Convert a storage type to its compute type, exactly."""
    if dtype == "bf16":
        return (x.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    return x.astype(_NUMPY[COMPUTE[dtype]])


def _narrow(x: np.ndarray, dtype: str) -> np.ndarray:
    """Convert a compute type to a storage type, rounding as a Store does."""
    if dtype != "bf16":
        return x.astype(STORAGE[dtype])
    bits = x.view(np.uint32)  # round as `elementary.round_bf16` does
    kept = (bits + np.uint32(0x7FFF) + (bits >> 16 & 1)) >> 16
    return np.where(np.isnan(x), 0x7FC0, kept).astype(np.uint16).view(STORAGE["bf16"])


def evaluate(what: Expr | Store, acc: Any, operands: Sequence[Any]) -> np.ndarray:
    """Evaluate a Store or an Expr in NumPy. This defines the results of kernels.

    `acc` and `operands` broadcast to the output; `acc` may be None. The result of an Expr has its compute type, the
    result of a Store its storage type. Raises KernelError if an operand's dtype differs from the dtype of its load.
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
"""A store as plain values: its nodes, the stored node's index, the storage type, and its SecondLook or None.

A node is (operation, indices of arguments, type, value). Arguments come before their users. In the SecondLook, indices
of nodes replace expressions.
"""


def _flat(store: Store) -> Flat:
    numbers: dict[Expr, int] = {}
    nodes = []
    for node in walk(*store.roots):
        numbers[node] = len(numbers)
        nodes.append((node.op, tuple([numbers[a] for a in node.args]), node.dtype, node.value))
    look = None if store.second_look is None else _mapped(store.second_look, numbers.__getitem__)
    return tuple(nodes), numbers[store.expr], store.dtype, look


def _mapped(x: Any, f: Callable[[Any], Any]) -> Any:
    return tuple([_mapped(y, f) for y in x]) if isinstance(x, tuple) else f(x)


def _of_flat(nodes: Any, expr: int, dtype: str, look: Any) -> Store:
    of_number: dict[int, Expr] = {}
    for name, args, kind, value in nodes:
        of_number[len(of_number)] = make(name, tuple([of_number[n] for n in args]), kind, value)
    return Store(of_number[expr], dtype, None if look is None else SecondLook(*_mapped(look, of_number.__getitem__)))

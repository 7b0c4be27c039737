"""The epilogue of a kernel: an expression per output and the outputs' type. `evaluate` computes it in NumPy."""
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np

from graphq.base.locks import lazy_property
from graphq.errors import KernelError
from graphq.kernels.lanes.expression import BASIC, COMPUTE, STORAGE, Expr, lower, make, substitute, walk

_NUMPY = {"f32": np.float32, "f64": np.float64, "s32": np.int32, "bool": np.bool_}

Pairs: TypeAlias = tuple[tuple[Expr, Expr], ...]
Form = Literal["fast", "exact", "second_look"]


class FastForm(NamedTuple):
    """A way to compute outputs in fewer operations, and a test that finds the outputs that may be wrong.

    The pairs replace subexpressions. The result is right unless an output's `distance` from a rounding tie (the low
    half of an s32) is below `band`, which may vary by column. Kernels compute such outputs again by the exact form.
    """

    pairs: Pairs
    distance: Expr
    band: Expr


class SecondLook(NamedTuple):
    """How outputs near a rounding tie are computed a second time, from an f32 sum in the graph's order.

    An output is computed again if the bool expression `needed` is true. Then the f32 sum replaces the accumulator, and
    the pairs replace the subexpressions that depend on the accumulator. `factors` are numbers that the f32 sum takes
    from operands: the scale and zero point of the weights, and the initial value of the sum. The fast form of the
    epilogue must count every output that needs a second look as near a tie.
    """

    pairs: Pairs
    needed: Expr
    factors: tuple[Expr, ...]


@dataclass(frozen=True)
class Epilogue:
    """The epilogue of a kernel: an expression, the storage type of its results, and two optional parts.

    For s8 and u8 the expression is an s32 in range; its low byte is stored. bf16 and f16 are rounded to nearest even.
    An epilogue with a second look has a fast form.
    """

    expr: Expr
    dtype: str
    fast: FastForm | None = None
    second_look: SecondLook | None = None

    def __post_init__(self) -> None:
        again = () if self.second_look is None else self.second_look.pairs
        for expr in (self.expr, *(b for a, b in again if a is self.expr)):
            if COMPUTE.get(self.dtype) != expr.dtype:
                raise KernelError(f"a {expr.dtype} expression cannot be stored as {self.dtype}")
        loads = self.loads
        if len({x[0] for x in loads}) != len(loads):
            raise KernelError(f"a slot is loaded in two ways: {loads}")

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the epilogue as a flat list of nodes, because nested long chains would exceed the recursion limit."""
        return _of_flat, _flat(self)

    @lazy_property
    def _text(self) -> str:
        return f"Epilogue{_flat(self)}"

    def __repr__(self) -> str:
        """A text that is the same for equal epilogues in every process, and differs for different ones."""
        return self._text

    def form(self, name: Form) -> Expr:
        """The expression of a form: "exact", "fast", or "second_look" (for outputs that get a second look)."""
        part = {"exact": None, "fast": self.fast, "second_look": self.second_look}[name]
        return self.expr if part is None else substitute(self.expr, dict(part.pairs))

    @property
    def roots(self) -> tuple[Expr, ...]:
        """All expressions of the epilogue."""
        roots = [self.expr]
        for pairs, *others in filter(None, (self.fast, self.second_look)):
            _mapped((*(b for _, b in pairs), *others), roots.append)
        return tuple(roots)

    def renamed(self, new: Mapping[Expr, Expr]) -> "Epilogue":
        """The epilogue with the nodes in `new` replaced."""
        return _of_parts(_parts(self), partial(substitute, new=new, done={}))

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


def _narrow(x: np.ndarray, dtype: str) -> np.ndarray:
    """Convert a compute type to a storage type, rounding as an epilogue does. All NaNs of bf16 have one code."""
    y = x.astype(STORAGE[dtype])
    return np.where(np.isnan(x), y.dtype.type(np.nan), y) if dtype == "bf16" else y


def evaluate(what: Expr | Epilogue, acc: Any, operands: Sequence[Any]) -> np.ndarray:
    """Evaluate an epilogue or an Expr in NumPy. This defines the results of kernels.

    `acc` and `operands` broadcast to the output; `acc` may be None. The result of an Expr has its compute type, the
    result of an epilogue its storage type. Raises KernelError if an operand's dtype differs from the dtype of its load.
    """
    done: dict[Expr, Any] = {}
    with np.errstate(all="ignore"):
        for node in walk(lower(what.expr if isinstance(what, Epilogue) else what)):
            if node.op == "acc":
                done[node] = np.asarray(acc, _NUMPY[node.dtype])
            elif node.op == "const":
                done[node] = _NUMPY[node.dtype](node.value)
            elif node.op == "load":
                slot, dtype, _ = node.value
                x = np.asarray(operands[slot])
                if x.dtype != STORAGE[dtype]:
                    raise KernelError(f"operand {slot} is {x.dtype}, the expression loads {dtype}")
                done[node] = x.astype(_NUMPY[COMPUTE[dtype]])
            else:
                done[node] = BASIC[node.op].numpy(*(done[a] for a in node.args))
        result = np.asarray(done[node])
        return _narrow(result, what.dtype) if isinstance(what, Epilogue) else result


Flat: TypeAlias = tuple[tuple[tuple[str, tuple[int, ...], str, Any], ...], tuple[Any, ...]]
"""An epilogue as plain values: its nodes, and its fields with indices of nodes instead of expressions.

A node is (operation, indices of arguments, type, value). Arguments come before their users.
"""


def _flat(epilogue: Epilogue) -> Flat:
    numbers: dict[Expr, int] = {}
    nodes = []
    for node in walk(*epilogue.roots):
        numbers[node] = len(numbers)
        nodes.append((node.op, tuple([numbers[a] for a in node.args]), node.dtype, node.value))
    return tuple(nodes), _mapped(_parts(epilogue), numbers.__getitem__)


_parts = attrgetter("expr", "dtype", "fast", "second_look")
"""The fields of an epilogue, as a tuple."""


def _mapped(x: Any, f: Callable[[Any], Any]) -> Any:
    """`x` with `f` applied to its expressions, or to the indices of nodes that stand for them."""
    if isinstance(x, tuple):
        return tuple([_mapped(y, f) for y in x])
    return x if x is None or isinstance(x, str) else f(x)


def _of_parts(parts: tuple[Any, ...], f: Callable[[Any], Expr]) -> Epilogue:
    expr, dtype, fast, look = _mapped(parts, f)
    return Epilogue(expr, dtype, None if fast is None else FastForm(*fast), None if look is None else SecondLook(*look))


def _of_flat(nodes: Any, parts: Any) -> Epilogue:
    of_number: dict[int, Expr] = {}
    for name, args, kind, value in nodes:
        of_number[len(of_number)] = make(name, tuple([of_number[n] for n in args]), kind, value)
    return _of_parts(parts, of_number.__getitem__)

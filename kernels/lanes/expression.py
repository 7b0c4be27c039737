"""Lane-wise expressions: the computation of an output element, stated once for both NumPy and machine code.

An `Expr` is a typed DAG of basic operations. Each is one IEEE f32 or f64 operation, or one wrapping s32 operation.
`epilogues.evaluate` computes an expression in NumPy, and `vector.emit` makes its machine code. Both perform the same
operations in the same order, so results are equal bit for bit; only the payloads of NaNs can differ. Equal expressions
are one object, so `==` compares identity.

Operands and results in memory have a storage type: f32 s32 s8 u8 s16 u16 bf16 f16 f8_e4m3 f8_e5m2. Expressions have a
compute type: f32 f64 s32 bool. Only look-ups take tables as operands.
"""
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from typing import Any, Literal, NamedTuple, TypeAlias

import ml_dtypes
import numpy as np

from graphq.base.locks import Lock, lazy_property
from graphq.errors import KernelError

Number: TypeAlias = float | int | bool
ExprLike: TypeAlias = "Expr | float | int"
"""An operand of an expression's operators. A number becomes a constant."""

STORAGE: dict[str, np.dtype] = {
    "f32": np.dtype(np.float32), "s32": np.dtype(np.int32), "s8": np.dtype(np.int8), "u8": np.dtype(np.uint8),
    "s16": np.dtype(np.int16), "u16": np.dtype(np.uint16), "bf16": np.dtype(ml_dtypes.bfloat16),
    "f16": np.dtype(np.float16), "f8_e4m3": np.dtype(ml_dtypes.float8_e4m3fn),
    "f8_e5m2": np.dtype(ml_dtypes.float8_e5m2),
}
COMPUTE: dict[str, str] = {**dict.fromkeys(("f32", "bf16", "f16", "f8_e4m3", "f8_e5m2"), "f32"),
                           **dict.fromkeys(("s32", "s8", "u8", "s16", "u16"), "s32")}
KINDS = ("vector", "row", "column", "scalar")
TABLE = "table"
BYTES = ("s8", "u8")


def _operator(name: str) -> "Callable[[Expr, ExprLike], Expr]":
    return lambda x, y: op(name, x, y)


def _reflected(name: str) -> "Callable[[Expr, ExprLike], Expr]":
    return lambda x, y: op(name, y, x)


@dataclass(frozen=True, eq=False, repr=False, slots=True, weakref_slot=True)
class Expr:
    """A node of an expression. Only the functions below make nodes.

    `op` is "acc", "load", "const", or the name of a basic operation or definition. The `value` of a load is (slot,
    storage type, kind); the `value` of a constant is its number.
    """

    op: str
    args: "tuple[Expr, ...]"
    dtype: str
    value: Any = None

    def __repr__(self) -> str:
        return f"<{self.op}: {self.dtype}>"

    def __bool__(self) -> bool:
        raise KernelError(f"{self!r} has no truth value, because each lane has its own: use select instead of `if`, "
                          "op('and', a, b) instead of `and`, maximum and minimum instead of max and min")

    __add__, __radd__ = _operator("add"), _reflected("add")
    __sub__, __rsub__ = _operator("sub"), _reflected("sub")
    __mul__, __rmul__ = _operator("mul"), _reflected("mul")
    __truediv__, __rtruediv__ = _operator("div"), _reflected("div")
    __lt__, __le__, __gt__, __ge__ = map(_operator, ("lt", "le", "gt", "ge"))

    def __neg__(self) -> "Expr":
        return op("neg", self)


@dataclass(frozen=True)
class Basic:
    """A basic operation: its NumPy function, and its types as in "f32 f32 -> f32, s32 s32 -> s32"."""

    types: str
    numpy: Callable[..., Any]

    @lazy_property
    def results(self) -> dict[tuple[str, ...], str]:
        """The result type for each tuple of argument types."""
        rules = (rule.split("->") for rule in self.types.split(","))
        return {tuple(args.split()): result.strip() for args, result in rules}


_FLOAT, _FLOAT2 = "f32 -> f32, f64 -> f64", "f32 f32 -> f32, f64 f64 -> f64"
_SAME2 = f"{_FLOAT2}, s32 s32 -> s32"
_INT2 = "s32 s32 -> s32"
_LOGIC = "s32 s32 -> s32, bool bool -> bool"
_COMPARE = "f32 f32 -> bool, f64 f64 -> bool, s32 s32 -> bool"


def _min_u16(x: Any, y: Any) -> Any:
    return np.minimum(*(np.ascontiguousarray(a).view(np.uint16) for a in np.broadcast_arrays(x, y))).view(np.int32)


def _high(low: int, high: int, x: Any) -> Any:
    return np.clip(np.asarray(x) >> 16, low, high)


def fused(a: Any, b: Any, c: Any) -> np.ndarray:
    """a * b + c in f32, rounded once."""
    # The product of two f32 is exact in f64. Knuth's TwoSum computes the rounding error of the sum exactly; its sign
    # says on which side of the rounded sum the exact sum lies. If the error is not 0 and the sum's last bit is even,
    # the sum moves to its odd neighbor on that side. An odd f64 is never halfway between two f32, so the final rounding
    # to f32 gives the exact sum rounded once, also for subnormals (Boldo and Melquiond, round to odd).
    with np.errstate(all="ignore"):
        p, c = np.asarray(a, np.float64) * b, np.asarray(c, np.float64)
        total = np.atleast_1d(p + c)
        part = total - p
        error = (p - (total - part)) + (c - part)
        if error.any():
            bits = total.view(np.int64)
            away = np.where((error > 0) == (total > 0), 1, -1)
            moves = (error != 0) & np.isfinite(total) & (bits & 1 == 0)
            total = np.where(moves, bits + away, bits).view(np.float64)
        return total.astype(np.float32).reshape(np.shape(p + c))


def _round_s32(x: Any) -> Any:
    """Round to the nearest s32, ties to even.

    Every machine meets this rule: NaN becomes an s32 whose low 16 bits are 0, and a number outside of s32 becomes
    -2**31 or the nearest s32. Machines differ within the rule: x86 gives -2**31 for all of these, as here; Arm gives 0
    for NaN, and the nearest s32. The result of an expression must not depend on the difference.
    """
    return np.where(np.abs(x) < 2**31, np.rint(x), -2.0**31).astype(np.int32)


# s32 operations wrap. max and min return the second operand if an operand is NaN or both are zeros. For NaN, all
# comparisons except ne are false. to_s32 truncates; its operand must be in the range of s32. min_u16 is the minimum of
# each unsigned 16-bit half; high_u8 and high_s8 saturate the upper half. Shift counts are constants from 0 to 31.
BASIC: dict[str, Basic] = {
    "add": Basic(_SAME2, np.add),
    "sub": Basic(_SAME2, np.subtract),
    "mul": Basic(_SAME2, np.multiply),
    "div": Basic(_FLOAT2, np.divide),
    "neg": Basic(_FLOAT, np.negative),
    "fma": Basic("f32 f32 f32 -> f32", fused),
    "abs": Basic(_FLOAT, np.abs),
    "sqrt": Basic(_FLOAT, np.sqrt),
    "rint": Basic(_FLOAT, np.rint),
    "floor": Basic(_FLOAT, np.floor),
    "max": Basic(_SAME2, lambda a, b: np.where(a > b, a, b)),
    "min": Basic(_SAME2, lambda a, b: np.where(a < b, a, b)),
    "lt": Basic(_COMPARE, np.less),
    "le": Basic(_COMPARE, np.less_equal),
    "gt": Basic(_COMPARE, np.greater),
    "ge": Basic(_COMPARE, np.greater_equal),
    "min_u16": Basic(_INT2, _min_u16),
    "high_u8": Basic("s32 -> s32", partial(_high, 0, 255)),
    "high_s8": Basic("s32 -> s32", partial(_high, -128, 127)),
    "eq": Basic(_COMPARE, np.equal),
    "ne": Basic(_COMPARE, np.not_equal),
    "select": Basic("bool f32 f32 -> f32, bool f64 f64 -> f64, bool s32 s32 -> s32", np.where),
    "and": Basic(_LOGIC, np.bitwise_and),
    "or": Basic(_LOGIC, np.bitwise_or),
    "xor": Basic(_LOGIC, np.bitwise_xor),
    "shl": Basic(_INT2, np.left_shift),
    "sar": Basic(_INT2, np.right_shift),
    "shr": Basic(_INT2, lambda x, n: np.right_shift(*(np.asarray(a).view(np.uint32) for a in (x, n))).view(np.int32)),
    "as_f32": Basic("s32 -> f32", lambda x: np.asarray(x).view(np.float32)),
    "as_s32": Basic("f32 -> s32", lambda x: np.asarray(x).view(np.int32)),
    "to_f32": Basic("s32 -> f32, f64 -> f32", lambda x: np.asarray(x).astype(np.float32)),
    "to_f64": Basic("s32 -> f64, f32 -> f64", lambda x: np.asarray(x).astype(np.float64)),
    "to_s32": Basic("f32 -> s32", lambda x: np.asarray(x).astype(np.int32)),
    "round_f16": Basic("f32 -> f32", lambda x: np.asarray(x).astype(np.float16).astype(np.float32)),
    "round_s32": Basic("f32 -> s32", _round_s32),
    "lookup": Basic("table s32 -> s32", lambda table, x: np.asarray(table)[np.asarray(x) & 0xFF]),  # by low bytes
}


class Definition(NamedTuple):
    """A function made of basic operations. It is one node until it is evaluated or compiled."""

    types: tuple[str, ...]
    result: str
    body: Callable[..., Expr]


DEFINITIONS: dict[str, Definition] = {}
_KNOWN: weakref.WeakValueDictionary[tuple, Expr] = weakref.WeakValueDictionary()
_LOCK = Lock()


def make(name: str, args: tuple[Expr, ...], dtype: str, value: Any = None) -> Expr:
    """The unique node with these contents, made if it does not exist."""
    key = (name, args, dtype, str(value) if type(value) is float else value)  # a text, because -0.0 == 0.0
    with _LOCK.hold:
        node = _KNOWN.get(key)
        if node is None:
            node = _KNOWN[key] = Expr(name, args, dtype, value)
        return node


def acc(dtype: Literal["s32", "f32"] = "s32") -> Expr:
    """The accumulator of the kernel's anchor (a matmul, a convolution or a pool)."""
    return make("acc", (), dtype)


def load(slot: int, dtype: str, kind: str) -> Expr:
    """Load operand `slot` of storage type `dtype`. Small integers become s32, small floats become f32, exactly.

    `kind` says how many elements the operand has: "vector" (one per output), "row" (one per row), "column" (one per
    column) or "scalar" (one for all outputs). An s8 or u8 operand may also be a "table" of 256 elements for the
    operation "lookup", whose index is the low byte of an s32.
    """
    if slot < 0 or dtype not in STORAGE or kind not in (*KINDS, TABLE) or kind == TABLE and dtype not in BYTES:
        raise KernelError(f"load({slot}, {dtype!r}, {kind!r}): slots count from 0, dtypes are {', '.join(STORAGE)}, "
                          f"kinds {', '.join(KINDS)}, and {TABLE} of {' and '.join(BYTES)}")
    return make("load", (), TABLE if kind == TABLE else COMPUTE[dtype], (slot, dtype, kind))


def const(value: Number, dtype: str = "f32") -> Expr:
    """A constant, rounded to f32 if `dtype` is "f32"."""
    if dtype == "f64":
        return make("const", (), dtype, float(value))
    if dtype == "f32":
        with np.errstate(over="ignore"):
            return make("const", (), dtype, float(np.float32(value)))
    if dtype == "s32" and int(value) == value and -2**31 <= value < 2**31:
        return make("const", (), dtype, int(value))
    if dtype == "bool":
        return make("const", (), dtype, bool(value))
    raise KernelError(f"const({value!r}, {dtype!r}): not a number of this type")


def op(name: str, *args: ExprLike) -> Expr:
    """Apply a basic operation or definition. Python numbers become constants of the required types.

    Raises KernelError for an unknown name, or for a wrong number or types of arguments.
    """
    types, result = _types(name, tuple([a.dtype if isinstance(a, Expr) else None for a in args]))
    nodes = tuple([a if isinstance(a, Expr) else const(a, t) for a, t in zip(args, types, strict=True)])
    if name in ("shl", "sar", "shr") and (nodes[1].op != "const" or not 0 <= nodes[1].value < 32):
        raise KernelError(f"{name}: the shift count must be a constant from 0 to 31")
    return make(name, nodes, result)


@cache
def _types(name: str, argument_types: tuple[str | None, ...]) -> tuple[tuple[str, ...], str]:
    """The types of an operation's arguments and of its result. A Python number has the type None; it fits any type."""
    if name in BASIC:
        rules = BASIC[name].results
    elif name in DEFINITIONS:
        rules = {DEFINITIONS[name].types: DEFINITIONS[name].result}
    else:
        raise KernelError(f"unknown operation {name!r}; there are {', '.join((*BASIC, *DEFINITIONS))}")
    types = next((t for t in rules if t == argument_types or _fit(argument_types, t)), None)
    if types is None:
        raise KernelError(f"{name}({', '.join(g or 'number' for g in argument_types)}): takes {list(rules)}")
    return types, rules[types]


def _fit(argument_types: tuple[str | None, ...], types: tuple[str, ...]) -> bool:
    return len(argument_types) == len(types) and all(
        a is None or a == t for a, t in zip(argument_types, types, strict=True))


def define(types: str) -> Callable[[Callable[..., Expr]], Callable[..., Expr]]:
    """Make a decorator that registers a function as a `Definition`. `types` is, for example, "f32 f32 -> f32"."""
    args, result = types.split("->")

    def register(body: Callable[..., Expr]) -> Callable[..., Expr]:
        name = body.__name__
        if name in BASIC or name in DEFINITIONS:
            raise KernelError(f"a second operation named {name!r}")
        DEFINITIONS[name] = Definition(tuple(args.split()), result.strip(), body)

        def apply(*operands: ExprLike) -> Expr:
            return op(name, *operands)

        apply.__name__, apply.__doc__ = name, body.__doc__
        return apply

    return register


def maximum(a: ExprLike, b: ExprLike) -> Expr:
    """The expression `a > b ? a : b`."""
    return op("max", a, b)


def minimum(a: ExprLike, b: ExprLike) -> Expr:
    """The expression `a < b ? a : b`."""
    return op("min", a, b)


def select(condition: Expr, a: ExprLike, b: ExprLike) -> Expr:
    """The expression `condition ? a : b`. Raises KernelError if `condition` is no expression, such as a Python bool."""
    if not isinstance(condition, Expr):
        raise KernelError(f"select({condition!r}, ...): the condition must be an expression; op('eq', a, b) compares "
                          "in each lane, `==` says whether two expressions are one")
    return op("select", condition, a, b)


@lru_cache(maxsize=512)
def walk(*exprs: Expr) -> tuple[Expr, ...]:
    """Each node of the expressions once, arguments before users. Not recursive, because chains can be long."""
    seen: set[Expr] = set()
    in_order: list[Expr] = []
    todo: list[Expr | None] = [*exprs[::-1]]  # None means that the arguments of the last node in `open_` are done
    open_: list[Expr] = []
    while todo:
        node = todo.pop()
        if node is None:
            in_order.append(open_.pop())
        elif node not in seen:
            seen.add(node)
            if node.args:
                open_.append(node)
                todo.append(None)
                todo += node.args[::-1]
            else:
                in_order.append(node)
    return tuple(in_order)


def substitute(expr: Expr, new: Mapping[Expr, Expr], done: dict[Expr, Expr] | None = None) -> Expr:
    """Replace the nodes in `new` within `expr`. `done` has results of earlier calls and receives the new results."""
    done = {} if done is None else done
    for node in walk(expr) if expr not in done else ():
        if node not in done:
            done[node] = new[node] if node in new else with_args(node, tuple([done[a] for a in node.args]))
    return done[expr]


def with_args(node: Expr, args: tuple[Expr, ...]) -> Expr:
    """The operation of `node` applied to other arguments."""
    return node if args == node.args else make(node.op, args, node.dtype, node.value)


@lru_cache(maxsize=256)
def lower(expr: Expr) -> Expr:
    """Rewrite `expr` to leaves and basic operations only."""
    done: dict[Expr, Expr] = {}
    for node in walk(expr):
        args = tuple([done[a] for a in node.args])
        done[node] = lower(DEFINITIONS[node.op].body(*args)) if node.op in DEFINITIONS else with_args(node, args)
    return done[expr]

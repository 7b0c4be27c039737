"""Values of LLVM IR with Python's operators, and the builder that emits them.

    row = (g & 7) + rows
    (first + row * stride).prefetch()

An operator emits an instruction at the builder's position. A Python number becomes a constant of the other operand's
type, in every lane of a vector. If all operands are constants, the result is a constant and nothing is emitted.
Addresses are 64-bit integers, and offsets count bytes.

LLVM's integer types have no sign; the operation decides. `//`, `>>`, `<`, `<=`, `>`, `>=` and `sext` read integers as
signed. `udiv`, `urem`, `shr`, `ult`, `ule`, `ugt` and `zext` read them as unsigned. `//` rounds towards zero.
Comparisons of floats are ordered: they are false if an operand is NaN.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any, TypeAlias

import numpy as np
from llvmlite import ir

from graphq.base.platform import HOST, MACHINE

LEVEL: ContextVar[Any] = ContextVar("level", default=None)
"""The ISA level (`target.level`) that this thread emits code for; None for code without special instructions."""
I1, I8, I16, I32, I64 = (ir.IntType(n) for n in (1, 8, 16, 32, 64))
F16, F32, F64 = ir.HalfType(), ir.FloatType(), ir.DoubleType()
FLOATS = (ir.HalfType, ir.FloatType, ir.DoubleType)

Type: TypeAlias = ir.Type
Operand: TypeAlias = "Value | int | float"
F32Value: TypeAlias = "Value"
"""The annotation for f32 parameters and results of functions marked by `deferred.emits`."""


def element(kind: Type) -> Type:
    """The element type of a vector type. A scalar type is returned as it is."""
    return kind.element if isinstance(kind, ir.VectorType) else kind


def like(kind: Type, lane: Type) -> Type:
    """The type `kind` with `lane` as its element type. A vector keeps its number of elements."""
    return ir.VectorType(lane, kind.count) if isinstance(kind, ir.VectorType) else lane


def vector(lane: Type, lanes: int) -> Type:
    """The vector type of `lanes` elements of type `lane`, or `lane` itself if `lanes` is 1."""
    return lane if lanes == 1 else ir.VectorType(lane, lanes)


def constant(kind: Type, number: float | Sequence[float]) -> Value:
    """Make a constant from one number for all lanes, or from one number per lane. It belongs to no builder."""
    if isinstance(number, Sequence):
        return Value(None, ir.Constant(kind, [*number]))
    return Value(None, ir.Constant(kind, [number] * kind.count if isinstance(kind, ir.VectorType) else number))


def c64(number: int) -> Value:
    """Make a constant of type I64."""
    return constant(I64, number)


def raw(x: object) -> Any:
    """The llvmlite object of a Value, or of each Value in a list. Anything else is returned as it is."""
    if isinstance(x, Value):
        return x.ir
    return [raw(y) for y in x] if isinstance(x, list | tuple) else x


def _integers(name: str) -> Callable[[Value, Operand], Value]:
    return lambda x, y: x._emit(name, x._of(y))


def _arithmetic(name: str) -> Callable[[Value, Operand], Value]:
    return lambda x, y: x._emit(f"f{name}" if x.is_float else name, x._of(y))


def _reflected(name: str) -> Callable[[Value, Operand], Value]:
    operator = _arithmetic(name)
    return lambda x, y: operator(x._of(y), x)


def _comparison(sign: str, how: str = "icmp_signed") -> Callable[[Value, Operand], Value]:
    return lambda x, y: x._emit("fcmp_ordered" if x.is_float else how, x._of(y), sign=(sign,))


class Value:
    """A value of the function that `builder` emits, or a constant without a builder."""

    __slots__ = "builder", "ir"

    def __init__(self, builder: Builder | None, value: ir.Value) -> None:
        self.builder, self.ir = builder, value

    @property
    def type(self) -> Type:
        """The value's LLVM type."""
        return self.ir.type

    @property
    def building(self) -> Builder:
        """The builder of a value that is not a constant."""
        assert self.builder is not None, "a constant has no builder"
        return self.builder

    @property
    def is_float(self) -> bool:
        """Whether the value is a float or a vector of floats."""
        return isinstance(element(self.ir.type), FLOATS)

    def _of(self, x: Operand) -> Value:
        """Turn an operand into a Value. A number becomes a constant of this value's type."""
        return x if isinstance(x, Value) else constant(self.ir.type, x)

    def _emit(self, name: str, *args: object, sign: tuple[str, ...] = ()) -> Value:
        """Emit an instruction with the builder of an operand; if all operands are constants, fold it instead."""
        operands = (self, *args)
        for x in operands:
            if isinstance(x, Value) and x.builder is not None:
                return Value(x.builder, getattr(x.builder.ir, name)(*sign, *map(raw, operands)))
        return _folded(name, *sign, *map(raw, operands))

    __add__, __radd__ = _arithmetic("add"), _reflected("add")
    __sub__, __rsub__ = _arithmetic("sub"), _reflected("sub")
    __mul__, __rmul__ = _arithmetic("mul"), _reflected("mul")
    __truediv__, __rtruediv__ = _arithmetic("div"), _reflected("div")
    __floordiv__, __lshift__, __rshift__ = map(_integers, ("sdiv", "shl", "ashr"))
    __and__, __or__, __xor__ = map(_integers, ("and_", "or_", "xor"))
    __lt__, __le__, __gt__, __ge__ = map(_comparison, ("<", "<=", ">", ">="))
    eq, ne = _comparison("=="), _comparison("!=")
    """Whether both values are equal, and whether they differ."""
    ult, ule, ugt = (_comparison(sign, "icmp_unsigned") for sign in ("<", "<=", ">"))
    """Unsigned integers: whether this value is less than the other, at most the other, or greater."""
    shr, udiv, urem = map(_integers, ("lshr", "udiv", "urem"))
    """Unsigned integers: shift right by some bits; quotient; remainder."""

    def __invert__(self) -> Value:
        return self._emit("not_")

    def select(self, x: Operand, y: Operand) -> Value:
        """`x` in lanes where this bool is true, otherwise `y`. A number gets the type of the other operand."""
        typed = x if isinstance(x, Value) else y
        assert isinstance(typed, Value)
        return self._emit("select", typed._of(x), typed._of(y))

    def _to(self, name: str, kind: Type) -> Value:
        return self._emit(name, like(self.ir.type, element(kind)))

    def sext(self, kind: Type) -> Value:
        """Sign-extend integers. In all conversions, `kind` is the type of a lane or of the vector."""
        return self._to("sext", kind)

    def zext(self, kind: Type) -> Value:
        """Zero-extend integers."""
        return self._to("zext", kind)

    def trunc(self, kind: Type) -> Value:
        """Truncate integers to the low bits that fit into the narrower type `kind`."""
        return self._to("trunc", kind)

    def to_float(self, kind: Type) -> Value:
        """Convert signed integers or floats to floats of type `kind`, rounded to nearest even."""
        wider = FLOATS.index(type(element(kind))) > FLOATS.index(type(element(self.type))) if self.is_float else None
        return self._to("sitofp" if wider is None else "fpext" if wider else "fptrunc", kind)

    def to_int(self, kind: Type) -> Value:
        """Convert floats to signed integers, rounded towards zero."""
        return self._to("fptosi", kind)

    def as_type(self, kind: Type) -> Value:
        """Bitcast to a type of the same number of bits."""
        return self._emit("bitcast", kind) if self.builder is not None else Value(None, self.ir.bitcast(kind))

    def pointer(self, kind: Type) -> Value:
        """Convert this address to an LLVM pointer to `kind`."""
        return self._emit("inttoptr", kind.as_pointer())

    def load(self, kind: Type, align: int = 1) -> Value:
        """Load a `kind` from this address."""
        x = self.pointer(kind)._emit("load")
        x.ir.align = align
        return x

    def load_invariant(self, kind: Type, align: int = 1) -> Value:
        """Load from memory that no kernel writes. LLVM may hoist the load out of loops that store."""
        x = self.load(kind, align)
        x.ir.set_metadata("invariant.load", self.building.module.add_metadata([]))
        return x

    def store(self, address: Value, align: int = 1) -> None:
        """Store this value at `address`."""
        self._emit("store", address.pointer(self.ir.type)).ir.align = align

    def load_where(self, mask: Value, kind: Type) -> Value:
        """Load the lanes of a vector where `mask` is set. Other lanes become 0, and their memory is not read."""
        name = f"llvm.masked.load.v{kind.count}{kind.element.intrinsic_name}.p0"
        return self.building.call_named(name, kind, self.pointer(kind), constant(I32, 1), mask, constant(kind, 0))

    def store_where(self, mask: Value, address: Value) -> None:
        """Store the lanes of this vector where `mask` is set. The memory of other lanes is not touched."""
        name = f"llvm.masked.store.v{self.type.count}{self.type.element.intrinsic_name}.p0"
        self.building.call_named(name, ir.VoidType(), self, address.pointer(self.type), constant(I32, 1), mask)

    def prefetch(self, level: int = 1) -> None:
        """Prefetch this address's line into the caches from `level` on. Invalid addresses cause no fault."""
        place = self.pointer(I8)
        options = (constant(I32, x) for x in (0, 4 - level, 1))
        place.building.call_named("llvm.prefetch.p0", ir.VoidType(), place, *options)

    def opaque(self) -> Value:
        """Hide an integer from LLVM's optimizer by empty inline assembly."""
        return self.building.fixed(self, "r")

    def math(self, name: str, *others: Value) -> Value:
        """Call LLVM's math intrinsic `name` (fma, sqrt, rint, ...). This value is the first operand."""
        kind = self.type
        lanes = f"v{kind.count}" if isinstance(kind, ir.VectorType) else ""
        b = next((x.builder for x in (self, *others) if x.builder is not None), None)
        if b is None:
            raise TypeError(f"{name} of constants needs a builder")
        return b.call_named(f"llvm.{name}.{lanes}{element(kind).intrinsic_name}", kind, self, *others)

    def add_incoming(self, value: Operand, block: ir.Block) -> None:
        """Set the value of this phi for control flow that comes from `block`."""
        self.ir.add_incoming(raw(self._of(value)), block)

    def lane(self, number: Operand) -> Value:
        """One element of a vector."""
        return self._emit("extract_element", constant(I32, number) if isinstance(number, int) else number)

    def shuffle(self, other: Operand, lanes: Sequence[int]) -> Value:
        """Make a vector of the elements with the indices `lanes` in this vector followed by `other`."""
        return self._emit("shuffle_vector", other, constant(ir.VectorType(I32, len(lanes)), lanes))

    def splat(self, lanes: int) -> Value:
        """Make a vector with the value in every lane. With one lane, it is the value itself."""
        if lanes == 1:
            return self
        if self.builder is None:
            return Value(None, ir.Constant(vector(self.ir.type, lanes), [self.ir] * lanes))
        undefined = Value(None, ir.Constant(vector(self.ir.type, lanes), ir.Undefined))
        one = undefined._emit("insert_element", self, constant(I32, 0))
        return one._emit("shuffle_vector", undefined, ir.Constant(vector(I32, lanes), None))


HIDDEN = (("llvm.aarch64.", "graphq.aarch64."), ("=w,0", "=x,0")) if HOST != MACHINE else ()
"""Texts of another architecture, and what stands for them in code that Numba also compiles for this machine."""


def hidden(text: str) -> str:
    """Replace the texts of HIDDEN in an intrinsic's name or in constraints of assembly. Nobody runs such code."""
    for theirs, ours in HIDDEN:
        if theirs in text:
            import llvmlite.binding as llvm

            text = text.replace(theirs, ours)
            llvm.add_symbol(text, 1)
    return text


class Builder:
    """llvmlite's builder, with instructions that take and return Values. `level` is the ISA level of the code."""

    def __init__(self, builder: ir.IRBuilder) -> None:
        self.ir, self.level = builder, LEVEL.get()

    def __getattr__(self, name: str) -> Any:
        """Wrap a method of llvmlite's builder to take and return Values. Other attributes are passed through."""
        attribute = getattr(self.ir, name)
        if not callable(attribute):
            return attribute

        def emit(*args: Any, **named: Any) -> Any:
            result = attribute(*map(raw, args), **named)
            return Value(self, result) if isinstance(result, ir.Value) and not isinstance(result, ir.Block) else result

        return emit

    def value(self, kind: Type, number: float) -> Value:
        """Make a constant of type `kind`, with this number in every lane of a vector."""
        return Value(self, constant(kind, number).ir)

    def call(self, function: Value | ir.Function | ir.InlineAsm, args: Sequence[Value]) -> Value:
        """Call a function or inline assembly."""
        return Value(self, self.ir.call(raw(function), raw(args)))

    def merged(self, *paths: tuple[ir.Block, Sequence[Value]]) -> list[Value]:
        """The values of the path that led here; `paths` has the last block of each path, and the values there."""
        out: list[Value] = [self.phi(x.type) for x in paths[0][1]]
        for block, values in paths:
            for phi, x in zip(out, values, strict=True):
                phi.add_incoming(x, block)
        return out

    def fixed(self, x: Value, register: str, side_effect: bool = False) -> Value:
        """The value `x`, as the result of empty assembly. LLVM does not know that it is the same value.

        `register` is the letter of inline assembly for a class of registers.
        """
        kind = ir.FunctionType(x.type, [x.type])
        return self.call(ir.InlineAsm(kind, "", hidden(f"={register},0"), side_effect), [x])

    def call_named(self, name: str, kind: Type, *args: Value) -> Value:
        """Call the LLVM intrinsic `name`, with a result of type `kind`; llvmlite cannot derive names for vectors."""
        name = hidden(name)
        function = self.ir.module.declare_intrinsic(name, (), ir.FunctionType(kind, [x.type for x in args]))
        return self.call(function, args)


def joined(lanes: Sequence[Value]) -> Value:
    """Make a vector with these scalars as lanes."""
    out = Value(None, ir.Constant(ir.VectorType(lanes[0].type, len(lanes)), ir.Undefined))
    for n, x in enumerate(lanes):
        out = out._emit("insert_element", x, constant(I32, n))
    return out


def larger(x: Value, y: Operand) -> Value:
    """x if x > y, otherwise y, also if a float is NaN. Integers are signed."""
    return (x > y).select(x, y)


def smaller(x: Operand, y: Operand) -> Value:
    """x if x < y, otherwise y, also if a float is NaN. Integers are signed. At least one operand is a Value."""
    if not isinstance(x, Value):
        assert isinstance(y, Value)
        x = y._of(x)
    return (x < y).select(x, y)


def _quotient(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return x // y + ((x % y != 0) & ((x < 0) != (y < 0)))  # rounds towards zero


_FOLDED: dict[str, Callable[..., np.ndarray]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "fadd": np.add, "fsub": np.subtract, "fmul": np.multiply,
    "fdiv": np.divide, "sdiv": _quotient, "udiv": np.floor_divide, "urem": np.remainder, "and_": np.bitwise_and,
    "or_": np.bitwise_or, "xor": np.bitwise_xor, "not_": np.invert, "shl": np.left_shift, "ashr": np.right_shift,
    "lshr": np.right_shift, "select": np.where, "<": np.less, "<=": np.less_equal, ">": np.greater,
    ">=": np.greater_equal, "==": np.equal, "!=": lambda x, y: (x < y) | (x > y),
    "sext": lambda x: np.where(x, -1, 0) if x.dtype == np.bool_ else x,
    **dict.fromkeys(("zext", "trunc", "sitofp", "fptosi", "fpext", "fptrunc"), lambda x: x)}
"""The NumPy functions that fold instructions on constants. NumPy's integers wrap like LLVM's."""
_UNSIGNED = "udiv", "urem", "lshr", "zext", "icmp_unsigned"


def numpy_type(kind: Type) -> np.dtype:
    """The NumPy type of an element."""
    lane = element(kind)
    if isinstance(lane, FLOATS):
        return np.dtype(f"f{2 << FLOATS.index(type(lane))}")
    return np.dtype(f"i{lane.width // 8}" if lane.width > 1 else "?")


def _lanes(x: ir.Constant) -> np.ndarray:
    lanes = [y.constant for y in (x.constant if isinstance(x.constant, list | tuple) else [x])]
    if any(y is ir.Undefined or isinstance(y, str) for y in lanes):
        raise TypeError(f"LLVM has to compute with {x}, which needs a builder")
    # None is llvmlite's form of zero lanes (zeroinitializer)
    numbers = np.array([0 if y is None else y for y in lanes]).astype(numpy_type(x.type))
    return numbers if isinstance(x.type, ir.VectorType) else numbers.reshape(())


def _folded(name: str, *args: Any) -> Value:
    """Fold an instruction on constants. Raises TypeError if the instruction cannot be folded."""
    how = args[0] if isinstance(args[0], str) else name
    if how not in _FOLDED:
        raise TypeError(f"{name} of constants needs a builder")
    operands = [x for x in args if isinstance(x, ir.Constant)]
    numbers = [_lanes(x) for x in operands]
    if name in _UNSIGNED:
        numbers = [x.view(x.dtype.str.replace("i", "u")) for x in numbers]
    with np.errstate(all="ignore"):
        result = _FOLDED[how](*numbers)
    kind = operands[-1].type if operands[-1] is args[-1] else args[-1]
    kind = like(kind, I1) if "cmp" in name else kind
    if name == "trunc" and element(kind) == I1:
        result = result & 1
    return constant(kind, result.astype(numpy_type(kind)).tolist())

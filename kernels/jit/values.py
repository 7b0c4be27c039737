"""Values of LLVM's IR with Python's operators, and the builder that emits them.

    row = (g & 7) + rows
    b.prefetch(first + row * stride)

An operator emits an instruction where the builder stands; Python numbers become constants of the other operand's type,
in every lane of a vector. Addresses are 64-bit integers, and offsets bytes.

Integers have no signs in LLVM, so the operation says how it reads them: `//`, `>>`, `<`, `<=`, `>`, `>=` and `sext` as
signed, `udiv`, `urem`, `shr`, `ult`, `ule`, `ugt` and `zext` as unsigned. `//` rounds towards zero. Comparisons of
floats are ordered: false where one is NaN.
"""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from llvmlite import ir

I1, I8, I16, I32, I64 = (ir.IntType(n) for n in (1, 8, 16, 32, 64))
F16, F32, F64 = ir.HalfType(), ir.FloatType(), ir.DoubleType()
FLOATS = (ir.HalfType, ir.FloatType, ir.DoubleType)

Type: TypeAlias = ir.Type
Operand: TypeAlias = "Value | ir.Constant | int | float"


def element(kind: Type) -> Type:
    """The type of a lane: of a vector its element's, else the type itself."""
    return kind.element if isinstance(kind, ir.VectorType) else kind


def like(kind: Type, lane: Type) -> Type:
    """The type with `lane` where `kind` has its elements."""
    return ir.VectorType(lane, kind.count) if isinstance(kind, ir.VectorType) else lane


def constant(kind: Type, number: float) -> Value:
    """A number as a constant of a type, in every lane of a vector. It belongs to no builder, and so to any."""
    return Value(None, ir.Constant(kind, [number] * kind.count if isinstance(kind, ir.VectorType) else number))


def raw(x: Any) -> Any:
    """What llvmlite takes for a value, or for a list of them."""
    if isinstance(x, Value):
        return x.ir
    return [raw(y) for y in x] if isinstance(x, list | tuple) else x


class Value:
    """A value of the function that `builder` emits, or a constant."""

    __slots__ = "builder", "ir"

    def __init__(self, builder: Builder | None, value: ir.Value) -> None:
        self.builder, self.ir = builder, value

    @property
    def type(self) -> Type:
        """LLVM's type of it."""
        return self.ir.type

    @property
    def is_float(self) -> bool:
        """Whether it is a float, or a vector of them."""
        return isinstance(element(self.ir.type), FLOATS)

    def _of(self, x: Operand) -> ir.Value:
        """The other operand, as llvmlite takes it."""
        return raw(constant(self.ir.type, x)) if isinstance(x, int | float) else raw(x)

    def _emit(self, name: str, *args: Any) -> Value:
        """Emit an instruction, by the builder of any operand that has one."""
        for x in (self, *args):
            if isinstance(x, Value) and x.builder is not None:
                return Value(x.builder, getattr(x.builder.ir, name)(*map(raw, (self, *args))))
        raise TypeError(f"{name} of constants alone")

    def _binary(self, name: str, other: Operand) -> Value:
        return self._emit(name, other if isinstance(other, Value) else self._of(other))

    def _arithmetic(self, name: str, other: Operand) -> Value:
        return self._binary(f"f{name}" if self.is_float else name, other)

    def _compare(self, sign: str, other: Operand, how: str = "icmp_signed") -> Value:
        name = "fcmp_ordered" if self.is_float else how
        other = other if isinstance(other, Value) else Value(None, self._of(other))
        for x in (self, other):
            if x.builder is not None:
                return Value(x.builder, getattr(x.builder.ir, name)(sign, self.ir, other.ir))
        raise TypeError("a comparison of constants alone")

    def _flip(self, name: str, other: Operand) -> Value:
        """The operation with `other` on the left."""
        result: Value = getattr(Value(None, self._of(other)), name)(self)
        return result

    def __add__(self, other: Operand) -> Value:
        return self._arithmetic("add", other)

    def __sub__(self, other: Operand) -> Value:
        return self._arithmetic("sub", other)

    def __mul__(self, other: Operand) -> Value:
        return self._arithmetic("mul", other)

    def __truediv__(self, other: Operand) -> Value:
        return self._binary("fdiv", other)

    def __floordiv__(self, other: Operand) -> Value:
        return self._binary("sdiv", other)

    def __and__(self, other: Operand) -> Value:
        return self._binary("and_", other)

    def __or__(self, other: Operand) -> Value:
        return self._binary("or_", other)

    def __xor__(self, other: Operand) -> Value:
        return self._binary("xor", other)

    def __lshift__(self, other: Operand) -> Value:
        return self._binary("shl", other)

    def __rshift__(self, other: Operand) -> Value:
        return self._binary("ashr", other)

    def __radd__(self, other: Operand) -> Value:
        return self._flip("__add__", other)

    def __rsub__(self, other: Operand) -> Value:
        return self._flip("__sub__", other)

    def __rmul__(self, other: Operand) -> Value:
        return self._flip("__mul__", other)

    def __rtruediv__(self, other: Operand) -> Value:
        return self._flip("__truediv__", other)

    def __invert__(self) -> Value:
        return self._emit("not_")

    def __lt__(self, other: Operand) -> Value:
        return self._compare("<", other)

    def __le__(self, other: Operand) -> Value:
        return self._compare("<=", other)

    def __gt__(self, other: Operand) -> Value:
        return self._compare(">", other)

    def __ge__(self, other: Operand) -> Value:
        return self._compare(">=", other)

    def eq(self, other: Operand) -> Value:
        """Whether both are equal."""
        return self._compare("==", other)

    def ne(self, other: Operand) -> Value:
        """Whether they differ."""
        return self._compare("!=", other)

    def ult(self, other: Operand) -> Value:
        """`<` of unsigned integers."""
        return self._compare("<", other, "icmp_unsigned")

    def ule(self, other: Operand) -> Value:
        """`<=` of unsigned integers."""
        return self._compare("<=", other, "icmp_unsigned")

    def ugt(self, other: Operand) -> Value:
        """`>` of unsigned integers."""
        return self._compare(">", other, "icmp_unsigned")

    def shr(self, bits: Operand) -> Value:
        """`>>` of unsigned integers."""
        return self._binary("lshr", bits)

    def udiv(self, other: Operand) -> Value:
        """`//` of unsigned integers."""
        return self._binary("udiv", other)

    def urem(self, other: Operand) -> Value:
        """`%` of unsigned integers."""
        return self._binary("urem", other)

    def select(self, x: Operand, y: Operand) -> Value:
        """`x` where this bool is true, else `y`, of which a number takes the other's type."""
        typed = x if isinstance(x, Value) else y
        assert isinstance(typed, Value)
        return self._emit("select", typed._of(x), typed._of(y))

    def _to(self, name: str, kind: Type) -> Value:
        return self._emit(name, like(self.ir.type, element(kind)))

    def sext(self, kind: Type) -> Value:
        """Signed integers as wider ones; this and what follows take the type of a lane, or of the vector."""
        return self._to("sext", kind)

    def zext(self, kind: Type) -> Value:
        """Unsigned integers as wider ones."""
        return self._to("zext", kind)

    def trunc(self, kind: Type) -> Value:
        """The low bits of integers."""
        return self._to("trunc", kind)

    def to_float(self, kind: Type) -> Value:
        """Signed integers, or other floats, as floats, to nearest even."""
        wider = FLOATS.index(type(element(kind))) > FLOATS.index(type(element(self.type))) if self.is_float else None
        return self._to("sitofp" if wider is None else "fpext" if wider else "fptrunc", kind)

    def to_int(self, kind: Type) -> Value:
        """Floats as signed integers, towards zero."""
        return self._to("fptosi", kind)

    def as_type(self, kind: Type) -> Value:
        """Read the value's bits as another type of as many."""
        return self._emit("bitcast", kind)

    def pointer(self, kind: Type) -> Value:
        """The address as LLVM's pointer to `kind`."""
        return self._emit("inttoptr", kind.as_pointer())

    def load(self, kind: Type, align: int = 1) -> Value:
        """Load from this address."""
        x = self.pointer(kind)._emit("load")
        x.ir.align = align
        return x

    def store(self, address: Value, align: int = 1) -> None:
        """Store this value at an address."""
        self._emit("store", address.pointer(self.ir.type)).ir.align = align

    def prefetch(self, level: int = 1) -> None:
        """Bring the line of this address into the caches from `level` on; an invalid one takes time but is no fault."""
        place = self.pointer(I8)
        assert place.builder is not None
        place.builder.call_named("llvm.prefetch.p0", ir.VoidType(), place, I32(0), I32(4 - level), I32(1))

    def opaque(self) -> Value:
        """The integer as what an empty piece of assembly made of it, so that LLVM knows nothing of it."""
        assert self.builder is not None
        kind = ir.FunctionType(self.ir.type, [self.ir.type])
        return Value(self.builder, self.builder.ir.call(ir.InlineAsm(kind, "", "=r,0"), [self.ir]))

    def add_incoming(self, value: Operand, block: ir.Block) -> None:
        """Say what this value, a phi, is after a block."""
        self.ir.add_incoming(self._of(value), block)

    def lane(self, number: Operand) -> Value:
        """One element of a vector."""
        return self._emit("extract_element", I32(number) if isinstance(number, int) else number)

    def shuffle(self, other: Operand, lanes: Sequence[int]) -> Value:
        """The elements `lanes` of this vector and, with numbers after its own, of another one."""
        return self._emit("shuffle_vector", other, ir.Constant(ir.VectorType(I32, len(lanes)), list(lanes)))

    def splat(self, lanes: int) -> Value:
        """A vector with the value in every lane; the value itself for one lane."""
        if lanes == 1:
            return self
        undefined = Value(None, ir.Constant(ir.VectorType(self.ir.type, lanes), ir.Undefined))
        one = undefined._emit("insert_element", self, I32(0))
        return one._emit("shuffle_vector", undefined, ir.Constant(ir.VectorType(I32, lanes), None))


class Builder:
    """llvmlite's builder, whose instructions take and give Values."""

    def __init__(self, builder: ir.IRBuilder) -> None:
        self.ir = builder

    def __getattr__(self, name: str) -> Any:
        """A method of llvmlite's builder, with Values for its values; or its block, module or function."""
        found = getattr(self.ir, name)
        if not callable(found):
            return found

        def emit(*args: Any, **named: Any) -> Any:
            result = found(*map(raw, args), **named)
            return Value(self, result) if isinstance(result, ir.Value) and not isinstance(result, ir.Block) else result

        return emit

    def value(self, kind: Type, number: float) -> Value:
        """A constant, in every lane of a vector."""
        return Value(self, constant(kind, number).ir)

    def call(self, function: Any, args: Sequence[Operand]) -> Value:
        """Call a function, or a piece of assembly."""
        return Value(self, self.ir.call(raw(function), [raw(x) for x in args]))

    def call_named(self, name: str, kind: Type, *args: Operand) -> Value:
        """Call the LLVM intrinsic of this full name (llvmlite cannot mangle vector types), which gives a `kind`."""
        function = self.ir.module.declare_intrinsic(name, (), ir.FunctionType(kind, [x.type for x in raw(args)]))
        return self.call(function, args)


def smaller(x: Operand, y: Operand) -> Value:
    """The smaller of two signed integers, one of them a Value at least."""
    if not isinstance(x, Value):
        assert isinstance(y, Value)
        x = Value(None, y._of(x))
    return (x < y).select(x, y)

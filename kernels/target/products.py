"""The ways to multiply bytes and floats: for each, an instruction, its emulation in plain code, and sizes of tiles.

A *group* is four bytes; a 32-bit lane holds one group. A level can multiply u8 by s8 in five ways. All of them give the
same sums: exact, modulo 2**32.

    dot4         an instruction adds the four products of each lane
    pairs        an instruction adds two products of s16; the even and the odd bytes of a lane are widened
    saturating   an instruction adds two products in 16 bits: for factors whose sums fit
    paired       an instruction multiplies two rows by two columns, two groups of each
    matrix       instructions multiply tiles of bytes in registers of their own

Kernels multiply activations as u8: epilogues expect sums of `a + shift(dtype)`. An instruction for s8 by s8 gets these
numbers minus 128, and kernels add 128 times the sums of the weights.
"""
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

from graphq.kernels.jit.values import I8, I16, I32, Builder, Type, Value, constant, vector

FLIP = 0x80808080
"""Xor with this number turns four s8 into s8 + 128 as u8, and back."""
Factor: TypeAlias = tuple[Value, ...]
"""Groups of activations or weights, as the vectors that `Multiply.dot` multiplies one after the other."""
Add: TypeAlias = Callable[[Builder, Value, Value, Value], Value]
"""A function `(b, acc, x, w)` that adds products of x and w to `acc`."""
Emit: TypeAlias = Callable[[], Sequence[Value]]
Flushing: TypeAlias = Callable[[Builder, Emit, Emit], list[Value]]


def shift(dtype: str, signed: bool = False) -> int:
    """The number that is added to integers of `dtype` before they are multiplied as u8, or as s8 if `signed`."""
    return 0 if dtype in ("u4", "s8" if signed else "u8") else -128 if signed else 128


class Multiply(NamedTuple):
    """How vectors of `lanes` lanes multiply bytes: `left` factors are u8, or s8 if `signed`; `right` factors are s8.

    `dot(b, acc, x, w)` adds the products of a left factor x and a right factor w to a vector of s32. `spread(x,
    signed)` makes a factor of a vector of u8 or s8, and `flip(b, x)` xors each byte with 128. `loads` is the type that
    a load of the bytes has.
    """

    lanes: int
    loads: Type
    signed: bool
    spread: Callable[[Value, bool], Factor]
    dot: Callable[[Builder, Value, Factor, Factor], Value]
    flip: Callable[[Builder, Value], Value]

    def left(self, b: Builder, x: Value, dtype: str = "u8") -> Factor:
        """Make a left factor of integers of `dtype`, plus their `shift`."""
        return self.spread(self.flip(b, x) if self.shift(dtype) else x, self.signed)

    def right(self, b: Builder, x: Value, dtype: str = "s8") -> Factor:
        """Make a right factor of integers of `dtype`, plus their shift."""
        return self.spread(self.flip(b, x) if shift(dtype, signed=True) else x, True)

    def shift(self, dtype: str) -> int:
        """The number that `left` adds to integers of `dtype`."""
        return shift(dtype, self.signed)

    def silent(self, dtype: str) -> int:
        """The byte of `dtype`, as a u8, that `left` turns into 0: its products add nothing to a sum."""
        return self.shift(dtype) & 0xFF


class TileSizes(NamedTuple):
    """The tiles (rows, columns) of a level's kernels; cost estimates assume `rate` operations per cycle.

    The tiles in `columns` are for kernels that also read transposed activations in place.
    """

    sizes: tuple[tuple[int, int], ...] = ()
    rate: float = 1
    columns: tuple[tuple[int, int], ...] = ()


def flipped(b: Builder, x: Value) -> Value:
    """Turn s8 into s8 + 128 as u8, and u8 into u8 - 128 as s8."""
    return x ^ FLIP


def dot4(b: Builder, acc: Value, x: Value, w: Value, signed: bool = False) -> Value:
    """Add the four products u8 * s8 of each lane of s32 to `acc`. With `signed`, x is s8."""
    for byte in range(4):
        left = 24 - 8 * byte
        factor = (x << left) >> 24 if signed else (x << left).shr(24)
        acc = acc + factor * ((w << left) >> 24)
    return acc


def pairs(b: Builder, acc: Value, x: Value, w: Value) -> Value:
    """Add the sums of two neighboring products of s16 to `acc`."""
    x, w = x.as_type(acc.type), w.as_type(acc.type)
    low = ((x << 16) >> 16) * ((w << 16) >> 16)
    return acc + (low + (x >> 16) * (w >> 16))


def saturating(b: Builder, acc: Value, x: Value, w: Value) -> Value:
    """Add the four products u8 * s8 of each lane of s32 to `acc`. The sum of each two products saturates to s16."""
    s16 = vector(I16, 2 * acc.type.count)
    x, w = x.as_type(s16), w.as_type(s16)
    products = (x & 0xFF) * ((w << 8) >> 8), x.shr(8) * (w >> 8)
    return pairs(b, acc, b.call_named(f"llvm.sadd.sat.v{s16.count}i16", s16, *products), b.value(s16, 1))


def look_up_nibbles(b: Builder, table: Sequence[int], index: Value) -> Value:
    """Look up each byte of s32 lanes, a number from 0 to 15, in a table of 16 bytes."""
    kind = vector(I8, 4 * index.type.count)
    places = index.as_type(kind)
    if b.level.shuffles is not None:
        return b.level.shuffles(b, constant(kind, [*table] * (kind.count // 16)), places).as_type(index.type)
    entries = [constant(kind, x) for x in table]
    for bit in (1, 2, 4, 8):
        chosen = (places & bit).ne(0)
        entries = [chosen.select(high, low) for low, high in zip(entries[::2], entries[1::2], strict=True)]
    return entries[0].as_type(index.type)


class ByteProduct(NamedTuple):
    """An instruction that multiplies bytes. `emit` has the meaning of `emulate`, such as `dot4`.

    Both take vectors of s32, or of s16 if the instruction `widens`: the level's vectors and narrower ones, because
    depthwise kernels also multiply 4 or 8 lanes. An instruction for s8 by s8 is `signed`, and its `emulate` is
    `partial(dot4, signed=True)`.

    `tiles` are the sizes of matmul tiles (of sorted weights if the instruction saturates), `compressed` the sizes for
    compressed weights. If `emit` is only for products that fit into s16, `words` has the meaning of `pairs` for all.
    """

    mnemonic: str
    emit: Add
    emulate: Add
    tiles: TileSizes = TileSizes()
    compressed: TileSizes = TileSizes()
    widens: bool = False
    signed: bool = False
    flip: Callable[[Builder, Value], Value] = flipped
    words: Add | None = None

    def __call__(self, lanes: int, emulated: bool, words: bool = False) -> Multiply:
        """How vectors multiply by this instruction, or by its emulation; `words`: any s16."""
        emit = self.words or self.emit if words else self.emit
        add, flip = (self.emulate, flipped) if emulated else (emit, self.flip)
        kind = vector(I16, 2 * lanes) if self.widens else vector(I32, lanes)

        def spread(x: Value, signed: bool) -> Factor:
            if not self.widens:
                return (x,)
            x = x.as_type(kind)
            return ((x << 8) >> 8, x >> 8) if signed else (x & 0xFF, x.shr(8))

        def dot(b: Builder, acc: Value, x: Factor, w: Factor) -> Value:
            for left, right in zip(x, w, strict=True):
                acc = add(b, acc, left, right)
            return acc

        return Multiply(lanes, kind, self.signed, spread, dot, flip)


class Matrix(NamedTuple):
    """Instructions that multiply tiles of bytes: `registers(b, state, emulated)` emits them (see `x86_amx.Tiles`).

    Their emulation takes `state_bytes` of memory at `state`. `granted()` asks whether this process may use them.
    """

    mnemonic: str
    registers: Callable[[Builder, Value, bool], Any]
    state_bytes: int
    granted: Callable[[], bool]
    tiles: TileSizes


class Fma(NamedTuple):
    """Fused multiply-adds of f32 in vectors of `lanes` lanes, and their tiles by the dtype of the activations.

    `flushing(b, emit, plain)` runs `emit`, and makes its code take subnormal operands and results as zeros. `plain`
    emits the same in plain code, which a CPU runs after `emit` if its results may differ. Tiles of compressed weights
    multiply at most `at_once` rows at a time: their sums fit into registers.
    """

    lanes: int
    f32: TileSizes
    narrow: TileSizes
    compressed_f32: TileSizes
    compressed_bf16: TileSizes
    flushing: Flushing | None = None
    at_once: int = 4


class Bf16(NamedTuple):
    """An instruction that multiplies pairs of bf16, and an instruction that rounds f32 to such pairs.

    `dot(b, acc, x, w)` is fma(x low, w low, fma(x high, w high, acc)) for the bf16 halves of 32-bit words; subnormal
    operands and results count as zeros. `rounded(b, low, high)` rounds f32 to bf16 halves.
    """

    dot: Add
    rounded: Callable[[Builder, Value, Value], Value]
    tiles: TileSizes
    compressed: TileSizes


class Multiplying(NamedTuple):
    """An instruction that multiplies: `macs` multiply-accumulates for each 32-bit element of its result.

    `step(b, acc, x)` emits the instruction for vectors of `element`, and an addition if the instruction only
    multiplies. Tile instructions of a `matrix` have no `step`; they read s8 or, if not `signed`, u8.
    """

    macs: int
    step: Callable[[Builder, Value, Value], Value] | None = None
    element: Type = I32
    matrix: Matrix | None = None
    signed: bool = False

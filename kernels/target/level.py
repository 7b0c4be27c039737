"""Level, a set of instructions that kernels may use, described by its capabilities.

Kernels ask for capabilities (`level.dot4 is not None`), never for names, features or architectures. A level *extends*
another level if it adds instructions to vectors of the same width; it then has all capabilities of the other level.
"""
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from graphq.base.locks import lazy_property
from graphq.kernels.jit.code import IN_PIECES, Tails
from graphq.kernels.jit.cpu import has
from graphq.kernels.jit.values import Builder, Value
from graphq.kernels.target.arm_tiles import ByElement, RowPairs
from graphq.kernels.target.products import Bf16, ByteProduct, Fma, Matrix

_known: set[str] = set()
"""The features of all levels."""
BASELINE = frozenset(("neon",))
"""Features of every CPU of an architecture. LLVM makes no code without them, so levels that lack them may use them."""


class BytePacking(NamedTuple):
    """Code that packs four vectors of s32 into one vector of bytes. If `plain`, every machine has its instructions.

    `high(b, vectors, dtype)` saturates the upper halves to s8 or u8; `low(b, vectors)` takes the low bytes.
    """

    high: Callable[[Builder, Sequence[Value], str], Value]
    low: Callable[[Builder, Sequence[Value]], Value]
    plain: bool = False


class ByteTable(NamedTuple):
    """Instructions that look up the bytes of a vector of `size` bytes in a table of 256 bytes in registers.

    The CPU must also have `feature`. `look_up(b, parts, index)` takes the table as vectors of `size` bytes. `emulate`
    is plain code that does the same.
    """

    feature: str
    look_up: Callable[[Builder, Sequence[Value], Value], Value]
    size: int = 64
    emulate: Callable[[Builder, Sequence[Value], Value], Value] | None = None


@dataclass(frozen=True, eq=False, repr=False)
class Level:
    """An ISA level: vectors of `lanes` 32-bit lanes, `registers` vector registers, and capabilities (None if missing).

    `features` are CPU features by LLVM's names. A machine has the level if its CPU reports all of them. With `f16`,
    vectors convert between f16 and f32. `tails` loads and stores the first lanes of vectors. With `by_element`,
    products take a lane of a vector as an operand for all lanes. `nibbles(b, table, index)` looks up bytes from 0 to 15
    in a table of 16 bytes, repeated in all 16 bytes of a vector. Transposes in registers work on blocks of at most
    `block_bytes` per row, and loops over f32 keep `sum_vectors` vectors of 16 sums. If `emulated`, plain code
    replaces the level's special instructions. Each level is one object, compared by identity.
    """

    name: str
    lanes: int
    pairs: ByteProduct
    fma: Fma
    features: tuple[str, ...] = ()
    registers: int = 16
    extends: "Level | None" = None
    emulated: bool = False
    dot4: ByteProduct | None = None
    saturating: ByteProduct | None = None
    paired: Mapping[str, RowPairs] | None = None
    matrix: Matrix | None = None
    bf16: Bf16 | None = None
    f16: bool = False
    tails: Tails = IN_PIECES
    by_element: ByElement | None = None
    block_bytes: int = 64
    sum_vectors: int = 16
    packing: BytePacking | None = None
    table: ByteTable | None = None
    nibbles: Callable[[Builder, Value, Value], Value] | None = None

    def __post_init__(self) -> None:
        _known.update(self.features)

    def __repr__(self) -> str:
        return f"<ISA level {self.name}{', emulated' * self.emulated}>"

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the name: it tells what the level is, and the level's functions need no pickles."""
        from graphq.kernels.target.isa import level_named  # imports this file

        return level_named, (self.name, self.emulated)

    @lazy_property
    def emulation(self) -> "Level":
        """The level whose special instructions are emulated; so is f16, if the machine lacks the level's vectors."""
        return replace(self, emulated=True, f16=self.f16 and self.base._is_native)

    def extended(self, name: str, *features: str, **capabilities: Any) -> "Level":
        """Make the level that has these features and capabilities as well."""
        return replace(self, name=name, features=(*self.features, *features), extends=self, **capabilities)

    def includes(self, other: "Level") -> bool:
        """Whether this level can run the kernels of `other`, because it has all features of `other`."""
        return set(other.features) <= set(self.features)

    def own(self, capability: str) -> Any:
        """The capability if this level adds it; None if the level lacks it or inherits it."""
        mine = getattr(self, capability)
        return None if self.extends is not None and getattr(self.extends, capability) is mine else mine

    @lazy_property
    def base(self) -> "Level":
        """The lowest level with vectors of this width. Only products of bytes and bf16 are compiled for others."""
        return self if self.extends is None else self.extends.base

    @property
    def packs(self) -> BytePacking | None:
        """`packing`, if the machine has the instructions. Nothing emulates them."""
        return self.packing if self.packing is not None and (self.packing.plain or self.base._is_native) else None

    @lazy_property
    def shuffles(self) -> Callable[[Builder, Value, Value], Value] | None:
        """`nibbles`, if the machine has the instruction."""
        return self.nibbles if self.base._is_native else None

    @lazy_property
    def looks_up(self) -> ByteTable | None:
        """`table`, if the machine has its instructions or can emulate them."""
        if self.table is None or self.base._is_native and has(self.table.feature):
            return self.table
        return None if self.table.emulate is None else self.table._replace(look_up=self.table.emulate)

    @lazy_property
    def least_saved(self) -> int:
        """The fewest operations that a look-up of a byte must replace to save time."""
        return 3 * self.lanes if self.looks_up is None else 8

    @property
    def _is_native(self) -> bool:
        return not self.emulated and has(*self.features)

    @lazy_property
    def of_products(self) -> "Level":
        """The level that integer products are compiled for: the lowest level that multiplies bytes like this one.

        Even kernels without `dot4` gain from this level, because LLVM uses it for sums of two 16-bit products.
        """
        return self if self.extends is None or self.own("dot4") is not None else self.extends.of_products

    @lazy_property
    def withheld(self) -> tuple[str, ...]:
        """The features of this machine that other levels have and this level lacks: its code must not use these."""
        return tuple(sorted(x for x in _known.difference(self.features, BASELINE) if has(x)))

    @lazy_property
    def sorts(self) -> bool:
        """Whether constant weights are sorted: some groups are multiplied by `saturating`, the others by `pairs`."""
        return self.dot4 is None and self.saturating is not None

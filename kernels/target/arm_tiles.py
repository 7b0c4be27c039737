"""How Arm's instructions take the operands of a tile: a row's groups by element, or two rows at once.

A product *by element* takes one lane of a vector for all of its lanes, so one load brings four groups of a row.

usmmla and smmla multiply two rows by two columns, eight bytes of each: twice the work of a dot product. A vector of
activations has eight bytes of one row, then of the next row. A vector of weights has eight bytes of one column, then of
the next column, so weights are packed with two groups of a column side by side (`matmul.pack`). An accumulator has the
sums of the first row and both columns, then of the second row.
"""
from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from graphq.kernels.jit.values import I8, I32, Builder, Type, Value, vector
from graphq.kernels.target.products import Add, ByteProduct, Factor, TileSizes, dot4

BYTES = vector(I8, 16)


def instruction(b: Builder, name: str, result: Type, args: Sequence[Value]) -> Value:
    """Call LLVM's intrinsic `llvm.aarch64.neon.<name>`."""
    return b.call_named(f"llvm.aarch64.neon.{name}", result, *args)


def of_bytes(name: str) -> Add:
    """Make the function that emits an instruction that multiplies vectors of 16 bytes."""
    def emit(b: Builder, acc: Value, x: Value, w: Value) -> Value:
        bytes_ = [y.as_type(BYTES) for y in (x, w)]
        return instruction(b, f"{name}.v4i32.v16i8", acc.type, [acc, *bytes_])

    return emit


class ByElement:
    """Factors by element. An instruction multiplies `at_once` rows, and as many groups of a row."""

    at_once = 1

    def factors(self, rows: Sequence[Factor], group: int, count: int) -> list[Factor]:
        """Emit the factors of one group in all lanes, from factors of `count` groups of each row."""
        return [_lane_of(x, group, count) for x in rows]

    def cycles(self, rows: int, panels: int, flips: bool) -> float:
        """Estimate the cycles of a tile for four bytes of k.

        Four products take a cycle, three loads take two (llvm-mca's models of Neoverse V1 and V2). To flip the
        activations of a row takes one operation for four groups, and so does to pair them with another row's.
        """
        return max(rows * (panels / self.at_once + (flips + self.at_once - 1) / 16), (rows / 4 + 4 * panels) / 1.5)


def _lane_of(x: Factor, lane: int, lanes: int) -> Factor:
    words = [part if part.type.count == lanes else part.as_type(vector(I32, lanes)) for part in x]
    return tuple(word.shuffle(word, [lane] * lanes).as_type(part.type) for word, part in zip(words, x, strict=True))


class RowPairs(ByElement):
    """Factors of two rows, for an instruction (`product`) that multiplies two groups of each."""

    at_once = 2

    def __init__(self, product: ByteProduct) -> None:
        self.product = product

    def factors(self, rows: Sequence[Factor], group: int, count: int) -> list[Factor]:
        """Emit the factors of two groups from `group` on of each two rows, from factors of `count` groups of a row."""
        lanes = [group, group + 1, count + group, count + group + 1]
        return [tuple(x.shuffle(y, lanes) for x, y in zip(*two, strict=True))
                for two in zip(rows[::2], rows[1::2], strict=True)]

    def start(self, sums: Sequence[Value], rows: int) -> list[Value]:
        """Emit the accumulators that start from the same `sums` in all rows, given as vectors of four columns."""
        of_two = [x.shuffle(x, columns) for x in sums for columns in ((0, 1, 0, 1), (2, 3, 2, 3))]
        return of_two * (rows // 2)

    def rows(self, acc: Sequence[Value], each: int) -> list[Value]:
        """Emit the sums of one row after the other, `each` vectors of four columns, from accumulators."""
        pairs = [acc[first:first + 2 * each] for first in range(0, len(acc), 2 * each)]
        return [x.shuffle(y, lanes) for pair in pairs for lanes in ((0, 1, 4, 5), (2, 3, 6, 7))
                for x, y in zip(pair[::2], pair[1::2], strict=True)]


def products_2x2(b: Builder, acc: Value, x: Value, w: Value, signed: bool = False) -> Value:
    """Do in plain code what usmmla does, or smmla if `signed`. Two lanes of x are a row, two lanes of w a column."""
    for k in range(2):
        rows, columns = x.shuffle(x, [k, k, k + 2, k + 2]), w.shuffle(w, [k, k + 2, k, k + 2])
        acc = dot4(b, acc, rows, columns, signed)
    return acc


def row_pairs(name: str, signed: bool) -> RowPairs:
    """The products of instruction `name`, whose activations are u8, or s8 if `signed`."""
    return RowPairs(ByteProduct(name, of_bytes(name), partial(products_2x2, signed=signed),
                                TileSizes(((6, 16), (4, 16), (2, 32))), signed=signed))

"""Tiles of float activations times compressed weights of 2, 4 or 8 bits, unpacked in registers.

    acc[i, j] = sum over k of a[i, k] * (f32(u[k, j] - z[g, j]) * scale[g, j])     by fused multiply-adds

u are the integers that the codes of weights stand for, z their zero points. A group g is some neighboring rows k of
weights with the same scales. The sums have the order of `numbers.float_sums`: blocks of at most 256 products, here of
whole groups. Some kernels round f32(u - z) * scale to a narrower float (W_DTYPES). Two bf16 activations are multiplied
at a time, in the order of float matmuls (`matmul.float`).

To convert u, a tile writes the bits of u into the last bits of the f32 2**23. The result is 2**23 + u, and subtracting
2**23 + z is exact. Floats of 8 bits have no zero points; `float_value` converts them. Compressed weights of 4 or 8 bits
take about a fifth or a third of the memory traffic of f32 weights. This traffic limits a matmul with one row.
"""
from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain, islice
from typing import NamedTuple, TypeAlias

from graphq.kernels.jit import LINE, Loop, Type
from graphq.kernels.jit.intrinsics import stack_memory
from graphq.kernels.jit.values import F32, I32, Builder, Operand, Value, c64, constant, smaller, vector
from graphq.kernels.lanes.vector import narrow, widen
from graphq.kernels.matmul.float import floats
from graphq.kernels.matmul.kernel_table import Dtypes
from graphq.kernels.matmul.pack import DESCRIPTOR, PANEL
from graphq.kernels.matmul.vector import DotProducts
from graphq.kernels.matmul_compressed.pack import BITS, F4, FLOAT_BASE, HEAD
from graphq.kernels.numbers.float_sums import BLOCK
from graphq.kernels.operands.tile_frame import Frame
from graphq.kernels.target.level import Level
from graphq.kernels.target.products import Factor, look_up_nibbles

W_DTYPES = {**{(code, dtype): f"{code}{dtype}" for code in BITS for dtype in ("f16", "bf16")},
            **{(code, "f32"): code for code in BITS}, ("s8", "f32"): "s8groups"}
"""The names of compressed weights in the kernel table, by the code of a weight and the float that it is rounded to.

The activations are f32 or have the dtype of the rounding.
"""
FORMS = {name: form for form, name in W_DTYPES.items()}
"""The code and the rounding of compressed weights, by name."""
FRACTION = {"e4m3": 3, "e5m2": 2}
"""The bits of the fraction of codes that are floats of 8 bits."""
Steps: TypeAlias = Callable[[Value], Iterator[list[Factor]]]
"""A function that yields the weights of a line, step by step: a `Factor` for each vector of columns.

A line is 64 bytes of packed weights. A step is the rows that 4 bytes of activations multiply: 1 for f32, 2 for bf16.
"""


class Floats(NamedTuple):
    """How float activations are multiplied.

    `products` multiplies. It needs the weights of a step as `vectors` vectors of type `kind`; `factor(b, rows)` makes
    them from the f32 vectors of the step's rows. A tile multiplies at most `at_once` of its rows at a time.
    """

    products: DotProducts
    kind: Type
    vectors: int
    factor: Callable[[Builder, list[Value]], Factor]
    at_once: int


def rounded(b: Builder, x: Value, dtype: str, lanes: int) -> Value:
    """Emit the rounding of finite f32 to a narrower float and back."""
    if dtype == "bf16":
        bits = x.as_type(vector(I32, lanes))
        return ((bits + 0x7FFF + (bits.shr(16) & 1)) & -0x10000).as_type(x.type)
    return widen(b, narrow(b, x, dtype, lanes), dtype, lanes)


def float_value(x: Value, fraction: int) -> Value:
    """Emit the f32 value, in units, of finite floats of 8 bits that are the highest bytes of s32 lanes.

    With exponent e and fraction f, it is (2**fraction + f) * 2**(e - 1); if e is 0, it is f.
    """
    kind, magnitude = vector(F32, x.type.count), (x & 0x7F000000).shr(1 + fraction)
    normal, twice = ((magnitude + (126 + fraction + k << 23)).as_type(kind) for k in (0, 1))
    # twice - 2**fraction is f if e is 0, and only then less than `normal`
    return (smaller(normal, twice - 2.0**fraction).as_type(x.type) | x & -0x80000000).as_type(kind)


def multiply(dtypes: Dtypes, level: Level) -> Floats:
    """Multiply as a level's float matmuls do."""
    (dtype, w_dtype), bf16 = dtypes, level.bf16
    products, (_, rounding) = floats(dtype, level), FORMS[w_dtype]
    lanes = PANEL // products.parts
    if dtype == "bf16" and bf16 is not None and not level.emulated:
        return Floats(products, vector(I32, lanes), 1, lambda b, rows: (bf16.rounded(b, *rows),), level.fma.at_once)

    def factor(b: Builder, rows: list[Value]) -> Factor:
        rows = rows[::-1]  # as in float matmuls, the product of a step's second row is added first
        return tuple(rows if rounding == "f32" else (rounded(b, x, rounding, lanes) for x in rows))

    return Floats(products, products.kind, 4 // products.itemsize, factor, level.fma.at_once)


class WeightTile:
    """A tile of `rows` rows and `panels` panels of 16 columns; a panel is `parts` vectors of `columns` columns.

    Tiles for integers and for floats extend this class. It clears accumulators, and finds a group's numbers.
    """

    def __init__(self, b: Builder, f: Frame, rows: int, panels: int, code: str, columns: int) -> None:
        self.b, self.f, self.rows, self.panels, self.code, self.bits = b, f, rows, panels, code, BITS[code]
        self.parts, self.columns, self.line_rows = PANEL // columns, columns, 32 // self.bits
        self.line_shift = self.line_rows.bit_length() - 1
        self.group, self.groups, self.panel_bytes, self.group_bytes, *self.places = (
            DESCRIPTOR.load(f.sums, name) for name in DESCRIPTOR.fields)
        self.group_lines = (self.group + (self.line_rows - 1)) >> self.line_shift

    def clear(self) -> None:
        """Emit zeros for all accumulators in memory."""
        for n in range(self.rows * self.panels):
            constant(vector(I32, 16), 0).store(self.f.acc + 64 * n)

    def zeros(self, kind: Type) -> list[Value]:
        """A zero for each vector of outputs."""
        return [constant(kind, 0)] * (self.rows * self.panels * self.parts)

    def scales(self, group: Value) -> list[Value]:
        """The addresses of a group's scales, one for each vector of columns."""
        return self.vectors(group * self.group_bytes + HEAD)

    def terms(self, group: Value) -> list[Value]:
        """The addresses of a group's terms, one for each vector of columns."""
        first, step = self.places[:2]
        return self.vectors(first + group * step)

    def zero_points(self, group: Value) -> list[Value]:
        """The addresses of a group's zero points, one for each vector of columns."""
        first, step = self.places[2:]
        return self.vectors(first + group * step)

    def vectors(self, offset: Value) -> list[Value]:
        """The addresses of all vectors of columns, at `offset` in each panel."""
        return [self.f.w + self.panel_bytes * j + offset + 4 * self.columns * part
                for j in range(self.panels) for part in range(self.parts)]

    def line_of(self, group: Value) -> Value:
        """The byte offset of a group's first line of weights in a panel."""
        return (group + 1) * self.group_bytes + HEAD - self.group_lines * LINE

    def four_rows(self, line: Value, index: Operand) -> Value:
        """Emit the integers u of rows 4 * `index` to 4 * `index` + 3 of a line, as four bytes in each lane."""
        if self.bits == 8:
            return line
        codes = line.shr(index * self.bits) & ((1 << self.bits) - 1) * 0x01010101
        return look_up_nibbles(self.b, F4, codes) if self.code == "f4" else codes

    def add(self, n: int, y: Value) -> None:
        """Emit the addition of `y` to the accumulators of vector `n`."""
        address = self.f.acc + 4 * self.columns * n
        (address.load(y.type) + y).store(address)


def rows_at_once(rows: int, most: int) -> int:
    """The rows that a tile multiplies at a time: `most`, or fewer if the tile then takes as many turns."""
    return -(-rows // -(-rows // most))


class _FloatTile(WeightTile):
    """A tile of float activations that multiplies `at_once` of its rows at a time, with accumulators in registers.

    The first `at_once` rows unpack the weights of a block of sums. The other rows, if any, read the unpacked weights
    from the stack.
    """

    def __init__(self, b: Builder, f: Frame, rows: int, panels: int, w_dtype: str, how: Floats) -> None:
        products, at_once = how.products, rows_at_once(rows, how.at_once)
        super().__init__(b, f, rows, panels, FORMS[w_dtype][0], PANEL // products.parts)
        self.how, self.kind, self.at_once, self.row_bytes = how, products.kind, at_once, LINE * panels
        self.step_rows, self.step_bytes = 4 // products.itemsize, how.vectors * LINE * panels
        self.unpacked = stack_memory(b, BLOCK // self.step_rows * self.step_bytes) if rows > at_once else None

    def emit(self) -> tuple[Value, ...]:
        """Emit the loop over blocks of sums and, inside it, the loop over the tile's rows. The sums lie in memory."""
        b, f = self.b, self.f
        self.clear()
        each = c64(BLOCK) // self.group
        with Loop(b, (self.groups + each - 1) // each) as blocks:
            first = blocks.k * each
            count = smaller(each, self.groups - first)
            self.multiply(first, count, c64(0), self.unpack)
            if self.unpacked is not None:
                with Loop(b, (f.rows - 1) // self.at_once) as parts:
                    self.multiply(first, count, (parts.k + 1) * self.at_once, self.load)
        return ()

    def multiply(self, first: Value, count: Value, row: Value, weights: Callable[[Value, Value], Steps]) -> None:
        """Emit products of `count` groups from group `first` on, and add them to the sums of rows from `row` on.

        `weights(group, index)` returns the `Steps` of a group. `index` is the group's index within the block of sums.
        """
        b, f, products = self.b, self.f, self.how.products
        sources = [f.a + smaller(row + i, f.rows - 1) * f.stride for i in range(self.at_once)]
        with Loop(b, count, [constant(self.kind, 0)] * (self.at_once * self.panels * self.parts)) as groups:
            group = first + groups.k
            steps = weights(group, groups.k)
            with Loop(b, self.group_lines, groups.values) as lines:
                out, item = list(lines.values), products.itemsize
                k = group * (item * self.group) + lines.k * (item * self.line_rows)
                for number, of_columns in enumerate(steps(lines.k)):
                    for i, source in enumerate(sources):
                        x = products.activations(b, (source + k + 4 * number).load(I32).splat(self.columns))
                        for n, weight in enumerate(of_columns, i * len(of_columns)):
                            out[n] = products.dot(b, out[n], x, weight)
                lines.update(out)
            groups.update(lines.values)
        for n, value in enumerate(groups.values):
            address = f.acc + row * self.row_bytes + 4 * self.columns * n
            products.total(b, address.load(self.kind) + value).store(address)

    def unpack(self, group: Value, index: Value) -> Steps:
        """Load a group's scales, and return its steps. If the tile has more rows, steps store weights for them."""
        scales, of_zeros = ([address.load(self.kind) for address in addresses]
                            for addresses in (self.scales(group), self.terms(group)))
        first, base, looked_up = self.line_of(group), int(FLOAT_BASE.view("i4")), self.code == "f4"
        mask = (1 << (8 if looked_up else self.bits)) - 1

        def unpacked(quads: list[Value], row: int, of_zero: Value, scale: Value) -> Value:
            x = quads[row // 4]
            if self.code in FRACTION:
                return float_value(x << 24 - 8 * row, FRACTION[self.code]) * scale
            return ((x.shr(8 * (row % 4)) & mask | base).as_type(self.kind) - of_zero) * scale

        def steps(line: Value) -> Iterator[list[Factor]]:
            words = [address.load(vector(I32, self.columns)) for address in self.vectors(first + line * LINE)]
            quads = [[self.four_rows(x, i) if looked_up else x.shr(self.bits * i) for i in range(self.line_rows // 4)]
                     for x in words]
            for step in range(self.line_rows // self.step_rows):
                rows = range(step * self.step_rows, (step + 1) * self.step_rows)
                out = [self.how.factor(self.b, [unpacked(x, row, of_zero, scale) for row in rows])
                       for x, of_zero, scale in zip(quads, of_zeros, scales, strict=True)]
                if self.unpacked is not None:
                    for address, x in zip(self.kept(index, line, step), chain(*out), strict=True):
                        x.store(address)
                yield out

        return steps

    def load(self, group: Value, index: Value) -> Steps:
        """Return the steps of a group whose weights are already unpacked on the stack."""

        def steps(line: Value) -> Iterator[list[Factor]]:
            for step in range(self.line_rows // self.step_rows):
                loads = (address.load(self.how.kind) for address in self.kept(index, line, step))
                yield [tuple(islice(loads, self.how.vectors)) for _ in range(self.panels * self.parts)]

        return steps

    def kept(self, index: Value, line: Value, step: int) -> list[Value]:
        """The stack addresses of a step's unpacked vectors, for group `index` of the block of sums."""
        assert self.unpacked is not None
        steps = (index * self.group + line * self.line_rows) // self.step_rows + step
        first = self.unpacked + steps * self.step_bytes
        return [first + 4 * self.columns * n for n in range(self.how.vectors * self.panels * self.parts)]


def float_tile(b: Builder, address: Value, index: Value, *, rows: int, panels: int, w_dtype: str, how: Floats) -> None:
    """Emit the tile of `rows` x 16 * `panels` outputs, for float activations in rows."""
    f = Frame.read(address)
    how.products.sums(b, lambda products: _FloatTile(
        b, f, rows, panels, w_dtype, how._replace(products=products)).emit())

"""Matmul of activations and packed weights of 4 or 8 bits (`matmul_compressed.pack`), unpacked in registers.

For activations a' of 8 bits (shifted as in `matmul`), with scales s of rows and groups:

    R[g, i, j]   = sum_{k in group g} a'[i, k] * (u[k, j] - z[g, j])                 exact, modulo 2**32
    acc[i, j]    = sum_g f32(R[g, i, j] + correction[g, j]) * (s[i, g] * scale[g, j])   from 0 on, in order

For activations of f32, in the order of `float_sums`, whose blocks consist of whole groups:

    acc[i, j]    = sum of chains of fma(a[i, k], f32(u[k, j] - z[g, j]) * scale[g, j], ...)

A line of 64 bytes has the 4-bit weights of 8 k and 16 columns. A mask, perhaps after a shift, and a subtraction unpack
four of the k, which are then multiplied like 8-bit weights. For f32 the bits of u become the last bits of the f32
2**23, which gives 2**23 + u; the subtraction of 2**23 + z from it is exact. Compressed weights take about a fifth or a
third of the memory traffic of f32 weights, which bounds a product with one row. The accumulators that tiles leave are
f32.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from graphq.kernels.jit.codegen import Functions
from graphq.kernels.jit.deferred import Intrinsic, emits, njit
from graphq.kernels.jit.intrinsics import load_s8, load_s32, load_s64, load_u8, store_s32
from graphq.kernels.jit.memory import LINE
from graphq.kernels.jit.values import F32, I8, I16, I32, I64, Builder, Type, Value, c64, constant, smaller, vector
from graphq.kernels.jit.x86 import Loop
from graphq.kernels.matmul.pack import DESCRIPTOR, PANEL, panel_count
from graphq.kernels.matmul.plan import MATMUL
from graphq.kernels.matmul.table import Dtypes, Kernel, register_kernel
from graphq.kernels.matmul.tiles import tile_functions
from graphq.kernels.matmul.vector import Factor, Products, saturating, signed_halves, vnni, widened
from graphq.kernels.matmul_compressed.pack import FLOAT_BASE
from graphq.kernels.numbers.float_sums import BLOCK
from graphq.kernels.operands.tile_frame import FRAME, Frame, clamped

view, view_descriptor, view_args = FRAME.view, DESCRIPTOR.view, MATMUL.view
W_DTYPES = {4: "s4", 8: "s8groups"}
"""The kernel table's names for the dtypes of compressed weights, by their bits."""
BITS = {name: bits for bits, name in W_DTYPES.items()}
FOUR_BITS, EIGHT_BITS = (tuple((a, w) for a in ("u8", "s8")) for w in W_DTYPES.values())
DTYPES = (*FOUR_BITS, *EIGHT_BITS)
FLOATS = tuple(("f32", w) for w in W_DTYPES.values())
ROW_SCALES = ("row_scales", "row_scales_table", "row_scales_row", "row_scales_step")
"""The fields of `matmul.plan.MATMUL` that locate the scales of activations."""
AHEAD = 3072
"""How many bytes ahead of its loads a tile of one row prefetches weights, each of which it reads once.

1 x 4096 x 11008 with 4-bit weights takes three quarters of the time (Zen 5). Products whose weights are in the caches
take as long as without prefetches.
"""


class Unpacked(NamedTuple):
    """How packed weights are multiplied by `products`.

    A line of 64 bytes of packed weights is loaded in parts. `spread` unpacks a part into the vectors that `products`
    multiplies.
    """

    products: Products
    spread: Callable[[Value], Factor]


def unpacked_vnni(a_dtype: str, lanes: int, emulated: bool) -> Unpacked:
    """Products by vpdpbusd."""
    return Unpacked(vnni(a_dtype, lanes, emulated), lambda x: (x.as_type(vector(I32, lanes)),))


def unpacked_saturating(a_dtype: str, lanes: int, emulated: bool) -> Unpacked:
    """Products by vpmaddubsw, which does not saturate, since 4-bit weights are small (`pack.REACH`)."""
    return Unpacked(saturating(a_dtype, lanes, emulated), lambda x: (x.as_type(vector(I32, lanes)),))


def unpacked_widened(a_dtype: str, lanes: int, emulated: bool) -> Unpacked:
    """Products by vpmaddwd."""
    words = vector(I16, 2 * lanes)
    return Unpacked(widened(a_dtype, lanes, emulated), lambda x: signed_halves(x.as_type(words)))


def partial_group(address: Value, count: Value, fill: int) -> Value:
    """Load `count` (1 to 4) bytes as a group (s32), filled up with bytes `fill`; reads no other bytes."""
    group, last = constant(I32, 0), count - 1
    for i in range(4):
        byte = (address + smaller(i, last)).load(I8).zext(I32)
        byte = (c64(i) < count).select(byte, fill)
        group = group | (byte << (8 * i))
    return group


class _Tile:
    """A tile of `rows` x 16 * `panels` outputs, for any activations; the 16 columns of a panel are `parts` vectors."""

    def __init__(self, b: Builder, f: Frame, rows: int, panels: int, bits: int, parts: int) -> None:
        self.b, self.f, self.rows, self.panels, self.bits, self.parts = b, f, rows, panels, bits, parts
        self.line_rows, self.columns = 32 // bits, 16 // parts
        self.line_shift = self.line_rows.bit_length() - 1
        self.sources = clamped(f, rows)
        self.group, self.groups, self.panel_bytes, self.zero_points, self.lines = (
            DESCRIPTOR.load(f.sums, name) for name in DESCRIPTOR.fields)
        self.group_lines = (self.group + (self.line_rows - 1)) >> self.line_shift

    def clear(self) -> None:
        for n in range(self.rows * self.panels):
            constant(vector(I32, 16), 0).store(self.f.acc + 64 * n)

    def zeros(self, kind: Type) -> list[Value]:
        return [constant(kind, 0)] * (self.rows * self.panels * self.parts)

    def head(self, panel: int, part: int, group: Value) -> Value:
        """The address of a group's scales for the columns of a vector; the group's terms are 64 bytes after it."""
        return self.f.w + self.panel_bytes * panel + group * (2 * LINE) + 4 * part * self.columns

    def line_of(self, group: Value) -> Value:
        """The offset of a group's first line in a panel."""
        return self.lines + group * self.group_lines * LINE

    def add(self, n: int, part: int, y: Value) -> None:
        address = self.f.acc + (64 * n + 4 * part * self.columns)
        (address.load(y.type) + y).store(address)


class _IntegerTile(_Tile):
    def __init__(self, b: Builder, f: Frame, rows: int, panels: int, bits: int, how: Unpacked) -> None:
        super().__init__(b, f, rows, panels, bits, how.products.parts)
        self.how, self.bytes = how, vector(I8, 4 * self.columns)
        args, batch, i = (FRAME.load(f.address, name) for name in ("args", "batch", "i"))
        scales, table, row, self.step = (MATMUL.load(args, name) for name in ROW_SCALES)
        has_table = table.ne(0)
        offset = has_table.select(table + batch * 8, args).load(I64)
        first = scales + has_table.select(offset, 0) + i * row
        self.row_scales = [first + smaller(r, f.rows - 1) * row for r in range(rows)]

    def emit(self) -> None:
        b, step = self.b, self.line_rows
        self.clear()
        whole, rest = self.group >> self.line_shift, self.group & (step - 1)
        with Loop(b, self.groups) as groups:
            self.subtract = self.zero_points_of(groups.k)
            k, line = groups.k * self.group, self.line_of(groups.k)
            with Loop(b, whole, self.zeros(self.how.products.kind)) as loop:
                acc, here, first = loop.values, line + loop.k * LINE, k + loop.k * step
                if self.rows == 1:
                    for panel in range(self.panels):
                        (self.f.w + self.panel_bytes * panel + here + AHEAD).prefetch()
                for quad in range(step // 4):
                    x = [(source + first + 4 * quad).load(I32) for source in self.sources]
                    acc = self.multiply(x, here, b.value(I64, 4 * quad), acc)
                loop.update(acc)
            here, first = line + whole * LINE, k + whole * step
            with Loop(b, (rest + 3) >> 2, loop.values) as last:  # this loop mostly has no turn
                done = last.k * 4
                count = smaller(rest - done, 4)
                assert self.how.products.silent is not None
                fill = self.how.products.silent
                x = [partial_group(source + first + done, count, fill) for source in self.sources]
                last.update(self.multiply(x, here, done, last.values))
            self.add_scaled(groups.k, last.values)

    def zero_points_of(self, group: Value) -> list[Value]:
        """Emit the zero points that are subtracted from the bytes of each part, for 4-bit weights."""
        out = []
        for j in range(self.panels if self.bits == 4 else 0):
            address = self.f.w + self.panel_bytes * j + self.zero_points + group * PANEL
            for part in range(self.parts):
                z = (address + part * self.columns).load(vector(I8, self.columns))
                out.append(z.shuffle(z, [c for c in range(self.columns) for _ in range(4)]))
        return out

    def multiply(self, x: Sequence[Value], line: Value, shift: Value, acc: Sequence[Value]) -> list[Value]:
        """Emit the products of every row with four rows of weights, a `line` from bit `shift` on; returns the sums."""
        b, products, out = self.b, self.how.products, list(acc)
        weights = []
        for n in range(self.panels * self.parts):
            j, part = divmod(n, self.parts)
            address = self.f.w + self.panel_bytes * j + line + part * 4 * self.columns
            packed = address.load(vector(I32, self.columns))
            if self.bits == 4:
                nibbles = packed.shr(shift.trunc(I32).splat(self.columns)) & 0x0F0F0F0F
                weights.append(self.how.spread(nibbles.as_type(self.bytes) - self.subtract[n]))
            else:
                weights.append(self.how.spread(packed.as_type(self.bytes)))
        for i, group in enumerate(x):
            spread = products.activations(b, group)
            for n, weight in enumerate(weights, i * len(weights)):
                out[n] = products.dot(b, out[n], spread, weight)
        return out

    def add_scaled(self, group: Value, acc: Sequence[Value]) -> None:
        """Emit total += f32(sum + correction) * (scale of row and group * scale), for each row and column."""
        vectors = iter(acc)
        for i, row in enumerate(self.row_scales):
            scale = (row + group * self.step).load(F32)
            for j in range(self.panels):
                for part in range(self.parts):
                    value, head = next(vectors), self.head(j, part, group)
                    for done in range(0, self.columns, value.type.count):
                        floats = vector(F32, value.type.count)
                        exact = value + (head + (LINE + 4 * done)).load(value.type)
                        factor = scale.splat(value.type.count) * (head + 4 * done).load(floats)
                        self.add(i * self.panels + j, part, exact.to_float(floats) * factor)


class _FloatTile(_Tile):
    def emit(self) -> None:
        """Emit the loop over blocks of sums and, inside it, the loop over a block's groups."""
        b, kind = self.b, vector(F32, self.columns)
        self.clear()
        each = c64(BLOCK) // self.group
        with Loop(b, (self.groups + each - 1) // each) as blocks:
            first = blocks.k * each
            with Loop(b, smaller(each, self.groups - first), self.zeros(kind)) as groups:
                group = first + groups.k
                heads = [self.head(j, part, group) for j in range(self.panels) for part in range(self.parts)]
                scales, of_zeros = ([(head + at).load(kind) for head in heads] for at in (0, LINE))
                k, line = group * (4 * self.group), self.line_of(group)
                with Loop(b, self.group_lines, groups.values) as lines:
                    lines.update(self.multiply(k + lines.k * (4 * self.line_rows), line + lines.k * LINE, scales,
                                               of_zeros, lines.values))
                groups.update(lines.values)
            for n, value in enumerate(groups.values):
                self.add(n // self.parts, n % self.parts, value)

    def multiply(self, k: Value, line: Value, scales: Sequence[Value], of_zeros: Sequence[Value],
                 acc: Sequence[Value]) -> list[Value]:
        """Emit the products of the weights in the line at offset `line` with activations; returns the new accumulators.

        The activations begin at byte `k` of each row. The weights are unpacked and multiplied row by row.
        """
        kind, integers, out = vector(F32, self.columns), vector(I32, self.columns), list(acc)
        places = [(n // self.parts, n % self.parts * 4 * self.columns) for n in range(self.panels * self.parts)]
        packed = [(self.f.w + self.panel_bytes * panel + line + at).load(integers) for panel, at in places]
        base = int(FLOAT_BASE.view("i4"))
        for row in range(self.line_rows):
            shift = 8 * (row % 4) + 4 * (row // 4)
            weights = [(((x.shr(shift) if shift else x) & (1 << self.bits) - 1 | base).as_type(kind) - of_zero) * scale
                       for x, scale, of_zero in zip(packed, scales, of_zeros, strict=True)]
            for i, source in enumerate(self.sources):
                x = (source + k + 4 * row).load(F32).splat(self.columns)
                for n, weight in enumerate(weights, i * len(weights)):
                    out[n] = x.math("fma", weight, out[n])
        return out


def integer_tile(rows: int, panels: int, bits: int, how: Unpacked) -> Intrinsic:
    """Make the tile function of `rows` x 16 * `panels` outputs, for activations of 8 bits in rows."""

    @emits
    def tile(b: Builder, address: Value) -> None:
        _IntegerTile(b, Frame.read(address), rows, panels, bits, how).emit()

    return tile


def float_tile(rows: int, panels: int, bits: int, lanes: int) -> Intrinsic:
    """Make the tile function of `rows` x 16 * `panels` outputs, for activations of f32 in rows."""

    @emits
    def tile(b: Builder, address: Value) -> None:
        _FloatTile(b, Frame.read(address), rows, panels, bits, 16 // lanes).emit()

    return tile


@emits
def _add_scaled(b: Builder, total: Value, value: Value, scale: Value, row_scale: Value) -> None:
    """Add f32(value) * (row scale * scale) to the f32 at address `total`; the scales are given as addresses of f32."""
    y = value.trunc(I32).to_float(F32) * (row_scale.load(F32) * scale.load(F32))
    (total.load(F32) + y).store(total)


def scalar_tile(shift: int, bits: int) -> Intrinsic:
    """Make the tile function of one panel as plain loops; activations are bytes xored with `shift` (128 for s8)."""
    rows_of_line = 32 // bits

    @njit
    def weight(line: int, k: int, z: int) -> int:
        byte = line + k // rows_of_line * 64 + k % 4
        return (load_u8(byte) >> (k // 4 % 2 * 4) & 15) - z if bits == 4 else load_s8(byte)

    @njit
    def tile(frame: int) -> None:
        f = view(frame)
        a, stride, w, rows, acc, d = f.a, f.stride, f.w, f.rows, f.acc, view_descriptor(f.sums)
        size, groups, zero_points, lines = d.group, d.groups, w + d.zero_points, w + d.lines
        x, group_bytes = view_args(f.args), (d.group + rows_of_line - 1) // rows_of_line * 64
        row_scales = x.row_scales + (load_s64(x.row_scales_table + 8 * f.batch) if x.row_scales_table else 0)
        for i in range(rows):
            for c in range(16):
                total = acc + 64 * i + 4 * c
                store_s32(total, 0)
                for g in range(groups):
                    source, line = a + i * stride + g * size, lines + g * group_bytes + 4 * c
                    z, value = load_u8(zero_points + 16 * g + c), load_s32(w + 128 * g + 64 + 4 * c)
                    z -= 256 if z > 128 else 0
                    for k in range(size):
                        value += (load_u8(source + k) ^ shift) * weight(line, k, z)
                    _add_scaled(total, value, w + 128 * g + 4 * c,
                                row_scales + (f.i + i) * x.row_scales_row + g * x.row_scales_step)

    return tile


def estimate_integers(kernel: Kernel, m: int, n: int, k: int, *, parts: int, rate: float) -> float:
    """Estimate cycles: four rows of weights take `rate` products a cycle and 2.5 operations a part, or memory's time.

    Measured on Zen 4, 24 x 1024 x 768 in groups of 128: 0.40 TOPS, where 8-bit weights reach 0.43.
    """
    rows, panels = kernel.tile[0], kernel.tile[1] // PANEL
    group = max((rows * panels + 1.25 * panels) * parts / rate, 4, panels * 8 * BITS[kernel.dtypes[1]] / 20)
    return -(-m // rows) * panel_count(n) / panels * (-(-k // 4) * group + 30 + 3 * rows * panels * parts)


def estimate_floats(kernel: Kernel, m: int, n: int, k: int, *, parts: int) -> float:
    """Estimate cycles for `k` bytes: a row of weights takes its products, and 1.5 operations to unpack a vector."""
    rows, panels = kernel.tile[0], kernel.tile[1] // PANEL
    group = max(rows * panels + 1.5 * panels, 4)
    return -(-m // rows) * panel_count(n) / panels * (k // 4 * group + 30 + 3 * rows * panels * parts)


def estimate_scalar(kernel: Kernel, m: int, n: int, k: int) -> float:
    """Estimate cycles: about three for each product."""
    return 3.0 * m * panel_count(n) * PANEL * k


@register_kernel(DTYPES, ((4, 16),), "scalar", estimate_scalar, layouts=("rows",))
def build_scalar(dtypes: Dtypes, rows: int, columns: int, emulated: bool, layout: str) -> Functions:
    """Build tiles that are plain loops."""
    return tile_functions(scalar_tile(128 if dtypes[0] == "s8" else 0, BITS[dtypes[1]]))


@register_kernel(FOUR_BITS, ((4, 16), (2, 32), (1, 32)), "avx2", partial(estimate_integers, parts=2, rate=1),
                 layouts=("rows",))
def build_avx2_4_bits(dtypes: Dtypes, rows: int, columns: int, emulated: bool, layout: str) -> Functions:
    """Build tiles of vpmaddubsw with 8 columns a vector; products of 4-bit weights cannot saturate."""
    return tile_functions(integer_tile(rows, columns // PANEL, 4, unpacked_saturating(dtypes[0], 8, emulated)))


@register_kernel(EIGHT_BITS, ((3, 16), (1, 16)), "avx2", partial(estimate_integers, parts=4, rate=1.5),
                 layouts=("rows",))
def build_avx2_8_bits(dtypes: Dtypes, rows: int, columns: int, emulated: bool, layout: str) -> Functions:
    """Build tiles of vpmaddwd with 8 columns a vector; bytes are widened to 16 bits."""
    return tile_functions(integer_tile(rows, columns // PANEL, 8, unpacked_widened(dtypes[0], 8, emulated)))


@register_kernel(DTYPES, ((6, 16), (4, 16), (2, 32), (1, 32)), "avx_vnni", partial(estimate_integers, parts=2, rate=2),
                 layouts=("rows",))
def build_avx_vnni(dtypes: Dtypes, rows: int, columns: int, emulated: bool, layout: str) -> Functions:
    """Build tiles of vpdpbusd with 8 columns a vector."""
    return tile_functions(integer_tile(rows, columns // PANEL, BITS[dtypes[1]], unpacked_vnni(dtypes[0], 8, emulated)))


@register_kernel(FOUR_BITS, ((8, 32), (4, 32), (2, 32), (1, 64)), "avx512",
                 partial(estimate_integers, parts=1, rate=0.5), layouts=("rows",))
def build_avx512_4_bits(dtypes: Dtypes, rows: int, columns: int, emulated: bool, layout: str) -> Functions:
    """Build tiles of vpmaddubsw with 16 columns a vector; products of 4-bit weights cannot saturate."""
    return tile_functions(integer_tile(rows, columns // PANEL, 4, unpacked_saturating(dtypes[0], 16, emulated)))


@register_kernel(EIGHT_BITS, ((6, 32), (4, 32), (2, 32), (1, 32)), "avx512",
                 partial(estimate_integers, parts=2, rate=0.8), layouts=("rows",))
def build_avx512_8_bits(dtypes: Dtypes, rows: int, columns: int, emulated: bool, layout: str) -> Functions:
    """Build tiles of vpmaddwd with 16 columns a vector; bytes are widened to 16 bits."""
    return tile_functions(integer_tile(rows, columns // PANEL, 8, unpacked_widened(dtypes[0], 16, emulated)))


@register_kernel(DTYPES, ((6, 48), (4, 64), (2, 64), (1, 64)), "avx512_vnni",
                 partial(estimate_integers, parts=1, rate=1), layouts=("rows",))
def build_vnni(dtypes: Dtypes, rows: int, columns: int, emulated: bool, layout: str) -> Functions:
    """Build tiles of vpdpbusd with 16 columns a vector."""
    return tile_functions(integer_tile(rows, columns // PANEL, BITS[dtypes[1]], unpacked_vnni(dtypes[0], 16, emulated)))


@register_kernel(FLOATS, ((4, 16),), "scalar", estimate_scalar, layouts=("rows",))
def build_floats_scalar(dtypes: Dtypes, rows: int, columns: int, emulated: bool, layout: str) -> Functions:
    """Build tiles of fused multiply-adds with 4 columns a vector, for any CPU."""
    return tile_functions(float_tile(rows, columns // PANEL, BITS[dtypes[1]], 4))


@register_kernel(FLOATS, ((6, 16), (4, 16), (2, 32), (1, 32)), "avx2", partial(estimate_floats, parts=2),
                 layouts=("rows",))
def build_floats_avx2(dtypes: Dtypes, rows: int, columns: int, emulated: bool, layout: str) -> Functions:
    """Build tiles of vfmadd with 8 columns a vector."""
    return tile_functions(float_tile(rows, columns // PANEL, BITS[dtypes[1]], 8))


@register_kernel(FLOATS, ((8, 48), (6, 64), (4, 64), (2, 64), (1, 64)), "avx512", partial(estimate_floats, parts=1),
                 layouts=("rows",))
def build_floats_avx512(dtypes: Dtypes, rows: int, columns: int, emulated: bool, layout: str) -> Functions:
    """Build tiles of vfmadd with 16 columns a vector."""
    return tile_functions(float_tile(rows, columns // PANEL, BITS[dtypes[1]], 16))

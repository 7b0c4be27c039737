"""Matmul of 8-bit activations and packed 4-bit weights (`matmul_4bit.pack`), unpacked in registers.

    R[g, i, j]   = sum_{k in group g} a'[i, k] * (u[k, j] - z[g, j])        exact, modulo 2**32; a' as in `matmul`
    acc[i, j]    = sum_g f32(R[g, i, j] + correction[g, j]) * scale[g, j]   from 0 on, in order, one rounding each

A line of 64 bytes gives the weights of 8 k and 16 columns: an and, or a shift and an and, and a subtraction make four k
of it, which multiply as 8-bit weights do. So 4-bit weights take half of the memory traffic, which is what bounds a
product with one row. The accumulators that tiles leave are f32.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from graphq.kernels.jit.codegen import Functions
from graphq.kernels.jit.deferred import Intrinsic, emits, njit
from graphq.kernels.jit.intrinsics import load_s32, load_u8, store_s32
from graphq.kernels.jit.memory import LINE
from graphq.kernels.jit.values import F32, I8, I16, I32, I64, Builder, Value, c64, constant, smaller, vector
from graphq.kernels.jit.x86 import Loop
from graphq.kernels.matmul.pack import DESCRIPTOR, PANEL, panel_count
from graphq.kernels.matmul.table import Kernel, register_kernel
from graphq.kernels.matmul.tiles import tile_functions
from graphq.kernels.matmul.vector import Factor, Products, signed_halves, vnni, widened
from graphq.kernels.operands.tile_frame import FRAME, Frame, clamped

view, view_descriptor = FRAME.view, DESCRIPTOR.view
W_DTYPE = "s4"
DTYPES = (("u8", W_DTYPE), ("s8", W_DTYPE))


class Unpacked(NamedTuple):
    """How bytes of weights become the operand of `products`: `spread(bytes)` of a part's 64 / parts bytes."""

    products: Products
    spread: Callable[[Value], Factor]


def unpacked_vnni(a_dtype: str, lanes: int, emulated: bool) -> Unpacked:
    """Multiply by vpdpbusd."""
    return Unpacked(vnni(a_dtype, lanes, emulated), lambda x: (x.as_type(vector(I32, lanes)),))


def unpacked_widened(a_dtype: str, lanes: int, emulated: bool) -> Unpacked:
    """Multiply by vpmaddwd."""
    words = vector(I16, 2 * lanes)
    return Unpacked(widened(a_dtype, lanes, emulated), lambda x: signed_halves(x.as_type(words)))


def partial_group(address: Value, count: Value, fill: int) -> Value:
    """Load `count` (1 to 4) bytes as a group (s32), `fill` after them; reads nothing beyond."""
    group, last = constant(I32, 0), count - 1
    for i in range(4):
        byte = (address + smaller(i, last)).load(I8).zext(I32)
        byte = (c64(i) < count).select(byte, fill)
        group = group | (byte << (8 * i))
    return group


class _Tile:
    """The emission of a tile of `rows` x 16 * `panels` outputs."""

    def __init__(self, b: Builder, f: Frame, rows: int, panels: int, how: Unpacked) -> None:
        self.b, self.f, self.rows, self.panels, self.how = b, f, rows, panels, how
        self.parts = how.products.parts
        self.bytes = vector(I8, 64 // self.parts)
        self.sources = clamped(f, rows)
        self.group, self.groups, self.panel_bytes, self.zero_points, self.lines = (
            DESCRIPTOR.load(f.sums, name) for name in DESCRIPTOR.fields)

    def emit(self) -> None:
        """Emit the loop over groups; the totals are in memory."""
        b, f = self.b, self.f
        for n in range(self.rows * self.panels):
            constant(vector(I32, 16), 0).store(f.acc + 64 * n)
        lines, pairs = (self.group + 7) >> 3, self.group >> 3
        rest = self.group & 7
        zeros = [constant(self.how.products.kind, 0)] * (self.rows * self.panels * self.parts)
        with Loop(b, self.groups) as groups:
            self.subtract = self.zero_points_of(groups.k)
            k = groups.k * self.group
            line = self.lines + groups.k * lines * LINE
            with Loop(b, pairs, zeros) as loop:
                acc, here, first = loop.values, line + loop.k * LINE, k + loop.k * 8
                for half in range(2):
                    x = [(source + first + 4 * half).load(I32) for source in self.sources]
                    acc = self.multiply(x, here, b.value(I64, 4 * half), acc)
                loop.update(acc)
            here, first = line + pairs * LINE, k + pairs * 8
            with Loop(b, (rest + 3) >> 2, loop.values) as last:  # mostly no turn
                done = last.k * 4
                count = smaller(rest - done, 4)
                assert self.how.products.silent is not None
                fill = self.how.products.silent
                x = [partial_group(source + first + done, count, fill) for source in self.sources]
                last.update(self.multiply(x, here, done, last.values))
            self.add_scaled(groups.k, last.values)

    def zero_points_of(self, group: Value) -> list[Value]:
        """Emit what to subtract from the bytes of every part."""
        columns = 16 // self.parts
        out = []
        for j in range(self.panels):
            address = self.f.w + self.panel_bytes * j + self.zero_points + group * PANEL
            for part in range(self.parts):
                z = (address + part * columns).load(vector(I8, columns))
                out.append(z.shuffle(z, [c for c in range(columns) for _ in range(4)]))
        return out

    def multiply(self, x: Sequence[Value], line: Value, bits: Value, acc: Sequence[Value]) -> list[Value]:
        """Emit the products of one group of four k of every row with the nibbles from `bits` on of a line."""
        b, products, out = self.b, self.how.products, list(acc)
        weights = []
        for n, subtract in enumerate(self.subtract):
            j, part = divmod(n, self.parts)
            address = self.f.w + self.panel_bytes * j + line + part * (64 // self.parts)
            packed = address.load(vector(I32, 16 // self.parts))
            shifted = packed.shr(bits.trunc(I32).splat(16 // self.parts))
            nibbles = (shifted & 0x0F0F0F0F).as_type(self.bytes)
            weights.append(self.how.spread(nibbles - subtract))
        for i, group in enumerate(x):
            spread = products.activations(b, group)
            for n, weight in enumerate(weights, i * len(weights)):
                out[n] = products.dot(b, out[n], spread, weight)
        return out

    def add_scaled(self, group: Value, acc: Sequence[Value]) -> None:
        """Emit total += f32(sum + correction) * scale."""
        f = self.f
        for n in range(self.rows * self.panels):
            head = f.w + self.panel_bytes * (n % self.panels) + group * (2 * LINE)
            done = 0
            for value in acc[n * self.parts:(n + 1) * self.parts]:
                floats = vector(F32, value.type.count)
                exact = value + (head + (LINE + done)).load(value.type)
                y = exact.to_float(floats) * (head + done).load(floats)
                address = f.acc + (64 * n + done)
                (address.load(floats) + y).store(address)
                done += 4 * value.type.count


def tile_4bit(rows: int, panels: int, how: Unpacked) -> Intrinsic:
    """Make the tile function of `rows` x 16 * `panels` outputs; it reads activations in rows."""

    @emits
    def tile(b: Builder, address: Value) -> None:
        _Tile(b, Frame.read(address), rows, panels, how).emit()

    return tile


@emits
def _add_scaled(b: Builder, total: Value, value: Value, scale: Value) -> None:
    """Add f32(value) * scale to the f32 at address `total`; `scale` is the address of an f32."""
    y = value.trunc(I32).to_float(F32) * scale.load(F32)
    (total.load(F32) + y).store(total)


def scalar_tile_4bit(shift: int) -> Intrinsic:
    """Make the tile function of one panel as plain loops; activations are bytes xor `shift` (128 for s8)."""

    @njit
    def tile(frame: int) -> None:
        f = view(frame)
        a, stride, w, rows, acc, d = f.a, f.stride, f.w, f.rows, f.acc, view_descriptor(f.sums)
        size, groups, zero_points, lines = d.group, d.groups, w + d.zero_points, w + d.lines
        for i in range(rows):
            for c in range(16):
                total = acc + 64 * i + 4 * c
                store_s32(total, 0)
                for g in range(groups):
                    source, line = a + i * stride + g * size, lines + g * ((size + 7) // 8) * 64
                    z, value = load_u8(zero_points + 16 * g + c), load_s32(w + 128 * g + 64 + 4 * c)
                    z -= 256 if z > 128 else 0
                    for k in range(size):
                        u = load_u8(line + k // 8 * 64 + 4 * c + k % 4) >> (k // 4 % 2 * 4) & 15
                        value += (load_u8(source + k) ^ shift) * (u - z)
                    _add_scaled(total, value, w + 128 * g + 4 * c)

    return tile


def estimate_4bit(kernel: Kernel, m: int, n: int, k: int, *, parts: int, rate: float) -> float:
    """Estimate cycles: of four k the products, `rate` a cycle, and to unpack 2.5 operations a part; or the memory.

    Measured on Zen 4, 24 x 1024 x 768 in groups of 128: 0.40 TOPS, where 8-bit weights reach 0.43.
    """
    rows, panels = kernel.tile[0], kernel.tile[1] // PANEL
    group = max((rows * panels + 1.25 * panels) * parts / rate, 4, panels * 32 / 20)
    return -(-m // rows) * panel_count(n) / panels * (-(-k // 4) * group + 30 + 3 * rows * panels * parts)


def estimate_scalar_4bit(kernel: Kernel, m: int, n: int, k: int) -> float:
    """Estimate cycles: about three for a product."""
    return 3.0 * m * panel_count(n) * PANEL * k


@register_kernel(DTYPES, ((4, 16),), "scalar", estimate_scalar_4bit, layouts=("rows",))
def build_scalar_4bit(dtype: str, rows: int, panels: int, emulated: bool, layout: str) -> Functions:
    """Build the plain loops."""
    return tile_functions(scalar_tile_4bit(128 if dtype == "s8" else 0))


@register_kernel(DTYPES, ((3, 16), (1, 16)), "avx2", partial(estimate_4bit, parts=4, rate=1.5),
                 layouts=("rows",))
def build_avx2_4bit(dtype: str, rows: int, panels: int, emulated: bool, layout: str) -> Functions:
    """Build vpmaddwd on 16 bytes of products widened to 16 bits."""
    return tile_functions(tile_4bit(rows, panels, unpacked_widened(dtype, 8, emulated)))


@register_kernel(DTYPES, ((6, 16), (4, 16), (2, 32), (1, 32)), "avx_vnni",
                 partial(estimate_4bit, parts=2, rate=2), layouts=("rows",))
def build_avx_vnni_4bit(dtype: str, rows: int, panels: int, emulated: bool, layout: str) -> Functions:
    """Build vpdpbusd on 8 columns."""
    return tile_functions(tile_4bit(rows, panels, unpacked_vnni(dtype, 8, emulated)))


@register_kernel(DTYPES, ((6, 32), (4, 32), (2, 32), (1, 32)), "avx512",
                 partial(estimate_4bit, parts=2, rate=0.8), layouts=("rows",))
def build_avx512_4bit(dtype: str, rows: int, panels: int, emulated: bool, layout: str) -> Functions:
    """Build vpmaddwd on 32 bytes of products widened to 16 bits."""
    return tile_functions(tile_4bit(rows, panels, unpacked_widened(dtype, 16, emulated)))


@register_kernel(DTYPES, ((6, 48), (4, 64), (2, 64), (1, 64)), "avx512_vnni",
                 partial(estimate_4bit, parts=1, rate=1), layouts=("rows",))
def build_vnni_4bit(dtype: str, rows: int, panels: int, emulated: bool, layout: str) -> Functions:
    """Build vpdpbusd on 16 columns."""
    return tile_functions(tile_4bit(rows, panels, unpacked_vnni(dtype, 16, emulated)))

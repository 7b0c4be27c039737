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
from typing import Any, NamedTuple

from graphq.kernels.jit.codegen import Functions
from graphq.kernels.jit.deferred import njit, types
from graphq.kernels.jit.intrinsics import (
    F32,
    I8,
    I16,
    I32,
    c64,
    intrinsic,
    load_s32,
    load_u8,
    splat,
    store_s32,
)
from graphq.kernels.jit.memory import LINE
from graphq.kernels.jit.registry import Kernel, register_kernel
from graphq.kernels.jit.x86 import Loop, at, filled, load, shuffle, smaller, store, vector
from graphq.kernels.matmul.pack import DESCRIPTOR, PANEL, panel_count
from graphq.kernels.matmul.tiles import tile_functions
from graphq.kernels.matmul.vector import Products, signed_halves, vnni, widened
from graphq.kernels.operands.tile_frame import FRAME, Frame, clamped, frame_signature

view, view_descriptor = FRAME.view, DESCRIPTOR.view
W_DTYPE = "s4"
DTYPES = (("u8", W_DTYPE), ("s8", W_DTYPE))


class Unpacked(NamedTuple):
    """How bytes of weights become the operand of `products`: `spread(b, bytes)` of a part's 64 / parts bytes."""

    products: Products
    spread: Callable[..., Any]


def unpacked_vnni(a_dtype: str, lanes: int, emulated: bool) -> Unpacked:
    """Multiply by vpdpbusd."""
    return Unpacked(vnni(a_dtype, lanes, emulated), lambda b, x: b.bitcast(x, vector(I32, lanes)))


def unpacked_widened(a_dtype: str, lanes: int, emulated: bool) -> Unpacked:
    """Multiply by vpmaddwd."""
    words = vector(I16, 2 * lanes)
    return Unpacked(widened(a_dtype, lanes, emulated), lambda b, x: signed_halves(b, b.bitcast(x, words)))


def partial_group(b: Any, address: Any, count: Any, fill: int) -> Any:
    """Load `count` (1 to 4) bytes as a group (s32), `fill` after them; reads nothing beyond."""
    group, last = I32(0), b.sub(count, c64(1))
    for i in range(4):
        byte = b.zext(load(b, at(b, address, smaller(b, c64(i), last)), I8), I32)
        byte = b.select(b.icmp_signed("<", c64(i), count), byte, I32(fill))
        group = b.or_(group, b.shl(byte, I32(8 * i)))
    return group


class _Tile:
    """The emission of a tile of `rows` x 16 * `panels` outputs."""

    def __init__(self, b: Any, f: Frame, rows: int, panels: int, how: Unpacked) -> None:
        self.b, self.f, self.rows, self.panels, self.how = b, f, rows, panels, how
        self.parts = how.products.parts
        self.bytes = vector(I8, 64 // self.parts)
        self.sources = clamped(b, f, rows)
        self.group, self.groups, self.panel_bytes, self.zero_points, self.lines = (
            DESCRIPTOR.load(b, f.sums, name) for name in DESCRIPTOR.fields)

    def emit(self) -> None:
        """Emit the loop over groups; the totals are in memory."""
        b, f = self.b, self.f
        for n in range(self.rows * self.panels):
            store(b, filled(vector(I32, 16), 0), at(b, f.acc, 64 * n))
        lines, pairs = b.ashr(at(b, self.group, 7), c64(3)), b.ashr(self.group, c64(3))
        rest = b.and_(self.group, c64(7))
        zeros = [filled(self.how.products.kind, 0)] * (self.rows * self.panels * self.parts)
        with Loop(b, self.groups) as groups:
            self.subtract = self.zero_points_of(groups.k)
            k = b.mul(groups.k, self.group)
            line = at(b, self.lines, b.mul(b.mul(groups.k, lines), c64(LINE)))
            with Loop(b, pairs, zeros) as loop:
                acc, here, first = loop.values, at(b, line, b.mul(loop.k, c64(LINE))), at(b, k, b.mul(loop.k, c64(8)))
                for half in range(2):
                    x = [load(b, at(b, source, first, 4 * half), I32) for source in self.sources]
                    acc = self.multiply(x, here, c64(4 * half), acc)
                loop.update(acc)
            here, first = at(b, line, b.mul(pairs, c64(LINE))), at(b, k, b.mul(pairs, c64(8)))
            with Loop(b, b.ashr(at(b, rest, 3), c64(2)), loop.values) as last:  # mostly no turn
                done = b.mul(last.k, c64(4))
                count = smaller(b, b.sub(rest, done), c64(4))
                assert self.how.products.silent is not None
                fill = self.how.products.silent
                x = [partial_group(b, at(b, source, first, done), count, fill) for source in self.sources]
                last.update(self.multiply(x, here, done, last.values))
            self.settle(groups.k, last.values)

    def zero_points_of(self, group: Any) -> list[Any]:
        """Emit what to subtract from the bytes of every part."""
        b, columns = self.b, 16 // self.parts
        out = []
        for j in range(self.panels):
            address = at(b, self.f.w, b.mul(self.panel_bytes, c64(j)), self.zero_points, b.mul(group, c64(PANEL)))
            for part in range(self.parts):
                z = load(b, at(b, address, part * columns), vector(I8, columns))
                out.append(shuffle(b, z, z, [c for c in range(columns) for _ in range(4)]))
        return out

    def multiply(self, x: Sequence[Any], line: Any, bits: Any, acc: Sequence[Any]) -> list[Any]:
        """Emit the products of one group of four k of every row with the nibbles from `bits` on of a line."""
        b, products, out = self.b, self.how.products, list(acc)
        weights = []
        for n, subtract in enumerate(self.subtract):
            j, part = divmod(n, self.parts)
            address = at(b, self.f.w, b.mul(self.panel_bytes, c64(j)), line, part * (64 // self.parts))
            packed = load(b, address, vector(I32, 16 // self.parts))
            shifted = b.lshr(packed, splat(b, b.trunc(bits, I32), 16 // self.parts))
            nibbles = b.bitcast(b.and_(shifted, filled(packed.type, 0x0F0F0F0F)), self.bytes)
            weights.append(self.how.spread(b, b.sub(nibbles, subtract)))
        for i, group in enumerate(x):
            spread = products.activations(b, group)
            for n, weight in enumerate(weights, i * len(weights)):
                out[n] = products.dot(b, out[n], spread, weight)
        return out

    def settle(self, group: Any, acc: Sequence[Any]) -> None:
        """Emit total += f32(sum + correction) * scale."""
        b, f = self.b, self.f
        for n in range(self.rows * self.panels):
            head = at(b, f.w, b.mul(self.panel_bytes, c64(n % self.panels)), b.mul(group, c64(2 * LINE)))
            done = 0
            for value in acc[n * self.parts:(n + 1) * self.parts]:
                floats = vector(F32, value.type.count)
                exact = b.add(value, load(b, at(b, head, LINE + done), value.type))
                y = b.fmul(b.sitofp(exact, floats), load(b, at(b, head, done), floats))
                address = at(b, f.acc, 64 * n + done)
                store(b, b.fadd(load(b, address, floats), y), address)
                done += 4 * value.type.count


def tile_4bit(rows: int, panels: int, how: Unpacked) -> Any:
    """Make the tile intrinsic of `rows` x 16 * `panels` outputs; it reads activations in rows."""

    @intrinsic
    def tile(_typing: Any, address: Any) -> Any:
        def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
            _Tile(b, Frame.read(b, args[0]), rows, panels, how).emit()
            return context.get_dummy_value()

        return frame_signature(), codegen

    return tile


@intrinsic
def _add_scaled(_typing: Any, total: Any, value: Any, scale: Any) -> Any:
    """Add f32(value) * scale to the f32 at address `total`; `scale` is the address of an f32."""

    def codegen(context: Any, b: Any, signature: Any, args: Any) -> Any:
        total, value, scale = args
        y = b.fmul(b.sitofp(b.trunc(value, I32), F32), load(b, scale, F32))
        store(b, b.fadd(load(b, total, F32), y), total)
        return context.get_dummy_value()

    return types.void(*[types.intp] * 3), codegen


def scalar_tile_4bit(shift: int) -> Any:
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


@register_kernel("matmul", DTYPES, ((4, 16),), "scalar", estimate_scalar_4bit, layouts=("rows",))
def build_scalar_4bit(dtype: str, rows: int, panels: int, emulated: bool, layout: str) -> Functions:
    """Build the plain loops."""
    return tile_functions(scalar_tile_4bit(128 if dtype == "s8" else 0))


@register_kernel("matmul", DTYPES, ((3, 16), (1, 16)), "avx2", partial(estimate_4bit, parts=4, rate=1.5),
                 layouts=("rows",))
def build_avx2_4bit(dtype: str, rows: int, panels: int, emulated: bool, layout: str) -> Functions:
    """Build vpmaddwd on 16 bytes of products widened to 16 bits."""
    return tile_functions(tile_4bit(rows, panels, unpacked_widened(dtype, 8, emulated)))


@register_kernel("matmul", DTYPES, ((6, 16), (4, 16), (2, 32), (1, 32)), "avx_vnni",
                 partial(estimate_4bit, parts=2, rate=2), layouts=("rows",))
def build_avx_vnni_4bit(dtype: str, rows: int, panels: int, emulated: bool, layout: str) -> Functions:
    """Build vpdpbusd on 8 columns."""
    return tile_functions(tile_4bit(rows, panels, unpacked_vnni(dtype, 8, emulated)))


@register_kernel("matmul", DTYPES, ((6, 32), (4, 32), (2, 32), (1, 32)), "avx512",
                 partial(estimate_4bit, parts=2, rate=0.8), layouts=("rows",))
def build_avx512_4bit(dtype: str, rows: int, panels: int, emulated: bool, layout: str) -> Functions:
    """Build vpmaddwd on 32 bytes of products widened to 16 bits."""
    return tile_functions(tile_4bit(rows, panels, unpacked_widened(dtype, 16, emulated)))


@register_kernel("matmul", DTYPES, ((6, 48), (4, 64), (2, 64), (1, 64)), "avx512_vnni",
                 partial(estimate_4bit, parts=1, rate=1), layouts=("rows",))
def build_vnni_4bit(dtype: str, rows: int, panels: int, emulated: bool, layout: str) -> Functions:
    """Build vpdpbusd on 16 columns."""
    return tile_functions(tile_4bit(rows, panels, unpacked_vnni(dtype, 16, emulated)))

"""The kernels of matmuls with compressed weights of 2, 4 or 8 bits (`matmul_compressed.pack`), unpacked in registers.

The weights u[k, j] of a group g of rows k share a zero point z[g, j] and a scale[g, j]. 8-bit activations enter as s8
values a' (a - 128 for u8), with a row_scale[i, g]; total[i, g] is the sum of a' of row i over the group. The constant
correction[g, j] accounts for the zero point of the activations:

    R[g, i, j] = sum_{k in group g} a'[i, k] * u[k, j]                               wraps modulo 2**32, otherwise exact
    acc[i, j]  = sum_g f32(R[g, i, j] + correction[g, j] - z[g, j] * total[i, g]) * (row_scale[i, g] * scale[g, j])

The sum over g starts from 0 and adds the groups in order. Instructions that multiply u8 by s8 read the weights u
unchanged. For instructions that multiply s8 by s8, u and z are shifted by -128. A zero point costs one product per
group. `floats` has the tiles for float activations.

A line of 64 bytes has 4-bit weights of 8 rows and 16 columns, or 2-bit weights of 16 rows. A shift and a mask unpack
the weights of four rows, and floats of 4 bits are looked up. They are then multiplied like 8-bit weights. Tiles leave
f32 accumulators in memory.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from graphq.kernels.jit import LINE, Functions, Loop, emits
from graphq.kernels.jit.values import F32, I32, I64, Builder, Value, smaller, vector
from graphq.kernels.lanes.expression import STORAGE
from graphq.kernels.matmul.kernel_table import Dtypes, Kernel, register_kernel
from graphq.kernels.matmul.pack import PANEL, panel_count
from graphq.kernels.matmul.plan import MATMUL_BLOCK
from graphq.kernels.matmul_compressed.floats import FORMS, W_DTYPES, WeightTile, float_tile, multiply, rows_at_once
from graphq.kernels.matmul_compressed.pack import BITS, HEAD
from graphq.kernels.operands.tile_frame import FRAME, Frame, clamped, tail_group
from graphq.kernels.target.isa import LEVELS
from graphq.kernels.target.level import Level
from graphq.kernels.target.products import Multiply, TileSizes, shift

NARROW, EIGHT_BITS = (tuple((a, W_DTYPES[code, "f32"]) for code in codes for a in ("u8", "s8"))
                      for codes in (("s2", "s4", "f4"), ("s8",)))
DTYPES = (*NARROW, *EIGHT_BITS)
FLOATS = tuple(("f32", w) for w in W_DTYPES.values())
BF16 = tuple(("bf16", w) for (_, rounding), w in W_DTYPES.items() if rounding == "bf16")
AHEAD = 3072
"""How many bytes ahead of its loads a tile of one row prefetches weights.

1 x 4096 x 11008 with 4-bit weights takes three quarters of the time (Zen 5). If the weights are in the caches already,
prefetches cost nothing.
"""
UNROLLED = 32
"""The number of rows of weights that a tile of one row multiplies per iteration.

1 x 4096 x 4096 takes 10 % less time than with one line of weights per iteration (Zen 5).
"""


class _IntegerTile(WeightTile):

    def __init__(self, b: Builder, f: Frame, rows: int, panels: int, code: str, a_dtype: str, how: Multiply) -> None:
        super().__init__(b, f, rows, panels, code, how.lanes)
        self.sources = clamped(f, rows)
        self.how, self.kind = how, vector(I32, how.lanes)
        self.a_dtype, self.w_dtype = a_dtype, "u8" if self.bits == 8 else "u4"
        args, batch, i = (FRAME.load(f.address, name) for name in ("args", "batch", "i"))
        self.step = MATMUL_BLOCK.load(args, "row_scales_step")
        self.row_scales, self.row_sums = (
            [first + smaller(r, f.rows - 1) * row for r in range(rows)]
            for first, row in (self.rows_at(args, batch, i, name) for name in ("row_scales", "row_sums")))

    @staticmethod
    def rows_at(args: Value, batch: Value, i: Value, name: str) -> tuple[Value, Value]:
        """The address of row `i`'s entry in the array `name`, and the bytes between the entries of rows."""
        first, table, row = (MATMUL_BLOCK.load(args, x) for x in (name, f"{name}_table", f"{name}_row"))
        has_table = table.ne(0)
        offset = has_table.select(table + batch * 8, args).load(I64)
        return first + has_table.select(offset, 0) + i * row, row

    def emit(self) -> None:
        b, lines = self.b, UNROLLED // self.line_rows if self.rows == 1 else 1
        step = lines * self.line_rows
        self.clear()
        whole, rest = self.group // step, self.group & (step - 1)
        with Loop(b, self.groups) as groups:
            k, line = groups.k * self.group, self.line_of(groups.k)
            if self.rows == 1:
                self.prefetch(groups.k * self.group_bytes + HEAD, 1)
            with Loop(b, whole, self.zeros(self.kind)) as loop:
                acc, here, first = loop.values, line + loop.k * (lines * LINE), k + loop.k * step
                if self.rows == 1:
                    self.prefetch(here, lines)
                for quad in range(0, step, 4):
                    acc = self.multiply(self.quads(first + quad), here, b.value(I64, quad), acc)
                loop.update(acc)
            here, first, done = line + whole * (lines * LINE), k + whole * step, rest & -4
            with Loop(b, rest >> 2, loop.values) as loop:
                loop.update(self.multiply(self.quads(first + loop.k * 4), here, loop.k * 4, loop.values))
            with Loop(b, (done < rest).zext(I64), loop.values) as last:  # runs at most once, usually not at all
                silent = shift(self.a_dtype, signed=True) & 0xFF
                x = [tail_group(source + first + done, rest - done, 1, silent) for source in self.sources]
                last.update(self.multiply(x, here, done, last.values))
            self.add_scaled(groups.k, last.values)

    def quads(self, k: Value) -> list[Value]:
        """Emit the loads of four activations of every row, from `k` on."""
        return [(source + k).load(I32) for source in self.sources]

    def prefetch(self, offset: Value, lines: int) -> None:
        """Emit prefetches of `lines` lines, AHEAD bytes after `offset` in each panel, even beyond the tile."""
        ahead = offset + AHEAD
        ahead = ahead + (ahead < self.panel_bytes).select(0, self.panel_bytes * (self.panels - 1))
        for address in self.vectors(ahead)[::self.parts]:
            for n in range(lines):
                (address + LINE * n).prefetch()

    def multiply(self, x: Sequence[Value], lines: Value, k: Value, acc: Sequence[Value]) -> list[Value]:
        """Emit products of four activations of every row with rows `k` to `k` + 3 of the weights at `lines`."""
        weights, out = [], list(acc)
        index = ((k & (self.line_rows - 4)) >> 2).trunc(I32).splat(self.columns)
        for address in self.vectors(lines + (k >> self.line_shift) * LINE):
            weights.append(self.how.left(self.b, self.four_rows(address.load(self.kind), index), self.w_dtype))
        for i, group in enumerate(x):
            factor = self.how.right(self.b, group.splat(self.columns), self.a_dtype)
            for n, weight in enumerate(weights, i * len(weights)):
                out[n] = self.how.dot(self.b, out[n], weight, factor)
        return out

    def add_scaled(self, group: Value, acc: Sequence[Value]) -> None:
        """Emit the addition of a group's scaled sums to the totals (see acc in the module's formula)."""
        floats = vector(F32, self.columns)
        scales = [address.load(floats) for address in self.scales(group)]
        zero_points = [address.load(self.kind) for address in self.zero_points(group)]
        if moved := self.how.shift(self.w_dtype):
            zero_points = [z + moved for z in zero_points]
        unsigned = (self.group << 7).trunc(I32).splat(self.columns)
        terms = [address.load(self.kind) + z * unsigned
                 for address, z in zip(self.terms(group), zero_points, strict=True)]
        for i, (row_scales, row_sums) in enumerate(zip(self.row_scales, self.row_sums, strict=True)):
            scale = (row_scales + group * self.step).load(F32).splat(self.columns)
            sums = (row_sums + group * 4).load(I32).splat(self.columns)
            for n, (of_columns, term, z) in enumerate(zip(scales, terms, zero_points, strict=True), i * len(scales)):
                exact = acc[n] + term - z * sums
                self.add(n, exact.to_float(floats) * (scale * of_columns))


def integer_tile(b: Builder, address: Value, index: Value, *, rows: int, panels: int, dtypes: Dtypes,
                 how: Multiply) -> None:
    """Emit the tile of `rows` x 16 * `panels` outputs, for 8-bit activations in rows."""
    _IntegerTile(b, Frame.read(address), rows, panels, FORMS[dtypes[1]][0], dtypes[0], how).emit()


def estimate_integers(kernel: Kernel, m: int, n: int, k: int, *, parts: int, rate: float) -> float:
    """Estimate cycles, with `rate` operations per cycle.

    For four rows of weights, each part of a panel takes 1.25 operations to unpack, and one operation per row of the
    tile. Four rows take at least 4 cycles, and at least the time until the weights arrive (20 bytes per cycle).
    Measured on Zen 4, 24 x 1024 x 768 in groups of 128: 0.40 TOPS; 8-bit weights reach 0.43.
    """
    rows, panels = kernel.tile[0], kernel.tile[1] // PANEL
    group = max((rows * panels + 1.25 * panels) * parts / rate, 4, panels * 8 * BITS[FORMS[kernel.dtypes[1]][0]] / 20)
    return -(-m // rows) * panel_count(n) / panels * (-(-k // 4) * group + 30 + 3 * rows * panels * parts)


def estimate_floats(kernel: Kernel, m: int, n: int, k: int, *, parts: int, most: int, pairs: bool = False,
                    rate: float = 1) -> float:
    """Estimate cycles for `k` bytes: 1 / `rate` per product, and 1.5 operations to unpack a vector of weights.

    A tile multiplies at most `most` rows at a time; if it has more, a vector also takes an operation to be stored. With
    `pairs` an instruction multiplies two rows of weights.
    """
    rows, panels = kernel.tile[0], kernel.tile[1] // PANEL
    at_once, elements = rows_at_once(rows, most), 4 // STORAGE[kernel.dtypes[0]].itemsize
    multiplied, tiles = -(-m // at_once) * at_once, -(-m // rows)
    unpacked = (1.5 * elements + (rows > at_once)) * tiles
    products = max((multiplied * (1 if pairs else elements) + unpacked) * panels * parts, 4 * tiles) / rate
    return panel_count(n) / panels * (k // 4 * products + 30 * tiles + 3 * multiplied * panels * parts)


def build_tiles(level: Level, dtypes: Dtypes, rows: int, columns: int, layout: str) -> Functions:
    """Build tiles of the products of a level's vectors; products of weights of 2 and 4 bits cannot saturate."""
    if dtypes in DTYPES:
        product = level.dot4 or (dtypes in NARROW and level.saturating) or level.pairs
        how = product(level.lanes, level.emulated)
        tile = emits(integer_tile, rows=rows, panels=columns // PANEL, dtypes=dtypes, how=how)
    else:
        of_floats = multiply(dtypes, level)
        tile = emits(float_tile, rows=rows, panels=columns // PANEL, w_dtype=dtypes[1], how=of_floats)
    return Functions(speed=3, tile=tile)


def _register(level: Level) -> None:
    """Register the kernels of the capabilities that a level has and the level below it lacks."""
    parts, fma, bf16 = PANEL // level.lanes, level.own("fma"), level.own("bf16")
    of_floats: Callable[..., float] = partial(estimate_floats, parts=parts, most=level.fma.at_once)
    found: list[tuple[tuple[Dtypes, ...], TileSizes, Callable[..., float]]] = []
    for dtypes, how, steps in ((DTYPES, level.own("dot4"), 1), (NARROW, level.own("saturating"), 1),
                               (NARROW if level.saturating is None else (), level.own("pairs"), 2),
                               (EIGHT_BITS, level.own("pairs"), 2)):
        if how is not None and (dtypes is DTYPES or level.dot4 is None):
            rate = how.compressed.rate
            found.append((dtypes, how.compressed, partial(estimate_integers, parts=steps * parts, rate=rate)))
    if fma is not None:
        found += [(floats, tiles, partial(of_floats, rate=tiles.rate))
                  for floats, tiles in ((FLOATS, fma.compressed_f32), (BF16, fma.compressed_bf16))]
    if bf16 is not None:
        found.append((BF16, bf16.compressed, partial(of_floats, pairs=True)))
    for of, tiles, cost in found:
        register_kernel(build_tiles, of, tiles.sizes, level, cost, ("rows",))


for _level in LEVELS:
    _register(_level)

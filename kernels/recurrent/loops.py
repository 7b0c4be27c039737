"""Kernels of recurrent layers: they compute the formulas of `numbers.recurrent` for 16 units of the state at a time.

The recurrent weights are packed in panels [H, gates, 16], each for 16 units. The sums of all gates of these units stay
in registers. Four rows of the batch share each load of weights. Integer weights are packed in panels [H / 4, gates, 16,
4] of bytes; the instructions of integer matmuls multiply them by the quantized state.

A time step reads the previous state from the array of all states. If sequences have lengths, that array has zeros after
the end of a sequence. Each sequence's last state is then kept in a separate array, and read from there.
"""
from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from graphq.kernels.jit import Functions, Loop, emits, njit
from graphq.kernels.jit.intrinsics import Record, concatenated, load_s32, store_s32, store_s64
from graphq.kernels.jit.values import F32, I8, I32, Builder, Value, constant, vector
from graphq.kernels.lanes.vector import Columns
from graphq.kernels.moves.extremes import extremes, scale_of
from graphq.kernels.moves.transpose import copy_row
from graphq.kernels.numbers.recurrent import BLEND, CANDIDATE, CELL, OUTPUT, PLAIN, UPDATE, offset_of
from graphq.kernels.rows.loops import block_sums, computed
from graphq.kernels.target.isa import level_named
from graphq.kernels.target.products import Multiply
from graphq.plan.plan import Step, Target, plan_rows

LAYER = Record("gates", "panels", "first", "states", "last", "cells", "extra", "room", "steps", "rows", "units", "each",
               "reverse", "first_cells", "lengths", "wrong_length", "weight_sums", "offset")
"""The argument block of a layer: `steps` in time, `rows` of the batch (`each` per block), and `units` of state.

If `reverse` is not 0, steps run backwards. The caller fills in the addresses of

    gates         the products of the inputs of all steps and the input weights
    panels        the recurrent weights, as `panels` packs them
    first, last   the states before the first step, and after the last one
    states        the states after all steps
    first_cells, cells    the cells before the first step, and after the last one (LSTM)
    extra         the bias (GRU), or the scales of all gates (quantized)
    room          memory for the quantized state: rows of u8, padded to 4 bytes, in 4 bytes per element, and then 16
                  bytes per row for extremes, scale and zero point; a common range has row 0's 16 bytes
    lengths       the s32 lengths of the rows' sequences, or 0
    wrong_length  an s64 that gets a length outside of [0, steps], if any; the block then computes nothing
    weight_sums   the s32 sums of the weights of each gate (quantized); `offset` was subtracted from the packed weights
"""
UNITS = 16
ROWS = 4
"""The rows that are computed together: 16 sums, 4 vectors of weights and a state take 21 of 32 registers."""

Vectors = list[Value]


def panels(recurrent: np.ndarray, gates: int) -> np.ndarray:
    """Pack weights [gates * H, H] into panels; units are padded with zeros to a multiple of 16."""
    size = recurrent.shape[1]
    count = -(-size // UNITS)
    wide = np.zeros((gates, count * UNITS, size), np.float32)
    wide[:, :size] = recurrent.reshape(gates, size, size)
    return np.ascontiguousarray(wide.reshape(gates, count, UNITS, size).transpose(1, 3, 0, 2))


class Packed(NamedTuple):
    """8-bit weights: their `panels`, the s32 `sums` of their rows, and the `offset` that was subtracted from them."""

    panels: np.ndarray
    sums: np.ndarray
    offset: int


def byte_panels(recurrent: np.ndarray, gates: int) -> Packed:
    """Pack integers of 8 bits [gates * H, H] into panels of s8, [H / 4, gates, 16, 4] each."""
    offset, size = offset_of(recurrent), recurrent.shape[1]
    count, groups = -(-size // UNITS), -(-size // 4)
    wide = np.zeros((gates, count * UNITS, groups * 4), np.int8)
    wide[:, :size, :size] = (recurrent - offset).reshape(gates, size, size)
    lines = wide.reshape(gates, count, UNITS, groups, 4).transpose(1, 3, 0, 2, 4)
    return Packed(np.ascontiguousarray(lines), recurrent.sum(axis=1, dtype=np.float64).astype(np.int32), offset)


ONES = 0x01010101
"""Four bytes of 1. As weights, their products with a state add up to the sum of the state."""


class Integers(NamedTuple):
    """How a quantized state is multiplied: the instructions, and whether the weights have an offset.

    With `by_row`, each row has a range of its own.
    """

    how: Multiply
    shifted: bool
    by_row: bool


def _integer_sums(b: Builder, args: Value, h: Value, unit: Value, rows: int, gates: int, integers: Integers,
                  columns: Columns, ranges: Sequence[Value]) -> list[Vectors]:
    """The s32 sums of a panel's gates, for each of `rows` rows of quantized states (u8, padded to a multiple of 4).

    `ranges` are the addresses of the rows' extremes, scales and zero points.

    sum (q - zp) w = sum q (w - offset) + offset sum q - zp sum w, all modulo 2**32. Both q and zp may be shifted.
    """
    word, (how, shifted, _) = partial(LAYER.load, args), integers
    kind = vector(I32, how.lanes)
    n = word("units")
    groups = (n + 3).shr(2)
    panel = word("panels") + unit * groups * (4 * gates)
    parts = []
    for first in range(0, UNITS, how.lanes):
        adds = [how.right(b, b.value(kind, ONES))] if shifted and not first else []
        with Loop(b, groups, [constant(kind, 0)] * (rows * (gates + len(adds)))) as loop:
            line = panel + loop.k * (64 * gates) + 4 * first
            w = [how.right(b, (line + 64 * g).load(kind)) for g in range(gates)]
            x = [how.left(b, (h + (groups * r + loop.k) * 4).load(I32).splat(how.lanes)) for r in range(rows)]
            pairs = [(row, weights) for row in x for weights in w + adds]
            loop.update([how.dot(b, acc, *pair) for acc, pair in zip(loop.values, pairs, strict=True)])
        each = gates + len(adds)
        parts.append([loop.values[r * each:(r + 1) * each] for r in range(rows)])
    weight_sums = [columns.load(word("weight_sums") + n * (4 * g), I32, 4) for g in range(gates)]
    found = []
    for r in range(rows):
        zero_point = (ranges[r] + 12).load(I8).zext(I32).splat(UNITS)
        zero_point = zero_point + how.shift("u8") if how.shift("u8") else zero_point
        sums = [concatenated([part[r][g] for part in parts]) - zero_point * weight_sums[g] for g in range(gates)]
        if shifted:
            added = (word("offset").trunc(I32) * parts[0][r][gates].lane(0)).splat(UNITS)
            sums = [s + added for s in sums]
        found.append(sums)
    return found


def _sums(b: Builder, h: Value, n: Value, panel: Value, rows: int, gates: int) -> list[Vectors]:
    """The sums of a panel's gates, for each of `rows` rows of states; a row is n f32.

    If the sums of all 16 units do not fit into the level's registers, the units are computed in parts.
    """
    most = UNITS * (UNITS if b.level is None else b.level.sum_vectors)
    lanes = next(count for count in (UNITS, UNITS // 2, UNITS // 4) if rows * gates * count <= most)
    kind = vector(F32, lanes)

    def part(panel: Value) -> list[Vectors]:
        def add(k: Value, sums: Vectors) -> Vectors:
            line = panel + k * (64 * gates)
            w, new = [(line + 64 * g).load(kind) for g in range(gates)], Vectors()
            for r in range(rows):
                x = (h + (k + n * r) * 4).load(F32).splat(lanes)
                new += [x.math("fma", w[g], sums[r * gates + g]) for g in range(gates)]
            return new

        sums = block_sums(b, n, [constant(kind, 0)] * (rows * gates), add)
        return [sums[r * gates:(r + 1) * gates] for r in range(rows)]

    parts = [part(panel), *(part(panel + 4 * first) for first in range(lanes, UNITS, lanes))]
    return [[concatenated(units) for units in zip(*of_row, strict=True)] for of_row in zip(*parts, strict=True)]


def _units(b: Builder, args: Value, row: Value, unit: Value, x: Value, h: Value, factors: Value, y: Value, *,
           gates: int, integers: Integers | None, rows: int) -> None:
    """Compute the new state y of 16 units in `rows` rows, from inputs `x` and the state h.

    The weights multiply `factors`: the quantized state if there are `integers`, otherwise h.
    """
    word = partial(LAYER.load, args)
    n = word("units")
    line = n * 4
    columns = Columns(b, UNITS, unit, n - unit)
    if integers is None:
        panel = word("panels") + unit * n * (4 * gates)
        sums = _sums(b, factors + row * line, n, panel, rows, gates)
    else:
        ranges = [word("room") + word("rows") * line + ((row + r) * 16 if integers.by_row else 0) for r in range(rows)]
        sums = _integer_sums(b, args, factors + row * ((n + 3) & -4), unit, rows, gates, integers, columns, ranges)
    for r in range(rows):
        place = (row + r) * line
        source = x + place * gates
        of_input = [columns.load(source + line * g, F32, 4) for g in range(gates)]
        s = sums[r]
        if integers is not None:
            scale = (ranges[r] + 8).load(F32)
            s = [t.to_float(F32) * (scale.splat(UNITS) * columns.load(word("extra") + line * g, F32, 4))
                 for g, t in enumerate(s)]
        if gates == 4:
            cells = word("cells") + place
            (i, o, f, g), (si, so, sf, sg) = of_input, s
            cell = computed(b, CELL, UNITS, f, sf, i, si, g, sg, columns.load(cells, F32, 4))
            new = computed(b, OUTPUT, UNITS, o, so, cell)
            columns.store(cell, cells, F32, 4)
        elif gates == 1:
            new = computed(b, PLAIN, UNITS, *of_input, *s)
        else:
            bias, old = columns.load(word("extra"), F32, 4), columns.load(h + place, F32, 4)
            update, reset = (computed(b, UPDATE, UNITS, of_input[k], s[k]) for k in (0, 1))
            candidate = computed(b, CANDIDATE, UNITS, of_input[2], reset, s[2], bias)
            new = computed(b, BLEND, UNITS, update, candidate, old)
        columns.store(new, y + place, F32, 4)


@emits
def _quantize(b: Builder, source: Value, count: Value, target: Value, scale: Value, zero_point: Value) -> None:
    s = scale.load(F32).splat(UNITS)
    zp = b.uitofp(zero_point.load(I8), F32).splat(UNITS)
    with Loop(b, (count + (UNITS - 1)) // UNITS) as loop:
        j = loop.k * UNITS
        columns = Columns(b, UNITS, j, count - j)
        x = columns.load(source, F32, 4) / s
        q = x.math("rint") + zp
        q = (q > 255.0).select(255.0, (q < 0.0).select(0.0, q))
        columns.store(b.fptoui(q, vector(I8, UNITS)), target, I8, 1)


def recurring(gates: int, level: str, emulated: int, shifted: int, by_row: int) -> Functions:
    """Make the block function of an LSTM (4 gates), a GRU (3) or an RNN (1); `level` is "" for a float state."""
    integers, together, whole = None, ROWS, level != ""
    if whole:
        own = level_named(level)
        lanes = min(UNITS, own.lanes)
        together = ROWS * lanes // UNITS  # the sums of these rows fit into registers
        integers = Integers((own.dot4 or own.pairs)(lanes, bool(emulated)), bool(shifted), bool(by_row))
    many, one = (emits(_units, gates=gates, integers=integers, rows=n) for n in (together, 1))
    padding = 0 if integers is None else ONES * integers.how.silent("u8")

    def block(args: int, index: int) -> None:
        a = LAYER(args)
        x, h, y, final, lengths = a.gates, a.first, a.states, a.last, a.lengths
        steps, rows, n, each, room, reverse = a.steps, a.rows, a.units, a.each, a.room, a.reverse
        first, line, size, wide = index * each, 4 * n, 4 * rows * n, (n + 3) & -4
        last = min(first + each, rows)
        if lengths:
            for i in range(first, last):
                length = load_s32(lengths + 4 * i)
                if length < 0 or length > steps:
                    store_s64(a.wrong_length, length)
                    return
        if gates == 4:
            copy_row(a.first_cells + line * first, a.cells + line * first, line * (last - first))
        if lengths:
            copy_row(h + line * first, final + line * first, line * (last - first))
            h = final
        for t in range(steps):
            step = steps - 1 - t if reverse else t
            of_input, new = x + step * size * gates, y + step * size
            factors = h
            if whole:
                for i in range(first, last):
                    at = room + size + 16 * i * by_row
                    if by_row or i == first:
                        extremes(h + line * i, n if by_row else rows * n, at)
                        scale_of(at, 1, at + 8, at + 12)
                    store_s32(room + (i + 1) * wide - 4, padding)
                    _quantize(h + line * i, n, room + i * wide, at + 8, at + 12)
                factors = room
            i = first
            while i < last:
                if lengths and step >= load_s32(lengths + 4 * i):
                    clear(new + line * i, n)
                    i += 1
                elif lengths or last - i < together:
                    for unit in range(0, n, UNITS):
                        one(args, i, unit, of_input, h, factors, new)
                    i += 1
                else:
                    for unit in range(0, n, UNITS):
                        many(args, i, unit, of_input, h, factors, new)
                    i += together
            if lengths:
                for i in range(first, last):
                    if step < load_s32(lengths + 4 * i):
                        copy_row(new + line * i, final + line * i, line)
            else:
                h = new
        if not lengths:
            copy_row(h + line * first, final + line * first, line * (last - first))

    return Functions(block=block)


@njit
def clear(address: int, n: int) -> None:
    """Store n zeros of 4 bytes."""
    for k in range(n):
        store_s32(address + 4 * k, 0)


class Layer(NamedTuple):
    """The sizes of a layer: gates of a cell (LSTM 4, GRU 3, RNN 1), steps in time, rows of the batch, units of state.

    `offset` was subtracted from the weights of a quantized layer; `by_row`, its rows have a range each.
    """

    gates: int
    steps: int
    rows: int
    units: int
    reverse: bool
    quantized: bool = False
    offset: int = 0
    by_row: bool = False


def plan_recurrence(x: Layer, target: Target) -> Step:
    """Plan all time steps of a layer. A layer whose quantized rows share one scale is one block."""
    cycles = x.steps * x.units * (x.gates * x.units / 12 + 20)  # measured on Zen 4 for 128 to 512 units
    words = {"steps": x.steps, "rows": x.rows, "units": x.units, "reverse": int(x.reverse)}
    if not x.quantized:
        return plan_rows(recurring, LAYER, words, target, rows=x.rows, cycles=cycles, unit=ROWS,
                         of=(x.gates, "", 0, 0, 0))
    level = target.level.of_products
    emulated = int(target.level.emulated)
    return plan_rows(recurring, LAYER, words, target if x.by_row else target._replace(threads=1), rows=x.rows,
                     cycles=cycles, unit=ROWS, of=(x.gates, level.name, emulated, int(x.offset != 0), int(x.by_row)),
                     level=level)

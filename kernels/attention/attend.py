"""The kernel that computes attention over KV caches.

Several query heads can share one head of the caches: they form a group. A group has one query row per token and query
head; rows of the same token are adjacent. The kernel computes a tile of query rows at a time. It transposes keys in
registers, 16 at a time. Scores and their exponentials lie in a room, the private memory of one thread.
"""
from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from graphq.base.sizes import assumed
from graphq.kernels.attention.cache import WIDTHS
from graphq.kernels.jit import Loop, Type, block_module, load_first, store_first
from graphq.kernels.jit.intrinsics import Record, transpose_tiles
from graphq.kernels.jit.values import F32, I8, I16, I32, I64, Builder, Value, c64, constant, larger, smaller, vector
from graphq.kernels.lanes.vector import Columns, widen
from graphq.kernels.moves.rotate import rotate
from graphq.kernels.numbers.attention import CAPPED
from graphq.kernels.numbers.float_sums import BLOCK
from graphq.kernels.rows.loops import computed, store_numbers
from graphq.plan.plan import Step, Target, plan_rows

LANES = 16
LINE = 64
ATTEND = Record("query", "keys", "values", "target", "lengths", "cos", "sin", "positions", "bias", "sinks", "rooms",
                "room_count", "room_bytes", "batch", "tokens", "groups", "shared", "rows", "capacity", "most", "stride",
                "half", "places", "window", "causal", "scale", "softcap", "bias_batch", "bias_head", "bias_row",
                "key_scale", "value_scale", "each")
"""The argument block: `batch` elements of `tokens` query tokens, and `groups` cache heads per batch element.

`shared` query heads use each cache head. Query tokens are `stride` bytes apart. `bias_batch`, `bias_head` and
`bias_row` are strides of the bias in bytes. rows, capacity, most, half, places and positions mean the same as in
`cache.KEEP`. `scale` and `softcap` are the bits of f32 numbers. The field `each` is the number of query rows per
block. The caller fills in the addresses. Only integer caches need `key_scale` and `value_scale`.
"""
ROW = Record("query", "first", "last", "target", "bias", "stats")
"""The record that a tile keeps in its room for each of its query rows.

It has the addresses of the query, the output and the bias. The row sees the keys from `first` to `last` (exclusive).
`stats` is the reciprocal of the sum of the exponentials. One line of scores per row follows the tile's records. If
there is an attention sink, its score lies in front of the row's scores.
"""


def _tile(room: Value, lines: Value, stride: Value, rows: int) -> list[tuple[Value, Value]]:
    return [(room + LINE * k, lines + stride * k + LINE) for k in range(rows)]


def _scores(b: Builder, args: Value, room: Value, lines: Value, stride: Value, keys: Value, scale: Value, base: Value,
            high: Value, *, rows: int, size: int, capped: bool, biased: bool, kept: str) -> None:
    """Emit a tile's scores for the keys from `base` up to `high` (exclusive)."""
    kind = vector(F32, LANES)
    tile = _tile(room, lines, stride, rows)
    queries = [ROW.load(row, "query") for row, _ in tile]
    limits = [[ROW.load(row, name).trunc(I32).splat(LANES) for name in ("first", "last")] for row, _ in tile]
    word = {name: (args + 8 * ATTEND.number(name)).load(F32).splat(LANES) for name in ("scale", "softcap")}
    step = min(LANES, b.level.block_bytes // 4)  # the numbers of each key that are transposed at a time
    with Loop(b, (high - base + (LANES - 1)) // LANES) as loop:
        start = base + loop.k * LANES
        places = [keys + smaller(start + n, high - 1) * (size * WIDTHS[kept] // 8) for n in range(LANES)]

        def chained(first: Value, left: int, chains: list[Value]) -> list[Value]:
            columns = transpose_tiles(_parts(b, places, scale, first, left, kept, step))
            for k in range(left):
                chains = [columns[k].math("fma", (q + first * 4 + 4 * k).load(F32).splat(LANES), chain)
                          for q, chain in zip(queries, chains, strict=True)]
            return chains

        def summed(first: Value, count: int) -> list[Value]:
            with Loop(b, c64(count // step), [b.value(kind, 0.0)] * rows) as parts:
                parts.update(chained(first + parts.k * step, step, parts.values))
            if count % step:
                return chained(first + count // step * step, count % step, parts.values)
            return parts.values

        totals = summed(c64(0), min(size, BLOCK))
        if size > BLOCK:
            with Loop(b, c64(size // BLOCK - 1), totals) as blocks:
                blocks.update(_added(blocks.values, summed((blocks.k + 1) * BLOCK, BLOCK)))
            totals = blocks.values
            if size % BLOCK:
                totals = _added(totals, summed(c64(size // BLOCK * BLOCK), size % BLOCK))
        key = start.trunc(I32).splat(LANES) + constant(vector(I32, LANES), range(LANES))
        for (row, line), (first, last), x in zip(tile, limits, totals, strict=True):
            x = x * word["scale"]
            if capped:
                x = computed(b, CAPPED, LANES, x, word["softcap"])
            if biased:
                x = x + Columns(b, LANES, start, high - start).load(ROW.load(row, "bias"), F32, 4)
            seen = (key >= first) & (key < last)
            seen.select(x, float("-inf")).store(line + (start - base) * 4)


def _added(totals: list[Value], sums: list[Value]) -> list[Value]:
    return [total + x for total, x in zip(totals, sums, strict=True)]


def _parts(b: Builder, rows: list[Value], scale: Value, first: Value, left: int, kept: str,
           most: int = LANES) -> list[Value]:
    """Load up to `most` numbers of each row as f32, from index `first` on. If `left` is less, zeros fill the rest."""
    def loaded(address: Value, lane: Type, lanes: int, count: int) -> Value:
        kind = vector(lane, lanes)
        return address.load(kind) if count == lanes else load_first(address, c64(count), kind)

    if kept == "f32":
        return [loaded(row + first * 4, F32, most, left) for row in rows]
    if WIDTHS[kept] == 16:
        return [widen(b, loaded(row + first * 2, I16, most, left), kept, most) for row in rows]
    factors = loaded(scale + first * 4, F32, most, left)
    if kept == "s8":
        return [loaded(row + first, I8, most, left).sext(I32).to_float(F32) * factors for row in rows]
    out = []
    for row in rows:
        pairs = loaded(row + first // 2, I8, most // 2, left // 2).zext(I32)
        lanes = (pairs & 15).shuffle(pairs >> 4, [x for n in range(most // 2) for x in (n, n + most // 2)])
        out.append((lanes - 8).to_float(F32) * factors)
    return out


def _outputs(b: Builder, room: Value, lines: Value, stride: Value, values: Value, scale: Value, base: Value,
             high: Value, common: Value, until: Value, *, rows: int, size: int, kept: str) -> None:
    """Emit a tile's outputs: sums of value rows, weighted by the softmax of the scores.

    The rows of a tile may see different keys. All rows see the keys from `common` up to `until`. Outside of this
    range, the code tests for each row whether it sees a key.
    """
    kind, count = vector(F32, LANES), -(-size // LANES)
    together = max(1, min(count, b.level.sum_vectors // rows))
    tile = _tile(room, lines, stride, rows)
    for row, line in tile:
        factor = (row + 8 * ROW.number("stats")).load(F32).splat(LANES)
        with Loop(b, (high - base + (LANES - 1)) // LANES) as loop:
            place = line + loop.k * (4 * LANES)
            (place.load(kind) * factor).store(place)
    for first in range(0, count, together):
        parts = range(first, min(first + together, count))
        with Loop(b, (high - base + (BLOCK - 1)) // BLOCK, [b.value(kind, 0.0)] * (rows * len(parts))) as blocks:
            start = base + blocks.k * BLOCK
            stop = smaller(start + BLOCK, high)
            chains = [b.value(kind, 0.0)] * (rows * len(parts))
            middle = smaller(larger(common, start), stop)
            end = smaller(larger(until, middle), stop)
            for begin, limit, partly in ((start, middle, True), (middle, end, False), (end, stop, True)):
                with Loop(b, limit - begin, chains) as loop:
                    key = begin + loop.k
                    place = values + key * (size * WIDTHS[kept] // 8)
                    v = [x for n in parts for x in _parts(b, [place], scale, c64(LANES * n),
                                                          min(LANES, size - LANES * n), kept)]
                    new = []
                    for (row, line), old in zip(tile, _by_row(loop.values, rows), strict=True):
                        weight = (line + (key - base) * 4).load(F32).splat(LANES)
                        seen = (key >= ROW.load(row, "first")) & (key < ROW.load(row, "last"))
                        new += [x.math("fma", weight, chain) for x, chain in
                                zip([seen.select(x, constant(kind, 0.0)) for x in v] if partly else v, old,
                                    strict=True)]
                    loop.update(new)
                chains = loop.values
            blocks.update(_added(blocks.values, chains))
        for (row, _), sums in zip(tile, _by_row(blocks.values, rows), strict=True):
            target = ROW.load(row, "target")
            for n, y in zip(parts, sums, strict=True):
                store_first(y, target + 4 * LANES * n, c64(min(LANES, size - LANES * n)))


def _by_row(values: list[Value], rows: int) -> list[list[Value]]:
    each = len(values) // rows
    return [values[k * each:(k + 1) * each] for k in range(rows)]


class _Block:
    """The emitter of a block: a range of query rows of one group, in tiles of `rows` rows.

    Its attributes are the block's addresses and numbers. `wide` are the bytes of a rotated query in the room.
    """

    def __init__(self, b: Builder, args: Value, index: Value, rows: int, size: int, kept: str) -> None:
        self.b, self.args, self.rows, self.size, self.wide = b, args, rows, size, 4 * -(-size // LANES) * LANES
        self.tokens, self.groups, self.shared, self.capacity, self.each = self.fields(
            "tokens", "groups", "shared", "capacity", "each")
        rooms, room_count, room_bytes, batch = self.fields("rooms", "room_count", "room_bytes", "batch")
        self.m = self.tokens * self.shared
        parts = (self.m + self.each - 1).udiv(self.each)
        head = index.udiv(parts)
        self.n, self.group, self.begin = head.udiv(self.groups), head.urem(self.groups), index.urem(parts) * self.each
        self.room = rooms + ((index + 1) * room_count - 1).udiv(batch * self.groups * parts) * room_bytes
        self.turned = self.room + LINE * rows
        self.lines = self.turned + rows * self.wide
        self.stride = (room_bytes - rows * (LINE + self.wide)).udiv(rows)
        past, most, lengths = self.fields("rows", "most", "lengths")
        self.length = (lengths + self.n * 4).load(I32).sext(I64)
        self.before = larger(self.length + 1 - self.tokens, 0)
        with b.if_then((self.length < 0) | (self.before > past) | (self.before + self.tokens > most)):
            b.ret_void()
        caches, scales = head * self.capacity * (size * WIDTHS[kept] // 8), self.group * (4 * size)
        self.keys, self.values = (x + caches for x in self.fields("keys", "values"))
        self.key_scale, self.value_scale = (x + scales for x in self.fields("key_scale", "value_scale"))

    def fields(self, *names: str) -> Iterator[Value]:
        """Emit the loads of fields of the argument block."""
        return (ATTEND.load(self.args, name) for name in names)

    def describe(self, k: Value, row: Value, last: Value, first: Value, turn: Callable[..., None] | None,
                 biased: int, sunk: int) -> None:
        """Write the record of the tile's row `k`. With `turn`, also rotate the row's query."""
        record, i, h = self.room + k * LINE, row.udiv(self.shared), self.group * self.shared + row.urem(self.shared)
        token = self.n * self.tokens + i
        query, target, step = self.fields("query", "target", "stride")
        query = query + token * step + h * (4 * self.size)
        target = target + (token * self.groups * self.shared + h) * (4 * self.size)
        if turn is not None:
            query = self.rotated(turn, query, k, token, i)
        if sunk:
            (ATTEND.load(self.args, "sinks") + h * 4).load(I32).store(self.lines + self.stride * k + (LINE - 4))
        row_fields = {"query": query, "first": first, "last": last, "target": target}
        if biased:
            bias, of_batch, of_head, of_row = self.fields("bias", "bias_batch", "bias_head", "bias_row")
            row_fields["bias"] = bias + self.n * of_batch + h * of_head + i * of_row
        for name, x in row_fields.items():
            x.store(record + 8 * ROW.number(name), 8)

    def rotated(self, turn: Callable[..., None], query: Value, k: Value, token: Value, i: Value) -> Value:
        """Emit the rotation of the query of token `token`, number `i` of its batch element; returns its address."""
        half, places, cos, sin, positions = self.fields("half", "places", "cos", "sin", "positions")
        with Loop(self.b, positions.ne(0).zext(I64), [self.before + i]) as positioned:
            positioned.update([(positions + token * 8).load(I64, 8)])
        (place,) = positioned.values
        with self.b.if_then((place < 0) | (place >= places)):
            self.b.ret_void()
        own, angles = self.turned + k * self.wide, half * 4 * place
        for j in range(0, self.size, LANES):
            columns = Columns(self.b, LANES, c64(j), c64(min(LANES, self.size - j)))
            columns.store(columns.load(query, F32, 4), own, F32, 4)
        turn(self.b, query, own, cos + angles, sin + angles, half)
        return own


@block_module
def attending(b: Builder, args: Value, index: Value, *, rows: int, size: int, kept: str, rotary: int, interleaved: int,
              capped: int, biased: int, sunk: int) -> None:
    """Compute tiles of `rows` query rows, for heads of `size` numbers and caches of type `kept`."""
    turn = partial(rotate, interleaved=bool(interleaved)) if rotary else None
    x = _Block(b, args, index, rows, size, kept)
    window, causal = x.fields("window", "causal")
    with Loop(b, (smaller(x.begin + x.each, x.m) - x.begin + (rows - 1)) // rows) as tile:
        with Loop(b, c64(rows), [x.capacity, c64(0), c64(0), x.capacity]) as loop:
            low, common, high, until = loop.values
            row = smaller(x.begin + tile.k * rows + loop.k, x.m - 1)
            last = causal.ne(0).select(x.before + row.udiv(x.shared) + 1, x.length + 1)
            first = window.ne(0).select(larger(last - window, 0), 0)
            x.describe(loop.k, row, last, first, turn, biased, sunk)
            loop.update([smaller(low, first), larger(common, first), larger(high, last), smaller(until, last)])
        low, common, high, until = loop.values
        base = low // BLOCK * BLOCK
        _scores(b, args, x.room, x.lines, x.stride, x.keys, x.key_scale, base, high, rows=rows, size=size,
                capped=bool(capped), biased=bool(biased), kept=kept)
        with Loop(b, c64(rows)) as loop:
            line = x.lines + x.stride * loop.k + (LINE - 4 * sunk)
            stats = x.room + loop.k * LINE + 8 * ROW.number("stats")
            store_numbers(b, "softmax", line, high - base + sunk, line, stats, c64(4), c64(0))
        _outputs(b, x.room, x.lines, x.stride, x.values, x.value_scale, base, high, common, until, rows=rows,
                 size=size, kept=kept)


def plan_attention(words: dict[str, int], size: int, kept: str, rotary: bool, interleaved: bool, capped: bool,
                   biased: bool, sunk: bool, target: Target) -> Step:
    """Plan the attention step. `words` are fields of ATTEND; `kept` is the type of the numbers in the caches."""
    batch, groups, m, capacity = words["batch"], words["groups"], words["tokens"] * words["shared"], words["capacity"]
    most = min(8, target.level.sum_vectors)
    rows = next(n for n in (8, 4, 2, 1) if n == 1 or n <= most and assumed(m) > n // 2)
    flags = (rotary, rotary and interleaved, capped, biased, sunk)
    line = LINE + 4 * LANES * -(-capacity // LANES)
    words = {**words, "room_bytes": rows * (LINE + 4 * LANES * -(-size // LANES) + line)}
    step = plan_rows(attending, ATTEND, words, target, rows=m, cycles=capacity * size / 4, batch=batch * groups,
                     unit=rows, of=(rows, size, kept, *map(int, flags)),
                     name=f"attention_{rows}x{LANES}_{target.level.name}")
    return step._replace(macs=2 * batch * groups * m * capacity * size)

"""The kernel of attention to caches: a tile of query rows attends to all keys of a head that the rows see.

Several heads of queries may share one head of keys. Such a group has one query row for each of its tokens and heads;
the heads of a token are side by side. Keys are transposed in registers, 16 at a time. Scores and their powers are kept
in a temporary buffer; each piece of the blocks has a buffer of its own.
"""
from __future__ import annotations

from graphq.base.sizes import assumed, largest
from graphq.kernels.attention.cache import rotation
from graphq.kernels.jit import modules
from graphq.kernels.jit.codegen import Functions
from graphq.kernels.jit.deferred import Intrinsic, emits
from graphq.kernels.jit.intrinsics import Record, load_s32, load_s64, store_s32, transpose_tiles
from graphq.kernels.jit.values import F32, I8, I32, I64, Builder, Type, Value, constant, smaller, vector
from graphq.kernels.jit.x86 import Loop, tail_mask
from graphq.kernels.lanes.vector import Columns
from graphq.kernels.moves.transpose import row_copier
from graphq.kernels.numbers.attention import CAPPED
from graphq.kernels.numbers.float_sums import BLOCK
from graphq.kernels.rows.loops import computed, numbers_of
from graphq.plan.plan import Step, Target, pieces, rows_of_block, threads_for

LANES = 16
LINE = 64
ATTEND = Record("query", "keys", "values", "target", "lengths", "cos", "sin", "positions", "bias", "sinks", "rooms",
                "room_count", "room_bytes", "batch", "tokens", "groups", "shared", "rows", "capacity", "most", "stride",
                "half", "places", "window", "causal", "scale", "softcap", "bias_batch", "bias_head", "bias_row",
                "key_scale", "value_scale", "each")
"""The argument block: `batch` elements of `tokens` query tokens, and `groups` heads of keys.

Each head of keys is used by `shared` heads of queries. The tokens of the query are `stride` bytes apart. rows,
capacity, most, half, places and positions have the meaning that `cache.KEEP` gives them. `scale` and `softcap` are the
bits of f32 numbers. The strides of `bias` are in bytes. `each` is the number of query rows of a block. The caller fills
in the addresses; those of scales are needed only for caches of integers.
"""
view = ATTEND.view
ROW = Record("query", "first", "last", "target", "bias", "stats")
"""What a tile keeps of a query row in the temporary buffer.

The record has the addresses of the query, the output and the bias, the first key that the row sees, the key after the
last one, and the reciprocal of the sum of the powers. After the records of a tile follows a line of scores for each
row; the score of the attention sink stands in front of the line.
"""


def _tile(room: Value, lines: Value, stride: Value, rows: int) -> list[tuple[Value, Value]]:
    return [(room + LINE * k, lines + stride * k + LINE) for k in range(rows)]


def _scores(rows: int, size: int, capped: bool, biased: bool, bits: int) -> Intrinsic:
    """Make the function that stores the scores of a tile for keys `base` to `high` (exclusive), 16 at a time."""
    kind = vector(F32, LANES)

    @emits
    def scores(b: Builder, args: Value, room: Value, lines: Value, stride: Value, keys: Value, scale: Value,
               base: Value, high: Value) -> None:
        tile = _tile(room, lines, stride, rows)
        queries = [ROW.load(row, "query") for row, _ in tile]
        limits = [[ROW.load(row, name).trunc(I32).splat(LANES) for name in ("first", "last")] for row, _ in tile]
        word = {name: (args + 8 * ATTEND.number(name)).load(F32).splat(LANES) for name in ("scale", "softcap")}
        with Loop(b, (high - base + (LANES - 1)) // LANES) as loop:
            start = base + loop.k * LANES
            places = [keys + smaller(start + n, high - 1) * (size * bits // 8) for n in range(LANES)]

            def chained(first: Value, left: int, chains: list[Value]) -> list[Value]:
                columns = transpose_tiles(_parts(places, scale, first, left, bits))
                for k in range(left):
                    chains = [columns[k].math("fma", (q + first * 4 + 4 * k).load(F32).splat(LANES), chain)
                              for q, chain in zip(queries, chains, strict=True)]
                return chains

            with Loop(b, constant(I64, size // LANES), [b.value(kind, 0.0)] * rows) as parts:
                parts.update(chained(parts.k * LANES, LANES, parts.values))
            totals = parts.values
            if size % LANES:
                totals = chained(constant(I64, size // LANES * LANES), size % LANES, totals)
            key = start.trunc(I32).splat(LANES) + constant(vector(I32, LANES), range(LANES))
            for (row, line), (first, last), x in zip(tile, limits, totals, strict=True):
                x = x * word["scale"]
                if capped:
                    x = computed(b, CAPPED, LANES, x, word["softcap"])
                if biased:
                    x = x + Columns(b, LANES, start, tail_mask(LANES, high - start)).load(ROW.load(row, "bias"), F32, 4)
                seen = (key >= first) & (key < last)
                seen.select(x, float("-inf")).store(line + (start - base) * 4)

    return scores


def _parts(rows: list[Value], scale: Value, first: Value, left: int, bits: int) -> list[Value]:
    """Load 16 numbers of each row from number `first` on; if only `left` exist, zeros follow them."""
    def loaded(address: Value, lane: Type, lanes: int, count: int) -> Value:
        kind = vector(lane, lanes)
        whole = count == lanes
        return address.load(kind) if whole else address.load_where(tail_mask(lanes, constant(I64, count)), kind)

    if bits == 32:
        return [loaded(row + first * 4, F32, LANES, left) for row in rows]
    factors = loaded(scale + first * 4, F32, LANES, left)
    if bits == 8:
        return [loaded(row + first, I8, LANES, left).sext(I32).to_float(F32) * factors for row in rows]
    out = []
    for row in rows:
        pairs = loaded(row + first // 2, I8, LANES // 2, left // 2).zext(I32)
        lanes = (pairs & 15).shuffle(pairs >> 4, [x for n in range(LANES // 2) for x in (n, n + LANES // 2)])
        out.append((lanes - 8).to_float(F32) * factors)
    return out


def _outputs(rows: int, size: int, bits: int) -> Intrinsic:
    """Make the function that stores the weighted sums of values of a tile.

    A row leaves out the values of keys that it does not see. All rows see the keys from `common` up to `until`
    (exclusive).
    """
    kind, count = vector(F32, LANES), -(-size // LANES)
    together = max(1, min(count, LANES // rows))

    @emits
    def outputs(b: Builder, room: Value, lines: Value, stride: Value, values: Value, scale: Value, base: Value,
                high: Value, common: Value, until: Value) -> None:
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
                middle = smaller((common > start).select(common, start), stop)
                end = smaller((until > middle).select(until, middle), stop)
                for begin, limit, partly in ((start, middle, True), (middle, end, False), (end, stop, True)):
                    with Loop(b, limit - begin, chains) as loop:
                        key = begin + loop.k
                        place = values + key * (size * bits // 8)
                        v = [x for n in parts for x in _parts([place], scale, constant(I64, LANES * n),
                                                              min(LANES, size - LANES * n), bits)]
                        new = []
                        for (row, line), old in zip(tile, _by_row(loop.values, rows), strict=True):
                            weight = (line + (key - base) * 4).load(F32).splat(LANES)
                            seen = (key >= ROW.load(row, "first")) & (key < ROW.load(row, "last"))
                            new += [x.math("fma", weight, chain) for x, chain in
                                    zip([seen.select(x, constant(kind, 0.0)) for x in v] if partly else v, old,
                                        strict=True)]
                        loop.update(new)
                    chains = loop.values
                blocks.update([total + chain for total, chain in zip(blocks.values, chains, strict=True)])
            for (row, _), sums in zip(tile, _by_row(blocks.values, rows), strict=True):
                target = ROW.load(row, "target")
                for n, y in zip(parts, sums, strict=True):
                    left = min(LANES, size - LANES * n)
                    y.store_where(tail_mask(LANES, constant(I64, left)), target + 4 * LANES * n)

    return outputs


def _by_row(values: list[Value], rows: int) -> list[list[Value]]:
    each = len(values) // rows
    return [values[k * each:(k + 1) * each] for k in range(rows)]


def attending(rows: int, size: int, bits: int, rotary: int, interleaved: int, capped: int, biased: int,
              sunk: int) -> Functions:
    """Make the block function for tiles of `rows` query rows and heads of `size` numbers of `bits` bits."""
    copy, rotate, numbers = row_copier(), rotation(bool(interleaved)), numbers_of("softmax")
    scores, outputs = _scores(rows, size, bool(capped), bool(biased), bits), _outputs(rows, size, bits)
    row_view = ROW.view
    wide = 4 * -(-size // LANES) * LANES

    def block(args: int, index: int) -> None:
        a = view(args)
        tokens, groups, shared, capacity, each = a.tokens, a.groups, a.shared, a.capacity, a.each
        m, window, causal, half, places = tokens * shared, a.window, a.causal, a.half, a.places
        parts = (m + each - 1) // each
        head = index // parts
        n, group, begin = head // groups, head % groups, index % parts * each
        room = a.rooms + ((index + 1) * a.room_count - 1) // (a.batch * groups * parts) * a.room_bytes
        turned = room + 64 * rows
        lines = turned + rows * wide
        stride = (a.room_bytes - rows * (64 + wide)) // rows
        length = load_s32(a.lengths + 4 * n)
        before = max(length + 1 - tokens, 0)
        if length < 0 or before > a.rows or before + tokens > a.most:
            return
        cache, scale = head * capacity * (size * bits // 8), group * 4 * size
        keys, values = a.keys + cache, a.values + cache
        key_scale, value_scale = a.key_scale + scale, a.value_scale + scale
        for r in range(begin, min(begin + each, m), rows):
            low, common, high, until = capacity, 0, 0, capacity
            for k in range(rows):
                row = min(r + k, m - 1)
                i, token, h = row // shared, n * tokens + row // shared, group * shared + row % shared
                x = row_view(room + 64 * k)
                x.last = before + i + 1 if causal else length + 1
                x.first = max(x.last - window, 0) if window else 0
                low, common = min(low, x.first), max(common, x.first)
                high, until = max(high, x.last), min(until, x.last)
                x.query = a.query + token * a.stride + h * (4 * size)
                x.target = a.target + (token * groups * shared + h) * (4 * size)
                if biased:
                    x.bias = a.bias + n * a.bias_batch + h * a.bias_head + i * a.bias_row
                if sunk:
                    store_s32(lines + stride * k + 60, load_s32(a.sinks + 4 * h))
                if rotary:
                    place = load_s64(a.positions + 8 * token) if a.positions else before + i
                    if place < 0 or place >= places:
                        return
                    copy(x.query, turned + k * wide, 4 * size)
                    angles = 4 * half * place
                    rotate(x.query, turned + k * wide, a.cos + angles, a.sin + angles, half)
                    x.query = turned + k * wide
            base = low // BLOCK * BLOCK
            scores(args, room, lines, stride, keys, key_scale, base, high)
            for k in range(rows):
                line, n_scores = lines + stride * k + 64, high - base
                if sunk:
                    numbers(line - 4, n_scores + 1, line - 4, room + 64 * k + 40, 4, 0)
                else:
                    numbers(line, n_scores, line, room + 64 * k + 40, 4, 0)
            outputs(room, lines, stride, values, value_scale, base, high, common, until)

    return Functions(block=block)


def plan_attention(words: dict[str, int], size: int, bits: int, rotary: bool, interleaved: bool, capped: bool,
                   biased: bool, sunk: bool, target: Target) -> Step:
    """Plan the attention to caches; `words` are the numbers of ATTEND, `bits` the width of a number in the caches."""
    batch, groups, m, capacity = words["batch"], words["groups"], words["tokens"] * words["shared"], words["capacity"]
    rows = next(n for n in (8, 4, 2, 1) if n == 1 or assumed(m) > n // 2)
    flags = (rotary, rotary and interleaved, capped, biased, sunk)
    module = modules.load("attending", attending, rows, size, bits, *map(int, flags), level=target.level.base,
                          cache=target.cache)
    macs = 2 * batch * groups * m * capacity * size
    worth = threads_for(target.threads, macs // 8)
    each = rows_of_block(m, batch * groups, worth, rows)
    blocks = batch * groups * -(-m // each)
    shares = pieces(blocks, worth, target.threads)
    line = LINE + 4 * LANES * -(-capacity // LANES)
    words = ATTEND.named({**words, "each": each, "room_count": largest(1, shares),
                          "room_bytes": rows * (LINE + 4 * LANES * -(-size // LANES) + line)})
    return Step(f"attention_{rows}x{LANES}_{target.level.name}", module.block, words, blocks, shares, macs=macs)

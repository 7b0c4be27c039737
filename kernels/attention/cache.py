"""The kernel that writes a key cache or a value cache: first the rows of the past cache, then the new rows.

With tables of angles, the kernel rotates the new rows (rotary position embedding). If the new cache shares the memory
of the past cache, the kernel writes only the new rows.
"""
from __future__ import annotations

from graphq.kernels.jit import Functions, Loop, emits, njit, store_first
from graphq.kernels.jit.intrinsics import Record, load_s32, load_s64, stack, store_s64
from graphq.kernels.jit.values import F32, I8, I16, I32, Builder, Value, constant, vector
from graphq.kernels.lanes.vector import Columns, narrow
from graphq.kernels.moves.rotate import rotate
from graphq.kernels.moves.transpose import copy_row
from graphq.plan.plan import Step, Target, plan_rows

LANES = 16
MOST = 1024
"""The most numbers of a head that kernels accept, because one head of a token lies on the stack as f32."""
WIDTHS = {"f32": 32, "bf16": 16, "f16": 16, "s8": 8, "s4": 4}
"""Bits per number of a cache, by type."""
KEEP = Record("new", "past", "cache", "lengths", "cos", "sin", "positions", "wrong_length", "wrong_position", "tokens",
              "groups", "size", "rows", "capacity", "most", "stride", "half", "places", "heads", "scale", "each")
"""The argument block: caches of `heads` heads in total, `groups` per batch element. `each` is the heads per block.

Tokens of `new` are `stride` bytes apart, and a token's heads of `size` f32 numbers are adjacent. Past caches have
`rows` rows and new caches have `capacity` rows. Tokens fill at most `most` rows. The tables of angles, `cos` and `sin`,
have `places` > 0 rows of `half` numbers. `positions` gives each token's row in these tables; if `positions` is 0, a
token uses its own row in the cache. The kernel writes a wrong position to `wrong_position`, and a wrong length, encoded
by `reported`, to `wrong_length`. `scale`, only for integer caches, is f32 [groups, size]. The caller fills in
addresses.
"""


@emits
def clear(b: Builder, address: Value, nbytes: Value) -> None:
    """Store `nbytes` zeros: 64 bytes at a time, then single bytes."""
    zeros = constant(vector(I8, 64), 0)
    with Loop(b, nbytes // 64) as loop:
        zeros.store(address + loop.k * 64)
    with Loop(b, nbytes & 63) as loop:
        constant(I8, 0).store(address + nbytes // 64 * 64 + loop.k)


def _pack(b: Builder, x: Value, scale: Value, y: Value, size: Value, *, kept: str) -> None:
    """Store `size` f32 numbers as the narrower type `kept`."""
    half = 1 << WIDTHS[kept] - 1
    with Loop(b, (size + (LANES - 1)) // LANES) as loop:
        j = loop.k * LANES
        columns = Columns(b, LANES, j, size - j)
        numbers = columns.load(x, F32, 4)
        if WIDTHS[kept] == 16:
            columns.store(narrow(b, numbers, kept, LANES), y, I16, 2)
        else:
            q = (numbers / columns.load(scale, F32, 4)).math("rint")
            q = b.fcmp_unordered("uno", q, q).select(0.0, q)
            q = (q > half - 1).select(half - 1.0, (q < -half).select(-float(half), q)).to_int(I32)
            if kept == "s8":
                columns.store(q.trunc(I8), y, I8, 1)
            else:
                low, high = ((q + half).shuffle(q, range(n, LANES, 2)) for n in (0, 1))
                store_first((low | high << 4).trunc(I8), y + j // 2, (size - j) // 2)


@njit
def reported(number: int) -> int:
    """Encode a wrong length as an error report: add 1 to lengths >= 0, because the report 0 means no error."""
    return number + 1 if number >= 0 else number


def keeping(rotary: int, interleaved: int, kept: str) -> Functions:
    """Make the block function that writes caches of the type `kept`."""
    turn, pack = emits(rotate, interleaved=bool(interleaved)), emits(_pack, kept=kept)
    bits, whole, room = WIDTHS[kept], kept != "f32", 4 * MOST

    def block(args: int, index: int) -> None:
        a = KEEP(args)
        tokens, groups, nbytes, rows, capacity = a.tokens, a.groups, 4 * a.size, a.rows, a.capacity
        row, turned = a.size * bits // 8, stack(room)
        stride, half, places, cos, sin, positions = a.stride, a.half, a.places, a.cos, a.sin, a.positions
        for head in range(index * a.each, min(index * a.each + a.each, a.heads)):
            n = head // groups
            length = load_s32(a.lengths + 4 * n)
            before = max(length + 1 - tokens, 0)
            if length < 0 or before > rows or before + tokens > a.most:
                store_s64(a.wrong_length, reported(length))
                return
            past, target = a.past + head * rows * row, a.cache + head * capacity * row
            if past != target:
                copy_row(past, target, before * row)
                clear(target + (before + tokens) * row, (capacity - before - tokens) * row)
            for i in range(tokens):
                token = n * tokens + i
                x, place_of = a.new + token * stride + head % groups * nbytes, target + (before + i) * row
                y = turned if whole else place_of
                copy_row(x, y, nbytes)
                if rotary:
                    place = load_s64(positions + 8 * token) if positions else before + i
                    if place < 0 or place >= places:
                        store_s64(a.wrong_position, place)
                        return
                    angles = 4 * half * place
                    turn(x, y, cos + angles, sin + angles, half)
                if whole:
                    pack(y, a.scale + head % groups * nbytes, place_of, a.size)

    return Functions(block=block)


def plan_cache(words: dict[str, int], rotary: bool, interleaved: bool, kept: str, target: Target) -> Step:
    """Plan the step that writes a key cache or a value cache. `words` are fields of KEEP."""
    cycles = words["capacity"] * words["size"] * 0.3 + words["tokens"] * (40 + words["size"]) + 50
    return plan_rows(keeping, KEEP, words, target, rows=words["heads"], cycles=cycles,
                     of=(int(rotary), int(rotary and interleaved), kept))

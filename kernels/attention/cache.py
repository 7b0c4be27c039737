"""The kernel that keeps keys or values: a head's rows of the past, then the new ones, rotated if they have angles.

A cache may be written where the past one lies: then its rows stay, and only the new ones are written.
"""
from __future__ import annotations

from graphq.kernels.jit.codegen import Functions
from graphq.kernels.jit.deferred import Intrinsic, emits, njit
from graphq.kernels.jit.intrinsics import load_s32, load_s64, store_s64
from graphq.kernels.jit.records import Record
from graphq.kernels.jit.values import F32, Builder, Value
from graphq.kernels.jit.x86 import Loop, tail_mask
from graphq.kernels.lanes.vector import Columns
from graphq.kernels.moves.transpose import row_copier
from graphq.kernels.recurrent.loops import clear
from graphq.plan.step import Step, Target, plan_rows

LANES = 16
KEEP = Record("new", "past", "cache", "lengths", "cos", "sin", "positions", "wrong_length", "wrong_position", "tokens",
              "groups", "size", "rows", "capacity", "most", "stride", "half", "places", "heads", "each")
"""`heads` of all batch elements, `groups` each. The `new` tokens are `stride` bytes apart, heads of `size` f32 lie side
by side; past caches have `rows`, new ones `capacity`, of which lengths may need `most`; `places` have angles of `half`
a row. The caller fills in the addresses, that of `positions` is 0 for the places in the cache. What a wrong length or
position is (`reported`) goes to the last two addresses."""
view = KEEP.view


def rotation(interleaved: bool) -> Intrinsic:
    """Make the function that stores the pairs of a row turned by their angles; `half` is the number of pairs."""

    @emits
    def rotate(b: Builder, x: Value, y: Value, cos: Value, sin: Value, half: Value) -> None:
        if interleaved:
            with Loop(b, half) as loop:
                place = loop.k * 8
                first, second = ((x + place + n).load(F32) for n in (0, 4))
                c, s = ((angles + loop.k * 4).load(F32) for angles in (cos, sin))
                (c * first - s * second).store(y + place)
                (s * first + c * second).store(y + place + 4)
            return
        with Loop(b, (half + (LANES - 1)) // LANES) as loop:
            j = loop.k * LANES
            columns = Columns(b, LANES, j, tail_mask(LANES, half - j))
            first, second = columns.load(x, F32, 4), columns.load(x + half * 4, F32, 4)
            c, s = columns.load(cos, F32, 4), columns.load(sin, F32, 4)
            columns.store(c * first - s * second, y, F32, 4)
            columns.store(s * first + c * second, y + half * 4, F32, 4)

    return rotate


@njit
def reported(number: int) -> int:
    """A number as an error that is never 0: those from 0 on, plus 1."""
    return number + 1 if number >= 0 else number


def number_of(report: int) -> int:
    """The number that `reported` stands for."""
    return report - 1 if report > 0 else report


def keeping(rotary: int, interleaved: int) -> Functions:
    """Make the block function of some heads' caches; `rotary` and `interleaved` are flags."""
    copy, rotate = row_copier(), rotation(bool(interleaved))

    def block(args: int, index: int) -> None:
        a = view(args)
        tokens, groups, nbytes, rows, capacity = a.tokens, a.groups, 4 * a.size, a.rows, a.capacity
        stride, half, places, cos, sin, positions = a.stride, a.half, a.places, a.cos, a.sin, a.positions
        for head in range(index * a.each, min(index * a.each + a.each, a.heads)):
            n = head // groups
            length = load_s32(a.lengths + 4 * n)
            before = max(length + 1 - tokens, 0)
            if length < 0 or before > rows or before + tokens > a.most:
                store_s64(a.wrong_length, reported(length))
                return
            past, target = a.past + head * rows * nbytes, a.cache + head * capacity * nbytes
            if past != target:
                copy(past, target, before * nbytes)
                end = before + tokens
                clear(target + end * nbytes, (capacity - end) * (nbytes // 4))
            for i in range(tokens):
                token = n * tokens + i
                x, y = a.new + token * stride + head % groups * nbytes, target + (before + i) * nbytes
                copy(x, y, nbytes)
                if rotary:
                    place = load_s64(positions + 8 * token) if positions else before + i
                    if place < 0 or place >= places:
                        store_s64(a.wrong_position, reported(place))
                        return
                    angles = 4 * half * place
                    rotate(x, y, cos + angles, sin + angles, half)

    return Functions(block=block)


def plan_cache(words: dict[str, int], rotary: bool, interleaved: bool, target: Target) -> Step:
    """Plan a cache of keys or values; `words` are the numbers of KEEP."""
    cycles = words["capacity"] * words["size"] * 0.3 + words["tokens"] * (40 + words["size"]) + 50
    return plan_rows(keeping, KEEP, words, target, rows=words["heads"], cycles=cycles,
                     of=(int(rotary), int(rotary and interleaved)))

"""Kernel modules for tests: a process that compiles imports this file, so it imports little."""
from __future__ import annotations

from graphq.kernels.jit.code import interleave, load_first, store_first
from graphq.kernels.jit.codegen import Functions
from graphq.kernels.jit.deferred import emits, njit
from graphq.kernels.jit.intrinsics import (
    Record,
    call_entry,
    columns_of,
    load_s64,
    repeated,
    stack,
    store_s64,
    transpose_tiles,
)
from graphq.kernels.jit.values import I8, I16, I32, I64, Value, vector
from graphq.kernels.lanes.epilogue_code import emitter_of, write_outputs
from graphq.kernels.operands.tile_frame import Frame, clamped, read_columns, tail_group
from graphq.kernels.pixels.blocks import over_channels
from graphq.kernels.target.products import dot4, flipped, pairs, saturating
from graphq.kernels.target.x86 import high_bytes, low_bytes, vpdpbusd, vpmaddubsw, vpmaddwd, vpxord
from graphq.kernels.target.x86_amx import STATE_BYTES, Tiles
from graphq.kernels.threads.steps import ASLEEP, HELPER, HELPER_AT, HELPERS, SEMAPHORE, SLEEPERS, _sleep
from graphq.kernels.threads.system import acquired, give_way, release, semaphore_wait, this_thread
from graphq.kernels.threads.system import added as added_atomically

nothing = object()
"""What Numba has no type for: kernels that name it are refused."""
PAIR = Record("first", "second")


@emits
def second_of(b, address) -> Value:
    return PAIR.load(address, "second")


def swapping(by_intrinsic):
    """A block that swaps the fields of a PAIR."""
    def block(args, index):
        a = PAIR(args)
        first = a.first
        a.first = second_of(args) if by_intrinsic else a.second
        a.second = first

    return Functions(block=block)


def misnaming():
    """A block that asks a PAIR for a field that it has not."""
    def block(args, index):
        store_s64(args, PAIR(args).third)

    return Functions(block=block)


def multiples(factor):
    """A block that stores its number, and multiples of a number."""
    def block(args, index):
        store_s64(args, index)

    def times(x, target):
        store_s64(target, factor * x)

    return Functions(block=block, times=times)


def empty():
    def block(args, index):
        pass

    return Functions(block=block)


def divided_by_zero():
    return 1 / 0


def of_a_missing_package():
    import nothing_like_it

    return nothing_like_it


def of_an_unknown_name():
    def times(x, target):
        store_s64(target, nothing * x)

    return Functions(times=times)


def adding():
    """A block adds 1 to what the step before left for it."""
    def block(args, index):
        before, now, count = load_s64(args), load_s64(args + 8), load_s64(args + 16)
        store_s64(now + 8 * index, load_s64(now + 8 * index) + load_s64(before + 8 * (index % count)) + 1)

    return Functions(block=block)


def dozing():
    """Helpers that wake once."""
    def doze(team, record):
        helper = HELPER(record + HELPER_AT)
        helper.thread = this_thread()
        helper.kept_off = -1
        added_atomically(team + HELPERS, 1)
        release(record + ASLEEP, 1)
        added_atomically(team + SLEEPERS, 1)
        while semaphore_wait(record + SEMAPHORE) != 0:
            pass

    return Functions(doze=doze)


def meeting():
    """Blocks that wait for each other: each counts itself in the first word, and stores how many it has seen there."""
    def block(args, index):
        added_atomically(args, 1)
        for _ in range(1_000_000):
            if acquired(args) < 2:
                give_way()
        store_s64(args + 8 + 8 * index, acquired(args))

    return Functions(block=block)


def falling_asleep():
    """What a helper does that has waited for long enough."""
    def fall_asleep(team, record):
        _sleep(team, record)

    return Functions(fall_asleep=fall_asleep)


def writing(stores, lanes):
    """Functions `write0`, `write1`, ... of epilogues."""
    return Functions(**{f"write{k}": emits(write_outputs, epilogue=epilogue, lanes=lanes)
                        for k, epilogue in enumerate(stores)})


def from_registers(epilogue, lanes, rows, vectors):
    """A function `write` as those of `writing`, of so many rows of vectors that are in registers."""
    dtype = vector(I32, lanes)

    @emits
    def write(b, args, batch, i0, j0, count, cols, acc, ldacc, entries) -> Value:
        emitter = emitter_of(b, epilogue, lanes, (args, batch, i0, j0), entries=entries)
        emitter.emit_registers([[(acc + ldacc * r + 4 * lanes * v).load(dtype, 4) for v in range(vectors)]
                                for r in range(rows)])
        return b.load(emitter.entries.count)

    return Functions(write=write)


def covering(lanes, widest):
    """A block that writes, for each of so many channels, the width of the vector that it is in, added up."""
    @emits
    def cover(b, target, channels) -> None:
        def emit(width, c):
            for k in range(width):
                place = target + (c + k) * 8
                (place.load(I64) + width).store(place)

        over_channels(b, channels, lanes, emit, widest)

    def block(args, index):
        cover(load_s64(args), load_s64(args + 8))

    return Functions(block=block)


def instructions(name, lanes, emulated):
    """A block that stores what an instruction of `x86` makes of three vectors of s32, one after another."""
    @emits
    def run(b, source, target) -> None:
        acc, a, w = ((source + 4 * lanes * k).load(vector(I32, lanes), 4) for k in range(3))
        halves = vector(I16, 2 * lanes)
        if name == "dot":
            out = (dot4 if emulated else vpdpbusd)(b, acc, a, w)
        elif name == "signed dot":
            out = dot4(b, acc, a, w, signed=True)
        elif name == "pairs":
            out = (pairs if emulated else vpmaddwd)(b, acc, a.as_type(halves), w.as_type(halves))
        else:
            out = (saturating if emulated else vpmaddubsw)(b, acc, a, w)
        out.store(target, 4)

    def block(args, index):
        run(load_s64(args), load_s64(args + 8))

    return Functions(block=block)


def interleaving(count, lanes, itemsize):
    """A block that stores so many rows of `lanes` elements woven; elements are of `itemsize` bytes."""
    @emits
    def run(b, source, target) -> None:
        kind = vector(I8 if itemsize < 4 else I32, lanes * (itemsize if itemsize < 4 else 1))
        interleave([(source + lanes * itemsize * k).load(kind, 1) for k in range(count)], lanes).store(target, 1)

    def block(args, index):
        run(load_s64(args), load_s64(args + 8))

    return Functions(block=block)


def moving_first(lanes):
    """A block that loads the first lanes of s32 at word 0 and stores those at word 1; words 2 and 3 say how many."""
    @emits
    def run(b, source, target, loaded, stored) -> None:
        store_first(load_first(source, loaded, vector(I32, lanes)) + 1, target, stored)

    def block(args, index):
        run(load_s64(args), load_s64(args + 8), load_s64(args + 16), load_s64(args + 24))

    return Functions(block=block)


def multiplying_tiles(rows, signed):
    """A block that multiplies tiles in memory: two of 64 bytes a row at word 0, whose product goes to word 1 twice."""
    @emits
    def run(b, source, target, state) -> None:
        tiles = Tiles(b, state, True)
        tiles.configure({tile: b.value(I64, rows) for tile in (0, 1)})
        tiles.zero(0)
        tiles.load(1, source, b.value(I64, 64))
        tiles.load(2, source + 1024, b.value(I64, 64))
        tiles.dot(0, 1, 2, signed)
        tiles.store(0, target, b.value(I64, 64))
        tiles.dot(0, 1, 2, signed)
        tiles.store(0, target + 1024, b.value(I64, 64))
        tiles.release()

    def block(args, index):
        run(load_s64(args), load_s64(args + 8), stack(STATE_BYTES))

    return Functions(block=block)


SHUFFLES = {"transposed": transpose_tiles, "columns": columns_of,
            "repeated": lambda rows: [repeated(x, 2, 8) for x in rows],
            "splat": lambda rows: [repeated(rows[0].lane(1), 8, 8)],
            "once": lambda rows: [repeated(x, 1, 4) for x in rows]}
"""Shuffles of rows of vectors."""


def shuffling(name, count, lanes):
    """A block that loads so many vectors, one after another, and stores what becomes of them."""
    @emits
    def run(b, source, target) -> None:
        out = SHUFFLES[name]([(source + 4 * lanes * k).load(vector(I32, lanes), 4) for k in range(count)])
        for k, x in enumerate(out):
            x.store(target + 4 * x.type.count * k, 4)

    def block(args, index):
        run(load_s64(args), load_s64(args + 8))

    return Functions(block=block)


# -- what Numba is given ----------------------------------------------------------------------------------------------

SCALE = 10


@njit
def added(a, b, place):
    return a + load_s64(place) - b


@njit
def halved(x: int) -> int:
    return x // 2


@njit
def store_twice(place: int, x: int) -> None:
    store_s64(place, 2 * x)


def adder(step):
    @njit
    def add(x):
        return added(x, -step, 0) if step < 0 else x + step * SCALE

    return add


ADD_3 = adder(3)

EXPRESSIONS = [
    (lambda a, b, place: min(a, b), -7), (lambda a, b, place: max(a, b), 3), (lambda a, b, place: min(a, 2), -7),
    (lambda a, b, place: max(2, b), 3), (lambda a, b, place: a // b, -3), (lambda a, b, place: a % b, 2),
    (lambda a, b, place: a // (b - 3) * 0, 0), (lambda a, b, place: a >> 1, -4), (lambda a, b, place: a & 12 | 1, 9),
    (lambda a, b, place: ~a, 6), (lambda a, b, place: a << 2, -28), (lambda a, b, place: abs(a), 7),
    (lambda a, b, place: 1 if a < b and b > 2 else 0, 1), (lambda a, b, place: not a == b or a != b, 1),
    (lambda a, b, place: (a, b)[1], 3), (lambda a, b, place: a * SCALE, -70),
    (lambda a, b, place: added(a, b, place), -7 + 40 - 3), (lambda a, b, place: halved(a), -4),
    (lambda a, b, place: halved(halved(40)), 10), (lambda a, b, place: ADD_3(b), 33),
    (lambda a, b, place: added(a, halved(6), place) + halved(a), 26)]
"""Functions, and what they give for -7, 3 and the address of 40."""


def expression(number):
    given = njit(EXPRESSIONS[number][0])

    def give(a, b, place):
        store_s64(place + 8, given(a, b, place))

    return Functions(give=give)


def statements():
    def give(n, place):
        total, k = 0, 0
        while True:
            k += 1
            if k > n:
                break
            for i in range(k, 0, -2):
                if i % 3 == 0:
                    continue
                total += i
        room = stack(64)
        store_s64(room, total)
        store_twice(place, load_s64(room))

    return Functions(give=give)


def branches(double, name, never):
    """Branches on a factory's variables, of which those that are not taken could not be compiled."""
    twice, other = double is not None, name == "other"

    def give(x, place):
        if twice:
            result = double * x
        else:
            result = never.nothing(x)
        if other:
            result = never.nothing(x)
        store_s64(place, result)

    return Functions(give=give)


REFUSED = [(lambda args, index: index.sort(), "sort"),
           (lambda args, index: store_s64(args, index + "a"), "TypingError"),
           (lambda args, index: nothing(index), "nothing"),
           (lambda args, index: store_s64(args), "store_s64 takes 2 arguments, got 1"),
           (lambda args, index: store_s64(args, stack(index)), "stack")]  # which takes a literal


def refused(number):
    return Functions(block=REFUSED[number][0])


def loading_and_storing():
    return Functions(load=load_s64, store=store_s64)


keep, give = emits(call_entry, 2, number=1), emits(call_entry, 1, number=2)


def calling_by_table():
    def block(args, index):
        keep(args, 5 * give(args) + index)

    return Functions(block=block)


@njit
def both(x, y):
    return x + y


@njit
def room_of(n):
    return stack(n)


def of_several_types():
    def give(place):
        store_s64(place, both(1, 2) + int(both(1.5, 2.75)))
        store_s64(room_of(8), 1)
        store_s64(room_of(16) + 8, load_s64(place))

    return Functions(give=give)


# -- instructions -----------------------------------------------------------------------------------------------------


def emitting(emit):
    """A block that stores what `emit(b, source)` gives of the memory at the address in word 0 at that in word 1."""
    @emits
    def run(b, source, target) -> None:
        emit(b, source).store(target)

    def block(args, index):
        run(load_s64(args), load_s64(args + 8))

    return Functions(block=block)


def flipping(lanes, emulated):
    return emitting(lambda b, source: (flipped if emulated else vpxord)(b, source.load(vector(I32, lanes))))


def packing_bytes(dtype):
    """The upper halves of four vectors, saturated to `dtype`, or, where it is None, the low bytes."""
    def emit(b, source):
        parts = [(source + 64 * k).load(vector(I32, 16)) for k in range(4)]
        return low_bytes(b, parts) if dtype is None else high_bytes(b, parts, dtype)

    return emitting(emit)


def reading_frame(rows, tail_bytes, group_bytes):
    """A block (addresses of a FRAME, of a source and of a target): what the frame's readers find.

    Stored are the first fields; `rows` clamped row addresses; the last `tail_bytes` at the source as a group of four;
    and group 1 of `rows` rows of transposed bytes, `group_bytes` of which exist.
    """
    @emits
    def found(b, frame, source, target) -> None:
        f = Frame.read(frame)
        numbers = [*f, *clamped(f, rows)]
        groups = [tail_group(source, b.value(I64, tail_bytes), 1),
                  *read_columns(f, rows, b.value(I64, 1), b.value(I64, group_bytes), 1)]
        for k, x in enumerate([*numbers, *(group.zext(I64) for group in groups)]):
            x.store(target + 8 * k)

    def block(args, index):
        found(load_s64(args), load_s64(args + 8), load_s64(args + 16))

    return Functions(block=block)

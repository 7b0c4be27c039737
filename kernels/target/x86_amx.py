"""AMX: the tile registers of x86, their configuration, and their emulation in memory."""
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from llvmlite import ir

from graphq.kernels.jit.code import S32X16, Loop
from graphq.kernels.jit.values import I8, I32, I64, Builder, Value, c64, constant, vector
from graphq.kernels.target.products import dot4


def shared(b: Builder, name: str, emit: Callable[..., None], *args: Value | int) -> None:
    """Emit a call of a function of 64-bit integers. `emit` makes the function's code, once per module."""
    function = b.module.globals.get(name)
    if function is None:
        function = ir.Function(b.module, ir.FunctionType(ir.VoidType(), [I64] * len(args)), name)
        function.linkage = "linkonce_odr"
        function.attributes.add("noinline")
        inner = Builder(ir.IRBuilder(function.append_basic_block()))
        emit(inner, *(Value(inner, x) for x in function.args))
        inner.ret_void()
    b.call(function, [c64(x) if isinstance(x, int) else x for x in args])


def _row(state: Value, tile: Value, row: Value) -> Value:
    return state + 64 + tile * 1024 + row * 64


def _rows(state: Value, tile: Value) -> Value:
    return (state + 48 + tile).load(I8).zext(I64)


def _tile_zero(b: Builder, state: Value, tile: Value) -> None:
    with Loop(b, c64(16)) as loop:
        constant(S32X16, 0).store(_row(state, tile, loop.k))


def _tile_load(b: Builder, state: Value, tile: Value, address: Value, stride: Value) -> None:
    _tile_zero(b, state, tile)
    with Loop(b, _rows(state, tile)) as loop:
        (address + loop.k * stride).load(S32X16).store(_row(state, tile, loop.k))


def _tile_store(b: Builder, state: Value, tile: Value, address: Value, stride: Value) -> None:
    with Loop(b, _rows(state, tile)) as loop:
        _row(state, tile, loop.k).load(S32X16).store(address + loop.k * stride)


def _tile_dot(b: Builder, state: Value, c: Value, a: Value, w: Value, signed: bool) -> None:
    with Loop(b, _rows(state, c)) as rows:
        total = _row(state, c, rows.k).load(S32X16)
        with Loop(b, _rows(state, w), [total]) as groups:
            x = (_row(state, a, rows.k) + groups.k * 4).load(I32)
            y = _row(state, w, groups.k).load(S32X16)
            groups.update([dot4(b, groups.values[0], x.splat(16), y, signed)])
        groups.values[0].store(_row(state, c, rows.k))


STATE_BYTES = 64 + 8 * 1024


class Tiles:
    """The AMX instructions on the eight tile registers of 16 rows x 64 bytes, or their emulation in memory.

    `state` is the address of STATE_BYTES: a tile configuration of 64 bytes, in which byte 48 + t is the number of rows
    of tile t. Emulated tile registers follow it, 1024 bytes each.
    """

    def __init__(self, b: Builder, state: Value, emulated: bool):
        self.b, self.state, self.emulated = b, state, emulated

    def _x86(self, name: str, tiles: Sequence[int], *args: Value) -> None:
        self.b.call_named(f"llvm.x86.{name}", ir.VoidType(), *(constant(I8, t) for t in tiles), *args)

    def configure(self, rows: Mapping[int, Value]) -> None:
        """Emit ldtilecfg. `rows` has the number of rows of some tiles; all other tiles have 16."""
        # Byte 0 is the palette (1). The bytes per row of each register (64, as u16) start at byte 16.
        words = [1, 0, *[0x0040_0040_0040_0040] * 2, 0, 0, 0x1010_1010_1010_1010, 0]
        constant(vector(I64, 8), words).store(self.state)
        for tile, count in rows.items():
            count.trunc(I8).store(self.state + (48 + tile))
        if not self.emulated:
            self._x86("ldtilecfg", [], self.state.pointer(I8))

    def release(self) -> None:
        """Emit tilerelease: reset the tile registers to their initial state."""
        if not self.emulated:
            self._x86("tilerelease", [])

    def zero(self, tile: int) -> None:
        """Emit tilezero: clear a tile."""
        if not self.emulated:
            return self._x86("tilezero", [tile])
        shared(self.b, "tile_zero", _tile_zero, self.state, tile)

    def load(self, tile: int, address: Value, stride: Value) -> None:
        """Emit tileloadd: load rows of 64 bytes, `stride` bytes apart. A stride of 0 repeats one row."""
        if not self.emulated:
            return self._x86("tileloadd64", [tile], address.pointer(I8), stride)
        shared(self.b, "tile_load", _tile_load, self.state, tile, address, stride)

    def store(self, tile: int, address: Value, stride: Value) -> None:
        """Emit tilestored: store the configured rows of 64 bytes, `stride` bytes apart."""
        if not self.emulated:
            return self._x86("tilestored64", [tile], address.pointer(I8), stride)
        shared(self.b, "tile_store", _tile_store, self.state, tile, address, stride)

    def dot(self, c: int, a: int, w: int, signed: bool) -> None:
        """Emit tdpbusd, or tdpbssd if `signed`: c s32 += a (rows x 64 bytes) * w (16 groups x 16 columns x 4 bytes).

        c, a and w are indices of tile registers.
        """
        name = "tdpbssd" if signed else "tdpbusd"
        if not self.emulated:
            return self._x86(name, [c, a, w])
        shared(self.b, f"tile_{name}", partial(_tile_dot, signed=signed), self.state, c, a, w)

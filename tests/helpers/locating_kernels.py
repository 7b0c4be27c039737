"""Factories of kernels that say where a tile finds its activations, and where a pixel finds its taps."""
from __future__ import annotations

from graphq.kernels.jit.codegen import Functions
from graphq.kernels.jit.deferred import emits
from graphq.kernels.jit.intrinsics import load_s64
from graphq.kernels.jit.values import I64, Builder, Value
from graphq.kernels.operands.tile_frame import locate, locate_windows
from graphq.kernels.pixels.blocks import store_taps


def locating(ko, ki):
    """A block that stores the addresses of the taps of an output pixel; of any window where ko is 0."""
    @emits
    def block(b: Builder, args: Value, index: Value) -> None:
        store_taps(b, *((args + 8 * word).load(I64) for word in range(5)), ko, ki)

    return Functions(block=block)


def locating_windows():
    """A block that fills in the words of a tile's rows: its argument block has the arguments of `locate_windows`."""
    def block(args, index):
        locate_windows(load_s64(args), load_s64(args + 8), load_s64(args + 16), load_s64(args + 24),
                       load_s64(args + 32), load_s64(args + 40), load_s64(args + 48))

    return Functions(block=block)


def locating_activations():
    """A block that fills in where a tile finds its activations: its argument block has the arguments of `locate`."""
    def block(args, index):
        locate(load_s64(args), load_s64(args + 8), load_s64(args + 16), load_s64(args + 24), load_s64(args + 32),
               load_s64(args + 40), load_s64(args + 48), load_s64(args + 56), load_s64(args + 64))

    return Functions(block=block)

"""Tiles of the integer matmul as plain loops, for any CPU."""
from __future__ import annotations

from collections.abc import Callable

from graphq.kernels.jit.deferred import njit
from graphq.kernels.jit.intrinsics import load_s8, load_s32, load_s64, load_u8, store_s32
from graphq.kernels.operands.tile_frame import ROWS_AT, view, view_windows


@njit
def _accumulate(a: int, along_k: int, k: int, shift: int, w: int, acc: int) -> None:
    """Add the products of a row of `k` bytes, `along_k` bytes apart, to the 16 sums of that row."""
    for j in range(k):
        x = load_u8(a + j * along_k) ^ shift
        line = w + j // 4 * 64 + j % 4
        for c in range(16):
            store_s32(acc + 4 * c, load_s32(acc + 4 * c) + x * load_s8(line + 4 * c))


def scalar_tile(shift: int, layout: str) -> Callable[[int], None]:
    """Make the tile function of one panel for activations in `layout`; `shift` (128 for s8) is xored to each byte."""
    windows, along_i, along_k = layout == "windows", layout == "rows", layout == "columns"

    @njit
    def tile(frame: int) -> None:
        f = view(frame)
        a, stride, w, k, rows, acc = f.a, f.stride, f.w, f.k, f.rows, f.acc
        for i in range(rows):
            for c in range(16):
                store_s32(acc + 64 * i + 4 * c, 0)
            if windows:
                tap, entries, x = 0, frame + ROWS_AT + 16 * i, view_windows(stride)
                for outer in range(x.ko):
                    for inner in range(x.ki):
                        at = load_s64(load_s64(entries) + 8 * outer) + load_s64(load_s64(entries + 8) + 8 * inner)
                        source = a + at if at >= 0 else stride + x.pad_row
                        _accumulate(source, 1, k, shift, w + tap * ((k + 3) // 4 * 64), acc + 64 * i)
                        tap += 1
            else:
                _accumulate(a + i * (stride if along_i else 1), stride if along_k else 1, k, shift, w, acc + 64 * i)

    return tile

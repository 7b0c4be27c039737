"""Packed weights: the layout that all matmul kernels read, and the functions that pack.

A panel is 16 columns of weights. A group is 4 bytes along k in one column; a 32-bit lane multiplies a group. Weights
(k, n) of s8, or of u8 minus 128, are packed as

    column sums   s32 [panels * 16]             over k, 0 for columns past n
    panels        s8  [panels][groups][16][4]   rows 4 g .. 4 g + 3 of columns 16 p .. 16 p + 15, padded with 0
    slack         15 lines of 64 bytes          an AMX tile reads 16 groups, even at the end of a panel

with panels = ceil(n / 16), groups = ceil(k / 4). A line of 64 bytes is a vector of 16 lanes and a row of an AMX tile.
For bf16 and f16 a group has two rows, for f32 one row; kernels do not use the column sums of floats.

In *paired* weights, each two neighboring lines [2][16][4] are [16][2][4]: two groups of a column are side by side.

Sorted weights are followed by the result of `sort`: it lists which groups a saturating instruction multiplies exactly
(`target.products`). Such an instruction adds two neighboring products of u8 and s8 in 16 bits. The result is exact if
the sum of the two weights is from -128 to 128: neither the sum of the positive weights nor the sum of the negative
weights then exceeds 128 in absolute value, and the sum of the products is at most 255 * 128 < 2**15.
"""
from __future__ import annotations

from math import prod

import numpy as np

from graphq.base.arrays import padded
from graphq.errors import KernelError
from graphq.kernels.jit import LINE, S32X16, Functions, Loop, emits, interleave, lasting_empty
from graphq.kernels.jit.intrinsics import Record, load_s32, load_s64, load_u8, store_s32, store_u8, transpose_tiles
from graphq.kernels.jit.values import I8, I32, Builder, Value, constant, vector
from graphq.kernels.lanes.expression import STORAGE
from graphq.kernels.matmul.row_sums import byte_sums, offset
from graphq.plan.plan import Step, Target, plan_rows

SORTED, PAIRED = "s8sorted", "s8paired"
"""The dtypes, in the kernel table, of weights packed by `pack_sorted`, and of paired weights."""
PANEL = 16
SLACK = 15 * LINE
DESCRIPTOR = Record("group", "groups", "panel_bytes", "group_bytes", "terms", "terms_step", "zero_points",
                    "zero_points_step")
"""The fields that `matmul_compressed.pack` writes instead of a panel's column sums.

    group, groups                   the rows of a scale group, and the number of scale groups
    panel_bytes, group_bytes        the bytes of a panel, and of the weights of a scale group
    terms, zero_points              bytes from a panel's start to the terms, or zero points, of its first scale group
    terms_step, zero_points_step    bytes to the terms, or zero points, of the next scale group; 0 if all share them
"""
PACK = Record("source", "table", "rows", "along_k", "along_n", "packed", "packed_bytes", "k", "n", "each", "flip")
"""The argument block for packing weights (k, n). `each` is the panels per block; bytes are xored with `flip`.

The caller fills in the addresses of the weights, of the table of batch offsets (or 0), and of the result `packed`. The
result is 64-byte aligned and has `packed_bytes` bytes for each batch element. The caller may change `along_k` and
`along_n`, the bytes between rows and between columns. If rows are not evenly spaced, `rows` is the address of a table
of k byte offsets, where a negative offset means a row of zeros. Otherwise `rows` is 0.
"""


def panel_count(n: int) -> int:
    """The number of panels of 16 columns."""
    return -(-n // PANEL)


def packed_bytes(k: int, n: int, itemsize: int = 1) -> int:
    """The bytes of a packed (k, n) matrix, a multiple of 64."""
    return panel_count(n) * LINE * (1 + -(-k * itemsize // 4)) + SLACK


def pack(w: np.ndarray, paired: bool = False) -> np.ndarray:
    """Pack weights (..., k, n) of any strides in NumPy; returns u8 (..., packed_bytes(k, n)).

    Weights can be `paired` if k is a multiple of 8.
    Raises KernelError if the weights are not s8, u8, f32, bf16 or f16, or have fewer than two dimensions.
    """
    dtypes = {STORAGE[x]: x for x in ("s8", "u8", "f32", "bf16", "f16")}
    if w.dtype not in dtypes or w.ndim < 2:
        raise KernelError(f"weights to pack are matrices of {', '.join(dtypes.values())}, got {w.dtype}{list(w.shape)}")
    if w.dtype == np.uint8:
        w = (w ^ np.uint8(0x80)).view(np.int8)
    *outer, k, n = w.shape
    itemsize = w.dtype.itemsize
    size, items = packed_bytes(k, n, itemsize), 4 // itemsize
    batch, panels, groups = prod(outer), panel_count(n), -(-k * itemsize // 4)
    out = lasting_empty(batch * size).reshape(batch, size)
    w, sizes = w.reshape(batch, k, n), (batch, groups * items, panels * PANEL)
    by_column = w.strides[1] == itemsize and w.size > 0
    w = padded(w.swapaxes(1, 2), (batch, *sizes[:0:-1])).swapaxes(1, 2) if by_column else padded(w, sizes)
    head, end = panels * LINE, panels * LINE * (1 + groups)
    out[:, :head] = np.ascontiguousarray(w.sum(1, dtype=np.int32)).view(np.uint8) if itemsize == 1 else 0
    body = out[:, head:end].view(w.dtype).reshape(batch, panels, groups, PANEL, items)
    if by_column:  # the 4 bytes of a group are neighbors: copy them as one u32
        columns = w.swapaxes(1, 2).view(np.uint32).reshape(batch, panels, PANEL, groups)
        body.view(np.uint32)[..., 0] = columns.swapaxes(2, 3)
    else:
        rows = w.reshape(batch, groups, items, panels, PANEL)
        for i in range(items):  # this loop is five times as fast as one copy with transposed axes
            body[..., i] = rows[:, :, i].swapaxes(1, 2)
    if paired:
        body[...] = body.reshape(batch, panels, groups // 2, 2, PANEL, 4).swapaxes(3, 4).reshape(body.shape)
    out[:, end:] = 0
    return out.reshape(*outer, size)


def sort(w: np.ndarray) -> np.ndarray:
    """Order the groups of weights for multiplication by tiles; returns s32 [..., panels, taps, 1 + k // 4].

    `w` are s8 weights (..., taps, k, n). The first number for each panel and tap counts the groups that a saturating
    instruction multiplies exactly. The other numbers are the first rows of all groups: first of the exact groups, then
    of the others. The last k % 4 rows belong to no group.
    """
    *outer, taps, k, n = w.shape
    groups, panels = k // 4, panel_count(n)
    pairs = w[..., :4 * groups, :].reshape(*outer, taps, groups, 2, 2, n).astype(np.int16)
    saturates = (np.abs(pairs.sum(axis=-2, dtype=np.int16)) > 128).any(axis=-2)
    saturates = padded(saturates, (*outer, taps, groups, panels * PANEL)).reshape(*outer, taps, groups, panels, PANEL)
    saturates = np.moveaxis(np.asarray(saturates.any(axis=-1)), -1, -3)
    first = groups - saturates.sum(axis=-1, keepdims=True)
    return np.concatenate([first, 4 * saturates.argsort(axis=-1, kind="stable")], axis=-1, dtype=np.int32)


def pack_sorted(w: np.ndarray, k: int) -> np.ndarray:
    """Pack weights (..., taps, rows, n), and append the result of `sort` for the first k rows of each tap.

    Returns u8 (..., bytes); the bytes for each batch element are a multiple of 64.
    """
    *outer, taps, rows, n = w.shape
    w = (w ^ np.uint8(0x80)).view(np.int8) if w.dtype == np.uint8 else w
    packed, order = pack(w.reshape(*outer, taps * rows, n)), sort(w[..., :k, :])
    order = order.reshape(*outer, prod(order.shape[-3:])).view(np.uint8)
    size, room = packed.shape[-1], -(-order.shape[-1] // LINE) * LINE
    out = lasting_empty(prod(outer) * (size + room)).reshape(*outer, size + room)
    out[..., :size] = packed
    out[..., size:] = padded(order, (*outer, room))
    return out


def exact_share(packed: np.ndarray, k: int, n: int, taps: int = 1) -> float:
    """The fraction of groups in the result of `pack_sorted` that a saturating instruction multiplies."""
    order = packed[..., packed_bytes(taps * -(-k // 4) * 4, n):].view(np.int32)
    panels, groups = panel_count(n), k // 4
    counts = order[..., :panels * taps * (1 + groups)].reshape(-1, 1 + groups)[:, 0]
    return float(counts.sum() / max(1, counts.size * groups))


def _pack_rows(b: Builder, source: Value, stride: Value, groups: Value, target: Value, flip: Value, *,
               itemsize: int) -> None:
    items = 4 // itemsize
    flips = flip.trunc(I8).splat(LINE)
    with Loop(b, groups) as loop:
        first = source + loop.k * (stride * items)
        rows = [(first + stride * i).load(vector(I8, PANEL * itemsize)) for i in range(items)]
        line = interleave(rows, PANEL).as_type(vector(I8, LINE))
        (line ^ flips).store(target + loop.k * LINE)


@emits
def pack_columns(b: Builder, source: Value, apart: Value, groups: Value, target: Value, flip: Value) -> None:
    """Pack `groups` groups of 16 columns, each contiguous along k, and xor each byte with `flip`.

    `groups` is rounded down to a multiple of 8. Neighboring columns begin `apart` bytes apart.
    """
    flips = flip.trunc(I8).splat(LINE)
    with Loop(b, groups >> 3) as loop:
        columns = [(source + loop.k * 32 + apart * c).load(vector(I32, 8)) for c in range(PANEL)]
        lines = transpose_tiles([columns[c].shuffle(columns[c + 8], range(PANEL)) for c in range(8)])
        for g, line in enumerate(lines):
            (line.as_type(vector(I8, LINE)) ^ flips).store(target + loop.k * (8 * LINE) + g * LINE)


@emits
def _sum_groups(b: Builder, source: Value, groups: Value, target: Value) -> None:
    with Loop(b, groups, [constant(S32X16, 0)]) as loop:
        line = (source + loop.k * LINE).load(S32X16)
        loop.update([loop.values[0] + byte_sums(line, signed=True)])
    loop.values[0].store(target)


def packing(itemsize: int) -> Functions:
    """Make the block function that packs panels."""
    items, pack_rows = 4 // itemsize, emits(_pack_rows, itemsize=itemsize)

    def block(args: int, index: int) -> None:
        a = PACK(args)
        k, n, each, flip, rows = a.k, a.n, a.each, a.flip, a.rows
        panels, groups = (n + 15) // 16, (k + items - 1) // items
        blocks = (panels + each - 1) // each
        batch, first = index // blocks, index % blocks * each
        source, along_k, along_n = a.source + offset(a.table, batch), a.along_k, a.along_n
        base = a.packed + batch * a.packed_bytes
        flips = flip | flip << 8 | flip << 16 | flip << 24
        for p in range(first, min(first + each, panels)):
            columns, start = min(16, n - 16 * p), source + 16 * p * along_n
            target = base + 64 * (panels + p * groups)
            done = 0
            if along_n == itemsize and columns == 16 and not rows:
                done = k // items
                pack_rows(start, along_k, done, target, flip)
            elif along_k == itemsize and columns == 16 and not rows:
                done = k // items
                pack_columns(start, along_n, done & -8, target, flip)
                for c in range(16):
                    for g in range(done & -8, done):
                        store_s32(target + 64 * g + 4 * c, load_s32(start + c * along_n + 4 * g) ^ flips)
            for i in range(done * items, groups * items):
                row = load_s64(rows + 8 * i) if rows and i < k else i * along_k
                inside = columns if i < k and row >= 0 else 0
                for c in range(16):
                    place, element = target + i // items * 64 + 4 * c + i % items * itemsize, start + row + c * along_n
                    if itemsize == 4:
                        store_s32(place, load_s32(element) if c < inside else 0)
                    else:
                        for t in range(itemsize):
                            store_u8(place + t, load_u8(element + t) ^ flip if c < inside else 0)
            if itemsize == 1:
                _sum_groups(target, groups, base + 64 * p)

    return Functions(block=block)


def plan_pack(w_dtype: str, k: int, n: int, batch: int, target: Target) -> Step:
    """Plan the packing of weights at run time, with any strides; the caller fills in the address fields of PACK."""
    flip, itemsize = 0x80 if w_dtype == "u8" else 0, STORAGE[w_dtype].itemsize
    words = {"along_k": n * itemsize, "along_n": itemsize, "packed_bytes": packed_bytes(k, n, itemsize), "k": k, "n": n,
             "flip": flip}
    cycles = PANEL * k * itemsize * 0.5  # measured: 6 to 12 GB/s
    return plan_rows(packing, PACK, words, target, rows=panel_count(n), cycles=cycles, batch=batch, of=(itemsize,))

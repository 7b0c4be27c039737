"""The block function of all matmuls, and `plan_matmul`, to choose a matmul's kernel, blocks and argument block.

    R[i, j] = sum_k a'[i, k] * w'[k, j]    modulo 2**32; a' u8 (s8 activations: a + 128), w' s8 (u8 weights: w - 128)
    out[i, j] = epilogue(R[i, j], operands)

The integer R is the same at every instruction-set level. For floats, R is the f32 sum. For integers, the epilogue also
corrects R for zero points and for the shifts by 128.

The block function loops over tiles, and calls a tile function by its address. By default, a tile function leaves R in
scratch memory on the stack, and a function of the epilogue (`outputs`) computes the outputs while R is in L1. Such tile
functions are compiled once per machine. If k and the epilogue are short (`_writer`), the tile function writes the
outputs itself, and is compiled for each epilogue.

Tile functions read activations as rows or columns of `a`, or as windows of an image (see `operands.tile_frame`). A
matmul of windows by weights that are packed tap by tap is a convolution. An operand's table has the byte offset of each
batch element; without a table, the address of the table is 0.
"""
from collections.abc import Sequence
from functools import lru_cache, partial
from operator import getitem
from typing import Any, NamedTuple

from graphq.base.sizes import assumed, is_open, largest, later, numbers, recorded, smallest
from graphq.kernels.jit import block_module, modules, njit
from graphq.kernels.jit.intrinsics import Record, call_block, stack
from graphq.kernels.lanes.epilogues import Epilogue
from graphq.kernels.lanes.expression import BYTES, STORAGE, lower, walk
from graphq.kernels.lanes.outputs import HEAD, finish, load_outputs, load_second_look
from graphq.kernels.matmul.kernel_table import KERNELS, ActivationLayout, Kernel, estimate, fitting, select, tile_count
from graphq.kernels.matmul.matrix import COPIES, OWN_COPIES, ROWS, SCRATCH, line_bytes
from graphq.kernels.matmul.pack import PAIRED, PANEL, SLACK, SORTED, panel_count
from graphq.kernels.matmul.row_sums import offset
from graphq.kernels.operands.tile_frame import FRAME, FRAME_BYTES, LAYOUTS, locate
from graphq.kernels.operands.windows import MOST_TAPS
from graphq.kernels.target.isa import here
from graphq.kernels.target.level import Level
from graphq.plan.plan import Step, Target, pieces, threads_for

MOST_VECTORS = 128
"""The most vectors in a tile's accumulators: 2,048 accumulators with 16 lanes, 1,024 with 8."""

MATMUL_BLOCK = Record(
    *HEAD.fields, "layout", "a", "a_table", "stride", "itemsize", "w", "w_table", "panel_bytes", "order", "order_bytes",
    "batch", "m", "n", "k", "each_rows", "each_panels", "rows", "panels", "tail_panels", "tile", "tail", "setup",
    "writer", "ahead", "ahead_bytes", "rooms", "room_count", "room_bytes", "kept", "row_scales", "row_scales_table",
    "row_scales_row", "row_scales_step", "row_sums", "row_sums_table", "row_sums_row")
"""The argument block of a matmul: `batch` elements of m x n outputs. A row of `a` has `k` bytes; `w` is packed.

    layout                   the layout of activations, as an index into LAYOUTS
    panel_bytes              the bytes of a panel of w
    order, order_bytes       for sorted weights: the bytes from w to the first panel's order, and between orders
    each_rows, each_panels   the rows and panels of a block
    rows, panels             the rows and panels of a tile
    tail_panels              the panels of the narrower tiles at the end of a row of tiles
    tile, tail, setup        the functions of whole and narrower tiles, and the AMX setup or 0
    writer                   who writes the outputs: BY_FUNCTION, BY_TILE or BY_BOTH
    ahead, ahead_bytes       the weights of the next step, to be prefetched, or 0
    rooms, room_count        memory for copies of activations (AMX): `room_bytes` for each piece of the blocks
    kept                     the bytes of a tile's copies if other tiles reuse them, or 0
    row_scales, row_scales_table       with compressed weights, the scales of activations
    row_scales_row, row_scales_step    the bytes between the scales of rows, and of groups
    row_sums, row_sums_table           with compressed weights, the s32 sums of activations of each row and group
    row_sums_row                       the bytes between the sums of rows

The caller fills in a, w, their tables, `stride` and `terms`; the plan fills in `ahead` and `rooms`.
"""

SHORT = 26
"""The most nodes of an epilogue that tile functions compute, because they unroll it. A residual still fits."""
SHORT_ROW = 256
"""Tile functions compute the epilogue only if k has at most this many bytes."""
MANY = 1 << 14
"""Tile functions compute the epilogue only for this many outputs or more: compiling a tile takes 0.1 to 0.3 s."""
ENTRIES_BYTES = 8 * (MOST_VECTORS + 1)
"""The bytes of the list of outputs near rounding ties: an entry per vector of a tile, and a spare entry."""
BY_FUNCTION, BY_TILE, BY_BOTH = range(3)
"""Who writes the outputs of a tile.

    BY_FUNCTION    the epilogue's function (`outputs`), from sums in memory
    BY_TILE        the tile function, from registers
    BY_BOTH        the tile function writes whole tiles, the epilogue's function partial tiles. The sums are also stored
                   in memory, because outputs near rounding ties are computed a second time from these sums.
"""


@recorded("matmul.Product")
class Product(NamedTuple):
    """The sizes of a matmul or convolution: `batch` products of activations (m, k) and packed weights (k, n).

    If the `layout` of the activations is "windows", a convolution computes m output pixels over `taps` taps of k
    channels. `w_dtype` names the layout of the weights. Weights named SORTED are packed by `pack.pack_sorted`, weights
    with a name of `matmul_compressed.tiles` by `matmul_compressed.pack`, all others by `pack.pack`.
    """

    a_dtype: str
    m: int
    n: int
    k: int
    batch: int = 1
    layout: ActivationLayout = "rows"
    taps: int = 1
    w_dtype: str | None = None

    @property
    def dtypes(self) -> tuple[str, str]:
        """The dtypes of activations and packed weights. Weights are s8 by default, or the activations' float dtype."""
        return self.a_dtype, self.w_dtype or {"u8": "s8"}.get(self.a_dtype, self.a_dtype)

    @property
    def row_bytes(self) -> int:
        """The bytes of a row of activations, or of a pixel's channels."""
        return self.k * STORAGE[self.a_dtype].itemsize

    @property
    def depth(self) -> int:
        """The bytes of activations that a sum reads. With several taps, each tap is rounded up to a multiple of 4."""
        return self.row_bytes if self.taps == 1 else -(-self.row_bytes // 4) * 4 * self.taps


@njit
def count_blocks(args: int) -> tuple[int, int]:
    """The number of blocks of a batch element along m, and along n."""
    x = MATMUL_BLOCK(args)
    panels = (x.n + 15) // 16
    return (x.m + x.each_rows - 1) // x.each_rows, (panels + x.each_panels - 1) // x.each_panels


@njit
def area(args: int, index: int) -> tuple[int, int, int, int, int]:
    """The outputs of block `index`: batch element, rows i0 to i1 and panels j0 to j1 (both exclusive)."""
    x, (down, across) = MATMUL_BLOCK(args), count_blocks(args)
    batch, inner = index // (down * across), index % (down * across)
    i0, j0 = inner % down * x.each_rows, inner // down * x.each_panels
    return batch, i0, min(i0 + x.each_rows, x.m), j0, min(j0 + x.each_panels, (x.n + 15) // 16)


@njit
def room(args: int, index: int) -> int:
    """The address of the memory for copies of activations; the piece that block `index` belongs to owns it."""
    x, (down, across) = MATMUL_BLOCK(args), count_blocks(args)
    return x.rooms + ((index + 1) * x.room_count - 1) // (x.batch * down * across) * x.room_bytes


@njit
def upcoming(args: int, address: int, size: int, steps: int) -> tuple[int, int]:
    """The address of memory to prefetch in `steps` equal steps, and the bytes of a step.

    The memory is `size` bytes at `address` or, if `size` is 0, the weights of the plan's next step.
    """
    x = MATMUL_BLOCK(args)
    if size == 0:
        address, size = x.ahead, x.ahead_bytes
    return address, min(256 if x.setup else 64, (size + steps - 1) // steps)


@partial(block_module, speed=3)
def matmul_blocks(args: int, index: int) -> None:
    """Compute a block of a matmul: the same code for all kernels, layouts of activations and epilogues."""
    x = MATMUL_BLOCK(args)
    batch, i0, i1, j0, j1 = area(args, index)
    m, n, step, width, kept, setup, writer = x.m, x.n, x.rows, x.panels, x.kept, x.setup, x.writer
    layout, itemsize, panel_bytes, order_bytes = x.layout, x.itemsize, x.panel_bytes, x.order_bytes
    a, w = x.a + offset(x.a_table, batch), x.w + offset(x.w_table, batch)
    panels, copies, order = (n + 15) // 16, room(args, index), w + x.order
    frame, sums, entries = stack(FRAME_BYTES), stack(SCRATCH), stack(ENTRIES_BYTES)
    f = FRAME(frame)
    f.stride = x.stride
    f.k = x.k
    f.acc = sums
    f.args = args
    f.batch = batch
    first, groups, configured, j = w + 64 * panels, panel_bytes // 64, 0, j0
    # with each group of a tile, prefetch an equal part of the next weights
    steps = max(1, (i1 - i0 + step - 1) // step * groups)
    while j < j1:
        now = width if j + width <= j1 else min(x.tail_panels, j1 - j)
        is_tail = now < width or (x.tail_panels == width and j + now == panels)
        tile, columns = x.tail if is_tail else x.tile, min(16 * now, n - 16 * j)
        f.w = first + j * panel_bytes
        f.sums = w + 64 * j
        f.order = order + j * order_bytes
        f.j = 16 * j
        f.columns = columns
        f.fresh = OWN_COPIES if kept == 0 else int(j == j0)
        ahead, pace = upcoming(args, first + (j + now) * panel_bytes, min(width, j1 - j - now) * panel_bytes, steps)
        ahead = ahead if pace else w
        f.step = pace
        for i in range(i0, i1, step):
            rows = min(step, i1 - i)
            f.rows = rows
            f.ahead = ahead
            f.copies = copies + (i - i0) // step * kept
            f.i = i
            f.entries = entries
            ahead += groups * pace
            locate(frame, layout, itemsize, a, batch, m, i, rows, step)
            if setup != 0 and rows != configured:
                call_block(setup, frame, rows)
                configured = rows
            call_block(tile, frame, 0)
            if writer != BY_TILE:
                left = f.entries if writer == BY_BOTH else -1
                finish(args, batch, i, 16 * j, rows, columns, sums, 64 * now, entries, left, frame)
        j += now
    if configured:
        call_block(setup, frame, 0)


def _writer(kernel: Kernel, epilogue: Epilogue, outputs: int, depth: int, lanes: int) -> int:
    """Choose who writes the outputs: tile functions if they are many, and k (`depth` bytes) and the epilogue are short.

    Tile functions that write outputs are compiled for every epilogue. For floats they save 8 % of the time at k = 16,
    13 % at 24, 8 % at 32, and 2 % at 100. For VNNI they save 14 % at 16 and 6 % at 64 (Zen 4, the convolutions of
    MobileNetV2). All of MobileNetV2 takes 6 % less time on AVX2, 10 % on AVX-VNNI (Xeon).
    """
    if not kernel.writes_outputs or depth > SHORT_ROW or outputs < MANY or \
            len(walk(lower(epilogue.form("fast")))) > SHORT:
        return BY_FUNCTION
    if kernel.dtypes[0] not in BYTES:
        return BY_FUNCTION if epilogue.fast is not None else BY_TILE
    return BY_BOTH if epilogue.fast is not None and kernel.isa.lanes == lanes else BY_FUNCTION


@lru_cache(maxsize=1024)
def split(tiles: int, panels: int, width: int, batch: int, threads: int, most_tiles: int) -> tuple[int, int]:
    """Choose a block's (row tiles, panels), for the least time of the busiest thread, then for the fewest blocks.

    The panels are a multiple of `width`, the panels of a tile. A block has at most `most_tiles` row tiles, so its
    activations stay in L2 while the block function goes over the columns.
    """
    best: tuple[float, int] = (float("inf"), 0)
    chosen = (1, width)
    fewest, groups = -(-tiles // most_tiles), -(-panels // width)
    for rows in sorted({-(-tiles // parts) for parts in range(fewest, min(tiles, fewest + 4 * threads) + 1)}):
        for columns in sorted({-(-groups // parts) for parts in range(1, min(groups, 4 * threads) + 1)}):
            blocks = batch * -(-tiles // rows) * -(-groups // columns)
            rounds = -(-blocks // threads) if threads > 1 else blocks
            work = rounds * rows * min(columns * width, panels) if threads > 1 else tiles * panels * batch
            if (work, blocks) < best:
                best, chosen = (work, blocks), (rows, columns * width)
    return chosen


SCALES = [2.0**(k / 4) for k in (*range(-24, -12, 2), *range(-12, 9))]
"""For open sizes, kernels are compiled for the example's sizes times these numbers. Half as many are too few."""


@lru_cache(maxsize=256)
def _likely(dtypes: tuple[str, str], sizes: tuple[int, ...], is_open: tuple[bool, ...], level: Level,
            layout: ActivationLayout) -> tuple[Kernel, ...]:
    """The kernels that `select` may choose if open sizes of (m, n, k) change, in the order of `fitting`."""
    found = set()
    for by in SCALES:
        m, n, k = (max(1, round(size * by)) if o else size for size, o in zip(sizes, is_open, strict=True))
        found.add(select(dtypes, m, n, k, level, layout=layout))
    return tuple(kernel for kernel in fitting(dtypes, level, layout) if kernel in found)


class _Blocks(NamedTuple):
    """How a matmul is cut into blocks: fields of MATMUL_BLOCK, and `kernel`, an index into the names of the kernels.

    `threads` is the number of threads that are worth using. A block needs `room_bytes` for copies of activations.
    """

    kernel: int
    threads: int
    blocks: int
    each_rows: int
    each_panels: int
    rows: int
    panels: int
    tail_panels: int
    kept: int
    room_bytes: int


@recorded("matmul.blocks")
def _blocks(names: Sequence[str], x: Product, threads: int, tail: int | None, strip_rows: int | None) -> _Blocks:
    """Choose the cheapest of the kernels `names`, and the blocks for it.

    `tail`, if given, is the width in panels of the narrower tiles at the end of a row of tiles. By default one narrower
    tile has all remaining panels. `strip_rows`, if given, is the number of rows of a block.
    """
    costs = [estimate(KERNELS[name], min(x.m, strip_rows or x.m), x.n, x.depth) for name in names]
    number = costs.index(min(costs))
    kernel, windows = KERNELS[names[number]], x.layout == "windows"
    rows, panels = kernel.tile[0], kernel.tile[1] // PANEL
    tiles, all_panels = max(1, -(-(strip_rows or x.m) // rows)), max(1, panel_count(x.n))
    worth = threads_for(threads, costs[number] * x.batch)
    copies = 0
    if kernel.in_tile_registers:
        copies = rows * (line_bytes(x.row_bytes, x.taps) if windows else 64 * (x.row_bytes % 64 > 0))
    most_tiles = max(1, (1 << 20) // max(1, rows * x.depth))
    if copies and windows and all_panels > panels:
        most_tiles = COPIES // copies
    each_tiles, each_panels = tiles, all_panels
    if strip_rows is None:
        each_tiles, each_panels = split(tiles, all_panels, panels, x.batch, worth, most_tiles)
    each_rows = strip_rows or each_tiles * rows
    kept = copies if each_panels > panels and each_tiles * copies <= COPIES else 0
    blocks = x.batch * -(-x.m // each_rows) * -(-all_panels // each_panels) if x.m and x.n else 0
    return _Blocks(number, worth, blocks, each_rows, each_panels, rows, panels,
                   tail or panel_count(x.n) % panels or panels, kept, each_tiles * kept or copies)


def _load_functions(kernel: Kernel, x: Product, level: Level, inside: tuple[Any, ...], wanted: bool,
                    cache: bool) -> tuple[str, modules.Function, tuple[modules.Function, ...], modules.Function | int]:
    """Load a kernel; returns its name, the functions of whole and of narrower tiles, and the AMX setup or 0.

    `inside` is the epilogue that the tiles compute, or empty. If n is open, there is a narrower tile for each number of
    panels; if tiles compute the epilogue, only for one panel. If they are `wanted` they start to compile at once.
    """
    floats = x.a_dtype not in BYTES
    common = level.base if floats else level.of_products
    own = kernel.isa if kernel.isa.lanes == level.lanes and (floats or kernel.in_tile_registers) else common
    most, half = kernel.tile[1] // PANEL, 0
    narrower: Sequence[int] = (1,) if inside else range(1, most + 1)
    if not is_open(x.n):
        narrower = panel_count(x.n) % most or most,
        half = PANEL // 2 if kernel.takes_halves and 0 < x.n % PANEL <= PANEL // 2 else 0
    whole, *tails = [
        modules.load(f"{kernel.name}_{x.layout}_{columns}", kernel.build, here(kernel.level), kernel.dtypes,
                     kernel.tile[0], columns, x.layout, *inside, level=own, cache=cache,
                     wanted=wanted and len(narrower) == 1)
        for columns in (PANEL * most, *(PANEL * panels - half for panels in narrower))]
    return (kernel.name, whole.tile, tuple([tail.tile for tail in tails]),
            whole.setup if kernel.in_tile_registers else 0)


def plan_matmul(epilogue: Epilogue, x: Product, target: Target, kernel: Kernel | None = None, *,
                strip_rows: int | None = None) -> Step:
    """Plan a matmul or convolution; `epilogue` is its epilogue.

    `kernel` forces a kernel. By default `select` chooses a kernel; if sizes are open, it chooses again for each size.
    If they are not, `later(f, x)` is f(x) and `assumed(x)` is x. `strip_rows`, if given, is the number of rows of a
    block. Raises KernelError if there is no kernel.
    """
    level, cache, n = target.level, target.cache, x.n
    if x.layout == "windows" and ROWS * line_bytes(x.row_bytes, x.taps) > COPIES and level.matrix is not None:
        level = level.of_products  # the copies of a single tile would exceed L2
    sizes = x.m if strip_rows is None else smallest(x.m, strip_rows), n, x.depth
    first = kernel or select(x.dtypes, *sizes, level, layout=x.layout)
    writer = _writer(first, epilogue, assumed(x.batch * x.m * n), assumed(x.depth), level.lanes)
    second_look = load_second_look(epilogue, level, cache, paired=x.w_dtype == PAIRED)
    block = modules.load("matmul", matmul_blocks, level=level.base, cache=cache).block
    table = 0 if writer == BY_TILE else load_outputs(epilogue, level, cache)
    inside = () if writer == BY_FUNCTION else (epilogue,)
    kernels: Sequence[Kernel] = [first]
    # If tiles write outputs, only one kernel is compiled, because such a kernel takes long to compile.
    if is_open(x) and kernel is None and not inside:
        kernels = _likely(x.dtypes, tuple(map(assumed, sizes)), tuple(map(is_open, sizes)), level, x.layout)
    cut = _Blocks(*numbers(len(_Blocks._fields), _blocks, tuple([k.name for k in kernels]), x, target.threads,
                           1 if is_open(n) and inside else None, strip_rows))
    loaded: Any = zip(*[_load_functions(k, x, level, inside, len(kernels) == 1, cache) for k in kernels], strict=True)
    chosen: list[Any] = [later(getitem, of, cut.kernel) for of in loaded]
    name, tile, tails, setup = chosen
    tail = later(getitem, tails, cut.tail_panels - 1 if is_open(n) and not inside else 0)
    for function in (assumed(tile), assumed(tail)):
        function.module.want()
    shares = pieces(cut.blocks, cut.threads, target.threads)
    taps = x.taps if x.layout == "windows" else 1
    panel = (x.row_bytes + 3) // 4 * 64 * taps  # for compressed weights, the caller overwrites this word
    words = MATMUL_BLOCK.named({
        "layout": LAYOUTS.index(x.layout), "stride": x.row_bytes, "itemsize": STORAGE[x.a_dtype].itemsize,
        "panel_bytes": panel, "order": panel_count(n) * (64 + panel) + SLACK,
        "order_bytes": (x.row_bytes // 4 * 4 + 4) * taps, "batch": x.batch, "m": x.m, "n": n, "k": x.row_bytes,
        "each_rows": cut.each_rows, "each_panels": cut.each_panels, "rows": cut.rows, "panels": cut.panels,
        "tail_panels": cut.tail_panels, "tile": tile, "tail": tail, "setup": setup, "second_look": second_look,
        "functions": table, "writer": writer, "room_count": largest(1, shares), "room_bytes": cut.room_bytes,
        "kept": cut.kept})
    # AMX reads rows at half the speed if they cross cache lines: 1024 x 1024 x 1024 takes 1.2 times as long.
    lines = first.in_tile_registers and x.layout == "rows" and assumed(x.row_bytes) % 64 == 0 \
        and assumed(panel_count(n)) > first.tile[1] // PANEL
    return Step(name, block, words, cut.blocks, shares, macs=x.batch * x.m * n * x.k * x.taps, aligned=lines)


def weights_dtype(a_dtype: str, layout: ActivationLayout, k: int, taps: int, level: Level) -> str | None:
    """The dtype of constant weights; None for the default. A second look takes 8 channels of paired weights at once."""
    if STORAGE[a_dtype].itemsize > 1 or layout == "columns":
        return None
    pairs = level.paired is not None and k % 8 == 0 and 2 * taps <= MOST_TAPS
    return SORTED if level.sorts else PAIRED if pairs else None


COPIED = 0.2
"""The cycles per byte to copy activations from columns to rows (18 GB/s)."""
INTERLEAVED = 16
"""The cycles to interleave four columns of activations. In a 6 x 64 tile, all but one overlap with products."""
SPREAD = 8
"""The cycles by which a group of transposed floats exceeds a group of a row, because of broadcasts."""


def takes_columns(x: Product, level: Level) -> bool:
    """Whether to read transposed activations in place; otherwise they are first copied into rows."""
    m, n, k = map(assumed, (x.m, x.n, x.row_bytes))
    columns, rows = (select(x.dtypes, m, n, k, level, layout=r) for r in ("columns", "rows"))
    height, panels = columns.tile[0], columns.tile[1] // PANEL
    shown = max(1, INTERLEAVED - height * panels) if STORAGE[x.a_dtype].itemsize == 1 else SPREAD
    more = tile_count(height, panels, m, n) * -(-k // 4) * shown
    return estimate(columns, m, n, k) + more <= estimate(rows, m, n, k) + COPIED * m * k

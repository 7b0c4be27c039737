"""The table of matmul kernels: for each kernel the factory of its tile functions, and an estimate of its cost.

`select` keeps the kernels that fit the dtypes, the ISA level and the layout of activations, and returns the kernel with
the least estimated cost. If several cost the same, the highest level wins, then the first in the table.
"""
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from typing import Literal, TypeAlias

from graphq.base.locks import lazy_property
from graphq.base.sizes import assumed
from graphq.errors import KernelError
from graphq.kernels.jit import LINE, Functions, emits
from graphq.kernels.lanes.epilogue_code import PACKED
from graphq.kernels.lanes.epilogues import Epilogue
from graphq.kernels.lanes.expression import STORAGE
from graphq.kernels.matmul.float import floats
from graphq.kernels.matmul.matrix import matrix_setup, matrix_tile
from graphq.kernels.matmul.pack import PAIRED, PANEL, SORTED, panel_count
from graphq.kernels.matmul.vector import byte_products, vector_tile
from graphq.kernels.operands.tile_frame import MOST_ROWS
from graphq.kernels.target.arm_tiles import ByElement
from graphq.kernels.target.isa import LEVELS, level_named
from graphq.kernels.target.level import Level
from graphq.kernels.target.products import shift

ActivationLayout: TypeAlias = Literal["rows", "columns", "windows"]
Builder: TypeAlias = Callable[..., Functions]
Dtypes: TypeAlias = tuple[str, ...]
"""The dtypes of activations and packed weights."""
ACTIVATION_LAYOUTS: tuple[ActivationLayout, ...] = ("rows", "columns", "windows")


@dataclass(frozen=True, eq=False)
class Kernel:
    """A kernel multiplies `dtypes` in tiles of `tile` (rows, columns) outputs, at ISA level `level` and above.

    The rows of a tile are at most `tile_frame.MOST_ROWS`; the columns are a multiple of 16. `build(level, dtypes, rows,
    columns, layout)` makes the module of a tile function; `level` is the Level or its emulation. `columns` can be
    smaller than in `tile`: a multiple of 16, or of 8 if the kernel `takes_halves`. The module has the block function
    `tile` and, with tile registers, `setup`. If the kernel `writes_outputs`, `build` takes one more argument: an
    epilogue. `cost(kernel, m, n, k)` estimates the cycles of one core. `layouts` are the layouts of activations that
    the kernel can read (see `operands.tile_frame`).
    """

    dtypes: Dtypes
    tile: tuple[int, int]
    level: str
    build: Builder
    cost: "Callable[[Kernel, int, int, int], float]"
    layouts: tuple[ActivationLayout, ...] = ACTIVATION_LAYOUTS

    @lazy_property
    def name(self) -> str:
        """The kernel's name, derived from its fields, such as `matmul_u8s8_4x16_scalar`."""
        return f"matmul_{''.join(self.dtypes)}_{self.tile[0]}x{self.tile[1]}_{self.level}"

    @lazy_property
    def isa(self) -> Level:
        """The ISA level that the kernel needs."""
        return level_named(self.level)

    @lazy_property
    def in_tile_registers(self) -> bool:
        """Whether the accumulators are tile registers; the kernel then needs `setup`, and copies of activations."""
        return self.build is build_matrix

    @lazy_property
    def takes_halves(self) -> bool:
        """Whether a tile can end in half a panel, because a vector has half of its columns."""
        return self.writes_outputs and self.isa.lanes == PANEL // 2

    @lazy_property
    def writes_outputs(self) -> bool:
        """Whether tile functions can write the outputs of an epilogue."""
        return self.build is build_vectors


KERNELS: dict[str, Kernel] = {}


def register_kernel(build: Builder, dtypes: Sequence[Dtypes], tiles: Sequence[tuple[int, int]], level: Level,
                    cost: Callable[[Kernel, int, int, int], float],
                    layouts: tuple[ActivationLayout, ...] = ACTIVATION_LAYOUTS) -> None:
    """Register a builder as a kernel for each combination of `dtypes` and `tiles`.

    Raises KernelError if a kernel of the same name exists, if a tile has too many rows, or if it has a partial panel.
    """
    for kernel in (Kernel(d, tile, level.name, build, cost, layouts) for d in dtypes for tile in tiles):
        if kernel.name in KERNELS:
            raise KernelError(f"a second kernel named {kernel.name}")
        rows, columns = kernel.tile
        if not 0 < rows <= MOST_ROWS or columns < 1 or columns % PANEL:
            raise KernelError(f"{kernel.name}: a tile has 1 to {MOST_ROWS} rows, and columns in panels of {PANEL}")
        KERNELS[kernel.name] = kernel
    fitting.cache_clear()


def select(dtypes: Dtypes, m: int, n: int, k: int, level: Level, *, layout: ActivationLayout = "rows") -> Kernel:
    """Choose the cheapest kernel for m x n outputs over k bytes. Raises KernelError if no kernel fits."""
    sizes = assumed(m), assumed(n), assumed(k)
    return min(fitting(dtypes, level, layout), key=lambda kernel: estimate(kernel, *sizes))


@lru_cache(maxsize=4096)
def estimate(kernel: Kernel, m: int, n: int, k: int) -> float:
    """Estimate the cycles of one core for m x n outputs over k bytes."""
    return kernel.cost(kernel, m, n, k)


@cache
def fitting(dtypes: Dtypes, level: Level, layout: ActivationLayout) -> list[Kernel]:
    """The kernels that `select` chooses from, the highest level first. Raises KernelError if no kernel fits."""
    found = [x for x in KERNELS.values() if x.dtypes == dtypes and level.includes(x.isa) and layout in x.layouts]
    # a stable sort, so kernels of a level stay in the table's order
    found.sort(key=lambda x: LEVELS.index(x.isa), reverse=True)
    if not found:
        raise KernelError(f"no kernel for matmul on {' '.join(dtypes)} at ISA level {level.name}")
    return found


DTYPES = (("u8", "s8"), ("s8", "s8"))
SORTED_DTYPES = (("u8", SORTED), ("s8", SORTED))
PAIRED_DTYPES = (("u8", PAIRED), ("s8", PAIRED))
BF16 = ("bf16", "bf16")
FLOATS = (("f32", "f32"), BF16, ("f16", "f16"))
COPYING: tuple[ActivationLayout, ...] = ("rows", "windows")
"""The layouts of kernels that cannot read transposed activations; a step copies these into rows first.

Interleaving transposed activations in each tile would take at least half as long as the products. The 6 x 64 tile of
AVX-512 VNNI is the exception with at most 3 % (96 x 1024 x 384 on Zen 4). A copy also takes 3 %, more for smaller n.
"""


def tile_count(rows: int, panels: int, m: int, n: int) -> float:
    """The number of tiles of an m x n result; a narrower last tile counts as a fraction."""
    return -(-m // rows) * panel_count(n) / panels


def _stream(rows: int, panels: int, m: int) -> float:
    """Estimate the cycles to load one group of weights per panel: 20 bytes per cycle, or 30 if the weights are reused.

    Measured on Zen 4, with 1 x 1024 x 1024 and with tiles of 2 x 64. All integer kernels use this estimate, so AMX
    gains nothing for a single row.
    """
    return panels * 64 / (20 if m <= rows else 30)


def _estimated_cycles(kernel: Kernel, m: int, n: int, k: int, parts: int, group: Callable[[int, int], float]) -> float:
    """Estimate cycles. `group(rows, panels)` returns the cycles of a tile of `panels` panels for four bytes of k.

    The estimate adds 30 cycles per tile, 9 per row of a tile, and 3 per vector of output (fitted on Zen 4).
    """
    rows, panels = kernel.tile[0], kernel.tile[1] // PANEL
    whole, rest = divmod(panel_count(n), panels)

    def cycles(panels: int) -> float:
        return -(-k // 4) * group(rows, panels) + 30 + rows * (9 + 3 * panels * parts)

    return -(-m // rows) * (whole * cycles(panels) + (cycles(rest) if rest else 0))


def estimate_dots(kernel: Kernel, m: int, n: int, k: int, *, parts: int, how: ByElement | None = None,
                  flips: bool = False) -> float:
    """Estimate cycles. Four bytes of k take as long as the slowest of products, loads and weights, but at least 4.

    A panel is one vector of 64 bytes, or two `parts` of 32 bytes at twice the rate. Fitted on Zen 4, for four bytes of
    k: 24 cycles for tiles of 6 x 64, 13 for 1 x 64. Products by element, or of two rows, have an estimate of their own.
    """
    return _estimated_cycles(kernel, m, n, k, parts, lambda rows, panels: max(
        max(rows * panels, rows / parts + panels, 4) if how is None else how.cycles(rows, panels, flips),
        _stream(rows, panels, m)))


def estimate_widened(kernel: Kernel, m: int, n: int, k: int, *, parts: int, rate: float) -> float:
    """Estimate cycles, with `rate` operations per cycle.

    For four bytes of k, a row of a tile takes 2 operations, plus 4 for each part of a panel. To widen a part of the
    weights takes 3. Fitted on a Xeon: 20 cycles for 6 x 16 on AVX2 (rate 3.2), 51 for 12 x 32 on AVX-512 (rate 2.4).
    """
    return _estimated_cycles(kernel, m, n, k, parts, lambda rows, panels: max(
        (4 * rows * panels * parts + 3 * panels * parts + 2 * rows) / rate, 4, _stream(rows, panels, m)))


def estimate_matrix(kernel: Kernel, m: int, n: int, k: int) -> float:
    """Estimate cycles: 16 to multiply 16 x 16 x 64, and 8 to load a tile register (Intel's tables).

    Fitted on a Xeon (MobileNetV2, PP-OCR): each tile takes 250 cycles more. Each vector of output takes 8, or 5 if four
    vectors are packed together. If k is not a multiple of 64, the copies take 4 cycles per row.
    """
    rows, most = kernel.tile[0], kernel.tile[1] // PANEL
    whole, rest = divmod(panel_count(n), most)

    def cycles(panels: int) -> float:
        step = max(rows * panels, 8 * (rows // 16 + panels), 16 * _stream(rows, panels, m))
        copied = 4 * rows if k % 64 else 0
        return -(-k // 64) * step + 250 + copied + rows * panels * (5 if panels == PACKED else 8)

    return -(-m // rows) * (whole * cycles(most) + (cycles(rest) if rest else 0)) + 300


def estimate_floats(kernel: Kernel, m: int, n: int, k: int, *, parts: int, pairs: bool = False,
                    rate: float = 1) -> float:
    """Estimate cycles: the larger of the cycles for the products and the cycles to load the weights.

    `rate` products of 16 columns take one cycle; with `pairs`, twice as many. A tile takes at least four
    cycles per element of k, because each product waits for the one before it. Fitted on Zen 4, for AVX2 and AVX-512,
    f32 and bf16: weights arrive at 24 bytes per cycle, or 28 if the weights are reused.
    """
    rows, panels = kernel.tile[0], kernel.tile[1] // PANEL
    elements = 1 if pairs else 4 // STORAGE[kernel.dtypes[0]].itemsize
    group = max(elements * max(rows * panels, 4) / rate + 0.5, panels * LINE / (24 if m <= rows else 28))
    return tile_count(rows, panels, m, n) * (-(-k // 4) * group + 30 + 3 * rows * panels * parts)


def build_vectors(level: Level, dtypes: Dtypes, rows: int, columns: int, layout: str,
                  epilogue: Epilogue | None = None) -> Functions:
    """Build tiles of the products of a level's vectors."""
    products = floats(dtypes[0], level) if dtypes in FLOATS else byte_products(level, *dtypes)
    return Functions(speed=3, tile=emits(vector_tile, rows=rows, columns=columns, products=products, layout=layout,
                                         epilogue=epilogue))


def build_matrix(level: Level, dtypes: Dtypes, rows: int, columns: int, layout: str) -> Functions:
    """Build tiles of a level's tile registers."""
    assert level.matrix is not None
    emitted = partial(emits, matrix=level.matrix, row_tiles=rows // 16, emulated=level.emulated)
    tile = emitted(matrix_tile, panels=columns // PANEL, a_dtype=dtypes[0], layout=layout)
    return Functions(speed=3, tile=tile, setup=emitted(matrix_setup))


def _register(level: Level) -> None:
    """Register the kernels of the capabilities that a level has and the level below it lacks."""
    parts = PANEL // level.lanes
    for dtypes, capability in ((DTYPES, "dot4"), (DTYPES, "pairs"), (SORTED_DTYPES, "saturating")):
        how = level.own(capability)
        if how is not None and (level.dot4 is None or capability == "dot4"):
            for a_dtype, w_dtype in dtypes:
                flips, sizes = shift(a_dtype, how.signed) != 0, how.tiles.sizes
                cost: Callable[..., float] = partial(estimate_dots, parts=parts)
                if capability != "dot4":
                    cost = partial(estimate_widened, parts=parts, rate=how.tiles.rate)
                elif level.by_element:
                    cost = partial(estimate_dots, parts=parts, how=level.by_element, flips=flips)
                    below = None if level.extends is None else level.extends.dot4
                    if below is not None and flips and shift(a_dtype, below.signed) == 0:
                        sizes = tuple(x for x in sizes if x not in below.tiles.sizes)  # without flips, these are faster
                register_kernel(build_vectors, [(a_dtype, w_dtype)], how.tiles.columns, level, cost)
                register_kernel(build_vectors, [(a_dtype, w_dtype)], sizes, level, cost, COPYING)
    for a_dtype, of in (level.own("paired") or {}).items():
        register_kernel(build_vectors, [(a_dtype, PAIRED)], of.product.tiles.sizes, level,
                        partial(estimate_dots, parts=parts, how=of), COPYING)
    if (fma := level.own("fma")) is not None:
        for floats_of, tiles in ((FLOATS[:1], fma.f32), (FLOATS[1:], fma.narrow)):
            register_kernel(build_vectors, floats_of, tiles.sizes, level,
                            partial(estimate_floats, parts=parts, rate=tiles.rate))
    if (bf16 := level.own("bf16")) is not None:
        register_kernel(build_vectors, (BF16,), bf16.tiles.sizes, level,
                        partial(estimate_floats, parts=parts, pairs=True))
    if (matrix := level.own("matrix")) is not None:
        register_kernel(build_matrix, DTYPES, matrix.tiles.sizes, level, estimate_matrix, COPYING)


for _level in LEVELS:
    _register(_level)

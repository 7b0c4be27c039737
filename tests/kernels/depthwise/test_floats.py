"""The depthwise kernel of floats at every level: the bits of `float_sums` over the taps of each channel."""
import numpy as np
import pytest
from all_pairs import all_pairs
from geometries import GEOMETRIES
from guarded_memory import guarded
from levels import WIDTHS

from graphq.kernels.depthwise import floats
from graphq.kernels.lanes.epilogues import Epilogue
from graphq.kernels.lanes.expression import STORAGE, acc
from graphq.kernels.numbers.float_sums import float_sums
from graphq.kernels.operands.windows import windows
from graphq.kernels.pixels.blocks import Pixels
from graphq.kernels.target import isa
from graphq.plan.plan import Target

MORE = {**GEOMETRIES, "5x5/3": ((12, 17), (5, 5), (3, 3), (1, 1), ((2, 2), (2, 2)), (4, 6)),
        "runs of taps": ((7, 20), (3, 10), (1, 1), (1, 1), ((1, 1), (0, 0)), (7, 11)),
        "taps further apart than pixels": ((7, 23), (2, 3), (1, 2), (1, 3), ((0, 0), (1, 1)), (6, 10)),
        "more taps than a chain": ((9, 300), (2, 140), (1, 1), (1, 1), ((0, 0), (3, 2)), (8, 66)),
        "one output": ((3, 3), (3, 3), (1, 1), (1, 1), ((0, 0), (0, 0)), (1, 1))}


def run(guarded, level, x, w, dtype, geometry, threads=1):
    """The sums of images [n, spatial..., channels] and weights [taps, channels]; buffers are guarded."""
    chosen = next(one for one in isa.available() if one.name == level)
    n, channels = x.shape[0], x.shape[-1]
    view = windows(*geometry, channels * x.itemsize)
    _, _, (*_, stride), (*_, dilation), *_ = geometry
    tile = floats.choose(channels, view, stride, dilation, chosen.lanes)
    block = guarded(view.block(np.zeros(channels, x.dtype), floats.table(view, tile)))
    source, out = guarded(x), guarded(np.full((n, view.pixels, channels), np.nan, np.float32))
    packed = guarded(floats.pack(w, tile.chunk))
    assert packed.nbytes == floats.packed_bytes(*w.shape, tile.chunk)
    pixels = Pixels(dtype, view, channels, n, view.pixels)
    step = floats.plan_depthwise(Epilogue(acc("f32"), "f32"), pixels, tile, Target(chosen, threads))
    table = np.arange(n, dtype=np.int64) * out[0].nbytes if n else np.zeros(1, np.int64)
    step.run(step.arguments({"images": source.ctypes.data, "windows": block.ctypes.data,
                             "weights": packed.ctypes.data}, [(out.ctypes.data, table.ctypes.data, 4 * channels)]))
    return np.array(out), view


def expected(x, w, view):
    """The sums, every channel a product of its own."""
    rows = view.gather(x, 0)  # [n, pixels, taps, channels]
    return float_sums(rows.transpose(3, 0, 1, 2), w.T[:, None, :, None])[..., 0].transpose(1, 2, 0)


OPERANDS = [("f32", 3), ("f32", 8), ("f32", 21), ("f32", 64), ("bf16", 5), ("f16", 40)]


@pytest.mark.parametrize("geometry, operands, width", all_pairs(MORE, OPERANDS, WIDTHS), indirect=["width"])
def test_sums(width, geometry, operands):
    dtype, channels = operands
    rng = np.random.default_rng(channels)
    sizes, kernel, *_ = MORE[geometry]
    x, w = (rng.standard_normal(s, np.float32).astype(STORAGE[dtype]) for s in ((2, *sizes, channels),
                                                                               (np.prod(kernel), channels)))
    got, view = run(guarded, width, x, w, dtype, MORE[geometry], threads=2)
    assert got.tobytes() == expected(x, w, view).tobytes()


@pytest.mark.parametrize("channels", [600, 1100, 2100, 4096])
def test_tiles_of_many_channels(width, channels):
    rng = np.random.default_rng(channels)
    x, w = rng.standard_normal((1, 5, 7, channels), np.float32), rng.standard_normal((9, channels), np.float32)
    got, view = run(guarded, width, x, w, "f32", GEOMETRIES["3x3"])
    assert got.tobytes() == expected(x, w, view).tobytes()


def test_a_run_of_taps_does_not_cross_the_end_of_a_chain(width):
    geometry = (62, 9), (60, 5), (1, 1), (1, 1), ((0, 0), (0, 0)), (3, 5)
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((1, 62, 9, 8), np.float32), rng.standard_normal((300, 8), np.float32)
    got, view = run(guarded, width, x, w, "f32", geometry)
    assert got.tobytes() == expected(x, w, view).tobytes()


def test_sums_of_underflowing_products_are_no_negative_zero(width):
    x, w = np.full((1, 5, 7, 17), 1e-30, np.float32), np.full((9, 17), -1e-30, np.float32)
    got, _ = run(guarded, width, x, w, "f32", GEOMETRIES["3x3"])
    assert not got.any() and not np.signbit(got).any()


def test_no_images(width):
    got, _ = run(guarded, width, np.zeros((0, 5, 7, 4), np.float32), np.ones((9, 4), np.float32), "f32",
                 GEOMETRIES["3x3"])
    assert got.shape == (0, 35, 4)

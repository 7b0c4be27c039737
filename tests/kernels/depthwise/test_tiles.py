"""The depthwise kernels of integers at every level against sums in NumPy."""
import numpy as np
import pytest
from geometries import GEOMETRIES
from guarded_memory import guarded
from levels import at_each_width, pairs_at_each_width

from graphq.kernels.conv.depthwise import plan_depthwise
from graphq.kernels.depthwise import packing
from graphq.kernels.lanes.epilogues import Epilogue
from graphq.kernels.lanes.expression import STORAGE, acc
from graphq.kernels.operands.windows import windows
from graphq.kernels.pixels.blocks import Pixels
from graphq.kernels.target import isa
from graphq.plan.plan import Target


def run(guarded, level, x, w, zp, geometry, threads=1):
    """The raw sums of images [n, spatial..., channels] and weights [taps, output channels]; buffers are guarded."""
    chosen = next(one for one in isa.available() if one.name == level)
    n, channels = x.shape[0], w.shape[1]
    view = windows(*geometry, x.shape[-1])
    dtype = "u8" if x.dtype == np.uint8 else "s8"
    block = view.block(np.full(x.shape[-1], zp, x.dtype))
    source, out = guarded(x), guarded(np.full((n, view.pixels, channels), -1, np.int32))
    _, _, strides, dilations, *_ = geometry
    layout = packing.choose(channels, view, w, chosen, stride=strides[-1], dilation=dilations[-1])
    packed = guarded(packing.pack(w, layout))
    pixels = Pixels(dtype, view, channels, n, view.pixels, channels // x.shape[-1])
    step = plan_depthwise(Epilogue(acc(), "s32"), pixels, layout, Target(chosen, threads))
    table = np.arange(n, dtype=np.int64) * out[0].nbytes if n else np.zeros(1, np.int64)
    step.run(step.arguments({"images": source.ctypes.data, "windows": block.ctypes.data,
                             "weights": packed.ctypes.data}, [(out.ctypes.data, table.ctypes.data, 4 * channels)]))
    return np.array(out), view


def numbers(rng, shape, dtype):
    info = np.iinfo(STORAGE[dtype])
    return rng.integers(info.min, info.max + 1, shape).astype(STORAGE[dtype])


WIDE = [("u8", 3), ("s8", 17), ("u8", 40), ("s8", 96)]


@pytest.mark.parametrize("geometry, operands, level", pairs_at_each_width(GEOMETRIES, WIDE), indirect=["level"])
def test_sums_are_exact(level, geometry, operands):
    dtype, channels = operands
    rng = np.random.default_rng(channels)
    sizes, kernel, *_ = GEOMETRIES[geometry]
    x, w = numbers(rng, (2, *sizes, channels), dtype), rng.integers(-255, 256, (np.prod(kernel), channels))
    got, view = run(guarded, level, x, w, 7, GEOMETRIES[geometry], threads=2)
    expected = (view.gather(x, 7).astype(np.int64) * w).sum(axis=2)
    assert (got == expected).all()


@pytest.mark.parametrize("case, level", at_each_width([
    (2, "u8", 8, True), (2, "s8", 72, False), (4, "u8", 64, False), (8, "s8", 64, True)]), indirect=["level"])
def test_several_output_channels_of_one(level, case):
    """With weights of more than 8 bits, and of 8, which CPUs with vpdpbusd take four at a time."""
    multiplier, dtype, channels, wide = case
    rng = np.random.default_rng(channels)
    geometry = GEOMETRIES["3x3"]
    x = numbers(rng, (2, *geometry[0], channels // multiplier), dtype)
    w = rng.integers(-255, 256, (9, channels)) if wide else numbers(rng, (9, channels), "s8").astype(int)
    got, view = run(guarded, level, x, w, 7, geometry)
    assert (got == (view.gather(x, 7).astype(np.int64).repeat(multiplier, axis=3) * w).sum(axis=2)).all()


LINES = {"5x5": ((6, 11), (5, 5), (1, 1), (1, 1), ((2, 2), (2, 2)), (6, 11)),
         "3x3/2, a long line": ((5, 19), (3, 3), (2, 2), (1, 1), ((1, 1), (1, 1)), (3, 10)),
         "1-D, dilated": ((23,), (3,), (1,), (4,), ((4, 4),), (23,))}


BYTES = [("u8", 64), ("s8", 150), ("s8", 33), ("u8", 16)]


@pytest.mark.parametrize("geometry, operands, level", pairs_at_each_width({**GEOMETRIES, **LINES}, BYTES),
                         indirect=["level"])
def test_sums_of_weights_of_8_bits_are_exact(level, geometry, operands):
    """Those that CPUs with vpdpbusd multiply by it, several pixels at a time."""
    dtype, channels = operands
    rng = np.random.default_rng(channels)
    geometry = {**GEOMETRIES, **LINES}[geometry]
    sizes, kernel, *_ = geometry
    x, w = numbers(rng, (2, *sizes, channels), dtype), numbers(rng, (np.prod(kernel), channels), "s8").astype(int)
    got, view = run(guarded, level, x, w, 7, geometry, threads=2)
    assert (got == (view.gather(x, 7).astype(np.int64) * w).sum(axis=2)).all()


@pytest.mark.parametrize("dtype", ["u8", "s8"])
@pytest.mark.parametrize("channels, weight", [(33, -255), (64, -128)])
def test_extreme_values(level, dtype, channels, weight):
    info, geometry = np.iinfo(STORAGE[dtype]), GEOMETRIES["3x3"]
    x = np.full((1, 5, 7, channels), info.max if dtype == "u8" else info.min, STORAGE[dtype])
    w = np.full((9, channels), weight)
    got, view = run(guarded, level, x, w, 0, geometry)
    assert (got == (view.gather(x, 0).astype(np.int64) * w).sum(axis=2)).all()


def test_no_images(level):
    got, _ = run(guarded, level, np.zeros((0, 5, 7, 4), np.uint8), np.ones((9, 4), int), 0, GEOMETRIES["3x3"])
    assert got.shape == (0, 35, 4)

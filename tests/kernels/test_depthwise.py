"""The depthwise kernel at every level against sums in NumPy."""
import numpy as np
import pytest
from geometries import GEOMETRIES
from guarded_memory import guarded

from graphq.kernels import depthwise, isa, pixels
from graphq.kernels.expression import STORAGE, acc
from graphq.kernels.stores import Store
from graphq.kernels.windows import windows


def run(guarded, level, x, w, zp, geometry, threads=1):
    """The raw sums of images [n, spatial..., channels] and weights [taps, channels]; buffers are guarded."""
    chosen = next(one for one in isa.available() if one.name == level)
    n, channels = x.shape[0], x.shape[-1]
    view = windows(*geometry, channels)
    dtype = "u8" if x.dtype == np.uint8 else "s8"
    block = view.block(np.full(channels, zp, x.dtype))
    source, out = guarded(x), guarded(np.full((n, view.pixels, channels), -1, np.int32))
    packed = guarded(depthwise.pack(w, chosen.lanes))
    step = depthwise.plan_depthwise(Store(acc(), "s32"), dtype, view, channels, n, view.pixels, chosen,
                                    threads=threads)
    table = np.arange(n, dtype=np.int64) * out[0].nbytes if n else np.zeros(1, np.int64)
    step.run(step.arguments({pixels.IMAGES: source.ctypes.data, pixels.WINDOWS: block.ctypes.data,
                             pixels.WEIGHTS: packed.ctypes.data}, [(out.ctypes.data, table.ctypes.data, 4 * channels)]))
    return np.array(out), view


def numbers(rng, shape, dtype):
    info = np.iinfo(STORAGE[dtype])
    return rng.integers(info.min, info.max + 1, shape).astype(STORAGE[dtype])


@pytest.mark.parametrize("geometry", GEOMETRIES)
@pytest.mark.parametrize("dtype,channels", [("u8", 3), ("s8", 17), ("u8", 40), ("s8", 96)])
def test_sums_are_exact(level, geometry, dtype, channels):
    rng = np.random.default_rng(channels)
    sizes, kernel, *_ = GEOMETRIES[geometry]
    x, w = numbers(rng, (2, *sizes, channels), dtype), rng.integers(-255, 256, (np.prod(kernel), channels))
    got, view = run(guarded, level, x, w, 7, GEOMETRIES[geometry], threads=2)
    expected = (view.gather(x, 7).astype(np.int64) * w).sum(axis=2)
    assert (got == expected).all()


@pytest.mark.parametrize("dtype", ["u8", "s8"])
def test_extreme_values(level, dtype):
    info, geometry = np.iinfo(STORAGE[dtype]), GEOMETRIES["3x3"]
    x = np.full((1, 5, 7, 33), info.max if dtype == "u8" else info.min, STORAGE[dtype])
    w = np.full((9, 33), -255)
    got, view = run(guarded, level, x, w, 0, geometry)
    assert (got == (view.gather(x, 0).astype(np.int64) * w).sum(axis=2)).all()


def test_no_images(level):
    got, _ = run(guarded, level, np.zeros((0, 5, 7, 4), np.uint8), np.ones((9, 4), int), 0, GEOMETRIES["3x3"])
    assert got.shape == (0, 35, 4)


@pytest.mark.parametrize("lanes", [1, 8, 16])
@pytest.mark.parametrize("taps,channels", [(1, 1), (4, 40), (9, 33), (9, 31)])
def test_packed_weights_begin_with_column_sums(lanes, taps, channels):
    w = np.random.default_rng(0).integers(-255, 256, (taps, channels))
    packed = depthwise.pack(w, lanes)
    assert packed.nbytes == depthwise.packed_bytes(taps, channels, lanes)
    assert (packed[:4 * channels].view(np.int32) == w.sum(axis=0)).all()


def test_what_fits():
    assert depthwise.fits(49, 512, 1) and depthwise.fits(49, 512, 8) and not depthwise.fits(49, 512, 3)
    assert not depthwise.fits(49, 5000, 1) and not depthwise.fits(1025, 3, 1)

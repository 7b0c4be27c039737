"""DFT, MelWeightMatrix and operators that move elements, against the specification's formulas, for random cases."""
import itertools
import math

import numpy as np
import pytest
from one_onnx_node import run

rng = np.random.default_rng(66)
CASES = 6
"""Random cases per operator."""


def transformed(x, axis, length, inverse, onesided):
    """The sum of the specification, in f64; shorter signals are padded by zeros."""
    signal = np.moveaxis(x.astype(np.float64), axis, 0)
    signal = signal[..., 0] + (1j * signal[..., 1] if x.shape[-1] == 2 else 0)
    bins = length // 2 + 1 if onesided else length
    used = signal[:bins if inverse else length]
    if inverse and onesided:  # bin n - k is the conjugate of bin k
        whole = np.zeros((length, *used.shape[1:]), complex)
        whole[:len(used)] = used
        for k in range(bins, length):
            whole[k] = whole[length - k].conj()
        whole[0] = whole[0].real
        whole[length // 2] = whole[length // 2].real if length % 2 == 0 else whole[length // 2]
        used = whole
    k = np.arange(length if inverse else bins)[:, None] * np.arange(len(used))
    table = np.exp((2j if inverse else -2j) * np.pi * k / length) / (length if inverse else 1)
    y = np.moveaxis(np.tensordot(table, used, 1), 0, axis)
    return y.real[..., None] if inverse and onesided else np.stack([y.real, y.imag], -1)


@pytest.mark.parametrize("inverse, onesided", [(0, 0), (1, 0), (0, 1), (1, 1)])
def test_dft(inverse, onesided):
    for _ in range(CASES):
        shape = rng.integers(2, 9, int(rng.integers(1, 4))).tolist()
        parts = 2 if inverse else 1 if onesided else int(rng.integers(1, 3))
        x = rng.standard_normal((*shape, parts)).astype(np.float32)
        axis, length = int(rng.integers(0, len(shape))), int(rng.integers(2, 12))
        got = run("DFT", x, np.int64(length), np.int64(axis), opset=20, native=not inverse or bool(onesided),
                  inverse=inverse, onesided=onesided)
        np.testing.assert_allclose(got, transformed(x, axis, length, inverse, onesided), atol=1e-5)


def test_compress():
    for _ in range(CASES):
        x = rng.standard_normal(rng.integers(1, 5, 3)).astype(np.float32)
        for axis in (None, 0, 1, -1):
            keep = rng.random(int(rng.integers(0, (x.size if axis is None else x.shape[axis]) + 1))) < 0.5
            attrs = {} if axis is None else {"axis": axis}
            want = np.compress(keep, x, axis)
            np.testing.assert_array_equal(run("Compress", x, keep, opset=11, **attrs), want)
            np.testing.assert_array_equal(run("Compress", x, keep, opset=11, open_inputs=(1,), **attrs), want)


def test_eye_like():
    for _ in range(CASES):
        x, k = np.zeros(rng.integers(0, 6, 2), np.int32), int(rng.integers(-6, 7))
        want = [[float(j - i == k) for j in range(x.shape[1])] for i in range(x.shape[0])]
        got = run("EyeLike", x, opset=9, k=k, dtype=1)
        assert got.dtype == np.float32 and got.shape == x.shape and got.tolist() == want


def test_reverse_sequence():
    for _ in range(CASES):
        time = int(rng.integers(0, 2))
        x = rng.standard_normal(rng.integers(1, 6, int(rng.integers(2, 5)))).astype(np.float16)
        lengths = rng.integers(0, x.shape[time] + 1, x.shape[1 - time])
        want = x.copy()
        for b, n in enumerate(lengths):
            rows = (b, slice(n)) if time else (slice(n), b)
            want[rows] = x[rows][::-1]
        got = run("ReverseSequence", x, lengths, opset=10, open_inputs=(1,), batch_axis=1 - time, time_axis=time)
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("axes", [1, 2, 3])
def test_col2im(axes):
    """Each column is added to the pixels of its block; pixels outside of the image are left out."""
    for dtype in ("f4", "f8", "f2", "u1", "i4", "i8"):
        block, strides, dilations, begin, end = (rng.integers(*ends, axes) for ends in ((1, 4), (1, 4), (1, 3), (0, 3),
                                                                                       (0, 3)))
        image = (block - 1) * dilations + 1 + rng.integers(0, 4, axes)
        counts = (image + begin + end - (block - 1) * dilations - 1) // strides + 1
        x = rng.integers(0, 4, (2, 3 * block.prod(), counts.prod())).astype(dtype)
        want = np.zeros((2, 3, *image), dtype)
        for (j, place), (w, window) in itertools.product(enumerate(np.ndindex(*block)), enumerate(np.ndindex(*counts))):
            pixel = np.array(window) * strides + np.array(place) * dilations - begin
            if ((pixel >= 0) & (pixel < image)).all():
                want[(slice(None), slice(None), *pixel)] += x.reshape(2, 3, -1, x.shape[2])[:, :, j, w]
        got = run("Col2Im", x, image, block, opset=18, strides=strides.tolist(), dilations=dilations.tolist(),
                  pads=[*begin.tolist(), *end.tolist()])
        assert got.dtype == want.dtype
        np.testing.assert_array_equal(got, want)


def test_max_unpool():
    """Elements go to their places in an image, whose size follows from the pool; `output_shape` adds zeros."""
    for axes in (1, 1, 2, 2, 3, 3):
        kernel, strides, pads = rng.integers(1, 4, axes), rng.integers(1, 4, axes), rng.integers(0, 2, 2 * axes)
        shape = [2, 3, *rng.integers(3, 6, axes)]
        image = (np.array(shape[2:]) - 1) * strides + kernel - pads[:axes] - pads[axes:]
        x = rng.standard_normal(shape).astype(np.float32)
        places = rng.integers(0, 6 * image.prod(), shape)
        want = np.zeros(6 * image.prod(), np.float32)
        for place, value in zip(places.ravel(), x.ravel(), strict=True):
            want[place] = value
        attrs = {"opset": 11, "kernel_shape": kernel.tolist(), "strides": strides.tolist(), "pads": pads.tolist()}
        got = run("MaxUnpool", x, places, open_inputs=(1,), **attrs)
        np.testing.assert_array_equal(got, want.reshape(2, 3, *image))
        more = [2, 3, *(image + rng.integers(0, 3, axes))]
        wide = np.zeros(more, np.float32)
        wide[tuple(map(slice, (2, 3, *image)))] = got
        np.testing.assert_array_equal(run("MaxUnpool", x, places, np.int64(more), **attrs), wide)


def test_mel_weight_matrix():
    """Triangles between bins that are equally far apart on the mel scale; operands known at run time run alike."""
    for code, dtype in [(1, np.float32), (11, np.float64), (6, np.int32)] * 2:
        bands, length, rate = (int(rng.integers(*ends)) for ends in ((1, 30), (2, 200), (1000, 48000)))
        low = np.float32(rng.uniform(0, rate / 4))
        high = np.float32(rng.uniform(low, rate / 2 * length / (length + 1)))
        first, last = (2595 * math.log10(1 + float(hertz) / 700) for hertz in (low, high))
        mels = [first + k * (last - first) / (bands + 2) for k in range(bands + 2)]
        edges = [math.floor((length + 1) * 700 * (10 ** (mel / 2595) - 1) / rate) for mel in mels]
        want = np.zeros((length // 2 + 1, bands))
        for (j, k), _ in np.ndenumerate(want):
            left, peak, right = edges[k:k + 3]
            if left <= j <= peak:
                want[j, k] = (j - left) / (peak - left) if peak > left else 1
            if peak <= j < right:
                want[j, k] = (right - j) / (right - peak)
        operands = (np.int64(bands), np.int64(length), np.int64(rate), low, high)
        got = run("MelWeightMatrix", *operands, opset=17, native=False, open_inputs=(1, 2, 3, 4), output_datatype=code)
        assert got.dtype == dtype
        np.testing.assert_array_equal(got, want.astype(dtype))

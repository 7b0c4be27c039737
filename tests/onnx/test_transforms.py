"""DFT and operators that move elements, against the specification's formulas, for random cases."""

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

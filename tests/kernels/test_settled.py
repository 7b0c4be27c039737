"""The size of weights, from which bands around ties are estimated."""
import numpy as np
import pytest

from graphq.kernels import settled


@pytest.mark.parametrize("part", (1, 100, 2**16))
@pytest.mark.parametrize("shape, zps", [((1, 40, 7), [3]), ((1, 40, 7), range(-3, 4)), ((4, 9, 5, 6), None),
                                         ((3, 1, 1), [0])])
def test_rms_of_columns(shape, zps, part, monkeypatch):
    monkeypatch.setattr(settled, "PART", part)
    w = np.random.default_rng(0).integers(-128, 128, shape).astype(np.int8)
    zw = np.arange(24).reshape(4, 1, 1, 6) if zps is None else np.array(zps)
    wide = (w.astype(np.int64) - zw).reshape(shape[0], -1, shape[-1])
    assert np.array_equal(settled.rms(w, zw), np.sqrt((wide**2).mean(axis=1)).ravel())


def test_rms_of_no_weights():
    assert settled.rms(np.zeros((1, 0, 3), np.int8), np.zeros(1)).size == 0

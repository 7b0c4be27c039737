"""The importer of STFT: the Fourier transforms of frames as a convolution."""
from __future__ import annotations

import numpy as np

from graphq.dtypes import f32
from graphq.onnx.importers.importer import Call, Outputs, imports
from graphq.onnx.importers.shape import known

MOST = 1 << 24
"""The most weights of the convolution; larger transforms are left to a fast Fourier transform."""


@imports("STFT")
def stft(c: Call) -> Outputs:
    """Import STFT: each frame times the window's cosines and sines, as a convolution whose stride is the frame step.

    It takes f32, real or complex. It sums products instead of using a fast transform, so results agree within the
    rounding errors of f32.
    """
    x, g = c.input(0), c.graph
    if x.dtype != f32:
        c.refuse(f"the signal must be f32, got {x.type}: ONNX's reference has other lengths than its shape inference")
    if x.shape is not None and len(x.shape) == 2:  # ONNX Runtime accepts signals without the last dimension
        x = g.static_reshape(x, shape=[0, -1, 1], special_zero=True)
    if x.shape is None or len(x.shape) != 3 or x.shape[2] is None or not (c.has(2) or c.has(3)):
        return None
    length = int(known(c, 3).reshape(())) if c.has(3) else known(c, 2).size
    bins = length // 2 + 1 if c.attr("onesided", 1) else length
    if length < 1 or 2 * bins * length > MOST:
        return None
    window = known(c, 2).astype(np.float64) if c.has(2) else np.ones(length)
    if window.shape != (length,):
        c.refuse(f"the window must have the frame's length {length}, got {list(window.shape)}")
    angle = 2 * np.pi / length * (np.outer(np.arange(bins), np.arange(length)) % length)
    cosines, sines = np.cos(angle) * window, np.sin(angle) * window
    real, imaginary = (cosines, -sines), (sines, cosines)  # of a sample's real and of its imaginary part
    weights = np.stack([np.concatenate(part) for part in (real, imaginary)[:x.shape[2]]], axis=1)
    frames = g.convolution(g.static_transpose(x, order=[0, 2, 1]), g.constant(weights.astype(np.float32)),
                           strides=[int(known(c, 1).reshape(()))], pads_begin=[0], pads_end=[0], dilations=[1],
                           data_format="NCX", weights_format="OIX")
    rows = g.static_reshape(g.static_transpose(frames, order=[0, 2, 1]), shape=[0, 0, 2, bins], special_zero=True)
    return g.static_transpose(rows, order=[0, 1, 3, 2])

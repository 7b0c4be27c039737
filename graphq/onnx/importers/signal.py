"""Importers of transforms of signals: STFT as a convolution, DFT as a matrix product, and MelWeightMatrix."""
import math

import numpy as np

from graphq.dtypes import f32
from graphq.onnx.importers.importer import Call, Outputs, imports
from graphq.onnx.importers.shape import limited
from graphq.onnx.protos.tensors import dtype_of
from graphq.ops.rules import normal_axis

MOST = 1 << 24
"""The largest number of weights that stand for a transform; ONNX's reference runs larger transforms."""


@imports("STFT")
def stft(c: Call) -> Outputs:
    """Import STFT of real or complex f32 signals as a convolution with the frame step as stride."""
    x, g = c.input(0), c.graph
    if x.dtype != f32:
        c.refuse(f"the signal must be f32, got {x.type}: ONNX's reference and shape inference disagree on other dtypes")
    if x.shape is not None and len(x.shape) == 2:  # a signal without its last dimension, as ONNX Runtime accepts
        x = g.static_reshape(x, shape=[0, -1, 1], special_zero=True)
    if x.shape is None or len(x.shape) != 3 or x.shape[2] is None or not (c.has(2) or c.has(3)):
        return None
    length = int(c.array(3).reshape(())) if c.has(3) else c.array(2).size
    if x.shape[1] is not None and length > x.shape[1]:
        c.refuse(f"a frame of {length} samples is longer than the signal {x.type}")
    bins = length // 2 + 1 if c.attr("onesided", 1) else length
    if length < 1 or 2 * bins * length > MOST:
        return None
    window = c.array(2).astype(np.float64) if c.has(2) else np.ones(length)
    if window.shape != (length,):
        c.refuse(f"the window must have the frame's length {length}, got {list(window.shape)}")
    angle = 2 * np.pi / length * (np.outer(np.arange(bins), np.arange(length)) % length)
    cosines, sines = np.cos(angle) * window, np.sin(angle) * window
    real, imaginary = (cosines, -sines), (sines, cosines)  # weights for the real and the imaginary part of a sample
    weights = np.stack([np.concatenate(part) for part in (real, imaginary)[:x.shape[2]]], axis=1)
    frames = g.convolution(g.static_transpose(x, order=[0, 2, 1]), g.constant(weights.astype(np.float32)),
                           strides=[int(c.array(1).reshape(()))], pads_begin=[0], pads_end=[0], dilations=[1],
                           data_format="NCX", weights_format="OIX")
    rows = g.static_reshape(g.static_transpose(frames, order=[0, 2, 1]), shape=[0, 0, 2, bins], special_zero=True)
    return g.static_transpose(rows, order=[0, 1, 3, 2])


@imports("DFT")
def dft(c: Call) -> Outputs:
    """Import DFT of f32 as a matrix product with cosines and sines.

    The inverse of one-sided spectra counts each bin twice, once for its mirror image, except if it mirrors itself.
    """
    x, g, inverse, half = c.input(0), c.graph, c.attr("inverse", 0), c.attr("onesided", 0)
    axis = normal_axis(c.attr("axis", 1) if c.version < 20 else c.numbers(2)[0] if c.has(2) else -2, x.type.dims)
    dims = list(x.type.dims)
    size, parts = dims[axis], dims[-1]
    length = c.numbers(1)[0] if c.has(1) else 2 * (size - 1) if inverse and half else size
    bins = length // 2 + 1 if half else length
    used, outputs = min(size, bins if inverse else length), length if inverse else bins
    if x.dtype != f32 or axis == len(dims) - 1 or 4 * used * outputs > MOST or inverse and not half:
        return None  # sums in f32 leave more than the node tests allow where an inverse transform has zeros
    angle = 2 * np.pi / length * (np.outer(np.arange(used), np.arange(outputs)) % length)
    cosines, sines = np.cos(angle), -np.sin(angle) if inverse else np.sin(angle)
    table = np.stack([np.stack([cosines, -sines], -1), np.stack([sines, cosines], -1)], 1)[:, :parts]
    if inverse:
        table /= length
    if inverse and half:
        k = np.arange(used)
        table = np.where(2 * k % length == 0, 1, 2).reshape(-1, 1, 1, 1) * table[..., :1]
    order = [k for k in range(len(dims) - 1) if k != axis]
    rows = g.slice(g.static_transpose(x, order=[*order, axis, len(dims) - 1]), axes=[len(dims) - 2], starts=[0],
                   ends=[used], steps=[1])
    flat = g.static_reshape(rows, shape=[math.prod(dims[k] for k in order), used * parts])
    spectra = g.matmul(flat, g.constant(table.reshape(used * parts, -1).astype(np.float32)))
    whole = g.static_reshape(spectra, shape=[*(dims[k] for k in order), outputs, table.shape[-1]])
    back = [*range(axis), len(dims) - 2, *range(axis, len(dims) - 2), len(dims) - 1]
    return g.static_transpose(whole, order=back)


@imports("MelWeightMatrix")
def mel_weight_matrix(c: Call) -> Outputs:
    """Import MelWeightMatrix: a triangle of weights for each band of frequencies, as a constant.

    Edges of the bands are equally far apart in log(1 + hertz / 700). Triangles have at least one bin on each side.
    """
    bands, length, rate, lowest, highest = (c.array(k).item() for k in range(5))
    if rate < 1:
        c.refuse(f"input 2, the sample rate, must be positive, got {rate}")
    dtype = dtype_of(c.attr("output_datatype", 1), "attribute 'output_datatype'").numpy
    bins = limited((length // 2 + 1, bands), np.dtype(np.float64))[0]
    first, last = (math.log1p(hertz / 700) for hertz in (lowest, highest))
    edges = (length + 1) * 700 * np.expm1(first + np.arange(bands + 2) * (last - first) / (bands + 2)) // rate
    peak, rows = edges[1:-1], np.arange(bins)[:, None]
    left, right = np.minimum(edges[:-2], peak - 1), np.maximum(edges[2:], peak + 1)
    weights = np.minimum((rows - left) / (peak - left), (right - rows) / (right - peak))
    return c.graph.add_constant(np.maximum(weights, 0).astype(dtype))

"""Importers of convolutions, and of STFT as a convolution."""
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from graphq.dtypes import f32, f64
from graphq.errors import GraphError
from graphq.ir import Dim, Value
from graphq.onnx.importers.importer import Call, Outputs, imports
from graphq.ops.window import output_sizes, span

AUTO_PAD = {"NOTSET": "none", "SAME_UPPER": "same_upper", "SAME_LOWER": "same_lower", "VALID": "valid"}


def windows(c: Call, count: int, channels_last: bool = False) -> dict[str, Any]:
    """Strides, pads, dilations and layout of a convolution or pool, as graphq's attributes."""
    pads = c.attr("pads") or [0] * (2 * count)
    if len(pads) != 2 * count:
        c.refuse(f"pads must be {2 * count} numbers, got {list(pads)}")
    if min(pads) < 0:
        c.refuse(f"pads must not be negative, got {list(pads)}")
    auto_pad = c.attr("auto_pad", "NOTSET")
    if auto_pad not in AUTO_PAD:
        c.refuse(f"auto_pad must be one of {', '.join(AUTO_PAD)}, got {auto_pad!r}")
    return {"strides": c.attr("strides") or [1] * count, "dilations": c.attr("dilations") or [1] * count,
            "pads_begin": pads[:count], "pads_end": pads[count:], "auto_pad": AUTO_PAD[auto_pad],
            "data_format": "NXC" if channels_last else "NCX"}


def spatial(x: Value) -> int:
    """The number of spatial axes; raises GraphError if the rank is not known."""
    if x.shape is None or len(x.shape) < 3:
        raise GraphError(f"needs a batch, a channel and spatial axes, got {x.type}")
    return len(x.shape) - 2


def expect_fit(c: Call, x: Value, kernel: Sequence[Dim], attrs: Mapping[str, Any]) -> None:
    """Refuse a window that is larger than the padded input (channels first) along an axis of known size."""
    spans = [span(k, d) for k, d in zip(kernel, attrs["dilations"], strict=True)]
    try:
        output_sizes((x.shape or ())[2:], spans, attrs["strides"], attrs["pads_begin"], attrs["pads_end"],
                     attrs["auto_pad"], ceil=attrs.get("rounding_type") == "ceil")
    except GraphError as e:
        c.refuse(str(e))


def expect_kernel(c: Call, w: Value) -> None:
    """Refuse a `kernel_shape` that contradicts the shape of the weights (channels first)."""
    given = c.attr("kernel_shape")
    if given is None or w.shape is None:
        return
    taps = w.shape[2:]
    if len(given) != len(taps) or any(k is not None and k != g for k, g in zip(taps, given, strict=True)):
        c.refuse(f"kernel_shape must agree with the weights {w.type}, got {list(given)}")


@imports("Conv")
def conv(c: Call) -> Outputs:
    """Import Conv (weights OIX)."""
    x, w = c.input(0), c.input(1)
    attrs = windows(c, spatial(x))
    expect_kernel(c, w)
    if w.shape is not None:
        expect_fit(c, x, w.shape[2:], attrs)
    return c.graph.convolution(x, w, c.optional(2), groups=c.attr("group", 1), weights_format="OIX", **attrs)


@imports("ConvTranspose")
def conv_transpose(c: Call) -> Outputs:
    """Import ConvTranspose (weights IOX); `output_shape` and `auto_pad` become pads by ONNX's rule."""
    x, w = c.input(0), c.input(1)
    count = spatial(x)
    attrs = windows(c, count)
    expect_kernel(c, w)
    if x.dtype == f64 and {"output_shape", "output_padding", "auto_pad"} & {*c.attrs}:
        c.refuse("a ConvTranspose of f64 runs by ONNX's reference and takes only strides, pads and dilations")
    more = list(c.attr("output_padding") or [0] * count)
    sizes: Sequence[int] | None = c.attr("output_shape")
    if sizes is not None or attrs["auto_pad"] != "none":
        upper = c.attr("auto_pad", "NOTSET") == "SAME_UPPER"
        old, taps = x.type.dims[2:], w.type.dims[2:]
        spans = [(k - 1) * d + 1 for k, d in zip(taps, attrs["dilations"], strict=True)]
        if sizes is None:
            same = attrs["auto_pad"] in ("same_upper", "same_lower")
            sizes = [n * s if same else (n - 1) * s + k + m for n, s, k, m
                     in zip(old, attrs["strides"], spans, more, strict=True)]
        for k, size in enumerate(sizes[-count:]):
            total = attrs["strides"][k] * (old[k] - 1) + more[k] + spans[k] - size
            if total < 0:
                more[k], total = more[k] - total, 0
            half = total // 2
            begin = half if upper else total - half
            attrs["pads_begin"][k], attrs["pads_end"][k] = begin, total - begin
        attrs["auto_pad"] = "none"
    return c.graph.conv_transpose(x, w, c.optional(2), groups=c.attr("group", 1), weights_format="IOX",
                                  output_padding=more, **attrs)


MOST = 1 << 24
"""The largest number of weights of a convolution that `stft` builds; ONNX's reference runs larger transforms."""


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

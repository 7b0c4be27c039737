"""Importers of convolutions."""
from collections.abc import Mapping, Sequence
from typing import Any

from graphq.dtypes import f64
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

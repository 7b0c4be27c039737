"""Importers of pools and Resize."""
from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from graphq.base.sizes import later, number, recorded
from graphq.dtypes import boolean, f32, s8, u8
from graphq.errors import GraphError
from graphq.ir import Value, add_known, lookup
from graphq.onnx.importers.composed import one, standard
from graphq.onnx.importers.conv import expect_fit, spatial, windows
from graphq.onnx.importers.importer import Call, Outputs, imports
from graphq.onnx.importers.shape import limited
from graphq.ops.interpolate import scaled
from graphq.ops.rules import FLOATS
from graphq.ops.window import padding

BYTES = (s8, u8)


def pool(c: Call) -> dict[str, Any]:
    """The attributes of a pool in graphq, with ONNX's `ceil_mode` as a rounding type or as pads.

    With `ceil_mode`, ONNX leaves out a last window that would start after the input; oneDNN's rounding up keeps it. If
    the rules differ, pads_end is changed so that rounding down gives ONNX's windows. With auto_pad, ceil_mode makes no
    difference: ceil((n - k + 1) / s) = floor((n - k) / s) + 1. Raises GraphError if ceil_mode matters and a spatial
    dimension is not known yet.
    """
    x = c.input(0)
    attrs = {**windows(c, spatial(x)), "kernel": c.attr("kernel_shape"), "rounding_type": "floor"}
    if c.attr("ceil_mode", 0) and attrs["auto_pad"] == "none":
        ends, as_onednn = _ends(x, attrs)
        attrs |= {"rounding_type": "ceil"} if as_onednn else {"pads_end": ends}
    expect_fit(c, x, attrs["kernel"], attrs)
    return attrs


def _ends(x: Value, attrs: Mapping[str, Any]) -> tuple[list[int], bool]:
    """Find pads_end such that rounding down gives the windows of ONNX's ceil_mode.

    The second result is True if oneDNN's rounding up gives the same windows with the node's own pads_end.
    """
    ends, as_onednn = [], True
    for n, k, s, d, b, e in zip((x.shape or ())[2:], attrs["kernel"], attrs["strides"], attrs["dilations"],
                                attrs["pads_begin"], attrs["pads_end"], strict=True):
        if n is None:
            raise GraphError(f"ceil_mode needs known dimensions, got {x.type}")
        span = (k - 1) * d + 1
        room = n + b + e - span
        last = -(-room // s) * s
        if last >= n + b:
            last -= s
        as_onednn &= room >= 0 and last >= room
        needed = last + span - n - b
        ends.append(e if last < 0 else max(needed, min(e, needed + s - 1)))
    return ends, as_onednn


def _pads(x: Value, attrs: Mapping[str, Any]) -> list[tuple[int, int]]:
    """The pads of each axis, at its begin and end, so that windows follow from rounding down."""
    ends = _ends(x, attrs)[0] if attrs["rounding_type"] == "ceil" else attrs["pads_end"]
    return [padding(attrs["auto_pad"], n, (k - 1) * d + 1, s, begin, end) for n, k, d, s, begin, end in zip(
        x.type.dims[2:], attrs["kernel"], attrs["dilations"], attrs["strides"], attrs["pads_begin"], ends, strict=True)]


def with_pads(c: Call) -> Outputs:
    """Replace `ceil_mode` and `auto_pad` by explicit pads, for ONNX's reference; None if the node uses neither.

    With `ceil_mode`, ONNX's shape inference before version 22 counts windows that start after the input. With
    `auto_pad`, the reference refuses to round up and gives wrong shapes for dilated windows.
    """
    attrs, x = pool(c), c.input(0)
    if not c.attr("ceil_mode", 0) and attrs["auto_pad"] == "none":
        return None
    own = {name: value for name, value in c.attrs.items() if name not in ("ceil_mode", "auto_pad")}
    begins, ends = zip(*_pads(x, attrs), strict=True)
    own["pads"] = [*begins, *ends]
    return standard(c, c.node.op_type, [c.input(0)], opset=c.scope.opsets[""], **own)


def picked(c: Call, pick: Callable[[Value], Value]) -> Value:
    """Apply `pick` to input 0, in f32 for 8-bit integers."""
    x = c.input(0)
    if x.dtype not in BYTES:
        return pick(x)
    return c.graph.quantize(pick(c.graph.dequantize(x, scales=[1.0])), dtype=x.dtype, scales=[1.0])


def channels_first(x: Value, count: int | None, build: Callable[[Value], Value]) -> Value:
    """Apply `build` to `x` with channels first. In `x` and in the result, channels follow `count` spatial axes.

    If `count` is None, the channels of `x` already come first.
    """
    if count is None:
        return build(x)
    y = build(x.graph.static_transpose(x, order=[0, count + 1, *range(1, count + 1)]))
    return x.graph.static_transpose(y, order=[0, *range(2, count + 2), 1])


MOST_PLACES = 1 << 10
"""The largest window, in elements, of a MaxPool with indices: each element needs a few nodes."""


@imports("MaxPool")
def max_pool(c: Call) -> Outputs:
    """Import MaxPool; its second output is the indices of the maxima."""
    x = c.input(0)
    if c.outputs > 1:
        return _with_places(c)
    return picked(c, lambda x: c.graph.max_pool(x, **pool(c))) if x.dtype in (*FLOATS, *BYTES) else with_pads(c)


def _with_places(c: Call) -> list[Value]:
    """The maxima, and their indices among all elements of the input; the first of equal maxima counts.

    The elements of a window are compared one after the other. Indices run over all images and channels; ONNX's
    reference counts within each channel if the strides are 1. With `storage_order` 1, the first spatial axis varies
    fastest.
    """
    x, g, attrs = c.input(0), c.graph, pool(c)
    if x.dtype not in (*FLOATS, *BYTES):
        c.refuse(f"indices of maxima of {x.type} are not supported")
    if prod(attrs["kernel"]) > MOST_PLACES:
        c.refuse(f"indices of maxima need windows of at most {MOST_PLACES} elements, got {attrs['kernel']}")
    if x.dtype in BYTES:
        x = g.cast(x, dtype=f32)
    dims = x.type.dims
    pads = _pads(x, attrs)
    places = add_known(g, later(_places_of_image, dims[2:], bool(c.attr("storage_order", 0))))
    begins, ends = [0, 0, *(b for b, _ in pads)], [0, 0, *(e for _, e in pads)]
    values = (g.pad(x, value=-np.inf, pads_begin=begins, pads_end=ends),
              g.pad(places, pads_begin=begins, pads_end=ends))
    axes = list(zip(dims[2:], attrs["kernel"], attrs["dilations"], attrs["strides"], pads, strict=True))
    best: list[Value] = []
    for tap in np.ndindex(*attrs["kernel"]):
        starts = [t * d for t, (_, _, d, _, _) in zip(tap, axes, strict=True)]
        last = [(n + b + e - (k - 1) * d - 1) // s * s for n, k, d, s, (b, e) in axes]
        here = [g.slice(v, axes=range(2, len(dims)), starts=starts, ends=[a + m + 1 for a, m in zip(
            starts, last, strict=True)], steps=attrs["strides"]) for v in values]
        more = g.greater(here[0], best[0]) if best else None
        best = here if more is None else [g.choose(more, a, b) for a, b in zip(here, best, strict=True)]
    found, = g.add_node(lookup("arithmetic"), [best[1], add_known(g, later(_first_places, dims))], {"function": "add"})
    return [best[0] if x is c.input(0) else g.cast(best[0], dtype=c.input(0).dtype), found]


@recorded("onnx_pool.places_of_image")
def _places_of_image(dims: Sequence[int], first_fastest: bool) -> np.ndarray:
    """Indices of the elements of one channel of one image, s64 [1, 1, *dims]."""
    places = np.arange(prod(dims), dtype=np.int64)
    return (places.reshape(dims[::-1]).T if first_fastest else places.reshape(dims))[None, None]


@recorded("onnx_pool.first_places")
def _first_places(dims: Sequence[int]) -> np.ndarray:
    """The index of the first element of each channel of each image, s64 [n, c, 1, ...]."""
    count = dims[0] * dims[1]
    return (np.arange(count, dtype=np.int64) * prod(dims[2:])).reshape(*dims[:2], *[1] * (len(dims) - 2))


@imports("MaxUnpool")
def max_unpool(c: Call) -> Outputs:
    """Import MaxUnpool: scatter the elements to their places in an image of zeros.

    Places count the elements of the image that kernel, strides and pads give; `output_shape` adds zeros at its ends.
    """
    x, g, kernel = c.input(0), c.graph, c.attr("kernel_shape")
    attrs = windows(c, len(kernel))
    sizes = [(n - 1) * s + k - a - b for n, s, k, a, b in zip(
        x.type.dims[2:], attrs["strides"], kernel, attrs["pads_begin"], attrs["pads_end"], strict=True)]
    dims = limited((*x.type.dims[:2], *sizes), x.dtype.numpy)
    elements, places = (g.static_reshape(v, shape=[-1]) for v in (x, c.input(1)))
    image = g.scatter_elements(g.expand(g.add_constant(one(x, 0)), shape=[prod(dims)]), places, elements)
    more = [b - a for a, b in zip(dims, c.numbers(2) if c.has(2) else dims, strict=True)]
    return g.pad(g.static_reshape(image, shape=dims), pads_begin=[0] * len(dims), pads_end=more)


@imports("Col2Im")
def col2im(c: Call) -> Outputs:
    """Import Col2Im: add each element of a block to its pixel of the padded image, and cut the padding off."""
    x, g, sizes, block, (n, rows, _) = c.input(0), c.graph, c.array(1), c.array(2).tolist(), c.input(0).type.dims
    attrs, places = windows(c, len(sizes)), np.dtype(np.int64)
    begin, dilations = attrs["pads_begin"], attrs["dilations"]
    image = limited(tuple((sizes + begin + attrs["pads_end"]).tolist()), places)
    spans = [(k - 1) * d + 1 for k, d in zip(block, dilations, strict=True)]
    if any(k > size for k, size in zip(spans, image, strict=True)):
        c.refuse(f"a block of {spans} pixels is larger than the padded image of {list(image)}")
    pixels = sliding_window_view(np.arange(prod(image)).reshape(image), spans)
    pixels = pixels[*(slice(None, None, step) for step in (*attrs["strides"], *dilations))]
    count, channels = prod(limited(pixels.shape, places)), rows // prod(block)
    c.expect(0, (n, channels * prod(block), count // prod(block)))
    flat = g.static_reshape(x, shape=[n, channels, count])
    moved = g.expand(pixels.reshape(-1, prod(block)).T.reshape(-1), shape=flat.type.dims)
    zeros = g.expand(g.add_constant(one(x, 0)), shape=[n, channels, prod(image)])
    sums = g.scatter_elements(zeros, moved, flat, axis=2, reduction="add")
    return g.slice(g.static_reshape(sums, shape=[n, channels, *image]), axes=range(2, 2 + len(image)), starts=begin,
                   ends=(sizes + begin).tolist(), steps=[1] * len(image))


@imports("LpPool")
def lp_pool(c: Call) -> Outputs:
    """Import LpPool: `(sum |x|**p)**(1 / p)`; the sum is an average pool times the window's size."""
    attrs, p, x, g = pool(c), c.attr("p", 2), c.input(0), c.graph
    if set(attrs.pop("dilations")) - {1} or x.dtype not in FLOATS:
        return with_pads(c)
    if attrs["rounding_type"] == "ceil":
        attrs |= {"rounding_type": "floor", "pads_end": _ends(x, {**attrs, "dilations": [1] * len(attrs["kernel"])})[0]}
    powers = g.square(x) if p == 2 else g.pow(g.abs(x), beta=p)
    mean = g.avg_pool(powers, exclude_pad=False, in_order=True, **attrs)
    total = g.multiply(mean, one(x, prod(attrs["kernel"])))
    return g.sqrt(total) if p == 2 else g.pow(total, beta=1 / p)


@imports("AveragePool")
def avg_pool(c: Call) -> Outputs:
    """Import AveragePool; `count_include_pad` 0 leaves the padding out of the mean.

    Since version 19, and for `ceil_mode` with counted padding, ONNX Runtime's kernel adds a window's elements in order.
    """
    attrs, x = pool(c), c.input(0)
    if x.dtype not in FLOATS:
        return with_pads(c)
    if set(attrs.pop("dilations")) - {1}:  # ONNX's reference runs dilated pools, but only with explicit pads
        return None if attrs["auto_pad"] == "none" else with_pads(c)
    exclude, ends = not c.attr("count_include_pad", 0), attrs["pads_end"]
    in_order = c.version >= 19 or bool(c.attr("ceil_mode", 0)) and not exclude
    counted = [min(a, b) for a, b in zip(ends, windows(c, len(ends))["pads_end"], strict=True)]
    if not exclude and ends != counted:  # the mean must count only the node's own pads, not ceil_mode's
        x = c.graph.pad(x, pads_begin=[0, 0, *attrs["pads_begin"]], pads_end=[0, 0, *counted])
        beyond = [a - b for a, b in zip(ends, counted, strict=True)]
        attrs, exclude = {**attrs, "pads_begin": [0] * len(ends), "pads_end": beyond}, True
    return c.graph.avg_pool(x, exclude_pad=exclude, in_order=in_order, **attrs)


@imports("GlobalAveragePool", "GlobalMaxPool")
def global_pool(c: Call) -> Outputs:
    """Import a global pool as a pool whose window is the whole image; integer and f64 maxima become ReduceMax."""
    count = spatial(c.input(0))
    sizes = c.input(0).type.dims[2:]
    attrs: dict[str, Any] = {"kernel": sizes, "strides": [1] * count, "pads_begin": [0] * count,
                             "pads_end": [0] * count, "data_format": "NCX"}
    if c.node.op_type == "GlobalMaxPool":
        if 0 in sizes:
            c.refuse(f"an image without pixels has no maximum, got {c.input(0).type}")
        if c.input(0).dtype not in FLOATS:
            return standard(c, "ReduceMax", [c.input(0), pixels(c)])
        return c.graph.max_pool(c.input(0), **attrs)
    return c.graph.avg_pool(c.input(0), exclude_pad=True, **attrs)


def pixels(c: Call) -> np.ndarray:
    """The indices of input 0's spatial axes."""
    return np.arange(2, 2 + spatial(c.input(0)))


@imports("GlobalLpPool")
def global_lp_pool(c: Call) -> Outputs:
    """Import GlobalLpPool: `(sum |x|**p)**(1 / p)` over the pixels."""
    x, p, g = c.input(0), c.attr("p", 2), c.graph
    if p in (1, 2):
        return standard(c, f"ReduceL{int(p)}", [x, pixels(c)])
    if x.dtype not in FLOATS:
        c.refuse(f"a norm of p {p} takes f32, bf16 and f16, got {x.type}")
    return g.pow(standard(c, "ReduceSum", [g.pow(g.abs(x), beta=p), pixels(c)])[0], beta=1 / p)


@imports("Upsample")
def upsample(c: Call) -> Outputs:
    """Import Upsample; before version 9 its scales are attributes."""
    mode = c.attr("mode", "nearest")
    given = [1, 1, c.attr("height_scale"), c.attr("width_scale")] if c.version < 7 else c.attr("scales")
    scales = c.input(1) if c.version > 7 else c.graph.constant(np.array(given, np.float32))
    return _asymmetric(c, scales, "linear" if mode == "bilinear" else mode)


def _asymmetric(c: Call, scales: Value, mode: str) -> Outputs:
    """Import Upsample, or Resize before version 11: output o reads position o / scale; mode nearest rounds it down."""
    return standard(c, "Resize", [c.input(0), None, scales], mode=mode, nearest_mode="floor",
                    coordinate_transformation_mode="asymmetric")


@imports("Resize")
def resize(c: Call) -> Outputs:
    """Import Resize: mode nearest for integer factors, mode linear if the scales give exactly the sizes."""
    x = c.input(0)
    if x.dtype == boolean:
        c.refuse("booleans are not resized: ONNX's reference has only floats and integers")
    if c.version < 11:
        return _asymmetric(c, c.input(1), c.attr("mode", "nearest"))
    sizes = c.optional(3)
    if sizes is not None and not sizes.type.known and x.shape is not None:  # ONNX would infer 0 elements for `sizes`
        vector = c.graph.static_reshape(sizes, shape=[len(c.attr("axes", x.shape))])
        return standard(c, "Resize", [*c.inputs[:3], vector], opset=c.scope.opsets[""], **c.attrs)
    old = x.type.dims
    new, scales = _sizes(c, old)
    transformation = c.attr("coordinate_transformation_mode", "half_pixel")
    if old[:2] != new[:2] or len(old) < 3 or min(new) < 1 or c.attr("antialias", 0) \
            or c.has(1) and transformation == "tf_crop_and_resize":
        return None
    mode = c.attr("mode", "nearest")
    if mode == "nearest":
        whole = all(b % a == 0 and s * a == b for a, b, s in zip(old, new, scales, strict=True))
        # For integers r, floor((o + 1/2) / r) = floor(o / r), so half_pixel and asymmetric pick the same elements.
        rule = transformation, c.attr("nearest_mode", "round_prefer_floor")
        return picked(c, lambda x: c.graph.interpolate(x, mode="nearest", sizes=new[2:], data_format="NCX")) \
            if whole and rule in WHOLE else None
    exact = all(round(a * s) == b and a * s == b for a, b, s in zip(old, new, scales, strict=True))
    if mode != "linear" or transformation not in ("half_pixel", "align_corners", "asymmetric") or not exact:
        return None
    return picked(c, lambda x: c.graph.interpolate(
        x, mode="linear", coordinate_transformation_mode=transformation, sizes=new[2:], data_format="NCX"))


WHOLE = {("asymmetric", "floor"), ("half_pixel", "round_prefer_floor"), ("half_pixel", "round_prefer_ceil")}
"""Coordinate transformations and roundings whose output element o is input element floor(o / r), for integers r."""


def _sizes(c: Call, old: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[float, ...]]:
    if c.has(3):
        if c.attr("keep_aspect_ratio_policy", "stretch") != "stretch" or "axes" in c.attrs:
            raise GraphError("sizes with axes or a policy are left to ONNX's reference")
        new, scales = tuple(c.numbers(3)), None
    elif "axes" in c.attrs:
        raise GraphError("axes are left to ONNX's reference")
    else:
        scales = tuple(float(np.float32(s)) for s in c.array(2))
        new = tuple(number(scaled, d, s) for d, s in zip(old, scales, strict=False))
    if len(new) != len(old):
        raise GraphError(f"one size per axis is needed, got {len(new)} for rank {len(old)}")
    return new, scales or tuple(n / d if d else 1.0 for n, d in zip(new, old, strict=True))

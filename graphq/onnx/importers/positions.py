"""Importers of operators that move elements to or from computed positions."""
from math import prod

import numpy as np

from graphq.base.sizes import later, recorded
from graphq.dtypes import s64
from graphq.ir import Value
from graphq.ir.interpret import add_known
from graphq.onnx.importers.composed import one, places, standard
from graphq.onnx.importers.conv import windows
from graphq.onnx.importers.importer import Call, Outputs, imports
from graphq.ops.window import span


def _zeros(c: Call, *dims: int) -> Value:
    """Zeros in the dtype of the node's first input."""
    return c.graph.expand(one(c.input(0), 0), shape=dims)


@imports("Compress")
def compress(c: Call) -> Outputs:
    """Import Compress: gather the slices along `axis`, or the elements, where the condition is true."""
    x = c.input(0) if "axis" in c.attrs else c.graph.static_reshape(c.input(0), shape=[-1])
    found, = standard(c, "NonZero", [c.input(1)])
    return c.graph.gather(x, c.graph.static_reshape(found, shape=[-1]), axis=c.attr("axis", 0))


@imports("ReverseSequence")
def reverse_sequence(c: Call) -> Outputs:
    """Import ReverseSequence: gather the steps of each sequence, with the order of the first steps reversed."""
    x, g, rank = c.input(0), c.graph, len(c.input(0).type.dims)
    order, time = [1, 0, *range(2, rank)], c.attr("time_axis", 0)
    if rank < 2 or {time, c.attr("batch_axis", 1)} != {0, 1}:
        c.refuse(f"time_axis and batch_axis must be 0 and 1 of {x.type}, got {time} and {c.attr('batch_axis', 1)}")
    c.expect(1, (x.type.dims[1 - time],))
    rows = x if time else g.static_transpose(x, order=order)
    lengths, steps = g.static_reshape(c.input(1), shape=[-1, 1]), g.cast(places(c, x, time), dtype=s64)
    last = g.arithmetic(lengths, one(lengths, 1), function="subtract")
    taken = g.choose(g.less(steps, lengths), g.arithmetic(last, steps, function="subtract"), steps)
    y = g.gather_nd(rows, g.static_reshape(taken, shape=[0, 0, 1], special_zero=True), batch_dims=1)
    return y if time else g.static_transpose(y, order=order)


@recorded("onnx.pixels")
def _pixels(image: list[int], block: list[int], counts: list[int], strides: list[int],
            dilations: list[int]) -> np.ndarray:
    """The positions in a flat image of each element of each block: [1, elements * blocks]."""
    rows = np.zeros((), np.int64)
    for n, k, m, s, d in zip(image, block, counts, strides, dilations, strict=True):
        rows = rows[..., None, None] * n + (np.arange(k) * d)[:, None] + np.arange(m) * s
    axes = range(2 * len(image))
    return rows.transpose(*axes[::2], *axes[1::2]).reshape(1, -1)


@imports("Col2Im")
def col2im(c: Call) -> Outputs:
    """Import Col2Im: add the elements of the blocks at their pixels in an image with pads, and cut the pads off."""
    x, g, sizes, block = c.input(0), c.graph, c.numbers(1), c.numbers(2)
    n, rows, _ = x.type.dims
    attrs = windows(c, len(sizes))
    begin, end, strides, dilations = (attrs[k] for k in ("pads_begin", "pads_end", "strides", "dilations"))
    stops = [a + b for a, b in zip(begin, sizes, strict=True)]
    image = [a + b for a, b in zip(stops, end, strict=True)]
    counts = [(a - span(k, d)) // s + 1 for a, k, s, d in zip(image, block, strides, dilations, strict=True)]
    c.expect(0, (n, rows, prod(counts)))
    channels = rows // prod(block)
    if channels * prod(block) != rows or any(k < 1 for k in counts):
        c.refuse(f"input 0 must have a multiple of the {prod(block)} rows of a block, got {x.type}")
    flat = g.static_reshape(x, shape=[n * channels, prod(block) * prod(counts)])
    pixels = add_known(g, later(_pixels, image, block, counts, strides, dilations))
    sums = g.scatter_elements(_zeros(c, n * channels, prod(image)),
                              g.expand(pixels, shape=flat.type.dims), flat, axis=1, reduction="add")
    whole = g.static_reshape(sums, shape=[n, channels, *image])
    return g.slice(whole, axes=[*range(2, 2 + len(image))], starts=begin, ends=stops, steps=[1] * len(image))


@imports("MaxUnpool")
def max_unpool(c: Call) -> Outputs:
    """Import MaxUnpool: scatter the elements to their positions in an image of zeros.

    Positions count the elements of the image that kernel, strides and pads give; `output_shape` adds zeros at its ends.
    """
    x, g, kernel = c.input(0), c.graph, c.attr("kernel_shape")
    attrs = windows(c, len(kernel))
    dims = [*x.type.dims[:2], *((d - 1) * s + k - a - b for d, s, k, a, b in zip(
        x.type.dims[2:], attrs["strides"], kernel, attrs["pads_begin"], attrs["pads_end"], strict=True))]
    rows, elements = (g.static_reshape(v, shape=[-1]) for v in (c.input(1), x))
    image = g.static_reshape(g.scatter_elements(_zeros(c, prod(dims)), rows, elements, axis=0), shape=dims)
    more = [b - a for a, b in zip(dims, c.numbers(2), strict=True)] if c.has(2) else [0]
    return g.pad(image, pads_begin=[0] * len(dims), pads_end=more, mode="constant", value=0.0) if any(more) else image

"""Importers of operators that move elements."""
from __future__ import annotations

from graphq.errors import GraphError
from graphq.ir import Value
from graphq.onnx.importers.importer import Call, Outputs, imports
from graphq.onnx.importers.shape import dims_of, known, parts
from graphq.ops.rules import broadcast, normal_axis


@imports("Transpose")
def transpose(c: Call) -> Outputs:
    """Import Transpose; without `perm` the dimensions are reversed."""
    rank = len(dims_of(c.input(0))) if c.input(0).shape is None else len(c.input(0).shape or ())
    return c.graph.static_transpose(c.input(0), order=c.attr("perm", list(range(rank))[::-1]))


@imports("Concat")
def concat(c: Call) -> Outputs:
    """Import Concat along `axis`."""
    return c.graph.concat(*(c.input(k) for k in range(len(c.inputs))), axis=c.attr("axis", 1))


@imports("Scatter")
def scatter(c: Call) -> Outputs:
    """Import Scatter, the older name of ScatterElements."""
    return c.graph.scatter_elements(c.input(0), c.input(1), c.input(2), axis=c.attr("axis", 0))


@imports("GridSample")
def grid_sample(c: Call) -> Outputs:
    """Import GridSample; its modes have other names before version 20."""
    mode = c.attr("mode", "linear")
    return c.graph.grid_sample(c.input(0), c.input(1), mode={"bilinear": "linear", "bicubic": "cubic"}.get(mode, mode),
                               padding_mode=c.attr("padding_mode", "zeros"),
                               align_corners=bool(c.attr("align_corners", 0)))


@imports("Slice")
def slice_(c: Call) -> Outputs:
    """Import Slice; starts, ends, axes and steps are attributes before version 10 and constants since then."""
    starts, ends = c.ints("starts", 1), c.ints("ends", 2)
    if starts is None or ends is None:
        c.refuse("starts and ends are required")
    axes = c.ints("axes", 3) or range(len(starts))
    steps = c.ints("steps", 4) or (1,) * len(starts)
    return c.graph.slice(c.input(0), axes=axes, starts=starts, ends=ends, steps=steps)


@imports("Split")
def split(c: Call) -> Outputs:
    """Import Split as one slice per output. Without sizes, outputs are equal, but the last may be smaller."""
    dims, outputs = dims_of(c.input(0)), len(c.node.output)
    if c.attr("num_outputs", outputs) != outputs:
        c.refuse(f"num_outputs must be the number of outputs, {outputs}, got {c.attr('num_outputs')}")
    axis = normal_axis(c.attr("axis", 0), dims)
    sizes = c.ints("split", 1)
    if sizes is None:
        each = -(-dims[axis] // outputs)
        sizes = (*[each] * (outputs - 1), dims[axis] - each * (outputs - 1))
    if sum(sizes) != dims[axis] or min(sizes) < 0 or len(sizes) != len(c.node.output):
        c.refuse(f"sizes {list(sizes)} do not split {dims[axis]} elements into {len(c.node.output)} outputs")
    return list(parts(c.input(0), axis, sizes))


@imports("Expand")
def expand(c: Call) -> Outputs:
    """Import Expand: broadcast the operand with `shape`."""
    shape = tuple(c.numbers(1))
    return expanded(c, c.input(0), shape)


def expanded(c: Call, x: Value, shape: tuple[int, ...]) -> Value:
    """Broadcast `x` with `shape`; returns `x` itself if nothing changes."""
    if min(shape, default=0) < 0:
        c.refuse(f"a shape must have no negative dimensions, got {list(shape)}")
    dims = dims_of(x)
    return x if broadcast(dims, shape) == dims else c.graph.expand(x, shape=shape)


@imports("Pad")
def pad(c: Call) -> Outputs:
    """Import Pad in modes constant, edge, reflect and wrap; pads apply to `axes`, by default to all axes."""
    pads, axes = c.ints("pads" if c.version > 1 else "paddings", 1), c.ints("axes", 3)
    rank = len(dims_of(c.input(0)))
    if pads is None:
        c.refuse("pads are required")
    places = [normal_axis(a, (1,) * rank, "axes") for a in (range(rank) if axes is None else axes)]
    if len(pads) != 2 * len(places):
        c.refuse(f"pads must be {2 * len(places)} numbers, got {list(pads)}")
    begin, end = [0] * rank, [0] * rank
    for k, axis in enumerate(places):
        begin[axis], end[axis] = pads[k], pads[k + len(places)]
    value = float(known(c, 2).reshape(())) if c.has(2) else float(c.attr("value", 0.0))
    return c.graph.pad(c.input(0), pads_begin=begin, pads_end=end, mode=c.attr("mode", "constant"), value=value)


@imports("Tile")
def tile(c: Call) -> Outputs:
    """Import Tile: add dimensions of 1, expand them, and merge them."""
    dims, repeats = dims_of(c.input(0)), c.numbers(1)
    if c.version < 6:  # in old versions, input 1 is the number of repetitions, input 2 the axis
        axis = c.numbers(2)[0] % len(dims)
        repeats = [repeats[0] if k == axis else 1 for k in range(len(dims))]
    if len(repeats) != len(dims) or min(repeats, default=0) < 0:
        raise GraphError(f"repeats {repeats} do not fit {c.input(0).type}")
    out = [d * r for d, r in zip(dims, repeats, strict=True)]
    apart = c.graph.static_reshape(c.input(0), shape=[n for d in dims for n in (1, d)])
    wide = c.graph.expand(apart, shape=[n for d, r in zip(dims, repeats, strict=True) for n in (r, d)])
    return c.graph.static_reshape(wide, shape=out)


@imports("DepthToSpace")
def depth_to_space(c: Call) -> Outputs:
    """Import DepthToSpace (modes DCR and CRD) as a reshape, a transpose and a reshape."""
    n, channels, h, w = dims_of(c.input(0))
    b = c.attr("blocksize")
    depth = channels // (b * b)
    dcr = c.attr("mode", "DCR") == "DCR"
    shape, order = ([n, b, b, depth, h, w], [0, 3, 4, 1, 5, 2]) if dcr else \
        ([n, depth, b, b, h, w], [0, 1, 4, 2, 5, 3])
    x = c.graph.static_transpose(c.graph.static_reshape(c.input(0), shape=shape), order=order)
    return c.graph.static_reshape(x, shape=[n, depth, h * b, w * b])


@imports("SpaceToDepth")
def space_to_depth(c: Call) -> Outputs:
    """Import SpaceToDepth as a reshape, a transpose and a reshape."""
    n, channels, h, w = dims_of(c.input(0))
    b = c.attr("blocksize")
    if c.attr("mode", "DCR") != "DCR":
        return None
    x = c.graph.static_reshape(c.input(0), shape=[n, channels, h // b, b, w // b, b])
    x = c.graph.static_transpose(x, order=[0, 3, 5, 1, 2, 4])
    return c.graph.static_reshape(x, shape=[n, channels * b * b, h // b, w // b])

"""The plan steps of a depthwise convolution."""
from __future__ import annotations

from typing import Any

import numpy as np

from graphq.conv_padding import padding_block
from graphq.ir import Node
from graphq.kernels import depthwise, depthwise_float, pixels, settle
from graphq.kernels.lower import Lowered
from graphq.kernels.lower_conv import Convolution, IntegerConvolution
from graphq.kernels.space import factor
from graphq.plan_builder import PlanBuilder
from graphq.runtime import Buffer, PythonStep, Ref
from graphq.slots import Strides, output, place, run
from graphq.tensor_type import TensorType


def depthwise_steps(b: PlanBuilder, node: Node, lowered: Lowered) -> None:
    """Pack weights that are not constant, multiply."""
    c = lowered.anchor
    assert isinstance(c, Convolution)
    source, value = node.inputs[c.a], node.inputs[c.b]
    assert source is not None
    tile = None if c.integer else depthwise_float.choose(c.filter.outputs, c.windows, c.strides[-1], c.dilations[-1],
                                                         b.level.lanes, transposed=c.filter.transposed)
    weights = _weights(b, node, c, b.level.lanes if tile is None else tile.chunk)
    places: list[tuple[Ref, Strides]] = []
    still = (0,) * (len(lowered.out) - 1)
    for s in lowered.sources:
        if s.place == "column sums":
            places.append((Ref(weights), (*still, 4)))
        elif s.place == "compensation":
            assert isinstance(c, IntegerConvolution) and value is not None and value.data is not None
            places.append((Ref(b.constant(c.compensation(c.matrix(value.data)))), (*still, 4)))
        else:
            places.append(place(b, node, s, lowered.out))
    space = factor(lowered.out, [strides for _, strides in places], keep=1)
    options: dict[str, Any] = dict(multiplier=c.filter.multiplier, threads=b.threads, cache=b.cache)
    if tile is None:
        step = depthwise.plan_depthwise(lowered.store, c.a_dtype, c.windows, space.n, space.batch, space.m, b.level,
                                        **options)
        more = None
    else:
        step = depthwise_float.plan_depthwise(lowered.store, c.a_dtype, c.windows, tile, space.n, space.batch, space.m,
                                              b.level, **options)
        more = depthwise_float.table(c.windows, tile)
    padding = np.broadcast_to((c.padding & 0xFF).astype(np.uint8), c.windows.pixel_bytes)
    block = c.windows.block(padding, more)
    header = {pixels.IMAGES: Ref(b.of[source]), pixels.WINDOWS: Ref(padding_block(b, node, c, block)),
              pixels.WEIGHTS: Ref(weights)}
    if lowered.literal is not None:
        spec = settle.spec(lowered.literal, 1, signed=c.a_dtype == "s8", per=c.filter.multiplier)
        header[pixels.SPEC] = Ref(b.constant(spec))
    slots = [(ref, walk) for (ref, _), walk in zip(places, space.walks, strict=True)]
    run(b, step, header, [*slots, output(b.result(node.output), space, lowered)])


def _weights(b: PlanBuilder, node: Node, c: Convolution, lanes: int) -> int:
    """The buffer of the packed weights, by the lanes of integers or the channels of a chunk of floats."""
    value = node.inputs[c.b]
    assert value is not None
    kernel, taps, channels = depthwise if c.integer else depthwise_float, c.windows.taps, c.filter.outputs

    def packed(w: np.ndarray) -> np.ndarray:
        return kernel.pack(c.matrix(w)[:, :, 0].transpose(1, 0, 2).reshape(taps, channels), lanes)

    if value.data is not None:
        return b.constant(packed(value.data))
    size = kernel.packed_bytes(taps, channels, lanes)
    out = b.add(Buffer("arena", size, TensorType(value.dtype, (size // value.dtype.itemsize,))))
    b.steps.append(PythonStep("pack weights", lambda w: packed(w).view(w.dtype), (b.of[value],), (out,),
                              reference=False))
    return out

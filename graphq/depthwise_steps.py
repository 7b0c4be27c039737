"""The plan steps of a depthwise convolution."""
from __future__ import annotations

import numpy as np

from graphq.ir import Node
from graphq.kernels import depthwise, pixels
from graphq.kernels.lower import Lowered
from graphq.kernels.lower_conv import IntegerConvolution
from graphq.kernels.space import factor
from graphq.plan_builder import PlanBuilder
from graphq.runtime import Buffer, PythonStep, Ref
from graphq.slots import Strides, output, place, run
from graphq.tensor_type import TensorType


def depthwise_steps(b: PlanBuilder, node: Node, lowered: Lowered) -> None:
    """Pack weights that are not constant, multiply."""
    c = lowered.anchor
    assert isinstance(c, IntegerConvolution)
    source, value = node.inputs[c.a], node.inputs[c.b]
    assert source is not None
    weights = _weights(b, node, c)
    places: list[tuple[Ref, Strides]] = []
    still = (0,) * (len(lowered.out) - 1)
    for s in lowered.sources:
        if s.place == "column sums":
            places.append((Ref(weights), (*still, 4)))
        elif s.place == "compensation":
            assert value is not None and value.data is not None
            places.append((Ref(b.constant(c.compensation(c.matrix(value.data)))), (*still, 4)))
        else:
            places.append(place(b, node, s, lowered.out))
    space = factor(lowered.out, [strides for _, strides in places], keep=1)
    step = depthwise.plan_depthwise(lowered.store, c.a_dtype, c.windows, space.n, space.batch, space.m, b.level,
                                    threads=b.threads, cache=b.cache)
    pad = np.full(space.n, c.a_zp, np.int64).astype(np.uint8)
    header = {pixels.IMAGES: Ref(b.of[source]), pixels.WINDOWS: Ref(b.constant(c.windows.block(pad))),
              pixels.WEIGHTS: Ref(weights)}
    slots = [(ref, walk) for (ref, _), walk in zip(places, space.walks, strict=True)]
    run(b, step, header, [*slots, output(b.result(node.output), space, lowered)])


def _weights(b: PlanBuilder, node: Node, c: IntegerConvolution) -> int:
    """The buffer of the packed weights."""
    value = node.inputs[c.b]
    assert value is not None
    lanes = b.level.lanes

    def packed(w: np.ndarray) -> np.ndarray:
        return depthwise.pack(c.matrix(w)[:, :, 0, 0].T, lanes)

    if value.data is not None:
        return b.constant(packed(value.data))
    size = depthwise.packed_bytes(c.windows.taps, c.filter.groups, lanes)
    out = b.add(Buffer("arena", size, TensorType(value.dtype, (size,))))
    b.steps.append(PythonStep("pack weights", lambda w: packed(w).view(w.dtype), (b.of[value],), (out,),
                              reference=False))
    return out

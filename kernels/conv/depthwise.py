"""The plan steps of a depthwise convolution, whose groups have one input channel each."""
from functools import partial
from typing import Any

import numpy as np

from graphq.dtypes import f32
from graphq.ir import Node, TensorType
from graphq.kernels.conv.lower import Convolution, IntegerConvolution
from graphq.kernels.conv.padding import pad_rows, padding_block
from graphq.kernels.depthwise import floats, packing
from graphq.kernels.depthwise.packing import Layout
from graphq.kernels.depthwise.tiles import pair_tiles, quad_tiles
from graphq.kernels.eltwise.family import plan_eltwise
from graphq.kernels.family.epilogue import OperandSource
from graphq.kernels.family.lower import Lowered
from graphq.kernels.family.record import Operand, epilogue_operands, slots_of, space_of
from graphq.kernels.jit import modules
from graphq.kernels.lanes.epilogues import Epilogue
from graphq.kernels.lanes.expression import Expr, acc, const, load, op
from graphq.kernels.moves.transpose import plan_strided_copy
from graphq.kernels.operands.space import dense, terms
from graphq.kernels.pixels.blocks import Pixels, plan_pixels, unrolled
from graphq.kernels.target.isa import here
from graphq.plan.builder import PlanBuilder
from graphq.plan.plan import Buffer, PythonStep, Ref, Step, Target


def plan_depthwise(epilogue: Epilogue, x: Pixels, layout: Layout, target: Target) -> Step:
    """Plan an integer depthwise convolution that `packing.fits` accepts.

    The caller fills in the fields of `blocks.PIXELS` for the images, the windows and the packed weights. If outputs
    near rounding ties are computed a second time, the caller also fills in the offsets.
    """
    name, size, cache = f"depthwise_{x.dtype}", layout.size, target.cache
    chunks, own = -(-x.channels // size), target.level.of_products
    if layout.pixels:
        tile = modules.load(name, quad_tiles, x.dtype, layout, x.multiplier, here(own.name), level=own, cache=cache)
        cycles = 30 + chunks * (20 + 6 * len(layout.taps))
    else:
        few = x.channels if x.channels < size else 0
        tile = modules.load(name, pair_tiles, x.dtype, layout.lanes, *unrolled(layout.ko, layout.ki), few,
                            here(target.level.base.name), x.multiplier, level=own, cache=cache)
        cycles = 30 + chunks * (6 + 4 * x.windows.taps)
    return plan_pixels(epilogue, x, target, name, tile, cycles, whole=True, macs=x.products)


def depthwise_steps(b: PlanBuilder, node: Node, lowered: Lowered[Convolution]) -> None:
    """Add the convolution's step. If the weights are not constant, a step that packs them comes first."""
    c = lowered.anchor
    source, value = node.operand(c.a), node.operand(c.b)
    factors = None if value.data is None else _factors(c, value.data)
    moves: dict[str, Any] = dict(stride=c.strides[-1], dilation=c.dilations[-1], transposed=c.filter.transposed)
    how = packing.choose(c.filter.outputs, c.windows, factors, b.target.level, **moves) if c.integer else \
        floats.choose(c.filter.outputs, c.windows, lanes=b.target.level.lanes, **moves)
    weights = _weights(b, node, c, factors, how)
    along_columns = (*(0,) * (len(lowered.out) - 1), 4)

    def compensation(_: OperandSource) -> Operand:
        assert isinstance(c, IntegerConvolution) and value.data is not None
        return Ref(b.constant(c.compensation(c.matrix(value.data)))), along_columns

    operands = epilogue_operands(b, node, lowered, {
        "column sums": lambda _: (Ref(weights), along_columns), "compensation": compensation})
    space = space_of(b, lowered.out, operands, keep=1)
    pixels = Pixels(c.a_dtype, c.windows, space.n, space.batch, space.m, c.filter.multiplier)
    if isinstance(how, packing.Layout):
        step = plan_depthwise(lowered.epilogue, pixels, how, b.target)
        more = None
    else:
        step = floats.plan_depthwise(lowered.epilogue, pixels, how, b.target)
        more = floats.table(c.windows, how)
    padding = np.broadcast_to((c.padding & 0xFF).astype(np.uint8), c.windows.pixel_bytes)
    block = c.windows.block(padding, more)
    words = {"images": Ref(b.of[source]), "windows": Ref(padding_block(b, node, c, block)), "weights": Ref(weights)}
    if lowered.epilogue.second_look is not None:
        assert lowered.stated_sum is not None and isinstance(how, packing.Layout)
        sum_terms = terms(lowered.stated_sum.sum, channels=1, signed=c.a_dtype == "s8", per=c.filter.multiplier,
                          chunk=how.size, chunk_bytes=how.chunk_bytes, item=how.item, half=how.half)
        words["terms"], words["offsets"] = Ref(b.constant(sum_terms)), Ref(b.constant(how.offsets()))
    b.run(step, words, slots_of(b, operands, space))


def line_steps(b: PlanBuilder, node: Node, lowered: Lowered[Convolution]) -> None:
    """Add the steps of a convolution along lines: pad the lines, and compute the sums as a part of the epilogue."""
    c, source, weights = lowered.anchor, node.operand(lowered.anchor.a), b.of[node.operand(lowered.anchor.b)]
    (n, channels, size), item, (pads,), x = source.type.dims, c.itemsize, c.pads, b.of[source]
    line = size + sum(pads)
    if any(pads):
        x = pad_rows(b, x, n * channels, size * item, pads[0] * item, pads[1] * item, 0)
    *operands, result = epilogue_operands(b, node, lowered)
    group, tap, *_ = c.filter.strides(item)
    total: Expr = const(0.0)
    for k in range(c.windows.taps):
        slot = len(operands)
        total = op("fma", load(slot, c.a_dtype, "vector"), load(slot + 1, c.b_dtype, "row"), total)
        operands += [(Ref(x, k * c.dilations[0] * item), tuple(dense((n, channels, line), item))),
                     (Ref(weights, k * tap), (0, group, 0))]
    operands.append(result)
    space = space_of(b, lowered.out, operands, keep=1)
    step = plan_eltwise(lowered.epilogue.renamed({acc("f32"): 0.0 + total}), space, b.target)
    b.run(step._replace(macs=c.windows.taps * node.output.type.size), {}, slots_of(b, operands, space))


def _factors(c: Convolution, w: np.ndarray) -> np.ndarray:
    return c.matrix(w)[:, :, 0].transpose(1, 0, 2).reshape(c.windows.taps, c.filter.outputs)


def _weights(b: PlanBuilder, node: Node, c: Convolution, factors: np.ndarray | None,
             how: packing.Layout | floats.Tile) -> int:
    """The buffer of packed weights. If the weights are not constant, a step packs them."""
    value, taps, channels = node.operand(c.b), c.windows.taps, c.filter.outputs
    if isinstance(how, packing.Layout):
        pack, size = partial(packing.pack, layout=how), packing.packed_bytes(how, channels)
    else:
        pack = partial(floats.pack, size=how.chunk)
        size = floats.packed_bytes(taps, channels, how.chunk)
    if factors is not None:
        return b.constant(pack(factors))
    if isinstance(how, floats.Tile) and value.dtype == f32 and c.filter.multiplier == 1:
        return _copied(b, c, b.of[value], b.temporary(size), how.chunk)
    out = b.add(Buffer("arena", size, TensorType(value.dtype, (size // value.dtype.itemsize,))))
    b.steps.append(PythonStep("pack weights", lambda w: pack(_factors(c, w)).view(w.dtype), (b.of[value],), (out,),
                              reference=False))
    return out


def _copied(b: PlanBuilder, c: Convolution, source: int, packed: int, size: int) -> int:
    """Add steps that pack f32 weights like `floats.pack`, for groups with one output channel. Returns `packed`."""
    taps, channels, (channel, tap, *_) = c.windows.taps, c.filter.outputs, c.filter.strides(4)
    whole, row = channels // size, 4 * size
    last = channels - size if whole else 0
    parts = (0, 0, whole, size), (last, whole, int(channels % size > 0), min(size, channels))
    for first, at, chunks, columns in parts:
        step = plan_strided_copy((chunks, taps, columns), (size * channel, tap, channel), 4, b.target,
                                 (taps * row, row, 4))
        b.run(step, {"source": Ref(source, first * channel), "target": Ref(packed, at * taps * row)})
    return packed

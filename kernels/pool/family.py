"""The kernel family of pools: the lowering, the same numbers in NumPy, the plan step, and the record.

The input is quantized integers q or floats x; t are the taps of a window, and a mean averages `count` of them:

    max_pool of integers    y = f32(max_t q[t] - zp) * s             the maximum of the dequantized input, because s > 0
    max_pool of floats      y = max_t x[t]
    avg_pool of integers    y = (sum_t (q[t] - zp) * s) / count      in f32, the sum in the reference's order
    avg_pool of floats      y = (sum_t x[t]) / count                 in the same order

A mean over any axes but the last is an avg_pool whose windows cover these axes. A mean often lies exactly on a rounding
tie (see `means`). A quantize after a mean therefore divides by its scale, as the reference does, instead of multiplying
by the reciprocal.
"""
from collections.abc import Callable, Container, Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np

from graphq.base.sizes import later, recorded
from graphq.ir import Graph, Node, Value
from graphq.kernels.family.epilogue import EpilogueBuilder, expect_positive
from graphq.kernels.family.lower import Arrays, Lowered, lower_body, result_dims
from graphq.kernels.family.record import Family, any_operands, epilogue_slots
from graphq.kernels.family.unsupported import Axes, Unsupported
from graphq.kernels.lanes.epilogues import Epilogue, evaluate
from graphq.kernels.lanes.expression import COMPUTE, STORAGE, Expr, acc
from graphq.kernels.numbers.mean_sums import Order, array_total, pool_order
from graphq.kernels.operands.windows import Windows, windows
from graphq.kernels.pixels.blocks import Pixels
from graphq.kernels.pool.means import Scales, dequantized, tables
from graphq.kernels.pool.tiles import GREATER, How, least, plan_pool
from graphq.ops.window import padding, window_counts
from graphq.plan.builder import PlanBuilder
from graphq.plan.plan import Ref, Step, Target

POOLS: dict[str, How] = {"max_pool": "max", "avg_pool": "mean", "reduce_mean": "mean"}


class Pool(NamedTuple):
    """The operands of a pool: input `source` of the partition, its `shape`, and the windows.

    `shape` is [images, spatial..., channels], `pad` a padding pixel, and `out` the shape of the accumulators. Means of
    integers have `scales`. All means have the `order` of their sums, and `counts`, the divisors f32 [pixels].
    """

    how: How
    source: int
    dtype: str
    shape: tuple[int, ...]
    windows: Windows
    pad: np.ndarray
    out: tuple[int, ...]
    scales: Scales | None = None
    order: Order = "taps"
    counts: np.ndarray | None = None

    def accumulate(self, inputs: Sequence[np.ndarray]) -> np.ndarray:
        """The accumulators: maxima (s32 for u8 and s8, f32 for floats), or means in f32."""
        tap = self.windows.tap_of(inputs[self.source].reshape(self.shape), self.pad)
        shape = (self.shape[0], self.windows.pixels, self.shape[-1])
        total: Any
        if self.counts is not None:
            total = array_total(self.order, lambda k: dequantized(tap(k), self.dtype, self.scales), self.windows.taps,
                                self.windows.kernel[-1], shape)
            with np.errstate(all="ignore"):
                return np.asarray(total / self.counts[:, None]).reshape(self.out)
        floats = COMPUTE[self.dtype] == "f32"
        total = np.full(shape, least(self.dtype), np.float32 if floats else np.int32)
        for k in range(self.windows.taps):
            x = tap(k)
            total = evaluate(GREATER, None, [total, x.astype(np.float32)]) if floats else np.maximum(total, x)
        return np.asarray(total).reshape(self.out)

    def plan(self, epilogue: Epilogue, x: Pixels, target: Target) -> Step:
        """Plan the step."""
        return plan_pool(epilogue, self.how, x, target, self.order)

    @property
    def weights(self) -> np.ndarray | None:
        """The tables that the kernel of means reads; None for maxima."""
        return None if self.counts is None else later(tables, self.scales, self.counts)


def lower_pool(body: Graph, constants: Arrays = ()) -> Lowered:
    """Lower a body of a pool, a dequantize of its input, and an epilogue. Raises Unsupported."""
    return lower_pixels(body, POOLS, _pool)


def lower_pixels(body: Graph, operations: Container[str],
                 find: Callable[[Node, Node | None, Value, int], Any]) -> Lowered:
    """Lower a body around one of `operations`; `find(node, dequantize, value, source)` makes its anchor.

    The node reads input `source` of the body, the value `value`, directly or through `dequantize`. The maximum of
    quantized integers is dequantized after the pool: the epilogue then begins with `dequantize`. This is exact, because
    scales are positive and keep the order. Raises Unsupported.
    """
    e = EpilogueBuilder(result_dims(body))
    node = next(n for n in body.nodes if n.op.name in operations)
    first = next(node.operands).node
    dequantize = first if first is not None and first.op.name == "dequantize" else None
    value = _source(node, dequantize)
    anchor = find(node, dequantize, value, body.inputs.index(value))

    def result(args: list[Any]) -> Expr:
        if isinstance(anchor, Pool) and anchor.how == "max" and dequantize is not None:
            return e.dequantized(acc(), dequantize, node.output)
        return acc("f32")

    return lower_body(e, body, (node, result), (dequantize,), [0], anchor=anchor)


def _source(node: Node, dequantize: Node | None) -> Value:
    """The body's input that `node` reads, directly or through `dequantize`. Raises Unsupported for other operands."""
    value = next((dequantize or node).operands)
    if value.node is not None:
        raise Unsupported(f"the input of {node.op.name} is computed by {value.node.op.name}",
                          "quantize and dequantize the input", 0)
    if value.dtype.name not in STORAGE or dequantize is not None and value.dtype.name not in ("u8", "s8"):
        raise Unsupported(f"the input is {value.dtype}, kernels over pixels take u8, s8, f32, bf16 and f16",
                          "quantize the input to u8 or s8", 0)
    if dequantize is not None and dequantize.attrs["qtype"] == "per_channel":
        k, rank = dequantize.attrs["axis"], len(value.type.dims)
        if k % rank != rank - 1:
            raise Unsupported("the input is quantized along {own}, not along the channels",
                              "quantize the input per tensor, or along the channels, {channels}", 0,
                              own=Axes(value, (k,)), channels=Axes(value, (-1,)))
    return value


def scales_of(dequantize: Node | None, channels: int) -> Scales | None:
    """The scales and zero points of all channels; None without a dequantize."""
    if dequantize is None:
        return None
    a = dequantize.attrs
    return Scales(*(np.broadcast_to(np.asarray(x, np.float32), channels) for x in (a["scales"], a["zps"] or 0)))


def _pool(node: Node, dequantize: Node | None, value: Value, source: int) -> Pool:
    how, dtype, out = POOLS[node.op.name], value.dtype.name, node.output.type.dims
    shape, w, counts, order = _windows(node, value.type.dims, STORAGE[dtype].itemsize)
    # a padding pixel never wins a maximum; for means it is the zero point
    pixel: Any = least(dtype) if how == "max" else 0 if dequantize is None else dequantize.attrs["zps"] or 0
    pad = np.broadcast_to(np.asarray(pixel, STORAGE[dtype]), shape[-1:])
    if how == "mean":
        return Pool(how, source, dtype, shape, w, pad, out, scales_of(dequantize, shape[-1]), order, counts)
    if dequantize is not None:
        # A pool finds the maximum of integers. With a negative scale, the least integer would be the maximum.
        expect_positive(dequantize.attrs["scales"])
        if shape[0] * w.pixels and w.fewest_inside == 0:
            raise Unsupported("a window lies only in the padding: its maximum is -inf, and not an integer",
                              "take pads that are smaller than the window")
    return Pool(how, source, dtype, shape, w, pad, out)


def _windows(node: Node, shape: tuple[int, ...], itemsize: int) -> tuple[tuple[int, ...], Windows, np.ndarray, Order]:
    """The input's shape [images, spatial..., channels], its windows, the divisors of means, and the order of sums."""
    pixel = shape[-1] * itemsize
    if node.op.name == "reduce_mean":
        axes = {a % len(shape) for a in node.attrs["axes"]}
        if not axes or len(shape) - 1 in axes:
            source = next(node.operands)
            raise Unsupported(node.op.name + " reduces {reduced} of {source}, kernels any but {last}",
                              "transpose the input, to keep the last axis", reduced=Axes(source, tuple(axes)),
                              source=source, last=Axes(source, (-1,)))
        first = min(axes)
        inner = shape[first:-1]
        taps = [d if k + first in axes else 1 for k, d in enumerate(inner)]
        left = [1 if k + first in axes else d for k, d in enumerate(inner)]
        one = [1] * len(inner)
        w = windows(inner, taps, one, one, [(0, 0)] * len(inner), left, pixel)
        return (prod(shape[:first]), *shape[first:]), w, later(np.full, prod(left), prod(taps), np.float32), "eights"
    a = node.attrs
    if a["data_format"] != "NXC":
        raise Unsupported("kernels take channels last, data_format NXC")
    sizes, outputs = shape[1:-1], node.output.type.dims[1:-1]
    dilations = a.get("dilations") or (1,) * len(sizes)
    pads = [padding(a["auto_pad"], n, (k - 1) * d + 1, s, begin, end) for n, k, d, s, begin, end
            in zip(sizes, a["kernel"], dilations, a["strides"], a["pads_begin"], a["pads_end"], strict=True)]
    w = windows(sizes, a["kernel"], a["strides"], dilations, pads, outputs, pixel)
    if node.op.name == "max_pool":
        return shape, w, np.ones(()), "taps"
    each = list(zip(sizes, a["kernel"], a["strides"], pads, outputs, strict=True))
    return shape, w, later(_counts, each, a["exclude_pad"]), \
        pool_order(sizes, a["kernel"], a["strides"], pads, a["in_order"])


@recorded("pool.counts")
def _counts(axes: Sequence[tuple[int, int, int, tuple[int, int], int]], inside: bool) -> np.ndarray:
    """The divisors of means, f32 [pixels]; an entry of `axes` is an axis's (size, taps, stride, pads, outputs)."""
    counts = np.ones((), np.float32)
    for n, k, stride, pad, out in axes:
        counts = np.multiply.outer(counts, window_counts(n, k, stride, pad, out, inside=inside))
    return counts.ravel()


def pixel_steps(b: PlanBuilder, node: Node, lowered: Lowered) -> None:
    """Add the step of a pool or of weighted means. The tables of windows and weights are constants of the plan."""
    p = lowered.anchor
    space, slots = epilogue_slots(b, node, lowered, keep=1)
    step = p.plan(lowered.epilogue, Pixels(p.dtype, p.windows, space.n, space.batch, space.m), b.target)
    words = {"images": Ref(b.of[node.operand(p.source)]), "windows": Ref(b.constant(p.windows.block(p.pad)))}
    if p.weights is not None:
        words["weights"] = Ref(b.constant(p.weights))
    b.run(step, words, slots)


POOL = Family("pool", tuple(POOLS), lower_pool, pixel_steps, any_operands(*POOLS),
              any_operands(*POOLS), channels_last=("max_pool", "avg_pool"))

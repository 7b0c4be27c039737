"""The operation histogram, with which a compiled model observes its own tensors (`graphq.quantization.calibrate`)."""
from __future__ import annotations

from graphq.dtypes import f32, s32
from graphq.ir import TensorType
from graphq.ir.op import register_op
from graphq.kernels.numbers import float_bins
from graphq.ops.compute import Array
from graphq.ops.infer import expect_dtype


def infer_histogram(src: TensorType) -> tuple[TensorType, TensorType]:
    """The source is f32; the results are the counts and the extremes."""
    expect_dtype("src", src, (f32,))
    return TensorType(s32, (float_bins.BINS,)), TensorType(f32, (2,))


@register_op(infer=infer_histogram, layout="unordered")
def histogram(src: Array) -> tuple[Array, Array]:
    """For each value of an f32's highest 14 bits how many elements have it (s32 [16384]), and the extremes (f32 [2]).

    The extremes are the least and the greatest element. They are compared by the predicate totalOrder of IEEE 754, in
    which NaNs lie beyond the infinities, so that a NaN becomes an extreme. Without elements the extremes are [inf,
    -inf]. The order of elements does not matter.
    """
    return float_bins.histogram(src)

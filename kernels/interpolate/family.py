"""The record of the family of interpolations, in all modes."""
from __future__ import annotations

from graphq.kernels.family.record import Family
from graphq.kernels.interpolate.lower import lower_interpolate
from graphq.kernels.interpolate.steps import interpolate_steps
from graphq.rewrite.pattern import ANY, PatternBuilder, PatternLike


def quantised(g: PatternBuilder) -> PatternLike:
    """interpolate(dequantize?(x))"""
    return g.interpolate(..., attrs=ANY)


INTERPOLATE = Family("interpolate", ("interpolate",), lower_interpolate, interpolate_steps, quantised,
                     channels_last=("interpolate",))

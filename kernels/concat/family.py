"""The record of the family of concats."""
from __future__ import annotations

from graphq.kernels.concat.lower import lower_concat
from graphq.kernels.concat.steps import concat_steps
from graphq.kernels.family.record import Family
from graphq.rewrite.pattern import ANY, PatternBuilder, PatternLike


def quantised(g: PatternBuilder) -> PatternLike:
    """concat(dequantize?(x), ...)"""
    return g.concat(..., attrs=ANY)


CONCAT = Family("concat", ("concat",), lower_concat, concat_steps, quantised)

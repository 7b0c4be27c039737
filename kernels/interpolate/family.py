"""The record of the family of interpolations, in all modes."""
from __future__ import annotations

from graphq.kernels.family.record import Family, any_operands
from graphq.kernels.interpolate.lower import check_interpolate, lower_interpolate
from graphq.kernels.interpolate.steps import interpolate_steps

INTERPOLATE = Family("interpolate", ("interpolate",), check_interpolate, lower_interpolate, interpolate_steps,
                     any_operands("interpolate"), channels_last=("interpolate",))

"""The record of the family of concats."""
from __future__ import annotations

from graphq.kernels.concat.lower import check_concat, lower_concat
from graphq.kernels.concat.steps import concat_steps
from graphq.kernels.family.record import Family, any_operands

CONCAT = Family("concat", ("concat",), check_concat, lower_concat, concat_steps, any_operands("concat"))

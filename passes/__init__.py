"""Passes: one a file; pipeline.py has their order."""
from graphq.passes.canonicalise import canonicalise
from graphq.passes.channels_last import channels_last
from graphq.passes.cleanup import eliminate_common_subexpressions, eliminate_dead_code
from graphq.passes.duplicate_dequantize import duplicate_dequantize
from graphq.passes.fold_constants import fold_constants, fold_dequantized_constants, fold_dequantized_operands
from graphq.passes.fold_scales import fold_scales
from graphq.passes.fuse import Fuse
from graphq.passes.normalise_groups import NormaliseGroupsAsRows
from graphq.passes.pipeline import PIPELINE, run_passes
from graphq.passes.rows_last import RowsLast
from graphq.passes.widen_floats import WidenProducts
from graphq.rewrite.rule import ANY, Match, Pass, Refusal, Rewrite

__all__ = ["ANY", "PIPELINE", "Fuse", "Match", "NormaliseGroupsAsRows", "Pass", "Refusal", "Rewrite", "RowsLast",
           "WidenProducts", "canonicalise", "channels_last", "duplicate_dequantize", "eliminate_common_subexpressions",
           "eliminate_dead_code", "fold_constants", "fold_dequantized_constants", "fold_dequantized_operands",
           "fold_scales", "run_passes"]

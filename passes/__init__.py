"""Passes: one a file; pipeline.py has their order."""
from graphq.passes.canonicalise import canonicalise
from graphq.passes.channels_last import channels_last
from graphq.passes.cleanup import eliminate_common_subexpressions, eliminate_dead_code
from graphq.passes.duplicate_dequantize import duplicate_dequantize
from graphq.passes.fold_constants import fold_constants, fold_dequantized_constants, fold_dequantized_operands
from graphq.passes.fold_scales import fold_scales
from graphq.passes.fuse_concat import FuseConcat
from graphq.passes.fuse_convolution import FuseConvolution, FuseFloatConvolution
from graphq.passes.fuse_eltwise import FuseEltwise
from graphq.passes.fuse_interpolate import FuseInterpolate
from graphq.passes.fuse_matmul import FuseFloatMatmul, FuseMatmul
from graphq.passes.fuse_matmul_4bit import FuseMatmul4bit
from graphq.passes.fuse_pool import FusePool
from graphq.passes.fuse_row import FuseRow
from graphq.passes.normalise_groups import NormaliseGroupsAsRows
from graphq.passes.pipeline import PIPELINE, run_passes
from graphq.passes.rows_last import RowsLast
from graphq.passes.widen_floats import WidenProducts
from graphq.rewrite.rule import ANY, Match, Pass, Refusal, Rewrite

__all__ = ["ANY", "PIPELINE", "FuseConcat", "FuseConvolution", "FuseEltwise", "FuseFloatConvolution", "FuseFloatMatmul",
           "FuseInterpolate", "FuseMatmul", "FuseMatmul4bit", "FusePool", "FuseRow", "Match", "NormaliseGroupsAsRows",
           "Pass", "Refusal", "Rewrite", "RowsLast", "WidenProducts", "canonicalise", "channels_last",
           "duplicate_dequantize", "eliminate_common_subexpressions", "eliminate_dead_code", "fold_constants",
           "fold_dequantized_constants", "fold_dequantized_operands", "fold_scales", "run_passes"]

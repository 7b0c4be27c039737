"""Passes: one a file; pipeline.py has their order."""
from graphq.passes.canonicalise import canonicalise
from graphq.passes.channels_last import channels_last
from graphq.passes.cleanup import eliminate_common_subexpressions, eliminate_dead_code
from graphq.passes.duplicate_dequantize import duplicate_dequantize
from graphq.passes.fold_constants import fold_constants, fold_dequantized_constants
from graphq.passes.fold_scales import fold_scales
from graphq.passes.fuse_eltwise import FuseEltwise
from graphq.passes.fuse_matmul import FuseFloatMatmul, FuseMatmul
from graphq.passes.pipeline import PIPELINE, run_passes
from graphq.rewrite import ANY, Match, Pass, Refusal, Rewrite

__all__ = ["ANY", "PIPELINE", "FuseEltwise", "FuseFloatMatmul", "FuseMatmul", "Match", "Pass", "Refusal", "Rewrite",
           "canonicalise", "channels_last", "duplicate_dequantize", "eliminate_common_subexpressions",
           "eliminate_dead_code", "fold_constants", "fold_dequantized_constants", "fold_scales", "run_passes"]

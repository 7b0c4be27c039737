"""The passes that change graphs before they are planned, and the order of the passes (PIPELINE).

A file has one pass, or several rewrites with one purpose.
"""
from graphq.passes.channels_last import channels_last
from graphq.passes.cleanup import (
    eliminate_common_subexpressions,
    eliminate_dead_code,
    fold_constants,
    fold_dequantized_constants,
    fold_dequantized_operands,
)
from graphq.passes.float_products import (
    CastDequantizedWeights,
    CastIntegers,
    GatherWeights,
    MoveWeights,
    PadWeights,
    RoundProducts,
    ScaleIntegers,
    WidenProducts,
)
from graphq.passes.fold_scales import fold_scales
from graphq.passes.fuse import Fuse, duplicate_dequantize, duplicate_masks, leave_ties
from graphq.passes.move_quantization import (
    CastBeforeMoves,
    ConcatBeforeDequantize,
    GatherBeforeDequantize,
    PadBeforeDequantize,
    PickBeforeDequantize,
    QuantizeBeforePad,
    QuantizeBeforeReshape,
    QuantizeBeforeTranspose,
    ReshapeBeforeDequantize,
    TransposeBeforeDequantize,
)
from graphq.passes.normal_forms import (
    ConvIntegerAsConvolution,
    CubeAsProducts,
    DropMultiplyByOne,
    DropRepeatedRelu,
    RowScalesAsGroups,
    SplitBiasOfRows,
)
from graphq.passes.normalizations import NormalizeChannelsAsPool, NormalizeGroupsAsRows, RowsLast
from graphq.passes.pipeline import PIPELINE, PRECISIONS, canonicalize, run_passes
from graphq.passes.ranges_by_row import RangesByRow
from graphq.passes.requantize import (
    DequantizeByGroups,
    DropLimitAfterDequantize,
    DropLimitBeforeQuantize,
    DropRequantize,
    RequantizePicked,
    SplitGroups,
    StaticDequantize,
    StaticQuantize,
    UniformChannelsArePerTensor,
    positive_axis,
)
from graphq.passes.simplify_moves import (
    DropNoopReshape,
    DropNoopTranspose,
    FoldPadIntoConvolution,
    MergeReshapes,
    MergeTransposes,
    MoveRepeat,
    ShareHeads,
    TransposeAsReshape,
)
from graphq.rewrite.fixpoint import Fixpoint, find_pass, rounds, without
from graphq.rewrite.rule import ANY, Match, Pass, Refusal, Rewrite

__all__ = ["ANY", "PIPELINE", "PRECISIONS", "CastBeforeMoves", "CastDequantizedWeights", "CastIntegers",
           "ConcatBeforeDequantize", "ConvIntegerAsConvolution", "DequantizeByGroups", "CubeAsProducts",
           "DropLimitAfterDequantize", "DropLimitBeforeQuantize", "DropMultiplyByOne", "DropNoopReshape",
           "DropNoopTranspose", "DropRepeatedRelu", "DropRequantize", "Fixpoint", "FoldPadIntoConvolution", "Fuse",
           "GatherBeforeDequantize", "GatherWeights", "Match", "MergeReshapes", "MergeTransposes", "MoveRepeat",
           "MoveWeights", "NormalizeChannelsAsPool", "NormalizeGroupsAsRows", "PadBeforeDequantize", "PadWeights",
           "Pass", "PickBeforeDequantize", "QuantizeBeforePad", "QuantizeBeforeReshape", "QuantizeBeforeTranspose",
           "RangesByRow", "Refusal", "RequantizePicked", "ReshapeBeforeDequantize", "Rewrite", "RoundProducts",
           "RowScalesAsGroups", "RowsLast", "ShareHeads", "ScaleIntegers", "SplitBiasOfRows", "SplitGroups",
           "StaticDequantize", "StaticQuantize", "TransposeAsReshape", "TransposeBeforeDequantize",
           "UniformChannelsArePerTensor", "WidenProducts", "canonicalize", "channels_last", "duplicate_dequantize",
           "duplicate_masks", "eliminate_common_subexpressions", "eliminate_dead_code", "find_pass", "fold_constants",
           "fold_dequantized_constants", "fold_dequantized_operands", "fold_scales", "leave_ties", "positive_axis",
           "rounds", "run_passes", "without"]

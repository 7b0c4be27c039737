"""The record of the family of convolutions, including transposed and depthwise ones."""
from __future__ import annotations

from math import prod

from graphq.ir import Node
from graphq.kernels.conv.lower import CONVOLUTIONS, check_convolution, lower_convolution
from graphq.kernels.conv.steps import convolution_steps
from graphq.kernels.family.record import Family, any_operands
from graphq.kernels.matmul.family import dequantized_operands
from graphq.ops.conv import weight_axes
from graphq.rewrite.pattern import PatternBuilder, PatternLike


def quantized(g: PatternBuilder) -> PatternLike:
    """The pattern convolution(dequantize(x), dequantize(w), bias?), and the same for conv_transpose."""
    return dequantized_operands(g, *CONVOLUTIONS)


def macs(node: Node) -> int:
    """Count the multiply-accumulates: each element of the result takes one for each weight of an output channel."""
    dims = _weights(node)
    return node.output.type.size * prod(dims) // max(1, dims[_axes(node, len(dims))[0]])


def transposed_macs(node: Node) -> int:
    """Count the multiply-accumulates: each element of the source takes one for each weight of an input channel."""
    dims = _weights(node)
    return next(node.operands).type.size * prod(dims) // max(1, dims[_axes(node, len(dims))[1]])


def _weights(node: Node) -> tuple[int, ...]:
    _, weights, *_ = node.operands
    return weights.type.dims


def _axes(node: Node, rank: int) -> tuple[int, ...]:
    """The axes of the weights: output channels, input channels, and the spatial ones.

    The weights of ONNX's conv_integer always have the format OIX.
    """
    return weight_axes(node.attrs.get("weights_format", "OIX"), rank - 2)


CONVOLUTION = Family(
    "convolution", CONVOLUTIONS, check_convolution, lower_convolution, convolution_steps, quantized,
    any_operands(*CONVOLUTIONS), channels_last=CONVOLUTIONS,
    macs={"convolution": macs, "conv_integer": macs, "conv_transpose": transposed_macs})

"""com.microsoft's float operators of transformers, as ONNX Runtime's documentation (ContribOperators.md) has them."""
from __future__ import annotations

import numpy as np

from graphq.dtypes import f32, s32
from graphq.errors import GraphError
from graphq.ir import Value
from graphq.onnx.composed import standard, written
from graphq.onnx.import_eltwise import one
from graphq.onnx.import_quant import dequantized, parameters
from graphq.onnx.importer import MICROSOFT, Call, Outputs, imports


@imports("Gelu", "BiasGelu", "FastGelu", domain=MICROSOFT)
def gelu(c: Call) -> Outputs:
    """By erf, FastGelu by tanh; of the sum with a bias."""
    x = c.graph.add(c.input(0), c.input(1)) if c.has(1) else c.input(0)
    return c.graph.gelu(x, mode="gelu_tanh" if c.node.op_type == "FastGelu" else "gelu_erf")


@imports("QuickGelu", domain=MICROSOFT)
def quick_gelu(c: Call) -> Outputs:
    """`x * sigmoid(alpha * x)`"""
    x = c.input(0)
    return c.graph.multiply(x, c.graph.sigmoid(c.graph.multiply(x, one(x, c.attr("alpha", 1.702)))))


@imports("SkipLayerNormalization", "SkipSimplifiedLayerNormalization", domain=MICROSOFT)
def skip_layer_normalization(c: Call) -> Outputs:
    """The norm of input + skip + bias, and as a fourth output that sum. Simplified: the root mean square's."""
    g, simple = c.graph, c.node.op_type.startswith("SkipSimplified")
    if any(c.node.output[k] for k in (1, 2) if k < len(c.node.output)):
        raise GraphError("mean and inverse deviation are not given")
    total = g.add(c.input(0), c.input(1))
    bias = c.optional(3 if simple else 4)
    if bias is not None:
        total = g.add(total, bias)
    epsilon = c.attr("epsilon", 1e-12)
    y = g.rms_norm(total, c.input(2), epsilon=epsilon) if simple else \
        _layer_norm(c, total, c.input(2), c.optional(3), epsilon)
    return [y, y, y, total][:max(1, c.outputs)]


def _layer_norm(c: Call, x: Value, gamma: Value, beta: Value | None, epsilon: float) -> Value:
    beta = c.graph.constant(np.zeros(gamma.type.dims, gamma.dtype.numpy)) if beta is None else beta
    return c.graph.layer_norm(x, gamma, beta, keep_stats=False, epsilon=epsilon, begin_norm_axis=-1)


@imports("EmbedLayerNormalization", domain=MICROSOFT)
def embed_layer_normalization(c: Call) -> Outputs:
    """The norm of word, position and segment embeddings; then the lengths by the mask, and the embeddings' sum."""
    g, ids, segments = c.graph, c.input(0), c.optional(1)
    positions = c.optional(8)
    if positions is None:
        positions, = written(c, """(ids) => (positions) {
            zero = Constant<value_int = 0>()
            one = Constant<value_int = 1>()
            count = Shape<start = 1>(ids)
            length = Squeeze(count)
            positions = Range(zero, length, one)
        }""", ids=ids)
    total = g.add(g.gather(c.input(2), ids), g.gather(c.input(3), positions))
    if segments is not None:
        total = g.add(total, g.gather(c.input(4), segments))
    y = _layer_norm(c, total, c.input(5), c.input(6), c.attr("epsilon", 1e-12))
    mask = c.optional(7)
    if c.outputs == 1:
        return y
    if mask is None:
        lengths, = written(c, """(ids) => (lengths) {
            zero = Constant<value = int32[1] {0}>()
            batch = Shape<end = 1>(ids)
            lengths = Expand(zero, batch)
        }""", ids=ids)
    else:
        lengths, = standard(c, "ReduceSum", [mask, g.constant(np.asarray([1]))], keepdims=0)
    return [y, lengths, total][:c.outputs]


@imports("Attention", domain=MICROSOFT)
def attention(c: Call) -> Outputs:
    """input, weights [d, 3 d'], bias, mask; without past, and without an attention bias."""
    projected = c.graph.add(c.graph.matmul(c.input(0), c.input(1)), c.input(2)) if c.has(2) else \
        c.graph.matmul(c.input(0), c.input(1))
    if any(c.has(k) for k in (4, 5, 6)):
        raise GraphError("past and attention bias are not supported")
    return heads(c, projected, c.optional(3))


@imports("QAttention", domain=MICROSOFT)
def qattention(c: Call) -> Outputs:
    """Attention of quantized input and weights: input, weights, bias, both scales, mask, both zero points."""
    x, w = c.input(0), c.input(1)
    if c.has(8):
        raise GraphError("past is not supported")
    y = c.graph.matmul(dequantized(c, x, parameters(c, x, c.input(3), c.optional(6), 1)),
                       dequantized(c, w, parameters(c, w, c.input(4), c.optional(7), 1)))
    return heads(c, c.graph.add(y, c.input(2)), c.optional(5))


def heads(c: Call, projected: Value, mask: Value | None) -> Outputs:
    """softmax(q @ k' * scale + mask) @ v by heads, from [batch, length, 3 * width]."""
    g, count = c.graph, c.attr("num_heads")
    width = projected.shape[-1] if projected.shape else None
    if width is None or c.outputs > 1:
        raise GraphError("the width must be known, and the present state is not given")
    sizes = c.attr("qkv_hidden_sizes") or [width // 3] * 3
    parts, start = [], 0
    for size in sizes:
        part = g.slice(projected, axes=[2], starts=[start], ends=[start + size], steps=[1])
        split = g.static_reshape(part, shape=[0, 0, count, size // count], special_zero=True)
        parts.append(g.static_transpose(split, order=[0, 2, 1, 3]))
        start += size
    scale = c.attr("scale", 0.0) or 1 / np.sqrt(sizes[0] // count)
    scores = g.matmul(parts[0], parts[1], transpose_b=True)
    scores = g.multiply(scores, one(scores, scale))
    if mask is not None:
        scores = g.add(scores, masked(c, mask))
    if c.attr("unidirectional", 0):
        raise GraphError("unidirectional attention is not supported")
    y = g.matmul(g.softmax(scores, axis=-1), parts[2])
    return g.static_reshape(g.static_transpose(y, order=[0, 2, 1, 3]), shape=[0, 0, sizes[2]], special_zero=True)


def masked(c: Call, mask: Value) -> Value:
    """A raw mask [batch, length] of 0 and 1 as what is added to the scores: (1 - mask) * mask_filter_value."""
    if mask.shape is None or len(mask.shape) != 2 or mask.dtype != s32:
        raise GraphError(f"a mask must be s32[batch,length], got {mask.type}")
    g = c.graph
    kept = g.cast(*standard(c, "Unsqueeze", [mask, g.constant(np.asarray([1, 2]))]), dtype=f32)
    return g.multiply(g.subtract(np.float32(1), kept), np.float32(c.attr("mask_filter_value", -10000.0)))

"""Importers of com.microsoft's float operators for transformers, as ONNX Runtime documents them."""
import numpy as np

from graphq.dtypes import f32, s32
from graphq.errors import GraphError
from graphq.ir import Value, listing, shapes_agree
from graphq.onnx.importers.attention import up_to_own
from graphq.onnx.importers.com_microsoft.quantized import at, of_columns
from graphq.onnx.importers.composed import by_f32, one, places, size_of, standard
from graphq.onnx.importers.importer import MICROSOFT, Call, Outputs, imports, width
from graphq.onnx.importers.shape import parts
from graphq.ops.rules import show


@imports("Gelu", "BiasGelu", "FastGelu", domain=MICROSOFT)
def gelu(c: Call) -> Outputs:
    """Import Gelu (by erf), FastGelu (by tanh) and variants that first add a bias."""
    c.expect(1, (width(c.input(0)),))
    x = c.graph.add(c.input(0), c.input(1)) if c.has(1) else c.input(0)
    return c.graph.gelu(x, mode="gelu_tanh" if c.node.op_type == "FastGelu" else "gelu_erf")


@imports("SkipLayerNormalization", "SkipSimplifiedLayerNormalization", domain=MICROSOFT)
def skip_layer_normalization(c: Call) -> Outputs:
    """Import SkipLayerNormalization: layer normalization of input + skip + bias; the fourth output is this sum.

    SkipSimplifiedLayerNormalization divides by the root mean square instead.
    """
    g, simple = c.graph, c.node.op_type.startswith("SkipSimplified")
    if any(c.node.output[k] for k in (1, 2) if k < len(c.node.output)):
        raise GraphError("outputs 1 and 2, mean and inverse deviation, are not supported")
    if (dims := c.input(0).shape) is not None:
        c.expect(0, (None,) * 2, (None,) * 3)
        c.expect(1, *([dims] if len(dims) < 3 else [dims, (1, *dims[1:]), dims[1:]]))
        for k in (2, 3, 4):
            c.expect(k, dims[-1:])
    total = g.add(c.input(0), c.input(1))
    bias = c.optional(3 if simple else 4)
    if bias is not None:
        total = g.add(total, bias)
    epsilon = c.attr("epsilon", 1e-12)
    y = g.rms_norm(total, c.input(2), epsilon=epsilon) if simple else \
        _layer_norm(c, total, c.input(2), c.optional(3), epsilon)
    return [y, y, y, total][:max(1, c.outputs)]


def _layer_norm(c: Call, x: Value, gamma: Value, beta: Value | None, epsilon: float) -> Value:
    def normalized(x: Value, gamma: Value, beta: Value | None) -> Value:
        if beta is None:
            beta = c.graph.constant(np.zeros(gamma.type.dims, np.float32))
        return c.graph.layer_norm(x, gamma, beta, keep_stats=False, epsilon=epsilon, begin_norm_axis=-1)

    return by_f32(c, normalized, x, gamma, beta)


@imports("EmbedLayerNormalization", "QEmbedLayerNormalization", domain=MICROSOFT)
def embed_layer_normalization(c: Call) -> Outputs:
    """Import EmbedLayerNormalization: layer normalization of the sum of word, position and segment embeddings.

    In QEmbedLayerNormalization, a scale and a zero point dequantize each table, gamma and beta.
    Further outputs are the sums of the mask (the lengths of the sequences) and the sum of the embeddings.
    """
    g, ids, segments, quantized = c.graph, c.input(0), c.optional(1), c.node.op_type.startswith("Q")
    positions = None if quantized else c.optional(8)
    c.expect(0, (None, None))
    batch, length = ids.shape or (None, None)
    for k in (1, 7) if quantized else (1, 7, 8):
        c.expect(k, (batch, length), *([(1, length)] if k == 8 else []))
    c.expect(2, (None, None))
    size = width(c.input(2))
    for k in (3, 4, 5, 6):
        c.expect(k, (None, size) if k < 5 else (size,))
    if positions is None:
        positions = places(c, ids, 1)

    def table(k: int) -> Value:
        return at(c, k, k + 6, k + 11) if quantized else c.input(k)

    total = g.add(g.gather(table(2), ids), g.gather(table(3), positions))
    if segments is not None:
        total = g.add(total, g.gather(table(4), segments))
    y = _layer_norm(c, total, table(5), table(6), c.attr("epsilon", 1e-12))
    mask = c.optional(7)
    if c.outputs == 1:
        return y
    if mask is None:
        lengths, = standard(c, "Expand", [np.zeros(1, np.int32), size_of(c, ids, 0)])
    else:
        lengths, = standard(c, "ReduceSum", [mask, np.asarray([1])], keepdims=0)
    return [y, lengths, total][:c.outputs]


@imports("Attention", domain=MICROSOFT)
def attention(c: Call) -> Outputs:
    """Import Attention. Inputs: input, weights [in, 3 * out], bias, mask, past keys and values, bias of scores."""
    _expect_sizes(c, 4)
    y = c.graph.matmul(c.input(0), c.input(1))
    return heads(c, c.graph.add(y, c.input(2)) if c.has(2) else y, c.optional(3), c.optional(4), c.optional(5))


def _expect_sizes(c: Call, past: int) -> None:
    c.expect(0, (None, None, None))
    c.expect(past, (2, (c.input(0).shape or (None,))[0], c.attr("num_heads"), None, None))
    c.expect(1, (None, None))
    c.expect(2, (width(c.input(1)),))


@imports("QAttention", domain=MICROSOFT)
def qattention(c: Call) -> Outputs:
    """Import QAttention. Inputs: input, weights, bias, both scales, mask, both zero points, past keys and values."""
    _expect_sizes(c, 8)
    y = c.graph.matmul(at(c, 0, 3, 6), of_columns(c, 1, 4, 7))
    return heads(c, c.graph.add(y, c.input(2)), c.optional(5), c.optional(8), None)


def heads(c: Call, projected: Value, mask: Value | None, past: Value | None, bias: Value | None) -> Outputs:
    """Compute softmax(q @ k' * scale + mask + bias) @ v for each head. A second output stacks keys and values.

    `projected` [batch, length, width] has q, k and v side by side; `past` is [2, batch, heads, length, size].
    """
    g, count = c.graph, c.positive("num_heads")
    columns = width(projected)
    if columns is None:
        raise GraphError("the width of input 1 must be known")
    for name in ("do_rotary", "past_present_share_buffer"):
        if c.attr(name, 0):
            raise GraphError(f"attribute '{name}' is not supported")
    sizes = c.attr("qkv_hidden_sizes") or [columns // 3] * 3
    if len(sizes) != 3 or sum(sizes) != columns or any(size < 1 or size % count for size in sizes):
        c.refuse(f"input 1 must have as many columns for queries, keys and values as {count} heads take, got {columns}")
    split = (g.static_reshape(part, shape=[0, 0, count, size // count], special_zero=True)
             for size, part in zip(sizes, parts(projected, 2, sizes), strict=True))
    q, k, v = (g.static_transpose(x, order=[0, 2, 1, 3]) for x in split)
    if past is not None:
        k, v = (g.concat(*standard(c, "Squeeze", [part, np.asarray([0])]), x, axis=2)
                for part, x in zip(parts(past, 0, [1, 1]), (k, v), strict=True))
    scale = c.attr("scale", 0.0) or 1 / np.sqrt(sizes[0] // count)
    scores = g.matmul(q, k, transpose_b=True)
    scores = g.multiply(scores, one(scores, scale))
    if mask is not None:
        scores = g.add(scores, hidden(c, mask, scores))
    if bias is not None:
        scores = g.add(scores, bias)
    if c.attr("unidirectional", 0):
        before = g.arithmetic(*(size_of(c, scores, axis) for axis in (3, 2)), function="subtract")
        scores = g.select(up_to_own(c, scores, before), scores, one(scores, -np.inf))
    y = g.matmul(g.softmax(scores, axis=-1), v)
    y = g.static_reshape(g.static_transpose(y, order=[0, 2, 1, 3]), shape=[0, 0, sizes[2]], special_zero=True)
    if c.outputs < 2:
        return y
    both = (standard(c, "Unsqueeze", [x, np.asarray([0])])[0] for x in (k, v))
    return [y, g.concat(*both, axis=0)]


def _within(c: Call, mask: Value, scores: Value) -> Value:
    """True for the keys that a batch element sees: from its start up to, but not including, its end.

    The mask has an end for each batch element, optionally followed by a start for each (default 0).
    """
    g, batch, keys = c.graph, size_of(c, scores, 0), places(c, scores, 3)
    none, = standard(c, "Expand", [np.zeros(1, np.int32), batch])
    both, = standard(c, "Concat", [mask, none], axis=0)
    ends, = standard(c, "Slice", [both, np.asarray([0]), batch])
    starts, = standard(c, "Slice", [both, batch, *standard(c, "Add", [batch, batch])])
    first, last = (g.static_reshape(x, shape=[-1, 1, 1, 1]) for x in (starts, ends))
    return g.logical_and(g.less_equal(first, keys), g.less(keys, last))


def hidden(c: Call, mask: Value, scores: Value) -> Value:
    """The value to add to each score: 0 if the query sees the key, else a negative number.

    The mask is a vector as for `_within`, or it has 0 for hidden keys and 1 for others: [batch, keys] or
    [batch, queries, keys]. `scores` [batch, heads, queries, keys] only states the dtype and the sizes.
    """
    away = c.attr("mask_filter_value", -10000.0)
    batch, _, _, keys = scores.shape or (None,) * 4
    forms = [(batch,), (None if batch is None else 2 * batch,), (batch, keys), (batch, 1), (batch, None, keys)]
    if not any(shapes_agree(form, mask.shape) for form in forms):
        c.refuse(f"a mask must be {listing(map(show, forms), 'or')}, got {mask.type}")
    if mask.shape is not None and len(mask.shape) == 1 and mask.dtype == s32:
        return c.graph.select(_within(c, mask, scores), one(scores, 0), one(scores, away))
    rank = 0 if mask.shape is None else len(mask.shape)
    if mask.dtype != s32 or rank not in (2, 3):
        raise GraphError(f"a mask must be s32[batch,length], got {mask.type}")
    g, axes = c.graph, [1, 2] if rank == 2 else [1]
    kept = g.cast(*standard(c, "Unsqueeze", [mask, np.asarray(axes)]), dtype=f32)
    added = g.multiply(g.subtract(np.float32(1), kept), np.float32(away))
    return added if scores.dtype == f32 else g.type_cast(added, dtype=scores.dtype)

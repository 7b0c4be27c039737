"""Importers of com.microsoft's attention operators and RotaryEmbedding."""
import math
from typing import Any

import numpy as np

from graphq.dtypes import f32, s32
from graphq.errors import GraphError
from graphq.ir import Value
from graphq.onnx.importers.com_microsoft.transformer import hidden
from graphq.onnx.importers.composed import NEWER, in_f32, standard
from graphq.onnx.importers.importer import MICROSOFT, Call, Outputs, imports, width
from graphq.onnx.importers.shape import parts
from graphq.ops.attention import capacity_of


@imports("MultiHeadAttention", domain=MICROSOFT)
def multi_head_attention(c: Call) -> Outputs:
    """Import MultiHeadAttention: query, key, value [batch, length, width], one bias, masks, past keys and values."""
    q, k, v = (c.input(i) for i in range(3))
    if wrong := [x.type for x in (q, k, v) if x.shape is None or len(x.shape) != 3]:
        raise GraphError(f"query, key and value must be [batch, length, width], got {wrong[0]}")
    if c.has(8) or c.has(9) or c.outputs > 3:
        raise GraphError("past sequence lengths, cache indirection and outputs of query-key products are not "
                         "supported")
    _expect_sizes(c, heads := c.positive("num_heads"))
    if c.has(3):
        # each gets a slice of the bias; slices have equal widths if widths are unknown
        sizes = [c.input(3).type.dims[0] // 3 if (size := width(x)) is None else size for x in (q, k, v)]
        q, k, v = (c.graph.add(x, part) for x, part in zip((q, k, v), parts(c.input(3), 0, sizes), strict=True))
    masks = [hidden(c, c.input(4), _keys(c, k))] if c.has(4) else []
    masks += [c.input(5)] if c.has(5) else []
    mask = c.graph.add(*masks) if len(masks) == 2 else masks[0] if masks else None
    attrs = {"scale": c.attr("scale")} if c.attr("scale", 0.0) else {}
    return standard(c, "Attention", [q, k, v, mask, c.optional(6), c.optional(7)], max(1, c.outputs), opset=NEWER,
                    q_num_heads=heads, kv_num_heads=heads, is_causal=int(bool(c.attr("unidirectional", 0))), **attrs)


def _expect_sizes(c: Call, heads: int) -> None:
    (batch, rows, width), (_, keys, _), (_, _, last) = (c.input(k).shape or (None,) * 3 for k in range(3))
    for k, size in ((0, width), (2, last)):
        if size is not None and size % heads:
            c.refuse(f"input {k} must have a width that {heads} heads divide, got {c.input(k).type}")
    c.expect(1, (batch, None, width))
    c.expect(2, (batch, keys, None))
    c.expect(3, (None if width is None or last is None else 2 * width + last,))
    total = None if c.has(6) else keys
    c.expect(5, *((b, h, rows, total) for b in (batch, 1) for h in (heads, 1)))
    for k in (6, 7):
        c.expect(k, (batch, heads, None, None))


def _keys(c: Call, k: Value) -> Value:
    """A tensor [batch, 1, 1, number of past and new keys], for code that needs only its shape and dtype."""
    def first(x: Value, axis: int) -> Value:
        return c.graph.slice(x, axes=[axis], starts=[0], ends=[1], steps=[1])

    new = c.graph.static_transpose(first(k, 2), order=[0, 2, 1])
    new, = standard(c, "Unsqueeze", [new, np.asarray([1])])
    if not c.has(6):
        return new
    return c.graph.concat(c.graph.static_transpose(first(first(c.input(6), 1), 3), order=[0, 1, 3, 2]), new, axis=3)


@imports("RotaryEmbedding", domain=MICROSOFT)
def rotary_embedding(c: Call) -> Outputs:
    """Import RotaryEmbedding; input 1 holds the position of each token. A scale is not supported."""
    positions = c.input(1)
    if positions.shape is None or len(positions.shape) != 2 or c.attr("is_packed_batching", 0) or \
            c.attr("scale", 1.0) != 1:
        raise GraphError(f"positions must be [batch, length], without packing and scale, got {positions.type}")
    dims = c.input(0).shape
    if dims is not None:
        c.expect(0, (None,) * 3, (None,) * 4)
        c.expect(1, (dims[0], dims[-2]))
    c.expect(2, (None, None))
    c.expect(3, c.input(2).shape)
    attrs = {name: c.attr(name) for name in ("interleaved", "num_heads", "rotary_embedding_dim") if c.attr(name)}
    return standard(c, "RotaryEmbedding", [c.input(0), c.input(2), c.input(3), positions], opset=NEWER, **attrs)


@imports("GroupQueryAttention", domain=MICROSOFT)
def group_query_attention(c: Call) -> Outputs:
    """Import GroupQueryAttention as cached_attention; 16-bit floats are computed in f32, and outputs are rounded once.

    f16 and bf16 caches keep their type, and all tokens see the rounded keys and values, as in ONNX Runtime.

    Inputs are query, key and value (or one tensor of all three), past caches, each batch element's number of valid
    tokens minus 1, the greatest number of valid tokens, cosines, sines and positions. Further inputs are a bias, sinks,
    scales of caches of 8 or 4 bits, and weights that normalize query and key.
    """
    _check(c)
    g, heads, groups, dtype = c.graph, c.attr("num_heads"), c.attr("kv_num_heads"), c.input(0).dtype
    size = _size(c, heads, groups)
    q, (k, v) = in_f32(c, c.input(0)), (None if x is None else in_f32(c, x) for x in (c.optional(1), c.optional(2)))
    if c.has(14):
        if k is None or v is None:
            q, k, v = parts(q, 2, [heads * size, groups * size, groups * size])
        q, k = (_normalized(c, x, i, n, size) for x, i, n in ((q, 14, heads), (k, 15, groups)))
    past_k, past_v, cos, sin, positions, bias, sinks = (c.optional(i) for i in (3, 4, 7, 8, 9, 10, 11))
    if not c.attr("do_rotary", 0):
        cos = sin = positions = None
    elif (t := c.input(7).type).shape is None or len(t.shape) != 2 or t.shape[1] is None:
        c.refuse(f"input 7 must be [length, half of a head's width], got {t}")
    if sinks is None and c.attr("smooth_softmax", -1) == 1:
        sinks = g.constant(np.zeros(heads, np.float32))
    bits = c.attr("kv_cache_bit_width", 0)
    kept: Any = f"s{bits}" if c.has(12) else past_k.dtype.name if past_k is not None else \
        "f16" if dtype == f32 and bits == 16 else dtype.name
    scales = [_scales(c, k, groups, size) for k in (12, 13)] if c.has(12) else []
    cos, sin, bias, sinks = (None if x is None else in_f32(c, x) for x in (cos, sin, bias, sinks))
    outs = g.cached_attention(
        q, c.input(5), c.input(6), k, v, past_k, past_v, cos, sin, positions, bias, sinks, *scales,
        heads=heads, groups=groups, scale=c.attr("scale", 0.0) or 1 / math.sqrt(size), softcap=c.attr("softcap", 0.0),
        window=max(c.attr("local_window_size", -1), 0), causal=bool(c.attr("causal", 1)),
        interleaved=bool(c.attr("rotary_interleaved", 0)), kept=kept, capacity=capacity_of(past_k, c.input(6)))
    return [g.type_cast(x, dtype=dtype) if x.dtype == f32 != dtype else x for x in outs[:max(1, c.outputs)]]


def _scales(c: Call, k: int, groups: int, size: int) -> Value:
    x = in_f32(c, c.input(k))
    if not x.type.known or x.type.size not in (1, groups * size):
        c.refuse(f"input {k} must have one scale, or {groups} * {size} scales, got {x.type}")
    if x.type.size > 1:
        return c.graph.static_reshape(x, shape=[groups, size])
    return c.graph.expand(c.graph.static_reshape(x, shape=[1, 1]), shape=[groups, size])


def _check(c: Call) -> None:
    kinds = {c.attr("k_quant_type", "NONE"), c.attr("v_quant_type", "NONE")}
    if not kinds <= {"NONE", "PER_TENSOR", "PER_CHANNEL"}:
        raise GraphError(f"attributes 'k_quant_type' and 'v_quant_type' {sorted(kinds)} are not supported")
    bits, scales = c.attr("kv_cache_bit_width", 0), [c.has(12), c.has(13)]
    if ("NONE" in kinds) != (bits in (0, 16, 32)) or len(kinds) > 1 and "NONE" in kinds or \
            scales != [kinds != {"NONE"}] * 2 or bits not in (0, 4, 8, 16, 32):
        c.refuse(f"attribute 'kv_cache_bit_width' {bits}, scale types {sorted(kinds)} and inputs 12 and 13 do not "
                 "fit together")
    if c.attr("sliding_window_cache", 0):
        raise GraphError("attribute 'sliding_window_cache': caches of one window are not supported")
    if c.has(16):
        raise GraphError("input 16 (query_seqlens): queries with padding at their end are not supported")
    if c.attr("qk_output", 0) or c.outputs > 3:
        raise GraphError("attribute 'qk_output': an output of query-key products is not supported")
    heads, groups = (c.positive(name) for name in ("num_heads", "kv_num_heads"))
    if heads % groups:
        c.refuse(f"attribute 'num_heads' must be a multiple of 'kv_num_heads', got {heads} and {groups}")
    window, causal = c.attr("local_window_size", -1), c.attr("causal", 1)
    if causal not in (0, 1) or window != -1 and (window < 1 or not causal):
        c.refuse(f"attribute 'causal' must be 0 or 1 and 'local_window_size' positive with causal 1, or -1, "
                 f"got {causal} and {window}")
    for first, second in ((1, 2), (3, 4), (7, 8), (14, 15)):
        if c.has(first) != c.has(second):
            c.refuse(f"inputs {first} and {second} must be given together")
    batch, lengths = c.input(0).shape, c.input(5).type
    for k in (5, 6):
        if c.input(k).dtype != s32:
            c.refuse(f"input {k} must be s32, got {c.input(k).type}")
    for k, rank in ((3, 4), (4, 4), (7, 2), (8, 2), (9, 2), (10, 4), (11, 1), (14, 1), (15, 1)):
        c.expect(k, (None,) * rank)
    c.expect(6, (), (1,))
    if batch and batch[0] is not None and lengths.known and lengths.size != batch[0]:
        c.refuse(f"input 5 must have a length for each of {batch[0]} batch elements, got {lengths}")


def _size(c: Call, heads: int, groups: int) -> int:
    q, parts = c.input(0), heads if c.has(1) else heads + 2 * groups
    width = q.shape[-1] if q.shape is not None and len(q.shape) == 3 else None
    if not width or width % parts:
        c.refuse(f"input 0 must be [batch, length, width] of a known width for {parts} heads, got {q.type}")
    for k in (1, 2) if c.has(1) else ():
        t = c.input(k).type
        if t.shape is None or len(t.shape) != 3 or t.shape[2] != width // parts * groups:
            c.refuse(f"input {k} must be [batch, length, {width // parts * groups}], got {t}")
    return width // parts


def _normalized(c: Call, x: Value, k: int, heads: int, size: int) -> Value:
    """Divide each head of `x` by its root mean square, and multiply it by the weights in input `k`."""
    epsilon = c.attr(f"{'q' if k == 14 else 'k'}_norm_epsilon", c.attr("qk_norm_epsilon", 1e-6))
    apart = c.graph.static_reshape(x, shape=[0, 0, heads, size], special_zero=True)
    y = c.graph.rms_norm(apart, in_f32(c, c.input(k)), epsilon=epsilon)
    return c.graph.static_reshape(y, shape=[0, 0, heads * size], special_zero=True)

"""The importer of com.microsoft's GroupQueryAttention: attention with caches, whose heads share keys and values."""
from __future__ import annotations

import math

import numpy as np

from graphq.dtypes import s32
from graphq.errors import GraphError
from graphq.ir import Value
from graphq.onnx.importers.com_microsoft.transformer import seen
from graphq.onnx.importers.composed import NEWER, standard, written
from graphq.onnx.importers.eltwise import one
from graphq.onnx.importers.importer import MICROSOFT, Call, Outputs, imports

PLACES = """(query, lengths, total) => (count, last, before, places) {
    zero = Constant<value_int = 0>()
    one = Constant<value_int = 1>()
    ones = Constant<value_ints = [1]>()
    column = Constant<value_ints = [-1, 1]>()
    wide = Cast<to = 7>(lengths)
    last = Reshape(wide, column)
    ends = Add(last, one)
    new = Shape<start = 1, end = 2>(query)
    first = Sub(ends, new)
    before = Max(first, zero)
    length = Squeeze(new)
    steps = Range(zero, length, one)
    places = Add(before, steps)
    all = Cast<to = 7>(total)
    count = Reshape(all, ones)
}"""
"""An ONNX function: positions of the new tokens in the cache.

`count` is the number of keys, `last` the position of each batch element's last token [b, 1], `before` that of its first
new token, and `places` are the positions of all new tokens [b, s]. A prompt may be shorter than s in some batch
elements: then nothing is before it.
"""

CACHED = """(new, cache, before, count) => (present, keys) {
    zero = Constant<value_int = 0>()
    one = Constant<value_int = 1>()
    start = Constant<value_ints = [0]>()
    axis = Constant<value_ints = [2]>()
    ones = Constant<value_ints = [1]>()
    around = Constant<value_ints = [1, 3]>()
    minus = Constant<value_ints = [-1]>()
    size = Shape<start = 2, end = 3>(cache)
    more = Shape<start = 2, end = 3>(new)
    rows = Max(size, count)
    limit = Squeeze(rows)
    places = Range(zero, limit, one)
    after = Sub(places, before)
    last = Sub(more, one)
    above = Max(after, zero)
    inside = Min(above, last)
    behind = Add(inside, size)
    old = Less(places, before)
    source = Where(old, places, behind)
    wide = Unsqueeze(source, ones)
    batch_heads = Shape<end = 2>(new)
    number = ReduceProd<keepdims = 0>(batch_heads)
    each = Add(size, more)
    counted = Range(zero, number, one)
    starts = Mul(counted, each)
    by_head = Concat<axis = 0>(batch_heads, ones)
    firsts = Reshape(starts, by_head)
    index = Add(firsts, wide)
    both = Concat<axis = 2>(cache, new)
    depth = Shape<start = 3>(new)
    table = Concat<axis = 0>(minus, depth)
    lines = Reshape(both, table)
    found = Gather<axis = 0>(lines, index)
    is_filled = Less(after, more)
    filled = Unsqueeze(is_filled, around)
    nothing = Constant<value_float = 0.0>()
    empty = CastLike(nothing, new)
    present = Where(filled, found, empty)
    keys = Slice(present, start, count, axis)
}"""
"""An ONNX function that writes `new` behind the tokens of each batch element in `cache`, with zeros behind it.

`present` is the new cache, `keys` its first `count` tokens.
"""

@imports("GroupQueryAttention", domain=MICROSOFT)
def group_query_attention(c: Call) -> Outputs:
    """Import GroupQueryAttention.

    Query, key, value (or one tensor of all three), caches, lengths - 1, their maximum, cosines, sines, positions.

    Further operands are a bias, sinks, scales of quantized caches, and weights of the norms of query and key.
    """
    _check(c)
    heads, groups = c.attr("num_heads"), c.attr("kv_num_heads")
    (q, k, v), size = _parts(c, heads, groups)
    count, last, before, places = written(c, PLACES, query=q, lengths=c.input(5), total=c.input(6))
    q, k = (_rotated(c, _normalised(c, x, i, n, size), places, n) for x, i, n in ((q, 14, heads), (k, 15, groups)))
    q, k, v = (_by_heads(c, x, n, size) for x, n in ((q, heads), (k, groups), (v, groups)))
    keys, values, present = k, v, [k, v]
    if c.has(3):
        (past_k, keys), (past_v, values) = (
            written(c, CACHED, new=x, cache=c.input(i), before=before, count=count) for x, i in ((k, 3), (v, 4)))
        present = [past_k, past_v]
    mask = seen(c, places if c.attr("causal", 1) else last, count, c.attr("local_window_size", -1))
    y = _attended(c, q, keys, values, size, c.graph.select(mask, one(q, 0), one(q, -np.inf)))
    return [y, *present][:max(1, c.outputs)]


def _check(c: Call) -> None:
    """Raise GraphError for a node that breaks a rule or is not supported."""
    for name in ("k_quant_type", "v_quant_type"):
        if c.attr(name, "NONE") != "NONE":
            raise GraphError(f"attribute '{name}': quantized caches are not supported")
    if c.attr("kv_cache_bit_width", 0) or c.has(12) or c.has(13):
        raise GraphError("attribute 'kv_cache_bit_width' and inputs 12 and 13: quantized caches are not supported")
    if c.attr("sliding_window_cache", 0):
        raise GraphError("attribute 'sliding_window_cache': caches of one window are not supported")
    if c.attr("qk_output", 0) or c.outputs > 3:
        raise GraphError("attribute 'qk_output': the products are not given")
    heads, groups = (_positive(c, name) for name in ("num_heads", "kv_num_heads"))
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
    if batch and batch[0] is not None and lengths.known and lengths.size != batch[0]:
        c.refuse(f"input 5 must have a length for each of {batch[0]} batches, got {lengths}")


def _positive(c: Call, name: str) -> int:
    value = c.attr(name, 0)
    if value < 1:
        c.refuse(f"attribute '{name}' must be positive, got {value}")
    return int(value)


def _parts(c: Call, heads: int, groups: int) -> tuple[list[Value], int]:
    """Query, key and value [batch, length, width], and the size of a head."""
    q, parts = c.input(0), heads if c.has(1) else heads + 2 * groups
    width = q.shape[-1] if q.shape is not None and len(q.shape) == 3 else None
    if not width or width % parts:
        c.refuse(f"input 0 must be [batch, length, width] of a known width for {parts} heads, got {q.type}")
    size = width // parts
    if not c.has(1):
        ends = [heads * size, (heads + groups) * size, width]
        return [c.graph.slice(q, axes=[2], starts=[start], ends=[end], steps=[1])
                for start, end in zip([0, *ends], ends, strict=False)], size
    for k in (1, 2):
        t = c.input(k).type
        if t.shape is None or len(t.shape) != 3 or t.shape[2] != size * groups:
            c.refuse(f"input {k} must be [batch, length, {size * groups}], got {t}")
    return [q, c.input(1), c.input(2)], size


def _normalised(c: Call, x: Value, k: int, heads: int, size: int) -> Value:
    """The RMS normalisation of each head with the weights of input `k`; `x` itself without this input."""
    if not c.has(k):
        return x
    apart = c.graph.static_reshape(x, shape=[0, 0, heads, size], special_zero=True)
    y = c.graph.rms_norm(apart, c.input(k), epsilon=c.attr("qk_norm_epsilon", 1e-6))
    return c.graph.static_reshape(y, shape=[0, 0, heads * size], special_zero=True)


def _rotated(c: Call, x: Value, places: Value, heads: int) -> Value:
    """With `do_rotary`, the rotary embedding of `x` at the positions of input 9, or at `places` without that input."""
    if not c.attr("do_rotary", 0):
        return x
    cos = c.input(7).type
    if cos.shape is None or len(cos.shape) != 2 or cos.shape[1] is None:
        c.refuse(f"input 7 must be [length, half of a head's width], got {cos}")
    positions = c.optional(9)
    return standard(c, "RotaryEmbedding", [x, c.input(7), c.input(8), places if positions is None else positions],
                    opset=NEWER, interleaved=c.attr("rotary_interleaved", 0), num_heads=heads,
                    rotary_embedding_dim=2 * cos.shape[1])[0]


def _by_heads(c: Call, x: Value, heads: int, size: int) -> Value:
    """Reshape and transpose [batch, length, width] to [batch, heads, length, size]."""
    apart = c.graph.static_reshape(x, shape=[0, 0, heads, size], special_zero=True)
    return c.graph.static_transpose(apart, order=[0, 2, 1, 3])


def _attended(c: Call, q: Value, k: Value, v: Value, size: int, mask: Value) -> Value:
    """softmax(q @ k' * scale + mask) @ v.

    Heads that share a key are computed in one product, with their queries as rows.
    """
    g, heads, groups = c.graph, c.attr("num_heads"), c.attr("kv_num_heads")

    def by(x: Value, count: int) -> Value:
        return x if heads == groups else g.static_reshape(x, shape=[0, count, -1, 0], special_zero=True)

    scores = g.matmul(by(q, groups), k, transpose_b=True)
    scores = by(g.multiply(scores, one(q, c.attr("scale", 0.0) or 1 / math.sqrt(size))), heads)
    cap = c.attr("softcap", 0.0)
    if cap:
        scores = g.multiply(g.tanh(g.divide(scores, one(q, cap))), one(q, cap))
    if c.has(10):
        scores = g.add(scores, c.input(10))
    y = g.matmul(by(_softmax(c, g.add(scores, mask)), groups), v)
    y = g.static_transpose(by(y, heads), order=[0, 2, 1, 3])
    return g.static_reshape(y, shape=[0, 0, heads * size], special_zero=True)


SINK = """(scores, sink) => (y) {
    first = Constant<value_ints = [0]>()
    end = Constant<value_ints = [-1]>()
    axes = Constant<value_ints = [0, 2, 3]>()
    by_head = Unsqueeze(sink, axes)
    batch = Shape<end = 1>(scores)
    heads = Shape<end = 1>(sink)
    rows = Shape<start = 2, end = 3>(scores)
    one = Constant<value_ints = [1]>()
    shape = Concat<axis = 0>(batch, heads, rows, one)
    column = Expand(by_head, shape)
    wide = Concat<axis = 3>(scores, column)
    all = Softmax<axis = -1>(wide)
    last = Constant<value_ints = [3]>()
    y = Slice(all, first, end, last)
}"""
"""A softmax whose denominator includes exp(sink), with one sink for each head."""


def _softmax(c: Call, scores: Value) -> Value:
    """The softmax of the scores.

    With `smooth_softmax` exp(0), or with sinks exp(sink) of the head, is added to the denominator.
    """
    if not c.has(11) and c.attr("smooth_softmax", -1) != 1:
        return c.graph.softmax(scores, axis=-1)
    sink = c.optional(11)
    if sink is None:
        sink = c.graph.constant(np.zeros(c.attr("num_heads"), scores.dtype.numpy))
    return written(c, SINK, scores=scores, sink=sink)[0]

"""Importers of ONNX's Attention, LinearAttention and RotaryEmbedding."""
from functools import reduce
from typing import Any

import numpy as np

from graphq.dtypes import boolean, f32, s32
from graphq.errors import GraphError
from graphq.ir import Dim, Value
from graphq.onnx.importers.composed import one, places, size_of, standard
from graphq.onnx.importers.eltwise import cast_to
from graphq.onnx.importers.importer import Call, Outputs, by_body, imports
from graphq.onnx.protos.tensors import dtype_of
from graphq.ops.rules import FLOATS

FARTHEST = 1 << 30
"""Larger windows count as this size, so that positions stay in s32."""


@imports("Attention")
def attention(c: Call) -> Outputs:
    """Import Attention with the steps of ONNX's function body.

    A mask is computed from positions in s32, and adds -inf to the scores of hidden keys. Kernels fuse these steps, so
    no mask of the size of the scores is in memory. ONNX's own function body is imported for operands of several dtypes,
    and, since version 24, for masks that are shorter than the keys.
    """
    q, k, v = (c.input(n) for n in range(3))
    precision = c.attr("softmax_precision")
    wide = q.dtype if precision is None else dtype_of(precision, "attribute 'softmax_precision'")
    if {q.dtype, k.dtype, v.dtype} != {q.dtype} or not {q.dtype, wide} <= {*FLOATS}:
        return by_body(c)
    mode = c.attr("qk_matmul_output_mode", 0)
    if not 0 <= mode <= 3:
        c.refuse(f"attribute 'qk_matmul_output_mode' must be 0 to 3, got {mode}")
    g, flat = c.graph, len(q.shape or ()) == 3
    q, k, v = (_by_heads(c, x, name) for x, name in ((q, "q_num_heads"), (k, "kv_num_heads"), (v, "kv_num_heads")))
    before = None
    if c.has(4):
        before = size_of(c, c.input(4), 2)
        k, v = (g.concat(c.input(n), x, axis=2) for n, x in ((4, k), (5, v)))
    caches, size, keys, mask = (k, v), _dim(q, 3), _dim(k, 2), c.optional(3)
    if size is None:
        raise GraphError("the size of a head must be known")
    if c.version >= 24 and mask is not None and (keys is None or _dim(mask, -1) != keys):
        return by_body(c)  # the mask is shorter than the keys: ONNX's function pads it
    scale = c.attr("scale", 0.0) or np.float32(1) / np.sqrt(np.float32(size))
    q, k = (g.multiply(x, one(x, np.sqrt(np.float32(scale)))) for x in (q, k))
    if _dim(q, 1) is None or _dim(q, 1) != _dim(k, 1):
        k, v = (_repeated(c, x, size_of(c, q, 1)) for x in (k, v))
    scores = product = g.matmul(q, k, transpose_b=True)
    if cap := c.attr("softcap", 0.0):
        scores = g.multiply(g.tanh(g.divide(scores, one(scores, cap))), one(scores, cap))
    masks = _masks(c, scores, before)
    masked = reduce(g.add, masks, scores)
    p, = standard(c, "Softmax", [_cast(c, masked, wide)], axis=-1)
    p = _cast(c, p, q.dtype)
    if c.has(3) or c.has(6) or max(_windows(c)) >= 0:  # a query may see no key; its result is then 0
        most = g.reduce_max(reduce(g.add, masks), axes=[-1], keep_dims=True)
        p = g.select(g.equal(most, one(most, -np.inf)), one(p, 0), p)
    y = g.matmul(p, v)
    if flat:
        y = g.static_reshape(g.static_transpose(y, order=[0, 2, 1, 3]), shape=[0, 0, -1], special_zero=True)
    stages = (product, scores, masked, p)
    return [y, *caches, stages[mode]][:max(1, c.outputs)]


@imports("RotaryEmbedding")
def rotary_embedding(c: Call) -> Outputs:
    """Import RotaryEmbedding of f32; ONNX's own function body is imported for other floats, which round each step."""
    x, cos, sin, g = c.input(0), c.input(1), c.input(2), c.graph
    dims = x.type.dims
    if len(dims) == 3:
        heads = c.positive("num_heads")
        x = g.static_reshape(x, shape=[0, 0, heads, -1], special_zero=True)
    size = c.attr("rotary_embedding_dim", 0) or _dim(x, 3)
    if x.dtype != f32 or size is None or {_dim(cos, -1), _dim(sin, -1)} != {size // 2}:
        return by_body(c)
    if c.has(3):
        cos, sin = g.gather(cos, c.input(3)), g.gather(sin, c.input(3))
    at = 2 if len(dims) == 3 else 1  # the axis of heads, which share angles
    cos, sin = (g.static_reshape(t, shape=[*t.type.dims[:at], 1, *t.type.dims[at:]]) for t in (cos, sin))
    y = g.rotary_embedding(x, cos, sin, interleaved=bool(c.attr("interleaved", 0)))
    return g.static_reshape(y, shape=[0, 0, -1], special_zero=True) if len(dims) == 3 else y


@imports("LinearAttention")
def linear_attention(c: Call) -> Outputs:
    """Import LinearAttention of f32, with a state of zeros if it has none; others are imported by ONNX's own body."""
    g, rule = c.graph, c.attr("update_rule", "gated_delta")
    decays, delta = "gated" in rule, "delta" in rule
    if rule not in ("linear", "gated", "delta", "gated_delta"):
        c.refuse(f"attribute 'update_rule' must be linear, gated, delta or gated_delta, got {rule!r}")
    if (c.has(4), c.has(5)) != (decays, delta):
        c.refuse(f"the rule {rule!r} needs {'a' if decays else 'no'} decay and {'a' if delta else 'no'} beta")
    if {v.dtype for v in c.inputs if v is not None} != {f32}:
        return by_body(c)
    heads, groups = c.positive("q_num_heads"), c.positive("kv_num_heads")
    if heads % groups:
        c.refuse(f"attribute 'q_num_heads' must be a multiple of 'kv_num_heads', got {heads} and {groups}")

    def split(x: Value, *sizes: int) -> Value:
        return g.static_reshape(x, shape=[0, 0, *sizes], special_zero=True)

    query = split(c.input(0), groups, heads // groups, -1)
    key, value = (split(c.input(k), groups, -1) for k in (1, 2))
    keys = key.type.dims[3]  # one decay or beta may stand for all keys or heads
    decay = g.exp(g.add(split(c.input(4), groups, -1), np.zeros(keys, np.float32))) if decays else None
    beta = g.multiply(c.input(5), np.ones(groups, np.float32)) if delta else None
    past = c.input(3) if c.has(3) else g.expand(
        np.zeros((1, 1, 1, 1), np.float32), shape=[key.type.dims[0], groups, keys, value.type.dims[3]])
    y, state = g.linear_attention(query, key, value, past, decay, beta)
    scale = c.attr("scale", 0.0) or np.float32(1) / np.sqrt(np.float32(keys))
    return split(g.multiply(y, np.float32(scale)), -1), state


def _dim(x: Value, axis: int) -> Dim:
    return x.shape[axis] if x.shape else None


def _by_heads(c: Call, x: Value, name: str) -> Value:
    """Return `x` as [batch, heads, length, size]. If `x` is 3-D, the attribute `name` is its number of heads."""
    if x.shape is None or len(x.shape) not in (3, 4):
        raise GraphError(f"the rank of query, key and value must be known, got {x.type}")
    if len(x.shape) == 4:
        return x
    if c.attr(name, 0) < 1:
        c.refuse(f"attribute '{name}' must be positive, because {x.type} has three dimensions")
    split = c.graph.static_reshape(x, shape=[0, 0, c.attr(name), -1], special_zero=True)
    return c.graph.static_transpose(split, order=[0, 2, 1, 3])


def _repeated(c: Call, x: Value, heads: Value) -> Value:
    """Repeat keys or values for all `heads` of queries. The rewrite ShareHeads removes the copies."""
    batch, groups, (matrix,) = size_of(c, x, 0), size_of(c, x, 1), standard(c, "Shape", [x], start=2)
    times, = standard(c, "Div", [heads, groups])
    wide, = standard(c, "Concat", [batch, groups, times, matrix], axis=0)
    whole, = standard(c, "Concat", [batch, heads, matrix], axis=0)
    apart, = standard(c, "Unsqueeze", [x, np.asarray([2])])
    return standard(c, "Reshape", [*standard(c, "Expand", [apart, wide]), whole])[0]


def _masks(c: Call, scores: Value, before: Value | None) -> list[Value]:
    """The values to add to the scores: the node's mask, and 0 or -inf for causality and padding."""
    g, masks = c.graph, []

    def hiding(seen: Value) -> Value:
        return g.select(seen, one(scores, 0), one(scores, -np.inf))

    mask, (left, right) = c.optional(3), _windows(c)
    if mask is not None:
        masks.append(hiding(mask) if mask.dtype == boolean else _cast(c, mask, scores.dtype))
    if c.has(6):
        before = g.arithmetic(c.input(6), size_of(c, scores, 2), function="subtract")
    if c.attr("is_causal", 0):
        masks.append(hiding(up_to_own(c, scores, before)))
    if right >= 0:
        masks.append(hiding(up_to_own(c, scores, before, right)))
    if left >= 0:
        masks.append(hiding(g.logical_not(up_to_own(c, scores, before, -left - 1))))
    if c.has(6):
        lengths = g.static_reshape(g.cast(c.input(6), dtype=s32), shape=[-1, 1, 1, 1])
        masks.append(hiding(g.less(places(c, scores, 3), lengths)))
    return masks


def _windows(c: Call) -> tuple[int, int]:
    """How many keys before and after its own position a query sees; -1 if all of them."""
    sizes = c.attr("left_window_size", -1), c.attr("right_window_size", -1)
    if min(sizes) < -1:
        c.refuse(f"left_window_size and right_window_size must be at least -1, got {sizes}")
    return min(sizes[0], FARTHEST), min(sizes[1], FARTHEST)


def up_to_own(c: Call, scores: Value, before: Value | None, more: int = 0) -> Value:
    """The causal mask: true for keys up to the query's own position, and `more` keys behind it.

    The first query has the position `before`, or 0.
    """
    g = c.graph
    before = g.add_constant(np.zeros(1, np.int64)) if before is None else before
    first = g.static_reshape(g.cast(before, dtype=s32), shape=[-1, 1, 1, 1])
    rows = g.add(first, g.static_reshape(places(c, scores, 2), shape=[-1, 1]))
    return g.less_equal(places(c, scores, 3), g.add(rows, np.asarray(more, np.int32)) if more else rows)


def _cast(c: Call, x: Value, dtype: Any) -> Value:
    y = cast_to(c, x, dtype)
    if y is None:
        raise GraphError(f"graphq cannot cast {x.dtype} to {dtype}")
    return y

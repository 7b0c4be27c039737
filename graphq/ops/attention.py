"""Rotary position embedding, and attention with a KV cache."""
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from graphq.base.sizes import largest, number
from graphq.dtypes import bf16, f16, f32, s8, s32, s64, u8
from graphq.errors import GraphError, InputError
from graphq.ir import Dim, Graph, TensorType, Value, known, lookup, register_op
from graphq.kernels.numbers import attention as numbers
from graphq.ops.open_arrays import element
from graphq.ops.rules import Array, expect_dtype, show

RANKS = {"query": 3, "lengths": 1, "total": None, "key": 3, "value": 3, "past_key": 4, "past_value": 4, "cos": 2,
         "sin": 2, "positions": 2, "bias": 4, "sinks": 1, "key_scale": 2, "value_scale": 2}
"""The operands of cached_attention in order, and their ranks; `total` may have any rank."""
DTYPES = {"lengths": s32, "total": s32, "positions": s64}
"""The dtypes of cached_attention's operands that are neither f32 nor caches."""
CACHES = {"f32": f32, "bf16": bf16, "f16": f16, "s8": s8, "s4": u8}
"""The dtypes of caches, by the value of the attribute `kept`."""


def infer_rotary_embedding(src: TensorType, cos: TensorType, sin: TensorType, *, interleaved: bool) -> TensorType:
    """`src` is f32 [a, b, c, size]; `cos` and `sin` [a or 1, b or 1, c or 1, half] have at most size / 2 columns."""
    for name, t in (("src", src), ("cos", cos), ("sin", sin)):
        expect_dtype(name, t, (f32,))
        if t.shape is not None and len(t.shape) != 4:
            raise GraphError(f"'{name}' must have 4 dimensions, got {t}")
    if src.shape is not None and cos.shape is not None:
        rows = [want if d == 1 else d for d, want in zip(cos.shape[:3], src.shape, strict=False)]
        half, size = cos.shape[3], src.shape[3]
        if half is not None and size is not None and 2 * half > size:
            raise GraphError(f"'cos' must have at most half the columns of 'src', got {cos} and {src}")
        expect_shape("src", src, (*rows, None))
        expect_shape("sin", sin, cos.shape)
    return src


@register_op(infer=infer_rotary_embedding)
def rotary_embedding(src: Array, cos: Array, sin: Array, *, interleaved: bool = False) -> Array:
    """Turn pairs of elements of each row of `src` by angles: rotary position embedding (ONNX RotaryEmbedding).

    A pair (x, y) becomes (cos * x - sin * y, sin * x + cos * y). If `interleaved`, the pairs are the elements 2k and
    2k + 1 of a row, otherwise k and half + k. Elements behind the pairs stay. Rows of `cos` and `sin` broadcast.
    """
    return numbers.rotated(src, cos, sin, interleaved)


def infer_cached_attention(*types: TensorType | None, heads: int, groups: int, window: int, causal: bool, kept: str,
                           capacity: int, **_: Any) -> tuple[TensorType, ...]:
    """The types of the output and of both new caches.

    With past caches and `capacity` -1, the number of rows of the new caches is unknown.
    """
    operands = dict.fromkeys(RANKS) | dict(zip(RANKS, types, strict=False))
    query, key, past_key, cos, bias = map(operands.get, ("query", "key", "past_key", "cos", "bias"))
    assert query is not None
    if heads < 1 or groups < 1 or heads % groups:
        raise GraphError(f"heads must be a positive multiple of groups, got {heads} and {groups}")
    if window > 0 and not causal:
        raise GraphError(f"a window of {window} keys needs causal=True")
    for name, other in (("key", "value"), ("past_key", "past_value"), ("cos", "sin"), ("key_scale", "value_scale")):
        if (operands[name] is None) != (operands[other] is None):
            raise GraphError(f"'{name}' and the operand after it must be given together")
    if (kept in ("s8", "s4")) != (operands["key_scale"] is not None):
        raise GraphError(f"s8 and s4 caches need scales, and others have no scales, got {kept}")
    for name, t in operands.items():
        if t is not None:
            expect_dtype(name, t, (CACHES[kept] if name.startswith("past") else DTYPES.get(name, f32),))
            if t.shape is not None and RANKS[name] not in (None, len(t.shape)):
                raise GraphError(f"'{name}' must have {RANKS[name]} dimensions, got {t}")
    batch, tokens, width = query.shape or (None, None, None)
    parts = heads + 2 * groups if key is None else heads
    if not width or width % parts:
        raise GraphError(f"'query' must be [batch, tokens, width] of a known width for {parts} heads, got {query}")
    size = width // parts
    if kept == "s4" and size % 2:
        raise GraphError(f"caches of s4 need heads of an even size, got {size}")
    half = None if cos is None or cos.shape is None else cos.shape[1]
    if half is not None and 2 * half > size:
        raise GraphError(f"'cos' must have at most {size // 2} columns, half of a head's {size}, got {cos}")
    of_group, cache = (batch, tokens, groups * size), (batch, groups, None, size // 2 if kept == "s4" else size)
    wanted: dict[str, tuple[Dim, ...]] = {
        "key": of_group, "value": of_group, "lengths": (batch,), "past_key": cache, "past_value": cache,
        "positions": (batch, tokens), "sinks": (heads,), "key_scale": (groups, size), "value_scale": (groups, size)}
    for name, first in (("past_value", past_key), ("sin", cos)):
        if first is not None and first.shape is not None:
            wanted[name] = first.shape
    for name, dims in wanted.items():
        expect_shape(name, operands[name], dims)
    if bias is not None and bias.shape is not None:
        one = [1 if d == 1 else want for d, want in zip(bias.shape, (batch, heads), strict=False)]
        expect_shape("bias", bias, (*one, tokens, None))
    rows = tokens if past_key is None else None if capacity < 0 else capacity
    present = TensorType(CACHES[kept], (batch, groups, rows, cache[3]))
    return TensorType(f32, (batch, tokens, heads * size)), present, present


def expect_shape(name: str, type: TensorType | None, dims: tuple[Dim, ...]) -> None:
    """Raise GraphError if a known dimension of the type differs from `dims`."""
    if type is not None and type.shape is not None and any(
            None not in (d, want) and d != want for d, want in zip(type.shape, dims, strict=True)):
        raise GraphError(f"'{name}' must be {show(dims)}, got {type}")


def capacity_of(past: Value | None, total: Value) -> int:
    """The attribute `capacity`: the number of rows of the new caches, or -1 if it is not yet known."""
    data, rows = known(total), past.shape[2] if past is not None and past.shape is not None else None
    return -1 if data is None or rows is None else largest(rows, number(element, data, 0))


def resolve_capacity(graph: Graph, operands: Sequence[Value | None],
                     attrs: Mapping[str, Any]) -> tuple[Value, ...] | None:
    """Add a copy of the node with the capacity that its operands give; None if the capacity is not yet known."""
    total, past = operands[2], operands[5] if len(operands) > 5 else None
    assert total is not None
    capacity = capacity_of(past, total)
    if capacity < 0:
        return None
    return graph.add_node(lookup("cached_attention"), operands, {**attrs, "capacity": capacity})


@register_op(infer=infer_cached_attention, resolve=resolve_capacity)
def cached_attention(
        query: Array, lengths: Array, total: Array, key: Array | None = None, value: Array | None = None,
        past_key: Array | None = None, past_value: Array | None = None, cos: Array | None = None,
        sin: Array | None = None, positions: Array | None = None, bias: Array | None = None,
        sinks: Array | None = None, key_scale: Array | None = None, value_scale: Array | None = None, *, heads: int,
        groups: int, scale: float, softcap: float = 0.0, window: int = 0, causal: bool = True,
        interleaved: bool = False, kept: Literal["f32", "bf16", "f16", "s8", "s4"] = "f32",
        capacity: int = -1) -> tuple[Array, Array, Array]:
    """Attention of new tokens to themselves and to earlier tokens, with a KV cache.

    Results: the output [batch, tokens, heads * size], and the new key and value caches [batch, groups, rows, size]. A
    new cache has the rows of the earlier tokens, then the rows of the new tokens, then zeros. It has max(rows of
    `past_key`, `total`) rows. Without past caches, it has one row for each new token.

    Batch element n has `lengths[n]` + 1 valid tokens, including the new tokens. `lengths` and the order of heads are as
    in com.microsoft's GroupQueryAttention. If `key` and `value` [batch, tokens, groups * size] are absent, `query`
    [batch, tokens, heads * size] has them in further columns. All heads of a group share keys and values.

    Rotary embedding: `cos` and `sin` [positions, half] rotate queries and keys. `positions` [batch, tokens] has each
    token's row in `cos` and `sin`; the default is the token's row in the cache. If `interleaved`, elements 2k and 2k +
    1 of a head are rotated together; otherwise elements k and half + k are.

    With `causal`, a token attends to no later keys. If `window` is positive, a token attends to the last `window` keys.
    `softcap`, `bias` [1 or batch, 1 or heads, tokens, keys] and `sinks` [heads] are parts of the formula in
    graphq.kernels.numbers.attention. `kept` is the element type of the caches. Caches of s4 are u8 with two elements in
    each byte. Caches of s8 and s4 have scales [groups, size]. `capacity` is the number of rows of the new caches, or -1
    if only the run determines it.

    Raises InputError for lengths below 1, lengths that the caches cannot hold, and positions outside of `cos`.
    """
    batch, tokens, _ = query.shape
    if key is None or value is None:
        size = query.shape[2] // (heads + 2 * groups)
        query, key, value = np.split(query, [heads * size, (heads + groups) * size], axis=2)
    q, k, v = numbers.by_heads(query, heads), numbers.by_heads(key, groups), numbers.by_heads(value, groups)
    rows = 0 if past_key is None else past_key.shape[2]
    room = tokens if past_key is None else capacity if capacity >= 0 else max(rows, int(total.reshape(-1)[0]))
    ends = lengths.astype(np.int64) + 1
    before = np.maximum(ends - tokens, 0)
    most = room if bias is None else min(room, bias.shape[3])
    if (wrong := (ends < 1) | (before > rows) | (before + tokens > most)).any():
        raise length_error(rows, most, tokens, int(ends[wrong][0]))
    if cos is not None and sin is not None:
        places = before[:, None] + np.arange(tokens) if positions is None else positions
        if (outside := (places < 0) | (places >= len(cos))).any():
            raise position_error(len(cos), int(places[outside][0]))
        q, k = (numbers.rotated(x, cos[places][:, :, None], sin[places][:, :, None], interleaved) for x in (q, k))
    keys, values = (numbers.written(past, numbers.packed(x, factor, kept), before, room) for past, x, factor in (
        (past_key, k, key_scale), (past_value, v, value_scale)))
    wide_keys, wide_values = (numbers.unpacked(x, factor, kept) for x, factor in (
        (keys, key_scale), (values, value_scale)))
    y = numbers.attended(q, wide_keys, wide_values, before, ends, bias, sinks, scale=scale, softcap=softcap,
                         window=window, causal=causal)
    return y.reshape(batch, tokens, -1), keys, values


def length_error(rows: int, capacity: int, tokens: int, length: int) -> InputError:
    """The error for a batch element with an impossible number of valid tokens."""
    return InputError(f"cached_attention: {tokens} new tokens, a past cache of {rows} rows and room for "
                      f"{capacity} rows do not fit a length of {length} tokens")


def position_error(places: int, position: int) -> InputError:
    """The error for a position outside of the `places` rows of `cos`."""
    return InputError(f"cached_attention: positions must be in [0, {places - 1}], got {position}")

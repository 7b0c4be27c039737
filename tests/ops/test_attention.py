"""cached_attention by its definition: where its operands lie, what its caches hold, its types and what it refuses."""
import numpy as np
import pytest
from attention_formula import attended, rotated

import graphq as gq
from graphq.dtypes import DTYPES
from graphq.errors import GraphError, InputError
from graphq.ir.op import lookup

RNG = np.random.default_rng(6)
HEADS, GROUPS, SIZE, PLACES = 4, 2, 6, 16


def floats(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def run(x, **attrs):
    return lookup("cached_attention").reference(**x, heads=HEADS, groups=GROUPS, scale=0.4, **attrs)


def operands(lengths=(7, 3, 5), tokens=2, rows=6, total=7):
    """Of batch elements with these lengths, the new tokens included."""
    n = len(lengths)
    return {"query": floats(n, tokens, HEADS * SIZE), "lengths": np.int32(lengths) - 1, "total": np.int32([total]),
            "key": floats(n, tokens, GROUPS * SIZE), "value": floats(n, tokens, GROUPS * SIZE),
            "past_key": floats(n, GROUPS, rows, SIZE), "past_value": floats(n, GROUPS, rows, SIZE)}


def caches(x, new_keys, new_values, capacity):
    """By the definition; `new_keys` may be rotated."""
    batch, tokens, _ = x["query"].shape
    out = [np.zeros((batch, GROUPS, capacity, SIZE)) for _ in range(2)]
    before = np.maximum(x["lengths"] + 1 - tokens, 0)
    for cache, past, new in zip(out, ("past_key", "past_value"), (new_keys, new_values), strict=True):
        for n, start in enumerate(before):
            if past in x:
                cache[n, :, :start] = x[past][n, :, :start]
            cache[n, :, start:start + tokens] = new[n].swapaxes(0, 1)
    return out, before


def check(got, x, q, keys, values, before, **how):
    want = attended(q, keys, values, before, x["lengths"] + 1, x.get("bias"), x.get("sinks"), scale=0.4, **how)
    y, *made = got
    np.testing.assert_allclose(y, want.reshape(y.shape), rtol=1e-4, atol=1e-5)
    for cache, exact in zip(made, (keys, values), strict=True):
        np.testing.assert_allclose(cache, exact, rtol=1e-4, atol=1e-5)
        assert cache.shape == exact.shape


@pytest.mark.parametrize("attrs", [{}, {"window": 2}, {"causal": False}, {"softcap": 0.7}])
@pytest.mark.parametrize("total, capacity", [(7, 7), (9, 9), (4, 6)])
@pytest.mark.parametrize("packed", [False, True])
def test_new_tokens_follow_those_of_the_caches(attrs, total, capacity, packed):
    """Caches have as many rows as the past ones, or more; query, keys and values may be one operand."""
    x = operands(lengths=(6, 3, 5) if total == 4 else (7, 3, 5), total=total)
    q, k, v = (a.reshape(3, 2, -1, SIZE) for a in (x["query"], x["key"], x["value"]))
    (keys, values), before = caches(x, k, v, capacity)
    given = dict(x)
    if packed:
        given["query"] = np.concatenate([given["query"], given.pop("key"), given.pop("value")], axis=2)
    check(run(given, **attrs), x, q, keys, values, before, **attrs)


def test_a_first_token_sees_itself():
    x = operands((1, 3, 2), tokens=1, rows=6, total=6)
    q, k, v = (a.reshape(3, 1, -1, SIZE) for a in (x["query"], x["key"], x["value"]))
    (keys, values), before = caches(x, k, v, 6)
    assert before.tolist() == [0, 2, 1]
    check(run(x), x, q, keys, values, before)


def test_a_prompt_has_no_caches_before_it():
    x = {name: a for name, a in operands((4, 2), tokens=4, total=9).items() if not name.startswith("past")}
    q, k, v = (a.reshape(2, 4, -1, SIZE) for a in (x["query"], x["key"], x["value"]))
    (keys, values), before = caches(x, k, v, 4)
    assert before.tolist() == [0, 0]
    check(run(x), x, q, keys, values, before)


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("positions", [None, [[9, 1], [0, 15], [4, 4]]])
def test_queries_and_keys_are_rotated_and_values_are_not(interleaved, positions):
    x, angles = operands(), RNG.uniform(0, 6, (PLACES, 2)).astype(np.float32)
    x |= {"cos": np.cos(angles), "sin": np.sin(angles)}
    places = (x["lengths"] - 1)[:, None] + np.arange(2) if positions is None else np.array(positions)
    if positions is not None:
        x["positions"] = places
    q, k, v = (a.reshape(3, 2, -1, SIZE) for a in (x["query"], x["key"], x["value"]))
    q, k = (rotated(a, angles[places][:, :, None].astype(float), interleaved) for a in (q, k))
    (keys, values), before = caches(x, k, v, 7)
    check(run(x, interleaved=interleaved), x, q, keys, values, before)


@pytest.mark.parametrize("bias", [(1, 1), (3, 1), (1, HEADS), (3, HEADS)])
def test_biases_and_sinks(bias):
    x = operands() | {"bias": floats(*bias, 2, 7), "sinks": floats(HEADS)}
    q, k, v = (a.reshape(3, 2, -1, SIZE) for a in (x["query"], x["key"], x["value"]))
    (keys, values), before = caches(x, k, v, 7)
    check(run(x), x, q, keys, values, before)


@pytest.mark.parametrize("kept", ["bf16", "f16"])
def test_caches_of_halves(kept):
    """All tokens see the keys and values as the caches have them, the new ones too."""
    half = DTYPES[kept].numpy
    x = {n: a.astype(half) if n.startswith("past") else a for n, a in operands().items()}
    q, k, v = (a.reshape(3, 2, -1, SIZE) for a in (x["query"], x["key"], x["value"]))
    (keys, values), before = caches(x, *(a.astype(half) for a in (k, v)), 7)
    y, *made = run(x, kept=kept)
    assert {c.dtype for c in made} == {half}
    check((y, *(c.astype(np.float32) for c in made)), x, q, keys, values, before)


@pytest.mark.parametrize("kept", ["s8", "s4"])
def test_caches_of_integers(kept):
    """Each number is the nearest one; keys and values have scales of their own."""
    x, most = operands(), {"s8": 127, "s4": 7}[kept]
    x |= {name: (RNG.uniform(2, 4, (GROUPS, SIZE)) / most).astype(np.float32) for name in ("key_scale", "value_scale")}
    past = RNG.integers(-most - 1, most + 1, (2, 3, GROUPS, 6, SIZE))
    for name, q in zip(("past_key", "past_value"), past, strict=True):
        x[name] = q.astype(np.int8) if kept == "s8" else ((q[..., ::2] + 8) | (q[..., 1::2] + 8) << 4).astype(np.uint8)
    scales = [x[name].astype(float)[:, None] for name in ("key_scale", "value_scale")]
    plain = x | dict(zip(("past_key", "past_value"), (q * s for q, s in zip(past, scales, strict=True)), strict=True))
    new = [np.clip(np.rint(a / s), -most - 1, most) * s.astype(float) for a, s in (
        (x[n].reshape(3, 2, GROUPS, SIZE), x[f"{n}_scale"]) for n in ("key", "value"))]
    (keys, values), before = caches(plain, *new, 7)
    y, *made = run(x, kept=kept)
    assert {c.dtype for c in made} == {np.dtype(np.int8 if kept == "s8" else np.uint8)}
    stored = made if kept == "s8" else \
        [np.stack([c & 15, c >> 4], -1).reshape(keys.shape).astype(int) - 8 for c in made]
    q = x["query"].reshape(3, 2, -1, SIZE)
    inside = np.arange(7)[:, None] < (x["lengths"] + 1)[:, None, None, None]  # rows behind the tokens hold zero bytes
    found = [np.where(inside, c * s, 0) for c, s in zip(stored, scales, strict=True)]
    check((y, *found), x, q, keys, values, before)


@pytest.mark.parametrize("lengths, more, message", [
    ([9, 3, 5], {}, "2 new tokens, a past cache of 6 rows and room for 7 rows do not fit a length of 9 tokens"),
    ([7, 0, 5], {}, "do not fit a length of 0 tokens"), ([7, 3, -2], {}, "do not fit a length of -2 tokens"),
    ([7, 3, 7], {"bias": floats(1, 1, 2, 6)}, "room for 6 rows do not fit a length of 7 tokens"),
    ([7, 3, 5], {"cos": floats(6, 2), "sin": floats(6, 2)}, r"positions must be in \[0, 5\], got 6"),
    ([7, 3, 5], {"cos": floats(6, 2), "sin": floats(6, 2), "positions": np.array([[0, 5], [5, 6], [0, 0]])}, "got 6"),
    ([7, 3, 5], {"cos": floats(6, 2), "sin": floats(6, 2), "positions": np.array([[0, 5], [5, 5], [0, -1]])},
     "got -1")])
def test_lengths_and_positions_that_are_refused(lengths, more, message):
    x = operands() | more
    x["lengths"] = np.int32(lengths) - 1
    with pytest.raises(InputError, match=message):
        run(x)


TYPES = {"query": "f32[3,2,24]", "lengths": "s32[3]", "total": "s32[1]", "key": "f32[3,2,12]", "value": "f32[3,2,12]",
         "past_key": "f32[3,2,6,6]", "past_value": "f32[3,2,6,6]", "cos": "f32[16,3]", "sin": "f32[16,3]",
         "positions": "s64[3,2]", "bias": "f32[3,4,2,7]", "sinks": "f32[4]", "key_scale": None, "value_scale": None}
SCALES = {"key_scale": "f32[2,6]", "value_scale": "f32[2,6]"}
INTEGERS = {"past_key": "s8[3,2,6,6]", "past_value": "s8[3,2,6,6]", **SCALES}
HALVES = {"past_key": "f16[3,2,6,6]", "past_value": "f16[3,2,6,6]"}
PAIRS = {"past_key": "u8[3,2,6,3]", "past_value": "u8[3,2,6,3]", **SCALES}
NONE = {name: None for name in TYPES if name not in ("query", "lengths", "total")}


def types(infer, changed, attrs):
    return infer("cached_attention", *{**TYPES, **changed}.values(), **{"heads": 4, "groups": 2, "scale": 1.0, **attrs})


@pytest.mark.parametrize("changed, attrs, want", [
    ({}, {"capacity": 9}, ("f32[3,2,24]", "f32[3,2,9,6]")), ({}, {}, ("f32[3,2,24]", "f32[3,2,?,6]")),
    ({**NONE, "query": "f32[3,2,48]"}, {}, ("f32[3,2,24]", "f32[3,2,2,6]")),
    ({"past_key": None, "past_value": None}, {}, ("f32[3,2,24]", "f32[3,2,2,6]")),
    (HALVES, {"kept": "f16", "capacity": 9}, ("f32[3,2,24]", "f16[3,2,9,6]")),
    ({**NONE, "query": "f32[3,2,48]"}, {"kept": "bf16"}, ("f32[3,2,24]", "bf16[3,2,2,6]")),
    (INTEGERS, {"kept": "s8", "capacity": 9}, ("f32[3,2,24]", "s8[3,2,9,6]")),
    (PAIRS, {"kept": "s4", "capacity": 9}, ("f32[3,2,24]", "u8[3,2,9,3]")),
    ({"query": "f32[?,?,24]"}, {"capacity": 9}, ("f32[?,?,24]", "f32[?,2,9,6]")),
    ({**NONE, "query": "f32[3,2,15]"}, {"heads": 1, "groups": 1}, ("f32[3,2,5]", "f32[3,1,2,5]")),
    ({}, {"causal": False, "capacity": 0}, ("f32[3,2,24]", "f32[3,2,0,6]")),
    ({}, {"causal": False, "window": 0}, ("f32[3,2,24]", "f32[3,2,?,6]")),
    ({}, {"window": 3}, ("f32[3,2,24]", "f32[3,2,?,6]")),
    ({name: f"{t.partition('[')[0]}[*]" for name, t in TYPES.items() if t and name != "query"}, {},
     ("f32[3,2,24]", "f32[3,2,?,6]")),
    ({"bias": "f32[1,1,2,7]"}, {"capacity": 9}, ("f32[3,2,24]", "f32[3,2,9,6]")),
    ({"bias": "f32[1,4,2,?]", "cos": "f32[*]", "sin": "f32[*]"}, {"capacity": 9}, ("f32[3,2,24]", "f32[3,2,9,6]"))])
def test_types(infer, changed, attrs, want):
    y, cache = want
    assert types(infer, changed, attrs) == (y, cache, cache)


@pytest.mark.parametrize("changed, attrs, message", [
    ({}, {"heads": 3}, "heads must be a positive multiple of groups, got 3 and 2"), ({}, {"groups": 0}, "got 4 and 0"),
    ({}, {"heads": 0}, "got 0 and 2"), ({}, {"window": 3, "causal": False}, "a window of 3 keys needs causal=True"),
    ({"value": None}, {}, "'key' and the operand after it"), ({"past_value": None}, {}, "'past_key' and the operand"),
    ({"sin": None}, {}, "'cos' and the operand"), ({"key_scale": "f32[2,6]"}, {"kept": "s8"}, "'key_scale' and the"),
    (SCALES, {}, "s8 and s4 caches need scales, and others have no scales, got f32"), ({}, {"kept": "s8"}, "got s8"),
    ({**HALVES, **SCALES}, {"kept": "f16"}, "got f16"), (HALVES, {}, "'past_key' must be f32"),
    ({"query": "f32[3,2,25]"}, {}, "of a known width for 4 heads"), ({"query": "f32[3,2,?]"}, {}, "of a known width"),
    ({"query": "f32[*]"}, {}, "of a known width"),
    ({**NONE, "query": "f32[3,2,24]", "past_key": None}, {"heads": 6}, "for 10 heads"),
    ({"query": "f32[3,24]"}, {}, "'query' must have 3 dimensions"),
    ({"lengths": "s32[3,1]"}, {}, "'lengths' must have 1 dimensions"),
    ({"lengths": "s64[3]"}, {}, "'lengths' must be s32"), ({"positions": "s32[3,2]"}, {}, "'positions' must be s64"),
    ({"total": "s64[1]"}, {}, "'total' must be s32"), ({"bias": "f16[3,4,2,7]"}, {}, "'bias' must be f32"),
    (SCALES, {"kept": "s8"}, "'past_key' must be s8"), (INTEGERS, {"kept": "s4"}, "'past_key' must be u8"),
    ({**PAIRS, "query": "f32[3,2,20]", "key": "f32[3,2,10]", "value": "f32[3,2,10]"}, {"kept": "s4"},
     "of an even size"),
    ({"cos": "f32[16,4]", "sin": "f32[16,4]"}, {}, "'cos' must have at most 3 columns, half of a head's 6"),
    ({"sin": "f32[16,2]"}, {}, r"'sin' must be \[16,3\]"), ({"sin": "f32[15,3]"}, {}, r"'sin' must be \[16,3\]"),
    ({"key": "f32[3,2,24]"}, {}, r"'key' must be \[3,2,12\]"), ({"value": "f32[3,1,12]"}, {}, r"'value' must be"),
    ({"lengths": "s32[2]"}, {}, r"'lengths' must be \[3\]"), ({"positions": "s64[3,1]"}, {}, r"'positions' must be"),
    ({"past_key": "f32[3,2,6,5]"}, {}, "'past_key' must be"), ({"past_key": "f32[3,4,6,6]"}, {}, "'past_key' must be"),
    ({"past_value": "f32[3,2,5,6]"}, {}, r"'past_value' must be \[3,2,6,6\]"),
    ({"bias": "f32[2,4,2,7]"}, {}, r"'bias' must be"), ({"bias": "f32[3,2,2,7]"}, {}, r"'bias' must be"),
    ({"bias": "f32[3,4,1,7]"}, {}, r"'bias' must be"), ({"sinks": "f32[2]"}, {}, r"'sinks' must be \[4\]"),
    ({**INTEGERS, "value_scale": "f32[4,6]"}, {"kept": "s8"}, r"'value_scale' must be \[2,6\]")])
def test_types_that_are_refused(infer, changed, attrs, message):
    with pytest.raises(GraphError, match=message):
        types(infer, changed, attrs)


@pytest.mark.parametrize("total, capacity", [(9, 9), (4, 6)])
def test_a_known_total_tells_the_rows_of_the_caches(total, capacity):
    """The values that an input of integers has decide the shapes, once they are known."""
    x = operands(lengths=(6, 3, 5), total=total)
    g = gq.Graph()
    given = {name: g.input(name, dtype=gq.dtypes.as_dtype(a.dtype), shape=a.shape) for name, a in x.items()}
    outs = g.cached_attention(*given.values(), heads=HEADS, groups=GROUPS, scale=0.4)
    for v, name in zip(outs, ("y", "keys", "values"), strict=True):
        g.output(v, name=name)
    assert outs[1].shape == (3, GROUPS, None, SIZE)
    for got, want in zip(gq.reference(g, x).values(), run(x), strict=True):
        np.testing.assert_array_equal(got, want)
    fixed = g.specialize({}, {"total": x["total"]})
    assert [v.shape for v in fixed.outputs] == [(3, 2, 24), *[(3, GROUPS, capacity, SIZE)] * 2]


@pytest.mark.parametrize("past, known, rows", [
    ((3, GROUPS, None, SIZE), ["total"], None), ((3, GROUPS, 6, SIZE), [], None), ((3, GROUPS, 6, SIZE), ["total"], 8),
    (None, ["total"], 2)])
def test_rows_of_new_caches_need_those_of_the_past_ones_and_a_total(past, known, rows):
    x = operands(total=8)
    g = gq.Graph()
    given = [g.input(name, dtype=gq.dtypes.as_dtype(a.dtype), shape=past if name.startswith("past") else a.shape)
             for name, a in x.items() if past or not name.startswith("past")]
    for v in g.cached_attention(*given, heads=HEADS, groups=GROUPS, scale=0.4):
        g.output(v)
    fixed = g.specialize({}, {name: x[name] for name in known})
    assert [v.shape for v in fixed.outputs] == [(3, 2, 24), *[(3, GROUPS, rows, SIZE)] * 2]

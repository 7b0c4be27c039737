"""The kernels of attention with caches give what the operation's reference gives, bit for bit, at every level."""
import numpy as np
import pytest
from guarded_memory import guarded

import graphq as gq
from graphq.dtypes import DTYPES
from graphq.errors import InputError
from graphq.kernels.target import isa

rng = np.random.default_rng(7)


def floats(*shape):
    return rng.standard_normal(shape).astype(np.float32)


def cache(kept, *shape):
    """A cache whose numbers are kept as floats, or as integers of 8 or 4 bits."""
    if kept not in ("s8", "s4"):
        return floats(*shape).astype(DTYPES[kept].numpy)
    low, high, dtype, size = (-128, 128, np.int8, shape[-1]) if kept == "s8" else (0, 256, np.uint8, shape[-1] // 2)
    return rng.integers(low, high, (*shape[:-1], size)).astype(dtype)


def attention(lengths=(7,), tokens=1, rows=6, heads=4, groups=2, size=8, total=None, *, packed=False, rotary=0,
              positions=None, bias=None, sinks=False, past=True, kept="f32", **attrs):
    """A graph of one node, and its inputs."""
    batch, total = len(lengths), total or max(lengths)
    angles = rng.uniform(0, 6, (32, rotary // 2)).astype(np.float32)
    width = heads + 2 * groups if packed else heads
    x = {"query": floats(batch, tokens, width * size),
         "lengths": np.int32(lengths) - 1, "total": np.int32([total]),
         "key": None if packed else floats(batch, tokens, groups * size),
         "value": None if packed else floats(batch, tokens, groups * size),
         "past_key": cache(kept, batch, groups, rows, size) if past else None,
         "past_value": cache(kept, batch, groups, rows, size) if past else None,
         "cos": np.cos(angles) if rotary else None, "sin": np.sin(angles) if rotary else None,
         "positions": positions, "bias": None if bias is None else floats(*bias, tokens, total),
         "sinks": floats(heads) if sinks else None}
    if kept in ("s8", "s4"):
        x |= {n: np.abs(floats(groups, size)) / (1 << int(kept[1]) - 2) for n in ("key_scale", "value_scale")}
    g = gq.Graph("attention")
    operands = {n: None if v is None else g.constant(v) if n == "total" else
                g.input(n, shape=v.shape, dtype=v.dtype)
                for n, v in x.items()}
    attrs.setdefault("scale", 0.3)
    outs = g.cached_attention(*operands.values(), heads=heads, groups=groups, **attrs, kept=kept,
                              capacity=max(rows, total) if past else -1)
    for name, v in zip(("y", "keys", "values"), outs, strict=True):
        g.output(v, name=name)
    return g, {n: guarded(v) for n, v in x.items() if v is not None and n != "total"}


CASES = {
    "one token": dict(),
    "of several lengths": dict(lengths=(4, 7, 1), rows=9),
    "a prompt": dict(lengths=(5, 3), tokens=5, rows=0),
    "a prompt without caches": dict(lengths=(5, 3), tokens=5, past=False),
    "some tokens": dict(lengths=(30, 17), tokens=11, rows=25, heads=6, groups=2, size=20),
    "a head of its own": dict(lengths=(40,), rows=39, heads=3, groups=3),
    "two heads each": dict(lengths=(40,), rows=39, heads=2, groups=1),
    "many heads": dict(lengths=(19,), rows=40, heads=9, groups=1, size=20),
    "blocks of keys": dict(lengths=(600, 290), tokens=2, rows=599, heads=4, groups=1, size=20),
    "a window in blocks": dict(lengths=(600, 290), tokens=2, rows=599, heads=4, groups=1, size=20, window=40),
    "a window of a prompt": dict(lengths=(300,), tokens=30, rows=270, heads=2, groups=1, window=5),
    "rotary": dict(lengths=(9, 4), tokens=3, rows=7, size=40, rotary=36),
    "rotary pairs": dict(lengths=(9, 4), tokens=3, rows=7, size=40, rotary=36, interleaved=True),
    "packed": dict(lengths=(9, 4), tokens=3, rows=9, packed=True, rotary=8, size=40),
    "positions": dict(lengths=(9, 4), tokens=3, rows=9, rotary=8, size=40,
                      positions=np.array([[3, 1, 9], [31, 0, 8]])),
    "softcap": dict(lengths=(20, 4), tokens=3, rows=20, softcap=1.5),
    "bias": dict(lengths=(20, 4), tokens=3, rows=20, bias=(2, 4)),
    "bias of all": dict(lengths=(20, 4), tokens=3, rows=29, bias=(1, 1)),
    "bias of heads": dict(lengths=(20, 4), tokens=3, rows=29, bias=(1, 4)),
    "bias of batch elements": dict(lengths=(20, 4, 9), tokens=3, rows=29, bias=(3, 1)),
    "sinks": dict(lengths=(20, 4), tokens=2, rows=20, sinks=True, window=3),
    "both directions": dict(lengths=(20, 4), tokens=3, rows=20, causal=False),
    "f16": dict(lengths=(300, 4), tokens=2, rows=300, size=40, kept="f16"),
    "f16 rotary": dict(lengths=(9, 4), tokens=3, rows=7, size=37, rotary=36, kept="f16", packed=True),
    "a prompt in f16": dict(lengths=(5, 3), tokens=5, past=False, size=37, rotary=36, kept="f16"),
    "bf16": dict(lengths=(300, 4), tokens=2, rows=300, size=40, kept="bf16"),
    "a prompt in bf16": dict(lengths=(5, 3), tokens=5, past=False, size=7, kept="bf16"),
    "8 bits": dict(lengths=(300, 4), tokens=2, rows=300, size=40, kept="s8"),
    "8 bits rotary": dict(lengths=(9, 4), tokens=3, rows=7, size=40, rotary=36, kept="s8", packed=True),
    "4 bits": dict(lengths=(300, 4), tokens=2, rows=300, size=36, kept="s4"),
    "4 bits rotary": dict(lengths=(9, 4), tokens=1, rows=9, size=16, rotary=16, kept="s4", window=4),
    "a prompt in 4 bits": dict(lengths=(5, 3), tokens=5, rows=0, size=6, kept="s4"),
    "a head of 256": dict(lengths=(9,), rows=8, size=256),
    "a head of two blocks": dict(lengths=(9, 3), tokens=2, rows=8, heads=2, groups=2, size=512, rotary=256),
    "a head of more than two blocks": dict(lengths=(9,), rows=8, size=519, kept="f16"),
    "a longest head": dict(lengths=(9,), rows=8, heads=2, groups=1, size=1024, kept="s8"),
}


ALL = dict(lengths=(30, 17), tokens=2, rows=40, heads=4, groups=2, size=20, rotary=16, softcap=2.0, bias=(2, 4),
           sinks=True, window=9)
FEW = {**ALL, "tokens": 1}
AT_ALL_LEVELS = {"all": ALL, "all in bf16": {**FEW, "kept": "bf16"}, "all in f16": {**FEW, "kept": "f16"},
                 "all in 8 bits": {**FEW, "kept": "s8", "packed": True, "interleaved": True},
                 "all in 4 bits": {**FEW, "kept": "s4"}}


@pytest.mark.parametrize("name", [*CASES, *AT_ALL_LEVELS])
def test_as_the_reference(name):
    g, x = attention(**{**CASES, **AT_ALL_LEVELS}[name])
    want = gq.reference(g, x)
    levels = [level.name for level in isa.available()] if name in AT_ALL_LEVELS else []
    for level, threads in [(None, 1), (None, 2), *((level, 2) for level in levels)]:
        got = gq.compile(g, isa=level, threads=threads, strict=True)(x)
        for n in want:
            np.testing.assert_array_equal(got[n], want[n], err_msg=f"{n} at {level}")


def test_values_that_are_not_seen_do_not_matter():
    """Infinities and NaNs behind the tokens of a batch element, and at later tokens of a prompt."""
    g, x = attention(lengths=(40, 17), tokens=6, rows=50, size=20)
    x["value"][0, 4:], x["past_value"][:, :, 34:], x["past_key"][:, :, 34:] = np.nan, np.inf, np.nan
    want, got = gq.reference(g, x), gq.compile(g, strict=True)(x)
    for n in want:
        np.testing.assert_array_equal(got[n], want[n], err_msg=n)
    assert np.isfinite(got["y"][0, :4]).all() and np.isfinite(got["y"][1]).all() and np.isnan(got["y"][0, 4:]).all()


@pytest.mark.parametrize("case, lengths, message", [
    (dict(), [9], "1 new tokens, a past cache of 6 rows and room for 7 rows do not fit a length of 9 tokens"),
    (dict(total=20), [9], "a past cache of 6 rows and room for 20 rows do not fit a length of 9 tokens"),
    (dict(), [0], "do not fit a length of 0 tokens"), (dict(), [-3], "do not fit a length of -3 tokens"),
    (dict(lengths=(5, 5), tokens=3, rows=5, total=5, bias=(1, 1)), [5, 6],
     "room for 5 rows do not fit a length of 6 tokens"),
    (dict(lengths=(5, 5), tokens=3, rows=9, total=5, bias=(2, 1)), [6, 5],
     "room for 5 rows do not fit a length of 6 tokens"),
    (dict(lengths=(40,), tokens=3, rows=39, rotary=8, size=40), [40], r"positions must be in \[0, 31\], got 37"),
    (dict(tokens=3, rotary=8, size=40, positions=np.array([[2, -1, 2]])), [7],
     r"positions must be in \[0, 31\], got -1")])
def test_lengths_and_positions_out_of_range(case, lengths, message):
    g, x = attention(**case)
    x["lengths"] = np.int32(lengths) - 1
    for run in (gq.compile(g, strict=True), lambda x: gq.reference(g, x)):
        with pytest.raises(InputError, match=message):
            run(x)


@pytest.mark.parametrize("kept, half", [("s8", 128), ("s4", 8)])
def test_rounding_of_integers_in_caches(kept, half):
    """Ties, limits, NaN and infinities."""
    g, x = attention(lengths=(1,), tokens=1, rows=1, heads=2, groups=1, size=16, kept=kept)
    x["key_scale"][:] = x["value_scale"][:] = 0.5
    x["key"][0, 0] = np.float32([0.5, 1.5, 2.5, -0.5, -1.5, half - 1, half - 0.5, half, -half, -half - 0.5, -half - 1,
                                 np.nan, np.inf, -np.inf, 0, -0.0]) / 2
    got, want = gq.compile(g, strict=True)(x), gq.reference(g, x)
    for n in want:
        np.testing.assert_array_equal(got[n], want[n], err_msg=n)
    row = got["keys"][0, 0, 0]
    row = row.astype(int) if kept == "s8" else np.stack([row & 15, row >> 4], -1).reshape(-1).astype(int) - 8
    top = half - 1
    assert row.tolist() == [0, 2, 2, 0, -2, top, top, top, -half, -half, -half, 0, top, -half, 0, 0]


def test_a_head_of_many_elements_is_left_to_the_reference():
    g, x = attention(lengths=(4,), rows=3, size=1025)
    assert "NumPy reference" in gq.compile(g).explain()


def test_multiply_accumulates():
    g, _ = attention(lengths=(9, 4), tokens=3, rows=7, size=40)
    assert gq.compile(g).coverage().total_by_op == {"cached_attention": 2 * 2 * 4 * 3 * 9 * 40}

"""Helpers for tests of passes: a graph as text before and after a pass, and equal numbers of both."""
from __future__ import annotations

import textwrap
from collections.abc import Mapping

import numpy as np

from graphq.dtypes import as_dtype, f8_e8m0
from graphq.ir import Graph, TensorType
from graphq.ir.interpret import reference
from graphq.ir.parse import parse
from graphq.ir.text import to_text
from graphq.ir.verify import verify
from graphq.rewrite.rule import Pass

SPECIALS = (-0.0, np.nan, np.inf, -np.inf, 0.0, 1e-42, 3e38)


def check_pass(rewrite: Pass, *, before: str, after: str | None = None, count: int | None = None, seed: int = 0,
               rtol: float = 0.0, atol: float = 0.0, sizes: Mapping[str, tuple[int, ...]] | None = None) -> Graph:
    """Run `rewrite` on the text `before` and compare with the text `after`; the graph after the pass.

    `after=None` says that nothing may change. Asserts the text, the number of rewrites (`count`; when not given: none
    exactly when the text stays), that both texts make the round trip through print and parse, that the graph verifies,
    and that the references of both graphs agree on random inputs: bit for bit, NaN, infinities and signed zeros among
    them, unless tolerances are given. `sizes` gives shapes to inputs whose shapes the text leaves open.
    """
    graph = parse(before)
    check_round_trip(graph)
    original = graph.copy()
    applied = rewrite(graph)
    verify(graph)
    wanted = to_text(original if after is None else parse(after))
    got = to_text(graph)
    assert got == wanted, f"the pass gives\n{textwrap.indent(got, '    ')}\nnot\n{textwrap.indent(wanted, '    ')}"
    if count is None:
        changed = got != to_text(original)
        assert bool(applied) == changed, f"the pass reports {applied} rewrites, the text changed: {changed}"
    else:
        assert applied == count, f"the pass reports {applied} rewrites, not {count}"
    check_round_trip(graph)
    check_same_numbers(original, graph, seed=seed, rtol=rtol, atol=atol, sizes=sizes)
    return graph


def check_round_trip(graph: Graph) -> None:
    """Assert that the graph's text parses to a graph of the same text."""
    text = to_text(graph)
    again = to_text(parse(text))
    assert again == text, f"the text\n{text}\nparses to\n{again}"


def check_same_numbers(a: Graph, b: Graph, *, seed: int = 0, rtol: float = 0.0, atol: float = 0.0,
                       sizes: Mapping[str, tuple[int, ...]] | None = None) -> None:
    """Assert that the references of two graphs with the same inputs and outputs agree on random inputs.

    Without tolerances: bit for bit, also on inputs that hold NaN, infinities, signed zeros and subnormal numbers (all
    NaN count as equal).
    """
    assert a.output_names == b.output_names, f"the outputs are {a.output_names} and {b.output_names}"
    inputs = random_inputs(a, seed, sizes)
    _compare(a, b, inputs, rtol, atol)
    if rtol == atol == 0:
        _compare(a, b, {name: _with_specials(x, seed) for name, x in inputs.items()}, 0, 0)


def _compare(a: Graph, b: Graph, inputs: Mapping[str, np.ndarray], rtol: float, atol: float) -> None:
    for name, x, y in zip(a.output_names, _listed(reference(a, inputs)), _listed(reference(b, inputs)), strict=True):
        assert x.dtype == y.dtype and x.shape == y.shape, \
            f"output '{name}': {x.dtype}{list(x.shape)} and {y.dtype}{list(y.shape)} differ"
        wide_x, wide_y = x.astype(np.float64), y.astype(np.float64)
        np.testing.assert_allclose(wide_y, wide_x, rtol=rtol, atol=atol, err_msg=f"output '{name}'")
        if rtol == atol == 0:
            signs = np.signbit(wide_x) == np.signbit(wide_y)
            assert (signs | np.isnan(wide_x)).all(), f"output '{name}': zeros differ in sign"


def random_inputs(graph: Graph, seed: int = 0,
                  sizes: Mapping[str, tuple[int, ...]] | None = None) -> dict[str, np.ndarray]:
    """Random arrays for all inputs, the same for the same seed; `sizes` gives the shapes that the graph leaves open."""
    rng = np.random.default_rng(seed)
    out = {}
    for v in graph.inputs:
        name = str(v.name)
        shape = sizes[name] if sizes and name in sizes else v.type.dims
        out[name] = random_array(TensorType(v.dtype, shape), rng)
    return out


def random_array(type: TensorType, rng: np.random.Generator) -> np.ndarray:
    """Standard normal floats, uniform integers (small ones for s32 and s64)."""
    dtype = type.dtype
    if dtype.kind == "float":
        x = rng.standard_normal(type.dims).astype(np.float32)
        return (np.abs(x) if dtype == f8_e8m0 else x).astype(dtype.numpy)  # which has no signs
    if dtype.kind == "bool":
        return rng.integers(0, 2, type.dims).astype(np.bool_)
    lo, hi = (-1000, 1000) if dtype.bits >= 32 else (int(dtype.min), int(dtype.max))
    return rng.integers(lo, hi + 1, type.dims).astype(dtype.numpy)


def _with_specials(x: np.ndarray, seed: int) -> np.ndarray:
    """A float array with special values, one after the other, at a fourth of its places; any other array as it is."""
    if as_dtype(x.dtype).kind != "float":
        return x
    out = x.flatten()
    places = np.random.default_rng(seed + 1).permutation(out.size)[:-(-out.size // 4)]
    with np.errstate(all="ignore"):
        out[places] = np.resize(np.array(SPECIALS, np.float32).astype(x.dtype), places.shape)
    return out.reshape(x.shape)


def _listed(out: np.ndarray | dict[str, np.ndarray]) -> list[np.ndarray]:
    return list(out.values()) if isinstance(out, dict) else [out]

"""Help to test passes and graphs: text in, text out, and equal numbers."""
from __future__ import annotations

import textwrap
from collections.abc import Mapping

import numpy as np

from graphq.interpret import reference
from graphq.ir import Graph, TensorType
from graphq.rewrite import Pass
from graphq.text import parse, to_text
from graphq.verify import verify


def check_pass(rewrite: Pass, *, before: str, after: str | None = None, count: int | None = None, seed: int = 0,
               rtol: float = 0.0, atol: float = 0.0) -> Graph:
    """Run `rewrite` on the text `before` and compare with the text `after`; the graph after the pass.

    `after=None` says that nothing may change. Asserts the text, the number of rewrites (`count`, when given), that
    both texts make the round trip through print and parse, that the graph verifies, and that the references of both
    graphs agree on random inputs (exactly, unless tolerances are given).
    """
    graph = parse(before)
    check_round_trip(graph)
    original = graph.copy()
    applied = rewrite(graph)
    verify(graph)
    wanted = parse(before if after is None else after)
    got, text = to_text(graph), to_text(wanted)
    assert got == text, f"the pass gives\n{textwrap.indent(got, '    ')}\nnot\n{textwrap.indent(text, '    ')}"
    if count is None and after is None:
        count = 0
    assert count is None or applied == count, f"the pass reports {applied} rewrites, not {count}"
    check_round_trip(graph)
    check_same_numbers(original, graph, seed=seed, rtol=rtol, atol=atol)
    return graph


def check_round_trip(graph: Graph) -> None:
    """Assert that the graph's text parses to a graph of the same text."""
    text = to_text(graph)
    again = to_text(parse(text))
    assert again == text, f"the text\n{text}\nparses to\n{again}"


def check_same_numbers(a: Graph, b: Graph, *, seed: int = 0, rtol: float = 0.0, atol: float = 0.0) -> None:
    """Assert that the references of two graphs with the same inputs agree on random inputs; NaN equals NaN."""
    inputs = random_inputs(a, seed)
    for x, y in zip(_listed(reference(a, inputs)), _listed(reference(b, inputs)), strict=True):
        assert x.dtype == y.dtype and x.shape == y.shape, f"{x.dtype}{list(x.shape)} and {y.dtype}{list(y.shape)} differ"
        np.testing.assert_allclose(_wide(y), _wide(x), rtol=rtol, atol=atol)


def random_inputs(graph: Graph, seed: int = 0, sizes: Mapping[str, tuple[int, ...]] | None = None) -> dict[str, np.ndarray]:
    """Random arrays for all inputs, the same for the same seed; `sizes` gives the shapes that the graph leaves open."""
    rng = np.random.default_rng(seed)
    out = {}
    for v in graph.inputs:
        name = str(v.name)
        shape = sizes[name] if sizes and name in sizes else v.type.dims
        out[name] = random_array(TensorType(v.dtype, shape), rng)
    return out


def random_array(type: TensorType, rng: np.random.Generator) -> np.ndarray:
    """Standard normal floats, uniform integers (small ones for s32)."""
    dtype = type.dtype
    if dtype.kind == "float":
        return rng.standard_normal(type.dims).astype(np.float32).astype(dtype.numpy)
    if dtype.kind == "bool":
        return rng.integers(0, 2, type.dims).astype(np.bool_)
    lo, hi = (-1000, 1000) if dtype.bits == 32 else (int(dtype.min), int(dtype.max))
    return rng.integers(lo, hi + 1, type.dims).astype(dtype.numpy)


def _listed(out: np.ndarray | dict[str, np.ndarray]) -> list[np.ndarray]:
    return list(out.values()) if isinstance(out, dict) else [out]


def _wide(x: np.ndarray) -> np.ndarray:
    return x.astype(np.float64)

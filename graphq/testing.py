"""Helpers for tests of passes: compare a graph before and after a pass, as text and by its numbers."""
import textwrap
from collections.abc import Mapping
from typing import Any

import numpy as np

from graphq.ir import Graph, to_text
from graphq.ir.parse import parse
from graphq.ir.verify import verify
from graphq.rewrite.fixpoint import tolerance_of
from graphq.rewrite.pattern import ANY
from graphq.rewrite.rule import Pass
from graphq.validation.compare import find_difference
from graphq.validation.inputs import input_types, random_array
from graphq.validation.subgraphs import detached
from graphq.validation.validator import failure
from graphq.validation.variations import variations

__all__ = ["check_pass", "check_round_trip", "check_same_numbers", "random_array", "random_inputs"]


def check_pass(rewrite: Pass, before: str, after: str | None | Any = None, *, inputs: str | None = None,
               count: int | None = None, seed: int = 0, rtol: float | None = None, atol: float | None = None,
               sizes: Mapping[str, tuple[int, ...]] | None = None, vary: bool = True) -> Graph:
    """Run a pass on the graph `before` and compare the result with the text `after`. Returns the changed graph.

    If `inputs` is given, such as "x: f32[4], y: f32[4]", `before` and `after` have only the statements inside a graph
    with these inputs. `after=None` means that nothing may change; `after=ANY` accepts any result. `sizes` has shapes
    for inputs whose shapes are open. The function asserts that

    - the changed graph's text is `after`, and the pass reports `count` rewrites (default: 0 if nothing changed, else at
      least 1)
    - both graphs survive printing and parsing, and the changed graph verifies
    - the references of both graphs agree on adversarial inputs (`check_same_numbers`). The default tolerance is the
      pass's own `tolerance`, or 0

    Unless `vary` is False, the comparison of numbers is repeated for graphs with other constants, attributes and sizes
    (`graphq.validation.variations`). The pass need not change these graphs, but must not raise.
    """
    if inputs is not None:
        before = f"graph({inputs}) {{\n{before}\n}}"
        after = f"graph({inputs}) {{\n{after}\n}}" if isinstance(after, str) else after
    graph = parse(before)
    check_round_trip(graph)
    original = detached(graph)
    applied = rewrite(graph)
    verify(graph)
    if after is not ANY:
        _check_text(original, graph, applied, after, count)
    check_round_trip(graph)
    tolerance = tolerance_of(rewrite)
    check_same_numbers(original, graph, seed=seed, rtol=tolerance if rtol is None else rtol,
                       atol=tolerance if atol is None else atol, sizes=sizes)
    for words, varied in variations(original, seed) if vary else ():
        found = failure(rewrite, varied, max(rtol or 0.0, atol or 0.0, tolerance), may_raise=False)
        assert found is None, f"the pass is wrong for the same text with {words}: {found}\n{to_text(varied)}"
    return graph


def _check_text(original: Graph, graph: Graph, applied: int, after: str | None, count: int | None) -> None:
    wanted = to_text(original if after is None else parse(after))
    got = to_text(graph)
    assert got == wanted, f"the pass gives\n{textwrap.indent(got, '    ')}\nnot\n{textwrap.indent(wanted, '    ')}"
    if count is None:
        changed = got != to_text(original)
        assert bool(applied) == changed, f"the pass reports {applied} rewrites, the text changed: {changed}"
    else:
        assert applied == count, f"the pass reports {applied} rewrites, not {count}"


def check_round_trip(graph: Graph) -> None:
    """Assert that the graph's text parses to a graph with the same text."""
    text = to_text(graph)
    again = to_text(parse(text))
    assert again == text, f"the text\n{text}\nparses to\n{again}"


def check_same_numbers(a: Graph, b: Graph, *, seed: int = 0, rtol: float = 0.0, atol: float = 0.0,
                       sizes: Mapping[str, tuple[int, ...]] | None = None) -> None:
    """Assert that the references of two graphs agree on adversarial inputs (`graphq.validation.inputs`).

    The graphs must have the same inputs and outputs. Without tolerances, results must be equal bit for bit, except that
    all NaN count as equal. `rtol` is relative to the largest element of an output.
    """
    assert a.output_names == b.output_names, f"the outputs are {a.output_names} and {b.output_names}"
    found = find_difference(a, b, seed=seed, rtol=rtol, atol=atol, sizes=sizes)
    assert found is None, found


def random_inputs(graph: Graph, seed: int = 0,
                  sizes: Mapping[str, tuple[int, ...]] | None = None) -> dict[str, np.ndarray]:
    """Random arrays for all inputs, equal for equal seeds. `sizes` has shapes for inputs with open shapes."""
    rng = np.random.default_rng(seed)
    return {name: random_array(type, rng) for name, type in input_types(graph, sizes).items()}

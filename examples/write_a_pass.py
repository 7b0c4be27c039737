"""Write your own pass, from the idea to its tests.

    python examples/write_a_pass.py             # see it work
    python -m pytest examples/write_a_pass.py   # run its tests

The idea: attention scales its queries, for example by 1/sqrt(64), before the matmul with the keys. In an int8 model
this multiply is between dequantize and matmul. The matmul then cannot become an integer partition, because its operand
is not a dequantize. But dequantize multiplies by a scale already, and the two scales can become one:

    multiply(dequantize(x, scales=[s]), c)  ->  dequantize(x, scales=[s * c])

The numbers: a rewrite keeps the graph's numbers, or its docstring says by how much it changes them. `x * s` is rounded
to f32, and its product with c is rounded again, so `x * (s * c)` is in general another number. But a power of two
changes only the exponent. The rewrite is therefore exact for powers of two, and `check` refuses all other factors.
"""
from __future__ import annotations

import math

import numpy as np

import graphq as gq
from graphq.passes import ANY, PIPELINE, Rewrite
from graphq.testing import check_pass


class FoldScaleIntoDequantize(Rewrite):
    """multiply(dequantize(x, scales=s), c) -> dequantize(x, scales=s*c), c a constant power of two (exact)"""

    def pattern(self, g, x, c):
        """Describe the subgraph. The parameters after `g` are its variables; ANY accepts all attributes."""
        return g.multiply(g.dequantize(x, attrs=ANY), c)

    def check(self, x, c, match):
        """Return a reason to refuse the match, or None. Variables are values, with types; constants have data."""
        if c.data is None or c.data.size != 1:
            return f"the factor must be one constant number, got {c.type}"
        factor = c.data.item()
        if factor <= 0 or math.frexp(factor)[0] != 0.5:
            return f"the factor must be a power of two, got {factor}"
        if match.root.output.shape != x.shape:
            return f"the factor broadcasts {x.type} to {match.root.output.type}"
        smallest = float(np.finfo(np.float32).tiny)
        scales = match.node("dequantize").attrs["scales"]
        if not all(smallest <= s < 1e30 for scale in scales for s in (scale, scale * factor)):
            return "scales before and after must be normal f32 numbers below 1e30, or results could round or overflow"
        return None

    def replace(self, g, x, c, match):
        """Return the value that replaces the match. The driver removes unused nodes."""
        attrs = dict(match.node("dequantize").attrs)
        attrs["scales"] = [s * c.data.item() for s in attrs["scales"]]
        return g.dequantize(x, **attrs)


SCORES = """
    graph scores(queries: u8[16,64], keys: s8[64,32]) {
      %q = dequantize(queries, scales=[0.02], zps=[128])
      %factor = constant(value=f32[1]{0.125})
      %scaled = multiply(%q, %factor)
      %k = dequantize(keys, scales=[0.015])
      %scores = matmul(%scaled, %k)
      return %scores
    }"""


# -- the tests: text in, text out, and equal numbers (check_pass also runs both references on adversarial inputs) --


def test_scale_folds():
    check_pass(FoldScaleIntoDequantize(), count=1, before="""
        graph(x: u8[4,8]) {
          %0 = dequantize(x, scales=[0.5], zps=[3])
          %1 = constant(value=f32[1]{0.125})
          %2 = multiply(%0, %1)
          return %2
        }""", after="""
        graph(x: u8[4,8]) {
          %0 = dequantize(x, scales=[0.0625], zps=[3])
          return %0
        }""")


def test_channels_and_the_other_operand_order_fold():
    check_pass(FoldScaleIntoDequantize(), count=1, before="""
        graph(x: s8[4,2]) {
          %0 = dequantize(x, qtype="per_channel", scales=[0.5, 0.3])
          %1 = constant(value=f32[1]{4.0})
          %2 = multiply(%1, %0)
          return %2
        }""", after="""
        graph(x: s8[4,2]) {
          %0 = dequantize(x, qtype="per_channel", scales=[2.0, 1.2])
          return %0
        }""")


def test_scale_that_becomes_subnormal_is_refused():
    assert "normal" in refused("""
        graph(x: u8[4]) {
          %0 = dequantize(x, scales=[1e-38])
          %1 = constant(value=f32[1]{0.125})
          %2 = multiply(%0, %1)
          return %2
        }""")


def refused(text: str) -> str:
    """Assert that the pass does not change the graph; returns its reason."""
    check_pass(FoldScaleIntoDequantize(), before=text, after=None)
    _, refusals = FoldScaleIntoDequantize().apply(gq.parse(text))
    return refusals[0].reason


def test_inexact_factor_is_refused():
    assert "power of two, got 3.0" in refused("""
        graph(x: u8[4]) {
          %0 = dequantize(x, scales=[0.5])
          %1 = constant(value=f32[1]{3.0})
          %2 = multiply(%0, %1)
          return %2
        }""")


def test_factor_that_is_no_constant_is_refused():
    assert "constant" in refused("""
        graph(x: u8[4], c: f32[1]) {
          %0 = dequantize(x, scales=[0.5])
          %1 = multiply(%0, c)
          return %1
        }""")


def test_second_user_is_refused():
    assert "also used by" in refused("""
        graph(x: u8[4]) {
          %0 = dequantize(x, scales=[0.5])
          %1 = constant(value=f32[1]{2.0})
          %2 = multiply(%0, %1)
          %3 = relu(%0)
          return %2, %3
        }""")


def test_returned_dequantize_is_refused():
    assert "output of the graph" in refused("""
        graph(x: u8[4]) {
          %0 = dequantize(x, scales=[0.5])
          %1 = constant(value=f32[1]{2.0})
          %2 = multiply(%0, %1)
          return %2, %0
        }""")


def main() -> None:
    """Run the pass by itself, show a refusal, and run the pass in front of the pipeline."""
    graph = gq.parse(SCORES)
    print("The graph:", gq.to_text(graph), sep="\n")

    alone = graph.copy()
    print(f"\nThe pass alone applied {FoldScaleIntoDequantize()(alone)} time:", gq.to_text(alone), sep="\n")

    count, refusals = FoldScaleIntoDequantize().apply(gq.parse(SCORES.replace("0.125", "0.3")))
    print(f"\nWith a factor of 0.3 it applied {count} times and says why:")
    for refusal in refusals:
        print(f"  {refusal.node}\n    {refusal.reason}")

    # raises PassError, with a test, if the numbers differ
    gq.compile(graph, passes=[FoldScaleIntoDequantize()], verify="numeric")
    print("\nThe references before and after the pass agree, also at rounding ties, NaN and infinities")

    plain = gq.compile(graph)
    mine = gq.compile(graph, passes=[FoldScaleIntoDequantize(), *PIPELINE])
    print("\nThe pipeline as it is:", plain.explain(), sep="\n")
    print("\nThe pipeline with the pass in front:", mine.explain(), sep="\n")

    rng = np.random.default_rng(0)
    inputs = {"queries": rng.integers(0, 256, (16, 64), dtype=np.uint8),
              "keys": rng.integers(-128, 128, (64, 32), dtype=np.int8)}
    error = np.abs(mine(inputs) - gq.reference(graph, inputs)).max()
    print(f"\nlargest difference to the reference: {error:.2g} (one f32 rounding or two: sums of integers are exact)")


if __name__ == "__main__":
    main()

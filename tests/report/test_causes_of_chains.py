"""Causes of chains and operands that end outside integer partitions: each has a cause of its own."""
import numpy as np
import pytest

import graphq as gq
from graphq.passes.fuse import Fuse
from graphq.report.given import BORDER


def causes(text):
    return [c for c in gq.compile(gq.parse(text), threads=1).explanation().causes if c.check != BORDER]


def test_what_follows_a_product_that_no_fusion_takes_has_its_cause():
    """A chain after the product names the product, and both are one cause."""
    g = gq.Graph("g")
    x, w = g.input("x", dtype="u8", shape=(1, 3, 4, 4)), g.constant(np.ones((2, 3, 1, 1), np.int8))
    sums = g.conv_integer(x, w, strides=[1, 1], pads_begin=[0, 0], pads_end=[0, 0], dilations=[1, 1])
    y = g.cast(sums, dtype="f32")
    g.output(g.quantize(g.add(y, g.input("z", dtype="f32", shape=(1, 2, 4, 4))), dtype="u8", scales=[0.5]), name="q")
    report = gq.compile(g, passes=[Fuse("eltwise", floats=True)], threads=1).explain(format="json")
    texts = [c["reason"] for c in report["causes"]]
    assert [t for t in texts if "no fusion supports" in t] == ["no fusion supports conv_integer"]


def test_operands_of_one_operation_have_causes_of_their_own():
    found = causes("""graph(x: u8[1,2,4,4], y: s8[1,3,3,2]) {
      %a = dequantize(x, scales=[0.1])
      %b = dequantize(y, scales=[0.01])
      %s = grid_sample(%a, %b)
      %q = quantize(%s, dtype=u8, scales=[0.2])
      return %q
    }""")
    assert [(c.value, c.reason, c.also) for c in found] == [
        (value, f"grid_sample (%s) reads {read} in f32: no partition can contain a grid_sample", also)
        for value, read, also in (("%q", "%a", ("%a", "%s")), ("%b", "%b", ("%s",)))]


DENSE = """%w = constant(value=s8[4,2]{1, -2, 3, 4, 5, -6, 7, 8})
 %dw = dequantize(%w, scales=[0.1])
 %dx = dequantize(x, scales=[0.1], zps=[3])
 %y = matmul(%dx, %dw)"""
Q = "dtype=u8, scales=[0.2], zps=[7]"
INPUT = "r is an input of the graph in f32"
CHAINS = {  # the graph; of each cause, the border's too: the value, its reason or the beginning of it, further values
    "the scale of its quantize is no operand": (
        "r: f32[3,4], s: f32[1]", "%t = tanh(r)\n %k = cum_sum(s, axis=0)\n %q = dynamic_quantize(%t, %k, dtype=u8)\n"
        " return %q", [("%q", INPUT, ("%t",))]),
    "integers of a cast are one": (
        "x: s8[3,4]", f"%f = cast(x, dtype=f32)\n %t = tanh(%f)\n %q = quantize(%t, {Q})\n return %q",
        [("%q", "x is an input of the graph in s8", ("%f", "%t"))]),
    "the border before a quantize within": (
        "r: f32[3,4]", f"%t = tanh(r)\n %q = quantize(%t, {Q})\n %d = dequantize(%q, scales=[0.2], zps=[7])\n"
        " %s = tanh(%d)\n return %s", [("%s", "%s is returned in f32, and not quantized", ("%t", "%q", "%d"))]),
    "an axis that has scales is not moved": (
        "x: u8[3,4]", f"{DENSE}\n %m = static_transpose(%y, order=[1,0])\n %t = tanh(%m)\n %q = quantize(%t, dtype=u8, "
        'qtype="per_channel", axis=0, scales=[0.1, 0.2])\n return %q',
        [("%q", "static_transpose (%m) stands between %y and the quantize, and moves f32", ("%t", "%m"))]),
    "a value moved after another operation": (
        "x: u8[3,4]", f"{DENSE}\n %z = cum_sum(%y, axis=1)\n %m = static_transpose(%z, order=[1,0])\n %t = tanh(%m)\n"
        f" %q = quantize(%t, {Q})\n return %q",
        [("%q", "cum_sum (%z), with 1 more after it, stands between %y and the quantize", ("%t", "%z"))]),
    "values of other causes are not listed again": (
        "x: u8[2,4]", f"{DENSE}\n %p = quantize(%y, {Q})\n %z = matmul(%y, %dx)\n return %p, %z",
        [("%z", "its activations, %y, are f32, although a quantize makes %p of %y", ("%dx",)),
         ("%p", "%y has a second user in f32", ())]),
    "the chain's own operations are no further users": (
        "x: u8[3,4]", f"{DENSE}\n %s = sigmoid(%y)\n %m = multiply(%y, %s)\n %q = quantize(%m, {Q})\n"
        " %z = cum_sum(%y, axis=1)\n return %q, %z",
        [("%q", "%y has a second user in f32: %z = cum_sum(%y) : f32[3,2]", ("%s", "%m", "%z"))]),
    "a quantize stands for its group": (
        "x: s16[1,4,4,3]", "%d = dequantize(x, scales=[0.1])\n %p = max_pool(%d, kernel=[2,2], strides=[2,2], "
        f"pads_begin=[0,0], pads_end=[0,0])\n %q = quantize(%p, {Q})\n return %q",
        [("%q", "max_pool (%p) reads %d in f32: the input is s16", ("%d", "%p"))]),
}


@pytest.mark.parametrize("name", CHAINS)
def test_chains(name):
    inputs, statements, want = CHAINS[name]
    found = gq.compile(gq.parse(f"graph({inputs}) {{\n {statements}\n}}"), threads=1).explanation().causes
    assert [(c.value, c.also) for c in found] == [(value, also) for value, _, also in want]
    for cause, (_, reason, _) in zip(found, want, strict=True):
        assert cause.reason.startswith(reason)

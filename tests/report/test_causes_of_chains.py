"""Causes of chains and operands that end outside integer partitions: each has a cause of its own."""
import numpy as np

import graphq as gq
from graphq.passes.fuse import Fuse
from graphq.report.reasons import BORDER


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

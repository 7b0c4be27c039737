"""Causes of what the passes of a user do not fuse: `explain()` names the pass that is missing."""
import graphq as gq
from graphq.report.given import BORDER

FUSED = """graph(x: u8[3,4]) {
  %w = constant(value=s8[4,2]{1, -2, 3, 4, 5, -6, 7, 8})
  %dw = dequantize(%w, scales=[0.1])
  %dx = dequantize(x, scales=[0.1], zps=[3])
  %y = matmul(%dx, %dw)
  %q = quantize(%y, dtype=u8, scales=[0.2], zps=[7])
  return %q
}"""


def test_passes_that_lack_the_fusion():
    passes = gq.passes.without(gq.passes.PIPELINE, "FuseMatmul")
    found = gq.compile(gq.parse(FUSED), passes=passes, threads=1).explanation().causes
    cause = next(c for c in found if c.op == "matmul")
    assert cause.reason == "the passes do not include FuseMatmul" and "Fuse('matmul')" in cause.edit


def test_passes_that_leave_a_reorder_after_a_dequantize():
    graph = gq.parse("""graph(x: u8[1,8,4,4], w: s8[4,8,1,1]) {
      %dx = dequantize(x, scales=[0.1])
      %dw = dequantize(w, scales=[0.1])
      %c = convolution(%dx, %dw, strides=[1,1], pads_begin=[0,0], pads_end=[0,0], dilations=[1,1],
                       data_format="NCX", weights_format="OIX")
      %q = quantize(%c, dtype=u8, scales=[0.2], zps=[7])
      %y = multiply(%dx, %dx)
      return %q, %y
    }""")
    passes = gq.passes.without(gq.passes.PIPELINE, "duplicate_dequantize")
    found = gq.compile(graph, passes=passes, threads=1).explanation().causes
    cause = next(c for c in found if c.op == "convolution")
    assert "a reorder that the passes added" in cause.reason and "duplicate_dequantize" in cause.edit
    assert all(c.check == BORDER for c in gq.compile(graph, threads=1).explanation().causes)

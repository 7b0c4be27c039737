"""Interpolates fold with what dequantizes their source and what follows them."""
import fusions
import pytest
from graphs import graph_of

from graphq.passes.fuse import Fuse
from graphq.testing import check_pass

QUANTIZED = """
  %0 = dequantize(x, scales=[0.02], zps=[120])
  %1 = interpolate(%0, mode="linear", sizes=[6,8])
  %2 = relu(%1)
  %q = quantize(%2, dtype=u8, scales=[0.1], zps=[3])
  return %q"""


def test_a_quantized_interpolate():
    check_pass(Fuse("interpolate"), QUANTIZED, count=1, inputs="x: u8[2,3,4,5]", after="""
      %q = partition(x, body=graph body(x: u8[2,3,4,5]) {
        %0 = dequantize(x, scales=[0.02], zps=[120])
        %1 = interpolate(%0, mode="linear", sizes=[6,8])
        %2 = relu(%1)
        %q = quantize(%2, dtype=u8, scales=[0.1], zps=[3])
        return %q as out0
      }, anchor="interpolate")
      return %q""")


@pytest.mark.parametrize("end,ops", [
    ("return %q, %1", ["dequantize", "interpolate"]),
    ("%s = exp(%0)\n return %q, %s", ["interpolate", "relu", "quantize"]),
])
def test_values_with_other_users_stay_outside(end, ops):
    assert fusions.fused(Fuse("interpolate"), QUANTIZED.replace("return %q", end), "x: u8[2,3,4,5]")[0] == [ops]


@pytest.mark.parametrize("statements,inputs,reason", [
    (QUANTIZED.replace("sizes=[6,8]", 'sizes=[6,8], data_format="NCX"'), "x: u8[2,5,3,4]", "data_format NXC"),
    (QUANTIZED, "x: u8[?,3,4,5]", "known only at the first call"),
    ('\n %0 = interpolate(x, s, mode="nearest")\n return %0', "x: f32[2,3,4,5], s: s32[2]", "known only at run time"),
    (QUANTIZED.replace("x, scales=[0.02], zps=[120]", 'x, qtype="per_channel", axis=1, scales=[1,2,3]'),
     "x: u8[2,3,4,5]", "quantized along axis 1"),
    ('\n %0 = interpolate(x, mode="linear", sizes=[1,1,1,1,1])\n return %0', "x: f32[1,2,2,2,2,2,3]", "up to 4"),
])
def test_refusals(statements, inputs, reason):
    g = graph_of(statements, inputs)
    count, refusals = Fuse("interpolate").apply(g)
    assert count == 0 and reason in refusals[0].reason

"""Concats fold with what dequantizes their sources and what follows them."""
import fusions
import pytest
from graphs import graph_of

from graphq.passes.fuse import Fuse
from graphq.testing import check_pass

QUANTIZED = """
  %0 = dequantize(x, scales=[0.02], zps=[120])
  %1 = dequantize(y, scales=[0.03])
  %2 = concat(%0, %1, axis=1)
  %3 = relu(%2)
  %q = quantize(%3, dtype=u8, scales=[0.1], zps=[3])
  return %q"""
INPUTS = "x: u8[2,3], y: s8[2,4]"


def fused(statements, inputs=INPUTS):
    return fusions.fused(Fuse("concat"), statements, inputs)


def test_a_quantized_concat():
    check_pass(Fuse("concat"), QUANTIZED, count=1, inputs=INPUTS, after="""
      %q = partition(x, y, body=graph body(x: u8[2,3], y: s8[2,4]) {
        %0 = dequantize(x, scales=[0.02], zps=[120])
        %1 = dequantize(y, scales=[0.03])
        %2 = concat(%0, %1, axis=1)
        %3 = relu(%2)
        %q = quantize(%3, dtype=u8, scales=[0.1], zps=[3])
        return %q as out0
      }, anchor="concat")
      return %q""")


def test_a_plain_concat():
    assert fused("\n %0 = concat(x, y, axis=0)\n return %0", "x: bf16[2,3], y: bf16[1,3]")[0] == [["concat"]]


@pytest.mark.parametrize("end,ops", [
    ("return %q, %2", ["dequantize", "dequantize", "concat"]),
    ("%s = exp(%1)\n return %q, %s", ["dequantize", "concat", "relu", "quantize"]),
])
def test_values_with_other_users_stay_outside(end, ops):
    assert fused(QUANTIZED.replace("return %q", end))[0] == [ops]


@pytest.mark.parametrize("statements,inputs,reason", [
    (QUANTIZED.replace("relu(%2)", "add(%2, b)"), INPUTS + ", b: f32[7]",
     "varies along axis 1, the axis of the concat"),
    (QUANTIZED.replace("relu(%2)", 'bias_add(%2, b, data_format="NCX")'), INPUTS + ", b: f32[7]", "varies along"),
    (QUANTIZED.replace("relu(%2)", "add(%2, b)"), INPUTS + ", b: f32[1,2,7]", "changes the shape"),
])
def test_epilogues_that_end_the_chain(statements, inputs, reason):
    partitions, refusals = fused(statements, inputs)
    assert partitions == [["dequantize", "dequantize", "concat"]] and reason in refusals[0].reason


def test_unknown_shapes_wait_for_the_first_call():
    g = graph_of(QUANTIZED, "x: u8[?,3], y: s8[?,4]")
    count, refusals = Fuse("concat").apply(g)
    assert count == 0 and "known only at the first call" in refusals[0].reason

"""Operations along rows fold with the chains before and after them."""
import fusions
import pytest

from graphq.passes.fuse import Fuse
from graphq.testing import check_pass

QUANTIZED = """
  %0 = dequantize(x, scales=[0.02], zps=[120])
  %1 = add(%0, m)
  %2 = softmax(%1, axis=-1)
  %q = quantize(%2, dtype=u8, scales=[0.004], zps=[0])
  return %q"""
INPUTS = "x: u8[2,5,7], m: f32[7]"


def fused(statements, inputs=INPUTS):
    return fusions.fused(Fuse("row", floats=True), statements, inputs)


def test_a_quantized_softmax():
    check_pass(Fuse("row", floats=True), QUANTIZED, count=1, inputs=INPUTS, after="""
      %q = partition(x, m, body=graph body(x: u8[2,5,7], m: f32[7]) {
        %0 = dequantize(x, scales=[0.02], zps=[120])
        %1 = add(%0, m)
        %2 = softmax(%1, axis=-1)
        %q = quantize(%2, dtype=u8, scales=[0.004], zps=[0])
        return %q as out0
      }, anchor="row")
      return %q""")


@pytest.mark.parametrize("row", ["log_softmax(%0)", "rms_norm(%0)", "rms_norm(%0, m)",
                                 "layer_norm(%0, m, m, keep_stats=false)",
                                 "layer_norm(%0, use_affine=false, keep_stats=false)",
                                 *(f"reduce_{how}(%0, axes=[2], keep_dims=true)"
                                   for how in ("sum", "mean", "l1", "l2", "max", "min"))])
def test_operations(row):
    statements = f"\n %0 = exp(x)\n %1 = {row}\n %2 = relu(%1)\n return %2"
    (ops,), _ = fused(statements, "x: f32[2,5,7], m: f32[7]")
    assert ops == ["exp", row.split("(")[0], "relu"]


def test_a_source_with_another_user_stays_outside():
    statements = QUANTIZED.replace("return %q", "%s = exp(%1)\n return %q, %s")
    assert fused(statements)[0] == [["softmax", "quantize"]]


def test_a_source_that_the_epilogue_reads_stays_outside():
    (ops,), _ = fused("\n %0 = exp(x)\n %1 = softmax(%0, axis=-1)\n %2 = multiply(%1, %0)\n return %2", "x: f32[2,5,7]")
    assert ops == ["softmax", "multiply"]


def test_a_result_that_is_also_returned():
    assert fused(QUANTIZED.replace("return %q", "return %q, %2"))[0] == [["dequantize", "add", "softmax"]]


@pytest.mark.parametrize("row,reason", [
    ("softmax(x, axis=1)", "softmax works along axis 1 of f32[2,5,7], kernels along axis 2"),
    ("layer_norm(x, m, m, keep_stats=false, begin_norm_axis=1)", "layer_norm works along axes 1 and 2 of"),
    ("reduce_sum(x, axes=[1], keep_dims=true)", "reduces axis 1 of f32[2,5,7], kernels axis 2"),
    ("reduce_sum(x, axes=[1,2], keep_dims=true)", "reduces axes 1 and 2 of"),
    ("reduce_sum(x, axes=[2])", "kernels keep"),
])
def test_refusals(row, reason):
    inputs = "x: f32[2,5,7], m: f32[5,7]" if "begin_norm" in row else "x: f32[2,5,7], m: f32[7]"
    partitions, refusals = fused(f"\n %0 = {row}\n return %0", inputs)
    assert not partitions and reason in refusals[0].reason


def test_statistics():
    partitions, _ = fused("\n %0, %1, %2 = layer_norm(x, m, m)\n return %0, %1, %2", "x: f32[2,5,7], m: f32[7]")
    assert not partitions
    partitions, _ = fused("\n %0, %1, %2 = layer_norm(x, m, m)\n %3 = relu(%0)\n return %3", "x: f32[2,5,7], m: f32[7]")
    assert not partitions


def test_empty_rows():
    partitions, refusals = fused("\n %0 = softmax(x, axis=-1)\n return %0", "x: f32[2,0]")
    assert not partitions and "empty" in refusals[0].reason


def test_an_epilogue_that_broadcasts_a_sum():
    statements = "\n %0 = reduce_sum(x, axes=[2], keep_dims=true)\n %1 = add(%0, x)\n return %1"
    partitions, refusals = fused(statements, "x: f32[2,5,7]")
    assert partitions == [["reduce_sum"]] and any("more than once" in r.reason for r in refusals)

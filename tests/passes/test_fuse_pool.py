"""Pools fold with what dequantizes their source and what follows them."""
import fusions
import pytest
from graphs import graph_of

from graphq.passes.fuse import Fuse
from graphq.testing import check_pass

POOL = "strides=[2,2], pads_begin=[1,1], pads_end=[1,1], kernel=[3,3]"
QUANTIZED = f"""
  %0 = dequantize(x, scales=[0.02], zps=[120])
  %1 = max_pool(%0, {POOL})
  %2 = relu(%1)
  %q = quantize(%2, dtype=u8, scales=[0.1], zps=[3])
  return %q"""


def fused(statements, inputs="x: u8[2,5,7,3]"):
    return fusions.fused(Fuse("pool"), statements, inputs)


def refusal(statements, inputs="x: u8[2,5,7,3]"):
    """The reason why nothing fused."""
    partitions, refusals = fused(statements, inputs)
    assert partitions == []
    return refusals[0].reason


def test_a_quantized_pool():
    check_pass(Fuse("pool"), QUANTIZED, count=1, inputs="x: u8[2,5,7,3]", after=f"""
      %q = partition(x, body=graph body(x: u8[2,5,7,3]) {{
        %0 = dequantize(x, scales=[0.02], zps=[120])
        %1 = max_pool(%0, {POOL})
        %2 = relu(%1)
        %q = quantize(%2, dtype=u8, scales=[0.1], zps=[3])
        return %q as out0
      }}, anchor="pool")
      return %q""")


@pytest.mark.parametrize("pool", [f"avg_pool(%0, {POOL}, exclude_pad=true)", f"avg_pool(%0, {POOL}, exclude_pad=false)",
                                  "reduce_mean(%0, axes=[1,2], keep_dims=true)", "reduce_mean(%0, axes=[-2,1])",
                                  "reduce_mean(%0, axes=[1])", "reduce_mean(%0, axes=[0,1,2])",
                                  f"max_pool(%0, {POOL}, dilations=[2,1])"])
@pytest.mark.parametrize("source", ["x: u8[2,5,7,3]", "x: s8[2,5,7,3]"])
def test_pools(pool, source):
    statements = f"\n %0 = dequantize(x, scales=[0.02], zps=[12])\n %1 = {pool}\n return %1"
    assert fused(statements, source)[0] == [["dequantize", pool.split("(")[0]]]


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
def test_pools_of_floats(dtype):
    assert fused(f"\n %0 = max_pool(x, {POOL})\n return %0", f"x: {dtype}[2,5,7,3]")[0] == [["max_pool"]]


@pytest.mark.parametrize("axis", [-1, 3])
def test_a_scale_for_each_channel(axis):
    given = f'%0 = dequantize(x, qtype="per_channel", axis={axis}, scales=[0.02, 0.1, 0.3], zps=[120, 0, 3])'
    assert len(fused(QUANTIZED.replace("%0 = dequantize(x, scales=[0.02], zps=[120])", given))[0]) == 1


def test_a_residual_that_is_dequantized():
    statements = QUANTIZED.replace("%2 = relu(%1)", "%3 = dequantize(z, scales=[0.1])\n %2 = add(%1, %3)")
    (ops,), _ = fused(statements, "x: u8[2,5,7,3], z: s8[2,3,4,3]")
    assert sorted(ops) == ["add", "dequantize", "dequantize", "max_pool", "quantize"]


@pytest.mark.parametrize("end,ops", [
    ("return %q, %1", ["dequantize", "max_pool"]), ("%s = exp(%1)\n return %q, %s", ["dequantize", "max_pool"]),
    ("return %q, %0", ["max_pool", "relu", "quantize"]),
    ("%s = exp(%0)\n return %q, %s", ["max_pool", "relu", "quantize"]),
])
def test_values_with_other_users_stay_outside(end, ops):
    assert fused(QUANTIZED.replace("return %q", end))[0] == [ops]


@pytest.mark.parametrize("statements,inputs,reason", [
    (QUANTIZED.replace("kernel=[3,3]", 'kernel=[3,3], data_format="NCX"'), "x: u8[2,3,5,7]", "data_format NXC"),
    (QUANTIZED.replace("pads_end=[1,1]", "pads_end=[9,1]"), "x: u8[2,5,7,3]", "a window lies only in the padding"),
    (QUANTIZED, "x: u8[?,5,7,3]", "known only at the first call"),
    (QUANTIZED.replace("x, scales=[0.02], zps=[120]", 'x, qtype="per_channel", axis=1, scales=[1,2,3,4,5]'),
     "x: u8[2,5,7,3]", "quantized along axis 1"),
    ("\n %0 = reduce_mean(x, axes=[0,-1])\n return %0", "x: f32[2,3,4]", "reduces axes 0 and 2 of"),
    ("\n %0 = reduce_mean(x, a)\n return %0", "x: f32[2,3,4], a: s32[1]", "known only at run time"),
    ("\n %0 = reduce_mean(x)\n return %0", "x: f32[2,3,4]", "reduces no axes of"),
])
def test_refusals(statements, inputs, reason):
    g = graph_of(statements, inputs)
    count, refusals = Fuse("pool").apply(g)
    assert count == 0 and reason in refusals[0].reason, refusals


def test_an_epilogue_that_enlarges_the_result_ends_the_chain():
    statements = "\n %0 = reduce_mean(x, axes=[1], keep_dims=true)\n %1 = add(%0, y)\n return %1"
    partitions, refusals = fused(statements, "x: f32[2,3,4], y: f32[2,5,4]")
    assert partitions == [["reduce_mean"]] and "computed more than once" in refusals[0].reason

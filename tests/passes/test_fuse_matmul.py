"""FuseMatmul: which chains become one integer partition, and why others do not."""
import numpy as np
import pytest
from graphs import graph_of, text_of

import graphq as gq
from graphq.ir import Graph
from graphq.ir.text import parse, to_text
from graphq.ir.verify import verify
from graphq.kernels.family.record import MAX_EPILOGUE
from graphq.passes import Fuse, duplicate_dequantize, run_passes
from graphq.testing import check_pass, check_same_numbers

DENSE = """
  %dx = dequantize(x, scales=[0.02], zps=[120])
  %w = constant(value=s8[3,2]{1, -2, 3, 4, 5, -6})
  %dw = dequantize(%w, qtype="per_channel", scales=[0.5, 0.25])
  %0 = matmul(%dx, %dw)
  %1 = bias_add(%0, b)
  %2 = relu(%1)
  %q = quantize(%2, dtype=u8, scales=[0.1], zps=[3])
  return %q"""


def fused(statements, inputs="x: u8[4,3], b: f32[2], z: u8[4,2]"):
    """Run the fusion on a copy; the fused graph, which has the same numbers, and the refusals."""
    before = graph_of(statements, inputs)
    after = before.copy()
    _, refusals = Fuse("matmul").apply(after)
    verify(after)
    check_same_numbers(before, after)
    assert to_text(parse(to_text(after))) == to_text(after)
    return after, refusals


def partitions(g):
    """The operations of each partition."""
    return [[n.op.name for n in p.attrs["body"].nodes] for p in g.nodes if p.op.name == "partition"]


def whole(statements, inputs="x: u8[4,3], b: f32[2], z: u8[4,2]"):
    """The operations of the one partition that everything but constants became."""
    g, _ = fused(statements, inputs)
    assert [n.op.name for n in g.nodes if n.op.name != "constant"] == ["partition"], to_text(g)
    assert g.nodes[-1].attrs["anchor"] == "matmul"
    return partitions(g)[0]


def refusal(statements, inputs="x: u8[4,3], b: f32[2], z: u8[4,2]"):
    """The reason why nothing fused."""
    g, refusals = fused(statements, inputs)
    assert partitions(g) == []
    return refusals[0].reason


def test_a_dense_layer():
    check_pass(Fuse("matmul"), text_of(DENSE, "x: u8[4,3], b: f32[2], z: u8[4,2]"), count=1, after="""
        graph(x: u8[4,3], b: f32[2], z: u8[4,2]) {
          %w = constant(value=s8[3,2]{1, -2, 3, 4, 5, -6})
          %q = partition(x, %w, b, body=graph body(x: u8[4,3], w: s8[3,2] constant, b: f32[2]) {
            %dx = dequantize(x, scales=[0.02], zps=[120])
            %dw = dequantize(w, qtype="per_channel", scales=[0.5, 0.25])
            %0 = matmul(%dx, %dw)
            %1 = bias_add(%0, b)
            %2 = relu(%1)
            %q = quantize(%2, dtype=u8, scales=[0.1], zps=[3])
            return %q as out0
          }, anchor="matmul")
          return %q
        }""")


# -- the family -----------------------------------------------------------------------------------------------

BARE = """
  %0 = dequantize(x, {left})
  %1 = dequantize(w, {right})
  %2 = matmul(%0, %1{matmul})
  return %2"""


def bare(left="scales=[0.02]", right="scales=[0.5]", matmul=""):
    return BARE.format(left=left, right=right, matmul=matmul)


@pytest.mark.parametrize("x", ["u8", "s8"])
@pytest.mark.parametrize("w", ["u8", "s8"])
@pytest.mark.parametrize("zps", ["", ", zps=[5]"])
def test_dtypes_and_zero_points(x, w, zps):
    inputs = f"x: {x}[4,3], w: {w}[3,2]"
    assert whole(bare("scales=[0.02]" + zps, "scales=[0.5]" + zps), inputs) == ["dequantize", "dequantize", "matmul"]


@pytest.mark.parametrize("axis", ["", ", axis=1", ", axis=-1"])
def test_weights_per_column(axis):
    assert whole(bare(right='qtype="per_channel", scales=[0.5, 0.25], zps=[1, -2]' + axis), "x: u8[4,3], w: s8[3,2]")


@pytest.mark.parametrize("axis", [0, -2])
def test_weights_per_column_when_transposed(axis):
    whole(bare(right=f'qtype="per_channel", axis={axis}, scales=[0.5, 0.25]', matmul=", transpose_b=true"),
          "x: u8[4,3], w: s8[2,3]")


@pytest.mark.parametrize("shapes,attrs", [
    ("x: u8[5,4,3], w: s8[3,2]", ""), ("x: u8[5,4,3], w: s8[5,3,2]", ""), ("x: u8[2,1,4,3], w: s8[5,3,2]", ""),
    ("x: u8[4,3], w: s8[2,3]", ", transpose_b=true"), ("x: u8[3,4], w: s8[3,2]", ", transpose_a=true"),
    ("x: u8[5,3,4], w: s8[5,2,3]", ", transpose_a=true, transpose_b=true"), ("x: u8[3], w: s8[3,2]", ""),
    ("x: u8[0,3], w: s8[3,2]", ""), ("x: u8[4,0], w: s8[0,2]", ""), ("x: u8[1,1], w: s8[1,1]", ""),
    ("x: u8[4,3], w: s8[3,2]", ', accumulation_mode="s32"'),
    ("x: u8[4,3], w: s8[3,2] constant", ""),
])
def test_shapes_and_attributes_of_matmul(shapes, attrs):
    whole(bare(matmul=attrs), shapes)


BIAS = """
  %0 = dequantize(x, scales=[0.02])
  %1 = dequantize(w, scales=[0.5])
  {}
  %q = quantize(%y, dtype={}, scales=[0.1])
  return %q"""


@pytest.mark.parametrize("dtype", ["u8", "s8"])
@pytest.mark.parametrize("bias,ops", [
    ("%y = matmul(%0, %1, b)", ["matmul"]),
    ("%2 = matmul(%0, %1)\n %y = bias_add(%2, b)", ["matmul", "bias_add"]),
    ("%2 = matmul(%0, %1)\n %y = add(%2, b)", ["matmul", "add"]),
    ("%2 = matmul(%0, %1)\n %y = add(b, %2)", ["matmul", "add"]),
    ("%2 = matmul(%0, %1, b)\n %3 = add(%2, %2)\n %y = subtract(b, %3)", ["matmul", "add", "subtract"]),
])
def test_bias(bias, ops, dtype):
    got = whole(BIAS.format(bias, dtype), "x: u8[4,3], w: s8[3,2], b: f32[2]")
    assert got == ["dequantize", "dequantize", *ops, "quantize"]


@pytest.mark.parametrize("order", ["%y, %dz", "%dz, %y"])
def test_post_add_with_a_dequantized_operand(order):
    got = whole(DENSE.replace("%2 = relu(%1)", f"""%y = relu(%1)
      %dz = dequantize(z, scales=[0.3], zps=[9])
      %2 = add({order})"""))
    assert sorted(got) == sorted(["dequantize"] * 3 + ["matmul", "bias_add", "relu", "add", "quantize"])


def test_post_add_with_a_dequantized_operand_that_others_use():
    """The dequantize stays outside: the sum reads f32, and so does the other user."""
    g, _ = fused(DENSE.replace("%2 = relu(%1)", "%dz = dequantize(z, scales=[0.3])\n %2 = add(%1, %dz)")
                 .replace("return %q", "return %q, %dz"))
    assert partitions(g) == [["dequantize", "dequantize", "matmul", "bias_add", "add", "quantize"]]
    assert [n.op.name for n in g.nodes if n.op.name != "constant"] == ["dequantize", "partition"]


def test_post_add_with_a_dequantized_constant():
    """It folds to f32 in a later pass."""
    g, _ = fused(DENSE.replace("%2 = relu(%1)", """%c = constant(value=s8[2]{3, 4})
      %dc = dequantize(%c, scales=[0.3])
      %2 = add(%1, %dc)"""))
    assert "add" in partitions(g)[0] and [n.op.name for n in g.nodes].count("dequantize") == 1


def test_f32_results():
    assert whole(DENSE.replace("%q = quantize(%2, dtype=u8, scales=[0.1], zps=[3])", "%q = tanh(%2)"))[-1] == "tanh"


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_narrow_results(dtype):
    cast = f"%q = type_cast(%2, dtype={dtype})"
    got = whole(DENSE.replace("%q = quantize(%2, dtype=u8, scales=[0.1], zps=[3])", cast))
    assert got == ["dequantize", "dequantize", "matmul", "bias_add", "relu", "type_cast"]


def test_pairs_of_quantize_and_dequantize_stay():
    got = whole(DENSE.replace("%2 = relu(%1)", """%3 = quantize(%1, dtype=s8, scales=[0.2])
      %4 = dequantize(%3, scales=[0.2])
      %2 = relu(%4)"""))
    assert got == ["dequantize", "dequantize", "matmul", "bias_add", "quantize", "dequantize", "relu", "quantize"]


UNARY = ("relu", "tanh", "sigmoid", "abs", "square", "round", "gelu", "exp", "sqrt", "reciprocal", "log")
BINARY = ("add", "subtract", "multiply", "maximum", "minimum", "divide")


def with_chain(count):
    """The dense layer with `count` operations, unary and binary in turn, in place of its relu."""
    lines = []
    for k in range(count):
        unary, binary = UNARY[k % len(UNARY)], BINARY[k % len(BINARY)]
        operands = ("%{}, b" if k % 4 == 1 else "b, %{}").format(k + 9)
        lines.append(f"%{k + 10} = " + (f"{unary}(%{k + 9})" if k % 2 == 0 else f"{binary}({operands})"))
    lines[0] = lines[0].replace("%9", "%1")
    return DENSE.replace("%2 = relu(%1)", "\n".join(lines)).replace("quantize(%2", f"quantize(%{count + 9}")


@pytest.mark.parametrize("count", [1, 7, 20])
def test_chains_of_unary_and_binary_operations(count):
    got = whole(with_chain(count))
    assert got[-1] == "quantize" and len(got) == 3 + 1 + count + 1


def test_chains_that_are_too_long_are_cut():
    count = MAX_EPILOGUE + 6
    g, refusals = fused(with_chain(count))
    (ops,) = partitions(g)
    assert len(ops) == 3 + MAX_EPILOGUE and ops[:3] == ["dequantize", "dequantize", "matmul"]
    (refusal,) = refusals
    assert refusal.reason == f"more than {MAX_EPILOGUE} operations in a row" and refusal.node.startswith("%q = ")


def test_the_diamond_of_a_hand_written_silu():
    got = whole(DENSE.replace("%2 = relu(%1)", "%s = sigmoid(%1)\n %2 = multiply(%s, %1)"))
    assert got[-3:] == ["sigmoid", "multiply", "quantize"]


# -- what is shared -------------------------------------------------------------------------------------------

SHARED = """
  %dx = dequantize(x, scales=[0.02])
  %dw = dequantize(w, scales=[0.5])
  %dv = dequantize(v, scales=[0.25])
  %a = matmul(%dx, %dw)
  %b = matmul(%dx, %dv)
  return %a, %b"""


def test_a_dequantize_that_feeds_two_matmuls():
    before = graph_of(SHARED, "x: u8[4,3], w: s8[3,2], v: s8[3,5]")
    alone, both = before.copy(), before.copy()
    assert Fuse("matmul")(alone) == 0
    assert (duplicate_dequantize(both), Fuse("matmul")(both)) == (1, 2)
    assert [n.op.name for n in both.nodes] == ["partition"] * 2
    check_same_numbers(before, both)
    _, refusals = Fuse("matmul").apply(alone)
    assert any(r.reason.startswith("%dx = dequantize(x) : f32[4,3] is also used by %") for r in refusals)


def test_a_matmul_of_a_value_with_itself():
    g, _ = fused("\n  %0 = dequantize(x, scales=[0.02])\n  %1 = matmul(%0, %0)\n  return %1", "x: s8[4,4]")
    assert partitions(g) == [["dequantize", "matmul"]]


@pytest.mark.parametrize("end,ops,reason", [
    ("return %q, %2", ["dequantize", "dequantize", "matmul", "bias_add", "relu"], "is also an output of the graph"),
    ("%s = softmax(%1)\n return %q, %s", ["dequantize", "dequantize", "matmul", "bias_add"],
     "%1 = bias_add(%0, b) : f32[4,2] is also used by %s = softmax(%1) : f32[4,2]"),
])
def test_values_with_other_users_end_the_chain(end, ops, reason):
    g, refusals = fused(DENSE.replace("return %q", end))
    assert partitions(g) == [ops]
    assert [r.reason for r in refusals if r.node.startswith("%")][0].endswith(reason)


@pytest.mark.parametrize("value", ["%dx", "%dw"])
def test_a_returned_dequantize(value):
    name = value[1:]
    assert refusal(DENSE.replace("return %q", f"return %q, {value}")).startswith(f"%{name} = dequantize(")


def test_a_returned_matmul_still_fuses():
    g, _ = fused(DENSE.replace("return %q", "return %q, %0"))
    assert partitions(g) == [["dequantize", "dequantize", "matmul"]]


# -- refusals -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("statements,inputs,reason", [
    (bare('qtype="per_channel", axis=0, scales=[1, 2, 3, 4]'), "x: u8[4,3], w: s8[3,2]",
     "the input is quantized per channel along axis 0: kernels take one scale and zero point for the input"),
    (bare('qtype="per_channel", axis=1, scales=[1, 2, 3]'), "x: u8[4,3], w: s8[3,2]",
     "the input is quantized per channel along axis 1: its scale would vary inside the sum"),
    (bare('qtype="per_channel", axis=0, scales=[1, 2, 3]', matmul=", transpose_a=true"), "x: u8[3,4], w: s8[3,2]",
     "the input is quantized per channel along axis 0: its scale would vary inside the sum"),
    (bare(right='qtype="per_channel", axis=0, scales=[1, 2, 3]'), "x: u8[4,3], w: s8[3,2]",
     "the weights are quantized along axis 0"),
    (bare(right='qtype="per_channel", axis=1, scales=[1, 2, 3]', matmul=", transpose_b=true"), "x: u8[4,3], w: s8[2,3]",
     "the weights are quantized along axis 1"),
    (bare(), "x: f8_e4m3[4,3], w: s8[3,2]", "f8_e4m3"), (bare(), "x: u8[4,3], w: s32[3,2]", "s32"),
    (bare(), "x: u8[3], w: s8[3]", "one-dimensional"), (bare(), "x: u8[4,3], w: s8[3]", "one-dimensional"),
    (bare(), "x: u8[4,70000], w: s8[70000,2]", "sums over k = 70000 can reach"),
    ("\n %0 = dequantize(x, scales=[1])\n %1 = matmul(%0, w)\n return %1", "x: u8[4,3], w: f32[3,2]",
     "expected dequantize or dynamic_dequantize, found input w: f32[3,2]"),
    ("\n %0 = dequantize(w, scales=[1])\n %1 = matmul(x, %0)\n return %1", "x: f32[4,3], w: u8[3,2]",
     "expected dequantize or dynamic_dequantize, found input x: f32[4,3]"),
    ("\n %0 = relu(x)\n %1 = dequantize(w, scales=[1])\n %2 = matmul(%0, %1)\n return %2", "x: f32[4,3], w: u8[3,2]",
     "expected dequantize or dynamic_dequantize, found relu (%0): f32[4,3]"),
])
def test_refusals(statements, inputs, reason):
    g = graph_of(statements, inputs)
    count, refusals = Fuse("matmul").apply(g)
    assert count == 0 and reason in refusals[0].reason
    assert "matmul" in refusals[0].node


def test_unknown_shapes_wait_for_the_first_call():
    g = graph_of(bare(), "x: u8[?,3], w: s8[3,2]")
    _, refusals = Fuse("matmul").apply(g)
    assert "is known only at the first call" in refusals[0].reason


def test_sums_of_constants_are_bounded_by_what_they_are():
    g = Graph()
    x = g.input("x", dtype="u8", shape=(1, 70000))
    w = g.constant(np.ones((70000, 1), np.int8))
    g.output(g.matmul(g.dequantize(x, scales=[1.0]), g.dequantize(w, scales=[1.0])))
    assert Fuse("matmul")(g) == 1


WIDENED = """
  %0 = dequantize(x, scales=[0.02])
  %1 = dequantize(w, scales=[0.5])
  %2 = matmul(%0, %1)
  %3 = add(%2, b)
  return %3"""


@pytest.mark.parametrize("shape", ["5,4,2", "5,1,1"])
def test_an_epilogue_that_broadcasts_the_product_ends_the_chain(shape):
    g, refusals = fused(WIDENED, f"x: u8[4,3], w: s8[3,2], b: f32[{shape}]")
    assert partitions(g) == [["dequantize", "dequantize", "matmul"]]
    (refusal,) = refusals
    assert refusal.node.startswith("%3 = add(%2, b)") and "sums would be computed more than once" in refusal.reason


def test_an_epilogue_that_adds_a_dimension_of_one():
    assert whole(WIDENED, "x: u8[4,3], w: s8[3,2], b: f32[1,4,2]")[-1] == "add"


def test_softmax_ends_the_chain():
    g, _ = fused(DENSE.replace("%2 = relu(%1)", "%2 = softmax(%1)"))
    assert partitions(g) == [["dequantize", "dequantize", "matmul", "bias_add"]]
    assert [n.op.name for n in g.nodes][-2:] == ["softmax", "quantize"]


def test_a_net_of_layers():
    """Each layer one partition, from the last to the first, whose input is the one before's output."""
    rng = np.random.default_rng(0)
    g = Graph()
    v = g.input("x", dtype="u8", shape=(4, 8))
    for k in range(5):
        w = g.constant(rng.integers(-5, 6, (8, 8)).astype(np.int8))
        y = g.matmul(g.dequantize(v, scales=[0.1], zps=[k]), g.dequantize(w, scales=[0.1]))
        v = g.quantize(g.relu(y), dtype="u8", scales=[0.1], zps=[k + 1])
    g.output(v, name="y")
    before = g.copy()
    refusals = run_passes(g)
    assert [n.op.name for n in g.nodes if n.op.name != "constant"] == ["partition"] * 5 and refusals == []
    check_same_numbers(before, g)
    assert gq.reference(g, x=np.zeros((4, 8), np.uint8)).dtype == np.uint8

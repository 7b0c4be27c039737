"""Products of f16 become such of f32 between casts; text in and text out, equal bits, and the negatives.

Products of f32 become such of bf16 that add up in f32; text in and text out, and the negatives.
"""
import numpy as np
import pytest
from compiled import AS_WRITTEN

import graphq as gq
from graphq.passes import ANY, PIPELINE, PRECISIONS, RoundProducts
from graphq.passes.float_products import WidenProducts
from graphq.testing import check_pass

LISTS = "strides=[1,1], pads_begin=[0,0], pads_end=[0,0], dilations=[1,1]"


def test_a_matmul_of_constant_weights():
    check_pass(WidenProducts(), before="""
        graph(x: f16[8,2]) {
          %w = constant(value=f16[2,1]{0.5, 3})
          %b = constant(value=f16[1]{7})
          %0 = matmul(x, %w, %b)
          %1 = relu(%0)
          return %1
        }""", after="""
        graph(x: f16[8,2]) {
          %0 = constant(value=f32[2,1]{0.5, 3})
          %1 = constant(value=f32[1]{7})
          %2 = type_cast(x, dtype=f32)
          %3 = matmul(%2, %0, %1)
          %4 = type_cast(%3, dtype=f16)
          %5 = relu(%4)
          return %5
        }""")


@pytest.mark.parametrize("x, w", [("8,2", "2,1"), ("3,8,2", "3,2,1"), ("2,4,2", "2,1")])
def test_a_matmul_of_matrices_that_a_call_gives(x, w):
    check_pass(WidenProducts(), inputs=f"x: f16[{x}], w: f16[{w}]", before="%0 = matmul(x, w)\n return %0", after="""
        %0 = type_cast(w, dtype=f32)
        %1 = type_cast(x, dtype=f32)
        %2 = matmul(%1, %0)
        %3 = type_cast(%2, dtype=f16)
        return %3""")


def test_rows_of_all_batches_count_if_weights_are_constant():
    text = "graph(x: f16[2,4,2]) {{\n %w = constant(value=f16[{}]{{{}}})\n %0 = matmul(x, %w)\n return %0\n}}"
    for shape, data in (("2,1", "1, 2"), ("2,2,1", "1, 2, 3, 4")):
        assert WidenProducts()(gq.parse(text.format(shape, data))) == 1
    assert WidenProducts()(gq.parse("graph(x: f16[2,4,2], w: f16[2,2,1]) {\n %0 = matmul(x, w)\n return %0\n}")) == 0


def test_weights_that_stay_compressed():
    """Of any number of rows, as casts of the weights cost no memory."""
    weights = """
          %w = constant(value=s8[8,1]{1, 2, 3, 4, 5, 6, 7, 8})
          %s = constant(value=f16[1,1]{0.3})
          %0 = dynamic_dequantize(%w, %s, qtype="per_group", group_shape=[8, 1])"""
    check_pass(WidenProducts(), inputs="x: f16[2,8]", before=f"""{weights}
          %1 = matmul(x, %0)
          return %1""", after=f"""{weights}
          %1 = type_cast(%0, dtype=f32)
          %2 = type_cast(x, dtype=f32)
          %3 = matmul(%2, %1)
          %4 = type_cast(%3, dtype=f16)
          return %4""")
    few = weights.replace("s8[8,1]", "s8[4,2]").replace("[8, 1]", "[4, 2]")  # kernels need groups of 8
    check_pass(WidenProducts(), inputs="x: f16[7,4]", before=f"{few}\n %1 = matmul(x, %0)\n return %1")


@pytest.mark.parametrize("inputs, nodes", [
    ("x: f16[7,2]", "%w = constant(value=f16[2,1]{0.5, 3})\n %0 = matmul(x, %w)"),
    ("x: bf16[8,2]", "%w = constant(value=bf16[2,1]{0.5, 3})\n %0 = matmul(x, %w)"),
    ("x: f32[8,2]", "%w = constant(value=f32[2,1]{0.5, 3})\n %0 = matmul(x, %w)"),
    ("x: f16[7,2], w: f16[2,1]", "%0 = matmul(x, w)"),
    ("x: f16[5,7,2], w: f16[5,2,1]", "%0 = matmul(x, w)"),
    ("x: f16[8,2], b: f16[1]", "%w = constant(value=f16[2,1]{0.5, 3})\n %0 = matmul(x, %w, b)"),
    ("x: f16[1,2,9,9], w: f16[1,2,1,1]",
     f'%0 = convolution(x, w, {LISTS}, data_format="NCX", weights_format="OIX")'),
    ("x: f16[1,2,7,1]", f"%w = constant(value=f16[1,2,1,1]{{1, 2}})\n"
                        f'%0 = convolution(x, %w, {LISTS}, data_format="NCX", weights_format="OIX")'),
    ("x: f16[1,7,1,2]", f"%w = constant(value=f16[2,2,1,1]{{1, 2, 3, 4}})\n"
                        f'%0 = convolution(x, %w, {LISTS}, data_format="NXC", weights_format="OIX")'),
    *((f"x: f16[{dims}]", f"%w = constant(value=f16[2,2,1,1]{{1, 2, 3, 4}})\n"
                          f'%0 = convolution(x, %w, {LISTS}, data_format="NCX", weights_format="OIX")')
      for dims in ("1,2,7,1", "1,2,1,7")),
])
def test_what_stays(inputs, nodes):
    check_pass(WidenProducts(), before=f"graph({inputs}) {{\n {nodes}\n return %0\n}}")


def test_a_chain_of_layers_has_the_same_bits():
    """Casts join the layers' kernels; a source that is read twice is cast once."""
    rng = np.random.default_rng(0)
    g = gq.Graph()
    x = y = g.input("x", shape=(1, 16, 9, 7), dtype="f16")
    for _ in range(2):
        w = g.constant((rng.standard_normal((16, 16, 3, 3)) / 12).astype(np.float16))
        y = g.convolution(y, w, g.constant(rng.standard_normal(16).astype(np.float16)), strides=[1, 1],
                          pads_begin=[1, 1], pads_end=[1, 1], dilations=[1, 1], data_format="NCX", weights_format="OIX")
        y = g.relu(g.add(y, x))
    g.output(y, name="y")
    feed = {"x": rng.standard_normal((1, 16, 9, 7)).astype(np.float16)}
    models = [gq.compile(g, strict=True, **options) for options in ({}, {"passes": AS_WRITTEN})]
    got, narrow = (m(feed) for m in models)
    assert got.tobytes() == narrow.tobytes()
    np.testing.assert_allclose(got.astype(float), gq.reference(g, feed).astype(float), rtol=4e-3, atol=4e-3)
    assert "f32f32" in models[0].explain() and "f16f16" in models[1].explain()


@pytest.mark.parametrize("data_format, shape", [("NXC", "1,4,2,3"), ("NCX", "1,3,2,4"), ("NXC", "2,4,1,3")])
@pytest.mark.parametrize("op", ["convolution", "conv_transpose"])
def test_convolutions_of_enough_pixels(op, data_format, shape):
    g = gq.parse(f"""graph(x: f16[{shape}]) {{
      %w = constant(value=f16[3,3,1,1]{{1, 2, 3, 4, 5, 6, 7, 8, 9}})
      %0 = {op}(x, %w, {LISTS}, data_format="{data_format}", weights_format="OIX")
      return %0
    }}""")
    assert WidenProducts()(g) == 1 and g.outputs[0].dtype.name == "f16"
    assert [n.op.name for n in g.nodes if n.op.name != "constant"] == ["type_cast", op, "type_cast"]


@pytest.mark.parametrize("bias", ["", ", %b"])
def test_attributes_that_are_not_the_defaults_stay(bias):
    check_pass(WidenProducts(), inputs="x: f16[2,8]", before=f"""
          %w = constant(value=f16[1,2]{{0.5, 3}})
          {"%b = constant(value=f16[1]{7})" if bias else ""}
          %0 = matmul(x, %w{bias}, transpose_a=true, transpose_b=true, dtype=f32)
          return %0""", after=f"""
          %0 = constant(value=f32[1,2]{{0.5, 3}})
          {"%1 = constant(value=f32[1]{7})" if bias else ""}
          %2 = type_cast(x, dtype=f32)
          %3 = matmul(%2, %0{", %1" if bias else ""}, transpose_a=true, transpose_b=true)
          return %3""")


def test_a_matmul_of_constant_weights_of_round_products():
    """Weights are rounded to nearest even: 1 + 2^-8 to 1, 1 + 3 * 2^-8 to 1 + 2^-6."""
    check_pass(RoundProducts(), inputs="x: f32[8,2]", before="""
          %w = constant(value=f32[2,1]{1.00390625, 1.01171875})
          %b = constant(value=f32[1]{1.01171875})
          %0 = matmul(x, %w, %b)
          %1 = relu(%0)
          return %1""", after="""
          %b = constant(value=f32[1]{1.01171875})
          %0 = type_cast(x, dtype=bf16)
          %1 = constant(value=bf16[2,1]{1, 1.015625})
          %2 = matmul(%0, %1, dtype=f32)
          %3 = add(%2, %b)
          %4 = relu(%3)
          return %4""")


def test_weights_of_eight_bits_are_rounded_where_they_are_dequantized():
    """Kernels then read them compressed."""
    w = """%w = constant(value=s8[2,1]{1, 3})
          %s = constant(value=f32[1]{0.3})
          %1 = dynamic_dequantize(%w, %s)"""
    check_pass(RoundProducts(), inputs="x: f32[8,2]", before=f"""
          {w}
          %0 = matmul(x, %1)
          return %0""", after=f"""
          {w}
          %2 = type_cast(x, dtype=bf16)
          %3 = type_cast(%1, dtype=bf16)
          %0 = matmul(%2, %3, dtype=f32)
          return %0""")


def test_weights_that_are_dequantized_to_bf16_and_cast_are_taken_before_the_cast():
    w = """%w = constant(value=s8[2,1]{1, 3})
          %s = constant(value=bf16[1]{0.5})
          %1 = dynamic_dequantize(%w, %s, dtype=bf16)"""
    check_pass(RoundProducts(), inputs="x: f32[8,2]", before=f"""
          {w}
          %2 = type_cast(%1, dtype=f32)
          %0 = matmul(x, %2)
          return %0""", after=f"""
          {w}
          %3 = type_cast(x, dtype=bf16)
          %0 = matmul(%3, %1, dtype=f32)
          return %0""")


def test_operands_that_are_no_constants_and_attributes():
    """Large numbers are kept away: beyond 3.396e38 they would round to infinity."""
    near = "".join(f"%{v}1 = clamp({v}, min=-9, max=9)\n" for v in "xw")
    check_pass(RoundProducts(), inputs="x: f32[2,8], w: f32[3,2]", before=f"""{near}
          %0 = matmul(%x1, %w1, transpose_a=true, transpose_b=true)
          return %0""", after=f"""{near}
          %0 = type_cast(%x1, dtype=bf16)
          %1 = type_cast(%w1, dtype=bf16)
          %2 = matmul(%0, %1, dtype=f32, transpose_a=true, transpose_b=true)
          return %2""")


@pytest.mark.parametrize("op", ["convolution", "conv_transpose"])
@pytest.mark.parametrize("data_format, shape", [("NXC", "1,3,2,2"), ("NCX", "1,2,3,2")])
def test_convolutions(op, data_format, shape):
    layout = f'{LISTS}, data_format="{data_format}", weights_format="OIX"'
    g = check_pass(RoundProducts(), f"""graph(x: f32[{shape}]) {{
          %w = constant(value=f32[2,2,1,1]{{1, 2, 3, 4}})
          %b = constant(value=f32[2]{{5, 6.01}})
          %0 = {op}(x, %w, %b, {layout})
          return %0
        }}""", after=ANY)
    assert [n.op.name for n in g.nodes if n.op.name != "constant"] == ["type_cast", op, "bias_add"]
    assert g.outputs[0].dtype.name == "f32" and g.outputs[0].node.attrs["data_format"] == data_format


@pytest.mark.parametrize("nodes", [
    "%w = constant(value=f16[2,1]{0.5, 3})\n %1 = type_cast(x, dtype=f16)\n %0 = matmul(%1, %w)",
    "%w = constant(value=bf16[2,1]{0.5, 3})\n %1 = type_cast(x, dtype=bf16)\n %0 = matmul(%1, %w)",
    "%1 = quantize(x, dtype=s8, scales=[0.5])\n %2 = static_reshape(%1, shape=[2,8])\n"
    " %3 = dequantize(%2, scales=[0.5])\n %0 = matmul(x, %3)",
    "%w = constant(value=s8[2,1]{1, 3})\n %s = constant(value=f16[1]{0.5})\n %1 = dynamic_dequantize(%w, %s)\n"
    " %2 = type_cast(%1, dtype=f32)\n %0 = matmul(x, %2)",
    "%w = constant(value=f32[2,1]{1, 3})\n %1 = quantize(x, dtype=u8, scales=[0.5])\n"
    " %2 = dequantize(%1, scales=[0.5])\n %0 = matmul(%2, %w)",
    "%w = constant(value=s8[2,1]{1, 3})\n %1 = dynamic_dequantize(%w, z)\n %0 = matmul(x, %1)",
])
def test_other_types_and_integers_stay(nodes):
    check_pass(RoundProducts(), before=f"graph(x: f32[8,2], z: f32[1]) {{\n {nodes}\n return %0\n}}")


@pytest.mark.parametrize("data_format, shape", [("NXC", "1,3,3,2"), ("NCX", "1,2,3,3")])
def test_depthwise_convolutions_stay(data_format, shape):
    layout = f'{LISTS}, groups=2, data_format="{data_format}", weights_format="OIX"'
    before = f"""graph(x: f32[{shape}]) {{
          %w = constant(value=f32[2,1,2,1]{{1, 2, 3, 4}})
          %0 = convolution(x, %w, {layout})
          return %0
        }}"""
    check_pass(RoundProducts(), before)
    _, (refusal,) = RoundProducts().apply(gq.parse(before))
    assert refusal.reason == "each of its 2 groups has one channel"


@pytest.mark.parametrize("shape", ["1,3,3,4", "*"])
def test_groups_of_several_channels_do_not(shape):
    g = gq.parse(f"""graph(x: f32[{shape}]) {{
          %w = constant(value=f32[2,2,1,1]{{1, 2, 3, 4}})
          %0 = convolution(x, %w, {LISTS}, groups=2, data_format="NXC", weights_format="OIX")
          return %0
        }}""")
    assert RoundProducts()(g) == 1


def test_the_pass_is_one_of_its_precision_alone():
    more = [p for p in PRECISIONS["bf16"] if p not in PIPELINE]
    assert [type(p) for p in more] == [RoundProducts] and PRECISIONS["f32"] is PIPELINE
    assert tuple(p for p in PRECISIONS["bf16"] if p not in more) == PIPELINE


def test_a_source_of_three_products_is_cast_once_and_joins_the_kernel_before():
    g, rng = gq.Graph(), np.random.default_rng(0)
    x = g.relu(g.matmul(g.input("x", shape=(4, 16), dtype="f32"), g.constant(rng.standard_normal((16, 8), np.float32))))
    for k in range(3):
        g.output(g.matmul(x, g.constant(rng.standard_normal((8, 8), np.float32))), name=f"y{k}")
    model = gq.compile(g, precision="bf16", strict=True)
    assert "(matmul, relu, type_cast)" in model.explain() and "4 matmul (4 in floats, 4 of them of bf16)" in \
        model.explain()
    assert sum("type_cast" in line for line in model.explain().splitlines()) == 2

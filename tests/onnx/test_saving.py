"""save_onnx: what is loaded again gives the same numbers, operation by operation; and what ONNX cannot say."""
import re

import numpy as np
import onnx
import pytest

import graphq as gq
from graphq.errors import GraphError
from graphq.ir.interpret import named_outputs
from graphq.ir.op import walk_ops
from graphq.onnx.exporters.writer import EXPORTERS, exports
from graphq.ops.rules import infer_unary
from graphq.testing import random_inputs

ATTRS = "strides=[2,1], pads_begin=[1,0], pads_end=[0,1]"

STATEMENTS = [
    *(f"{op.name}(x)" for op in walk_ops() if op.onnx and op.infer is infer_unary and not op.attributes),
    *(f"{op}(x)" for op in ("gelu", "softplus", "square", "reorder")),
    'gelu(x, mode="gelu_tanh")', "elu(x, alpha=0.5)", "leaky_relu(x, alpha=0.5)",
    "hard_sigmoid(x, alpha=0.5, beta=0.25)", "clamp(x, min=-0.5, max=1)", "pow(x, beta=3)", "pow(x, beta=0.5)",
    *(f"{op}(x, y)" for op in ("add", "subtract", "multiply", "divide", "maximum", "minimum", "squared_difference",
                               "greater_equal")),
    "softmax(a, axis=1)", 'softmax(a, mode="stepwise")', "log_softmax(a, axis=0)",
    "type_cast(x, dtype=bf16)", "cast(x, dtype=s32)", "cast(b, dtype=f32)", "select(b, x, y)",
    'prelu(x, v, data_format="NCX")', "prelu(x, v5)", 'bias_add(x, v, data_format="NCX")', "bias_add(x, v5)",
    "softmax(x, axis=2)", "log_softmax(x)", "matmul(x, m)", "matmul(x, n, transpose_b=true)", "matmul(x, m, k)",
    f'convolution(x, w, v, {ATTRS}, dilations=[1,1], data_format="NCX", weights_format="OIX")',
    f"convolution(x, wl, {ATTRS}, dilations=[1,2])",
    'convolution(x, w, strides=[1,1], pads_begin=[0,0], pads_end=[0,0], dilations=[1,1], auto_pad="same_lower", '
    'data_format="NCX", weights_format="OIX")',
    f'conv_transpose(x, w, {ATTRS}, dilations=[1,1], data_format="NCX", weights_format="IOX")',
    f"conv_transpose(x, wl, {ATTRS}, dilations=[1,1], output_padding=[1,0])",
    f'max_pool(x, {ATTRS}, kernel=[2,2], data_format="NCX")',
    f"avg_pool(x, {ATTRS}, kernel=[2,2], exclude_pad=true, in_order=true)",
    f'avg_pool(x, {ATTRS}, kernel=[2,2], exclude_pad=false, data_format="NCX", in_order=true)',
    'avg_pool(x, strides=[1,1], pads_begin=[0,0], pads_end=[0,0], kernel=[4,5], exclude_pad=true, data_format="NCX")',
    'batch_norm_inference(x, v, v, v, p, epsilon=0.1, data_format="NCX")',
    'group_norm(x, v, v, groups=3, keep_stats=false, data_format="NCX")',
    'lrn(x, size=2, data_format="NCX")', "lrn(x, size=3, alpha=0.5, beta=0.4, bias=2)",
    "layer_norm(x, v5, v5, keep_stats=false)", "reduce_mean(x, axes=[1,2], keep_dims=true)", "reduce_sum(x)",
    "integer_sum(t, axes=[-1])", "integer_sum(i, axes=[0], keep_dims=true)",
    "reduce_max(x, axes=[-1])", 'interpolate(x, mode="nearest", sizes=[8,10], data_format="NCX")',
    'interpolate(x, mode="linear", sizes=[8,10], coordinate_transformation_mode="asymmetric")',
    'interpolate(x, mode="linear", sizes=[7,9])', "static_reshape(x, shape=[2,-1])",
    "static_transpose(x, order=[0,-1,1,2])",
    "concat(x, x, axis=1)", "gather(x, i, axis=3)", "slice(x, axes=[1,3], starts=[2,0], ends=[-9,4], steps=[-1,2])",
    "arg_max(x, axis=1)", "arg_min(x, axis=-1, keep_dims=false, select_last_index=true)", "cum_sum(x, axis=2)",
    "cum_sum(x, axis=0, exclusive=true, reverse=true)", "trilu(x, k=1)", "trilu(x, upper=false)", "equal(x, y)",
    "greater(x, y)", "less(i, i)", "less_equal(x, y)", "logical_and(b, b)", "logical_not(b)", "is_nan(x)",
    "is_inf(x, detect_negative=false)",
    "expand(v5, shape=[2,1,5])", "pad(x, pads_begin=[0,0,1,-1], pads_end=[0,0,0,2], value=3)",
    'pad(x, pads_begin=[0,0,1,0], pads_end=[0,0,0,2], mode="reflect")',
    "quantize(x, dtype=u8, scales=[0.02], zps=[100])",
    'quantize(x, dtype=s8, qtype="per_channel", scales=[0.02,0.1,1])',
    "quantize(x, dtype=f8_e4m3, scales=[0.02])", "dequantize(q, scales=[0.02], zps=[100])",
    'dequantize(q, qtype="per_channel", axis=-1, scales=[1,2,3,4,5], zps=[1,2,3,4,5])', "dequantize(j, scales=[0.5])",
    "dynamic_quantize(x, p1, z1, dtype=u8)", 'dynamic_quantize(x, p, dtype=s8, qtype="per_channel")',
    "dynamic_dequantize(q, p1, z1)", 'dynamic_dequantize(u, pu, qtype="per_group", group_shape=[2,1])',
    "quantize_linear(x, p1, dtype=s16)", "quantize_linear(x, p1, dtype=f8_e5m2, saturate=false)",
    "dequantize_linear(u, pu3, axis=0, block_size=3)", "matmul_integer(q, qm, z1)",
    'conv_integer(q, qw, z1, strides=[1,1], pads_begin=[1,1], pads_end=[0,0], dilations=[1,1])',
]

# The same operations with every attribute away from its default, and from the values above.
STATEMENTS += [
    "rotary_embedding(x, angle, angle)", "rotary_embedding(x, angle, angle, interleaved=true)",
    *(f"{op}(x)" for op in ("tan", "asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh", "non_zero")),
    *(f'arithmetic(q, q, function="{f}")' for f in ("and", "or", "xor", "shift_left", "shift_right")),
    'max_pool(x, strides=[2,1], kernel=[2,3], auto_pad="same_upper", data_format="NCX")',
    'max_pool(x, strides=[1,1], kernel=[2,2], auto_pad="valid", dilations=[2,3])',
    f"max_pool(x, {ATTRS}, kernel=[2,2], dilations=[1,2])",
    f'avg_pool(x, {ATTRS}, kernel=[2,2], exclude_pad=false, in_order=true)',
    'avg_pool(x, strides=[2,1], kernel=[2,3], exclude_pad=true, auto_pad="same_lower", in_order=true)',
    "avg_pool(x, kernel=[3,4], exclude_pad=true)", "avg_pool(x, kernel=[3,4], exclude_pad=true, in_order=true)",
    'avg_pool(x, strides=[2,1], kernel=[4,5], exclude_pad=true, data_format="NCX", in_order=true)',
    'avg_pool(x, pads_begin=[1,0], kernel=[4,5], exclude_pad=true, data_format="NCX", in_order=true)',
    f"convolution(x, wt, v2, {ATTRS}, dilations=[2,1])",
    f'convolution(x, wg, v, {ATTRS}, groups=3, data_format="NCX", weights_format="OIX")',
    'convolution(x, w, v, strides=[2,2], auto_pad="same_upper", data_format="NCX", weights_format="OIX")',
    'convolution(x, w, strides=[2,2], auto_pad="valid", data_format="NCX", weights_format="OIX")',
    f'conv_transpose(x, w, v, {ATTRS}, dilations=[2,1], data_format="NCX", weights_format="OIX")',
    f'conv_transpose(x, wg, v, {ATTRS}, groups=3, data_format="NCX", weights_format="IOX")',
    f'conv_transpose(x, wt, v2, {ATTRS}, output_padding=[1,0], weights_format="XIO")',
    "conv_integer(q, qg, z1, zs, strides=[2,1], pads_begin=[0,1], pads_end=[1,0], dilations=[1,2], groups=3)",
    'conv_integer(q, qw, strides=[2,1], auto_pad="same_lower")', "matmul_integer(q, qm, z1, zs)",
    "matmul(xt, m, transpose_a=true)", "matmul(xt, n, k, transpose_a=true, transpose_b=true)",
    "batch_norm_inference(x, v5, v5, v5, p5, epsilon=0.3)",
    "group_norm(x, v5, v5, groups=5, keep_stats=false, epsilon=0.3)",
    'group_norm(x, v, v, groups=1, keep_stats=false, epsilon=0.2, data_format="NCX")',
    "layer_norm(x, v5, v5, keep_stats=false, epsilon=0.3)",
    "layer_norm(x, y3, y3, keep_stats=false, begin_norm_axis=1, epsilon=0.2)",
    "softmax(x)", "log_softmax(x, axis=1)", "gelu(x)", "elu(x, alpha=2)",
    *(f"reduce_{op}(x, axes=[-1,1])" for op in ("l1", "l2", "max", "mean", "min", "prod", "sum")),
    *(f"reduce_{op}(x, axes=[])" for op in ("l1", "l2", "max", "mean", "min", "prod", "sum")),
    *(f"reduce_{op}(x, axes=[0,2], keep_dims=true)" for op in ("l1", "l2", "max", "mean", "min", "prod", "sum")),
    'interpolate(x, mode="linear", sizes=[7,9], coordinate_transformation_mode="align_corners", data_format="NCX")',
    'interpolate(x, mode="nearest", sizes=[5,7])', 'interpolate(x, mode="bilinear", scales=[2,3])',
    *(f'prelu(x, {slopes}, data_format="NCX", per_channel_broadcast=false)' for slopes in ("y3", "v5")),
    "concat(x, x, x, axis=-1)", "gather(x, row)", "gather(x, row, axis=-2)",
    "static_reshape(x, shape=[0,6,-1], special_zero=true)",
    "static_transpose(x, order=[3,1,0,2])", "slice(x, axes=[-1], starts=[-1], ends=[-99], steps=[-2])",
    'pad(x, pads_begin=[0,0,1,0], pads_end=[0,0,0,2], mode="edge")',
    "pad(q, pads_begin=[0,1,0,0], pads_end=[1,0,0,0], value=200)",
    "arg_max(t, axis=0, select_last_index=true)", "arg_min(t, axis=1, keep_dims=false)",
    "cum_sum(x, axis=-1, reverse=true)", "cum_sum(x, axis=3, exclusive=true)", "trilu(x)",
    "trilu(x, upper=false, k=-1)",
    "is_nan(e)", "is_inf(e)", "is_inf(e, detect_negative=false)", "is_inf(e, detect_positive=false)",
    "logical_or(b, c)", "logical_xor(b, c)", "logical_and(b, c)", "choose(b, x, y)", "less(x, y)", "equal(t, t)",
    *(f'arithmetic(i, d, function="{f}")' for f in ("add", "subtract", "multiply", "divide", "maximum", "minimum",
    "modulo",
                                                    "remainder")),
    "gather_elements(x, at, axis=2)", "gather_nd(x, place, batch_dims=1)", "gather_nd(x, place)",
    *(f'scatter_elements(x, at, x, axis=1, reduction="{f}")' for f in ("none", "add", "mul", "max", "min")),
    *(f'scatter_nd(x, row, x, reduction="{f}")' for f in ("none", "add", "mul", "max", "min")),
    'grid_sample(x, grid, mode="nearest", padding_mode="reflection")',
    'grid_sample(x, grid, mode="cubic", padding_mode="border", align_corners=true)',
    'quantize(x, dtype=s8, qtype="per_channel", axis=-1, scales=[0.02,0.1,1,2,3], zps=[1,-2,3,-4,5])',
    'quantize(x, dtype=s8, scales=[0.02])', 'dequantize(q, qtype="per_channel", axis=0, scales=[1,2])',
    'dequantize(q, scales=[0.5], zps=[0])', 'dynamic_quantize(x, p5, z5, dtype=u8, qtype="per_channel", axis=3)',
    'dynamic_dequantize(q, p5, z5, qtype="per_channel", axis=-1)', "dynamic_dequantize(q, p1)",
    'dynamic_dequantize(u, pu4, qtype="per_group", group_shape=[1,3])',
    "quantize_linear(x, p5, z5, dtype=u8, axis=3)", "quantize_linear(x, p, dtype=s8)",
    "quantize_linear(m, pb, dtype=u4, axis=-1, block_size=2)", "dequantize_linear(q, p5, z5, axis=3)",
    "dequantize_linear(u, pu, zu, axis=0, block_size=2)",
]

# Of one spatial axis, and of three.
for source, one, kernels in (("x3", "[1]", "w3"), ("x5", "[1,1,1]", "w5")):
    windows = f"strides={one}, pads_begin={one}, pads_end={one.replace('1', '0')}"
    pool = f"{windows}, kernel={one.replace('1', '2')}"
    first = 'data_format="NCX"'
    STATEMENTS += [
        f"bias_add({source}, v, {first})", f"bias_add({source}, v5)", f"prelu({source}, v, {first})",
        f"prelu({source}, v5)", f"batch_norm_inference({source}, v, v, v, p, epsilon=0.1, {first})",
        f"batch_norm_inference({source}, v5, v5, v5, p5, epsilon=0.1)", f"max_pool({source}, {pool}, {first})",
        f"max_pool({source}, {pool})", f"avg_pool({source}, {pool}, exclude_pad=true, in_order=true)",
        f"group_norm({source}, v, v, groups=3, keep_stats=false, {first})",
        f"group_norm({source}, v5, v5, groups=5, keep_stats=false)", f"lrn({source}, size=2, {first})",
        f"lrn({source}, size=3)", f'interpolate({source}, mode="nearest", scales={one.replace("1", "2")}, {first})',
        f'interpolate({source}, mode="nearest", scales={one.replace("1", "2")})',
        f'convolution({source}, {kernels}, v, {windows}, dilations={one}, {first}, weights_format="OIX")',
        f'conv_transpose({source}, {kernels}, v, {windows}, dilations={one}, {first}, weights_format="IOX")',
        f'convolution({source}, l{kernels}, v2, {windows}, dilations={one}, weights_format="XIO")',
        f'conv_transpose({source}, l{kernels}, v2, {windows}, dilations={one}, weights_format="XIO", '
        f"output_padding={one.replace('1', '0')})"]

NEWER = {26: ["bit_cast(x, dtype=s32)", "cum_prod(x, axis=2)", "cum_prod(x, axis=0, exclusive=true, reverse=true)",
              "tensor_scatter(x, x)", 'tensor_scatter(x, x, i, axis=-1, mode="circular")',
              "rms_norm(x, v5)", "rms_norm(x, y3, begin_norm_axis=1, epsilon=0.2)"]}
"""Operations whose operators are newer than the default set, by a set that has them."""

RESULTS = [
    "%r, %s, %o, %z = unique(t)", "%r, %s, %o, %z = unique(t, axis=1, sorted=false)",
    "%r, %s = top_k(x, k=2, axis=1, largest=false)", "%r, %s = top_k(x, k=3)", "%r, %s = dynamic_range(x)",
    "%s, %r = dynamic_range(x)", "%r, %s, %o = lstm(gates4, r4, h, hc, none, len, peep)",
    "%r, %s, %o = lstm(gates4, r4, h, hc, reverse=true)", "%r, %s = gru(gates3, r3, h, gb, len)",
    "%r, %s = gru(gates3, r3, h, gb, linear_before_reset=true, reverse=true)", "%r, %s = gru(gates3, r3)",
    "%r, %s = rnn(gates1, r1, h, len)", "%r, %s = rnn(gates1, r1, reverse=true)",
    """%r, %s = if_else(cond, v, p, then_body=graph then(v: f32[3], p: f32[3]) {
      %sum = add(v, p)
      return %sum as a, p as b
    }, else_body=graph else(v: f32[3], p: f32[3]) {
      %c = constant(value=f32[3]{1, 2, 3})
      return %c as a, v as b
    })""",
    """%r, %s, %o = loop(trips, cond, v, p, body=graph body(k: s64[], on: boolean[], v: f32[3], p: f32[3]) {
      %c = cast(k, dtype=f32)
      %sum = add(v, p)
      %next = multiply(%sum, %c)
      %two, %three = if_else(on, %next, then_body=graph then(x: f32[3]) {
        %twice = add(x, x)
        return %twice as a, %twice as b
      }, else_body=graph else(x: f32[3]) {
        return x as a, x as b
      })
      return on as on, %next as next, %two as two, p as p
    }, states=1)""",
    """%r, %s = scan(v5, x4, v5, body=graph body(v: f32[5], x: f32[5], w: f32[5]) {
      %next = add(v, x)
      %value = multiply(%next, w)
      return %next as next, %value as value
    }, states=1, scanned=1, input_axes=[1], reverse_inputs=[true], output_axes=[-1], reverse_outputs=[true])""",
    """%r = scan(v5, x4, v5, body=graph body(v: f32[5], x: f32[5], w: f32[5]) {
      %next = add(v, x)
      return %next as next
    }, states=1, scanned=1, input_axes=[1], reverse_inputs=[true], output_axes=[], reverse_outputs=[])""",
]

HEADER = """graph g(x: f32[2,3,4,5], y: f32[3,4,5], b: boolean[4,5], v: f32[3], v5: f32[5], m: f32[5,6], n: f32[6,5],
    k: f32[6], w: f32[3,3,2,2], wl: f32[2,2,5,5], p: f32[3], p1: f32[], z1: u8[], i: s64[2], q: u8[2,3,4,5],
    j: s32[3], u: u4[4,3], pu: f32[2,3], pu3: f32[2,3], qm: s8[5,6], qw: s8[2,3,2,2],
    v2: f32[2], p5: f32[5], z5: u8[5], zs: s8[], wg: f32[3,1,2,2], wt: f32[2,2,5,2], qg: s8[6,1,2,2], xt: f32[5,4],
    y3: f32[3,4,5], e: f32[6], c: boolean[4,5], t: s32[4,6], d: s64[2], at: s64[2,3,4,5], place: s64[2,2,1],
    row: s64[2,1], grid: f32[2,4,5,2], pu4: f32[4,1], pb: f32[5,3], zu: u4[2,3], gates4: f32[3,2,16], r4: f32[16,4],
    h: f32[2,4], hc: f32[2,4], cond: boolean[], trips: s64[], x4: f32[5,4],
    len4: s64[4], len5: s64[5],
    len: s32[2], peep: f32[12], gates3: f32[3,2,12], r3: f32[12,4], gb: f32[4], gates1: f32[3,2,4],
    r1: f32[4,4], x3: f32[2,3,5], w3: f32[3,3,2], lw3: f32[2,5,2], x5: f32[1,3,2,3,5], w5: f32[3,3,2,2,1],
    lw5: f32[2,1,2,5,2], a: f16[3,40], angle: f32[2,1,4,2])"""
POSITIVE = ("p", "p1", "p5", "pu", "pu3", "pu4", "pb")


def inputs_of(graph):
    feeds = random_inputs(graph)
    for name in POSITIVE:
        feeds[name] = np.abs(feeds[name]) + np.float32(0.25)
    feeds["i"], feeds["d"], feeds["len"] = np.asarray([4, -2]), np.asarray([-3, 5]), np.int32([2, 3])
    feeds["e"] = np.float32([np.nan, np.inf, -np.inf, -0.0, 1, 3e38])
    feeds["len4"], feeds["len5"] = np.int64([1, 5, 0, 3]), np.int64([4, 0, 1, 2, 3])
    feeds["t"], feeds["trips"] = feeds["t"] % 2, np.int64(3)  # many equal ones
    rng = np.random.default_rng(0)
    feeds["at"], feeds["place"], feeds["row"] = (rng.integers(-2, 2, feeds[name].shape) for name in ("at", "place",
    "row"))
    return feeds


@pytest.mark.parametrize("statement, opset", [
    *((s, 21) for s in [*(f"%r = {x}" for x in STATEMENTS), *RESULTS]),
    *((f"%r = {x}", opset) for opset, statements in NEWER.items() for x in statements)])
def test_round_trip(statement, opset, tmp_path):
    g = gq.parse(f"{HEADER} {{\n {statement}\n return {statement.partition(' =')[0]}\n}}")
    if opset > 21:
        with pytest.raises(GraphError, match=r"in (version|opset) 21.*; (version \d+ brought it|it needs opset \d+)"):
            gq.save_onnx(g, tmp_path / "g.onnx")
    gq.save_onnx(g, tmp_path / "g.onnx", opset=opset)
    h = gq.load_onnx(tmp_path / "g.onnx")
    assert [v.name for v in h.inputs] == [v.name for v in g.inputs] and h.output_names == g.output_names
    assert [v.type for v in h.inputs] == [v.type for v in g.inputs]
    feeds = inputs_of(g)
    wanted, found = (named_outputs(x.output_names, gq.reference(x, feeds)) for x in (g, h))
    for name, want in wanted.items():
        assert found[name].dtype == want.dtype
        np.testing.assert_array_equal(found[name], want)
    onnx.checker.check_model(onnx.load(tmp_path / "g.onnx"), full_check=True)


def test_every_exporter_is_tried():
    # below, in test_partitions.py, in test_detect.py, in test_grouped_attention.py, in kernels/recurrent/test_linear.py
    elsewhere = {"onnx_node", "partition", "non_max_suppression", "cached_attention", "linear_attention"}
    operations = EXPORTERS.keys() | {op.name for op in walk_ops() if op.onnx}
    tried = set(re.findall(r"(\w+)\(", " ".join([*STATEMENTS, *RESULTS, *sum(NEWER.values(), [])])))
    assert operations - elsewhere <= tried, "it has a line in STATEMENTS or RESULTS"


@pytest.mark.parametrize("attrs", [
    f"{ATTRS}, kernel=[2,2]", "pads_begin=[1,0], kernel=[4,5]", "strides=[1,2], kernel=[4,5]", "kernel=[4,4]",
    'kernel=[4,5], auto_pad="same_upper"'])
def test_sums_of_means_in_another_order(attrs, tmp_path):
    """Newer versions of AveragePool add in order, as ONNX Runtime runs them."""
    pool = f'avg_pool(x, {attrs}, exclude_pad=true, data_format="NCX"'
    g, in_order = (gq.parse(f"{HEADER} {{\n %r = {pool}{more})\n return %r\n}}") for more in ("", ", in_order=true"))
    gq.save_onnx(g, tmp_path / "g.onnx")
    got, feeds = gq.reference(gq.load_onnx(tmp_path / "g.onnx"), inputs_of(g)), inputs_of(g)
    assert (got == gq.reference(in_order, feeds)).all() and not (got == gq.reference(g, feeds)).all()


def test_no_other_tensor_gets_the_name_of_a_value(tmp_path):
    """A product with a bias becomes MatMul and Add; the sum is the value."""
    g = gq.Graph()
    x = g.input("x", shape=(2, 3), dtype="f32")
    g.output(g.relu(g.matmul(x, np.ones((3, 4), np.float32), np.ones(4, np.float32), name="matmul")), name="y")
    gq.save_onnx(g, tmp_path / "m.onnx")
    product, added, _ = onnx.load(tmp_path / "m.onnx").graph.node
    assert (product.op_type, added.op_type) == ("MatMul", "Add")
    assert list(added.output) == ["matmul"] != list(product.output)


def test_an_output_of_unknown_rank(tmp_path):
    g = gq.parse("""graph(c: boolean[], x: f32[2,3], y: f32[3]) {
      %0 = if_else(c, x, y, then_body=graph a(x: f32[2,3], y: f32[3]) {
        return x as o
      }, else_body=graph b(x: f32[2,3], y: f32[3]) {
        return y as o
      })
      return %0 as out
    }""")
    gq.save_onnx(g, tmp_path / "g.onnx")
    again, arrays = gq.load_onnx(tmp_path / "g.onnx"), {"x": np.ones((2, 3), "f4"), "y": np.zeros(3, "f4")}
    assert again.outputs[0].type.shape is None
    for c in (True, False):
        assert np.array_equal(gq.reference(again, c=np.asarray(c), **arrays), arrays["x" if c else "y"])


def test_names_of_outputs_that_are_inputs_constants_or_returned_twice(tmp_path):
    g = gq.parse("""graph(x: f32[2]) {\n %c = constant(value=f32[1]{3})\n %r = relu(x)
        return x, %c as three, %r as first, %r as second\n}""")
    gq.save_onnx(g, tmp_path / "g.onnx")
    out = gq.reference(gq.load_onnx(tmp_path / "g.onnx"), x=np.float32([-1, 2]))
    assert {k: v.tolist() for k, v in out.items()} == {"x": [-1, 2], "three": [3], "first": [0, 2], "second": [0, 2]}


@pytest.mark.parametrize("statement,message", [
    ('dynamic_dequantize(q, s, qtype="per_group", group_shape=[2,2])',
    "needs blocks along one axis, got group_shape \\[2, 2\\]"),
    ('dynamic_dequantize(q, t, qtype="per_group", group_shape=[1,1])',
    "needs blocks along one axis, got group_shape \\[1, 1\\]"),
    ('dequantize(q, qtype="per_channel", axis=1, group_axis=0, scales=[1,2,3,4,5,6,7,8])',
    "ONNX cannot express scales of groups along two axes"),
])
def test_scales_of_groups_that_onnx_cannot_say(statement, message, tmp_path):
    g = gq.parse(f"graph(q: s8[4,4], s: f32[2,2], t: f32[4,4]) {{\n %r = {statement}\n return %r\n}}")
    with pytest.raises(GraphError, match=f"save: %r = .*{message}"):
        gq.save_onnx(g, tmp_path / "g.onnx")


def test_nodes_of_older_operator_sets_are_converted(tmp_path):
    m = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 11]>
        net (float[2, 3] x) => (float[2, 3] y) { y = Hardmax <axis = 1> (x) }""")
    g = gq.load_onnx(m)
    gq.save_onnx(g, tmp_path / "g.onnx")
    x = np.float32([[1, 3, 2], [4, 0, 1]])
    np.testing.assert_array_equal(gq.reference(gq.load_onnx(tmp_path / "g.onnx"), x=x), gq.reference(g, x=x))


@pytest.mark.parametrize("statement,message", [
    ('softmax(x, mode="inf_as_zero")', "Softmax has no"), ("softplus(x, beta=2)", "Softplus has no beta"),
    ("max_pool(x, strides=[2,2], pads_begin=[0,0], pads_end=[0,0], kernel=[2,2], rounding_type=\"ceil\")",
     "rounds sizes up by another rule"),
    ("max_pool(x, strides=[1,1], pads_begin=[0,0], pads_end=[0,-1], kernel=[2,2])", "no negative pads, got .*0, -1"),
    ("gen_index(x, axis=1)", "ONNX has no operator for it"), ("softmax(x, dtype=bf16)", "cannot give bf16"),
])
def test_what_onnx_cannot_say(statement, message, tmp_path):
    g = gq.parse(f"{HEADER} {{\n %r = {statement}\n return %r\n}}")
    with pytest.raises(GraphError, match=f"save: %r = .*{message}"):
        gq.save_onnx(g, tmp_path / "g.onnx")
    assert not (tmp_path / "g.onnx").exists()


@pytest.mark.parametrize("types, statement, shapes", [
    ("x: f32[?,3,4]", "static_reshape(x, shape=[0,-1], special_zero=true)", [(2, 3, 4), (5, 3, 4)]),
    ("x: f32[?,?,4]", "static_reshape(x, shape=[0,0,2,2], special_zero=true)", [(2, 3, 4), (1, 1, 4)]),
    ("x: f32[?,3]", "static_reshape(x, shape=[0,7])", [(0, 3)]),
    ("x: f32[?,3]", "static_reshape(x, shape=[-1,1])", [(2, 3), (0, 3)]),
    ("x: f32[?,3,?]", "static_transpose(x, order=[-1,0,1])", [(2, 3, 4)]),
    ("x: f32[?,?,4]", "softmax(x, axis=1)", [(2, 3, 4)]), ("x: f32[?,?,4]", "softmax(x, axis=-2)", [(2, 3, 4)]),
    ("x: f32[?,3,?,4]", "avg_pool(x, kernel=[2,2], exclude_pad=false, pads_begin=[1,0], in_order=true)",
     [(2, 3, 4, 4)]),
    ("x: f32[?,?,3]", "matmul(x, x, transpose_b=true)", [(2, 3, 3), (1, 5, 3)]),
    ("x: f32[?,3], y: f32[?,1]", "add(x, y)", [(2, 3), (2, 1)]),
    ("x: f32[?,3]", "concat(x, x, axis=0)", [(2, 3)]),
    ("x: f32[?,3,?]", "reduce_sum(x, axes=[0,-1], keep_dims=true)", [(2, 3, 4)]),
    ("x: f32[?,3,?]", "reduce_sum(x, axes=[1])", [(2, 3, 4)]),
    ("x: f32[?,3,?]", "slice(x, axes=[0], starts=[-2], ends=[-1], steps=[1])", [(4, 3, 2)]),
])
def test_round_trips_of_open_shapes(types, statement, shapes, tmp_path):
    """Types stay open; each set of shapes gives the same numbers."""
    g = gq.parse(f"graph({types}) {{\n %r = {statement}\n return %r\n}}")
    gq.save_onnx(g, tmp_path / "g.onnx")
    h = gq.load_onnx(tmp_path / "g.onnx")
    assert [v.type for v in h.inputs] == [v.type for v in g.inputs]
    rng = np.random.default_rng(0)
    for shape in shapes[:1] if "y:" in types else shapes:
        feeds = {"x": rng.standard_normal(shape).astype(np.float32)}
        feeds |= {"y": rng.standard_normal(shapes[1]).astype(np.float32)} if "y:" in types else {}
        want = gq.reference(g, feeds)
        got = gq.reference(h, feeds)
        assert got.shape == want.shape
        np.testing.assert_array_equal(got, want)


CANNOT = {
    "%r, %s = softmax(x, keep_stats=true)": "Softmax has no statistics and no mode inf_as_zero",
    "%r = matmul(half, half, dtype=f32)": "ONNX's operator cannot give f32",
    "%r = convolution(cube, cube, strides=[1], pads_begin=[0], pads_end=[0], dilations=[1], dtype=f32)":
        "ONNX's operator cannot give f32",
    "%r = add(x, y, dtype=bf16)": "does not round to bf16; use a type_cast",
    '%r = conv_transpose(x, w, auto_pad="same_upper", data_format="NCX", weights_format="IOX")':
        "auto_pad means something else in ONNX's ConvTranspose",
    '%r = group_norm(x, groups=3, keep_stats=false, use_affine=false, data_format="NCX")':
        "GroupNormalization gives no statistics and needs",
    '%r = group_norm(x, v, v, groups=3, keep_stats=false, use_affine=false, data_format="NCX")':
        "GroupNormalization gives no statistics and needs",
    '%r, %s, %o = group_norm(x, v, v, groups=3, data_format="NCX")': "GroupNormalization gives no statistics and needs",
    "%r, %s, %o = layer_norm(x, v5, v5)": "LayerNormalization has other statistics and needs a scale",
    "%r = layer_norm(x, keep_stats=false, use_affine=false)": "LayerNormalization has other statistics and needs a sc",
    "%r = layer_norm(x, v5, v5, keep_stats=false, use_affine=false)": "LayerNormalization has other statistics and nee",
    "%r = reduce_sum(x, two)": "axes as an operand are s32 in graphq",
    "%r = dynamic_quantize(x, p1, zero, dtype=u8)": r"a zero point must be u8 in ONNX, got s32\[\]",
    "%r = dynamic_dequantize(q, p1, zero)": r"a zero point must be u8 in ONNX, got s32\[\]",
    '%r = prelu(free, v, data_format="NCX")': r"the rank of f32\[\*\] is not known",
    "%r = matmul(free, m, transpose_a=true)": r"the rank of f32\[\*\] is not known",
    "%r = avg_pool(x, kernel=[2,2], exclude_pad=true, rounding_type=\"ceil\")": "rounds sizes up by another rule",
    "%r = convolution(x, wl, pads_begin=[0,0], pads_end=[-1,0])": r"no negative pads, got pads_end \[-1, 0\]",
}


@pytest.mark.parametrize("opset, statement", [
    (23, "dequantize_linear(q, p1, dtype=bf16)"), (23, "dynamic_dequantize(q, p1, dtype=bf16)"),
    (23, "quantize_linear(x, p1, dtype=s8, precision=bf16)"), (24, "quantize_linear(x, power, dtype=s8)"),
    (24, "dequantize_linear(q, power)"), (24, "dequantize_linear(f4, powers, axis=0, block_size=2)"),
    (24, 'dynamic_dequantize(f4, powers, qtype="per_group", group_shape=[2,1], dtype=f32)')])
def test_types_of_newer_versions(opset, statement, tmp_path):
    """Scales of f8_e8m0 (MXFP4), and results and precisions of other types than the scale's."""
    types = "x: f32[2,3], q: u8[2,3], p1: f32[], power: f8_e8m0[], f4: f4_e2m1[4,3], powers: f8_e8m0[2,3]"
    g = gq.parse(f"""graph({types}) {{
      %r = {statement}
      return %r
    }}""")
    with pytest.raises(GraphError, match=f"in opset {opset - 1}; it needs opset {opset}"):
        gq.save_onnx(g, tmp_path / "g.onnx", opset=opset - 1)
    gq.save_onnx(g, tmp_path / "g.onnx", opset=opset)
    onnx.checker.check_model(onnx.load(tmp_path / "g.onnx"), full_check=True)
    feeds = random_inputs(g) | {"p1": np.float32(0.25)}
    want, got = (gq.reference(x, feeds) for x in (g, gq.load_onnx(tmp_path / "g.onnx")))
    assert got.dtype == want.dtype
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("statement", CANNOT)
def test_each_reason_of_the_exporters(statement, tmp_path):
    more = "two: s32[2], zero: s32[], free: f32[*], half: bf16[5,5], cube: bf16[2,2,2], power: f8_e8m0[]"
    header = f"{HEADER[:-1]}, {more})"
    results = statement.partition(" =")[0]
    g = gq.parse(f"{header} {{\n {statement}\n return {results}\n}}")
    with pytest.raises(GraphError, match=f"save: {results} = .*{CANNOT[statement]}"):
        gq.save_onnx(g, tmp_path / "g.onnx")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("text, message", [
    ('<ir_version: 11, opset_import: ["" : 23]> net (float[2, 3] x) => (float[2, 3] y) { y = Hardmax (x) }',
     "version 23 of its operator set is newer than 21"),
    ('<ir_version: 10, opset_import: ["" : 21, "ai.onnx.ml": 3]> net (float[2, 3] x) => (float[2, 3] y) '
     '{ y = ai.onnx.ml.Normalizer <norm = "L2"> (x) }', "operators of domain ai.onnx.ml cannot be saved")])
def test_nodes_that_are_not_written(text, message, tmp_path):
    g = gq.load_onnx(onnx.parser.parse_model(text))
    with pytest.raises(GraphError, match=f"save: .*{message}"):
        gq.save_onnx(g, tmp_path / "g.onnx")


def test_an_operation_has_one_exporter():
    with pytest.raises(GraphError, match="an exporter of square is registered already"):
        exports("square")(lambda w, node: None)

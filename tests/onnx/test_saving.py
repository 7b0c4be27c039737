"""save_onnx: what is loaded again gives the same numbers, operation by operation; and what ONNX cannot say."""
import numpy as np
import onnx
import pytest

import graphq as gq
from graphq.errors import GraphError
from graphq.testing import random_inputs

ATTRS = "strides=[2,1], pads_begin=[1,0], pads_end=[0,1]"

STATEMENTS = [
    *(f"{op}(x)" for op in ("abs", "erf", "exp", "gelu", "hard_swish", "log", "mish", "reciprocal", "relu", "round",
                            "sigmoid", "softplus", "sqrt", "square", "tanh", "reorder")),
    'gelu(x, mode="gelu_tanh")', "elu(x, alpha=0.5)", "leaky_relu(x, alpha=0.5)",
    "hard_sigmoid(x, alpha=0.5, beta=0.25)", "clamp(x, min=-0.5, max=1)", "pow(x, beta=3)", "pow(x, beta=0.5)",
    *(f"{op}(x, y)" for op in ("add", "subtract", "multiply", "divide", "maximum", "minimum", "squared_difference",
                               "greater_equal")),
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
    "reduce_max(x, axes=[-1])", 'interpolate(x, mode="nearest", sizes=[8,10], data_format="NCX")',
    'interpolate(x, mode="linear", sizes=[8,10], coordinate_transformation_mode="asymmetric")',
    'interpolate(x, mode="linear", sizes=[7,9])', "static_reshape(x, shape=[2,-1])",
    "static_transpose(x, order=[0,-1,1,2])",
    "concat(x, x, axis=1)", "gather(x, i, axis=3)", "slice(x, axes=[1,3], starts=[2,0], ends=[-9,4], steps=[-1,2])",
    "arg_max(x, axis=1)", "arg_min(x, axis=-1, keep_dims=false, select_last_index=true)", "cum_sum(x, axis=2)",
    "cum_sum(x, axis=0, exclusive=true, reverse=true)", "trilu(x, k=1)", "trilu(x, upper=false)", "equal(x, y)",
    "greater(x, y)", "less(i, i)", "less_equal(x, y)", "logical_and(b, b)", "logical_not(b)", "is_nan(x)",
    "is_inf(x, detect_negative=false)", "floor(x)", "ceil(x)", "sign(x)", "sin(x)", "cos(x)",
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

HEADER = """graph g(x: f32[2,3,4,5], y: f32[3,4,5], b: boolean[4,5], v: f32[3], v5: f32[5], m: f32[5,6], n: f32[6,5],
    k: f32[6], w: f32[3,3,2,2], wl: f32[2,2,5,5], p: f32[3], p1: f32[], z1: u8[], i: s64[2], q: u8[2,3,4,5],
    j: s32[3], u: u4[4,3], pu: f32[2,3], pu3: f32[2,3], qm: s8[5,6], qw: s8[2,3,2,2])"""
POSITIVE = ("p", "p1", "pu", "pu3")


def inputs_of(graph):
    feeds = random_inputs(graph)
    for name in POSITIVE:
        feeds[name] = np.abs(feeds[name]) + np.float32(0.25)
    feeds["i"] = np.asarray([4, -2])
    return feeds


@pytest.mark.parametrize("statement", STATEMENTS)
def test_round_trip(statement, tmp_path):
    g = gq.parse(f"{HEADER} {{\n %r = {statement}\n return %r\n}}")
    gq.save_onnx(g, tmp_path / "g.onnx")
    h = gq.load_onnx(tmp_path / "g.onnx")
    assert [v.name for v in h.inputs] == [v.name for v in g.inputs] and h.output_names == ["r"]
    assert [v.type for v in h.inputs] == [v.type for v in g.inputs]
    feeds = inputs_of(g)
    want, got = gq.reference(g, feeds), gq.reference(h, feeds)
    assert got.dtype == want.dtype
    np.testing.assert_array_equal(got, want)
    onnx.checker.check_model(onnx.load(tmp_path / "g.onnx"), full_check=True)


def test_sums_of_means_in_another_order(tmp_path):
    """Newer versions of AveragePool add in order, as ONNX Runtime runs them."""
    pool = f'avg_pool(x, {ATTRS}, kernel=[2,2], exclude_pad=true, data_format="NCX"'
    g, in_order = (gq.parse(f"{HEADER} {{\n %r = {pool}{more})\n return %r\n}}") for more in ("", ", in_order=true"))
    gq.save_onnx(g, tmp_path / "g.onnx")
    got, feeds = gq.reference(gq.load_onnx(tmp_path / "g.onnx"), inputs_of(g)), inputs_of(g)
    assert (got == gq.reference(in_order, feeds)).all() and not (got == gq.reference(g, feeds)).all()


def test_names_of_outputs_that_are_inputs_constants_or_returned_twice(tmp_path):
    g = gq.parse("""graph(x: f32[2]) {\n %c = constant(value=f32[1]{3})\n %r = relu(x)
        return x, %c as three, %r as first, %r as second\n}""")
    gq.save_onnx(g, tmp_path / "g.onnx")
    out = gq.reference(gq.load_onnx(tmp_path / "g.onnx"), x=np.float32([-1, 2]))
    assert {k: v.tolist() for k, v in out.items()} == {"x": [-1, 2], "three": [3], "first": [0, 2], "second": [0, 2]}


@pytest.mark.parametrize("statement,message", [
    ('dynamic_dequantize(q, s, qtype="per_group", group_shape=[2,2])', "groups of \\[2, 2\\] are no blocks along one"),
    ('dynamic_dequantize(q, t, qtype="per_group", group_shape=[1,1])', "groups of \\[1, 1\\] are no blocks along one"),
    ('dequantize(q, qtype="per_channel", axis=1, group_axis=0, scales=[1,2,3,4,5,6,7,8])', "no form in ONNX"),
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
     "rounds sizes up otherwise"),
    ("max_pool(x, strides=[1,1], pads_begin=[0,0], pads_end=[0,-1], kernel=[2,2])", "no negative pads, got .*0, -1"),
    ("gen_index(x, axis=1)", "ONNX has no operator for it"), ("softmax(x, dtype=bf16)", "does not give bf16"),
])
def test_what_onnx_cannot_say(statement, message, tmp_path):
    g = gq.parse(f"{HEADER} {{\n %r = {statement}\n return %r\n}}")
    with pytest.raises(GraphError, match=f"save: %r = .*{message}"):
        gq.save_onnx(g, tmp_path / "g.onnx")
    assert not (tmp_path / "g.onnx").exists()

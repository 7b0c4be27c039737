"""Obstacles to fusion: `explain()` names the true cause and an edit, and with the edit applied there is none left."""
import pytest

import graphq as gq
from graphq.report.given import BORDER

DENSE = """  %w = constant(value=s8[4,2]{1, -2, 3, 4, 5, -6, 7, 8})
  %dw = dequantize(%w, scales=[0.1])
  %dx = dequantize(x, scales=[0.1], zps=[3])
"""
Q = "dtype=u8, scales=[0.2], zps=[7]"
FUSED = f"graph(x: u8[3,4]) {{\n{DENSE}  %y = matmul(%dx, %dw)\n  %q = quantize(%y, {Q})\n  return %q\n}}"


def body(statements, inputs="x: u8[3,4]", dense=DENSE):
    return f"graph({inputs}) {{\n{dense}  {statements}\n}}"


def report(text):
    return gq.compile(gq.parse(text), threads=1).explanation()


def causes(text):
    return [c for c in report(text).causes if c.check != BORDER]


TWELVE = {
    "second f32 user": (
        body(f"%y = matmul(%dx, %dw)\n %q = quantize(%y, {Q})\n %z = add(%y, r)\n return %q, %z",
             "x: u8[3,4], r: f32[3,2]"),
        "q", "%y has a second user in f32: %z = add(%y, r) : f32[3,2]", "let it read the dequantized %q instead of %y",
        body(f"%y = matmul(%dx, %dw)\n %q = quantize(%y, {Q})\n %d = dequantize(%q, scales=[0.2], zps=[7])\n"
             " %z = add(%d, r)\n return %q, %z", "x: u8[3,4], r: f32[3,2]")),
    "non-constant scale": (
        body(f"%dd = multiply(%dx, s)\n %y = matmul(%dd, %dw)\n %q = quantize(%y, {Q})\n return %q",
             "x: u8[3,4], s: f32[1]"),
        "y", "multiply (%dd) stands between the matmul and the dequantize of its activations",
        "multiply the result of the matmul by s instead (s is not constant)",
        body(f"%y = matmul(%dx, %dw)\n %z = multiply(%y, s)\n %q = quantize(%z, {Q})\n return %q",
             "x: u8[3,4], s: f32[1]")),
    "f8": (  # a zero point of f8 is refused when the graph is built
        FUSED.replace("x: u8", "x: f8_e4m3").replace(", zps=[3]", ""),
        "y", "the input is f8_e4m3, integer kernels take u8 and s8", "quantize the input to u8 or s8", FUSED),
    "per-channel activations": (
        FUSED.replace("scales=[0.1], zps=[3]", 'qtype="per_channel", axis=1, scales=[0.1, 0.2, 0.3, 0.4]'),
        "y", "the input is quantized per channel along axis 1: its scale would vary inside the sum",
        "quantize the input per tensor", FUSED),
    "axis mismatch": (
        FUSED.replace("%w, scales=[0.1]", '%w, qtype="per_channel", axis=0, scales=[0.1, 0.2, 0.3, 0.4]'),
        "y", "the weights are quantized along axis 0, not along the columns",
        "quantize the weights along the columns, axis 1 of s8[4,2]",
        FUSED.replace("%w, scales=[0.1]", '%w, qtype="per_channel", axis=1, scales=[0.1, 0.2]')),
    "unsupported operation between": (
        body(f"%y = matmul(%dx, %dw)\n %z = cum_sum(%y, axis=1)\n %q = quantize(%z, {Q})\n return %q"),
        "q", "cum_sum (%z) stands between %y and the quantize, and runs outside of partitions",
        "quantize %y before the cum_sum, and let that read the dequantize",
        body(f"%y = matmul(%dx, %dw)\n %q = quantize(%y, {Q})\n %d = dequantize(%q, scales=[0.2], zps=[7])\n"
             " %z = cum_sum(%d, axis=1)\n return %z")),
    "a graph output": (
        body(f"%y = matmul(%dx, %dw)\n %q = quantize(%y, {Q})\n return %q, %y"),
        "q", "%y is also an output of the graph", "return %q, or its dequantize, instead of %y",
        body(f"%y = matmul(%dx, %dw)\n %q = quantize(%y, {Q})\n %d = dequantize(%q, scales=[0.2], zps=[7])\n"
             " return %q, %d")),
    "reshape between": (  # right before the quantize it is moved out of the way, so here is a relu between
        body(f"%y = matmul(%dx, %dw)\n %r = static_reshape(%y, shape=[2,3], special_zero=false)\n %z = tanh(%r)\n"
             f" %q = quantize(%z, {Q})\n return %q"),
        "q", "static_reshape (%r) stands between %y and the quantize", "move the static_reshape behind the quantize",
        body(f"%y = matmul(%dx, %dw)\n %z = tanh(%y)\n %q = quantize(%z, {Q})\n"
             " %r = static_reshape(%q, shape=[2,3], special_zero=false)\n return %r")),
    "cast between": (
        body(f"%b = type_cast(%dx, dtype=bf16)\n %v = type_cast(%dw, dtype=bf16)\n %y = matmul(%b, %v)\n"
             f" %f = type_cast(%y, dtype=f32)\n %q = quantize(%f, {Q})\n return %q"),
        "y", "type_cast (%b) stands between the matmul and the dequantize of its activations",
        "let the matmul read %dx in f32, without the cast, and cast its result",
        body(f"%y = matmul(%dx, %dw)\n %b = type_cast(%y, dtype=bf16)\n %f = type_cast(%b, dtype=f32)\n"
             f" %q = quantize(%f, {Q})\n return %q")),
    "mismatched scales of a concat": (
        body(f"%a = dequantize(l, scales=[0.5])\n %c = concat(%dx, %a, axis=0)\n %y = matmul(%c, %dw)\n"
             f" %q = quantize(%y, {Q})\n return %q", "x: u8[3,4], l: u8[2,4]"),
        "y", "%c, its activations, joins operands with different quantization: u8 with scale 0.1, zero point 3 and u8 "
        "with scale 0.5, zero point 0", "quantize the operands of the concat with one scale and zero point",
        body(f"%a = dequantize(l, scales=[0.1], zps=[3])\n %c = concat(%dx, %a, axis=0)\n %y = matmul(%c, %dw)\n"
             f" %q = quantize(%y, {Q})\n return %q", "x: u8[3,4], l: u8[2,4]")),
    "wildcard": (
        body(f"%y = matmul(%dx, %dw)\n %z = wildcard(%y, dtypes=[f32], shapes=[[3,2]])\n %q = quantize(%z, {Q})\n"
             " return %q"),
        "q", "wildcard (%z) stands between %y and the quantize", "quantize %y before the wildcard",
        body(f"%y = matmul(%dx, %dw)\n %q = quantize(%y, {Q})\n %d = dequantize(%q, scales=[0.2], zps=[7])\n"
             " %z = wildcard(%d, dtypes=[f32], shapes=[[3,2]])\n return %z")),
    "dynamic shape": (  # open dimensions are planned for; of an unknown rank nothing is known before the first call
        FUSED.replace("u8[3,4]", "u8[*]"),
        "y", "the shape of an operand, u8[*], is known only at the first call", "give the inputs shapes", FUSED),
}


@pytest.mark.parametrize("obstacle", TWELVE)
def test_the_cause_and_the_edit_stand_below_the_operation(obstacle):
    text, name, reason, edit, _ = TWELVE[obstacle]
    model = gq.compile(gq.parse(text), threads=1)
    operation, why, advice = model.explain(name).splitlines()[:3]
    assert why.startswith("  why:  ") and reason in why and advice.startswith("  edit: ") and edit in advice
    assert f"  {operation}\n  {why}\n  {advice}\n" in model.explain()


@pytest.mark.parametrize("obstacle", TWELVE)
def test_the_edit_lets_it_fuse(obstacle):
    edited = report(TWELVE[obstacle][-1])
    assert [c for c in edited.causes if c.op in ("matmul", "quantize")] == []
    (product,) = (n.partition for n in edited.nodes if n.partition and n.partition.anchor == "matmul")
    assert product.kind == "integer" and "quantize" in [n.op for n in product.body]


def conv(x="x: u8[1,4,5,5]", weights="scales=[0.1]", w="u8", attrs="", bound=""):
    return f"""graph({x}, w: {w}[4,4,3,3]{bound}) {{
      %dx = dequantize(x, scales=[0.1], zps=[3])
      %dw = dequantize(w, {weights})
      %y = convolution(%dx, %dw, strides=[1,1], pads_begin=[1,1], pads_end=[1,1], dilations=[1,1], data_format="NCX",
                       weights_format="OIX"{attrs})
      %q = quantize(%y, {Q})
      return %q
    }}"""


def variable(x, w):
    return (f"graph(x: {x}, w: {w}) {{\n %a = dequantize(x, scales=[0.1])\n %b = dequantize(w, scales=[0.1])\n"
            " %y = matmul(%a, %b)\n return %y\n}")


OTHERS = {  # the text, what is outside, the reason, the edit
    "f32 weights": (
        body("%v = constant(value=f32[4,2]{1, 2, 3, 4, 5, 6, 7, 8})\n %y = matmul(%dx, %v)\n return %y"),
        "%y", "its weights, a constant, are f32", "store the weights as s8 and dequantize them"),
    "weights alone are quantized": (
        body("%y = matmul(f, %dw)\n return %y", "x: u8[3,4], f: f32[3,4]"), "%y",
        "its activations, f, are an input of the graph in f32", "quantize and dequantize f"),
    "nothing quantizes between two products": (
        body(f"%a = matmul(%dx, %dw)\n %r = relu(%a)\n %y = matmul(%r, %dx)\n %q = quantize(%y, {Q})\n return %q",
             "x: u8[2,4]"), "%y", "its activations, %r, are f32 that nothing quantizes", "quantize and dequantize %r"),
    "the branch that is not quantized": (
        body(f"%a = matmul(%dx, %dw)\n %p = quantize(%a, {Q})\n %y = matmul(%a, %dx)\n return %p, %y", "x: u8[2,4]"),
        "%y", "its activations, %a, are f32, although a quantize makes %p of %a", "read the dequantized %p instead"),
    "a factor": (
        body("%d = multiply(%dx, k)\n %y = matmul(%d, %dw)\n return %y").replace(
            "%dx = ", "%k = constant(value=f32[]{0.5})\n %dx = ").replace("(%dx, k)", "(%dx, %k)"),
        "%y", "multiply (%d) stands between", "fold the constant into the scale of %dx"),
    "16 bits": (FUSED.replace("x: u8", "x: s16"), "%y", "the input is s16", "quantize the input to u8 or s8"),
    "groups of weights": (
        body("%s = constant(value=f32[2,2]{0.1, 0.2, 0.3, 0.4})\n %z = constant(value=s32[2,2]{0, 0, 5000000, 0})\n"
             ' %v = dynamic_dequantize(%w, %s, %z, qtype="per_group", group_shape=[2,1])\n'
             " %y = matmul(%dx, %v)\n return %y"),
        "%y", "zero points are beyond 22 bits (%v = dynamic_dequantize(%w, %s, %z) : f32[4,2])",
        "take smaller zero points"),
    "4-bit weights of a variable scale": (
        body("%u = constant(value=s4[4,2]{1, -2, 3, 4, 5, -6, 7, -8})\n"
             ' %v = dynamic_dequantize(%u, s, qtype="per_group", group_shape=[2,1])\n %y = matmul(%dx, %v)\n return %y',
             "x: u8[3,4], s: f32[2,2]"), "%y", "scales and zero points must be constant",
        "make weights, scales and zero points constants"),
    "softmax": (
        body(f"%y = matmul(%dx, %dw)\n %z = softmax(%y, axis=1)\n %q = quantize(%z, {Q})\n return %q"), "%q",
        "softmax (%z) stands between %y and the quantize", "quantize and dequantize %y before the softmax"),
    "a pool after a product": (
        conv(w="s8").replace(f"%q = quantize(%y, {Q})", "%p = max_pool(%y, kernel=[2,2], strides=[1,1], "
                             'pads_begin=[0,0], pads_end=[0,0], data_format="NCX")\n'
                             f"%q = quantize(%p, {Q})"), "%q",
        "stands between %y and the quantize", "quantize and dequantize %y before the max_pool"),
    "a broadcast": (
        body(f"%y = matmul(%dx, %dw)\n %z = add(%y, r)\n %q = quantize(%z, {Q})\n return %q",
             "x: u8[3,4], r: f32[5,3,2]"), "%q", "sums would be computed more than once", "quantize before"),
    "channels of scales that a reshape mixes": (
        body("%p = dequantize(g, qtype=\"per_channel\", axis=1, scales=[0.1, 0.2])\n"
             " %r = static_reshape(%p, shape=[3,4], special_zero=false)\n %y = matmul(%r, %dw)\n return %y",
             "x: u8[3,4], g: u8[3,2,2]"), "%y", "it would mix the scales along axis 1",
        "with one scale for the tensor"),
    "a scale of all numbers": (
        body("%y = matmul(%dx, %dw)\n %a = abs(%y)\n %m = reduce_max(%a, axes=[0,1])\n"
             " %q = dynamic_quantize(%y, %m, dtype=s8)\n return %q"), "%q", "its scale, %m, is computed from %y",
        "with a constant scale"),
    "an operand of the epilogue": (
        body(f"%d = dequantize(r, scales=[0.3])\n %t = tanh(%d)\n %y = matmul(%dx, %dw)\n %z = add(%y, %t)\n"
             f" %q = quantize(%z, {Q})\n return %q", "x: u8[3,4], r: u8[3,2]"), "%t", "%t is read in f32 by %z = add",
        "quantize and dequantize %t"),
    "weights of a convolution along the inputs": (
        conv(w="s8", weights='qtype="per_channel", axis=1, scales=[0.1, 0.2, 0.3, 0.4]'), "%y",
        "the weights are quantized along axis 1", "along the output channels, axis 0"),
    "weights that are not constant": (
        conv(weights="scales=[0.1], zps=[5]"), "%y", "the weights are u8 or have zero points, and are not constant",
        "make the weights a constant"),
    "16 bits into a pool": (
        f"""graph(x: s16[1,4,4,3]) {{
          %d = dequantize(x, scales=[0.1])
          %p = max_pool(%d, kernel=[2,2], strides=[2,2], pads_begin=[0,0], pads_end=[0,0])
          %q = quantize(%p, {Q})
          return %q
        }}""", "%q", "the input is s16", "quantize the input to u8 or s8"),
    "one dimension": (variable("u8[4]", "s8[4]"), "%y", "one-dimensional operands [4] and [4]",
                      "reshape both to matrices"),
    "an operation of two results": (
        body("%v, %i = top_k(%dx, k=4)\n %y = matmul(%v, %dw)\n return %y"), "%y",
        "top_k (%v) stands between the matmul and the dequantize", "quantize and dequantize %v"),
    "softmax along an axis that channels last moves": (
        conv(w="s8").replace(f"%q = quantize(%y, {Q})", f"%s = softmax(%y, axis=2)\n%q = quantize(%s, {Q})"), "%q",
        "softmax works along axis 2 of f32[1,4,5,5], kernels along axis 1", "transpose the input"),
    "statistics that nothing uses": (
        body(f"%y = matmul(%dx, %dw)\n %n, %m, %v = layer_norm(%y, g, b)\n %q = quantize(%n, {Q})\n return %q",
             "x: u8[3,4], g: f32[2], b: f32[2]"), "%q",
        "layer_norm (%n) stands between %y and the quantize: layer_norm also gives statistics",
        "leave keep_stats out; quantize %y before the layer_norm"),
    "a constant divisor": (
        body("%k = constant(value=f32[]{3})\n %d = divide(%dx, %k)\n %y = matmul(%d, %dw)\n return %y"), "%y",
        "divide (%d) stands between", "fold the constant into the scale of %dx"),
    "a variable divisor": (
        body("%d = divide(%dx, s)\n %y = matmul(%d, %dw)\n return %y", "x: u8[3,4], s: f32[1]"), "%y",
        "divide (%d) stands between", "divide the result of the matmul by s instead (s is not constant)"),
    "a padding that no integer stands for": (
        conv(w="s8").replace("%y = convolution(%dx", "%p = pad(%dx, pads_begin=[0,0,1,1], pads_end=[0,0,1,1], "
                             "value=-100.0)\n%y = convolution(%p"), "%y",
        "the dequantize of its activations, %dx = dequantize(x) : f32[1,4,5,5]: no u8 dequantizes to -100",
        "quantize and dequantize %p"),
    "operations that no partition takes in": (
        body(f"%y = matmul(%dx, %dw)\n %s = sign(%y)\n %c = sign(%s)\n %q = quantize(%c, {Q})\n return %q"), "%q",
        "sign (%s), with 1 more after it, stands between %y and the quantize", "quantize %y before the sign"),
    "an operation that no partition takes in, in quantized numbers": (
        body(f"%s = sign(%dx)\n %q = quantize(%s, {Q})\n return %q"), "%q",
        "sign (%s) reads %dx in f32: no partition can contain a sign", "write the sign with operations"),
    "an operation in channels last before a product": (
        conv(w="s8").replace("%y = convolution(%dx", "%s = softmax(%dx, axis=1)\n%y = convolution(%s"), "%y",
        "the dequantize of its activations, %dx = dequantize(x) : f32[1,4,5,5]", "quantize and dequantize %s"),
    "weights that are an input": (
        body("%y = matmul(%dx, v)\n return %y", "x: u8[3,4], v: f32[4,2]"), "%y",
        "its weights, v, are an input of the graph in f32", "quantize v to s8 and dequantize it, or pass it as s8"),
    "weights that are an input of a convolution": (
        conv(w="f32").replace("%dw = dequantize(w, scales=[0.1])\n", "").replace("(%dx, %dw", "(%dx, w"), "%y",
        "its weights, w, are an input of the graph in f32", "or pass it as s8 and dequantize it"),
    "channels that a pool mixes": (
        f"""graph(x: u8[1,3,3,3]) {{
          %d = dequantize(x, qtype="per_channel", axis=1, scales=[0.1, 0.2, 0.3])
          %p = max_pool(%d, kernel=[2,2], strides=[1,1], pads_begin=[0,0], pads_end=[0,0])
          %q = quantize(%p, {Q})
          return %q
        }}""", "%q", "max_pool (%p) reads %d in f32: the input is quantized along axis 1, not along the channels",
        "quantize the input per tensor, or along the channels"),
    "integers that are cast": (
        body("%c = cast(x, dtype=f32)\n %y = matmul(%c, %dw)\n return %y"), "%y",
        "its activations, %c, are a cast of x, u8, instead of a dequantize",
        "dequantize x with scale 1 instead of the cast"),
    "a reduction that drops its axis": (
        body(f"%y = matmul(%dx, %dw)\n %z = reduce_sum(%y, axes=[1])\n %q = quantize(%z, {Q})\n return %q"), "%q",
        "reduce_sum does not keep the reduced axis of f32[3,2]", "keep it by keep_dims, and reshape the result"),
    "the dequantize that two operations read": (
        body(f"%m = reduce_mean(%dx, axes=[0], keep_dims=true)\n %c = subtract(%dx, %m)\n %y = matmul(%c, %dw)\n"
             f" %q = quantize(%y, {Q})\n return %q"), "%y",
        "the dequantize of its activations, %dx = dequantize(x) : f32[3,4]", "quantize and dequantize %c"),
    "an output of the graph in the midst of a chain": (
        body(f"%y = matmul(%dx, %dw)\n %t = tanh(%y)\n %q = quantize(%t, {Q})\n return %q, %y"), "%q",
        "%y is also an output of the graph, in f32", "quantize %y, and return its dequantize"),
    "a chain of 25 operations": (
        body("%t0 = matmul(%dx, %dw)\n" + "".join(f" %t{k} = tanh(%t{k - 1})\n" for k in range(1, 26))
             + f" %q = quantize(%t25, {Q})\n return %q"), "%q", "the chain up to %t24 has 24 operations",
        "quantize and dequantize %t23, to cut the chain"),
    "a source of a concat in floats": (
        body("%c = concat(%dx, f, axis=0)\n %y = matmul(%c, %dw)\n return %y", "x: u8[3,4], f: f32[2,4]"), "%y",
        "u8 with scale 0.1, zero point 3 and f32 that is not dequantized (f)", "quantize and dequantize %c"),
    "sources of a concat by scales of channels": (
        body('%d = dequantize(l, qtype="per_channel", axis=1, scales=[0.1, 0.2, 0.3, 0.4])\n'
             " %c = concat(%dx, %d, axis=0)\n %y = matmul(%c, %dw)\n return %y", "x: u8[3,4], l: u8[2,4]"), "%y",
        "u8 with scale 0.1, zero point 3 and scales along axis 1",
        "quantize the operands of the concat with one scale"),
    "sources of a concat that a pass computes channels last": (
        conv(x="x: u8[1,2,5,5], l: u8[1,2,5,5]", w="s8").replace(
            "%y = convolution(%dx", '%d = dequantize(l, qtype="per_channel", axis=1, scales=[0.1, 0.2])\n'
            "%c = concat(%dx, %d, axis=1)\n%y = convolution(%c"), "%y",
        "u8 with scale 0.1, zero point 3 and scales along axis 1", "quantize and dequantize %c"),
    "a product that a scale is folded into": (
        body("%v = constant(value=f32[4,2]{1, 2, 3, 4, 5, 6, 7, 8})\n %k = constant(value=f32[]{0.5})\n"
             " %y = matmul(%dx, %v)\n %z = multiply(%y, %k)\n return %z"), "%y",
        "its weights, a constant, are f32", "store the weights as s8"),
    "sums beyond s32": (variable("u8[1,70000]", "s8[70000,2]"), "%y", "beyond s32", "split the sum"),
    "two operands": (
        body('%v = dequantize(%w, qtype="per_channel", axis=0, scales=[0.1, 0.2, 0.3, 0.4])\n %y = matmul(f, %v)\n'
             " return %y", "x: u8[3,4], f: f32[3,4]"), "%y",
        "f, are an input of the graph in f32 and the weights are quantized along axis 0",
        "quantize the weights along the columns"),
}


@pytest.mark.parametrize("obstacle", OTHERS)
def test_other_obstacles(obstacle):
    text, value, reason, edit = OTHERS[obstacle]
    cause = next(c for c in causes(text) if c.value == value)
    assert reason in cause.reason and edit in cause.edit


@pytest.mark.parametrize("normalization, reason", [
    ("lrn(%y, size=3, alpha=0.1, beta=0.75, bias=1.0)", "lrn (%n) stands between %y and the quantize"),
    ("group_norm(%y, groups=2, keep_stats=false, use_affine=false)", "group_norm (%n) is computed as several"),
])
def test_what_passes_compute_as_several_operations_is_one(normalization, reason):
    given = normalization.replace(")", ', data_format="NCX")')
    (cause,) = causes(conv(w="s8").replace(f"%q = quantize(%y, {Q})", f"%n = {given}\n%q = quantize(%n, {Q})"))
    assert reason in cause.reason and (cause.value, cause.also) == ("%q", ("%n",))
    behind = f"%p = quantize(%y, {Q})\n%d = dequantize(%p, scales=[0.2])\n%n = {given.replace('%y', '%d')}\n"
    (cause,) = causes(conv(w="s8").replace(f"%q = quantize(%y, {Q})", f"{behind}%q = quantize(%n, {Q})"))
    assert "is computed as several operations" in cause.reason or "reads %d in f32" in cause.reason


@pytest.mark.parametrize("operation", ["%d = divide(%k, %dx)", "%s = sign(%dx)\n %d = multiply(%s, %k)"])
def test_a_constant_that_no_scale_contains(operation):
    """It is divided, or something else comes before it."""
    (cause,) = causes(body(f"%k = constant(value=f32[]{{3}})\n {operation}\n %y = matmul(%d, %dw)\n return %y"))
    assert (cause.value, cause.edit) == ("%y", "quantize and dequantize %d")


def test_causes_of_layers_come_first():
    found = causes(body(f"%s = sign(%dx)\n %p = quantize(%s, {Q})\n %t = dequantize(%p, scales=[0.2], zps=[7])\n"
                        " %u = sign(%t)\n %y = matmul(%u, %dw)\n return %y"))
    assert [(c.value, c.op) for c in found] == [("%y", "matmul"), ("%p", "quantize")]


def test_an_output_of_the_graph_is_a_user():
    (cause,) = causes(body("%a = tanh(%dx)\n %b = cum_sum(%a, axis=1)\n return %a, %b"))
    assert cause.reason == "%a has 2 users in f32: %b = cum_sum(%a) : f32[3,4] and an output of the graph"


@pytest.mark.parametrize("dtype, fusion", [("s8", "FuseMatmul"), ("s4", "FuseMatmulCompressed")])
def test_weights_of_4_bits_have_the_fusion_of_compressed_weights(dtype, fusion):
    (cause,) = report(f"graph(x: f32[3,4], w: {dtype}[4,2], s: f32[1]) {{\n %v = dynamic_dequantize(w, s)\n"
                      f" %d = sign(x)\n %y = matmul(%d, %v)\n %q = quantize(%y, {Q})\n return %q\n}}").causes
    assert cause.fusion == fusion


def test_a_cause_names_node_and_value():
    (cause,) = causes(TWELVE["second f32 user"][0])
    assert (cause.fusion, cause.check, cause.also) == ("FuseMatmul", "one user", ("%z",))
    assert (cause.blocking_node, cause.blocking_value) == ("%z = add(%y, r) : f32[3,2]", "%y")
    assert cause.node == "%q = quantize(%y) : u8[3,2]" and cause.value == "%q"


def test_a_border_is_where_no_quantize_follows():
    text = (f"graph(a: u8[3,4], b: u8[3,4]) {{\n %x = dequantize(a, scales=[0.1])\n %y = dequantize(b, scales=[0.1])\n"
            f" %s = sign(%y)\n %z = add(%x, %s)\n %q = quantize(%z, {Q})\n return %q\n}}")
    assert {c.reason for c in report(text).causes} == {"sign (%s) reads %y in f32: no partition can contain a sign"}


def test_a_fork_has_one_cause():
    (cause,) = causes(body(f"%y = matmul(%dx, %dw)\n %q = quantize(%y, {Q})\n %p = quantize(%y, dtype=s8, scales=[1])\n"
                           " return %q, %p"))
    assert cause.value == "%q" and cause.also == ("%p",) and "let it read the dequantized %q" in cause.edit


def test_what_a_pass_after_the_fusions_replaces_is_found_again():
    model = gq.compile(gq.parse(conv(w="s8").replace(
        "%y = convolution(%dx", "%m = reduce_mean(%dx, axes=[2,3], keep_dims=true)\n%y = convolution(%m")), threads=1)
    (cause,) = model.explanation().causes
    assert cause.value == "%y" and "reduce_mean (%m) stands between" in cause.reason and "%dx" in cause.also
    assert "in the row partition (reduce_mean)" in model.explain("m")


def test_what_fuses_has_no_cause():
    assert causes(FUSED) == []
    assert causes("graph(x: u8[3,4]) {\n %0 = dequantize(x, scales=[0.1])\n %1 = tanh(%0)\n"
                  f" %2 = quantize(%1, {Q})\n return %2\n}}") == []
    assert causes("graph(x: f32[3,4]) {\n %0 = tanh(x)\n return %0\n}") == []


def test_a_dequantize_that_is_stored_for_operations_of_one_partition_has_no_cause():
    once = f"""graph(x: u8[3,4]) {{
      %d = dequantize(x, scales=[0.1])
      %s = softmax(%d, axis=1)
      %z = add(%d, %s)
      %q = quantize(%z, {Q})
      return %q
    }}"""
    assert causes(once) == []
    (cause,) = causes(body(f"%y = matmul(%dx, %dw)\n %s = softmax(%y, axis=1)\n %z = add(%y, %s)\n"
                           f" %q = quantize(%z, {Q})\n return %q"))
    assert "softmax (%s) stands between %y and the quantize" in cause.reason
    assert cause.edit == "quantize and dequantize %y before the softmax"


def test_an_operation_that_is_refused_its_operand_and_the_dequantize_have_one_cause():
    (cause,) = causes(OTHERS["channels that a pool mixes"][0])
    assert set(cause.also) == {"%d", "%p"} and cause.blocking_value == "%d"
    (cause,) = report(OTHERS["channels that a pool mixes"][0].replace(f"quantize(%p, {Q})", "abs(%p)")).causes  # in f32
    assert cause.value == "%d" and "max_pool (%p) reads %d in f32" in cause.reason


def test_copies_of_a_dequantize_are_called_as_it_was_given():
    (cause,) = causes(OTHERS["the dequantize that two operations read"][0])
    assert cause.also == ("%m", "%dx", "%c", "%q")


def test_what_a_pass_was_refused_for_is_the_cause_of_a_product():
    text = """graph(x: u8[1,2,4,4], w: s8[3,2,3,3]) {
      %i = conv_integer(x, w, strides=[1,1], pads_begin=[0,0], pads_end=[0,0], dilations=[1,1])
      %f = cast(%i, dtype=f32)
      return %i, %f
    }"""
    (cause,) = (c for c in causes(text) if c.op == "conv_integer")
    assert cause.reason == "%i = conv_integer(x, w) : s32[1,3,2,2] is also an output of the graph"


def test_a_returned_dequantize_is_returned_as_integers():
    found = report(body(f"%y = matmul(%dx, %dw)\n %q = quantize(%y, {Q})\n"
                        " %d = dequantize(%q, scales=[0.2], zps=[7])\n"
                        f" %t = tanh(%d)\n %p = quantize(%t, {Q})\n return %d, %p")).causes
    assert [(c.value, c.check, c.edit) for c in found] == [("%d", BORDER, "return %q instead")]


EDITS = {  # further obstacles with the edit made: all products multiply integers, all of them up to the quantize
    "weights that are an input": FUSED.replace("graph(x: u8[3,4])", "graph(x: u8[3,4], v: s8[4,2])").replace(
        "dequantize(%w", "dequantize(v"),
    "weights that are an input of a convolution": conv(w="s8"),
    "a variable factor of the weights": body(
        f"%y = matmul(%dx, %dw)\n %z = multiply(%y, s)\n %q = quantize(%z, {Q})\n return %q", "x: u8[3,4], s: f32[1]"),
    "the limits of a clip before a product": body(
        "%c = clamp(%dx, min=0.0, max=2.0)\n %p = quantize(%c, dtype=u8, scales=[0.1])\n"
        f" %e = dequantize(%p, scales=[0.1])\n %y = matmul(%e, %dw)\n %q = quantize(%y, {Q})\n return %q"),
    "two scales of one value": body(
        f"%y = matmul(%dx, %dw)\n %q = quantize(%y, {Q})\n %d = dequantize(%q, scales=[0.2], zps=[7])\n"
        " %p = quantize(%d, dtype=s8, scales=[0.4])\n return %q, %p"),
    "a residual that is a function of the product": body(
        f"%y = matmul(%dx, %dw)\n %q = quantize(%y, {Q})\n %d = dequantize(%q, scales=[0.2], zps=[7])\n"
        f" %s = softmax(%d, axis=1)\n %z = add(%d, %s)\n %p = quantize(%z, {Q})\n return %p"),
    "a scale computed from the product": FUSED.replace(Q, "dtype=s8, scales=[0.1]"),
    "centered sources": body(
        "%m = reduce_mean(%dx, axes=[0], keep_dims=true)\n %c = subtract(%dx, %m)\n %p = quantize(%c, dtype=s8, "
        f"scales=[0.1])\n %e = dequantize(%p, scales=[0.1])\n %y = matmul(%e, %dw)\n"
        f" %q = quantize(%y, {Q})\n return %q"),
}


@pytest.mark.parametrize("obstacle", EDITS)
def test_edits_of_further_obstacles(obstacle):
    edited = report(EDITS[obstacle])
    assert [c for c in edited.causes if c.op in ("matmul", "convolution")] == []
    (product,) = (n.partition for n in edited.nodes if n.partition and n.partition.anchor in ("matmul", "convolution"))
    assert product.kind == "integer" and "quantize" in [n.op for n in product.body]

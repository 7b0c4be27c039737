"""Obstacles to fusion in graphs whose axes passes move: what explain() must say of each, and the edit."""

Q = "dtype=u8, scales=[0.2], zps=[7]"
DQ = "scales=[0.2], zps=[7]"
FOUR = "0.1, 0.2, 0.3, 0.4"
SAME = "strides=[1,1], pads_begin=[1,1], pads_end=[1,1], dilations=[1,1]"
ONE = "strides=[1,1], pads_begin=[0,0], pads_end=[0,0], dilations=[1,1]"
NCX = 'data_format="NCX", weights_format="OIX"'
QUANTIZED = f"%q = quantize(%y, {Q})\n return %q"


def conv(rest=QUANTIZED, x="scales=[0.1], zps=[3]", w="scales=[0.1]", weights="s8[4,4,3,3]", attrs="", before="",
         operands="%dx, %dw", inputs=""):
    return f"""graph(x: u8[1,4,5,5], w: {weights}{inputs}) {{
      %dx = dequantize(x, {x})
      %dw = dequantize(w, {w})
      {before}
      %y = convolution({operands}, {SAME}, {NCX}{attrs})
      {rest}
    }}"""


def channels(axis, scales=FOUR):
    return f'qtype="per_channel", axis={axis}, scales=[{scales}]'


def quantized(name, by=Q, back=DQ):
    """The text that quantizes and dequantizes a value."""
    return f"%q{name} = quantize(%{name}, {by})\n %d{name} = dequantize(%q{name}, {back})\n"


SILU = "%s = sigmoid(%y)\n %z = multiply(%y, %s)\n"
HALVES = ("%a = slice(%z, axes=[1], starts=[0], ends=[2], steps=[1])\n"
          " %b = slice(%z, axes=[1], starts=[2], ends=[4], steps=[1])\n"
          f" %q = quantize(%a, {Q})\n %p = quantize(%b, {Q})\n return %q, %p")
SECOND = (f"%dv = dequantize(v, scales=[0.1])\n %m = convolution(%c, %dv, {ONE}, {NCX})\n"
          f" %q = quantize(%m, {Q})\n return %q")
DENSE = f"%dv = dequantize(v, scales=[0.1])\n %m = matmul(%f, %dv)\n %q = quantize(%m, {Q})\n return %q"
TRANSPOSED_WEIGHTS = f"""graph(x: u8[3,4]) {{
  %w = constant(value=s8[2,4]{{1, -2, 3, 4, 5, -6, 7, 8}})
  %dw = dequantize(%w, {channels(1)})
  %t = static_transpose(%dw, order=[1,0])
  %dx = dequantize(x, scales=[0.1], zps=[3])
  %y = matmul(%dx, %t)
  {QUANTIZED}
}}"""
SHUFFLED = ("%a = static_reshape(%y, shape=[1,2,2,5,5], special_zero=false)\n"
            " %b = static_transpose(%a, order=[0,2,1,3,4])\n"
            " %c = static_reshape(%b, shape=[1,4,5,5], special_zero=false)\n")
NHWC = f"""graph(x: u8[1,5,5,4], w: s8[4,4,3,3]) {{
  %dx = dequantize(x, {channels(1, FOUR + ", 0.5")})
  %t = static_transpose(%dx, order=[0,3,1,2])
  %dw = dequantize(w, scales=[0.1])
  %y = convolution(%t, %dw, {SAME}, {NCX})
  {QUANTIZED}
}}"""
ACTIVATIONS = f"""graph(x: u8[4,3], w: s8[4,2]) {{
  %dx = dequantize(x, {channels(0)})
  %t = static_transpose(%dx, order=[1,0])
  %dw = dequantize(w, scales=[0.1])
  %y = matmul(%t, %dw)
  {QUANTIZED}
}}"""
POOLED = f"""graph(x: u8[1,4,5,5]) {{
  %dx = dequantize(x, {channels(2, FOUR + ", 0.5")})
  %y = avg_pool(%dx, kernel=[2,2], strides=[1,1], pads_begin=[0,0], pads_end=[0,0], exclude_pad=true, {NCX[:17]})
  {QUANTIZED}
}}"""
BACK = f"""graph(x: u8[1,4,5,5], w: s8[4,3,3,3]) {{
  %dx = dequantize(x, scales=[0.1])
  %dw = dequantize(w, {channels(2, "0.1, 0.2, 0.3")})
  %y = conv_transpose(%dx, %dw, {SAME}, data_format="NCX", weights_format="IOX")
  {QUANTIZED}
}}"""
HEADS = f"""graph(x: u8[2,6,8], k: u8[2,6,8]) {{
  %dx = dequantize(x, scales=[0.1])
  %a = static_reshape(%dx, shape=[2,6,2,4], special_zero=false)
  %b = static_transpose(%a, order=[0,2,1,3])
  %dk = dequantize(k, {channels(2, FOUR + ", " + FOUR)})
  %c = static_reshape(%dk, shape=[2,6,2,4], special_zero=false)
  %d = static_transpose(%c, order=[0,2,3,1])
  %y = matmul(%b, %d)
  {QUANTIZED}
}}"""
WAVE = f"""graph(x: u8[1,4,5], w: s8[4,4,3]) {{
  %dx = dequantize(x, {channels(2, FOUR + ", 0.5")})
  %dw = dequantize(w, scales=[0.1])
  %y = convolution(%dx, %dw, strides=[1], pads_begin=[1], pads_end=[1], dilations=[1], {NCX})
  {QUANTIZED}
}}"""
RESIDUAL = f"""%r = relu(%y)
  %q1 = quantize(%r, {Q})
  %d1 = dequantize(%q1, {DQ})
  %y2 = convolution(%d1, %dw, {SAME}, {NCX})
  %z = add(%y2, %r)
  %q = quantize(%z, {Q})
  return %q"""
SQUEEZED = f"""%g = reduce_mean(%y, axes=[2,3], keep_dims=true)
  %s = sigmoid(%g)
  %z = multiply(%y, %s)
  %q = quantize(%z, {Q})
  return %q"""
EXCITED = SQUEEZED.replace("reduce_mean(%y", "reduce_mean(%dy").replace("multiply(%y", "multiply(%dy")
MEAN = f"%g = reduce_mean(%dy, axes=[1,2], keep_dims=true)\n %q = quantize(%g, {Q})\n return %q"

# the graph, the value outside, parts of the reason, parts of the edit, and the edit as replacements in the graph's text
OBSTACLES = {
    "weights along the inputs of a product, before a transpose": (
        TRANSPOSED_WEIGHTS, "%y", ["along axis 1, not along the columns", "%dw = dequantize(%w)"],
        "along the columns, axis 0 of s8[2,4]", {channels(1): channels(0, "0.1, 0.2")}),
    "activations of a depthwise convolution along the height": (
        conv(x=channels(2, FOUR + ", 0.5"), weights="s8[4,1,3,3]", attrs=", groups=4"), "%y",
        ["per channel along axis 2"], "quantize the input per tensor", {channels(2, FOUR + ", 0.5"): "scales=[0.1]"}),
    "a SiLU between a convolution and two quantized slices": (
        conv(SILU + HALVES), "%q", ["slice (%a) stands between %z and the quantize"],
        "quantize %z before the slice, and let that read the dequantize",
        {HALVES: quantized("z") + HALVES.replace("slice(%z", "slice(%dz")}),
}
MORE = {
    "weights of a transposed convolution kernel": (
        conv(w=channels(0), before="%t = static_transpose(%dw, order=[1,0,2,3])", operands="%dx, %t"), "%y",
        ["along axis 0, not along the output channels"], "the output channels, axis 1 of s8[4,4,3,3]",
        {channels(0): channels(1)}),
    "activations behind a transpose": (
        ACTIVATIONS, "%y", ["along axis 0", "%dx = dequantize(x) : f32[4,3]"], "quantize the input per tensor",
        {channels(0): "scales=[0.1]"}),
    "activations of a convolution in groups": (
        conv(x=channels(1), weights="s8[4,2,3,3]", attrs=", groups=2"), "%y", ["along axis 1"],
        "quantize the input per tensor", {channels(1): "scales=[0.1]"}),
    "weights of a convolution in groups": (
        conv(w=channels(1, "0.1, 0.2"), weights="s8[4,2,3,3]", attrs=", groups=2"), "%y", ["along axis 1"],
        "the output channels, axis 0 of s8[4,2,3,3]", {channels(1, "0.1, 0.2"): channels(0)}),
    "weights of a depthwise convolution along the height": (
        conv(w=channels(2, "0.1, 0.2, 0.3"), weights="s8[4,1,3,3]", attrs=", groups=4"), "%y", ["along axis 2"],
        "axis 0 of s8[4,1,3,3]", {channels(2, "0.1, 0.2, 0.3"): channels(0)}),
    "activations that come channels last": (
        NHWC, "%y", ["along axis 1", "%dx = dequantize(x) : f32[1,5,5,4]"], "quantize the input per tensor",
        {channels(1, FOUR + ", 0.5"): "scales=[0.1]"}),
    "activations along the length": (
        WAVE, "%y", ["along axis 2"], "quantize the input per tensor", {channels(2, FOUR + ", 0.5"): "scales=[0.1]"}),
    "a pool of activations along the height": (
        POOLED, "%q", ["avg_pool (%y) reads %dx in f32", "along axis 2"], "or along the channels, axis 1",
        {channels(2, FOUR + ", 0.5"): channels(1)}),
    "weights of a transposed convolution along the height": (
        BACK, "%y", ["along axis 2"], "the output channels, axis 1 of s8[4,3,3,3]",
        {channels(2, "0.1, 0.2, 0.3"): channels(1, "0.1, 0.2, 0.3")}),
    "a residual in f32": (
        conv(RESIDUAL), "%q1", ["%r has a second user in f32: %z = add(%y2, %r)"],
        "let it read the dequantized %q1 instead of %r", {"add(%y2, %r)": "add(%y2, %d1)"}),
    "a squeeze and an excitation": (  # behind the fork is the next obstacle
        conv(SQUEEZED), "%q", ["%y has a second user in f32: %g = reduce_mean(%y) : f32[1,4,1,1]"],
        "quantize %y before the fork, and let all its users read the dequantize",
        {SQUEEZED: quantized("y") + EXCITED.replace("%z =", quantized("s") + "%z =").replace(", %s)", ", %ds)")}),
    "an excitation": (
        conv(quantized("y") + EXCITED), "%q", ["the epilogue broadcasts f32[1,4,1,1] to u8[1,4,5,5]"],
        "quantize before the operation that broadcasts",
        {EXCITED: EXCITED.replace("%z =", quantized("s") + "%z =").replace(", %s)", ", %ds)")}),
    "a slice before a quantize": (
        conv(SILU + HALVES.replace("%z", "%y", 2).replace(SILU, "")).replace(SILU, ""), "%q",
        ["slice (%a) stands between %y and the quantize"], "quantize %y before the slice",
        {HALVES.replace("%z", "%y", 2): quantized("y") + HALVES.replace("%z", "%dy", 2)}),
    "a slice before a relu": (
        conv(f"%a = slice(%y, axes=[1], starts=[0], ends=[2], steps=[1])\n %r = relu(%a)\n %q = quantize(%r, {Q})\n"
             " return %q"), "%q", ["slice (%a) stands between %y and the quantize"],
        "move the slice behind the quantize",
        {"%a = slice(%y,": f"%r = relu(%y)\n %q = quantize(%r, {Q})\n %a = slice(%q,",
         f" %r = relu(%a)\n %q = quantize(%r, {Q})\n return %q": " return %a"}),
    "a transpose before a softmax": (
        conv(f"%t = static_transpose(%y, order=[0,1,3,2])\n %s = softmax(%t, axis=3)\n %q = quantize(%s, {Q})\n"
             " return %q"), "%q", ["static_transpose (%t) stands between %y and the quantize"],
        "quantize %y before the static_transpose, and let that read the dequantize",
        {"%t = static_transpose(%y": quantized("y") + "%t = static_transpose(%dy"}),
    "a softmax along the height": (
        conv(f"%s = softmax(%y, axis=2)\n %q = quantize(%s, {Q})\n return %q"), "%q",
        ["softmax works along axis 2 of f32[1,4,5,5], kernels along axis 1"],
        "quantize and dequantize %y; transpose the input, to make the axis the last",
        {"%s = softmax(%y, axis=2)": quantized("y") + "%t = static_transpose(%dy, order=[0,1,3,2])\n"
         " %s = softmax(%t, axis=3)"}),
    "a softmax along the width": (
        conv(f"%s = softmax(%y, axis=3)\n %q = quantize(%s, {Q})\n return %q"), "%q",
        ["softmax (%s) stands between %y and the quantize"], "quantize and dequantize %y before the softmax",
        {"%s = softmax(%y": quantized("y") + "%s = softmax(%dy"}),
    "a layer norm of two axes": (
        conv("%t = static_transpose(%y, order=[0,2,3,1])\n"
             " %n = layer_norm(%t, keep_stats=false, use_affine=false, begin_norm_axis=2)\n"
             f" %q = quantize(%n, {Q})\n return %q"), "%q",
        ["layer_norm works along axes 2 and 3 of f32[1,5,5,4], kernels along axis 3"],
        "quantize and dequantize %y; reshape the input, to make the axes one, the last",
        {"%t = static_transpose(%y": quantized("y") + "%t = static_transpose(%dy",
         "%n = layer_norm(%t": "%u = static_reshape(%t, shape=[1,5,20], special_zero=false)\n %n = layer_norm(%u"}),
    "a maximum along the height": (
        conv(f"%g = reduce_max(%y, axes=[2], keep_dims=true)\n %q = quantize(%g, {Q})\n return %q"), "%q",
        ["reduce_max reduces axis 2 of f32[1,4,5,5], kernels axis 1"],
        "quantize and dequantize %y; transpose the input, to make the reduced axis the last",
        {"%g = reduce_max(%y, axes=[2]": quantized("y") + "%t = static_transpose(%dy, order=[0,1,3,2])\n"
         " %g = reduce_max(%t, axes=[3]"}),
    "a mean over channels and rows": (
        conv(quantized("y") + MEAN), "%q", ["reduce_mean reduces axes 1 and 2 of f32[1,4,5,5]"],
        "transpose the input, to make the reduced axis the last",
        {MEAN: "%t = static_transpose(%dy, order=[0,3,1,2])\n"
         + MEAN.replace("(%dy, axes=[1,2]", "(%t, axes=[2,3]")}),
    "a broadcast": (
        conv(f"%z = add(%y, r)\n %q = quantize(%z, {Q})\n return %q", inputs=", r: f32[2,4,5,5]"), "%q",
        ["add (%z) stands between %y and the quantize, and is computed in the layout of the graph, f32[1,4,5,5]"],
        "quantize and dequantize %y before the add", {"%z = add(%y": quantized("y") + "%z = add(%dy"}),
    "channels that are shuffled": (
        conv(SHUFFLED + SECOND, inputs=", v: s8[4,4,1,1]"), "%m",
        ["its activations, %c, are f32 that nothing quantizes"],
        "quantize and dequantize %c", {SECOND: quantized("c") + SECOND.replace("(%c", "(%dc")}),
    "pixels that are shuffled before a tanh": (
        conv("%a = static_reshape(%y, shape=[1,2,2,1,5,5], special_zero=false)\n"
             " %b = static_transpose(%a, order=[0,3,4,1,5,2])\n"
             f" %c = static_reshape(%b, shape=[1,1,10,10], special_zero=false)\n %t = tanh(%c)\n"
             f" %q = quantize(%t, {Q})\n return %q"), "%q",
        ["static_reshape (%a), with 2 more after it, stands between %y and the quantize"],
        "quantize %y before the static_reshape, and let that read the dequantize",
        {"%a = static_reshape(%y": quantized("y") + "%a = static_reshape(%dy"}),
    "a hard swish between convolutions": (
        conv("%c = hard_swish(%y)\n" + SECOND, inputs=", v: s8[4,4,1,1]"), "%m",
        ["its activations, %c, are f32 that nothing quantizes"], "quantize and dequantize %c",
        {SECOND: quantized("c") + SECOND.replace("(%c", "(%dc")}),
    "a concat of two scales along the channels": (
        conv(quantized("y") + "%c = concat(%dy, %dx, axis=1)\n" + SECOND, inputs=", v: s8[4,8,1,1]"), "%m",
        ["%c, its activations, joins operands with different quantization"], "quantize and dequantize %c",
        {SECOND: quantized("c") + SECOND.replace("(%c", "(%dc")}),
    "a dense layer behind a convolution": (
        conv("%r = relu(%y)\n %f = static_reshape(%r, shape=[1,100], special_zero=false)\n" + DENSE,
             inputs=", v: s8[100,3]"), "%m", ["its activations, %f, are f32 that nothing quantizes"],
        "quantize and dequantize %f", {DENSE: quantized("f") + DENSE.replace("(%f", "(%df")}),
    "a dense layer behind a mean of pixels": (
        conv(quantized("y") + "%g = reduce_mean(%dy, axes=[2,3], keep_dims=true)\n"
             " %f = static_reshape(%g, shape=[1,4], special_zero=false)\n" + DENSE, inputs=", v: s8[4,3]"), "%m",
        ["reduce_mean (%g) stands between the matmul and the dequantize of its activations, %dy = dequantize(%qy)"],
        "quantize and dequantize %g", {"%f = static_reshape(%g": quantized("g") + "%f = static_reshape(%dg"}),
    "heads whose scales a reshape would mix": (
        HEADS, "%y", ["static_reshape (%c) stands between", "%dk = dequantize(k)", "scales along axis 2"],
        "with one scale for the tensor", {channels(2, FOUR + ", " + FOUR): "scales=[0.1]"}),
    "an output before its quantize": (
        conv(f"%r = relu(%y)\n %q = quantize(%r, {Q})\n return %q, %r"), "%q", ["%r is also an output of the graph"],
        "return %q, or its dequantize, instead of %r",
        {"return %q, %r": f"%d = dequantize(%q, {DQ})\n return %q, %d"}),
    "an interpolation before a tanh": (
        conv('%u = interpolate(%y, mode="nearest", sizes=[10,10], data_format="NCX", '
             'coordinate_transformation_mode="asymmetric")\n'
             f" %t = tanh(%u)\n %q = quantize(%t, {Q})\n return %q"), "%q",
        ["interpolate (%u) stands between %y and the quantize"], "quantize and dequantize %y before the interpolate",
        {"%u = interpolate(%y": quantized("y") + "%u = interpolate(%dy"}),
}
ALL = OBSTACLES | MORE


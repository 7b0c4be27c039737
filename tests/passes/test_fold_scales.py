"""Batch normalization as scale and shift; both into constant weights and biases: numbers to a rounding, refusals."""
import numpy as np
import pytest

from graphq.dtypes import as_dtype
from graphq.ir import Graph
from graphq.ir.interpret import reference
from graphq.ir.verify import verify
from graphq.passes import run_passes
from graphq.passes.fold_scales import AddAsBias, BatchNormAsScale, MergeBiases, ScaleIntoWeights, fold_scales
from graphq.testing import check_pass, check_round_trip, check_same_numbers

RNG = np.random.default_rng


def f32(rng, *shape):
    return rng.standard_normal(shape).astype(np.float32)


def positive(rng, *shape):
    return rng.uniform(0.5, 2, shape).astype(np.float32)


def spatial(ndim):
    return {"strides": [1] * ndim, "pads_begin": [1] * ndim, "pads_end": [0] * ndim, "dilations": [1] * ndim}


def check(rewrite, g, count=1, rtol=1e-5):
    """The rewrite on a copy: verified, printed and parsed, the same numbers to a rounding."""
    out = g.copy()
    assert rewrite(out) == count
    verify(out)
    check_round_trip(out)
    check_same_numbers(g, out, rtol=rtol, atol=1e-5)
    return out


def refused(rewrite, g, reason):
    out = g.copy()
    count, misses = rewrite.apply(out)
    assert count == 0 and [m.reason for m in misses if reason in m.reason], misses


def ops(g):
    return [n.op.name for n in g.nodes if n.op.name != "constant"]


# -- batch normalization ----------------------------------------------------------------------------------------


def normalized(rng, *, dtype="f32", data_format="NCX", shape=(2, 5, 3, 4), gamma=None, variance=None, epsilon=1e-3):
    g = Graph()
    x = g.input("x", dtype=dtype, shape=shape)
    parameters = [f32(rng, 5) if gamma is None else gamma, f32(rng, 5), f32(rng, 5),
                  positive(rng, 5) if variance is None else variance]
    g.output(g.batch_norm_inference(x, *parameters, epsilon=epsilon, data_format=data_format), name="y")
    return g


@pytest.mark.parametrize("data_format, shape", [("NCX", (2, 5, 3, 4)), ("NCX", (2, 5)), ("NCX", (2, 5, 7)),
                                                ("NXC", (2, 3, 4, 5)), ("NXC", (5,))])
def test_batch_norm(data_format, shape):
    out = check(BatchNormAsScale(), normalized(RNG(0), data_format=data_format, shape=shape))
    assert ops(out) == ["multiply", "add"]


def test_batch_norm_rounds_scale_and_shift_once():
    g = normalized(RNG(1))
    gamma, beta, mean, variance = (v.data.astype(np.float64) for v in g.nodes[-1].inputs[1:])
    a = gamma / np.sqrt(variance + np.float64(np.float32(1e-3)))
    BatchNormAsScale()(g)
    scale, shift = (n.inputs[1].data.ravel() for n in g.nodes if n.op.name in ("multiply", "add"))
    np.testing.assert_array_equal(scale, a.astype(np.float32))
    np.testing.assert_array_equal(shift, (beta - mean * a).astype(np.float32))


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_batch_norm_of_halves_is_cast_back(dtype):
    out = check(BatchNormAsScale(), normalized(RNG(2), dtype=dtype), rtol=1e-2)
    assert ops(out) == ["multiply", "add", "type_cast"] and out.outputs[0].dtype == as_dtype(dtype)


def test_batch_norm_of_a_zero_gamma():
    check(BatchNormAsScale(), normalized(RNG(3), gamma=np.array([0, 1, -2, 0, 3], np.float32)))


def test_batch_norm_takes_dequantized_constants():
    g = Graph()
    x = g.input("x", dtype="f32", shape=(2, 3))
    gamma = g.dequantize(g.constant(np.array([3, 7, 1], np.uint8)), scales=[0.5], zps=[2])
    rest = [g.constant(np.array(p, np.float32)) for p in ([1, 2, 3], [0, 0.5, 0], [1, 4, 0.25])]
    g.output(g.batch_norm_inference(x, gamma, *rest, epsilon=0), name="y")
    out = check(BatchNormAsScale(), g)
    scale, shift = (n.inputs[1].data.ravel() for n in out.nodes if n.op.name in ("multiply", "add"))
    np.testing.assert_array_equal(scale, [0.5, 1.25, -1])
    np.testing.assert_array_equal(shift, [1, 1.375, 3])


def test_batch_norm_refusals():
    refused(BatchNormAsScale(), normalized(RNG(4), variance=np.full(5, -1, np.float32)), "not finite")
    refused(BatchNormAsScale(), normalized(RNG(4), variance=np.zeros(5, np.float32), epsilon=0), "not finite")
    refused(BatchNormAsScale(), normalized(RNG(4), variance=np.float32([1, 1, -1, 1, 1])), "not finite")
    refused(BatchNormAsScale(), normalized(RNG(4), shape=None), "rank is not known")
    g = Graph()
    x, v = g.input("x", dtype="f32", shape=(2, 5)), g.input("v", dtype="f32", shape=(5,))
    g.output(g.batch_norm_inference(x, v, v, v, v, epsilon=1), name="y")
    refused(BatchNormAsScale(), g, "not constants")
    for given in range(4):
        g = Graph()
        x, v = g.input("x", dtype="f32", shape=(2, 5)), g.input("v", dtype="f32", shape=(5,))
        parameters = [v if k == given else positive(RNG(k), 5) for k in range(4)]
        g.output(g.batch_norm_inference(x, *parameters, epsilon=1), name="y")
        refused(BatchNormAsScale(), g, "not constants")


# -- scales into weights ----------------------------------------------------------------------------------------

FORMATS = [("convolution", "OIX", (6, 2, 3, 2)), ("convolution", "XIO", (3, 2, 2, 6)),
           ("conv_transpose", "OIX", (3, 4, 3, 2)), ("conv_transpose", "XIO", (3, 2, 4, 3)),
           ("conv_transpose", "IOX", (4, 3, 3, 2)), ("conv_transpose", "XOI", (3, 2, 3, 4))]


def anchored(op, weights_format, weights, *, data_format="NCX", bias=True, quantized=None, groups=2):
    """x of 4 channels in, 6 out; quantized weights with scales of their own a tensor, or a channel along an axis."""
    rng, g = RNG(5), Graph()
    x = g.input("x", dtype="f32", shape=(2, 4, 5, 6) if data_format == "NCX" else (2, 5, 6, 4))
    w = g.constant(f32(rng, *weights))
    if quantized is not None:
        n = 1 if quantized == "per_tensor" else weights[quantized]
        w = g.dequantize(g.constant(rng.integers(-99, 99, weights).astype(np.int8)), axis=1 if n == 1 else quantized,
                         qtype="per_tensor" if n == 1 else "per_channel", scales=positive(rng, n).tolist(),
                         zps=list(range(3, 3 + n)))
    b = g.constant(f32(rng, 6)) if bias else None
    return g, getattr(g, op)(x, w, b, **spatial(2), groups=groups, data_format=data_format,
                             weights_format=weights_format)


def channelwise(a, data_format):
    return a.reshape(-1, 1, 1) if data_format == "NCX" else a


@pytest.mark.parametrize("op, weights_format, weights", FORMATS)
@pytest.mark.parametrize("data_format", ["NCX", "NXC"])
@pytest.mark.parametrize("bias", [False, True])
def test_scale_into_f32_weights(op, weights_format, weights, data_format, bias):
    g, y = anchored(op, weights_format, weights, data_format=data_format, bias=bias)
    a = np.array([0.5, -2, 0, 1, 3, -0.25], np.float32)
    g.output(g.relu(g.multiply(channelwise(a, data_format), y)), name="y")
    assert ops(check(ScaleIntoWeights(), g)) == [op, "relu"]


@pytest.mark.parametrize("op, weights_format, weights", FORMATS[:2])
@pytest.mark.parametrize("own", ["per_tensor", "per_channel"])
def test_scale_into_quantized_weights(op, weights_format, weights, own):
    axis = 0 if weights_format == "OIX" else 3
    g, y = anchored(op, weights_format, weights, quantized=axis if own == "per_channel" else own)
    g.output(g.multiply(y, channelwise(positive(RNG(6), 6), "NCX")), name="y")
    out = check(ScaleIntoWeights(), g, rtol=1e-4)
    assert ops(out) == ["dequantize", op]
    (attrs,) = (n.attrs for n in out.nodes if n.op.name == "dequantize")
    zps = (3,) * 6 if own == "per_tensor" else tuple(range(3, 9))
    assert (attrs["axis"], len(attrs["scales"]), attrs["zps"]) == (axis, 6, zps)


@pytest.mark.parametrize("transpose_b", [False, True])
@pytest.mark.parametrize("quantized", [False, True])
@pytest.mark.parametrize("shape", [(6,), (1, 6), (1, 1), ()])
def test_scale_into_matmul(transpose_b, quantized, shape):
    rng, g = RNG(7), Graph()
    x = g.input("x", dtype="f32", shape=(3, 4))
    w = rng.integers(-99, 99, (6, 4) if transpose_b else (4, 6))
    w = g.dequantize(g.constant(w.astype(np.int8)), scales=[0.1]) if quantized else g.constant(w.astype(np.float32))
    y = g.matmul(x, w, g.constant(f32(rng, 1, 6)), transpose_b=transpose_b)
    g.output(g.multiply(y, positive(rng, *shape)), name="y")
    out = check(ScaleIntoWeights(), g, rtol=1e-4)
    assert ops(out) == ["dequantize"] * quantized + ["matmul"]


def test_scales_along_the_sum_of_as_many_columns_stay():
    rng, g = RNG(7), Graph()
    w = g.dequantize(g.constant(rng.integers(-99, 99, (6, 6)).astype(np.int8)), qtype="per_channel", axis=0,
                     scales=positive(rng, 6).tolist())
    g.output(g.multiply(g.matmul(g.input("x", dtype="f32", shape=(3, 6)), w), positive(rng, 6)), name="y")
    refused(ScaleIntoWeights(), g, "run along other channels")


def test_scale_of_a_quantized_bias():
    rng, g = RNG(8), Graph()
    x = g.input("x", dtype="f32", shape=(3, 4))
    b = g.dequantize(g.constant(rng.integers(-999, 999, 6).astype(np.int32)), scales=[0.01])
    y = g.matmul(x, g.constant(f32(rng, 4, 6)), b)
    g.output(g.multiply(y, positive(rng, 6)), name="y")
    assert ops(check(ScaleIntoWeights(), g)) == ["dequantize", "matmul"]


def test_scale_refusals():
    a = channelwise(np.array([0.5, 2, 0, 1, 3, 0.25], np.float32), "NCX")
    conv = FORMATS[0]

    def case(reason, build, rewrite=None):
        refused(rewrite or ScaleIntoWeights(), build(), reason)

    def scaled(factor=a, **kwargs):
        g, y = anchored(*kwargs.pop("anchor", conv), **kwargs)
        g.output(g.multiply(y, factor), name="y")
        return g

    def twice(returned):
        g, y = anchored(*conv)
        g.output(g.multiply(y, a), name="y")
        g.output(y if returned else g.relu(y), name="z")
        return g

    case("scales must stay positive", lambda: scaled(quantized=0))
    case("scales must stay positive", lambda: scaled(-abs(a) - 1, quantized="per_tensor"))
    case("run along other channels", lambda: scaled(abs(a) + 1, quantized=1))
    case("in groups has no scale", lambda: scaled(abs(a) + 1, anchor=FORMATS[4], quantized="per_tensor"))
    case("not one element for each channel", lambda: scaled(np.ones(6, np.float32)))
    case("of the same shape", lambda: scaled(np.ones((3, 1, 1, 1, 1), np.float32)))
    case("is not finite", lambda: scaled(a + np.float32(3e38)))
    case("also", lambda: twice(True))
    case("also", lambda: twice(False))


def test_scale_needs_constants():
    g = Graph()
    x, w, a = (g.input(n, dtype="f32", shape=s) for n, s in (("x", (3, 4)), ("w", (4, 6)), ("a", (6,))))
    y = g.matmul(x, w)
    g.set_outputs([g.multiply(y, np.ones(6, np.float32)), g.multiply(g.matmul(x, f32(RNG(9), 4, 6)), a)], ["y", "z"])
    refused(ScaleIntoWeights(), g, "must be constants")
    refused(ScaleIntoWeights(), g, "must be an f32 constant")
    for weights in (lambda g: g.relu(g.constant(f32(RNG(9), 4, 6))),
                    lambda g: g.dequantize(g.input("w", dtype="u8", shape=(4, 6)), scales=[0.5])):
        g = Graph()
        y = g.matmul(g.input("x", dtype="f32", shape=(3, 4)), weights(g))
        g.output(g.multiply(y, np.ones(6, np.float32)))
        refused(ScaleIntoWeights(), g, "must be constants")


@pytest.mark.parametrize("data_format", ["NCX", "NXC"])
@pytest.mark.parametrize("op", ["add", "bias_add"])
def test_scale_behind_a_bias_of_its_own(op, data_format):
    """oneDNN's files have Convolution -> BiasAdd -> BatchNormInference."""
    g, y = anchored(*FORMATS[0], data_format=data_format, bias=False)
    b = f32(RNG(10), 6)
    y = g.bias_add(y, b, data_format=data_format) if op == "bias_add" else g.add(channelwise(b, data_format), y)
    g.output(g.multiply(y, channelwise(f32(RNG(13), 6), data_format)), name="y")
    assert ops(check(ScaleIntoWeights(), g)) == ["convolution"]


# -- biases -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("data_format", ["NCX", "NXC"])
@pytest.mark.parametrize("op", ["add", "bias_add"])
def test_merge_biases(op, data_format):
    g, y = anchored(*FORMATS[0], data_format=data_format)
    b = f32(RNG(10), 6)
    g.output(g.bias_add(y, b, data_format=data_format) if op == "bias_add" else
             g.add(channelwise(b, data_format), y), name="y")
    assert ops(check(MergeBiases(), g)) == ["convolution"]


def test_a_single_bias_stays_where_it_is():
    g, y = anchored(*FORMATS[0], bias=False)
    g.output(g.bias_add(y, f32(RNG(10), 6), data_format="NCX"), name="y")
    assert MergeBiases()(g) == 0


def test_merge_biases_refusals():
    g, y = anchored(*FORMATS[0])
    g.output(g.bias_add(y, np.ones(6, np.float32), data_format="NXC"), name="y")
    refused(MergeBiases(), g, "not one element for each channel")
    g, y = anchored(*FORMATS[0])
    g.output(g.add(y, g.input("b", dtype="f32", shape=(6, 1, 1))), name="y")
    refused(MergeBiases(), g, "must be an f32 constant")
    g = Graph()
    x, b = g.input("x", dtype="f32", shape=(3, 4)), g.input("b", dtype="f32", shape=(6,))
    g.output(g.add(g.matmul(x, f32(RNG(11), 4, 6), b), np.ones(6, np.float32)), name="y")
    refused(MergeBiases(), g, "the bias is not a constant")


@pytest.mark.parametrize("bias, quantized, left", [
    (True, None, []), (False, None, ["add"]), (True, 0, []), (True, "negative", ["multiply", "add"])])
def test_batch_norm_after_a_convolution(bias, quantized, left):
    """One bias at most is left; what cannot fold into s8 weights may fuse behind the convolution."""
    g, y = anchored(*FORMATS[0], bias=bias, quantized=0 if quantized is not None else None)
    rng = RNG(12)
    gamma = positive(rng, 6) * (-1 if quantized == "negative" else 1)
    y = g.batch_norm_inference(y, gamma, f32(rng, 6), f32(rng, 6), positive(rng, 6), epsilon=1e-5, data_format="NCX")
    g.output(g.relu(y), name="y")
    out = g.copy()
    assert fold_scales(out) == 3 - len(left)
    check_same_numbers(g, out, rtol=1e-4, atol=1e-3)
    assert [o for o in ops(out) if o != "dequantize"] == ["convolution", *left, "relu"]
    run_passes(g)
    assert "batch_norm_inference" not in ops(g)


def test_sums_of_integers_as_they_are_stay_exact():
    check_pass(ScaleIntoWeights(), before="""graph(x: u8[4,6]) {
        %w = constant(value=s8[6,2]{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12})
        %0 = dequantize(x, scales=[1], zps=[3])
        %1 = dequantize(%w, scales=[1])
        %a = constant(value=f32[2]{0.1, 0.7})
        %2 = matmul(%0, %1)
        %3 = multiply(%2, %a)
        return %3
    }""")


# -- sums as biases, for quantization alone ---------------------------------------------------------------------


@pytest.mark.parametrize("op, weights_format, weights", FORMATS)
@pytest.mark.parametrize("data_format", ["NCX", "NXC"])
@pytest.mark.parametrize("shift", ["add", "bias_add"])
def test_a_sum_becomes_the_bias_of_a_convolution(op, weights_format, weights, data_format, shift):
    g, y = anchored(op, weights_format, weights, data_format=data_format, bias=False)
    b = f32(RNG(10), 6)
    y = g.bias_add(y, b, data_format=data_format) if shift == "bias_add" else g.add(channelwise(b, data_format), y)
    g.output(g.relu(y), name="y")
    out = check(AddAsBias(), g)
    assert ops(out) == [op, "relu"]
    (node,) = (n for n in out.nodes if n.op.name == op)
    np.testing.assert_array_equal(node.inputs[2].data, b)
    assert node.attrs == g.nodes_of((op,))[0].attrs


@pytest.mark.parametrize("transpose_b", [False, True])
@pytest.mark.parametrize("batch", [(), (2,)])
@pytest.mark.parametrize("shape", [(6,), (1, 6), (1,), ()])
def test_a_sum_becomes_the_bias_of_a_matmul(transpose_b, batch, shape):
    rng, g = RNG(14), Graph()
    x = g.input("x", dtype="f32", shape=(*batch, 3, 4))
    b = f32(rng, *shape)
    g.output(g.add(g.matmul(x, f32(rng, *((6, 4) if transpose_b else (4, 6))), transpose_b=transpose_b), b), name="y")
    out = check(AddAsBias(), g)
    assert ops(out) == ["matmul"]
    np.testing.assert_array_equal(out.nodes[-1].inputs[2].data, np.broadcast_to(b.reshape(-1), 6))


def test_a_sum_becomes_a_bias_whatever_the_number_of_rows():
    rng, g = RNG(19), Graph()
    g.output(g.add(g.matmul(g.input("x", dtype="f32", shape=(None, 4)), f32(rng, 4, 6)), f32(rng, 6)), name="y")
    out = g.copy()
    assert AddAsBias()(out) == 1 and ops(out) == ["matmul"]
    for rows in (1, 5):
        x = {"x": f32(rng, rows, 4)}
        np.testing.assert_allclose(reference(out, x), reference(g, x), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("data_format, x, w", [("NXC", (3, 4), (4, 6)), ("NCX", (2, 3, 4), (2, 4, 5)),
                                               ("NXC", (2, 3, 4), (4, 6))])
def test_a_bias_add_becomes_the_bias_of_a_matmul(data_format, x, w):
    """Channels in the middle of a matmul's result (NCX) are rows, which its bias does not run along."""
    rng, g = RNG(15), Graph()
    y = g.matmul(g.input("x", dtype="f32", shape=x), f32(rng, *w))
    g.output(g.bias_add(y, f32(rng, 3 if data_format == "NCX" else 6), data_format=data_format), name="y")
    if data_format == "NCX":
        refused(AddAsBias(), g, "f32[3] is not one element for each channel of f32[2,3,5]")
    else:
        assert ops(check(AddAsBias(), g)) == ["matmul"]


def test_a_sum_as_bias_in_text():
    """Sums with a second constant, or of a product that has a bias, are left: they are MergeBiases' to fold."""
    check_pass(AddAsBias(), before="""graph(x: f32[2,3]) {
        %w = constant(value=f32[3,2]{1, 2, 3, 4, 5, 6})
        %b = constant(value=f32[2]{0.5, -1})
        %0 = matmul(x, %w)
        %1 = add(%b, %0)
        %2 = add(%1, %b)
        return %2
    }""", after="""graph(x: f32[2,3]) {
        %w = constant(value=f32[3,2]{1, 2, 3, 4, 5, 6})
        %b = constant(value=f32[2]{0.5, -1})
        %0 = constant(value=f32[2]{0.5, -1})
        %1 = matmul(x, %w, %0)
        %2 = add(%1, %b)
        return %2
    }""")


def test_sum_as_bias_refusals():
    b = channelwise(f32(RNG(16), 6), "NCX")

    def summed(operand=b, *, shift="add", quantized=None, **attrs):
        g, y = anchored(*FORMATS[0], bias=False, quantized=quantized)
        source = g.input("b", dtype="f32", shape=b.shape) if operand is None else operand
        g.output(getattr(g, shift)(y, source, **attrs), name="y")
        return g

    def twice(returned):
        g, y = anchored(*FORMATS[0], bias=False)
        g.output(g.add(y, b), name="y")
        g.output(y if returned else g.relu(y), name="z")
        return g

    def product(shape=(6,), *, source=(3, 4), weights=(4, 6), dtype="f32", given=False):
        rng, g = RNG(17), Graph()
        x = g.input("x", dtype=dtype, shape=source)
        w, b = (f32(rng, *s).astype(as_dtype(dtype).numpy) for s in (weights, shape))
        g.output(g.add(g.matmul(x, g.input("w", dtype=dtype, shape=weights) if given else g.add_constant(w)),
                       g.add_constant(b)), name="y")
        return g

    for reason, g in [
        ("the weights are not constants", product(given=True)),
        ("the weights are not constants", summed(quantized="per_tensor")),
        ("the other operand must be an f32 constant, got f32[6,1,1]", summed(None)),
        ("the result must stay f32 of the same shape, got f32[3,6] and f32[2,3,6]", product((2, 1, 6))),
        ("the result must stay f32 of the same shape, got f32[*] and f32[*]", product(source=None)),
        ("the other operand must be an f32 constant, got bf16[6]", product(dtype="bf16")),
        ("weights must have a rank of at least 2", product((3,), weights=(4,))),
        ("f32[6] is not one element for each channel of", summed(f32(RNG(18), 6))),
        ("f32[3,6] is not one element for each channel of f32[3,6]", product((3, 6))),
        ("f32[6] is not one element for each channel of", summed(f32(RNG(18), 6), shift="bias_add", data_format="NXC")),
        ("also", twice(True)), ("also", twice(False)),
    ]:
        refused(AddAsBias(), g, reason)

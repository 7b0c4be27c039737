"""com.microsoft's operators with absent attributes and operands, odd numbers of blocks, and bits other than 4.

Against formulas in f64, element by element, without a compiler: what is tried is which operations they become.
"""
import ml_dtypes
import numpy as np
import pytest
from onnx_node import feeds, node_model

import graphq as gq

rng = np.random.default_rng(9)
F = np.float32


def u8(*shape):
    return rng.integers(0, 256, shape).astype(np.uint8)


def s8(*shape):
    return rng.integers(-128, 128, shape).astype(np.int8)


def floats(*shape):
    return rng.standard_normal(shape).astype(F)


def results(op, inputs, attrs=None, outputs=1):
    """The outputs of a node by graphq's reference."""
    m = node_model(op, inputs, attrs, outputs)
    out = gq.reference(gq.load_onnx(m), feeds(inputs))
    return list(out.values()) if isinstance(out, dict) else [out]


def near(got, want, tolerance=2e-5):
    assert got.shape == want.shape
    np.testing.assert_allclose(got.astype(np.float64), want, rtol=tolerance, atol=tolerance)


def fields(packed, bits, count):
    """The first numbers of so many bits in each row of bytes."""
    rows = np.unpackbits(packed.reshape(packed.shape[0], -1), axis=1, bitorder="little")
    return (rows.reshape(packed.shape[0], -1, bits) << np.arange(bits)).sum(axis=2)[:, :count]


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("k, block", [(80, 32), (64, 32), (48, 16), (16, 16), (20, 16)])
@pytest.mark.parametrize("zero_points", [False, True])
def test_weights_of_a_few_bits(bits, k, block, zero_points):
    blocks, n = -(-k // block), 5
    packed, scales = u8(n, blocks, block * bits // 8), floats(n, blocks)
    zps, x, bias = u8(n, -(-blocks * bits // 8)), floats(3, k), floats(n)
    middle = fields(zps, bits, blocks) if zero_points else np.full((n, blocks), 1 << (bits - 1))
    wide = scales.astype(float).repeat(block, axis=1)[:, :k]
    w = (fields(packed, bits, k) - middle.repeat(block, axis=1)[:, :k]) * wide
    attrs = {"K": k, "N": n, "block_size": block} | ({} if bits == 4 else {"bits": bits})
    given = [("x", x), ("B", packed), ("S", scales), ("Z", zps if zero_points else None)]
    near(results("MatMulNBits", given, attrs)[0], x @ w.T, 1e-4)
    near(results("MatMulNBits", [*given, ("", None), ("D", bias)], attrs)[0], x @ w.T + bias, 1e-4)
    x[1, :block] = 0
    if bits == 8 and zero_points:  # activations stay f32
        near(results("MatMulNBits", [("x", x), *given[1:]], {**attrs, "accuracy_level": 4})[0], x @ w.T, 1e-4)
        return
    parts = np.pad(x, [(0, 0), (0, blocks * block - k)]).reshape(3, blocks, block)
    steps = np.abs(parts).max(axis=2, keepdims=True) / np.float32(127)
    with np.errstate(invalid="ignore"):
        rounded = np.nan_to_num(np.rint(parts / steps)) * steps.astype(float)
    y = results("MatMulNBits", [("x", x), *given[1:]], {**attrs, "accuracy_level": 4})[0]
    near(y, rounded.reshape(3, -1)[:, :k] @ w.T, 1e-4)
    assert np.abs(y - x @ w.T).max() > 1e-4


@pytest.mark.parametrize("bits", [2, 4])
@pytest.mark.parametrize("zero_points", ["packed", "whole", "fractions", "below"])
@pytest.mark.parametrize("ordered", [True, False])
def test_blocks_in_any_order_and_zero_points_of_f32(bits, zero_points, ordered):
    k, block, n = 80, 32, 5
    packed, scales, x = u8(n, 3, block * bits // 8), floats(n, 3), floats(2, 3, k)
    whole = rng.integers(0, 4, (n, 3)).astype(np.float32)
    zps = {"packed": u8(n, bits // 2), "whole": whole, "fractions": floats(n, 3), "below": whole - 9}[zero_points]
    blocks = np.arange(k) // block if ordered else rng.permutation(np.arange(k) // block)
    zero = fields(zps, bits, 3) if zero_points == "packed" else zps.astype(float)
    w = (fields(packed, bits, k) - zero[:, blocks]) * scales.astype(float)[:, blocks]
    given = [("x", x), ("B", packed), ("S", scales), ("Z", zps), ("G", None if ordered else blocks.astype(np.int32))]
    y, = results("MatMulNBits", given, {"K": k, "N": n, "block_size": block, "bits": bits})
    near(y, x @ w.T, 1e-4)


def test_blocks_of_other_sizes_are_refused():
    places = np.int32([0] * 20 + [1] * 12)
    with pytest.raises(gq.GraphqError, match=r"input 4 \(g_idx\) must name each block 16 times"):
        results("MatMulNBits", [("x", floats(3, 32)), ("B", u8(5, 2, 8)), ("S", floats(5, 2)), ("Z", None),
                                ("G", places)], {"K": 32, "N": 5, "block_size": 16})


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("zero_points", [False, True])
@pytest.mark.parametrize("axis", [0, 1])
def test_rows_of_blocks_that_are_picked(bits, zero_points, axis):
    rows, k, block = 6, 48, 16  # three blocks a row
    packed, scales, ids = u8(rows, k * bits // 8), floats(rows, 3), np.array([[5, 0], [2, 2]])
    zps = u8(rows, -(-3 * bits // 8))
    middle = fields(zps, bits, 3) if zero_points else np.full((rows, 3), 1 << (bits - 1))
    w = (fields(packed, bits, k) - middle.repeat(block, axis=1)) * scales.astype(float).repeat(block, axis=1)
    attrs = {"block_size": block} | ({} if bits == 4 else {"bits": bits}) | ({} if axis == 0 else {"gather_axis": axis})
    given = [("W", packed), ("i", ids), ("S", scales), *([("Z", zps)] if zero_points else [])]
    near(results("GatherBlockQuantized", given, attrs)[0], w.take(ids, axis=axis))


def test_rows_of_blocks_of_128_by_default():
    w, scales = s8(4, 256), floats(4, 2)
    q = (w >> 4).astype(ml_dtypes.int4)
    want = q.astype(float) * scales.astype(float).repeat(128, axis=1)
    near(results("GatherBlockQuantized", [("W", q), ("i", np.array([3, 1])), ("S", scales)])[0], want[[3, 1]])


@pytest.mark.parametrize("axes", [{}, {"quantize_axis": 2}, {"quantize_axis": -3, "gather_axis": 1}])
def test_blocks_along_an_axis_of_three(axes):
    """The second axis by default."""
    shape, block = (32, 32, 32), 16
    quantized_axis, axis = axes.get("quantize_axis", 1) % 3, axes.get("gather_axis", 0)
    q, scales = (s8(*shape) >> 4).astype(ml_dtypes.int4), floats(*(2 if k == quantized_axis else 32 for k in range(3)))
    want = (q.astype(float) * scales.astype(float).repeat(block, axis=quantized_axis)).take([3, 1], axis=axis)
    given = [("W", q), ("i", np.array([3, 1])), ("S", scales)]
    near(results("GatherBlockQuantized", given, {**axes, "block_size": block})[0], want)


def dequantized(x, scale, zp=0):
    return (x.astype(float) - zp) * float(scale)


def quantized(y, scale, zp, dtype):
    """The exact place of each number among the integers, and their dtype."""
    ends = np.iinfo(dtype)
    return np.clip(y / float(scale) + zp, ends.min, ends.max), dtype


def steps(got, want):
    """Each integer is the one beside the exact place; at a tie, where f32 rounds, one of both."""
    exact, dtype = want
    assert got.shape == exact.shape and got.dtype == dtype
    assert np.abs(got - exact).max() <= 0.501


X, XS, XZ, YS, YZ = u8(2, 4, 6, 6), F(0.05), np.uint8(120), F(0.03), np.uint8(60)
TAIL = [("XS", XS), ("XZ", XZ), ("YS", YS), ("YZ", YZ)]
Q = dequantized(X, XS, 120)

UNARY = {
    "QLinearLeakyRelu": ({}, np.where(Q < 0, Q * 0.01, Q)),
    "QLinearLeakyRelu 0.5": ({"alpha": 0.5}, np.where(Q < 0, Q * 0.5, Q)),
    "QLinearSigmoid": ({}, 1 / (1 + np.exp(-Q))),
    "QLinearSoftmax": ({"opset": 13}, np.exp(Q) / np.exp(Q).sum(axis=-1, keepdims=True)),
    "QLinearSoftmax 1": ({"opset": 13, "axis": 1}, np.exp(Q) / np.exp(Q).sum(axis=1, keepdims=True)),
    "QLinearSoftmax old": ({"opset": 12, "axis": 2}, np.exp(Q) / np.exp(Q).sum(axis=(2, 3), keepdims=True)),
    "QLinearSoftmax 11": ({"opset": 11, "axis": 3}, np.exp(Q) / np.exp(Q).sum(axis=3, keepdims=True)),
    "QLinearGlobalAveragePool": ({}, Q.mean(axis=(2, 3), keepdims=True)),
    "QLinearGlobalAveragePool last": ({"channels_last": 1}, Q.mean(axis=(1, 2), keepdims=True)),
    "QLinearReduceMean": ({"axes": [1, -1]}, Q.mean(axis=(1, 3), keepdims=True)),
    "QLinearReduceMean flat": ({"axes": [2], "keepdims": 0}, Q.mean(axis=2)),
    "QLinearAveragePool": ({"kernel_shape": [3, 2], "strides": [3, 2]},
                           Q.reshape(2, 4, 2, 3, 3, 2).mean(axis=(3, 5))),
    "QLinearAveragePool last": ({"kernel_shape": [2, 3], "strides": [2, 3], "channels_last": 1},
                                Q.reshape(2, 2, 2, 2, 3, 6).mean(axis=(2, 4))),
}


@pytest.mark.parametrize("name", UNARY)
def test_integers_of_one_tensor(name):
    attrs, want = UNARY[name]
    steps(results(name.split()[0], [("x", X), *TAIL], attrs)[0], quantized(want, YS, 60, np.uint8))


@pytest.mark.parametrize("zero_points", [False, True])
@pytest.mark.parametrize("op, function", [("QLinearAdd", np.add), ("QLinearMul", np.multiply)])
def test_integers_of_two_tensors_with_and_without_zero_points(op, function, zero_points):
    a, b, sa, sb, sc = s8(3, 5), s8(5), F(0.021), F(0.013), F(0.03)
    za, zb, zc = (7, -9, 5) if zero_points else (0, 0, 0)
    points = [np.int8(z) if zero_points else None for z in (za, zb, zc)]
    given = [("a", a), ("AS", sa), ("AZ", points[0]), ("b", b), ("BS", sb), ("BZ", points[1]), ("CS", sc),
             ("CZ", points[2])]
    want = quantized(function(dequantized(a, sa, za), dequantized(b, sb, zb)), sc, zc, np.int8)
    steps(results(op, given if zero_points else given[:-1])[0], want)


def test_a_choice_of_integers():
    c, a, b = rng.integers(0, 2, (2, 1)).astype(bool), u8(2, 30), u8(2, 30)
    given = [("c", c), ("a", a), ("AS", F(0.02)), ("AZ", np.uint8(12)), ("b", b), ("BS", F(0.05)), ("BZ", np.uint8(90)),
             ("YS", F(0.04)), ("YZ", np.uint8(77))]
    for c in (np.array([[True], [False]]), np.array([[False], [True]])):
        given[0] = "c", c
        want = np.where(c, dequantized(a, 0.02, 12), dequantized(b, 0.05, 90))
        steps(results("QLinearWhere", given)[0], quantized(want, 0.04, 77, np.uint8))


def test_three_tensors_joined():
    parts = [u8(2, n) for n in (3, 1, 4)]
    facts = [(F(0.02), np.uint8(12)), (F(0.05), np.uint8(90)), (F(0.03), np.uint8(0))]
    given = [("YS", F(0.05)), ("YZ", np.uint8(90))]
    for k, (x, (s, z)) in enumerate(zip(parts, facts, strict=True)):
        given += [(f"x{k}", x), ("SABC"[:k + 1], s), ("ZABC"[:k + 1], z)]
    want = np.concatenate([dequantized(x, s, int(z)) for x, (s, z) in zip(parts, facts, strict=True)], axis=1)
    steps(results("QLinearConcat", given, {"axis": 1})[0], quantized(want, 0.05, 90, np.uint8))


@pytest.mark.parametrize("a_turned", [0, 1])
@pytest.mark.parametrize("b_turned", [0, 1])
@pytest.mark.parametrize("alpha", [None, 0.5])
@pytest.mark.parametrize("bias", [None, (5,), (1, 5), (3, 5)])
def test_products_of_integers(a_turned, b_turned, alpha, bias):
    a, b, scales = u8(3, 8), s8(8, 5), np.abs(floats(5)) / 20 + F(0.01)
    c, zps = rng.integers(-999, 999, bias or 5).astype(np.int32), s8(5)
    attrs = {name: x for name, x in (("transA", a_turned), ("transB", b_turned), ("alpha", alpha)) if x}
    given = [("a", np.ascontiguousarray(a.T) if a_turned else a), ("AS", F(0.02)), ("AZ", np.uint8(120)),
             ("B", np.ascontiguousarray(b.T) if b_turned else b), ("BS", scales), ("BZ", zps),
             ("C", c if bias else None)]
    sums = dequantized(a, 0.02, 120) @ ((b.astype(float) - zps) * scales)
    want = (alpha or 1) * (sums + (c * 0.02 * scales if bias else 0))
    near(results("QGemm", given if bias else given[:-1], attrs)[0], want, 1e-4)
    with_result = [*given, ("YS", F(0.3)), ("YZ", np.uint8(99))]
    steps(results("QGemm", with_result, attrs)[0], quantized(want, 0.3, 99, np.uint8))


@pytest.mark.parametrize("zero_points", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("op", ["MatMulIntegerToFloat", "DynamicQuantizeMatMul"])
def test_products_that_give_floats(op, zero_points, bias):
    b, scales, zps, d = s8(8, 5), np.abs(floats(5)) / 20 + F(0.01), s8(5), floats(5)
    w = (b.astype(float) - (zps if zero_points else 0)) * scales
    tail = [("BZ", zps if zero_points else None), *([("D", d)] if bias else [])]
    if op == "MatMulIntegerToFloat":
        a = u8(2, 3, 8)
        given = [("a", a), ("B", b), ("AS", F(0.02)), ("BS", scales), ("AZ", np.uint8(77) if zero_points else None),
                 *tail]
        x = dequantized(a, 0.02, 77 if zero_points else 0)
    else:
        a = floats(2, 3, 8)
        given = [("a", a), ("B", b), ("BS", scales), *tail]
        low, high = min(a.min(), 0), max(a.max(), 0)
        scale = F((high - low) / 255)
        zp = np.clip(np.rint(-low / scale), 0, 255)
        x = (np.clip(np.rint(a / scale) + zp, 0, 255) - zp) * scale
    while given[-1][1] is None:
        given.pop()
    near(results(op, given)[0], x @ w + (d if bias else 0), 1e-4)


NARROW = (1 + floats(2, 3, 8) * F(1e-4)).astype(F)  # where an epsilon shows
GAMMA, BETA, SKIP, BIAS = floats(8), floats(8), floats(2, 3, 8) * F(1e-4), floats(8) * F(1e-4)


def normed(x, epsilon, gamma, beta, mean=True):
    x = x.astype(float)
    centered = x - x.mean(axis=-1, keepdims=True) if mean else x
    return centered / np.sqrt(np.square(centered).mean(axis=-1, keepdims=True) + epsilon) * gamma + beta


@pytest.mark.parametrize("epsilon", [None, 1e-3])
@pytest.mark.parametrize("beta", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("op", ["SkipLayerNormalization", "SkipSimplifiedLayerNormalization"])
def test_epsilons_of_sums_that_are_normalized(op, epsilon, beta, bias):
    simple = op.startswith("SkipSimplified")
    given = [("x", NARROW), ("s", SKIP), ("G", GAMMA), *([] if simple else [("H", BETA if beta else None)]),
             *([("D", BIAS)] if bias else [])]
    while given[-1][1] is None:
        given.pop()
    out = results(op, given, {} if epsilon is None else {"epsilon": epsilon})
    x = NARROW + SKIP + (BIAS if bias else 0)
    want = normed(x, 1e-12 if epsilon is None else epsilon, GAMMA, BETA if beta and not simple else 0, not simple)
    near(out[0], want, 2e-3)
    rough = normed(x, 1e-5, GAMMA, BETA if beta and not simple else 0, not simple)
    assert simple or np.abs(rough - want).max() > 0.02  # another epsilon would be seen


@pytest.mark.parametrize("segments", [False, True])
@pytest.mark.parametrize("positions", [False, True])
@pytest.mark.parametrize("mask", [False, True])
@pytest.mark.parametrize("epsilon", [None, 1e-3])
def test_embeddings(segments, positions, mask, epsilon):
    ids = rng.integers(0, 20, (2, 5)).astype(np.int32)
    parts, places = rng.integers(0, 3, (2, 5)).astype(np.int32), rng.integers(0, 16, (2, 5)).astype(np.int32)
    words, spots, kinds = (floats(n, 8) * F(1e-3) for n in (20, 16, 3))
    lengths = np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], np.int32)
    given = [("ids", ids), ("segments", parts if segments else None), ("W", words), ("P", spots),
             ("T", kinds if segments else None), ("G", GAMMA), ("H", BETA), ("mask", lengths if mask else None),
             ("places", places if positions else None)]
    while given[-1][1] is None:
        given.pop()
    total = words[ids] + spots[places if positions else np.arange(5)] + (kinds[parts] if segments else 0)
    attrs = {} if epsilon is None else {"epsilon": epsilon}
    for count in (1, 2, 3):
        out = results("EmbedLayerNormalization", given, attrs, count)
        assert len(out) == count
        near(out[0], normed(total, 1e-12 if epsilon is None else epsilon, GAMMA, BETA), 2e-3)
        if count > 1:
            assert out[1].dtype == np.int32 and out[1].tolist() == ([3, 5] if mask else [0, 0])
        if count > 2:
            near(out[2], total)


@pytest.mark.parametrize("alpha", [None, 0.5])
def test_the_quick_gelu(alpha):
    x = floats(3, 9)
    near(results("QuickGelu", [("x", x)], {} if alpha is None else {"alpha": alpha})[0],
         x / (1 + np.exp(-(alpha or 1.702) * x.astype(float))))


@pytest.mark.parametrize("turned", [(), ("transA",), ("transB",), ("transBatchA",), ("transBatchB",),
                                    ("transA", "transBatchB"), ("transBatchA", "transBatchB", "transB")])
@pytest.mark.parametrize("alpha", [None, 0.25])
def test_products_with_turned_operands(turned, alpha):
    """Turned by transX at the last two dimensions, by transBatchX before that from [m, batch, k] to [batch, m, k]."""
    a, b = floats(2, 3, 8), floats(2, 8, 5)
    want = (alpha or 1) * (a.astype(float) @ b)
    for name in ("transA", "transB"):
        if name in turned:
            a, b = (a.swapaxes(1, 2), b) if name == "transA" else (a, b.swapaxes(1, 2))
    for name in ("transBatchA", "transBatchB"):
        if name in turned:
            a, b = (a.swapaxes(0, 1), b) if name == "transBatchA" else (a, b.swapaxes(0, 1))
    attrs = dict.fromkeys(turned, 1) | ({} if alpha is None else {"alpha": alpha})
    near(results("FusedMatMul", [("a", np.ascontiguousarray(a)), ("b", np.ascontiguousarray(b))], attrs)[0], want)


@pytest.mark.parametrize("activation, attrs, function", [
    ("Relu", {}, lambda y: np.maximum(y, 0)),
    ("LeakyRelu", {"activation_alpha": 0.3}, lambda y: np.where(y < 0, 0.3 * y, y)),
    ("LeakyRelu", {}, lambda y: np.where(y < 0, 0.01 * y, y)), ("Tanh", {}, np.tanh),
    ("HardSigmoid", {"activation_alpha": 0.3, "activation_beta": 0.1}, lambda y: np.clip(0.3 * y + 0.1, 0, 1)),
    ("Elu", {"activation_alpha": 2.0}, lambda y: np.where(y < 0, 2 * np.expm1(y), y)),
    ("ThresholdedRelu", {"activation_alpha": 0.5}, lambda y: np.where(y > 0.5, y, 0))])
def test_a_product_and_its_activation(activation, attrs, function):
    a, b, c = floats(3, 8), floats(5, 8), floats(5)
    attrs = {"activation": activation, "transB": 1, "alpha": 0.5, "beta": 2.0, **attrs}
    near(results("FusedGemm", [("a", a), ("b", b), ("c", c)], attrs)[0], function(0.5 * a.astype(float) @ b.T + 2 * c))


@pytest.mark.parametrize("op", ["FusedConv", "NhwcFusedConv"])
@pytest.mark.parametrize("activation, numbers, function", [
    ("", (), lambda y: y), ("", (0.3,), lambda y: y), ("Relu", (), lambda y: np.maximum(y, 0)),
    ("Clip", (-0.5, 1.5), lambda y: np.clip(y, -0.5, 1.5)),
    ("LeakyRelu", (0.3,), lambda y: np.where(y < 0, 0.3 * y, y)),
    ("HardSigmoid", (0.3, 0.1), lambda y: np.clip(0.3 * y + 0.1, 0, 1))])
@pytest.mark.parametrize("skip", [False, True])
def test_a_convolution_and_its_activation(op, activation, numbers, function, skip):
    """Kernels of one pixel in two groups, at every second column."""
    x, w, bias, more = floats(2, 4, 3, 5), floats(6, 2, 1, 1), floats(6), floats(2, 6, 3, 3)
    y = np.concatenate([np.einsum("nchw,oc->nohw", x[:, k:k + 2, :, ::2].astype(float), w[3 * k // 2:][:3, :, 0, 0])
                        for k in (0, 2)], axis=1) + bias[:, None, None]
    want = function(y + (more if skip else 0))
    if op.startswith("Nhwc"):
        x, more, want = (np.ascontiguousarray(v.transpose(0, 2, 3, 1)) for v in (x, more, want))
    given = [("x", x), ("w", w), ("b", bias), *([("z", more)] if skip else [])]
    attrs = {"group": 2, "strides": [1, 2]} | ({"activation": activation} if activation else {})
    near(results(op, given, attrs | ({"activation_params": list(numbers)} if numbers else {}))[0], want)


@pytest.mark.parametrize("name", ["transBatchA", "transBatchB"])
def test_two_dimensions_of_batches(name):
    """[m, batch, batch, k] becomes [batch, batch, m, k]."""
    a, b = floats(2, 3, 4, 8), floats(2, 3, 8, 5)
    want = a.astype(float) @ b
    a, b = (np.ascontiguousarray(np.moveaxis(x, 2, 0) if name[-1] == side else x) for x, side in ((a, "A"), (b, "B")))
    near(results("FusedMatMul", [("a", a), ("b", b)], {name: 1})[0], want)

"""Importers: operators against formulas written here in NumPy."""
import numpy as np
import onnx
import pytest
from one_onnx_node import ML, run

import graphq as gq
from graphq.errors import GraphError

RNG = np.random.default_rng(3)
X = RNG.standard_normal((2, 12, 4, 6)).astype(np.float32)
WHOLE = RNG.integers(-50, 50, (2, 3, 4, 5)).astype(np.int32)


def blocks(x, b, crd):
    """DepthToSpace by loops: element (i, j) of a block comes from a channel of its own."""
    n, channels, h, w = x.shape
    depth = channels // (b * b)
    y = np.zeros((n, depth, h * b, w * b), x.dtype)
    for i in range(b):
        for j in range(b):
            y[:, :, i::b, j::b] = x[:, i * b + j::b * b] if crd else x[:, (i * b + j) * depth:][:, :depth]
    return y


@pytest.mark.parametrize("b", [1, 2])
def test_depth_and_space(b):
    for crd in (False, True):
        got = run("DepthToSpace", X, opset=13, blocksize=b, mode="CRD" if crd else "DCR")
        np.testing.assert_array_equal(got, blocks(X, b, crd))
    np.testing.assert_array_equal(run("DepthToSpace", X, opset=13, blocksize=b), blocks(X, b, False))
    np.testing.assert_array_equal(run("SpaceToDepth", blocks(X, b, False), opset=13, blocksize=b), X)


@pytest.mark.parametrize("repeats", [(1, 2, 1, 3), (2, 1, 1, 1), (1, 1, 0, 2)])
def test_tiles(repeats):
    np.testing.assert_array_equal(run("Tile", WHOLE, np.int64(repeats), opset=13), np.tile(WHOLE, repeats))


@pytest.mark.parametrize("axis", [0, 2, 3])
def test_tiles_were_of_one_axis(axis):
    want = np.concatenate([X] * 3, axis)
    np.testing.assert_array_equal(run("Tile", X, np.float32([3]), np.float32([axis]), opset=1), want)


def test_repeats_that_do_not_fit():
    for repeats in ((1, 2, 3), (1, 1, 1, -1)):
        with pytest.raises(GraphError):
            run("Tile", WHOLE, np.int64(repeats), opset=13)


def swish(x, alpha=1.0):
    return x / (1 + np.exp(-alpha * x.astype(np.float64)))


FUNCTIONS = [
    ("Celu", 12, {}, lambda x: np.maximum(x, 0) + np.minimum(np.expm1(x), 0)),
    ("Celu", 12, {"alpha": 2.5}, lambda x: np.maximum(x, 0) + np.minimum(2.5 * np.expm1(x / 2.5), 0)),
    ("Selu", 1, {}, lambda x: 1.0507 * np.where(x > 0, x, 1.6732 * np.expm1(x))),
    ("Selu", 6, {}, lambda x: 1.05070098 * np.where(x > 0, x, 1.67326324 * np.expm1(x))),
    ("Selu", 6, {"alpha": 2.0, "gamma": 3.0}, lambda x: 3 * np.where(x > 0, x, 2 * np.expm1(x))),
    ("Swish", 24, {}, swish), ("Swish", 24, {"alpha": 0.3}, lambda x: swish(x, 0.3)),
    ("Softsign", 1, {}, lambda x: x / (1 + abs(x))),
    ("ThresholdedRelu", 10, {}, lambda x: np.where(x > 1, x, 0)),
    ("ThresholdedRelu", 10, {"alpha": 0.25}, lambda x: np.where(x > 0.25, x, 0)),
    ("LpNormalization", 22, {}, lambda x: x / np.sqrt((x**2).sum(-1, keepdims=True))),
    ("LpNormalization", 22, {"axis": 1, "p": 1}, lambda x: x / abs(x).sum(1, keepdims=True)),
    ("LpNormalization", 22, {"axis": 2, "p": 2}, lambda x: x / np.sqrt((x**2).sum(2, keepdims=True))),
    ("MeanVarianceNormalization", 13, {}, lambda x: (x - x.mean((0, 2, 3), keepdims=True))
     / x.std((0, 2, 3), keepdims=True)),
    ("MeanVarianceNormalization", 13, {"axes": [1, -1]}, lambda x: (x - x.mean((1, 3), keepdims=True))
     / x.std((1, 3), keepdims=True)),
    *(("GlobalLpPool", 2, attrs, lambda x, p=p: (abs(x)**p).sum((2, 3), keepdims=True)**(1 / p))
      for attrs, p in (({}, 2), ({"p": 1}, 1), ({"p": 3}, 3))),
    ("ReduceSumSquare", 18, {}, lambda x: (x**2).sum(keepdims=True)),
    ("Transpose", 13, {}, np.transpose), ("Transpose", 13, {"perm": [1, 0, 3, 2]}, lambda x: x.transpose(1, 0, 3, 2)),
    ("Upsample", 1, {"height_scale": 2.0, "width_scale": 3.0}, lambda x: x.repeat(2, 2).repeat(3, 3)),
    ("Upsample", 7, {"scales": [1.0, 1.0, 2.0, 1.0]}, lambda x: x.repeat(2, 2)),
]


@pytest.mark.parametrize("op, opset, attrs, formula", FUNCTIONS)
def test_functions_of_one_operand(op, opset, attrs, formula):
    np.testing.assert_allclose(run(op, X, opset=opset, **attrs), formula(X.astype(np.float64)), rtol=2e-5, atol=1e-6)


def test_norms_of_zeros_are_zero():
    got = run("LpNormalization", np.float32([[0, 0], [3, 4]]), opset=22)
    np.testing.assert_allclose(got, [[0, 0], [0.6, 0.8]])


def test_means_of_several_operands():
    others = [RNG.standard_normal(s).astype(np.float32) for s in ((6,), (12, 1, 1), (2, 12, 4, 6))]
    want = (X.astype(np.float64) + others[0] + others[1] + others[2]) / 4
    np.testing.assert_allclose(run("Mean", X, *others, opset=13), want, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(run("Mean", X, opset=13), X)


def test_operands_were_aligned_from_an_axis():
    """Before version 7, with `broadcast` 1, the second operand's dimensions lie from `axis` on."""
    x, y = abs(X) + 0.5, (abs(X[0, :, 0, 0]) + 0.5).astype(np.float32)
    column = y[:, None, None]
    for op, want in (("Add", x + column), ("Sub", x - column), ("Mul", x * column), ("Div", x / column)):
        np.testing.assert_array_equal(run(op, x, y, opset=6, broadcast=1, axis=1), want)
    np.testing.assert_allclose(run("Pow", x, y, opset=6, native=False, broadcast=1, axis=1), x**column, rtol=1e-5)
    np.testing.assert_array_equal(run("Add", x, X[0, 0, :, 0], opset=6, broadcast=1, axis=2), x + X[0, 0, :, :1])


def test_gemm_once_said_that_its_bias_broadcasts():
    a, b, c = X[0, 0], X[0, 1], X[0, 2, 0, :4]
    np.testing.assert_allclose(run("Gemm", a, b, c, opset=6, transB=1, broadcast=1), a @ b.T + c, rtol=1e-4, atol=1e-5)


def test_batch_normalization_of_each_element_of_an_image():
    scale, shift, mean = (RNG.standard_normal(X.shape[1:]).astype(np.float32) for _ in range(3))
    variance = RNG.uniform(0.5, 2, X.shape[1:]).astype(np.float32)
    want = (X - mean) / np.sqrt(variance + 0.01) * scale + shift
    got = run("BatchNormalization", X, scale, shift, mean, variance, opset=7, spatial=0, epsilon=0.01)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def test_pools_of_integers():
    np.testing.assert_array_equal(run("GlobalMaxPool", WHOLE, opset=1, native=False), WHOLE.max((2, 3), keepdims=True))


def test_windows_that_would_lie_in_the_padding_are_left_out():
    x = X[:, :, 0]
    got = run("MaxPool", x, opset=12, kernel_shape=[2], strides=[2], pads=[0, 2], ceil_mode=1)
    np.testing.assert_array_equal(got, x.reshape(2, 12, 3, 2).max(-1))


@pytest.mark.parametrize("transform, f", [
    ("NONE", lambda y: y), ("LOGISTIC", lambda y: 1 / (1 + np.exp(-y))),
    ("SOFTMAX", lambda y: np.exp(y) / np.exp(y).sum(1, keepdims=True))])
@pytest.mark.parametrize("intercepts", [[], [0.5, -1.0]])
@pytest.mark.parametrize("dtype", [np.float32, np.int64])
def test_linear_regressors(transform, f, intercepts, dtype):
    x, rows = np.array([[1, -2, 3], [0, 1, 1]], dtype), np.float32([[1, 2, 3], [-0.5, 0.25, 1]])
    more = {"intercepts": intercepts} if intercepts else {}
    got = run("LinearRegressor", x, opset=17, domain=ML, coefficients=rows.ravel(), targets=2, post_transform=transform,
              **more)
    np.testing.assert_allclose(got, f(x @ rows.T + (intercepts or 0)), rtol=1e-5)


def test_a_normalizer_divides_by_the_greatest_element():
    x = np.float32([[1, -8, 4], [-3, -2, -6]])
    for attrs in ({}, {"norm": "MAX"}):
        np.testing.assert_array_equal(run("Normalizer", x, opset=17, domain=ML, **attrs), x / [[4], [-2]])
    got = run("Normalizer", x.astype(np.int64), opset=17, domain=ML, norm="MAX")
    np.testing.assert_array_equal(got, x / [[4], [-2]])


@pytest.mark.parametrize("depth", [np.int64(4), np.int64([4])])
def test_one_hot(depth):
    got = run("OneHot", np.int64([[0, 3], [1, -1]]), depth, np.float32([2, 5]), opset=13, axis=1)
    np.testing.assert_array_equal(got, np.where(np.eye(4)[[[0, 3], [1, 3]]] > 0, 5, 2).transpose(0, 2, 1))


@pytest.mark.parametrize("axis", [-3, 0, 2, -1])
def test_one_hot_in_front_and_behind(axis):
    x = np.int64([[0, 3], [1, -1]])
    want = np.moveaxis(np.where(np.eye(4)[x] > 0, 5, 2), -1, axis)
    np.testing.assert_array_equal(run("OneHot", x, np.int64(4), np.float32([2, 5]), opset=13, axis=axis), want)


@pytest.mark.parametrize("depth, values", [([4, 4], [2, 5]), ([], [2, 5]), ([0], [2, 5]), ([4], [2, 5, 7]), ([4], [2])])
def test_one_hot_takes_one_depth_and_two_values(depth, values):
    with pytest.raises(GraphError, match="OneHot"):
        run("OneHot", np.int64([0, 3]), np.int64(depth), np.float32(values), opset=13)


def test_unique_elements_of_a_matrix():
    x = np.float32([[2, 1, 1], [3, 4, 3]])
    got = run("Unique", x, opset=11, outputs=4, native=False)
    for a, b in zip(got, ([1, 2, 3, 4], [1, 0, 3, 4], [1, 0, 0, 2, 3, 2], [2, 1, 2, 1]), strict=True):
        np.testing.assert_array_equal(a, b)
    got = run("Unique", x, opset=11, outputs=4, native=False, sorted=0)
    for a, b in zip(got, ([2, 1, 3, 4], [0, 1, 3, 4], [0, 1, 1, 2, 3, 2], [1, 2, 2, 1]), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_normalized_layers_and_their_statistics(dtype):
    x, gamma, beta = X[0, 0].astype(dtype), X[0, 1, 0].astype(dtype), X[0, 2, 0].astype(dtype)
    wide = x.astype(np.float64)
    mean, spread = wide.mean(1, keepdims=True), np.sqrt(wide.var(1, keepdims=True) + 1e-5)
    y, *statistics = run("LayerNormalization", x, gamma, beta, opset=17, outputs=3, native=False)
    assert y.dtype == dtype and [s.dtype for s in statistics] == [np.float32] * 2
    near = {"rtol": 1e-2, "atol": 1e-3} if dtype == np.float16 else {"rtol": 1e-4, "atol": 1e-5}
    np.testing.assert_allclose(y, (wide - mean) / spread * gamma + beta, **near)
    np.testing.assert_allclose(statistics[0], mean, rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(statistics[1], 1 / spread, rtol=1e-3)


@pytest.mark.parametrize("op, gates, outputs", [("LSTM", 4, 3), ("GRU", 3, 2), ("RNN", 1, 2)])
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_recurrences_with_rows_first(op, gates, outputs, direction, dtype):
    """`layout` 1 swaps the rows of a batch with the steps, and with the directions."""
    count = 2 if direction == "bidirectional" else 1
    x = RNG.standard_normal((5, 3, 4)).astype(dtype)
    w, r, b = (RNG.standard_normal((count, gates * 2, n)).astype(dtype) * dtype(0.3) for n in (4, 2, 2))
    bias = RNG.standard_normal((count, 2 * gates * 2)).astype(dtype)
    first = [RNG.standard_normal((count, 3, 2)).astype(dtype) for _ in range(2 if op == "LSTM" else 1)]
    how = {"opset": 14, "outputs": outputs, "hidden_size": 2, "direction": direction}
    y, *last = run(op, x, w, r, bias, None, *first, **how)
    swapped, *others = run(op, x.swapaxes(0, 1).copy(), w, r, bias, None, *(f.swapaxes(0, 1).copy() for f in first),
                           layout=1, **how)
    assert y.dtype == dtype and y.shape == (5, count, 3, 2)
    np.testing.assert_array_equal(swapped, y.transpose(2, 0, 1, 3))
    for a, b in zip(others, last, strict=True):
        np.testing.assert_array_equal(a, b.swapaxes(0, 1))


@pytest.mark.parametrize("scale, zp", [(np.float32([0.5]), np.uint8(3)), (np.float32(0.5), np.uint8([3]))])
@pytest.mark.parametrize("known", [True, False])
def test_a_scale_and_a_zero_point_of_one_element(scale, zp, known):
    x, q = np.float32([-1, 0, 0.5, 100.2, 1000]), np.uint8([1, 3, 4, 203, 255])
    how = {"opset": 13, "open_inputs": () if known else (1, 2)}
    np.testing.assert_array_equal(run("QuantizeLinear", x, scale, zp, **how), q)
    np.testing.assert_array_equal(run("DequantizeLinear", q, scale, zp, **how), (q - 3.0) / 2)


def integers(*shape):
    return RNG.integers(0, 256, shape).astype(np.uint8)


@pytest.mark.parametrize("op, f", [("QLinearAdd", np.add), ("QLinearMul", np.multiply)])
def test_sums_by_scales_that_are_not_known(op, f):
    a, b, s = integers(2, 5), integers(5), [np.float32(x) for x in (0.02, 0.03, 0.04)]
    zps = [np.uint8(x) for x in (120, 9, 100)]
    got = run(op, a, s[0], zps[0], b, s[1], zps[1], s[2], zps[2], opset=17, domain="com.microsoft", open_inputs=(1, 6))
    want = f((a - 120.0) * 0.02, (b - 9.0) * 0.03) / 0.04 + 100
    assert got.dtype == np.uint8 and abs(got - np.clip(want, 0, 255)).max() <= 0.51


@pytest.mark.parametrize("zps", [(), (np.uint8(7), np.uint8(100))])
def test_means_of_integers_with_zero_points_left_out(zps):
    x, scales = integers(1, 2, 4, 4), (np.float32(0.5), np.float32(0.25))
    given = [x, scales[0], *zps[:1], scales[1], *zps[1:]] if zps else [x, scales[0], None, scales[1]]
    got = run("QLinearAveragePool", *given, opset=17, domain="com.microsoft", kernel_shape=[2, 2], strides=[2, 2])
    first, last = zps or (0, 0)
    mean = (x.astype(float) - first).reshape(1, 2, 2, 2, 2, 2).mean((3, 5)) * 2 + last
    assert got.dtype == np.uint8 and abs(got - np.clip(mean, 0, 255)).max() <= 0.5


@pytest.mark.parametrize("op", ["QLinearMatMul", "QLinearConv"])
@pytest.mark.parametrize("zp", [0, 3])
def test_integer_sums_are_scaled_once(op, zp):
    """`sum * f32(a_scale * b_scale / y_scale)`, rounded once: dequantized operands would be rounded one by one."""
    a, b = RNG.integers(0, 256, (64, 9)).astype(np.uint8), RNG.integers(-128, 128, (9, 40)).astype(np.int8)
    sa, sb, sy = np.float32(0.1), np.float32(0.3), np.float32(0.7)
    sums = (a.astype(np.int64) - zp) @ b.astype(np.int64)
    want = np.clip(np.rint(sums.astype(np.float32) * (sa * sb / sy)) + 128, 0, 255).astype(np.uint8)
    rest = [np.uint8(zp), None, sb, np.int8(0), sy, np.uint8(128)]
    if op == "QLinearMatMul":
        got = run(op, a, sa, rest[0], b, *rest[2:], opset=10)
    else:
        x, w = a.T.reshape(1, 9, 64).copy(), b.T.reshape(40, 9, 1).copy()
        got = run(op, x, sa, rest[0], w, *rest[2:], opset=10)[0].T
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("sa, sb, sy", [(1e-30, 1e-30, 1.0), (1e30, 1e30, 1.0), (1e-30, 1e-15, 1e30)])
def test_factors_that_leave_f32_scale_the_operands_apart(sa, sb, sy):
    a, b = np.uint8([[1, 2]]), np.int8([[3], [4]])
    sa, sb, sy = (np.float32(s) for s in (sa, sb, sy))
    got = run("QLinearMatMul", a, sa, np.uint8(0), b, sb, np.int8(0), sy, np.uint8(5), opset=10)
    assert got.tolist() == [[255 if sa > 1 else 5]]


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("simple", [False, True])
def test_norms_of_sums(bias, simple):
    """The mean root square's, or with a shift and less the mean; the fourth output is the sum."""
    x, skip, gamma, shift, b = X[0, 0], X[0, 1], X[0, 2, 0], X[0, 2, 1], X[0, 2, 2]
    total = x + skip + (b if bias else 0)
    centered = total if simple else total - total.mean(-1, keepdims=True)
    want = centered / np.sqrt((centered**2).mean(-1, keepdims=True) + 0.01) * gamma + (0 if simple else shift)
    inputs = [x, skip, gamma, *([] if simple else [shift]), *([b] if bias else [])]
    op = f"Skip{'Simplified' * simple}LayerNormalization"
    y, *_, last = run(op, *inputs, opset=17, domain="com.microsoft", outputs=["o0", "", "", "o3"], epsilon=0.01)
    np.testing.assert_allclose(y, want, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(last, total, rtol=1e-6)


def test_a_dropout_that_trains_drops():
    y = run("Dropout", abs(X) + 1, np.float32(0.5), np.bool_(True), opset=13, native=False, seed=3)
    assert (y == 0).any()


def test_sizes_that_scales_do_not_give_exactly():
    """Positions are of the scale as it is, not of the quotient of the sizes."""
    def resized(scales, **attrs):
        return run("Resize", X, None, np.float32(scales), opset=13, native=False, **attrs)

    how = {"coordinate_transformation_mode": "asymmetric"}
    near = resized([1, 1, 2.1, 1], nearest_mode="floor", **how)
    np.testing.assert_array_equal(near, X[:, :, (np.arange(8) / 2.1).astype(int)])
    at = np.clip(np.arange(6) / 1.6, 0, 3)
    low, part = at.astype(int), (at % 1)[:, None]
    want = X[:, :, low] * (1 - part) + X[:, :, np.minimum(low + 1, 3)] * part
    np.testing.assert_allclose(resized([1, 1, 1.6, 1], mode="linear", **how), want, rtol=1e-4, atol=1e-5)


def test_channels_are_resized():
    got = run("Resize", X, None, np.float32([1, 2, 2, 1]), opset=13, native=False)
    np.testing.assert_array_equal(got, X.repeat(2, 1).repeat(2, 2))


def test_a_smaller_image_with_antialias_has_means_of_more_pixels():
    half = np.float32([1, 1, 0.5, 1])
    got = run("Resize", X[..., :1], None, half, opset=18, native=False, mode="linear", antialias=1)
    want = (X[..., :3, :1] * [[[[4], [3], [1]]]]).sum(2) / 8  # a triangle of width 4 around 0.5; edges repeat
    np.testing.assert_allclose(got[:, :, 0], want, rtol=1e-4, atol=1e-5)


def test_a_frame_as_long_as_the_signal():
    x = X.reshape(1, -1, 1)[:, :8]
    got = run("STFT", x, np.int64(3), None, np.int64(8), opset=17)
    want = np.fft.rfft(x[0, :, 0])
    np.testing.assert_allclose(got[0, 0], np.stack([want.real, want.imag], 1), rtol=1e-4, atol=1e-5)


def test_a_dropout_that_does_not_train_has_a_mask_of_ones():
    y, mask = run("Dropout", X, opset=13, outputs=2, native=False)
    assert np.array_equal(y, X) and mask.dtype == np.bool_ and mask.all()


@pytest.mark.parametrize("op, defaults", [
    ("HardSigmoid", {"alpha": 0.2, "beta": 0.5}), ("LeakyRelu", {"alpha": 0.01}), ("Elu", {"alpha": 1.0}),
    ("ScatterElements", {"axis": 0, "reduction": "none"}), ("GatherElements", {"axis": 0})])
def test_attributes_that_are_left_out_have_the_operator_s_defaults(op, defaults):
    """Of f32, the shortest numbers that are rounded to them."""
    inputs = {"Scatter": "(x, i, x)", "GatherE": "(x, i)"}.get(op[:7], "(x)")
    text = f"net (float[2,3] x, int64[2,3] i) => (float[2,3] y) {{ y = {op}{inputs} }}"
    node, = gq.load_onnx(onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 18]>\n{text}')).nodes
    assert {name: node.attrs[name] for name in defaults} == defaults and all(
        type(node.attrs[name]) is type(x) for name, x in defaults.items())


def test_powers_of_constants():
    x = abs(X[0, 0]) + 0.5
    for y in (np.float32(2), np.float32([3]), np.int64(-1), np.float32([[1.5]])):
        np.testing.assert_allclose(run("Pow", x, y, opset=15), x**y.astype(np.float32), rtol=1e-5)
    for y in (np.float32([1, 2, 3, 4, 5, 6]), np.float32([[[2]]]), np.float32([[1], [2], [3], [-1]])):
        np.testing.assert_allclose(run("Pow", x, y, opset=15, native=False), x**y, rtol=1e-5)


@pytest.mark.parametrize("equation", ["i,i->i", "i,j->ij", "i,i->", "ij,ij->ij", "ij,ij->i", "ij,i->i", "ij,j->ij",
                                      "ij,jk->ik", "bij,bjk->bik", "bi,bi->b", "ij,j", "ji,jk",
                                      "i,ij->j", "...i,i->...", "ij,kj->ki", "kj,ji"])
def test_equations(equation):
    sizes = {"i": 3, "j": 4, "k": 5, "b": 2}
    left = equation.partition("->")[0].replace("...", "b")
    operands = [RNG.standard_normal([sizes[n] for n in term]).astype(np.float32) for term in left.split(",")]
    got = run("Einsum", *operands, opset=12, equation=equation)
    want = np.einsum(equation, *operands)
    assert got.shape == want.shape
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("axis", [0, 1, 3, -1])
def test_the_greatest_was_of_a_matrix(axis):
    rows = X.reshape(int(np.prod(X.shape[:axis % 4])), -1)
    want = np.eye(rows.shape[1])[rows.argmax(1)].reshape(X.shape)
    np.testing.assert_array_equal(run("Hardmax", X, opset=11, native=False, axis=axis), want)


@pytest.mark.parametrize("op, opset, inputs, attrs, formula", [
    ("CumSum", 14, [np.int64(2)], {}, lambda x: x.cumsum(2)),
    ("CumSum", 14, [np.int64([-1])], {"reverse": 1}, lambda x: x[..., ::-1].cumsum(-1)[..., ::-1]),
    ("CumSum", 14, [np.int64(1)], {"exclusive": 1}, lambda x: x.cumsum(1) - x),
    ("Trilu", 14, [], {}, np.triu), ("Trilu", 14, [np.int64(-1)], {"upper": 0}, lambda x: np.tril(x, -1)),
    ("Trilu", 14, [np.int64(2)], {"upper": 1}, lambda x: np.triu(x, 2)),
    ("PRelu", 6, [np.arange(12, dtype=np.float32)], {}, lambda x: np.where(x < 0, x * np.arange(12)[:, None, None], x)),
    ("PRelu", 9, [np.arange(6, dtype=np.float32)], {}, lambda x: np.where(x < 0, x * np.arange(6), x)),
    ("PRelu", 9, [np.float32([[[2]]] * 12)], {}, lambda x: np.where(x < 0, x * 2, x)),
    ("GlobalAveragePool", 1, [], {}, lambda x: x.mean((2, 3), keepdims=True)),
    ("GlobalMaxPool", 1, [], {}, lambda x: x.max((2, 3), keepdims=True)),
    ("Resize", 13, [None, None, np.int64([2, 12, 8, 18])], {}, lambda x: x.repeat(2, 2).repeat(3, 3)),
    ("Resize", 13, [None, None, np.int64([2, 12, 4, 6])], {"mode": "linear"}, lambda x: x),
    ("Size", 13, [], {}, lambda x: np.int64(x.size)),
    ("Shape", 15, [], {"start": 1, "end": -1}, lambda x: x.shape[1:-1]),
    ("Gelu", 20, [], {"approximate": "tanh"},
     lambda x: x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))))])
def test_functions_with_operands(op, opset, inputs, attrs, formula):
    want = formula(X.astype(np.float64))
    np.testing.assert_allclose(run(op, X, *inputs, opset=opset, **attrs), want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("known", [True, False])
def test_a_zero_point_of_the_result_that_is_not_known(known):
    a, b = RNG.integers(0, 256, (4, 9)).astype(np.uint8), RNG.integers(-128, 128, (9, 5)).astype(np.int8)
    scales = [np.float32(s) for s in (0.1, 0.3, 0.7)]
    got = run("QLinearMatMul", a, scales[0], np.uint8(3), b, scales[1], np.int8(0), scales[2], np.uint8(128), opset=10,
              open_inputs=() if known else (7,))
    want = (a.astype(float) - 3) @ b * (0.1 * 0.3 / 0.7) + 128
    assert got.dtype == np.uint8 and abs(got - np.clip(want, 0, 255)).max() < 0.51


@pytest.mark.parametrize("k", [1, 2])
def test_statistics_of_sums_are_not_given(k):
    outputs = ["o0", "", ""]
    outputs[k] = f"o{k}"
    with pytest.raises(GraphError, match="outputs 1 and 2, mean and inverse deviation, are not supported"):
        run("SkipLayerNormalization", X[0], X[1], X[0, 0, 0], X[0, 0, 1], opset=17, domain="com.microsoft",
            outputs=outputs)

"""Importers of normalizations against formulas written here in NumPy."""
import numpy as np
import onnx
import pytest
from one_onnx_node import run

import graphq as gq

RNG = np.random.default_rng(3)
X = RNG.standard_normal((2, 12, 4, 6)).astype(np.float32)
WHOLE = RNG.integers(-50, 50, (2, 3, 4, 5)).astype(np.int32)


def normalized(x, axes, epsilon=1e-5):
    wide = x.astype(np.float64)
    return (wide - wide.mean(axes, keepdims=True)) / np.sqrt(wide.var(axes, keepdims=True) + epsilon)


@pytest.mark.parametrize("axis, scale, bias", [
    (-1, (6,), (6,)), (1, (12, 4, 6), None), (2, (4, 6), (4, 6)), (-2, (4, 1), (6,)), (1, (12, 1, 1), (1,)), (-1,
    (1,), None)])
def test_layers_are_normalized_from_an_axis(axis, scale, bias):
    """Scale and bias broadcast into the dimensions from the axis on."""
    gamma, beta = (None if s is None else RNG.standard_normal(s).astype(np.float32) for s in (scale, bias))
    want = normalized(X, tuple(range(axis % 4, 4)), 0.01) * gamma + (0 if beta is None else beta)
    inputs = [X, gamma] if beta is None else [X, gamma, beta]
    got = run("LayerNormalization", *inputs, opset=17, axis=axis, epsilon=0.01)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("axis, scale", [(-1, (6,)), (2, (4, 6)), (1, (12, 1, 1)), (-2, (4, 1))])
def test_root_mean_squares(axis, scale):
    gamma, axes = RNG.standard_normal(scale).astype(np.float32), tuple(range(axis % 4, 4))
    mean = np.sqrt((X.astype(np.float64)**2).mean(axes, keepdims=True) + 0.01)
    got = run("RMSNormalization", X, gamma, opset=23, axis=axis, epsilon=0.01)
    np.testing.assert_allclose(got, X / mean * gamma, rtol=1e-4, atol=1e-5)
    y, inverse = run("SimplifiedLayerNormalization", X, gamma, opset=17, domain="com.microsoft", outputs=2, axis=axis,
                     epsilon=0.01)
    np.testing.assert_allclose(y, X / mean * gamma, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(inverse, 1 / mean, rtol=1e-4)


def test_groups_and_instances():
    gamma, beta = (RNG.standard_normal(12).astype(np.float32)[:, None, None] for _ in range(2))
    groups = normalized(X.reshape(2, 3, 4, 4, 6), (2, 3, 4), 0.01).reshape(X.shape) * gamma + beta
    got = run("GroupNormalization", X, gamma.ravel(), beta.ravel(), opset=21, num_groups=3, epsilon=0.01)
    np.testing.assert_allclose(got, groups, rtol=1e-4, atol=1e-5)
    got = run("InstanceNormalization", X, gamma.ravel(), beta.ravel(), opset=6)
    np.testing.assert_allclose(got, normalized(X, (2, 3)) * gamma + beta, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("attrs", [{"size": 3}, {"size": 4, "alpha": 0.5, "beta": 0.3, "bias": 2.0}])
def test_responses_are_normalized_across_channels(attrs):
    size, alpha, beta, bias = (attrs.get(n, d) for n, d in (("size", 0), ("alpha", 1e-4), ("beta", 0.75),
    ("bias", 1.0)))
    total = np.zeros(X.shape)
    for k in range(12):
        part = X[:, max(0, k - (size - 1) // 2):k + size // 2 + 1].astype(np.float64)
        total[:, k] = (part**2).sum(1)
    np.testing.assert_allclose(run("LRN", X, opset=13, **attrs), X / (bias + alpha / size * total)**beta, rtol=1e-5)


@pytest.mark.parametrize("opset", [7, 9, 15])
def test_batches_are_normalized_by_what_is_known(opset):
    scale, shift, mean = (RNG.standard_normal(12).astype(np.float32)[:, None, None] for _ in range(3))
    variance = RNG.uniform(0.5, 2, (12, 1, 1)).astype(np.float32)
    for dtype in (np.float32, np.float64) if opset < 15 else (np.float32,):
        inputs = [x.astype(dtype) for x in (X, *(v.ravel() for v in (scale, shift, mean, variance)))]
        got = run("BatchNormalization", *inputs, opset=opset, native=False, epsilon=0.01)
        want = (X - mean) / np.sqrt(variance + 0.01) * scale + shift
        assert got.dtype == dtype
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def test_batches_in_training():
    """Since version 14 with the running means, by ONNX's reference."""
    ones, zeros = np.ones(12, np.float32), np.zeros(12, np.float32)
    y, mean, variance = run("BatchNormalization", X, ones, zeros, zeros, ones, opset=15, outputs=3, native=False,
                            training_mode=1, momentum=0.75)
    np.testing.assert_allclose(y, normalized(X, (0, 2, 3)), rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(mean, X.mean((0, 2, 3)) / 4, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(variance, 0.75 + X.var((0, 2, 3)) / 4, rtol=1e-4)


@pytest.mark.parametrize("op", ["LayerNormalization (x, w)", "RMSNormalization (x, w)",
                                "GroupNormalization <num_groups = 1> (x, w, w)"])
def test_statistics_of_other_dtypes_are_of_onnx_reference(op):
    text = f"net (float16[2,3] x, float16[3] w) => (float16[2,3] y) {{ y = {op} }}"
    for stash in (1, 10):
        m = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 23]>\n{text}')
        m.graph.node[0].attribute.append(onnx.helper.make_attribute("stash_type", stash))
        assert ("onnx_node" in {n.op.name for n in gq.load_onnx(m).nodes}) == (stash == 10)

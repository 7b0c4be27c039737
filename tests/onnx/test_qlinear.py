"""QLinearConv and QLinearMatMul: integer sums times one factor, equal to ONNX's formula element by element."""
import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator

import graphq as gq

rng = np.random.default_rng(1)


def model(text, **arrays):
    m = onnx.parser.parse_model('<ir_version: 8, opset_import: ["" : 17]> ' + text)
    m.graph.initializer.extend(numpy_helper.from_array(np.asarray(a), name) for name, a in arrays.items())
    return gq.load_onnx(m)


def saturated(sums, factor, zp, dtype):
    limits = np.iinfo(dtype)
    return np.clip(np.rint(sums.astype(np.float32) * factor) + zp, limits.min, limits.max).astype(dtype)


@pytest.mark.parametrize("per_channel", [False, True])
def test_convolution(per_channel):
    x = rng.integers(0, 256, (2, 8, 9, 9), dtype=np.uint8)
    w = rng.integers(-127, 128, (16, 8, 1, 1), dtype=np.int8)
    ws = rng.uniform(1e-3, 2e-3, 16 if per_channel else ()).astype(np.float32)
    bias = rng.integers(-9000, 9000, 16, dtype=np.int32)
    xs, ys = np.float32(0.0173), np.float32(0.031)
    g = model("net (uint8[2, 8, 9, 9] x) => (uint8[2, 16, 9, 9] y) "
              "{ y = QLinearConv (x, xs, xz, w, ws, wz, ys, yz, b) }",
              xs=xs, xz=np.uint8(117), w=w, ws=ws, wz=np.zeros_like(ws, np.int8), ys=ys, yz=np.uint8(3), b=bias)
    sums = np.einsum("nchw,oc->nohw", x.astype(int) - 117, w[..., 0, 0].astype(int)) + bias[:, None, None]
    want = saturated(sums, (xs * np.atleast_1d(ws) / ys)[:, None, None], 3, np.uint8)
    compiled = gq.compile(g)
    assert compiled.coverage().share == 1
    np.testing.assert_array_equal(gq.reference(g, x=x), want)
    np.testing.assert_array_equal(compiled(x=x), want)


@pytest.mark.parametrize("per_column", [False, True])
def test_matmul(per_column):
    a, b = rng.integers(-128, 128, (3, 20, 32), dtype=np.int8), rng.integers(-128, 128, (32, 24), dtype=np.int8)
    bs = rng.uniform(1e-3, 2e-3, 24 if per_column else ()).astype(np.float32)
    scale, ys = np.float32(0.0173), np.float32(0.031)
    g = model("net (int8[3, 20, 32] a) => (int8[3, 20, 24] y) { y = QLinearMatMul (a, s, z, b, bs, bz, ys, yz) }",
              s=scale, z=np.int8(5), b=b, bs=bs, bz=np.zeros_like(bs, np.int8), ys=ys, yz=np.int8(-7))
    want = saturated((a.astype(int) - 5) @ b.astype(int), scale * bs / ys, -7, np.int8)
    np.testing.assert_array_equal(gq.reference(g, a=a), want)
    np.testing.assert_array_equal(gq.compile(g)(a=a), want)


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
def test_pools_and_resizes_of_integers(dtype):
    """They run in kernels."""
    name, least = np.dtype(dtype).name, np.iinfo(dtype).min
    x = rng.integers(least, least + 256, (1, 5, 6, 7)).astype(dtype)
    g = model(f"net ({name}[1, 5, 6, 7] x) => ({name}[1, 5, 3, 4] y, {name}[1, 5, 12, 21] z) "
              "{ y = MaxPool <kernel_shape = [2, 3], strides = [2, 2], pads = [0, 1, 0, 1]> (x) "
              "  z = Resize <coordinate_transformation_mode = \"asymmetric\", nearest_mode = \"floor\"> (x, , s) }",
              s=np.float32([1, 1, 2, 3]))
    wide = np.pad(x, [(0, 0), (0, 0), (0, 0), (1, 1)], constant_values=least)
    y = np.lib.stride_tricks.sliding_window_view(wide, (2, 3), (2, 3))[:, :, ::2, ::2].max(axis=(4, 5))
    for out in (gq.reference(g, x=x), gq.compile(g, strict=True)(x=x)):
        for got, want in zip(out.values(), (y, x.repeat(2, 2).repeat(3, 3)), strict=True):
            assert got.dtype == dtype
            np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
def test_linear_resize_of_integers_rounds_as_the_reference(dtype):
    name = np.dtype(dtype).name
    x = rng.integers(np.iinfo(dtype).min, np.iinfo(dtype).max + 1, (1, 8, 20, 17)).astype(dtype)
    text = f"net ({name}[1, 8, 20, 17] x) => ({name}[1, 8, 40, 68] y) {{ y = Resize <mode = \"linear\"> (x, , s) }}"
    g, scales = model(text, s=np.float32([1, 1, 2, 4])), np.float32([1, 1, 2, 4])
    m = onnx.parser.parse_model('<ir_version: 8, opset_import: ["" : 17]> ' + text)
    m.graph.initializer.append(numpy_helper.from_array(scales, "s"))
    want = ReferenceEvaluator(m).run(None, {"x": x})[0].astype(int)
    got = gq.compile(g, strict=True)(x=x)
    assert got.dtype == dtype
    np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(gq.reference(g, x=x), got)


def test_pools_of_integers_whose_windows_lie_in_the_padding():
    """Such a window is the least integer."""
    x = rng.integers(-100, 100, (1, 2, 5, 5), dtype=np.int8)
    g = model("net (int8[1, 2, 5, 5] x) => (int8[1, 2, 5, 5] y) "
              "{ y = MaxPool <kernel_shape = [1, 1], strides = [3, 3], pads = [4, 4, 4, 4]> (x) }")
    want = np.pad(x, [(0, 0), (0, 0), (4, 4), (4, 4)], constant_values=-128)[:, :, ::3, ::3]
    for got in (gq.reference(g, x=x), gq.compile(g)(x=x)):
        np.testing.assert_array_equal(got, want)

"""QLinearConv and QLinearMatMul: integer sums times one factor, equal to ONNX's formula element by element."""
import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator
from onnx_node import feeds, node_model

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


BAD = [np.nan, -np.inf]


@pytest.mark.parametrize("at", [0, 2, 6])
@pytest.mark.parametrize("op, bad", [
    *(("DequantizeLinear", x) for x in BAD), *(("QuantizeLinear", x) for x in (*BAD, 0.0))])
def test_one_scale_of_many_that_is_none(op, bad, at):
    scales = np.full(7, 0.5, np.float32)
    given = "float" if op == "QuantizeLinear" else "int8"
    text = f"net ({given}[3, 7] x) => (y) {{ y = {op} (x, s, z) }}"
    for good in (0.5, -0.25, np.inf):
        scales[at] = good
        model(text, s=scales, z=np.zeros(7, np.int8))
    scales[at] = bad
    rule = "scales must not be NaN" + (", -inf or 0" if op == "QuantizeLinear" else " or -inf")
    with pytest.raises(gq.GraphError, match=f"{rule}, got {bad}"):
        model(text, s=scales, z=np.zeros(7, np.int8))


@pytest.mark.parametrize("at", [0, 3, 6])
def test_one_zero_point_of_many_that_is_not_zero(at):
    zps = np.zeros(7, np.int32)
    text = "net (int32[3, 7] x) => (y) { y = DequantizeLinear (x, s, z) }"
    model(text, s=np.ones(7, np.float32), z=zps)
    zps[at] = 1
    with pytest.raises(gq.GraphError, match="the zero point of s32 must be 0"):
        model(text, s=np.ones(7, np.float32), z=zps)


@pytest.mark.parametrize("scales", [(0.5,) * 4, (0.5, 0.25, 1, 2), (0.5, np.inf, 1, 2)])
@pytest.mark.parametrize("zps", [(0,) * 4, (3, 0, -5, 100), (0, 0, 0, -1)])
@pytest.mark.parametrize("axis", [0, 1, -1, None])
def test_scales_and_zero_points_of_each_channel(scales, zps, axis):
    """The last axis, the first one and the default one, 1; a channel may have what others have not."""
    shape = (4, 3, 5) if axis == 0 else (3, 5, 4) if axis == -1 else (3, 4, 5)
    x = rng.integers(-128, 128, shape, dtype=np.int8)
    attribute = "" if axis is None else f"<axis = {axis}>"
    dims = ", ".join(map(str, shape))
    s, z = np.float32(scales), np.int8(zps)
    along = [-1 if n == 4 else 1 for n in shape]
    with np.errstate(invalid="ignore"):
        want = (x.astype(np.float32) - z.reshape(along)) * s.reshape(along)
    g = model(f"net (int8[{dims}] x) => (y) {{ y = DequantizeLinear {attribute} (x, s, z) }}", s=s, z=z)
    np.testing.assert_array_equal(gq.reference(g, x=x), want)
    f = rng.standard_normal(shape).astype(np.float32) * 40
    rounded = np.clip(np.rint(f / s.reshape(along)) + z.reshape(along).astype(int), -128, 127)
    g = model(f"net (float[{dims}] x) => (y) {{ y = QuantizeLinear {attribute} (x, s, z) }}", s=s, z=z)
    np.testing.assert_array_equal(gq.reference(g, x=f), rounded)


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("scales", [np.float32(0.01), np.float32([0.01, 0.02, 0.04, 0.5, 0.003, 1])])
@pytest.mark.parametrize("open_result", [False, True])
def test_convolutions_in_groups(last, biased, scales, open_result):
    """Two groups, every second column; `open_result`: its scale is an input, so that the integers are dequantized."""
    x, w = rng.integers(0, 256, (2, 4, 3, 5), dtype=np.uint8), rng.integers(-127, 128, (6, 2, 1, 1), dtype=np.int8)
    bias = rng.integers(-9000, 9000, 6, dtype=np.int32)
    wz = np.zeros_like(scales, np.int8)
    sums = np.concatenate([np.einsum("nchw,oc->nohw", x[:, k:k + 2, :, ::2].astype(int) - 117,
                                     w[3 * k // 2:][:3, :, 0, 0].astype(int)) for k in (0, 2)], axis=1)
    sums = sums + (bias[:, None, None] if biased else 0)
    xs, ys = np.float32(0.05), np.float32(0.3)
    exact = sums * (float(xs) * np.atleast_1d(scales).astype(float)[:, None, None]) / float(ys) + 9
    if last:
        x, exact = np.ascontiguousarray(x.transpose(0, 2, 3, 1)), exact.transpose(0, 2, 3, 1)
    domain = 'com.microsoft.QLinearConv <channels_last = 1, ' if last else "QLinearConv <"
    dims = ", ".join(map(str, x.shape))
    text = (f'<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]> net (uint8[{dims}] x'
            f'{", float ys" if open_result else ""}) => (y) '
            f"{{ y = {domain}group = 2, strides = [1, 2]> (x, xs, xz, w, ws, wz, ys, yz{', b' if biased else ''}) }}")
    m = onnx.parser.parse_model(text)
    arrays = {"xs": xs, "xz": np.uint8(117), "w": w, "ws": scales, "wz": wz, "yz": np.uint8(9)}
    arrays |= ({} if open_result else {"ys": ys}) | ({"b": bias} if biased else {})
    m.graph.initializer.extend(numpy_helper.from_array(np.asarray(a), name) for name, a in arrays.items())
    got = gq.reference(gq.load_onnx(m), {"x": x, **({"ys": np.asarray(ys)} if open_result else {})})
    assert got.dtype == np.uint8 and got.shape == exact.shape
    assert np.abs(got - np.clip(exact, 0, 255)).max() <= 0.501


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("pixels", [(7,), (2, 3, 5)])
def test_convolutions_of_other_ranks(pixels, biased, last):
    """Each output channel has its own scale, of one spatial axis and of three."""
    x, w = rng.integers(0, 256, (2, 4, *pixels), dtype=np.uint8), rng.integers(-127, 128, (6, 4), dtype=np.int8)
    scales, bias = np.float32([0.01, 0.02, 0.04, 0.5, 0.003, 1]), rng.integers(-9000, 9000, 6, dtype=np.int32)
    sums = np.moveaxis(np.tensordot(w.astype(int), x.astype(int) - 117, ([1], [1])), 1, 0)
    along = (-1, *[1] * len(pixels))
    want = saturated(sums + (bias.reshape(along) if biased else 0),
                     (np.float32(0.05) * scales / np.float32(0.3)).reshape(along), 9, np.uint8)
    if last:
        x, want = np.ascontiguousarray(np.moveaxis(x, 1, -1)), np.moveaxis(want, 1, -1)
    given = [("x", x), ("XS", np.float32(0.05)), ("XZ", np.uint8(117)), ("W", w.reshape(6, 4, *[1] * len(pixels))),
             ("WS", scales), ("WZ", np.zeros(6, np.int8)), ("YS", np.float32(0.3)), ("YZ", np.uint8(9)),
             *([("B", bias)] if biased else [])]
    m = node_model("QLinearConv", given, {"channels_last": 1} if last else {}, **({} if last else {"domain": ""}))
    np.testing.assert_array_equal(gq.reference(gq.load_onnx(m), feeds(given)), want)

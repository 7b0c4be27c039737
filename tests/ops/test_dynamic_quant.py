"""dynamic_quantize and dynamic_dequantize against their static forms, and groups written out."""
import numpy as np
import pytest

from graphq.dtypes import DTYPES
from graphq.errors import GraphError
from graphq.ops.dynamic_quant import ZERO_POINTS

rng = np.random.default_rng(44)
INF, NAN = np.inf, np.nan
CHANNEL = {"qtype": "per_channel"}


def f32(*values):
    return np.array(values, np.float32)


@pytest.mark.parametrize("dtype, zp", [("s8", -3), ("u8", 130), ("s8", None)])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_quantize_as_the_static_op(run, dtype, zp, axis):
    x = (rng.standard_normal((4, 5, 6)) * 40).astype(np.float32)
    scales = rng.uniform(0.1, 2, x.shape[axis]).astype(np.float32)
    zps = None if zp is None else np.full(len(scales), zp)
    want = run("quantize", x, dtype=dtype, **CHANNEL, axis=axis, scales=scales, zps=zps)
    for t in (["s32"] if zp is None else ["s32", dtype]):
        given = None if zps is None else zps.astype(DTYPES[t].numpy)
        got = run("dynamic_quantize", x, scales, given, dtype=dtype, **CHANNEL, axis=axis)
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("shape", [(), (1,)])
def test_quantize_per_tensor_and_special_values(run, shape):
    x = f32(2.5, 3.5, -INF, INF, NAN, 1e30)
    scale, zp = np.full(shape, 1, np.float32), np.full(shape, 3, np.int32)
    got = run("dynamic_quantize", x, scale, zp, dtype="u8")
    assert got.tolist() == [5, 7, 0, 255, 3, 255]
    # A zero point outside of the dtype saturates with the sum, in which no bit is lost.
    far = np.full(shape, -(2**31), np.int32)
    assert run("dynamic_quantize", f32(2.0**31 + 256), scale, far, dtype="u8").tolist() == [255]
    assert run("dynamic_quantize", f32(NAN, 5), scale * 0, zp, dtype="s8").tolist() == [3, 127]


@pytest.mark.parametrize("dtype", ["f8_e4m3", "f8_e5m2"])
def test_f8_as_the_static_ops(run, dtype):
    x = (rng.standard_normal((2, 30)) * [[300], [3]]).astype(np.float32)
    q = run("dynamic_quantize", x, f32(0.5), dtype=dtype)
    np.testing.assert_array_equal(q.view(np.uint8), run("quantize", x, dtype=dtype, scales=[0.5]).view(np.uint8))
    np.testing.assert_array_equal(run("dynamic_dequantize", q, f32(0.5)), run("dequantize", q, scales=[0.5]))


@pytest.mark.parametrize("dtype", ["s8", "u8"])
@pytest.mark.parametrize("axis", [0, -1])
def test_dequantize_as_the_static_op(run, dtype, axis):
    q = rng.integers(0, 128, (4, 6)).astype(DTYPES[dtype].numpy)
    scales = rng.uniform(0.1, 2, q.shape[axis]).astype(np.float32)
    zps = rng.integers(0, 128, len(scales))
    want = run("dequantize", q, **CHANNEL, axis=axis, scales=scales, zps=zps)
    for t in ("s8", "u8", "s32"):
        given = zps.astype(DTYPES[t].numpy)
        np.testing.assert_array_equal(run("dynamic_dequantize", q, scales, given, **CHANNEL, axis=axis), want)


@pytest.mark.parametrize("attrs, shape", [({}, (1,)), ({**CHANNEL, "axis": 0}, (1,)),
                                          ({"qtype": "per_group", "group_shape": [1, 2]}, (1, 1))])
@pytest.mark.parametrize("dtype", [t for t, of in ZERO_POINTS.items() if of], ids=str)
def test_differences_at_the_ends_of_all_types_are_exact(run, dtype, attrs, shape):
    """They may need 33 bits."""
    q = np.array([[dtype.min, dtype.max]]).astype(dtype.numpy)
    for other in ZERO_POINTS[dtype]:
        for zp in (other.min, other.max):
            zps = np.full(shape, zp).astype(other.numpy)
            got = run("dynamic_dequantize", q, np.ones(shape, np.float32), zps, **attrs)
            assert got.tolist() == [[float(np.float32(int(end) - int(zp))) for end in (dtype.min, dtype.max)]]


@pytest.mark.parametrize("dtype, zp_dtype", [("s4", "s4"), ("u4", "u4"), ("u4", "s4"), ("s4", "s32"), ("s8", "s8"),
                                             ("u8", "s32")])
@pytest.mark.parametrize("scale_dtype", ["f32", "bf16", "f16"])
def test_groups(run, dtype, zp_dtype, scale_dtype):
    low, high = int(DTYPES[dtype].min), int(DTYPES[dtype].max)
    q = rng.integers(low, high + 1, (2, 6, 4)).astype(DTYPES[dtype].numpy)
    scales = rng.uniform(0.5, 2, (2, 2, 4)).astype(DTYPES[scale_dtype].numpy)
    zps = rng.integers(0, 7, (2, 2, 4)).astype(DTYPES[zp_dtype].numpy)
    wide = [np.repeat(a.astype(np.float32), 3, axis=1) for a in (scales, zps)]
    want = ((q.astype(np.float32) - wide[1]) * wide[0]).astype(scales.dtype)
    attrs = {"qtype": "per_group", "group_shape": [1, 3, 1]}
    np.testing.assert_array_equal(run("dynamic_dequantize", q, scales, zps, **attrs), want)
    got = run("dynamic_dequantize", q, scales, zps, **attrs, dtype="f32")
    np.testing.assert_array_equal(got, (q.astype(np.float32) - wide[1]) * wide[0])


def test_groups_along_several_axes(run):
    q = np.arange(16, dtype=np.int8).reshape(4, 4)
    got = run("dynamic_dequantize", q, f32([1, 10], [100, 1000]), qtype="per_group", group_shape=[2, 2])
    want = q * np.kron([[1, 10], [100, 1000]], np.ones((2, 2)))
    np.testing.assert_array_equal(got, want.astype(np.float32))


def test_nothing(run):
    assert run("dynamic_quantize", np.zeros((2, 0), np.float32), f32(), dtype="s8", **CHANNEL).shape == (2, 0)
    assert run("dynamic_dequantize", np.zeros((0, 4), np.int8), np.zeros((0, 2), np.float32), qtype="per_group",
               group_shape=[1, 2]).shape == (0, 4)


GROUP = {"qtype": "per_group", "group_shape": [1, 4]}


@pytest.mark.parametrize("types, attrs, want", [
    (["s8[?,3]", "f16[?]", "u8[3]"], CHANNEL, "f16[?,3]"), (["u4[*]", "bf16[*]", "s4[*]"], GROUP, "bf16[*]"),
    (["s4[2,?]", "f32[2,3]"], {**GROUP, "dtype": "bf16"}, "bf16[2,?]"), (["u8[2,3]", "f32[?]"], {}, "f32[2,3]"),
    (["s8[*]", "f32[5]"], {**CHANNEL, "axis": 9}, "f32[*]"),
])
def test_types(infer, types, attrs, want):
    assert infer("dynamic_dequantize", *types, **attrs) == want


@pytest.mark.parametrize("types, attrs, match", [
    (["s8[2,3]", "f32[2]"], {}, r"per_tensor takes 'scales' \[\] or \[1\], got f32\[2\]"),
    (["s8[2,3]", "f32[2]"], CHANNEL, r"takes 3 'scales' at axis 1 of s8\[2,3\], got f32\[2\]"),
    (["s8[2,3]", "f32[1,3]"], CHANNEL, "takes one-dimensional 'scales'"),
    (["s8[2,3]", "f32[3]"], {**CHANNEL, "axis": 2}, "axis must be in .* got 2"),
    (["s8[2,3]", "f32[3]", "s8[1]"], CHANNEL, r"'zps' must have the shape of 'scales', got s8\[1\] and f32\[3\]"),
    (["s8[2,3]", "f32[1]", "s4[1]"], {}, "'zps' must be s8, u8 or s32, got s4"),
    (["s4[2,3]", "f32[1]", "f32[1]"], {}, "'zps' must be s4, u4, s8, u8 or s32, got f32"),
    (["f8_e4m3[2,3]", "f32[1]", "s8[1]"], {}, "'zps' must be absent for f8_e4m3"),
    (["s32[2,3]", "f32[1]"], {}, "'src' must be s8, u8, s4, u4"),
    (["s8[2,3]", "s8[1]"], {}, "'scales' must be f32, bf16 or f16, got s8"),
    (["s8[2,3]", "f32[1]"], {"dtype": "s8"}, "dtype must be f32, bf16 or f16, got s8"),
    (["s8[2,8]", "f32[2,2]"], {"qtype": "per_group"}, r"needs a group_shape of positive sizes, got \[\]"),
    (["s8[2,8]", "f32[2,2]"], {**GROUP, "group_shape": [0, 4]}, r"positive sizes, got \[0, 4\]"),
    (["s8[2,8]", "f32[2,2]"], {**GROUP, "group_shape": [4]}, r"one size per axis of 'src' \[2,8\], got \[4\]"),
    (["s8[*]", "f32[2]"], GROUP, r"one size per axis of 'scales' \[2\], got \[1, 4\]"),
    (["s8[2,9]", "f32[2,2]"], GROUP, r"groups of \[1, 4\] must divide 'src' \[2,9\]"),
    (["s8[2,8]", "f32[2,3]"], GROUP, r"into as many as 'scales' has, got \[2,3\]"),
    (["s8[2,8]", "f32[1]"], {"group_shape": [1, 4]}, "group_shape needs qtype per_group"),
])
def test_rules(infer, types, attrs, match):
    with pytest.raises(GraphError, match=match):
        infer("dynamic_dequantize", *types, **attrs)


@pytest.mark.parametrize("types, dtype, match", [
    (["f16[2,3]", "f32[1]"], "s8", "'src' must be f32, got f16"),
    (["f32[2,3]", "f16[1]"], "s8", "'scales' must be f32"),
    (["f32[2,3]", "f32[1]"], "s4", "dtype must be s8, u8, f8_e4m3 or f8_e5m2, got s4"),
    (["f32[2,3]", "f32[2]"], "s8", r"per_tensor takes 'scales' \[\] or \[1\]"),
    (["f32[2,3]", "f32[1]", "s4[1]"], "s8", "'zps' must be s8, u8 or s32, got s4"),
])
def test_rules_of_quantize(infer, types, dtype, match):
    with pytest.raises(GraphError, match=match):
        infer("dynamic_quantize", *types, dtype=dtype)

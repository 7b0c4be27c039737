"""matmul_integer, conv_integer and dynamic_range, by hand."""
import numpy as np
import pytest

from graphq.errors import GraphError

rng = np.random.default_rng(0)
A, B = rng.integers(0, 256, (2, 3, 4)).astype(np.uint8), rng.integers(-128, 128, (2, 4, 5)).astype(np.int8)


@pytest.mark.parametrize("za, zb", [
    ((), ()), ((1,), (1,)), ((3,), (5,)), ((2, 3, 1), (2, 1, 5)), ((3, 1), (1, 5)), ((2, 3, 4), (4, 5))])
def test_zero_points_are_one_or_by_rows_and_columns_or_broadcast(run, za, zb):
    x, y = rng.integers(0, 256, za).astype(np.uint8), rng.integers(-128, 128, zb).astype(np.int8)
    a = A.astype(int) - (x.reshape(-1, 1) if x.ndim == 1 else x)
    assert np.array_equal(run("matmul_integer", A, B, x, y), a @ (B.astype(int) - y))


@pytest.mark.parametrize("za, zb", [((3,), None), (None, (5,)), (None, None)])
def test_either_zero_point_may_be_absent(run, za, zb):
    x, y = (None if z is None else rng.integers(0, 128, z).astype(t.dtype) for z, t in ((za, A), (zb, B)))
    less_x, less_y = (0 if z is None else z.astype(int) for z in (None if x is None else x[:, None], y))
    assert np.array_equal(run("matmul_integer", A, B, x, y), (A.astype(int) - less_x) @ (B.astype(int) - less_y))


@pytest.mark.parametrize("zx, zw", [(None, None), ((), (2,)), ((1,), ()), ((1,), (1,)), (None, (2,)), ((), None)])
@pytest.mark.parametrize("attrs", [{}, {"pads_begin": [0, 1], "pads_end": [2, 3]},
                                   {"strides": [2, 1], "dilations": [1, 2]},
                                   {"auto_pad": "same_upper", "strides": [2, 3]}, {"groups": 2}])
def test_conv_integer_is_a_convolution_of_differences(run, zx, zw, attrs):
    """What is padded counts as 0: it has the value of the zero point."""
    shape = {"strides": [1, 1], "dilations": [1, 1], "pads_begin": [0, 0], "pads_end": [0, 0], **attrs}
    groups = attrs.get("groups", 1)
    x = rng.integers(0, 256, (2, 2, 5, 6)).astype(np.uint8)
    w = rng.integers(-128, 128, (2, 2 // groups, 3, 2)).astype(np.int8)
    a, b = (None if z is None else rng.integers(1, 128, z).astype(v.dtype) for z, v in ((zx, x), (zw, w)))
    less = [v.astype(np.float32) - (np.float32(0) if z is None else z.astype(np.float32).reshape(-1, 1, 1, 1))
            for v, z in ((x, a), (w, b))]
    want = run("convolution", *less, data_format="NCX", weights_format="OIX", **shape)
    np.testing.assert_array_equal(run("conv_integer", x, w, a, b, **shape), want)


@pytest.mark.parametrize("name, types, match", [
    ("matmul_integer", ["s32[2,3]", "s8[3,2]"], "'a' must be s8 or u8"),
    ("matmul_integer", ["s8[2,3]", "f32[3,2]"], "'b' must be s8 or u8"),
    ("matmul_integer", ["s8[2,3]", "u8[3,2]", "u8[]"], "the zero point of 'a' must be s8, got u8"),
    ("matmul_integer", ["s8[2,3]", "u8[3,2]", None, "s8[]"], "the zero point of 'b' must be u8, got s8"),
    ("conv_integer", ["s32[1,2,3]", "s8[4,2,1]"], "'src' must be s8 or u8"),
    ("conv_integer", ["s8[1,2,3]", "s16[4,2,1]"], "'weights' must be s8 or u8"),
    ("conv_integer", ["s8[1,2,3]", "s8[4,2,1]", "u8[1]"], "the zero point of 'src' must be s8"),
    ("conv_integer", ["s8[1,2,3]", "s8[4,2,1]", "s8[2]"], "the zero point of 'src' must be one number"),
    ("conv_integer", ["s8[1,2,3]", "s8[4,2,1]", None, "u8[4]"], "the zero point of 'weights' must be s8"),
    ("dynamic_range", ["f16[2]"], "'src' must be f32")])
def test_what_is_refused(infer, name, types, match):
    attrs = {"strides": [1], "pads_begin": [0], "pads_end": [0], "dilations": [1]} if name == "conv_integer" else {}
    with pytest.raises(GraphError, match=match):
        infer(name, *types, **attrs)


def test_sums_wrap(run):
    k = 2**31 // 255**2 + 1
    y = run("matmul_integer", np.full((1, k), 255, np.uint8), np.full((k, 1), 255, np.uint8))
    assert y[0, 0] == 255**2 * k - 2**32


@pytest.mark.parametrize("a, z", [("s8[1,3]", "s8[2,3]"), ("s8[3]", "s8[2,3]"), ("s8[4,3]", "s8[2]"),
                                  ("s8[4,3]", "s8[4,2]"), ("s8[1,1,1]", "s8[5,1,1]")])
def test_zero_points_do_not_make_their_tensor_larger(infer, a, z):
    with pytest.raises(GraphError, match=r"the zero point of 'a' must broadcast to \[.*\], got s8"):
        infer("matmul_integer", a, a, z)
    with pytest.raises(GraphError, match="the zero point of 'weights' must broadcast"):
        infer("conv_integer", "s8[1,1,5]", "s8[2,1,3]", None, "s8[3]", strides=[1], pads_begin=[0], pads_end=[0],
              dilations=[1])


def test_open_dimensions_may_fit(infer):
    assert infer("matmul_integer", "u8[?,3]", "s8[3,?]", "u8[7]", "s8[1,4]") == "s32[?,?]"


@pytest.mark.parametrize("a, z", [("s8[4,3]", "s8[*]"), ("s8[*]", "s8[4]"), ("s8[*]", "s8[*]"), ("s8[4,3]", None),
                                  ("s8[?,3]", "s8[?]"), ("s8[4,3]", "s8[?]"), ("s8[*]", None)])
def test_what_is_not_known_may_fit(infer, a, z):
    """Of the tensor or of its zero point; only what is known is refused."""
    assert str(infer("matmul_integer", a, "s8[3,5]", z)) == ("s32[*]" if "*" in a else f"s32[{a[3]},5]")
    assert str(infer("matmul_integer", "s8[2,4]", "s8[4,3]", None, z and "s8[*]")) == "s32[2,3]"
    z = z and "s8[*]"
    assert str(infer("conv_integer", "s8[1,1,5]", "s8[2,1,3]", z, z, strides=[1], pads_begin=[0], pads_end=[0],
                     dilations=[1], auto_pad="none", groups=1)) == "s32[1,2,3]"


def test_the_range_has_zero(run):
    scale, zp = run("dynamic_range", np.float32([1, 2, 5]))
    assert (scale, zp) == (np.float32(5) / np.float32(255), 0)

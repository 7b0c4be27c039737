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

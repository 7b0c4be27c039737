"""The reductions against ONNX's reference evaluator and NumPy in f64; histogram by hand."""
import numpy as np
import pytest

from graphq.dtypes import DTYPES
from graphq.errors import GraphError
from graphq.ir.op import lookup
from graphq.kernels.numbers.observed import BINS, SHIFT

rng = np.random.default_rng(6)
NAMES = ["reduce_l1", "reduce_l2", "reduce_max", "reduce_mean", "reduce_min", "reduce_prod", "reduce_sum"]
OF_NOTHING = {"reduce_l1": 0, "reduce_l2": 0, "reduce_max": -np.inf, "reduce_mean": np.nan, "reduce_min": np.inf,
              "reduce_prod": 1, "reduce_sum": 0}


@pytest.mark.parametrize("keep_dims", [True, False])
@pytest.mark.parametrize("axes", [[1], [0, -1], [-2, 0, 2]])
@pytest.mark.parametrize("name", NAMES)
def test_as_onnx(run, onnx_node, name, axes, keep_dims):
    x = rng.standard_normal((3, 4, 5)).astype(np.float32)
    kind = {"l1": "L1", "l2": "L2"}.get(name[7:], name[7:].capitalize())
    want = onnx_node("Reduce" + kind, [x, np.array(axes, np.int64)], opset=18, keepdims=int(keep_dims))
    got = run(name, x, axes=axes, keep_dims=keep_dims)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
    by_tensor = lookup(name).reference(x, np.array(axes, np.int32), axes=(), keep_dims=keep_dims)
    np.testing.assert_array_equal(by_tensor, got)


@pytest.mark.parametrize("name", NAMES)
def test_no_axes_leave_the_source(run, name):
    x = rng.standard_normal((3, 4)).astype(np.float32)
    for keep_dims in (True, False):
        np.testing.assert_array_equal(run(name, x, keep_dims=keep_dims), x)


@pytest.mark.parametrize("name", NAMES)
def test_nothing_and_nan(run, name):
    np.testing.assert_array_equal(run(name, np.zeros((2, 0), np.float32), axes=[1]), np.float32([OF_NOTHING[name]] * 2))
    assert np.isnan(run(name, np.float32([1, np.nan, 2]), axes=[0]))
    assert run(name, np.zeros((0, 3), np.float32), axes=[1]).shape == (0,)


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
@pytest.mark.parametrize("name", NAMES)
def test_half_precision_rounds_once(run, name, dtype):
    x = rng.standard_normal((3, 40)).astype(DTYPES[dtype].numpy)
    want = run(name, x.astype(np.float32), axes=[1]).astype(x.dtype)
    np.testing.assert_array_equal(run(name, x, axes=[1]), want)


def test_sums_are_exact_in_f64(run):
    x = np.float32([2**24, 1, 1, -(2**24)])
    assert run("reduce_sum", x, axes=[0]) == 2
    assert run("reduce_l1", x, axes=[0]) == 2**25 + 2
    assert run("reduce_l2", np.float32([3e38, 0]), axes=[0]) == np.float32(3e38)


@pytest.mark.parametrize("type, attrs, want", [
    ("f32[?,3,4]", {"axes": [1]}, "f32[?,4]"), ("f32[?,3,4]", {"axes": [-1, 0], "keep_dims": True}, "f32[1,3,1]"),
    ("bf16[*]", {"axes": [7]}, "bf16[*]"), ("f32[2,3]", {}, "f32[2,3]"), ("f32[2,3]", {"axes": [0, 1]}, "f32[]"),
])
@pytest.mark.parametrize("name", NAMES)
def test_types(infer, name, type, attrs, want):
    assert infer(name, type, **attrs) == want


@pytest.mark.parametrize("types, keep_dims, want", [
    (["f32[2,3]", "s32[1]"], True, "f32[?,?]"), (["f32[2,3]", "s32[1]"], False, "f32[*]"),
    (["f32[*]", "s32[*]"], True, "f32[*]"), (["f32[2,3]", "s32[0]"], False, "f32[2,3]"),
])
def test_types_by_a_tensor(infer, types, keep_dims, want):
    assert infer("reduce_sum", *types, keep_dims=keep_dims) == want


@pytest.mark.parametrize("types, attrs, match", [
    (["f32[2,3]"], {"axes": [2]}, r"axes must be in \[-r, r-1\] with r = 2 for shape \[2,3\], got 2"),
    (["f32[2,3]"], {"axes": [1, -1]}, r"axes must be different, got \[1, -1\]"),
    (["s32[2,3]"], {"axes": [1]}, "'src' must be f32, bf16 or f16, got s32"),
    (["f32[2,3]", "s32[1]"], {"axes": [1]}, r"given once, got the attribute \[1\] and an operand s32\[1\]"),
    (["f32[2,3]", "f32[1]"], {}, "'axes_tensor' must be s32, got f32"),
    (["f32[2,3]", "s32[1,1]"], {}, "'axes_tensor' must be one-dimensional"),
])
def test_rules(infer, types, attrs, match):
    with pytest.raises(GraphError, match=match):
        infer("reduce_sum", *types, **attrs)


@pytest.mark.parametrize("axes, match", [([2], "axes must be in"), ([1, -1], "axes must be different")])
def test_bad_axes_in_a_tensor(axes, match):
    with pytest.raises(GraphError, match=match):
        lookup("reduce_max").reference(np.zeros((2, 3), np.float32), np.int32(axes), axes=(), keep_dims=False)


def test_histogram(run):
    x = np.float32([1, 1.01, -1, 0, -0.0, 2, np.inf])
    counts, extremes = run("histogram", x)
    bins = {int(k): int(n) for k, n in enumerate(counts) if n}
    assert bins == {int(np.float32(v).view(np.uint32)) >> SHIFT: n for v, n in
                    ((1, 2), (-1, 1), (0, 1), (-0.0, 1), (2, 1), (np.inf, 1))}
    assert extremes.tolist() == [-1, np.inf] and counts.shape == (BINS,)
    assert np.isnan(run("histogram", np.append(x, np.float32(np.nan)))[1][1])
    counts, extremes = run("histogram", np.empty((0, 3), np.float32))
    assert not counts.any() and extremes.tolist() == [np.inf, -np.inf]

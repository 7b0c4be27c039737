"""interpolate against oneDNN's measured values, ONNX's reference evaluator and values written out."""
import numpy as np
import pytest

from graphq.base.budget import budget
from graphq.dtypes import DTYPES
from graphq.errors import CompileError, GraphError
from graphq.ir.op import lookup
from graphq.ops.interpolate import elements

rng = np.random.default_rng(12)
SIX = np.arange(6, dtype=np.float32).reshape(1, 1, 6)
NCX = {"data_format": "NCX"}

# What oneDNN 3.13 gave for 0, 1, .. 5 (nearest) and their squares (linear), half_pixel.
NEAREST = {2: [1, 4], 3: [1, 3, 5], 4: [0, 2, 3, 5], 5: [0, 1, 3, 4, 5], 7: [0, 1, 2, 3, 3, 4, 5],
           9: [0, 1, 1, 2, 3, 3, 4, 5, 5], 12: [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5]}
LINEAR = {2: [1, 16], 3: [0.5, 6.5, 20.5], 4: [0.25, 3.25, 10.75, 22.75], 5: [0.1, 1.9, 6.5, 13.9, 24.1],
          7: [0, 0.78571427, 2.9285712, 6.5, 11.5, 17.928574, 25],
          12: [0, 0.25, 0.75, 1.75, 3.25, 5.25, 7.75, 10.75, 14.25, 18.25, 22.75, 25]}


@pytest.mark.parametrize("size", NEAREST)
def test_nearest_as_onednn(run, size):
    assert run("interpolate", SIX, mode="nearest", sizes=[size], **NCX).tolist() == [[NEAREST[size]]]


@pytest.mark.parametrize("mode", ["linear", "bilinear", "trilinear"])
@pytest.mark.parametrize("size", LINEAR)
def test_linear_as_onednn(run, size, mode):
    got = run("interpolate", SIX * SIX, mode=mode, sizes=[size], **NCX)
    np.testing.assert_allclose(got[0, 0], LINEAR[size], rtol=1e-6)


@pytest.mark.parametrize("transformation", ["half_pixel", "align_corners", "asymmetric"])
@pytest.mark.parametrize("old, new", [((5, 7), (9, 4)), ((4, 6, 3), (7, 3, 5)), ((5,), (1,)), ((1, 3), (4, 3))])
def test_linear_as_onnx(run, onnx_node, old, new, transformation):
    x = rng.standard_normal((2, 3, *old)).astype(np.float32)
    sizes = np.array([2, 3, *new], np.int64)
    want = onnx_node("Resize", [x, None, None, sizes], opset=18, mode="linear",
                     coordinate_transformation_mode=transformation)
    got = run("interpolate", x, mode="linear", sizes=new, coordinate_transformation_mode=transformation, **NCX)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_nearest_as_onnx(run, onnx_node):
    x = rng.standard_normal((1, 2, 5, 7)).astype(np.float32)
    sizes = np.array([1, 2, 8, 4], np.int64)
    want = onnx_node("Resize", [x, None, None, sizes], opset=18, mode="nearest", nearest_mode="round_prefer_ceil",
                     coordinate_transformation_mode="half_pixel")
    np.testing.assert_array_equal(run("interpolate", x, mode="nearest", sizes=[8, 4], **NCX), want)


def test_asymmetric_by_hand(run):
    """Element o of n from six lies at 6 * o / n."""
    plain = {"coordinate_transformation_mode": "asymmetric", **NCX}
    assert run("interpolate", SIX, mode="linear", sizes=[4], **plain).tolist() == [[[0, 1.5, 3, 4.5]]]
    assert run("interpolate", SIX, mode="linear", sizes=[12], **plain).tolist() == [[
        [0, 0.5, 1, 1.5, 2, 2.5, 3, 3.5, 4, 4.5, 5, 5]]]
    assert run("interpolate", SIX, mode="nearest", sizes=[4], **plain).tolist() == [[[0, 2, 3, 5]]]
    assert run("interpolate", SIX, mode="nearest", sizes=[12], **plain).tolist() == [[
        [0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 5]]]


def test_align_corners_by_hand(run):
    corners = {"coordinate_transformation_mode": "align_corners", **NCX}
    assert run("interpolate", SIX, mode="linear", sizes=[3], **corners).tolist() == [[[0, 2.5, 5]]]
    assert run("interpolate", SIX, mode="nearest", sizes=[3], **corners).tolist() == [[[0, 3, 5]]]
    assert run("interpolate", SIX, mode="nearest", sizes=[4], **corners).tolist() == [[[0, 2, 3, 5]]]
    assert run("interpolate", SIX, mode="nearest", sizes=[1], **corners).tolist() == [[[0]]]


def test_scales_give_sizes(run):
    x = rng.standard_normal((2, 8, 2, 4, 12)).astype(np.float32)
    want = run("interpolate", x, mode="trilinear", sizes=[4, 8, 6], **NCX)
    np.testing.assert_array_equal(run("interpolate", x, mode="linear", scales=[2, 2, 0.5], **NCX), want)


@pytest.mark.parametrize("size, scale, want", [(17, 1.235294, 20), (21, 0.809524, 17), (5, 1.6, 8), (5, 0.6, 3),
                                               (12, 0.583333, 6), (7, 1.714286, 12)])
def test_sizes_round_down_as_onednn(infer, size, scale, want):
    assert infer("interpolate", f"f32[2,8,{size}]", mode="nearest", scales=[scale], **NCX) == f"f32[2,8,{want}]"


def test_sizes_in_a_tensor():
    op = lookup("interpolate")
    attrs = op.complete({"mode": "linear", **NCX})
    x = rng.standard_normal((1, 2, 3, 4)).astype(np.float32)
    for sizes in ((5, 2), (1, 2)):
        want = op.reference(x, **{**attrs, "sizes": sizes})
        np.testing.assert_array_equal(op.reference(x, np.int32(sizes), **attrs), want)
    with pytest.raises(GraphError, match=r"spatial sizes must be positive, got \[0, 2\]"):
        op.reference(x, np.int32([0, 2]), **attrs)


def test_channels_last_and_half_precision(run):
    x = rng.standard_normal((1, 4, 5, 3)).astype(np.float32)
    want = run("interpolate", np.moveaxis(x, -1, 1), mode="linear", sizes=[3, 7], **NCX)
    np.testing.assert_array_equal(np.moveaxis(run("interpolate", x, mode="linear", sizes=[3, 7]), -1, 1), want)
    for dtype in ("bf16", "f16"):
        half = x.astype(DTYPES[dtype].numpy)
        wide = run("interpolate", half.astype(np.float32), mode="linear", sizes=[3, 7])
        np.testing.assert_array_equal(run("interpolate", half, mode="linear", sizes=[3, 7]), wide.astype(half.dtype))


def test_infinities_stay_alone(run):
    x = np.float32([[[1, np.inf, 2, 3]]])
    got = run("interpolate", x, mode="linear", sizes=[4], **NCX)
    np.testing.assert_array_equal(got, x)


@pytest.mark.parametrize("types, attrs, want", [
    (["f32[?,3,?,8]"], {"sizes": [4, 5], **NCX}, "f32[?,3,4,5]"),
    (["f32[?,?,8,3]"], {"scales": [2, 0.5]}, "f32[?,?,4,3]"),
    (["f16[*]"], {"sizes": [4]}, "f16[?,4,?]"),
    (["f32[1,2,3,4]", "s32[2]"], NCX, "f32[1,2,?,?]"), (["f32[*]", "s32[2]"], NCX, "f32[?,?,?,?]"),
    (["f32[*]", "s32[?]"], NCX, "f32[*]"), (["f32[1,2,3]", "s32[*]"], {}, "f32[1,?,3]"),
    (["f32[1,2,3]", "s32[?]"], {}, "f32[1,?,3]"),
])
def test_types(infer, types, attrs, want):
    assert infer("interpolate", *types, mode="linear", **attrs) == want


@pytest.mark.parametrize("types, attrs, match", [
    (["f32[1,2,3]"], {}, "exactly one of sizes, scales and the operand .* got none"),
    (["f32[1,2,3]"], {"sizes": [1], "scales": [1]}, "got sizes and scales"),
    (["f32[1,2,3]", "s32[1]"], {"sizes": [1]}, "got sizes and sizes_tensor"),
    (["f32[1,2,3]"], {"sizes": [1, 2]}, r"sizes must have one value per spatial axis of f32\[1,2,3\], got \[1, 2\]"),
    (["f32[1,2]"], {"sizes": [1]}, "sizes must have one value per spatial axis"),
    (["f32[3]", "s32[*]"], {}, "sizes_tensor must have one value per spatial axis"),
    (["f32[1,0,3]"], {"sizes": [2]}, r"spatial sizes must be positive, got \[2\] for f32\[1,0,3\]"),
    (["f32[1,1,3]"], {"scales": [2.0**31]}, "sizes below"),
    (["f32[1,2,3]"], {"sizes": [0]}, r"spatial sizes must be positive, got \[0\]"),
    (["f32[1,2,3]"], {"scales": [0.1], **NCX}, r"spatial sizes must be positive, got \[0\]"),
    (["f32[1,2,3]"], {"scales": [-1.0]}, "scales must be finite and positive"),
    (["f32[1,2,3]"], {"scales": [1e30]}, "sizes below"),
    (["f32[1,2,3]", "f32[1]"], {}, "'sizes_tensor' must be s32, got f32"),
    (["f32[1,2,3]", "s32[2]"], {}, r"sizes_tensor must have one value per spatial axis of f32\[1,2,3\], got s32\[2\]"),
    (["f32[1,2,3]", "s32[]"], {}, "'sizes_tensor' must be one-dimensional"),
])
def test_rules(infer, types, attrs, match):
    with pytest.raises(GraphError, match=match):
        infer("interpolate", *types, mode="linear", **attrs)


def test_memory_counts_before_it_is_taken():
    with budget(64 * 5):
        assert elements(3, 5, "nearest", "half_pixel")[0].size == 5
    with budget(64 * 5 - 1), pytest.raises(CompileError, match="the places of 5 elements among 3"):
        elements(3, 5, "nearest", "half_pixel")

"""grid_sample: places by hand along one axis, two axes against ONNX's evaluator, and its types."""
import numpy as np
import pytest

from graphq.errors import GraphError

LINE = np.float32([10, 20, 40, 80]).reshape(1, 1, 4)


def along(run, places, **attrs):
    """Values at places in units of elements, 0 the first."""
    places = np.float32(places)
    n = places * 2 / 3 - 1 if attrs.get("align_corners") else (places * 2 + 1) / 4 - 1
    return run("grid_sample", LINE, n.reshape(1, -1, 1).astype(np.float32), **attrs)[0, 0].round(4).tolist()


@pytest.mark.parametrize("align", [False, True])
def test_places_inside(run, align):
    assert along(run, [0, 0.5, 1.25, 3], align_corners=align) == pytest.approx([10, 15, 25, 80], abs=1e-3)
    assert along(run, [0.25, 0.75, 2.75], mode="nearest", align_corners=align) == [10, 20, 80]
    # Keys' cubic with a = -0.75: half a step has weights -3/32, 19/32, 19/32, -3/32
    want = (19 * (20 + 40) - 3 * (10 + 80)) / 32
    assert along(run, [1.5], mode="cubic", align_corners=align) == pytest.approx([want], abs=1e-2)


def test_places_outside(run):
    for align in (False, True):
        assert along(run, [-2, -0.5, 3.5, 6], align_corners=align) == pytest.approx([0, 5, 40, 0], abs=1e-3)
        assert along(run, [-2, -0.5, 3.5, 6], padding_mode="border", align_corners=align) == pytest.approx(
            [10, 10, 80, 80], abs=1e-3)
    # mirrored at the edges of the first and last element, or at their centers
    attrs = {"mode": "nearest", "padding_mode": "reflection"}
    assert along(run, [-1, -2, -4, -5, 4, 5, 7, 8, 12], **attrs) == [10, 20, 80, 80, 80, 40, 10, 10, 80]
    assert along(run, [-1, -2, -3, -4, 4, 5, 6, 7], align_corners=True, **attrs) == [20, 40, 80, 40, 40, 20, 10, 20]


@pytest.mark.parametrize("mode, padding", [("linear", "zeros"), ("linear", "border"), ("nearest", "zeros"),
                                           ("nearest", "border"), ("cubic", "zeros")])
def test_the_last_axis_comes_first_in_the_grid(run, onnx_node, mode, padding):
    rng = np.random.default_rng(1)
    src, grid = rng.standard_normal((2, 3, 4, 7)), rng.uniform(-1.2, 1.2, (2, 5, 6, 2))
    src, grid = src.astype(np.float32), grid.astype(np.float32)
    got = run("grid_sample", src, grid, mode=mode, padding_mode=padding)
    want = onnx_node("GridSample", [src, grid], mode=mode, padding_mode=padding)
    assert got.shape == (2, 3, 5, 6)
    np.testing.assert_allclose(got, want, atol=1e-4)


def test_types(infer):
    assert infer("grid_sample", "f32[2,3,4,5]", "f32[2,6,7,2]") == "f32[2,3,6,7]"
    assert infer("grid_sample", "f16[?,3,4]", "f16[2,6,?]") == "f16[2,3,6]"
    assert infer("grid_sample", "f32[*]", "f32[2,6,7,8,3]") == "f32[2,?,6,7,8]"
    assert infer("grid_sample", "f32[2,3,4,5]", "f32[*]") == "f32[*]"
    for src, grid in (("f32[2,3,4,5]", "f32[1,6,7,2]"), ("f32[2,3,4,5]", "f32[2,6,7,3]"), ("f32[2,3]", "f32[2,0]"),
                      ("f32[2,3,4,5]", "f32[2,6,2]"), ("f32[2,3,0,5]", "f32[2,6,7,2]"), ("s32[2,3,4]", "s32[2,6,1]"),
                      ("f32[2,3,4]", "f16[2,6,1]"), ("f32[2,3,4]", "f32[]")):
        with pytest.raises(GraphError):
            infer("grid_sample", src, grid)

"""gather, slice, pad and expand: numbers of each axis by NumPy's indexing, clamped ends, and what is refused."""
import numpy as np
import pytest

from graphq.errors import GraphError, InputError
from graphq.ops.move import bounds

X = np.arange(60, dtype=np.int32).reshape(3, 4, 5)
POSITIONS = (-9, -6, -5, -3, -1, 0, 1, 2, 4, 5, 7)


@pytest.mark.parametrize("axis", [0, 1, 2, -1, -3])
@pytest.mark.parametrize("indices", [np.array(-1), np.array([0, -3, 2]), np.array([[1, -2], [0, 1]], np.int32)])
def test_gather(run, axis, indices):
    np.testing.assert_array_equal(run("gather", X, indices, axis=axis), np.take(X, indices, axis=axis))


@pytest.mark.parametrize("axis, index", [(0, 3), (0, -4), (1, 4), (-1, -6), (-1, 5)])
def test_indices_outside_of_their_axis(run, axis, index):
    size = X.shape[axis]
    with pytest.raises(InputError, match=rf"in \[{-size}, {size - 1}\] for axis {axis} of shape .*, got {index}$"):
        run("gather", X, np.array([0, index]), axis=axis)
    run("gather", X, np.array([size - 1, -size]), axis=axis)


@pytest.mark.parametrize("step", [1, 2, 3, -1, -2, -7])
def test_slices_are_those_of_python(run, step):
    """Of all starts and ends, inside and beyond either side."""
    x = np.arange(5)
    for start in POSITIONS:
        for end in POSITIONS:
            got = run("slice", x, axes=[0], starts=[start], ends=[end], steps=[step])
            if step < 0 and start < -5:  # ONNX clamps a start to an element, Python to before the first
                assert bounds(5, start, end, step)[0] == 0
                continue
            np.testing.assert_array_equal(got, x[start:end:step], f"[{start}:{end}:{step}]")


def test_slices_of_several_axes(run):
    got = run("slice", X, axes=[-1, 0], starts=[4, 1], ends=[-99, 99], steps=[-2, 1])
    np.testing.assert_array_equal(got, X[1:, :, ::-2])
    assert run("slice", X, axes=[1], starts=[2], ends=[1], steps=[1]).shape == (3, 0, 5)


@pytest.mark.parametrize("attrs", [
    {"axes": [0], "starts": [0], "ends": [1], "steps": [0]}, {"axes": [0, 1], "starts": [0], "ends": [1], "steps": [1]},
    {"axes": [0], "starts": [0], "ends": [1, 2], "steps": [1]}, {"axes": [0], "starts": [0], "ends": [1], "steps": []},
    {"axes": [0, -3], "starts": [0, 0], "ends": [1, 1], "steps": [1, 1]},
    {"axes": [3], "starts": [0], "ends": [1], "steps": [1]}])
def test_what_slice_refuses(infer, attrs):
    with pytest.raises(GraphError):
        infer("slice", "f32[3,4,5]", **attrs)


@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "wrap"])
@pytest.mark.parametrize("begin, end", [([1, 0, 2], [0, 1, 2]), ([0, -1, 0], [0, 0, -2]), ([2, -1, -1], [-1, 2, 1]),
                                        ([0, 0, 0], [0, 0, 0])])
def test_pads(run, mode, begin, end):
    kept = X[tuple(slice(max(-b, 0), n - max(-e, 0)) for n, b, e in zip(X.shape, begin, end, strict=True))]
    widths = [(max(b, 0), max(e, 0)) for b, e in zip(begin, end, strict=True)]
    want = np.pad(kept, widths, mode=mode, **({"constant_values": 9} if mode == "constant" else {}))
    np.testing.assert_array_equal(run("pad", X, pads_begin=begin, pads_end=end, mode=mode, value=9.0), want)


def test_what_pad_refuses(infer, run):
    for begin, end in (([1, 0], [0, 0, 0]), ([0, 0, 0], [1, 0]), ([-2, 0, 0], [-2, 0, 0])):
        with pytest.raises(GraphError):
            infer("pad", "f32[3,4,5]", pads_begin=begin, pads_end=end)
    assert infer("pad", "f32[3,4,5]", pads_begin=[-1, 0, 0], pads_end=[-2, 0, 0]) == "f32[0,4,5]"
    for begin, end in (([-3, 0, 0], [1, 0, 0]), ([1, 0, 0], [-3, 0, 0])):
        for mode in ("edge", "reflect", "wrap"):
            with pytest.raises(GraphError, match=f"mode {mode} has no element to repeat along axis 0"):
                infer("pad", "f32[3,4,5]", pads_begin=begin, pads_end=end, mode=mode)
        assert infer("pad", "f32[3,4,5]", pads_begin=begin, pads_end=end) == "f32[1,4,5]"
    assert infer("pad", "f32[*]", pads_begin=[1, 0], pads_end=[0, 0]) == "f32[?,?]"
    assert run("pad", np.array(3), pads_begin=[], pads_end=[]) == 3


def test_expand(run, infer):
    np.testing.assert_array_equal(run("expand", X[:, :1], shape=[2, 1, 4, 1]),
                                  np.broadcast_to(X[:, :1], (2, 3, 4, 5)))
    assert infer("expand", "u4[?,1]", shape=[7]) == "u4[?,7]" and infer("expand", "f32[2,1]", shape=[0]) == "f32[2,0]"
    for shape in ([-1], [3, 4]):
        with pytest.raises(GraphError):
            infer("expand", "f32[2,5]", shape=shape)

"""non_max_suppression against a loop over pairs, at its limits, and its rules."""
import numpy as np
import pytest

from graphq.dtypes import f32, s32, s64
from graphq.errors import GraphError
from graphq.ir import TensorType
from graphq.ir.op import lookup
from graphq.ops.pick import infer_non_max_suppression

non_max_suppression = lookup("non_max_suppression").reference


def corners(box, center):
    a, b, c, d = box
    if center:
        return a - c / 2, b - d / 2, a + c / 2, b + d / 2
    return min(a, c), min(b, d), max(a, c), max(b, d)


def overlap(p, q):
    """Intersection over union of two boxes as corners; 0 where one has no area."""
    areas = [(x[2] - x[0]) * (x[3] - x[1]) for x in (p, q)]
    sides = [min(p[k + 2], q[k + 2]) - max(p[k], q[k]) for k in range(2)]
    common = sides[0] * sides[1] if min(sides) > 0 else 0.0
    return common / (sum(areas) - common) if min(areas) > 0 and sum(areas) > common else 0.0


def by_loops(boxes, scores, most, iou, least, center):
    out = []
    for i, (own, classes) in enumerate(zip(boxes, scores, strict=True)):
        for k, row in enumerate(classes):
            kept = []
            for n in sorted(range(len(row)), key=lambda n: (-row[n], n)):
                if (least is None or row[n] > least) and len(kept) < most and all(
                        overlap(corners(own[n], center), corners(own[m], center)) <= iou for m in kept):
                    kept.append(n)
            out += [(i, k, n) for n in kept]
    return np.array(out, np.int64).reshape(-1, 3)


@pytest.mark.parametrize("size", [1, 1 / 64])
@pytest.mark.parametrize("center", [False, True])
@pytest.mark.parametrize("most, iou, least", [(3, 0.5, 0.0), (100, 0.1, None), (100, 0.0, 0.5), (2, 1.0, None),
                                              (0, 0.5, None)])
def test_picked_boxes(size, center, most, iou, least):
    rng = np.random.default_rng(0)
    boxes = rng.integers(0, 12, (2, 20, 4)).astype(np.float32) * np.float32(size)
    scores = np.round(rng.normal(size=(2, 3, 20)), 1).astype(np.float32)  # some are equal
    operands = [np.array(most), np.float32([iou]), None if least is None else np.float32(least)]
    got = non_max_suppression(boxes, scores, *operands, center_point_box=center)
    want = by_loops(boxes.astype(float), scores, most, iou, least, center)
    assert got.dtype == np.int64 and np.array_equal(got, want) and (most == 0) == (len(got) == 0)


def test_what_is_absent():
    boxes, scores = np.float32([[[0, 0, 2, 2], [0, 0, 2, 1], [5, 5, 6, 6]]]), np.float32([[[1, 2, 3]]])
    assert len(non_max_suppression(boxes, scores, center_point_box=False)) == 0
    assert non_max_suppression(boxes, scores, np.array([9])).tolist() == [[0, 0, 2], [0, 0, 1]]
    assert non_max_suppression(boxes, scores, np.array(9), np.float32(0.5)).tolist() == [[0, 0, k] for k in (2, 1, 0)]
    assert non_max_suppression(boxes, scores, np.array(9), np.float32(0.49)).tolist() == [[0, 0, 2], [0, 0, 1]]
    assert non_max_suppression(boxes, scores, np.array(9), None, np.float32(2)).tolist() == [[0, 0, 2]]
    flat = np.float32([[[0, 0, 0, 5], [0, 0, 0, 5], [3, 1, 1, 3]]])
    assert len(non_max_suppression(flat, scores, np.array(9))) == 3  # boxes without area overlap nothing


def infer(boxes=(2, 5, 4), scores=(2, 3, 5), **more):
    return infer_non_max_suppression(TensorType(f32, boxes), TensorType(f32, scores), center_point_box=False, **more)


def test_types():
    for boxes, scores in (((2, 5, 4), (2, 3, 5)), ((None, 5, None), (2, 3, None)), (None, (1, 2, 3)),
                          ((1, 2, 4), None)):
        assert infer(boxes, scores) == TensorType(s64, (None, 3))
    for boxes, scores in (((2, 5, 4), (1, 3, 5)), ((2, 5, 4), (2, 3, 6)), ((2, 5, 3), (2, 3, 5)), ((5, 4), (2, 3, 5)),
                          ((2, 5, 4), (3, 5))):
        with pytest.raises(GraphError, match=r"boxes must be \[N, boxes, 4\] and scores \[N, classes, boxes\], got"):
            infer(boxes, scores)
    infer(most=TensorType(s64, ()), iou_threshold=TensorType(f32, (1,)), score_threshold=TensorType(f32, None))
    infer(most=TensorType(s64, (None,)))
    for name, type, message in (("most", TensorType(s32, ()), "'most' must be s64"),
                                ("most", TensorType(s64, (2,)), "'most' must be one number"),
                                ("iou_threshold", TensorType(s64, ()), "'iou_threshold' must be f32"),
                                ("score_threshold", TensorType(f32, (1, 1)), "'score_threshold' must be one number")):
        with pytest.raises(GraphError, match=message):
            infer(**{name: type})


BOXES = np.float32([[[0, 0, 1, 1], [0, 0.1, 1, 1.1], [2, 1, 1, 0], [0, 0, 0, 1], [0.5, 0, 1.5, 1]]])
SCORES = np.float32([[[0.9, 0.75, 0.6, 0.95, 0.9]]])


@pytest.mark.parametrize("most, overlap, least, picked", [
    (9, 0.5, None, [3, 0, 4, 2]), (9, 0.9, None, [3, 0, 4, 1, 2]), (9, 0, None, [3, 0, 2]), (2, 0.5, None, [3, 0]),
    (9, None, None, [3, 0, 2]), (9, 0.5, 0.6, [3, 0, 4]), (9, 0.5, 0.9, [3]), (0, 0.5, None, []),
    (None, 0.5, None, []), (9, 1 / 3 - 1e-6, None, [3, 0, 2]), (9, 1 / 3 + 1e-6, None, [3, 0, 4, 2])])
def test_boxes_picked_by_hand(most, overlap, least, picked):
    """Of equal scores the first; a box without an area overlaps with none, boxes that touch do not; corners in any
    order."""
    options = [None if x is None else dtype(x).reshape(1) for x, dtype in
               ((most, np.int64), (overlap, np.float32), (least, np.float32))]
    assert non_max_suppression(BOXES, SCORES, *options).tolist() == [[0, 0, k] for k in picked]


def test_boxes_by_their_centers_in_each_image_and_class():
    centers = np.float32([[[0, 0, 2, 2], [0.5, 0, 2, 2], [5, 0, 2, 2]], [[0, 0, 2, 2], [0, 3, 2, 2], [0, 0, 2, 2]]])
    scores = np.float32([[[1, 2, 3], [3, 2, 1]], [[1, 1, 2], [0, 5, 0]]])
    got = non_max_suppression(centers, scores, np.array(2), np.float32(0.5), center_point_box=True)
    assert got.tolist() == [[0, 0, 2], [0, 0, 1], [0, 1, 0], [0, 1, 2], [1, 0, 2], [1, 0, 1], [1, 1, 1], [1, 1, 0]]


def test_what_non_max_suppression_refuses(infer):
    assert infer("non_max_suppression", "f32[1,?,4]", "f32[?,3,7]", "s64[1]", "f32[]") == "s64[?,3]"
    for types in (("f16[1,7,4]", "f32[1,3,7]"), ("f32[1,7,5]", "f32[1,3,7]"), ("f32[1,7,4]", "f32[1,3,8]"),
                  ("f32[1,7,4]", "f32[2,3,7]"), ("f32[7,4]", "f32[1,3,7]"), ("f32[1,7,4]", "f32[1,7]"),
                  ("f32[1,7,4]", "f32[1,3,7]", "s32[]"), ("f32[1,7,4]", "f32[1,3,7]", "s64[2]"),
                  ("f32[1,7,4]", "f32[1,3,7]", None, "f32[2]"), ("f32[1,7,4]", "f32[1,3,7]", None, None, "f64[]")):
        with pytest.raises(GraphError):
            infer("non_max_suppression", *types)

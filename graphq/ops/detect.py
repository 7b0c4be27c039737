"""Operations of object detectors."""
from __future__ import annotations

import numpy as np

from graphq.dtypes import f32, s64
from graphq.errors import GraphError
from graphq.ir import TensorType
from graphq.ir.op import register_op
from graphq.ops.rules import ONE, Array, expect_dtype, quiet, show


def infer_non_max_suppression(boxes: TensorType, scores: TensorType, most: TensorType | None = None,
                              iou_threshold: TensorType | None = None, score_threshold: TensorType | None = None, *,
                              center_point_box: bool) -> TensorType:
    """Boxes are f32 [N, boxes, 4], scores f32 [N, classes, boxes], `most` s64. The number of results is unknown."""
    for name, t, dtype in (("boxes", boxes, f32), ("scores", scores, f32), ("most", most, s64),
                           ("iou_threshold", iou_threshold, f32), ("score_threshold", score_threshold, f32)):
        if t is not None:
            expect_dtype(name, t, (dtype,))
            if name not in ("boxes", "scores") and t.shape not in ONE:
                raise GraphError(f"'{name}' must be one number, got {t}")
    if boxes.shape is not None and scores.shape is not None:
        b, s = boxes.shape, scores.shape
        if len(b) != 3 or len(s) != 3 or b[2] not in (4, None) or any(
                m is not None and n is not None and m != n for m, n in ((b[0], s[0]), (b[1], s[2]))):
            raise GraphError(f"boxes must be [N, boxes, 4] and scores [N, classes, boxes], got {show(b)} and {show(s)}")
    return TensorType(s64, (None, 3))


@register_op(infer=infer_non_max_suppression, onnx="NonMaxSuppression")
@quiet
def non_max_suppression(boxes: Array, scores: Array, most: Array | None = None, iou_threshold: Array | None = None,
                        score_threshold: Array | None = None, *, center_point_box: bool = False) -> Array:
    """Non-maximum suppression: drop each box that overlaps a better box of its class by more than `iou_threshold`.

    The result has a row (image, class, box) for each kept box (ONNX NonMaxSuppression, in f32 as in ONNX Runtime).
    Within a class, better scores come first; boxes of equal scores keep their order. At most `most` boxes of a class
    are kept, and no boxes if `most` is absent. Boxes with a score of at most `score_threshold` are dropped. A box is
    two opposite corners (y, x, y, x), or with `center_point_box` the center, width and height (x, y, w, h).
    """
    limit = 0 if most is None else int(most.reshape(()))
    overlap = np.float32(0 if iou_threshold is None else iou_threshold.reshape(()))
    picked = []
    for image, (given, classes) in enumerate(zip(boxes, scores, strict=True)):
        corners = _corners(given, center_point_box)
        for k, row in enumerate(classes):
            left = np.arange(len(row)) if score_threshold is None else \
                np.flatnonzero(row > score_threshold.reshape(()))
            left = left[np.argsort(-row[left], kind="stable")]
            rest = corners[:, left]
            for _ in range(limit):
                if not len(left):
                    break
                picked.append((image, k, left[0]))
                apart = ~(_overlaps(rest[:, :1], rest[:, 1:]) > overlap)
                left, rest = left[1:][apart], rest[:, 1:][:, apart]
    return np.array(picked, np.int64).reshape(-1, 3)


def _corners(boxes: Array, center: bool) -> Array:
    """The two least coordinates, the two greatest coordinates, and the area of each box: [5, boxes]."""
    a, b, c, d = boxes.T
    low, high = ([a - c / 2, b - d / 2], [a + c / 2, b + d / 2]) if center else \
        ([np.minimum(a, c), np.minimum(b, d)], [np.maximum(a, c), np.maximum(b, d)])
    return np.stack([*low, *high, (high[0] - low[0]) * (high[1] - low[1])])


def _overlaps(box: Array, others: Array) -> Array:
    """Intersection over union of a box with each other box. It is 0 if an area is not positive."""
    sides = np.minimum(others[2:4], box[2:4]) - np.maximum(others[:2], box[:2])
    common = np.where((sides > 0).all(axis=0), sides[0] * sides[1], np.float32(0))
    union = others[4] + box[4] - common
    return np.where((others[4] > 0) & (box[4] > 0) & (union > 0), common / union, np.float32(0))

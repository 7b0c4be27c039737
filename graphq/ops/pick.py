"""ONNX operations that pick or replace elements by value or index, or pick the boxes of an object detector."""
from collections.abc import Callable
from typing import Literal

import numpy as np

from graphq.dtypes import f32, s32, s64
from graphq.errors import GraphError, InputError
from graphq.ir import Dim, TensorType, register_op
from graphq.ops import rules
from graphq.ops.arithmetic import CASTABLE
from graphq.ops.rules import Array, show

INDICES = (s32, s64)
COMBINE = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}


def infer_arg(src: TensorType, *, axis: int, keep_dims: bool, select_last_index: bool) -> TensorType:
    """The result is s64. The axis has size 1, or is left out without `keep_dims`."""
    rules.expect_dtype("src", src, CASTABLE)
    found = rules.with_axis(src, axis, *((1,) if keep_dims else ()))
    if src.shape is not None and src.shape[axis] == 0:
        raise GraphError(f"axis {axis} of {src} has no elements")
    return TensorType(s64, found.shape)


def _arg(find: Callable[..., Array], src: Array, axis: int, keep_dims: bool, last: bool) -> Array:
    """Find the extreme elements' indices. NaN counts as the extreme, as in numpy.argmax."""
    places = find(np.flip(src, axis) if last else src, axis=axis, keepdims=keep_dims)
    return np.asarray(src.shape[axis] - 1 - places if last else places, np.int64)


@register_op(computes=False, infer=infer_arg, rows="along", onnx="ArgMax")
def arg_max(src: Array, *, axis: int = 0, keep_dims: bool = True, select_last_index: bool = False) -> Array:
    """The index of the greatest element along `axis` (ONNX ArgMax): the first or the last of equal elements."""
    return _arg(np.argmax, src, axis, keep_dims, select_last_index)


@register_op(computes=False, infer=infer_arg, rows="along", onnx="ArgMin")
def arg_min(src: Array, *, axis: int = 0, keep_dims: bool = True, select_last_index: bool = False) -> Array:
    """The index of the least element along `axis` (ONNX ArgMin): the first or the last of equal elements."""
    return _arg(np.argmin, src, axis, keep_dims, select_last_index)


def infer_top_k(src: TensorType, *, k: int, axis: int, largest: bool) -> tuple[TensorType, TensorType]:
    """The results are `k` elements along the axis, and their s64 indices."""
    rules.expect_dtype("src", src, CASTABLE)
    found = rules.with_axis(src, axis, k)
    size = None if src.shape is None else src.shape[axis]
    if src.shape is not None and (k < 0 or size is not None and k > size):
        raise GraphError(f"k must be in [0, {size}] for axis {axis} of {src}, got {k}")
    return found, TensorType(s64, found.shape)


@register_op(computes=False, infer=infer_top_k, rows="along", onnx="TopK")
def top_k(src: Array, *, k: int, axis: int = -1, largest: bool = True) -> tuple[Array, Array]:
    """The `k` greatest or least elements along `axis`, sorted stably, and their indices (ONNX TopK, sorted=1)."""
    if largest:  # sort the flipped array and read it backwards, so that equal elements keep their order
        order = src.shape[axis] - 1 - np.flip(np.argsort(np.flip(src, axis), axis=axis, kind="stable"), axis)
    else:
        order = np.argsort(src, axis=axis, kind="stable")
    first = np.take(order, np.arange(k), axis=axis).astype(np.int64)
    return np.take_along_axis(src, first, axis), first


@register_op(infer=rules.unary_rule(CASTABLE), rows="along", onnx="CumSum")
def cum_sum(src: Array, *, axis: int, exclusive: bool = False, reverse: bool = False) -> Array:
    """Cumulative sums along `axis`, in the dtype of `src` (ONNX CumSum).

    Each sum is the previous sum plus an element. With `exclusive`, a sum leaves out the element at its own index;
    `reverse` starts at the end.
    """
    return _cumulative(np.cumsum, 0, src, axis, exclusive, reverse)


@register_op(infer=rules.unary_rule(CASTABLE), rows="along", onnx="CumProd")
def cum_prod(src: Array, *, axis: int, exclusive: bool = False, reverse: bool = False) -> Array:
    """Cumulative products along `axis`, in the dtype of `src` (ONNX CumProd); attributes as in `cum_sum`."""
    return _cumulative(np.cumprod, 1, src, axis, exclusive, reverse)


def _cumulative(f: Callable[..., Array], start: int, src: Array, axis: int, exclusive: bool, reverse: bool) -> Array:
    x = np.flip(src, axis) if reverse else src
    if exclusive:
        x = np.take(np.insert(x, 0, start, axis=axis), np.arange(src.shape[axis]), axis=axis)
    x = f(x, axis=axis, dtype=src.dtype)
    return np.asarray(np.flip(x, axis) if reverse else x)


def infer_gather_elements(src: TensorType, indices: TensorType, *, axis: int) -> TensorType:
    """The result has the shape of `indices`. `indices` and `src` have the same rank."""
    rules.expect_dtype("indices", indices, INDICES)
    _check_elements(src, indices, axis)
    return TensorType(src.dtype, indices.shape)


def _check_elements(src: TensorType, indices: TensorType, axis: int) -> None:
    if src.shape is None:
        return
    k = rules.normal_axis(axis, src.shape)
    if indices.shape is not None and (len(indices.shape) != len(src.shape) or any(
            a is not None and b is not None and a > b
            for d, (a, b) in enumerate(zip(indices.shape, src.shape, strict=False)) if d != k)):
        raise GraphError(f"indices must have the rank of src and fit into {src}, got {indices}")


def inside(indices: Array, size: int | Array, where: str) -> Array:
    """Make negative indices count from the front. Raises InputError for an index outside of [-size, size)."""
    limit = np.asarray(size)
    if ((indices < -limit) | (indices >= limit)).any():
        raise InputError(f"{where}: indices must be in [-n, n) with n = {limit.tolist()}, got from {indices.min()} to "
                         f"{indices.max()}")
    return np.where(indices < 0, indices + limit, indices)


def _along(indices: Array, src: Array, axis: int, where: str) -> Array:
    """The positions in the flattened `src` of the elements at `indices` along `axis`."""
    steps = np.cumprod((1, *src.shape[:0:-1]))[::-1]
    places = inside(indices, src.shape[axis], where) * steps[axis]
    for k, (size, step) in enumerate(zip(indices.shape, steps, strict=True)):
        if k != axis % src.ndim:
            places += (np.arange(size) * step).reshape(-1, *[1] * (src.ndim - k - 1))
    return places


@register_op(computes=False, infer=infer_gather_elements, onnx="GatherElements")
def gather_elements(src: Array, indices: Array, *, axis: int = 0) -> Array:
    """`src` at each index along `axis`, and at the index's own position on other axes (ONNX GatherElements)."""
    return src.reshape(-1)[_along(indices, src, axis, "gather_elements")]


def infer_gather_nd(src: TensorType, indices: TensorType, *, batch_dims: int) -> TensorType:
    """The result's shape: the indices' shape without its last dimension, then the dimensions that are not indexed."""
    rules.expect_dtype("indices", indices, INDICES)
    if src.shape is None or indices.shape is None:
        return TensorType(src.dtype, None)
    depth: Dim = indices.shape[-1] if indices.shape else None
    limit = min(len(src.shape), len(indices.shape) - 1)
    if not indices.shape or not 0 <= batch_dims <= limit \
            or depth is not None and not 1 <= depth <= len(src.shape) - batch_dims:
        raise GraphError(f"batch_dims {batch_dims} and indices {indices} do not fit {src}")
    if depth is None:
        return TensorType(src.dtype, None)
    return TensorType(src.dtype, (*indices.shape[:-1], *src.shape[batch_dims + depth:]))


@register_op(computes=False, infer=infer_gather_nd, onnx="GatherND")
def gather_nd(src: Array, indices: Array, *, batch_dims: int = 0) -> Array:
    """Elements or slices of `src` at index tuples (ONNX GatherND). The first `batch_dims` axes are batches."""
    batch, depth = src.shape[:batch_dims], indices.shape[-1]
    if indices.shape[:batch_dims] != batch:
        raise GraphError(f"gather_nd: the first {batch_dims} dimensions of {show(src.shape)} and {show(indices.shape)} "
                         "must be equal")
    own = inside(indices, np.asarray(src.shape[batch_dims:batch_dims + depth]), "gather_nd")
    grids = np.meshgrid(*map(np.arange, batch), indexing="ij") if batch else []
    more = [1] * (indices.ndim - 1 - batch_dims)
    return np.asarray(src[(*(g.reshape(*batch, *more) for g in grids), *np.moveaxis(own, -1, 0))])


def infer_scatter_elements(src: TensorType, indices: TensorType, updates: TensorType, *, axis: int,
                           reduction: str) -> TensorType:
    """The result has the type of `src`. Updates have the shape of the indices."""
    rules.expect_dtype("indices", indices, INDICES)
    rules.expect_same_dtype(src=src, updates=updates)
    _check_elements(src, indices, axis)
    return src


@register_op(infer=infer_scatter_elements, onnx="ScatterElements")
def scatter_elements(src: Array, indices: Array, updates: Array, *, axis: int = 0,
                     reduction: Literal["none", "add", "mul", "max", "min"] = "none") -> Array:
    """`src` with `updates` at `indices` along `axis` (ONNX ScatterElements), combined in order by `reduction`."""
    if updates.shape != indices.shape:
        raise GraphError(f"scatter_elements: updates {show(updates.shape)} must have the shape of the indices, "
                         f"{show(indices.shape)}")
    places = _along(indices, src, axis, "scatter_elements")
    # `ufunc.at` is several times faster on flat arrays.
    flat = _placed(src.reshape(-1), (places.reshape(-1),), updates.reshape(-1), reduction)
    return flat.reshape(src.shape)


def _placed(src: Array, places: tuple[Array, ...], updates: Array, reduction: str) -> Array:
    out = src.copy()
    if reduction == "none":
        out[places] = updates
    else:
        COMBINE[reduction].at(out, places, updates)
    if reduction in ("max", "min"):  # of several zeros the last, as in `larger`
        zeros, last = updates == 0, src.copy()
        last.reshape(-1)[np.arange(src.size).reshape(src.shape)[places][zeros]] = updates[zeros]
        out = np.where(out == 0, last, out)
    return out


def infer_scatter_nd(src: TensorType, indices: TensorType, updates: TensorType, *, reduction: str) -> TensorType:
    """The result has the type of `src`."""
    rules.expect_dtype("indices", indices, INDICES)
    rules.expect_same_dtype(src=src, updates=updates)
    depth = indices.shape[-1] if indices.shape else None
    if indices.shape == () or depth == 0 or src.shape is not None and depth is not None and depth > len(src.shape):
        raise GraphError(f"indices {indices} do not fit {src}")
    return src


@register_op(infer=infer_scatter_nd, onnx="ScatterND")
def scatter_nd(src: Array, indices: Array, updates: Array, *,
               reduction: Literal["none", "add", "mul", "max", "min"] = "none") -> Array:
    """`src` with `updates` (elements or slices) at index tuples, combined by `reduction` (ONNX ScatterND)."""
    depth = indices.shape[-1]
    if updates.shape != (*indices.shape[:-1], *src.shape[depth:]):
        raise GraphError(f"scatter_nd: updates must be {show((*indices.shape[:-1], *src.shape[depth:]))}, got "
                         f"{show(updates.shape)}")
    own = inside(indices, np.asarray(src.shape[:depth]), "scatter_nd")
    return _placed(src, tuple(np.moveaxis(own, -1, 0)), updates, reduction)


def infer_trilu(src: TensorType, *, upper: bool, k: int) -> TensorType:
    """`src` has at least two dimensions, and the result has the type of `src`."""
    if src.shape is not None and len(src.shape) < 2:
        raise GraphError(f"needs at least two dimensions, got {src}")
    return src


@register_op(computes=False, infer=infer_trilu, onnx="Trilu")
def trilu(src: Array, *, upper: bool = True, k: int = 0) -> Array:
    """The triangle of each matrix from diagonal `k` upwards or downwards; other elements become 0 (ONNX Trilu)."""
    rows, columns = (np.arange(n) for n in src.shape[-2:])
    places = columns - rows[:, None]
    return np.where(places >= k if upper else places <= k, src, np.zeros((), src.dtype))


def infer_non_max_suppression(boxes: TensorType, scores: TensorType, most: TensorType | None = None,
                              iou_threshold: TensorType | None = None, score_threshold: TensorType | None = None, *,
                              center_point_box: bool) -> TensorType:
    """Boxes are f32 [N, boxes, 4], scores f32 [N, classes, boxes], `most` s64. The number of results is unknown."""
    for name, t, dtype in (("boxes", boxes, f32), ("scores", scores, f32), ("most", most, s64),
                           ("iou_threshold", iou_threshold, f32), ("score_threshold", score_threshold, f32)):
        if t is not None:
            rules.expect_dtype(name, t, (dtype,))
            if name not in ("boxes", "scores") and t.shape not in rules.ONE:
                raise GraphError(f"'{name}' must be one number, got {t}")
    if boxes.shape is not None and scores.shape is not None:
        b, s = boxes.shape, scores.shape
        if len(b) != 3 or len(s) != 3 or b[2] not in (4, None) or any(
                m is not None and n is not None and m != n for m, n in ((b[0], s[0]), (b[1], s[2]))):
            raise GraphError(f"boxes must be [N, boxes, 4] and scores [N, classes, boxes], got {show(b)} and {show(s)}")
    return TensorType(s64, (None, 3))


@register_op(infer=infer_non_max_suppression, onnx="NonMaxSuppression")
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
            left = np.arange(len(row)) if score_threshold is None else np.flatnonzero(row > score_threshold.reshape(()))
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
    """Intersection over union of a box with each other box. It is 0 if an area is not positive: then `common` is 0."""
    sides = np.minimum(others[2:4], box[2:4]) - np.maximum(others[:2], box[:2])
    common = np.where((sides > 0).all(axis=0), sides[0] * sides[1], np.float32(0))
    union = others[4] + box[4] - common
    return np.where(union > 0, common / union, np.float32(0))

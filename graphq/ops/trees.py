"""The operation trees: an ensemble of decision trees."""
from __future__ import annotations

from collections.abc import Callable

import numpy as np

from graphq.dtypes import boolean, f32, f64, s64, u8
from graphq.errors import GraphError
from graphq.ir import TensorType
from graphq.ir.op import register_op
from graphq.ops.rules import Array, expect_dtype, quiet, show

COMPARE: tuple[Callable[[Array, Array], Array], ...] = (
    np.less_equal, np.less, np.greater_equal, np.greater, np.equal, np.not_equal)
"""The comparisons of tree nodes, by the mode numbers of ONNX TreeEnsemble."""

BLOCK = 1 << 18
"""The largest number of (row, tree) pairs that are processed at a time."""


def infer_trees(src: TensorType, feature: TensorType, split: TensorType, mode: TensorType, missing: TensorType,
                true: TensorType, false: TensorType, roots: TensorType, weights: TensorType, base: TensorType, *,
                depth: int) -> TensorType:
    """src is f32 or f64 [rows, features], weights [nodes, targets], base [targets] and roots [trees].

    The other operands are [nodes].
    """
    expect_dtype("src", src, (f32, f64))
    expect_dtype("weights", weights, (f32, f64))
    expect_dtype("base", base, (weights.dtype,))
    for name, t, dtype in (("feature", feature, s64), ("split", split, split.dtype), ("mode", mode, u8),
                           ("missing", missing, boolean), ("true", true, s64), ("false", false, s64)):
        expect_dtype(name, t, (dtype,))
        if t.shape != feature.shape:
            raise GraphError(f"'{name}' must have one value per node like 'feature', {feature}, got {t}")
    expect_dtype("split", split, (f32, f64))
    expect_dtype("roots", roots, (s64,))
    if src.shape is not None and len(src.shape) != 2 or weights.shape is None or len(weights.shape) != 2:
        raise GraphError(f"src must be [rows, features] and weights [nodes, targets], got {src} and {weights}")
    if base.shape != weights.shape[1:] or feature.shape != weights.shape[:1]:
        raise GraphError(f"weights {weights} must have a row for each node {show(feature.shape)} and a column for "
                         f"each of base {show(base.shape)}")
    return TensorType(weights.dtype, (None if src.shape is None else src.shape[0], weights.shape[1]))


@register_op(infer=infer_trees, rows="images")
@quiet
def trees(src: Array, feature: Array, split: Array, mode: Array, missing: Array, true: Array, false: Array,
          roots: Array, weights: Array, base: Array, *, depth: int) -> Array:
    """Sum decision trees: for each row, `base` plus the weights of its leaf in each tree, in order (ONNX TreeEnsemble).

    At a node, the row's `feature` is compared with `split` (see COMPARE), and the row goes to node `true` or `false`.
    NaN goes to `true` if `missing` is set. A leaf's `true` and `false` are the leaf itself. After `depth` steps all
    rows are at leaves.
    """
    if feature.size and not 0 <= feature.min() <= feature.max() < src.shape[1]:
        raise GraphError(f"trees: features must be in [0, {src.shape[1]}), got from {feature.min()} to {feature.max()}")
    modes = np.unique(mode[true != false])
    rows = max(1, BLOCK // max(1, roots.size))
    parts = [base[None].repeat(0, axis=0)]
    for first in range(0, len(src), rows):
        part = src[first:first + rows]
        at = np.broadcast_to(roots, (len(part), roots.size))
        for _ in range(depth):
            x, limit = np.take_along_axis(part, feature[at], axis=1), split[at]
            goes = np.isnan(x) & missing[at]
            for m in modes:
                hit = COMPARE[m](x, limit)
                goes |= hit if modes.size == 1 else hit & (mode[at] == m)
            at = np.where(goes, true[at], false[at])
        leaves = np.concatenate([np.broadcast_to(base, (len(part), 1, base.size)), weights[at]], axis=1)
        parts.append(np.add.accumulate(leaves, axis=1)[:, -1])
    return np.concatenate(parts)

"""Importers of tree ensembles: ai.onnx.ml's TreeEnsemble, TreeEnsembleRegressor and TreeEnsembleClassifier."""
from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from graphq.dtypes import DType, f32, f64
from graphq.errors import GraphError
from graphq.ir import Value
from graphq.onnx.importers.eltwise import one
from graphq.onnx.importers.importer import Call, Outputs, imports
from graphq.onnx.importers.shape import limited

MODES = {"BRANCH_LEQ": 0, "BRANCH_LT": 1, "BRANCH_GTE": 2, "BRANCH_GT": 3, "BRANCH_EQ": 4, "BRANCH_NEQ": 5, "LEAF": 0}
DEEPEST = 4096
"""The largest number of steps from a root to a leaf; deeper trees and cycles are refused."""


@dataclass
class Forest:
    """The nodes of all trees, as arrays for the operation `trees`; a leaf points to itself."""

    feature: np.ndarray
    split: np.ndarray
    mode: np.ndarray
    missing: np.ndarray
    true: np.ndarray
    false: np.ndarray
    roots: np.ndarray
    weights: np.ndarray
    base: np.ndarray = field(default_factory=lambda: np.zeros(0))

    def value(self, c: Call, x: Value) -> Value:
        """Add the operation `trees` on `x`; returns its result."""
        operands = (self.feature, self.split, self.mode, self.missing, self.true, self.false, self.roots, self.weights,
                    self.base)
        return c.graph.trees(x, *(c.graph.add_constant(np.ascontiguousarray(a)) for a in operands), depth=self.depth(c))

    def depth(self, c: Call) -> int:
        """The largest number of steps from a root to a leaf."""
        count, at = len(self.feature), np.unique(self.roots)
        for name in ("true", "false", "roots"):
            ids = getattr(self, name)
            if ids.size and not 0 <= ids.min() <= ids.max() < count:
                c.refuse(f"trees: node numbers go from {ids.min()} to {ids.max()}, but there are {count} nodes")
        for steps in range(min(count, DEEPEST) + 1):
            at = at[self.true[at] != self.false[at]]
            if not at.size:
                return steps
            at = np.unique(np.concatenate([self.true[at], self.false[at]]))
        c.refuse("trees: the nodes of a tree form a cycle, or the tree is too deep")


def _source(c: Call) -> Value:
    x = c.input(0)
    return x if x.dtype in (f32, f64) else c.graph.cast(x, dtype=f32)


@imports("TreeEnsemble", domain="ai.onnx.ml")
def tree_ensemble(c: Call) -> Outputs:
    """Import TreeEnsemble if leaves are summed, without set membership tests and transforms."""
    a = c.attrs
    modes = np.asarray(a["nodes_modes"], np.uint8)
    _expect_plain(c, c.attr("post_transform", 0), c.attr("aggregate_function", 1) > 1)
    if c.attr("aggregate_function", 1) != 1 or modes.max(initial=0) > 5:
        raise GraphError("graphq supports only trees with summed leaves, without transforms and set membership tests")
    inner, leaves = len(modes), len(a["leaf_targetids"])
    own = np.arange(inner, inner + leaves)
    true, false = (np.where(np.asarray(a[f"nodes_{w}leafs"], bool), inner, 0) + np.asarray(a[f"nodes_{w}nodeids"])
                   for w in ("true", "false"))
    weights = np.zeros(limited((inner + leaves, a["n_targets"]), a["leaf_weights"].dtype), a["leaf_weights"].dtype)
    weights[own, a["leaf_targetids"]] = a["leaf_weights"]
    same = true == false  # both branches lead to the same leaf: the tree has only this leaf
    true, false = np.concatenate([true, own]), np.concatenate([false, own])
    roots = np.asarray(a["tree_roots"])
    roots = np.where(np.append(same, np.zeros(leaves, bool))[roots], true[roots], roots)
    missing = np.asarray(c.attr("nodes_missing_value_tracks_true", [0] * inner), bool)
    rest = np.zeros(leaves, np.int64)
    return Forest(np.append(a["nodes_featureids"], rest).astype(np.int64),
                  np.append(a["nodes_splits"], rest.astype(a["nodes_splits"].dtype)),
                  np.append(modes, rest).astype(np.uint8), np.append(missing, rest).astype(bool),
                  true.astype(np.int64), false.astype(np.int64), roots.astype(np.int64), weights,
                  np.zeros(a["n_targets"], weights.dtype)).value(c, _source(c))


def _expect_plain(c: Call, transform: Any, extreme: bool) -> None:
    if transform not in (0, "NONE") or extreme and c.attr("n_targets") > 1:
        c.refuse("transforms, and a minimum or maximum of several targets, are not supported")


@imports("TreeEnsembleRegressor", domain="ai.onnx.ml")
def tree_ensemble_regressor(c: Call) -> Outputs:
    """Import TreeEnsembleRegressor if leaves are summed, without transforms."""
    aggregate = c.attr("aggregate_function", "SUM")
    _expect_plain(c, c.attr("post_transform", "NONE"), aggregate in ("MIN", "MAX"))
    if aggregate != "SUM":
        raise GraphError("graphq supports only trees with summed leaves")
    return _old(c, "target", c.attr("n_targets")).value(c, _source(c))


@imports("TreeEnsembleClassifier", domain="ai.onnx.ml")
def tree_ensemble_classifier(c: Call) -> Outputs:
    """Import TreeEnsembleClassifier of integer classes: the class of the greatest score, and the scores."""
    classes, transform = c.attr("classlabels_int64s"), c.attr("post_transform", "NONE")
    if not classes or transform not in ("NONE", "SOFTMAX", "LOGISTIC"):
        raise GraphError("graphq supports trees with integer classes and the transforms NONE, SOFTMAX, LOGISTIC")
    ids = set(c.attr("class_ids"))
    if len(classes) < 2 or len(ids) == 1 and (len(classes) > 2 or ids != {0}):
        raise GraphError("graphq supports trees with two or more classes")
    g, scores = c.graph, _old(c, "class", len(classes)).value(c, _source(c))
    if len(ids) == 1:  # only the second class has a score (column 0); it determines the score of the first class
        second = g.slice(scores, axes=[1], starts=[0], ends=[1], steps=[1])
        first = g.subtract(one(second, 1), second) if transform == "NONE" else g.multiply(second, one(second, -1))
        scores = g.concat(first, second, axis=1)
    if transform != "NONE":
        scores = g.softmax(scores, axis=1) if transform == "SOFTMAX" else g.sigmoid(scores)
    best = g.arg_max(scores, axis=1, keep_dims=False)
    return [g.gather(g.constant(np.asarray(classes, np.int64)), best, axis=0), scores]


def _old(c: Call, what: str, targets: int) -> Forest:
    """The forest of an ensemble of versions 1 to 3. Their node ids are unique only within a tree."""
    keys = list(zip(c.attr("nodes_treeids"), c.attr("nodes_nodeids"), strict=True))
    number = {key: k for k, key in enumerate(keys)}
    own = np.arange(len(keys))
    leaf = np.asarray([_text(m) == "LEAF" for m in c.attr("nodes_modes")], bool)
    modes = np.asarray([MODES[_text(m)] for m in c.attr("nodes_modes")], np.uint8)

    def follow(name: str) -> np.ndarray:
        ids = c.attr(f"nodes_{name}nodeids")
        return np.asarray([k if end else number[tree, i] for k, end, (tree, _), i in
                           zip(own, leaf, keys, ids, strict=True)], np.int64)

    given = _numbers(c, f"{what}_weights", f32)
    weights = np.zeros(limited((len(keys), targets), np.dtype(np.float32)), np.float32)
    at = [number[key] for key in zip(c.attr(f"{what}_treeids"), c.attr(f"{what}_nodeids"), strict=True)]
    np.add.at(weights, (at, c.attr(f"{what}_ids")), given.astype(np.float32))
    first = {tree: k for k, (tree, _) in reversed(list(enumerate(keys)))}
    base = _numbers(c, "base_values", f32).astype(np.float32)
    return Forest(np.where(leaf, 0, c.attr("nodes_featureids")), _numbers(c, "nodes_values", f32), modes,
                  np.asarray(c.attr("nodes_missing_value_tracks_true", [0] * len(keys)), bool), follow("true"),
                  follow("false"), np.asarray(sorted(first.values()), np.int64), weights,
                  np.array(np.broadcast_to(base, targets)) if base.size else np.zeros(targets, np.float32))


def _numbers(c: Call, name: str, dtype: DType) -> np.ndarray:
    """Attribute `name` as an array of `dtype`, or attribute `name`_as_tensor with its own dtype."""
    values: Any = c.attr(f"{name}_as_tensor", c.attr(name, ()))
    return np.asarray(values, getattr(values, "dtype", dtype.numpy))


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value

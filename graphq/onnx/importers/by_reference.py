"""Importers of operators that ONNX's reference evaluator runs because graphq has no operations for them.

If the evaluator contradicts the specification, the importer expresses the node in a form that the evaluator computes
correctly, or refuses the node.
"""
from collections.abc import Iterator

import numpy as np
from numpy.typing import ArrayLike

from graphq.dtypes import bf16, f16
from graphq.ir import Dim
from graphq.onnx.importers.composed import by_f32, standard
from graphq.onnx.importers.importer import ML, Call, Outputs, imports, imports_each, width
from graphq.onnx.importers.shape import limited

# f16 and bf16 are computed in f32, because the reference would round partial sums
imports_each(dict.fromkeys(("Det", "DeformConv"), lambda c: None if c.input(0).dtype not in (bf16, f16) else by_f32(
    c, lambda *operands: standard(c, c.node.op_type, operands, **c.attrs)[0], *c.inputs)))


@imports("RoiAlign")
def roi_align(c: Call) -> Outputs:
    """Import RoiAlign; before version 16, without a shift by half a pixel. Refuses indices of missing images."""
    shape, images = c.input(0).shape, c.data(2)
    if shape and shape[0] is not None and images is not None and \
            (wrong := images[(images < 0) | (images >= shape[0])]).size:
        c.refuse(f"input 2 must have indices of images in [0, {shape[0] - 1}], got {wrong[0]}")
    if c.version >= 16:
        return None
    return standard(c, "RoiAlign", list(c.inputs), **c.attrs, coordinate_transformation_mode="output_half_pixel")


@imports("LinearClassifier", domain=ML)
def linear_classifier(c: Call) -> Outputs:
    """Leave LinearClassifier to the reference; refuse it unless each label has a row of coefficients."""
    labels = c.attr("classlabels_ints") or c.attr("classlabels_strings") or ()
    if len(c.attr("intercepts") or labels) != len(labels):
        c.refuse("one row of coefficients for two labels is not supported: ONNX does not define the second score")
    return None


@imports("SVMClassifier", "SVMRegressor", domain=ML)
def support_vectors(c: Call) -> Outputs:
    """Leave support vector machines to the reference; refuse integers and probabilities."""
    if c.input(0).dtype.name.startswith("s") or c.attr("prob_a"):
        c.refuse("support vector machines of integers or with probabilities are not supported")
    return None


@imports("TreeEnsemble", "TreeEnsembleRegressor", "TreeEnsembleClassifier", domain=ML)
def tree_ensembles(c: Call) -> Outputs:
    """Leave tree ensembles to the reference; refuse attributes that it ignores, and trees without an end."""
    if c.node.op_type != "TreeEnsembleClassifier":
        targets = c.attr("n_targets")
        limited((1, targets), np.dtype(np.float32))
        extreme = c.attr("aggregate_function") in (2, 3, "MIN", "MAX")
        if c.attr("post_transform") not in (None, 0, "NONE") or extreme and targets > 1:
            c.refuse("transforms, and a minimum or maximum of several targets, are not supported")
    import networkx as nx  # not at the top: the import takes 0.2 s

    if not nx.is_directed_acyclic_graph(nx.DiGraph(list(_branches(c)))):
        c.refuse("trees: the nodes of a tree form a cycle")
    return None


def _branches(c: Call) -> Iterator[tuple[object, object]]:
    """The branches of all trees that lead from a node to a node."""
    modes = c.attr("nodes_modes")
    inner = [mode != b"LEAF" for mode in modes]
    features = [k for k, branches in zip(c.attr("nodes_featureids"), inner, strict=False) if branches]
    _expect_numbers(c, "features", features, width(c.input(0)))
    if c.node.op_type != "TreeEnsemble":
        nodes = list(zip(c.attr("nodes_treeids"), c.attr("nodes_nodeids"), inner, strict=False))
        for name in ("nodes_truenodeids", "nodes_falsenodeids"):
            yield from (((tree, node), (tree, other)) for (tree, node, branches), other
                        in zip(nodes, c.attr(name, ()), strict=False) if branches)
        return
    roots = np.asarray(c.attr("tree_roots"))
    _expect_numbers(c, "nodes", roots, len(modes))
    ways = [(np.asarray(c.attr(f"nodes_{name}nodeids")), np.asarray(c.attr(f"nodes_{name}leafs"), bool))
            for name in ("true", "false")]
    (true, ends), (false, also) = ways
    if (ends & also & (true == false) & (true != np.arange(len(modes))))[roots].any():
        c.refuse("trees of one leaf are not supported")  # the reference would take the root's number for the leaf's
    for ids, leaf in ways:
        _expect_numbers(c, "leaves", ids[leaf], len(c.attr("leaf_weights")))
        _expect_numbers(c, "nodes", ids[~leaf], len(modes))
        yield from zip(np.flatnonzero(~leaf), ids[~leaf], strict=True)


def _expect_numbers(c: Call, what: str, numbers: ArrayLike, count: Dim) -> None:
    """Refuse numbers of `what` outside [0, count); a count of None is not known yet."""
    ids = np.asarray(numbers)
    if ids.size and (ids.min() < 0 or isinstance(count, int) and ids.max() >= count):
        c.refuse(f"trees: numbers of {what} must be in [0, {count}), got from {ids.min()} to {ids.max()}")

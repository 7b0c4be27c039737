"""Decision trees: ONNX's reference runs them."""
import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from onnx_runtime import results

import graphq as gq
from graphq.errors import GraphError

rng = np.random.default_rng(8)
MODES = ["BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ"]


def tree(depth, features):
    """Rows of node number, mode, feature, split, next nodes: in full, but for some leaves that come early."""
    rows = []

    def grow(left):
        at = len(rows)
        rows.append(None)
        if left == 0 or left < depth and rng.random() < 0.2:
            rows[at] = (at, "LEAF", 0, 0.0, 0, 0)
        else:
            mode, split = MODES[rng.integers(6)], float(rng.integers(-2, 3))
            rows[at] = (at, mode, int(rng.integers(features)), split, grow(left - 1), grow(left - 1))
        return at

    grow(depth)
    return rows


def attributes(what, targets, count=5, features=6, one_target=None):
    attrs = {name: [] for name in ("treeids", "nodeids", "modes", "featureids", "values", "truenodeids",
                                   "falsenodeids", "missing_value_tracks_true")}
    leaves = []
    for t in range(count):
        for at, mode, feature, split, true, false in tree(int(rng.integers(1, 5)), features):
            row = (t, at, mode, feature, split, true, false, int(rng.integers(2)))
            for name, x in zip(attrs, row, strict=True):
                attrs[name].append(x)
            if mode == "LEAF":
                ids = range(targets) if one_target is None else [one_target]
                leaves += [(t, at, i, float(rng.normal())) for i in ids]
    own = {f"{what}_{name}": [leaf[k] for leaf in leaves]
           for k, name in enumerate(("treeids", "nodeids", "ids", "weights"))}
    return {**{f"nodes_{k}": v for k, v in attrs.items()}, **own}


def model_of(node, dtype=np.float32, outputs=(("y", TensorProto.FLOAT),)):
    element = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    graph = helper.make_graph([node], "net", [helper.make_tensor_value_info("x", element, [None, 6])],
                              [helper.make_tensor_value_info(n, t, None) for n, t in outputs])
    return helper.make_model(graph, ir_version=8, opset_imports=[
        helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 5 if node.op_type == "TreeEnsemble" else 3)])


def compare(node, dtype, outputs):
    """ONNX's reference runs the node, explain() says so, and the numbers are the reference's, near ONNX Runtime's."""
    m = model_of(node, dtype, outputs)
    x = rng.integers(-3, 4, (40, 6)).astype(dtype)
    if x.dtype.kind == "f":
        x[::7, 2] = np.nan
    there = ~np.isnan(x).any(axis=1)  # only "not equal" of NaN differs: ONNX Runtime ignores missing_value_tracks_true
    compiled = gq.compile(gq.load_onnx(m))
    assert f"onnx_node ai.onnx.ml.{node.op_type}(x)" in (said := str(compiled.explain())), said
    assert f"graphq has no operation for {node.op_type}(" in said
    got = compiled(x=x)
    outs = list(got.values()) if isinstance(got, dict) else [got]
    for a, b, near in zip(outs, ReferenceEvaluator(m).run(None, {"x": x}), results(m, {"x": x}), strict=True):
        assert a.dtype == near.dtype
        np.testing.assert_array_equal(a, b.astype(a.dtype))  # the reference sums in f64 for operands of f64
        np.testing.assert_allclose(a[there], near[there], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("targets", [1, 3])
def test_regressor(targets, dtype):
    node = helper.make_node("TreeEnsembleRegressor", ["x"], ["y"], domain="ai.onnx.ml", n_targets=targets,
                            base_values=[0.25] * targets, **attributes("target", targets))
    compare(node, dtype, [("y", TensorProto.FLOAT)])


@pytest.mark.parametrize(("classes", "one_target", "transform"), [
    ([3, 5, 9], None, "NONE"), ([3, 5, 9], None, "SOFTMAX"), ([3, 5, 9], None, "LOGISTIC"), ([0, 1], 0, "LOGISTIC")])
def test_classifier(classes, one_target, transform):
    node = helper.make_node("TreeEnsembleClassifier", ["x"], ["label", "scores"], domain="ai.onnx.ml",
                            classlabels_int64s=classes, post_transform=transform,
                            **({} if one_target is None else {"base_values": [0.125]}),
                            **attributes("class", len(classes), one_target=one_target))
    compare(node, np.float32, [("label", TensorProto.INT64), ("scores", TensorProto.FLOAT)])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_newer_form_with_leaves_apart(dtype):
    node = helper.make_node(
        "TreeEnsemble", ["x"], ["y"], domain="ai.onnx.ml", n_targets=2, aggregate_function=1, post_transform=0,
        tree_roots=[0, 2], nodes_featureids=[0, 1, 3], nodes_truenodeids=[1, 0, 2], nodes_falsenodeids=[2, 1, 2],
        nodes_trueleafs=[0, 1, 1], nodes_falseleafs=[1, 1, 1], leaf_targetids=[0, 1, 0, 1],
        nodes_splits=numpy_helper.from_array(np.asarray([0.5, 1, 0], dtype), "splits"),
        nodes_modes=numpy_helper.from_array(np.asarray([0, 3, 1], np.uint8), "modes"),
        leaf_weights=numpy_helper.from_array(np.asarray([1, 2, 4, 8], dtype), "weights"))
    compare(node, dtype, [("y", helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))])


def regressor(**changes):
    """A tree of one test with two leaves, in the older form."""
    attrs = {"n_targets": 2, "nodes_treeids": [0, 0, 0], "nodes_nodeids": [0, 1, 2], "nodes_featureids": [0, 0, 0],
             "nodes_values": [0.5, 0, 0], "nodes_modes": ["BRANCH_LEQ", "LEAF", "LEAF"], "nodes_truenodeids": [1, 0, 0],
             "nodes_falsenodeids": [2, 0, 0], "target_treeids": [0, 0], "target_nodeids": [1, 2], "target_ids": [0, 1],
             "target_weights": [2.0, 3.0], **changes}
    return helper.make_node("TreeEnsembleRegressor", ["x"], ["y"], domain="ai.onnx.ml", **attrs)


def newer(**changes):
    """The same tree in the newer form, with one target."""
    attrs = {"n_targets": 1, "aggregate_function": 1, "post_transform": 0, "tree_roots": [0], "nodes_featureids": [0],
             "nodes_truenodeids": [0], "nodes_falsenodeids": [1], "nodes_trueleafs": [1], "nodes_falseleafs": [1],
             "leaf_targetids": [0, 0], "nodes_splits": np.float32([0.5]), "nodes_modes": np.uint8([0]),
             "leaf_weights": np.float32([1, 2]), **changes}
    return helper.make_node("TreeEnsemble", ["x"], ["y"], domain="ai.onnx.ml", **{
        k: numpy_helper.from_array(v, k) if isinstance(v, np.ndarray) else v for k, v in attrs.items()})


@pytest.mark.parametrize("node", [regressor(), newer()])
def test_trees_of_two_leaves(node):
    x = np.float32([[0.4] * 6, [0.6] * 6])
    want = [[2, 0], [0, 3]] if node.op_type == "TreeEnsembleRegressor" else [[1], [2]]
    np.testing.assert_array_equal(gq.reference(gq.load_onnx(model_of(node)), x=x), want)


@pytest.mark.parametrize("node, message", [
    (regressor(post_transform="LOGISTIC"), "transforms, and a"), (newer(post_transform=2), "transforms, and a"),
    (regressor(aggregate_function="MAX"), "a minimum or maximum of several targets"),
    (newer(aggregate_function=2, n_targets=2), "a minimum or maximum of several targets"),
    (regressor(nodes_truenodeids=[0, 0, 0]), "the nodes of a tree form a cycle"),
    (regressor(nodes_falsenodeids=None, nodes_truenodeids=[0, 0, 0]), "the nodes of a tree form a cycle"),
    (newer(nodes_truenodeids=[1]), "trees of one leaf are not supported"),
    (newer(nodes_trueleafs=[0]), "the nodes of a tree form a cycle"),
    (regressor(nodes_featureids=[-1, 0, 0]), r"numbers of features must be in \[0, 6\), got from -1 to -1"),
    (newer(nodes_featureids=[6]), r"numbers of features must be in \[0, 6\), got from 6 to 6"),
    (newer(nodes_truenodeids=[-2]), r"numbers of leaves must be in \[0, 2\), got from -2 to -2"),
    (newer(nodes_falsenodeids=[2]), r"numbers of leaves must be in \[0, 2\), got from 2 to 2"),
    (newer(nodes_falseleafs=[0]), r"numbers of nodes must be in \[0, 1\), got from 1 to 1"),
    (newer(tree_roots=[0, -1]), r"numbers of nodes must be in \[0, 1\), got from -1 to 0")])
def test_trees_that_are_refused(node, message):
    """The reference would ignore an attribute, not end, or count numbers below 0 from the end."""
    with pytest.raises(GraphError, match=message):
        gq.load_onnx(model_of(node))


@pytest.mark.parametrize("node", [newer(aggregate_function=2), newer(aggregate_function=0),
                                  newer(nodes_modes=np.uint8([6]), membership_values=np.float32([1, np.nan])),
                                  regressor(nodes_featureids=[0, -2, -2])])
def test_extremes_of_one_target_set_membership_and_features_of_leaves_are_not_refused(node):
    assert gq.load_onnx(model_of(node)).nodes_of({"onnx_node"})

"""Decision trees against ONNX Runtime."""
import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
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


def compare(node, dtype, outputs):
    element = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    graph = helper.make_graph([node], "net", [helper.make_tensor_value_info("x", element, [None, 6])],
                              [helper.make_tensor_value_info(n, t, None) for n, t in outputs])
    m = helper.make_model(graph, ir_version=8, opset_imports=[
        helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 5 if node.op_type == "TreeEnsemble" else 3)])
    x = rng.integers(-3, 4, (40, 6)).astype(dtype)
    if x.dtype.kind == "f":
        x[::7, 2] = np.nan
    want = results(m, {"x": x})
    compiled = gq.compile(gq.load_onnx(m))
    got = compiled(x=x)
    assert "onnx_node" not in compiled.explain()
    for a, b in zip(got.values() if isinstance(got, dict) else [got], want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


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
        tree_roots=[0, 2], nodes_featureids=[0, 1, 3], nodes_truenodeids=[1, 0, 3], nodes_falsenodeids=[2, 1, 3],
        nodes_trueleafs=[0, 1, 1], nodes_falseleafs=[1, 1, 1], leaf_targetids=[0, 1, 0, 1],
        nodes_splits=numpy_helper.from_array(np.asarray([0.5, 1, 0], dtype), "splits"),
        nodes_modes=numpy_helper.from_array(np.asarray([0, 3, 1], np.uint8), "modes"),
        leaf_weights=numpy_helper.from_array(np.asarray([1, 2, 4, 8], dtype), "weights"))
    compare(node, dtype, [("y", helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))])


def test_circles_are_refused():
    attrs = {**attributes("target", 1, count=1), "nodes_truenodeids": None}
    attrs["nodes_truenodeids"] = [0] * len(attrs["nodes_nodeids"])
    node = helper.make_node("TreeEnsembleRegressor", ["x"], ["y"], domain="ai.onnx.ml", n_targets=1, **attrs)
    graph = helper.make_graph([node], "net", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [None, 6])],
                              [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)])
    m = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17),
                                                              helper.make_opsetid("ai.onnx.ml", 3)])
    with pytest.raises(GraphError, match="form a cycle"):
        gq.load_onnx(m)


LISTS = ["target_treeids", "target_nodeids", "target_ids", "target_weights", "nodes_treeids", "nodes_nodeids",
         "nodes_modes", "nodes_featureids", "nodes_values", "nodes_truenodeids", "nodes_falsenodeids",
         "nodes_missing_value_tracks_true"]


@pytest.mark.parametrize("name", LISTS)
@pytest.mark.parametrize("change", [lambda x: x[:-1], lambda x: [*x, x[-1]]], ids=["shorter", "longer"])
def test_lists_of_another_length_are_no_trees(name, change):
    """Of the old form's attributes, each by itself: ONNX's reference says what becomes of the node."""
    attrs = attributes("target", 1)
    assert set(LISTS) == attrs.keys()
    attrs[name] = change(attrs[name])
    node = helper.make_node("TreeEnsembleRegressor", ["x"], ["y"], domain="ai.onnx.ml", n_targets=1, **attrs)
    graph = helper.make_graph([node], "net", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [None, 6])],
                              [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)])
    m = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17),
                                                              helper.make_opsetid("ai.onnx.ml", 3)])
    assert "trees" not in [n.op.name for n in gq.load_onnx(m).nodes]


def newer_form(**more):
    """A tree of one test with two leaves, in the newer form; loaded."""
    attrs = {"n_targets": 1, "aggregate_function": 1, "post_transform": 0, "tree_roots": [0], "nodes_featureids": [0],
             "nodes_truenodeids": [0], "nodes_falsenodeids": [1], "nodes_trueleafs": [1], "nodes_falseleafs": [1],
             "leaf_targetids": [0, 0], "nodes_splits": np.float32([0.5]), "nodes_modes": np.uint8([0]),
             "leaf_weights": np.float32([1, 2]), **more}
    node = helper.make_node("TreeEnsemble", ["x"], ["y"], domain="ai.onnx.ml", **{
        k: numpy_helper.from_array(v, k) if isinstance(v, np.ndarray) else v for k, v in attrs.items()})
    graph = helper.make_graph([node], "net", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [None, 6])],
                              [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)])
    return gq.load_onnx(helper.make_model(graph, ir_version=8, opset_imports=[
        helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 5)]))


@pytest.mark.parametrize("name, ids, said", [
    ("nodes_truenodeids", [-2], "go from -1 to 2"), ("nodes_falsenodeids", [2], "go from 1 to 3"),
    ("tree_roots", [0, -1], "go from -1 to 0")])
def test_numbers_of_nodes_that_are_not_there(name, ids, said):
    with pytest.raises(GraphError, match=f"trees: node numbers {said}, but there are 3 nodes"):
        newer_form(**{name: ids})


@pytest.mark.parametrize("change", [{"aggregate_function": 2}, {"aggregate_function": 3}, {"aggregate_function": 0},
                                    {"nodes_modes": np.uint8([6]), "membership_values": np.float32([1, np.nan])}])
def test_trees_of_other_kinds_are_of_onnx_reference(change):
    assert "trees" in [n.op.name for n in newer_form().nodes]
    assert "trees" not in [n.op.name for n in newer_form(**change).nodes]


def test_features_beyond_the_row_are_an_error():
    g = gq.Graph()
    x = g.input("x", shape=(2, 3), dtype="f32")
    n = np.arange(1)
    g.output(g.trees(x, n + 5, np.float32([0]), np.uint8([0]), n > 0, n, n, n, np.ones((1, 1), np.float32),
                     np.zeros(1, np.float32), depth=0), name="y")
    with pytest.raises(GraphError, match=r"features must be in \[0, 3\)"):
        gq.compile(g)(x=np.zeros((2, 3), np.float32))

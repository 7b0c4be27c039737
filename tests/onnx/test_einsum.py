"""Einsum against NumPy's, in kernels."""
import numpy as np
import pytest
from onnx import TensorProto, helper

import graphq as gq
from graphq.errors import GraphError

rng = np.random.default_rng(6)
SIZES = dict(zip("bhijknqd", (2, 3, 4, 5, 6, 7, 1, 8), strict=True))


def model(equation, ranks):
    names = [f"x{k}" for k in range(len(ranks))]
    graph = helper.make_graph(
        [helper.make_node("Einsum", names, ["y"], equation=equation)], "net",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, [None] * r) for n, r in zip(names, ranks, strict=True)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)])
    return helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])


@pytest.mark.parametrize("equation", [
    "ij,jk->ik", "bhid,bhjd->bhij", "bhij,bhjd->bihd", "bijd,nhd->bijnh", "bijk,bhik->bhij", "bi,bj->bij",
    "bid,bid->bi", "i,i->", "ij->ji", "bij->b", "ij", "ij,jk", "bhi,hij,bhj->bh", "bij,jk,kn->bin", "i j , j k -> i k",
    "bqd,bjd->bqj", "bij,k->bk", "bd,nd->bn", "bdn,bdi->nid"])
def test_named_axes(equation):
    texts = equation.replace(" ", "").partition("->")[0].split(",")
    xs = [rng.normal(size=[SIZES[n] for n in text]).astype(np.float32) for text in texts]
    compiled = gq.compile(gq.load_onnx(model(equation, [x.ndim for x in xs])))
    got = compiled({f"x{k}": x for k, x in enumerate(xs)})
    np.testing.assert_allclose(got, np.einsum(equation, *xs), rtol=1e-5, atol=1e-5)
    assert "onnx_node" not in compiled.explain()


@pytest.mark.parametrize(("equation", "shapes"), [
    ("...ij,...jk->...ik", [(2, 1, 4, 5), (2, 3, 5, 6)]), ("...i,...i->...", [(1, 3, 4), (2, 1, 4)]),
    ("...ij,...jk->...ik", [(3, 2, 4, 5), (1, 2, 5, 6)]), ("...ij,...jk->...ik", [(1, 3, 4, 5), (2, 1, 5, 6)]),
    ("i...,j...->...ij", [(4, 2, 3), (5, 2, 3)]), ("...i", [(2, 3, 4)]), ("b...d,...dk", [(2, 3, 4), (3, 4, 5)]),
])
def test_ellipses_broadcast(equation, shapes):
    xs = [rng.normal(size=s).astype(np.float32) for s in shapes]
    compiled = gq.compile(gq.load_onnx(model(equation, [x.ndim for x in xs])))
    got = compiled({f"x{k}": x for k, x in enumerate(xs)})
    np.testing.assert_allclose(got, np.einsum(equation, *xs), rtol=1e-5, atol=1e-5)
    assert "onnx_node" not in compiled.explain()


def test_a_diagonal_runs_as_onnx_reference():
    x = rng.normal(size=(4, 4)).astype(np.float32)
    np.testing.assert_allclose(gq.compile(gq.load_onnx(model("ii->i", [2])))(x0=x), np.diag(x))


@pytest.mark.parametrize(("equation", "shapes"), [("ij,jk->ik", [(2, 3)]), ("ijk->i", [(2, 3)]), ("ij->ik", [(2, 3)]),
                                                  ("ij,jk->ik", [(2, 3), (4, 5)])])
def test_what_does_not_fit_is_an_error(equation, shapes):
    xs = {f"x{k}": np.zeros(s, np.float32) for k, s in enumerate(shapes)}
    with pytest.raises(GraphError, match="Einsum"):
        gq.compile(gq.load_onnx(model(equation, [x.ndim for x in xs.values()])))(xs)

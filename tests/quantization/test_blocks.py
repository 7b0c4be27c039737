"""Weights in blocks: bits of both widths, any number of blocks, either orientation of the weights."""
import numpy as np
import pytest

import graphq as gq
from graphq.dtypes import s4, s8
from graphq.ops.dynamic_quant import dynamic_dequantize
from graphq.quantization import Scheme
from graphq.quantization.blocks import DAMPING, block_scales, gptq, hessians, insert_blocks
from graphq.quantization.insert import kept
from graphq.quantization.products import prepared

RNG = np.random.default_rng(4)


def weights(k, n):
    """Columns and blocks of very different ranges, one block of zeros."""
    w = RNG.standard_normal((k, n)).astype(np.float32) * np.logspace(-2, 2, n, dtype=np.float32)
    w *= np.logspace(-1, 1, k, dtype=np.float32)[:, None]
    w[:4, 0] = 0
    return w


@pytest.mark.parametrize("bits, dtype, limit", [(4, s4, 7), (8, s8, 127)])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("k, block, used", [(12, 4, 4), (20, 4, 4), (12, 12, 12), (14, 4, 14), (12, 32, 12)])
def test_each_block_has_its_own_scale(bits, dtype, limit, transposed, k, block, used):
    w = weights(k, 5)
    g = gq.Graph()
    x = g.input("x", dtype="f32", shape=(3, k))
    g.output(g.matmul(x, np.ascontiguousarray(w.T) if transposed else w, transpose_b=transposed, name="y"))
    g = prepared(g)
    insert_blocks(g, Scheme(mode="weight_only", weight_bits=bits, block=block))
    node, = g.nodes_of(("dynamic_dequantize",))
    q, scales = (v.data for v in node.inputs)
    assert node.inputs[0].dtype == dtype
    assert tuple(node.attrs["group_shape"]) == ((1, used) if transposed else (used, 1))
    made = dynamic_dequantize.reference(q, scales, **node.attrs)
    made, q, scales = (np.asarray(a.T if transposed else a, np.float32) for a in (made, q, scales))
    assert scales.shape == (k // used, 5) and np.abs(q).max() == limit
    np.testing.assert_array_equal(scales, block_scales(w, used, limit))
    parts, integers = w.reshape(-1, used, 5), q.reshape(-1, used, 5)
    np.testing.assert_array_equal(integers, np.clip(np.rint(parts / scales[:, None]), -limit, limit))
    np.testing.assert_array_equal(made.reshape(parts.shape), integers * scales[:, None])
    assert (np.abs(integers).max(axis=1) >= 0.7 * limit)[np.abs(parts).max(axis=1) > 0].all()


@pytest.mark.parametrize("limit", [7, 127])
def test_scales_are_the_best_of_thirteen(limit):
    w = weights(12, 6)
    found = block_scales(w, 4, limit)
    parts = w.reshape(3, 4, 6)
    top = np.abs(parts).max(axis=1)

    def errors(s):
        return np.square(parts - np.clip(np.rint(parts / s[:, None]), -limit, limit) * s[:, None]).sum(axis=1)

    tried = [np.maximum((top * f / limit).astype(np.float32), np.float32(2.0**-100)) for f in np.linspace(1, 0.7, 13)]
    best = np.min([errors(s) for s in tried], axis=0)
    np.testing.assert_array_equal(errors(found)[top > 0], best[top > 0])
    assert (found[top == 0] == 1).all() and (top == 0).sum() == 1


def test_a_hessian_is_of_all_rows_of_all_batches_whatever_products_stand_before():
    """Products whose rows are columns have none, nor have products of activations; one serves equal sources."""
    g = gq.Graph()
    x, u = g.input("x", dtype="f32", shape=(2, 3, 8)), g.input("u", dtype="f32", shape=(5, 7))
    w = {name: RNG.standard_normal(shape).astype(np.float32)
         for name, shape in {"columns": (5, 2), "p": (8, 4), "q": (6, 8), "r": (4, 3), "s": (7, 2)}.items()}
    g.output(g.matmul(u, w["columns"], transpose_a=True, name="columns"))
    g.output(g.matmul(x, x, transpose_b=True, name="activations"))
    p = g.matmul(x, w["p"], name="p")
    g.output(g.matmul(x, w["q"], transpose_b=True, name="q"))
    g.output(g.matmul(p, w["r"], name="r"))
    g.output(g.matmul(u, w["s"], name="s"))
    g = prepared(g)
    chosen = [y for y in kept(g, Scheme()) if y.weights is not None]
    batches = [{"x": RNG.standard_normal((2, 3, 8)).astype(np.float32),
                "u": RNG.standard_normal((5, 7)).astype(np.float32)} for _ in range(3)]
    rows = np.concatenate([b["x"].reshape(-1, 8) for b in batches])
    sources = {"p": rows, "q": rows, "r": rows @ w["p"], "s": np.concatenate([b["u"] for b in batches])}
    found = hessians(g, chosen, batches)
    assert {y.name for y in chosen} == {*sources, "columns"} and set(found) == set(sources)
    for name, source in sources.items():
        np.testing.assert_allclose(found[name], source.T @ source, rtol=1e-4, atol=1e-4)
    assert set(hessians(g, chosen[-1:], batches)) == {"s"} and hessians(g, chosen[:1], batches) == {}
    with pytest.raises(gq.InputError, match="at least one batch"):
        hessians(g, chosen, [])


def test_the_second_row_makes_up_for_the_error_of_the_first():
    """By setting the derivative of the squared error to zero; a damped Hessian of zeros is the identity."""
    x, w = RNG.standard_normal((20, 2)), RNG.standard_normal((2, 50)) * 5
    scales = RNG.uniform(0.5, 2, (2, 50))
    for hessian in (x.T @ x, np.zeros((2, 2))):
        h = hessian + np.eye(2) * (DAMPING * np.diag(hessian).mean() or 1)
        first = np.clip(np.rint(w[0] / scales[0]), -7, 7)
        second = np.clip(np.rint((w[1] + h[0, 1] / h[1, 1] * (w[0] - scales[0] * first)) / scales[1]), -7, 7)
        np.testing.assert_array_equal(gptq(w, scales, 1, 7, hessian), [first, second])

"""Weight-only quantization: weights of matmuls in 4 or 8 bits, with one scale per block of the summed axis."""
from collections.abc import Mapping

import numpy as np

from graphq.compile import compile
from graphq.dtypes import s4, s8
from graphq.ir import Graph, Value, named_outputs
from graphq.quantization.calibrate import Batches, checked_batches, in_unit
from graphq.quantization.insert import kept, replace_operand
from graphq.quantization.products import LinearLayer, products
from graphq.quantization.ranges import scales_of
from graphq.quantization.scheme import Scheme

DAMPING = 0.01
"""GPTQ adds this share of the mean of a Hessian's diagonal to the diagonal, as in the paper, so it can be inverted."""


def insert_blocks(graph: Graph, scheme: Scheme, batches: Batches | None = None) -> None:
    """Quantize the weights of a `prepared` graph's matmuls in place; activations stay in f32.

    If the block size does not divide the length of the sum, each whole column is one block. Rounding "gptq" rounds
    weights such that results on the batches change least, except for weights in bodies.
    """
    chosen = [p for p in kept(graph, scheme) if p.node.op.name == "matmul" and p.weights is not None
              and p.weights.ndim == 2]
    found = hessians(graph, chosen, batches) if scheme.rounding == "gptq" and batches is not None else {}
    limit, dtype = (7, s4) if scheme.weight_bits == 4 else (127, s8)
    made: dict[object, tuple[Value, Value]] = {}
    for product in chosen:
        node, weights = product.node, product.weights
        own = node.graph
        assert weights is not None
        transposed = node.attrs["transpose_b"]
        w = weights.T if transposed else weights  # [k, n]
        block = scheme.block if len(w) % scheme.block == 0 else len(w)
        key = product.factors[1], transposed, product.name if product.name in found else None
        with own.before(node):
            if key not in made:
                scales = block_scales(w, block, limit)
                q = gptq(w, scales, block, limit, found[product.name]) if product.name in found else \
                    np.clip(np.rint(w / scales.repeat(block, axis=0)), -limit, limit)
                made[key] = (own.constant(np.ascontiguousarray((q.T if transposed else q).astype(dtype.numpy))),
                             own.constant(np.ascontiguousarray(scales.T if transposed else scales)))
            replace_operand(node, 1, own.dynamic_dequantize(
                *made[key], qtype="per_group", group_shape=[1, block] if transposed else [block, 1]))


def block_scales(w: np.ndarray, block: int, limit: int) -> np.ndarray:
    """The scale of each block, [k / block, n], with the least squared error.

    Scales that clip the largest weight are tried as well. Errors are divided by a power of two near the block's largest
    weight, so that f32 can hold their squares.
    """
    parts = w.reshape(-1, block, w.shape[1])
    top = np.abs(parts).max(axis=1)
    unit = np.ldexp(np.float32(1), np.frexp(top)[1] - 1)
    near = parts / unit[:, None]
    best, scales = np.full(top.shape, np.inf), np.ones(top.shape, np.float32)
    for f in np.linspace(1, 0.7, 13):
        tried = scales_of(top * f, limit)
        step = (tried / unit)[:, None]
        loss = np.square(near - np.clip(np.rint(near / step), -limit, limit) * step).sum(axis=1)
        better = loss < best
        best[better], scales[better] = loss[better], tried[better]
    return scales


def hessians(graph: Graph, chosen: list[LinearLayer], batches: Batches) -> Mapping[str, np.ndarray]:
    """For each layer, by name, the sum of x^T x over all rows of its input x, computed by a compiled model."""
    g = graph.copy()
    names = {p.name for p in chosen if 0 in p.activations}
    of_layers: dict[str, str] = {}
    made: dict[Value, str] = {}
    outputs: dict[str, Value] = {}
    for product in products(g, inside=False):
        x = product.factors[0]
        if product.name not in names or product.node.attrs["transpose_a"] or x.shape is None:
            continue
        if x not in made:
            made[x] = f"hessian{len(made)}"
            unit, rows = in_unit(g, g.static_reshape(x, shape=[-1, product.channels()]))
            outputs |= {made[x]: g.matmul(rows, rows, transpose_a=True), f"unit/{made[x]}": unit}
        of_layers[product.name] = made[x]
    if not outputs:
        return {}
    g.set_outputs(list(outputs.values()), list(outputs))
    g.prune()
    model = compile(g, cache="kernels")
    sums: dict[str, np.ndarray] = dict.fromkeys(made.values(), np.zeros(()))
    for batch in checked_batches(batches, graph):
        found = named_outputs(model.outputs, model(batch))
        for name in sums:
            sums[name] = sums[name] + found[name] * found[f"unit/{name}"].astype(np.float64)**2
    return {name: sums[hessian] for name, hessian in of_layers.items()}


def gptq(w: np.ndarray, scales: np.ndarray, block: int, limit: int, hessian: np.ndarray) -> np.ndarray:
    """Round weights [k, n] to integers row by row; spread each row's error over the rows after it.

    With H = x^T x and U the upper Cholesky factor of its damped inverse, row i's error is e = (w_i - s q_i) / U_ii. Row
    j > i is reduced by U_ij e. This leaves the least sum of squares of x @ (w - s q). (Frantar et al., 2022, "GPTQ:
    accurate post-training quantization for generative pre-trained transformers", algorithm 1, in one block.)
    """
    k = len(w)
    h = hessian + np.eye(k) * (DAMPING * float(np.mean(np.diag(hessian))) or 1.0)
    upper = np.linalg.cholesky(np.linalg.inv(h)).T
    left, q = w.astype(np.float64), np.zeros(w.shape)
    for i in range(k):
        s = scales[i // block]
        q[i] = np.clip(np.rint(left[i] / s), -limit, limit)
        error = (left[i] - s * q[i]) / upper[i, i]
        left[i + 1:] -= np.outer(upper[i, i + 1:], error)
    return q

"""Importers of Gemm, LinearRegressor, and of Einsum as transposes, matmuls and sums."""
from collections import Counter
from collections.abc import Collection, Sequence
from math import prod
from typing import NamedTuple

import numpy as np

from graphq.dtypes import f32
from graphq.errors import GraphError
from graphq.ir import Graph, Value
from graphq.onnx.importers.composed import one, standard
from graphq.onnx.importers.importer import ML, Call, Outputs, imports
from graphq.ops.rules import FLOATS


@imports("Gemm")
def gemm(c: Call) -> Outputs:
    """Import Gemm: `alpha * A' @ B' + beta * C`.

    ONNX's reference runs nodes of integers. It has no version before 7, so older nodes are converted to operator set 21
    first.
    """
    if c.version < 7 and c.input(0).dtype not in FLOATS:
        return standard(c, "Gemm", list(c.inputs), **{k: v for k, v in c.attrs.items() if k != "broadcast"})
    return plus_bias(c, product(c, c.input(0), c.input(1)))


TRANSFORMS = {"NONE": "", "LOGISTIC": "Sigmoid", "SOFTMAX": "Softmax"}
"""For each supported value of the attribute `post_transform`, the ONNX operator that computes it ("" for none)."""


@imports("LinearRegressor", domain=ML)
def linear_regressor(c: Call) -> Outputs:
    """Import LinearRegressor: `transform(x @ coefficients.T + intercepts)`; coefficients have one row per target."""
    x, g, targets, transform = c.input(0), c.graph, c.attr("targets", 1), c.attr("post_transform", "NONE")
    if transform not in TRANSFORMS or x.shape is None or len(x.shape) != 2:
        c.refuse(f"post_transform {transform} of {x.type} is not supported")
    rows = np.float32(c.attr("coefficients")).reshape(targets, -1)
    y = g.matmul(x if x.dtype == f32 else g.cast(x, dtype=f32), g.constant(np.ascontiguousarray(rows.T)))
    if c.attr("intercepts"):
        y = g.add(y, g.constant(np.array(c.attr("intercepts"), np.float32)))
    return standard(c, TRANSFORMS[transform], [y]) if TRANSFORMS[transform] else y


def product(c: Call, a: Value, b: Value) -> Value:
    """`alpha * A' @ B'`, by the node's transA, transB and alpha; an alpha of 1 adds no operation."""
    g, alpha = c.graph, c.attr("alpha", 1.0)
    y = g.matmul(a, b, transpose_a=bool(c.attr("transA", 0)), transpose_b=bool(c.attr("transB", 0)))
    return y if alpha == 1 else g.multiply(y, one(y, alpha))


def plus_bias(c: Call, y: Value) -> Value:
    """`y` plus `beta` times input 2, if it is present; a beta of 1 adds no operation."""
    g, bias, beta = c.graph, c.optional(2), c.attr("beta", 1.0)
    if bias is None or beta == 0:
        return y
    return g.add(y, bias if beta == 1 else g.multiply(bias, one(bias, beta)))


def expect_bias(c: Call, k: int, y: Value) -> None:
    """Refuse input `k` if it is present and does not broadcast to the matrix `y`."""
    rows, columns = y.shape or (None, None)
    c.expect(k, (), *((n,) for n in (columns, 1)), *((m, n) for m in (rows, 1) for n in (columns, 1)))


class Term(NamedTuple):
    """An operand of Einsum, and the letters that name its axes in the equation."""

    value: Value
    names: tuple[str, ...]

    @property
    def sizes(self) -> dict[str, int]:
        """The size of each axis."""
        return dict(zip(self.names, self.value.type.dims, strict=True))


@imports("Einsum")
def einsum(c: Call) -> Outputs:
    """Import Einsum of floats: operands are combined from first to last; a matmul sums over common axes."""
    if not c.floats():
        return None
    terms, out = _terms(c)
    if set(out) - {n for t in terms for n in t.names}:
        c.refuse(f"equation '{c.attr('equation')}' has names in its result that no operand has")
    left = terms[0]
    for k, right in enumerate(terms[1:], 2):
        left = _contracted(c.graph, left, right, {*out, *(n for t in terms[k:] for n in t.names)})
    return _ordered(c.graph, _summed(c.graph, left, out), out)


def _terms(c: Call) -> tuple[list[Term], tuple[str, ...]]:
    """The operands with the names of their axes, and the names of the result's axes.

    The axes of an ellipsis are named by their position from its end.
    """
    left, arrow, right = c.attr("equation").replace(" ", "").partition("->")
    values = [c.input(k) for k in range(len(c.inputs))]
    texts = left.split(",")
    if len(texts) != len(values):
        c.refuse(f"equation '{c.attr('equation')}' needs {len(texts)} operands, got {len(values)}")
    terms = [Term(v, _named(c, text, len(v.type.dims))) for text, v in zip(texts, values, strict=True)]
    dots = max((t.names for t in terms), key=lambda names: sum(n.startswith(".") for n in names))
    more = tuple(n for n in dots if n.startswith("."))
    if arrow:
        return terms, _named(c, right, len(right.replace("...", "")) + len(more) * ("..." in right))
    once = [n for n, count in Counter(left.replace(".", "").replace(",", "")).items() if count == 1]
    return terms, (*more, *sorted(once))


def _named(c: Call, text: str, rank: int) -> tuple[str, ...]:
    """The names of the axes in `text`; repeated names (diagonals) are not supported."""
    before, dots, after = text.partition("...")
    more = rank - len(before) - len(after)
    if more < 0 or more and not dots:
        c.refuse(f"equation '{c.attr('equation')}': '{text}' does not fit rank {rank}")
    names = (*before, *(f".{k}" for k in range(more, 0, -1)), *after)
    if len(set(names)) < len(names):
        raise GraphError(f"equation '{c.attr('equation')}' takes a diagonal, which graphq does not support")
    return names


def _contracted(g: Graph, a: Term, b: Term, later: Collection[str]) -> Term:
    """Multiply two terms, and sum over the axes that neither a later term nor the result has."""
    a, b = (_summed(g, x, {*later, *y.names}) for x, y in ((a, b), (b, a)))
    both = [n for n in a.names if n in b.names]
    batch, inner = [n for n in both if n in later], [n for n in both if n not in later]
    rows, columns = [n for n in a.names if n not in both], [n for n in b.names if n not in both]
    if not inner or not rows and not columns:
        names = (*batch, *rows, *columns, *inner)
        return _summed(g, Term(g.multiply(_spread(g, a, names), _spread(g, b, names)), names), later)
    sizes = {**a.sizes, **{n: s for n, s in b.sizes.items() if a.sizes.get(n, 1) == 1}}
    y = g.matmul(_grouped(g, a, batch, rows, inner), _grouped(g, b, batch, inner, columns))
    names = (*batch, *rows, *columns)
    return Term(g.static_reshape(y, shape=[sizes[n] for n in names]), names)


def _summed(g: Graph, t: Term, keep: Collection[str]) -> Term:
    axes = [k for k, n in enumerate(t.names) if n not in keep]
    if not axes:
        return t
    return Term(g.reduce_sum(t.value, axes=axes, keep_dims=False), tuple(n for n in t.names if n in keep))


def _ordered(g: Graph, t: Term, names: Sequence[str]) -> Value:
    """Transpose the term's value to the order of `names`; names that the term lacks are skipped."""
    return g.static_transpose(t.value, order=[t.names.index(n) for n in names if n in t.names])


def _spread(g: Graph, t: Term, names: Sequence[str]) -> Value:
    """Reshape the term's value to one axis per name, of size 1 for names that the term lacks."""
    return g.static_reshape(_ordered(g, t, names), shape=[t.sizes.get(n, 1) for n in names])


def _grouped(g: Graph, t: Term, batch: Sequence[str], first: Sequence[str], second: Sequence[str]) -> Value:
    """Reshape the term's value to a batched matrix: `first` is merged into rows, `second` into columns."""
    sizes = t.sizes
    shape = [*(sizes[n] for n in batch), prod(sizes[n] for n in first), prod(sizes[n] for n in second)]
    return g.static_reshape(_ordered(g, t, [*batch, *first, *second]), shape=shape)

"""Turn batch normalization into a scale and a shift per channel, and fold them into the weights of the layer before.

Results change only by f32 rounding. Folding rounds every weight, scale and bias once more, by at most half a
unit in the last place. This moves a sum of products by at most 2**-24 of the sum of their magnitudes. A batch
normalization that cannot be folded was one f64 computation, and becomes a multiplication and an addition in f32.
"""
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np

from graphq.dtypes import f32
from graphq.ir import Graph, Node, Value
from graphq.ops.conv import weight_axes
from graphq.rewrite.fixpoint import rounds
from graphq.rewrite.rule import ANY, Match, PatternBuilder, PatternLike, Rewrite, Var

WEIGHTED = ("convolution", "conv_transpose", "matmul")
"""The layers into which scales and biases are folded; the rewrites below call such a layer "anchor"."""

Folded: TypeAlias = "np.ndarray | Mapping[str, Any]"
"""The replacement of a constant: an array, or new attributes of the dequantize if the constant is dequantized."""


class NotFolded(Exception):
    """Raised if a scale or a bias cannot be folded; the text is the reason."""


def _refused(fold: Callable[..., object], *operands: object) -> str | None:
    """Why `fold(*operands)` is impossible, or None."""
    try:
        fold(*operands)
    except NotFolded as e:
        return str(e)
    return None


class BatchNormAsScale(Rewrite):
    """batch_norm_inference(x, gamma, beta, mean, variance) -> x * a + b

    Here a = gamma / sqrt(variance + epsilon) and b = beta - mean * a, computed in f64 and rounded to f32 once. If x is
    bf16 or f16, the result is cast back.
    """

    tolerance = 1e-5

    def pattern(self, g: PatternBuilder, x: Var, gamma: Var, beta: Var, mean: Var, variance: Var) -> PatternLike:
        return g.batch_norm_inference(x, gamma, beta, mean, variance, attrs=ANY)

    def check(self, x: Value, match: Match) -> str | None:
        if any(constant_array(v) is None for v in list(match.root.operands)[1:]):
            return "the parameters are not constants"
        if x.shape is None:
            return "the rank is not known"
        return None if all(np.isfinite(p).all() for p in _affine(match.root)) else "the scale or shift is not finite"

    def replace(self, g: Graph, x: Value, match: Match) -> Value:
        ones = (1,) * (x.type.rank - 2) if match.root.attrs["data_format"] == "NCX" else ()
        a, b = (p.reshape(-1, *ones) for p in _affine(match.root))
        y = g.add(g.multiply(x, a), b)
        return y if x.dtype == f32 else g.type_cast(y, dtype=x.dtype)


class ScaleIntoWeights(Rewrite):
    """anchor(x, w, bias) * a -> anchor(x, w * a, bias * a) for constant w and bias, and one element of `a` per channel

    (anchor(x, w) + bias) * a folds in the same way. w and bias may be dequantized constants: `a` is then multiplied
    into their scales, and must be positive. Operands dequantized with scale 1 are not scaled, because their sums are
    exact.
    """

    tolerance = 1e-5

    def pattern(self, g: PatternBuilder, x: Var, w: Var, bias: Var, a: Var) -> PatternLike:
        anchor = g.any_of(*WEIGHTED)
        y, biased = anchor(x, w, attrs=ANY), anchor(x, w, bias, attrs=ANY)
        y = g.any_of(y, biased, g.add(y, bias, attrs=ANY), g.bias_add(y, bias, attrs=ANY))
        return g.multiply(y, a, attrs=ANY)

    def check(self, bias: Value, a: Value, match: Match) -> str | None:
        if all(_counts(v) for v in _matched(match).inputs[:2]):
            return "the sums are exact integers that are scaled once"
        return _refused(_scaled_operands, match, bias, a)

    def replace(self, g: Graph, x: Value, w: Value, bias: Value, a: Value, match: Match) -> Value:
        node = _matched(match)
        weights, *scaled = _scaled_operands(match, bias, a)
        operands = [x, _made(g, w, weights), *(_made(g, bias, new) for new in scaled)]
        return g.add_node(node.op, operands, node.attrs)[0]


class MergeBiases(Rewrite):
    """anchor(x, w, bias) + b -> anchor(x, w, bias + b) for constants `bias` and b with one element per channel"""

    tolerance = 1e-5

    def pattern(self, g: PatternBuilder, x: Var, w: Var, bias: Var, b: Var) -> PatternLike:
        y = g.any_of(*WEIGHTED)(x, w, bias, attrs=ANY)
        return g.any_of(g.add(y, b, attrs=ANY), g.bias_add(y, b, attrs=ANY))

    def check(self, bias: Value, b: Value, match: Match) -> str | None:
        return _refused(_merged, match, bias, b)

    def replace(self, g: Graph, x: Value, w: Value, bias: Value, b: Value, match: Match) -> Value:
        node = _matched(match)
        return g.add_node(node.op, [x, w, _merged(match, bias, b)], node.attrs)[0]


class AddAsBias(Rewrite):
    """anchor(x, w) + b -> anchor(x, w, b) for constants w and b, with one element of b per channel

    Only quantization uses this rewrite; it is not part of PIPELINE.
    """

    def pattern(self, g: PatternBuilder, x: Var, w: Var, b: Var) -> PatternLike:
        y = g.any_of(*WEIGHTED)(x, w, attrs=ANY)
        return g.any_of(g.add(y, b, attrs=ANY), g.bias_add(y, b, attrs=ANY))

    def check(self, w: Value, b: Value, match: Match) -> str | None:
        if w.data is None:
            return "the weights are not constants"
        return _refused(_per_channel, _matched(match), match.root, b)

    def replace(self, g: Graph, x: Value, w: Value, b: Value, match: Match) -> Value:
        node = _matched(match)
        return g.add_node(node.op, [x, w, np.ascontiguousarray(_per_channel(node, match.root, b))], node.attrs)[0]


REWRITES = (BatchNormAsScale(), ScaleIntoWeights(), MergeBiases())


@rounds(tolerance=1e-5)
def fold_scales(graph: Graph) -> int:
    """Apply all of REWRITES in order; returns the number of changes."""
    return sum(rewrite(graph) for rewrite in REWRITES)


def constant_array(value: Value) -> np.ndarray | None:
    """The array of a constant, or of a dequantized constant; None for any other value."""
    node = value.node
    if node is None or node.op.name != "dequantize":
        return value.data
    (source,) = node.operands
    return None if source.data is None else node.op.reference(source.data, **node.attrs)


def _counts(value: Value | None) -> bool:
    """Whether a value consists of integers: dequantized with scales of 1."""
    node = None if value is None else value.node
    return node is not None and node.op.name == "dequantize" and set(node.attrs["scales"]) == {1.0}


def _affine(node: Node) -> tuple[np.ndarray, np.ndarray]:
    gamma, beta, mean, variance = (np.asarray(constant_array(v), np.float64) for v in list(node.operands)[1:])
    with np.errstate(all="ignore"):
        a = gamma / np.sqrt(variance + np.float32(node.attrs["epsilon"]).astype(np.float64))
        return a.astype(np.float32), (beta - mean * a).astype(np.float32)


def _matched(match: Match) -> Node:
    return next(n for n in match.nodes if n.op.name in WEIGHTED)


def _scaled_operands(match: Match, bias: Value | None, a: Value) -> list[Folded]:
    node = _matched(match)
    _check_constant(node.inputs[1])
    factors = _per_channel(node, match.root, a)
    weights = _scaled_weights(node, factors)
    if bias is None:
        return [weights]
    if bias in node.inputs:
        return [weights, _scaled(bias, factors, len(bias.type.dims) - 1)]
    (shift,) = (n for n in match.nodes if n not in (node, match.root))
    return [weights, _product(_per_channel(node, shift, bias), factors)]


def _merged(match: Match, bias: Value, b: Value) -> np.ndarray:
    shift = _per_channel(_matched(match), match.root, b)
    if bias.data is None:
        raise NotFolded("the bias is not a constant")
    return _finite(bias.data.reshape(-1) + shift)


def _per_channel(node: Node, user: Node, operand: Value) -> np.ndarray:
    """The constant `operand` of `user`, a node after the anchor `node`, as one element per channel."""
    y, weights = node.output, node.inputs[1]
    if operand.data is None or operand.dtype != f32:
        raise NotFolded(f"the other operand must be an f32 constant, got {operand.type}")
    if y.dtype != f32 or y.shape is None or user.output.type != y.type:
        raise NotFolded(f"the result must stay f32 of the same shape, got {y.type} and {user.output.type}")
    if weights is None or weights.shape is None or len(weights.shape) < 2 or len(y.shape) < 2:
        raise NotFolded("weights must have a rank of at least 2")
    rank = len(y.shape)
    axis = 1 if node.attrs.get("data_format") == "NCX" else rank - 1
    channels, shape = y.shape[axis], (1,) * (rank - operand.data.ndim) + operand.data.shape
    if user.op.name == "bias_add":
        shape = tuple(-1 if k == (1 if user.attrs["data_format"] == "NCX" else rank - 1) else 1 for k in range(rank))
    if channels is None or any(d != 1 and k != axis for k, d in enumerate(shape)):
        raise NotFolded(f"{operand.type} is not one element for each channel of {y.type}")
    return np.broadcast_to(operand.data.reshape(-1), (channels,))


def _scaled_weights(node: Node, factors: np.ndarray) -> Folded:
    """The weights of `node`, multiplied by one factor for each channel of the result of `node`."""
    weights = node.operand(1)
    rank = len(weights.shape or ())
    if node.op.name == "matmul":
        return _scaled(weights, factors, rank - 2 if node.attrs["transpose_b"] else rank - 1)
    out, into, *_ = weight_axes(node.attrs["weights_format"], rank - 2)
    groups = node.attrs["groups"] if node.op.name == "conv_transpose" else 1
    if groups == 1:
        return _scaled(weights, factors, out)
    # Weights are [I, O / groups]: each group of input channels has its own factors.
    if weights.data is None:
        raise NotFolded("a transposed convolution in groups has no scale for each channel")
    table = factors.reshape(groups, -1).repeat(weights.data.shape[into] // groups, axis=0)
    return _product(weights.data, np.moveaxis(table.reshape(*table.shape, *[1] * (rank - 2)), (0, 1), (into, out)))


def _check_constant(value: Value | None) -> Node | None:
    """The dequantize of a dequantized constant, or None for a plain constant. Raises NotFolded for other values."""
    if value is not None and value.data is not None:
        return None
    node = None if value is None else value.node
    if node is None or node.op.name != "dequantize" or next(node.operands).data is None:
        raise NotFolded("weights and bias must be constants")
    return node


def _scaled(value: Value, factors: np.ndarray, axis: int) -> Folded:
    """A constant or dequantized constant, multiplied by one factor for each index along `axis`."""
    if value.data is not None:
        return _product(value.data, factors.reshape([-1 if k == axis else 1 for k in range(value.data.ndim)]))
    node = _check_constant(value)
    assert node is not None
    attrs, zps = node.attrs, node.attrs["zps"]
    if attrs["qtype"] == "per_channel" and attrs["axis"] % len(value.type.dims) != axis:
        raise NotFolded("the scales of the weights run along other channels")
    with np.errstate(all="ignore"):
        scales = np.array(attrs["scales"], np.float32) * factors
    if not (np.isfinite(scales) & (scales > 0)).all():
        raise NotFolded("scales must stay positive, but not all factors are")
    if zps is not None and len(zps) == 1:
        zps = zps * len(scales)
    return {**attrs, "qtype": "per_channel", "axis": axis, "scales": scales.tolist(), "zps": zps}


def _product(data: np.ndarray, factors: np.ndarray) -> np.ndarray:
    if data.dtype != np.float32:
        raise NotFolded(f"constants must be f32, got {data.dtype.name}")
    with np.errstate(all="ignore"):
        return _finite(data * factors)


def _finite(x: np.ndarray) -> np.ndarray:
    if not np.isfinite(x).all():
        raise NotFolded("the product or sum is not finite")
    return x


def _made(g: Graph, value: Value, folded: Folded) -> Value:
    if isinstance(folded, np.ndarray):
        return g.constant(folded)
    return g.add_node(value.maker.op, value.maker.inputs, folded)[0]

"""How far values of a partition's body may lie from those of the graph as written, and which outputs that concerns.

An integer anchor's exact sum differs from the sum of f32 products by roundings (`literal`). Operations carry such a
difference on, and a quantize ends it, but for values so near to a tie that the difference decides: those outputs are
computed again. Differences are absolute, of f64, one for all or one a column; 0 is the same number.
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from graphq.ir import Node, Value
from graphq.kernels.expression import Expr, substitute
from graphq.kernels.literal import MOST_NEAR

GAINS = {"relu": 1.0, "clamp": 1.0, "abs": 1.0, "tanh": 1.0, "sigmoid": 0.25, "erf": 1.13, "gelu": 1.13, "elu": 1.0,
         "hard_swish": 1.5, "mish": 1.1}
"""Operations of one operand and what their slopes do not exceed, for alpha of 1 at most."""
SLOPES = {"leaky_relu": "alpha", "hard_sigmoid": "alpha"}
SUMS = ("add", "subtract", "bias_add")
HUGE = 2.0**60
"""Bounds from here on count as infinite."""


@dataclass
class Drift:
    """The differences of a body's values; `slope` is the relative one that the anchor's result has besides.

    `columns` are those of the result, `constants` the arrays of the body's constant inputs, `sums` the anchor's result
    and what it is of the literal sum; `settled` likewise results of quantizes. A value whose difference is not known is
    not in `of`, and one that may not be finite not in `bounds`.
    """

    slope: float
    columns: int
    constants: dict[Value, np.ndarray]
    sums: dict[Expr, Expr]
    of: dict[Value, np.ndarray] = field(default_factory=dict)
    bounds: dict[Value, float] = field(default_factory=dict)
    settled: dict[Expr, Expr] = field(default_factory=dict)

    def known(self, value: Value | None) -> np.ndarray | None:
        """The difference of an operand; None when it is not known."""
        if value is None or value.node is None:
            return np.zeros(())
        return self.of.get(value)

    def follow(self, node: Node) -> None:
        """Enter the difference of a node's result and its bound, from those of its operands."""
        self.bounds[node.output] = self._bound(node)
        operands = [self.known(v) for v in node.inputs]
        first = operands[0]
        if node.op.name == "quantize":
            if first is not None and (node.attrs["dtype"].bits == 8 or not first.any()):
                self.of[node.output] = np.zeros(())
        elif all(x is not None and not x.any() for x in operands):
            self.of[node.output] = np.zeros(())
        elif first is not None and (gain := self._gain(node)) is not None:
            self.of[node.output] = gain * first
        elif node.op.name in SUMS and all(x is not None for x in operands):
            known = [x + self.slope * self.size(v, by_column=not along_channels(node))
                     for x, v in zip(operands, node.inputs, strict=True) if x is not None]
            self.of[node.output] = np.asarray(sum(known))
        elif node.op.name == "multiply" and first is not None and node.inputs[1] in self.constants:
            self.of[node.output] = first * self.size(node.inputs[1])

    def literal(self, y: Expr) -> Expr:
        """An expression of the anchor's result as one of the literal sum."""
        return substitute(y, self.sums | self.settled)

    def exact(self, value: Value | None) -> bool:
        """Whether a value is that of the graph as written."""
        drift = self.known(value)
        return drift is not None and not drift.any()

    def finite(self, node: Node) -> bool:
        """Whether what quantize `node` divides is finite, and scales are such that quotients are."""
        return self.bound(node.inputs[0]) < HUGE and all(1 / HUGE < s < HUGE for s in node.attrs["scales"])

    def bound(self, value: Value | None) -> float:
        """What an operand's size does not exceed; infinite when it is not known, also of what may be NaN."""
        if value in self.constants:
            size = np.abs(self.constants[value]).max(initial=0)
            return float(size) if np.isfinite(size) else np.inf
        return 0.0 if value is None else self.bounds.get(value, np.inf)

    def share(self, node: Node) -> np.ndarray | None:
        """Half a band around ties, in steps of quantize `node`: what lies in it may round to another integer.

        None where it is not known.
        """
        drift = self.known(node.inputs[0])
        if drift is None:
            return None
        scales = np.asarray(node.attrs["scales"], np.float32).astype(np.float64)
        along = scales.size > 1 and node.attrs["axis"] % len(node.output.type.dims) == len(node.output.type.dims) - 1
        return np.minimum(drift / (scales if along else scales.min(initial=np.inf)), MOST_NEAR)

    def _gain(self, node: Node) -> float | None:
        name = node.op.name
        if name in SLOPES:
            return max(1.0, abs(node.attrs[SLOPES[name]]))
        if name == "elu" and abs(node.attrs["alpha"]) > 1:
            return None
        return GAINS.get(name)

    def _bound(self, node: Node) -> float:
        """The bound of a node's result: f32 sums and products of such as are below HUGE exceed it a little only."""
        name, sizes = node.op.name, [self.bound(v) for v in node.inputs]
        if name == "quantize":
            return 2.0**(node.attrs["dtype"].bits + 1)
        if name == "dequantize":
            return 2.0**(next(node.operands).dtype.bits + 1) * max(node.attrs["scales"])
        if max(sizes, default=np.inf) >= HUGE:
            return np.inf
        if name in SUMS:
            return 1.01 * sum(sizes)
        if name == "multiply":
            return 1.01 * float(np.prod(sizes))
        if name in ("relu", "maximum", "minimum"):
            return max(sizes)
        if name == "clamp":
            return max(abs(node.attrs["min"]), abs(node.attrs["max"]), sizes[0])
        return np.inf if (gain := self._gain(node)) is None else max(1.0, gain * 1.01) * max(1.0, sizes[0])

    def size(self, value: Value | None, *, by_column: bool = True) -> np.ndarray:
        """How large a constant operand is, one a column where it is a row of columns; 0 of what is not constant."""
        data = self.constants.get(value) if value is not None else None
        if data is None or data.size == 0:
            return np.zeros(())
        size = np.abs(data.astype(np.float64))
        row = by_column and size.ndim > 0 and size.size == size.shape[-1] == self.columns
        return size.ravel() if row else np.asarray(size.max())


def along_channels(node: Node) -> bool:
    """Whether a one-dimensional second operand runs along dimension 1."""
    return node.op.name in ("bias_add", "prelu") and node.attrs["data_format"] == "NCX" \
        and bool(node.attrs.get("per_channel_broadcast", True))


def constants_of(inputs: Sequence[Value], arrays: Sequence[np.ndarray | None]) -> dict[Value, np.ndarray]:
    """The constant inputs of a body; of floats."""
    return {v: a for v, a in zip(inputs, arrays, strict=False) if a is not None and a.dtype.kind == "f"}

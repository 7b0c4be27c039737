"""Error bounds: how far a kernel's values of a partition's body can be from the same values in the graph as written.

A kernel's integer sum is exact; `sum_errors` bounds its distance from the f32 sum as written. The operations after the
sum carry this difference on, and add roundings of their own. A quantize usually rounds the difference away. Near a tie
the difference decides the integer, so these outputs are computed again. docs/theory/ties.md has the derivation.

The `bound` of an operation says how it carries a difference on: a `Curve` for a function of one operand, or the name of
a rule for two operands.
"""
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from math import prod
from operator import add
from typing import NamedTuple

import numpy as np

from graphq.base.sizes import assumed, later
from graphq.ir import Curve, Graph, Node, Value, keywords
from graphq.kernels.family.epilogue import along_channels
from graphq.kernels.family.lower import Arrays, StatedSum
from graphq.kernels.lanes.fast_form import UNIT
from graphq.kernels.ties.sum_errors import largest_sum, sum_error

MOST_NEAR = 2.0**-6
"""The largest half-width of the band around ties, in quantization steps: 1 in 32 outputs is then in the band."""
CHEAP = 2.0**-12
"""A proved bound of at most this many steps is used even if the estimate is narrower: few outputs are so near a tie."""
SECOND_ORDER = 2.0**-8
"""Bands are widened by this fraction, because all rules neglect the products of two differences."""
HUGE = 2.0**60
"""Absolute values of at least this number count as infinite."""


class ErrorBounds(NamedTuple):
    """How far a value v of a kernel can be from v', the same value in the graph as written.

    The distance |v' - v| is at most `proved` + `relative` * |v|. By an estimate (`sum_errors`) it is at most
    `estimated` + `relative` * |v|. `proved` and `estimated` are f64: one number for all columns, or one per column (the
    last dimension of the anchor's result). The proof assumes roundings as in IEEE 754, without overflow and underflow.
    """

    proved: np.ndarray
    estimated: np.ndarray
    relative: float

    @property
    def exact(self) -> bool:
        """Whether v equals v' by these bounds."""
        return self.relative == 0 and not self.proved.any()

    def times(self, factor: np.ndarray | float, relative: float) -> "ErrorBounds":
        """Multiply both absolute bounds by a factor, and set a new relative bound."""
        return ErrorBounds(self.proved * factor, self.estimated * factor, relative)

    def plus(self, more: np.ndarray | float, relative: float) -> "ErrorBounds":
        """Add `more` to both absolute bounds (if infinite, only to `proved`), and set a new relative bound."""
        return ErrorBounds(self.proved + more, self.estimated + np.where(np.isfinite(more), more, 0.0), relative)


EXACT = ErrorBounds(np.zeros(()), np.zeros(()), 0.0)
NEXT_TO_EXACT = EXACT._replace(relative=2.0**-200)
"""Bounds of almost 0. Bounds computed from them contain only the roundings of the later operations."""
LINEAR = ("add", "subtract", "multiply", "divide")
"""Operations that are linear in one operand if the other operand is constant."""


class Band(NamedTuple):
    """The band around the ties of a quantize: quotients at most `half` + `relative` * |quotient| steps from a tie.

    `proved` says that every quotient outside of the band is proved to round as in the graph as written; otherwise the
    band is an estimate. If sizes are open, the estimate is made for the example's shapes.
    """

    half: np.ndarray
    relative: float
    proved: bool


@dataclass
class BodyBounds:
    """Error bounds of the values of a body, computed operation by operation.

    `columns` is the number of columns of the result; `constants` has the arrays of the body's constant float inputs.
    Each value is either in `errors`, with its bounds, or in `unbounded`, with the name of the operation that has no
    rule. `largest` maps each value to its largest absolute value.
    """

    columns: int
    constants: dict[Value, np.ndarray]
    errors: dict[Value, ErrorBounds] = field(default_factory=dict)
    largest: dict[Value, float] = field(default_factory=dict)
    unbounded: dict[Value, str] = field(default_factory=dict)

    @classmethod
    def after(cls, p: StatedSum, body: Graph, columns: int, constants: Arrays, *, settle: bool = True) -> "BodyBounds":
        """Return the bounds of a body's values up to the result of its anchor; the kernel's integer sum is exact.

        `constants` are the arrays of constant inputs. The kernel computes y = f32(f32(sum) * f32(sx * sw)) and, with a
        bias b, f32(y + b). It rounds twice, or three times if |sum| can reach 2**24. These errors are relative to |y|
        <= |y + b| + |b|. Kernel and graph each round the addition of b. If the graph's sum starts from b, only the
        kernel does. Without `settle`, only the largest absolute values are bounds; the errors are placeholders
        near 0.
        """
        bounds = cls(columns, {v: a for v, a in zip(body.inputs, constants, strict=False)
                               if a is not None and a.dtype.kind == "f"})
        bias, anchor = p.node.inputs[2] if len(p.node.inputs) > 2 else None, p.node.output
        if settle:
            weights = (p.k, p.weights) if isinstance(p.weights, int) else p.weights()
            error = sum_error(p.sum, *p.activations, weights, p.batch)
            before = (2 if error.integers < 2**24 else 3) * UNIT
            additions = 0 if bias is None else 1 if p.starts_at_bias else 2
            bounds.errors[anchor] = ErrorBounds(error.proved, error.estimated, 0.0).plus(
                before * bounds.sizes(bias), before + additions * UNIT)
            largest = error.largest
        else:
            bounds.errors[anchor], largest = NEXT_TO_EXACT, largest_sum(p.k, p.sum)
        bounds.largest[anchor] = largest + bounds.largest_size(bias)
        return bounds

    def errors_of(self, value: Value | None) -> ErrorBounds | None:
        """The bounds of an operand: EXACT for an input of the body, None if no bound is known."""
        return EXACT if value is None or value.node is None else self.errors.get(value)

    def follow(self, node: Node) -> None:
        """Store the error bounds and the largest absolute value of a node's result."""
        self.largest[node.output] = self._largest_size(node)
        operands = [x for v in node.inputs if (x := self.errors_of(v)) is not None]
        if len(operands) < len(node.inputs):
            self.unbounded[node.output] = next(self.unbounded[v] for v in node.operands if v in self.unbounded)
            return
        settled = node.op.name == "quantize" and node.attrs["dtype"].bits == 8  # 16-bit outputs are not settled
        result = EXACT if settled or all(x.exact for x in operands) else \
            None if node.op.name == "quantize" else self._carried(node, operands)
        if result is None:
            self.unbounded[node.output] = node.op.name
        else:
            self.errors[node.output] = result

    def _carried(self, node: Node, operands: Sequence[ErrorBounds]) -> ErrorBounds | None:
        """The bounds of a result, computed from the bounds of its operands; None for operations without a rule.

        The kernel and the graph as written both round the result, each by at most UNIT times its size.

        For divide, the divisor b must be constant and not 0. If |a' - a| <= d + r |a|, the quotients a' / b and a / b
        differ by at most d max(1 / |b|) + r |a / b|, plus 2 UNIT |a / b| for the two roundings. Another divisor may be
        arbitrarily near 0, so there is no bound.
        """
        bound, first = node.op.bound, operands[0]
        if (curve := self._curve(node)) is not None:
            carried = first.times(curve.slope, curve.own * first.relative + 4 * curve.ulps * UNIT)
            return carried.plus(curve.spread * first.relative, carried.relative)
        if len(operands) != 2:
            return None
        by_column = not along_channels(node)
        sizes = [self.sizes(v, by_column=by_column) for v in node.inputs]
        second, relative = operands[1], sum(x.relative for x in operands) + 2 * UNIT
        if bound == "sum":
            # |a| <= |a + b| + |b|, with the smaller operand as b
            sum_ = ErrorBounds(first.proved + second.proved, first.estimated + second.estimated, 0)
            return sum_.plus((relative - 2 * UNIT) * np.minimum(*sizes),
                             max(first.relative, second.relative) + 2 * UNIT)
        if bound == "product":
            a, b = node.operands
            parts = [*self._times(a, b, sizes[1]), *self._times(b, a, sizes[0])]
            if not all(np.isfinite(x.proved).all() for x in parts):
                return None
            proved, estimated = (reduce(add, x) for x in zip(*[x[:2] for x in parts], strict=True))
            return ErrorBounds(proved, estimated, relative)
        if bound == "quotient":
            inverse = self.sizes(node.inputs[1], by_column=by_column, inverse=True)
            return first.times(inverse, relative) if np.isfinite(inverse).all() else None
        if bound == "extreme":
            return ErrorBounds(np.maximum(first.proved, second.proved), np.maximum(first.estimated, second.estimated),
                              max(first.relative, second.relative))
        return None

    def _times(self, x: Value, other: Value, size: np.ndarray) -> list[ErrorBounds]:
        """Bound what the errors of x add to a product x * `other`, for |`other`| <= `size`. The results add up.

        If x is a function of `other`, x can stop changing where `other` is large (see `_reaches`). Beyond this point, a
        difference in `other` counts only as much as at the point. The roundings between `other` and x count
        separately, because they do not become smaller.
        """
        errors = self.errors_of(x)
        assert errors is not None
        if errors.exact:
            return []
        reach, flat = self._reaches(x, other)
        found = [errors.times(np.minimum(size, reach), 0)]
        if reach < flat:
            alone = replace(self, errors={**self.errors, other: NEXT_TO_EXACT})
            for node in reversed(self._way(x, other)):
                alone.follow(node)
            found.append(alone.errors[x].times(np.minimum(size, flat), 0))
        return found

    def _way(self, x: Value, source: Value) -> list[Node]:
        """The nodes from x back to `source`; [] if a node on the way has several operands that are not constant."""
        found: list[Node] = []
        while x is not source:
            computed = [v for v in x.node.operands if v not in self.constants] if x.node is not None else []
            if x.node is None or len(computed) != 1:
                return []
            found.append(x.node)
            (x,) = computed
        return found

    def _reaches(self, x: Value, source: Value) -> tuple[float, float]:
        """Two bounds of |source|: beyond the first, errors of `source` change x only a little; beyond the second, not.

        x must be a * f(b * source + c) + d, with a `Curve` f and constants; otherwise both bounds are infinite. If
        hard-swish is written as y * clamp(y + 3, 0, 6) / 6, the clamp is constant for large y, so an error of y is
        multiplied by at most 3.
        """
        way = self._way(x, source)
        curves = [n for n in way if n.op.name not in LINEAR]
        curve = self._curve(curves[0]) if len(curves) == 1 else None
        if curve is None:
            return np.inf, np.inf
        errors, found = self.errors[source], []
        for ends in (curve.reach or curve.flat, curve.flat):
            for node in way[way.index(curves[0]) + 1:]:
                ends = self._ends_before(node, ends)
            limit = max(abs(ends[0]), abs(ends[1]))
            # plus the largest difference, because it may move a value across the limit
            found.append(limit * (1 + errors.relative) + float(errors.proved.max()))
        return found[0], found[1]

    def _ends_before(self, node: Node, ends: tuple[float, float]) -> tuple[float, float]:
        """The interval of a LINEAR node's operand, for any of its constants, if the result is between `ends`."""
        first, second = node.operands
        of_second = second in self.constants
        c = self.constants[second if of_second else first].astype(np.float64)[..., None]
        low_and_high = np.array(ends)
        with np.errstate(all="ignore"):
            inverse = {"add": low_and_high - c, "multiply": low_and_high / c, "divide": low_and_high * c,
                       "subtract": low_and_high + c if of_second else c - low_and_high}[node.op.name]
        low, high = float(inverse.min(initial=np.inf)), float(inverse.max(initial=-np.inf))
        return (low, high) if low <= high else (-np.inf, np.inf)  # a NaN makes the comparison false

    def largest_size(self, value: Value | None) -> float:
        """The largest absolute value of an operand; infinite if no bound is known or the operand may be NaN."""
        if value in self.constants:
            size = np.abs(self.constants[value]).max(initial=0)
            return float(size) if np.isfinite(size) else np.inf
        return 0.0 if value is None else self.largest.get(value, np.inf)

    def band(self, node: Node) -> Band:
        """The band around ties of quantize `node`, whose operand has bounds. Scales may vary by column.

        The band includes the roundings of the quotient in the kernel and in the graph, and of the inverse scale, all
        relative to the quotient. The distance of the quotient from the nearest integer is computed without rounding.
        """
        errors = self.errors_of(node.inputs[0])
        assert errors is not None
        scales = np.asarray(node.attrs["scales"], np.float32).astype(np.float64)
        with np.errstate(all="ignore"):
            inverse = np.fmin(np.abs((1 / scales).astype(np.float32) * scales - 1), UNIT).max(initial=0)
        along = scales.size > 1 and node.attrs["axis"] % len(node.output.type.dims) == len(node.output.type.dims) - 1
        scales = scales if along else scales.min(initial=np.inf)
        proved, estimated = (x / scales + 2 * UNIT for x in errors[:2])
        wider = 1 + SECOND_ORDER
        half = np.minimum(wider * np.where(proved <= CHEAP, proved, estimated), MOST_NEAR)
        relative = wider * (errors.relative + 2 * UNIT + float(inverse))
        return Band(half, relative, bool(assumed(np.equal(half, wider * proved).all())))

    def _curve(self, node: Node) -> Curve | None:
        """The curve of the first operand; None without a curve, or if another operand has no bound."""
        bound, sizes = node.op.bound, [self.largest_size(v) for v in node.inputs[1:]]
        if not callable(bound):
            return bound if isinstance(bound, Curve) else None
        return bound(*sizes, **{x: node.attrs[x] for x in keywords(bound)}) if np.isfinite(sizes).all() else None

    def _largest_size(self, node: Node) -> float:
        """The largest absolute value of a node's result, and a little more for f32 roundings; infinite from HUGE on."""
        name, sizes = node.op.name, [self.largest_size(v) for v in node.inputs]
        if name == "quantize":
            return 2.0**(node.attrs["dtype"].bits + 1)
        if name == "dequantize":
            dtype, zps = next(node.operands).dtype, node.attrs["zps"] or [0]
            return 1.01 * max(dtype.max - min(zps), max(zps) - dtype.min) * max(map(abs, node.attrs["scales"]))
        if max(sizes, default=np.inf) >= HUGE:
            return np.inf
        bound = node.op.bound
        if bound == "sum":
            return 1.01 * sum(sizes)
        if bound == "product":
            return 1.01 * prod(sizes)
        if bound == "quotient" and np.isfinite(inverse := self.sizes(node.inputs[1], by_column=False, inverse=True)):
            return 1.01 * sizes[0] * float(inverse)
        if bound == "extreme":
            return max(sizes)
        if (curve := self._curve(node)) is None:
            return np.inf
        return curve.largest(sizes[0]) if curve.largest else max(1.0, curve.slope * 1.01) * max(1.0, sizes[0])

    def sizes(self, value: Value | None, *, by_column: bool = True, inverse: bool = False) -> np.ndarray:
        """The largest |value| or, if `inverse`, |1 / value|. If `by_column`, a constant row has one number per column.

        The inverse is infinite if the value is not constant, or has a 0.
        """
        data = self.constants.get(value) if value is not None else None
        if data is None or data.size == 0:
            return later(np.asarray, np.inf if inverse else self.largest_size(value) if data is None else 0.0)
        with np.errstate(divide="ignore"):
            sizes = np.abs(data.astype(np.float64))
            sizes = 1 / sizes if inverse else sizes
        row = by_column and sizes.ndim > 0 and sizes.size == sizes.shape[-1] == self.columns
        return sizes.ravel() if row else np.asarray(sizes.max())

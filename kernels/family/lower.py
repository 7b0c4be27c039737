"""Lower partitions: turn their bodies into expressions for kernels and NumPy formulas, or refuse them with a reason.

This file has the code that all kernel families share, and lowers lane-wise bodies. Families whose kernels compute an
anchor have files of their own, such as kernels/matmul/lower.py.
"""
from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, Self, TypeAlias, runtime_checkable

import numpy as np

from graphq.ir import Graph, Node, Value
from graphq.kernels.family.epilogue import Anchor, EpilogueBuilder, OperandSource, translate
from graphq.kernels.family.tables import tabulate
from graphq.kernels.family.unsupported import Unsupported
from graphq.kernels.lanes.expression import STORAGE, Expr, acc, substitute
from graphq.kernels.lanes.stores import Store, evaluate
from graphq.kernels.numbers.sum_orders import DequantizedSum
from graphq.kernels.target.level import Level

Arrays = Sequence[np.ndarray | None]


@runtime_checkable
class SumsAsWritten(Protocol):
    """An accumulator that can also compute the f32 sums that the graph states."""

    def sums_as_written(self, inputs: Sequence[np.ndarray], indices: np.ndarray, how: DequantizedSum) -> np.ndarray:
        """The f32 sums of the outputs at flat `indices`, in the order that `how` describes."""


@dataclass(frozen=True, eq=False)
class StatedSum:
    """The f32 sum of `k` products of dequantized numbers that the graph states. Kernels add integers instead.

    `node` is the anchor in the body. `total` is the sum's expression, including the bias if the sum starts from it.
    `activations` is the range of the activations minus their zero point. `weights` returns the weights minus their zero
    points as [columns, k], in the order of the sum, for `batch` matrices one after another. For weights that are not
    constant, `weights` is their largest possible absolute value. `packed_zps` are the zero points that kernels subtract
    from the packed weights.
    """

    node: Node
    total: Expr
    sum: DequantizedSum
    k: int
    activations: tuple[int, int]
    weights: Callable[[], np.ndarray] | int
    batch: int
    packed_zps: np.ndarray
    starts_at_bias: bool


class Accumulator(Protocol):
    """The computation of an anchor, before the epilogue.

    Kernels may store other numbers in scratch memory, such as integer sums without a correction for zero points. The
    epilogue's expression then starts with the correction (`Lowered.accumulated`).
    """

    def accumulate(self, inputs: Sequence[np.ndarray]) -> np.ndarray:
        """The accumulators, s32 or f32, in the output's shape. `inputs` are the partition's inputs."""


@dataclass(frozen=True, eq=False)
class Lowered:
    """A partition in the form that kernels compute.

    `anchor` computes the accumulators; without an anchor it is None. `store` is the epilogue: it computes each output
    element. Slot k of its operands has the data of `sources[k]`. The epilogue starts from the numbers that kernels
    leave in scratch memory. If these are not yet the accumulators, the epilogue's subexpression `accumulated` turns
    them into the accumulators; otherwise it is None.

    `products` describes the f32 sum that the graph states, if kernels add integers instead. `values` maps the body's
    values after an anchor to their expressions; only `ties.attach` uses it. `ties` has one string for each quantize
    after a sum. "proved" and "estimated" are kinds of bounds that find outputs near a rounding tie. "formula": such
    outputs are not computed a second time. Any other string is the reason why such outputs cannot be found.
    """

    out: tuple[int, ...]
    store: Store
    sources: tuple[OperandSource, ...]
    anchor: Accumulator | None = None
    accumulated: Expr | None = None
    values: Mapping[Value, Expr] = field(default_factory=dict)
    products: StatedSum | None = None
    ties: tuple[str, ...] = ()

    def tabulated(self, constants: Arrays, level: Level) -> Self:
        """Replace operations on one byte by table look-ups if look-ups are faster."""
        store, sources, accumulated = tabulate(self.store, self.sources, constants, level.least_saved,
                                               self.accumulated)
        return replace(self, store=store, sources=sources, accumulated=accumulated)

    def formula(self, inputs: Sequence[np.ndarray]) -> np.ndarray:
        """Compute the partition's result in NumPy, bit for bit like every kernel, from the arrays of its inputs."""
        total = None if self.anchor is None else self.anchor.accumulate(inputs)
        operands = [operand(s, inputs) for s in self.sources]
        direct = self._direct()
        result = evaluate(Store(substitute(self.store.expr, direct), self.store.dtype), total, operands)
        result = np.array(np.broadcast_to(result, self.out), order="C")
        if self.store.second_look is not None and self.products is not None:
            assert isinstance(self.anchor, SumsAsWritten)
            needed = evaluate(substitute(self.store.second_look.needed, direct), total, operands)
            indices = np.flatnonzero(np.broadcast_to(needed, self.out))
            at = np.unravel_index(indices, self.out)
            picked = [None if x is None else np.broadcast_to(x, self.out)[at] for x in operands]
            sums = self.anchor.sums_as_written(inputs, indices, self.products.sum)
            result[at] = evaluate(Store(self.store.form("again"), self.store.dtype), sums, picked)
        return result

    def _direct(self) -> dict[Expr, Expr]:
        """Map `accumulated` to the accumulator itself, for a formula that starts from `anchor.accumulate`."""
        if self.accumulated is None:
            return {}
        return {self.accumulated: acc("f32") if self.accumulated.dtype == "f32" else acc()}


Lower: TypeAlias = Callable[[Graph, Arrays], Lowered]
"""The type of a family's `lower(body, constants)`. It raises Unsupported if kernels cannot compute the body.

`constants` has the arrays of the body's inputs, with None for inputs that are not constant.
"""


def lower_body(e: EpilogueBuilder, body: Graph, around: Anchor | None = None, skip: Container[Node | None] = (),
               own: Container[int] = (), **more: Any) -> Lowered:
    """Lower a body by `translate`; `around` is its anchor. `more` are further fields of the result."""
    expr = translate(e, body, around, skip, own)
    return Lowered(e.out, Store(expr, body.outputs[0].dtype.name), tuple(e.sources), **more)


def operand(source: OperandSource, inputs: Sequence[np.ndarray]) -> np.ndarray | None:
    """The array for an operand slot, in a shape that broadcasts to the output; None if only kernels compute it."""
    if source.origin == "table":
        return source.data
    data = inputs[source.index] if source.origin == "input" else source.data
    return None if data is None else data.view(STORAGE[source.dtype]).reshape(source.shape)


def at_rows(lowered: Lowered, number: int, more: Sequence[OperandSource] = ()) -> bool:
    """Whether all operands (and `more`) that read input `number` have the output's shape up to the last axis."""
    return all(s.shape[:-1] == lowered.out[:-1] for s in (*lowered.sources, *more)
               if s.origin == "input" and s.index == number)


def lower_eltwise(body: Graph, constants: Arrays = ()) -> Lowered:
    """Lower a body of lane-wise operations. Raises Unsupported. `constants` are ignored."""
    return lower_body(EpilogueBuilder(result_dims(body)), body)


def result_dims(body: Graph) -> tuple[int, ...]:
    """The shape of the body's only result. Raises Unsupported if the shape of an input or the result is open."""
    (result,) = body.outputs
    for v in body.inputs:
        if not v.type.known:
            raise Unsupported(f"the shape of an operand, {v.type}, is known only at the first call",
                              "give the inputs shapes, or call the model: it plans for the shapes of a call")
    if not result.type.known:
        raise Unsupported(f"the shape of the result, {result.type}, is known only at run time",
                          "give the inputs shapes, or call the model: it plans for the shapes of a call")
    return result.type.dims

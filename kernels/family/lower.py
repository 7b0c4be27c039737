"""From a partition's body to what a kernel computes, and to the NumPy formula that states the same numbers.

Each kernel family has a file of its own for it, as kernels/matmul/lower.py; here is what these files share, and bodies
without an anchor.
"""
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, Self, TypeAlias, runtime_checkable

import numpy as np

from graphq.ir import Graph, Node, Value
from graphq.kernels.family.checks import check_lanes
from graphq.kernels.family.epilogue import EpilogueBuilder, Source, translate
from graphq.kernels.family.tables import tabulate
from graphq.kernels.family.unsupported import Unsupported
from graphq.kernels.jit.isa import Level
from graphq.kernels.lanes.expression import Expr, acc, substitute
from graphq.kernels.lanes.lookup import least_saved
from graphq.kernels.lanes.stores import Store, evaluate
from graphq.kernels.numbers.sum_orders import DequantizedSum

Arrays = Sequence[np.ndarray | None]


@runtime_checkable
class SumsAsWritten(Protocol):
    """An accumulator that gives the f32 sums of the graph as written, too."""

    def sums_as_written(self, inputs: Sequence[np.ndarray], indices: np.ndarray, how: DequantizedSum) -> np.ndarray:
        """The sums of the outputs of these flat indices, f32."""


@dataclass(frozen=True, eq=False)
class Products:
    """What an integer anchor sums in the graph as written: `k` products of dequantized numbers, in f32.

    `node` is the anchor in the body, `total` the expression that stands for the sum, which includes the bias where sums
    start at it. `activations` are the range of activations less their zero point. `weights` gives those less their zero
    points, [columns, k] in the order of the sum, of `batch` matrices one after another; or, where they are not
    constant, is the most that one can be in size. `packed_zps` are what kernels subtract from weights as they are
    packed.
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
    """What an anchor computes before the epilogue.

    Kernels leave in scratch memory either the same numbers or simpler ones: an integer product without the compensation
    of zero points, say, which the expression of the outputs begins with (`Lowered.accumulated`).
    """

    def accumulate(self, inputs: Sequence[np.ndarray]) -> np.ndarray:
        """The accumulators, s32 or f32, in the shape of the output, for the arrays of the partition's inputs."""


@dataclass(frozen=True, eq=False)
class Lowered:
    """What kernels compute for a partition: a `store` for each output element, whose operands are `sources`, by slot.

    `anchor` says what accumulates (None: nothing does). The store takes accumulators as kernels leave them;
    `accumulated` is the part of its expression that equals what `anchor.accumulate` gives, None where kernels leave
    just that.

    `products` is what the graph as written sums, where the anchor does so exactly. `values` are the expressions of the
    body's values after an anchor, until `ties.attach` has read them: then `ties` says of each quantize after a sum how
    outputs near a rounding tie are found, by "proved" bounds or "estimated" ones, or else why they are not.
    """

    out: tuple[int, ...]
    store: Store
    sources: tuple[Source, ...]
    anchor: Accumulator | None = None
    accumulated: Expr | None = None
    values: Mapping[Value, Expr] = field(default_factory=dict)
    products: Products | None = None
    ties: tuple[str, ...] = ()

    def tabulated(self, constants: Arrays, level: Level) -> Self:
        """A partition of equal numbers that looks chains of operations up in tables where `level` is faster so.

        `constants` has the arrays of constant inputs.
        """
        store, sources, accumulated = tabulate(self.store, self.sources, constants, least_saved(level.lanes),
                                               self.accumulated)
        return replace(self, store=store, sources=sources, accumulated=accumulated)

    def formula(self, inputs: Sequence[np.ndarray]) -> np.ndarray:
        """The partition's result in NumPy, bit for bit what every kernel gives, for the arrays of its inputs."""
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
            result[at] = evaluate(Store(self.store.again, self.store.dtype), sums, picked)
        return result

    def _direct(self) -> dict[Expr, Expr]:
        """What stands in the store's expression for accumulators that are those of `anchor.accumulate`."""
        if self.accumulated is None:
            return {}
        return {self.accumulated: acc("f32") if self.accumulated.dtype == "f32" else acc()}


Check: TypeAlias = Callable[[Graph, Arrays], Any]
"""`check(body, constants)` raises Unsupported where kernels cannot compute a body; `lower` begins with what it gives.

`constants` are the arrays of constant inputs.
"""
Lower: TypeAlias = Callable[[Graph, Arrays], Lowered]
"""`lower(body, constants)` says what is computed; raises Unsupported as the `check` beside it."""


def operand(source: Source, inputs: Sequence[np.ndarray]) -> np.ndarray | None:
    """The array of an operand slot, in the shape under which it broadcasts; None for what kernels alone compute.

    A table stays as it is.
    """
    if source.origin == "table":
        return source.data
    data = inputs[source.index] if source.origin == "input" else source.data
    return None if data is None else (data.view(np.uint8) if data.dtype == np.bool_ else data).reshape(source.shape)


def check_eltwise(body: Graph, constants: Arrays = ()) -> tuple[int, ...]:
    """The shape of the result of elementwise operations; raises Unsupported. Nothing depends on constants."""
    out = result_dims(body)
    check_lanes(body, out)
    return out


def lower_eltwise(body: Graph, constants: Arrays = ()) -> Lowered:
    """Lower a body of elementwise operations; raises Unsupported."""
    out = check_eltwise(body)
    e = EpilogueBuilder(out)
    expr = translate(e, body)
    return Lowered(out, Store(expr, body.outputs[0].dtype.name), tuple(e.sources))


def result_dims(body: Graph) -> tuple[int, ...]:
    """The shape of the body's one result; raises Unsupported while an operand's shape is open."""
    (result,) = body.outputs
    for v in body.inputs:
        if not v.type.known:
            raise Unsupported(f"the shape of an operand, {v.type}, is known at the first call only",
                              "give the inputs shapes, or call the model, which plans for those of the call")
    if not result.type.known:
        raise Unsupported(f"the shape of the result, {result.type}, is known when it runs only",
                          "give the inputs shapes, or call the model, which plans for those of the call")
    return result.type.dims

"""Lowering: a partition's body becomes expressions for kernels, and a NumPy formula of the same numbers.

Each kernel family has a file of its own for lowering, such as kernels/matmul/lower.py. This file has what they share,
and the lowering of bodies without an anchor.
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
    """An accumulator that can also give the f32 sums of the graph as written."""

    def sums_as_written(self, inputs: Sequence[np.ndarray], indices: np.ndarray, how: DequantizedSum) -> np.ndarray:
        """The f32 sums of the outputs at these flat indices, in the order that `how` describes."""


@dataclass(frozen=True, eq=False)
class Products:
    """The f32 sum that the graph as written has in place of an integer anchor: `k` products of dequantized numbers.

    `node` is the anchor in the body. `total` is the expression of the sum, including the bias if the sum starts from
    it. `activations` is the range of the activations minus their zero point. `weights` is a function that returns the
    weights minus their zero points, as [columns, k] in the order of the sum, for `batch` matrices one after another. If
    the weights are not constant, `weights` is the largest absolute value that one of them can have. `packed_zps` are
    the zero points that kernels subtract from the packed weights.
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
    """The part of a partition that its anchor computes, before the epilogue.

    Kernels leave in scratch memory either the accumulators or simpler numbers, such as an integer product without the
    compensation of zero points. In the second case the epilogue's expression begins with the compensation (see
    `Lowered.accumulated`).
    """

    def accumulate(self, inputs: Sequence[np.ndarray]) -> np.ndarray:
        """The accumulators, s32 or f32, in the shape of the output, for the arrays of the partition's inputs."""


@dataclass(frozen=True, eq=False)
class Lowered:
    """A partition as kernels compute it.

    `store` is the epilogue, which computes each output element; slot k of its operands comes from `sources[k]`.
    `anchor` computes the accumulators, and is None if there are none. The expression of `store` takes accumulators as
    kernels leave them. `accumulated` is the part of this expression that equals the result of `anchor.accumulate`; it
    is None if kernels leave exactly that result.

    `products` describes the sum in the graph as written, if the anchor's sum is exact. `values` are the expressions of
    the body's values after an anchor, until `ties.attach` has read them. Afterwards `ties` has one string for each
    quantize after a sum: "proved" or "estimated", the kind of bound by which outputs near a rounding tie are found, or
    else the reason why they are not found.
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
        """An equal partition in which table look-ups replace operations on one byte where that is faster at `level`."""
        store, sources, accumulated = tabulate(self.store, self.sources, constants, least_saved(level.lanes),
                                               self.accumulated)
        return replace(self, store=store, sources=sources, accumulated=accumulated)

    def formula(self, inputs: Sequence[np.ndarray]) -> np.ndarray:
        """The partition's result in NumPy, equal to every kernel's bit for bit, for the arrays of its inputs."""
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
        """The substitution that makes the store's expression start from the result of `anchor.accumulate`."""
        if self.accumulated is None:
            return {}
        return {self.accumulated: acc("f32") if self.accumulated.dtype == "f32" else acc()}


Check: TypeAlias = Callable[[Graph, Arrays], Any]
"""The type of a family's `check(body, constants)`, which raises Unsupported if kernels cannot compute a body.

`constants` are the arrays of constant inputs. `lower` of the same family begins with the result of `check`.
"""
Lower: TypeAlias = Callable[[Graph, Arrays], Lowered]
"""The type of a family's `lower(body, constants)`, which gives the lowered partition; it raises as `check` does."""


def operand(source: Source, inputs: Sequence[np.ndarray]) -> np.ndarray | None:
    """The array of an operand slot, in the shape under which it broadcasts; a table keeps its own shape.

    Returns None for an operand that only kernels compute.
    """
    if source.origin == "table":
        return source.data
    data = inputs[source.index] if source.origin == "input" else source.data
    return None if data is None else (data.view(np.uint8) if data.dtype == np.bool_ else data).reshape(source.shape)


def at_rows(lowered: Lowered, number: int, more: Sequence[Source] = ()) -> bool:
    """Whether every operand that is input `number` has the output's size along all dimensions but the last.

    The operands are those of the store, and those in `more`.
    """
    return all(s.shape[:-1] == lowered.out[:-1] for s in (*lowered.sources, *more)
               if s.origin == "input" and s.index == number)


def check_eltwise(body: Graph, constants: Arrays = ()) -> tuple[int, ...]:
    """The shape of the result of elementwise operations; raises Unsupported. `constants` are not used."""
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
    """The shape of the body's one result; raises Unsupported if the shape of an operand is open."""
    (result,) = body.outputs
    for v in body.inputs:
        if not v.type.known:
            raise Unsupported(f"the shape of an operand, {v.type}, is known at the first call only",
                              "give the inputs shapes, or call the model, which plans for those of the call")
    if not result.type.known:
        raise Unsupported(f"the shape of the result, {result.type}, is known when it runs only",
                          "give the inputs shapes, or call the model, which plans for those of the call")
    return result.type.dims

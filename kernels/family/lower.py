"""From a partition's body to what a kernel computes, and to the NumPy formula that states the same numbers.

Each family of anchors has a file of its own, as lower_matmul; here is what they share, and bodies without an anchor.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, Self, TypeAlias, runtime_checkable
from weakref import WeakKeyDictionary

import numpy as np

from graphq.ir import Graph
from graphq.kernels.family.epilogue import Epilogue, Source, Unsupported, translate
from graphq.kernels.family.tables import tabulate
from graphq.kernels.jit.isa import Level
from graphq.kernels.lanes.lookup import least_saved
from graphq.kernels.lanes.stores import Store, evaluate
from graphq.kernels.ties.literal import Literal

Arrays = Sequence[np.ndarray | None]


@runtime_checkable
class Settled(Protocol):
    """An accumulator with literal sums (`literal`)."""

    def literal_sums(self, inputs: Sequence[np.ndarray], places: np.ndarray, literal: Literal) -> np.ndarray:
        """The literal sums of the outputs of these flat indices, f32."""


class Accumulator(Protocol):
    """What an anchor computes before the epilogue; kernels leave it in scratch memory.

    One that multiplies integers has `integer` = True.
    """

    def accumulate(self, inputs: Sequence[np.ndarray]) -> np.ndarray:
        """The accumulators, s32 or f32, in the shape of the output, for the arrays of the partition's inputs."""


@dataclass(frozen=True, eq=False)
class Lowered:
    """`store` per output element, the `sources` of its operands by slot, what accumulates (None: nothing does).

    `literal` says what the literal sums of outputs near a tie are, where the store marks them. `ties` says of each
    quantize after an integer sum how these outputs are found: by "proved" bounds or "estimated" ones; or else why they
    are not.
    """

    out: tuple[int, ...]
    store: Store
    sources: tuple[Source, ...]
    anchor: Accumulator | None = None
    literal: Literal | None = None
    ties: tuple[str, ...] = ()

    @property
    def integer(self) -> bool:
        """Whether it multiplies integers, which reports count."""
        return getattr(self.anchor, "integer", False)

    def tabulated(self, constants: Arrays, level: Level) -> Self:
        """The same numbers, with tables for the chains of operations for which kernels of `level` are faster so.

        `constants` has the arrays of constant inputs.
        """
        store, sources = tabulate(self.store, self.sources, constants, least_saved(level.lanes))
        return replace(self, store=store, sources=sources)

    def formula(self, inputs: Sequence[np.ndarray]) -> np.ndarray:
        """The partition's result in NumPy, bit for bit what every kernel gives, for the arrays of its inputs."""
        total = None if self.anchor is None else self.anchor.accumulate(inputs)
        operands = [operand(s, inputs) for s in self.sources]
        result = np.array(np.broadcast_to(evaluate(self.store, total, operands), self.out), order="C")
        if self.store.ties is not None and self.literal is not None:
            assert isinstance(self.anchor, Settled)
            places = np.flatnonzero(np.broadcast_to(evaluate(self.store.ties.near, total, operands), self.out))
            at = np.unravel_index(places, self.out)
            picked = [np.broadcast_to(x, self.out)[at] for x in operands]
            sums = self.anchor.literal_sums(inputs, places, self.literal)
            result[at] = evaluate(Store(self.store.literal, self.store.dtype), sums, picked)
        return result


Lower: TypeAlias = Callable[..., Lowered]
"""`lower(body, constants, compensate=)` says what is computed, or raises Unsupported."""

_asked: WeakKeyDictionary[Graph, tuple[Arrays, Lowered]] = WeakKeyDictionary()


def lowered(lower: Lower, body: Graph, constants: Arrays, *, take: bool = False) -> Lowered:
    """What kernels compute for a body, from accumulators as they leave them.

    A fusion asks whether there is such a thing, a plan what it is and `take`s it: it is worked out once, for a body
    that stays as it is, unless the constants become others in between.
    """
    known, made = _asked.get(body, ((), None))
    if made is None or len(known) != len(constants) or not all(map(_same, known, constants)):
        made = lower(body, constants, compensate=True)
    if take:
        _asked.pop(body, None)
    else:
        _asked[body] = constants, made
    return made


def _same(a: np.ndarray | None, b: np.ndarray | None) -> bool:
    """Whether constants are the same, bit for bit; equal ones become one array."""
    if a is b or a is None or b is None:
        return a is b
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def operand(source: Source, inputs: Sequence[np.ndarray]) -> np.ndarray:
    """The array of an operand slot, in the shape under which it broadcasts; a table as it is."""
    if source.place == "table":
        assert source.data is not None
        return source.data
    data = source.data if source.place == "parameter" else inputs[source.index]
    assert data is not None
    return (data.view(np.uint8) if data.dtype == np.bool_ else data).reshape(source.shape)


def lower_eltwise(body: Graph, constants: Arrays = (), *, compensate: bool = False) -> Lowered:
    """Lower a body of elementwise operations; raises Unsupported. Nothing depends on constants or compensation."""
    out = result_dims(body)
    e = Epilogue(out)
    expr = translate(e, body)
    return Lowered(out, Store(expr, body.outputs[0].dtype.name), tuple(e.sources))


def result_dims(body: Graph) -> tuple[int, ...]:
    """The shape of the body's one result; raises Unsupported while an operand's shape is open."""
    (result,) = body.outputs
    for v in body.inputs:
        if not v.type.known:
            raise Unsupported(f"the shape of an operand, {v.type}, is known at the first call only")
    if not result.type.known:
        raise Unsupported(f"the shape of the result, {result.type}, is known when it runs only")
    return result.type.dims

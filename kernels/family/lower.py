"""Lowering: a partition's body becomes expressions for kernels and a NumPy formula, or is refused with a reason.

Each kernel family has its own file for lowering, such as kernels/matmul/lower.py. This file has the code that they
share, and the lowering of bodies without an anchor.
"""
from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol, Self, TypeAlias, runtime_checkable

import numpy as np

from graphq.ir import Graph, Node, Value
from graphq.ir.names import listing
from graphq.kernels.family.epilogue import (
    LOADS,
    EpilogueBuilder,
    Source,
    above,
    inverse_scales,
    operand_dims,
    refuses,
    translate,
)
from graphq.kernels.family.tables import tabulate
from graphq.kernels.jit.isa import Level
from graphq.kernels.lanes.expression import STORAGE, Expr, acc, substitute
from graphq.kernels.lanes.stores import Store, evaluate
from graphq.kernels.lanes.vector import least_saved
from graphq.kernels.numbers.sum_orders import DequantizedSum


class Axes(NamedTuple):
    """Axes of a value of a body; a message shows them as `axis 1` or `axes 1 and 2`."""

    value: Value
    axes: tuple[int, ...]

    def __str__(self) -> str:
        return called_axes(sorted(k % max(len(self.value.shape or ()), 1) for k in self.axes))


def called_axes(axes: list[int]) -> str:
    """The text for some axes: `axis 1`, `axes 1 and 2`, `no axes`."""
    if not axes:
        return "no axes"
    return f"{'axis' if len(axes) == 1 else 'axes'} {listing(map(str, axes), 'and')}"


Mention: TypeAlias = Value | Axes
"""A part of the body that a message can mention: a value, shown by its type, or axes of a value."""


class Unsupported(Exception):  # named without "Error", as it is a refusal with its reason and not a defect
    """Kernels cannot compute a body as one partition; the message is the reason that reports show.

    `edit` is the change of the graph that would make it possible. `operand` is the index of the anchor's operand that
    is the obstacle, or None. Passes may have transposed the body's values, so their axes and types here may differ from
    the user's graph. The message therefore has `{name}` instead of them, and `mentions` maps the name to the Axes or
    the value. Reports fill in the axes and types of the user's graph (see `told`).
    """

    def __init__(self, reason: str, edit: str = "", operand: int | None = None, **mentions: Mention) -> None:
        self.operand, self.mentions = operand, mentions
        self._texts = reason, edit
        super().__init__(self._filled(reason, _plain))
        self.edit = self._filled(edit, _plain)

    def told(self, words: Callable[[Mention], str]) -> Unsupported:
        """The same refusal, with each mention replaced by its text from `words`."""
        reason, edit = (self._filled(text, words) for text in self._texts)
        return Unsupported(reason, edit, self.operand)

    def _filled(self, text: str, words: Callable[[Mention], str]) -> str:
        return text.format_map({name: words(m) for name, m in self.mentions.items()}) if self.mentions else text


def _plain(mention: Mention) -> str:
    return str(mention) if isinstance(mention, Axes) else str(mention.type)


def check_lanes(body: Graph, out: tuple[int, ...], anchor: Node | None = None, skip: Container[Node | None] = (),
                own: Container[int] = (), result: Value | None = None, *, anchored: bool = False) -> None:
    """Raise Unsupported if an operation, type or shape keeps `translate` from making an expression of shape `out`.

    The arguments are the same as in `translate`; `anchored` has the same meaning as in EpilogueBuilder.
    """
    for node in body.nodes if result is None else above(result):
        if node in skip:
            continue
        if node is not anchor and (reason := refuses(node)) is not None:
            raise Unsupported(reason)
        _check_fits(node.output.type.dims, out)
        for k, v in enumerate(node.inputs):
            if v is not None and v.node is None and not (node is anchor and k in own):
                check_loads(v)
                _check_fits(operand_dims(node, k, v), out)
        if anchored and node.op.name == "quantize":
            expect_positive(node.attrs["scales"])
            if node.attrs["dtype"].bits <= 8 and not np.isfinite(inverse_scales(node)).all():
                raise Unsupported("1/scale of a quantize is not a finite f32",
                                  "give the quantize a scale above 2**-127")
    result = body.outputs[0] if result is None else result
    if result.type.dims != out:
        raise Unsupported("the result {result} has not the shape " + str(list(out)),
                          "quantize before the operation that changes the shape", result=result)
    if result.dtype.name not in STORAGE:
        raise Unsupported(f"kernels do not store {result.dtype}", "quantize to u8 or s8, or leave the result in f32")


def expect_positive(scales: Sequence[float] | np.ndarray) -> None:
    """Raise Unsupported for a scale of 0 or below."""
    numbers = np.asarray(scales, np.float32).ravel()
    for scale in numbers[~(numbers > 0)][:1]:
        raise Unsupported(f"its kernels take positive scales, and a scale is {scale:g}", "make the scales positive")


def check_loads(value: Value) -> None:
    """Raise Unsupported if kernels do not load the operand's type."""
    if value.dtype.name not in LOADS:
        raise Unsupported(f"kernels do not load {value.dtype}", f"cast {value.name} to f32 before")


def _check_fits(shape: tuple[int, ...], out: tuple[int, ...]) -> None:
    """Raise Unsupported if an operand of shape `shape` would broadcast the output to a larger shape."""
    more = len(out) - len(shape)
    if more < 0 or any([a not in (1, b) for a, b in zip(shape, out[more:], strict=True)]):
        raise Unsupported(f"an operand of shape {list(shape)} does not broadcast into the result {list(out)}",
                          "quantize before the operation that makes the result larger")


Arrays = Sequence[np.ndarray | None]


@runtime_checkable
class SumsAsWritten(Protocol):
    """An accumulator that can also give the f32 sums of the graph as written."""

    def sums_as_written(self, inputs: Sequence[np.ndarray], indices: np.ndarray, how: DequantizedSum) -> np.ndarray:
        """The f32 sums of the outputs at these flat indices, in the order that `how` describes."""


@dataclass(frozen=True, eq=False)
class Products:
    """The f32 sum that the graph states instead of an integer anchor: `k` products of dequantized numbers.

    `node` is the anchor in the body. `total` is the expression of the sum, including the bias if the sum starts from
    it. `activations` is the range of the activations minus their zero point. `weights` is a function that returns the
    weights minus their zero points, as [columns, k] in the order of the sum, for `batch` matrices one after another. If
    the weights are not constant, `weights` is their largest possible absolute value. `packed_zps` are the zero points
    that kernels subtract from the packed weights.
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

    Kernels leave in scratch memory either the accumulators or simpler numbers, such as an integer product that is not
    yet corrected for zero points. In the second case the epilogue's expression begins with the correction (see
    `Lowered.accumulated`).
    """

    def accumulate(self, inputs: Sequence[np.ndarray]) -> np.ndarray:
        """The accumulators, s32 or f32, in the shape of the output, from the arrays of the partition's inputs."""


@dataclass(frozen=True, eq=False)
class Lowered:
    """A partition as kernels compute it.

    `store` is the epilogue: it computes each output element. Slot k of its operands comes from `sources[k]`. `anchor`
    computes the accumulators, and is None without accumulators. The expression of `store` starts from the numbers that
    kernels leave in scratch memory. Its part `accumulated` computes the result of `anchor.accumulate`; None says that
    kernels leave this result itself.

    `products` describes the sum in the graph as written, if the anchor's sum is exact. `values` are the expressions of
    the body's values after an anchor; `ties.attach` reads and drops them. It sets `ties` to one string for each
    quantize after a sum: the kind of bound that finds outputs near a rounding tie ("proved" or "estimated"), or the
    reason why they are not found.
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
        """An equal partition with table look-ups instead of operations on one byte, if that is faster at `level`."""
        store, sources, accumulated = tabulate(self.store, self.sources, constants, least_saved(level.lanes),
                                               self.accumulated)
        return replace(self, store=store, sources=sources, accumulated=accumulated)

    def formula(self, inputs: Sequence[np.ndarray]) -> np.ndarray:
        """The partition's result in NumPy, equal to every kernel's bit for bit, from the arrays of its inputs."""
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
"""The type of a family's `check(body, constants)`. It raises Unsupported if kernels cannot compute a body.

`constants` are the arrays of constant inputs. `lower` of the same family begins with the result of `check`.
"""
Lower: TypeAlias = Callable[[Graph, Arrays], Lowered]
"""The type of a family's `lower(body, constants)`. It returns the lowered partition and raises like `check`."""


def operand(source: Source, inputs: Sequence[np.ndarray]) -> np.ndarray | None:
    """The array of an operand slot, in the shape that broadcasts; a table keeps its own shape.

    Returns None for an operand that only kernels compute.
    """
    if source.origin == "table":
        return source.data
    data = inputs[source.index] if source.origin == "input" else source.data
    return None if data is None else data.view(STORAGE[source.dtype]).reshape(source.shape)


def at_rows(lowered: Lowered, number: int, more: Sequence[Source] = ()) -> bool:
    """Whether every operand that is input `number` has the output's size along all dimensions but the last.

    The operands are the store's operands and the operands in `more`.
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
    """The shape of the body's only result; raises Unsupported if the shape of an operand is open."""
    (result,) = body.outputs
    for v in body.inputs:
        if not v.type.known:
            raise Unsupported(f"the shape of an operand, {v.type}, is known only at the first call",
                              "give the inputs shapes, or call the model: it plans for the shapes of a call")
    if not result.type.known:
        raise Unsupported(f"the shape of the result, {result.type}, is known only at run time",
                          "give the inputs shapes, or call the model: it plans for the shapes of a call")
    return result.type.dims

"""Lower partitions: turn their bodies into expressions for kernels and NumPy formulas, or refuse them with a reason.

This file has the code that all kernel families share, and lowers lane-wise bodies. Families whose kernels compute an
anchor have files of their own, such as kernels/matmul/lower.py.
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
from graphq.kernels.lanes.expression import STORAGE, Expr, acc, substitute
from graphq.kernels.lanes.stores import Store, evaluate
from graphq.kernels.lanes.vector import least_saved
from graphq.kernels.numbers.sum_orders import DequantizedSum
from graphq.kernels.target.level import Level


class Axes(NamedTuple):
    """Axes of a value of a body. Messages show them as `axis 1` or `axes 1 and 2`."""

    value: Value
    axes: tuple[int, ...]

    def __str__(self) -> str:
        return called_axes(sorted(k % max(len(self.value.shape or ()), 1) for k in self.axes))


def called_axes(axes: list[int]) -> str:
    """Name axes in a message: `axis 1`, `axes 1 and 2`, `no axes`."""
    if not axes:
        return "no axes"
    return f"{'axis' if len(axes) == 1 else 'axes'} {listing(map(str, axes), 'and')}"


Mention: TypeAlias = Value | Axes
"""A thing in a message that depends on the graph: a value, shown by its type, or axes of a value."""


class Unsupported(Exception):  # the name has no "Error", because reports show it as a reason
    """Kernels cannot compute a body as one partition. The message is the reason that reports show.

    `edit` says how to change the graph to make fusion possible. `operand` is the index of the anchor's operand that is
    the obstacle, or None. The message may contain placeholders `{name}`; `mentions` maps each name to a value or to
    axes of the body. Passes may have transposed the body, so reports fill in the types and axes of the user's graph
    (`told`).
    """

    def __init__(self, reason: str, edit: str = "", operand: int | None = None, **mentions: Mention) -> None:
        self.operand, self.mentions = operand, mentions
        self._texts = reason, edit
        super().__init__(self._filled(reason, _plain))
        self.edit = self._filled(edit, _plain)

    def told(self, words: Callable[[Mention], str]) -> Unsupported:
        """The same refusal with each mention replaced by `words(mention)`."""
        reason, edit = (self._filled(text, words) for text in self._texts)
        return Unsupported(reason, edit, self.operand)

    def _filled(self, text: str, words: Callable[[Mention], str]) -> str:
        return text.format_map({name: words(m) for name, m in self.mentions.items()}) if self.mentions else text


def _plain(mention: Mention) -> str:
    return str(mention) if isinstance(mention, Axes) else str(mention.type)


def check_lanes(body: Graph, out: tuple[int, ...], anchor: Node | None = None, skip: Container[Node | None] = (),
                own: Container[int] = (), result: Value | None = None, *, anchored: bool = False) -> None:
    """Raise Unsupported if an operation, type or shape prevents `translate` from making an expression of shape `out`.

    The arguments have the same meaning as in `translate` and EpilogueBuilder.
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
        raise Unsupported("the result {result} does not have the shape " + str(list(out)),
                          "quantize before the operation that changes the shape", result=result)
    if result.dtype.name not in STORAGE:
        raise Unsupported(f"kernels do not store {result.dtype}", "quantize to u8 or s8, or leave the result in f32")


def expect_positive(scales: Sequence[float] | np.ndarray) -> None:
    """Raise Unsupported if a scale is not positive."""
    numbers = np.asarray(scales, np.float32).ravel()
    for scale in numbers[~(numbers > 0)][:1]:
        raise Unsupported(f"its kernels take positive scales, and a scale is {scale:g}", "make the scales positive")


def check_loads(value: Value) -> None:
    """Raise Unsupported if kernels cannot load the operand's type."""
    if value.dtype.name not in LOADS:
        raise Unsupported(f"kernels do not load {value.dtype}", f"cast {value.name} to f32 first")


def _check_fits(shape: tuple[int, ...], out: tuple[int, ...]) -> None:
    """Raise Unsupported if an operand of this shape would enlarge the output by broadcasting."""
    more = len(out) - len(shape)
    if more < 0 or any([a not in (1, b) for a, b in zip(shape, out[more:], strict=True)]):
        raise Unsupported(f"an operand of shape {list(shape)} does not broadcast into the result {list(out)}",
                          "quantize before the operation that makes the result larger")


Arrays = Sequence[np.ndarray | None]


@runtime_checkable
class SumsAsWritten(Protocol):
    """An accumulator that can also compute the f32 sums that the graph states."""

    def sums_as_written(self, inputs: Sequence[np.ndarray], indices: np.ndarray, how: DequantizedSum) -> np.ndarray:
        """The f32 sums of the outputs at flat `indices`, in the order that `how` describes."""


@dataclass(frozen=True, eq=False)
class Products:
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
    sources: tuple[Source, ...]
    anchor: Accumulator | None = None
    accumulated: Expr | None = None
    values: Mapping[Value, Expr] = field(default_factory=dict)
    products: Products | None = None
    ties: tuple[str, ...] = ()

    def tabulated(self, constants: Arrays, level: Level) -> Self:
        """Replace operations on one byte by table look-ups if look-ups are faster."""
        store, sources, accumulated = tabulate(self.store, self.sources, constants, least_saved(level.lanes),
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


Check: TypeAlias = Callable[[Graph, Arrays], Any]
"""The type of a family's `check(body, constants)`. It raises Unsupported if kernels cannot compute the body.

`constants` has the arrays of the body's inputs, with None for inputs that are not constant.
"""
Lower: TypeAlias = Callable[[Graph, Arrays], Lowered]
"""The type of a family's `lower(body, constants)`. It runs `check` first, and raises Unsupported if `check` does."""


def operand(source: Source, inputs: Sequence[np.ndarray]) -> np.ndarray | None:
    """The array for an operand slot, in a shape that broadcasts to the output; None if only kernels compute it."""
    if source.origin == "table":
        return source.data
    data = inputs[source.index] if source.origin == "input" else source.data
    return None if data is None else data.view(STORAGE[source.dtype]).reshape(source.shape)


def at_rows(lowered: Lowered, number: int, more: Sequence[Source] = ()) -> bool:
    """Whether all operands (and `more`) that read input `number` have the output's shape up to the last axis."""
    return all(s.shape[:-1] == lowered.out[:-1] for s in (*lowered.sources, *more)
               if s.origin == "input" and s.index == number)


def check_eltwise(body: Graph, constants: Arrays = ()) -> tuple[int, ...]:
    """The shape of the result of lane-wise operations. Raises Unsupported. `constants` are ignored."""
    out = result_dims(body)
    check_lanes(body, out)
    return out


def lower_eltwise(body: Graph, constants: Arrays = ()) -> Lowered:
    """Lower a body of lane-wise operations. Raises Unsupported."""
    out = check_eltwise(body)
    e = EpilogueBuilder(out)
    expr = translate(e, body)
    return Lowered(out, Store(expr, body.outputs[0].dtype.name), tuple(e.sources))


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

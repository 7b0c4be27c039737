"""Lower partitions: turn their bodies into expressions for kernels and NumPy formulas, or refuse them with a reason.

A body is the graph inside a partition. Its anchor is the operation that decides the kernel family, such as a matmul.
This file has what all kernel families share: lane-wise bodies, scales and zero points of an anchor's operands, and the
f32 sum that the graph states.
"""
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Literal, Protocol, Self, TypeAlias, TypeVar, runtime_checkable

import numpy as np

from graphq.ir import Graph, Node, Value
from graphq.kernels.family.epilogue import AnchorRule, EpilogueBuilder, OperandSource, expect_positive, translate
from graphq.kernels.family.tables import tabulate
from graphq.kernels.family.unsupported import Unsupported
from graphq.kernels.lanes.epilogues import Epilogue, evaluate
from graphq.kernels.lanes.expression import BYTES, COMPUTE, STORAGE, Expr, acc, load, substitute, walk
from graphq.kernels.lanes.quantizing import byte_type
from graphq.kernels.numbers.sum_orders import DequantizedSum, Order
from graphq.kernels.target.level import Level

Arrays = Sequence[np.ndarray | None]


@runtime_checkable
class SumsAsWritten(Protocol):
    """A lowered anchor that can also compute the f32 sums that the graph states."""

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


class LoweredAnchor(Protocol):
    """The computation of an anchor, before the epilogue: its operands and its formula.

    Kernels may store other numbers in scratch memory, such as integer sums without a correction for zero points. The
    epilogue's expression then starts with the correction (`Lowered.accumulated`).
    """

    def accumulate(self, inputs: Sequence[np.ndarray]) -> np.ndarray:
        """The accumulators, s32 or f32, in the output's shape. `inputs` are the partition's inputs."""


Anchor = TypeVar("Anchor", bound=LoweredAnchor | None, covariant=True)


@dataclass(frozen=True, eq=False)
class Lowered(Generic[Anchor]):
    """A partition in the form that kernels compute.

    `anchor` computes the accumulators; without an anchor it is None. `epilogue` computes each output element. Slot k of
    its operands has the data of `sources[k]`. The epilogue starts from the raw sum R that kernels leave in scratch
    memory. If R lacks corrections for zero points, the epilogue's subexpression `accumulated` adds them; it is the
    accumulator. If R is the accumulator, `accumulated` is None.

    `stated_sum` describes the f32 sum that the graph states, if kernels add integers instead. `values` maps the body's
    values after an anchor to their expressions; only `ties.attach` uses it. `ties` has one string for each quantize
    after a sum. "proved" and "estimated" are kinds of bounds that find outputs near a rounding tie. "formula": such
    outputs are not computed a second time. Any other string is the reason why such outputs cannot be found.
    """

    out: tuple[int, ...]
    epilogue: Epilogue
    sources: tuple[OperandSource, ...]
    anchor: Anchor
    accumulated: Expr | None = None
    values: Mapping[Value, Expr] = field(default_factory=dict)
    stated_sum: StatedSum | None = None
    ties: tuple[str, ...] = ()

    def tabulated(self, constants: Arrays, level: Level) -> Self:
        """Replace operations on one byte by table look-ups if look-ups are faster; leave out slots without loads."""
        epilogue, part = self.epilogue, self.accumulated
        sources: Sequence[OperandSource] = self.sources
        bytes_ = {x: dtype for x in walk(epilogue.expr) if (dtype := byte_type(x)) is not None}
        bytes_ |= {epilogue.expr: epilogue.dtype} if epilogue.dtype in BYTES else {}
        if len(bytes_) > 1:  # a chain begins and ends with a byte
            epilogue, sources, part = tabulate(epilogue, sources, constants, bytes_, level.least_saved, part)
        used = [x[0] for x in epilogue.loads]
        if used != [*range(len(sources))]:
            new = {load(*x): load(k, *x[1:]) for k, x in enumerate(epilogue.loads)}
            epilogue, sources = epilogue.renamed(new), [sources[slot] for slot in used]
            part = None if part is None else substitute(part, new)
        return replace(self, epilogue=epilogue, sources=tuple(sources), accumulated=part)

    def formula(self, inputs: Sequence[np.ndarray]) -> np.ndarray:
        """Compute the partition's result in NumPy, bit for bit like every kernel, from the arrays of its inputs."""
        total = None if self.anchor is None else self.anchor.accumulate(inputs)
        operands = [operand(s, inputs) for s in self.sources]
        # the formula starts from `anchor.accumulate`, so the accumulator itself stands for `accumulated`
        x = self.accumulated
        direct = {} if x is None else {x: acc("f32") if x.dtype == "f32" else acc()}
        result = evaluate(Epilogue(substitute(self.epilogue.expr, direct), self.epilogue.dtype), total, operands)
        result = np.array(np.broadcast_to(result, self.out), order="C")
        if self.epilogue.second_look is not None and self.stated_sum is not None:
            assert isinstance(self.anchor, SumsAsWritten)
            needed = evaluate(substitute(self.epilogue.second_look.needed, direct), total, operands)
            indices = np.flatnonzero(np.broadcast_to(needed, self.out))
            at = np.unravel_index(indices, self.out)
            picked = [None if x is None else np.broadcast_to(x, self.out)[at] for x in operands]
            sums = self.anchor.sums_as_written(inputs, indices, self.stated_sum.sum)
            result[at] = evaluate(Epilogue(self.epilogue.form("second_look"), self.epilogue.dtype), sums, picked)
        return result


Lower: TypeAlias = Callable[[Graph, Arrays], Lowered]
"""The type of a family's `lower(body, constants)`. It raises Unsupported if kernels cannot compute the body.

`constants` has the arrays of the body's inputs, with None for inputs that are not constant.
"""


def lower_body(e: EpilogueBuilder, body: Graph, around: AnchorRule | None = None, skip: Container[Node | None] = (),
               own: Container[int] = (), anchor: LoweredAnchor | None = None, **more: Any) -> Lowered:
    """Lower a body by `translate`; `around` is its anchor. `anchor` and `more` are fields of the result."""
    expr, dtype = translate(e, body, around, skip, own), body.outputs[0].dtype.name
    if COMPUTE.get(dtype) != expr.dtype:
        raise Unsupported(f"kernels do not store {dtype}")
    return Lowered(e.out, Epilogue(expr, dtype), tuple(e.sources), anchor, **more)


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
    for v in (*body.inputs, result):
        if not v.type.known:
            what, when = ("the result", "run time") if v is result else ("an operand", "the first call")
            raise Unsupported(f"the shape of {what}, {v.type}, is known only at {when}",
                              "give the inputs shapes, or call the model: it plans for the shapes of a call")
    return result.type.dims


RANGES = {"u8": (0, 255), "s8": (-128, 127)}


@dataclass(frozen=True, eq=False)
class QuantParameter:
    """The scales or the zero points of a quantized operand.

    Constants are in `data`; otherwise the numbers are input `index` of the partition. `plus` is added to zero points
    that are not constant. Reshaped to `shape`, the numbers broadcast to the quantized operand and to the result.
    """

    dtype: str
    shape: tuple[int, ...] = ()
    data: np.ndarray | None = None
    index: int = 0
    plus: int = 0

    @property
    def absent(self) -> bool:
        """Whether all numbers are the constant 0. Then there is nothing to subtract."""
        return self.data is not None and not self.data.any()

    def shifted(self, by: int) -> "QuantParameter":
        """The same zero points with the number `by` added."""
        if self.data is not None:
            return replace(self, data=self.data + by)
        return replace(self, plus=self.plus + by)

    def array(self, inputs: Sequence[np.ndarray]) -> np.ndarray:
        """The numbers as an array (s64 for integers). `inputs` are the arrays of the partition's inputs."""
        x = inputs[self.index] if self.data is None else self.data
        if COMPUTE[self.dtype] == "s32":
            x = x.astype(np.int64) + self.plus
        return x.reshape(self.shape)

    def expr(self, e: EpilogueBuilder) -> Expr:
        """The epilogue's expression for the numbers; integers wrap modulo 2**32."""
        if self.data is None:
            x = e.slot(OperandSource("input", self.dtype, self.shape, self.index))
            return x + self.plus if self.plus else x
        data = np.atleast_1d(self.data) if self.dtype == "f32" else wrapped(self.data)
        dtype: Literal["f32", "s32"] = "f32" if self.dtype == "f32" else "s32"
        return e.slot(OperandSource("parameter", dtype, self.shape, data=data, role="operand"))


def known(values: object, shape: tuple[int, ...] = (), dtype: Literal["f32", "s32"] = "s32") -> QuantParameter:
    """Make a parameter of constants. The shape of a single number is ()."""
    data = np.asarray(values, np.float32 if dtype == "f32" else np.int64)
    return QuantParameter(dtype, () if data.size == 1 else shape, data.reshape(() if data.size == 1 else shape))


def given(value: Value, body: Graph, constants: Arrays, shape: tuple[int, ...]) -> QuantParameter:
    """Make a parameter from the body's input `value`: a constant, or a tensor that is known only at run time."""
    index, dtype = body.inputs.index(value), value.dtype.name
    data = constants[index]
    if data is not None:
        return known(data, shape, "f32" if dtype == "f32" else "s32")
    return QuantParameter(dtype, () if value.type.size == 1 else shape, index=index)


def parameters_of(node: Node, body: Graph, constants: Arrays,
                  shape: tuple[int, ...] = ()) -> tuple[QuantParameter, QuantParameter]:
    """The scales and zero points of a dequantize or dynamic_dequantize. `shape` is the shape of per-channel numbers.

    Raises Unsupported if a constant scale is 0 or negative.
    """
    if node.op.name == "dequantize":
        scales, zps = known(node.attrs["scales"], shape, "f32"), known(node.attrs["zps"] or 0, shape)
    else:
        of_zps = node.inputs[2] if len(node.inputs) > 2 else None
        scales = given(node.operand(1), body, constants, shape)
        zps = known(0) if of_zps is None else given(of_zps, body, constants, shape)
    if scales.data is not None:
        expect_positive(scales.data)
    return scales, zps


def scaled(e: EpilogueBuilder, y: Expr, left: QuantParameter, right: QuantParameter) -> Expr:
    """The expression y * f32(sx * sw), where sx and sw are the scales `left` and `right`.

    Constant scales are multiplied here, in f64. A kernel's f32 multiplication gives the same result, because the
    product of two f32 is exact in f64.
    """
    if left.data is None or right.data is None:
        return y * (left.expr(e) * right.expr(e))
    with np.errstate(over="ignore"):
        product = np.multiply(left.data, right.data, dtype=np.float32)
    if (product == 1).all():
        return y
    return y * known(product, np.broadcast_shapes(left.shape, right.shape), "f32").expr(e)


def wrapped(x: np.ndarray) -> np.ndarray:
    """`x` modulo 2**32, as an s32 array of at least one dimension."""
    return np.atleast_1d(x).astype(np.int64).astype(np.uint32).view(np.int32)


def reach(dtype: str, zps: QuantParameter) -> int:
    """The largest |q - zp| of a quantized number q. A zp known only at run time can be any number of the type."""
    low, high = RANGES[dtype]
    if zps.data is None:
        return high - low
    return max(int(np.abs(x - zps.data).max(initial=0)) for x in (low, high))


def stated_sum(
        node: Node, total: Expr, k: int, x_scale: QuantParameter, w_scale: QuantParameter, x_zp: QuantParameter,
        w_zp: QuantParameter, order: Order, block: int, x_dtype: str, weights: Callable[[], np.ndarray] | int, *,
        batch: int = 1, shift: int = 0, packed_zps: bool = True, start: np.ndarray | None = None, taps: int = 1
        ) -> StatedSum | None:
    """Describe the f32 sum of products of dequantized operands that the graph states.

    Returns None if scales or zero points are known only at run time, or vary along more than one dimension. `start` is
    the bias if the sums start from it. If the packed weights still contain their zero points, `packed_zps` are these
    zero points, and `shift` was added to them. The other arguments are fields of StatedSum and DequantizedSum.
    """
    xs, ws, xz, wz = (n.data for n in (x_scale, w_scale, x_zp, w_zp))
    if xs is None or ws is None or xz is None or wz is None or ws.ndim > 1 or wz.ndim > 1:
        return None
    sum_ = DequantizedSum(order, block, np.float32(xs), int(xz), np.atleast_1d(ws), np.atleast_1d(wz).astype(np.int32),
                          np.zeros(1, np.float32) if start is None else start.ravel(), taps)
    low, high = (x - int(xz) for x in RANGES[x_dtype])
    zps = wrapped(wz + shift) if packed_zps else np.zeros(1, np.int32)
    return StatedSum(node, total, sum_, k, (low, high), weights, batch, zps, start is not None)


def plus_bias(total: Expr) -> Callable[[list[Any]], Expr]:
    """Make the function from an anchor's operands to its result: `total`, plus a bias if the anchor has one."""
    return lambda args: total if len(args) < 3 or args[2] is None else total + args[2]


def lower_anchored(e: EpilogueBuilder, body: Graph, node: Node, total: Expr, producers: list[Node],
                   anchor: LoweredAnchor, accumulated: Expr | None = None, stated: StatedSum | None = None,
                   own: Container[int] = range(2)) -> Lowered:
    """Lower a body with an anchor, the node `node`. Raises Unsupported.

    The anchor's result is `total`, plus a bias if the node has one. `accumulated` is the part of `total` that `anchor`
    computes. `producers` are nodes whose results only the anchor's kernel reads. `own` are the indices of the operands
    that the anchor's kernel reads itself. `stated` is the result's `stated_sum`.
    """
    lowered = lower_body(e, body, (node, plus_bias(total)), producers, own, anchor=anchor, accumulated=accumulated,
                         values=e.values, stated_sum=stated)
    if stated is not None and stated.starts_at_bias:
        lowered = replace(lowered, stated_sum=replace(stated, total=e.values[node.output]))
    return lowered

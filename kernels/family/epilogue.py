"""Translate lane-wise nodes of a body to expressions.

Each operation has a rule. The operands that the expressions load are numbered by an `EpilogueBuilder`; an operand's
number is its slot.
"""
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Literal

import numpy as np

from graphq.base.sizes import Later, later
from graphq.ir import GRAPH_ORDER, OPS, Graph, Node, Value, keywords, makers_of, reached
from graphq.kernels.family.unsupported import Unsupported
from graphq.kernels.lanes import elementary, quantizing
from graphq.kernels.lanes.expression import STORAGE, Expr, const, load, maximum, minimum, op, select, walk
from graphq.kernels.lanes.quantizing import F8


@dataclass(frozen=True, eq=False)
class OperandSource:
    """The origin of an operand slot's data: input `index` of the partition, a parameter array, or the result of a step.

    The operand broadcasts to the output from `shape`. A table has the shape () because all elements use the same table.
    Equal operands of one `role` share a slot. Operands of different roles never do, even if their numbers happen to be
    equal: otherwise the kernel's code would depend on the numbers.
    """

    origin: Literal["input", "parameter", "table", "column sums", "row sums", "compensation", "row numbers"]
    dtype: str
    shape: tuple[int, ...]
    index: int = 0
    data: np.ndarray | None = None
    role: str = ""


class EpilogueBuilder:
    """Collects the operand slots of expressions for an output of shape `out`.

    `anchored` is True if the expressions are the epilogue of an anchor, and False if a loop over memory computes them.
    `sources` has the source of each slot, at first the sources that an earlier builder collected. `values` maps values
    of the body to their expressions.
    """

    def __init__(self, out: tuple[int, ...], anchored: bool = False, sources: Iterable[OperandSource] = ()) -> None:
        self.out, self.anchored = out, anchored
        self.sources: list[OperandSource] = []
        self.values: dict[Value, Expr] = {}
        self._slots: dict[Any, Expr] = {}
        for source in sources:
            self.slot(source)

    def parameter(self, values: Iterable[float] | np.ndarray | Later, dtype: Literal["f32", "s32"], axis: int | None,
                  role: str = "") -> Expr:
        """Load numbers from a node's attributes: one number, or one per index of output dimension `axis`."""
        data: Any = later(np.ascontiguousarray, values, STORAGE[dtype])
        varies = data.size != 1 and axis is not None
        shape = tuple(data.size if k == axis else 1 for k in range(len(self.out))) if varies else ()
        return self.slot(OperandSource("parameter", dtype, shape, data=data, role=role))

    def input(self, index: int, value: Value, shape: tuple[int, ...] | None = None) -> Expr:
        """Load input `index` of the partition, converted to its compute type. Raises Unsupported for a wrong type."""
        if value.dtype.name not in LOADS:
            raise Unsupported(f"kernels do not load {value.dtype}", f"cast {value.name} to f32 first")
        shape = value.type.dims if shape is None else shape
        name = value.dtype.name
        x = self.slot(OperandSource("input", "u8" if name in IN_BYTES else name, shape, index))
        return IN_BYTES[name](x) if name in IN_BYTES else x

    def slot(self, source: OperandSource) -> Expr:
        """The expression that loads `source`. Equal sources share a slot.

        The load's kind says how the operand varies along one dimension: the output's last, or without an anchor the
        last whose size is not 1.

        - "scalar": the operand does not vary at all.
        - "row": the operand does not vary along this dimension.
        - "column": the operand varies only along this dimension, and belongs to the epilogue of an anchor.
        - "vector": any other operand.
        """
        data, shape = source.data, source.shape
        numbers = data if data is None else data.slot if isinstance(data, Later) else data.tobytes()
        key = source.origin, source.dtype, shape, source.index, numbers, source.role
        if key not in self._slots:
            if source.origin == "row numbers":
                kind = "row"  # kernels load scalars before they compute numbers of rows, such as means
            elif all(d == 1 for d in shape):
                kind = "scalar"
            else:
                last = -1 if self.anchored else \
                    max((k for k, d in enumerate(self.out) if d != 1), default=0) - len(self.out)
                kind = "row" if shape[last] == 1 else \
                    "column" if self.anchored and prod(shape) == shape[last] else "vector"
            self._slots[key] = load(len(self.sources), source.dtype, kind)
            self.sources.append(source)
        return self._slots[key]

    def numbers(self, constants: Sequence[np.ndarray | None]) -> dict[Expr, np.ndarray]:
        """The arrays of operands that are constant and equal for all rows, by the expression that loads them."""
        of_loads = {}
        for source, x in zip(self.sources, self._slots.values(), strict=True):
            data = constants[source.index] if source.origin == "input" else source.data
            if isinstance(data, np.ndarray) and x.value[2] in ("column", "scalar"):
                of_loads[x] = data
        return of_loads

    def axis(self, node: Node) -> int | None:
        """The output dimension along which a (de)quantize's parameters vary; None if per-tensor."""
        rank = len(node.output.type.dims)
        return node.attrs["axis"] % rank + len(self.out) - rank if node.attrs["qtype"] == "per_channel" else None

    def dequantized(self, x: Expr, node: Node, value: Value) -> Expr:
        """The expression (x - zp) * scale for the dequantize `node` with the result `value`.

        If every user of `value` only quantizes it back, the result is x itself. x must then be in the range of the type
        that the node dequantizes.
        """
        if value.users and not value.is_output and all(_undoes(node, user) for user in value.users):
            return x
        a, axis = node.attrs, self.axis(node)
        if any(a["zps"] or ()):
            x = x - self.parameter(a["zps"], "s32", axis)
        return as_f32(x) * self.parameter(a["scales"], "f32", axis)


def of_bytes(y: Expr) -> bool:
    """Whether y depends on the accumulator only through 8-bit quantized values."""
    exact: dict[Expr, bool] = {}
    for x in walk(y):
        exact[x] = quantizing.unquantized(x) is not None or (x.op != "acc" and all(exact[a] for a in x.args))
    return exact[y]


def _undoes(dequantize: Node, node: Node) -> bool:
    """Whether quantizing a dequantized q gives q back: rint((q - zp) * s / s) + zp == q.

    Both nodes need equal parameters, and s must be neither huge nor tiny: then the two f32 roundings move q - zp by
    less than 2**-14.
    """
    def parameters(n: Node) -> tuple[Any, ...]:
        a = n.attrs
        axis = a["axis"] % len(n.output.type.dims) if a["qtype"] == "per_channel" else None
        return axis, tuple(np.asarray(a["scales"], np.float32)), tuple(a["zps"] or [0] * len(a["scales"]))

    return node.op.name == "quantize" and node.attrs["dtype"] == next(dequantize.operands).dtype \
        and node.attrs["dtype"].kind == "int" and parameters(node) == parameters(dequantize) \
        and all(2.0**-100 < s < 2.0**100 for s in node.attrs["scales"])


def lane_wise(e: EpilogueBuilder, node: Node, args: list[Any]) -> Expr:
    """Make the expression of a node's result from its operands' expressions, with the operation's `lanes` rule.

    Float attributes become operands, because one kernel then handles all their values.
    """
    if (convert := CONVERSIONS.get(node.op.name)) is not None:
        return convert(e, node, args)
    assert node.op.lanes is not None
    widened = [op("to_f32", x) if node.output.dtype == "f32" and v is not None and v.dtype == "s32" else x
               for x, v in zip(args, node.inputs, strict=True)]
    values = {name: node.attrs[name] for name in keywords(node.op.lanes)}
    return node.op.lanes(*widened, **{name: e.parameter([x], "f32", None) if isinstance(x, float) else x
                                      for name, x in values.items()})


def lane_wise_operations() -> list[str]:
    """The names of the operations that have a lane-wise rule."""
    return [name for name, x in OPS.items() if x.lanes is not None or name in CONVERSIONS]


def as_f32(x: Expr) -> Expr:
    """Convert a loaded integer to f32. Small floats are f32 once they are loaded."""
    return op("to_f32", x) if x.dtype == "s32" else x


def _cast(e: EpilogueBuilder, node: Node, args: list[Expr]) -> Expr:
    """Convert to f32, or from f32 to f8 or integers: saturate. Integers truncate towards zero, and NaN becomes 0."""
    x, dtype = args[0], node.attrs["dtype"]
    if dtype == "f32":
        return as_f32(x)
    if dtype.name in F8:
        return quantizing.quantize(x, 1.0, 0.0, dtype.name)
    inside = op("abs", x) < 2.0**31
    ends = select(x > 0.0, const(2**31 - 1, "s32"), select(x < 0.0, const(-2**31, "s32"), const(0, "s32")))
    y = select(inside, op("to_s32", select(inside, x, const(0.0))), ends)
    return y if dtype == "s32" else minimum(dtype.max, maximum(dtype.min, y))


def _quantize(e: EpilogueBuilder, node: Node, args: list[Expr]) -> Expr:
    """saturate(rint(y / s) + zp), as in the reference. For f8, the quotient is not rounded to an integer.

    If y comes directly from an anchor's sum and the result has 8 bits, y * (1/s) replaces y / s. 1/s is rounded once
    from f64.
    """
    a, axis = node.attrs, e.axis(node)
    if a["dtype"].name in F8:
        return quantizing.quantize(args[0] / e.parameter(a["scales"], "f32", axis), 1.0, 0.0, a["dtype"].name)
    scales = np.asarray(a["scales"], np.float32).astype(np.float64)
    if e.anchored:
        expect_positive(scales)
    with np.errstate(over="ignore"):
        inverse = (1 / scales).astype(np.float32)
    if e.anchored and a["dtype"].bits <= 8 and not np.isfinite(inverse).all():
        raise Unsupported("1/scale of a quantize is not a finite f32", "give the quantize a scale above 2**-127")
    if args[0].dtype == "s32":  # this quantize undoes a dequantize, which `e.dequantized` left out
        return args[0]
    zps, dtype = e.parameter(a["zps"] or [0], "f32", axis), a["dtype"].name
    if e.anchored and a["dtype"].bits <= 8 and not of_bytes(args[0]):
        return quantizing.quantize(args[0], e.parameter(inverse, "f32", axis), zps, dtype)
    scale = e.parameter(a["scales"], "f32", axis)
    if not ((quantizing.QUOTIENTS[0] <= scales) & (scales <= quantizing.QUOTIENTS[1])).all():
        return quantizing.quantize(args[0] / scale, 1.0, zps, dtype)
    return quantizing.quantize_quotient(args[0], scale, e.parameter(inverse, "f32", axis), zps, dtype)


def _dynamic_dequantize(e: EpilogueBuilder, node: Node, args: list[Expr]) -> Expr:
    """(x - zp) * scale. For s32, x - zp can need 33 bits; two exact parts of it are added."""
    x, scale, *zps = args
    if not zps or zps[0] is None:
        return as_f32(x) * scale
    zp, parts = zps[0], node.operand(2).dtype == "s32"
    low = op("to_f32", x - (op("and", zp, 0xFF) if parts else zp))
    return (op("fma", op("to_f32", op("sar", zp, 8)), -256.0, low) if parts else low) * scale


def _dynamic_quantize(e: EpilogueBuilder, node: Node, args: list[Expr]) -> Expr:
    """saturate(rint(y / s) + zp), with s32 zero points clamped to +-2**22. NaN becomes the saturated zp."""
    q, dtype = args[0] / args[1], node.attrs["dtype"].name
    zps = node.inputs[2] if len(node.inputs) > 2 else None
    if zps is None:
        return quantizing.quantize(q, 1.0, 0.0, dtype)
    if zps.dtype == dtype:
        return quantizing.quantize(q, 1.0, op("to_f32", args[2]), dtype)
    zp = op("to_f32", minimum(2**22, maximum(-2**22, args[2])))
    return quantizing.quantize(select(op("eq", q, q), q, 0.0), 1.0, zp, dtype)


CONVERSIONS: Mapping[str, Callable[[EpilogueBuilder, Node, list[Any]], Expr]] = {
    "cast": _cast, "quantize": _quantize, "dynamic_quantize": _dynamic_quantize,
    "dequantize": lambda e, node, args: e.dequantized(args[0], node, node.output),
    "dynamic_dequantize": _dynamic_dequantize}
"""The rules of casts, quantizes and dequantizes. These rules need the node, not only the operands' expressions."""

IN_BYTES: Mapping[str, Callable[[Expr], Expr]] = {
    "boolean": lambda x: op("ne", x, 0), "u4": lambda x: op("and", x, 15),
    "s4": lambda x: op("sar", op("shl", x, 28), 28)}
"""Types of less than 8 bits, whose elements take a byte each, mapped to the function that decodes a byte."""
LOADS = frozenset({*STORAGE, *IN_BYTES})
COMPARISONS = frozenset({"equal", "less", "less_equal", "greater"})
INTEGERS = frozenset({"s8", "u8", "s16", "u16", "s32"})
BITS = frozenset({"and", "or", "xor", "shift_left", "shift_right"})


def refuses(node: Node) -> str | None:
    """The reason why no lane-wise rule computes this node; None if a rule does."""
    if node.op.lanes is None and node.op.name not in CONVERSIONS:
        return f"no lane-wise rule for {node.op.name}"
    for v in node.operands:
        if v.dtype.name not in LOADS:
            return f"kernels do not load {v.dtype}"
    if node.op.name in COMPARISONS and next(node.operands).dtype == "boolean":
        return "kernels do not compare booleans"
    if (f := node.attrs.get("function")) and (f not in BITS or node.output.dtype.name not in INTEGERS):
        return f"no lane-wise rule for {f} of {node.output.dtype}"
    if node.attrs.get("qtype") == "per_group":  # along each axis, a group must span one element or the whole axis
        shape, groups = node.output.shape, node.attrs["group_shape"]
        if shape is None or any(group not in (1, size) for group, size in zip(groups, shape, strict=True)):
            return f"scales of groups of {list(groups)}"
    if node.attrs.get("group_axis") is not None:
        return f"scales of groups along axis {node.attrs['group_axis']}"
    src, dtype = next(node.operands).dtype, node.output.dtype
    known = src.name in (*INTEGERS, *F8) and dtype == "f32" or src == "f32" and dtype.name in ("s8", "u8", "s32", *F8)
    return None if known or node.op.name != "cast" else f"kernels do not cast {src} to {dtype}"


def expect_positive(scales: Sequence[float] | np.ndarray) -> None:
    """Raise Unsupported if a scale is not positive."""
    numbers = np.asarray(scales, np.float32).ravel()
    for scale in numbers[~(numbers > 0)][:1]:
        raise Unsupported(f"its kernels take positive scales, and a scale is {scale:g}", "make the scales positive")


def _check_fits(shape: tuple[int, ...], out: tuple[int, ...]) -> None:
    """Raise Unsupported if an operand of this shape would enlarge the output by broadcasting."""
    more = len(out) - len(shape)
    if more < 0 or any([a not in (1, b) for a, b in zip(shape, out[more:], strict=True)]):
        raise Unsupported(f"an operand of shape {list(shape)} does not broadcast into the result {list(out)}",
                          "quantize before the operation that makes the result larger")


AnchorRule = tuple[Node, Callable[[list[Any]], Expr]]
"""An anchor, and the function that makes its expression from its operands' expressions."""


def translate(e: EpilogueBuilder, body: Graph, anchor: AnchorRule | None = None, skip: Container[Node | None] = (),
              own: Container[int] = (), result: Value | None = None) -> Expr:
    """Translate a body to the expression of its result, or of `result`: an input, or what lane-wise nodes compute.

    Values that only the anchor's kernel reads have no expression: the results of nodes in `skip`, and the anchor's
    operands with indices in `own`. The anchor's rule gets None for these operands.

    Raises Unsupported if an operation, type or shape prevents an expression of the shape `e.out`.
    """
    inner, result = result, body.outputs[0] if result is None else result
    if result.node is None:
        return e.input(body.inputs.index(result), result)
    exprs: dict[Value, Expr] = {}
    for node in body.nodes if inner is None else above(inner):
        if node in skip:
            continue
        of_anchor = None if anchor is None or node is not anchor[0] else anchor[1]
        if of_anchor is None and (reason := refuses(node)) is not None:
            raise Unsupported(reason)
        _check_fits(node.output.type.dims, e.out)
        args: list[Any] = []
        for k, v in enumerate(node.inputs):
            if v is None or of_anchor is not None and k in own:
                args.append(None)
            elif v.node is None:
                dims = operand_dims(node, k, v)
                args.append(e.input(body.inputs.index(v), v, dims))
                _check_fits(dims, e.out)
            else:
                args.append(exprs.get(v))
        y = of_anchor(args) if of_anchor is not None else lane_wise(e, node, args)
        e.values[node.output] = y
        if inner is not None or node.output is not result:  # an epilogue rounds the result
            match node.output.dtype.name:
                case "bf16":
                    y = elementary.round_bf16(y)
                case "f16":
                    y = op("round_f16", y)
                case dtype if dtype in F8:
                    y = elementary.small_float_value(elementary.small_float_bits(y, dtype), dtype)
                case "u8" | "s8" | "u16" | "s16" as dtype:
                    y = quantizing.quantized(y, dtype)
        exprs[node.output] = y
    if result.type.dims != e.out:
        raise Unsupported("the result {result} does not have the shape " + str(list(e.out)),
                          "quantize before the operation that changes the shape", result=result)
    if result.dtype.name not in STORAGE:
        raise Unsupported(f"kernels do not store {result.dtype}", "quantize to u8 or s8, or leave the result in f32")
    return exprs[result]


def above(value: Value) -> list[Node]:
    """The nodes on which `value` depends, in graph order."""
    return sorted(reached(filter(None, [value.node]), makers_of), key=GRAPH_ORDER)


def along_channels(node: Node) -> bool:
    """Whether the node's last operand has one dimension and runs along dimension 1, the channels."""
    return node.op.name in ("bias_add", "prelu", "convolution") and node.attrs["data_format"] == "NCX" \
        and bool(node.attrs.get("per_channel_broadcast", True))


def operand_dims(node: Node, k: int, value: Value) -> tuple[int, ...]:
    """The shape of operand k, with trailing dimensions of 1 if it runs along an earlier axis of the node's result."""
    shape = value.type.dims
    rank = len(node.output.type.dims)
    if k == len(node.inputs) - 1 and along_channels(node) and len(shape) == 1:
        shape = (*shape, *[1] * (rank - 2))
    if k > 0 and node.op.name in ("dynamic_quantize", "dynamic_dequantize") and node.attrs["qtype"] != "per_group":
        per_channel = node.attrs["qtype"] == "per_channel"
        shape = (*shape, *[1] * (rank - 1 - node.attrs["axis"] % rank)) if per_channel else ()
    return shape

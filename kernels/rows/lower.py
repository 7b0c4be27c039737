"""Lower softmax, norms and reductions along the last axis.

    x = f(operands)         the prologue: lane-wise, in f32; if the input is f32, it can be a plain load
    y = operation(x)        `numbers.rows`
    out = epilogue(y)

The kernel first computes one or two numbers per row, such as a mean. For a reduction, the number is y, and the
epilogue's expression starts from it. Otherwise the expression starts from the stored elements (x, or the powers exp(x -
max(x)) of softmax), and computes y from them and the numbers.
"""
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from graphq.ir import Graph, Node
from graphq.kernels.family.epilogue import EpilogueBuilder, OperandSource, above, translate
from graphq.kernels.family.lower import Arrays, Lowered, at_rows, lower_body, operand, result_dims
from graphq.kernels.family.unsupported import Axes, Unsupported
from graphq.kernels.lanes.epilogues import Epilogue, evaluate
from graphq.kernels.lanes.expression import STORAGE, Expr, acc, op
from graphq.kernels.numbers import rows as row_numbers

REDUCTIONS = frozenset(f"reduce_{how}" for how in (*row_numbers.TERMS, *row_numbers.EXTREMES))
ROWS = frozenset({"softmax", "log_softmax", "layer_norm", "rms_norm", *REDUCTIONS})
"""Operations that row kernels compute."""
NUMBERS = {"softmax": 1, "log_softmax": 2, "layer_norm": 2, "rms_norm": 1}
"""How many numbers of each row the epilogue loads; for reductions 0, since their result is the accumulator."""


class RowLowering(NamedTuple):
    """The operation `how` (a key of LOOPS) along the last of `dims`, on the result of `prologue`."""

    how: str
    dims: tuple[int, ...]
    prologue: Epilogue
    sources: tuple[OperandSource, ...]
    epsilon: float = 0.0

    @property
    def direct(self) -> bool:
        """Whether the prologue only loads f32. Kernels then read the rows of the input in place."""
        return self.prologue.expr.op == "load" and self.prologue.expr.value[1:] == ("f32", "vector")

    @property
    def reduces(self) -> bool:
        """Whether the operation reduces each row to one result."""
        return self.how in REDUCTIONS

    def accumulate(self, inputs: Sequence[np.ndarray]) -> np.ndarray:
        """The operation's f32 results for these inputs, before gamma and beta."""
        x = evaluate(self.prologue, None, [operand(s, inputs) for s in self.sources])
        x = np.broadcast_to(x, self.dims)
        with np.errstate(all="ignore"):
            match self.how:
                case "softmax" | "softmax_inf_as_zero":
                    return row_numbers.softmax(x, inf_as_zero=self.how != "softmax")
                case "softmax_stepwise_bf16" | "softmax_stepwise_f16":
                    return row_numbers.stepwise_softmax(x, self.how.removeprefix("softmax_stepwise_"))
                case "log_softmax":
                    return row_numbers.log_softmax(x)
                case "layer_norm":
                    return row_numbers.layer_norm(x, self.epsilon)
                case "rms_norm":
                    return row_numbers.rms_norm(x, self.epsilon)
            return row_numbers.reduced(self.how.removeprefix("reduce_"), x)[..., None]


def lower_row(body: Graph, constants: Arrays = ()) -> Lowered:
    """Lower a body of a row operation, its prologue and its epilogue.

    Raises Unsupported if prologue or epilogue is not lane-wise, or if kernels lack an attribute of the operation.
    """
    e = EpilogueBuilder(result_dims(body))
    node = next(n for n in body.nodes if n.op.name in ROWS)
    _check(node)
    source = next(node.operands)
    before = above(source)
    if any(u.node not in (*before, node) for n in before for u in n.output.uses):
        raise Unsupported(f"other operations read the operand of {node.op.name} as well",
                          "quantize and dequantize the input")
    dims = source.type.dims
    prologue = EpilogueBuilder(dims)
    x = translate(prologue, body, result=source)
    how = {"inf_as_zero": "softmax_inf_as_zero", "stepwise": f"softmax_stepwise_{source.dtype}"}.get(
        node.attrs.get("mode", "none"), node.op.name)
    row = RowLowering(how, dims, Epilogue(x, "f32"), tuple(prologue.sources), node.attrs.get("epsilon", 0.0))
    y = _result(e, node, dims)

    def along(args: list[Any]) -> Expr:
        affine = node.attrs.get("use_affine", True)
        if len(args) < 2 or args[1] is None or not affine:
            return y
        return y * args[1] if len(args) < 3 else op("fma", y, args[1], args[2])

    return lower_body(e, body, (node, along), before, [0], anchor=row, accumulated=y)


def follows(lowered: Lowered[RowLowering], number: int) -> bool:
    """Whether output row i needs only row i of input `number`."""
    return at_rows(lowered, number, lowered.anchor.sources)


def _result(e: EpilogueBuilder, node: Node, dims: tuple[int, ...]) -> Expr:
    shape, count = (*dims[:-1], 1), NUMBERS.get(node.op.name, 0)
    numbers = [e.slot(OperandSource("row numbers", "f32", shape, k)) for k in range(count)]
    match node.op.name:
        case "softmax" if node.attrs["mode"] == "stepwise":
            return acc("f32") / numbers[0]
        case "softmax" | "rms_norm":
            return acc("f32") * numbers[0]
        case "log_softmax":
            return (acc("f32") - numbers[0]) - numbers[1]
        case "layer_norm":
            return (acc("f32") - numbers[0]) * numbers[1]
    return acc("f32")


def _check(node: Node) -> None:
    a, source = node.attrs, next(node.operands)
    dims, rank = source.type.dims, len(source.type.dims)
    if a.get("keep_stats"):
        raise Unsupported(f"{node.op.name} also gives statistics, kernels give one result", "leave keep_stats out")
    if node.op.name in REDUCTIONS:
        axes = {x % rank for x in a["axes"]}
        if len(list(node.operands)) > 1 or axes != {rank - 1}:
            raise Unsupported(node.op.name + " reduces {reduced} of {source}, kernels {last}",
                              "transpose the input, to make the reduced axis the last",
                              reduced=Axes(source, tuple(sorted(axes))), source=source, last=Axes(source, (-1,)))
        if not a["keep_dims"]:
            raise Unsupported(node.op.name + " does not keep the reduced axis of {source}: kernels keep it",
                              "keep it by keep_dims, and reshape the result", source=source)
    else:
        k = a["begin_norm_axis" if "begin_norm_axis" in a else "axis"] % max(rank, 1)
        own = (k,) if "axis" in a else tuple(range(k, rank))
        if own != (rank - 1,):
            raise Unsupported(node.op.name + " works along {own} of {source}, kernels along {last}",
                              "transpose the input, to make the axis the last" if len(own) == 1 else
                              "reshape the input, to make the axes one, the last",
                              own=Axes(source, own), source=source, last=Axes(source, (-1,)))
    if not dims or dims[-1] == 0:
        raise Unsupported(f"rows of {source.type} are empty")
    if source.dtype.name not in STORAGE:
        raise Unsupported(f"kernels do not load {source.dtype}")

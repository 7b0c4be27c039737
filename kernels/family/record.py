"""Family: the record of a kernel family, with everything that passes, planning and reports need to know of it."""
from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from graphq.ir import Graph, Node, Value
from graphq.kernels.family.lower import Arrays, Check, Lower, Lowered, Unsupported
from graphq.rewrite.pattern import ANY, PatternBuilder, PatternLike

if TYPE_CHECKING:
    from graphq.plan.builder import PlanBuilder

Pattern: TypeAlias = Callable[[PatternBuilder], PatternLike]
Steps: TypeAlias = "Callable[[PlanBuilder, Node, Lowered], None]"
Follows: TypeAlias = Callable[[Lowered, int], bool]
Strided: TypeAlias = Callable[[Lowered, int, Sequence[int]], bool]
Count: TypeAlias = Callable[[Node], int]


MAX_EPILOGUE = 24
"""The most operations after the anchor, besides casts and quantizes; oneDNN's patterns have up to 20."""


@dataclass(frozen=True, eq=False)
class Family:
    """A kernel family: it computes partitions of one operation, the anchor, and the lane-wise operations around it.

    `name` is the anchor of its partitions as reports show it. `operations` are the possible anchors: each partition has
    exactly one of them. Only the family of lane-wise operations has no anchors.

    A fusion asks `refuses` whether kernels compute a body; `check` is the family's part of the answer. When the plan is
    built, `lower` turns the body into expressions and operands for kernels, and `steps` adds the plan steps that run
    them.

    Patterns say which operands the anchor has in a fusion; the fusion pass adds the epilogue (`passes/fuse.py`).
    `quantized` is matched first, while each quantized constant is still followed by a dequantize that joins the
    partition. `floats` is matched after constants have been dequantized. Patterns are functions at the top level of
    modules, since passes are pickled.

    `follows(lowered, k)` says whether the steps read input k of a partition only at the rows of the output that they
    compute. The steps can then run strip by strip (some rows at a time) after the steps that make the input
    (`plan.builder`). `follows` is None if the family's steps cannot run strip by strip.

    `strided(lowered, k, order)` says whether input k, if it is the transpose `order` of another value, can be read from
    the memory of that value (`PlanBuilder.strides`); the transpose then needs no step. The steps of a family that has
    `strided` can also write the rows of their result in another order.

    `channels_last` are the operations whose kernels read only channels-last tensors (data_format NXC). `macs` maps the
    name of an operation to a function that counts the multiply-accumulates of a node.
    """

    name: str
    operations: tuple[str, ...]
    check: Check
    lower: Lower
    steps: Steps
    quantized: Pattern | None = None
    floats: Pattern | None = None
    follows: Follows | None = None
    strided: Strided | None = None
    channels_last: tuple[str, ...] = ()
    macs: Mapping[str, Count] = field(default_factory=dict)

    def refuses(self, body: Graph, constants: Arrays) -> Unsupported | None:
        """The reason why kernels cannot compute a body as one partition; None if they can.

        The answer depends on types, shapes, attributes, and on `constants`, the arrays of constant inputs.
        """
        if (refused := self.refuses_sizes(body.nodes, body.outputs[0])) is not None:
            return refused
        try:
            self.check(body, constants)
        except Unsupported as e:
            return e
        return None

    def refuses_sizes(self, nodes: Iterable[Node], result: Value) -> Unsupported | None:
        """The refusal of an epilogue that broadcasts the anchor's result to another size; None if it keeps the size."""
        product = next((n.outputs[0] for n in nodes if n.op.name in self.operations), result)
        if product.type.known and result.type.known and result.type.size != product.type.size:
            return Unsupported("the epilogue broadcasts {product} to {result}: sums would be computed more than once",
                               "quantize before the operation that broadcasts", product=product, result=result)
        return None


def any_operands(*names: str) -> Pattern:
    """The pattern that matches operations of these names with any operands."""
    return partial(_any_operands, names=names)


def _any_operands(g: PatternBuilder, names: tuple[str, ...]) -> PatternLike:
    return g.any_of(*names)(..., attrs=ANY)

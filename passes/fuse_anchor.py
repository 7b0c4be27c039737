"""What the fusions of anchors share: an operation that sums or moves, and the lane-wise epilogue that follows it."""
from __future__ import annotations

from typing import Any, ClassVar

from graphq.errors import CompileError
from graphq.ir import Graph, Node, Value
from graphq.kernels.family.epilogue import RULES, Unsupported, refuses
from graphq.kernels.family.lower import Lower, Lowering
from graphq.kernels.rows.lower import ROWS
from graphq.rewrite.partition import Fusion
from graphq.rewrite.pattern import PatternBuilder, PatternLike
from graphq.rewrite.rule import Match

MAX_EPILOGUE = 24
"""Operations after the anchor: up to 20 unary and binary ones as in oneDNN's patterns, casts and quantize besides."""

ANCHORS = frozenset({"matmul", "convolution", "conv_transpose", "max_pool", "avg_pool", "concat", "interpolate", *ROWS})
"""Operations whose partitions begin with the dequantize of their operands."""

DEQUANTIZES = ("dequantize", "dynamic_dequantize")
"""With scales that are known, and with tensors."""


def ends_chain(node: Node) -> str | None:
    """A reason why an epilogue ends before `node`, or None; empty for a dequantize that the next partition needs."""
    return "" if feeds_anchor(node) else refuses(node)


def feeds_anchor(node: Node) -> bool:
    """Whether `node` is a dequantize that the partition of an anchor can begin with."""
    return node.op.name in DEQUANTIZES and taken(node) and any(
        u.node is not None and u.node.op.name in ANCHORS for u in node.output.uses)


def taken(node: Node) -> bool:
    """Whether anchors take what a dequantize is given, integers of at most 8 bits."""
    return next(node.operands).dtype.bits <= 8


class FuseLowered(Fusion):
    """A fusion of what kernels compute as one: `lower` says what that is for a body, or why they cannot.

    What it says stays with the partition, for the plan and reports.
    """

    lower: ClassVar[Lower]

    def check(self, g: Graph, match: Match, notes: dict[str, Any]) -> str | None:
        """A kernel must be able to compute it."""
        body, operands = self.extracted(g, match, notes)
        constants = [v.data for v in operands]
        try:
            notes["lowering"] = Lowering(constants, self.lower(body, constants))
        except Unsupported as e:
            return str(e)
        except CompileError as e:
            raise CompileError(f"{g.describe(match.root)}: {e}") from None
        return None

    def replace(self, g: Graph, match: Match, notes: dict[str, Any]) -> Value:
        """The partition's result."""
        result = super().replace(g, match, notes)
        assert result.node is not None
        result.node.derived = notes["lowering"]
        return result


class FuseAnchor(FuseLowered):
    """f?(anchor(...)) -> partition, where f is any chain of lane-wise operations; a subclass has the pattern.

    `operations` are the anchors. `takes_dequantize`: whether a dequantize before the anchor comes along.
    """

    operations: ClassVar[tuple[str, ...]]
    takes_dequantize: ClassVar[bool] = True

    def epilogue(self, g: PatternBuilder, y: PatternLike) -> PatternLike:
        """The pattern of f?(y)."""
        return g.repeat(RULES, y, max=MAX_EPILOGUE, where=ends_chain)

    def absorbs(self, node: Node) -> bool:
        """A post-op's second operand may be dequantized, or a scale multiplied, on the way in; a constant's folds."""
        if refuses(node) is not None or all(v.data is not None for v in node.operands):
            return False
        feeds_anchor = any(user.op.name in self.operations for user in node.output.users)
        if node.op.name == "multiply":
            return not feeds_anchor and all(v.type.known and sum(d != 1 for d in v.type.dims) < 2
                                            for v in node.operands)
        return node.op.name in DEQUANTIZES and (not feeds_anchor or self.takes_dequantize and taken(node))

    def check(self, g: Graph, match: Match, notes: dict[str, Any]) -> str | None:
        """A kernel must be able to compute it, each sum once."""
        anchor = next(n for n in match.nodes if n.op.name in self.operations)
        product, result = anchor.output.type, match.root.output.type
        if product.known and result.known and result.size > product.size:
            return f"the epilogue broadcasts {product} to {result}: sums would be computed more than once"
        return super().check(g, match, notes)

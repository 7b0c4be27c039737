"""Fold dequantize -> matmul -> epilogue -> quantize chains into integer partitions."""
from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from graphq.ir import Graph, Node
from graphq.kernels.epilogue import RULES, Unsupported, refuses
from graphq.kernels.lower import Lowered
from graphq.kernels.lower_matmul import lower_matmul
from graphq.partition import Fusion, extract
from graphq.rewrite import ANY, Match

MAX_EPILOGUE = 24
"""Operations after the matmul: up to 20 unary and binary ones as in oneDNN's patterns, casts and quantize besides."""


ANCHORS = frozenset({"matmul", "convolution", "conv_transpose", "max_pool", "avg_pool", "reduce_mean", "concat",
                     "interpolate"})
"""Operations whose partitions begin with the dequantize of their operands."""


def ends_chain(node: Node) -> str | None:
    """A reason why an epilogue ends before `node`, or None; empty for a dequantize that the next partition needs."""
    if node.op.name == "dequantize" and any(user.op.name in ANCHORS for user in node.output.users):
        return ""
    return refuses(node)


class FuseMatmul(Fusion):
    """quantize?(f?(matmul(dequantize(x), dequantize(w), bias?))) -> partition

    f is any chain of lane-wise operations, whose other operands may be dequantized too. The result is f32 where no
    quantize ends the chain.
    """

    anchor = "matmul"
    operations: ClassVar[tuple[str, ...]] = ("matmul",)
    quantised: ClassVar[bool] = True
    lower: ClassVar[Callable[..., Lowered]] = staticmethod(lower_matmul)

    def pattern(self, g, x, w, bias):
        """See the class."""
        if self.quantised:
            x, w = g.dequantize(x, attrs=ANY), g.dequantize(w, attrs=ANY)
        operands = ((x, w), (x, w, bias))
        y = g.any_of(*(getattr(g, name)(*xs, attrs=ANY) for name in self.operations for xs in operands))
        return g.repeat(RULES, y, max=MAX_EPILOGUE, where=ends_chain)

    def absorbs(self, node: Node) -> bool:
        """A post-op's second operand may be dequantized on the way in; a constant's dequantize folds instead."""
        if node.op.name != "dequantize" or refuses(node) is not None or next(node.operands).data is not None:
            return False
        return self.quantised or not any(u.node and u.node.op.name in self.operations for u in node.output.uses)

    def check(self, g: Graph, match: Match) -> str | None:
        """A kernel must be able to compute it, each sum once."""
        anchor = next(n for n in match.nodes if n.op.name in self.operations)
        product, result = anchor.output.type, match.root.output.type
        if product.known and result.known and result.size > product.size:
            return f"the epilogue broadcasts {product} to {result}: sums would be computed more than once"
        body, operands, _ = extract(g, self.members(match))
        try:
            self.lower(body, [v.data for v in operands])
        except Unsupported as e:
            return str(e)
        return None


class FuseFloatMatmul(FuseMatmul):
    """f?(matmul(x, w, bias?)) -> partition

    Of f32, bf16 or f16, with f as in FuseMatmul, and after it. The result is within the rounding errors of f32 sums.
    """

    quantised = False

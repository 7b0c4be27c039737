"""Fuse operations into partitions: nodes whose operations one kernel computes together.

The record of a kernel family (`kernels/family/record.py`) says which operations its kernels can compute.
"""
from __future__ import annotations

from collections.abc import Container, Iterator
from typing import Any

from graphq.errors import CompileError
from graphq.ir import Graph, Node
from graphq.kernels.families import ANCHORS, family_named
from graphq.kernels.family.epilogue import lane_wise_operations, refuses
from graphq.kernels.family.record import MAX_EPILOGUE
from graphq.ops.quant import DEQUANTIZES
from graphq.passes.masks import MASKS, is_mask
from graphq.rewrite.partition import Fusion
from graphq.rewrite.pattern import PatternBuilder, PatternLike
from graphq.rewrite.rule import Match


def ends_chain(node: Node) -> str | None:
    """The reason why an epilogue ends before `node`; None if `node` can be part of the epilogue.

    The reason is "" for a dequantize that the next partition needs.
    """
    return "" if feeds_anchor(node) else refuses(node)


def feeds_anchor(node: Node) -> bool:
    """Whether `node` is a dequantize that the partition of an anchor can begin with."""
    return node.op.name in DEQUANTIZES and taken(node) and any(user.op.name in ANCHORS for user in readers(node))


def readers(node: Node) -> Iterator[Node]:
    """Yield the users of the result of `node`. For constant weights that are cast, yield the users of the cast."""
    for user in node.output.users:
        weights = user.op.name == "type_cast" and next(node.operands).data is not None
        yield from user.output.users if weights else [user]


def taken(node: Node) -> bool:
    """Whether kernels can read the operand of this dequantize: integers of at most 8 bits."""
    return next(node.operands).dtype.bits <= 8


class Fuse(Fusion):
    """quantize?(f?(anchor(dequantize?(x), ...))) -> partition; with `floats` f?(anchor(...)) -> partition

    A question mark means that the operation may be missing. f is any chain of lane-wise operations; their other
    operands may be dequantized as well. The anchor is the operation that the partition is built around, such as a
    matmul. The record of the kernel family `family` has its pattern, and refuses partitions that the kernels cannot
    compute. The family of lane-wise chains has no anchor.

    Raises CompileError for an unknown family, or for a family without such a pattern.
    """

    def __init__(self, family: str, *, floats: bool = False) -> None:
        self.family, self.floats = family_named(family), floats
        self.anchor = family
        if (self.family.floats if floats else self.family.quantized) is None:
            raise CompileError(f"the family '{family}' has no fusion with floats={floats}")

    @property
    def name(self) -> str:
        """The name in reports, such as `FuseMatmul`.

        If a family has patterns for integers and for floats, the pass of the pattern for floats is `FuseFloatMatmul`.
        """
        both = self.family.quantized is not None and self.floats
        return f"Fuse{'Float' * both}{''.join(x.capitalize() for x in self.family.name.split('_'))}"

    def pattern(self, g: PatternBuilder) -> PatternLike:
        """The pattern from the family's record, followed by an epilogue."""
        made = self.family.floats if self.floats else self.family.quantized
        assert made is not None
        y = made(g)
        return g.repeat(lane_wise_operations(), y, max=MAX_EPILOGUE, where=ends_chain) if self.family.operations else y

    def absorbs(self, node: Node) -> bool:
        """Whether `node` joins the partition: a mask, dequantize or scaling that computes an epilogue's operand."""
        operations = self.family.operations
        if not operations or refuses(node) is not None:
            return False
        users = {user.op.name for user in node.output.users}
        if is_mask(node):
            return users.isdisjoint(operations)
        if all(v.data is not None for v in node.operands):
            return False
        if node.op.name == "multiply":
            return users.isdisjoint((*operations, *DEQUANTIZES)) and all(
                v.type.known and sum(d != 1 for d in v.type.dims) < 2 for v in node.operands)
        return node.op.name in DEQUANTIZES and (users.isdisjoint(operations) or not self.floats and taken(node))

    def check(self, g: Graph, match: Match, notes: dict[str, Any]) -> str | None:
        """Refuse a partition that the kernels cannot compute, or that would compute sums more than once."""
        # Check sizes before making a body, because the matcher tries many epilogues of growing length.
        if (refused := self.family.refuses_sizes(match.nodes, match.root.outputs[0])) is not None:
            return str(refused)
        try:
            body, operands, _ = self.extracted(g, match, notes)
            refused = self.family.refuses(body, [v.data for v in operands])
        except CompileError as e:
            raise CompileError(f"{g.describe(match.root)}: {e}") from None
        return None if refused is None else str(refused)


def duplicate_dequantize(graph: Graph) -> int:
    """A dequantize with n users -> n dequantizes, one for each user; returns the number of added nodes.

    An output of the graph counts as a user. A dequantize of integers of more than 8 bits is not copied, because no
    partition includes it. Copies that do not fuse are merged again later.
    """
    return sum([_duplicate(graph, n) for n in list(graph.nodes) if n.op.name in DEQUANTIZES and taken(n)])


def duplicate_masks(graph: Graph) -> int:
    """A mask with n users -> a mask for each user that may be in a partition; returns the number of added masks."""
    joining = {*lane_wise_operations(), *ANCHORS}
    return sum([_duplicate(graph, n, joining) for n in reversed(list(graph.nodes))
                if n.op.name in MASKS and len(n.outputs[0].users) > 1 and is_mask(n)])


def _duplicate(graph: Graph, node: Node, joining: Container[str] | None = None) -> int:
    """Copy `node` for each user, or for users of operations `joining`; one use keeps it. Returns the number of copies.

    An output of the graph counts as a use.
    """
    out, every = node.output, node.output.users
    users = [user for user in every if joining is None or user.op.name in joining]
    if not out.is_output and len(users) == len(every):
        del users[:1]
    for user in users:
        with graph.before(user, [node]):
            copy = graph.add_again(node, node.inputs)[0]
        graph.replace_uses(out, copy, [u for u in out.uses if u.node is user])
    return len(users)

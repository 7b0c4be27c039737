"""Fuse operations into partitions: nodes whose operations one kernel computes together.

The record of a kernel family (`kernels/family/record.py`) says which operations its kernels can compute. A kernel
computes an attention mask itself if nothing else reads it, so no matrix of the size of the scores is stored.
"""
from collections.abc import Container, Iterator
from typing import Any

from graphq.base.locks import lazy_property
from graphq.base.sizes import assumed
from graphq.errors import CompileError
from graphq.ir import OPS, Graph, Node, Value
from graphq.kernels.families import ANCHORS, family_named
from graphq.kernels.family.epilogue import COMPARISONS, lane_wise_operations, refuses
from graphq.kernels.family.record import MAX_EPILOGUE
from graphq.ops.quant import DEQUANTIZES
from graphq.rewrite.partition import Fusion, carve
from graphq.rewrite.pattern import PatternBuilder, PatternLike
from graphq.rewrite.rule import Match, set_attributes

MASKS = frozenset({"select", "logical_and", "logical_or", "logical_not", "logical_xor", *COMPARISONS})
"""The operations that masks consist of."""
DEPTH = 8
"""The most nodes of a chain of masks that are examined."""
SMALL = 1 << 16
"""Operands of at most this many bytes stay in a core's cache, however often they are read."""
LARGE = 1 << 20
"""The most bytes of a mask that is kept in memory as a constant."""


def is_mask(node: Node) -> bool:
    """Whether a node is a mask that reads less memory than its result takes: each user can then compute it."""
    if not _is_lane_wise(node):
        return False
    return _read(node, DEPTH) <= SMALL + assumed(node.output.type.nbytes) // 2


def _is_lane_wise(node: Node) -> bool:
    return node.op.name in MASKS and refuses(node) is None and all(
        v.type.known for v in (*node.operands, *node.outputs))


def _read(node: Node, depth: int) -> int:
    """The bytes that a node reads if masks among its operands are computed together with it."""
    return sum(min(assumed(v.type.nbytes), _read(v.node, depth - 1))
               if depth and v.node is not None and _is_lane_wise(v.node) else assumed(v.type.nbytes)
               for v in node.operands)


def is_large_mask(node: Node) -> bool:
    """Whether a node is a mask that takes more memory than a constant should."""
    return is_mask(node) and assumed(node.output.type.nbytes) > LARGE


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


def _ends_chain(node: Node) -> str | None:
    """The reason why an epilogue ends before `node`; "" for a dequantize that the next partition needs."""
    return "" if feeds_anchor(node) else refuses(node)  # no lambda: passes are pickled with models


class Fuse(Fusion):
    """f(anchor(dequantize(x), ...)) -> partition; with `floats` f(anchor(x, ...)) -> partition

    f is a chain of at most MAX_EPILOGUE lane-wise operations, quantizes included; it may be empty. Its other operands
    may be dequantized as well. The anchor is the operation that the partition is built around, such as a
    matmul. The record of the kernel family `family` has its pattern, and refuses partitions that the kernels cannot
    compute. The family of lane-wise chains has no anchor.

    Raises CompileError for an unknown family, or for a family without such a pattern.
    """

    def __init__(self, family: str, *, floats: bool = False) -> None:
        self.family, self.floats = family_named(family), floats
        self.anchor = family
        if (self.family.floats if floats else self.family.quantized) is None:
            raise CompileError(f"the family '{family}' has no fusion with floats={floats}")

    @lazy_property
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
        if not self.family.operations:
            return y
        return g.repeat(lane_wise_operations(), y, max=MAX_EPILOGUE, where=_ends_chain)

    def absorbs(self, node: Node) -> bool:
        """Whether `node`, which only a member uses, joins: a mask, dequantize or scaling of an epilogue's operand."""
        operations = self.family.operations
        if not operations or refuses(node) is not None:
            return False
        users = {user.op.name for user in node.output.users}
        if is_mask(node):
            return users.isdisjoint(operations)
        if all(v.data is not None for v in node.operands):
            return False
        if node.op.name == "multiply":
            if not users.isdisjoint((*operations, *DEQUANTIZES)) or not all(v.type.known for v in node.operands):
                return False
            vectors = all(sum(d != 1 for d in v.type.dims) < 2 for v in node.operands)
            return vectors or 2 * _read(node, 0) <= assumed(node.output.type.nbytes)  # such as rows times columns
        return node.op.name in DEQUANTIZES and (users.isdisjoint(operations) or not self.floats and taken(node))

    def check(self, g: Graph, match: Match, notes: dict[str, Any]) -> str | None:
        """Refuse a partition that the kernels cannot compute, or that would compute sums more than once."""
        # Check sizes before making a body, because the matcher tries many epilogues of growing length.
        if (refused := self.family.refuses_sizes(match.nodes, match.root.outputs[0])) is not None:
            return str(refused)
        members = list(match.nodes)
        for node in members:  # absorbed nodes are appended, so the loop visits them as well
            members += [v.node for v in node.operands if v.node is not None and v.node not in members
                        and len(v.uses) == 1 and self.absorbs(v.node)]
        try:
            body, operands, _ = notes["carved"] = carve(g, members)
            refused = self.family.refuses(body, [v.data for v in operands])
        except CompileError as e:
            raise CompileError(f"{g.describe(match.root)}: {e}") from None
        return None if refused is None else str(refused)

    def replace(self, g: Graph, notes: dict[str, Any]) -> Value:
        """Add the partition and return its result."""
        body, operands, (result,) = notes["carved"]
        attrs = {"body": body, "anchor": self.anchor, "ties": "settled"}
        return g.add_checked(OPS["partition"], operands, attrs, [result.type])[0]


def duplicate_dequantize(graph: Graph) -> int:
    """A dequantize with n users -> n dequantizes, one for each user; returns the number of added nodes.

    An output of the graph counts as a user. A dequantize of integers of more than 8 bits is not copied, because no
    partition includes it. Copies that do not fuse are merged again later.
    """
    return sum([_duplicate(graph, n) for n in list(graph.nodes) if n.op.name in DEQUANTIZES and taken(n)])


def duplicate_masks(graph: Graph) -> int:
    """A mask with n users -> a mask for each user that may be in a partition; returns the number of added masks."""
    return sum([_duplicate(graph, n, {*lane_wise_operations(), *ANCHORS}) for n in reversed(list(graph.nodes))
                if n.op.name in MASKS and len(n.outputs[0].users) > 1 and is_mask(n)])


def _duplicate(graph: Graph, node: Node, joining: Container[str] | None = None) -> int:
    """Copy `node` for each user, or for users of operations `joining`; one use keeps it. Returns the number of copies.

    An output of the graph counts as a use.
    """
    out = node.output
    users = [user for user in out.users if joining is None or user.op.name in joining]
    if len(users) == len({u.node for u in out.uses}):
        del users[:1]
    for user in users:
        with graph.before(user, [node]):
            copy = graph.add_again(node, node.inputs)[0]
        graph.replace_uses(out, copy, [u for u in out.uses if u.node is user])
    return len(users)


def leave_ties(graph: Graph) -> int:
    """partition(...) -> partition(..., ties="formula"): compute outputs near rounding ties only from the exact sums

    Without this pass, kernels compute outputs near a rounding tie a second time, in the order of the sum that the graph
    states. With it, about one 8-bit output in 10^5 to 10^6 differs by one from its value as written. The pass is not
    part of PIPELINE; `graphq.compile(..., ties="formula")` runs it after the other passes.
    """
    found = [node for node in graph.nodes_of(("partition",)) if node.attrs["ties"] != "formula"]
    return set_attributes(graph, found, ties="formula")

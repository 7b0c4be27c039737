"""Find attention masks. A kernel computes a mask itself if nothing else reads it (`passes.fuse.duplicate_masks`).

No matrix of the size of the attention scores is then stored in memory.
"""
from __future__ import annotations

from graphq.base.sizes import assumed
from graphq.ir import Node
from graphq.kernels.family.epilogue import COMPARISONS, refuses

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

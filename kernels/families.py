"""The list of all kernel families, FAMILIES, in the order that fusion tries them.

The kernels of a family compute one kind of partition, such as a matmul with its epilogue (see `family/record.py`).
"""
from graphq.errors import CompileError
from graphq.ir import Node
from graphq.kernels.concat.family import CONCAT
from graphq.kernels.conv.family import CONVOLUTION
from graphq.kernels.eltwise.family import ELTWISE
from graphq.kernels.family.lower import RANGES, Lowered
from graphq.kernels.family.record import Family
from graphq.kernels.interpolate.family import INTERPOLATE
from graphq.kernels.matmul.family import MATMUL
from graphq.kernels.matmul_compressed.family import MATMUL_COMPRESSED
from graphq.kernels.pool.family import POOL
from graphq.kernels.rows.family import ROW
from graphq.kernels.target.level import Level
from graphq.kernels.ties.attach import attach

FAMILIES: tuple[Family, ...] = (CONVOLUTION, MATMUL, MATMUL_COMPRESSED, POOL, INTERPOLATE, CONCAT, ROW, ELTWISE)

ANCHORS = frozenset(name for f in FAMILIES for name in f.operations)
"""The operations that can be the anchor of a partition. The anchor decides which family's kernels run the partition."""

TIES = "ties"
"""The key of a partition's `meta` under which plans store `Lowered.ties` for reports."""

CHANNELS_LAST = frozenset(name for f in FAMILIES for name in f.channels_last)
"""The operations whose kernels require channels-last tensors (NHWC)."""


def family_named(name: str) -> Family:
    """Look up a kernel family by name. Raises CompileError if there is no such family."""
    for f in FAMILIES:
        if f.name == name:
            return f
    raise CompileError(f"a partition's anchor must be one of {', '.join(f.name for f in FAMILIES)}, got {name!r}")


def multiplies_integers(partition: Node) -> bool:
    """Whether the anchor multiplies integers: integer operands, or operands that the partition dequantizes."""
    for node in partition.attrs["body"].nodes:
        if any(node.op.name in f.macs for f in FAMILIES):
            source = next(node.operands)
            return source.node is not None or source.dtype.name in RANGES
    return False


def lower_partition(node: Node, level: Level | None = None) -> Lowered:
    """Lower a partition: turn its body into the expression that its kernels compute.

    With a `level`, operations on bytes become table look-ups if these are faster on that level. Raises CompileError if
    no family has the partition's anchor.
    """
    body, constants = node.attrs["body"], [v.data for v in node.operands]
    lowered = attach(body, family_named(node.attrs["anchor"]).lowered(body, constants), constants,
                     settle=node.attrs["ties"] == "settled")
    body.notes.pop("lowered")
    return lowered if level is None else lowered.tabulated(constants, level)

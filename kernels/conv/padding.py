"""Write the padding of convolutions: constants, or a zero point that is known only at run time."""
import numpy as np

from graphq.base.sizes import largest, later, number, recorded
from graphq.ir import Node
from graphq.kernels.conv.lower import Convolution, IntegerConvolution
from graphq.kernels.moves.transpose import plan_strided_copy
from graphq.kernels.operands.windows import WINDOWS
from graphq.plan.builder import PlanBuilder
from graphq.plan.plan import Ref


def pad_rows(b: PlanBuilder, source: int, rows: int, length: int, before: int, after: int, value: int | Ref) -> int:
    """Add the steps that copy adjacent rows of `length` bytes into rows with margins of `before` and `after` bytes.

    The margins have the byte `value`, or the byte at this address. Kernels may read the 4 bytes after the last row.
    """
    line = before + length + after
    out, step = b.temporary(rows * line + 4), 0
    if not isinstance(value, Ref):
        margin = later(np.broadcast_to, np.uint8(value), (largest(before, after),))
        value, step = Ref(b.constant(later(np.ascontiguousarray, margin))), 1
    moves = (Ref(source), (length, 1), before, length), (value, (0, step), 0, before), \
        (value, (0, step), before + length, after)
    for origin, strides, at, nbytes in moves:
        if nbytes:
            copy = plan_strided_copy((rows, nbytes), strides, 1, b.target, (line, 1))
            b.run(copy, {"source": origin, "target": Ref(out, at)})
    return out


def pad_address(b: PlanBuilder, node: Node, c: Convolution) -> Ref | None:
    """The address of the padding's byte, a zero point known only at run time; None if the padding is a constant."""
    if not isinstance(c, IntegerConvolution) or c.a_zp.data is not None:
        return None
    return Ref(b.of[node.operand(c.a_zp.index)])


def padding_block(b: PlanBuilder, node: Node, c: Convolution, block: np.ndarray) -> int:
    """Make the buffer of the im2col tables `block` (see `Windows.block`), whose last row is a padding pixel.

    If the padding is known only at run time, a step copies the tables and fills this row.
    """
    constant, value = b.constant(block), pad_address(b, node, c)
    if value is None:
        return constant
    tables = number(_tables_bytes, block)
    return pad_rows(b, constant, 1, tables, 0, b.buffers[constant].nbytes - tables, value)


@recorded("padding.tables_bytes")
def _tables_bytes(block: np.ndarray) -> int:
    return int(block[WINDOWS.number("pad_row")])

"""The padding of convolutions: a number that is known at compile time, or the source's zero point, read at run time."""
from __future__ import annotations

import numpy as np

from graphq.base.sizes import number
from graphq.ir import Node
from graphq.kernels.conv import pad_rows
from graphq.kernels.conv.lower import Convolution, IntegerConvolution
from graphq.kernels.operands.windows import WINDOWS
from graphq.plan.builder import PlanBuilder
from graphq.plan.step import Ref


def pad_address(b: PlanBuilder, node: Node, c: Convolution) -> int | Ref:
    """The address of the padding byte if the source's zero point is known only at run time; otherwise 0.

    Of an s32 zero point it is the address of the low byte.
    """
    if not isinstance(c, IntegerConvolution) or c.a_zp.data is not None:
        return 0
    return Ref(b.of[node.operand(c.a_zp.index)])


def padding_block(b: PlanBuilder, node: Node, c: Convolution, block: np.ndarray) -> int:
    """The buffer with the im2col tables `block` (see `Windows.block`), which end with a row of padding.

    If the padding is known only at run time, a step copies the tables and fills the row.
    """
    constant, value = b.constant(block), pad_address(b, node, c)
    if value == 0:
        return constant
    tables, nbytes = number(_tables_bytes, block), b.buffers[constant].nbytes
    out = b.temporary(nbytes)
    step = pad_rows.plan_pad_rows(1, tables, 0, nbytes - tables, 0, b.target)
    b.run(step, {"source": Ref(constant), "target": Ref(out), "value_at": value})
    return out


def _tables_bytes(block: np.ndarray) -> int:
    return int(block[WINDOWS.number("pad_row")])

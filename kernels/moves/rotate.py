"""The kernel of rotary position embedding: turn pairs of numbers of each row by angles."""
from __future__ import annotations

from graphq.ir import Node
from graphq.kernels.jit import Functions, Loop, emits
from graphq.kernels.jit.intrinsics import Record
from graphq.kernels.jit.values import F32, Builder, Value, c64, vector
from graphq.kernels.moves.transpose import copy_row
from graphq.kernels.operands.space import broadcast_strides
from graphq.plan.builder import PlanBuilder
from graphq.plan.plan import Ref, plan_rows

LANES = 16
ROTATE = Record("source", "cos", "sin", "target", "outer", "middle", "inner", "batch_step", "middle_step", "inner_step",
                "half", "nbytes", "each")
"""The argument block: [batch, middle, inner] rows of `nbytes` bytes, whose first `half` pairs of f32 turn.

`outer` is batch * middle, and a block has `each` of them. The steps are the bytes between angles along the axes.
"""


def rotate(b: Builder, x: Value, y: Value, cos: Value, sin: Value, half: Value, *, interleaved: bool) -> None:
    """Emit the rotation of a row: `half` pairs of numbers, each turned by its angle."""
    done = c64(0)
    for lanes in (LANES, 1):
        with Loop(b, (half - done) // lanes) as loop:
            j = (done + loop.k * lanes) * 4
            c, s = ((table + j).load(vector(F32, lanes)) for table in (cos, sin))
            if interleaved and lanes > 1:
                pairs = (x + j * 2).load(vector(F32, 2 * lanes))
                first, second = (pairs.shuffle(pairs, range(n, 2 * lanes, 2)) for n in (0, 1))
                order = [k // 2 + k % 2 * lanes for k in range(2 * lanes)]
                (c * first - s * second).shuffle(s * first + c * second, order).store(y + j * 2)
            else:
                places = (j * 2, j * 2 + 4) if interleaved else (j, half * 4 + j)
                first, second = ((x + place).load(vector(F32, lanes)) for place in places)
                for turned, place in zip((c * first - s * second, s * first + c * second), places, strict=True):
                    turned.store(y + place)
        done = half // LANES * LANES


def rotating(interleaved: int) -> Functions:
    """Make the block function that turns rows; numbers behind the pairs are copied."""
    turn = emits(rotate, interleaved=bool(interleaved))

    def block(args: int, index: int) -> None:
        a = ROTATE(args)
        nbytes, half, cos, sin, inner, step = a.nbytes, a.half, a.cos, a.sin, a.inner, a.inner_step
        turned = 8 * half
        for outer in range(index * a.each, min(index * a.each + a.each, a.outer)):
            angles = outer // a.middle * a.batch_step + outer % a.middle * a.middle_step
            x, y = a.source + outer * inner * nbytes, a.target + outer * inner * nbytes
            for k in range(inner):
                turn(x + k * nbytes, y + k * nbytes, cos + angles + k * step, sin + angles + k * step, half)
                if nbytes > turned:
                    copy_row(x + k * nbytes + turned, y + k * nbytes + turned, nbytes - turned)

    return Functions(block=block)


def rotary_steps(b: PlanBuilder, node: Node) -> None:
    """Add the step of rotary_embedding."""
    source, cos, sin = node.operands
    batch, middle, inner, size = source.type.dims
    steps = broadcast_strides(cos.type.dims, source.type.dims, 4)
    words = {"outer": batch * middle, "middle": middle, "inner": inner, "batch_step": steps[0],
             "middle_step": steps[1], "inner_step": steps[2], "half": cos.type.dims[3], "nbytes": 4 * size}
    step = plan_rows(rotating, ROTATE, words, b.target, rows=batch * middle, cycles=inner * (20 + size),
                     of=(int(node.attrs["interleaved"]),))
    b.run(step, {"source": Ref(b.of[source]), "cos": Ref(b.of[cos]), "sin": Ref(b.of[sin]),
                 "target": Ref(b.result(node.output))})

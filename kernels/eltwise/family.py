"""The kernel family of lane-wise (elementwise) operations, with its kernel and the function that plans a step.

One loop over memory computes a chain of operations. The argument block has the fields of SPACE, then a slot (see
`vector.SlotOperand`) for each operand and for the output.
"""
from graphq.base.sizes import largest, numbers, recorded
from graphq.ir import Node
from graphq.kernels.family.epilogue import lane_wise_operations, refuses
from graphq.kernels.family.lower import Lowered, at_rows, lower_eltwise
from graphq.kernels.family.record import Family, epilogue_slots
from graphq.kernels.jit import block_module, modules
from graphq.kernels.jit.intrinsics import Record
from graphq.kernels.lanes.epilogues import Epilogue
from graphq.kernels.lanes.expression import lower, walk
from graphq.kernels.lanes.outputs import HEAD, load_outputs, write
from graphq.kernels.operands.space import Space
from graphq.plan.builder import PlanBuilder
from graphq.plan.plan import BLOCK_CYCLES, Step, Target, pieces
from graphq.rewrite.pattern import PatternBuilder, PatternLike

BLOCKS_PER_THREAD = 4
SPACE = Record(*HEAD.fields, "batch", "m", "n", "each", "rows", "columns")
"""The argument block: sizes of the iteration domain, and the batch elements, rows and columns of a block."""


@block_module
def eltwise_blocks(args: int, index: int) -> None:
    """Write a block of outputs."""
    a = SPACE(args)
    batch, m, n, each, rows, columns = a.batch, a.m, a.n, a.each, a.rows, a.columns
    across, down = (n + columns - 1) // columns, (m + rows - 1) // rows
    first, i, j = index // (across * down) * each, index // across % down * rows, index % across * columns
    for b in range(first, min(first + each, batch)):
        write(args, b, i, j, min(rows, m - i), min(columns, n - j), 0, 0, 0)


def plan_eltwise(epilogue: Epilogue, space: Space, target: Target, strip_rows: int | None = None) -> Step:
    """Plan `epilogue` over `space`. With `strip_rows`, a block has this many rows. The caller fills in the slots."""
    if epilogue.uses_acc:
        raise ValueError("an elementwise kernel has no accumulator")
    block = modules.load("eltwise", eltwise_blocks, level=target.level.base, cache=target.cache).block
    table = load_outputs(epilogue, target.level, target.cache)
    batch, m, n = space.batch, space.m, space.n
    operations = len(list(walk(lower(epilogue.expr))))
    if strip_rows is None:
        each, rows, columns = numbers(3, _blocks, batch, m, n, operations, target.level.lanes, target.threads)
    else:
        each, rows, columns = 1, strip_rows, largest(1, n)
    blocks = -(-batch // each) * -(-m // rows) * -(-n // columns)
    words = SPACE.named({"batch": batch, "m": m, "n": n, "each": each, "rows": rows, "columns": columns,
                         "functions": table})
    return Step(f"eltwise_{target.level.name}", block, words, blocks, pieces(blocks, target.threads, target.threads))


@recorded("eltwise.blocks")
def _blocks(batch: int, m: int, n: int, operations: int, lanes: int, threads: int) -> tuple[int, int, int]:
    """Choose the batch elements, rows and columns of a block, by an estimate of the time.

    A vector takes about one cycle per operation (measured: 0.65 to 0.85) plus 4 cycles to load and store it.
    """
    cycles = batch * m * n * (operations + 4) // lanes
    most = 1 if threads == 1 else max(1, min(BLOCKS_PER_THREAD * threads, cycles // BLOCK_CYCLES))
    return split(batch, m, n, most)


def split(batch: int, m: int, n: int, parts: int) -> tuple[int, int, int]:
    """Cut batch, rows and columns into at least `parts` blocks; returns how many of each a block has."""
    if batch >= parts or not batch * m * n:
        return max(1, batch // parts), max(1, m), max(1, n)
    parts = -(-parts // batch)
    if m >= parts:
        return 1, max(1, m // parts), max(1, n)
    parts = -(-parts // m)
    return 1, 1, max(1, -(-n // (parts * 64))) * 64


def eltwise_steps(b: PlanBuilder, node: Node, lowered: Lowered) -> None:
    """Add the step that loops over the output's elements."""
    space, slots = epilogue_slots(b, node, lowered)
    b.run(plan_eltwise(lowered.epilogue, space, b.target, b.strip_rows), {}, slots)


MAX_CHAIN = 48
"""The most operations in one kernel. Longer chains would need more temporaries than there are registers."""


def floats(g: PatternBuilder) -> PatternLike:
    """The pattern of a tree of lane-wise operations: f(g(x), h(y), ...)."""
    return g.repeat(lane_wise_operations(), max=MAX_CHAIN, where=refuses)


ELTWISE = Family("eltwise", (), lower_eltwise, eltwise_steps, floats=floats, follows=at_rows)

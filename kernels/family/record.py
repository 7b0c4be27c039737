"""The record of a kernel family: everything that passes, plans and reports need to know about the family.

The functions after it make the slots of a family's steps: the words of an argument block that locate the operands and
the output of an epilogue.
"""
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeAlias

from graphq.base.arrays import Content
from graphq.ir import Graph, Node, Value
from graphq.kernels.family.epilogue import OperandSource
from graphq.kernels.family.lower import Arrays, Lower, Lowered
from graphq.kernels.family.unsupported import Unsupported
from graphq.kernels.lanes.expression import STORAGE
from graphq.kernels.operands.space import Space, Walk, broadcast_strides, dense, merged_space, strip_space
from graphq.plan.builder import PlanBuilder
from graphq.plan.plan import Ref, Slot
from graphq.rewrite.pattern import ANY, PatternBuilder, PatternLike

Pattern: TypeAlias = Callable[[PatternBuilder], PatternLike]
Steps: TypeAlias = Callable[[PlanBuilder, Node, Lowered], None]
Follows: TypeAlias = Callable[[Lowered, int], bool]
Strided: TypeAlias = Callable[[Lowered, int, Sequence[int]], bool]
Count: TypeAlias = Callable[[Node], int]

MAX_EPILOGUE = 24
"""The most operations after the anchor, casts and quantizes included. oneDNN's patterns have up to 20."""


@dataclass(frozen=True, eq=False)
class Family:
    """A kernel family computes partitions with one kind of anchor and the lane-wise operations around it.

    `name` is the anchor's name in reports. `operations` are the possible anchors; a partition has exactly one. Only the
    family of lane-wise operations has no anchors.

    `lower` turns a body into expressions and operands, or raises Unsupported if kernels cannot compute it. When a plan
    is built, `steps` adds the plan steps that run the kernels.

    Patterns describe the anchor and its operands; the fusion pass adds the epilogue (`passes/fuse.py`). `quantized` is
    matched first, while quantized constants still have a dequantize. This dequantize joins the partition. `floats` is
    matched after constants have been dequantized. Patterns are functions at a module's top level, because passes are
    pickled.

    `follows(lowered, k)` is True if the steps read input k only at the output rows that they compute. The steps can
    then run strip by strip (some rows at a time) after the steps that make the input (`plan.builder`). Without
    `follows` they cannot.

    `strided(lowered, k, order)` is True if the steps can read input k, the transpose `order` of another value, from
    that value's memory (`PlanBuilder.strides`). The transpose then needs no step. A family with `strided` can also
    write the rows of its result in another order.

    `channels_last` are the operations whose kernels require channels-last tensors (data_format NXC). `macs` maps
    operations to functions that count the multiply-accumulates of a node.
    """

    name: str
    operations: tuple[str, ...]
    lower: Lower
    steps: Steps
    quantized: Pattern | None = None
    floats: Pattern | None = None
    follows: Follows | None = None
    strided: Strided | None = None
    channels_last: tuple[str, ...] = ()
    macs: Mapping[str, Count] = field(default_factory=dict)

    def refuses(self, body: Graph, constants: Arrays) -> Unsupported | None:
        """Why kernels cannot compute a body as one partition, or None. `constants` are arrays of constant inputs."""
        if (refused := self.refuses_sizes(body.nodes, body.outputs[0])) is not None:
            return refused
        try:
            self.lowered(body, constants)
        except Unsupported as e:
            return e
        return None

    def lowered(self, body: Graph, constants: Arrays) -> Lowered:
        """Lower a body. Its note "lowered" keeps the result of a fusion's check until `lower_partition` takes it."""
        facts = [*(None if x is None else Content(x) for x in constants), *body.outputs,
                 *(x for node in body.nodes for x in (node, *node.inputs))]
        if body.notes.get("lowered", (None,))[0] != facts:
            body.notes["lowered"] = facts, self.lower(body, constants)
        return body.notes["lowered"][1]

    def refuses_sizes(self, nodes: Iterable[Node], result: Value) -> Unsupported | None:
        """The refusal of an epilogue that broadcasts the anchor's result to another size; otherwise None."""
        product = next((n.outputs[0] for n in nodes if n.op.name in self.operations), result)
        if product.type.known and result.type.known and result.type.size != product.type.size:
            return Unsupported("the epilogue broadcasts {product} to {result}: sums would be computed more than once",
                               "quantize before the operation that broadcasts", product=product, result=result)
        return None


def any_operands(*names: str) -> Pattern:
    """The pattern of one operation, any of `names`, with any operands."""
    return partial(_any_operands, names=names)


def _any_operands(g: PatternBuilder, names: tuple[str, ...]) -> PatternLike:
    return g.any_of(*names)(..., attrs=ANY)


Operand: TypeAlias = tuple[Ref, tuple[int, ...]]
"""The address of an operand and its byte strides along the output's dimensions; 0 along broadcast dimensions."""


def epilogue_operands(b: PlanBuilder, node: Node, lowered: Lowered,
                      own: Mapping[str, Callable[[OperandSource], Operand]] = {},
                      placed: Callable[[Operand], Operand] = lambda x: x) -> list[Operand]:
    """The operands of a partition's epilogue, then its output.

    Some families compute operands themselves, such as column sums; `own` maps the origin of such a source to a function
    that returns the operand. `placed` converts all others, and the output, to another iteration domain than the result.
    """
    operands = [own[s.origin](s) if s.origin in own else placed(operand(b, node, s, lowered.out))
                for s in lowered.sources]
    strides = b.strides.get(node.output) or dense(lowered.out, STORAGE[lowered.epilogue.dtype].itemsize)
    return [*operands, placed((Ref(b.result(node.output)), tuple(strides)))]


def epilogue_slots(b: PlanBuilder, node: Node, lowered: Lowered, keep: int = 0) -> tuple[Space, list[Slot]]:
    """The iteration domain of a partition, and the slots of its epilogue. The last `keep` dimensions are not merged."""
    operands = epilogue_operands(b, node, lowered)
    space = space_of(b, lowered.out, operands, keep)
    return space, slots_of(b, operands, space)


def space_of(b: PlanBuilder, out: Sequence[int], operands: Sequence[Operand], keep: int) -> Space:
    """The domain (`merged_space`) of an output of shape `out`, split into strips if the step runs strip by strip."""
    strides = [s for _, s in operands]
    if b.strips is None:
        return merged_space(out, strides, keep=keep)
    space = strip_space(out, strides, b.strips.m)
    walks = [in_room(b, ref.buffer) or walk for (ref, _), walk in zip(operands, space.walks, strict=True)]
    return space._replace(walks=tuple(walks))


def in_room(b: PlanBuilder, buffer: int) -> Walk | None:
    """The access map of a buffer that holds a single strip (a room); None if it holds a whole value."""
    rooms = {} if b.strips is None else b.strips.rooms
    return Walk(None, rooms[buffer]) if buffer in rooms else None


def operand(b: PlanBuilder, node: Node, source: OperandSource, out: tuple[int, ...]) -> Operand:
    """The buffer of a source (a new constant, or an input of `node`) and its byte strides, broadcast to `out`."""
    if source.origin in ("parameter", "table"):
        assert source.data is not None
        buffer = b.constant(source.data)
    else:
        buffer = b.of[node.operand(source.index)]
    return Ref(buffer), broadcast_strides(source.shape, out, STORAGE[source.dtype].itemsize)


def slots_of(b: PlanBuilder, operands: Sequence[Operand], space: Space) -> list[Slot]:
    """The slots of operands in an iteration domain. Their tables become constants of the plan."""
    return [(ref, b.table(walk.table), walk.row) for (ref, _), walk in zip(operands, space.walks, strict=True)]

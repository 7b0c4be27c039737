"""The content of reports as data. `explain()` and pages are made from these records.

Values have labels that are unique in a graph: `x` for an input, `%y` for a named result, `%7` for unnamed result number
7. A partition's body has labels of its own. docs/explain.md describes each field.
"""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from graphq.ir import Graph
    from graphq.plan.plan import Allocation
    from graphq.plan.runtime import Runner
    from graphq.report.coverage import Coverage
    from graphq.report.evidence import Evidence

Role: TypeAlias = Literal["partition", "native", "reference", "view", "constant"]
"""How an operation runs: as a partition's kernel, as a kernel of its own, or as its NumPy reference.

Views and constants do not run.
"""

Kind: TypeAlias = Literal["integer", "quantized", "float"]
"""The kind of a partition.

"integer" multiplies integers, "quantized" only reads and writes quantized numbers, "float" is any other partition."""

KINDS: Mapping[Kind, str] = {"integer": "in integers", "quantized": "on quantized numbers", "float": "in floats"}
"""The words for each kind of partition in texts."""


@dataclass(frozen=True)
class Tensor:
    """A value: its label, its type as text (`u8[4,16]`), its dtype and its shape. An open dimension is None."""

    label: str
    type: str
    dtype: str
    shape: tuple[int | None, ...] | None
    nbytes: int | None


@dataclass(frozen=True)
class Operation:
    """An operation of the graph or of a partition's body. Its operands are labels; an absent operand is None.

    `text` describes the operation in one line, and `line` is the line of Python that it is from. `attributes` has the
    attributes that differ from their defaults, as in a graph's text; long attributes are shortened.
    """

    op: str
    title: str
    text: str
    inputs: tuple[str | None, ...]
    outputs: tuple[Tensor, ...]
    attributes: Mapping[str, str]
    line: str = ""


@dataclass(frozen=True)
class PartitionRecord:
    """The content of a partition: the body's operations in order, and the outer value for each input of the body.

    `factors` is the dtype of the floats that the partition's layer multiplies, "" if it multiplies no floats.
    """

    anchor: str
    kind: Kind
    body: tuple[Operation, ...]
    inputs: Mapping[str, str]
    outputs: tuple[str, ...]
    ties: tuple[str, ...] = ()
    factors: str = ""


@dataclass(frozen=True)
class GraphNode:
    """Node number `id` of the graph after the passes: its operation, how it runs, and its steps in the plan.

    `macs` are its multiply-accumulates if shapes are known. If ONNX's reference runs the node, `note` says why.
    """

    id: int
    role: Role
    operation: Operation
    partition: PartitionRecord | None = None
    steps: tuple[int, ...] = ()
    kernels: tuple[str, ...] = ()
    macs: int = 0
    note: str = ""


@dataclass(frozen=True)
class Cause:
    """Why an operation that could be in an integer partition is not, and the edit that would let it fuse.

    `node` describes the operation, and `value` is its result. `id` is the number of the node that the operation became
    (None: it no longer exists). `fusion` is the pass that was closest to a match, `check` the check that failed.
    `blocking_node` and `blocking_value` are the obstacle; None for an input, an output or a type. `also` are the
    results of other operations that are outside for the same reason. `share` is the cause's share of a profile's time.
    """

    id: int | None
    node: str
    value: str
    op: str
    fusion: str
    check: str
    blocking_node: str | None
    blocking_value: str | None
    reason: str
    edit: str
    also: tuple[str, ...] = ()
    share: float | None = None


@dataclass(frozen=True)
class StepRecord:
    """A step of the plan: its node (None for a copy to an output), its kernel, and how it runs.

    `evidence` are measurements of the step, if they were requested.
    """

    number: int
    node: int | None
    kernel: str
    runs: Literal["native", "reference", "python"]
    blocks: int | None = None
    parallel: bool = False
    macs: int = 0
    evidence: Evidence | None = None


@dataclass(frozen=True)
class NearMiss:
    """A rewrite that matched a part of the graph and was refused."""

    node: str
    rewrite: str
    reason: str
    depth: int


@dataclass(frozen=True)
class Pattern:
    """A partition that oneDNN Graph would make (`Graph.partitions`): its anchor, and the results of its operations.

    In graphq, each partition comes from one fusion by a pass; a pattern may span several of these partitions.
    """

    anchor: str
    values: tuple[str, ...]


@dataclass(frozen=True)
class Report:
    """The report on a graph that runs in one plan; a graph in stages has one report for each part in `parts`.

    `planned` says whether there is a plan yet. The report's numbers hold for the `sizes` of open dimensions; `classes`
    are lines on the ranges of sizes that have plans. `source` are the user's operations. `became` maps each result of
    the user's operations or of passes to the node that contains it after the passes (None: it was computed at compile
    time, or merged with an equal result). `names` maps the names of an ONNX file's nodes to the labels of their
    results. `patterns` are the partitions that oneDNN Graph would make of the user's graph.
    """

    graph: str
    level: str
    threads: int
    planned: bool
    inputs: tuple[Tensor, ...] = ()
    outputs: Mapping[str, str] = field(default_factory=dict)
    nodes: tuple[GraphNode, ...] = ()
    causes: tuple[Cause, ...] = ()
    steps: tuple[StepRecord, ...] = ()
    near_misses: tuple[NearMiss, ...] = ()
    coverage: Coverage | None = None
    sizes: Mapping[str, int] = field(default_factory=dict)
    classes: tuple[str, ...] = ()
    ties: tuple[str, ...] = ()
    ranges: tuple[str, ...] = ()
    layouts: tuple[str, ...] = ()
    source: tuple[Operation, ...] = ()
    became: Mapping[str, int | None] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)
    patterns: tuple[Pattern, ...] = ()
    parts: Mapping[str, Report] = field(default_factory=dict)
    schema: str = "graphq.explain/2"


@dataclass(frozen=True)
class ValueRecord:
    """The content of `explain("name")`: the report on one value.

    `value` is the label of the value, `graph` the name of its graph (or of the part, if the model runs in stages). For
    an input of the graph, `input` is set, and `users` has a line for each node after the passes that reads the input.

    For any other value, `operation` is the user's operation that computes the value, and `cause` says why the operation
    is outside of integer partitions. `node` is the node after the passes that contains the operation (None: computed at
    compile time, or merged with an equal operation), and `steps` are this node's steps. For a view, `viewed` is the
    node that computes the viewed value (None: an input or a constant).

    If `value` is the path of a module, `within` has the records of its values.
    """

    graph: str
    value: str
    input: Tensor | None = None
    users: tuple[str, ...] = ()
    operation: Operation | None = None
    cause: Cause | None = None
    node: GraphNode | None = None
    steps: tuple[StepRecord, ...] = ()
    viewed: GraphNode | None = None
    within: tuple[ValueRecord, ...] = ()
    schema: str = "graphq.explain.value/1"


@dataclass(frozen=True)
class Memory:
    """The bytes of a plan's arena, constants, inputs and outputs, and the allocations in the arena."""

    arena: int
    constants: int
    inputs: int
    outputs: int
    allocations: tuple[Allocation, ...]

    @property
    def unshared(self) -> int:
        """The bytes of the arena if its buffers shared no memory."""
        return sum(s.nbytes for s in self.allocations)


@dataclass(frozen=True)
class ModelPart:
    """A graph after the passes with its report. `memory` is None without a plan.

    `source` is the graph as written; None if no passes ran. If the model runs in stages, `name` is the part's name.
    """

    name: str
    source: Graph | None
    graph: Graph
    report: Report
    memory: Memory | None = None

    def within(self, name: str) -> ModelPart:
        """A copy of this part, with `name` in front of the part's name."""
        return replace(self, name=f"{name}, {self.name}" if self.name else name)


def memory_of(runner: Runner) -> Memory:
    """The memory that a run of the plan takes."""
    def nbytes(storage: str) -> int:
        return sum(int(b.nbytes) for b in runner.plan.buffers if b.storage == storage)

    return Memory(runner.arena_bytes, nbytes("constant"), nbytes("input"), nbytes("output"),
                  tuple(runner.allocations()))

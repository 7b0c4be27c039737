"""Collect the content of reports on a compiled graph, from its plan and the history of its passes."""
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from graphq.base.sizes import assumed, is_open
from graphq.ir import FILE_NAMES, ONNX_NAME, SHORT, Graph, Node, TensorType, Value, attributes, counted, listing, quote
from graphq.ir.interpret import SIZED_CONSTANT
from graphq.ir.node import SOURCE_LINE, reached
from graphq.kernels.families import TIES, lower_partition
from graphq.kernels.moves.steps import kilobytes, reorder_text
from graphq.kernels.native import NATIVE
from graphq.kernels.target.level import Level
from graphq.ops.recurrent import shares_range
from graphq.passes.ranges_by_row import RangesByRow
from graphq.plan.plan import VIEWS, AnyStep, Plan, PythonStep, Step
from graphq.report import records
from graphq.report.causes import Analysis, causes
from graphq.report.coverage import MACS, Coverage, factors, kind_of
from graphq.report.evidence import Evidence
from graphq.rewrite.fixpoint import History
from graphq.rewrite.rule import Pass, Refusal
from graphq.validation.subgraphs import all_nodes


def settled(partition: Node) -> tuple[str, ...]:
    """How each quantize of a partition recomputes outputs near a rounding tie, or why it does not."""
    noted: tuple[str, ...] | None = partition.meta.get(TIES)
    return lower_partition(partition).ties if noted is None else noted


def ties(graph: Graph) -> list[str]:
    """Lines on how each quantize recomputes outputs near a rounding tie (docs/numbers.md), or why it does not."""
    found: list[tuple[Node, str]] = []
    for n in graph.nodes:
        inner = [n] if n.op.name == "quantize" else []
        if n.op.name == "partition":
            found += [(n, x) for x in settled(n)]
            inner = n.attrs["body"].nodes_of({"quantize"})
        outer = n if n.op.name == "partition" else None
        found += [(n, x) for q in inner if (x := _inexact(outer, q)) is not None]
    if not found:
        return []
    by = Counter(x for _, x in found if x in ("proved", "estimated", "formula"))
    lines = [f"  {graph.label(n.output)}: {x}" for n, x in found if x not in by]
    heads, settled_ones = [], by["proved"] + by["estimated"]
    if by["formula"]:
        heads = [f'ties: {counted(by["formula"], "quantize")} not settled, as ties="formula" says']
    if settled_ones or not heads:
        heads.append(f"ties: {counted(settled_ones, 'quantize')} settled by the f32 sums of the graph as written: "
                     f"{by['proved']} within proved bounds, {by['estimated']} within estimated ones")
    return [*heads, *lines]


def ranges(unfused: Graph, passes: Sequence[Pass]) -> list[str]:
    """A line on run-time ranges, if RangesByRow is among the passes: what still has the range of a whole tensor."""
    if RangesByRow not in passes:
        return []
    left = [unfused.label(n.outputs[0]) for n in unfused.nodes if shares_range(n) or n.op.name == "dynamic_range"
            or n.op.name == "dynamic_quantize" and n.attrs["qtype"] == "per_tensor" and [*n.operands][1].node]
    return [f"ranges: by row, except for {listing(left, 'and')}" if left else "ranges: by row"]


def _inexact(outer: Node | None, quantize: Node) -> str | None:
    """Why a quantize's operand may be inexact in the last bits (outputs near ties are then not recomputed), or None.

    Functions such as exp, and sums of other partitions, are inexact. They do not matter before a sum of the quantize's
    own partition `outer`, because the error bound of this sum covers them.
    """
    def before(at: tuple[Value, Node | None]) -> list[tuple[Value, Node | None]]:
        (value, around), node = at, at[0].node
        if node is None:
            operand = None if around is None else around.inputs[around.attrs["body"].inputs.index(value)]
            return [] if operand is None else [(operand, None)]
        if node.op.name == "partition":
            return [(node.attrs["body"].outputs[value.index], node)]
        return [] if node.op.name in ("quantize", "dynamic_quantize") else [(v, around) for v in node.operands]

    inexact = [(v.node.op.name, around) for v, around in reached([(v, outer) for v in quantize.operands], before)
               if v.node is not None and (not v.node.op.exact or v.node.op.name in MACS)]
    found = {name for name, _ in inexact}
    if not found or outer is not None and any(name in MACS and around is outer for name, around in inexact):
        return None
    return (f"quantize is not settled: {listing(sorted(found), 'and')} may differ from the reference in the last bits "
            "of f32")


def survey(source: Graph, history: History, passes: Sequence[Pass], refusals: Sequence[Refusal], plan: Plan | None, *,
           level: Level, threads: int, evidence: Mapping[int, Evidence], covered: Coverage | None,
           sizes: Mapping[str, int], at_sizes: Callable[[Any], Any]) -> records.Report:
    """The report on a graph that runs in one plan, or has no plan yet.

    `source` is the graph as the user gave it, `refusals` come from the `passes`, and `evidence` maps numbers of native
    steps to their measurements. Types have symbols for open `sizes`; `at_sizes` gives open numbers their values.
    """
    graph, analysis = history.after, Analysis(source, history, passes, refusals)
    steps = [] if plan is None else [_step(k, step, plan, graph, evidence.get(k)) for k, step in enumerate(plan.steps)]
    macs = at_sizes([_macs(node) for node in graph.nodes])
    own: dict[int, list[records.StepRecord]] = {}
    for step in steps:
        if step.node is not None:
            own.setdefault(step.node, []).append(step)
    return records.Report(
        graph=graph.name, level=level.name, threads=threads, planned=plan is not None,
        inputs=tuple(tensor(v) for v in graph.inputs),
        outputs={name: graph.label(v) for name, v in zip(graph.output_names, graph.outputs, strict=True)},
        nodes=tuple(_node(k, node, own.get(k, []), plan is not None, macs[k]) for k, node in enumerate(graph.nodes)),
        causes=tuple(causes(analysis)), steps=tuple(steps),
        near_misses=tuple(records.NearMiss(r.node, r.rewrite, r.reason, r.depth) for r in refusals if r.reason),
        coverage=covered, sizes=dict(sizes),
        ties=tuple(ties(graph)), ranges=tuple(ranges(history.before, passes)),
        layouts=tuple(_layouts(graph, None if plan is None else own, at_sizes)),
        source=tuple(operation(n) for n in source.nodes), became=_became(analysis), names=_onnx_names(source))


def _onnx_names(graph: Graph) -> dict[str, str]:
    renamed = {old: f"%{quote(new)}" for old, new in graph.meta.get(FILE_NAMES, {}).items()}
    return renamed | {str(name): graph.label(n.outputs[0]) for n in graph.nodes if (name := n.meta.get(ONNX_NAME))}


def survey_stages(graph: Graph, head: records.Report | None, cut: Graph,
                  bodies: Sequence[tuple[int, str, records.Report]], tail: records.Report | None,
                  outputs: Sequence[str] = ()) -> records.Report:
    """The report on a graph in stages: its parts "head", "cut" and "tail", if they exist.

    The cut has the operations between head and tail. The operations of the cut run as references, because later shapes
    depend on their results or because they have bodies. `bodies` are the reports on the bodies of control flow that
    ran, each with the number of its node in the cut and the name of the attribute that holds the body. `outputs` are
    the names that the graph's outputs have in the parts.
    """
    between = records.Report(
        graph=cut.name, level="", threads=0, planned=False, inputs=tuple(tensor(v) for v in cut.inputs),
        outputs={name: cut.label(v) for name, v in zip(cut.output_names, cut.outputs, strict=True)},
        nodes=tuple(_node(k, node, [], False, _macs(node)) for k, node in enumerate(cut.nodes)),
        became={cut.label(v): k for k, node in enumerate(cut.nodes) for v in node.outputs}, names=_onnx_names(cut),
        parts={f"{name} of {cut.label(cut.nodes[k].outputs[0])}": report for k, name, report in bodies})
    parts = {"head": head, "cut": between, "tail": tail}
    return records.Report(graph=graph.name, level="", threads=0, planned=False,
                          inputs=tuple(tensor(v) for v in graph.inputs),
                          outputs={name: f"%{quote(x)}" for name, x in zip(graph.output_names, outputs, strict=False)},
                          parts={name: part for name, part in parts.items() if part is not None})


def patterns(graph: Graph) -> tuple[records.Pattern, ...]:
    """The partitions that oneDNN Graph would make of the user's graph."""
    return tuple([records.Pattern(p.anchor, tuple([graph.label(v) for n in p.ops for v in n.outputs]))
                  for p in graph.partitions()])


def tensor(value: Value) -> records.Tensor:
    """The record of a value. Open dimensions are None."""
    t: TensorType = value.type
    shape = None if t.shape is None else tuple(None if d is None or is_open(d) else int(d) for d in t.shape)
    known = shape is not None and None not in shape
    return records.Tensor(value.graph.label(value), str(t), t.dtype.name, shape, int(t.nbytes) if known else None)


def operation(node: Node) -> records.Operation:
    """The record of a node."""
    return records.Operation(node.op.name, node.op.title(node.attrs), node.graph.describe(node),
                             tuple(None if v is None else node.graph.label(v) for v in node.inputs),
                             tuple(tensor(v) for v in node.outputs), {} if node.op.name == "partition" else attributes(
                                 node, elide=SHORT), node.meta.get(SOURCE_LINE, ""))


def _macs(node: Node) -> int:
    """The multiply-accumulates of a node or of its body: a plain or open number; 0 without known shapes."""
    inner = node.attrs["body"].nodes if node.op.name == "partition" else [node]
    known = all(v.type.known for n in inner for v in (*n.operands, *n.outputs))
    return sum(MACS[n.op.name](n) for n in inner if n.op.name in MACS) if known else 0


def _node(k: int, node: Node, steps: Sequence[records.StepRecord], planned: bool, macs: int) -> records.GraphNode:
    partition = _partition(node) if node.op.name == "partition" else None
    return records.GraphNode(k, _role(node, steps, planned), operation(node), partition,
                             tuple(s.number for s in steps), tuple(dict.fromkeys(s.kernel for s in steps)), int(macs),
                             _note(node))


def _note(node: Node) -> str:
    """Why ONNX's reference runs the node, with lines on the nodes that it runs in the node's bodies."""
    if node.op.name == "partition":
        return ""
    own = [str(node.meta["why"])] if "why" in node.meta else []
    if not node.op.portable and all(v.type.known for v in node.operands):  # known sizes may make it an operation
        own.append("its bits may differ between machines")
    return "\n".join(own + [f"in {name}: {n.graph.describe(n)}: {n.meta['why']}" for name, body in node.attrs.items()
                            if isinstance(body, Graph) for n in all_nodes(body) if "why" in n.meta])


def _role(node: Node, steps: Sequence[records.StepRecord], planned: bool) -> records.Role:
    name = node.op.name
    if name == "partition":
        return "partition"
    if name in ("constant", SIZED_CONSTANT.name):
        return "constant"
    if name in VIEWS or planned and not steps and name == "static_transpose":
        return "view"
    return "native" if name in NATIVE and not any(s.runs == "reference" for s in steps) else "reference"


def _partition(node: Node) -> records.PartitionRecord:
    body, graph = node.attrs["body"], node.graph
    return records.PartitionRecord(
        node.attrs["anchor"], kind_of(node), tuple(operation(n) for n in body.nodes),
        {body.label(v): graph.label(outer) for v, outer in zip(body.inputs, node.operands, strict=True)},
        tuple(body.label(v) for v in body.outputs), settled(node), factors(node))


def _step(k: int, step: AnyStep, plan: Plan, graph: Graph, found: Evidence | None) -> records.StepRecord:
    node = plan.nodes[k] if k < len(plan.nodes) else None
    if isinstance(step, Step):
        return records.StepRecord(k, node, assumed(step.kernel), "native", int(step.blocks), step.pieces > 0,
                                  int(step.macs), found)
    assert isinstance(step, PythonStep)
    kernel = step.kernel if node is None or not step.reference else graph.describe(graph.nodes[node])
    return records.StepRecord(k, node, kernel, "reference" if step.reference else "python")


def _layouts(graph: Graph, own: Mapping[int, Sequence[records.StepRecord]] | None,
             at_sizes: Callable[[Any], Any]) -> list[str]:
    """Lines on the cost of layouts: the transposes that move bytes.

    `own` maps numbers of nodes to their steps. A reorder without a step moves nothing, because a partition reads or
    writes the other order.
    """
    moves = [n for k, n in enumerate(graph.nodes) if n.op.name == "static_transpose" and (own is None or k in own)]
    if not moves:
        return []
    known = at_sizes([n.output.type.nbytes for n in moves if n.output.type.known])
    size = f", {kilobytes(sum(known))}" if len(known) == len(moves) else ""
    return [f"layouts: {counted(len(moves), 'reorder')}{size}",
            *(f"  {graph.label(n.output)} = {reorder_text(next(n.operands).type, n.output.type)}" for n in moves)]


def _became(analysis: Analysis) -> dict[str, int | None]:
    """Map labels of values (of the user's graph and the report) to the nodes that contain them after the passes."""
    source = analysis.given.source
    own: dict[str, int | None] = {source.label(v): None for n in source.nodes for v in n.outputs}
    for k, node in enumerate(analysis.after.nodes):
        own |= {label: k for n in analysis.members.get(node, ()) for v in (*n.outputs, *analysis.given.node(n).outputs)
                if (label := v.graph.label(v)) in own}
    missed = {label: None for r in analysis.refusals for label in r.node.partition(" = ")[0].split(", ")}
    made = {analysis.after.label(v): k for k, node in enumerate(analysis.after.nodes) for v in node.outputs}
    return own | {label: k for label, k in (missed | made).items() if label not in own}

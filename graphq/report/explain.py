"""Make the text of `CompiledGraph.explain()` from a `Report`: which operations fused, and why the others did not.

Lines are wrapped to the width of the terminal.
"""
import json
import re
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from typing import Any

from graphq.errors import GraphError, InputError
from graphq.ir import Graph, choice, counted, quote
from graphq.report.coverage import Coverage
from graphq.report.evidence import evidence_lines
from graphq.report.given import BORDER
from graphq.report.profile import Profile
from graphq.report.records import KINDS, Cause, GraphNode, NearMiss, Pattern, Report, StepRecord, ValueRecord
from graphq.report.survey import operation

NAMES = re.compile(r'%("(?:[^"\\]|\\.)*"|[\w.]+)|\b\w+\[[\w.?, *]*\]')
"""Matches value labels and tensor types in a text about a graph."""


def alike(causes: Sequence[Cause]) -> list[list[Cause]]:
    """Group causes that differ only in names and types; the group with the largest share of the time comes first."""
    groups: dict[tuple[str, str, str], list[Cause]] = {}
    for cause in causes:
        key = (cause.check, NAMES.sub("%", cause.reason), NAMES.sub("%", cause.edit))
        groups.setdefault(key, []).append(cause)
    return sorted(groups.values(), key=lambda group: -(shared(group) or 0))


def shared(causes: Sequence[Cause]) -> float | None:
    """The causes' total share of the time; None without a profile."""
    known = [c.share for c in causes if c.share is not None]
    return min(sum(known), 1.0) if known else None


def timed(report: Report, profile: Profile) -> Report:
    """The report with each cause's share of the profile's time.

    The share covers the nodes after the passes that contain the cause's operations, except integer partitions. A node
    with several causes counts only for the first cause. Raises InputError for the profile of a different model.
    """
    if len(profile.steps) != len(report.steps):
        raise InputError(f"the profile has {len(profile.steps)} steps, the plan of graph '{report.graph}' "
                         f"{len(report.steps)}: it is not of this model")
    counted: set[int] = set()
    causes = []
    for cause in report.causes:
        found = {cause.id, *(report.became.get(label) for label in (cause.value, *cause.also))}
        nodes = {k for k in found if k is not None and k not in counted
                 and getattr(report.nodes[k].partition, "kind", None) != "integer"}
        counted |= nodes
        seconds = sum(profile.steps[k].seconds for n in nodes for k in report.nodes[n].steps)
        causes.append(replace(cause, share=seconds / profile.seconds if profile.seconds else 0.0))
    return replace(report, causes=tuple(causes))


LONG, SHOWN = 24, 8
"""A section with more than LONG lines shows only its first SHOWN entries, except in a `full` report."""

UNQUANTIZED = "nothing in this model is quantized: graphq quantize MODEL --data SAMPLES -o QUANTIZED " \
    "(graphq.quantization.quantize) makes an int8 model of it"
"""The first line of a report on a model that is not quantized."""

SCALING = ("quantize", "dequantize", "dynamic_quantize", "dynamic_dequantize", "quantize_linear", "dequantize_linear",
           "matmul_integer", "conv_integer")
"""Operations that only quantized models have; a report on a graph without any of them starts with UNQUANTIZED."""

UNANCHORED = ("eltwise", "reorder")
"""Partitions of oneDNN Graph without an anchor; a report counts them."""

ALSO = 8
"""The largest number of operations that a report names for one cause."""


def as_data(report: Report | ValueRecord) -> dict[str, Any]:
    """The report, or its record of one value, as dicts, lists, texts and numbers (docs/explain.md has the schemas)."""
    return json.loads(json.dumps(report, default=_members, allow_nan=False))


def _members(record: Any) -> dict[str, Any]:
    """The fields of a record, and the numbers and the text that follow from the fields of a Coverage."""
    found = {f.name: getattr(record, f.name) for f in fields(record)}
    if isinstance(record, Coverage):
        found |= {"integer": record.integer, "total": record.total, "share": record.share, "text": str(record)}
    return found


def as_text(report: Report, *, full: bool = False, width: int | None = None) -> str:
    """The report as text; with `full` it has all lines of all sections, and the near misses of all rewrites.

    Lines are wrapped to `width` columns, by default to the terminal.
    """
    every = [report, *_parts(report)]
    first = [UNQUANTIZED] if any(p.causes for p in every) and not any(
        o.op in SCALING for p in every for o in p.source) else []
    last = _patterns(report.patterns) if full else []
    return wrapped("\n".join([*first, _text(report, full), *last]), width or columns())


def _text(report: Report, full: bool) -> str:
    if report.parts:
        return "\n".join(_stages(report, full))
    partitions = [n for n in report.nodes if n.partition is not None]
    others = [n for n in report.nodes if n.role == "reference"]
    integer = [n for n in partitions if n.partition and n.partition.kind == "integer"]
    lines = [f"graph {report.graph}: {counted(len(partitions), 'partition')} ({len(integer)} integer), "
             f"{counted(len(others), 'operation')} outside; ISA level {report.level}, "
             f"{counted(report.threads, 'thread')}"]
    if report.sizes:
        lines.append(f"numbers are for {', '.join(f'{place} = {n}' for place, n in report.sizes.items())}")
    lines += report.classes
    if report.coverage and (report.coverage.total or report.coverage.uncounted):
        lines.append(f"coverage: {report.coverage}")
    lines += _kinds(partitions)
    lines += _causes(report.causes, full)
    lines += _cut([f"  {_partition(n)}" for n in partitions], full, "partitions")
    lines += _cut([*report.ties, *report.ranges], full, "lines")
    if others:
        lines.append("not in a partition:")
        lines += _cut([*map(_outside, others)], full, "operations")
    lines += _cut([*report.layouts], full, "reorders")
    lines += _near(report.near_misses) if full else []
    lines += _steps(report, full)
    return "\n".join(lines)


def about(report: Report, name: str, source: Graph) -> ValueRecord:
    """The record of one value: its partition and kernels, or why it is in no partition.

    `name` is the value's name, the name of an output, or the name of the ONNX node that computes it. If it is the path
    of a module, such as `blocks.0`, the record covers the module's values. A value that is only in the user's
    graph `source` was replaced when open sizes became known. Raises GraphError for an unknown name; the message
    suggests similar names.
    """
    parts = [*_parts(report), report]  # the whole report comes last; it has all inputs
    for part in parts:
        known_as = (f"%{name}", f"%{quote(name)}", name, quote(name), part.outputs.get(name), part.names.get(name),
                    report.outputs.get(name))
        label = next((x for x in known_as if x in part.became or x in {t.label for t in part.inputs}), None)
        if label is not None:
            return _value(part, label)
    replaced = next((n for n in source.nodes if name in {v.name for v in n.outputs}), None)
    if replaced is not None:
        return ValueRecord(report.graph, f"%{quote(name)}", operation=operation(replaced))
    within = [_value(part, x) for part in parts for x in part.became if x.lstrip('%"').startswith(f"{name}.")]
    if within := [v for v in within if v.operation is not None and v.operation.op != "constant"]:
        return ValueRecord(report.graph, name, within=tuple(within))
    known = [x.lstrip("%") for part in parts
             for x in (*part.became, *part.outputs, *part.names, *(t.label for t in part.inputs))]
    raise GraphError(f"graph '{report.graph}' has no value '{name}'{choice(name.lstrip('%'), known)}")


def _parts(report: Report) -> Iterator[Report]:
    for part in report.parts.values():
        yield part
        yield from _parts(part)


def _value(report: Report, label: str) -> ValueRecord:
    if label not in report.became:
        users = tuple(n.operation.text for n in report.nodes if label in n.operation.inputs)
        return ValueRecord(report.graph, label, next(t for t in report.inputs if t.label == label), users=users)
    # A later operation with the same label replaces an earlier one, so operations of the user's graph win.
    operations = (*(n.operation for n in report.nodes if n.partition is None), *report.source)
    made = {t.label: op for op in operations for t in op.outputs}.get(label)
    cause = next((c for c in report.causes if label == c.value), None) or \
        next((c for c in report.causes if label in c.also), None)
    node = None if (number := report.became[label]) is None else report.nodes[number]
    if node is not None and node.role == "constant" and made is not None and made.op != "constant":
        node = None
    steps = () if node is None else tuple(report.steps[k] for k in node.steps)
    return ValueRecord(report.graph, label, operation=made, cause=cause, node=node, steps=steps,
                       viewed=None if node is None or node.role != "view" else _viewed(report, node))


def _viewed(report: Report, view: GraphNode) -> GraphNode | None:
    """The node whose result a view reads, also through other views; None for an input or a constant."""
    makers = {t.label: n for n in report.nodes for t in n.operation.outputs}
    node: GraphNode | None = view
    while node is not None and node.role == "view":
        node = makers.get(node.operation.inputs[0] or "")
    return None if node is None or node.role == "constant" else node


def value_text(record: ValueRecord) -> str:
    """The text of `explain("name")` for the record of a value, wrapped to the terminal."""
    return wrapped("\n".join(_value_lines(record)), columns())


def _value_lines(record: ValueRecord) -> list[str]:
    if record.input is not None:
        return [f"{record.value} : {record.input.type} is an input of the graph",
                *(f"  used by {x}" for x in record.users)]
    if record.within:
        return [f"{record.value} computes {counted(len(record.within), 'value')}",
                *(line for v in record.within for line in _value_lines(v))]
    cause, node, made = record.cause, record.node, record.operation
    lines = [record.value] if made is None else [made.text, *[f"  from {made.line}"] * bool(made.line)]
    if cause is not None:
        lines += [f"  outside with {cause.node}"] * (record.value != cause.value) + [f"  {x}" for x in _why(cause)]
    if node is None:
        return [*lines, "  computed when the model was compiled, or merged with an equal operation"]
    viewed = "of an input or a constant" if (read := record.viewed) is None else \
        f"of {read.operation.outputs[0].label}" if read.partition is None else \
        f"of the result of the {_in(read)}"
    where = f"in the {_in(node)}" if node.partition is not None else {
        "native": "in no partition: a kernel of its own", "view": f"a view {viewed}: it takes no step",
        "reference": "in no partition: its NumPy reference", "constant": "a constant"}[node.role]
    return [*lines, f"  {where}", *map(_step_text, record.steps), *(f"  {x}" for x in node.note.splitlines())]


def _in(node: GraphNode) -> str:
    """A line such as `matmul partition (dequantize, dequantize, matmul, quantize) : u8[4,16], in integers`."""
    assert node.partition is not None
    return f"{_partition(node).partition(' = ')[2]}, {KINDS[node.partition.kind]}"


def _kinds(partitions: Sequence[GraphNode]) -> list[str]:
    """A line such as `partitions: 53 convolution (53 integer), 1 pool (1 on quantized numbers), 2 eltwise`."""
    if not partitions:
        return []
    total = Counter(n.partition.anchor for n in partitions if n.partition)
    kinds = Counter((n.partition.anchor, n.partition.kind) for n in partitions if n.partition)
    narrow = Counter((n.partition.anchor, n.partition.factors) for n in partitions if n.partition)
    texts = []
    for anchor, count in total.most_common():
        more = [f"{kinds[anchor, kind]} {words}" for kind, words in KINDS.items() if kinds[anchor, kind]]
        more += [f"{narrow[anchor, x]} of them of {x}" for x in ("bf16", "f16") if narrow[anchor, x]]
        texts.append(f"{count} {anchor} ({', '.join(more)})")
    return [f"partitions: {', '.join(texts)}"]


def _outside(node: GraphNode) -> str:
    return "\n    ".join([f"  {node.operation.text}", *node.note.splitlines()])


def _partition(node: GraphNode) -> str:
    """A line such as `%y = matmul partition (dequantize, matmul, relu, quantize) : u8[4,16]`."""
    assert node.partition is not None
    ops = ", ".join(x.op for x in node.partition.body)
    (out,) = node.operation.outputs
    return f"{out.label} = {node.partition.anchor} partition ({ops}) : {out.type}"


def _causes(causes: Sequence[Cause], full: bool) -> list[str]:
    lines = []
    for title, chosen in (("could be in an integer partition, and why it is not:", [c for c in causes
                                                                                 if c.check != BORDER]),
                          ("in floats at the graph's border:", [c for c in causes if c.check == BORDER])):
        if chosen:
            lines.append(title)
            lines += _cut([_entry(group) for group in alike(chosen)], full, "causes")
    return lines


def _entry(group: Sequence[Cause]) -> str:
    """The lines for similar causes: the first cause in full with all its operations, and the names of the others."""
    cause, *others = group
    time = "" if (share := shared(group)) is None else f"{share:.1%} of the time: "
    lines = [f"{time}{cause.node}", *(f"  {x}" for x in _why(cause))]
    if cause.also:
        lines.append(f"  also: {_names(cause.also)}")
    lines += [f"  and {len(others)} more like it: {_names([c.value for c in others])}"] * bool(others)
    return "\n".join(f"  {x}" for x in lines)


def _why(cause: Cause) -> list[str]:
    return [f"why:  {cause.reason}", *[f"edit: {cause.edit}"] * bool(cause.edit)]


def _names(labels: Sequence[str]) -> str:
    return ", ".join([*labels[:ALSO], *([f"{len(labels) - ALSO} more"] if len(labels) > ALSO else [])])


def _patterns(patterns: Sequence[Pattern]) -> list[str]:
    """Lines on the partitions of oneDNN Graph: each with an anchor, and the number of the others."""
    lines = [f"oneDNN Graph would make {counted(len(patterns), 'partition')} (graph.partitions()):"] * bool(patterns)
    anchored = [f"  {p.anchor}: {', '.join(p.values)}" for p in patterns if p.anchor not in UNANCHORED]
    others = len(patterns) - len(anchored)
    return [*lines, *anchored, *[f"  without an anchor: {others}"] * bool(others)]


def _near(misses: Sequence[NearMiss]) -> list[str]:
    """Lines on near misses, the longest matches first. A later pass may have fused these operations after all."""
    seen: dict[str, dict[str, dict[str, None]]] = {}
    for m in sorted(misses, key=lambda m: -m.depth):
        seen.setdefault(m.node, {}).setdefault(m.reason, {})[m.rewrite] = None
    lines = ["near misses:"] if seen else []
    for node, reasons in seen.items():
        lines += [f"  {node}", *(f"    {', '.join(names)}: {reason}" for reason, names in reasons.items())]
    return lines


def _steps(report: Report, full: bool) -> list[str]:
    if not report.planned:
        return ["the plan is made at the first call, when all shapes are known"]
    measured = any(s.evidence is not None for s in report.steps)
    lines = [f"plan: {counted(len(report.steps), 'step')}" + "; native steps measured one by one, with warm caches"
             * measured]
    return lines + _cut([*map(_step_text, report.steps)], full or measured, "steps")


def _step_text(step: StepRecord) -> str:
    found = [] if step.evidence is None else evidence_lines(step.evidence)
    return "\n".join([f"  {_step(step)}", *(f"       {x}" for x in found)])


def _step(step: StepRecord) -> str:
    if step.runs != "native":
        return f"{step.number}: {'NumPy reference of ' * (step.runs == 'reference')}{step.kernel}"
    assert step.blocks is not None
    return f"{step.number}: {step.kernel}  ({counted(step.blocks, 'block')}, " \
           f"{'parallel' if step.parallel else 'serial'})"


def _cut(entries: list[str], full: bool, what: str) -> list[str]:
    if full or len(entries) <= SHOWN or sum(x.count("\n") + 1 for x in entries) <= LONG:
        return entries
    return [*entries[:SHOWN], f"  ... {len(entries) - SHOWN} more {what}: explain(full=True)"]


def _stages(report: Report, full: bool) -> list[str]:
    """The text for a graph that runs in stages: its stages, and between them the operations that run as references."""
    lines = ["shapes depend on data, or bodies run: the graph runs in stages"]
    for name, part in report.parts.items():
        if name == "cut":
            lines.append("these run as NumPy references, except for bodies; later shapes depend on them:")
            lines += map(_outside, (n for n in part.nodes if n.role != "constant"))
            for body, inner in part.parts.items():
                lines += [f"{body}:", _text(inner, full)]
        else:
            lines.append(_text(part, full))
    return lines


WIDEST = 120
"""The most columns of a line. Only a name with more columns is split."""

PAGE = 100
"""The columns of texts in pages."""

START = re.compile(r" *(?:(?:why|edit|also): +)?")
"""Matches the indent of a line and its title, if any. Continuation lines are aligned with the text after the title."""

WORD = re.compile(r'(?:"(?:[^"\\]|\\.)*"|\S)+(?: : \S+)?')
"""A word and the type after it, if any. A quoted name counts as a part of one word."""


def columns() -> int:
    """The width of the terminal: `COLUMNS`, else the terminal's own, else 80; at most WIDEST."""
    return min(shutil.get_terminal_size((80, 24)).columns, WIDEST)


def wrapped(text: str, width: int) -> str:
    """The text with each longer line split between words into lines of at most `width` columns.

    A longer word is split only if it has more than WIDEST columns, so that names can be copied.
    """
    return "\n".join(part for line in text.split("\n") for part in _split(line, width))


def _split(line: str, width: int) -> list[str]:
    if len(line) <= width:
        return [line]
    start = START.match(line)
    assert start is not None
    first, rest = start[0], line[start.end():]
    indent = " " * (len(first) + 4 * (not first.strip()))
    parts, room = [first], WIDEST - len(indent)
    for word in WORD.findall(rest):
        for piece in (word[k:k + room] for k in range(0, len(word), room)):
            joined = parts[-1] + " " * (parts[-1] not in (first, indent)) + piece
            if len(joined) <= width or parts[-1] in (first, indent) and len(joined) <= WIDEST:
                parts[-1] = joined
            else:
                parts.append(indent + piece)
    return parts

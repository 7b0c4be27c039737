"""Make the texts about the boxes of a report page (page.py), as records.

The page shows the record of the box under the pointer or, at the side, of a chosen box. A record has a title `t` and
rows `r`. A row has a label, a text and perhaps a CSS class; the first row describes the box. Links `go` lead to other
boxes; each has the name of a set of records, the box's id, and a text. With a profile, `s` is the box's share of the
time.
"""
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from graphq.report.profile import StepTime
from graphq.report.records import KINDS, Cause, GraphNode, Operation, Report, StepRecord

Record: TypeAlias = dict[str, Any]

CLASSES: Mapping[str, str] = {
    **{kind: f"partition {text}" for kind, text in KINDS.items()},
    "native": "kernel of its own", "reorder": "layout reorder", "reference": "NumPy reference",
    "plain": "no step of its own", "io": "input, output"}
"""The CSS classes of boxes, with their names in the legend."""


def css_class(node: GraphNode) -> str:
    """The CSS class of a node after the passes."""
    if node.partition is not None:
        return node.partition.kind
    if node.role == "native" and node.operation.op == "static_transpose":
        return "reorder"
    return node.role if node.role in CLASSES else "plain"


def compiled_records(report: Report, times: Mapping[int, StepTime], after: str, before: str,
                     places: Mapping[str, str]) -> dict[str, Record]:
    """The records of the boxes of the graph after the passes, by box ids.

    `times` has the time of each step by the step's number. `places` maps a value's label to the id of its box in the
    graph as written. `after` and `before` name the sets of records of both graphs, for links.
    """
    total = sum(t.seconds for t in times.values())
    types = _types(report, [n.operation for n in report.nodes])
    causes: dict[int, list[Cause]] = {}
    for cause in report.causes:
        if cause.id is not None:
            causes.setdefault(cause.id, []).append(cause)
    records: dict[str, Record] = {}
    for node in report.nodes:
        if node.role == "constant":
            continue  # constants have no box
        own, spent = [report.steps[k] for k in node.steps], [times[k] for k in node.steps if k in times]
        rows = [*_operands(node.operation, types), *_partition(node), *_steps(own), *_time(spent, total),
                *_why(causes.get(node.id, ()))]
        if node.macs:
            rows.append(["MACs", f"{node.macs:,}"])
        if node.note:
            rows.append(["note", node.note, "why"])
        label = node.operation.outputs[0].label if node.operation.outputs else ""
        records[f"n{node.id}"] = _record(_title(node), node.operation, rows,
                                         [[before, places[label], "as written"]] if label in places else [])
        if spent and total:
            records[f"n{node.id}"]["s"] = round(sum(t.seconds for t in spent) / total, 5)
        for k, inner in enumerate(node.partition.body if node.partition else ()):
            records[f"n{node.id}n{k}"] = _record(inner.title, inner, [*_operands(inner, {}), *_attributes(inner)],
                                                 [[after, f"n{node.id}", f"in the {_title(node)}"]])
    return records | _ends(report)


def source_records(report: Report, after: str) -> tuple[dict[str, Record], dict[str, str], dict[str, str]]:
    """The records of the graph as written, the CSS classes of its boxes, and the ids of boxes by labels of values."""
    records: dict[str, Record] = {}
    kinds: dict[str, str] = {}
    places: dict[str, str] = {}
    types = _types(report, report.source)
    why = {c.value: c for c in report.causes} | {v: c for c in report.causes for v in c.also}
    for k, operation in enumerate(report.source):
        if operation.op == "constant":
            continue
        id, labels = f"n{k}", [v.label for v in operation.outputs]
        places |= dict.fromkeys(labels, id)
        number = next((report.became[x] for x in labels if report.became.get(x) is not None), None)
        rows = [*_operands(operation, types), *_attributes(operation)]
        rows += _why([why[x] for x in labels[:1] if x in why])
        go: list[list[str]] = []
        if number is None:
            rows.append(["became", "nothing that runs: computed when compiled, or merged with an equal operation"])
        else:
            kinds[id] = css_class(report.nodes[number])
            go = [[after, f"n{number}", f"became part of the {_title(report.nodes[number])}"]]
        records[id] = _record(operation.title, operation, rows, go)
    return records | _ends(report), kinds, places


def _types(report: Report, operations: Iterable[Operation]) -> dict[str, str]:
    results = (v for o in operations for v in o.outputs)
    return {v.label: v.type for v in (*report.inputs, *results)}


def _record(title: str, operation: Operation, rows: Sequence[Sequence[str]], go: Sequence[Sequence[str]]) -> Record:
    made = ["result" if len(operation.outputs) == 1 else "results",
            "\n".join(f"{v.label} : {v.type}" for v in operation.outputs)]
    return {"t": title, "r": [made, *rows], **({"go": go} if go else {})}


def _title(node: GraphNode) -> str:
    return f"{node.partition.anchor} partition" if node.partition else node.operation.title


def _operands(operation: Operation, types: Mapping[str, str]) -> list[list[str]]:
    given = [f"{x} : {types[x]}" if x in types else str(x) for x in operation.inputs if x is not None]
    return [["operands", "\n".join(given)]] if given else []


def _attributes(operation: Operation) -> list[list[str]]:
    given = [f"{name} = {value}" for name, value in operation.attributes.items()]
    return [["attributes", "\n".join(given)]] if given else []


def _partition(node: GraphNode) -> list[list[str]]:
    if node.partition is None:
        return [*_attributes(node.operation), ["runs as", CLASSES[css_class(node)]]]
    rows = [["runs as", CLASSES[node.partition.kind]], ["operations", ", ".join(x.op for x in node.partition.body)]]
    return rows + [["ties", "\n".join(node.partition.ties)]] * bool(node.partition.ties)


def _steps(steps: Sequence[StepRecord]) -> list[list[str]]:
    shown = []
    for s in steps:
        blocks = "" if s.blocks is None else f", {s.blocks} blocks{'' if s.parallel else ' in one thread'}"
        shown.append(f"{s.number}: {s.kernel}{blocks}")
    return [["kernels" if len(shown) > 1 else "kernel", "\n".join(shown)]] if shown else []


def _time(times: Sequence[StepTime], total: float) -> list[list[str]]:
    if not times:
        return []
    seconds, macs = sum(t.seconds for t in times), sum(t.macs for t in times)
    rate = f", {2e-9 * macs / seconds:.4g} GOPS" if macs and seconds else ""
    return [["time", f"{1e3 * seconds:.4g} ms, {seconds / total if total else 0:.1%}{rate}"]]


def _why(causes: Sequence[Cause]) -> list[list[str]]:
    rows = []
    for c in causes:
        rows.append(["why", c.reason, "why"])
        rows += [["edit", c.edit, "edit"]] if c.edit else []
    return rows


def _ends(report: Report) -> dict[str, Record]:
    inputs = {f"i{k}": {"t": "input", "r": [["value", f"{v.label} : {v.type}"]]} for k, v in enumerate(report.inputs)}
    return inputs | {f"o{k}": {"t": "output", "r": [["name", name], ["value", label]]}
                     for k, (name, label) in enumerate(report.outputs.items())}

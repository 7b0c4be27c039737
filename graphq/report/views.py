"""Make the views of a page: drawings, timeline, memory and tables. A page shows one view at a time."""
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from html import escape

from graphq.base.budget import size_text
from graphq.base.progress import progress
from graphq.errors import how_to_install
from graphq.ir.outline import Box, outline
from graphq.plan.plan import Allocation
from graphq.report.charts import memory, steps_table, table, timeline
from graphq.report.details import CLASSES, Record, compiled_records, css_class, source_records
from graphq.report.drawing import available, class_of, described, draw, scale_of
from graphq.report.profile import Profile, StepTime
from graphq.report.records import GraphNode, ModelPart, Report


class Views:
    """The views of a page with their names and HTML, and the records of their boxes in named sets."""

    def __init__(self) -> None:
        self.html: list[str] = []
        self.legends: list[str] = []
        self.names: list[str] = []
        self.records: dict[str, Mapping[str, Record]] = {}

    def add(self, name: str, html: str, records: str = "", kind: str = "text", legend: str = "") -> None:
        """Add a view; `records` names the set of records for its boxes, `legend` is the HTML for its colors."""
        head = f'<section class="view {kind}" id="v{len(self.html)}" data-records="{records}">'
        self.html.append(f"{head}{html}</section>")
        self.legends.append(legend)
        self.names.append(name)

    def add_part(self, part: ModelPart, profile: Profile | None) -> None:
        """Add the drawings of a part, the timeline of its profile, and its memory."""
        report, number = part.report, len(self.records) // 2
        after, before = f"after{number}", f"before{number}"
        times = {t.number: t for t in profile.steps} if profile else {}
        written, kinds, places = source_records(report, after)
        records = compiled_records(report, times, after, before, places)
        self.records |= {after: records, before: written}
        prefix = f"{part.name}: " if part.name else ""
        counts = Counter(css_class(n) for n in report.nodes if n.role != "constant")
        key = legend(CLASSES, counts)
        if available():
            nodes = {f"n{n.id}": n for n in report.nodes}
            pictures = [("Partitions", after, lambda: _partitions(part, nodes, times)),
                        ("Operations", after, lambda: draw(outline(part.graph), described,
                                                           lambda box: _kind(box, nodes)))]
            if (source := part.source) is not None:
                pictures.append(("As written", before, lambda: draw(outline(source), described,
                                                                    lambda box: kinds.get(box.id, class_of(box)))))
            for name, shown, make in progress(pictures, "pictures"):
                self.add(prefix + name, make(), shown, "picture", key)
        else:
            hint = f"<p>Pictures need Graphviz: {escape(how_to_install('report'))}</p>"
            self.add(prefix + "Nodes", hint + _nodes(report), after)
        if profile is not None:
            self.add_times(profile, prefix, report, after, key)
        if (m := part.memory) is not None and m.allocations:
            records |= _allocations(report, m.allocations, after)
            kinds_of = {s.buffer: _box_of(report, s.first)[1] for s in m.allocations}
            text = (f"<p>The arena, by steps of the plan: {size_text(m.arena)} for {len(m.allocations)} buffers, which "
                    f"without sharing would take {size_text(m.unshared)}. Outside the arena: {size_text(m.constants)} "
                    f"of constants and packed weights, {size_text(m.inputs)} of inputs, {size_text(m.outputs)} of "
                    "outputs.</p>")
            drawn = memory(m.allocations, m.arena, len(report.steps), lambda b: (f"s{b}", kinds_of[b]))
            self.add(prefix + "Memory", text + drawn, after, legend=key)

    def add_times(self, profile: Profile, prefix: str = "", report: Report | None = None, records: str = "",
                  key: str = "") -> None:
        """Add the timeline, and a table of the steps, the longest first; steps link to nodes if the report has them."""
        def box(step: int) -> tuple[str, str]:
            return ("", "plain") if report is None else _box_of(report, step)

        shown = f'<div class="wide">{timeline(profile, box)}</div>' if profile.elapsed else ""
        self.add(prefix + "Timeline", shown + steps_table(profile, box), records, legend=key)


def legend(names: Mapping[str, str], counts: Mapping[str, int]) -> str:
    """The HTML that names the CSS classes of boxes and counts their boxes."""
    return "".join(f'<span><i class="{kind}"></i>{text}: {counts[kind]}</span>' for kind, text in names.items()
                   if counts.get(kind))


def _partitions(part: ModelPart, nodes: Mapping[str, GraphNode], times: Mapping[int, StepTime]) -> str:
    """Draw the graph after the passes, with a box for each node; `nodes` maps ids of boxes to nodes."""
    total = sum(t.seconds for t in times.values()) or 1.0

    def lines(box: Box) -> Iterator[str]:
        node = nodes.get(box.id)
        if node is None or node.partition is None:
            yield from described(box)
        else:
            yield node.partition.anchor
            yield from _body(node)
            yield from (v.type for v in node.operation.outputs[:1])
            yield from () if box.node is None else scale_of(box.node)
            yield from (v.label for v in node.operation.outputs[:1])
        spent = sum(times[s].seconds for s in node.steps if s in times) if node else 0.0
        if spent:
            yield f"{1e3 * spent:.3g} ms, {spent / total:.1%}"

    return draw(outline(part.graph, bodies=False), lambda box: tuple(lines(box)), lambda box: _kind(box, nodes))


def _body(node: GraphNode) -> Iterator[str]:
    """Text such as `+ multiply, 2 add`: the operations of a partition except its anchor and quantizations."""
    assert node.partition is not None
    others = Counter(x.op for x in node.partition.body)
    for op in (node.partition.anchor, "quantize", "dequantize"):
        others.pop(op, None)
    if others:
        yield "+ " + ", ".join(f"{n} {op}" if n > 1 else op for op, n in others.items())


def _kind(box: Box, nodes: Mapping[str, GraphNode]) -> str:
    return css_class(nodes[box.id]) if box.id in nodes else class_of(box)


def _box_of(report: Report, step: int) -> tuple[str, str]:
    node = report.steps[step].node if step < len(report.steps) else None
    return ("", "plain") if node is None else (f"n{node}", css_class(report.nodes[node]))


def _nodes(report: Report) -> str:
    rows = ((f"n{n.id}", (str(n.id), css_class(n), ", ".join(n.kernels), n.operation.text))
            for n in report.nodes if n.role != "constant")
    return table(["node", "kind", "kernels", "operation"], rows, 1)


def _allocations(report: Report, allocations: Iterable[Allocation], after: str) -> dict[str, Record]:
    """The records of the arena's buffers: the value in the buffer, or the step that uses it as scratch memory."""
    records: dict[str, Record] = {}
    for at in allocations:
        number = report.steps[at.first].node
        node = None if number is None else report.nodes[number]
        result = node.operation.outputs[0] if node is not None and node.operation.outputs else None
        scratch = at.first == at.last
        whose = "" if result is None else f"{result.label} : {result.type}"
        rows = [["scratch of" if scratch else "holds", whose], ["bytes", f"{at.nbytes:,} at {at.offset:,}"],
                ["steps", f"{at.first} to {at.last}"]]
        go = [[after, f"n{number}", "the node that writes it"]] if node is not None else []
        records[f"s{at.buffer}"] = {"t": f"buffer {at.buffer}", "r": rows, "go": go}
    return records

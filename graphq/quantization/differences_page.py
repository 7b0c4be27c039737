"""The page of `Comparison.report`: how far each tensor of a quantized graph is from f32, as charts and in the graph."""
from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING

from graphq.ir import Graph
from graphq.ir.outline import Box, Outline, outline
from graphq.report.charts import bars, table
from graphq.report.details import Record
from graphq.report.drawing import class_of, draw, shortened
from graphq.report.layout import available
from graphq.report.overview import HELP
from graphq.report.page import document
from graphq.report.views import Views

if TYPE_CHECKING:
    from graphq.quantization.comparison import Comparison, TensorDifference

COSTS = {"most": "costs at least half of what the costliest does", "much": "costs at least a tenth of that",
         "little": "costs less", "plain": "has no cost of its own, or one that may be noise"}
"""The CSS classes of tensors by their costs, with their names in the legend."""


def differences_page(found: Comparison) -> str:
    """The HTML of the page: the tensors in graph order and by their costs and, if Graphviz is installed, the graph."""
    drawn, ids, views = outline(found.graph), _ids(found.graph), Views()
    costs = {t.name: found.known_cost(t) for t in found.tensors}
    highest = max((x for x in costs.values() if x is not None), default=0.0)
    kinds = {ids[name]: _kind(cost, highest) for name, cost in costs.items()}
    boxes: dict[str, list[TensorDifference]] = {}
    for t in found.tensors:
        boxes.setdefault(ids[t.name], []).append(t)
    views.records["tensors"] = _records(drawn, boxes)
    views.add("Graph order", _bars(found, ids, kinds), "tensors")
    views.add("By cost", _table(found.tensors, ids), "tensors")
    if available():
        def lines(box: Box) -> Sequence[str]:
            return *box.lines[:1], *(text for t in boxes.get(box.id, ()) for text in _lines(t))

        views.add("Graph", draw(drawn, lines, lambda box: kinds.get(box.id, class_of(box))), "tensors", "picture")
    counts = [kinds[ids[t.name]] for t in found.tensors]
    keys = "".join(f'<span><i class="{kind}"></i>{text}: {counts.count(kind)}</span>'
                   for kind, text in COSTS.items() if kind in counts)
    return document(f"{found.graph.name}: differences from f32", views,
                    f'{HELP}<p>{escape(found.summary)}</p><div class="key">{keys}</div>')


def differences_html(found: Comparison) -> str:
    """The table of tensors as HTML for notebooks."""
    return (f'<p>{escape(found.summary)}</p><div style="max-height:600px;overflow:auto">'
            f'{_table(found.tensors, {})}</div>')


def _ids(graph: Graph) -> dict[str, str]:
    return {v.name: f"n{k}" for k, node in enumerate(graph.nodes) for v in node.outputs if v.name is not None}


def _kind(cost: float | None, highest: float) -> str:
    if cost is None:
        return "plain"
    return "most" if cost >= 0.5 * highest else "much" if cost >= 0.1 * highest else "little"


def _lines(t: TensorDifference) -> Iterator[str]:
    cells = t.cells()
    yield t.name
    yield f"SQNR {cells['SQNR dB']} dB"
    if t.cost is not None:
        yield f"cost {cells['cost']}"


def _records(drawn: Outline, boxes: Mapping[str, Sequence[TensorDifference]]) -> dict[str, Record]:
    records: dict[str, Record] = {}
    for box in drawn.walk():
        rows = [[name, text] for t in boxes.get(box.id, ()) for name, text in {"tensor": t.name, **t.cells()}.items()
                if text]
        records[box.id] = {"t": box.lines[0], "r": [*rows, *(["type", text] for text in box.lines[1:])]}
    return records


def _bars(found: Comparison, ids: Mapping[str, str], kinds: Mapping[str, str]) -> str:
    ordered = sorted(found.tensors, key=lambda t: int(ids[t.name][1:]))
    columns = {"SQNR dB": [(t.sqnr, t.cells()["SQNR dB"]) for t in ordered],
               "1 - cosine": [(1 - t.cosine, f"{1 - t.cosine:.1e}") for t in ordered],
               "cost": [(found.known_cost(t) or 0.0, t.cells()["cost"]) for t in ordered]}
    scaled = []
    for column in columns.values():
        longest = max((x for x, _ in column if math.isfinite(x)), default=0.0)
        scaled.append([(min(max(x / longest, 0.0), 1.0) if longest > 0 else 0.0, text) for x, text in column])
    names = shortened(t.name for t in ordered)
    rows = ((ids[t.name], kinds[ids[t.name]], names[t.name], cells)
            for t, *cells in zip(ordered, *scaled, strict=True))
    return bars(tuple(columns), rows)


def _table(tensors: Sequence[TensorDifference], ids: Mapping[str, str]) -> str:
    """A table of the tensors in their order; `ids` maps names of tensors to the boxes that their rows link to."""
    head = [*tensors[0].cells(), "tensor"]
    return table(head, ((ids.get(t.name, ""), (*t.cells().values(), f"{t.name} ({t.op})")) for t in tensors),
                 len(head) - 1)

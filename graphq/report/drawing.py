"""Draw outlines (nested boxes and edges between them) as SVG.

Graphviz computes the layout. It gets only the ids and sizes of boxes, and no text of the model.
"""
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib import import_module
from itertools import accumulate
from typing import Any
from unicodedata import east_asian_width

from graphq.errors import GraphqError, how_to_install
from graphq.ir import Node
from graphq.ir.outline import Box, Outline

INCH = 72.0

_HEAD = """digraph {
graph [nodesep=0.18, ranksep=0.3, nslimit=1, nslimit1=1, mclimit=0.2]
node [shape=box, fixedsize=true, label=""]
edge [arrowhead=none]
"""
"""The start of the input to `dot`. Its limits keep the time nearly proportional to the size of the graph."""


@dataclass(frozen=True)
class Rectangle:
    """A rectangle, given by its upper left corner and its size."""

    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True)
class GraphLayout:
    """The size of the drawing, the places of all boxes by their ids, and the points of each edge.

    An edge consists of cubic Bézier curves: its points are the start, then three points for each curve.
    """

    width: float
    height: float
    places: Mapping[str, Rectangle]
    edges: Mapping[tuple[str, str], tuple[tuple[float, float], ...]]


def available() -> bool:
    """Whether pygraphviz is installed, which computes layouts."""
    try:
        import_module("pygraphviz")
    except ImportError:
        return False
    return True


def lay_out(outline: Outline, sizes: Mapping[str, tuple[float, float]]) -> GraphLayout:
    """The layout of an outline with boxes of these sizes.

    For a box that contains other boxes, the size is the size of its title. Raises GraphqError if pygraphviz is not
    installed.
    """
    try:
        from pygraphviz import AGraph
    except ImportError:
        raise GraphqError(f"drawings need Graphviz: {how_to_install('report')}") from None
    lines = [line for box in outline.boxes for line in _dot(box, sizes)]
    lines += [f"{source} -> {target}" for source, target in outline.edges]
    drawn = AGraph(string=_HEAD + "\n".join(lines) + "\n}")
    drawn.layout(prog="dot")
    _, _, width, height = _numbers(drawn.graph_attr["bb"])
    places = {node: _node(node.attr, height) for node in drawn.nodes_iter()}
    places |= {name: _cluster(cluster, height) for name, cluster in _clusters(drawn)}
    edges = {(source, target): tuple(_points(drawn.get_edge(source, target).attr["pos"], height))
             for source, target in outline.edges}
    return GraphLayout(width, height, places, edges)


def _dot(box: Box, sizes: Mapping[str, tuple[float, float]]) -> Iterator[str]:
    width, height = sizes[box.id]
    if not box.inside:
        yield f"{box.id} [width={width / INCH:.3f}, height={height / INCH:.3f}]"
        return
    room = f'<<TABLE BORDER="0" FIXEDSIZE="TRUE" WIDTH="{width:.0f}" HEIGHT="{height:.0f}"><TR><TD></TD></TR></TABLE>>'
    yield f"subgraph cluster_{box.id} {{ graph [margin=8, label={room}]"
    for inner in box.inside:
        yield from _dot(inner, sizes)
    yield "}"


def _numbers(text: str) -> list[float]:
    return [float(x) for x in text.split(",")]


def _node(attributes: Mapping[str, str], height: float) -> Rectangle:
    """The place of a node's box, from the center that Graphviz gives; Graphviz's y axis points up."""
    (x, y), w, h = (_numbers(attributes["pos"]), INCH * float(attributes["width"]), INCH * float(attributes["height"]))
    return Rectangle(x - w / 2, height - y - h / 2, w, h)


def _clusters(graph: Any) -> Iterator[tuple[str, Any]]:
    for inner in graph.subgraphs_iter():
        yield inner.name.removeprefix("cluster_"), inner
        yield from _clusters(inner)


def _cluster(cluster: Any, height: float) -> Rectangle:
    left, low, right, high = _numbers(cluster.graph_attr["bb"])
    return Rectangle(left, height - high, right - left, high - low)


def _points(text: str, height: float) -> Iterator[tuple[float, float]]:
    for point in text.split():
        x, y = _numbers(point.removeprefix("e,"))
        yield x, height - y


WIDTH, HEIGHT = 6.1, 13
"""The width of a character and the height of a line, in pixels, in the page's monospace font of 10 pixels."""

MARGIN = 7
"""Pixels around a picture, and around the text of a box."""

LONGEST = 36
"""The most characters of a line; `shortened` cuts longer texts."""

PIECES = re.compile(r"(?<=[/._:])")
"""Matches the positions where a name may be cut: after separators."""

Lines = Callable[[Box], Sequence[str]]


def draw(outline: Outline, lines: Lines, kind: Callable[[Box], str]) -> str:
    """The drawing of an outline: `lines` gives the text of a box, `kind` the CSS class for its color.

    Boxes have their ids in `data-n`, edges the two ids that they connect in `data-e`. Titles of
    boxes that contain boxes come after all edges, and `picture.css` gives their letters an outline in the page's color,
    so that an edge below a title does not hide it. Raises GraphqError if pygraphviz is not installed.
    """
    boxes = list(outline.walk())
    texts = {box.id: list(lines(box)) for box in boxes}
    short = shortened(x for text in texts.values() for x in text)
    texts = {id: [short[x] for x in text] for id, text in texts.items()}
    sizes = {id: _size(text) for id, text in texts.items()}
    layout = lay_out(outline, sizes)
    shapes: dict[bool, list[str]] = {True: [], False: []}
    titles = []
    for box in boxes:
        place, text = layout.places[box.id], _lines(texts[box.id])
        outer = bool(box.inside)
        rectangle = f'<rect width="{place.width:.0f}" height="{place.height:.0f}"/>'
        shapes[outer].append(_group(box, place, kind(box), rectangle + ("" if outer else text)))
        if outer:
            titles.append(_group(box, place, "title", text))
    width, height = layout.width + 2 * MARGIN, layout.height + 2 * MARGIN
    return (f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
            f'viewBox="{-MARGIN} {-MARGIN} {width:.0f} {height:.0f}" data-w="{width:.0f}" data-h="{height:.0f}">'
            f'{"".join(shapes[True])}<g class="edges">{_edges(layout)}</g>'
            f'{"".join([*shapes[False], *titles])}</svg>')


def described(box: Box) -> tuple[str, ...]:
    """The lines of a box: its operation and type, the scale of a quantization, and the name of its result.

    The label of an unnamed value is shown, except in partitions, whose bodies have labels of their own. A box with
    boxes inside has only a title.
    """
    if box.inside:
        return (box.node.attrs["anchor"],) if box.kind == "partition" and box.node is not None else box.lines[:1]
    if box.node is None:
        return box.lines
    value = box.node.outputs[0] if box.node.outputs else None
    inner = "n" in box.id[1:]
    named = [] if value is None or inner and value.name is None else [value.graph.label(value)]
    return (*box.lines, *scale_of(box.node), *named)


def scale_of(node: Node) -> list[str]:
    """A line such as `scale 0.05, zero point 3` or `64 scales, 0.001 to 0.004` for a quantize or dequantize.

    A partition has the line of the quantize that ends it. Other nodes have none.
    """
    if node.op.name == "partition":
        last = node.attrs["body"].outputs[0].node
        return scale_of(last) if last is not None and last.op.name == "quantize" else []
    if node.op.name not in ("quantize", "dequantize"):
        return []
    scales, zps = node.attrs["scales"], set(node.attrs["zps"] or ())
    least, most = min(scales, default=0.0), max(scales, default=0.0)
    text = f"scale {least:.4g}" if len(scales) == 1 else f"{len(scales)} scales, {least:.2g} to {most:.2g}"
    return [text if zps <= {0} else f"{text}, zero point{f' {zps.pop()}' if len(zps) == 1 else 's'}"]


def class_of(box: Box) -> str:
    """The CSS class of a box that represents no node after the passes."""
    return "io" if box.kind in ("input", "output") else "group" if box.kind == "group" else "plain"


def shortened(texts: Iterable[str]) -> dict[str, str]:
    """Shorten texts to lines of at most LONGEST characters; returns a dict from texts to lines.

    A longer text loses parts at its start and end. Parts that many long texts share are cut first, because a model's
    names differ in the middle. A single part that is too long loses its middle. Characters that cannot be printed
    become U+FFFD.
    """
    lines = {text: "".join(c if c.isprintable() else "\ufffd" for c in " ".join(text.split())) for text in texts}
    pieces = {line: PIECES.split(line) for line in lines.values() if len(line) > LONGEST}
    begins = Counter(x for parts in pieces.values() for x in accumulate(parts))
    ends = Counter(x for parts in pieces.values() for x in accumulate(reversed(parts), lambda end, x: x + end))
    return {text: _cut(line, pieces[line], begins, ends) if line in pieces else line for text, line in lines.items()}


def _cut(line: str, parts: Sequence[str], begins: Counter[str], ends: Counter[str]) -> str:
    """Cut a line as `shortened` says; `begins` and `ends` count the lines that share a start or an end."""
    first, last = 0, len(parts)
    while last - first > 1 and len("".join(parts[first:last])) > LONGEST - 2:
        if begins["".join(parts[:first + 1])] >= ends["".join(parts[last - 1:])]:
            first += 1
        else:
            last -= 1
    text, half = "".join(parts[first:last]), LONGEST // 2
    text = text if len(text) <= LONGEST else f"{text[:half]}…{text[-half + 1:]}"
    return f"{'…' * (first > 0)}{text}{'…' * (last < len(parts))}"


def _size(lines: Sequence[str]) -> tuple[float, float]:
    columns = max((sum(1 + (east_asian_width(c) in "WF") for c in line) for line in lines), default=0)
    return WIDTH * columns + 2 * MARGIN, HEIGHT * len(lines) + MARGIN


def _lines(lines: Sequence[str]) -> str:
    styles = [' class="t"', *[""] * len(lines)]
    return "".join(f'<text x="{MARGIN}" y="{HEIGHT * k + 13}"{style}>{escape(line)}</text>'
                   for k, (line, style) in enumerate(zip(lines, styles, strict=False)))


def _group(box: Box, place: Rectangle, kind: str, inside: str) -> str:
    return f'<g class="b {kind}" data-n="{box.id}" transform="translate({place.x:.0f} {place.y:.0f})">{inside}</g>'


def _edges(layout: GraphLayout) -> str:
    out = []
    for (source, target), points in layout.edges.items():
        begin, *curve = [f"{x:.0f} {y:.0f}" for x, y in points]
        x, y = points[-1]
        out.append(f'<path data-e="{source} {target}" d="M{begin}C{" ".join(curve)}'
                   f'M{x - 3:.0f} {y - 6:.0f}l3 6l3-6"/>')
    return "".join(out)

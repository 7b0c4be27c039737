"""The layout of an outline's boxes and edges, computed by Graphviz's `dot` through the package pygraphviz.

Graphviz gets only the ids and sizes of boxes, and no text of the model.
"""
from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from graphq.errors import GraphqError, how_to_install
from graphq.ir.outline import Box, Outline

INCH = 72.0

_HEAD = """digraph {
graph [nodesep=0.18, ranksep=0.3, nslimit=1, nslimit1=1, mclimit=0.2]
node [shape=box, fixedsize=true, label=""]
edge [arrowhead=none]
"""
"""The start of the input to `dot`; its limits keep the time for large graphs nearly proportional to their size."""


@dataclass(frozen=True)
class Place:
    """A rectangle, given by its upper left corner and its size."""

    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True)
class Layout:
    """The size of the drawing, the places of all boxes by their ids, and the points of each edge.

    An edge's points are those of cubic Bézier curves: the start, and then three points for each curve.
    """

    width: float
    height: float
    places: Mapping[str, Place]
    edges: Mapping[tuple[str, str], tuple[tuple[float, float], ...]]


def available() -> bool:
    """Whether graphs can be laid out, that is, whether pygraphviz is installed."""
    try:
        import pygraphviz  # noqa: F401
    except ImportError:
        return False
    return True


def lay_out(outline: Outline, sizes: Mapping[str, tuple[float, float]]) -> Layout:
    """The layout of an outline whose boxes have these sizes.

    A box that contains others has space for a title of its size. Raises GraphqError if pygraphviz is not installed.
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
    return Layout(width, height, places, edges)


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


def _node(attributes: Mapping[str, str], height: float) -> Place:
    """The place of a node's box; Graphviz's y axis points up, and its positions are the centres of nodes."""
    (x, y), w, h = (_numbers(attributes["pos"]), INCH * float(attributes["width"]), INCH * float(attributes["height"]))
    return Place(x - w / 2, height - y - h / 2, w, h)


def _clusters(graph: Any) -> Iterator[tuple[str, Any]]:
    """The clusters of Graphviz, which are boxes that contain others, at any depth."""
    for inner in graph.subgraphs_iter():
        yield inner.name.removeprefix("cluster_"), inner
        yield from _clusters(inner)


def _cluster(cluster: Any, height: float) -> Place:
    left, low, right, high = _numbers(cluster.graph_attr["bb"])
    return Place(left, height - high, right - left, high - low)


def _points(text: str, height: float) -> Iterator[tuple[float, float]]:
    for point in text.split():
        x, y = _numbers(point.removeprefix("e,"))
        yield x, height - y

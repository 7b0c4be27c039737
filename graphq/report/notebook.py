"""Drawings of graphs for notebooks; text if Graphviz is not installed or the graph is large."""
from __future__ import annotations

import base64
from html import escape

from graphq.ir import Graph
from graphq.ir.outline import Box, Outline, outline
from graphq.report.drawing import class_of, draw
from graphq.report.kinds import kind_of
from graphq.report.layout import available
from graphq.report.page import text_file

MOST = 300
"""The most boxes of a drawing in a notebook; pages of `CompiledGraph.report` are for larger graphs."""


def graph_html(graph: Graph, caption: str, *, bodies: bool = True) -> str:
    """The drawing with a caption, as an image with its own style in which no script runs."""
    made = outline(graph, bodies=bodies)
    if not available() or sum(1 for _ in made.walk()) > MOST:
        return f"<pre>{escape(caption)}\n\n{escape(str(graph))}</pre>"
    data = base64.b64encode(picture(made).encode("utf-8", "replace")).decode()
    return (f'<pre>{escape(caption)}</pre><div style="max-height:600px;overflow:auto">'
            f'<img style="max-width:none" alt="{escape(caption)}" src="data:image/svg+xml;base64,{data}"></div>')


def picture(drawn: Outline) -> str:
    """The drawing as an SVG file, with its style. Raises GraphqError if pygraphviz is not installed."""
    def kind(box: Box) -> str:
        return kind_of(box.node) if box.kind == "partition" and box.node is not None else class_of(box)

    return draw(drawn, lambda box: box.lines, kind).replace(">", f"><style>{text_file('picture.css')}</style>", 1)

"""Pictures of outlines as SVG, laid out when they are made, so that a browser only shows them."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from unicodedata import east_asian_width

from graphq.ir.outline import Box, Outline
from graphq.report.layout import Layout, Place, lay_out

WIDTH, HEIGHT = 6.1, 13
"""The width of a character and the height of a line, in pixels, in the page's monospace font of 10 pixels."""

MARGIN = 7
"""Pixels around a picture, and around the text of a box."""

LONGEST = 36
"""The most characters of a line; longer lines lose their middle."""

Lines = Callable[[Box], Sequence[str]]


def draw(outline: Outline, lines: Lines, kind: Callable[[Box], str]) -> str:
    """The picture: `lines` is what stands in a box, `kind` the CSS class that colours it.

    Boxes have their ids in `data-n`, edges the two ids that they join in `data-e`. Raises GraphqError where pygraphviz
    is not installed.
    """
    boxes = list(outline.walk())
    texts = {box.id: [shortened(x) for x in lines(box)] for box in boxes}
    layout = lay_out(outline, {id: _size(text) for id, text in texts.items()})
    shapes: dict[bool, list[str]] = {True: [], False: []}
    titles = []
    for box in boxes:
        place, text = layout.places[box.id], _lines(texts[box.id])
        outer = bool(box.inside)
        rectangle = f'<rect width="{place.width:.0f}" height="{place.height:.0f}"/>'
        shapes[outer].append(_group(box, place, kind(box), rectangle + ("" if outer else text)))
        titles += [_group(box, place, "title", text)] if outer else []
    width, height = layout.width + 2 * MARGIN, layout.height + 2 * MARGIN
    return (f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
            f'viewBox="{-MARGIN} {-MARGIN} {width:.0f} {height:.0f}" data-w="{width:.0f}" data-h="{height:.0f}">'
            f'{"".join(shapes[True])}<g class="edges">{_edges(layout)}</g>'
            f'{"".join([*shapes[False], *titles])}</svg>')


def class_of(box: Box) -> str:
    """The CSS class of a box for which no node after the passes decides it."""
    return "io" if box.kind in ("input", "output") else "group" if box.kind == "group" else "plain"


def shortened(text: str) -> str:
    """The text, or its begin and its end where it is longer than a line; what cannot be printed is a mark."""
    text = "".join(c if c.isprintable() else "\ufffd" for c in " ".join(text.split()))
    half = LONGEST // 2
    return text if len(text) <= LONGEST else f"{text[:half]}…{text[-half + 1:]}"


def _size(lines: Sequence[str]) -> tuple[float, float]:
    columns = max((sum(1 + (east_asian_width(c) in "WF") for c in line) for line in lines), default=0)
    return WIDTH * columns + 2 * MARGIN, HEIGHT * len(lines) + MARGIN


def _lines(lines: Sequence[str]) -> str:
    """Lines of text, the first of them as a title."""
    styles = [' class="t"', *[""] * len(lines)]
    return "".join(f'<text x="{MARGIN}" y="{HEIGHT * k + 13}"{style}>{escape(line)}</text>'
                   for k, (line, style) in enumerate(zip(lines, styles, strict=False)))


def _group(box: Box, place: Place, kind: str, inside: str) -> str:
    return f'<g class="b {kind}" data-n="{box.id}" transform="translate({place.x:.0f} {place.y:.0f})">{inside}</g>'


def _edges(layout: Layout) -> str:
    out = []
    for (source, target), points in layout.edges.items():
        begin, *curve = [f"{x:.0f} {y:.0f}" for x, y in points]
        x, y = points[-1]
        out.append(f'<path data-e="{source} {target}" d="M{begin}C{" ".join(curve)}'
                   f'M{x - 3:.0f} {y - 6:.0f}l3 6l3-6"/>')
    return "".join(out)

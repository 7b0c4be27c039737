"""Drawings of outlines as SVG; they are laid out in Python, so that a browser only has to show them."""
from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from html import escape
from itertools import accumulate
from unicodedata import east_asian_width

from graphq.ir.outline import Box, Outline
from graphq.report.layout import Layout, Place, lay_out

WIDTH, HEIGHT = 6.1, 13
"""The width of a character and the height of a line, in pixels, in the page's monospace font of 10 pixels."""

MARGIN = 7
"""Pixels around a picture, and around the text of a box."""

LONGEST = 36
"""The most characters of a line; longer texts lose parts that they share with others (see `shortened`)."""

PIECES = re.compile(r"(?<=[/._:])")
"""Matches the places where a name may be cut: after a separator of its parts."""

Lines = Callable[[Box], Sequence[str]]


def draw(outline: Outline, lines: Lines, kind: Callable[[Box], str]) -> str:
    """The drawing of an outline: `lines` gives the text of a box, `kind` the CSS class for its colour.

    Boxes have their ids in `data-n`, edges the two ids that they connect in `data-e`. Raises GraphqError if pygraphviz
    is not installed.
    """
    boxes = list(outline.walk())
    texts = {box.id: list(lines(box)) for box in boxes}
    short = shortened(x for text in texts.values() for x in text)
    texts = {id: [short[x] for x in text] for id, text in texts.items()}
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
    """The CSS class of a box that represents no node after the passes."""
    return "io" if box.kind in ("input", "output") else "group" if box.kind == "group" else "plain"


def shortened(texts: Iterable[str]) -> dict[str, str]:
    """Lines for these texts; characters that cannot be printed become a mark.

    A text that is longer than a line loses parts at its start and its end, first those that most of the long texts
    share, since names of a model differ in their middle. If a single part is too long, it loses its middle.
    """
    lines = {text: "".join(c if c.isprintable() else "\ufffd" for c in " ".join(text.split())) for text in texts}
    pieces = {line: PIECES.split(line) for line in lines.values() if len(line) > LONGEST}
    begins = Counter(x for parts in pieces.values() for x in accumulate(parts))
    ends = Counter(x for parts in pieces.values() for x in accumulate(reversed(parts), lambda end, x: x + end))
    return {text: _cut(line, pieces[line], begins, ends) if line in pieces else line for text, line in lines.items()}


def _cut(line: str, parts: Sequence[str], begins: Counter[str], ends: Counter[str]) -> str:
    """A line as `shortened` makes it; `begins` and `ends` count the lines that share a start or an end."""
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

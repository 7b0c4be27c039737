"""Make HTML and SVG that pages and notebooks share: charts (a run, the arena), tables, and folded parts."""
import base64
from collections.abc import Callable, Iterable, Sequence
from html import escape
from importlib.resources import files

from graphq.base.budget import size_text
from graphq.plan.plan import Allocation
from graphq.report.profile import Profile

LEFT, TRACK = 74, 34
"""The width of the axis labels and the height of a track, in pixels."""

MEMORY_HEIGHT = 460
"""The height of the chart of the arena, in pixels."""

Box = Callable[[int], tuple[str, str]]
"""A function that takes the number of a step or buffer and returns the id of a record and a CSS class."""


def timeline(profile: Profile, box: Box) -> str:
    """The timeline of a run: the pieces that each thread ran, and how busy the thread was."""
    width = min(max(860, 6 * len(profile.steps)), 6000)
    scale, busy = width / (profile.elapsed or 1.0), profile.busy
    tracks = {thread: list(busy).index(name) for thread, name in profile.tracks.items()}
    shapes = []
    for k, (name, part) in enumerate(busy.items()):
        shapes.append(_text(0, TRACK * k + 15, name))
        shapes.append(_text(0, TRACK * k + 27, f"{part:.0%} busy" if part else "idle"))
    for step in profile.steps:
        shapes += [_group(*box(step.number), _rectangle(
            LEFT + scale * p.begin, TRACK * tracks[p.thread] + 4, scale * p.seconds, TRACK - 8)) for p in step.pieces]
    bottom = TRACK * len(busy)
    for k in range(11):
        x = LEFT + width * k / 10
        shapes.append(_line(x, 0, x, bottom + 4) + _text(x - 14, bottom + 16, f"{100 * profile.elapsed * k:.3g} ms"))
    return _chart(LEFT + width + 40, bottom + 24, shapes)


def memory(allocations: Sequence[Allocation], nbytes: int, steps: int, box: Box) -> str:
    """The chart of the arena: the addresses and the lifetime of each buffer."""
    column = min(max(860 / max(steps, 1), 4), 40)
    scale = MEMORY_HEIGHT / max(nbytes, 1)
    shapes = [_line(LEFT, y, LEFT + column * steps, y) + _text(0, y + 4, size_text(nbytes * k // 8))
              for k in range(9) for y in [MEMORY_HEIGHT - MEMORY_HEIGHT * k / 8 + 8]]
    for at in allocations:
        y = MEMORY_HEIGHT + 8 - scale * (at.offset + at.nbytes)
        shapes.append(_group(*box(at.buffer), _rectangle(
            LEFT + column * at.first, y, column * (at.last - at.first + 1), scale * at.nbytes)))
    every = max(1, steps // 20)
    shapes += [_text(LEFT + column * k, MEMORY_HEIGHT + 22, str(k)) for k in range(0, steps, every)]
    return _chart(LEFT + column * steps + 20, MEMORY_HEIGHT + 30, shapes)


def table(head: Sequence[str], rows: Iterable[tuple[str, Sequence[str]]], numbers: int) -> str:
    """An HTML table; the first `numbers` columns are numbers. A row links to the box with its id ("": no link)."""
    def row(tag: str, cells: Sequence[str], box: str = "") -> str:
        marks = [' class="n"' if k < numbers else "" for k in range(len(cells))]
        made = "".join(f"<{tag}{m}>{escape(c)}</{tag}>" for m, c in zip(marks, cells, strict=True))
        return f'<tr{f" data-n={box}" if box else ""}>{made}</tr>'

    return f"<table>{row('th', head)}{''.join(row('td', cells, box) for box, cells in rows)}</table>"


def steps_table(profile: Profile, box: Box) -> str:
    """A table of the steps of a profile, the longest first."""
    total, known = profile.seconds or 1.0, any(t.share is not None for t in profile.steps)
    rows = ((box(t.number)[0], (
        f"{1e3 * t.seconds:.4g}", f"{t.seconds / total:.1%}", f"{t.gops:.4g}" if t.gops else "",
        f"{t.gigabytes:.3g}" if t.gigabytes else "", *(["" if t.share is None else f"{t.share:.0%}"] if known else []),
        str(t.number), t.operation, t.kernel)) for t in sorted(profile.steps, key=lambda t: -t.seconds))
    head = ["median ms", "share", "GOPS", "GB/s", *["of peak"] * known, "step", "operation", "kernel"]
    return table(head, rows, 5 + known)


def _chart(width: float, height: float, shapes: Sequence[str]) -> str:
    return (f'<svg class="chart" xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}">'
            f'{"".join(shapes)}</svg>')


def _group(id: str, kind: str, shapes: str) -> str:
    return f'<g class="b {kind}" data-n="{id}">{shapes}</g>'


def _rectangle(x: float, y: float, width: float, height: float) -> str:
    return f'<rect x="{x:.2f}" y="{y:.2f}" width="{max(width, .6):.2f}" height="{max(height, 1):.2f}"/>'


def _text(x: float, y: float, text: str) -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}">{escape(text)}</text>'


def _line(x: float, y: float, to_x: float, to_y: float) -> str:
    return f'<line x1="{x:.1f}" y1="{y:.1f}" x2="{to_x:.1f}" y2="{to_y:.1f}"/>'


SCROLLED = '<div style="max-height:600px;overflow:auto">'


def text_file(name: str) -> str:
    """The text of a file in this folder."""
    return files("graphq.report").joinpath(name).read_text(encoding="utf-8")


def styled(svg: str) -> str:
    """A drawing with its style, for use outside of a page."""
    return svg.replace(">", f"><style>{text_file('picture.css')}</style>", 1)


def image(svg: str, caption: str) -> str:
    """A drawing with its style as an image, in which no script runs."""
    data = base64.b64encode(styled(svg).encode("utf-8", "replace")).decode()
    return (f'{SCROLLED}<img style="max-width:none" alt="{escape(caption)}" '
            f'src="data:image/svg+xml;base64,{data}"></div>')


def folded(title: str, html: str, *, opened: bool = False) -> str:
    """HTML that a click on its title shows and hides."""
    return f"<details{' open' * opened}><summary>{escape(title)}</summary>{html}</details>"


def listed(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of texts that scrolls if it is long."""
    return scrolled(table(head, (("", row) for row in rows), 0))


def scrolled(html: str) -> str:
    """A table that scrolls if it is long. Its texts start at the left; notebooks align cells at the right."""
    for tag in ("td", "th"):
        html = html.replace(f"<{tag}>", f'<{tag} style="text-align:left">')
    return f"{SCROLLED}{html}</div>"

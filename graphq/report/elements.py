"""Elements of HTML that pages and notebooks share: drawings with their style, folded parts, tables of texts."""
from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files

from graphq.report.charts import table

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

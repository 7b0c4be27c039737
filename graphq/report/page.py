"""Pages: each is one HTML file with all its content. It needs no network, and runs only one script, graphq's own.

Names and texts of a model come into the page in two ways: escaped, as text of the HTML, and in JSON that the script
shows as text. Also, the page's content security policy allows only the script whose hash it states.
"""
from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace
from html import escape
from importlib.resources import files

from graphq.report.explain import as_text
from graphq.report.groups import timed
from graphq.report.overview import overview
from graphq.report.parts import Part
from graphq.report.profile import Profile
from graphq.report.views import Views


def page(title: str, parts: Sequence[Part], profile: Profile | None) -> str:
    """The page of `CompiledGraph.report`, for the parts of a model. It shows times if there is a profile."""
    if profile is not None and len(parts) == 1:
        parts = [replace(parts[0], report=timed(parts[0].report, profile))]
    views = Views()
    for part in parts:
        views.add_part(part, profile if len(parts) == 1 else None)
    if profile is not None and len(parts) > 1:
        views.add_times(profile)
    text = "\n\n".join((f"{part.name}: " if part.name else "") + as_text(part.report, full=True) for part in parts)
    views.add("Text", f"<pre>{escape(text)}</pre>")
    return document(title, views, overview(parts, profile))


def document(title: str, views: Views, aside: str) -> str:
    """The HTML of views; `aside` is shown at the side while no box is chosen."""
    script = text_file("page.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    tabs = "".join(f'<button data-view="v{k}">{escape(name)}</button>' for k, name in enumerate(views.names))
    return f"""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{policy}">
<title>{escape(title)}</title><style>{text_file("picture.css")}{text_file("page.css")}</style></head><body>
<header><h1 title="{escape(title)}">{escape(title)}</h1><nav>{tabs}</nav>
<span><input type="search" id="search" placeholder="find a name or an operation"> <span id="found"></span></span>
<button id="heat" hidden>colour by time</button>
<span><button id="out">−</button> <button id="in">+</button> <button id="fit">fit</button></span></header>
<main>{"".join(views.html)}</main><aside>{aside}</aside><div id="tip" hidden></div>
<script type="application/json" id="data">{_json(views.records)}</script><script>{script}</script></body></html>
"""


def text_file(name: str) -> str:
    """The text of a file in this folder."""
    return files("graphq.report").joinpath(name).read_text(encoding="utf-8")


def _json(data: object) -> str:
    """JSON in which `<` is escaped, so that it cannot end the script element around it."""
    return json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")

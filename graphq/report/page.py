"""Make HTML pages of reports, each in one file, and drawings for notebooks.

Names and texts of a model enter the page in two ways: escaped, as text of the HTML, or in JSON that the script shows as
text. The page's content security policy allows only this script, by its hash.
"""
import base64
import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from html import escape

from graphq.base.budget import size_text
from graphq.ir import Graph, counted
from graphq.ir.outline import Box, Outline, outline
from graphq.report.charts import SCROLLED, folded, image, styled, table, text_file
from graphq.report.coverage import Coverage, kind_of, millions, percent
from graphq.report.drawing import available, class_of, described, draw
from graphq.report.explain import PAGE, alike, as_text, shared, timed
from graphq.report.profile import Profile
from graphq.report.records import ModelPart, Report
from graphq.report.views import Views

SHOWN = 60
"""The most causes listed for a part; similar causes count once. `explain(full=True)` lists all."""

HELP = """<p class="note mouse">Hover over a box for its details; click to keep them here. Drag to move,
Ctrl and the wheel to zoom, / to search, Enter for the next match, Esc to come back.</p>
<p class="note touch">Tap a box for its details, which are then here.</p>"""


def overview(parts: Sequence[ModelPart], profile: Profile | None) -> str:
    """The HTML of the overview, one part of the model after another."""
    time = ""
    if profile is not None:
        shown = f"; the timeline shows one run, of {1e3 * profile.elapsed:.4g} ms from its first step to its last"
        total = profile.seconds or 1.0
        kernels = table(["", "share", "kernel"], (("", (f"{1e3 * t:.3g} ms", f"{t / total:.1%}", name)) for name, t in
                                                  list(profile.by_kernel().items())[:8]), 2)
        time = f"<h2>Time</h2><p>{1e3 * profile.seconds:.4g} ms in {counted(len(profile.steps), 'step')}, by their " \
            f"medians over all runs{shown * bool(profile.elapsed)}</p>{kernels}"
    return HELP + time + "".join(x for number, part in enumerate(parts) for x in _part(part, number))


def _part(part: ModelPart, number: int) -> Iterator[str]:
    report = part.report
    if part.name:
        yield f"<h2>{escape(part.name)}</h2>"
    if report.level:
        yield f'<p class="note">ISA level {report.level}, {counted(report.threads, "thread")}</p>'
    if report.sizes:
        yield f"<p>open sizes: {escape(', '.join(f'{name} = {n}' for name, n in report.sizes.items()))}</p>"
    if report.coverage is not None:
        yield from _coverage(report.coverage)
    if part.memory is not None:
        m = part.memory
        yield (f"<h2>Memory</h2><p>arena {size_text(m.arena)} (without sharing {size_text(m.unshared)}), "
               f"constants {size_text(m.constants)}</p>")
    if report.causes:
        groups = alike(report.causes)
        yield f"<h2>Outside of integer partitions: {counted(len(groups), 'cause')}</h2><dl>"
        for group in groups[:SHOWN]:
            cause, share = group[0], shared(group)
            where = escape(cause.value)
            if cause.id is not None:
                where = f'<a class="go" data-records="after{number}" data-to="n{cause.id}">{where}</a>'
            more = f" and {len(group) - 1} more like it" if len(group) > 1 else ""
            time = "" if share is None else f", {share:.1%} of the time"
            yield f"<dt>{escape(cause.op)} {where}{more}{time}</dt><dd>{escape(cause.reason)}"
            yield f'<p class="edit">{escape(cause.edit)}</p></dd>' if cause.edit else "</dd>"
        yield "</dl>"
        if len(groups) > SHOWN:
            yield f"<p>and {len(groups) - SHOWN} more: see the text</p>"


def _coverage(c: Coverage) -> Iterator[str]:
    if not c.total:
        return
    yield (f"<h2>Multiply-accumulates in integers</h2><p>{percent(c.integer, c.total)} of {millions(c.total)}</p>"
           "<table>")
    for op, n in c.total_by_op.items():
        done = c.integer_by_op.get(op, 0)
        yield (f'<tr><td>{escape(op)}</td><td class="n">{millions(n)}</td><td class="n">{percent(done, n)}</td>'
               f'<td><span class="bar" style="width:{90 * done / n if n else 0:.0f}px"></span></td></tr>')
    yield "</table>"
    if c.uncounted:
        yield f"<p>not counted: {escape(', '.join(c.uncounted))}</p>"


def page(title: str, parts: Sequence[ModelPart], whole: Report, profile: Profile | None) -> str:
    """The page of `CompiledGraph.report` for the parts of a model and the `whole` report; a profile adds times."""
    if profile is not None and len(parts) == 1:
        whole = timed(whole, profile)
        parts = [replace(parts[0], report=whole)]
    views = Views()
    for part in parts:
        views.add_part(part, profile if len(parts) == 1 else None)
    if profile is not None and len(parts) > 1:
        views.add_times(profile)
    views.add("Text", f"<pre>{escape(as_text(whole, full=True, width=PAGE))}</pre>")
    return document(title, views, overview(parts, profile))


def document(title: str, views: Views, aside: str) -> str:
    """The HTML of views; `aside` is shown at the side while no box is chosen."""
    script = text_file("page.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    tabs = "".join(f'<button data-view="v{k}">{escape(name)}</button>' for k, name in enumerate(views.names))
    keys = "".join(f'<div class="key" hidden>{legend}</div>' for legend in views.legends)
    return f"""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<title>{escape(title)}</title><style>{text_file("picture.css")}{text_file("page.css")}</style></head><body>
<header><h1 title="{escape(title)}">{escape(title)}</h1><nav>{tabs}</nav>
<span><input type="search" id="search" placeholder="find a name or an operation"> <span id="found"></span></span>
<button id="heat" hidden>color by time</button>
<span><button id="out">−</button> <button id="in">+</button> <button id="fit">fit</button></span></header>
<main>{"".join(views.html)}</main>
<footer>{keys}<div class="key" id="ramp" hidden>no time <i></i> <span></span></div></footer>
<aside>{aside}</aside><div id="tip" hidden></div>
<script type="application/json" id="data">{_json(views.records)}</script><script>{script}</script></body></html>
"""


def _json(data: object) -> str:
    """JSON with every `<` escaped, so that the text cannot end the script element around it."""
    return json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")


MOST = 300
"""The largest number of boxes drawn in a notebook; pages of `CompiledGraph.report` are for larger graphs."""

LINES, OPENED = 1000, 40
"""The most lines of a graph's text in a notebook, and the most that are shown unfolded if there is no drawing."""


def graph_html(graph: Graph, caption: str, *, bodies: bool = True) -> str:
    """The HTML that notebooks show: counts, the drawing if the graph has at most MOST boxes, and the folded text."""
    made = outline(graph, bodies=bodies)
    drawn = available() and sum(1 for _ in made.walk()) <= MOST
    counts = Counter(n.op.title(n.attrs) if n.op.name != "partition" else f"{n.attrs['anchor']} partition"
                     for n in graph.nodes if n.op.name != "constant")
    lines = str(graph).splitlines()
    text = "\n".join(lines[:LINES] + [f"... {len(lines) - LINES} more lines: print(graph)"] * (len(lines) > LINES))
    about = f"{caption}\n{', '.join(f'{n} {op}' for op, n in counts.most_common())}"
    return "".join([
        f'<pre style="white-space:pre-wrap">{escape(about)}</pre>',
        image(draw_outline(made), caption) if drawn else "",
        folded(f"{counted(len(lines), 'line')} of text", f"{SCROLLED}<pre>{escape(text)}</pre></div>",
               opened=not drawn and len(lines) <= OPENED)])


def picture(drawn: Outline) -> str:
    """The drawing as an SVG file, with its style. Raises GraphqError if pygraphviz is not installed."""
    return styled(draw_outline(drawn))


def draw_outline(drawn: Outline) -> str:
    """The drawing in the colors of the graph after the passes."""
    def kind(box: Box) -> str:
        return kind_of(box.node) if box.kind == "partition" and box.node is not None else class_of(box)

    return draw(drawn, described, kind)

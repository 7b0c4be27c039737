"""The overview of a page, which it shows while no box is chosen: counts, coverage, time, memory, operations outside."""
from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from html import escape

from graphq.base.budget import size_text
from graphq.ir.names import counted
from graphq.report.charts import table
from graphq.report.coverage import millions, percent
from graphq.report.details import CLASSES, css_class
from graphq.report.groups import alike, shared
from graphq.report.parts import Part
from graphq.report.profile import Profile
from graphq.report.records import CoverageRecord

SHOWN = 60
"""The most causes listed for a part; similar ones count as one, and the text of `explain(full=True)` has all."""

HELP = """<p class="note">Hover over a box for what is known of it; click to keep that here. Drag to move,
Ctrl and the wheel to zoom, / to search, Enter for the next match, Esc to come back.</p>"""


def overview(parts: Sequence[Part], profile: Profile | None) -> str:
    """The HTML of the overview; the parts of a model in stages follow one another."""
    time = ""
    if profile is not None:
        shown = f"; the timeline shows one run, of {1e3 * profile.elapsed:.4g} ms from its first step to its last"
        time = f"<h2>Time</h2><p>{1e3 * profile.seconds:.4g} ms in {counted(len(profile.steps), 'step')}, by their " \
            f"medians over all runs{shown * bool(profile.elapsed)}</p>{_kernels(profile)}"
    return HELP + time + "".join(x for number, part in enumerate(parts) for x in _part(part, number))


def _part(part: Part, number: int) -> Iterator[str]:
    report = part.report
    if part.name:
        yield f"<h2>{escape(part.name)}</h2>"
    counts = Counter(css_class(n) for n in report.nodes if n.role != "constant")
    keys = (f'<span><i class="{kind}"></i>{text}: {counts[kind]}</span>'
            for kind, text in CLASSES.items() if counts[kind])
    yield f'<div class="key">{"".join(keys)}</div>'
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


def _coverage(c: CoverageRecord) -> Iterator[str]:
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


def _kernels(profile: Profile) -> str:
    total = profile.seconds or 1.0
    rows = (("", (f"{1e3 * t:.3g} ms", f"{t / total:.1%}", name)) for name, t in list(profile.by_kernel().items())[:8])
    return table(["", "share", "kernel"], rows, 2)

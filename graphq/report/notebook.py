"""Show reports, profiles and partitions in notebooks, as HTML tables without scripts."""
from collections.abc import Callable, Iterator
from html import escape

from graphq.ir import counted
from graphq.report.charts import folded, image, listed, scrolled, steps_table, timeline
from graphq.report.explain import alike, shared
from graphq.report.profile import Profile
from graphq.report.records import KINDS, Report


class ReportText(str):
    """A report as text: a console shows it as `print` does, a notebook shows it as HTML."""

    _html: Callable[[], str]

    @classmethod
    def of(cls, text: str, html: Callable[[], str]) -> "ReportText":
        """The report `text`, and a function that makes its HTML when a notebook asks."""
        made = cls(text)
        made._html = html
        return made

    def __repr__(self) -> str:
        return str(self)

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        return str, (str(self),)

    def _repr_html_(self) -> str:
        return self._html()


def text_html(text: str) -> str:
    """A text with its line breaks."""
    return f'<pre style="white-space:pre-wrap">{escape(text)}</pre>'


def report_html(report: Report, text: str) -> str:
    """The report as tables: causes and edits first, then partitions and the whole text, both folded."""
    return "".join(_parts(report, report.graph)) + folded("the whole text", text_html(text))


def _parts(report: Report, name: str) -> Iterator[str]:
    for inner, part in report.parts.items():
        yield from _parts(part, inner)
    if report.parts:
        return
    partitions = [(n, n.partition) for n in report.nodes if n.partition is not None]
    outside = [n for n in report.nodes if n.role == "reference"]
    facts = [f"{counted(len(partitions), 'partition')} ({sum(p.kind == 'integer' for _, p in partitions)} integer), "
             f"{counted(len(outside), 'operation')} outside"]
    facts += [f"ISA level {report.level}, {counted(report.threads, 'thread')}"] * bool(report.level)
    facts += [str(report.coverage)] if report.coverage and report.coverage.total else []
    yield f"<p><b>{escape(name)}</b>: {escape('; '.join(facts))}</p>"
    if report.causes:
        groups = alike(report.causes)
        yield listed(["could be in an integer partition", "why it is not", "edit"], (
            (f"{group[0].op} {group[0].value}" + f" and {len(group) - 1} more like it" * (len(group) > 1)
             + ("" if (share := shared(group)) is None else f", {share:.1%} of the time"),
             group[0].reason, group[0].edit) for group in groups))
    if outside:
        yield listed(["runs by its NumPy reference", "note"], ((n.operation.text, n.note) for n in outside))
    if partitions:
        yield folded(counted(len(partitions), "partition"), listed(
            ["partition", "runs", "operations", "result", "kernels"],
            ((p.anchor, KINDS[p.kind], ", ".join(x.op for x in p.body),
              ", ".join(f"{v.label} : {v.type}" for v in n.operation.outputs), ", ".join(n.kernels))
             for n, p in partitions)))


def profile_html(profile: Profile) -> str:
    """The times of the steps as a table, and the timeline of a run as a picture."""
    head = f"{counted(len(profile.steps), 'step')}, {1e3 * profile.seconds:.4g} ms"
    shown = f"<p>{head}</p>{scrolled(steps_table(profile, lambda step: ('', 'integer')))}"
    if not profile.elapsed:
        return shown
    chart = timeline(profile, lambda step: ("", "integer"))
    return shown + folded(f"a run of {1e3 * profile.elapsed:.4g} ms on {counted(len(profile.busy), 'thread')}",
                          image(chart, "the pieces of each thread over time"))

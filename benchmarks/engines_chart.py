"""Draw the JSON of engines.py as bars: the speed of each engine on each model, PyTorch (eager) = 1.

    python benchmarks/engines_chart.py FIGURES.json OUT_light.svg OUT_dark.svg

Longer bars are faster. The line below the bars names the machine, the clock and the versions.
"""
from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

EAGER, GRAPHQ = "PyTorch", "graphq"
ENGINES = {EAGER: "PyTorch, eager", "inductor": "PyTorch, inductor", "ONNX Runtime": "ONNX Runtime",
           "OpenVINO": "OpenVINO", GRAPHQ: GRAPHQ}
LIGHT = {"back": "#ffffff", "text": "#1f2328", "quiet": "#57606a", "bars": "#8c959f", "ours": "#0969da"}
DARK = {"back": "#0d1117", "text": "#e6edf3", "quiet": "#9198a1", "bars": "#6e7681", "ours": "#4493f8"}
WIDTH, NAME, LABEL, BAR, GAP, TOP = 800, 130, 130, 15, 14, 40
"""Widths of the picture, of models' and of engines' names; height of a bar, of a gap between models, of the title."""


def speeds(row: dict[str, Any]) -> dict[str, float]:
    """How many times as fast as eager PyTorch each engine is."""
    return {e: row[EAGER]["median_ms"] / row[e]["median_ms"] for e in ENGINES if e in row}


def footer(figures: dict[str, Any], threads: int) -> list[str]:
    """Three lines: what each engine runs, how and where it was measured, and the versions."""
    by: dict[str, list[str]] = {}
    for engine, precision in figures["precision"].items():
        by.setdefault(precision, []).append(engine)
    runs = "; ".join(f"{', '.join(engines)} in {precision}" for precision, engines in by.items())
    versions = ", ".join(f"{e} {v.partition('+')[0]}" for e, v in figures["versions"].items())
    return [runs, f"Medians of {figures['clock']}, in turns, batch 1; {figures['machine']}, "
            f"{threads} thread{'s' * (threads > 1)}", versions]


def draw(figures: dict[str, Any], threads: int, colors: dict[str, str]) -> str:
    """The picture as SVG."""
    rows = [row for row in figures["rows"] if row["threads"] == threads]
    found = [speeds(row) for row in rows]
    unit = (WIDTH - NAME - LABEL - 60) / max(max(s.values()) for s in found)
    out: list[str] = []

    def text(x: float, y: float, words: str, *, color: str = "text", anchor: str = "start", more: str = "") -> None:
        out.append(f'<text x="{x:g}" y="{y:g}" fill="{colors[color]}" text-anchor="{anchor}"{more}>'
                   f'{escape(words)}</text>')

    text(0, 18, "Speed, eager PyTorch = 1 (longer is faster)", more=' font-size="15" font-weight="bold"')
    y = TOP
    for row, values in zip(rows, found, strict=True):
        text(0, y + 12, row["model"], more=' font-weight="bold"')
        for engine, speed in values.items():
            ours = engine == GRAPHQ
            bold = ' font-weight="bold"' if ours else ""
            text(NAME + LABEL - 8, y + 12, ENGINES[engine], color="text" if ours else "quiet", anchor="end", more=bold)
            out.append(f'<rect x="{NAME + LABEL}" y="{y + 1}" width="{speed * unit:.1f}" height="{BAR - 2}" '
                       f'fill="{colors["ours" if ours else "bars"]}"/>')
            text(NAME + LABEL + speed * unit + 6, y + 12, f"{speed:.1f}", color="text" if ours else "quiet", more=bold)
            y += BAR
        y += GAP
    for line in footer(figures, threads):
        y += 16
        text(0, y - 8, line, color="quiet")
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="-12 -6 {WIDTH + 24} {y + 12}" width="{WIDTH + 24}" '
        f'height="{y + 12}" font-family="system-ui, sans-serif" font-size="12" role="img">',
        f'<rect x="-12" y="-6" width="{WIDTH + 24}" height="{y + 12}" fill="{colors["back"]}"/>', *out, "</svg>"])


def main(arguments: Sequence[str]) -> None:
    """Write both pictures, for the smallest thread count of the figures."""
    file, light, dark = map(Path, arguments)
    figures = json.loads(file.read_text(encoding="utf-8"))
    threads = min(row["threads"] for row in figures["rows"])
    for path, colors in ((light, LIGHT), (dark, DARK)):
        path.write_text(draw(figures, threads, colors) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])

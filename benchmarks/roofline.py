"""Draw a roofline: speed over multiply-accumulates per byte, below this machine's measured limits."""
from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from graphq.kernels.matmul import peaks
from graphq.kernels.target import isa
from graphq.kernels.target.mnemonics import decisive

SMALL = 1 << 20
"""A number of bytes that fits into caches."""
MARKERS = "os^DvP*Xph<>"


def draw(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Draw graphq's medians in `rows` below this machine's peaks (for each ISA level) and bandwidth."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    threads = sorted({r["threads"] for r in rows})
    figure, axes = pyplot.subplots(1, len(threads), figsize=(8 * len(threads), 6), squeeze=False, sharey=True)
    for cores, axis in zip(threads, axes[0], strict=True):
        _roof(axis, cores, min(map(_intensity, rows)) / 2, max(map(_intensity, rows)) * 2)
        _points(axis, [r for r in rows if r["threads"] == cores])
        axis.set(xscale="log", yscale="log", xlabel="multiply-accumulates per byte of operands and results")
        axis.grid(alpha=0.3)
    axes[0][0].set_ylabel("TOPS (two operations per multiply-accumulate)")
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def _intensity(row: dict[str, Any]) -> float:
    return float(row["macs"] / row["bytes"])


def _roof(axis: Any, cores: int, low: float, high: float) -> None:
    """Draw the lines of bandwidth (solid: memory, dashed: caches), up to the peak of each level."""
    speeds = {"-": peaks.bandwidth(peaks.LARGE, cores), "--": peaks.bandwidth(SMALL, cores)}
    tops: list[tuple[float, list[str]]] = []  # levels whose peaks are within 5% share a label
    for level, name in [(x, name) for x in isa.available() if (name := decisive(x)) is not None]:
        top = cores * peaks.peak(name, level)
        if not tops or top > 1.05 * tops[-1][0]:
            tops.append((top, []))
        tops[-1][1].append(level.name)
    for top, names in tops:
        axis.annotate(f"{', '.join(names)}: {2e-12 * top:.2f}", (low, 2e-12 * top), va="bottom", fontsize=8)
        for style, speed in speeds.items():
            xs = (low, min(max(top / speed, low), high), high)
            axis.plot(xs, [2e-12 * min(top, speed * x) for x in xs], style, color="0.6")
    memory, caches = (1e-9 * x for x in speeds.values())
    axis.set_title(f"{cores} thread{'s' * (cores > 1)}; copying {memory:.0f} GB/s, in caches {caches:.0f} (dashed)")


def _points(axis: Any, rows: Sequence[dict[str, Any]]) -> None:
    cases, variants = (list(dict.fromkeys(r[key] for r in rows)) for key in ("case", "variant"))
    for r in rows:
        axis.plot(_intensity(r), r["graphq"]["tops"], MARKERS[cases.index(r["case"]) % len(MARKERS)], markersize=8,
                  color=f"C{variants.index(r['variant'])}", alpha=0.7)
    for k, case in enumerate(cases):
        axis.plot([], [], MARKERS[k % len(MARKERS)], color="0.3", label=case)
    for k, variant in enumerate(variants):
        axis.plot([], [], "-", color=f"C{k}", linewidth=3, label=variant)
    axis.legend(loc="lower right", fontsize=8)

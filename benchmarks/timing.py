"""Shared code of the benchmarks: medians and ratios, the table, JSON, and the command line.

All engines run in this process and take turns, so ratios hold even if the machine's speed drifts. A ratio above 1 means
that graphq is faster. Results are compared as well.
"""
from __future__ import annotations

import argparse
import json
import math
import re
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import peers
from peers import Call

from graphq.commands.peers import alternate, difference
from graphq.kernels.target import LevelName

Row = dict[str, Any]

@dataclass(frozen=True)
class Case:
    """A case for one thread count: calls of graphq and of its peers by name; None if a peer has no equivalent.

    `macs` is the number of multiply-accumulates, `nbytes` the bytes of operands and results. A peer's result may differ
    by `tolerance`: in steps for integers, otherwise relative to the largest number.
    """

    ours: Call
    peers: Mapping[str, Call | None]
    macs: int
    nbytes: int
    tolerance: float = 1


Variants = Mapping[str, Callable[[str, int, LevelName | None], Case]]
"""The builders of cases, by variant: functions of (case, threads, ISA level)."""


@contextmanager
def busy(count: int) -> Iterator[None]:
    """Keep `count` cores busy with other processes, as a context manager."""
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


def measure(case: Case, seconds: float) -> Row:
    """The row of a case: medians and minima in ms; for each peer, the ratios and the largest difference."""
    theirs = {name: call for name, call in case.peers.items() if call is not None}
    ours, *others = ({"median_ms": statistics.median(t), "minimum_ms": min(t)}
                     for t in alternate([case.ours, *theirs.values()], seconds))
    row: Row = {"macs": case.macs, "bytes": case.nbytes, "tolerance": case.tolerance,
                "graphq": ours | {"tops": 2e-9 * case.macs / ours["median_ms"]}}
    result = case.ours()
    for (name, call), times in zip(theirs.items(), others, strict=True):
        row[name] = times | {"ratio_of_medians": times["median_ms"] / ours["median_ms"],
                             "ratio_of_minima": times["minimum_ms"] / ours["minimum_ms"],
                             "largest_difference": difference(result, call())}
    return row


def heading(names: Sequence[str]) -> str:
    """The line above a table."""
    return f"{'case':18s} thr | {'graphq ms (min)':>19s}   TOPS" + "".join(
        f" | {name + ' ms (min)':>21s} {'ratio (min)':>13s}  diff" for name in names)


def line(row: Row, names: Sequence[str]) -> str:
    """A line of the table; a dash means that a peer has no equivalent or is not installed."""
    ours = row["graphq"]
    text = f"{row['case']:18s} {row['threads']:3d} | {_pair(ours, '_ms', 4):>19s} {ours['tops']:6.2f}"
    for name in names:
        if name not in row:
            text += f" | {'-':>21s} {'-':>13s} {'-':>5s}"
            continue
        text += f" | {_pair(row[name], '_ms', 4):>21s} {_pair(row[name], '', 2):>13s}"
        text += f" {row[name]['largest_difference']:5.2g}"
    return text


def _pair(numbers: Mapping[str, float], unit: str, digits: int) -> str:
    names = ("ratio_of_medians", "ratio_of_minima") if not unit else (f"median{unit}", f"minimum{unit}")
    median, minimum = (f"{numbers[x]:.{digits}f}" for x in names)
    return f"{median} ({minimum})"


def geometric_mean(values: Sequence[float]) -> float:
    """The n-th root of the product."""
    return math.exp(sum(map(math.log, values)) / len(values))


def means(rows: Sequence[Row], names: Sequence[str]) -> list[str]:
    """Lines with the geometric means of each peer's ratios."""
    out = []
    for name in names:
        found = [r[name] for r in rows if name in r]
        if found:
            medians, minima = (geometric_mean([x[key] for x in found])
                               for key in ("ratio_of_medians", "ratio_of_minima"))
            out.append(f"speedup over {name}, geometric mean: {medians:.2f} of medians, {minima:.2f} of minima")
    return out


class Names(tuple[str, ...]):
    """The set of case names, and of all texts that match `pattern`."""

    pattern = ""

    def __contains__(self, name: object) -> bool:
        return super().__contains__(name) or bool(self.pattern and re.fullmatch(self.pattern, str(name)))


def arguments(text: str | None, cases: Sequence[str], variants: Sequence[str], default: Sequence[str],
              more: Sequence[str] = (), pattern: str = "") -> argparse.Namespace:
    """Parse the command line; cases in `more`, and cases that match `pattern`, run only on request."""
    names = Names((*cases, *more))
    names.pattern = pattern
    made = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--variant", nargs="+", choices=variants, default=list(default), metavar="NAME",
                      help=f"{', '.join(variants)} (default: {', '.join(default)})")
    made.add_argument("--case", nargs="+", choices=names, default=list(cases), metavar="NAME",
                      help=f"{', '.join([*cases, *more])} (default: all{''.join(f' but {x}' for x in more)})")
    made.add_argument("--threads", type=int, nargs="+", default=[1, 2], metavar="N", help="default: 1 2")
    made.add_argument("--isa", metavar="LEVEL", help="an ISA level of graphq (default: the best)")
    made.add_argument("--seconds", type=float, default=1.0, help="seconds for each case and thread count (default 1)")
    made.add_argument("--json", type=Path, metavar="FILE", help="file for all rows")
    made.add_argument("--roofline", type=Path, metavar="FILE.png",
                      help="draw graphq's speed under this machine's peaks and memory bandwidth")
    return made.parse_args()


def run(options: argparse.Namespace, variants: Variants) -> int:
    """Measure, print and write; returns 1 if results differ from a peer's by more than the tolerance."""
    if options.roofline is not None and (reason := peers.missing("matplotlib")):
        print(f"no roofline: {reason}")
        options.roofline = None
    rows: list[Row] = []
    absent: dict[str, str] = {}
    for variant in options.variant:
        for threads in options.threads:
            done: list[Row] = []
            names: list[str] = []
            for name in options.case:
                case = variants[variant](name, threads, options.isa)
                if not names:
                    names = list(case.peers)
                    print(f"{variant}\n{heading(names)}")
                done.append({"variant": variant, "case": name, "threads": threads} | measure(case, options.seconds))
                print(line(done[-1], names), flush=True)
            print(*(f"{threads} thread{'s' * (threads > 1)}: {x}" for x in means(done, names)), "", sep="\n")
            absent |= {x: reason for x in names if (reason := peers.missing(x))}
            rows += done
    for name, reason in absent.items():
        print(f"{name} was not measured: {reason}")
    if options.json is not None:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")
    if options.roofline is not None:
        from roofline import draw

        draw(rows, options.roofline)
    wrong = [f"{r['variant']} {r['case']}: {name} differs by {r[name]['largest_difference']:g}" for r in rows
             for name in peers.NEEDS if name in r and r[name]["largest_difference"] > r["tolerance"]]
    for text in wrong:
        print(text)
    return int(bool(wrong))

"""Draw how_it_works.svg: the folders of the source, and the way of a matmul through them.

The folders are ROOMS of tests/test_rooms.py, the way is the numbered list of how_it_works.md. Run
`python docs/how_it_works.py > docs/how_it_works.svg`.
"""
from __future__ import annotations

import ast
import re
from html import escape
from pathlib import Path

DOCS = Path(__file__).parent
ROW, NAME, STEP, TEXT = 19, 222, 25, 560
"""Height of a row; widths of the names, of a step of the way, and of a folder's purpose."""


def rooms() -> dict[str, str]:
    """The folders from the bottom up, each with what it is for."""
    tree = ast.parse((DOCS.parent / "tests" / "test_rooms.py").read_text(encoding="utf-8"))
    table = next(node.value for node in tree.body if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict)
                 and ast.unparse(node.targets[0]) == "ROOMS")
    return ast.literal_eval(table)


def way() -> list[str]:
    """The functions that the page's numbered list names, in order, below `graphq.`."""
    return re.findall(r"^\d+\. `([\w.]+)`", (DOCS / "how_it_works.md").read_text(encoding="utf-8"), re.MULTILINE)


def room_of(function: str, folders: dict[str, str]) -> str:
    """The folder that a function is in: the longest that its name begins with."""
    return max((r for r in folders if f"graphq.{function}".startswith(r + ".")), key=len)


def draw() -> str:
    """The picture: a row for each folder, those that may import all others on top; a numbered circle for each step."""
    folders = rooms()
    rows = {room: k for k, room in enumerate(reversed(folders))}
    steps = [(NAME + STEP * (k + 1), ROW * rows[room_of(f, folders)] + ROW // 2) for k, f in enumerate(way())]
    text = NAME + STEP * (len(steps) + 1) + 8
    width, height = text + TEXT, ROW * len(rows)
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" '
           'font-size="12">', f'<rect width="{width}" height="{height}" fill="#fff"/>']
    for room, k in rows.items():
        if k % 2:
            out.append(f'<rect y="{k * ROW}" width="{width}" height="{ROW}" fill="#f2f5f8"/>')
        out.append(f'<text x="6" y="{k * ROW + 14}" font-weight="bold">{escape(room.removeprefix("graphq."))}</text>')
        out.append(f'<text x="{text}" y="{k * ROW + 14}" fill="#555">{escape(folders[room])}</text>')
    points = " ".join(f"{x},{y}" for x, y in steps)
    out.append(f'<polyline points="{points}" fill="none" stroke="#2b6cb0" stroke-width="1.5"/>')
    for number, (x, y) in enumerate(steps, 1):
        out.append(f'<circle cx="{x}" cy="{y}" r="9" fill="#2b6cb0"/>'
                   f'<text x="{x}" y="{y + 4}" fill="#fff" text-anchor="middle">{number}</text>')
    return "\n".join([*out, "</svg>"])


if __name__ == "__main__":
    print(draw())

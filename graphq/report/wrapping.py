"""Wrap the lines of reports to the width of the terminal."""
from __future__ import annotations

import re
import shutil

WIDEST = 120
"""The most columns of a line. Only a name with more columns is split."""

PAGE = 100
"""The columns of texts in pages."""

START = re.compile(r" *(?:(?:why|edit|also): +)?")
"""Matches the indent of a line and its title, if any. Continuation lines are aligned with the text after the title."""

WORD = re.compile(r'(?:"(?:[^"\\]|\\.)*"|\S)+(?: : \S+)?')
"""A word and the type after it, if any. A quoted name counts as a part of one word."""


def columns() -> int:
    """The width of the terminal: `COLUMNS`, else the terminal's own, else 80; at most WIDEST."""
    return min(shutil.get_terminal_size((80, 24)).columns, WIDEST)


def wrapped(text: str, width: int) -> str:
    """The text with each longer line split between words into lines of at most `width` columns.

    A longer word is split only if it has more than WIDEST columns, so that names can be copied.
    """
    return "\n".join(part for line in text.split("\n") for part in _parts(line, width))


def _parts(line: str, width: int) -> list[str]:
    if len(line) <= width:
        return [line]
    start = START.match(line)
    assert start is not None
    first, rest = start[0], line[start.end():]
    indent = " " * (len(first) + 4 * (not first.strip()))
    parts, room = [first], WIDEST - len(indent)
    for word in WORD.findall(rest):
        for piece in (word[k:k + room] for k in range(0, len(word), room)):
            joined = parts[-1] + " " * (parts[-1] not in (first, indent)) + piece
            if len(joined) <= width or parts[-1] in (first, indent) and len(joined) <= WIDEST:
                parts[-1] = joined
            else:
                parts.append(indent + piece)
    return parts

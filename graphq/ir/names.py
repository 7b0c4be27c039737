"""Names of values: which are allowed and how text quotes them; and phrases that several messages share."""
from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

from graphq.errors import GraphError

_PLAIN = re.compile(r"(?!(?:inf|nan|none|return|graph|as)\b)[A-Za-z_][\w.]*")


def quote(name: str) -> str:
    """`name` as it is when it is a word that means nothing else, otherwise as a JSON string."""
    return name if _PLAIN.fullmatch(name) else json.dumps(name)


def check_name(name: Any, where: str) -> None:
    """Raise GraphError unless `name` is a string with something in it."""
    if not isinstance(name, str) or not name:
        raise GraphError(f"{where}: a name must be a non-empty string, got {name!r}")


def listing(items: Iterable[object], word: str = "or") -> str:
    """`a, b or c`."""
    *most, last = map(str, items)
    return f"{', '.join(most)} {word} {last}" if most else last


def suggestion(name: str, known: Iterable[str], *, cutoff: float = 0.6) -> str:
    """`; did you mean a, b?` for a name that there is not, or nothing where none is near."""
    import difflib

    near = difflib.get_close_matches(name[:60], list(known), 3, cutoff)
    return f"; did you mean {', '.join(dict.fromkeys(near))}?" if near else ""


def choice(name: str, known: Iterable[str]) -> str:
    """The near names; where none is near, the first of those that there are."""
    names = list(dict.fromkeys(known))
    more = f" and {len(names) - 8} more" if len(names) > 8 else ""
    return suggestion(name, names) or f"; there are {', '.join(names[:8])}{more}"


def counted(n: int, what: str) -> str:
    """`1 block`, `2 blocks`"""
    return f"{n} {what}" if n == 1 else f"{n} {what}s"

"""Names of values: which are allowed, and how text quotes them. Also phrases that several messages share."""
from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

from graphq.errors import GraphError

_PLAIN = re.compile(r"(?!(?:inf|nan|none|return|graph|as)\b)[A-Za-z_][\w.]*")


def quote(name: str) -> str:
    """`name` itself if it is a plain word without another meaning, otherwise as a JSON string."""
    return name if _PLAIN.fullmatch(name) else json.dumps(name)


def check_name(name: Any, where: str) -> None:
    """Raise GraphError unless `name` is a string that is not empty."""
    if not isinstance(name, str) or not name:
        raise GraphError(f"{where}: a name must be a non-empty string, got {name!r}")


def listing(items: Iterable[object], word: str = "or") -> str:
    """The items as a phrase: `a, b or c`."""
    *most, last = map(str, items)
    return f"{', '.join(most)} {word} {last}" if most else last


def suggestion(name: str, known: Iterable[str], *, cutoff: float = 0.6) -> str:
    """The text `; did you mean a, b?` for an unknown name; empty if no known name is near."""
    import difflib

    near = difflib.get_close_matches(name[:60], list(known), 3, cutoff)
    return f"; did you mean {', '.join(dict.fromkeys(near))}?" if near else ""


def choice(name: str, known: Iterable[str]) -> str:
    """A phrase for errors: the known names near to `name` or, if there are none, the first known names."""
    names = list(dict.fromkeys(known))
    more = f" and {len(names) - 8} more" if len(names) > 8 else ""
    return suggestion(name, names) or f"; there are {', '.join(names[:8])}{more}"


def counted(n: int, what: str) -> str:
    """The number and the noun, in its plural where needed: `1 block`, `2 blocks`."""
    return f"{n} {what}" if n == 1 else f"{n} {what}s"

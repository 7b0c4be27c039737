"""Names as the text form writes them."""
from __future__ import annotations

import json
import re

_PLAIN = re.compile(r"(?!(?:inf|nan|none|return|graph|as)\b)[A-Za-z_][\w.]*")


def quote(name: str) -> str:
    """`name` as it is when it is a word that means nothing else, otherwise as a JSON string."""
    return name if _PLAIN.fullmatch(name) else json.dumps(name)

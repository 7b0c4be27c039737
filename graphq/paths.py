"""Checks of the file paths that users give."""
from __future__ import annotations

from pathlib import Path
from typing import Any

from graphq.errors import GraphError


def path_of(path: Any) -> Path:
    """The path as a Path; raises GraphError for what is none, such as the number of an open file."""
    try:
        return Path(path)
    except TypeError:
        raise GraphError(f"a path must be a str or a path object, got {path!r:.80}") from None

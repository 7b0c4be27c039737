"""Paths of files that are read and written."""
from __future__ import annotations

import os
import reprlib
from typing import Any

from graphq.errors import GraphError


def path_text(path: Any) -> str:
    """The path as a string; raises GraphError for what is none, such as the number of an open file."""
    text = os.fspath(path) if isinstance(path, os.PathLike) else path
    if not isinstance(text, str):
        raise GraphError(f"a path must be a str or a path object, got {reprlib.repr(path)}")
    return text

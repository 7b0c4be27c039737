"""File paths that users give, and Python objects in files and modules."""
from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from typing import Any

from graphq.errors import GraphError


def path_of(path: Any) -> Path:
    """The path as a Path; raises GraphError for anything else, such as the number of an open file."""
    try:
        return Path(path)
    except TypeError:
        raise GraphError(f"a path must be a str or a path object, got {path!r:.80}") from None


def named_object(text: str) -> Any:
    """The Python object that `FILE.py:NAME` or `module:NAME` names.

    Raises ImportError, AttributeError or OSError if there is none, and any error of the file or the module.
    """
    place, _, name = text.rpartition(":")
    if not place.endswith(".py"):
        return getattr(importlib.import_module(place), name)
    path = Path(place).resolve()
    spec = importlib.util.spec_from_file_location(f"graphq_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # `inspect` finds the module's source through sys.modules
    spec.loader.exec_module(module)
    return getattr(module, name)

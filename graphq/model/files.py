"""Load graphs from files; the suffix of the file's name selects the format."""
import os
from collections.abc import Callable
from pathlib import Path

from graphq.base.paths import path_of, read_file
from graphq.errors import ParseError
from graphq.ir import Graph
from graphq.ir.text import parse
from graphq.ir.verify import verify


def _load_saved(path: Path) -> Graph:
    from graphq.model.saved_models import Saved

    return Saved(path).source


ELSEWHERE = "data in other files"
"""The key in a graph's `meta` that is present if the graph's file refers to data in other files."""

READERS: dict[str, Callable[[Path], Graph]] = {".graphq": _load_saved}
"""Functions that read a graph from a file, by suffix. Packages that graphq.model may not import add readers."""


TEXT_GROWTH = 128
"""The most bytes of memory that parsing takes for one byte of text; a token of one character takes 108."""


def load_graph(path: str | os.PathLike[str]) -> Graph:
    """Load a graph from an ONNX file (.onnx), a oneDNN Graph file (.json), a saved model (.graphq) or text (others).

    Raises GraphqError or OSError.
    """
    file = path_of(path)
    return READERS.get(file.suffix, _load_text)(file)


def _load_text(path: Path) -> Graph:
    data = read_file(path, TEXT_GROWTH)
    try:
        graph = parse(data.decode())
    except UnicodeDecodeError as error:
        raise ParseError(f"{path}: not a graph's text form (it cannot be decoded: {error.reason}); the names of ONNX "
                         "models end in .onnx, those of oneDNN Graph files in .json, those of saved models in .graphq"
                         ) from None
    except ParseError as error:
        raise ParseError(f"{path}: {error}") from None
    verify(graph)
    return graph

"""Load graphs from files; the suffix of the file's name selects the format."""
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from graphq.base.paths import path_of, read_file
from graphq.errors import GraphError, ParseError
from graphq.ir import Graph
from graphq.ir.text import parse
from graphq.ir.verify import verify


def _load_saved(path: Path) -> Graph:
    from graphq.model.saved_models import Saved

    return Saved(path).source


ELSEWHERE = "data in other files"
"""The key in a graph's `meta` that is present if the graph's file refers to data in other files."""

READERS: dict[str, Callable[[Any], Graph]] = {".graphq": _load_saved}
"""Functions that read a graph from a file, by suffix (.pt2: or from a program). Packages above this one add readers."""

TEXT_GROWTH = 128
"""The most bytes of memory that parsing takes for one byte of text; a token of one character takes 108."""


def load_graph(path: str | os.PathLike[str]) -> Graph:
    """Load a graph from a file: ONNX (.onnx), PyTorch (.pt2), oneDNN Graph (.json), saved (.graphq) or text (others).

    Raises GraphqError or OSError.
    """
    file = path_of(path)
    return READERS.get(file.suffix, _load_text)(file)


def graph_of(model: object) -> Graph:
    """The graph of a program of PyTorch in memory. Raises GraphError for other objects; the message says what to do."""
    if is_of_torch(model):
        return READERS[".pt2"](model)
    in_memory = isinstance(model, bytes | bytearray | memoryview) or hasattr(model, "SerializeToString")
    got = type(model).__name__ if in_memory else f"{model!r:.80}"
    hint = "; load_onnx(model) makes a Graph of an ONNX model in memory" if in_memory else ""
    raise GraphError(f"compile takes a Graph or the path of a file with a graph, got {got}{hint}")


def is_of_torch(model: object) -> bool:
    """Whether an object is of a class of PyTorch, found without importing torch."""
    return any(c.__module__.partition(".")[0] == "torch" for c in type(model).__mro__)


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

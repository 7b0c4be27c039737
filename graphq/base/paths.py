"""Open files at paths that users give, read arrays from them, and find Python objects that users name."""
import importlib
import importlib.util
import os
import stat
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.machinery import SourceFileLoader
from io import BufferedReader
from pathlib import Path
from typing import Any

import numpy as np

from graphq.base.budget import expect
from graphq.base.platform import open_at_once
from graphq.errors import GraphError, GraphqError, InputError, ParseError


def path_of(path: Any) -> Path:
    """The path as a Path; raises GraphError for anything else, such as a file descriptor."""
    try:
        return Path(path)
    except TypeError:
        raise GraphError(f"a path must be a str or a path object, got {path!r:.80}") from None


@contextmanager
def regular_file(path: str | os.PathLike[str]) -> Iterator[tuple[BufferedReader, int]]:
    """Open a regular file, and yield the file and its size in bytes.

    The caller must not read more than this size, because a file that grows might never end. Reading a pipe or a device
    could block. Raises ParseError if the path is not a regular file, and OSError if the file cannot be opened.
    """
    try:
        mode = os.stat(path).st_mode
    except ValueError as e:  # the path has a null character
        raise ParseError(f"{os.fspath(path)!r}: {e}") from None
    if not stat.S_ISREG(mode):
        kind = "a directory, " if stat.S_ISDIR(mode) else ""
        raise ParseError(f"{os.fspath(path)}: is {kind}not a regular file")
    with open(path, "rb", opener=open_at_once) as file:
        yield file, os.fstat(file.fileno()).st_size


def read_file(path: str | os.PathLike[str], growth: int) -> bytes:
    """The bytes of a regular file. Raises the errors of `regular_file`.

    Raises CompileError if `growth` bytes of memory for each byte of the file exceed the `budget`.
    """
    with regular_file(path) as (file, nbytes):
        expect(growth * nbytes, f"{os.fspath(path)}, a file of {nbytes} bytes,")
        return file.read(nbytes)


def read_arrays(path: str | os.PathLike[str], where: str | None = None) -> np.ndarray | dict[str, np.ndarray]:
    """The array of an .npy file, or the arrays of an .npz archive by their names.

    Raises InputError for a file that is damaged or has another format, and CompileError for a file that would take too
    much memory. Both messages begin with `where` (default: the path). Also raises the errors of `regular_file`.
    """
    where = os.fspath(path) if where is None else where
    with regular_file(path) as (file, nbytes):
        if nbytes == 0:
            raise InputError(f"{where}: the file is empty")
        expect(nbytes, f"{where}: the file")
        try:
            found = np.load(file, allow_pickle=False)
            if isinstance(found, np.ndarray):
                return found
            with found:
                expect(sum(member.file_size for member in found.zip.infolist()), f"{where}: the archive")
                arrays = {key: found[key] for key in found.files}
            for key, x in arrays.items():
                if not isinstance(x, np.ndarray):  # NumPy returns bytes if the member is not an .npy file
                    raise ValueError(f"{key!r} is no array")
            return arrays
        except GraphqError:
            raise
        except Exception as e:  # NumPy and zipfile raise many kinds of errors for damaged files
            raise InputError(f"{where}: damaged, or no .npy or .npz file: {e}") from None


def numbered_batches(arrays: Mapping[str, np.ndarray]) -> dict[str, dict[str, np.ndarray]]:
    """The batches in an archive with keys such as `0/in/NAME`: the arrays by input name, by the text before `/in/`."""
    found: dict[str, dict[str, np.ndarray]] = {}
    for key, x in arrays.items():
        number, _, rest = key.partition("/")
        if rest.startswith("in/"):
            found.setdefault(number, {})[rest.removeprefix("in/")] = x
    return found


SOURCE_GROWTH = 100
"""About how many bytes of memory Python uses to compile one byte of source."""


class _Loader(SourceFileLoader):
    """Load Python source from regular files only: Python's own loader would wait for a pipe."""

    def get_data(self, path: str) -> bytes:
        return read_file(path, SOURCE_GROWTH)


def named_object(text: str) -> Any:
    """The Python object that `FILE.py:NAME` or `module:NAME` names.

    Raises ImportError, AttributeError, ParseError or OSError if it does not exist, and any error that the code of the
    file or module raises.
    """
    place, _, name = text.rpartition(":")
    if not place.endswith(".py"):
        return getattr(importlib.import_module(place), name)
    path = Path(place).absolute()
    name_of_module = f"graphq_{path.stem}"
    spec = importlib.util.spec_from_loader(name_of_module, _Loader(name_of_module, str(path)))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # `inspect` finds the module's source through sys.modules
    spec.loader.exec_module(module)
    return getattr(module, name)

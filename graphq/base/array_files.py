"""Read arrays from NumPy's .npy and .npz files."""
from __future__ import annotations

import os
from collections.abc import Mapping

import numpy as np

from graphq.base.budget import expect
from graphq.base.paths import regular_file
from graphq.errors import GraphqError, InputError


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
                return {key: _member(found[key], key) for key in found.files}
        except GraphqError:
            raise
        except Exception as e:  # NumPy and zipfile raise many kinds of errors for damaged files
            raise InputError(f"{where}: damaged, or no .npy or .npz file: {e}") from None


def _member(x: object, key: str) -> np.ndarray:
    if not isinstance(x, np.ndarray):  # NumPy returns bytes if the member is not an .npy file
        raise ValueError(f"{key!r} is no array")
    return x


def numbered_batches(arrays: Mapping[str, np.ndarray]) -> dict[str, dict[str, np.ndarray]]:
    """The batches in an archive with keys such as `0/in/NAME`: the arrays by input name, by the text before `/in/`."""
    found: dict[str, dict[str, np.ndarray]] = {}
    for key, x in arrays.items():
        number, _, rest = key.partition("/")
        if rest.startswith("in/"):
            found.setdefault(number, {})[rest.removeprefix("in/")] = x
    return found

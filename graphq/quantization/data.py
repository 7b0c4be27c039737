"""Calibration data for the command line: a folder of arrays, an .npz archive, or a Python function."""
from collections.abc import Sequence
from inspect import signature
from pathlib import Path

import numpy as np

from graphq.base.paths import named_object, numbered_batches, read_arrays
from graphq.errors import InputError
from graphq.ir import Graph
from graphq.quantization.calibrate import Batch, LazyBatches, checked_batches


def load_data(text: str, graph: Graph) -> Sequence[Batch]:
    """Load the batches that `text` names; raises InputError, with the accepted forms, for any other text.

    FOLDER holds an archive `*.npz` per batch, with an array for each input. If the model has one input, FOLDER may also
    hold arrays `*.npy`, one per batch. FILE.npy is one batch for such a model. FILE.npz is one batch, with an array for
    each input, or several batches, with keys such as `0/in/x` and `1/in/x`. A function, `FILE.py:NAME` or
    `module:NAME`, is called without arguments and returns dicts or an object with `get_next`. Files are read when their
    batches are used.
    """
    path = Path(text)
    names = [str(v.name) for v in graph.inputs]
    if path.is_dir():
        files = sorted((*path.glob("*.npz"), *path.glob("*.npy")))
        if not files:
            raise InputError(f"{path} holds no .npz or .npy files; write a function FILE.py:NAME to read other files")
        return _files(files, graph)
    if path.suffix == ".npy":
        return _files([path], graph)
    if path.suffix == ".npz":
        return _read(path, names)
    if ":" not in text:
        raise InputError("data must be a folder, an .npz or .npy file, or a function FILE.py:NAME or module:NAME, "
                         f"got {text}")
    try:
        function = named_object(text)
        signature(function).bind()
    except (ImportError, AttributeError, SyntaxError, TypeError, ValueError) as e:
        raise InputError(f"data {text}: {e}; it must be a function without required arguments") from None
    return list(checked_batches(function(), graph))


def _files(paths: Sequence[Path], graph: Graph) -> Sequence[Batch]:
    def read(path: Path) -> Batch:
        found = _read(path, [str(v.name) for v in graph.inputs])
        if len(found) > 1:
            raise InputError(f"{path} holds {len(found)} batches; in a folder each file is one: give only this file")
        try:
            list(checked_batches(found, graph))
        except InputError as e:
            raise InputError(f"{path}: {e}") from None
        return found[0]

    return LazyBatches(paths, read)


def _read(path: Path, names: Sequence[str]) -> list[Batch]:
    found = read_arrays(path)
    if isinstance(found, np.ndarray):
        if len(names) != 1:
            raise InputError(f"{path} is one array, but the model has inputs {', '.join(names)}: use .npz files")
        return [{names[0]: found}]
    if set(names) <= found.keys():
        return [{n: found[n] for n in names}]
    batches: list[Batch] = list(numbered_batches(found).values())
    if not batches:
        raise InputError(f"{path} must hold arrays {', '.join(names)}, or batches of them as 0/in/{names[0]}; "
                         f"it holds {', '.join(list(found)[:6]) or 'none'}")
    return batches

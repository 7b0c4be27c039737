"""Predictor: a model as a function of batches of any size, for engines that score tables, images and texts in bulk."""
from __future__ import annotations

import logging
import os
import uuid
from collections.abc import Mapping
from typing import Any

import numpy as np

from graphq.base.locks import Lock
from graphq.base.paths import path_of
from graphq.compile import compile
from graphq.errors import CompileError, GraphError, InputError
from graphq.ir import Graph, TensorType
from graphq.ir.interpret import check_array, named_outputs
from graphq.kernels.threads.count import resolve_threads
from graphq.model.compiled_graph import CompiledGraph
from graphq.model.loading import load_compiled
from graphq.model.planned import Options

log = logging.getLogger("graphq")

GRAPHS = (".onnx", ".json")
"""Suffixes of files that hold a graph, not a compiled model."""

MOST_MODELS = 8
"""The most models that a process keeps for its predictors; the oldest is dropped first."""

_lock = Lock()
_models: dict[tuple[Any, ...], CompiledGraph] = {}


class Predictor:
    """Score batches of any number of rows: `predictor({"x": array})` gives the outputs in a dict, by name.

    `model` is the path of a file that `CompiledGraph.save` wrote, or a compiled graph. A graph, or the path of a file
    that holds one (.onnx, .json), is compiled here, and compiled again in each process that receives the predictor; a
    message says so.

    Axis 0 of each input and of each output is the axis of the rows; an input that is one number applies to all rows. A
    row's results do not depend on the rows beside it, nor on how rows are cut into batches, on `threads` or on the
    machine, bit for bit:

    - Models whose batch is fixed, often to 1, run on slices of that size. A partial slice repeats its last row.
    - Models whose batch is open run on all rows at once, or on slices of `batch` rows and the rest. `pad_to` fills each
      slice up to a multiple of it in the same way, so that the model meets few sizes.
    - If an operation may mix rows, for example by a scale that it computes from all of them, each row runs by itself.

    `convert`: numbers of other dtypes, such as the f64 and s64 of tables, are converted to the inputs' dtypes.
    Conversion to floats rounds. Conversion to integers refuses numbers that are too large, and fractions.

    `threads`: the most threads to use (default: the process's share of the cores, see `graphq.kernels.threads.count`).

    It is pickled as the path and the settings, and a process that receives it loads the model once, at its first call.
    If it was made from a compiled graph, the graph is pickled. Any number of threads may call at a time.

    Raises CompileError for settings that do not fit the model or outputs without rows, and ParseError as
    `load_compiled` does. Both are raised when the model is first needed, which may be in another process.
    """

    def __init__(self, model: str | os.PathLike[str] | CompiledGraph | Graph, *, threads: int | None = None,
                 batch: int | None = None, pad_to: int | None = None, convert: bool = False) -> None:
        for name, value in (("threads", threads), ("batch", batch), ("pad_to", pad_to)):
            if value is not None and (not isinstance(value, int | np.integer) or isinstance(value, bool)
                                      or not 0 < value < 2**31):
                raise CompileError(f"{name} must be a positive int below 2**31, or None, got {value!r}")
        if not isinstance(convert, bool):
            raise CompileError(f"convert must be True or False, got {convert!r}")
        self.threads, self.batch, self.pad_to, self.convert = threads, batch, pad_to, convert
        self._rows: _Rows | None = None
        self.path: str | None = None
        self._graph: tuple[Graph, Options] | None = None
        self._key: tuple[Any, ...] = (uuid.uuid4().hex, threads)
        if isinstance(model, Graph) or not isinstance(model, CompiledGraph) and path_of(model).suffix in GRAPHS:
            what, model = "a graph" if isinstance(model, Graph) else model, compile(model, threads=threads)
            log.warning("%s is compiled, to %r, and again in each process that scores with it; they load what "
                        "`graphq compile` or `save` makes of it", what, model)
        if isinstance(model, CompiledGraph):
            self._graph = model.source, model.options
            if threads is None or resolve_threads(threads) == model.threads:
                _keep(self._key, model)
        else:
            self.path = os.path.abspath(path_of(model))
        self._prepared()

    def __repr__(self) -> str:
        return (f"<predictor of {self.path or 'a compiled graph'}: threads={self.threads}, batch={self.batch}, "
                f"pad_to={self.pad_to}, convert={self.convert}>")

    @property
    def inputs(self) -> dict[str, TensorType]:
        """The types of the inputs by name, for any number of rows."""
        rows = self._prepared()
        return {name: type if name in rows.shared else _with_rows(type) for name, type in rows.model.inputs.items()}

    @property
    def outputs(self) -> dict[str, TensorType]:
        """The types of the outputs by name, for any number of rows."""
        return {name: _with_rows(type) for name, type in self._prepared().model.outputs.items()}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_rows": None}

    def __call__(self, inputs: Any) -> dict[str, np.ndarray]:
        """Score rows: a dict of arrays by the names of inputs, the array of a model with one input, or a table.

        In a table of pandas, Arrow or Polars, the columns are the inputs of the same names; if there is only one input,
        all columns together are its rows. Raises InputError, naming the input, the rule and the values.
        """
        rows = self._prepared()
        return rows.run(rows.checked(inputs, self.convert))

    def _prepared(self) -> _Rows:
        """The model and how it runs on rows; it is loaded when it is first needed."""
        if self._rows is None:
            self._rows = _Rows(self._model(), self.batch, self.pad_to)
        return self._rows

    def _model(self) -> CompiledGraph:
        key = self._key if self._graph else _file_key(str(self.path), self.threads)
        with _lock.hold:
            if key not in _models:
                if self._graph is None:
                    made = load_compiled(str(self.path), threads=self.threads)
                else:
                    graph, options = self._graph
                    made = CompiledGraph(graph, options._replace(threads=resolve_threads(self.threads)))
                _keep(key, made)
            return _models[key]


def _file_key(path: str, threads: int | None) -> tuple[Any, ...]:
    """A key that is different for another file, and for the same path after the file was replaced."""
    try:
        found = os.stat(path)
    except OSError:  # `load_compiled` raises the error for this file
        return (path,)
    return path, threads, found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size


def _keep(key: tuple[Any, ...], model: CompiledGraph) -> None:
    with _lock.hold:
        for oldest in list(_models)[:1 - MOST_MODELS]:
            del _models[oldest]
        _models[key] = model


class _Rows:
    """How a model runs on rows.

    `shared` names the inputs that are one number for all rows, `batched` has the types of the others. `fixed` is the
    number of rows that the model takes (None: any). `most` is the largest number of rows in a run (None: all rows), and
    each run has a multiple of `unit` rows. `mixed` says why the model may mix rows, None if it does not.
    """

    def __init__(self, model: CompiledGraph, batch: int | None, pad_to: int | None) -> None:
        self.model = model
        self.shared = {name for name, type in model.inputs.items() if type.shape == ()}
        self.batched = {name: type for name, type in model.inputs.items() if name not in self.shared}
        firsts = {None if type.shape is None else type.shape[0] for type in self.batched.values()}
        if not self.batched or len(firsts) > 1:
            have = ", ".join(f"{name}: {type}" for name, type in model.inputs.items())
            raise CompileError(f"axis 0 of all inputs must be that of the rows, the model takes {have or 'none'}")
        (self.fixed,) = firsts
        for name, type in model.outputs.items():
            if type.shape is not None and (not type.shape or type.shape[0] not in (None, self.fixed)):
                rows = "any number of" if self.fixed is None else str(self.fixed)
                raise CompileError(f"output '{name}' is {type}, which has no axis 0 for the rows of {rows} inputs")
        if self.fixed is not None and (batch not in (None, self.fixed) or pad_to not in (None, self.fixed)):
            raise CompileError(f"the model takes {self.fixed} rows at a time: batch and pad_to must be that or None, "
                               f"got batch={batch}, pad_to={pad_to}")
        self.mixed = None if self.fixed == 1 else model.rows_mix
        if self.mixed is not None and self.fixed is None:
            if max(batch or 1, pad_to or 1) > 1:
                raise CompileError(f"rows run one by one, with batch=1 and no pad_to, as {self.mixed}")
            batch = 1
        self.most, self.unit = self.fixed or batch, self.fixed or pad_to or 1

    def checked(self, given: Any, convert: bool) -> dict[str, np.ndarray]:
        """The given arrays, converted if `convert`; raises InputError if they do not fit the inputs or each other."""
        names = list(self.model.inputs)
        if not isinstance(given, Mapping):
            columns = _columns(given)
            if len(names) > 1 and not columns:
                raise InputError(f"a predictor of several inputs takes arrays by their names, {{'name': array}}, or a "
                                 f"table, got {given!r:.80}")
            whole = len(names) == 1 and columns != names
            given = {names[0]: given} if whole else {name: given[name] for name in columns}
        if set(given) != set(names):
            raise InputError(f"the model takes inputs {names}, got {list(given)}")
        out = {}
        for name, type in self.model.inputs.items():
            array = _converted(name, type, given[name]) if convert else given[name]
            out[name] = check_array(name, type if name in self.shared else _with_rows(type), array)
            if name in self.batched and not out[name].ndim:
                raise InputError(f"input '{name}' is a single number: axis 0 must be that of the rows")
        counts = {name: len(out[name]) for name in self.batched}
        if len(set(counts.values())) > 1:
            raise InputError(f"inputs must have as many rows each, got {counts}")
        return out

    def run(self, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        count = len(arrays[next(iter(self.batched))])
        if count == 0:
            return self._of_no_rows(arrays)
        if self.mixed is not None and self.fixed is not None and count % self.fixed:
            raise InputError(f"the number of rows must be a multiple of {self.fixed}, which the model takes at a time, "
                             f"as {self.mixed}; got {count}")
        most = self.most or count
        parts = [self._slice({name: x if name in self.shared else x[at:at + most] for name, x in arrays.items()},
                             min(most, count - at)) for at in range(0, count, most)]
        return parts[0] if len(parts) == 1 else {name: np.concatenate([p[name] for p in parts]) for name in parts[0]}

    def _of_no_rows(self, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The outputs for no rows; if types leave other dimensions open, a row of zeros is run to find them."""
        types = {name: _with_rows(type, 0) for name, type in self.model.outputs.items()}
        if all(type.known for type in types.values()):
            return {name: np.empty(type.dims, type.dtype.numpy) for name, type in types.items()}
        row = {name: x if name in self.shared else np.zeros((1, *x.shape[1:]), x.dtype) for name, x in arrays.items()}
        return {name: x[:0] for name, x in self._slice(row, 1).items()}

    def _slice(self, arrays: Mapping[str, np.ndarray], count: int) -> dict[str, np.ndarray]:
        """The outputs of a slice of `count` rows; for the run its last row is repeated up to a multiple of the unit."""
        more = -count % self.unit
        if more:
            arrays = {name: x if name in self.shared else np.concatenate([x, np.repeat(x[-1:], more, axis=0)])
                      for name, x in arrays.items()}
        outputs = named_outputs(self.model.outputs, self.model(arrays))
        for name, x in outputs.items():
            if x.ndim == 0 or len(x) != count + more:
                raise GraphError(f"output '{name}' has shape {list(x.shape)} for {count + more} rows: its axis 0 "
                                 "is not that of the rows")
        return {name: x[:count] for name, x in outputs.items()}


def _columns(table: Any) -> list[str]:
    """The names of a table's columns, for Arrow, pandas and Polars; empty for any other object."""
    return list(getattr(table, "column_names", getattr(table, "columns", ())))


def _converted(name: str, type: TensorType, array: Any) -> Any:
    """The numbers in the input's dtype: rounded for floats; for integers refused unless they stay exact."""
    x = np.asarray(array)
    if x.dtype == type.dtype.numpy or x.dtype.kind not in "biuf":
        return x
    with np.errstate(over="ignore", invalid="ignore"):
        made = x.astype(type.dtype.numpy)
    if not (np.isinf(made) <= np.isinf(x)).all() if type.dtype.kind == "float" else not np.array_equal(made, x):
        raise InputError(f"input '{name}' must be {type}, which cannot hold all of the numbers given, of {x.dtype}")
    return made


def _with_rows(type: TensorType, rows: int | None = None) -> TensorType:
    """The type with this number of rows along axis 0; None stands for any number."""
    return type if type.shape is None else TensorType(type.dtype, (rows, *type.shape[1:]))

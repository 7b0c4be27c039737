"""Predictor: a model as a function of batches of any size, for bulk scoring of tables, images and texts."""
import logging
import os
import uuid
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

from graphq.base.locks import Lock
from graphq.base.paths import path_of
from graphq.base.platform import resolve_threads
from graphq.compile import Ranges, compile
from graphq.errors import CompileError, GraphError, InputError
from graphq.ir import Graph, TensorType, named_outputs
from graphq.ir.interpret import check_array
from graphq.model.compiled_graph import CompiledGraph
from graphq.model.kept import load_compiled
from graphq.model.plans import Options

log = logging.getLogger("graphq")

GRAPHS = (".onnx", ".json")
"""Suffixes of files that contain a graph, not a compiled model."""

MOST_MODELS = 8
"""The most models that a process keeps for its predictors. The oldest model is dropped first."""

_lock = Lock()
models: dict[tuple[Any, ...], CompiledGraph] = {}


class Predictor:
    """Score batches of any number of rows: `predictor({"x": array})` returns a dict of outputs by name.

    `model` is the path of a file that `CompiledGraph.save` wrote, or a compiled graph. A graph, or the path of a file
    with a graph (.onnx, .json), is compiled here, and again in each process that receives the predictor; a log message
    says so.

    Axis 0 of each input and output has the rows. An input that is one number applies to all rows. The bits of a row's
    results do not depend on other rows, `threads` or the machine:

    - A model with a fixed batch, often 1, runs on slices of that size. A partial slice is filled up with copies of its
      last row.
    - A model with an open batch runs on all rows at once or, with `batch`, on slices of at most `batch` rows. With
      `pad_to`, slices are filled up to a multiple of `pad_to` rows, because a model needs time for each new size.
    - If an operation may mix rows, for example by a scale computed from all rows, each row runs by itself.

    `pad`: how to run rows of different lengths. Inputs whose axis 1 is open can then be lists of arrays, one for each
    row. Rows of similar lengths are padded with zeros, to the longest row of their slice ("longest") or to 16, 32, 64,
    128, 192, ... ("buckets": few sizes, so few plans). Outputs are cut to the lengths of their rows; such an output is
    a list of arrays if the lengths differ. Rows are padded only if this cannot change a bit (see
    `CompiledGraph.padding_mixes`), and only if they have no zeros where `padding_zeros` marks the end by zeros. Other
    rows run with rows of the same length.

    `convert`: convert numbers of other dtypes, such as the f64 and s64 of tables, to the inputs' dtypes. Conversion to
    floats rounds. Conversion to integers refuses fractions and numbers that are too large.

    `threads`: the most threads to use (default: the process's share of the cores, see `graphq.base.platform`).

    `ranges`: as in `compile`, for a graph or the path of a file with a graph. Other models have their own ranges.

    A pickled predictor has the path and the settings. A process that receives it loads the model once, at its first
    call. A predictor of a compiled graph is pickled with the graph. Several threads may call a predictor at a time.

    Raises CompileError for settings that do not fit the model, and for outputs without rows. Raises ParseError as
    `load_compiled` does. Both errors are raised when the model is first needed, possibly in another process.
    """

    def __init__(self, model: str | os.PathLike[str] | CompiledGraph | Graph, *, threads: int | None = None,
                 batch: int | None = None, pad_to: int | None = None,
                 pad: Literal["longest", "buckets"] | None = None, convert: bool = False,
                 ranges: Ranges = "tensor") -> None:
        for name, value in (("threads", threads), ("batch", batch), ("pad_to", pad_to)):
            if value is not None and (not isinstance(value, int | np.integer) or isinstance(value, bool)
                                      or not 0 < value < 2**31):
                raise CompileError(f"{name} must be a positive int below 2**31, or None, got {value!r}")
        if not isinstance(convert, bool):
            raise CompileError(f"convert must be True or False, got {convert!r}")
        if pad not in (None, "longest", "buckets"):
            raise CompileError(f"pad must be 'longest', 'buckets' or None, got {pad!r}")
        self.threads, self.batch, self.pad_to, self.pad, self.convert = threads, batch, pad_to, pad, convert
        self._rows: _BatchedModel | None = None
        self.path: str | None = None
        self._graph: tuple[Graph, Options] | None = None
        self._key: tuple[Any, ...] = (uuid.uuid4().hex, threads)
        if isinstance(model, Graph) or not isinstance(model, CompiledGraph) and path_of(model).suffix in GRAPHS:
            what = "a graph" if isinstance(model, Graph) else model
            model = compile(model, threads=threads, ranges=ranges)
            log.warning("%s is compiled, to %r, and again in each process that scores with it; to avoid this, "
                        "pass a file that `graphq compile` or `save` wrote", what, model)
        elif ranges != "tensor":
            raise CompileError(f"ranges={ranges!r}: {model!r} is already compiled; give the option to `compile`")
        if isinstance(model, CompiledGraph):
            self._graph = model.source, model.options
            if threads is None or resolve_threads(threads) == model.threads:
                _keep(self._key, model)
        else:
            self.path = os.path.abspath(path_of(model))
        self._prepared()

    def __repr__(self) -> str:
        return (f"<predictor of {self.path or 'a compiled graph'}: threads={self.threads}, batch={self.batch}, "
                f"pad_to={self.pad_to}, pad={self.pad!r}, convert={self.convert}>")

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

    def __call__(self, inputs: Any) -> dict[str, Any]:
        """Score rows: a dict of arrays by input name, an array for a model with one input, or a table.

        The columns of a table (pandas, Arrow, Polars) are the inputs of the same names. For a model with one input, the
        whole table is the input. With `pad`, a list of arrays may stand for an array. Raises InputError with the input,
        the rule and the values.
        """
        rows = self._prepared()
        return rows.run(rows.checked(inputs, self.convert))

    def _prepared(self) -> "_BatchedModel":
        """The model, and the way it runs on rows. The first call loads the model."""
        if self._rows is None:
            self._rows = _BatchedModel(self._model(), self.batch, self.pad_to, self.pad)
        return self._rows

    def _model(self) -> CompiledGraph:
        key = self._key if self._graph else file_key(str(self.path), self.threads)
        with _lock.hold:
            if key not in models:
                if self._graph is None:
                    made = load_compiled(str(self.path), threads=self.threads)
                else:
                    graph, options = self._graph
                    made = CompiledGraph(graph, options._replace(threads=resolve_threads(self.threads)))
                _keep(key, made)
            return models[key]


def file_key(path: str, threads: int | None) -> tuple[Any, ...]:
    """A key for the model of a file. The key changes when the file is replaced."""
    try:
        found = os.stat(path)
    except OSError:  # `load_compiled` raises the error for this file
        return (path,)
    return path, threads, found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size


def _keep(key: tuple[Any, ...], model: CompiledGraph) -> None:
    with _lock.hold:
        for oldest in list(models)[:1 - MOST_MODELS]:
            del models[oldest]
        models[key] = model


class _BatchedModel:
    """A model that runs on any number of rows.

    `shared` has the names of inputs that are one number for all rows, and `batched` the types of the other inputs.
    `fixed` is the model's number of rows, or None if the model accepts any number. A run has at most `most` rows (None:
    all rows) and a multiple of `unit` rows. `mixed` is the reason why the model may mix rows, or None. `long` has the
    names of the inputs that `pad` pads.
    """

    def __init__(self, model: CompiledGraph, batch: int | None, pad_to: int | None, pad: str | None) -> None:
        self.model = model
        self.shared = {name for name, type in model.inputs.items() if type.shape == ()}
        self.batched = {name: type for name, type in model.inputs.items() if name not in self.shared}
        firsts = {None if type.shape is None else type.shape[0] for type in self.batched.values()}
        if not self.batched or len(firsts) > 1:
            have = ", ".join(f"{name}: {type}" for name, type in model.inputs.items())
            raise CompileError(f"axis 0 of all inputs must be the axis of the rows, the model takes {have or 'none'}")
        (self.fixed,) = firsts
        for name, type in model.outputs.items():
            if type.shape is not None and (not type.shape or type.shape[0] not in (None, self.fixed)):
                rows = "any number of" if self.fixed is None else str(self.fixed)
                raise CompileError(f"output '{name}' is {type}, but its axis 0 must be the rows of {rows} inputs")
        if self.fixed is not None and (batch not in (None, self.fixed) or pad_to not in (None, self.fixed)):
            raise CompileError(f"the model takes {self.fixed} rows at a time: batch and pad_to must be equal or None, "
                               f"got batch={batch}, pad_to={pad_to}")
        self.mixed = None if self.fixed == 1 else model.rows_mix
        if self.mixed is not None and self.fixed is None:
            if max(batch or 1, pad_to or 1) > 1:
                raise CompileError(f"rows run one by one, with batch=1 and no pad_to, because {self.mixed}")
            batch = 1
        self.most, self.unit = self.fixed or batch, self.fixed or pad_to or 1
        self.pad, self.long = pad, [name for name, type in self.batched.items() if pad and type.shape is not None
                                    and len(type.shape) > 1 and type.shape[1] is None]
        if pad and (not self.long or self.mixed is not None and self.fixed is not None):
            raise CompileError(f"pad={pad!r} needs inputs whose axis 1 is open, and axis 0 as well if rows mix, the "
                               f"model is {model!r}")
        if pad and model.padding_mixes is not None:
            log.warning("rows are not padded, only rows of the same length run together: %s", model.padding_mixes)

    def checked(self, given: Any, convert: bool) -> dict[str, np.ndarray]:
        """Check the given arrays, and convert them if `convert`. Raises InputError if they do not fit."""
        names = list(self.model.inputs)
        if not isinstance(given, Mapping):
            columns = list(getattr(given, "column_names", getattr(given, "columns", ())))
            if len(names) > 1 and not columns:
                raise InputError(f"a predictor of several inputs takes arrays by name, {{'name': array}}, or a "
                                 f"table, got {given!r:.80}")
            whole = len(names) == 1 and columns != names
            given = {names[0]: given} if whole else {name: given[name] for name in columns}
        if set(given) != set(names):
            raise InputError(f"the model takes inputs {names}, got {list(given)}")
        out = {}
        for name, type in self.model.inputs.items():
            if name in self.long:
                out[name] = _rows_of(name, type, given[name], convert)
                continue
            array = _converted(name, type, given[name]) if convert else given[name]
            out[name] = check_array(name, type if name in self.shared else _with_rows(type), array)
            if name in self.batched and not out[name].ndim:
                raise InputError(f"input '{name}' is a single number: axis 0 must be the axis of the rows")
        counts = {name: len(out[name]) for name in self.batched}
        if len(set(counts.values())) > 1:
            raise InputError(f"inputs must have the same number of rows, got {counts}")
        for k, rows in enumerate(zip(*(out[name] for name in self.long), strict=True)):
            lengths = dict(zip(self.long, map(len, rows), strict=True))
            if len(set(lengths.values())) > 1:
                raise InputError(f"row {k} must have the same length in all padded inputs, got {lengths}")
        return out

    def run(self, arrays: Mapping[str, Any]) -> dict[str, Any]:
        count = len(arrays[next(iter(self.batched))])
        if count == 0:
            return self._of_no_rows(arrays)
        if self.long:
            return self._run_lengths(arrays, count)
        if self.mixed is not None and self.fixed is not None and count % self.fixed:
            raise InputError(f"the number of rows must be a multiple of {self.fixed}, the model's batch, "
                             f"because {self.mixed}; got {count}")
        most = self.most or count
        parts = [self._slice({name: x if name in self.shared else x[at:at + most] for name, x in arrays.items()},
                             min(most, count - at)) for at in range(0, count, most)]
        return parts[0] if len(parts) == 1 else {name: np.concatenate([p[name] for p in parts]) for name in parts[0]}

    def _run_lengths(self, arrays: Mapping[str, Any], count: int) -> dict[str, Any]:
        """Run rows of any lengths: sort them into slices of similar lengths, pad the slices, and cut the outputs."""
        lengths, axes = [len(row) for row in arrays[self.long[0]]], self.model.plans.padding.axes
        groups: dict[tuple[bool, int], list[int]] = {}
        for k in sorted(range(count), key=lengths.__getitem__):
            groups.setdefault(self._least(arrays, k, lengths[k]), []).append(k)
        out: dict[str, list[Any]] = {name: [None] * count for name in self.model.outputs}
        for (_, least), rows in groups.items():
            most = self.most or len(rows)
            for part in (rows[at:at + most] for at in range(0, len(rows), most)):
                size = max(least, lengths[part[-1]])
                taken = {name: x if name in self.shared else x[part] if name not in self.long else np.stack(
                    [np.pad(x[k], [(0, size - lengths[k]), *[(0, 0)] * (x[k].ndim - 1)]) for k in part])
                    for name, x in arrays.items()}
                for name, y in self._slice(taken, len(part)).items():
                    for k, row in zip(part, y, strict=True):
                        out[name][k] = row[tuple(slice(n - size + lengths[k] if (name, axis) in axes else n)
                                                 for axis, n in enumerate(row.shape, 1))]
        return {name: np.stack(rows) if len({row.shape for row in rows}) == 1 else rows for name, rows in out.items()}

    def _least(self, arrays: Mapping[str, Any], k: int, length: int) -> tuple[bool, int]:
        """Whether row k can be padded (its zeros could look like its end), and the least length at which it runs."""
        marks = [arrays[name][k].reshape(length, -1) for name in self.model.padding_zeros if length]
        if not length or self.model.padding_mixes is not None or not all(x.any(axis=1).all() for x in marks):
            return False, length
        power = max(16, 1 << (length - 1).bit_length())
        return True, 1 if self.pad == "longest" else power if length <= 128 else -(-length // 64) * 64

    def _of_no_rows(self, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The outputs for a batch of no rows. If other dimensions are open, a run on one row of zeros sets them."""
        types = {name: _with_rows(type, 0) for name, type in self.model.outputs.items()}
        if all(type.known for type in types.values()):
            return {name: np.empty(type.dims, type.dtype.numpy) for name, type in types.items()}
        row = {name: x if name in self.shared else np.zeros((1, *x.shape[1:]), x.dtype) for name, x in arrays.items()}
        return {name: x[:0] for name, x in self._slice(row, 1).items()}

    def _slice(self, arrays: Mapping[str, np.ndarray], count: int) -> dict[str, np.ndarray]:
        """Run the model on a slice of `count` rows, with the last row repeated up to a multiple of `unit`."""
        more = -count % self.unit
        if more:
            arrays = {name: x if name in self.shared else np.concatenate([x, np.repeat(x[-1:], more, axis=0)])
                      for name, x in arrays.items()}
        outputs = named_outputs(self.model.outputs, self.model(arrays))
        for name, x in outputs.items():
            if x.ndim == 0 or len(x) != count + more:
                raise GraphError(f"output '{name}' has shape {list(x.shape)} for {count + more} rows: its axis 0 "
                                 "is not the axis of the rows")
        return {name: x[:count] for name, x in outputs.items()}


def _converted(name: str, type: TensorType, array: Any) -> Any:
    """Convert numbers to the input's dtype: to floats by rounding, to integers only exactly."""
    x = np.asarray(array)
    if x.dtype == type.dtype.numpy or x.dtype.kind not in "biuf":
        return x
    with np.errstate(over="ignore", invalid="ignore"):
        made = x.astype(type.dtype.numpy)
    if not (np.isinf(made) <= np.isinf(x)).all() if type.dtype.kind == "float" else not np.array_equal(made, x):
        raise InputError(f"input '{name}' must be {type}, which cannot hold all of the given {x.dtype} numbers")
    return made


def _rows_of(name: str, type: TensorType, given: Any, convert: bool) -> Any:
    """The checked rows of an input that is padded, from an array, a list of arrays, or a column of arrays."""
    rows = given if isinstance(given, list | tuple) else np.atleast_1d(np.asarray(given))
    each = TensorType(type.dtype, (type.shape or ())[1:])
    return [check_array(name, each, _converted(name, each, row) if convert else row, word=f"row {k} of input")
            for k, row in enumerate(rows)] or np.zeros(
                (0, 1, *(d or 1 for d in (type.shape or ())[2:])), type.dtype.numpy)


def _with_rows(type: TensorType, rows: int | None = None) -> TensorType:
    return type if type.shape is None else TensorType(type.dtype, (rows, *type.shape[1:]))

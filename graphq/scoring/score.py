"""Score the rows of a Dask or Ray dataset (`score`). Workers run a `Scorer` on batches of rows."""
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

import numpy as np

from graphq.errors import GraphqError, InputError
from graphq.ir import Graph, TensorType, listing
from graphq.model.compiled_graph import CompiledGraph
from graphq.scoring.predictor import Predictor


@dataclass(frozen=True)
class Scorer:
    """A function of a batch: it takes columns as arrays by name, and returns the kept columns and the model's outputs.

    Axis 0 of each array has the rows. `columns` maps an input to a column, or to a list of columns that are stacked.
    The default is the column with the input's name. `outputs` and `keep` are the outputs and the columns to keep (None:
    all). A pickled scorer usually has only the path of the model; each process loads the model once.
    """

    predictor: Predictor
    columns: Mapping[str, str | Sequence[str]] = field(default_factory=dict)
    outputs: Sequence[str] | None = None
    keep: Sequence[str] | None = None

    def __post_init__(self) -> None:
        """Raise InputError for inputs and outputs that the model does not have, and for inputs without columns."""
        if not isinstance(self.columns, Mapping):
            raise InputError(f"columns takes a mapping of inputs to columns, got {self.columns!r:.80}")
        for what, names, of in (("columns", self.columns, self.predictor.inputs),
                                ("outputs", self.outputs or (), self.predictor.outputs)):
            for name in names:
                if name not in of:
                    raise InputError(f"{what}: the model has {listing(map(repr, of), 'and')}, not {name!r}")
        for name, columns in self.sources.items():
            if not columns:
                raise InputError(f"columns: input '{name}' needs at least one column, got an empty list")

    @property
    def results(self) -> dict[str, TensorType]:
        """The types of the kept outputs by name."""
        types = self.predictor.outputs
        return types if self.outputs is None else {name: types[name] for name in self.outputs}

    @property
    def sources(self) -> dict[str, list[str]]:
        """The names of the columns of each input."""
        chosen = {name: self.columns.get(name, name) for name in self.predictor.inputs}
        return {name: [of] if isinstance(of, str) else list(of) for name, of in chosen.items()}

    def kept(self, names: Sequence[str]) -> list[str]:
        """The columns among `names` to keep.

        Raises InputError for a missing column, and for a kept column with the name of an output.
        """
        have = listing(map(repr, names), "and")
        for column in self.keep or ():
            if column not in names:
                raise InputError(f"keep: there is no column {column!r} among {have}")
        for name, columns in self.sources.items():
            for column in columns:
                if column not in names:
                    raise InputError(f"input '{name}': there is no column {column!r} among {have}; columns={{...}} "
                                     "names the columns of an input")
            type = self.predictor.inputs[name]
            if not isinstance(self.columns.get(name, name), str) and type.shape is not None and len(type.shape) == 2 \
                    and type.shape[1] not in (None, len(columns)):
                raise InputError(f"columns: input '{name}' is {type}, got {len(columns)} columns")
        kept = list(names) if self.keep is None else [name for name in names if name in self.keep]
        for name in self.results:
            if name in kept:
                raise InputError(f"output '{name}' has the name of a column: leave the column out with keep=[...]")
        return kept

    def score(self, batch: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The kept outputs for the columns of a batch."""
        inputs = {name: batch[of[0]] if isinstance(self.columns.get(name, name), str)
                  else np.stack([batch[column] for column in of], axis=1) for name, of in self.sources.items()}
        outs = self.predictor(inputs)
        return {name: outs[name] for name in self.results}

    def __call__(self, batch: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Score a batch. Returns its kept columns and outputs."""
        return {**{name: batch[name] for name in self.kept(list(batch))}, **self.score(batch)}


ENGINES = {
    ("dask", "Array"): ("on_dask", "score_array"), ("dask", "DataFrame"): ("on_dask", "score_frame"),
    ("dask", "Bag"): ("on_dask", "score_bag"), ("ray", "Dataset"): ("on_ray", "score_dataset"),
}
"""Scoring functions by the package and class of a dataset. Only the engine of the dataset is imported."""


def score(dataset: Any, model: str | os.PathLike[str] | CompiledGraph | Graph | Predictor, *,
          columns: Mapping[str, str | Sequence[str]] | None = None, outputs: Sequence[str] | None = None,
          keep: Sequence[str] | None = None, **options: Any) -> Any:
    """Score the rows of a dataset. Returns a lazy dataset of the same engine with the model's outputs.

    - `dataset`: a dask.dataframe, a dask.bag of dicts, a Ray dataset, or a dask.array. A dask.array has the rows of the
      model's only input, and the result has the rows of one output.
    - `model`: the path of a file that `CompiledGraph.save` wrote and that all workers can read, or a Predictor of such
      a file. Each process loads the file once, and the processes of a machine share its weights. For an ONNX file or a
      graph, each worker compiles the model again; a log message says so.
    - `columns` maps an input to a column, or to a list of columns that are stacked. The default is the column with the
      input's name. Data must have the input's dtype, unless a Predictor has `convert=True`.
    - `outputs`, `keep`: the outputs, and the columns of the dataset, to keep (default: all). An output with one number
      for each row becomes a column of the same name. An output with more numbers becomes an array in a bag or a Ray
      dataset, and the columns `NAME_0`, `NAME_1`, ... in a dataframe.
    - `options` go to the engine: to Ray's `map_batches` (`concurrency=`, `num_cpus=`, `batch_size=`), or to Dask's
      `map_partitions` or `map_blocks`.

    Results have the same bits as in one process, for any workers, CPUs and batches. Raises InputError for columns,
    inputs or outputs that do not exist, GraphqError for other kinds of datasets, and the errors of Predictor. Columns
    of a bag or a Ray dataset are checked only when the dataset is computed.
    """
    kinds = {(kind.__module__.partition(".")[0], kind.__name__) for kind in type(dataset).__mro__}
    found = next((target for kind, target in ENGINES.items() if kind in kinds), None)
    if found is None:
        raise GraphqError(f"score takes a dask array, dataframe or bag, or a Ray dataset, got {type(dataset)}")
    for name, value in (("outputs", outputs), ("keep", keep)):
        if isinstance(value, str):
            raise InputError(f"{name} takes a list of names, got {value!r}")
    predictor = model if isinstance(model, Predictor) else Predictor(model)
    scorer = Scorer(predictor, columns or {}, outputs, keep)
    module, function = found
    return getattr(import_module(f"graphq.scoring.{module}"), function)(dataset, scorer, options)

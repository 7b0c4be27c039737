"""score: runs a model on the rows of a Dask or Ray dataset; Scorer, which their workers run on batches of rows."""
from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

import numpy as np

from graphq.errors import GraphqError, InputError
from graphq.ir import Graph, TensorType
from graphq.ir.names import listing
from graphq.model.compiled_graph import CompiledGraph
from graphq.scoring.predictor import Predictor


@dataclass(frozen=True)
class Scorer:
    """Scores a batch: takes its columns as arrays by name, and returns the kept ones with the model's outputs.

    Axis 0 of each array has the rows. `columns` maps an input to its column, or to a list of columns that are stacked
    to make it; an input that is not in it is the column of its own name. `outputs` are the outputs to keep (None: all),
    `keep` the columns to keep (None: all). A scorer is sent to other processes as its predictor is: as the path of a
    file, which each process loads once.
    """

    predictor: Predictor
    columns: Mapping[str, str | Sequence[str]] = field(default_factory=dict)
    outputs: Sequence[str] | None = None
    keep: Sequence[str] | None = None

    def __post_init__(self) -> None:
        """Raise InputError for names that the model does not have, and for inputs that are made of no column."""
        if not isinstance(self.columns, Mapping):
            raise InputError(f"columns takes a mapping of inputs to columns, got {self.columns!r:.80}")
        for what, names, of in (("columns", self.columns, self.predictor.inputs),
                                ("outputs", self.outputs or (), self.predictor.outputs)):
            for name in names:
                if name not in of:
                    raise InputError(f"{what}: the model has {listing(map(repr, of), 'and')}, not {name!r}")
        for name, columns in self.sources.items():
            if not columns:
                raise InputError(f"columns: input '{name}' is made of one column or more, got none")

    @property
    def results(self) -> dict[str, TensorType]:
        """The types of the kept outputs, by name."""
        types = self.predictor.outputs
        return types if self.outputs is None else {name: types[name] for name in self.outputs}

    @property
    def sources(self) -> dict[str, list[str]]:
        """The columns that are read for each input."""
        chosen = {name: self.columns.get(name, name) for name in self.predictor.inputs}
        return {name: [of] if isinstance(of, str) else list(of) for name, of in chosen.items()}

    def kept(self, names: Sequence[str]) -> list[str]:
        """The columns among `names` that are kept with the outputs.

        Raises InputError for a column that is missing, and for one that has the name of an output.
        """
        have = listing(map(repr, names), "and")
        for column in self.keep or ():
            if column not in names:
                raise InputError(f"keep: there is no column {column!r} among {have}")
        for name, columns in self.sources.items():
            for column in columns:
                if column not in names:
                    raise InputError(f"input '{name}': there is no column {column!r} among {have}; columns={{...}} "
                                     "says which columns make an input")
            type = self.predictor.inputs[name]
            if not isinstance(self.columns.get(name, name), str) and type.shape is not None and len(type.shape) == 2 \
                    and type.shape[1] not in (None, len(columns)):
                raise InputError(f"columns: input '{name}' is {type}, got {len(columns)} columns")
        kept = list(names) if self.keep is None else [name for name in names if name in self.keep]
        for name in self.results:
            if name in kept:
                raise InputError(f"output '{name}' has the name of a column: leave the column out, by keep=[...]")
        return kept

    def score(self, batch: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The outputs for a batch's columns."""
        inputs = {name: batch[of[0]] if isinstance(self.columns.get(name, name), str)
                  else np.stack([batch[column] for column in of], axis=1) for name, of in self.sources.items()}
        outs = self.predictor(inputs)
        return {name: outs[name] for name in self.results}

    def __call__(self, batch: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Score a batch: returns its kept columns, and the outputs."""
        return {**{name: batch[name] for name in self.kept(list(batch))}, **self.score(batch)}


ENGINES = {
    ("dask", "Array"): ("on_dask", "score_array"), ("dask", "DataFrame"): ("on_dask", "score_frame"),
    ("dask", "Bag"): ("on_dask", "score_bag"), ("ray", "Dataset"): ("on_ray", "score_dataset"),
}
"""The scoring functions, by the package and class of a dataset; only packages that the caller uses are imported."""


def score(dataset: Any, model: str | os.PathLike[str] | CompiledGraph | Graph | Predictor, *,
          columns: Mapping[str, str | Sequence[str]] | None = None, outputs: Sequence[str] | None = None,
          keep: Sequence[str] | None = None, **options: Any) -> Any:
    """The rows of `dataset` with the outputs of `model`, as a lazy dataset of the same engine.

    `dataset`: a dask.dataframe, a dask.bag of dicts, a Ray dataset, or a dask.array. The rows of a dask.array are the
    rows of the model's only input, and the result has the rows of one output. `model`: a file that `CompiledGraph.save`
    wrote, at a path that all workers see, or a Predictor of it, which may say how many rows run at a time. Each process
    loads the file once, and the processes of a machine share its weights. An ONNX file or a graph is possible, too: it
    is compiled first, which a log message says, then it is sent to the workers, and each compiles it.

    `columns` maps an input to its column, or to a list of columns that are stacked to make it; an input that `columns`
    does not name is the column of its own name. Data must have the input's dtype, unless a Predictor has
    `convert=True`. `outputs`: the outputs to keep (default: all). `keep`: the columns of the dataset to keep (default:
    all). An output with one number for each row becomes a column of its name. An output with more numbers becomes an
    array in a bag or a Ray dataset, and in a dataframe the columns `NAME_0`, `NAME_1` and so on.

    Other `options` go to the engine: to `map_batches` of Ray (`concurrency=`, `num_cpus=`, `batch_size=`), to
    `map_partitions` or `map_blocks` of Dask.

    Results are those of one process, bit for bit, whatever the workers, their CPUs and the batches are. Raises
    InputError for columns, inputs or outputs that do not exist (for columns of a bag or a Ray dataset only when it
    runs), GraphqError for other datasets, and the errors of Predictor.
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

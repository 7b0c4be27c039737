"""score: runs a model on the rows of a Dask or Ray dataset, and returns a dataset with its outputs."""
from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

from graphq.errors import GraphqError, InputError
from graphq.ir import Graph
from graphq.model.compiled_graph import CompiledGraph
from graphq.scoring.predictor import Predictor
from graphq.scoring.scorer import Scorer

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

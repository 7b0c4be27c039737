"""Scorer: the function that an engine's workers run on batches of rows."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from graphq.errors import InputError
from graphq.ir import TensorType
from graphq.ir.names import listing
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

"""Score Dask collections, with one task for each block or partition."""
from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from graphq.errors import InputError
from graphq.ir import TensorType, listing
from graphq.scoring.score import Scorer

if TYPE_CHECKING:
    import dask.array
    import dask.bag
    import dask.dataframe
    import pandas


def score_array(rows: dask.array.Array, scorer: Scorer, options: Mapping[str, Any]) -> dask.array.Array:
    """Score a dask array block by block, for a model with one input and one output."""
    if len(scorer.sources) != 1 or len(scorer.results) != 1 or scorer.columns or scorer.keep:
        raise InputError("an array has no columns, so the model must have one input and output; it has the "
                         f"inputs {listing(scorer.sources, 'and')}, the outputs "
                         f"{listing(scorer.predictor.outputs, 'and')}. Choose one "
                         "by outputs=[...], or use a dataframe, a bag or a Ray dataset")
    ((name, result),) = scorer.results.items()
    if rows.ndim == 0:
        raise InputError("an array of no dimensions has no rows")
    ((source, type),) = scorer.predictor.inputs.items()
    if type.shape is not None and (len(type.shape) != rows.ndim or any(
            None not in (want, have) and want != have and have == have  # Dask's unknown size is NaN
            for want, have in zip(type.shape[1:], rows.shape[1:], strict=True))):
        raise InputError(f"input '{source}' must be {type}, got rows of an array of shape {list(rows.shape)}")
    if rows.dtype != type.dtype.numpy and not scorer.predictor.convert:
        raise InputError(f"input '{source}' must be {type}, got dtype {rows.dtype}: use astype, or give a "
                         "Predictor(..., convert=True)")
    if result.shape is None:
        raise InputError(f"the model does not say how many dimensions its output '{name}' has")
    rest = result.shape[1:]
    whole = rows.rechunk({axis: -1 for axis in range(1, rows.ndim)})
    chunks = (whole.chunks[0], *((np.nan if n is None else n,) for n in rest))
    return whole.map_blocks(_block, scorer=scorer, chunks=chunks, drop_axis=list(range(1, rows.ndim)),
                            new_axis=list(range(1, 1 + len(rest))), dtype=result.dtype.numpy,
                            meta=np.empty((0,) * len(result.shape), result.dtype.numpy), **options)


def _block(block: np.ndarray, scorer: Scorer) -> np.ndarray:
    (out,) = scorer.score(dict.fromkeys(scorer.sources, block)).values()
    return out


def score_frame(frame: dask.dataframe.DataFrame, scorer: Scorer,
                options: Mapping[str, Any]) -> dask.dataframe.DataFrame:
    """Score a dask dataframe partition by partition. Returns the kept columns and the outputs, with the same index."""
    types = dict(frame.dtypes.items())
    meta = [(name, types[name]) for name in scorer.kept(list(types))]
    meta += [(column, result.dtype.numpy) for name, result in scorer.results.items()
             for column in _columns(name, result)]
    names = [name for name, _ in meta]
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"two columns would be called {name!r}: leave one out with keep=[...] or outputs=[...]")
    return frame.map_partitions(_partition, scorer=scorer, meta=meta, **options)


def _columns(name: str, result: TensorType) -> list[str]:
    rest = None if result.shape is None else result.shape[1:]
    if rest is None or len(rest) > 1 or None in rest:
        raise InputError(f"output '{name}' is {result}: a dataframe holds one number per row, or a one-dimensional row "
                         "of known length; use a bag, an array or a Ray dataset")
    return [f"{name}_{k}" for k in range(rest[0] or 0)] if rest else [name]


def _partition(frame: pandas.DataFrame, scorer: Scorer) -> pandas.DataFrame:
    outs = scorer.score({name: frame[name].to_numpy() for of in scorer.sources.values() for name in of})
    columns: dict[str, np.ndarray] = {}
    for name, out in outs.items():
        parts = out.T if out.ndim > 1 else [out]
        columns.update(zip(_columns(name, scorer.results[name]), parts, strict=True))
    return frame[scorer.kept(list(frame.columns))].assign(**columns)


def score_bag(rows: dask.bag.Bag, scorer: Scorer, options: Mapping[str, Any]) -> dask.bag.Bag:
    """Score a dask bag partition by partition. Each row is a dict of arrays; the outputs are added to the dict."""
    return rows.map_partitions(_rows, scorer=scorer, **options)


def _rows(rows: Iterable[Mapping[str, Any]], scorer: Scorer) -> list[dict[str, Any]]:
    given = list(rows)
    if not given:
        return []
    for row in given:
        if not isinstance(row, Mapping):
            raise InputError(f"the rows of a bag must be dicts of arrays, got {row!r:.80}")
    kept = {names: scorer.kept(names) for names in {tuple(row) for row in given}}
    outs = scorer.score({name: _stacked(name, given, scorer) for of in scorer.sources.values() for name in of})
    return [{**{name: row[name] for name in kept[tuple(row)]}, **{name: out[k] for name, out in outs.items()}}
            for k, row in enumerate(given)]


def _stacked(name: str, rows: Sequence[Mapping[str, Any]], scorer: Scorer) -> Any:
    column = [row[name] for row in rows]
    try:
        return column if scorer.predictor.pad else np.stack(column)
    except ValueError as e:
        raise InputError(f"column {name!r}: the rows of a partition must have the same shape: {e}") from None

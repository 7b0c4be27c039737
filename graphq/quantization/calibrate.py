"""calibrate: run a model on batches and keep only statistics of its tensors.

The statistics are outputs of a compiled f32 model. Each observed tensor gets an operation `histogram`; the histogram's
kernel counts elements while the tensor is in the cache. A batch yields 64 KB per tensor, regardless of the tensor's
size.
"""
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np

from graphq.base.progress import progress
from graphq.compile import compile
from graphq.dtypes import f32
from graphq.errors import GraphError, InputError
from graphq.ir import Graph, TensorType, Value, check_names, named_outputs
from graphq.ir.interpret import check_inputs
from graphq.model.compiled_graph import CompiledGraph
from graphq.quantization.between import stored_between
from graphq.quantization.bodies import copied, raise_statistics
from graphq.quantization.products import prepared, products, right_after, values_by_name
from graphq.quantization.ranges import LEAST
from graphq.quantization.statistics import Statistics, TensorStatistics

Batch: TypeAlias = Mapping[str, Any]
"""The arrays of a batch by the names of inputs."""


@runtime_checkable
class DataReader(Protocol):
    """A source of batches like onnxruntime.quantization's CalibrationDataReader."""

    def get_next(self) -> Batch | None:
        """The next batch, or None at the end."""


Batches: TypeAlias = Iterable[Batch | Sequence[Any]] | DataReader


class LazyBatches(Sequence[Batch]):
    """A batch for each of `keys`; `read` makes the batch of a key each time that it is used."""

    def __init__(self, keys: Sequence[Any], read: Callable[[Any], Batch]) -> None:
        self.keys, self.read = keys, read

    def __len__(self) -> int:
        return len(self.keys)

    def __getitem__(self, k: Any) -> Any:
        return LazyBatches(self.keys[k], self.read) if isinstance(k, slice) else self.read(self.keys[k])


class Reordered(LazyBatches):
    """Batches in another order; `keys` are their indices in the user's order, which errors name."""


def in_unit(graph: Graph, *values: Value) -> list[Value]:
    """The largest magnitude of the last value, then the values divided by it: f32 can hold the squares of these."""
    last = values[-1]
    unit = graph.maximum(graph.reduce_max(graph.abs(last), axes=[*range(last.type.rank)]), np.float32(LEAST))
    return [unit, *(graph.divide(v, unit) for v in values)]


def calibrate(graph: Graph, batches: Batches, *, tensors: Sequence[str] | None = None,
              histograms: bool = True) -> Statistics:
    """Compute statistics of the tensors that quantization needs.

    These tensors are the operands of matmuls and convolutions, and values between layers that sums, concats and pools
    read.

    `batches` is read once: an iterable of dicts from input names to arrays, or an object with `get_next`, as for
    onnxruntime.quantization. For a model with one input, a list or tuple is also a batch; its first item is the input.
    Arrays may be tensors of PyTorch. A batch with more rows than the model takes is split.

    `tensors` names other f32 values to observe instead. Without `histograms` only extremes are computed. This is
    faster, and enough for the method min_max. The statistics belong to `prepared(graph)`, where batch normalizations
    are folded. Statistics of tensors in a loop cover all iterations. A tensor in a body that no batch reaches has no
    statistics.

    Raises InputError if there are no batches, if a batch is not a dict or does not fit the inputs, and for a NaN or an
    infinity, naming the tensor and the batch. Raises GraphError for a name that no f32 value has.
    """
    (found,) = calibrate_parts(graph, batches, [None], tensors, histograms)
    return found


def calibrate_parts(graph: Graph, batches: Batches, parts: Sequence[Collection[int] | None],
                    tensors: Sequence[str] | None = None, histograms: bool = True) -> list[Statistics]:
    """As `calibrate`, for several parts of the batches, each given by indices of batches; None means all batches.

    A tensor in a body that a part does not reach has no statistics in any part.
    """
    graph = prepared(graph)
    names = observed(graph) if tensors is None else check_names(tensors, "tensors")
    values = values_by_name(graph, inside=True)
    for name in names:
        if name not in values:
            raise GraphError(f"graph '{graph.name}' has no value named '{name}'")
        if values[name].dtype != f32:
            raise GraphError(f"only f32 values have statistics; '{name}' is {values[name].type}")
    model = _observing(graph, names, histograms) if names else None
    found = [{name: TensorStatistics() for name in names} for _ in parts]
    counts = [0] * len(parts)
    for k, batch in enumerate(checked_batches(batches, graph)):
        out = {} if model is None else named_outputs(model.outputs, model(batch))
        number = (batches.keys[k] if isinstance(batches, Reordered) else k) + 1
        for n, part in enumerate(parts):
            if part is None or k in part:
                counts[n] += 1
                _add(found[n], out, number)
    if not all(counts):
        raise InputError("calibration needs at least one batch in each part")
    for name, count in [(n, c) for of, c in zip(found, counts, strict=True) for n, t in of.items() if t.low > t.high]:
        if values[name].graph is graph:
            raise InputError(f"tensor '{name}' had no elements in {count} batches")
        for of_part in found:
            of_part.pop(name, None)
    return [*map(Statistics, found, counts)]


def observed(graph: Graph) -> tuple[str, ...]:
    """The names of the activations that layers read, and of the values between layers."""
    factors = (str(p.factors[k].name) for p in products(graph) for k in p.activations)
    return tuple(dict.fromkeys((*factors, *stored_between(graph))))


def checked_batches(batches: Batches, graph: Graph) -> Iterator[Batch]:
    """Yield the batches, split to the number of rows that the graph takes.

    Raises InputError if there is no batch, and with the batch's number if the graph rejects it.
    """
    if isinstance(batches, DataReader):
        batches = iter(batches.get_next, None)
    types = {str(v.name): v.type for v in graph.inputs}
    single = isinstance(batches, Mapping) or hasattr(batches, "detach")
    if single or not isinstance(batches, Iterable):
        raise InputError("batches must be an iterable of dicts from input names to arrays, got "
                         f"{type(batches).__name__}" + ": put it into a list" * single)
    number = 0
    for number, batch in enumerate(progress(batches, "batches"), 1):
        for part in _cut(_by_name(batch, types, f"batch {number}"), types):
            try:
                check_inputs(graph, part)
            except InputError as e:
                raise InputError(f"batch {number}: {e}") from None
            yield part
    if not number:
        raise InputError("quantization needs at least one batch, got an empty iterable")


def is_plain(batch: Any) -> bool:
    """Whether a batch is a dict without tensors of PyTorch, so that it needs no conversion."""
    return isinstance(batch, Mapping) and not any(hasattr(x, "detach") for x in batch.values())


def _by_name(batch: Any, types: Mapping[str, TensorType], where: str) -> Batch:
    """A batch as a dict of arrays. Raises InputError for anything that cannot become such a dict.

    A batch may also be a tensor of PyTorch, or a list or tuple that begins with the inputs, nested as in the program:
    data loaders append labels. These inputs are tensors, but a single one may be an array. A tensor has the method
    `detach`; PyTorch need not be imported.
    """
    if not isinstance(batch, Mapping):
        found = [*islice(_leaves(batch), len(types))]
        array = len(types) == 1 and found and found[0] is not batch and hasattr(found[0], "__array__")
        if len(found) < len(types) or not (array or all(hasattr(x, "detach") for x in found)):
            raise InputError(f"{where} must be a dict from input names to arrays, got {type(batch).__name__}"
                             + (f"; the model has inputs {', '.join(types)}: give a list of tuples of {len(types)} "
                                "tensors" if len(types) > 1 else ""))
        batch = dict(zip(types, found, strict=True))
    if is_plain(batch):
        return batch
    try:
        return {name: _array(x, types.get(name)) if hasattr(x, "detach") else x for name, x in batch.items()}
    except (RuntimeError, TypeError, ValueError) as e:
        raise InputError(f"{where}: {e}") from None


def _leaves(x: Any) -> Iterator[Any]:
    """The items of nested lists, tuples and dicts, in order."""
    if not isinstance(x, Mapping | list | tuple):
        yield x
        return
    for item in x.values() if isinstance(x, Mapping) else x:
        yield from _leaves(item)


def _array(tensor: Any, like: TensorType | None) -> np.ndarray:
    """The elements of a tensor of PyTorch. If NumPy lacks their type, such as bf16, they get an input's type."""
    tensor = tensor.detach().cpu()
    try:
        return np.asarray(tensor)
    except TypeError:
        return np.asarray(tensor.float()).astype(np.float32 if like is None else like.dtype.numpy, casting="same_kind")


def _cut(batch: Batch, types: Mapping[str, TensorType]) -> Iterator[Batch]:
    """Split a batch with more rows than the model takes; the last part is filled up with copies of the last row."""
    rows = {name: np.asarray(x) for name, x in batch.items() if name in types and types[name].shape != ()}
    sizes = {((types[name].shape or (None,))[0], len(x) if x.ndim else 0) for name, x in rows.items()}
    most, count = sizes.pop() if len(sizes) == 1 else (None, 0)
    if not most or count <= most:
        yield batch
        return
    for first in range(0, count, most):
        chosen = np.minimum(np.arange(first, first + most), count - 1)
        yield {**batch, **{name: x[chosen] for name, x in rows.items()}}


def _observing(graph: Graph, names: Sequence[str], histograms: bool) -> CompiledGraph:
    whole = copied(graph)
    same = values_by_name(whole, inside=True)
    found: dict[Graph, dict[str, Value]] = {}
    for name in names:
        x = same[name]
        g, outputs = x.graph, found.setdefault(x.graph, {})
        with right_after(g, x):
            outputs |= {f"{part}/{name}": v for part, v in zip(("counts", "extremes"), g.histogram(x), strict=True)
                        if histograms or part != "counts"}
    raised = raise_statistics(whole, found)
    whole.set_outputs(list(raised.values()), list(raised))
    whole.prune()
    return compile(whole, cache="kernels")


def _add(statistics: Mapping[str, TensorStatistics], found: Mapping[str, np.ndarray], batch: int) -> None:
    for name, t in statistics.items():
        low, high = (float(x) for x in found[f"extremes/{name}"])
        if (low, high) == (np.inf, -np.inf):  # the tensor has no elements in this batch
            continue
        if not (np.isfinite(low) and np.isfinite(high)):
            wrong = np.nan if np.isnan([low, high]).any() else low if np.isinf(low) else high
            raise InputError(f"batch {batch}: tensor '{name}' holds {wrong}: "
                             "calibration needs finite numbers")
        t.add(found.get(f"counts/{name}"), low, high)

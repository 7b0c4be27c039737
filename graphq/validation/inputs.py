"""Make adversarial inputs: rounding ties, edges of ranges, NaN, infinities, and open dimensions of 0 and 1.

These inputs reveal passes that change numbers. Ties and edges follow from the graph's scales and zero points.
`adversarial_inputs` yields several sets of arrays, each of one kind, because a NaN, for example, spreads through a
convolution and hides everything else.
"""
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import islice, product
from typing import NamedTuple, TypeAlias

import numpy as np

from graphq.dtypes import DType, f8_e8m0, s8
from graphq.errors import GraphError, GraphqError
from graphq.ir import Graph, TensorType, listing, reference
from graphq.validation.subgraphs import all_nodes

SAME = (2, 3, 1, 8, 16, 32, 64, 224)
"""Sizes to try for all open dimensions at once. Then the sizes of the graph's fixed dimensions are tried."""

RANKS = (2, 4, 3, 1, 0)
"""Ranks to try for inputs of unknown rank."""

DRAWS = 8
"""The most sets of unequal sizes to try until the graph accepts one."""

Shapes: TypeAlias = dict[str, tuple[int, ...]]
Place: TypeAlias = tuple[str, int]
"""An open dimension: the name of an input, and an axis."""


def sized_copies(graph: Graph, seed: int = 0) -> list[Graph]:
    """Copies of the graph with sizes for all open dimensions. If all shapes are known: only the graph itself.

    The first copy has one size for all dimensions, and the second a different size for each axis. In each further copy
    one axis has size 0 or 1. Sets of sizes that the graph refuses are left out; if inner shapes depend on data, so are
    sizes for which its reference does not run. Raises GraphError if the graph refuses all sizes.
    """
    if all(v.type.known for v in graph.inputs):
        return [graph]
    found: dict[tuple[tuple[str, tuple[int, ...]], ...], Graph] = {}
    errors: list[GraphqError] = []

    def first(sets: Iterable[Shapes]) -> Shapes | None:
        """Find the first set of shapes that the graph accepts, and add a copy with these shapes to the result."""
        for shapes in sets:
            try:
                sized = graph.specialize({str(v.name): TensorType(v.dtype, shapes[str(v.name)]) for v in graph.inputs})
                if not all(v.type.known for n in sized.nodes for v in n.outputs):
                    rng = np.random.default_rng(seed)
                    reference(sized, small_integers({str(v.name): random_array(v.type, rng) for v in sized.inputs}))
            except GraphqError as e:
                errors.append(e)
            else:
                found.setdefault(tuple(shapes.items()), sized)
                return shapes
        return None

    base = first(equal_sizes(graph))
    if base is None:
        raise GraphError(f"the graph runs with no open dimensions of {listing(SAME)}: {errors[0]}")
    places = [(name, axis) for v in graph.inputs for name in [str(v.name)] for axis in range(len(base[name]))
              if v.shape is None or v.shape[axis] is None]
    unequal = first(unequal_sizes(base, places, np.random.default_rng(seed))) or base
    for axis, size in product(sorted({a for _, a in places}), (0, 1)):
        first([_changed(unequal, {(n, a): size for n, a in places if a == axis})])
    return list(found.values())


def equal_sizes(graph: Graph) -> Iterator[Shapes]:
    """Yield sets of shapes with one size for all open dimensions, and one rank for all inputs of unknown rank."""
    types = [v.type for v in graph.inputs] + [n.output.type for n in graph.nodes_of(("constant",))]
    fixed = {d for t in types for d in t.shape or () if d is not None} - {0, *SAME}
    ranks = RANKS if any(v.shape is None for v in graph.inputs) else RANKS[:1]
    for rank, size in product(ranks, (*SAME, *sorted(fixed))):
        yield {str(v.name): tuple(size if d is None else d for d in ((None,) * rank if v.shape is None else v.shape))
               for v in graph.inputs}


def unequal_sizes(base: Shapes, places: list[Place], rng: np.random.Generator) -> Iterator[Shapes]:
    """Yield sets of shapes with a different size for each axis: the size in `base`, plus or times a small number."""
    rank = max((axis for _, axis in places), default=0) + 1
    for draw in range(DRAWS):
        more = rng.permutation(np.arange(1, rank + 3)).tolist()
        yield _changed(base, {(n, a): base[n][a] + more[a] if draw % 2 == 0 else base[n][a] * more[a]
                              for n, a in places})


def _changed(base: Shapes, sizes: dict[Place, int]) -> Shapes:
    return {name: tuple(sizes.get((name, axis), d) for axis, d in enumerate(dims)) for name, dims in base.items()}


SUBNORMAL, SMALLEST, LARGE = 1e-42, 1.1754944e-38, 3e38
"""f32 numbers: a subnormal number, the least positive normal number, and a number near the largest."""

NOT_FINITE = (np.nan, np.inf, -np.inf, -0.0, 0.0, SUBNORMAL)

MOST_ELEMENTS = 1 << 21
"""A graph is large if its values have more elements in total; it then runs only on the first KINDS kinds of inputs."""

KINDS, MORE_SIZES = 3, 2
"""How many kinds of inputs are tried for large graphs, and for each set of sizes after the first.

The first kinds are random numbers, ties, and NaN with infinities."""

MANY = 48
"""Inputs are made from at most this many quantizations, and at most this many other numbers, of the graph."""


class Quantization(NamedTuple):
    """A scale, a zero point, and the dtype of the integers."""

    scale: float
    zero_point: int
    dtype: DType


class Inputs(NamedTuple):
    """Arrays by input name, and their kind. `drawn` has the types that inputs with open shapes got, as texts."""

    kind: str
    arrays: dict[str, np.ndarray]
    drawn: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"inputs of the kind '{self.kind}'" + (f" with {', '.join(self.drawn)}" if self.drawn else "")


def adversarial_inputs(graph: Graph, seed: int = 0, sizes: Mapping[str, tuple[int, ...]] | None = None
                       ) -> Iterator[Inputs]:
    """Yield sets of arrays for all inputs. The same seed and graph give the same arrays.

    Each set is of one kind:

    - "random": random numbers
    - "ties": ties, their neighbors, range edges of the graph's quantizations, and numbers in its attributes and
      constants
    - "NaN and infinities": with signed zeros and subnormal numbers
    - "extremes": the least and the greatest number of each type
    - "lowest", "highest": the least, or the greatest, integer everywhere

    `sizes` has shapes for inputs with open shapes. Other open shapes get several sets of sizes. Raises GraphError if
    the graph refuses all of them.
    """
    found = quantizations(graph)
    rng = np.random.default_rng(seed)
    floats = _float_pool(found, _numbers(graph), rng)
    # zero points and 0 with their neighbors, and the edges of 8-bit ranges
    points = {q.zero_point + d for q in (*found[:MANY], Quantization(1.0, 0, s8)) for d in (-1, 0, 1)}
    integers = np.array(sorted(points | {-128, -127, 126, 127, 128, 254, 255}), np.int64)
    given = {str(v.name): TensorType(v.dtype, tuple(sizes[str(v.name)])) for v in graph.inputs if str(v.name) in sizes
             } if sizes else {}
    opened = [str(v.name) for v in graph.inputs if not v.type.known and str(v.name) not in given]

    def end(number: int, t: TensorType) -> np.ndarray:
        narrow = t.dtype.kind == "int" and t.dtype.bits < 32
        return _drawn(t, _extremes(t.dtype)[number:number + 1], rng) if narrow else random_array(t, rng)

    kinds: dict[str, Callable[[TensorType], np.ndarray]] = {
        "random": partial(random_array, rng=rng),
        "ties": lambda t: _drawn(t, floats if t.dtype.kind == "float" else integers, rng),
        "NaN and infinities": partial(_mixed, rng=rng), "extremes": lambda t: _drawn(t, _extremes(t.dtype), rng),
        "lowest": partial(end, 0), "highest": partial(end, 1)}
    for k, sized in enumerate(sized_copies(graph.specialize(given) if given else graph, seed)):
        types = {str(v.name): v.type for v in sized.inputs}
        drawn = tuple(f"{name}: {types[name]}" for name in opened)
        elements = sum(v.type.size for v in sized.values if v.data is None and v.type.known)
        few = MORE_SIZES if k else KINDS if elements > MOST_ELEMENTS else len(kinds)
        for kind, array in islice(kinds.items(), few):
            yield Inputs(kind, {name: array(t) for name, t in types.items()}, drawn)


def input_types(graph: Graph, sizes: Mapping[str, tuple[int, ...]] | None = None) -> dict[str, TensorType]:
    """The types of inputs by name, with `sizes` for open shapes. Raises GraphError if a shape is missing."""
    return {name: TensorType(v.dtype, sizes[name] if sizes and name in sizes else v.type.dims)
            for v in graph.inputs for name in [str(v.name)]}


def random_array(type: TensorType, rng: np.random.Generator) -> np.ndarray:
    """A random array: standard normal floats, or uniform integers (in [-1000, 1000] for 32 and more bits)."""
    dtype = type.dtype
    if dtype.kind == "float":
        x = rng.standard_normal(type.dims).astype(np.float32)
        return (np.abs(x) if dtype == f8_e8m0 else x).astype(dtype.numpy)  # f8_e8m0 is unsigned
    if dtype.kind == "bool":
        return rng.integers(0, 2, type.dims).astype(np.bool_)
    lo, hi = (-1000, 1000) if dtype.bits >= 32 else (int(dtype.min), int(dtype.max))
    return rng.integers(lo, hi + 1, type.dims).astype(dtype.numpy)


def small_integers(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Replace integers of 32 bits and more by 0 or 1: valid indices, sizes and counts."""
    return {name: (x % 2).astype(x.dtype) if x.dtype.kind in "iu" and x.dtype.itemsize >= 4 else x
            for name, x in arrays.items()}


def quantizations(graph: Graph) -> list[Quantization]:
    """All scales and zero points in the graph and its bodies, without duplicates."""
    found: dict[Quantization, None] = {}
    for node in all_nodes(graph):
        scales = node.attrs.get("scales") or ()
        zps = node.attrs.get("zps") or (0,) * len(scales)
        dtype = node.attrs.get("dtype") or next((v.dtype for v in node.operands), s8)
        if dtype.kind == "float" and dtype.bits > 8:
            dtype = s8
        found |= dict.fromkeys(Quantization(float(np.float32(s)), int(z), dtype)
                               for s, z in zip(scales, zps, strict=False))
    return list(found)


def _numbers(graph: Graph) -> list[float]:
    """The graph's limits, slopes and thresholds: float attributes of nodes, and elements of small constants."""
    found: dict[float, None] = {}
    for node in all_nodes(graph):
        for name, x in node.attrs.items():
            if isinstance(x, float):
                found[x] = None
            elif isinstance(x, np.ndarray) and 0 < x.size <= 8 and name == "value":
                found |= dict.fromkeys(x.astype(np.float64).ravel().tolist())
    return [x for x in found if np.isfinite(x) and abs(x) < LARGE]


def _float_pool(found: list[Quantization], numbers: list[float], rng: np.random.Generator) -> np.ndarray:
    """A pool of floats: ties, range edges and `numbers`, all with their neighboring floats, and tiny numbers."""
    chosen = [found[k] for k in rng.permutation(len(found))[:MANY]] or [Quantization(1.0, 0, s8)]
    numbers = [numbers[k] for k in rng.permutation(len(numbers))[:MANY]]
    exact: list[np.ndarray] = [np.array([0.0, 1.0, -1.0, 0.5, *numbers], np.float32)]
    for scale, zp, dtype in chosen:
        low, high = (-448, 448) if dtype.kind == "float" else (int(dtype.min) - zp, int(dtype.max) - zp)
        steps = np.array([0, -1, 1, low - 1, low, high - 1, high, *rng.integers(low, high + 1, 8)])
        with np.errstate(all="ignore"):
            exact.append(np.float32(scale) * np.concatenate([steps, steps + 0.5]).astype(np.float32))
    pool = np.concatenate(exact)
    pool = pool[np.isfinite(pool)]
    ends = np.float32(-np.inf), np.float32(np.inf)
    near = [np.nextafter(pool, end) for end in ends]
    return np.concatenate([pool, pool, *near, np.array([-0.0, SUBNORMAL, -SUBNORMAL, SMALLEST], np.float32)])


def _extremes(dtype: DType) -> np.ndarray:
    """The least and the greatest number of a dtype. For floats also tiny numbers, and numbers whose sums overflow."""
    if dtype.kind == "float":
        return np.array([dtype.min, dtype.max, *np.array([SMALLEST, SUBNORMAL, -SUBNORMAL, LARGE, 1e10, -1e10, 1e-10])])
    return np.array([dtype.min, dtype.max], object)


def _drawn(type: TensorType, pool: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    dtype = type.dtype
    if dtype.kind == "bool":
        return random_array(type, rng)
    if dtype.kind == "float":
        pool = np.abs(pool.astype(np.float64)) if dtype == f8_e8m0 else pool.astype(np.float64)  # f8_e8m0 is unsigned
    fits = pool[(pool >= dtype.min) & (pool <= dtype.max)]
    drawn = np.asarray(fits[rng.integers(0, len(fits), type.dims)])
    with np.errstate(all="ignore"):
        return np.asarray(drawn.astype(np.float32 if dtype.bits < 32 and dtype.kind == "float" else drawn.dtype)
                          .astype(dtype.numpy))


def _mixed(type: TensorType, rng: np.random.Generator) -> np.ndarray:
    """A random array. A quarter of its floats (more in a small array) are replaced by numbers of NOT_FINITE."""
    x = random_array(type, rng)
    if type.dtype.kind != "float" or not x.size:
        return x
    flat = x.reshape(-1).copy()
    places = rng.permutation(flat.size)[:max(-(-flat.size // 4), min(flat.size, len(NOT_FINITE)))]
    with np.errstate(all="ignore"):
        special = np.resize(np.array(NOT_FINITE, np.float32), places.shape)
        flat[places] = (np.abs(special) if type.dtype == f8_e8m0 else special).astype(x.dtype)
    return flat.reshape(x.shape)

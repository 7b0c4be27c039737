"""Make arrays for the inputs of a model: from files (--input), or random arrays of chosen shapes (--shape)."""
import argparse
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from graphq.base.paths import numbered_batches, read_arrays
from graphq.commands.shared import option
from graphq.errors import GraphError, InputError, ParseError
from graphq.ir import Graph, TensorType, Value
from graphq.ir.interpret import check_array
from graphq.validation.inputs import small_integers

INPUTS = tuple(option(name, action="append", default=[], metavar=metavar, help=text) for name, metavar, text in (
    ("--input", "NAME=FILE", "an input's array, .npy or .npz (others are random)"),
    ("--shape", "NAME=1x3x224x224", "a random input's shape (open dimensions are 1)")))


class SameDraws(NamedTuple):
    """Random numbers that are the same on every machine and with every NumPy: a bit generator's integers, scaled."""

    bits: np.random.BitGenerator

    def integers(self, low: int, high: int, size: tuple[int, ...]) -> np.ndarray:
        """Integers from `low` to `high` - 1."""
        raw = self.bits.random_raw(math.prod(size))
        return (np.asarray(raw, np.uint64).reshape(size) % np.uint64(high - low)).astype(np.int64) + low

    def uniform(self, low: float, high: float, size: tuple[int, ...]) -> np.ndarray:
        """Numbers from `low` to below `high`, in steps of 2^-24 of the range."""
        return low + (high - low) * (self.integers(0, 1 << 24, size) * 2.0**-24)


def accepted_inputs(graph: Graph, seed: int | SameDraws, spread: float = 1.0) -> dict[str, np.ndarray]:
    """Make random arrays for all inputs of a graph with known shapes; the same seed gives the same arrays.

    Floats are in [-spread, spread]. Integers narrower than 32 bits are around their zero point: they cover the share
    `spread` of the range of their type.
    """
    rng = seed if isinstance(seed, SameDraws) else np.random.default_rng(seed)
    return {str(v.name): _array(v, rng, spread) for v in graph.inputs}


# Functions that make random values, by the name of an operand that does not accept every number, such as a variance.
_DOMAINS: Mapping[str, Callable[[np.random.Generator | SameDraws, tuple[int, ...]], np.ndarray]] = {
    "variance": lambda rng, shape: rng.uniform(0.5, 2.0, shape),
    "scales": lambda rng, shape: rng.uniform(0.01, 0.1, shape),
    "probability": lambda rng, shape: rng.uniform(0.1, 0.9, shape),
    "zps": lambda rng, shape: rng.integers(0, 5, shape),
    "seed": lambda rng, shape: rng.integers(0, 1000, shape),
    "offset": lambda rng, shape: rng.integers(0, 1000, shape),
}
_POSITIVE = ("log", "sqrt", "pow")


def _array(value: Value, rng: np.random.Generator | SameDraws, spread: float) -> np.ndarray:
    shape, dtype = value.type.dims, value.dtype
    users = value.users
    names = {u.node.op.operands[min(u.number, len(u.node.op.operands) - 1)].name for u in value.uses
             if u.node is not None}
    for name in sorted(names & _DOMAINS.keys()):
        return np.asarray(_DOMAINS[name](rng, shape)).astype(dtype.numpy)
    if dtype.kind == "bool":
        return rng.integers(0, 2, shape).astype(np.bool_)
    if dtype.kind == "float":
        low = 0.1 if any(n.op.name in _POSITIVE for n in users) else -1.0
        return (spread * rng.uniform(low, 1.0, shape)).astype(np.float32).astype(dtype.numpy)
    if dtype.bits >= 32:
        return rng.integers(-100, 101, shape).astype(dtype.numpy)
    low, high = int(dtype.min), int(dtype.max)
    zps = [z for n in users for z in n.attrs.get("zps") or ()]
    center = min(max(round(sum(zps) / len(zps)) if zps else 0, low), high)
    low, high = (center - math.ceil(spread * (center - low)), center + math.ceil(spread * (high - center)))
    return rng.integers(low, high + 1, shape).astype(dtype.numpy)


def sample_beside(path: Path, graph: Graph) -> dict[str, np.ndarray]:
    """Read the arrays for a model's inputs from the .npz file of the same name in the model's folder.

    Returns an empty dict if there is no such file, or if its arrays do not fit the inputs.
    """
    file = path.with_suffix(".npz")
    if not file.is_file():
        return {}
    arrays = read_arrays(file)
    if not isinstance(arrays, dict):
        return {}
    found = {str(v.name): x for v in graph.inputs if (x := _of(str(v.name), arrays)) is not None}
    try:
        return {str(v.name): check_array(str(v.name), v.type, found[str(v.name)]) for v in graph.inputs}
    except (KeyError, InputError):
        return {}


def realistic(graph: Graph, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Make random arrays, of the shapes of `arrays`, with values as in calibration data.

    A quantized input (8 bits or fewer, or a float that the graph quantizes) gets normally distributed numbers around
    the middle of its quantized range. Their standard deviation is an eighth of the range, so almost none saturate.
    Other inputs keep their array.
    """
    rng = np.random.default_rng(0)
    out = dict(arrays)
    for value in graph.inputs:
        x, quantize = arrays[str(value.name)], next((n for n in value.users if n.op.name == "quantize"), None)
        if value.dtype.kind == "int" and value.dtype.bits <= 8:
            low, high = float(value.dtype.min), float(value.dtype.max)
        elif value.dtype.kind == "float" and quantize is not None and quantize.attrs["qtype"] == "per_tensor":
            scale, zp = quantize.attrs["scales"][0], (quantize.attrs["zps"] or (0,))[0]
            low, high = (scale * (float(end) - zp) for end in (quantize.output.dtype.min, quantize.output.dtype.max))
        else:
            continue
        drawn = np.clip(rng.normal((low + high) / 2, (high - low) / 8, x.shape), low, high)
        out[str(value.name)] = (np.rint(drawn) if value.dtype.kind == "int" else drawn).astype(x.dtype)
    return out


def input_arrays(graph: Graph, options: argparse.Namespace, seed: int | None = None) -> dict[str, np.ndarray]:
    """The arrays of all inputs, in the order of the inputs.

    Random floats are in [-1, 1], and random 8-bit integers cover their whole range. Wider integers and booleans are 0
    or 1: they are valid indices and masks. Random arrays have the shapes of --shape; without it, open dimensions are 1.
    If a `seed` is given, every machine and every NumPy gives the same arrays.

    Raises InputError for an unknown name and for a file that does not hold the input's array, GraphError if shapes do
    not fit.
    """
    paths = pairs("--input", options.input)
    shapes = {name: _shape(name, text) for name, text in pairs("--shape", options.shape).items()}
    check_names("input", [*paths, *shapes], [str(v.name) for v in graph.inputs])
    given = {str(v.name): check_array(str(v.name), v.type, _read(str(v.name), paths[str(v.name)]))
             for v in graph.inputs if v.name in paths}
    return {**_random(graph, given, shapes, seed), **given}


def check_names(word: str, given: Iterable[str], names: Sequence[str]) -> None:
    """Raise InputError for a name that the model does not have."""
    for name in given:
        if name not in names:
            raise InputError(f"the model has no {word} '{name}'; it has {', '.join(names)}")


def pairs(option: str, given: Sequence[str]) -> dict[str, str]:
    """Split texts of the form NAME=TEXT into a dict; NAME may contain `=`, TEXT may not."""
    found = [x.rpartition("=") for x in given]
    for name, _, text in found:
        if not name or not text:
            raise ParseError(f"{option} takes NAME=..., got {name or text}")
    return {name: text for name, _, text in found}


def _shape(name: str, text: str) -> tuple[int, ...]:
    dims = text.split("x")
    if not all(d.isascii() and d.isdecimal() and len(d) < 16 for d in dims):
        raise ParseError(f"--shape {name}: must be dimensions such as 1x3x224x224, got {text}")
    return tuple(map(int, dims))


def _read(name: str, path: str) -> np.ndarray:
    """The array of an .npy file, or of an .npz archive: the input's array, or the only array."""
    found = read_arrays(path, f"input '{name}': {path}")
    if isinstance(found, np.ndarray):
        return found
    x = next(iter(found.values())) if len(found) == 1 else _of(name, found)
    if x is None:
        raise InputError(f"input '{name}': {path} holds several arrays, and none has this name: "
                         f"{', '.join(found) or 'it is empty'}")
    return x


def _of(name: str, arrays: Mapping[str, np.ndarray]) -> np.ndarray | None:
    """The array of an input in an archive, or in the first batch of an archive of batches (`0/in/NAME`)."""
    return arrays.get(name, numbered_batches(arrays).get("0", {}).get(name))


def _random(graph: Graph, given: Mapping[str, np.ndarray], shapes: Mapping[str, tuple[int, ...]],
            seed: int | None) -> dict[str, np.ndarray]:
    """Make random arrays for all inputs. An array in `given` determines the shape for its input."""
    dims = {str(v.name): _dims(v, shapes.get(str(v.name))) for v in graph.inputs if v.name not in given}
    known = {**dims, **{name: x.shape for name, x in given.items()}}
    types = {str(v.name): TensorType(v.dtype, known[str(v.name)]) for v in graph.inputs}
    draws = 0 if seed is None else SameDraws(np.random.PCG64(seed % 2**64))
    try:
        return small_integers(accepted_inputs(graph.specialize(types), draws))
    except GraphError as e:
        chosen = ", ".join(f"{n}={'x'.join(map(str, d))}" for n, d in dims.items())
        raise GraphError(f"{e} (for inputs of shape {chosen}; choose others with --shape)") from None


def _dims(value: Value, given: tuple[int, ...] | None) -> tuple[int, ...]:
    if given is None and value.shape is None:
        raise InputError(f"input '{value.name}': its rank is open: give its shape with --shape")
    dims = given or tuple(1 if d is None else d for d in value.shape or ())
    check_array(str(value.name), value.type, np.broadcast_to(np.zeros((), value.dtype.numpy), dims))
    return dims

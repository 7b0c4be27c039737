"""A runner of oneDNN Graph files, like benchdnn's graph driver: partition, compile, compare with the reference."""
from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import ml_dtypes
import numpy as np

from graphq.base.budget import size_text
from graphq.compile import compile
from graphq.errors import GraphqError
from graphq.ir import Graph, Node, Value
from graphq.ir.interpret import named_outputs, reference
from graphq.ir.tensor_type import TensorType
from graphq.onednn.files import load_onednn_json
from graphq.onednn.knob_text import Case, Knobs, parse_line
from graphq.onednn.knobs import apply_knobs
from graphq.onednn.partitions import partitions
from graphq.onednn.reader import read_text

MAX_BYTES = 8 << 30
"""Tensors of a graph that take more in all are refused."""

SPREADS = (1.0, 0.25, 0.06, 0.015)
"""What part of their range inputs take, tried one after the other until outputs are not saturated."""


@dataclass(frozen=True)
class Deviation:
    """How far an output of the compiled graph is from the reference's, and whether that is too far."""

    output: str
    text: str
    passed: bool

    def __str__(self) -> str:
        return f"{self.output}: {self.text}"


@dataclass(frozen=True)
class Outcome:
    """What came of one run. `status` is "passed", "failed" or "refused" (`reason` says why the latter two)."""

    case: str
    status: str
    reason: str = ""
    partitions: int = 0
    differences: tuple[Deviation, ...] = ()
    seconds: float = 0.0

    def __str__(self) -> str:
        worst = "; ".join(map(str, self.differences))
        detail = self.reason if self.status != "passed" else worst
        return f"{self.status:8s}{self.partitions} partitions {self.seconds:6.2f} s  {self.case}" + \
            (f"  ({detail})" if detail else "")


def run_file(path: str | os.PathLike[str], knobs: Knobs) -> Outcome:
    """Run one file under one combination of knobs.

    Raises nothing: what graphq refuses, and a file that cannot be read, is an outcome "refused"; a difference, another
    number of partitions than expected, and any other exception, a defect of graphq, is "failed".
    """
    case, start, count = str(Case(os.path.basename(path), knobs)), time.perf_counter(), 0
    try:
        graph = apply_knobs(load_onednn_json(path), knobs)
        _check_size(graph)
        parts = partitions(graph)
        count = len(parts)
        inputs, got = _compiled(graph)
        wanted = named_outputs(graph.output_names, reference(graph, inputs))
    except (GraphqError, OSError) as error:
        return Outcome(case, "refused", " ".join(str(error).split()), count, (), time.perf_counter() - start)
    except Exception as error:  # a defect, which the other runs of a batch should not suffer from
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        return Outcome(case, "failed", reason, count, (), time.perf_counter() - start)
    found = tuple(compare(name, got[name], wanted[name], v) for name, v in
                  zip(graph.output_names, graph.outputs, strict=True))
    seconds = time.perf_counter() - start
    reasons = [str(d) for d in found if not d.passed]
    if knobs.expected_partitions and count != knobs.expected_partitions:
        reasons.append(f"{count} partitions, expected {knobs.expected_partitions}: "
                       + ", ".join(p.anchor for p in parts))
    return Outcome(case, "failed" if reasons else "passed", "; ".join(reasons), count, found, seconds)


def run_batch(path: str | os.PathLike[str], root: Path) -> Iterator[Outcome]:
    """Run each line of a batch file, its graph file taken relative to `root`; a line that is wrong is "refused".

    Raises ParseError or OSError when the batch file itself cannot be read.
    """
    for number, line in enumerate(read_text(path).splitlines(), 1):
        try:
            cases = parse_line(line)
        except GraphqError as error:
            yield Outcome(line.strip(), "refused", f"{os.fspath(path)}: line {number}: {error}")
            continue
        for case in cases:
            yield run_file(root / case.file, case.knobs)


def _compiled(graph: Graph) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Random inputs and what the compiled graph makes of them.

    Inputs that drive outputs out of their range, so that any error would be hidden, give way to narrower ones.
    """
    for spread in SPREADS:
        inputs = accepted_inputs(graph, 0, spread)
        model = compile(graph)  # anew: a model keeps its constant inputs
        outputs = named_outputs(graph.output_names, model(inputs))
        if not any(_out_of_range(outputs[n], v) for n, v in zip(graph.output_names, graph.outputs, strict=True)):
            return inputs, outputs
    return inputs, outputs


def _out_of_range(x: np.ndarray, value: Value) -> bool:
    """Whether more than half of a quantized tensor is saturated, or of a float tensor is not finite."""
    dtype = value.dtype
    if dtype.kind == "bool" or dtype.bits > 8 and dtype.kind == "int" or not x.size:
        return False
    if dtype.bits > 8:
        return bool(np.isfinite(x.astype(np.float32)).mean() < 0.5)
    wide = x.astype(np.float32)
    # Zeros of u8 are what relu gives as often as not.
    ends = wide >= dtype.max if dtype.min == 0 else (wide <= dtype.min) | (wide >= dtype.max)
    low = np.mean(wide <= dtype.min) if dtype.min == 0 else 0.0
    return bool(ends.mean() > 0.4 or low > 0.9)


def _check_size(graph: Graph) -> None:
    values = [*graph.inputs, *(o for n in graph.nodes for o in n.outputs)]
    for v in values:
        if not v.type.known:
            raise GraphqError(f"{graph.label(v)}: the shape of {v.type} is not known; give it by --in-shapes")
    total = sum(v.type.size * max(v.dtype.itemsize, 4) for v in values)
    if total > MAX_BYTES:
        raise GraphqError(f"the graph's tensors take {size_text(total)}, more than {size_text(MAX_BYTES)}")


def accepted_inputs(graph: Graph, seed: int, spread: float = 1.0) -> dict[str, np.ndarray]:
    """Arrays for all inputs, the same for the same seed, of numbers that the operations accept.

    Floats are in [-spread, spread]; quantized integers take that part of their range, around the zero point.
    """
    rng = np.random.default_rng(seed)
    return {str(v.name): _array(v, rng, spread) for v in graph.inputs}


# What operands of these names must be: variances and scales are positive, a probability is below 1.
_DOMAINS: Mapping[str, Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]] = {
    "variance": lambda rng, shape: rng.uniform(0.5, 2.0, shape),
    "scales": lambda rng, shape: rng.uniform(0.01, 0.1, shape),
    "probability": lambda rng, shape: rng.uniform(0.1, 0.9, shape),
    "zps": lambda rng, shape: rng.integers(0, 5, shape),
    "seed": lambda rng, shape: rng.integers(0, 1000, shape),
    "offset": lambda rng, shape: rng.integers(0, 1000, shape),
}
_POSITIVE = ("log", "sqrt", "pow")


def _array(value: Value, rng: np.random.Generator, spread: float) -> np.ndarray:
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
    centre = min(max(_zero_point(users), low), high)
    low, high = (centre - math.ceil(spread * (centre - low)), centre + math.ceil(spread * (high - centre)))
    return rng.integers(low, high + 1, shape).astype(dtype.numpy)


def _zero_point(users: Sequence[Node]) -> int:
    """The mean zero point of the dequantizes among the users."""
    zps = [z for n in users for z in n.attrs.get("zps") or ()]
    return round(sum(zps) / len(zps)) if zps else 0


def compare(name: str, got: np.ndarray, wanted: np.ndarray, value: Value) -> Deviation:
    """How far `got` is from `wanted`, and whether that is within the rules.

    Integers: one step apart in at most 1 of 10,000 elements; f32 and f64: 1e-5 of the largest; bf16, f16: 2 ulp; other
    floats: 1 ulp.
    """
    dtype = value.dtype
    if got.shape != wanted.shape:
        return Deviation(name, f"shape {list(got.shape)}, not {list(wanted.shape)}", False)
    a, b = got.astype(np.float64), wanted.astype(np.float64)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    if same.all():
        return Deviation(name, "equal", True)
    if not np.array_equal(np.isfinite(a), np.isfinite(b)) or not (same | np.isfinite(a)).all():
        return Deviation(name, f"not finite in {np.count_nonzero(~(same | np.isfinite(a)))} elements", False)
    apart = np.abs(a - b)[~same]
    share = apart.size / a.size
    if dtype.kind in ("int", "bool"):
        passed = bool(apart.max() <= 1 and share <= 1e-4 + 1 / a.size)
        return Deviation(name, f"{int(apart.max())} steps, in {share:.1e} of the elements", passed)
    largest = float(np.abs(b[np.isfinite(b)]).max())
    if dtype.bits >= 32:
        ratio = float(apart.max()) / max(largest, 1e-30)
        return Deviation(name, f"{ratio:.1e} of the largest", ratio <= 1e-5)
    ulps = float((apart / _ulp(b[~same], value.type)).max())
    passed = ulps <= (1 if dtype.bits <= 8 else 2)
    return Deviation(name, f"{ulps:.1f} ulp, in {share:.1e} of the elements", passed)


def _ulp(x: np.ndarray, type: TensorType) -> np.ndarray:
    """The distance between neighbouring numbers of a narrow float type at each of `x`."""
    info = ml_dtypes.finfo(type.dtype.numpy)
    exponent = np.frexp(np.abs(x))[1] - 1
    return np.maximum(np.ldexp(1.0, exponent - info.nmant), float(info.smallest_subnormal))

"""Run oneDNN Graph files as benchdnn's graph driver does: partition, compile, and compare with the reference."""
from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from graphq.compile import compile
from graphq.errors import GraphqError
from graphq.interpret import reference
from graphq.ir import Graph, Value
from graphq.knob_text import Case, Knobs
from graphq.knobs import apply_knobs
from graphq.onednn_json import load_onednn_json
from graphq.partitions import partitions
from graphq.tensor_type import TensorType

MAX_BYTES = 8 << 30
"""Tensors of a graph that take more in all are refused."""


@dataclass(frozen=True)
class Difference:
    """How far an output of the compiled graph is from the reference's, and whether that is too far."""

    output: str
    text: str
    passed: bool


@dataclass(frozen=True)
class Outcome:
    """What came of one run. `status` is "passed", "failed" or "refused" (`reason` says why the latter two)."""

    case: str
    status: str
    reason: str = ""
    partitions: int = 0
    differences: tuple[Difference, ...] = ()
    seconds: float = 0.0

    def __str__(self) -> str:
        worst = "; ".join(d.text for d in self.differences)
        detail = self.reason if self.status != "passed" else worst
        return f"{self.status:8s}{self.partitions} partitions {self.seconds:6.2f} s  {self.case}" + \
            (f"  ({detail})" if detail else "")


def run_file(path: str | os.PathLike[str], knobs: Knobs, *, seed: int = 0) -> Outcome:
    """Run one file under one combination of knobs; never raises what graphq refuses, but says so in the outcome."""
    case, start, count = str(Case(os.path.basename(path), knobs)), time.perf_counter(), 0
    try:
        graph = apply_knobs(load_onednn_json(path), knobs)
        _check_size(graph)
        parts = partitions(graph)
        count = sum(p.supported for p in parts)
        inputs = random_inputs(graph, seed)
        wanted, got = (x if isinstance(x, dict) else {graph.output_names[0]: x}
                       for x in (reference(graph, inputs), compile(graph)(inputs)))
    except GraphqError as error:
        return Outcome(case, "refused", " ".join(str(error).split()), count, (), time.perf_counter() - start)
    found = tuple(compare(name, got[name], wanted[name], v) for name, v in
                  zip(graph.output_names, graph.outputs, strict=True))
    seconds = time.perf_counter() - start
    reasons = [d.text for d in found if not d.passed]
    if knobs.expected_partitions and len(parts) != knobs.expected_partitions:
        reasons.append(f"{len(parts)} partitions, expected {knobs.expected_partitions}: "
                       + ", ".join(p.anchor for p in parts))
    return Outcome(case, "failed" if reasons else "passed", "; ".join(reasons), count, found, seconds)


def run_batch(cases: Iterable[Case], root: Path, *, seed: int = 0) -> Iterator[Outcome]:
    """Run each case, its file taken relative to `root`."""
    for case in cases:
        yield run_file(root / case.file, case.knobs, seed=seed)


def _check_size(graph: Graph) -> None:
    values = [*graph.inputs, *(o for n in graph.nodes for o in n.outputs)]
    for v in values:
        if not v.type.known:
            raise GraphqError(f"{graph.label(v)}: the shape of {v.type} is not known; give it by --in-shapes")
    total = sum(v.type.size * max(v.dtype.itemsize, 4) for v in values)
    if total > MAX_BYTES:
        raise GraphqError(f"the graph's tensors take {total >> 20} MiB, more than {MAX_BYTES >> 20}")


def random_inputs(graph: Graph, seed: int) -> dict[str, np.ndarray]:
    """Arrays for all inputs, the same for the same seed, of numbers that the operations accept."""
    rng = np.random.default_rng(seed)
    return {str(v.name): _array(v, rng) for v in graph.inputs}


# What operands of these names must be: variances and scales are positive, a probability is below 1.
_DOMAINS: Mapping[str, Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]] = {
    "variance": lambda rng, shape: rng.uniform(0.5, 2.0, shape),
    "scales": lambda rng, shape: rng.uniform(0.01, 0.1, shape),
    "probability": lambda rng, shape: rng.uniform(0.1, 0.9, shape),
    "zps": lambda rng, shape: rng.integers(0, 5, shape),
    "seed": lambda rng, shape: rng.integers(0, 1000, shape),
    "offset": lambda rng, shape: rng.integers(0, 1000, shape),
}


def _array(value: Value, rng: np.random.Generator) -> np.ndarray:
    shape, dtype = value.type.dims, value.dtype
    names = {u.node.op.operands[min(u.index, len(u.node.op.operands) - 1)].name for u in value.uses
             if u.node is not None}
    for name in sorted(names & _DOMAINS.keys()):
        return np.asarray(_DOMAINS[name](rng, shape)).astype(dtype.numpy)
    if dtype.kind == "float":
        return rng.uniform(-1.0, 1.0, shape).astype(np.float32).astype(dtype.numpy)
    if dtype.kind == "bool":
        return rng.integers(0, 2, shape).astype(np.bool_)
    low, high = (-100, 100) if dtype.bits >= 32 else (int(dtype.min), int(dtype.max))
    return rng.integers(low, high + 1, shape).astype(dtype.numpy)


def compare(name: str, got: np.ndarray, wanted: np.ndarray, value: Value) -> Difference:
    """Integers: one step apart in at most 1 of 10,000 elements; f32: 1e-5 of the largest; bf16, f16: 2 ulp; f8: 1 ulp."""
    dtype, unit = value.dtype, f"{name}: "
    a, b = got.astype(np.float64), wanted.astype(np.float64)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    if same.all():
        return Difference(name, unit + "equal", True)
    if not np.array_equal(np.isfinite(a), np.isfinite(b)) or not (same | np.isfinite(a)).all():
        return Difference(name, unit + f"not finite in {np.count_nonzero(~(same | np.isfinite(a)))} elements", False)
    apart = np.abs(a - b)[~same]
    share = apart.size / a.size
    if dtype.kind in ("int", "bool"):
        passed = bool(apart.max() <= 1 and share <= 1e-4 + 1 / a.size)
        return Difference(name, unit + f"{int(apart.max())} steps, in {share:.1e} of the elements", passed)
    largest = float(np.abs(b[np.isfinite(b)]).max())
    if dtype == "f32":
        ratio = float(apart.max()) / max(largest, 1e-30)
        return Difference(name, unit + f"{ratio:.1e} of the largest", ratio <= 1e-5)
    ulps = float((apart / _ulp(b[~same], value.type)).max())
    return Difference(name, unit + f"{ulps:.1f} ulp, in {share:.1e} of the elements", ulps <= (1 if dtype.bits == 8 else 2))


def _ulp(x: np.ndarray, type: TensorType) -> np.ndarray:
    """The distance between neighbouring numbers of a narrow float type at each of `x`."""
    digits, least = {"bf16": (7, -133), "f16": (10, -24), "f8_e4m3": (3, -9), "f8_e5m2": (2, -16)}[type.dtype.name]
    exponent = np.frexp(np.abs(x))[1] - 1
    return np.ldexp(1.0, np.maximum(exponent - digits, least))

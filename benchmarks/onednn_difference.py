"""Compare arrays, and find the roundings to bf16 or f16 that explain their differences, for onednn_oracle.py."""
from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

import graphq as gq
from graphq.dtypes import bf16, f16, f32

Arrays = dict[str, np.ndarray]


def best_rounding(graph: gq.Graph, inputs: Arrays, theirs: Arrays) -> tuple[str, Arrays]:
    """Find the bf16 or f16 intermediates whose rounding brings the outputs closest to `theirs`, and these outputs."""
    places = [n.outputs[0] for n in graph.nodes if n.op.name not in ("reorder", "static_reshape", "static_transpose")
              and n.outputs and n.outputs[0].dtype in (bf16, f16) and n.outputs[0] not in graph.outputs
              and not (n.inputs[0] and n.inputs[0].node and n.inputs[0].node.op.name == "dequantize")]
    chosen = [c for k in range(len(places) + 1) for c in itertools.combinations(places, k)] if len(places) < 7 else [()]
    tries = [(", ".join(str(v.name) for v in c) or "none", rounding_at(graph, inputs, c)) for c in chosen]
    return min(tries, key=lambda t: sum(np.count_nonzero(t[1][k] != y) for k, y in theirs.items()))


def rounding_at(graph: gq.Graph, inputs: Arrays, places: Sequence[gq.Value]) -> Arrays:
    """The outputs if only `places` are rounded to bf16 or f16."""
    env = {v: inputs[str(v.name)] for v in graph.inputs}
    for node in graph.nodes:
        operands = [None if v is None else env[v].astype(np.float32) if v.dtype in (bf16, f16) else env[v]
                    for v in node.inputs]
        out = node.op.reference(*operands, **{k: f32 if a in (bf16, f16) else a for k, a in node.attrs.items()})
        for v, y in zip(node.outputs, out if isinstance(out, tuple) else (out,), strict=True):
            env[v] = y.astype(v.dtype.numpy) if v in places else y
    return {str(v.name): env[v].astype(v.dtype.numpy) for v in graph.outputs}


def distance(got: np.ndarray, wanted: np.ndarray) -> tuple[str, int]:
    """The difference of two arrays as text, and a grade: 0 for equal, 1 for within the limits, 2 for above."""
    a, b = got.astype(np.float64), wanted.astype(np.float64)
    differ = ~((a == b) | (np.isnan(a) & np.isnan(b)))
    if not differ.any():
        return "equal", 0
    finite = np.isfinite(a) & np.isfinite(b)
    if (differ & ~finite).any():
        return f"{np.count_nonzero(differ & ~finite)} of {a.size} elements not finite on one side", 2
    apart, name = np.abs(a - b)[differ], wanted.dtype.name
    if "float" in name:
        relative = float(apart.max() / np.abs(b[finite]).max())
        if name == "float32":
            return f"{relative:.1e} of the largest", 1 if relative <= 1e-4 else 2
        apart = apart / np.abs(np.spacing(np.abs(wanted[differ])).astype(np.float64))
        shares = f"above 2 in {np.count_nonzero(apart > 2) / a.size:.1e}, {relative:.1e} of the largest"
        return f"{apart.max():.3g} ulp, {shares}", 1 if apart.max() <= 2 else 2
    shares = f"in {apart.size / a.size:.1e}, above 1 in {np.count_nonzero(apart > 1) / a.size:.1e}"
    return f"{apart.max():.0f} steps, {shares}", 1 if apart.max() <= 1 else 2


def compare(what: str, ours: Any, theirs: Arrays) -> tuple[list[str], int]:
    """The `distance` of every output that differs, and the highest grade."""
    found = {k: distance(ours[k] if isinstance(ours, dict) else ours, wanted) for k, wanted in theirs.items()}
    return [f"{what}: {k} {theirs[k].dtype.name} {text}" for k, (text, grade) in found.items() if grade], \
        max(grade for _, grade in found.values())

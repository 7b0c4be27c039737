"""Calls that type checkers accept, and calls that they refuse: `.ci/run` gives this file to mypy.

Each refusal is marked, and `warn_unused_ignores` (pyproject.toml) makes a mark where nothing is refused an error.
"""
import ml_dtypes
import numpy as np

import graphq as gq


def accepted(g: gq.Graph, x: gq.Value) -> gq.Value:
    """How graphs are built."""
    y = g.convolution(x, np.ones((3, 3, 4, 8)), strides=2, pads_begin=(1, 1), pads_end=[1, 1], name="y")
    y = g.matmul(x, g.constant([[1, 2]], dtype="s8"), None, transpose_b=True)
    y = g.quantize(g.relu(y * 2 + np.float32(1) - -y @ y / 3), dtype=gq.dtypes.u8, scales=[0.1], zps=np.array([3]))
    y = g.type_cast(abs(y[1:, None, ...]) ** 2, dtype=ml_dtypes.bfloat16)
    values, indices = g.top_k(y, k=np.shape(np.ones(3))[0])
    probabilities, stats = g.softmax(values, keep_stats=True)
    return g.concat(probabilities, stats, g.gather(y, indices), axis=-1)


def results(g: gq.Graph, x: np.ndarray) -> dict[str, np.ndarray]:
    """What a model gives: an array, or where the annotation says so several by name."""
    model = gq.compile(g, isa="avx2")
    total: float = model(x).sum() + gq.reference(g, x).sum() + model(x, fetch="y").sum()
    text: str = model.explain() + model.explain("y", format="text")
    causes: list[object] = model.explain(format="json")["causes"]
    several: dict[str, np.ndarray] = model(x)
    print(total, text, causes, model.formula(x)["y"].shape, model(x, fetch=["y"])["y"].shape)
    return several


def refused(g: gq.Graph, x: gq.Value) -> None:
    """What is an error when it runs."""
    g.matmul(x, x, color=1)  # type: ignore[call-arg]
    g.matmul(x)  # type: ignore[call-arg]
    g.matmul(x, weights=x)  # type: ignore[call-arg]
    g.no_such_operation(x)  # type: ignore[attr-defined]
    g.softmax(x, mode="log")  # type: ignore[arg-type]
    g.input("x", dtype="u9")  # type: ignore[arg-type]
    g.quantize(x, dtype="byte", scales=[1.0])  # type: ignore[arg-type]
    gq.compile(g, isa="avx3")  # type: ignore[arg-type]
    print(gq.compile(g)(x).shap)  # type: ignore[attr-defined]
    gq.compile(g).explain(format="xml")  # type: ignore[call-overload]
    g.clamp(x, min=0)  # type: ignore[call-arg]
    g.relu("x")  # type: ignore[arg-type]
    g.relu(x).relu()  # type: ignore[attr-defined]
    x + "x"  # type: ignore[arg-type]
    list(x)  # type: ignore[call-overload]

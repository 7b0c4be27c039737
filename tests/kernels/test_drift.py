"""How operations carry differences on, and what their results do not exceed, against the functions in f64."""
import numpy as np
import pytest

import graphq as gq
from graphq.kernels.drift import CURVES, Difference, Drift
from graphq.kernels.sum_errors import UNIT

CASES = {
    **{name: (name, {}) for name in ("relu", "abs", "tanh", "sigmoid", "erf", "mish", "hard_swish")},
    "gelu": ("gelu", {"mode": "gelu_erf"}), "gelu by tanh": ("gelu", {"mode": "gelu_tanh"}),
    "clamp": ("clamp", {"min": -2.0, "max": 0.5}),
    **{f"softplus {beta}": ("softplus", {"beta": beta}) for beta in (1.0, 0.05, -2.0, 9.0)},
    **{f"elu {alpha}": ("elu", {"alpha": alpha}) for alpha in (1.0, 0.2, 3.0)},
    **{f"leaky_relu {alpha}": ("leaky_relu", {"alpha": alpha}) for alpha in (0.1, 2.5, -3.0)},
    **{f"hard_sigmoid {beta}": ("hard_sigmoid", {"alpha": 0.7, "beta": beta}) for beta in (0.5, -1.5)},
}


def followed(name, difference, most):
    """A drift that has followed the operation after a value of this difference and bound, and the operation's node."""
    op, attrs = CASES[name]
    g = gq.Graph()
    y = g.abs(g.input("x", shape=(4,), dtype="f32"))
    node = getattr(g, op)(y, **attrs).node
    drift = Drift(4, {}, {})
    drift.of[y], drift.bounds[y] = difference, most
    drift.follow(node)
    return drift, node


def test_all_curves_are_tried():
    assert CURVES.keys() <= {op for op, _ in CASES.values()}


@pytest.mark.parametrize("most", [0.25, 1.0, 3.0, 50.0])
@pytest.mark.parametrize("name", CASES)
def test_results_keep_to_their_bounds(name, most):
    drift, node = followed(name, Difference(np.zeros(()), np.zeros(()), 0.0), most)
    y = node.op.reference(np.linspace(-most, most, 2001), **node.attrs)
    assert y.dtype == np.float64 and np.abs(y).max() <= drift.bounds[node.output]


@pytest.mark.parametrize("by,relative", [(1e-3, 0.0), (0.0, 1e-3), (1e-4, 1e-3)])
@pytest.mark.parametrize("name", CASES)
def test_differences_keep_to_their_bounds(name, by, relative):
    x = np.concatenate([np.linspace(-12, 12, 4001), np.linspace(-300, 300, 4001)])
    drift, node = followed(name, Difference(np.asarray(by), np.asarray(by), relative), 300.0)
    found = drift.of[node.output]
    y = node.op.reference(x, **node.attrs)
    for sign in (-1, 1):
        again = node.op.reference(x + sign * (by + relative * np.abs(x)), **node.attrs)
        room = found.proved + found.relative * np.abs(y)
        # Bounds are of first order: what remains goes by squares, and by the roundings of references in f32.
        squares = (by + relative * np.abs(x))**2 * (np.abs(x) < 12)
        assert (np.abs(again - y) <= room + squares + 4 * UNIT * (1 + np.abs(x))).all()

"""What a comparison says of numbers by hand: order, noise, its table and JSON; and distances of arrays."""
import json

import numpy as np
import pytest

import graphq as gq
from graphq.quantization.compare import distance, floats
from graphq.quantization.comparison import SHOWN, Comparison, TensorDifference


def comparison(*costs):
    rows = [TensorDifference(f"t{k}", "matmul", 30.0 + k, 0.9, 0.5, None if k else 0.25, cost)
            for k, cost in enumerate(costs)]
    return Comparison(rows, 0.125, gq.Graph())


def test_costs_up_to_the_noise_are_in_no_order():
    found = comparison(0.002, None, 0.03, -0.002, -0.01, 0.02, 0.01, None)
    assert found.noise == 0.01
    assert [t.name for t in found.tensors] == ["t2", "t5", "t0", "t1", "t3", "t4", "t6", "t7"]
    assert [found.known_cost(t) for t in found.tensors] == [0.03, 0.02, *[None] * 6]
    assert found.summary == "outputs: 1 - cosine 1.25e-01; costs up to 1.0e-02 are noise, in no order"
    exact = comparison(0.0, 0.001, 0.002)
    assert exact.noise == 0 and [t.name for t in exact.tensors] == ["t2", "t1", "t0"]
    assert exact.summary == "outputs: 1 - cosine 1.25e-01" and exact.known_cost(exact["t0"]) is None


def test_the_table_and_json():
    found = comparison(*[0.001] * (SHOWN + 2))
    lines = str(found).splitlines()
    assert len(lines) == 3 + SHOWN and lines[-1] == "... 2 more, as JSON or on a page"
    assert lines[1].split() == ["cost", "SQNR", "dB", "cosine", "largest", "saturated", "tensor"]
    assert lines[2].split() == ["1.0e-03", "30.0", "0.900000", "0.5", "25.000%", "t0", "(matmul)"]
    assert len(str(comparison(*[0.001] * SHOWN)).splitlines()) == 2 + SHOWN
    found["t3"].sqnr = np.inf
    rows = json.loads(found.json())
    assert rows["loss"] == 0.125 and rows["noise"] == 0 and rows["tensors"][3]["sqnr"] is None
    assert rows["tensors"][4] == {"name": "t4", "op": "matmul", "sqnr": 34.0, "cosine": 0.9, "largest": 0.5,
                                  "saturation": None, "cost": 0.001}
    with pytest.raises(KeyError, match="t99"):
        found["t99"]


@pytest.mark.parametrize("a, b, want", [
    ([1, 0], [1, 0], 0), ([1, 0], [0, 3], 1), ([1, 0], [-2, 0], 2), ([3, 4], [4, 3], 1 - 24 / 25), ([0, 0], [0, 0], 0),
    ([0, 0], [0, 1], 1), ([[1], [2]], [[2], [4]], 0)])
def test_distances(a, b, want):
    assert distance(np.float32(a), np.float32(b)) == pytest.approx(want, abs=1e-12)


def test_outputs_in_floating_point():
    x, k = np.float32([1]), np.int64([2])
    assert floats(x) == [x] and floats({"k": k, "x": x}) == [x] and floats({"k": k}) == [k]

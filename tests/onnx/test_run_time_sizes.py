"""Numbers of a call that decide shapes, or that pick elements without a kernel: at a limit, beyond it and far beyond.

A number either gives what the references of the operations give, or is refused by an error of graphq's, and without the
memory that it asks for. Numbers that kernels read are in tests/kernels/test_run_time_numbers.py.
"""
import tracemalloc

import numpy as np
import pytest
from onnx_node import MICROSOFT, feeds, node_model

import graphq as gq
from graphq.errors import GraphqError

rng = np.random.default_rng(3)
KIND = np.iinfo(np.int64)
MOST = 64 << 20
"""The bytes that a call may take."""


def floats(*shape):
    return rng.standard_normal(shape).astype(np.float32)


def ints(*numbers, shape=None):
    return np.array(numbers).reshape(shape or (len(numbers),))


FAR = 1 << 40
N = 12345
"""Stands for the number of a row."""
X = floats(4, 6)
IMAGE = floats(1, 1, 4, 4)
ROWS = {
    # name: (operator, inputs, attributes, opset or domain, numbers allowed, numbers refused)
    "GatherElements": ("GatherElements", [("x", X), ("n", ints(0, N, shape=(1, 2)))], {}, 17, [-4, 3], [-5, 4]),
    "GatherND": ("GatherND", [("x", X), ("n", ints(1, 1, N, 2, shape=(2, 2)))], {}, 17, [-4, 3], [-5, 4]),
    "GatherND of batches": ("GatherND", [("x", X), ("n", ints(0, 1, 2, N, shape=(4, 1)))], {"batch_dims": 1}, 17,
                            [-6, 5], [-7, 6]),
    "ScatterElements": ("ScatterElements", [("x", X), ("n", ints(0, N, shape=(1, 2))), ("u", floats(1, 2))], {}, 17,
                        [-4, 3], [-5, 4]),
    "ScatterND": ("ScatterND", [("x", X), ("n", ints(0, 1, N, 2, shape=(2, 2))), ("u", floats(2))], {}, 17, [-4, 3],
                  [-5, 4]),
    "Slice, start": ("Slice", [("x", X), ("n", ints(N)), ("e", ints(3))], {}, 17,
                     [-5, -4, 3, 4, 5, KIND.min, KIND.max], []),
    "Slice, end": ("Slice", [("x", X), ("s", ints(1)), ("n", ints(N))], {}, 17, [-5, -4, 0, 4, 5, KIND.min, KIND.max],
                   []),
    "Slice, axis": ("Slice", [("x", X), ("s", ints(1)), ("e", ints(3)), ("n", ints(N))], {}, 17, [-2, 1], [-3, 2]),
    "Slice, step": ("Slice", [("x", X), ("s", ints(0)), ("e", ints(3)), ("a", ints(0)), ("n", ints(N))], {}, 17,
                    [1, 2, -1, KIND.min, KIND.max], [0]),
    "Slice backwards, step": ("Slice", [("x", X), ("s", ints(3)), ("e", ints(KIND.min)), ("a", ints(0)),
                                        ("n", ints(N))], {}, 17, [1, -1, -3, -4, KIND.min, KIND.max], [0]),
    **{f"Pad, {mode}": ("Pad", [("x", X), ("n", ints(0, N, 1, 0))], {"mode": mode}, 19, [-6, -5, 0, 5, 9], [-7, FAR])
       for mode in ("constant", "edge", "wrap", "reflect")},
    "Pad, axis": ("Pad", [("x", X), ("p", ints(0, 1)), ("", None), ("n", ints(N))], {}, 19, [-2, 1], [-3, 2]),
    "Tile": ("Tile", [("x", X), ("n", ints(1, N))], {}, 17, [0, 1, 3], [-1, FAR]),
    "Expand": ("Expand", [("x", floats(4, 1)), ("n", ints(4, N))], {}, 17, [0, 1, 7], [-1, FAR]),
    "Expand, fixed": ("Expand", [("x", X), ("n", ints(N, 6))], {}, 17, [1, 4], [-1, 0, 2, 5]),
    "ConstantOfShape": ("ConstantOfShape", [("n", ints(2, N))], {}, 17, [0, 1, 9], [-1, FAR]),
    "ConstantOfShape beside 0": ("ConstantOfShape", [("n", ints(0, N))], {}, 17, [0, 1, FAR], [-1]),
    "Reshape": ("Reshape", [("x", X), ("n", ints(8, N))], {}, 17, [3, -1], [0, 2, 4, -2, FAR]),
    "OneHot, index": ("OneHot", [("n", ints(1, N)), ("d", np.array(5)), ("v", floats(2))], {}, 17,
                      [-5, 4, -6, 5, KIND.max, KIND.min], []),
    "OneHot, depth": ("OneHot", [("i", ints(1, 0)), ("n", np.array(N)), ("v", floats(2))], {}, 17, [2, 5], [FAR]),
    "TopK": ("TopK", [("x", X), ("n", ints(N))], {}, 17, [0, 1, 6], [7, FAR]),
    "Range, limit": ("Range", [("a", np.array(0)), ("n", np.array(N)), ("c", np.array(1))], {}, 17,
                     [-1, 0, 1, 9, KIND.min], [FAR]),
    "Range, start": ("Range", [("n", np.array(N)), ("b", np.array(0)), ("c", np.array(-1))], {}, 17,
                     [-1, 0, 1, 9, KIND.min], [FAR]),
    "Range, delta": ("Range", [("a", np.array(0)), ("b", np.array(1 << 40)), ("n", np.array(N))], {}, 17,
                     [-1, 1 << 39, 1 << 40, KIND.max, KIND.min], [0, 1, 2]),
    "Resize": ("Resize", [("x", IMAGE), ("", None), ("", None), ("n", ints(1, 1, 4, N))], {}, 17, [1, 4, 9],
               [-1, FAR]),
    "Resize, linear": ("Resize", [("x", IMAGE), ("", None), ("", None), ("n", ints(1, 1, 4, N))], {"mode": "linear"},
                       17, [1, 4, 9], [-1, FAR]),
    "Split": ("Split", [("x", X), ("n", ints(1, N))], {}, 17, [3], [-1, 2, 4]),
    "Unsqueeze": ("Unsqueeze", [("x", X), ("n", ints(N))], {}, 17, [-3, 2], [-4, 3]),
    "Squeeze": ("Squeeze", [("x", floats(1, 4, 1)), ("n", ints(N))], {}, 17, [-3, 0, 2], [-4, 1, 3]),
    "ReduceSum": ("ReduceSum", [("x", X), ("n", ints(N))], {}, 17, [-2, 1], [-3, 2]),
    "CumSum": ("CumSum", [("x", X), ("n", np.array(N))], {}, 17, [-2, 1], [-3, 2]),
    "Trilu": ("Trilu", [("x", X), ("n", np.array(N))], {}, 17, [-5, -4, 6, 7, KIND.min, KIND.max], []),
    "NonMaxSuppression": ("NonMaxSuppression", [("b", floats(1, 5, 4)), ("s", floats(1, 1, 5)), ("n", ints(N))], {}, 17,
                          [0, 1, 5, 6, KIND.max, KIND.min], []),
    "RoiAlign": ("RoiAlign", [("x", np.repeat(IMAGE, 2, 0)), ("r", np.abs(floats(2, 4))), ("n", ints(0, N))], {}, 17,
                 [0, 1], [-1, 2]),
    "RoiAlign 10": ("RoiAlign", [("x", np.repeat(IMAGE, 2, 0)), ("r", np.abs(floats(2, 4))), ("n", ints(0, N))], {}, 10,
                    [0, 1], [-1, 2]),
    "DFT": ("DFT", [("x", floats(1, 8, 1)), ("n", np.array(N))], {}, 17, [1, 8, 9], [-1, 0, FAR]),
    "STFT, frame": ("STFT", [("x", floats(1, 16, 1)), ("s", np.array(2)), ("", None), ("n", np.array(N))], {}, 17,
                    [1, 16], [-1, 17, FAR]),
    "HannWindow": ("HannWindow", [("n", np.array(N))], {}, 17, [0, 1, 9, KIND.min], [FAR]),
    "CenterCropPad": ("CenterCropPad", [("x", X), ("n", ints(3, N))], {}, 18, [1, 6, 9, KIND.min], [FAR]),
    "TensorScatter": ("TensorScatter", [("x", floats(2, 6, 3)), ("u", floats(2, 2, 3)), ("n", ints(1, N))], {}, 24,
                      [0, 4], [5, 6]),
    "RotaryEmbedding": ("RotaryEmbedding", [("x", floats(1, 2, 2, 8)), ("c", floats(6, 4)), ("s", floats(6, 4)),
                                            ("n", ints(1, N, shape=(1, 2)))], {}, 23, [-6, 5], [-7, 6]),
    "GatherBlockQuantized": ("GatherBlockQuantized", [("W", rng.integers(0, 255, (4, 32)).astype(np.uint8)),
                                                      ("n", ints(0, N)), ("S", floats(4, 2))],
                             {"bits": 4, "block_size": 32, "gather_axis": 0, "quantize_axis": 1}, MICROSOFT, [-4, 3],
                             [-5, 4]),
}
"""The number is where the input `n` has N. All rows refuse the extremes of s64 unless they allow them."""


def results(call):
    """The arrays that a call returns, or the error of graphq's that it raises."""
    try:
        out = call()
    except GraphqError as e:
        return e
    return list(out.values()) if isinstance(out, dict) else [out]


@pytest.mark.parametrize("name", ROWS)
def test_sizes_at_their_limits_and_beyond(name):
    op, inputs, attrs, where, allowed, refused = ROWS[name]
    opset, domain = (17, where) if where == MICROSOFT else (where, "")
    model = node_model(op, inputs, attrs, {"TopK": 2, "Split": 2}.get(op, 1), domain=domain, opset=opset)
    g = gq.load_onnx(model)
    compiled, x = gq.compile(g, threads=1, memory=MOST), feeds(inputs)
    at = int(np.flatnonzero(x["n"].reshape(-1) == N)[0])
    for number in (*allowed, *refused, *(k for k in (KIND.min, KIND.max) if k not in allowed)):
        numbers = x["n"].reshape(-1).copy()
        numbers[at] = number
        x["n"] = numbers.reshape(x["n"].shape)
        tracemalloc.start()
        got = results(lambda: compiled(x))
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert most < 4 * MOST, f"{number} took {most} bytes"
        if number not in allowed:
            assert isinstance(got, GraphqError), f"{number} gives {got}"
            continue
        want = results(lambda: gq.reference(g, x))
        assert not isinstance(got, GraphqError), f"{number} is refused: {got}"
        for a, b in zip(got, want, strict=True):
            most = 1e-6 if name == "ReduceSum" else 0.0  # NumPy's f32 sums have their own order
            # a DFT sums up to 8 products by factors of at most 1: two orders differ by at most 2 * 8 roundings
            bound = 16 * 2.0**-24 * np.abs(x["x"]).sum() if name == "DFT" else 0.0
            np.testing.assert_allclose(a, b, rtol=most, atol=bound, err_msg=f"{number}")

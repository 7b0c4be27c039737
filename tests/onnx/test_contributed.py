"""com.microsoft's small operators against ONNX Runtime and against formulas."""
import numpy as np
import pytest
from onnx_node import assert_near, by_graphq, by_onnx_runtime, node_model
from scipy.special import erf

import graphq as gq
from graphq.errors import GraphError

rng = np.random.default_rng(6)


def floats(*shape):
    return rng.standard_normal(shape).astype(np.float32)


X, I64, I32 = floats(3, 4, 5), np.int64, np.int32
ROW = np.float32([2, 1, 1, 3, 4, 3])
GRID = rng.uniform(-1.2, 1.2, (2, 5, 6, 2)).astype(np.float32)
S8, U8 = rng.integers(-128, 128, (3, 4, 5)).astype(np.int8), rng.integers(0, 256, (3, 4, 5)).astype(np.uint8)

# operator -> inputs, attributes, outputs, and what a formula gives where it is short
CASES = {
    "Trilu": ([("x", X), ("K", I64(1))], {}, [np.triu(X, 1)]),
    "Trilu lower": ([("x", X)], {"upper": 0}, [np.tril(X)]),
    "Trilu integers": ([("x", X.astype(I64)), ("K", I64(-2))], {"upper": 1}, [np.triu(X.astype(I64), -2)]),
    "ExpandDims": ([("x", X), ("K", I32(1))], {}, [X[:, None]]),
    "ExpandDims last": ([("x", X), ("K", I32(-1))], {}, [X[..., None]]),
    "Range": ([("A", I64(3)), ("B", I64(9)), ("C", I64(2))], {}, [np.array([3, 5, 7])]),
    "Range down": ([("A", np.float32([3])), ("B", np.float32([0])), ("C", np.float32([-0.75]))], {},
                   [np.float32([3, 2.25, 1.5, 0.75])]),
    "Range by one": ([("a", I32(2)), ("b", I32(6))], {}, [np.array([2, 3, 4, 5], I32)]),
    "GatherND": ([("x", X), ("i", np.array([[[0, 1]], [[2, 3]]], I32))], {}, [X[[[0], [2]], [[1], [3]]]]),
    "GatherND s64": ([("x", U8), ("i", np.array([[1], [0]]))], {}, [U8[[1, 0]]]),
    "Pad": ([("x", X), ("P", np.array([0, 1, 2, 1, 0, 3])), ("V", np.float32([1.5]))], {},
            [np.pad(X, [(0, 1), (1, 0), (2, 3)], constant_values=1.5)]),
    "Pad row": ([("x", X), ("P", np.array([[0, 1, 2, 0, 2, -1]]))], {"mode": "reflect"},
                [np.pad(X[..., :-1], [(0, 0), (1, 2), (2, 0)], mode="reflect")]),
    "Pad edge": ([("x", X), ("p", np.array([1, 0, 0, 0, 0, 1]))], {"mode": "edge"},
                 [np.pad(X, [(1, 0), (0, 0), (0, 1)], mode="edge")]),
    "Unique": ([("x", ROW)], {}, [np.float32([2, 1, 3, 4]), np.array([0, 1, 1, 2, 3, 2]), np.array([1, 2, 2, 1])]),
    "GridSample": ([("x", floats(2, 3, 7, 8)), ("g", GRID)], {}, None),
    "GridSample cubic": ([("x", floats(2, 3, 7, 8)), ("g", GRID)], {
        "mode": "bicubic", "align_corners": 1, "padding_mode": "border"}, None),
    "GridSample nearest": ([("x", floats(2, 3, 7, 8)), ("g", GRID)], {
        "mode": "nearest", "padding_mode": "reflection"}, None),
    "ScaledSiLU": ([("x", X)], {"alpha": 1.5}, [1.5 * X / (1 + np.exp(-1.5 * X))]),
    "ScaledSiLU scale": ([("x", X), ("s", np.float16(0.5))], {}, [0.5 * X / (1 + np.exp(-0.5 * X))]),
    "GatedAdd": ([("x", X), ("y", X + 1), ("g", floats(3, 4, 1))], {}, None),
}

FORMULAS = {
    "BiasAdd": ([("x", X), ("B", X[0, 0]), ("y", X + 1)], {}, [X + X[0, 0] + (X + 1)]),
    "BiasSoftmax": ([("x", X), ("b", X[:, :1])], {"axis": 2, "is_inner_broadcast": 1},
                    [np.exp(X + X[:, :1]) / np.exp(X + X[:, :1]).sum(axis=2, keepdims=True)]),
    "BiasSoftmax two axes": ([("x", X), ("b", X[:1])], {"is_inner_broadcast": 0},
                             [np.exp(X + X[:1]) / np.exp(X + X[:1]).sum(axis=(1, 2), keepdims=True)]),
    "BiasSplitGelu": ([("x", floats(2, 3, 8)), ("B", floats(8))], {}, None),
    "GemmFastGelu": ([("x", floats(2, 3, 8)), ("W", floats(8, 5)), ("B", floats(5))], {}, None),
    "MulInteger": ([("a", S8), ("A", np.int8(3)), ("b", S8[:, :1]), ("B", np.int8(-7))], {},
                   [(S8.astype(I32) - 3) * (S8[:, :1].astype(I32) + 7)]),
    "MulInteger alone": ([("a", U8), ("", None), ("b", U8[0]), ("z", U8[:1, 0, 0])], {},
                         [U8.astype(I32) * (U8[0].astype(I32) - U8[0, 0, 0])]),
    "ReduceSumInteger": ([("x", S8)], {"axes": [0, -1], "keepdims": 0}, [S8.sum(axis=(0, 2), dtype=I32)]),
    "ReduceSumInteger u8": ([("x", U8)], {"axes": [1], "keepdims": 1},
                            [U8.sum(axis=1, dtype=np.uint32, keepdims=True)]),
}


def model(name, inputs, attrs, open_shapes=False):
    return node_model(name.split()[0], inputs, attrs, 3 if name == "Unique" else 1, open_shapes=open_shapes)


@pytest.mark.parametrize("open_shapes", [False, True], ids=["fixed", "open"])
@pytest.mark.parametrize("name", CASES)
def test_as_onnx_runtime(name, open_shapes):
    inputs, attrs, formula = CASES[name]
    m = model(name, inputs, attrs, open_shapes)
    want = by_onnx_runtime(model(name, inputs, attrs), inputs)
    for got in by_graphq(m, inputs):
        assert_near(got, want)


def formula(name, inputs, want):
    x = [v for _, v in inputs]
    if name == "GatedAdd":
        return [x[0] + x[1] * x[2]]
    if name == "BiasSplitGelu":
        a, b = np.split(x[0] + x[1], 2, axis=-1)
        return [(a * b * (1 + erf(b / np.sqrt(2))) / 2).astype(np.float32)]
    if name == "GemmFastGelu":
        y = x[0] @ x[1] + x[2]
        return [(y * (1 + np.tanh(np.sqrt(2 / np.pi) * (y + 0.044715 * y**3))) / 2).astype(np.float32)]
    return want


@pytest.mark.parametrize("open_shapes", [False, True], ids=["fixed", "open"])
@pytest.mark.parametrize("name", [*FORMULAS, *(k for k in CASES if not k.startswith("GridSample"))])
def test_formula(name, open_shapes):
    inputs, attrs, want = (FORMULAS | CASES)[name]
    for got in by_graphq(model(name, inputs, attrs, open_shapes), inputs):
        assert_near(got, formula(name, inputs, want))


BAD = {
    "Trilu": ([], {}, "input 0 is required"),
    "Trilu rank": ([("x", ROW)], {}, ""),
    "ExpandDims axis": ([("x", X), ("K", I32(5))], {}, ""),
    "ExpandDims axes": ([("x", X), ("K", I32([0, 1]))], {}, "input 1 must be"),
    "ExpandDims open": ([("x", X), ("k", I32(0))], {}, "input 1 is not known before it runs"),
    "ExpandDims missing": ([("x", X)], {}, "input 1 is required"),
    "Range missing": ([("A", I64(3))], {}, "input 1 is required"),
    "Range rank": ([("A", np.arange(3)), ("B", I64(9))], {}, r"a tensor of one element is needed, got s64\[3\]"),
    "Range dtypes": ([("A", I64(3)), ("B", np.float32(9))], {}, "inputs 0 and 1 must have one dtype, .* and f32"),
    "GatherND missing": ([("x", X)], {}, "input 1 is required"),
    "GatherND rank": ([("x", X), ("i", np.zeros((2, 4), I32))], {}, ""),
    "Pad missing": ([("x", X)], {}, "input 1 is required"),
    "Pad count": ([("x", X), ("P", np.array([1, 2]))], {}, "pads must be 6 numbers"),
    "Pad mode": ([("x", X), ("P", np.zeros(6, I64))], {"mode": "round"}, "attribute 'mode' must be"),
    "Pad wrap": ([("x", X), ("P", np.zeros(6, I64))], {"mode": "wrap"}, "attribute 'mode' must be"),
    "GridSample missing": ([("x", X)], {}, "input 1 is required"),
    "GridSample shapes": ([("x", X), ("g", GRID)], {}, ""),
    "MulInteger zero point": ([("a", S8), ("A", np.uint8(3)), ("b", S8)], {},
                              "inputs 0 and 1 must have one dtype, got s8.* and u8"),
    "MulInteger zero points": ([("a", S8), ("A", S8[0, 0]), ("b", S8)], {}, r"input 1 must be one s8, got s8\[5\]"),
    "MulInteger shapes": ([("a", S8), ("", None), ("b", S8[:2])], {}, ""),
    "ReduceSumInteger": ([("x", X)], {"axes": [0]}, "input 0 must be s8 or u8, got f32"),
    "ReduceSumInteger axes": ([("x", S8)], {"axes": [7]}, ""),
    "BiasAdd": ([("x", X), ("B", X[0, 0])], {}, "input 2 is required"),
    "BiasAdd shapes": ([("x", X), ("B", floats(4)), ("y", X)], {}, ""),
    "BiasAdd one": ([("x", X), ("B", floats(1)), ("y", X)], {}, "input 1 must be"),
    "BiasAdd row": ([("x", X), ("B", X[0, 0]), ("y", X[:1])], {}, "input 2 must be"),
    "BiasSplitGelu": ([("x", X), ("B", floats(4))], {}, ""),
    "BiasSplitGelu one": ([("x", floats(2, 8)), ("B", floats(1))], {}, "input 1 must be"),
    "GemmFastGelu": ([("x", X), ("W", floats(4, 4))], {}, ""),
    "GemmFastGelu one": ([("x", X), ("W", floats(5, 4)), ("B", floats(1))], {}, "input 2 must be"),
    "GatedAdd row": ([("x", X), ("y", X[:1]), ("g", floats(3, 4, 1))], {}, "input 1 must be"),
    "GatedAdd": ([("x", X), ("y", X), ("g", floats(3, 2, 1))], {}, ""),
}


@pytest.mark.parametrize("name", BAD)
def test_malformed_nodes(name):
    inputs, attrs, message = BAD[name]
    with pytest.raises(GraphError, match=f"{name.split()[0]} 'o0.*{message}"):
        gq.load_onnx(model(name, inputs, attrs))

"""PIPELINE from end to end: what real graphs become, and that the reference's numbers stay, bit for bit."""
from types import FunctionType

import numpy as np
import pytest

from graphq.base.budget import budget
from graphq.errors import CompileError, GraphError
from graphq.ir import Graph
from graphq.ir.text import to_text
from graphq.ir.verify import verify
from graphq.passes import PIPELINE, DropMultiplyByOne, DropRepeatedRelu, Fixpoint, RowsLast, run_passes
from graphq.passes.pipeline import named, names_of
from graphq.testing import check_round_trip, check_same_numbers


def run(g):
    """PIPELINE on a copy, one pass at a time: verified, printed and parsed, and the same numbers after each."""
    out = g.copy()
    for step in PIPELINE:
        before = out.copy()
        step(out)
        verify(out)
        check_round_trip(out)
        check_same_numbers(before, out)
    check_same_numbers(g, out)
    whole = g.copy()
    run_passes(whole)
    assert to_text(whole) == to_text(out)
    return out


def ops(g):
    """The operations, anchors for partitions; no constants."""
    return [n.attrs.get("anchor", n.op.name) for n in g.nodes if n.op.name != "constant"]


def quantized(g, rng, k, n, dtype=np.int8):
    """Weights of k x n, per column, dequantized."""
    w = rng.integers(-127, 128, (k, n)).astype(dtype)
    return g.dequantize(g.constant(w), qtype="per_channel", axis=-1, scales=rng.uniform(0.01, 0.02, n).tolist())


def bias(g, rng, n):
    return g.constant(rng.standard_normal(n).astype(np.float32))


def test_mlp():
    rng, g = np.random.default_rng(0), Graph("mlp")
    x = g.input("x", dtype="f32", shape=(5, 64))
    v = g.quantize(x, dtype="u8", scales=[0.05], zps=[128])
    for n in (32, 16):
        y = g.matmul(g.dequantize(v, scales=[0.05], zps=[128]), quantized(g, rng, v.shape[1], n))
        v = g.quantize(g.relu(g.bias_add(y, bias(g, rng, n))), dtype="u8", scales=[0.05], zps=[128])
    y = g.matmul(g.dequantize(v, scales=[0.05], zps=[128]), quantized(g, rng, 16, 10), bias(g, rng, 10))
    g.output(g.softmax(y), name="probabilities")
    assert ops(run(g)) == ["eltwise", "matmul", "matmul", "matmul", "row"]


def test_residual_block():
    """The input feeds two matmuls and a sum; each folds its own dequantize."""
    rng, g = np.random.default_rng(1), Graph("residual")
    x = g.input("x", dtype="u8", shape=(3, 16))
    dx = g.dequantize(x, scales=[0.1], zps=[3])
    a = g.matmul(dx, quantized(g, rng, 16, 16))
    b = g.sigmoid(g.matmul(dx, quantized(g, rng, 16, 16)))
    qb = g.quantize(b, dtype="u8", scales=[1 / 255])
    y = g.add(g.add(a, g.dequantize(qb, scales=[1 / 255])), dx)
    g.output(g.quantize(g.relu(y), dtype="u8", scales=[0.2]), name="y")
    out = run(g)
    assert ops(out) == ["matmul", "matmul"]
    assert [n.op.name for n in out.nodes[-1].attrs["body"].nodes].count("dequantize") == 4


def test_transposed_weights_fold():
    rng, g = np.random.default_rng(2), Graph("transposed")
    x = g.input("x", dtype="s8", shape=(3, 8))
    w = g.constant(rng.integers(-127, 128, (4, 8)).astype(np.int8))
    dw = g.dequantize(w, qtype="per_channel", axis=0, scales=[0.1, 0.2, 0.3, 0.4])
    y = g.matmul(g.dequantize(x, scales=[0.1]), g.static_transpose(dw, order=[1, 0]))
    g.output(y, name="y")
    out = run(g)
    assert ops(out) == ["matmul"]
    (weights,) = (n.output for n in out.nodes if n.op.name == "constant")
    assert weights.shape == (8, 4) and weights.dtype == "s8"


def test_quantized_in_the_graph():
    """Weights that are quantized constants; the pair of quantize and dequantize keeps its rounding."""
    rng, g = np.random.default_rng(3), Graph("fold")
    x = g.input("x", dtype="u8", shape=(3, 8))
    w = g.quantize(g.constant(rng.standard_normal((8, 4)).astype(np.float32)), dtype="s8", scales=[0.02])
    y = g.matmul(g.dequantize(x, scales=[0.1]), g.dequantize(w, scales=[0.02]))
    pair = g.dequantize(g.quantize(y, dtype="s8", scales=[0.5]), scales=[0.5])
    g.output(g.tanh(pair), name="y")
    out = run(g)
    assert ops(out) == ["matmul"]
    assert [n.op.name for n in out.nodes[-1].attrs["body"].nodes] == ["dequantize", "dequantize", "matmul", "quantize",
                                                                      "dequantize", "tanh"]


def test_f32_graph():
    rng, g = np.random.default_rng(4), Graph("f32")
    x = g.input("x", dtype="f32", shape=(3, 8))
    y = g.matmul(x, g.constant(rng.standard_normal((8, 4)).astype(np.float32)))
    g.set_outputs([g.relu(g.bias_add(y, bias(g, rng, 4))), y], ["y", "raw"])
    out = run(g)
    assert ops(out) == ["matmul", "eltwise"]
    refusals = run_passes(g.copy())
    reason = next(r.reason for r in refusals if r.rewrite == "FuseMatmul")
    assert reason.startswith("expected dequantize or dynamic_dequantize, found input x")


def test_weights_that_only_f32_operations_use_become_f32():
    g = Graph()
    w = g.dequantize(g.constant(np.arange(6, dtype=np.int8).reshape(2, 3)), scales=[0.5])
    x = g.input("x", dtype="f32", shape=(2, 3))
    g.output(g.add(x, w), name="y")
    out = run(g)
    assert ops(out) == ["eltwise"] and out.nodes[0].output.data.dtype == np.float32


def test_dead_code_and_duplicates_vanish():
    g = Graph()
    x = g.input("x", dtype="f32", shape=(2, 3))
    g.softmax(x)
    a, b = g.softmax(x, axis=-1), g.softmax(x, axis=1)
    g.set_outputs([g.add(a, b), a], ["sum", "a"])
    assert ops(run(g)) == ["row", "eltwise"]


@pytest.mark.parametrize("returned", ["input", "constant", "twice"])
def test_odd_outputs(returned):
    g = Graph()
    x = g.input("x", dtype="f32", shape=(2, 3))
    v = {"input": x, "constant": g.multiply(g.constant([1.0, 2.0]), 2.0), "twice": g.relu(x)}[returned]
    g.set_outputs([v, v], ["a", "b"])
    out = run(g)
    assert out.output_names == ["a", "b"] and out.outputs[0] is out.outputs[1]


def test_an_empty_graph():
    g = Graph()
    assert run_passes(g) == [] and g.nodes == []


def test_scalars():
    g = Graph()
    x = g.input("x", dtype="u8", shape=())
    g.output(g.quantize(g.relu(g.dequantize(x, scales=[0.5], axis=-1)), dtype="s8", scales=[0.25], axis=-1), name="y")
    assert ops(run(g)) == ["eltwise"]


def test_open_shapes_keep_their_operations():
    g = Graph()
    x = g.input("x", dtype="f32", shape=(None, 3))
    g.output(g.relu(g.relu(x)), name="y")
    run_passes(g)
    assert ops(g) == ["relu"]
    verify(g)


def random_graph(rng):
    """A graph of random operations on u8 [4,8] and f32 [4,8] values, some returned."""
    g = Graph("random")
    floats, bytes_ = [], [g.input("x", dtype="u8", shape=(4, 8)), g.input("z", dtype="u8", shape=(4, 8))]

    def pick(values):
        return values[rng.integers(max(0, len(values) - 3), len(values))]

    for _ in range(rng.integers(5, 25)):
        kind = rng.integers(0, 6)
        if kind == 0 or not floats:
            floats.append(g.dequantize(pick(bytes_), scales=[0.1], zps=[int(rng.integers(0, 256))]))
        elif kind == 1:
            bytes_.append(g.quantize(pick(floats), dtype="u8", scales=[float(rng.uniform(0.05, 1))], zps=[128]))
        elif kind == 2:
            floats.append(getattr(g, rng.choice(["relu", "tanh", "sigmoid", "abs"]))(pick(floats)))
        elif kind == 3:
            op = getattr(g, rng.choice(["add", "multiply", "subtract", "maximum"]))
            floats.append(op(pick(floats), pick(floats)))
        elif kind == 4:
            floats.append(g.matmul(g.dequantize(pick(bytes_), scales=[0.02]), quantized(g, rng, 8, 8)))
        else:
            floats.append(g.softmax(pick(floats), axis=-1))
    values = [*floats, *bytes_[2:]]
    chosen = [values[-1], *(values[k] for k in rng.integers(0, len(values), 2))]
    g.set_outputs(chosen, [f"y{k}" for k in range(len(chosen))])
    return g


@pytest.mark.parametrize("seed", range(30))
def test_random_graphs_keep_their_numbers(seed):
    g = random_graph(np.random.default_rng(seed))
    before, out = g.copy(), g.copy()
    run_passes(out)
    check_same_numbers(before, out)
    check_round_trip(out)
    assert to_text(g) == to_text(before)


def test_long_graphs():
    """2,000 operations, few of which can fuse: nothing here may take quadratic time or deep recursion."""
    g = Graph()
    v = x = g.input("x", dtype="f32", shape=(4, 8))
    for k in range(2000):
        v = g.softmax(v) if k % 50 == 7 else g.add(v, x) if k % 3 == 2 else g.tanh(v)
    g.output(v, name="y")
    run_passes(g)
    assert ops(g).count("row") == 40 and set(ops(g)) == {"row", "eltwise"}


def test_constants_count_first():
    def graph():
        g = Graph()
        g.output(g.add(g.input("x", dtype="f32", shape=(50,)), np.ones(50, np.float32)), name="y")
        return g

    with budget(200):
        run_passes(graph(), [])
    with budget(199), pytest.raises(CompileError, match="the graph's constants would take"):
        run_passes(graph(), [])


def test_passes_by_their_names():
    """Every pass of PIPELINE is found again, a new instance of a rewrite as well; others have no name to be kept by."""
    names = names_of(PIPELINE)
    assert len(names) == len(PIPELINE) and names_of(named(names)) == names
    assert named(names[3:1:-1]) == (PIPELINE[3], PIPELINE[2])
    rewrite = next(step for step in PIPELINE if type(step) is RowsLast)
    assert names_of([RowsLast(), PIPELINE[0]]) == names_of([rewrite, PIPELINE[0]])

    class Other(RowsLast):
        name = rewrite.name

    def function(graph):
        return 0

    function.__name__ = next(step.__name__ for step in PIPELINE if isinstance(step, FunctionType))
    repeated = next(step for step in PIPELINE if isinstance(step, Fixpoint))
    for step in (Other(), function, Fixpoint(repeated.name, *repeated.passes[1:]), lambda graph: 0):
        with pytest.raises(GraphError, match="a saved model may have RangesByRow, leave_ties and .* not"):
            names_of([PIPELINE[0], step])
    with pytest.raises(KeyError):
        named([names[0], "other"])


def test_unnamed_values_are_called_as_before_the_passes():
    g = Graph()
    x = g.relu(g.abs(g.input("x", dtype="f32", shape=(3,))))
    y = g.tanh(g.relu(x))
    g.output(g.square(y), name="z")
    assert (g.label(x), g.label(y)) == ("%1", "%3")
    run_passes(g, [DropRepeatedRelu()])
    assert (g.label(x), g.label(y)) == ("%1", "%3") and len(g.nodes) == 4


def test_the_graph_is_printed_after_each_pass_that_changed_it(monkeypatch, capsys):
    monkeypatch.setenv("GRAPHQ_DEBUG", "verify,passes")
    g = Graph()
    g.output(g.relu(g.relu(g.input("x", dtype="f32", shape=(2,)))), name="y")
    run_passes(g, [DropRepeatedRelu(), DropMultiplyByOne()])
    assert capsys.readouterr().err == f"# DropRepeatedRelu: 1\n{to_text(g)}\n\n"

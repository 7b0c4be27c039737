"""Weights that several products use are quantized once, and are once in the file."""
import numpy as np
import onnx
import pytest

import graphq as gq
from graphq.quantization import Scheme, quantize
from graphq.quantization.insert import QuantizedWeights
from graphq.quantization.products import prepared, products

SIZE = 32
BATCHES = [{"x": np.random.default_rng(k).standard_normal((4, SIZE)).astype(np.float32)} for k in range(2)]


def network(copies=False, own=0):
    """Three products of the same weights in a row, after `own` products of weights of their own."""
    rng = np.random.default_rng(0)
    w, *others = (rng.standard_normal((SIZE, SIZE)).astype(np.float32) for _ in range(1 + own))
    g = gq.Graph("network")
    y = g.input("x", shape=(4, SIZE), dtype="f32")
    for other in others:
        y = g.relu(g.matmul(y, g.constant(other)))
    common = g.constant(w)
    for k in range(3):
        y = g.relu(g.matmul(y, g.constant(w) if copies else common, rng.standard_normal(SIZE).astype(np.float32)),
                   name=f"y{k}")
    g.output(y)
    return g


@pytest.mark.parametrize("copies", [False, True])
@pytest.mark.parametrize("scheme", [
    Scheme(), Scheme(per_channel=False), Scheme(wide=["*"], wide_weights=["*"]), Scheme(mode="dynamic"),
    Scheme(mode="dynamic", rows=True), Scheme(mode="weight_only"), Scheme(mode="weight_only", weight_bits=4)], ids=str)
def test_weights_are_in_the_file_once(scheme, copies, tmp_path):
    """One tensor has the weights and, if they have 16 bits, another one what 8 bits leave."""
    found = quantize(network(copies), BATCHES, scheme)
    gq.save_onnx(found, tmp_path / "q.onnx")
    file = onnx.load(tmp_path / "q.onnx")
    large = [t for t in file.graph.initializer if np.prod(t.dims) == SIZE * SIZE]
    assert len(large) == (2 if scheme.wide_weights else 1)
    assert len({id(n.attrs["value"]) for n in found.nodes_of(["constant"]) if n.output.type.size == SIZE * SIZE}) \
        == len(large)
    x = BATCHES[0]["x"]
    assert np.array_equal(gq.compile(gq.load_onnx(tmp_path / "q.onnx"))(x), gq.compile(found)(x))


def test_each_product_has_scales_of_its_own_columns():
    g, w = gq.Graph("both ways"), np.random.default_rng(0).standard_normal((SIZE, SIZE)).astype(np.float32)
    x, w = g.input("x", shape=(4, SIZE), dtype="f32"), g.constant(w)
    for transposed in (False, True):
        g.output(g.matmul(x, w, transpose_b=transposed), name=f"y{transposed}")
    weights = QuantizedWeights()
    made = [weights.quantized(product, 1, Scheme()) for product in products(prepared(g))]
    assert [p.axis for _, p in made] == [1, 0] and made[0][0] is not made[1][0]


def test_rounding_by_results_is_that_of_each_product():
    """GPTQ rounds by the inputs of a product, so products with other inputs have their own integers."""
    rng = np.random.default_rng(1)
    w = rng.standard_normal((SIZE, SIZE)).astype(np.float32)
    inputs = [(rng.standard_normal((64, SIZE)) * np.geomspace(1, 100, SIZE)[::sign]).astype(np.float32)
              for sign in (1, -1)]

    def integers(*which):
        g = gq.Graph("gptq")
        common = g.constant(w)
        for k in which:
            g.output(g.matmul(g.input(f"x{k}", shape=(64, SIZE), dtype="f32"), common), name=f"y{k}")
        made = quantize(g, [{f"x{k}": inputs[k] for k in which}],
                        Scheme(mode="weight_only", weight_bits=4, rounding="gptq"))
        return [n.operand(1).node.operand(0).data.tolist() for n in made.nodes_of(["matmul"])]

    (first,), (second,) = integers(0), integers(1)
    assert first != second and integers(0, 1) == [first, second]


def test_equal_constants_without_names_are_one_initializer(tmp_path):
    g = gq.Graph("constants")
    x = g.input("x", shape=(3,), dtype="f32")
    y = g.add(g.add(x, g.constant(np.float32([1, 2, 3]))), g.constant(np.float32([1, 2, 3])))
    y = g.add(g.multiply(y, g.constant(np.float32([1, 2, 3]), name="a")), g.constant(np.float32([1, 2, 3]), name="b"))
    g.output(y, name="y")
    for k in range(2):
        g.output(g.constant(np.float32([5])), name=f"c{k}")
    gq.save_onnx(g, tmp_path / "c.onnx")
    names = [t.name for t in onnx.load(tmp_path / "c.onnx").graph.initializer]
    assert len(names) <= 5 and {"a", "b"} <= set(names)
    out = gq.compile(gq.load_onnx(tmp_path / "c.onnx"))(np.float32([1, 1, 1]))
    assert out["y"].tolist() == [4, 12, 24] and out["c0"] == out["c1"] == 5

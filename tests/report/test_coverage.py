"""model.coverage(): multiply-accumulates counted by hand, and which of them are in integer partitions."""
import numpy as np
import pytest

import graphq as gq
from graphq.passes import run_passes
from graphq.report.coverage import Coverage, coverage, kind_of, merged, millions

CONV = "strides=[1,2], pads_begin=[1,1], pads_end=[1,1], dilations=[1,1]"

OPERATIONS = {  # a statement, and its products
    "matmul(a, b)": 5 * 7 * 3 * 4,
    "matmul(v, b)": 5 * 3 * 4, "matmul(v, w)": 4,
    f'convolution(x, f, {CONV}, data_format="NCX", weights_format="OIX", groups=2)': 2 * 4 * 8 * 3 * (3 * 9),
    f'convolution(y, h, {CONV})': 2 * 4 * 8 * 3 * (6 * 9),
    f'conv_transpose(x, k, {CONV}, data_format="NCX", weights_format="IOX", groups=2)': 2 * 6 * 8 * 5 * (4 * 9),
    "matmul_integer(i, j)": 2 * 3 * 4,
    f"conv_integer(q, r, {CONV})": 1 * 2 * 4 * 2 * 9, "relu(x)": 0,
}
HEADER = """graph g(a: f32[5,7,4], b: f32[5,4,3], v: f32[4], w: f32[4], x: f32[2,6,8,5], f: f32[4,3,3,3],
    y: f32[2,8,5,6], h: f32[3,3,6,4], k: f32[6,4,3,3], i: u8[2,4], j: s8[4,3], q: u8[1,1,4,3], r: s8[2,1,3,3])"""


@pytest.mark.parametrize("statement", OPERATIONS)
def test_products_of_one_operation(statement):
    found = coverage(gq.parse(f"{HEADER} {{\n %out = {statement}\n return %out\n}}"))
    assert (found.integer, found.total) == (0, OPERATIONS[statement])
    assert found.share == (1.0 if "relu" in statement else 0.0)


def test_transposed_operands():
    statement = "%out = matmul(a, b, transpose_a=true, transpose_b=true)"
    g = gq.parse(f"graph(a: f32[4,7], b: f32[3,4]) {{\n {statement}\n return %out\n}}")
    assert coverage(g).total == 7 * 3 * 4


@pytest.mark.parametrize("quantized", [False, True])
def test_products_of_a_quantized_state_are_of_integers(quantized):
    g = gq.Graph()
    x, scales = g.input("x", dtype="f32", shape=(5, 2, 12)), [None, None, np.ones(1, np.float32)] if quantized else []
    g.output(g.lstm(x, np.ones((12, 3), np.float32), *scales)[0], name="y")
    found = coverage(g)
    assert (found.integer, found.total) == (5 * 2 * 12 * 3 * quantized, 5 * 2 * 12 * 3)


def network(shape=(8, 16)):
    """An integer matmul of 16 x 32, and a float one of 32 x 4."""
    rng = np.random.default_rng(0)
    g = gq.Graph("two")
    x = g.dequantize(g.input("x", shape=shape, dtype="u8"), scales=[0.1], zps=[128])
    w = g.dequantize(g.constant(rng.integers(-127, 128, (16, 32), dtype=np.int8)), scales=[0.01])
    g.output(g.matmul(g.relu(g.matmul(x, w)), rng.standard_normal((32, 4), np.float32)), name="y")
    return g


def test_of_a_compiled_graph():
    model = gq.compile(network())
    found = model.coverage()
    assert found == Coverage({"matmul": 8 * 16 * 32}, {"matmul": 8 * 16 * 32 + 8 * 32 * 4})
    assert found.share == pytest.approx(0.8)
    assert str(found) == "80.0% of 5120 multiply-accumulates in integer partitions"
    assert f"coverage: {found}\n" in model.explain()


def test_of_open_shapes_that_of_the_latest_call():
    model = gq.compile(network((None, 16)))
    assert model.coverage().total == 16 * 32 + 32 * 4  # of the one row that is assumed
    assert "coverage" in model.explain()
    for rows in (3, 5):
        model(x=np.zeros((rows, 16), np.uint8))
        assert model.coverage().total == rows * (16 * 32 + 32 * 4)


KINDS = {  # what a partition of quantized numbers computes with them: its kind, further inputs, the operations
    "alone": ("quantized", (), lambda g, x: g.tanh(x)),
    "one float": ("quantized", [("f32", (1,))], lambda g, x, s: g.multiply(x, s)),
    "one float without axes": ("quantized", [("f32", ())], lambda g, x, s: g.multiply(x, s)),
    "a float for each channel": ("float", [("f32", (8,))], lambda g, x, s: g.multiply(x, s)),
    "floats": ("float", [("f32", (4, 8))], lambda g, x, s: g.add(x, s)),
    "constant floats": ("quantized", (), lambda g, x: g.multiply(x, np.arange(8, dtype=np.float32))),
    "scales and zero points": ("quantized", [("s8", (4, 8)), ("f32", (8,)), ("s8", (8,))], lambda g, x, q, s, z: g.add(
        x, g.dynamic_dequantize(q, s, z, qtype="per_channel", axis=1))),
    "integers that are cast": ("float", [("u8", (4, 8))], lambda g, x, q: g.add(x, g.cast(q, dtype="f32"))),
    "wide integers": ("float", [("s32", (4, 8))], lambda g, x, q: g.add(x, g.dequantize(q, scales=[0.1]))),
}


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("result", ["quantized", "float"])
def test_kinds_of_partitions(name, result):
    kind, more, build = KINDS[name]
    g = gq.Graph()
    x = g.dequantize(g.input("x", dtype="u8", shape=(4, 8)), scales=[0.1], zps=[3])
    y = build(g, x, *(g.input(f"i{k}", dtype=dtype, shape=shape) for k, (dtype, shape) in enumerate(more)))
    g.output(y if result == "float" else g.quantize(y, dtype="u8", scales=[0.2], zps=[5]))
    run_passes(g)
    (partition,) = g.nodes_of(["partition"])
    assert kind_of(partition) == (kind if result == "quantized" else "float")


def test_text():
    assert str(Coverage({}, {})) == "no multiply-accumulates"
    assert str(Coverage({"convolution": 0, "matmul": 999_999_999}, {"convolution": 1, "matmul": 999_999_999})) == \
        "99.9% of 1,000.0 million multiply-accumulates in integer partitions (convolution 0%, matmul 100%)"
    assert str(Coverage({"add": 0, "matmul": 1}, {"add": 0, "matmul": 10_000})) == \
        "0.1% of 10000 multiply-accumulates in integer partitions"
    assert (millions(99_999), millions(100_000)) == ("99999", "0.1 million")
    assert "not counted: LSTM" in str(Coverage({}, {}, ("LSTM",))) and Coverage({}, {}, ("LSTM",)).share == 0


def test_operators_without_an_operation_are_named():
    onnx = pytest.importorskip("onnx")
    m = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
        net (int64[2, 3] x, int64[3, 4] w, float[2, 3] v) => (int64[2, 4] y, float[2, 3] z)
        { y = MatMul (x, w)  z = Hardmax (v) }""")
    assert coverage(gq.load_onnx(m)).uncounted == ("MatMul",)


def test_where_shapes_depend_on_data_all_stages_count():
    onnx = pytest.importorskip("onnx")
    m = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
        net (float[2, 3] x, float[3, 4] w) => (float[n, 4] y)
        { a = MatMul (x, w)  i = NonZero (a)  j = Transpose (i)  f = Cast <to = 1> (j)  v = Slice (w, s, e)
          y = MatMul (f, v) }""".replace("{ a", "<int64[1] s = {0}, int64[1] e = {2}>\n { a"))
    model = gq.compile(gq.load_onnx(m))
    assert model.coverage().total > 2 * 3 * 4  # of sizes that are assumed behind the data
    model(x=np.float32([[1, 2, 3], [0, 0, 0]]), w=np.ones((3, 4), np.float32))
    assert model.coverage().total == 2 * 3 * 4 + 4 * 2 * 4


def test_parts_are_added_up():
    first, second = Coverage({"matmul": 2}, {"matmul": 5}, ("LpPool", "Gelu")), Coverage({}, {"matmul": 1}, ("Xor",))
    both = merged([first, second, first])
    assert (both.integer, both.total, both.uncounted) == (4, 11, ("LpPool", "Gelu", "Xor"))

"""LSTM, GRU and DynamicQuantizeLSTM against ONNX Runtime, and round trips of what they become."""
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx_runtime import results, session

import graphq as gq
from graphq.dtypes import as_dtype
from graphq.errors import GraphError
from graphq.passes import RangesByRow

rng = np.random.default_rng(1)
COUNT = {"LSTM": 4, "DynamicQuantizeLSTM": 4, "GRU": 3, "RNN": 1}
SIZE, WIDTH = 20, 12


def floats(*shape):
    return (rng.standard_normal(shape) / 2).astype(np.float32)


def model(op, direction="forward", bias=True, states=True, lengths=False, more=(), **attrs):
    """A model with open steps and rows."""
    ways, rows = 2 if direction == "bidirectional" else 1, COUNT[op] * SIZE
    quantized = op.startswith("Dynamic")
    values = {"w": floats(ways, rows, WIDTH), "r": floats(ways, rows, SIZE), "b": floats(ways, 2 * rows)}
    values["p"] = floats(ways, 3 * SIZE)
    if quantized:
        values |= {"w": rng.integers(-127, 128, (ways, WIDTH, rows)).astype(np.int8),
                   "r": rng.integers(-127, 128, (ways, SIZE, rows)).astype(np.int8),
                   "ws": np.full(ways, 0.004, np.float32), "wz": np.zeros(ways, np.int8),
                   "rs": np.full(ways, 0.003, np.float32), "rz": np.full(ways, 3, np.int8)}
    names = ["h", "c"] if COUNT[op] == 4 else ["h"]
    inputs = ["x", "w", "r", "b" if bias else "", "len" if lengths else "", *(names if states else ["", ""]), *more]
    if quantized:
        inputs += [""] * (8 - len(inputs)) + ["ws", "wz", "rs", "rz"]
    while not inputs[-1]:
        inputs.pop()
    typed = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["t", "n", WIDTH])]
    typed += [helper.make_tensor_value_info(n, TensorProto.FLOAT, [ways, "n", SIZE]) for n in names if n in inputs]
    if lengths:
        typed.append(helper.make_tensor_value_info("len", TensorProto.INT32, ["n"]))
    outs = ["y", "yh", "yc"] if COUNT[op] == 4 else ["y", "yh"]
    node = helper.make_node(op, inputs, outs, domain="com.microsoft" if quantized else "", hidden_size=SIZE,
                            direction=direction, **attrs)
    results = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["t", ways, "n", SIZE] if n == "y" else
                                             [ways, "n", SIZE]) for n in outs]
    graph = helper.make_graph([node], "net", typed, results, [numpy_helper.from_array(values[n], n) for n in values
                                                              if n in inputs])
    return helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17),
                                                                 helper.make_opsetid("com.microsoft", 1)])


def feeds(m, steps, rows):
    dims = {"t": steps, "n": rows}
    whole = {v.name: floats(*(dims.get(d.dim_param, d.dim_value) for d in v.type.tensor_type.shape.dim))
             for v in m.graph.input}
    return whole | ({"len": np.int32([steps, 1, 2, 3][:rows])} if "len" in whole else {})


def compare(m, shapes=((4, 1), (7, 3)), tolerance=1e-5):
    compiled = gq.compile(g := gq.load_onnx(m), threads=1)
    theirs = session(m)
    for steps, rows in shapes:
        given = feeds(m, steps, rows)
        for out in (gq.reference(g, given), compiled(given)):
            for got, want in zip(out.values(), theirs.run(None, given), strict=True):
                np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance)
    assert "onnx_node" not in {n.op.name for n in compiled.graph.nodes}


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("op", ["LSTM", "GRU", "RNN"])
def test_directions(op, direction):
    compare(model(op, direction))


@pytest.mark.parametrize("op,options", [
    ("LSTM", {"bias": False}), ("LSTM", {"states": False}), ("GRU", {"bias": False}), ("GRU", {"states": False}),
    ("GRU", {"linear_before_reset": 1}), ("GRU", {"linear_before_reset": 1, "bias": False}),
    ("GRU", {"activations": ["Sigmoid", "Tanh"]})], ids=str)
def test_options(op, options):
    compare(model(op, **options))


@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
@pytest.mark.parametrize("op", ["LSTM", "GRU", "RNN"])
def test_lengths(op, direction):
    m = model(op, direction, lengths=True, **({"linear_before_reset": 1} if op == "GRU" else {}))
    compare(m, shapes=((5, 4),))


@pytest.mark.parametrize("op,attrs,message", [
    ("GRU", {"activations": ["Sigmoid", "Relu"]}, "activations must be Sigmoid, Tanh, got Sigmoid, Relu"),
    ("LSTM", {"clip": 1.0}, "clip is not supported"), ("LSTM", {"input_forget": 1}, "input_forget is not supported")])
def test_what_the_reference_of_onnx_passes_over_is_refused(op, attrs, message):
    with pytest.raises(GraphError, match=f"{op} 'y': {message}"):
        gq.load_onnx(model(op, **attrs))


@pytest.mark.parametrize("direction", ["reverse", "bidirectional"])
def test_peepholes(direction):
    compare(model("LSTM", direction, more=["p"]))


@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
def test_a_quantized_layer(direction):
    """Of one row, for with more ONNX Runtime's range is that of a part of them."""
    compare(model("DynamicQuantizeLSTM", direction), shapes=((4, 1), (9, 1)), tolerance=1e-4)


@pytest.mark.parametrize("direction", ["reverse", "bidirectional"])
def test_rows_of_a_quantized_layer_are_the_same_alone(direction, tmp_path):
    """With ranges by row, which the operator itself cannot state."""
    made = model("DynamicQuantizeLSTM", direction)
    file, m = gq.load_onnx(made), gq.compile(gq.load_onnx(made), ranges="rows", threads=2)
    assert "\nranges: by row\n" in m.explain()
    given = feeds(made, 5, 3)
    given["x"] *= np.float32([1, 4, 0.1])[:, None]
    together, formula = m(given), m.formula(given)
    for name, y in together.items():
        assert np.array_equal(y, formula[name])
    for row in range(3):
        one = {n: x[:, row:row + 1] if x.ndim == 3 else x[row:row + 1] for n, x in given.items()}
        alone = m(one)
        for name, want in gq.reference(file, one).items():
            of_row = together[name].take([row], axis=2 if name == "y" else 1)
            assert np.array_equal(of_row, alone[name])
            np.testing.assert_allclose(of_row, want, atol=0.05)
    RangesByRow(file)
    with pytest.raises(GraphError, match="by one range for all rows: leave by_row out"):
        gq.save_onnx(file, tmp_path / "m.onnx")


@pytest.mark.parametrize("op", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize("direction", ["reverse", "bidirectional"])
def test_round_trip(op, direction, tmp_path):
    m = model(op, direction, **({"linear_before_reset": 1} if op == "GRU" else {"more": ["p"]} if op == "LSTM" else {}))
    given = feeds(m, 3, 2)
    g = gq.load_onnx(m).specialize({n: gq.TensorType(gq.dtypes.f32, x.shape) for n, x in given.items()})
    gq.save_onnx(g, tmp_path / "m.onnx")
    again = gq.load_onnx(tmp_path / "m.onnx")
    assert {n.op.name for n in again.nodes} & {"lstm", "gru", "rnn"}
    assert len(again.nodes_of(["matmul"])) == len(g.nodes_of(["matmul"]))  # none for the identity weights
    for name, want in gq.reference(g, given).items():
        np.testing.assert_array_equal(gq.reference(again, given)[name], want)
    for got, want in zip(results(tmp_path / "m.onnx", given), gq.reference(g, given).values(), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("op", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize("bias", [False, True])
def test_products_of_the_input_are_saved_in_the_layer(op, bias, tmp_path):
    """Of open steps, too; identity weights are for products of another form."""
    m = model(op, bias=bias, **({"linear_before_reset": 1} if op == "GRU" else {}))
    g = gq.load_onnx(m)
    gq.save_onnx(g, tmp_path / "m.onnx")
    again = onnx.load(tmp_path / "m.onnx")
    assert not any(n.op_type == "MatMul" for n in again.graph.node)
    shapes = [tuple(t.dims) for t in again.graph.initializer]
    assert (1, COUNT[op] * SIZE, WIDTH) in shapes and (1, COUNT[op] * SIZE, COUNT[op] * SIZE) not in shapes
    given = feeds(m, 3, 2)
    for got, want in zip(results(tmp_path / "m.onnx", given), results(m, given), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-6)
    given = {n: x for n, x in given.items() if n == "x"}
    g = gq.Graph()
    square = g.multiply(y := g.matmul(g.input("x", dtype="f32", shape=(3, 2, WIDTH)), floats(WIDTH, 4 * SIZE)), y)
    g.output(g.lstm(square, floats(4 * SIZE, SIZE))[0], name="y")
    gq.save_onnx(g, tmp_path / "m.onnx")
    shapes = [tuple(t.dims) for t in onnx.load(tmp_path / "m.onnx").graph.initializer]
    assert (1, 4 * SIZE, 4 * SIZE) in shapes
    np.testing.assert_array_equal(gq.reference(gq.load_onnx(tmp_path / "m.onnx"), given), gq.reference(g, given))


def test_what_is_added_to_each_row_is_no_bias_of_a_saved_layer(tmp_path):
    g = gq.Graph()
    y = g.matmul(g.input("x", dtype="f32", shape=(3, 2, WIDTH)), floats(WIDTH, 4 * SIZE))
    g.output(g.lstm(g.add(y, floats(2, 4 * SIZE)), floats(4 * SIZE, SIZE))[0], name="y")
    gq.save_onnx(g, tmp_path / "m.onnx")
    given = {"x": floats(3, 2, WIDTH)}
    np.testing.assert_array_equal(gq.reference(gq.load_onnx(tmp_path / "m.onnx"), given), gq.reference(g, given))


@pytest.mark.parametrize("options", [{}, {"bias": False, "lengths": True}, {"direction": "bidirectional"},
                                     {"direction": "reverse", "states": False}], ids=str)
def test_a_quantized_layer_is_saved(options, tmp_path):
    """Its input's products, which graphq has beside it, are in the operator."""
    m = model("DynamicQuantizeLSTM", **options)
    given = feeds(m, 5, 1)
    g = gq.load_onnx(m).specialize({n: gq.TensorType(as_dtype(x.dtype), x.shape) for n, x in given.items()})
    gq.save_onnx(g, tmp_path / "m.onnx")
    ops = [n.op_type for n in onnx.load(tmp_path / "m.onnx").graph.node]
    assert ops.count("DynamicQuantizeLSTM") == 1 + (options.get("direction") == "bidirectional")
    assert not {"MatMul", "DynamicQuantizeLinear", "DequantizeLinear"} & set(ops)
    again = gq.load_onnx(tmp_path / "m.onnx")
    for name, want in gq.reference(g, given).items():
        np.testing.assert_array_equal(gq.reference(again, given)[name], want)
    for got, want in zip(results(tmp_path / "m.onnx", given), gq.reference(g, given).values(), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("gates", ["f32", "static"])
def test_a_quantized_state_alone_is_not_saved(gates, tmp_path):
    g = gq.Graph()
    x = g.input("x", dtype="f32", shape=(2, 1, 8))
    if gates == "static":
        x = g.dequantize(g.quantize(x, dtype="u8", scales=[0.1]), scales=[0.1])
    y = g.matmul(x, g.dequantize(g.constant(np.ones((8, 32), np.int8)), scales=[0.1]))
    g.output(g.lstm(y, np.ones((32, 8), np.float32), None, None, np.float32([0.1]))[0], name="y")
    with pytest.raises(GraphError, match="only if its gates are a matmul of constant 8-bit weights with an input"):
        gq.save_onnx(g, tmp_path / "m.onnx")


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("by_column", [False, True])
def test_weights_of_a_quantized_layer_have_scales_of_columns(transposed, by_column, tmp_path):
    g = gq.Graph()
    x = g.input("x", dtype="f32", shape=(2, 1, 8))
    scale, zp = g.dynamic_range(x)
    shape, axis = (32, 8) if transposed else (8, 32), int(transposed != by_column)
    w = g.dequantize(g.constant(rng.integers(-9, 9, shape).astype(np.int8)), qtype="per_channel", axis=axis,
                     scales=np.linspace(0.1, 0.2, shape[axis]).tolist())
    y = g.matmul(g.dynamic_dequantize(g.dynamic_quantize(x, scale, zp, dtype="u8"), scale, zp), w,
                 transpose_b=transposed)
    g.output(g.lstm(y, np.ones((32, 8), np.float32), None, None, np.float32([0.1]))[0], name="y")
    if not by_column:
        with pytest.raises(GraphError, match="of constant weights of 8 bits|of constant 8-bit weights"):
            gq.save_onnx(g, tmp_path / "m.onnx")
        return
    gq.save_onnx(g, tmp_path / "m.onnx")
    given = {"x": floats(2, 1, 8)}
    np.testing.assert_array_equal(gq.reference(gq.load_onnx(tmp_path / "m.onnx"), given), gq.reference(g, given))

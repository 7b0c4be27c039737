"""What load_onnx refuses: broken files, external data, models that break a rule; always a graphq error."""
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import graphq as gq
from graphq.errors import GraphError, GraphqError, ParseError
from graphq.onnx.protos import tensors

ADD = "net (float[2] x) => (float[2] y) <float[2] w = {3, 4}> { y = Add(x, w) }"


def model(text, opset=17):
    """A ModelProto from ONNX's text form."""
    return onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : {opset}]>\n{text}')


def external(location, **facts):
    """A model whose initializer lies in another file."""
    m = model(ADD)
    w = m.graph.initializer[0]
    w.ClearField("float_data")
    w.data_location = TensorProto.EXTERNAL
    for key, value in {"location": location, **facts}.items():
        w.external_data.add(key=key, value=str(value))
    return m


def test_external_data(tmp_path):
    (tmp_path / "w.bin").write_bytes(b"pad " + np.float32([3, 4]).tobytes())
    m = external("w.bin", offset=4, length=8)
    (tmp_path / "m.onnx").write_bytes(m.SerializeToString())
    g = gq.load_onnx(tmp_path / "m.onnx")
    assert gq.reference(g, x=np.float32([1, 1])).tolist() == [4, 5]
    with pytest.raises(ParseError, match="initializer 'w'.*needs a model that is loaded from a path"):
        gq.load_onnx(m)
    m = external("w.bin", offset=4)  # a length is optional: other tensors may follow
    (tmp_path / "w.bin").write_bytes(b"pad " + np.float32([3, 4, 5]).tobytes())
    (tmp_path / "m.onnx").write_bytes(m.SerializeToString())
    assert gq.reference(gq.load_onnx(tmp_path / "m.onnx"), x=np.float32([1, 1])).tolist() == [4, 5]


def test_compile_names_the_function_that_loads_a_model_in_memory():
    m = model(ADD)
    for given in (m, m.SerializeToString(), bytearray(3), memoryview(b"abc")):
        with pytest.raises(GraphError, match="got (bytes|bytearray|memoryview|ModelProto); load_onnx"):
            gq.compile(given)


def test_an_input_with_an_initializer_is_a_constant():
    """As if ONNX's default were not overridden: constants decide which kernels run."""
    m = model(ADD)
    m.graph.input.add().CopyFrom(onnx.helper.make_tensor_value_info("w", TensorProto.FLOAT, [2]))
    g = gq.load_onnx(m)
    assert [v.name for v in g.inputs] == ["x"]
    with pytest.raises(gq.InputError, match="w"):
        gq.compile(g)(x=np.float32([1, 1]), w=np.float32([1, 1]))


@pytest.mark.parametrize("location,facts,message", [
    ("gone.bin", {}, "No such file"), ("../w.bin", {}, "not a file in the model's folder"),
    ("/etc/hostname", {}, "not a file in the model's folder"), ("", {}, "not a file in the model's folder"),
    ("sub/../../w.bin", {}, "not a file in the model's folder"), ("link", {}, "not a file in the model's folder"),
    ("sub", {}, "not a regular file"), ("w.bin", {"offset": -1}, "offset must be a number"),
    ("w.bin", {"offset": 9}, "the model wants"), ("w.bin", {"length": 10**12}, "the model wants"),
    ("w.bin", {"length": 4}, "4 bytes do not fit"), ("a\0b", {}, "not a file in the model's folder"),
], ids=range(12))
def test_bad_external_data(tmp_path, location, facts, message):
    folder = tmp_path / "model"
    (folder / "sub").mkdir(parents=True)
    (tmp_path / "w.bin").write_bytes(bytes(8))
    (folder / "w.bin").write_bytes(bytes(8))
    (folder / "link").symlink_to(tmp_path / "w.bin")
    (folder / "m.onnx").write_bytes(external(location, **facts).SerializeToString())
    with pytest.raises(GraphqError, match=message):
        gq.load_onnx(folder / "m.onnx")


@pytest.mark.parametrize("transform, shape", [("PROBIT", "2, 3"), ("SOFTMAX_ZERO", "2, 3"), ("NONE", "2, 1, 3"),
                                              ("LOGISTIC", "3")])
def test_linear_regressors_of_other_forms(transform, shape):
    m = onnx.parser.parse_model(f"""<ir_version: 10, opset_import: ["" : 21, "ai.onnx.ml": 1]>
        net (float[{shape}] x) => (float[n, m] y) {{
        y = ai.onnx.ml.LinearRegressor <coefficients = [1.0, 2.0, 3.0], post_transform = "{transform}"> (x) }}""")
    with pytest.raises(GraphError, match=f"LinearRegressor 'y': post_transform {transform} of f32.* is not supported"):
        gq.load_onnx(m)


def test_a_file_of_more_bytes_than_protobuf_takes_is_not_read(tmp_path):
    with open(tmp_path / "m.onnx", "wb") as file:
        file.truncate(1 << 31)
    with pytest.raises(ParseError, match="m.onnx: larger than 2147483647 bytes"):
        gq.load_onnx(tmp_path / "m.onnx")


def test_external_data_is_looked_at_before_it_is_read(tmp_path, monkeypatch):
    """A sparse file of 1 TiB, and memory that is not there."""
    with open(tmp_path / "w.bin", "wb") as file:
        file.truncate(1 << 40)
    m = external("w.bin")
    (tmp_path / "m.onnx").write_bytes(m.SerializeToString())
    assert len(gq.load_onnx(tmp_path / "m.onnx").nodes) > 0  # without a length, the tensor's bytes are read
    (tmp_path / "m.onnx").write_bytes(external("w.bin", length=1 << 40).SerializeToString())
    with pytest.raises(GraphError, match="1099511627776 bytes do not fit a tensor of 8"):
        gq.load_onnx(tmp_path / "m.onnx")
    m.graph.initializer[0].dims[0] = 1 << 38
    (tmp_path / "m.onnx").write_bytes(m.SerializeToString())
    with pytest.raises(gq.CompileError, match="initializer 'w'.* would take 1.02e.03 GiB"):
        gq.load_onnx(tmp_path / "m.onnx")
    (tmp_path / "m.onnx").write_bytes(external("w.bin", length=8).SerializeToString())

    def fail(*arguments):
        raise MemoryError

    monkeypatch.setattr(tensors, "_read", fail)
    with pytest.raises(gq.CompileError, match="m.onnx: not enough memory"):
        gq.load_onnx(tmp_path / "m.onnx")


@pytest.mark.parametrize("text,message", [
    ("net (float[2] x) => (float[2] y) { y = Nope(x) }", "Nope"),
    ("net (float[2] x) => (float[2] y) { y = Relu(z) }", "z"),
    ("net (float[2] x) => (float[3] y) { y = Relu(x) }", r"output 'y': the model says f32\[3\], .* f32\[2\]"),
    ("net (float[2] x) => (float[2] y) { y = Add(x) }", "Add"),
    ("net (float[1, 2, 7] x, float[3, 2, 3] w) => (float[1, 3, 5] y) { y = Conv <kernel_shape = [2]> (x, w) }",
     r"Conv 'y': kernel_shape must agree with the weights .*got \[2\]"),
    ("net (float[1, 2, 7] x, float[2, 3, 3] w) => (float[1, 3, 9] y) "
     "{ y = ConvTranspose <kernel_shape = [4]> (x, w) }", "ConvTranspose 'y': kernel_shape must agree with the weigh"),
    ("net (float[1, 2, 7] x, float[3, 2, 3] w) => (float[1, 3, n] y) { y = Conv <pads = [0, -1]> (x, w) }",
     r"Conv 'y': pads must not be negative, got \[0, -1\]"),
    ("net (float[1, 2, 7] x) => (float[1, 2, n] y) { y = MaxPool <kernel_shape = [2], pads = [0, -1]> (x) }",
     "MaxPool 'y'"),
    ("net (float[2, 3] x, float[4, 5] w) => (float[2, 5] y) { y = MatMul(x, w) }", "MatMul 'y'"),
    ("net (string[2] x) => (string[2] y) { y = Identity(x) }", "input 'x': element type string is not supported"),
    ("net (seq(float[2]) x) => (int64 y) { y = SequenceLength(x) }", "must be a tensor, got sequence_type"),
    ("net (float[2] x) => (float[2] y) { y = RandomNormalLike(x) }", "random numbers are not defined"),
    ("net () => (float[n, m] y) <int64[2] s = {-1, 5}> { y = ConstantOfShape(s) }", "no negative dim"),
    ("net (float[2] x) => (uint8[2] y) <float s = {0}> { y = QuantizeLinear(x, s) }",
     "QuantizeLinear 'y': scales must not be NaN, -inf or 0, got 0.0"),
    ("net (float[2, 3] x) => (uint8[2, 3] y) <float[2] s = {1, 2}> { y = QuantizeLinear(x, s) }",
     r"QuantizeLinear 'y': scales must have shape \[\], \[1\] or \[3\] for \[2,3\] at axis 1, got \[2\]"),
    ("net (uint8[2] x) => (float[2] y) <float s = {1}, uint8[2] z = {0, 0}> { y = DequantizeLinear(x, s, z) }",
     "DequantizeLinear 'y': scale and zero point must have the same shape"),
], ids=range(16))
def test_models_that_break_a_rule_name_the_node(text, message):
    with pytest.raises(GraphError, match=message):
        gq.load_onnx(model(text))


@pytest.mark.parametrize("data", [b"", b"abc", bytes(100), b"\x08\x08", b"\xff" * 50])
def test_bytes_that_are_no_model(data):
    with pytest.raises(ParseError, match="not an ONNX model"):
        gq.load_onnx(data)


@pytest.mark.parametrize("source", [None, 3, [b"x"], object()], ids=range(4))
def test_what_is_no_source(source):
    with pytest.raises(GraphError, match="load_onnx takes a path, bytes or a ModelProto"):
        gq.load_onnx(source)


def test_paths_that_are_no_model(tmp_path):
    for path in (tmp_path, tmp_path / "gone.onnx", "a\0b"):
        with pytest.raises(ParseError):
            gq.load_onnx(path)


OPSETS = [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)]


def function(name, *called):
    """A function that calls others, one after the other."""
    steps = [helper.make_node(op, ["a" if not k else f"v{k - 1}"], [f"v{k}" if k < len(called) - 1 else "b"],
                              domain="" if op == "Relu" else "local") for k, op in enumerate(called)]
    return helper.make_function("local", name, ["a"], ["b"], steps, OPSETS)


@pytest.mark.parametrize("functions,name,message", [
    ([function("f", "g"), function("g", "f")], "f", "calls itself"),
    ([function("f0", "Relu", "Relu"), *(function(f"f{k}", *[f"f{k - 1}"] * 2) for k in range(1, 40))], "f39",
     "more than 200000 nodes"),
], ids=["cycle", "growth"])
def test_functions_without_end(functions, name, message):
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [2]) for n in "xy")
    graph = helper.make_graph([helper.make_node(name, ["x"], ["y"], domain="local")], "net", [x], [y])
    with pytest.raises(GraphError, match=message):
        gq.load_onnx(helper.make_model(graph, functions=functions, ir_version=8, opset_imports=OPSETS))


@pytest.mark.parametrize("dims", [[3], [1 << 40], [1 << 62, 1 << 62], [-2]], ids=range(4))
def test_initializers_whose_data_does_not_fit(dims):
    m = model(ADD)
    w = m.graph.initializer[0]
    w.CopyFrom(numpy_helper.from_array(np.float32([1, 2]), "w"))
    del w.dims[:]
    w.dims.extend(dims)
    with pytest.raises(GraphError):
        gq.load_onnx(m)

"""Types and tensors of ONNX files: what graphq makes of them, and what is refused."""
import numpy as np
import pytest
from onnx import SparseTensorProto, TensorProto, TypeProto, helper, numpy_helper

from graphq.dtypes import DTYPES, f32, s8, s64
from graphq.errors import GraphError, ParseError
from graphq.ir import TensorType
from graphq.onnx.protos.tensors import agree, array_of, as_array, dense, dtype_of, element_of, tensor_type, value_info


def test_element_types_there_and_back():
    for dtype in DTYPES.values():
        assert dtype_of(element_of(dtype), "x") is dtype
    for element, said in ((TensorProto.STRING, "string"), (TensorProto.COMPLEX64, "complex64"), (99, "number 99")):
        with pytest.raises(GraphError, match=f"x: element type {said} is not supported"):
            dtype_of(element, "x")


@pytest.mark.parametrize("shape, dims", [((2, 3), (2, 3)), ((), ()), (("n", 3), (None, 3)), ((-1, 3), (None, 3)),
                                         ((None, 0), (None, 0)), (None, None)])
def test_types(shape, dims):
    proto = helper.make_tensor_type_proto(TensorProto.FLOAT, shape)
    assert tensor_type(proto, "x") == TensorType(f32, dims)
    assert tensor_type(value_info("x", TensorType(s8, dims)).type, "x") == TensorType(s8, dims)


def test_types_that_are_refused():
    for proto, said in ((TypeProto(), "got no type"), (helper.make_sequence_type_proto(
            helper.make_tensor_type_proto(TensorProto.FLOAT, (2,))), "got sequence_type")):
        with pytest.raises(GraphError, match=f"x: must be a tensor, {said}"):
            tensor_type(proto, "x")
    with pytest.raises(GraphError):
        tensor_type(helper.make_tensor_type_proto(TensorProto.FLOAT, (-2,)), "x")


def test_types_that_agree():
    assert agree(TensorType(f32, (None, 3)), TensorType(f32, (2, 3)))
    assert agree(TensorType(f32, None), TensorType(f32, ()))
    assert not agree(TensorType(f32, (2,)), TensorType(s8, (2,)))
    assert not agree(TensorType(f32, (2,)), TensorType(f32, (3,)))


def test_results_of_other_libraries():
    assert as_array(np.float64(1.5), TensorType(f32, ()), "y").dtype == np.float32
    same = np.ones(2, np.float32)
    assert as_array(same, TensorType(f32, (2,)), "y") is same
    for x in ([1], {}, "a", None):
        with pytest.raises(GraphError, match="y: the result must be a tensor"):
            as_array(x, TensorType(f32, (1,)), "y")


@pytest.mark.parametrize("name", ["f32", "f16", "bf16", "s64", "s4", "u4", "u8", "boolean", "f8_e4m3"])
@pytest.mark.parametrize("shape", [(3, 5), (), (0, 2), (1,)])
def test_arrays(name, shape):
    dtype = DTYPES[name]
    x = np.random.default_rng(0).integers(0, 2, shape).astype(dtype.numpy)
    raw = numpy_helper.from_array(x, "x")
    found = array_of(raw, None, "x")
    assert found.dtype == dtype.numpy and found.shape == shape and found.tobytes() == x.tobytes()
    for cut in (raw.raw_data[:-1], raw.raw_data + b"\0") if x.size else (b"\0",):
        wrong = TensorProto(data_type=raw.data_type, dims=raw.dims, raw_data=cut)
        with pytest.raises(GraphError, match=f"x: {len(cut)} bytes do not fit"):
            array_of(wrong, None, "x")


def test_dimensions_below_zero():
    for dims in ((-1,), (-1, -1), (2, -3)):
        with pytest.raises(GraphError, match="x: negative dimension"):
            array_of(TensorProto(data_type=TensorProto.FLOAT, dims=dims, raw_data=b"0000"), None, "x")
        values = numpy_helper.from_array(np.ones(1, np.float32))
        with pytest.raises(GraphError, match="x: negative dimension"):
            dense(SparseTensorProto(values=values, indices=numpy_helper.from_array(np.array([0])), dims=dims), "x")


@pytest.mark.parametrize("indices", [[1, 5], [[0, 1], [1, 2]]])
def test_sparse_tensors(indices):
    sparse = SparseTensorProto(values=numpy_helper.from_array(np.float32([7, 8])), dims=(2, 3),
                               indices=numpy_helper.from_array(np.array(indices)))
    assert dense(sparse, "x").tolist() == [[0, 7, 0], [0, 0, 8]]


@pytest.mark.parametrize("facts, found", [
    ({}, [1, 2]), ({"offset": 8}, [2, 3]), ({"offset": 8, "length": 16}, [2, 3]),
    ({"offset": 8, "length": 8}, "8 bytes do not fit a tensor of 16"), ({"offset": 32}, [5, 6]),
    ({"offset": 40}, "has 48 bytes, the model wants 16"), ({"offset": 33}, "wants 16 from 33"),
    ({"offset": "-8"}, "offset must be a number of bytes"), ({"length": "x"}, "length must be a number of bytes")])
def test_data_in_other_files(facts, found, tmp_path):
    (tmp_path / "data").write_bytes(np.arange(1, 7, dtype=np.int64).tobytes())
    tensor = TensorProto(data_type=element_of(s64), dims=(2,), data_location=TensorProto.EXTERNAL)
    for key, value in {"location": "data", **facts}.items():
        tensor.external_data.add(key=key, value=str(value))
    with pytest.raises(ParseError, match="needs a model that is loaded from a path|must be a number of bytes"):
        array_of(tensor, None, "x")
    if isinstance(found, list):
        assert array_of(tensor, str(tmp_path), "x").tolist() == found
    else:
        with pytest.raises((GraphError, ParseError), match=found):
            array_of(tensor, str(tmp_path), "x")


@pytest.mark.parametrize("location", [
    "../inside/data", "", ".", "..", "../data", "sub/../../data", "/etc/hostname", "a\0b", "missing"])
def test_files_outside_the_folder(location, tmp_path):
    for folder in ("in", "inside", "."):
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / "data").write_bytes(b"0" * 16)
    tensor = TensorProto(data_type=element_of(s64), dims=(2,), data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value=location)
    with pytest.raises(ParseError, match="x: external data: "):
        array_of(tensor, str(tmp_path / "in"), "x")

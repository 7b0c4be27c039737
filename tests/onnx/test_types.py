"""ONNX's types: each element, dimensions, and what is no tensor."""
import numpy as np
import pytest
from one_onnx_node import run
from onnx import TensorProto, TypeProto, helper

from graphq.dtypes import DTYPES, f32, s64, u8
from graphq.errors import GraphError
from graphq.ir import TensorType
from graphq.onnx.protos.tensors import (
    ELEMENTS,
    agree,
    array_of,
    as_array,
    dtype_of,
    element_of,
    tensor_type,
    value_info,
)


def test_every_element_has_a_dtype():
    assert set(ELEMENTS.values()) == set(DTYPES.values())
    assert all(dtype_of(element_of(t), "x") is t for t in DTYPES.values())
    for element, dtype in ELEMENTS.items():
        if dtype.bits >= 8:
            assert helper.tensor_dtype_to_np_dtype(element).itemsize == dtype.itemsize
    for element, name in ((TensorProto.STRING, "string"), (TensorProto.COMPLEX64, "complex64"), (99, "number 99")):
        with pytest.raises(GraphError, match=f"x: element type {name} is not supported"):
            dtype_of(element, "x")


@pytest.mark.parametrize("shape, dims", [([2, 3], (2, 3)), ([2, "n"], (2, None)), ([None, 0], (None, 0)), ([], ()),
                                         (None, None), ([-1, 4], (None, 4))])
def test_dimensions(shape, dims):
    proto = helper.make_tensor_type_proto(TensorProto.UINT8, shape)
    assert tensor_type(proto, "x") == TensorType(u8, dims)
    info = value_info("v", TensorType(u8, dims))
    assert info.name == "v" and tensor_type(info.type, "v") == TensorType(u8, dims)
    assert info.type.tensor_type.HasField("shape") == (dims is not None)


@pytest.mark.parametrize("element", [x for x, dtype in ELEMENTS.items() if dtype.bits < 8 and dtype.kind == "int"])
@pytest.mark.parametrize("size", [0, 1, 3, 4, 5])
def test_small_elements_share_bytes(element, size):
    """Several elements are in a byte, the last byte may have fewer."""
    bits = ELEMENTS[element].bits
    raw = bytes([0b01_01_01_01 if bits == 2 else 0b0001_0001]) * -(-size * bits // 8)
    assert array_of(TensorProto(data_type=element, dims=[size], raw_data=raw), None, "x").tolist() == [1] * size
    with pytest.raises(GraphError, match="x: .* bytes do not fit"):
        array_of(TensorProto(data_type=element, dims=[size], raw_data=raw + b"\1"), None, "x")


@pytest.mark.parametrize("name", ["FLOAT6E2M3", "FLOAT6E3M2"])
def test_elements_of_six_bits(name):
    """Four elements are in three bytes, the first in the lowest bits."""
    element = getattr(TensorProto, name, None)
    if element is None:
        pytest.skip("this onnx has no such element")
    codes = [1, 2, 62, 31, 33]
    raw = sum(code << 6 * k for k, code in enumerate(codes)).to_bytes(4, "little")
    got = array_of(TensorProto(data_type=element, dims=[5], raw_data=raw), None, "x")
    assert got.dtype == ELEMENTS[element].numpy and got.view(np.uint8).tolist() == codes


@pytest.mark.parametrize("saturate, want", [(0, [np.inf, -np.inf, 1.5]), (1, [57344, -57344, 1.5])])
def test_casts_to_the_same_float_of_8_bits_saturate(saturate, want):
    """ONNX's table of Cast has the greatest number for infinities, whatever the operand's type."""
    x = np.array([np.inf, -np.inf, 1.5], DTYPES["f8_e5m2"].numpy)
    got = run("Cast", x, opset=19, native=bool(saturate), to=TensorProto.FLOAT8E5M2, saturate=saturate)
    assert got.dtype == x.dtype and got.tolist() == want


def test_optional_tensors_have_the_type_of_the_tensor():
    of_tensor, of_sequence = (helper.make_optional_type_proto(proto) for proto in (
        helper.make_tensor_type_proto(TensorProto.FLOAT, [2, None]), helper.make_sequence_type_proto(TypeProto())))
    assert tensor_type(of_tensor, "x") == TensorType(f32, (2, None))
    with pytest.raises(GraphError, match="x: must be a tensor, got sequence_type"):
        tensor_type(of_sequence, "x")


def test_what_is_no_tensor():
    sequence = helper.make_sequence_type_proto(helper.make_tensor_type_proto(TensorProto.FLOAT, [2]))
    for proto, kind in ((sequence, "sequence_type"), (TypeProto(), "no type")):
        with pytest.raises(GraphError, match=f"x: must be a tensor, got {kind}"):
            tensor_type(proto, "x")
    with pytest.raises(GraphError, match="x: a dimension must be a non-negative int or None, got -2"):
        tensor_type(helper.make_tensor_type_proto(TensorProto.FLOAT, [-2]), "x")


@pytest.mark.parametrize("a, b, same", [
    ((2, 3), (2, 3), True), ((2, None), (2, 3), True), ((2, 3), (None, 3), True), (None, (2,), True),
    ((2,), None, True), ((2, 3), (2, 4), False), ((2,), (2, 3), False)])
def test_agreement(a, b, same):
    assert agree(TensorType(f32, a), TensorType(f32, b)) is same and not agree(TensorType(f32, a), TensorType(u8, b))


def test_results_as_arrays():
    x = np.float32([1.5, 2])
    assert as_array(x, TensorType(f32, (2,)), "x") is x
    assert as_array(3, TensorType(s64, ()), "x").dtype == np.int64
    assert as_array(x, TensorType(u8, (2,)), "x").tolist() == [1, 2]
    for bad, kind in (([x], "list"), ("a", "str"), (None, "NoneType"), ({}, "dict")):
        with pytest.raises(GraphError, match=f"x: the result must be a tensor, got {kind}"):
            as_array(bad, TensorType(f32, (2,)), "x")

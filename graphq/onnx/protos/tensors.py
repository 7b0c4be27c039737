"""Convert types and tensors from ONNX to graphq, and types back."""
import math
import os

import numpy as np
from onnx import SparseTensorProto, TensorProto, TypeProto, ValueInfoProto, numpy_helper

from graphq import dtypes as t
from graphq.base.budget import expect, reserve
from graphq.base.paths import regular_file
from graphq.base.sizes import Size
from graphq.dtypes import DType
from graphq.errors import GraphError, ParseError
from graphq.ir import TensorType, check_dims, check_size, shapes_agree

ELEMENTS: dict[int, DType] = {
    TensorProto.FLOAT: t.f32, TensorProto.FLOAT16: t.f16, TensorProto.BFLOAT16: t.bf16, TensorProto.DOUBLE: t.f64,
    TensorProto.FLOAT8E4M3FN: t.f8_e4m3, TensorProto.FLOAT8E5M2: t.f8_e5m2,
    TensorProto.FLOAT8E4M3FNUZ: t.f8_e4m3fnuz, TensorProto.FLOAT8E5M2FNUZ: t.f8_e5m2fnuz,
    TensorProto.FLOAT8E8M0: t.f8_e8m0, TensorProto.FLOAT4E2M1: t.f4_e2m1,
    TensorProto.INT64: t.s64, TensorProto.INT32: t.s32, TensorProto.INT16: t.s16, TensorProto.INT8: t.s8,
    TensorProto.INT4: t.s4, TensorProto.INT2: t.s2,
    TensorProto.UINT64: t.u64, TensorProto.UINT32: t.u32, TensorProto.UINT16: t.u16, TensorProto.UINT8: t.u8,
    TensorProto.UINT4: t.u4, TensorProto.UINT2: t.u2, TensorProto.BOOL: t.boolean,
    27: t.f6_e2m3, 28: t.f6_e3m2,
}
"""The DType of each TensorProto.DataType, except for NO_NUMBERS. The numbers are types that onnx 1.20 lacks."""

NO_NUMBERS: dict[int, str] = {TensorProto.STRING: ": graphq has numbers", **dict.fromkeys(
    (TensorProto.COMPLEX64, TensorProto.COMPLEX128), ": use two tensors, for real and imaginary parts")}
"""The element types that graphq lacks, and why."""

_BACK = {dtype: element for element, dtype in ELEMENTS.items()}


def dtype_of(element: int, where: str) -> DType:
    """The DType of a TensorProto.DataType; raises GraphError if graphq lacks it."""
    if element not in ELEMENTS:
        known = element in TensorProto.DataType.values()
        name = TensorProto.DataType.Name(element).lower() if known else f"number {element}"
        raise GraphError(f"{where}: element type {name} is not supported{NO_NUMBERS.get(element, '')}")
    return ELEMENTS[element]


def element_of(dtype: DType) -> int:
    """The TensorProto.DataType of a DType."""
    return int(_BACK[dtype])


def tensor_type(proto: TypeProto, where: str) -> TensorType:
    """Convert the type of a tensor; symbolic dimensions, and PaddlePaddle's -1, become unknown dimensions.

    An optional tensor has the tensor's type, because each input of a graph is given. Raises GraphError if the type is
    not a tensor type, or if graphq lacks the element type.
    """
    kind = proto.WhichOneof("value")
    if kind == "optional_type":
        return tensor_type(proto.optional_type.elem_type, where)
    if kind != "tensor_type":
        raise GraphError(f"{where}: must be a tensor, got {kind or 'no type'}")
    tensor = proto.tensor_type
    dtype = dtype_of(tensor.elem_type, where)
    if not tensor.HasField("shape"):
        return TensorType(dtype, None)
    dims = [d.dim_value if d.HasField("dim_value") and d.dim_value != -1 else None for d in tensor.shape.dim]
    return TensorType(dtype, check_dims(dims, where))


def symbol(size: Size) -> str:
    """The symbol that stands for an open size in ONNX's types."""
    return f"size{size.slot}"


def value_info(name: str, type: TensorType, *, symbols: bool = False) -> ValueInfoProto:
    """Describe a value for ONNX: unknown dimensions are empty, open sizes are numbers or, with `symbols`, symbols."""
    out = ValueInfoProto(name=name)
    tensor = out.type.tensor_type
    tensor.elem_type = element_of(type.dtype)
    if type.shape is not None:
        tensor.shape.SetInParent()
        for d in type.shape:
            dim = tensor.shape.dim.add()
            if symbols and isinstance(d, Size):
                dim.dim_param = symbol(d)
            elif d is not None:
                dim.dim_value = d
    return out


def agree(a: TensorType, b: TensorType) -> bool:
    """Whether a tensor can have both types."""
    return a.dtype == b.dtype and shapes_agree(a.shape, b.shape)


def as_array(x: object, type: TensorType, where: str) -> np.ndarray:
    """`x` as an array of the type's dtype; raises GraphError if it is None, a list, a dict or a string."""
    if isinstance(x, list | dict | str) or x is None:
        raise GraphError(f"{where}: the result must be a tensor, got {x.__class__.__name__}")
    array = np.asarray(x)
    return array if array.dtype == type.dtype.numpy else array.astype(type.dtype.numpy)


def array_of(tensor: TensorProto, folder: str | None, where: str) -> np.ndarray:
    """Convert a tensor to an array; external data is read from a file in `folder`.

    Raises GraphError if graphq lacks the element type or the data does not fit the shape, ParseError if external data
    cannot be read.
    """
    dtype = dtype_of(tensor.data_type, where)
    if any(d < 0 for d in tensor.dims):
        raise GraphError(f"{where}: negative dimension in {list(tensor.dims)}")
    check_size(tensor.dims, where)
    size = math.prod(tensor.dims)
    nbytes = -(-size * dtype.bits // 8)
    if tensor.data_location == TensorProto.EXTERNAL:
        expect(nbytes, f"{where} {dtype}{list(tensor.dims)}")
        tensor = _with_data(tensor, nbytes, folder, where)
    if tensor.HasField("raw_data"):
        raw = tensor.raw_data  # read once, because each access copies the data
        if len(raw) != nbytes:
            raise GraphError(f"{where}: {len(raw)} bytes do not fit {dtype}{list(tensor.dims)}")
        if dtype.bits >= 8:
            reserve(len(raw), f"{where} {dtype}{list(tensor.dims)}")
            little = np.frombuffer(raw, dtype.numpy.newbyteorder("<")).reshape(tensor.dims)
            return np.asarray(little, dtype.numpy)
    try:
        array = numpy_helper.to_array(tensor)
    except Exception as e:  # ValueError, TypeError or others if the data does not fit
        raise GraphError(f"{where}: {str(e)[:200]}") from None
    reserve(size * dtype.itemsize, f"{where} {dtype}{list(tensor.dims)}")
    return np.asarray(array, dtype.numpy)


def dense(sparse: SparseTensorProto, where: str) -> np.ndarray:
    """Convert a sparse tensor to a dense array."""
    values, indices = array_of(sparse.values, None, where), array_of(sparse.indices, None, where)
    dims = tuple(sparse.dims)
    if any(d < 0 for d in dims):
        raise GraphError(f"{where}: negative dimension in {list(dims)}")
    check_size(dims, where)
    reserve(math.prod(dims) * values.itemsize, f"{where} {values.dtype}{list(dims)}")
    out = np.zeros(math.prod(dims), values.dtype)
    places = indices if indices.ndim == 1 else np.ravel_multi_index(tuple(indices.T), dims, mode="raise")
    out[places] = values
    return out.reshape(dims)


def _with_data(tensor: TensorProto, nbytes: int, folder: str | None, where: str) -> TensorProto:
    facts = {e.key: e.value for e in tensor.external_data}
    out = TensorProto(data_type=tensor.data_type, dims=tensor.dims, name=tensor.name)
    out.raw_data = _read(facts.get("location", ""), _number(facts, "offset", where) or 0,
                         _number(facts, "length", where), nbytes, folder, where)
    return out


def _number(facts: dict[str, str], key: str, where: str) -> int | None:
    text = facts.get(key)
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) < 19):
        raise ParseError(f"{where}: external data: {key} must be a number of bytes, got {text[:40]!r}")
    return int(text)


def _read(location: str, first: int, length: int | None, wanted: int, folder: str | None, where: str) -> bytes:
    """Read a tensor's data from the file `location`; the file must lie in the model's folder."""
    if folder is None:
        raise ParseError(f"{where}: external data needs a model that is loaded from a path")
    root = os.path.realpath(folder)
    relative = bool(location) and "\0" not in location and not os.path.isabs(location)
    path = os.path.realpath(os.path.join(root, location)) if relative else root
    if path == root or os.path.commonpath([root, path]) != root:
        raise ParseError(f"{where}: external data: {location!r} is not a file in the model's folder")
    try:
        with regular_file(path) as (file, size):
            count = wanted if length is None else length
            if count < 0 or first + count > size:
                raise ParseError(f"{where}: external data: {location!r} has {size} bytes, the model wants {count} "
                                 f"from {first}")
            if count != wanted:
                raise GraphError(f"{where}: external data: {location!r}: {count} bytes do not fit a tensor "
                                 f"of {wanted}")
            file.seek(first)
            return file.read(count)
    except OSError as e:
        raise ParseError(f"{where}: external data: {location!r}: {e.strerror}") from None

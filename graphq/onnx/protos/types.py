"""The translation between ONNX's types and graphq's."""
from __future__ import annotations

import numpy as np
from onnx import TensorProto, TypeProto, ValueInfoProto

from graphq import dtypes as t
from graphq.dtypes import DType
from graphq.errors import GraphError
from graphq.ir.tensor_type import TensorType, check_dims, shapes_agree

ELEMENTS: dict[int, DType] = {
    TensorProto.FLOAT: t.f32, TensorProto.FLOAT16: t.f16, TensorProto.BFLOAT16: t.bf16, TensorProto.DOUBLE: t.f64,
    TensorProto.FLOAT8E4M3FN: t.f8_e4m3, TensorProto.FLOAT8E5M2: t.f8_e5m2,
    TensorProto.FLOAT8E4M3FNUZ: t.f8_e4m3fnuz, TensorProto.FLOAT8E5M2FNUZ: t.f8_e5m2fnuz,
    TensorProto.FLOAT8E8M0: t.f8_e8m0, TensorProto.FLOAT4E2M1: t.f4_e2m1,
    TensorProto.INT64: t.s64, TensorProto.INT32: t.s32, TensorProto.INT16: t.s16, TensorProto.INT8: t.s8,
    TensorProto.INT4: t.s4, TensorProto.INT2: t.s2,
    TensorProto.UINT64: t.u64, TensorProto.UINT32: t.u32, TensorProto.UINT16: t.u16, TensorProto.UINT8: t.u8,
    TensorProto.UINT4: t.u4, TensorProto.UINT2: t.u2, TensorProto.BOOL: t.boolean,
}
"""The DType of each TensorProto.DataType; strings and complex numbers have none."""

_BACK = {dtype: element for element, dtype in ELEMENTS.items()}


def dtype_of(element: int, where: str) -> DType:
    """The DType of a TensorProto.DataType; raises GraphError if graphq has none."""
    if element not in ELEMENTS:
        known = element in TensorProto.DataType.values()
        name = TensorProto.DataType.Name(element).lower() if known else f"number {element}"
        raise GraphError(f"{where}: element type {name} is not supported")
    return ELEMENTS[element]


def element_of(dtype: DType) -> int:
    """The TensorProto.DataType of a DType."""
    return int(_BACK[dtype])


def tensor_type(proto: TypeProto, where: str) -> TensorType:
    """A tensor's type; symbolic dimensions and -1, which PaddlePaddle writes, become unknown ones.

    Raises GraphError for what is no tensor, and for element types that graphq does not have.
    """
    kind = proto.WhichOneof("value")
    if kind != "tensor_type":
        raise GraphError(f"{where}: must be a tensor, got {kind or 'no type'}")
    tensor = proto.tensor_type
    dtype = dtype_of(tensor.elem_type, where)
    if not tensor.HasField("shape"):
        return TensorType(dtype, None)
    dims = [d.dim_value if d.HasField("dim_value") and d.dim_value != -1 else None for d in tensor.shape.dim]
    return TensorType(dtype, check_dims(dims, where))


def value_info(name: str, type: TensorType) -> ValueInfoProto:
    """ONNX's description of a value of this name and type; unknown dimensions get no symbolic name."""
    out = ValueInfoProto(name=name)
    tensor = out.type.tensor_type
    tensor.elem_type = element_of(type.dtype)
    if type.shape is not None:
        tensor.shape.SetInParent()
        for d in type.shape:
            dim = tensor.shape.dim.add()
            if d is not None:
                dim.dim_value = d
    return out


def agree(a: TensorType, b: TensorType) -> bool:
    """Whether one tensor can have both types."""
    return a.dtype == b.dtype and shapes_agree(a.shape, b.shape)


def as_array(x: object, type: TensorType, where: str) -> np.ndarray:
    """`x` as an array of the type's dtype; raises GraphError if it is None, a list, a dict or a string."""
    if isinstance(x, list | dict | str) or x is None:
        raise GraphError(f"{where}: the result is no tensor but {x.__class__.__name__}")
    array = np.asarray(x)
    return array if array.dtype == type.dtype.numpy else array.astype(type.dtype.numpy)

"""Conversion of TensorProtos to arrays; external data is read only from files in the model's folder."""
from __future__ import annotations

import math
import os
import stat

import numpy as np
from onnx import SparseTensorProto, TensorProto, numpy_helper

from graphq.base.budget import expect, reserve
from graphq.errors import GraphError, ParseError
from graphq.ir.tensor_type import check_size
from graphq.onnx.protos.types import dtype_of

PACKED = {2: 4, 4: 2}
"""For elements of 2 and of 4 bits, the number of elements in a byte."""


def array_of(tensor: TensorProto, folder: str | None, where: str) -> np.ndarray:
    """The tensor's array; external data is read from a file in `folder`.

    Raises GraphError for an element type that graphq lacks or data that does not fit the shape, ParseError for external
    data that cannot be read.
    """
    dtype = dtype_of(tensor.data_type, where)
    if any(d < 0 for d in tensor.dims):
        raise GraphError(f"{where}: negative dimension in {list(tensor.dims)}")
    check_size(tensor.dims, where)
    size = math.prod(tensor.dims)
    nbytes = -(-size // PACKED[dtype.bits]) if dtype.bits in PACKED else size * dtype.itemsize
    if tensor.data_location == TensorProto.EXTERNAL:
        expect(nbytes, f"{where} {dtype}{list(tensor.dims)}")
        tensor = _with_data(tensor, nbytes, folder, where)
    if tensor.HasField("raw_data"):
        raw = tensor.raw_data  # each access is a copy
        if len(raw) != nbytes:
            raise GraphError(f"{where}: {len(raw)} bytes do not fit {dtype}{list(tensor.dims)}")
        if dtype.bits not in PACKED:
            reserve(len(raw), f"{where} {dtype}{list(tensor.dims)}")
            little = np.frombuffer(raw, dtype.numpy.newbyteorder("<")).reshape(tensor.dims)
            return np.asarray(little, dtype.numpy)
    try:
        array = numpy_helper.to_array(tensor)
    except Exception as e:  # ValueError, TypeError and others for data that does not fit
        raise GraphError(f"{where}: {str(e)[:200]}") from None
    reserve(size * dtype.itemsize, f"{where} {dtype}{list(tensor.dims)}")
    return np.asarray(array, dtype.numpy)


def dense(sparse: SparseTensorProto, where: str) -> np.ndarray:
    """A sparse tensor as a dense array."""
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
    """The bytes of a tensor's data in the file `location`, which must lie in the model's folder."""
    if folder is None:
        raise ParseError(f"{where}: external data needs a model that is loaded from a path")
    root = os.path.realpath(folder)
    relative = bool(location) and "\0" not in location and not os.path.isabs(location)
    path = os.path.realpath(os.path.join(root, location)) if relative else root
    if path == root or os.path.commonpath([root, path]) != root:
        raise ParseError(f"{where}: external data: {location!r} is not a file in the model's folder")
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise ParseError(f"{where}: external data: {location!r} is not a regular file")
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            count = size - first if length is None else length
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

"""The operation constant: an array that is known when the graph is built."""
from __future__ import annotations

import numpy as np

from graphq.dtypes import as_dtype
from graphq.ir import TensorType
from graphq.ir.op import register_op


def infer_constant(*, value: np.ndarray) -> TensorType:
    """The array's own type; raises GraphError for a dtype that graphq does not have."""
    return TensorType(as_dtype(value.dtype), value.shape)


@register_op(infer=infer_constant)
def constant(*, value: np.ndarray) -> np.ndarray:
    """The array `value`. oneDNN has no such op: there a constant is a logical tensor of property "constant"."""
    return value

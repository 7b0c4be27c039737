"""Op declarations by family; importing this package registers all of them."""
from graphq.ops import (
    binary,
    constant,
    conv,
    conv_transpose,
    dropout,
    dynamic_quant,
    eltwise,
    interpolate,
    matmul,
    norm,
    normalise,
    pool,
    quant,
    reduce,
    shape,
    structure,
    threshold,
)

__all__ = ["binary", "constant", "conv", "conv_transpose", "dropout", "dynamic_quant", "eltwise", "interpolate",
           "matmul", "norm", "normalise", "pool", "quant", "reduce", "shape", "structure", "threshold"]

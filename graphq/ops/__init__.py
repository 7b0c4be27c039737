"""Op declarations by family; importing this package registers all of them."""
from graphq.ops import binary, constant, eltwise, matmul, norm, quant, shape, threshold

__all__ = ["binary", "constant", "eltwise", "matmul", "norm", "quant", "shape", "threshold"]

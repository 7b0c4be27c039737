"""What ONNX Runtime's integer kernels can be compared on.

On x86 CPUs without VNNI its kernels add two products of u8 and s8 in 16 bits, and saturate: 2 * 255 * 127 is beyond
32,767. graphq's sums are exact everywhere, so there tests compare with weights of 7 bits, whose pairs cannot saturate.
"""
from functools import cache
from importlib.util import find_spec

import numpy as np


@cache
def saturates() -> bool:
    """Whether ONNX Runtime saturates pairs of products on this machine: by a sum of 64 products of 255 and 127."""
    if not find_spec("onnxruntime"):
        return False
    import onnx
    import onnxruntime

    model = onnx.parser.parse_model('<ir_version: 8, opset_import: ["" : 17]> net (uint8[4, 64] a, int8[64, 16] b) '
                                    "=> (int32[4, 16] y) { y = MatMulInteger (a, b) }")
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    y = session.run(None, {"a": np.full((4, 64), 255, np.uint8), "b": np.full((64, 16), 127, np.int8)})[0]
    return bool((y != 64 * 255 * 127).any())


def comparable(weights: np.ndarray) -> np.ndarray:
    """s8 weights that ONNX Runtime multiplies exactly: the same, or where it saturates halves, -64 to 63."""
    return np.asarray(weights // 2, np.int8) if weights.dtype == np.int8 and saturates() else weights

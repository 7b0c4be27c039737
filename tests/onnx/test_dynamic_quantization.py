"""ONNX's forms of dynamic quantization: each one integer partition, bit-equal with ONNX Runtime."""
import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx_runtime import results

import graphq as gq

rng = np.random.default_rng(0)
X, IMAGE = (rng.standard_normal(s).astype(np.float32) for s in ((2, 5, 64), (1, 8, 12, 12)))
W, FILTER = (rng.integers(-127, 128, s).astype(np.int8) for s in ((64, 24), (16, 8, 3, 3)))
SCALES, ZEROS = rng.uniform(1e-3, 1e-2, 24).astype(np.float32), np.zeros(24, np.int8)
BIAS, OFFSETS = (rng.standard_normal(s).astype(np.float32) for s in ((24,), (16, 1, 1)))


def node(op, inputs, outputs="y", domain="", **attrs):
    return helper.make_node(op, inputs.split(), outputs.split(), domain=domain, **attrs)


QUANTIZE, MICROSOFT = node("DynamicQuantizeLinear", "x", "q s z"), "com.microsoft"
SCALED = [node("Cast", "i", "f", to=TensorProto.FLOAT), node("Mul", "s ws", "m"), node("Mul", "f m", "p"),
          node("Add", "b p", "y")]
CONSTANTS = {"w": W, "ws": SCALES, "wz": ZEROS, "b": BIAS}
FORMS = {  # input, result's shape, nodes, constants
    "MatMulInteger": (X, (2, 5, 24), [QUANTIZE, node("MatMulInteger", "q w z wz", "i"), *SCALED], CONSTANTS),
    "DynamicQuantizeMatMul": (X, (2, 5, 24), [node("DynamicQuantizeMatMul", "x w ws wz b", domain=MICROSOFT)],
                              CONSTANTS),
    "DynamicQuantizeMatMul, one scale": (
        X, (2, 5, 24), [node("DynamicQuantizeMatMul", "x w ws wz b", domain=MICROSOFT)],
        {**CONSTANTS, "ws": SCALES[0], "wz": np.int8(5)}),
    "MatMulIntegerToFloat": (
        X, (2, 5, 24), [QUANTIZE, node("MatMulIntegerToFloat", "q w s ws z wz b", domain=MICROSOFT)], CONSTANTS),
    "ConvInteger": (IMAGE, (1, 16, 12, 12), [QUANTIZE, node("ConvInteger", "q w z", "i", pads=[1] * 4), *SCALED],
                    {"w": FILTER, "ws": SCALES[0], "b": OFFSETS}),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("x", ["normal", "zero", "positive"])
def test_equal_with_onnx_runtime(form, x):
    like, shape, nodes, constants = FORMS[form]
    data = {"normal": like, "zero": 0 * like, "positive": np.abs(like) + 1}[x]
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, like.shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
        [numpy_helper.from_array(np.asarray(v), k) for k, v in constants.items()])
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid(MICROSOFT, 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    compiled = gq.compile(gq.load_onnx(model), threads=2, strict=True)
    assert np.array_equal(compiled(x=data), results(model, {"x": data})[0])
    assert "(1 integer), 0 operations outside" in compiled.explain()

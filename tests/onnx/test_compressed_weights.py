"""Weights that files store in 4 or 8 bits stay so in memory, whatever exporters write between them and the product."""
import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import graphq as gq

rng = np.random.default_rng(37)
DTYPES = {"s4": (ml_dtypes.int4, TensorProto.INT4), "u4": (ml_dtypes.uint4, TensorProto.UINT4),
          "s8": (np.int8, TensorProto.INT8), "u8": (np.uint8, TensorProto.UINT8)}


def dequantized(shape, dtype, axis, block):
    """A DequantizeLinear of constants, its initializers, and the weights in f64."""
    numpy, onnx_type = DTYPES[dtype]
    scales = (shape[axis],) if block is None else \
        tuple(-(-d // block) if k == axis else d for k, d in enumerate(shape))
    w, z = (rng.integers(0, 8, s).astype(numpy) for s in (shape, scales))
    s = rng.uniform(0.01, 0.1, scales).astype(np.float32)
    tensors = [helper.make_tensor(name, onnx_type, x.shape, x.astype(int).ravel()) for name, x in (("w", w), ("z", z))]
    wide = [x.reshape([-1 if k == axis else 1 for k in range(len(shape))]) if block is None
            else x.take(np.arange(shape[axis]) // block, axis=axis) for x in (s.astype(float), z.astype(float))]
    node = helper.make_node("DequantizeLinear", ["w", "s", "z"], ["w0"], axis=axis, block_size=block or 0)
    return node, [*tensors, numpy_helper.from_array(s, "s")], (w.astype(float) - wide[1]) * wide[0]


def model(node, tensors, moves, product, x):
    """The file: the dequantize, what is written after it, and the product."""
    nodes, name = [node], "w0"
    for k, (op, given) in enumerate(moves):
        if op == "Reshape":
            tensors = [*tensors, numpy_helper.from_array(np.asarray(given), f"shape{k}")]
        inputs, attrs = ([name, f"shape{k}"], {}) if op == "Reshape" else ([name], given)
        name = f"w{k + 1}"
        nodes.append(helper.make_node(op, inputs, [name], **attrs))
    op, attrs = product
    nodes.append(helper.make_node(op, ["x", name], ["y"], **attrs))
    graph = helper.make_graph(nodes, "net", [helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape)],
                              [onnx.ValueInfoProto(name="y")], tensors)
    return helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 21)])


TURN = ("Transpose", {"perm": [1, 0]})
MATMUL, TURNED = ("MatMul", {}), ("Gemm", {"transB": 1})
FORMS = {  # shape, axis and block of the weights; what follows; the product; what the weights are then
    "blocks": ((64, 5), 0, 16, [], MATMUL, lambda w: w),
    "turned": ((5, 64), 1, 16, [TURN], MATMUL, lambda w: w.T),
    "turned by Gemm": ((5, 64), 1, 16, [], TURNED, lambda w: w.T),
    "of three axes": ((5, 4, 16), 2, 16, [("Reshape", [5, 64])], TURNED, lambda w: w.reshape(5, 64).T),
    "of three axes, turned": ((5, 4, 16), 2, 16, [("Reshape", [5, 64]), TURN], MATMUL, lambda w: w.reshape(5, 64).T),
    "rows of blocks": ((20, 16), 0, None, [("Reshape", [5, 64])], TURNED, lambda w: w.reshape(5, 64).T),
    "flat heads": ((64, 5, 3), 0, 16, [("Flatten", {"axis": 1})], MATMUL, lambda w: w.reshape(64, 15)),
    "a shorter last block": ((70, 5), 0, 16, [], MATMUL, lambda w: w),
    "a shorter last block, turned": ((5, 70), 1, 16, [TURN], MATMUL, lambda w: w.T),
    "a block beyond the sum": ((70, 5), 0, 128, [], MATMUL, lambda w: w),
    "columns of an odd sum": ((67, 5), 1, None, [], MATMUL, lambda w: w),
    "Einsum": ((5, 64), 1, 16, [], ("Einsum", {"equation": "mk,nk->mn"}), lambda w: w.T),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("form", FORMS)
def test_weights_stay_compressed(form, dtype):
    shape, axis, block, moves, product, final = FORMS[form]
    node, tensors, wide = dequantized(shape, dtype, axis, block)
    x = rng.standard_normal((3, final(wide).shape[0])).astype(np.float32)
    compiled = gq.compile(gq.load_onnx(model(node, tensors, moves, product, x)), threads=1, strict=True)
    np.testing.assert_allclose(compiled(x), x @ final(wide), atol=1e-4)
    assert [n.attrs["anchor"] for n in compiled.graph.nodes if n.op.name == "partition"] == ["matmul_compressed"]

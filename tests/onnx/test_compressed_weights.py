"""Weights that files store in 4 or 8 bits stay so in memory, whatever exporters write between them and the product."""
import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx_node import by_onnx_runtime, node_model

import graphq as gq

rng = np.random.default_rng(37)
DTYPES = {"s4": (ml_dtypes.int4, TensorProto.INT4), "u4": (ml_dtypes.uint4, TensorProto.UINT4),
          "s8": (np.int8, TensorProto.INT8), "u8": (np.uint8, TensorProto.UINT8)}


def dequantized(shape, dtype, axis, block, result=np.float32):
    """A DequantizeLinear of constants, its initializers, and the weights in f64."""
    numpy, onnx_type = DTYPES[dtype]
    scales = (shape[axis],) if block is None else \
        tuple(-(-d // block) if k == axis else d for k, d in enumerate(shape))
    w, z = (rng.integers(0, 8, s).astype(numpy) for s in (shape, scales))
    s = rng.uniform(0.01, 0.1, scales).astype(result)
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
    x_info = helper.make_tensor_value_info("x", helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
    graph = helper.make_graph(nodes, "net", [x_info], [onnx.ValueInfoProto(name="y")], tensors)
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
    "a block beyond a sum of whole lines": ((64, 5), 0, 128, [], MATMUL, lambda w: w),
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
    assert anchors(compiled) == ["matmul_compressed"]


HALF = {  # shape, axis and block of the weights of f16; what follows; the source; what the weights are then
    "f16": ((64, 5), 0, 16, [], np.float16, lambda w: w),
    "f16, turned": ((5, 64), 1, 16, [TURN], np.float16, lambda w: w.T),
    "cast": ((64, 5), 0, 16, [("Cast", {"to": 1})], np.float32, lambda w: w),
    "turned and cast": ((5, 64), 1, 16, [TURN, ("Cast", {"to": 1})], np.float32, lambda w: w.T),
    "cast, a shorter last block": ((70, 5), 0, 16, [("Cast", {"to": 1})], np.float32, lambda w: w),
    "cast, columns of an odd sum": ((67, 5), 1, None, [("Cast", {"to": 1})], np.float32, lambda w: w),
}


@pytest.mark.parametrize("rows", [1, 9])
@pytest.mark.parametrize("form", HALF)
def test_weights_of_f16_have_the_roundings_of_the_file(form, rows):
    shape, axis, block, moves, dtype, final = HALF[form]
    node, tensors, wide = dequantized(shape, "s4", axis, block, np.float16)
    x = rng.standard_normal((rows, final(wide).shape[0])).astype(dtype)
    file = model(node, tensors, moves, MATMUL, x)
    compiled = gq.compile(gq.load_onnx(file), threads=1, strict=True)
    want = x.astype(float) @ final(wide).astype(np.float16).astype(float)
    np.testing.assert_allclose(compiled(x).astype(float), want, atol=1e-4, rtol=2**-10 if dtype == np.float16 else 0)
    assert [a for a in anchors(compiled) if a.startswith("matmul")] == ["matmul_compressed"]


@pytest.mark.parametrize("rows", [1, 9])
@pytest.mark.parametrize("block", [None, 16])
@pytest.mark.parametrize("k", [64, 70])
@pytest.mark.parametrize("moves", [[TURN, ("Cast", {"to": 10})], [("Cast", {"to": 10}), TURN]])
def test_weights_that_are_cast_to_f16(moves, k, block, rows):
    node, tensors, wide = dequantized((5, k), "u8", 0 if block is None else 1, block)
    x = rng.standard_normal((rows, k)).astype(np.float16)
    compiled = gq.compile(gq.load_onnx(model(node, tensors, moves, MATMUL, x)), threads=1, strict=True)
    np.testing.assert_allclose(compiled(x), x.astype(float) @ wide.astype(np.float16).T, rtol=2e-3, atol=2e-3)
    assert [a for a in anchors(compiled) if a.startswith("matmul")] == ["matmul_compressed"]


def anchors(compiled):
    """What the partitions are built around."""
    return [n.attrs["anchor"] for n in compiled.graph.nodes if n.op.name == "partition"]


NARROW = {"INT2": ml_dtypes.int2, "UINT2": ml_dtypes.uint2, "FLOAT4E2M1": ml_dtypes.float4_e2m1fn,
          "FLOAT6E2M3": ml_dtypes.float6_e2m3fn, "FLOAT6E3M2": ml_dtypes.float6_e3m2fn,
          "FLOAT8E4M3FN": ml_dtypes.float8_e4m3fn, "FLOAT8E5M2": ml_dtypes.float8_e5m2}


SCALES = {"f32": np.float32, "powers of two": ml_dtypes.float8_e8m0fnu, "f8 times f32": ml_dtypes.float8_e4m3fn}


@pytest.mark.parametrize("scales", SCALES)
@pytest.mark.parametrize("dtype", NARROW)
def test_weights_of_few_bits_and_small_floats(dtype, scales):
    """MXFP4 and MXFP8 have powers of two as scales, NVFP4 has dequantized f8."""
    integers = dtype.endswith("INT2")
    w, z = (rng.integers(0, 4, shape).astype(NARROW[dtype]) for shape in ((64, 5), (4, 5)))
    s = (2.0 ** rng.integers(-9, 3, (4, 5))).astype(SCALES[scales])
    constants = [("w", w), ("s", s), *([("z", z)] if integers else []), ("g", np.float32(0.25))]
    tensors = [helper.make_tensor(name, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape, x.astype(np.float32).ravel())
               for name, x in constants]
    nested = scales == "f8 times f32"
    first = [helper.make_node("DequantizeLinear", ["s", "g"], ["t"])] if nested else []
    node = helper.make_node("DequantizeLinear", ["w", "t" if nested else "s", *(["z"] if integers else [])], ["w0"],
                            axis=0, block_size=16, output_dtype=TensorProto.FLOAT)
    x = rng.standard_normal((3, 64)).astype(np.float32)
    file = model(node, tensors, [], MATMUL, x)
    file.opset_import[0].version = 28
    nodes = [*first, *file.graph.node]
    del file.graph.node[:]
    file.graph.node.extend(nodes)
    compiled = gq.compile(gq.load_onnx(file), threads=1, strict=True)
    zeros, factors = z.astype(float).repeat(16, axis=0), s.astype(float).repeat(16, axis=0) * (0.25 if nested else 1)
    np.testing.assert_allclose(compiled(x), x @ ((w.astype(float) - (zeros if integers else 0)) * factors), atol=1e-4)
    assert anchors(compiled) == ["matmul_compressed"]
    (partition,) = (n for n in compiled.graph.nodes if n.op.name == "partition")
    assert {v.data.dtype for v in partition.operands if v.data is not None} >= {w.dtype}


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("bits, k, level", [
    (4, 64, 0), (2, 64, 0), (8, 70, 0), (4, 70, 0), (4, 64, 4), (4, 70, 4), (2, 70, 4)])
def test_products_of_bits(bits, k, level, dtype):
    blocks = -(-k // 32)
    x, scales, bias = (rng.uniform(0.1, 1, shape).astype(dtype) for shape in ((3, k), (5, blocks), (5,)))
    inputs = [("x", x), ("B", rng.integers(0, 256, (5, blocks, 4 * bits), dtype=np.uint8)), ("S", scales), ("Z", None),
              ("G", None), ("D", bias)]
    file = node_model("MatMulNBits", inputs, {"K": k, "N": 5, "bits": bits, "block_size": 32, "accuracy_level": level})
    compiled = gq.compile(gq.load_onnx(file), threads=1, strict=True)
    got = compiled(x)
    assert got.dtype == dtype
    assert [a for a in anchors(compiled) if a.startswith("matmul")] == ["matmul_compressed"]
    if dtype != ml_dtypes.bfloat16:
        (want,) = by_onnx_runtime(file, inputs)
        tolerance = 2**-10 if dtype == np.float16 else 0
        np.testing.assert_allclose(got.astype(float), want.astype(float), atol=1e-4, rtol=tolerance)

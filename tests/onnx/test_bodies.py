"""Operators that ONNX defines as functions of others run as these, in kernels."""
import numpy as np
import pytest
from onnx import TensorProto, helper
from onnx_runtime import results

import graphq as gq

rng = np.random.default_rng(3)


def model(op, feeds, outputs, opset=23, **attrs):
    """One node; its inputs have open shapes."""
    def info(name, x):
        return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(x.dtype), [None] * x.ndim)

    graph = helper.make_graph([helper.make_node(op, list(feeds), outputs, **attrs)], "net",
                              [info(n, x) for n, x in feeds.items()],
                              [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in outputs])
    return helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", opset)])


def compare(m, feeds):
    want = results(m, feeds)
    compiled = gq.compile(gq.load_onnx(m))
    got = compiled(feeds)
    for a, b in zip(got.values() if isinstance(got, dict) else [got], want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
    assert "onnx_node" not in compiled.explain()


def normal(*shape):
    return rng.normal(size=shape).astype(np.float32)


@pytest.mark.parametrize("causal", [0, 1])
def test_attention_of_shared_heads_with_past(causal):
    feeds = {"q": normal(2, 3, 64), "k": normal(2, 3, 32), "v": normal(2, 3, 32), "mask": normal(3, 8),
             "past_k": normal(2, 2, 5, 16), "past_v": normal(2, 2, 5, 16)}
    compare(model("Attention", feeds, ["y", "new_k", "new_v"], q_num_heads=4, kv_num_heads=2, is_causal=causal), feeds)


def test_rotary_embedding():
    feeds = {"x": normal(2, 4, 6, 16), "cos": normal(2, 6, 4), "sin": normal(2, 6, 4)}
    compare(model("RotaryEmbedding", feeds, ["y"], rotary_embedding_dim=8), feeds)


def test_attributes_of_the_call_reach_the_body():
    feeds = {"x": normal(5, 7) * 3}
    compare(model("Shrink", feeds, ["y"], opset=17, lambd=1.5, bias=0.25), feeds)
    compare(model("Shrink", feeds, ["y"], opset=17), feeds)

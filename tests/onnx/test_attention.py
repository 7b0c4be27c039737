"""ONNX's Attention against ONNX's reference: as one step, without matrices of masks, and without copies of keys."""
import numpy as np
import onnx
import pytest
from all_pairs import all_pairs
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

import graphq as gq

rng = np.random.default_rng(11)
FLOATS = {"f4": TensorProto.FLOAT, "f2": TensorProto.FLOAT16, "bfloat16": TensorProto.BFLOAT16}


def normal(*shape, dtype="f4"):
    return rng.standard_normal(shape).astype(dtype)


def attention(batch=2, new=5, keys=None, heads=4, groups=2, size=8, *, past=0, mask=None, lengths=None, flat=False,
              dtype="f4", version=23, open_shapes=False, **attrs):
    """A model of one node, and its inputs."""
    keys = new if keys is None else keys
    x = {"q": normal(batch, heads, new, size, dtype=dtype), "k": normal(batch, groups, keys, size, dtype=dtype),
         "v": normal(batch, groups, keys, size, dtype=dtype)}
    if flat:
        x = {n: a.swapaxes(1, 2).reshape(batch, a.shape[2], -1) for n, a in x.items()}
        attrs |= {"q_num_heads": heads, "kv_num_heads": groups}
    more = {"mask": mask, "past_k": normal(batch, groups, past, size, dtype=dtype) if past else None,
            "past_v": normal(batch, groups, past, size, dtype=dtype) if past else None, "lengths": lengths}
    inputs = {n: a for n, a in {**x, **more}.items() if a is not None}
    names = [n if n in inputs else "" for n in (*x, *more)]
    while not names[-1]:
        names.pop()
    outputs = ["y", "present_k", "present_v"][:3 if past else 1]

    def info(name, a):
        fixed = {0: "batch"} if flat else {0: "batch", 2: f"{name} rows"}
        if name in ("mask", "lengths"):
            fixed = dict.fromkeys(range(a.ndim), None)
        dims = [fixed.get(k, d) if open_shapes else d for k, d in enumerate(a.shape)]
        return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(a.dtype), dims)

    graph = helper.make_graph([helper.make_node("Attention", names, outputs, **attrs)], "net",
                              [info(n, a) for n, a in inputs.items()],
                              [helper.make_tensor_value_info(n, FLOATS[dtype], None) for n in outputs])
    return helper.make_model(graph, ir_version=11, opset_imports=[helper.make_opsetid("", version)]), inputs


def seen(*shape):
    return rng.uniform(size=shape) < 0.6


CASES = {
    "plain": dict(groups=4),
    "shared heads": dict(),
    "one head of keys": dict(groups=1, keys=9),
    "flat": dict(flat=True, scale=0.3),
    "causal": dict(is_causal=1),
    "causal after past": dict(is_causal=1, past=7),
    "past": dict(past=7, flat=True),
    "mask": dict(mask=seen(5, 5)),
    "mask of keys": dict(mask=seen(2, 1, 1, 5)),
    "mask of heads": dict(mask=seen(4, 5, 5), is_causal=1, past=0),
    "mask that hides all": dict(mask=np.zeros((5, 5), bool)),
    "mask of numbers": dict(mask=normal(2, 4, 5, 5), is_causal=1),
    "softcap": dict(softcap=1.5, mask=normal(5, 5)),
    "lengths": dict(version=24, new=2, keys=9, lengths=np.array([4, 9]), is_causal=1),
    "lengths without causality": dict(version=24, new=3, keys=9, lengths=np.array([0, 6])),
    "lengths and a mask": dict(version=24, new=3, keys=9, lengths=np.array([2, 8]), is_causal=1, mask=seen(3, 9)),
    "fewer keys than queries": dict(version=24, new=4, keys=9, lengths=np.array([1, 9]), is_causal=1),
    "a window": dict(version=25, new=7, left_window_size=2, right_window_size=1),
    "keys before": dict(version=25, new=9, keys=7, left_window_size=1, flat=True),
    "a causal window after past": dict(version=25, past=7, left_window_size=3, right_window_size=2, is_causal=1),
    "a window of lengths": dict(version=25, new=4, keys=9, lengths=np.array([3, 9]), left_window_size=2,
                                right_window_size=1),
    "a shorter mask": dict(version=24, new=3, keys=9, lengths=np.array([2, 6]), mask=seen(3, 6)),
}


@pytest.mark.parametrize("name, dtype, open_shapes", all_pairs(CASES, ["f4", "f2"], [False, True]))
def test_as_onnx(name, dtype, open_shapes):
    case = dict(CASES[name])
    if isinstance(mask := case.get("mask"), np.ndarray) and mask.dtype != bool:
        case["mask"] = mask.astype(dtype)
    model, x = attention(dtype=dtype, open_shapes=open_shapes, **case)
    want = ReferenceEvaluator(model).run(None, x)
    compiled = gq.compile(gq.load_onnx(model))
    got = compiled(x)
    for a, b in zip(got.values() if isinstance(got, dict) else [got], want, strict=True):
        assert a.dtype == b.dtype == dtype
        np.testing.assert_allclose(a.astype("f8"), b.astype("f8"), rtol=1e-4, atol=1e-5 if dtype == "f4" else 2e-3)
    if name != "a shorter mask":
        gq.compile(gq.load_onnx(model), strict=True)(x)


@pytest.mark.parametrize("dtype", ["f4", "f2"])
@pytest.mark.parametrize("case", [
    dict(), dict(is_causal=1), dict(mask=seen(1100, 1100), is_causal=1),
    dict(version=24, lengths=np.array([900]), is_causal=1, mask=seen(1100, 1100)),
    dict(version=25, left_window_size=40, right_window_size=3)], ids=str)
def test_nothing_of_the_size_of_the_scores_is_in_memory(case, dtype):
    """But for a mask that a call gives, of one byte an element.

    ONNX's reference takes a second for two heads of f16.
    """
    new = 1100
    model, x = attention(batch=1, new=new, heads=2 if dtype == "f4" else 1, groups=1, size=16, dtype=dtype, **case)
    compiled = gq.compile(gq.load_onnx(model), strict=True, threads=1)
    buffers = compiled.plans.fixed.plan.buffers
    assert max(b.nbytes for b in buffers if b.storage != "input") < new * new
    want = ReferenceEvaluator(model).run(None, x)[0]
    np.testing.assert_allclose(compiled(x).astype("f8"), want.astype("f8"), atol=1e-5 if dtype == "f4" else 2e-3)


def with_products(mode, **case):
    """An attention whose fourth output are the products, at the point that `mode` says."""
    model, x = attention(qk_matmul_output_mode=mode, **case)
    node = model.graph.node[0]
    node.output.extend([*[""] * (3 - len(node.output)), "products"])
    model.graph.output.append(helper.make_tensor_value_info("products", TensorProto.FLOAT, [None] * 4))
    return model, x


@pytest.mark.parametrize("past", [0, 3])
@pytest.mark.parametrize("mode", range(4))
def test_products_are_an_output(mode, past):
    model, x = with_products(mode, is_causal=1, softcap=1.5, mask=normal(5, 5 + past), past=past)
    got = list(gq.compile(gq.load_onnx(model), strict=True)(x).values())
    want = ReferenceEvaluator(model).run(None, x)
    if mode == 0:  # ONNX's reference gives those after the cap, against ONNX's text and its function
        k = np.concatenate([x["past_k"], x["k"]], 2) if past else x["k"]
        want[-1] = x["q"] @ k.repeat(2, 1).swapaxes(2, 3) / np.sqrt(np.float32(8))
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def test_products_of_a_shorter_mask_are_those_of_the_function():
    model, x = with_products(2, version=24, new=3, keys=9, lengths=np.array([2, 6]), mask=seen(3, 6))
    compiled = gq.compile(gq.load_onnx(model))
    assert "onnx_node" not in compiled.explain()
    for a, b in zip(compiled(x).values(), ReferenceEvaluator(model).run(None, x), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def test_a_decomposed_attention_of_shared_heads_reads_them_where_they_lie():
    """As exporters write it: keys and values are repeated for all heads that share them."""
    text = """<ir_version: 8, opset_import: ["" : 17]>
        net (float[2, 4, N, 8] q, float[2, 2, N, 8] k, float[2, 2, N, 8] v) => (float[2, 4, N, 8] y) {
            axis = Constant<value = int64[1] {2}>()
            n = Shape<start = 2, end = 3>(q)
            first = Constant<value = int64[3] {2, 2, 2}>()
            size = Constant<value = int64[1] {8}>()
            wide = Concat<axis = 0>(first, n, size)
            heads = Constant<value = int64[2] {2, 4}>()
            whole = Concat<axis = 0>(heads, n, size)
            k1 = Unsqueeze(k, axis)
            k2 = Expand(k1, wide)
            k3 = Reshape(k2, whole)
            v1 = Unsqueeze(v, axis)
            v2 = Expand(v1, wide)
            v3 = Reshape(v2, whole)
            kt = Transpose<perm = [0, 1, 3, 2]>(k3)
            scale = Constant<value = float {0.35}>()
            ks = Mul(kt, scale)
            s = MatMul(q, ks)
            p = Softmax<axis = -1>(s)
            y = MatMul(p, v3)
        }"""
    model = onnx.parser.parse_model(text)
    compiled = gq.compile(gq.load_onnx(model), strict=True)
    for n in (6, 9):
        x = {"q": normal(2, 4, n, 8), "k": normal(2, 2, n, 8), "v": normal(2, 2, n, 8)}
        np.testing.assert_allclose(compiled(x), ReferenceEvaluator(model).run(None, x)[0], rtol=1e-4, atol=1e-5)
    assert "expand" not in compiled.explain()


@pytest.mark.parametrize("dtype", [TensorProto.FLOAT, TensorProto.FLOAT16])
def test_rows_that_are_nan_become_zeros_within_the_step(dtype):
    """As exporters write it: rows that see no key are NaN after the softmax."""
    n = 600
    nodes = [helper.make_node("MatMul", ["q", "kt"], ["s"]), helper.make_node("Where", ["mask", "s", "away"], ["m"]),
             helper.make_node("Softmax", ["m"], ["p"], axis=-1), helper.make_node("IsNaN", ["p"], ["nan"]),
             helper.make_node("Where", ["nan", "zero", "p"], ["p0"]), helper.make_node("MatMul", ["p0", "v"], ["y"])]
    shapes = {"q": [1, 2, n, 64], "kt": [1, 2, 64, n], "v": [1, 2, n, 64]}
    graph = helper.make_graph(
        nodes, "net", [*(helper.make_tensor_value_info(name, dtype, shape) for name, shape in shapes.items()),
                       helper.make_tensor_value_info("mask", TensorProto.BOOL, [n, n])],
        [helper.make_tensor_value_info("y", dtype, None)],
        [helper.make_tensor("away", dtype, [], [-np.inf]), helper.make_tensor("zero", dtype, [], [0])])
    model = helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 21)])
    x = {name: 0.3 * normal(*shape) for name, shape in shapes.items()}
    x = {name: a.astype(helper.tensor_dtype_to_np_dtype(dtype)) for name, a in x.items()} | {"mask": seen(n, n)}
    x["mask"][3] = False
    compiled = gq.compile(gq.load_onnx(model), strict=True, threads=1)
    assert max(b.nbytes for b in compiled.plans.fixed.plan.buffers if b.storage != "input") < n * n
    with np.errstate(invalid="ignore"):
        got, (want,) = compiled(x), ReferenceEvaluator(model).run(None, x)
    np.testing.assert_allclose(got.astype("f8"), want.astype("f8"), atol=1e-5 if dtype == TensorProto.FLOAT else 2e-3)
    assert not got[:, :, 3].any()


@pytest.mark.parametrize("mode", [-1, 4])
def test_other_modes_of_the_products_are_refused(mode):
    model, _ = attention(qk_matmul_output_mode=mode)
    with pytest.raises(gq.GraphError, match=f"'qk_matmul_output_mode' must be 0 to 3, got {mode}"):
        gq.load_onnx(model)


def test_smaller_windows_are_refused():
    model, _ = attention(version=25, left_window_size=-2)
    with pytest.raises(gq.GraphError, match=r"must be at least -1, got \(-2, -1\)"):
        gq.load_onnx(model)


def test_bf16_rounds_each_step_and_a_sum_once():
    """ONNX's reference rounds the sum of a softmax after each element: for 512 equal keys of value 1 it gives 2."""
    proto, feeds = attention(heads=2, groups=2, keys=9, dtype="bfloat16")
    bf16 = feeds["q"].dtype
    root = np.sqrt(np.sqrt(1 / 8)).astype(bf16)
    q, k, v = ((x * root if n in "qk" else x).astype(np.float64) for n, x in feeds.items())
    scores = (q @ k.swapaxes(-1, -2)).astype(bf16)
    powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights = powers / powers.astype(np.float64).sum(axis=-1, keepdims=True).astype(bf16)
    want = (weights.astype(np.float64) @ v).astype(bf16)
    np.testing.assert_array_equal(gq.compile(gq.load_onnx(proto))(feeds), want)
    proto, feeds = attention(batch=1, new=1, keys=512, heads=1, groups=1, dtype="bfloat16")
    feeds = {n: np.full_like(x, n == "v") for n, x in feeds.items()}
    assert (gq.compile(gq.load_onnx(proto))(feeds) == 1).all()

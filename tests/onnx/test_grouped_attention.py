"""GroupQueryAttention against ONNX Runtime and against a formula, key by key."""
import numpy as np
import onnx
import pytest
from onnx_node import assert_near, by_graphq, by_onnx_runtime, node_model
from onnx_runtime import session

import graphq as gq
from graphq.dtypes import DTYPES
from graphq.errors import GraphError

rng = np.random.default_rng(5)
NAMES = ("q", "k", "v", "past_k", "past_v", "lengths", "total", "COS", "SIN", "positions", "bias", "SINK", "", "", "QN",
         "KN")


def floats(*shape):
    return rng.standard_normal(shape).astype(np.float32)


def attention(batch=1, new=1, cache=0, lengths=None, heads=4, groups=2, size=8, *, packed=False, past=None, rotary=0,
              positions=None, bias=None, sink=False, norms=False, **attrs):
    """Inputs and attributes of a node; `lengths` with the new ones, `cache` rows of which some may be empty."""
    lengths = lengths or [cache + new] * batch
    total = max(lengths)
    q, k, v = floats(batch, new, heads * size), floats(batch, new, groups * size), floats(batch, new, groups * size)
    values = [np.concatenate([q, k, v], axis=2), None, None] if packed else [q, k, v]
    past = past if past is not None else cache > 0
    values += [floats(batch, groups, cache, size) if past else None for _ in range(2)]
    values += [np.array(lengths, np.int32) - 1, np.array(total, np.int32)]
    angles = rng.uniform(0, 6, (32, rotary // 2)).astype(np.float32)
    values += [np.cos(angles), np.sin(angles)] if rotary else [None, None]
    values += [positions, None if bias is None else floats(*bias, new, total), floats(heads) if sink else None]
    values += [None, None, *(floats(size), floats(size))] if norms else []
    if rotary:
        attrs["do_rotary"] = 1
    return list(zip(NAMES, values, strict=False)), {"num_heads": heads, "kv_num_heads": groups, **attrs}


def formula(inputs, attrs):
    """The output and the caches, in f64."""
    q, k, v, past_k, past_v, ends, total, cos, sin, positions, bias, sink, _, _, qn, kn = \
        [x for _, x in inputs] + [None] * (16 - len(inputs))
    heads, groups = attrs["num_heads"], attrs["kv_num_heads"]
    if k is None:
        size = q.shape[2] // (heads + 2 * groups)
        q, k, v = np.split(q, [heads * size, (heads + groups) * size], axis=2)
    batch, new = q.shape[:2]
    size = q.shape[2] // heads
    capacity = max(int(total), 0 if past_k is None else past_k.shape[2])
    q, k, v = (x.reshape(batch, new, -1, size).astype(np.float64) for x in (q, k, v))
    if qn is not None:
        both = attrs.get("qk_norm_epsilon", 1e-6)
        q, k = (x / np.sqrt(np.square(x).mean(axis=-1, keepdims=True) + epsilon) * w for x, w, epsilon in (
            (q, qn, attrs.get("q_norm_epsilon", both)), (k, kn, attrs.get("k_norm_epsilon", both))))
    y, caches = np.zeros((batch, new, heads, size)), [np.zeros((batch, groups, capacity, size)) for _ in range(2)]
    for b in range(batch):
        before = max(int(ends[b]) + 1 - new, 0)
        for s in range(new):
            place = before + s if positions is None else positions[b, s]
            if cos is not None:
                for x in (q, k):
                    x[b, s] = turned(x[b, s], cos[place], sin[place], attrs.get("rotary_interleaved", 0))
        for cache, past, x in zip(caches, (past_k, past_v), (k, v), strict=True):
            if past is not None:
                cache[b, :, :before] = past[b, :, :before]
            cache[b, :, before:before + new] = x[b].swapaxes(0, 1)
        for h in range(heads):
            for s in range(new):
                last = before + s + 1 if attrs.get("causal", 1) else int(ends[b]) + 1
                first = max(last - attrs["local_window_size"], 0) if attrs.get("local_window_size", -1) > 0 else 0
                keys, values = (x[b, h * groups // heads, first:last] for x in caches)
                scores = keys @ q[b, s, h] * attrs.get("scale", 1 / np.sqrt(size))
                if attrs.get("softcap"):
                    scores = attrs["softcap"] * np.tanh(scores / attrs["softcap"])
                if bias is not None:
                    scores = scores + bias[b % len(bias), h % bias.shape[1], s, first:last]
                weights = np.exp(scores)
                other = np.exp(sink[h]) if sink is not None else attrs.get("smooth_softmax", -1) == 1
                y[b, s, h] = weights / (weights.sum() + other) @ values
    return [x.astype(np.float32) for x in (y.reshape(batch, new, heads * size), *caches)]


def turned(x, cos, sin, interleaved):
    """The first elements of each head turned in pairs."""
    y, half = x.copy(), len(cos)
    a, b = (slice(0, 2 * half, 2), slice(1, 2 * half, 2)) if interleaved else (slice(half), slice(half, 2 * half))
    y[:, a], y[:, b] = x[:, a] * cos - x[:, b] * sin, x[:, a] * sin + x[:, b] * cos
    return y


CASES = {
    "prompt": dict(batch=2, new=5),
    "prompt with empty caches": dict(batch=2, new=5, past=True),
    "prompt of several lengths": dict(batch=3, new=5, lengths=[2, 5, 4]),
    "prompt in long caches": dict(batch=2, new=4, cache=9, lengths=[4, 3]),
    "one token": dict(cache=6),
    "one token of several lengths": dict(batch=3, cache=6, lengths=[4, 7, 5]),
    "one token in long caches": dict(batch=2, cache=9, lengths=[4, 6]),
    "some tokens": dict(new=3, cache=6),
    "packed": dict(batch=2, new=5, packed=True),
    "packed one token": dict(batch=2, cache=5, packed=True, rotary=16, size=16),
    "heads of their own": dict(batch=2, new=4, heads=3, groups=3),
    "one key for all": dict(batch=2, cache=4, heads=6, groups=1),
    "rotary prompt": dict(batch=2, new=5, rotary=16, size=16),
    "rotary interleaved": dict(batch=2, cache=5, lengths=[3, 6], rotary=16, size=16, rotary_interleaved=1),
    "rotary of a part": dict(new=3, cache=5, rotary=16, size=32),
    "positions": dict(batch=2, cache=4, rotary=16, size=16, positions=np.array([[9], [3]])),
    "positions of a prompt": dict(new=4, rotary=16, size=16, positions=np.arange(4)[None]),
    "scale": dict(new=5, scale=0.7),
    "softcap": dict(new=5, cache=3, softcap=1.5),
    "window of a prompt": dict(batch=2, new=7, local_window_size=3),
    "window of one token": dict(batch=2, cache=8, lengths=[9, 2], local_window_size=4),
    "bias": dict(batch=2, new=4, bias=(2, 4)),
    "bias of all": dict(batch=2, cache=4, bias=(1, 1)),
    "bias in long caches": dict(batch=2, cache=9, lengths=[5, 6], bias=(2, 1), softcap=2.0),
    "smooth softmax": dict(new=4, cache=2, smooth_softmax=1),
    "sinks": dict(batch=2, new=4, sink=True, local_window_size=2),
    "both directions": dict(batch=2, new=4, causal=0),
    "both directions with caches": dict(new=3, cache=4, causal=0),
}


def without_padding(outputs, inputs):
    """The outputs without the rows of prompts that stand behind their ends, which nothing defines."""
    y, *caches = outputs
    lengths = dict(inputs)["lengths"] + 1
    return [np.concatenate([y[b, :n] for b, n in enumerate(lengths)]), *caches]


@pytest.mark.parametrize("open_shapes", [False, True], ids=["fixed", "open"])
@pytest.mark.parametrize("name", CASES)
def test_as_onnx_runtime(name, open_shapes):
    inputs, attrs = attention(**CASES[name])
    want = by_onnx_runtime(node_model("GroupQueryAttention", inputs, attrs, 3), inputs)
    m = node_model("GroupQueryAttention", inputs, attrs, 3, open_shapes=open_shapes)
    if open_shapes:  # but for the width, which the weights before it give
        for v in m.graph.input:
            if v.name in ("q", "k", "v"):
                v.type.tensor_type.shape.dim[2].dim_value = dict(inputs)[v.name].shape[2]
    for got in by_graphq(m, inputs):
        assert_near(without_padding(got, inputs), without_padding(want, inputs))


NORMS = {"norms": {}, "epsilon": dict(qk_norm_epsilon=0.5), "epsilon of queries": dict(q_norm_epsilon=0.5),
         "epsilons": dict(q_norm_epsilon=0.25, k_norm_epsilon=0.5, qk_norm_epsilon=3.0)}


@pytest.mark.parametrize("name", [*CASES, *NORMS])
def test_formula(name):
    case = CASES[name] if name in CASES else dict(batch=2, new=3, cache=0, norms=True, rotary=8, **NORMS[name])
    inputs, attrs = attention(**case)
    want = formula(inputs, attrs)
    for got in by_graphq(node_model("GroupQueryAttention", inputs, attrs, 3), inputs):
        assert_near(without_padding(got, inputs), without_padding(want, inputs))


@pytest.mark.parametrize("name", ["bias in long caches", "both directions", "rotary interleaved", "packed", "sinks"])
def test_saved_and_loaded_again(name, tmp_path):
    inputs, attrs = attention(**CASES[name])
    g = gq.load_onnx(node_model("GroupQueryAttention", inputs, attrs, 3))
    gq.save_onnx(g, tmp_path / "again.onnx")
    again = gq.load_onnx(tmp_path / "again.onnx")
    values = {n: x for n, x in inputs if x is not None and not n.isupper()}
    for got, want in zip(*(gq.reference(graph, values).values() for graph in (again, g)), strict=True):
        np.testing.assert_array_equal(got, want)


def test_without_caches_as_outputs():
    inputs, attrs = attention(batch=2, new=3)
    for got in by_graphq(node_model("GroupQueryAttention", inputs, attrs), inputs):
        assert_near(got, formula(inputs, attrs)[:1])


def test_steps_of_a_generation_are_those_of_the_whole():
    """A prompt, then token after token into the caches that the steps before gave."""
    inputs, attrs = attention(new=6, rotary=8, packed=True)
    model = node_model("GroupQueryAttention", inputs, attrs, 3)
    whole, = (got[0] for got in list(by_graphq(model, inputs))[:1])
    values, caches = dict(inputs), [np.zeros((1, 2, 0, 8), np.float32)] * 2
    for start, end in ((0, 3), (3, 4), (4, 5), (5, 6)):
        step = values | {"q": values["q"][:, start:end], "past_k": caches[0], "past_v": caches[1],
                         "lengths": np.array([end - 1], np.int32), "total": np.array(end, np.int32)}
        step = [(n, step[n]) for n in values]
        y, *caches = list(by_graphq(node_model("GroupQueryAttention", step, attrs, 3), step))[1]
        np.testing.assert_allclose(y, whole[:, start:end], atol=1e-5)


DECODER = """<ir_version: 8, opset_import: ["" : 17, "com.microsoft": 1]>
net (float[b, s, 64] x, int64[b, t] mask, float[b, 2, p, 16] past_k, float[b, 2, p, 16] past_v)
    => (float[b, s, 64] y, float[b, 2, t, 16] k, float[b, 2, t, 16] v) {
    axis = Constant<value = int64[1] {1}>()
    one = Constant<value = int64 {1}>()
    lengths = ReduceSum<keepdims = 0>(mask, axis)
    last = Sub(lengths, axis)
    last_32 = Cast<to = 6>(last)
    dims = Shape(mask)
    total = Gather<axis = 0>(dims, one)
    total_32 = Cast<to = 6>(total)
    h = SimplifiedLayerNormalization<axis = -1, epsilon = 0.00001, stash_type = 1>(x, norm)
    qkv = com.microsoft.MatMulNBits<K = 64, N = 128, bits = 4, block_size = 32>(h, wq, sq)
    a, k, v = com.microsoft.GroupQueryAttention<num_heads = 4, kv_num_heads = 2, do_rotary = 1>(
        qkv, , , past_k, past_v, last_32, total_32, cos, sin)
    o = com.microsoft.MatMulNBits<K = 64, N = 64, bits = 4, block_size = 32>(a, wo, so)
    y, , , sum = com.microsoft.SkipSimplifiedLayerNormalization<epsilon = 0.00001>(x, o, norm)
}"""
"""A layer as ONNX Runtime GenAI exports it."""


def test_a_layer_of_a_decoder():
    m = onnx.parser.parse_model(DECODER)
    angles = rng.uniform(0, 6, (64, 8)).astype(np.float32)
    weights = {"norm": floats(64), "cos": np.cos(angles), "sin": np.sin(angles),
               "wq": rng.integers(0, 256, (128, 2, 16), dtype=np.uint8), "sq": np.abs(floats(256)) / 50,
               "wo": rng.integers(0, 256, (64, 2, 16), dtype=np.uint8), "so": np.abs(floats(128)) / 50}
    m.graph.initializer.extend(onnx.numpy_helper.from_array(x, n) for n, x in weights.items())
    theirs = session(m)
    model, caches = gq.compile(gq.load_onnx(m), strict=True), [np.zeros((2, 2, 0, 16), np.float32)] * 2
    for start, end in ((0, 5), (5, 6), (6, 7), (7, 8), (8, 9)):
        step = {"x": floats(2, end - start, 64), "mask": np.ones((2, end), np.int64), "past_k": caches[0],
                "past_v": caches[1]}
        want, got = theirs.run(None, step), list(model(step).values())
        assert_near(got, want, tolerance=1e-4)
        caches = got[1:]
    assert "b = 2 to 15, s = 1, t = 2 to 15, p = 2 to 15: 1 plan\n" in model.explain()


@pytest.mark.parametrize("open_shapes", [False, True], ids=["fixed", "open"])
def test_steps_with_a_total_that_an_input_tells_are_native(open_shapes):
    """The rows of the new caches follow from the value of an input."""
    inputs, attrs = attention(batch=2, cache=20, lengths=[21, 9], rotary=16, size=16, packed=True)
    m = node_model("GroupQueryAttention", inputs, attrs, 3, open_shapes=open_shapes)
    if open_shapes:
        m.graph.input[0].type.tensor_type.shape.dim[2].dim_value = dict(inputs)["q"].shape[2]
    model = gq.compile(gq.load_onnx(m), strict=True)
    for total in (21, 25, 20, 17):
        values = dict(inputs) | {"total": np.array(total, np.int32), "lengths": np.int32([min(total, 21) - 1, 8])}
        feeds = {n: np.asarray(x) for n, x in values.items() if x is not None and not n.isupper()}
        step = [(n, values[n]) for n, _ in inputs]
        assert_near(list(model(feeds).values()), formula(step, attrs))
    assert len(model.plans.all()) <= 3


@pytest.mark.parametrize("case", [
    dict(batch=2, cache=9, lengths=[4, 6]), dict(new=3, cache=6, rotary=16), dict(batch=2, new=5),
    dict(batch=2, cache=5, packed=True, rotary=16)], ids=str)
def test_files_of_16_bits_have_caches_of_16_bits(case, tmp_path):
    """Nothing converts a whole cache."""
    inputs, attrs = attention(**case, size=16)
    inputs = [(n, x.astype(np.float16) if x is not None and x.dtype == np.float32 else x) for n, x in inputs]
    m = node_model("GroupQueryAttention", inputs, attrs, 3)
    want = by_onnx_runtime(m, inputs)
    gq.save_onnx(gq.load_onnx(m), tmp_path / "again.onnx")
    for model in (m, onnx.load(tmp_path / "again.onnx")):
        (node,) = (graph := gq.load_onnx(model)).nodes_of({"cached_attention"})
        assert graph.outputs[1:] == list(node.outputs[1:]) and all(v.dtype == "f16" for v in node.outputs[1:])
        for got in by_graphq(model, inputs):
            for ours, theirs in zip(without_padding(got, inputs), without_padding(want, inputs), strict=True):
                assert ours.dtype == theirs.dtype == np.float16
                np.testing.assert_allclose(ours.astype("f4"), theirs.astype("f4"), atol=4e-3)


@pytest.mark.parametrize("case", [
    dict(batch=2, cache=9, lengths=[4, 6]), dict(new=3, cache=6, rotary=16), dict(batch=2, new=5)], ids=str)
def test_files_of_bf16_have_caches_of_bf16(case, tmp_path):
    """ONNX Runtime's CPU kernels have no bf16: results are near those of the same numbers in f32."""
    inputs, attrs = attention(**case, size=16)
    half = DTYPES["bf16"].numpy
    inputs = [(n, x.astype(half) if x is not None and x.dtype == np.float32 else x) for n, x in inputs]
    want = formula([(n, x.astype(np.float32) if x is not None and x.dtype == half else x) for n, x in inputs], attrs)
    m = node_model("GroupQueryAttention", inputs, attrs, 3)
    (node,) = (graph := gq.load_onnx(m)).nodes_of({"cached_attention"})
    assert graph.outputs[1:] == list(node.outputs[1:]) and all(v.dtype == "bf16" for v in node.outputs[1:])
    for got in by_graphq(m, inputs):
        for ours, exact in zip(without_padding(got, inputs), without_padding(want, inputs), strict=True):
            assert ours.dtype == half
            np.testing.assert_allclose(ours.astype("f4"), exact, atol=4e-2)
    if dict(inputs)["past_k"] is None:
        with pytest.raises(GraphError, match="cannot start bf16 caches for an f32 query"):
            gq.save_onnx(graph, tmp_path / "again.onnx")
    else:
        gq.save_onnx(graph, tmp_path / "again.onnx")
        (again,) = gq.load_onnx(tmp_path / "again.onnx").nodes_of({"cached_attention"})
        assert again.attrs["kept"] == "bf16"


@pytest.mark.parametrize("kind", ["PER_TENSOR", "PER_CHANNEL"])
@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("case", [
    dict(batch=2, cache=9, lengths=[4, 6]), dict(new=3, cache=6), dict(batch=2, new=5, past=True),
    dict(batch=2, cache=5, packed=True, rotary=16)], ids=str)
def test_caches_of_integers(case, bits, kind, tmp_path):
    inputs, attrs = attention(**case, size=16, k_quant_type=kind, v_quant_type=kind, kv_cache_bit_width=bits)
    values, size = dict(inputs), 16
    for name in ("past_k", "past_v"):
        shape = values[name].shape
        values[name] = rng.integers(-128, 128, shape).astype(np.int8) if bits == 8 else \
            rng.integers(0, 256, (*shape[:3], size // 2), dtype=np.uint8)
    shape = (1,) if kind == "PER_TENSOR" else (1, 2, 1, size)
    scales = [np.abs(floats(*shape)) / 2 ** (bits - 2) + 0.01 for _ in "kv"]
    inputs = [(n, values.get(n)) for n in NAMES[:12]] + [("k_scale", scales[0]), ("v_scale", scales[1])]
    m = node_model("GroupQueryAttention", inputs, attrs, 3)
    want = by_onnx_runtime(m, inputs)
    gq.save_onnx(gq.load_onnx(m), tmp_path / "again.onnx")
    for model in (m, onnx.load(tmp_path / "again.onnx")):
        for got in by_graphq(model, inputs):
            assert_near(without_padding(got, inputs)[:1], without_padding(want, inputs)[:1])
            for ours, theirs in zip(got[1:], want[1:], strict=True):
                for b, n in enumerate(dict(inputs)["lengths"] + 1):  # ONNX Runtime's zeros of 4 bits are 8, ours 0
                    np.testing.assert_array_equal(ours[b, :, :n], theirs[b, :, :n])


def changed(norms=False, **values):
    inputs, attrs = attention(batch=2, cache=4, rotary=8, norms=norms)
    return [(n, values.get(n, x)) for n, x in inputs], attrs


def with_scales(*names):
    """Of the inputs k_scale and v_scale these alone."""
    inputs, attrs = changed()
    values = {**dict(inputs), **dict.fromkeys(names, np.float32([0.5]))}
    return [(n, values.get(n)) for n in (*NAMES[:12], "k_scale", "v_scale")], attrs


INTEGERS = {"k_quant_type": "PER_TENSOR", "v_quant_type": "PER_TENSOR", "kv_cache_bit_width": 8}
BAD = {
    "lengths": (changed(lengths=None), {}, "input 5 is required"),
    "batches": (changed(lengths=np.zeros(3, np.int32)), {}, "input 5 must have a length for each of 2 batch elements"),
    "rank": (changed(q=floats(2, 32)), {}, r"input 0 must be \[batch, length, width\]"),
    "width": (changed(q=floats(2, 1, 33)), {}, r"input 0 must be \[batch, length, width\]"),
    "key": (changed(k=floats(2, 1, 15)), {}, r"input 1 must be \[batch, length, 16\], got f32\[2,1,15\]"),
    "value": (changed(v=floats(2, 1, 15)), {}, r"input 2 must be \[batch, length, 16\], got f32\[2,1,15\]"),
    "rank of keys": (changed(k=floats(2, 16)), {}, r"input 1 must be \[batch, length, 16\], got f32\[2,16\]"),
    "no widths": (changed(q=floats(2, 1, 0)), {}, r"input 0 must be \[batch, length, width\]"),
    "key alone": (changed(v=None), {}, "inputs 1 and 2 must be given together"),
    "cache alone": (changed(past_v=None), {}, "inputs 3 and 4 must be given together"),
    "sines alone": (changed(COS=None), {}, "inputs 7 and 8 must be given together"),
    "norm of queries alone": (changed(True, KN=None), {}, "inputs 14 and 15 must be given together"),
    "norm of keys alone": (changed(True, QN=None), {}, "inputs 14 and 15 must be given together"),
    "cache": (changed(past_k=floats(2, 3, 4, 8)), {}, ""),
    "cosines": (changed(COS=floats(32)), {}, "input 7 must be"),
    "no cosines": (changed(COS=None, SIN=None), {}, "input 7 is required"),
    "dtype": (changed(lengths=np.zeros(2, np.float32)), {}, "input 5 must be s32"),
    "heads": (changed(), {"num_heads": 0}, "attribute 'num_heads' must be positive, got 0"),
    "groups": (changed(), {"kv_num_heads": 3}, "'num_heads' must be a multiple of 'kv_num_heads', got 4 and 3"),
    "causal": (changed(), {"causal": 2}, "attribute 'causal' must be 0 or 1"),
    "window": (changed(), {"local_window_size": 0}, "'local_window_size' positive"),
    "both directions": (changed(), {"local_window_size": 4, "causal": 0}, "'local_window_size' positive"),
    "no scales": (changed(), INTEGERS,
                  "'kv_cache_bit_width' 8, scale types .'PER_TENSOR'. and inputs 12 and 13 do not fit"),
    "scale of keys alone": (with_scales("k_scale"), INTEGERS, "inputs 12 and 13 do not fit"),
    "scale of values alone": (with_scales("v_scale"), INTEGERS, "inputs 12 and 13 do not fit"),
    "scales of floats": (with_scales("k_scale", "v_scale"), {}, "inputs 12 and 13 do not fit"),
    "one kind": (changed(), {"k_quant_type": "PER_TENSOR"}, "'kv_cache_bit_width' 0, .* do not fit together"),
    "bits": (changed(), {"kv_cache_bit_width": 8}, "attribute 'kv_cache_bit_width' 8, .* do not fit together"),
    "kind": (changed(), {"k_quant_type": "PER_TOKEN"}, "'v_quant_type' .*'PER_TOKEN'. are not supported"),
    "window cache": (changed(), {"sliding_window_cache": 1}, "attribute 'sliding_window_cache': .* not supported"),
    "padded queries": (([*changed(True)[0], ("n", np.ones(2, np.int32))], changed()[1]), {},
                       r"input 16 \(query_seqlens\): queries with padding"),
    "products": (changed(), {"qk_output": 1}, "attribute 'qk_output': an output of query-key"),
}


@pytest.mark.parametrize("name", BAD)
def test_malformed_nodes(name):
    (inputs, attrs), more, message = BAD[name]
    with pytest.raises(GraphError, match=f"GroupQueryAttention 'o0': .*{message}"):
        gq.load_onnx(node_model("GroupQueryAttention", inputs, {**attrs, **more}, 3))

"""Operators by the rules of their older versions, with optional inputs left out, and attributes in combination.

What is wanted is written down here: ONNX's evaluator follows the newest version in some of these.
"""
import itertools

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from onnx_node import node_model

import graphq as gq

X = np.arange(24, dtype=np.float32).reshape(2, 3, 4) / 8 - 1.3
ROW = np.float32([[1, -2, 3]])


def run(op, *inputs, opset, outputs=1, **attrs):
    """The results of one node; the first input is given when it runs, others are initializers, None is left out."""
    names = ["" if x is None else f"i{k}" for k, x in enumerate(inputs)]
    outs = [f"o{k}" for k in range(outputs)]
    x = np.asarray(inputs[0])
    graph = helper.make_graph([helper.make_node(op, names, outs, **attrs)], "g",
                              [helper.make_tensor_value_info("i0", helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)],
                              [helper.make_empty_tensor_value_info(name) for name in outs],
                              [numpy_helper.from_array(np.asarray(v), n) for n, v in zip(names[1:], inputs[1:],
                                                                                        strict=True) if v is not None])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    g = gq.load_onnx(model)
    assert not any(n.op.name == "onnx_node" for n in g.nodes), "ONNX's reference would run it"
    got = gq.reference(g, {"i0": x})
    return got if outputs == 1 else [got[name] for name in outs]


def softmax(x, axis):
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


@pytest.mark.parametrize("opset", [1, 11, 12])
@pytest.mark.parametrize("axis", [None, 0, 1, 2, -1])
def test_softmax_was_of_a_matrix(opset, axis):
    if axis == -1 and opset == 1:
        pytest.skip("negative axes came with version 11")
    at = 1 if axis is None else axis % 3
    want = softmax(X.reshape(int(np.prod(X.shape[:at])), -1), 1).reshape(X.shape)
    attrs = {} if axis is None else {"axis": axis}
    np.testing.assert_allclose(run("Softmax", X, opset=opset, **attrs), want, rtol=1e-5)
    np.testing.assert_allclose(run("LogSoftmax", X, opset=opset, **attrs), np.log(want), rtol=1e-4)


@pytest.mark.parametrize("axis", [None, 0, 1, -1])
def test_softmax_is_of_an_axis(axis):
    want = softmax(X, -1 if axis is None else axis)
    np.testing.assert_allclose(run("Softmax", X, opset=13, **({} if axis is None else {"axis": axis})), want, rtol=1e-5)


REDUCTIONS = {"ReduceSum": np.sum, "ReduceMean": np.mean, "ReduceMax": np.max, "ReduceMin": np.min}


@pytest.mark.parametrize("op,opset", [("ReduceSum", 13), *((op, 18) for op in REDUCTIONS)])
@pytest.mark.parametrize("noop", [None, 0, 1])
@pytest.mark.parametrize("axes", [None, [], [1], [-1, 0]], ids=str)
@pytest.mark.parametrize("keep", [0, 1])
def test_reductions_of_no_axes(op, opset, noop, axes, keep):
    attrs = {} if noop is None else {"noop_with_empty_axes": noop}
    inputs = [X] if axes is None else [X, np.int64(axes)]
    if not axes:
        want = X if noop else REDUCTIONS[op](X, keepdims=bool(keep))
    else:
        want = REDUCTIONS[op](X, axis=tuple(axes), keepdims=bool(keep))
    got = run(op, *inputs, opset=opset, keepdims=keep, **attrs)
    assert got.shape == want.shape
    np.testing.assert_allclose(got, want, rtol=1e-5)


@pytest.mark.parametrize("op", ["ReduceL1", "ReduceL2", "ReduceSumSquare", "ReduceProd", "ReduceLogSum",
                                "ReduceLogSumExp"])
@pytest.mark.parametrize("axes", [None, []], ids=str)
def test_reductions_of_no_axes_still_are_their_function(op, axes):
    """With noop_with_empty_axes, as the reference of ONNX that is installed has them: of one element each, or none."""
    x = np.abs(X) + 1 if op == "ReduceLogSum" else X
    inputs = [("x", x)] + ([] if axes is None else [("AXES", np.int64(axes))])
    model = node_model(op, inputs, {"noop_with_empty_axes": 1}, domain="", opset=18)
    want = ReferenceEvaluator(model).run(None, {"x": x})[0]
    got = gq.reference(gq.load_onnx(model), {"x": x})
    assert got.shape == want.shape
    np.testing.assert_allclose(got, want, rtol=1e-5)


@pytest.mark.parametrize("op,opset", [("ReduceSum", 11), ("ReduceSum", 1), ("ReduceMean", 13), ("ReduceMax", 13)])
@pytest.mark.parametrize("axes", [None, [0], [0, 2]], ids=str)
def test_axes_were_an_attribute(op, opset, axes):
    want = REDUCTIONS[op](X, axis=None if axes is None else tuple(axes), keepdims=True)
    np.testing.assert_allclose(run(op, X, opset=opset, **({} if axes is None else {"axes": axes})), want, rtol=1e-5)


TRANSPOSED = [(auto, size, stride) for auto in ("NOTSET", "SAME_UPPER", "SAME_LOWER") for size in (8, 9, 10, 11, 12)
              for stride in (2, 3)]


@pytest.mark.parametrize("auto,size,stride", TRANSPOSED)
def test_output_shape_of_conv_transpose_with_odd_totals(auto, size, stride):
    """total = stride * (n - 1) + k - size; SAME_UPPER cuts the smaller half off at the beginning, others the larger."""
    x, w = np.float32([[[1, 2, 3, 4]]]), np.float32([[[1, 10, 100, 1000]]])
    full = np.zeros(stride * 3 + 4, np.float32)
    for k, v in enumerate(x[0, 0]):
        full[k * stride:k * stride + 4] += v * w[0, 0]
    total = full.size - size
    if total < 0:
        want = np.append(full, np.zeros(-total, np.float32))
    else:
        begin = total // 2 if auto == "SAME_UPPER" else total - total // 2
        want = full[begin:begin + size]
    attrs = {} if auto == "NOTSET" else {"auto_pad": auto}
    got = run("ConvTranspose", x, w, opset=11, output_shape=[size], strides=[stride], **attrs)
    assert got.tolist() == [[want.tolist()]]


def transposed(x, w, stride, dilation, begin, size):
    """`size` elements from `begin` on of a transposed convolution along one axis; x [c], w [c, o, k]."""
    out = np.zeros((w.shape[1], 200), np.float32)
    for c, i, o, k in np.ndindex(*x.shape, *w.shape[1:]):
        out[o, i * stride + k * dilation] += x[c, i] * w[c, o, k]
    return out[:, begin:begin + size]


@pytest.mark.parametrize("auto", ["NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"])
@pytest.mark.parametrize("sized", [False, True])
def test_attributes_of_conv_transpose_in_combination(auto, sized):
    """Every combination, by the specification's formulas: dilations and output_padding count in total padding, too."""
    rng = np.random.default_rng(3)
    for stride, dilation, more, taps, groups in itertools.product((1, 2, 3), (1, 2, 3), (0, 1), (1, 2, 3), (1, 2)):
        if more >= max(stride, dilation):
            continue
        x, w = (rng.integers(-3, 4, shape).astype(np.float32) for shape in ((1, 2, 4), (2, 3, taps)))
        full = 3 * stride + more + (taps - 1) * dilation + 1
        attrs = {} if auto == "NOTSET" else {"auto_pad": auto}
        if sized:
            size = full - 3 if full > 4 else full
            attrs["output_shape"] = [size]
        else:
            size = full if auto in ("NOTSET", "VALID") else 4 * stride
        total = max(full - size, 0)
        begin = total // 2 if auto == "SAME_UPPER" else total - total // 2
        if not sized and auto == "NOTSET" and size > 2:  # pads as they are given
            attrs["pads"], begin, size = [1, 0], 1, size - 1
        got = run("ConvTranspose", x, w, opset=11, strides=[stride], dilations=[dilation], output_padding=[more],
                  group=groups, **attrs)
        each = 2 // groups
        want = [transposed(x[0, c:c + each], w[c:c + each], stride, dilation, begin, size)
                for c in range(0, 2, each)]
        assert got[0].tolist() == np.concatenate(want).tolist(), (stride, dilation, more, taps, groups)


@pytest.mark.parametrize("low,high", [(None, None), (0.0, None), (None, 0.5), (0.0, 0.5)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
def test_clip_with_ends_left_out(low, high, dtype):
    """Of versions 6 to 10 the ends are then those of f32."""
    x = np.array([-np.inf, *X.ravel(), np.inf]).astype(dtype)
    ends = [None if v is None else dtype(v) for v in (low, high)]
    attrs = {k: v for k, v in (("min", low), ("max", high)) if v is not None}
    want = np.clip(x, -np.inf if low is None else low, np.inf if high is None else high)
    assert np.array_equal(run("Clip", x, *ends, opset=11), want)
    assert np.array_equal(run("Clip", x, opset=5, **attrs), want)
    most = np.inf if dtype == np.float16 else dtype(np.finfo(np.float32).max)
    for opset in (6, 10):
        assert np.array_equal(run("Clip", x, opset=opset, **attrs), np.clip(want, -most, most))


def test_squeeze_and_unsqueeze():
    x = X.reshape(2, 1, 3, 1, 4)
    assert run("Squeeze", x, opset=11).shape == run("Squeeze", x, opset=13).shape == (2, 3, 4)
    assert run("Squeeze", x, opset=11, axes=[-2]).shape == (2, 1, 3, 4)
    assert run("Squeeze", x, np.int64([3]), opset=13).shape == (2, 1, 3, 4)
    assert run("Squeeze", x, np.zeros(0, np.int64), opset=13).shape == x.shape  # no axes are not all axes
    assert run("Unsqueeze", X, opset=11, axes=[0, -1]).shape == (1, 2, 3, 4, 1)
    assert run("Unsqueeze", X, np.int64([-1, 0]), opset=13).shape == (1, 2, 3, 4, 1)


def test_slice_of_all_versions():
    want = X[:, 1:3, -3:-1]
    assert np.array_equal(run("Slice", X, opset=9, starts=[1, -3], ends=[3, -1], axes=[1, 2]), want)
    assert np.array_equal(run("Slice", X, opset=1, starts=[0, 1], ends=[9, 3]), X[:, 1:3])
    assert np.array_equal(run("Slice", X, np.int64([1, -3]), np.int64([3, -1]), np.int64([1, 2]), opset=10), want)
    assert np.array_equal(run("Slice", X, np.int64([0, 1]), np.int64([9, 3]), opset=13), X[:, 1:3])
    steps = run("Slice", X, np.int64([-1]), np.int64([-2**63]), None, np.int64([-1]), opset=13)
    assert np.array_equal(steps, X[::-1])
    assert np.array_equal(run("Slice", X, np.int32([3]), np.int32([0]), np.int32([-1]), np.int32([-2]), opset=13),
                          X[..., 3:0:-2])


def test_split_of_all_versions():
    for opset in (2, 11, 13):
        first, second = run("Split", X, opset=opset, outputs=2, axis=2)
        assert np.array_equal(first, X[..., :2]) and np.array_equal(second, X[..., 2:])
    first, second = run("Split", X, opset=11, outputs=2, axis=-1, split=[1, 3])
    assert np.array_equal(first, X[..., :1]) and np.array_equal(second, X[..., 1:])
    first, second = run("Split", X, opset=18, outputs=2, axis=1, num_outputs=2)
    assert np.array_equal(first, X[:, :2]) and np.array_equal(second, X[:, 2:])


def test_pad_of_all_versions():
    want = np.pad(X, [(0, 0), (1, 0), (0, 2)], constant_values=0.5)
    assert np.array_equal(run("Pad", X, opset=2, pads=[0, 1, 0, 0, 0, 2], value=0.5), want)
    assert np.array_equal(run("Pad", X, np.int64([0, 1, 0, 0, 0, 2]), np.float32(0.5), opset=11), want)
    assert np.array_equal(run("Pad", X, np.int64([0, 1, 0, 0, 0, 2]), opset=11), np.where(want == 0.5, 0, want))
    assert np.array_equal(run("Pad", X, np.int64([1, 0, 0, 2]), np.float32(0.5), np.int64([-2, 2]), opset=18), want)


@pytest.mark.parametrize("opset", [7, 9, 11, 13])
@pytest.mark.parametrize("ta,tb", [(0, 0), (1, 0), (0, 1), (1, 1)])
def test_gemm(opset, ta, tb):
    a, b = np.float32([[1, 2, 3], [4, 5, 6]]), np.arange(12, dtype=np.float32).reshape(3, 4)
    want = 0.5 * a @ b
    given = (a.T if ta else a, b.T if tb else b)
    bias = np.float32([[1], [2]])
    got = run("Gemm", *given, bias, opset=opset, alpha=0.5, beta=2.0, transA=ta, transB=tb)
    np.testing.assert_allclose(got, want + 2 * bias)
    if opset >= 11:
        np.testing.assert_allclose(run("Gemm", *given, opset=opset, alpha=0.5, transA=ta, transB=tb), want)


def test_quantize_without_a_zero_point_is_u8():
    got = run("QuantizeLinear", X, np.float32(0.01), opset=10)
    assert got.dtype == np.uint8 and np.array_equal(got, np.clip(np.rint(X / np.float32(0.01)), 0, 255))
    back = run("DequantizeLinear", got, np.float32(0.01), opset=10)
    assert np.array_equal(back, got * np.float32(0.01))


@pytest.mark.parametrize("axis", [None, 0, 1, -1])
def test_quantization_along_an_axis(axis):
    at = 1 if axis is None else axis % 3
    scale = np.linspace(0.01, 0.02, X.shape[at], dtype=np.float32)
    zp = np.arange(X.shape[at], dtype=np.int8)
    shape = [-1 if k == at else 1 for k in range(3)]
    want = np.clip(np.rint(X / scale.reshape(shape)) + zp.reshape(shape), -128, 127)
    attrs = {} if axis is None else {"axis": axis}
    got = run("QuantizeLinear", X, scale, zp, opset=13, **attrs)
    assert got.dtype == np.int8 and np.array_equal(got, want)
    back = run("DequantizeLinear", got, scale, zp, opset=13, **attrs)
    assert np.array_equal(back, (got.astype(np.float32) - zp.reshape(shape)) * scale.reshape(shape))


def test_topk_and_arg_of_all_versions():
    x = np.float32([[3, 1, 3, 2]])
    assert [y.tolist() for y in run("TopK", x, opset=1, outputs=2, k=2)] == [[[3, 3]], [[0, 2]]]
    assert [y.tolist() for y in run("TopK", x, np.int64([3]), opset=10, outputs=2)] == [[[3, 3, 2]], [[0, 2, 3]]]
    assert run("TopK", x, np.int64([2]), opset=11, outputs=2, largest=0)[1].tolist() == [[1, 3]]
    assert run("ArgMax", x, opset=1, axis=1, keepdims=0).tolist() == [0]
    assert run("ArgMax", x, opset=13, axis=-1, select_last_index=1).tolist() == [[2]]


@pytest.mark.parametrize("op,opset", [("Resize", 10), ("Upsample", 7), ("Upsample", 9)])
def test_resizing_was_asymmetric_and_rounded_down(op, opset):
    """Element o lies at o / scale: nearest takes the one below it, linear the mean of its neighbors."""
    x = np.float32([[[[0, 8, 16]]]])
    for mode, scale, want in (("nearest", 2, [0, 0, 8, 8, 16, 16]), ("linear", 2, [0, 4, 8, 12, 16, 16]),
                              ("linear", 4 / 3, [0, 6, 12, 16]), ("nearest", 4 / 3, [0, 0, 8, 16])):
        scales = np.float32([1, 1, 1, scale])
        attrs, more = ({"scales": scales.tolist()}, []) if opset == 7 else ({}, [("SCALES", scales)])
        g = gq.load_onnx(node_model(op, [("x", x), *more], {"mode": mode, **attrs}, domain="", opset=opset))
        np.testing.assert_allclose(gq.compile(g)(x=x)[0, 0, 0], want, rtol=1e-6)
        assert any(n.op.name == "interpolate" for n in g.nodes) == (scale == 2)


def test_dropout_is_the_identity_when_it_does_not_train():
    for opset in (7, 10, 12):
        assert np.array_equal(run("Dropout", X, opset=opset), X)
    assert np.array_equal(run("Dropout", X, np.float32(0.9), opset=12), X)


def test_cast_and_reshape_of_all_versions():
    assert run("Cast", X, opset=6, to=TensorProto.INT32).tolist() == X.astype(np.int32).tolist()
    assert run("Reshape", X, opset=1, shape=[0, -1]).shape == (2, 12)
    assert run("Reshape", X, np.int64([-1, 0]), opset=5).shape == (8, 3)
    assert run("Flatten", X, opset=9).shape == (2, 12) and run("Flatten", X, opset=11, axis=-1).shape == (6, 4)

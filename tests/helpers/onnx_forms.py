"""The forms that nodes of each ONNX operator may have: FORMS, for `onnx_cases`.

No two dimensions of a tensor are equal where the operator allows it: then what is computed along a wrong axis has
another shape, or other numbers.
"""
# ruff: noqa: E501
from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from onnx import TensorProto, helper, numpy_helper


class Form(NamedTuple):
    """Operands (None: left out) and the values that attributes take, None for none.

    `since` and `until` are the versions of the schema between which it holds. `constants`: whether operands after the
    first are constants; None: both ways. `dtypes`: whether the first operand's type may be any that the schema has.
    """

    inputs: tuple[np.ndarray | None, ...]
    attrs: dict[str, list[Any]]
    outputs: int = 1
    since: int = 1
    until: int = 1000
    constants: bool | None = None
    dtypes: bool = True


def form(*inputs: Any, outputs: int = 1, since: int = 1, until: int = 1000, constants: bool | None = None,
         dtypes: bool = True, **attrs: Any) -> Form:
    """A Form; lists of attributes are the values that they take, one value after another."""
    return Form(tuple(None if x is None else np.asarray(x) for x in inputs), attrs, outputs, since, until, constants,
                dtypes)


_RNG = np.random.default_rng(30)


def normal(*shape: int) -> np.ndarray:
    """Numbers around 0."""
    return _RNG.normal(size=shape).astype(np.float32)


def between(low: float, high: float, *shape: int) -> np.ndarray:
    """Numbers of an interval."""
    return _RNG.uniform(low, high, shape).astype(np.float32)


def whole(low: int, high: int, *shape: int, dtype: Any = np.int64) -> np.ndarray:
    """Whole numbers from `low` to below `high`."""
    return _RNG.integers(low, high, shape).astype(dtype)


def s64(*numbers: int) -> np.ndarray:
    """A list of s64."""
    return np.asarray(numbers, np.int64)


def f32(*numbers: float) -> np.ndarray:
    """A list of f32."""
    return np.asarray(numbers, np.float32)


X, IMAGE, LINE, CUBE = normal(2, 3, 4), normal(2, 7, 5, 6), normal(2, 3, 11), normal(2, 3, 4, 5, 6)
PAIR = (normal(2, 3, 4), normal(3, 1) + 3)
BITS = (whole(0, 60, 2, 3, 4, dtype=np.int32), whole(0, 60, 3, 1, dtype=np.int32))
LOGIC = (whole(0, 2, 2, 3, 4).astype(bool), whole(0, 2, 3, 1).astype(bool))
AXES = [None, 0, 1, 2, -1]

FORMS: dict[str, list[Form]] = {}


def _each(names: str, *forms: Form) -> None:
    for name in names.split():
        FORMS[name] = list(forms)


# Elementwise.
_each("Abs Atan Asinh Ceil Cos Erf Exp Floor HardSwish Identity Mish Neg Not Reciprocal Relu Round Sigmoid Sign Sin Sinh "
      "Cosh Softplus Softsign Tan Tanh IsNaN", form(X), form(normal(0, 3)), form(f32(0.5, -0.5, 1.5, np.inf, np.nan)))
_each("Not", form(LOGIC[0]))
_each("Acos Asin Atanh", form(between(-0.9, 0.9, 2, 3, 4)))
_each("Acosh", form(between(1, 9, 2, 3, 4)))
_each("Log Sqrt", form(between(0.1, 9, 2, 3, 4)))
_each("BitwiseNot", form(BITS[0]))
_each("IsInf", form(f32(1, np.inf, -np.inf, np.nan), detect_negative=[None, 0], detect_positive=[None, 0]))
_each("Celu Elu ThresholdedRelu", form(X, alpha=[None, 0.3, 2.0]))
_each("LeakyRelu", form(X, alpha=[None, 0.3]))
_each("Swish", form(X, alpha=[None, 0.3]))
_each("Selu", form(X, alpha=[None, 0.3], gamma=[None, 2.0]))
_each("HardSigmoid", form(X, alpha=[None, 0.3], beta=[None, 0.1]))
_each("Gelu", form(X, approximate=[None, "tanh"]))
_each("Shrink", form(X, lambd=[None, 0.3], bias=[None, 0.2]))
_each("Clip", form(X, min=[None, -0.5], max=[None, 0.5], until=11), form(X, f32(-0.5)[0], f32(0.5)[0], since=11),
      form(X, None, f32(0.5)[0], since=11), form(X, f32(0.5)[0], f32(-0.5)[0], since=11))
_each("Add Sub Mul Div PRelu", form(*PAIR, since=7), form(X, normal(2, 3, 4) + 3), form(X, f32(3)[0], since=7),
      form(X, normal(3) + 3, until=7, axis=[1], broadcast=[1]))
_each("Pow", form(np.abs(X) + 0.1, PAIR[1], since=7), form(X, f32(2)[0], since=7), form(X, f32(3)[0], since=7),
      form(np.abs(X), f32(-0.5)[0], since=7), form(X, s64(3)[0], since=12), form(X, normal(3), until=7, axis=[1],
                                                                                broadcast=[1]))
_each("Mod", form(*PAIR, fmod=[1]), form(whole(-9, 9, 2, 3, 4), whole(1, 5, 3, 1), fmod=[None, 1]),
      form(whole(-9, 9, 2, 3, 4, dtype=np.int8), whole(-5, 0, 3, 1, dtype=np.int8), fmod=[None, 1]))
_each("BitShift", form(*(x.astype(np.uint32) for x in BITS), direction=["LEFT", "RIGHT"]),
      form(*(x.astype(np.uint8) for x in (BITS[0], BITS[1] % 9)), direction=["LEFT", "RIGHT"]))
_each("BitwiseAnd BitwiseOr BitwiseXor", form(*BITS))
_each("BitCast", form(X, to=[TensorProto.INT32, TensorProto.UINT32], dtypes=False))
_each("And Or Xor", form(*LOGIC, since=7), form(LOGIC[0], LOGIC[0][::-1].copy(), until=7))
_each("Equal Greater Less GreaterOrEqual LessOrEqual", form(np.rint(X), np.rint(PAIR[1] - 3), since=7),
      form(np.rint(X).astype(np.int32), np.rint(X[::-1]).astype(np.int32)), form(np.rint(X), np.rint(X[::-1])))
_each("Max Min Sum Mean", form(X, *PAIR, since=8), form(X, X[::-1]), form(X))
_each("Where", form(LOGIC[0], *PAIR))
_each("Cast", form(X * 9, to=[TensorProto.INT32, TensorProto.FLOAT16, TensorProto.DOUBLE, TensorProto.BOOL,
                              TensorProto.INT8], since=6),
      form(X * 90, to=[TensorProto.FLOAT8E4M3FN, TensorProto.BFLOAT16], saturate=[None, 0], since=19),
      form(X, to=["INT32", "FLOAT16"], until=6))
_each("CastLike", form(X, s64(1)), form(X, np.float16([1])))
_each("Dropout", form(X, ratio=[None, 0.3], outputs=1), form(X, f32(0.3)[0], since=12),
      form(X, outputs=2, since=12))  # no version before 12 says what the mask is outside of training

# Along axes.
_each("Softmax LogSoftmax Hardmax", form(X, axis=AXES[:4]), form(X, axis=[-1], since=11))
_each("ArgMax ArgMin", form(np.rint(X), axis=AXES[:4], keepdims=[None, 0], select_last_index=[None, 1]))
_each("CumSum CumProd", form(X, np.int64(1), exclusive=[None, 1], reverse=[None, 1]), form(X, np.int64(-1)))
_each("TopK", form(X, axis=[None, 0, 1], k=[2], outputs=2, until=10),
      form(X, s64(2), axis=[None, 0, 1], largest=[None, 0], sorted=[None], outputs=2, since=10))
_each("ReduceL1 ReduceL2 ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum ReduceSumSquare",
      form(X, axes=[None, [0], [1, 2], [0, 2]], keepdims=[None, 0]), form(X, s64(1), keepdims=[None, 0], since=13),
      form(X, s64(-1, 0), since=13), form(X, s64(), noop_with_empty_axes=[None, 1], since=13))
_each("ReduceLogSum ReduceLogSumExp",
      form(np.abs(X) + 0.1, axes=[None, [0], [1, 2], [0, 2]], keepdims=[None, 0]),
      form(np.abs(X) + 0.1, s64(1), keepdims=[None, 0], since=18))
_each("LpNormalization", form(X, axis=AXES, p=[None, 1, 2]), form(IMAGE, axis=[None, 1, -2], p=[1, 2]))
_each("LRN", form(IMAGE, size=[1, 2, 3, 4, 5, 20], alpha=[None, 0.5], beta=[None, 0.5, 1.0, 1.3], bias=[None, 2.0]),
      form(normal(3, 5, 2), size=[3]), form(CUBE, size=[3]), form(normal(2, 6, 1, 5), size=[5]))
_each("MeanVarianceNormalization", form(IMAGE, axes=[None, [1], [0, 3]]))
_each("BatchNormalization",
      form(IMAGE, *(np.abs(normal(7)) + 0.2 for _ in range(4)), epsilon=[None, 0.1], is_test=[1], consumed_inputs=[[0] * 5],
           momentum=[None], spatial=[None, 1]),
      form(X, *(np.abs(normal(3)) + 0.2 for _ in range(4)), is_test=[1], consumed_inputs=[[0] * 5]),
      form(X, *(np.abs(normal(3, 4)) + 0.2 for _ in range(4)), spatial=[0], since=7, until=9),
      form(IMAGE, *(np.abs(normal(7)) + 0.2 for _ in range(4)), training_mode=[1], momentum=[None, 0.3], outputs=3,
           since=14))
_each("InstanceNormalization", form(IMAGE, normal(7), normal(7), epsilon=[None, 0.1], consumed_inputs=[None]),
      form(LINE, normal(3), normal(3)))
_each("GroupNormalization", form(normal(2, 6, 5, 4), normal(3), normal(3), num_groups=[3], epsilon=[None, 0.1], until=21),
      form(normal(2, 6, 5, 4), normal(6), normal(6), num_groups=[3, 2], epsilon=[None, 0.1], since=21))
_each("LayerNormalization", form(X, normal(4), normal(4), axis=[None, -1], epsilon=[None, 0.1]),
      form(X, normal(3, 4), axis=[1]), form(X, normal(4), outputs=3))
_each("RMSNormalization", form(X, normal(4), axis=[None, -1], epsilon=[None, 0.1]), form(X, normal(3, 4), axis=[1]))

# Products, convolutions, pools.
_each("MatMul", form(normal(2, 3, 4), normal(4, 5)), form(normal(4), normal(2, 4, 5)), form(normal(3, 1, 2, 4),
                                                                                           normal(5, 4, 3)))
_each("Gemm", form(normal(3, 4), normal(4, 5), normal(5), alpha=[None, 0.5], beta=[None, 2.0], broadcast=[1]),
      form(normal(4, 3), normal(4, 5), normal(3, 5), transA=[1]), form(normal(3, 4), normal(5, 4), since=11, transB=[1]))
_each("Einsum", form(normal(2, 3, 4), normal(2, 4, 5), equation=["bij,bjk->bik", "bij,bjk->kb", "bij,bjk"]),
      form(X, equation=["abc->ca", "abc->", "...c->c..."]))
_each("MatMulInteger", form(whole(0, 255, 3, 4, dtype=np.uint8), whole(0, 255, 4, 5, dtype=np.uint8), np.uint8(7),
                            np.uint8(9)), form(whole(-9, 9, 3, 4, dtype=np.int8), whole(-9, 9, 4, 5, dtype=np.int8)))
_CONV = dict(strides=[None, [2, 1]], pads=[None, [1, 0, 2, 1]], dilations=[None, [1, 2]])
_each("Conv", form(IMAGE, normal(4, 7, 3, 2), normal(4), kernel_shape=[[3, 2]], **_CONV),
      form(IMAGE, normal(14, 1, 3, 2), group=[7], auto_pad=[None, "SAME_UPPER", "SAME_LOWER", "VALID"], strides=[[2, 3]]),
      form(LINE, normal(4, 3, 3)))
_each("ConvInteger", form(whole(0, 255, 2, 3, 5, 6, dtype=np.uint8), whole(0, 255, 4, 3, 3, 2, dtype=np.uint8),
                          np.uint8(7), np.uint8(9), kernel_shape=[[3, 2]], **_CONV))
_each("ConvTranspose", form(IMAGE, normal(7, 4, 3, 2), normal(4), kernel_shape=[[3, 2]], strides=[None, [2, 1]],
                            pads=[None, [1, 0, 2, 1]], dilations=[None, [1, 2]], output_padding=[None]),
      form(IMAGE, normal(7, 2, 3, 2), group=[7], strides=[[2, 3]], output_padding=[[1, 2]]),
      form(IMAGE, normal(7, 4, 3, 2), strides=[[2, 3]], output_shape=[[10, 17]]),
      form(IMAGE, normal(7, 4, 3, 2), strides=[[2, 3]], auto_pad=["SAME_UPPER", "SAME_LOWER"]))
_each("DeformConv", form(IMAGE, normal(4, 7, 3, 2), between(-1, 1, 2, 12, 3, 5), since=19),
      form(IMAGE, normal(4, 7, 3, 2), between(-1, 1, 2, 12, 3, 5), normal(4), between(0, 1, 2, 6, 3, 5)),
      form(normal(2, 6, 5, 7), normal(4, 3, 3, 2), between(-1, 1, 2, 24, 3, 8), strides=[[2, 1]], group=[2],
           pads=[[1, 1, 1, 1]], offset_group=[2]))
_POOL = dict(kernel_shape=[[3, 2]], strides=[None, [2, 1]], pads=[None, [1, 0, 2, 1]], ceil_mode=[None, 1])
_each("AveragePool", form(IMAGE, count_include_pad=[None, 1], **_POOL),
      form(IMAGE, kernel_shape=[[3, 2]], dilations=[[1, 2]], since=19, pads=[None, [1, 0, 2, 1]], ceil_mode=[None, 1],
           count_include_pad=[None, 1]),
      form(IMAGE, kernel_shape=[[3, 2]], auto_pad=["SAME_UPPER", "SAME_LOWER", "VALID"], strides=[[2, 3]]))
_each("MaxPool", form(IMAGE, **_POOL), form(IMAGE, outputs=2, storage_order=[None, 1], since=8, **_POOL),
      form(IMAGE, kernel_shape=[[3, 2]], dilations=[[1, 2]], since=10, pads=[None, [1, 0, 2, 1]], ceil_mode=[None, 1]),
      form(IMAGE, kernel_shape=[[3, 2]], auto_pad=["SAME_UPPER", "SAME_LOWER", "VALID"], strides=[[2, 3]]))
_each("LpPool", form(IMAGE, p=[None, 1, 3], since=2, **_POOL), form(IMAGE, p=[2.0], until=2, kernel_shape=[[3, 2]]),
      form(IMAGE, kernel_shape=[[3, 2]], dilations=[[1, 2]], since=18, pads=[None, [1, 0, 2, 1]], ceil_mode=[None, 1]),
      form(IMAGE, kernel_shape=[[3, 2]], auto_pad=["SAME_UPPER", "SAME_LOWER", "VALID"], strides=[[2, 3]], since=2))
_each("GlobalAveragePool GlobalMaxPool", form(IMAGE), form(LINE), form(CUBE))
_each("GlobalLpPool", form(IMAGE, p=[None, 1, 3], since=2), form(LINE, since=2), form(IMAGE, p=[None, 1.0], until=2))
_UNPOOLED = s64(*_RNG.permutation(2 * 3 * 8 * 10)[:2 * 3 * 4 * 5]).reshape(2, 3, 4, 5)
_each("MaxUnpool", form(normal(2, 3, 4, 5), _UNPOOLED, kernel_shape=[[2, 2]], strides=[[2, 2]]),
      form(normal(2, 3, 4, 5), _UNPOOLED, s64(2, 3, 9, 11), kernel_shape=[[2, 2]], strides=[[2, 2]]),
      form(normal(2, 3, 4, 5), s64(*_RNG.permutation(144)[:120]).reshape(2, 3, 4, 5), kernel_shape=[[3, 2]],
           pads=[[1, 0, 1, 0]]))
_ROIS = f32(0, 0, 0, 3, 4, 1, 1, 0, 4, 3, 0, 1, 2, 4, 4).reshape(3, 5)
_each("MaxRoiPool", form(IMAGE, _ROIS, pooled_shape=[[2, 3]], spatial_scale=[None, 0.5]))
_each("RoiAlign", form(IMAGE, _ROIS[:, 1:].copy(), s64(0, 1, 0), output_height=[2], output_width=[3],
                       sampling_ratio=[None, 2], spatial_scale=[None, 0.5], mode=[None, "max"],
                       coordinate_transformation_mode=[None, "output_half_pixel"]))
_each("Col2Im", form(normal(2, 21, 12), s64(5, 4), s64(1, 3), strides=[[2, 1]], pads=[[1, 1, 0, 0]], until=1),
      form(normal(2, 12, 20), s64(6, 6), s64(2, 3)), form(normal(2, 12, 15), s64(5, 9), s64(2, 3), strides=[[2, 2]],
                                                          pads=[[1, 0, 1, 2]]),
      form(normal(2, 12, 12), s64(5, 8), s64(2, 3), dilations=[[2, 2]]))
_MODES = ["half_pixel", "align_corners", "asymmetric", "pytorch_half_pixel"]
_ROUND = ["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"]
_SCALES = [f32(1, 1, 2, 3), f32(1, 1, 1.7, 2.5), f32(1, 1, 0.6, 0.7), f32(1, 1, 1, 1), f32(1, 1, 0.5, 2)]
_each("Upsample", form(IMAGE, mode=["nearest", "linear", "bilinear"], height_scale=[2.0, 1.5], width_scale=[3.0], until=7),
      *(form(IMAGE, mode=[None, "nearest", "linear"], scales=[s.tolist()], since=7, until=9) for s in _SCALES[:2]),
      *(form(IMAGE, s, mode=[None, "nearest", "linear"], since=9) for s in _SCALES[:2]),
      form(CUBE, f32(1, 1, 2, 1.5, 2), mode=["nearest", "linear"], since=9),
      form(LINE, f32(1, 1, 1.5), mode=["nearest", "linear"], since=9), form(X, f32(1, 1.5, 2), mode=["linear"], since=9))
_each("Resize", *(form(IMAGE, s, mode=[None, "nearest", "linear"], until=11) for s in _SCALES),
      form(LINE, f32(1, 1, 1.5), mode=["nearest", "linear"], until=11),
      form(CUBE, f32(1, 1, 2, 1.5, 0.5), mode=["nearest", "linear"], until=11),
      form(X, f32(1.5, 1, 2), mode=["nearest", "linear"], until=11),
      *(form(IMAGE, f32(), s, mode=["nearest"], coordinate_transformation_mode=_MODES, nearest_mode=_ROUND, since=11)
        for s in _SCALES),
      *(form(IMAGE, f32(), s, mode=["linear", "cubic"], coordinate_transformation_mode=_MODES, since=11)
        for s in _SCALES),
      form(IMAGE, None, None, s64(2, 7, 9, 4), mode=["nearest", "linear", "cubic"],
           coordinate_transformation_mode=_MODES, since=13),
      form(IMAGE, f32(), f32(), s64(2, 7, 9, 4), mode=["nearest", "linear", "cubic"], since=11),
      form(IMAGE, None, f32(1, 1, 0.6, 0.7), mode=["linear", "cubic"], antialias=[1], since=18),
      form(IMAGE, None, f32(0.6, 1.5), mode=["nearest", "linear"], axes=[[2, 3]], since=18),
      form(IMAGE, None, None, s64(9, 9), mode=["linear"], axes=[[3, 2]], since=18,
           keep_aspect_ratio_policy=["not_larger", "not_smaller"]),
      form(IMAGE, None, f32(1, 1, 2, 1.5), mode=["cubic"], cubic_coeff_a=[-0.5], exclude_outside=[1], since=13),
      form(LINE, None, f32(1, 1, 1.5), mode=["nearest", "linear", "cubic"], since=13),
      form(CUBE, None, f32(1, 1, 2, 1.5, 0.5), mode=["nearest", "linear"], since=13),
      form(IMAGE, f32(0, 0, 0.2, 0.3, 1, 1, 0.7, 0.8), None, s64(2, 7, 3, 4), mode=["nearest", "linear"],
           coordinate_transformation_mode=["tf_crop_and_resize"], extrapolation_value=[0.5], since=13))
_each("GridSample", form(IMAGE, between(-1.2, 1.2, 2, 3, 4, 2),
                         mode=[None, "bilinear", "linear", "nearest", "bicubic", "cubic"],
                         padding_mode=[None, "border", "reflection"], align_corners=[None, 1]),
      form(CUBE, between(-1.2, 1.2, 2, 3, 4, 5, 3), mode=[None, "nearest"], since=20))
_each("AffineGrid", form(normal(2, 2, 3), s64(2, 3, 4, 5), align_corners=[None, 1]),
      form(normal(2, 3, 4), s64(2, 3, 4, 5, 6), align_corners=[None, 1]))

# Moves.
_each("Concat", form(X, normal(2, 5, 4), axis=[1, -2]), form(X, normal(2, 5, 4), until=4))
_each("Split", form(X, axis=[None, 2], outputs=2, until=18), form(X, axis=[1], split=[[1, 2]], outputs=2, until=13),
      form(X, s64(1, 3), axis=[2, -1], outputs=2, since=13), form(X, axis=[2], num_outputs=[3], outputs=3, since=18))
_each("Slice", form(X, starts=[[1, -3]], ends=[[3, -1]], axes=[[1, 2], None], until=10),
      form(X, s64(0, -1), s64(2, -4), s64(0, 2), s64(1, -1), since=10), form(X, s64(1), s64(9), s64(-1), since=10),
      form(X, s64(1), s64(9), since=10))
_each("Pad", form(X, pads=[[0, 1, 2, 1, 0, 0]], paddings=[[0, 1, 2, 1, 0, 0]], mode=[None, "edge", "reflect"],
                  value=[None, 0.5], until=11),
      form(X, s64(0, 1, 2, 1, 0, 0), mode=[None, "edge", "reflect", "wrap"], since=11),
      form(X, s64(0, 1, -2, 1, 0, 0), f32(0.5)[0], since=11), form(X, s64(1, 2), f32(0.5)[0], s64(-2), since=18))
_each("Transpose", form(X, perm=[None, [2, 0, 1]]))
_each("Reshape", form(X, s64(0, -1), allowzero=[None, 0], since=5), form(X, shape=[[4, -1]], until=5))
_each("Flatten", form(X, axis=[None, 0, 2, 3]), form(X, axis=[-1], since=11))
_each("Squeeze", form(normal(2, 1, 3, 1), axes=[None, [1]], until=13), form(normal(2, 1, 3, 1), s64(-1), since=13),
      form(normal(2, 1, 3, 1), since=13))
_each("Unsqueeze", form(X, axes=[[0, 2]], until=13), form(X, s64(-1, 1), since=13))
_each("Expand", form(normal(3, 1), s64(2, 1, 4)))
_each("Tile", form(X, s64(2), s64(1), until=6), form(X, s64(2, 1, 3), since=6))
_each("Gather", form(X, whole(0, 2, 3, 2), axis=[None, 1, 2]))
_each("GatherElements", form(X, whole(-2, 2, 1, 3, 2), axis=[None, 1, -1]))
_each("GatherND", form(X, whole(0, 2, 5, 2)), form(X, whole(0, 2, 2, 5, 1), batch_dims=[1], since=12))
_each("Scatter ScatterElements", form(X, s64(0, 2, 3).reshape(1, 1, 3), normal(1, 1, 3), axis=[2]),
      form(X, whole(0, 2, 2, 1, 4), normal(2, 1, 4), axis=[1], reduction=["add", "mul", "max", "min"], since=16))
_each("ScatterND", form(X, s64(0, 2, 1, 0).reshape(2, 2), normal(2, 4)),
      form(X, s64(0, 2, 0, 2).reshape(2, 2), normal(2, 4), reduction=["add", "mul", "max", "min"], since=16))
_each("TensorScatter", form(normal(2, 3, 8, 4), normal(2, 3, 2, 4), s64(1, 5), axis=[None, -2], mode=[None, "circular"]),
      form(normal(2, 3, 8, 4), normal(2, 3, 2, 4)), form(normal(2, 8, 4), normal(2, 3, 4), s64(6, 2), mode=["circular"],
                                                         axis=[1]))
_each("DepthToSpace", form(normal(2, 12, 3, 5), blocksize=[2], mode=[None, "CRD"]))
_each("SpaceToDepth", form(normal(2, 3, 4, 6), blocksize=[2]))
_each("ReverseSequence", form(normal(4, 3, 5), s64(1, 4, 2), batch_axis=[None, 1], time_axis=[None, 0]),
      form(normal(3, 4, 5), s64(1, 4, 2), batch_axis=[0], time_axis=[1]))
_each("Trilu", form(X, np.int64(-1), upper=[None, 0]), form(X, upper=[None, 0]), form(X, np.int64(2), upper=[None, 0]))
_each("EyeLike", form(normal(3, 5), k=[None, 1, -2], dtype=[None, TensorProto.INT32]))
_each("OneHot", form(s64(0, 2, -1, 4), s64(5), f32(-1, 2), axis=[None, 0], dtypes=False),
      form(whole(-5, 5, 2, 3), np.int64(5), f32(-1, 2), axis=[None, 0, 1, -2], dtypes=False),
      form(f32(0, 2, -1, 4), f32(5), s64(3, 7), dtypes=False))
_each("Compress", form(X, np.array([True, False, True]), axis=[None, 1, 2]), form(X, np.array([False, True]), axis=[0]))
_each("NonZero", form(np.rint(X)), form(np.rint(normal(7))))
_each("Unique", form(np.rint(X), axis=[None, 0, 1, -1], sorted=[None, 0], outputs=4), form(np.rint(X), outputs=1))
_each("Shape Size", form(X, start=[None, 1], end=[None, -1]))
_each("ConstantOfShape", form(s64(2, 3), value=[None, numpy_helper.from_array(s64(7))]))
_each("Constant", form(value=[numpy_helper.from_array(X)]), form(value_float=[1.5], since=12),
      form(value_ints=[[1, 2]], since=12))
_each("Range", form(np.float32(1), np.float32(9), np.float32(2)), form(np.int64(9), np.int64(1), np.int64(-3)))
_each("NonMaxSuppression", form(np.sort(between(0, 9, 2, 6, 4).reshape(2, 6, 2, 2), axis=2).reshape(2, 6, 4),
                                between(0, 1, 2, 3, 6), s64(2), f32(0.3), f32(0.1), center_point_box=[None, 1]))
_each("ImageDecoder", form(np.frombuffer(b"BM:\0\0\0\0\0\0\x006\0\0\0(\0\0\0\1\0\0\0\1\0\0\0\1\0\x18\0\0\0\0\0\4\0\0\0"
                                         + bytes(16) + b"\1\2\3\0", np.uint8), pixel_format=[None, "BGR", "Grayscale"]))

# Linear algebra, signals, windows.
_each("Det", form(normal(2, 3, 4, 4)), form(normal(3, 3)))
_each("DFT", form(normal(2, 5, 7, 1), axis=[None, 2], inverse=[None, 1], onesided=[None], until=20),
      form(normal(2, 5, 7, 2), np.int64(4), axis=[1], inverse=[None, 1], until=20),
      form(normal(2, 5, 7, 1), np.int64(6), axis=[1], onesided=[1], until=20),
      form(normal(2, 5, 7, 1), None, np.int64(1), inverse=[None, 1], since=20),
      form(normal(2, 5, 7, 2), np.int64(9), np.int64(-2), inverse=[None, 1], since=20),
      form(normal(2, 5, 7, 1), np.int64(6), np.int64(1), onesided=[1], since=20),
      form(normal(2, 4, 7, 2), np.int64(6), np.int64(1), onesided=[1], inverse=[1], since=20))
_each("STFT", form(normal(2, 40, 1), np.int64(5), between(0.1, 1, 12), np.int64(12), onesided=[None, 0]),
      form(normal(2, 40, 2), np.int64(5), between(0.1, 1, 12), onesided=[0]))
_each("HannWindow HammingWindow BlackmanWindow", form(np.int64(9), periodic=[None, 0],
                                                     output_datatype=[None, TensorProto.DOUBLE]))
_each("MelWeightMatrix", form(np.int64(8), np.int64(64), np.int64(8000), np.float32(20), np.float32(3500),
                              output_datatype=[None, TensorProto.DOUBLE]))
_each("NegativeLogLikelihoodLoss", form(normal(4, 3, 5), whole(0, 3, 4, 5), np.abs(normal(3)),
                                        reduction=[None, "sum", "none"], ignore_index=[None, 1]))
_each("SoftmaxCrossEntropyLoss", form(normal(4, 3, 5), whole(0, 3, 4, 5), np.abs(normal(3)), outputs=2,
                                      reduction=[None, "sum", "none"], ignore_index=[None, 1]))
_each("CenterCropPad", form(normal(2, 7, 5), s64(4, 8), axes=[[1, 2]]), form(normal(2, 7, 5), s64(3, 4, 8)))

# Quantization.
_each("QuantizeLinear", form(X, np.float32(0.02), np.uint8(9), since=10), form(X, f32(0.02, 0.03, 0.01), s64(1, -2, 3).astype(
    np.int8), axis=[None, 1], since=13), form(X * 9, np.float32(0.02), np.int16(9), since=21))
_each("DequantizeLinear", form(BITS[0].astype(np.uint8), np.float32(0.02), np.uint8(9), dtypes=False),
      form(BITS[0].astype(np.int8), f32(0.02, 0.03, 0.01), s64(1, -2, 3).astype(np.int8), axis=[None, 1], since=13,
           dtypes=False))
_each("DynamicQuantizeLinear", form(X, outputs=3))
_each("QLinearMatMul", form(whole(0, 255, 3, 4, dtype=np.uint8), f32(0.02)[0], np.uint8(9), whole(0, 255, 4, 5,
      dtype=np.uint8), f32(0.01)[0], np.uint8(7), f32(0.03)[0], np.uint8(5), dtypes=False))
_each("QLinearConv", form(whole(0, 255, 2, 3, 5, 6, dtype=np.uint8), f32(0.02)[0], np.uint8(9), whole(
    0, 255, 4, 3, 3, 2, dtype=np.uint8), f32(0.01)[0], np.uint8(7), f32(0.03)[0], np.uint8(5), dtypes=False, **_CONV))

# Recurrent, attention.
_each("LSTM", form(normal(5, 2, 3), normal(1, 16, 3), normal(1, 16, 4), normal(1, 32), hidden_size=[4], outputs=3,
                   direction=[None, "reverse"], clip=[None, 0.5], input_forget=[None, 1]),
      form(normal(5, 2, 3), normal(1, 16, 3), normal(1, 16, 4), None, np.int32([5, 3]), hidden_size=[4], outputs=3, since=7))
_each("GRU", form(normal(5, 2, 3), normal(1, 12, 3), normal(1, 12, 4), normal(1, 24), hidden_size=[4], outputs=2,
                  direction=[None, "reverse"], linear_before_reset=[None, 1], clip=[None, 0.5], output_sequence=[1]))
_each("RNN", form(normal(5, 2, 3), normal(1, 4, 3), normal(1, 4, 4), normal(1, 8), hidden_size=[4], outputs=2,
                  direction=[None, "reverse"], clip=[None, 0.5], output_sequence=[1]))
_each("Attention", form(normal(2, 4, 5, 8), normal(2, 2, 6, 8), normal(2, 2, 6, 7), is_causal=[None, 1], scale=[None, 0.2],
                        softcap=[None, 2.0]))
_each("RotaryEmbedding", form(normal(2, 4, 5, 8), normal(9, 4), normal(9, 4), whole(0, 9, 2, 5), interleaved=[None, 1]))
_each("LinearAttention", form(normal(2, 5, 16), normal(2, 5, 16), normal(2, 5, 12), q_num_heads=[2], kv_num_heads=[2],
                              update_rule=["linear"], outputs=2, dtypes=False),
      *(form(normal(2, 5, 16), normal(2, 5, 8), normal(2, 5, 6), normal(2, 1, 8, 6), *more, q_num_heads=[2],
             kv_num_heads=[1], scale=[None, 0.3], update_rule=[rule], outputs=2, dtypes=False)
        for rule, more in {"gated": [normal(2, 5, 8)], "delta": [None, normal(2, 5, 1)],
                           None: [normal(2, 5, 8), normal(2, 5, 1)]}.items()))
_each("CausalConvWithState", form(normal(2, 3, 7), normal(3, 1, 4), normal(3), normal(2, 3, 3), outputs=2,
                                  activation=[None, "silu"]))
_each("SwiGLU", form(X, X[::-1], alpha=[None, 0.5]))

# ai.onnx.ml.
_TABLE = normal(4, 3)
_POST = [None, "NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO"]
_each("ai.onnx.ml.ArrayFeatureExtractor", form(_TABLE, s64(2, 0)))
_each("ai.onnx.ml.Binarizer", form(_TABLE, threshold=[None, 0.3]))
_each("ai.onnx.ml.FeatureVectorizer", form(_TABLE, normal(4, 2), inputdimensions=[[3, 2]]))
_each("ai.onnx.ml.Imputer", form(f32(1, np.nan, 3, np.nan, 5, 6).reshape(2, 3), imputed_value_floats=[[9.0], [7.0, 8.0, 9.0]],
                                 replaced_value_float=[float("nan")], dtypes=False),
      form(whole(0, 3, 4, 3), imputed_value_int64s=[[9]], replaced_value_int64=[1], dtypes=False))
_each("ai.onnx.ml.LabelEncoder", form(s64(1, 2, 3, 9).reshape(2, 2), keys_int64s=[[1, 2, 3]], values_floats=[[1.5, 2.5, 3.5]],
                                      default_float=[None, -1.0], since=2, dtypes=False))
_each("ai.onnx.ml.LinearClassifier", form(_TABLE, coefficients=[normal(6).tolist()], intercepts=[[0.1, -0.2]],
                                          classlabels_ints=[[5, 7]], multi_class=[None, 1], post_transform=_POST, outputs=2),
      form(_TABLE, coefficients=[normal(12).tolist()], intercepts=[[0.1, -0.2, 0.3, 0.0]], classlabels_ints=[[5, 7, 8, 9]],
           post_transform=_POST, outputs=2),
      form(_TABLE, coefficients=[normal(3).tolist()], intercepts=[[0.1]], classlabels_ints=[[5, 7]],
           post_transform=[None, "LOGISTIC"], outputs=2))
_each("ai.onnx.ml.LinearRegressor", form(_TABLE, coefficients=[normal(6).tolist()], intercepts=[None, [0.1, -0.2]], targets=[2],
                                         post_transform=_POST))
_each("ai.onnx.ml.Normalizer", form(_TABLE, norm=[None, "MAX", "L1", "L2"]))
_each("ai.onnx.ml.OneHotEncoder", form(s64(1, 2, 3, 2, 1, 3).reshape(2, 3), cats_int64s=[[1, 2, 3, 4]], zeros=[None, 1],
                                       dtypes=False),
      form(s64(1, 2, 3, 9), cats_int64s=[[1, 2, 3, 4]], zeros=[None, 1], dtypes=False))
_each("ai.onnx.ml.Scaler", form(_TABLE, offset=[[0.5], [0.1, 0.2, 0.3]], scale=[[2.0], [1.0, 2.0, 3.0]]))
_SVM = dict(kernel_params=[[0.3, 0.5, 2.0]], kernel_type=["LINEAR", "POLY", "RBF", "SIGMOID"])
_each("ai.onnx.ml.SVMRegressor", form(_TABLE, support_vectors=[normal(15).tolist()], coefficients=[normal(5).tolist()],
                                      n_supports=[5], rho=[[0.2]], one_class=[None, 1], **_SVM),
      form(_TABLE, coefficients=[normal(3).tolist()], rho=[[0.2]], **_SVM))
_each("ai.onnx.ml.SVMClassifier", form(_TABLE, support_vectors=[normal(15).tolist()], coefficients=[normal(5).tolist()],
                                       vectors_per_class=[[2, 3]], rho=[[0.2]], classlabels_ints=[[5, 7]], outputs=2, **_SVM),
      form(_TABLE, support_vectors=[normal(21).tolist()], coefficients=[normal(14).tolist()],
           vectors_per_class=[[2, 3, 2]], rho=[[0.2, 0.1, -0.3]], classlabels_ints=[[5, 7, 9]], outputs=2,
           post_transform=_POST, kernel_type=["RBF"], kernel_params=[[0.3, 0.5, 2.0]]),
      form(_TABLE, support_vectors=[normal(21).tolist()], coefficients=[normal(14).tolist()],
           vectors_per_class=[[2, 3, 2]], rho=[[0.2, 0.1, -0.3]], classlabels_ints=[[5, 7, 9]], outputs=2,
           prob_a=[[0.5, 0.6, 0.7]], prob_b=[[0.1, 0.2, 0.3]], kernel_type=["RBF"], kernel_params=[[0.3, 0.5, 2.0]]))
_each("ai.onnx.ml.CategoryMapper", form(s64(1, 2, 9), cats_int64s=[[1, 2]], cats_strings=[["a", "b"]], dtypes=False))
_TFIDF = dict(max_gram_length=[2], max_skip_count=[0, 1], min_gram_length=[1, 2], ngram_counts=[[0, 3]],
              ngram_indexes=[[0, 1, 2, 3, 4]], pool_int64s=[[2, 3, 5, 2, 3, 5, 2]], mode=["TF", "IDF", "TFIDF"],
              weights=[[0.5, 1.0, 2.0, 3.0, 0.3]])
_each("TfIdfVectorizer", form(whole(2, 6, 7), **_TFIDF), form(whole(2, 6, 3, 7), **_TFIDF))
_TREE = dict(n_targets=[2], nodes_featureids=[[0, 1]], nodes_splits=[numpy_helper.from_array(f32(0.1, 0.4), "s")],
             nodes_modes=[numpy_helper.from_array(np.uint8([0, 4]), "m")], nodes_truenodeids=[[0, 1]],
             nodes_trueleafs=[[1, 1]], nodes_falsenodeids=[[1, 2]], nodes_falseleafs=[[0, 1]], tree_roots=[[0]],
             leaf_targetids=[[0, 1, 1]], leaf_weights=[numpy_helper.from_array(f32(1, 2, 3), "w")])
_each("ai.onnx.ml.TreeEnsemble", form(_TABLE, aggregate_function=[None, 0, 2, 3], post_transform=[None, 1, 2], **_TREE,
                                      dtypes=False))
_OLD = dict(nodes_treeids=[[0, 0, 0, 0, 0]], nodes_nodeids=[[0, 1, 2, 3, 4]], nodes_featureids=[[0, 1, 0, 0, 0]],
            nodes_values=[[0.1, 0.4, 0.0, 0.0, 0.0]],
            nodes_modes=[["BRANCH_LEQ", "BRANCH_LT", "LEAF", "LEAF", "LEAF"]],
            nodes_truenodeids=[[1, 2, 0, 0, 0]], nodes_falsenodeids=[[4, 3, 0, 0, 0]])
_each("ai.onnx.ml.TreeEnsembleRegressor", form(
    _TABLE, aggregate_function=[None, "AVERAGE", "MIN", "MAX"], post_transform=[None, "LOGISTIC", "SOFTMAX"],
    n_targets=[2], target_treeids=[[0, 0, 0]], target_nodeids=[[2, 3, 4]], target_ids=[[0, 1, 1]],
    target_weights=[[1.0, 2.0, 3.0]], base_values=[None, [0.5, 0.25]], dtypes=False, **_OLD))
_each("ai.onnx.ml.TreeEnsembleClassifier", form(
    _TABLE, post_transform=_POST, classlabels_int64s=[[5, 7, 9]], class_treeids=[[0, 0, 0]], class_nodeids=[[2, 3, 4]],
    class_ids=[[0, 1, 2]], class_weights=[[1.0, 2.0, 3.0]], base_values=[None, [0.5, 0.25, 0.125]], outputs=2, **_OLD),
    form(_TABLE, post_transform=_POST[:3], classlabels_int64s=[[5, 7]], class_treeids=[[0, 0, 0]],
         class_nodeids=[[2, 3, 4]], class_ids=[[0, 0, 0]], class_weights=[[0.1, 0.7, 0.4]], outputs=2, **_OLD))


def _branch(name: str, value: float) -> Any:
    constant = helper.make_node("Constant", [], [name], value=numpy_helper.from_array(f32(value, 2)))
    return helper.make_graph([constant], name, [], [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2])])


_each("If", form(np.array(True), then_branch=[_branch("a", 1)], else_branch=[_branch("b", 3)]))
_BODY = helper.make_graph(
    [helper.make_node("Add", ["s", "x"], ["t"]), helper.make_node("Identity", ["t"], ["y"])], "body",
    [helper.make_tensor_value_info(n, TensorProto.FLOAT, [3]) for n in "sx"],
    [helper.make_tensor_value_info(n, TensorProto.FLOAT, [3]) for n in "ty"])
_each("Scan", form(normal(3), normal(4, 3), body=[_BODY], num_scan_inputs=[1], outputs=2, since=9, dtypes=False),
      form(None, normal(2, 3), normal(2, 4, 3), body=[_BODY], num_scan_inputs=[1], outputs=2, until=9, dtypes=False))
_LOOP = helper.make_graph(
    [helper.make_node("Add", ["s", "s"], ["t"]), helper.make_node("Identity", ["c"], ["d"]),
     helper.make_node("Identity", ["t"], ["y"])], "body",
    [helper.make_tensor_value_info("n", TensorProto.INT64, []), helper.make_tensor_value_info("c", TensorProto.BOOL, []),
     helper.make_tensor_value_info("s", TensorProto.FLOAT, [3])],
    [helper.make_tensor_value_info("d", TensorProto.BOOL, []),
     *(helper.make_tensor_value_info(n, TensorProto.FLOAT, [3]) for n in "ty")])
_each("Loop", form(np.int64(3), np.array(True), normal(3), body=[_LOOP], outputs=2, dtypes=False))

"""Softmax and normalizations."""
import math
from typing import Literal, TypeAlias

import numpy as np

from graphq.dtypes import DType, bf16, f16, f32
from graphq.errors import GraphError
from graphq.ir import Dim, TensorType, register_op, shapes_agree
from graphq.ops import rules
from graphq.ops.rules import Array, Shape
from graphq.ops.window import DataFormat

# oneDNN's tables: the possible dtypes of gamma, beta and statistics, by the dtype of `src`.
PARAMETERS: dict[DType, tuple[DType, ...]] = {f32: (f32,), bf16: (f32, bf16), f16: (f32,)}
RMS_PARAMETERS: dict[DType, tuple[DType, ...]] = {**PARAMETERS, f16: (f32, f16)}

Normed: TypeAlias = "TensorType | tuple[TensorType, TensorType, TensorType]"


def _check_parameters(src: TensorType, allowed: dict[DType, tuple[DType, ...]],
                      **parameters: TensorType | None) -> None:
    rules.expect_dtype("src", src, rules.FLOATS)
    for name, t in parameters.items():
        if t is not None:
            rules.expect_dtype(name, t, allowed[src.dtype])
    rules.expect_same_dtype(**parameters)


def _check_elements(name: str, got: Shape, want: tuple[Dim, ...], why: str) -> None:
    if not shapes_agree(got, want):
        raise GraphError(f"'{name}' must be {rules.show(want)}, {why}, got {rules.show(got)}")


def _check_affine(src: TensorType, use_affine: bool, gamma: TensorType | None, beta: TensorType | None) -> None:
    _check_parameters(src, PARAMETERS, gamma=gamma, beta=beta)
    if (gamma is None) != (beta is None) or use_affine and gamma is None:
        given = ", ".join(n for n, t in (("gamma", gamma), ("beta", beta)) if t is not None) or "none"
        raise GraphError(f"'gamma' and 'beta' must come together, and use_affine needs both, got {given} "
                         f"and use_affine {use_affine}")


def _check_epsilon(epsilon: float) -> None:
    if rules.finite_f32("epsilon", epsilon) < 0:
        raise GraphError(f"epsilon must not be negative, got {epsilon}")


def _normed(src: TensorType, gamma: TensorType | None, keep_stats: bool, shape: Shape) -> Normed:
    """The type of a norm's result, and of its statistics if they are kept; `shape` is the statistics' shape."""
    stats = TensorType(f32 if gamma is None else gamma.dtype, shape)
    return (src, stats, stats) if keep_stats else src


def infer_batch_norm_inference(src: TensorType, gamma: TensorType, beta: TensorType, mean: TensorType,
                               variance: TensorType, *, epsilon: float, data_format: str) -> TensorType:
    """The four parameters have the same dtype, and each has one element per channel."""
    parameters = {"gamma": gamma, "beta": beta, "mean": mean, "variance": variance}
    _check_parameters(src, PARAMETERS, **parameters)
    _check_epsilon(epsilon)
    axis = None if src.shape is None else rules.channel_axis(data_format, src.shape)
    channels = None if src.shape is None or axis is None else src.shape[axis]
    for name, t in parameters.items():
        _check_elements(name, t.shape, (channels,), f"the channels of {src} in {data_format}")
        channels = t.shape[0] if channels is None and t.shape is not None else channels
    return src if axis is None else rules.with_axis(src, axis, channels)


@register_op(infer=infer_batch_norm_inference, layout="anchor", rows="images")
def batch_norm_inference(src: Array, gamma: Array, beta: Array, mean: Array, variance: Array, *, epsilon: float,
                         data_format: DataFormat = "NXC") -> Array:
    """`gamma * (src - mean) / sqrt(variance + epsilon) + beta` for each channel (oneDNN BatchNormInference)."""
    tail = src.ndim - 2 if data_format == "NCX" else 0
    g, b, m, v = (p.astype(np.float64).reshape(-1, *[1] * tail) for p in (gamma, beta, mean, variance))
    scale = g / np.sqrt(v + np.float32(epsilon).astype(np.float64))
    return rules.rounded((src.astype(np.float64) - m) * scale + b, src.dtype)


def infer_layer_norm(src: TensorType, gamma: TensorType | None = None, beta: TensorType | None = None, *,
                     keep_stats: bool, begin_norm_axis: int, use_affine: bool, epsilon: float) -> Normed:
    """gamma and beta have the dimensions of `src` from `begin_norm_axis` on, or are vectors of the same size.

    The statistics have the dimensions before `begin_norm_axis`.
    """
    _check_affine(src, use_affine, gamma, beta)
    _check_epsilon(epsilon)
    return _normed(src, gamma, keep_stats, _check_normalized(src, begin_norm_axis, gamma=gamma, beta=beta))


def _check_normalized(src: TensorType, axis: int, **parameters: TensorType | None) -> Shape:
    """The dimensions before `axis`. Raises GraphError if `axis` is out of range or a parameter does not fit."""
    if src.shape is None:
        return None
    k = rules.normal_axis(axis, src.shape, "begin_norm_axis")
    tail = src.shape[k:]
    flat = None if None in tail else math.prod(d for d in tail if d is not None)
    for name, t in parameters.items():
        if t is not None and t.shape is not None:
            whole = len(t.shape) != 1
            _check_elements(name, t.shape, tail if whole else (flat,), f"the axes of {src} from {k} on")
    return src.shape[:k]


@register_op(infer=infer_layer_norm, exact=False, rows="along")
def layer_norm(src: Array, gamma: Array | None = None, beta: Array | None = None, *, keep_stats: bool = True,
               begin_norm_axis: int = -1, use_affine: bool = True,
               epsilon: float = 1e-5) -> Array | tuple[Array, Array, Array]:
    """`(src - mean) / sqrt(variance + epsilon)` over the axes from `begin_norm_axis` on (oneDNN LayerNorm).

    With `use_affine` the result is multiplied by `gamma`, and `beta` is added; otherwise both are ignored. With
    `keep_stats`, the second and third outputs are the means and variances, one for each index along the earlier axes,
    in gamma's dtype (f32 without gamma).
    """
    rest = src.shape[begin_norm_axis % src.ndim:]
    head = src.shape[:src.ndim - len(rest)]
    y, mean, variance = _standardized(src.reshape(*head, math.prod(rest)), epsilon)
    if use_affine and gamma is not None and beta is not None:
        y = y * gamma.astype(np.float64).reshape(-1) + beta.astype(np.float64).reshape(-1)
    return _with_stats(rules.rounded(y, src.dtype).reshape(src.shape), mean, variance, gamma, keep_stats)


def _standardized(x: Array, epsilon: float) -> tuple[Array, Array, Array]:
    """x normalized to mean 0 and variance 1 along the last axis, and the mean and variance of x, all in f64."""
    x = x.astype(np.float64)
    count = x.shape[-1]
    mean = x.sum(axis=-1) / np.float64(count)
    x -= mean[..., None]
    variance = np.square(x).sum(axis=-1) / np.float64(count)
    x /= np.sqrt(variance + np.float32(epsilon).astype(np.float64))[..., None]
    return x, mean, variance


def _with_stats(y: Array, mean: Array, variance: Array, gamma: Array | None,
                keep_stats: bool) -> Array | tuple[Array, Array, Array]:
    if not keep_stats:
        return y
    dtype = np.dtype(np.float32) if gamma is None else gamma.dtype
    return y, rules.rounded(mean, dtype), rules.rounded(variance, dtype)


def infer_group_norm(src: TensorType, gamma: TensorType | None = None, beta: TensorType | None = None, *, groups: int,
                     keep_stats: bool, use_affine: bool, epsilon: float, data_format: str) -> Normed:
    """The channels are a multiple of `groups`. Statistics are [n, groups]."""
    _check_affine(src, use_affine, gamma, beta)
    _check_epsilon(epsilon)
    n, channels = None, None
    if src.shape is not None:
        if len(src.shape) < 2:
            raise GraphError(f"'src' must have a batch and a channel axis, got {src}")
        n, channels = src.shape[0], src.shape[rules.channel_axis(data_format, src.shape)]
    if groups < 1 or channels is not None and (channels % groups != 0 or channels < groups):
        raise GraphError(f"groups must be positive and divide the channels, got {groups} for {src} in {data_format}")
    for name, t in (("gamma", gamma), ("beta", beta)):
        _check_elements(name, None if t is None else t.shape, (channels,), f"the channels of {src} in {data_format}")
    return _normed(src, gamma, keep_stats, (n, groups))


@register_op(infer=infer_group_norm, layout="anchor", rows="images")
def group_norm(src: Array, gamma: Array | None = None, beta: Array | None = None, *, groups: int,
               keep_stats: bool = True, use_affine: bool = True, epsilon: float = 1e-5,
               data_format: DataFormat = "NXC") -> Array | tuple[Array, Array, Array]:
    """`(src - mean) / sqrt(variance + epsilon)` over each group of channels of each image (oneDNN GroupNorm).

    With `use_affine` the result is multiplied by `gamma`, and `beta` is added; both have one element per channel.
    Statistics [n, groups] are as in layer_norm.
    """
    x = src if data_format == "NCX" else np.moveaxis(src, -1, 1)
    y, mean, variance = _standardized(x.reshape(x.shape[0], groups, math.prod(x.shape[1:]) // groups), epsilon)
    y = y.reshape(x.shape)
    if use_affine and gamma is not None and beta is not None:
        g, b = (p.astype(np.float64).reshape(-1, *[1] * (src.ndim - 2)) for p in (gamma, beta))
        y = y * g + b
    y = np.ascontiguousarray(y if data_format == "NCX" else np.moveaxis(y, 1, -1))
    return _with_stats(rules.rounded(y, src.dtype), mean, variance, gamma, keep_stats)


def infer_rms_norm(src: TensorType, gamma: TensorType | None = None, *, epsilon: float,
                   begin_norm_axis: int) -> TensorType:
    """gamma has the dimensions of `src` from `begin_norm_axis` on, or is a vector of the same size."""
    _check_parameters(src, RMS_PARAMETERS, gamma=gamma)
    _check_epsilon(epsilon)
    _check_normalized(src, begin_norm_axis, gamma=gamma)
    return src


@register_op(infer=infer_rms_norm, exact=False, rows="along")
def rms_norm(src: Array, gamma: Array | None = None, *, epsilon: float = 1e-5, begin_norm_axis: int = -1) -> Array:
    """`src / sqrt(mean(src**2) + epsilon)` over the axes from `begin_norm_axis` on, times gamma (oneDNN RMSNorm)."""
    rest = src.shape[begin_norm_axis % src.ndim:]
    x = src.astype(np.float64).reshape(*src.shape[:src.ndim - len(rest)], math.prod(rest))
    square = np.square(x).sum(axis=-1, keepdims=True) / np.float64(x.shape[-1])
    y = x / np.sqrt(square + np.float32(epsilon).astype(np.float64))
    if gamma is not None:
        y = y * gamma.astype(np.float64).reshape(-1)
    return rules.rounded(y.reshape(src.shape), src.dtype)


def infer_lrn(src: TensorType, *, size: int, alpha: float, beta: float, bias: float, data_format: str) -> TensorType:
    """`src` has a channel axis, and `size` is at least 1."""
    if size < 1:
        raise GraphError(f"size must be positive, got {size}")
    if src.shape is not None:
        rules.channel_axis(data_format, src.shape)
    return rules.infer_unary(src, alpha=alpha, beta=beta, bias=bias)


@register_op(infer=infer_lrn, rows="images", portable=False)
def lrn(src: Array, *, size: int, alpha: float = 1e-4, beta: float = 0.75, bias: float = 1.0,
        data_format: DataFormat = "NXC") -> Array:
    """`src / (bias + alpha * mean(src**2))**beta`: local response normalization across channels (ONNX LRN).

    The mean is over `size` channels, from `(size - 1) // 2` before the element's channel to `size // 2` after it.
    Channels that do not exist count as zeros.
    """
    x = np.moveaxis(src, rules.channel_axis(data_format, src.shape), 0).astype(np.float64)
    channels = len(x)
    before, after = min((size - 1) // 2, channels), min(size // 2, channels)
    squares = np.pad(np.square(x), [(before, after), *[(0, 0)] * (x.ndim - 1)])
    total = np.zeros_like(x)
    for k in range(before + after + 1):
        total += squares[k:k + channels]
    a, b, c = (np.float64(np.float32(value)) for value in (alpha, beta, bias))
    y = x / np.power(c + a * (total / size), b)
    return rules.rounded(np.ascontiguousarray(np.moveaxis(y, 0, rules.channel_axis(data_format, src.shape))), src.dtype)


# oneDNN's table of SoftMax: the possible dtypes of the output, by the dtype of `src`.
OUTPUTS: dict[DType, tuple[DType, ...]] = {f32: (f32, bf16, f16), bf16: (f32, bf16), f16: (f32, f16)}


def infer_softmax(src: TensorType, *, axis: int, mode: str, dtype: DType | None,
                  keep_stats: bool) -> TensorType | tuple[TensorType, TensorType]:
    """The output has the shape of `src`. The statistics are f32 and have size 1 along the axis."""
    rules.expect_dtype("src", src, rules.FLOATS)
    if mode == "stepwise" and (src.dtype == f32 or keep_stats or dtype not in (None, src.dtype)):
        raise GraphError(f"mode stepwise is for f16 and bf16, without another dtype or statistics, got {src}")
    out = TensorType(rules.output_dtype(src.dtype, dtype, OUTPUTS), src.shape)
    stats = TensorType(f32, rules.with_axis(src, axis, 1).shape)
    return (out, stats) if keep_stats else out


@register_op(infer=infer_softmax, exact=False, layout="softmax", rows="along")
def softmax(src: Array, *, axis: int = 1, mode: Literal["none", "inf_as_zero", "stepwise"] = "none",
            dtype: DType | None = None, keep_stats: bool = False) -> Array | tuple[Array, Array]:
    """`exp(src - max) / sum(exp(src - max))` along `axis`, in f64, rounded to f32 once (oneDNN SoftMax).

    A row of only -inf becomes NaN, or zeros in mode inf_as_zero. The output has `dtype` (None: the dtype of `src`).
    With `keep_stats`, the second output is oneDNN's optional stats, `max + log(sum(exp(src - max)))`, f32.

    Mode stepwise, for f16 and bf16, rounds the differences, the powers, their sum and the quotients to the dtype of
    `src`, as in ONNX's function for Softmax.
    """
    x = src.astype(np.float64)
    if mode == "stepwise":
        less = rules.rounded(x - x.max(axis=axis, keepdims=True, initial=-np.inf), src.dtype)
        e = rules.rounded(np.exp(less.astype(np.float64)), src.dtype)
        total = rules.rounded(e.astype(np.float64).sum(axis=axis, keepdims=True), src.dtype)
        return rules.rounded(e.astype(np.float32) / total.astype(np.float32), src.dtype)
    top = x.max(axis=axis, keepdims=True, initial=-np.inf)
    if mode == "inf_as_zero":
        x, top = np.where(top == -np.inf, -np.inf, x), np.where(top == -np.inf, 0, top)
    e = np.exp(x - top)
    total = e.sum(axis=axis, keepdims=True)
    y = e / np.where(total == 0, 1, total)  # the sum is zero only for a row of -inf in mode inf_as_zero
    out = rules.rounded(y, src.dtype if dtype is None else dtype.numpy)
    return (out, rules.rounded(top + np.log(total), np.dtype(np.float32))) if keep_stats else out


@register_op(infer=rules.infer_unary, exact=False, layout="softmax", rows="along")
def log_softmax(src: Array, *, axis: int = -1) -> Array:
    """`src - max - log(sum(exp(src - max)))` along `axis`, in f64, rounded to f32 once (oneDNN LogSoftmax)."""
    x = src.astype(np.float64)
    x = x - x.max(axis=axis, keepdims=True, initial=-np.inf)
    return rules.rounded(x - np.log(np.exp(x).sum(axis=axis, keepdims=True)), src.dtype)

"""Importers of reductions, softmax and normalizations."""
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from graphq.dtypes import bf16, f16, f32, f64, s32, s64
from graphq.errors import GraphError
from graphq.ir import Graph, Value, lookup
from graphq.onnx.importers.composed import by_f32, in_f32, one, standard
from graphq.onnx.importers.importer import MICROSOFT, ML, Call, Outputs, by_body, imports, imports_each
from graphq.ops.rules import FLOATS, normal_axis

REDUCTIONS = {f"Reduce{name}": f"reduce_{name.lower()}" for name in ("L1", "L2", "Max", "Mean", "Min", "Prod", "Sum")}


@imports("ReduceLogSum", "ReduceLogSumExp")
def log_of_sum(c: Call) -> Outputs:
    """Import ReduceLogSum: `log(sum(x))`, and ReduceLogSumExp by ONNX's function or, in old versions, its reference."""
    if c.input(0).dtype not in (*FLOATS, f64):
        c.refuse(f"a logarithm of sums takes floats, got {c.input(0).type}")
    if c.node.op_type == "ReduceLogSumExp":
        return by_body(c)
    total = _reduced(c, c.input(0), "ReduceSum")
    return None if total is None else c.graph.log(total)


def _reduced(c: Call, x: Value, name: str) -> Value | None:
    """Reduce `x` along `axes`: an attribute or, in newer versions, a constant input.

    Without `axes`, reduce all axes, or no axis if noop_with_empty_axes is set.
    """
    axes = c.ints("axes", 1)
    if not axes:
        if c.attr("noop_with_empty_axes", 0):
            return x if name not in ("ReduceL1", "ReduceL2") else None
        if x.shape is None:
            return None
        axes = tuple(range(len(x.shape)))
    attrs = {"axes": axes, "keep_dims": bool(c.attr("keepdims", 1))}
    whole = name == "ReduceSum" and x.dtype in (s32, s64)
    return c.graph.add_node(lookup("integer_sum" if whole else REDUCTIONS[name]), [x], attrs)[0]


@imports("Softmax", "LogSoftmax")
def softmax(c: Call) -> Outputs:
    """Import Softmax and LogSoftmax: along `axis` since version 13; before, over all dimensions from `axis` on.

    f16 and bf16 follow ONNX's function body: each of its steps, also the sum, rounds its result.
    """
    g, x = c.graph, c.input(0)
    is_log = c.node.op_type == "LogSoftmax"
    if x.dtype not in FLOATS:
        return None if c.version >= 13 else as_matrix(c, lambda x: standard(c, c.node.op_type, [x], axis=1)[0])
    narrow = partial(_log_in_steps, g) if is_log else partial(g.softmax, mode="stepwise")
    build = narrow if x.dtype != f32 else g.log_softmax if is_log else g.softmax
    if c.version >= 13:
        return build(x, axis=c.attr("axis", -1))
    axis = normal_axis(c.attr("axis", 1), x.type.dims)
    return build(x, axis=axis) if axis == len(x.type.dims) - 1 else as_matrix(c, lambda x: build(x, axis=1))


def as_matrix(c: Call, build: Callable[[Value], Value]) -> Value:
    """Apply `build` to input 0; before version 13, to a matrix whose columns are the dimensions from `axis` on."""
    x, dims = c.input(0), c.input(0).type.dims
    axis = normal_axis(c.attr("axis", 1), dims)
    flat = c.graph.static_reshape(x, shape=[math.prod(dims[:axis]), math.prod(dims[axis:])])
    return c.graph.static_reshape(build(flat), shape=dims)


@imports("LpNormalization")
def lp_normalization(c: Call) -> Outputs:
    """Import LpNormalization: `x` divided by its norm along `axis`; 0 if the norm is 0."""
    x, p = c.input(0), c.attr("p", 2)
    norm, = standard(c, f"ReduceL{p}", [x, np.asarray([c.attr("axis", -1)])])
    zero = c.graph.add_constant(one(x, 0))
    return standard(c, "Where", [*standard(c, "Equal", [norm, zero]), zero, *standard(c, "Div", [x, norm])])


@imports("BatchNormalization")
def batch_normalization(c: Call) -> Outputs:
    """Import BatchNormalization for inference.

    In old versions, `spatial` 0 gives each element of an image its own parameters. The reference runs f64 as version 14
    or newer, because its older versions take a wrong channel axis.
    """
    x, g = c.input(0), c.graph
    if c.outputs > 1 or c.attr("training_mode", 0):
        if c.version < 14 or x.dtype in (bf16, f16):
            c.refuse(f"training in version {c.version} of {x.dtype} is not supported")
        return None
    if not c.attr("spatial", 1):
        flat = [g.static_reshape(x, shape=[0, -1], special_zero=True),
                *(g.static_reshape(c.input(k), shape=[-1]) for k in range(1, 5))]
        y = standard(c, "BatchNormalization", flat, epsilon=c.attr("epsilon", 1e-5))[0]
        return g.static_reshape(y, shape=x.type.dims)
    if x.dtype == f64:
        return None if c.version >= 14 else standard(c, "BatchNormalization", list(c.inputs),
                                                     epsilon=c.attr("epsilon", 1e-5))
    build = partial(g.batch_norm_inference, epsilon=c.attr("epsilon", 1e-5), data_format="NCX")
    return by_f32(c, build, *c.inputs) if c.input(1).dtype == f16 else build(*(c.input(k) for k in range(5)))


@imports("MeanVarianceNormalization")
def mean_variance_normalization(c: Call) -> Outputs:
    """Import MeanVarianceNormalization: `(x - mean) / (sqrt(mean(x**2) - mean**2) + 1e-9)` over `axes`."""
    g, x = c.graph, c.input(0)
    axes = {"axes": c.attr("axes", [0, 2, 3]), "keep_dims": True}
    mean = g.reduce_mean(x, **axes)
    deviation = g.sqrt(g.subtract(g.reduce_mean(g.square(x), **axes), g.square(mean)))
    return g.divide(g.subtract(x, mean), g.add(deviation, one(x, 1e-9)))


def _log_in_steps(g: Graph, x: Value, *, axis: int) -> Value:
    less = g.subtract(x, g.reduce_max(x, axes=[axis], keep_dims=True))
    return g.subtract(less, g.log(g.reduce_sum(g.exp(less), axes=[axis], keep_dims=True)))


@imports("LayerNormalization")
@imports("LayerNormalization", domain=MICROSOFT)
def layer_normalization(c: Call) -> Outputs:
    """Import LayerNormalization over the dimensions from `axis` on, with statistics in f32."""
    if c.attr("stash_type", 1) != 1:
        return None
    if c.outputs > 1:  # statistics are f32 even for narrower floats
        x, g = c.input(0), c.graph
        if x.dtype not in (bf16, f16):
            return None
        wide = [v if v is None else g.type_cast(v, dtype=f32) for v in c.inputs]
        y, *statistics = standard(c, "LayerNormalization", wide, c.outputs, **c.attrs)
        return [g.type_cast(y, dtype=x.dtype), *statistics]

    g, axis = c.graph, c.attr("axis", -1)
    how: dict[str, Any] = dict(keep_stats=False, epsilon=c.attr("epsilon", 1e-5), begin_norm_axis=axis)

    def normalized(x: Value, gamma: Value, beta: Value | None = None) -> Value:
        if any(p is not None and _broadcasts(p, x, axis) for p in (gamma, beta)):
            y = _same_shape(g.multiply(g.layer_norm(x, use_affine=False, **how), gamma), x)
            return y if beta is None else _same_shape(g.add(y, beta), x)
        if beta is None:
            beta = g.add_constant(np.zeros(gamma.type.dims, gamma.dtype.numpy))
        return g.layer_norm(x, gamma, beta, **how)

    return by_f32(c, normalized, *c.inputs)


def _broadcasts(parameter: Value, x: Value, axis: int) -> bool:
    """Whether a scale or bias must broadcast, because it may be smaller than the dimensions of `x` from `axis` on."""
    if parameter.shape is None or x.shape is None:
        return False
    dims, tail = parameter.shape, x.shape[axis:]
    if len(dims) == 1 and None not in tail and dims[0] == math.prod(d for d in tail if d is not None):
        return False
    return len(dims) != len(tail) or any(
        d != t and (t is not None or d in (None, 1)) for d, t in zip(dims, tail, strict=True))


def _same_shape(y: Value, x: Value) -> Value:
    if x.type.known and y.shape != x.shape:
        raise GraphError(f"scale and bias must broadcast to {x.type}, but give {y.type}")
    return y


@imports("GroupNormalization", "InstanceNormalization")
def group_normalization(c: Call) -> Outputs:
    """Import GroupNormalization with a scale per channel, and InstanceNormalization (one group per channel)."""
    instance = c.node.op_type == "InstanceNormalization"
    if not instance and (c.version < 21 or c.attr("stash_type", 1) != 1):
        return None
    groups = c.input(0).type.dims[1] if instance else c.attr("num_groups")
    return by_f32(c, partial(c.graph.group_norm, groups=groups, keep_stats=False, epsilon=c.attr("epsilon", 1e-5),
                             data_format="NCX"), *c.inputs)


@imports("LRN")
def lrn(c: Call) -> Outputs:
    """Import LRN: local response normalization across channels; channels come first."""
    if c.input(0).dtype not in FLOATS:
        c.refuse(f"input 0 is {c.input(0).type}, but must be f32, bf16 or f16: ONNX's reference sums over the batch")
    attrs = {name: c.attr(name, default) for name, default in (("alpha", 1e-4), ("beta", 0.75), ("bias", 1.0))}
    return by_f32(c, partial(c.graph.lrn, size=c.attr("size"), data_format="NCX", **attrs), *c.inputs)


@imports("RMSNormalization")
def rms_normalization(c: Call) -> Outputs:
    """Import RMSNormalization over the dimensions from `axis` on."""
    if c.attr("stash_type", 1) != 1:
        return None
    x, gamma = c.input(0), c.input(1)
    how: dict[str, Any] = dict(epsilon=c.attr("epsilon", 1e-5), begin_norm_axis=c.attr("axis", -1))
    if _broadcasts(gamma, x, how["begin_norm_axis"]):
        return _same_shape(c.graph.multiply(c.graph.rms_norm(x, **how), gamma), x)
    return c.graph.rms_norm(x, gamma, **how)


@imports("SimplifiedLayerNormalization", domain=MICROSOFT)
def simplified_layer_normalization(c: Call) -> Outputs:
    """Import RMSNormalization under an older name; its second output is the inverse root mean square in f32."""
    if c.attr("stash_type", 1) != 1:
        c.refuse(f"attribute 'stash_type' must be 1, for f32, got {c.attr('stash_type')}")
    y = rms_normalization(c)
    if c.outputs < 2 or not isinstance(y, Value):
        return y
    g, x, axis = c.graph, c.input(0), c.attr("axis", -1)
    wide = in_f32(c, x)
    axes = list(range(axis, 0 if axis < 0 else len(x.type.dims)))
    mean = g.reduce_mean(g.square(wide), axes=axes, keep_dims=True)
    return [y, g.reciprocal(g.sqrt(g.add(mean, one(mean, c.attr("epsilon", 1e-5)))))]


@imports("Normalizer", domain=ML)
def normalizer(c: Call) -> Outputs:
    """Import Normalizer. MAX divides a row by its maximum; the reference would divide by its greatest magnitude."""
    x, g = c.input(0), c.graph
    if c.attr("norm", "MAX") != "MAX":
        return None
    wide = x if x.dtype == f32 else g.cast(x, dtype=f32)
    return g.divide(wide, g.reduce_max(wide, axes=[-1], keep_dims=True))


imports_each({
    # an onnx_node; before version 13, the operand becomes a matrix
    "Hardmax": lambda c: None if c.version >= 13 else as_matrix(c, lambda x: standard(c, "Hardmax", [x], axis=1)[0]),
    **dict.fromkeys(REDUCTIONS, lambda c: _reduced(c, c.input(0), c.node.op_type)),
    "ReduceSumSquare": lambda c: _reduced(c, c.graph.square(c.input(0)), "ReduceSum"),
})

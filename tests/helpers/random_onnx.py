"""Random ONNX models, each node of which ONNX's reference evaluator has run: what graphq makes of them must agree.

`random_model(seed)` gives a model, arrays for its inputs and what the evaluator says its outputs are. A node that the
evaluator refuses is dropped, so attributes are drawn freely. Where the evaluator does not follow the specification
(older versions of softmax, say), the node's own function says what is right.
"""
import warnings
from typing import NamedTuple

import numpy as np
import onnx
from onnx import defs, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

OPSETS = (7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21)
MAKERS = []
"""The functions that add a node, or a few, of their choice."""
MOST = 4096
"""Elements of the largest tensor."""


class RandomModel(NamedTuple):
    """A model, arrays by the names of its inputs, and the outputs."""

    model: onnx.ModelProto
    feeds: dict
    wanted: dict


class Skip(Exception):
    """The builder has no value for this node, or the node is not allowed."""


def maker(f):
    MAKERS.append(f)
    return f


class Builder:
    """A model that grows node by node; `arrays` holds the numbers of every value."""

    def __init__(self, rng):
        self.rng = rng
        self.opset = int(rng.choice(OPSETS))
        self.arrays, self.nodes, self.constants, self.inputs = {}, [], [], []

    def name(self, prefix):
        return f"{prefix}{len(self.arrays)}"

    def input(self, x):
        name = self.name("x")
        self.arrays[name] = x
        self.inputs.append(name)
        return name

    def constant(self, x, dtype=None):
        name = self.name("c")
        self.arrays[name] = np.asarray(x, dtype)
        self.constants.append(name)
        return name

    def pick(self, accept=lambda x: True, dtypes="f"):
        """A value, later ones more often; raises Skip where there is none."""
        names = [n for n, x in self.arrays.items() if n not in self.constants and x.dtype.kind in dtypes and accept(x)]
        if not names:
            raise Skip
        return names[min(len(names) - 1, int(len(names) * self.rng.random() ** 0.5))]

    def node(self, op, inputs, outputs=1, wanted=None, **attrs):
        """Add a node and run it; raises Skip where ONNX's reference refuses."""
        names = [self.name(f"y{k}_") for k in range(outputs)]
        node = helper.make_node(op, inputs, names, **{k: v for k, v in attrs.items() if v is not None})
        self.version(op)
        used = list(dict.fromkeys(n for n in inputs if n))
        if wanted is None:
            outs = [helper.make_empty_tensor_value_info(n) for n in names]
            graph = helper.make_graph([node], "g", self.infos(used), outs)
            model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=8)
            try:
                onnx.checker.check_node(node, _context(self.opset))
                with np.errstate(all="ignore"), warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    wanted = ReferenceEvaluator(model).run(None, {n: self.arrays[n] for n in used})
            except Exception as e:  # whatever an operator's implementation raises
                raise Skip from e
        wanted = [np.asarray(w) for w in wanted]
        if any(w.size > MOST or w.dtype.kind not in "fiub" or w.dtype == np.float64 or w.ndim > 5 for w in wanted):
            raise Skip
        if "kernel_shape" in attrs and any(w.size == 0 for w in wanted):  # a window larger than the padded source
            raise Skip
        if any(w.dtype.kind == "f" and not (np.abs(w) < 1e6).all() for w in wanted):  # small differences would grow
            raise Skip
        self.nodes.append(node)
        self.arrays.update(zip(names, wanted, strict=True))
        return names[0] if outputs == 1 else names

    def infos(self, names):
        """The types of values."""
        return [helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(self.arrays[n].dtype),
                                              self.arrays[n].shape) for n in names]

    def version(self, op):
        """The version of the operator; raises Skip where the opset has none."""
        try:
            return defs.get_schema(op, self.opset, "").since_version
        except defs.SchemaError:
            raise Skip from None

    def choice(self, *options):
        return options[self.rng.integers(len(options))]

    def chance(self, p=0.5):
        return bool(self.rng.random() < p)

    def floats(self, *shape):
        return self.rng.normal(size=shape).astype(np.float32)

    def ints_attr_or_input(self, name, values, first_version):
        """Integers as an attribute, or from `first_version` of the operator set on as a constant: (attrs, inputs)."""
        if values is None:
            return {}, []
        return ({name: values}, []) if self.opset < first_version else ({}, [self.constant(values, np.int64)])


def _context(opset):
    context = onnx.checker.C.CheckerContext()
    context.ir_version, context.opset_imports = 8, {"": opset}
    return context


# -- nodes of one operand, and of broadcast ones -----------------------------------------------------------------------

@maker
def unary(b):
    op = b.choice("Relu", "Sigmoid", "Tanh", "Abs", "Neg", "Floor", "Ceil", "Erf", "Softplus", "Softsign", "LeakyRelu",
                  "Elu", "Selu", "HardSigmoid", "HardSwish", "Round", "Identity", "Sin", "Cos", "Atan",
                  "ThresholdedRelu")
    has_alpha = op in ("LeakyRelu", "Elu", "HardSigmoid", "ThresholdedRelu") and b.chance()
    b.node(op, [b.pick()], alpha=float(b.choice(0.1, 0.3, 1.5)) if has_alpha else None)


@maker
def clip(b):
    x, low, high = b.pick(), b.choice(None, -0.5, 0.0), b.choice(None, 0.75, 6.0)
    if b.opset < 11:
        b.node("Clip", [x], min=low, max=high)
    else:
        ends = ["" if v is None else b.constant(v, np.float32) for v in (low, high)]
        while ends and not ends[-1]:
            ends.pop()
        b.node("Clip", [x, *ends])


@maker
def binary(b):
    op = b.choice("Add", "Sub", "Mul", "Div", "Min", "Max", "Add", "Mul", "PRelu", "Sum", "Mean")
    x = b.pick()
    if op in ("Min", "Max", "Sum", "Mean") and b.opset < 8:
        raise Skip
    if b.chance(0.4):
        y = b.pick(lambda a: _broadcasts(a.shape, b.arrays[x].shape))
    else:
        shape = [d if b.chance(0.6) else 1 for d in b.arrays[x].shape]
        y = b.constant(b.floats(*shape[b.rng.integers(len(shape) + 1):]) + 2 * (op == "Div"))
    if op == "PRelu" and np.broadcast_shapes(b.arrays[x].shape, b.arrays[y].shape) != b.arrays[x].shape:
        raise Skip  # slopes broadcast one way alone
    b.node(op, [x, y] if op == "PRelu" or b.chance(0.7) else [y, x])


def _broadcasts(s, t):
    return all(a in (1, c) or c == 1 for a, c in zip(s[::-1], t[::-1], strict=False))


@maker
def where(b):
    x = b.pick()
    y = b.pick(lambda a: _broadcasts(a.shape, b.arrays[x].shape))
    op = b.choice("Less", "Greater")
    if b.opset < 9:
        raise Skip
    condition = b.node(op, [x, b.constant(0.1, np.float32)])
    b.node("Where", [condition, x, y])


# -- along axes --------------------------------------------------------------------------------------------------------

@maker
def softmax(b):
    x = b.pick(lambda a: a.ndim > 0 and a.size > 0)
    a, op = b.arrays[x], b.choice("Softmax", "LogSoftmax")
    axis = b.choice(None, *range(-a.ndim if b.opset >= 11 else 0, a.ndim))
    at = (1 if b.opset < 13 else -1) if axis is None else axis
    if not -a.ndim <= at < a.ndim:
        raise Skip
    at %= a.ndim
    # Before version 13 the operand is a matrix: the axes before `axis`, and those from it on.
    rows = a.reshape(int(np.prod(a.shape[:at])), -1) if b.opset < 13 else np.moveaxis(a, at, -1)
    y = rows.astype(np.float64) - rows.max(-1, keepdims=True, initial=-np.inf)
    y -= np.log(np.exp(y).sum(-1, keepdims=True))
    y = y if op == "LogSoftmax" else np.exp(y)
    y = y.reshape(a.shape) if b.opset < 13 else np.moveaxis(y, -1, at)
    b.node(op, [x], wanted=[y.astype(np.float32)], axis=axis)


@maker
def reduction(b):
    op = b.choice("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceL2", "ReduceSumSquare", "ReduceMean")
    x = b.pick(lambda a: a.ndim > 0 and a.size > 0)
    rank = b.arrays[x].ndim
    axes = None if b.chance(0.2) else [int(k) - (rank if b.opset >= 11 and b.chance(0.3) else 0)
                                       for k in sorted(b.rng.permutation(rank)[:b.rng.integers(1, rank + 1)])]
    attrs, inputs = b.ints_attr_or_input("axes", axes, 13 if op == "ReduceSum" else 18)
    keep = b.choice(None, 0, 1)
    first = 13 if op == "ReduceSum" else 18
    if b.opset >= first and b.chance(0.3):
        empty = [] if axes else b.choice([], [b.constant([], np.int64)])
        wanted = None
        if not axes:  # the reduction of no axes leaves the elements, but for what it does to each
            a = b.arrays[x]
            if op in ("ReduceL2", "ReduceSumSquare"):
                raise Skip  # ONNX Runtime and the evaluator differ
            wanted = [a]
        b.node(op, [x, *inputs, *empty], wanted=wanted, keepdims=keep, noop_with_empty_axes=1)
        return
    b.node(op, [x, *inputs], keepdims=keep, **attrs)


@maker
def arg(b):
    x = b.pick(lambda a: a.ndim > 0 and a.size > 0)
    axis = int(b.rng.integers(b.arrays[x].ndim))
    b.node(b.choice("ArgMax", "ArgMin"), [x], axis=axis, keepdims=b.choice(0, 1, None))


@maker
def normalisation(b):
    x = b.pick(lambda a: a.ndim >= 3 and a.size > 0)
    c = b.arrays[x].shape[1]
    parameters = [b.constant(np.abs(b.floats(c)) + 0.5) for _ in range(4)]
    op = b.choice("BatchNormalization", "InstanceNormalization", "LayerNormalization", "LRN")
    if op == "BatchNormalization":  # the evaluator's older versions take other axes
        epsilon, a = b.choice(None, 1e-3), b.arrays[x]
        scale, shift, mean, var = (b.arrays[p].reshape(-1, *[1] * (a.ndim - 2)) for p in parameters)
        y = scale * (a - mean) / np.sqrt(var + np.float32(epsilon or 1e-5)) + shift
        b.node(op, [x, *parameters], wanted=[y], epsilon=epsilon)
    elif op == "InstanceNormalization":
        b.node(op, [x, *parameters[:2]], epsilon=b.choice(None, 1e-3))
    elif op == "LRN":
        b.node(op, [x], size=b.choice(1, 3, 5), alpha=b.choice(None, 0.01), bias=b.choice(None, 2.0))
    else:
        axis = int(b.rng.integers(1, b.arrays[x].ndim))
        shape = b.arrays[x].shape[axis:]
        beta = [b.constant(b.floats(*shape))] if b.chance() else []
        b.node(op, [x, b.constant(b.floats(*shape)), *beta], axis=axis)


# -- shapes ------------------------------------------------------------------------------------------------------------

@maker
def transpose(b):
    x = b.pick(lambda a: a.ndim > 0)
    b.node("Transpose", [x], perm=None if b.chance(0.2) else [int(k) for k in b.rng.permutation(b.arrays[x].ndim)])


@maker
def reshape(b):
    x = b.pick(lambda a: a.size > 0)
    dims = [int(d) for d in b.arrays[x].shape]
    k = int(b.rng.integers(len(dims) + 1))
    new = b.choice([-1], [*dims[:k], -1], [0] * k + [-1], [int(np.prod(dims[:k], dtype=int)), -1], [1, *dims])
    b.node("Reshape", [x, b.constant(new, np.int64)])


@maker
def squeezing(b):
    x = b.pick(lambda a: a.ndim < 5)
    rank = b.arrays[x].ndim
    if b.chance():
        attrs, inputs = b.ints_attr_or_input("axes", [int(b.rng.integers(rank + 1))], 13)
        b.node("Unsqueeze", [x, *inputs], **attrs)
    else:
        ones = [k for k, d in enumerate(b.arrays[x].shape) if d == 1]
        attrs, inputs = b.ints_attr_or_input("axes", ones[:1] or None if b.chance(0.7) else None, 13)
        b.node("Squeeze", [x, *inputs], **attrs)


@maker
def flatten(b):
    x = b.pick(lambda a: a.ndim > 0)
    b.node("Flatten", [x], axis=b.choice(None, int(b.rng.integers(b.arrays[x].ndim + 1))))


@maker
def concat(b):
    x = b.pick(lambda a: a.ndim > 0)
    shape = b.arrays[x].shape
    axis = int(b.rng.integers(len(shape)))
    others = [b.pick(lambda a: a.ndim == len(shape) and all(k == axis or d == e for k, (d, e) in
                                                          enumerate(zip(a.shape, shape, strict=True))))
              for _ in range(b.rng.integers(1, 3))]
    b.node("Concat", [x, *others], axis=axis)


@maker
def split(b):
    x = b.pick(lambda a: a.ndim > 0 and max(a.shape) > 1)
    axis = int(np.argmax(b.arrays[x].shape))
    size = b.arrays[x].shape[axis]
    parts = int(b.rng.integers(1, min(size, 3) + 1))
    if size % parts == 0 and b.chance() and b.opset < 18:
        b.node("Split", [x], outputs=parts, axis=axis)
        return
    if b.opset >= 18 and b.chance():
        if -(-size // parts) * (parts - 1) < size:
            b.node("Split", [x], outputs=parts, axis=axis, num_outputs=parts)
        return
    cuts = sorted(int(c) for c in b.rng.integers(0, size + 1, parts - 1))
    sizes = [int(d) for d in np.diff([0, *cuts, size])]
    attrs, inputs = b.ints_attr_or_input("split", sizes, 13)
    b.node("Split", [x, *inputs], outputs=parts, axis=axis, **attrs)


@maker
def slicing(b):
    x = b.pick(lambda a: a.ndim > 0)
    shape = b.arrays[x].shape
    axes = [int(k) for k in sorted(b.rng.permutation(len(shape))[:b.rng.integers(1, len(shape) + 1)])]
    starts = [int(b.rng.integers(-shape[k] - 1, shape[k] + 2)) for k in axes]
    ends = [int(b.choice(b.rng.integers(-shape[k] - 1, shape[k] + 2), 2**31 - 1, -2**31 + 1)) for k in axes]
    if b.opset < 10:
        b.node("Slice", [x], starts=starts, ends=ends, axes=axes)
        return
    steps = [int(b.choice(1, 1, 2, -1, -2)) for _ in axes]
    if any(end < -2**30 for end, step in zip(ends, steps, strict=True) if step < 0):
        raise Skip  # the evaluator takes none of the elements, ONNX Runtime all
    more = [b.constant(axes, np.int64), b.constant(steps, np.int64)]
    b.node("Slice", [x, b.constant(starts, np.int64), b.constant(ends, np.int64), *more[:b.rng.integers(1, 3)]])


@maker
def gather(b):
    x = b.pick(lambda a: a.ndim > 0 and min(a.shape) > 0)
    axis = int(b.rng.integers(b.arrays[x].ndim))
    size = b.arrays[x].shape[axis]
    low = -size if b.opset >= 11 else 0
    index = b.rng.integers(low, size, b.choice((), (2,), (2, 2)))
    b.node("Gather", [x, b.constant(index, b.choice(np.int64, np.int32))], axis=axis)


@maker
def pad(b):
    x = b.pick(lambda a: a.ndim > 0 and min(a.shape) > 2)
    rank, mode = b.arrays[x].ndim, b.choice("constant", "edge", "reflect", None)
    pads = [int(b.rng.integers(-1 if mode in ("constant", None) else 0, 3)) for _ in range(2 * rank)]
    if b.opset < 11:
        b.node("Pad", [x], pads=pads, mode=mode, value=b.choice(None, 0.5))
    else:
        value = [b.constant(0.5, np.float32)] if b.chance() else []
        b.node("Pad", [x, b.constant(pads, np.int64), *value], mode=mode)


@maker
def repeat(b):
    x = b.pick(lambda a: a.ndim > 0)
    shape = b.arrays[x].shape
    if b.chance():
        b.node("Tile", [x, b.constant(b.rng.integers(1, 3, len(shape)), np.int64)])
    elif b.opset >= 8:
        b.node("Expand", [x, b.constant([b.choice(1, d) if d > 1 else b.choice(1, 2) for d in shape], np.int64)])


@maker
def others(b):
    op = b.choice("TopK", "CumSum", "Trilu", "DepthToSpace", "SpaceToDepth", "Cast", "Shape")
    if op in ("DepthToSpace", "SpaceToDepth"):
        x = b.pick(lambda a: a.ndim == 4)
        b.node(op, [x], blocksize=2, mode=b.choice("CRD", None) if op == "DepthToSpace" and b.opset >= 11 else None)
        return
    x = b.pick(lambda a: a.ndim > 0 and a.size > 0)
    rank = b.arrays[x].ndim
    axis = int(b.rng.integers(rank))
    if op == "TopK":
        k = int(b.rng.integers(1, b.arrays[x].shape[axis] + 1))
        if b.opset < 10:
            b.node(op, [x], outputs=2, axis=axis, k=k)
        else:
            largest = b.choice(0, 1) if b.opset > 10 else None
            b.node(op, [x, b.constant([k], np.int64)], outputs=2, axis=axis, largest=largest)
    elif op == "CumSum":
        b.node(op, [x, b.constant(axis, np.int64)], exclusive=b.choice(0, 1), reverse=b.choice(0, 1))
    elif op == "Trilu":
        if rank < 2:
            raise Skip
        b.node(op, [x, *([b.constant(b.rng.integers(-2, 3), np.int64)] if b.chance() else [])], upper=b.choice(0, 1))
    elif op == "Cast":
        b.node("Cast", [b.node("Cast", [x], to=onnx.TensorProto.INT32)], to=onnx.TensorProto.FLOAT)
    else:
        b.node("Reshape", [x, b.node("Shape", [x])])


# -- products ----------------------------------------------------------------------------------------------------------

@maker
def matmul(b):
    x = b.pick(lambda a: a.ndim >= 1 and a.size > 0)
    k, n = b.arrays[x].shape[-1], int(b.rng.integers(1, 20))
    b.node("MatMul", [x, _weights(b, k, n, axis=1)])


@maker
def gemm(b):
    x = b.pick(lambda a: a.ndim == 2 and a.size > 0)
    m, k = b.arrays[x].shape
    n, ta, tb = int(b.rng.integers(1, 12)), int(b.chance(0.3)), int(b.chance())
    m, k = (k, m) if ta else (m, k)
    w = b.constant(b.floats(*((n, k) if tb else (k, n))))
    bias = [b.constant(b.floats(*b.choice((n,), (1, n), (m, n), (m, 1), (1,))))]
    b.node("Gemm", [x, w, *(bias if b.opset < 11 or b.chance(0.7) else [])], transA=ta, transB=tb,
           alpha=b.choice(None, 0.5), beta=b.choice(None, 2.0))


@maker
def product(b):
    x = b.pick(lambda a: a.ndim >= 2 and a.size > 0)
    shape = b.arrays[x].shape
    y = b.pick(lambda a: a.ndim >= 2 and a.shape[-2] == shape[-1] and _broadcasts(a.shape[:-2], shape[:-2]))
    b.node("MatMul", [x, y])


def _windows(b, sizes, kernel, dilate=True):
    """Attributes of windows; the auto_pads too."""
    count = len(sizes)
    attrs = {"strides": b.choice(None, [int(s) for s in b.rng.integers(1, 4, count)])}
    if dilate:
        attrs["dilations"] = b.choice(None, [int(s) for s in b.rng.integers(1, 3, count)])
    auto = b.choice(None, None, None, "SAME_UPPER", "SAME_LOWER", "VALID", "NOTSET")
    attrs["auto_pad"] = auto
    if auto in (None, "NOTSET"):
        attrs["pads"] = b.choice(None, [int(b.rng.integers(0, k)) for _ in range(2) for k in kernel])
    elif auto != "VALID" and any(s > k for s, k in zip(attrs["strides"] or [], kernel, strict=False)):
        raise Skip  # the evaluator and ONNX Runtime cut off what no window reads
    return attrs


@maker
def conv(b):
    x = b.pick(lambda a: a.ndim in (3, 4, 5) and a.size > 0)
    _, c, *sizes = b.arrays[x].shape
    kernel = [int(b.rng.integers(1, min(s, 3) + 1)) for s in sizes]
    groups = int(b.choice(1, 1, c, *[d for d in range(1, c + 1) if c % d == 0]))
    attrs = _windows(b, sizes, kernel)
    m = groups * int(b.rng.integers(1, 9))
    if b.chance(0.7):
        w = _weights(b, m, c // groups, *kernel, axis=0)
        bias = [b.constant(b.floats(m))] if b.chance() else []
        # The evaluator's Conv pads `SAME` without the dilations.
        if str(attrs["auto_pad"]).startswith("SAME") and set(attrs["dilations"] or [1]) != {1}:
            raise Skip
        b.node("Conv", [x, w, *bias], group=groups, kernel_shape=b.choice(None, kernel), **attrs)
        return
    groups = 1
    attrs |= {"auto_pad": None, "pads": b.choice(None, [int(b.rng.integers(0, 2)) for _ in range(2) for _ in kernel])}
    w = _weights(b, c, m := int(b.rng.integers(1, 7)), *kernel, axis=1)
    more = [int(b.rng.integers(0, s)) for s in attrs["strides"]] if attrs["strides"] and b.chance(0.3) else None
    b.node("ConvTranspose", [x, w, *([b.constant(b.floats(m))] if b.chance() else [])], kernel_shape=kernel,
           output_padding=more, **attrs)


@maker
def pool(b):
    x = b.pick(lambda a: a.ndim in (3, 4) and a.size > 0)
    sizes = b.arrays[x].shape[2:]
    kernel = [int(b.rng.integers(1, min(s, 3) + 1)) for s in sizes]
    op = b.choice("MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool")
    if op.startswith("Global"):  # the evaluator's GlobalMaxPool takes images of two axes for granted
        axes, a = tuple(range(2, b.arrays[x].ndim)), b.arrays[x]
        b.node(op, [x], wanted=[a.max(axes, keepdims=True)] if op == "GlobalMaxPool" else None)
    elif op == "MaxPool":
        attrs = _windows(b, sizes, kernel, dilate=False)
        if len(set(attrs.get("pads") or [0])) > 1:
            raise Skip  # the evaluator takes one axis' pads for the other's
        b.node(op, [x], kernel_shape=kernel, **attrs)
    else:
        count = b.choice(None, 0, 1)
        b.node(op, [x], kernel_shape=kernel, count_include_pad=count, **_windows(b, sizes, kernel, dilate=False))


@maker
def resize(b):
    x = b.pick(lambda a: a.ndim == 4 and a.size > 0)
    shape = b.arrays[x].shape
    factors = [1.0, 1.0, float(b.choice(1, 2, 3)), float(b.choice(1, 2, 4))]
    mode = b.choice("nearest", "linear", None)
    if b.opset < 10 or b.opset > 18:
        raise Skip
    if b.opset == 10:
        b.node("Resize", [x, b.constant(factors, np.float32)], mode=mode)
        return
    rules = ("half_pixel", "asymmetric", "align_corners", None) if mode == "linear" else ("asymmetric", None)
    rule = b.choice(*rules)
    nearest = b.choice("floor", None) if rule == "asymmetric" and mode != "linear" else None
    if b.chance():
        tail = [b.constant(factors, np.float32)]
    else:
        tail = ["", b.constant([int(d * f) for d, f in zip(shape, factors, strict=True)], np.int64)]
    first = "" if b.opset >= 13 else b.constant([], np.float32)
    if tail[0] == "" and b.opset < 13:
        tail[0] = b.constant([], np.float32)
    b.node("Resize", [x, first, *tail], mode=mode, coordinate_transformation_mode=rule, nearest_mode=nearest)


# -- quantisation ------------------------------------------------------------------------------------------------------

def _weights(b, *shape, axis):
    """Constant weights: floats, or integers and a DequantizeLinear, for each channel where the opset allows it."""
    if b.opset < 10 or b.chance(0.3):
        return b.constant(b.floats(*shape) * np.float32(0.5))
    unsigned = b.chance(0.2)
    data = b.rng.integers(-128, 128, shape).astype(np.uint8 if unsigned else np.int8)
    per_channel = b.opset >= 13 and b.chance()
    size = (shape[axis],) if per_channel else ()
    scale = b.constant(b.rng.uniform(0.002, 0.02, size), np.float32)
    zp = [b.constant(b.rng.integers(110, 140, size) if unsigned else np.zeros(size), data.dtype)]
    return b.node("DequantizeLinear", [b.constant(data), scale, *(zp if unsigned or b.chance() else [])],
                  axis=axis if per_channel else None)


def _parameters(b, x, per_channel_axis=None):
    """A scale and a zero point that fit the numbers of `x`."""
    a = b.arrays[x]
    low, high = min(0.0, float(a.min(initial=0))), max(0.0, float(a.max(initial=0)))
    dtype = b.choice(np.uint8, np.int8)
    scale = np.float32((high - low) / 255 or 1)
    least = 0 if dtype == np.uint8 else -128
    zp = int(np.clip(np.rint(least - low / scale), least, least + 255))
    return b.constant(scale, np.float32), b.constant(zp, dtype)


@maker
def fake_quantised(b):
    if b.opset < 10:
        raise Skip
    x = b.pick(lambda a: a.size > 0)
    scale, zp = _parameters(b, x)
    q = b.node("QuantizeLinear", [x, scale, zp])
    b.node("DequantizeLinear", [q, scale, zp])


MAKERS.extend([fake_quantised] * 6)
MAKERS.extend([conv, matmul, conv, matmul, binary, unary, pool])


@maker
def dynamic(b):
    if b.opset < 11:
        raise Skip
    x = b.pick(lambda a: a.ndim >= 2 and a.size > 0)
    q, scale, zp = b.node("DynamicQuantizeLinear", [x], outputs=3)
    k, n = b.arrays[x].shape[-1], int(b.rng.integers(1, 20))
    y = b.node("MatMulInteger", [q, b.constant(b.rng.integers(-128, 128, (k, n)), np.int8), zp])
    y = b.node("Cast", [y], to=onnx.TensorProto.FLOAT)
    b.node("Mul", [y, b.node("Mul", [scale, b.constant(b.rng.uniform(0.01, 0.02, b.choice((), (n,))), np.float32)])])


def random_model(seed):
    """The model of a seed."""
    rng = np.random.default_rng(seed)
    b = Builder(rng)
    for _ in range(rng.integers(1, 3)):
        b.input(b.floats(*rng.integers(1, 8, rng.integers(2, 5))))
    target, tries = int(rng.integers(2, 9)), 0
    while len(b.nodes) < target and tries < 40:
        tries += 1
        kept = len(b.nodes), dict(b.arrays), list(b.constants)
        try:
            MAKERS[rng.integers(len(MAKERS))](b)
        except Skip:
            del b.nodes[kept[0]:]
            b.arrays, b.constants = kept[1], kept[2]
    return _model(b)


def _model(b):
    used = {n for node in b.nodes for n in node.input}
    outputs = [n for node in b.nodes for n in node.output if n not in used or b.chance(0.1)]
    graph = helper.make_graph(b.nodes, "random", b.infos(b.inputs), b.infos(outputs),
                              [numpy_helper.from_array(b.arrays[n], n) for n in b.constants])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", b.opset)], ir_version=8)
    return RandomModel(model, {n: b.arrays[n] for n in b.inputs}, {n: b.arrays[n] for n in outputs})

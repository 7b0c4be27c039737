"""Random nodes of one operand, broadcast ones, nodes along axes and of shapes: functions that add one to a builder."""
import numpy as np
import onnx
from onnx_builder import Skip, maker

# -- nodes of one operand, and of broadcast ones -----------------------------------------------------------------------

@maker
def unary(b):
    op = b.choice("Relu", "Sigmoid", "Tanh", "Abs", "Neg", "Floor", "Ceil", "Erf", "Softplus", "Softsign", "LeakyRelu",
                  "Elu", "Selu", "HardSigmoid", "HardSwish", "Round", "Identity", "Sin", "Cos", "Atan",
                  "ThresholdedRelu")
    x = b.pick()
    a = b.arrays[x].astype(np.float64)
    if op in ("Floor", "Ceil", "Round"):
        b.far(x, a - np.rint(a) if op != "Round" else a - np.floor(a) - 0.5)
    has_alpha = op in ("LeakyRelu", "Elu", "HardSigmoid", "ThresholdedRelu") and b.chance()
    b.node(op, [x], alpha=float(b.choice(0.1, 0.3, 1.5)) if has_alpha else None)


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
        y = b.pick(lambda a: broadcasts(a.shape, b.arrays[x].shape))
    else:
        shape = [d if b.chance(0.6) else 1 for d in b.arrays[x].shape]
        shape = shape[b.rng.integers(len(shape) + 1):] if b.chance(0.9) else [b.choice(1, 1, 2), *shape]
        y = b.constant(b.floats(*shape) + 2 * (op == "Div"))
    if op == "PRelu" and np.broadcast_shapes(b.arrays[x].shape, b.arrays[y].shape) != b.arrays[x].shape:
        raise Skip  # slopes broadcast one way alone
    b.node(op, [x, y] if op == "PRelu" or b.chance(0.7) else [y, x])


def broadcasts(s, t):
    return all(a in (1, c) or c == 1 for a, c in zip(s[::-1], t[::-1], strict=False))


@maker
def where(b):
    x = b.pick()
    y = b.pick(lambda a: broadcasts(a.shape, b.arrays[x].shape))
    op = b.choice("Less", "Greater")
    if b.opset < 9:
        raise Skip
    b.far(x, b.arrays[x] - 0.1)
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
    if op == "LogSoftmax" and ((y > -1e-3) & (y < 0)).any():
        raise Skip  # the logarithm of a number next to 1 is mere rounding
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
    gaps = np.diff(np.sort(b.arrays[x].astype(np.float64), axis=axis), axis=axis)
    b.far(x, np.take(gaps, [0, -1], axis) if gaps.size else gaps)
    b.node(b.choice("ArgMax", "ArgMin"), [x], axis=axis, keepdims=b.choice(0, 1, None))


@maker
def normalization(b):
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
    elif op == "LRN":  # the evaluator adds up over the batch's length
        size, alpha, a = b.choice(1, 2, 3, 5), b.choice(None, 0.5), b.arrays[x]
        bias = b.choice(None, 2.0) if alpha else 2.0  # with both defaults it is nearly x, and x - LRN(x) mere rounding
        around = [(0, 0), ((size - 1) // 2, size // 2), *[(0, 0)] * (a.ndim - 2)]
        squares = np.pad(np.square(a.astype(np.float64)), around)
        mean = sum(squares[:, k:k + c] for k in range(size)) / size
        y = a / ((bias or 1) + (alpha or 1e-4) * mean)**0.75
        b.node(op, [x], wanted=[y.astype(np.float32)], size=size, alpha=alpha, bias=bias)
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
    if any(end < -2**30 or start < -shape[k] for k, start, end, step in zip(axes, starts, ends, steps, strict=True)
           if step < 0):
        raise Skip  # the evaluator takes no elements, ONNX Runtime those that limits within the axis give
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
        b.far(x, np.diff(np.sort(b.arrays[x].astype(np.float64), axis=axis), axis=axis))
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
        b.far(x, b.arrays[x] - np.rint(b.arrays[x]))
        b.node("Cast", [b.node("Cast", [x], to=onnx.TensorProto.INT32)], to=onnx.TensorProto.FLOAT)
    else:
        b.node("Reshape", [x, b.node("Shape", [x])])

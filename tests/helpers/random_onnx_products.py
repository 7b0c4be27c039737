"""Random products of matrices and windows, and quantized ones: functions that add such nodes to a builder."""
import numpy as np
import onnx
from onnx_builder import MAKERS, Skip, maker
from random_onnx_nodes import binary, broadcasts, unary

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
    y = b.pick(lambda a: a.ndim >= 2 and a.shape[-2] == shape[-1] and broadcasts(a.shape[:-2], shape[:-2]))
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


def _max_pool(x, kernel, strides, auto_pad, pads=None):
    """By the specification: the evaluator takes one axis' pads for another's, and pads wrongly for SAME_LOWER."""
    sizes, count = x.shape[2:], len(kernel)
    strides, pads = strides or [1] * count, pads or [0] * 2 * count
    around = list(zip(pads[:count], pads[count:], strict=True))
    if str(auto_pad).startswith("SAME"):
        total = [max((-(-n // s) - 1) * s + k - n, 0) for n, s, k in zip(sizes, strides, kernel, strict=True)]
        around = [(t // 2, t - t // 2) if auto_pad == "SAME_UPPER" else (t - t // 2, t // 2) for t in total]
    whole = np.pad(x, [(0, 0), (0, 0), *around], constant_values=-np.inf)
    windows = np.lib.stride_tricks.sliding_window_view(whole, kernel, axis=tuple(range(2, 2 + count)))
    picked = windows[(..., *[slice(None, None, s) for s in strides], *[slice(None)] * count)]
    return picked.max(axis=tuple(range(-count, 0)))


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
        b.node(op, [x], kernel_shape=kernel, wanted=[_max_pool(b.arrays[x], kernel, **attrs)], **attrs)
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


# -- quantization ------------------------------------------------------------------------------------------------------

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
def fake_quantized(b):
    if b.opset < 10:
        raise Skip
    x = b.pick(lambda a: a.size > 0)
    scale, zp = _parameters(b, x)
    q = b.node("QuantizeLinear", [x, scale, zp])
    b.node("DequantizeLinear", [q, scale, zp])


MAKERS.extend([fake_quantized] * 6)
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

"""Random graphs in the manner of benchdnn: an anchor on quantized or float operands, post-ops, a quantize.

Sizes are small and odd, attributes drawn from what the operations allow; everything a quantized partition may hold
takes part. `random_graph(seed)` gives the graph and arrays for its inputs.
"""
import numpy as np

import graphq as gq

INTEGERS = {"u8": (0, 256), "s8": (-128, 128)}
ANCHORS = []


def anchor(f):
    ANCHORS.append(f)
    return f


class Source:
    """Draws shapes, attributes and operands of one graph; scales are positive unless it has `signs`."""

    def __init__(self, seed, *, signs=False):
        self.rng = np.random.default_rng(seed)
        self.signs = np.random.default_rng([seed, 1]) if signs else None
        self.g, self.feeds = gq.Graph(f"random {seed}"), {}
        self.integer = self.chance(0.75)

    def chance(self, p=0.5):
        return bool(self.rng.random() < p)

    def choice(self, *options):
        return options[self.rng.integers(len(options))]

    def int(self, low, high):
        """An integer in [low, high]."""
        return int(self.rng.integers(low, high + 1))

    def ints(self, count, low, high):
        return [self.int(low, high) for _ in range(count)]

    def floats(self, *shape, scale=1.0):
        return (self.rng.normal(size=shape) * scale).astype(np.float32)

    def signed(self, *scales, zeros=True):
        """The scales or, if the graph has signs, the same with some of them negative, and some 0 if `zeros`."""
        if self.signs is None:
            return list(scales)
        return [s * x for s, x in zip(scales, self.signs.choice([1, 1, -1, 0 if zeros else 1], len(scales)).tolist(),
                                      strict=True)]

    def input(self, shape, dtype):
        name = f"x{len(self.feeds)}"
        if dtype in INTEGERS:
            x = self.rng.integers(*INTEGERS[dtype], shape)
        else:
            x = self.floats(*shape)
        self.feeds[name] = x.astype(gq.dtypes.as_dtype(dtype).numpy)
        return self.g.input(name, shape=shape, dtype=dtype)

    def activations(self, *shape):
        """Floats, or dequantized integers."""
        if not self.integer:
            return self.input(shape, "f32")
        dtype = self.choice("u8", "s8")
        zp = self.choice([0], [self.int(*(0, 255) if dtype == "u8" else (-128, 127))])
        return self.g.dequantize(self.input(shape, dtype), zps=zp,
                                 scales=self.signed(float(self.rng.uniform(0.005, 0.05))))

    def weights(self, *shape, axis):
        """Constants; integers for each channel of `axis` or alike."""
        if not self.integer:
            return self.g.constant(self.floats(*shape))
        dtype = self.choice("s8", "s8", "u8")
        data = self.g.constant(self.rng.integers(*INTEGERS[dtype], shape).astype(gq.dtypes.as_dtype(dtype).numpy))
        n = shape[axis]
        middle = 0 if dtype == "s8" else 128
        if self.chance(0.6):
            scales = self.rng.uniform(0.002, 0.01, n).tolist()
            return self.g.dequantize(data, qtype="per_channel", axis=axis, scales=self.signed(*scales),
                                     zps=[middle + (self.int(-5, 5) if self.chance(0.2) else 0)] * n)
        return self.g.dequantize(data, scales=self.signed(float(self.rng.uniform(0.002, 0.01))), zps=[middle])

    def epilogue(self, y):
        """Up to four lane-wise operations."""
        for _ in range(self.int(0, 4)):
            y = self.post_op(y)
        return y

    def post_op(self, y):
        g, shape = self.g, y.type.dims
        kind = self.choice("relu", "leaky_relu", "clamp", "add", "multiply", "subtract", "sigmoid", "hard_swish", "elu",
                           "residual", "tanh", "abs", "maximum", "gelu", "hard_sigmoid", "quantize")
        row = [d if self.chance(0.8) and k == len(shape) - 1 else 1 for k, d in enumerate(shape)]
        row = row[self.int(0, max(len(row) - 1, 0)):] if self.chance(0.9) else [1, *row]
        if kind in ("relu", "sigmoid", "hard_swish", "tanh", "abs", "gelu"):
            return getattr(g, kind)(y)
        if kind in ("leaky_relu", "elu"):
            return getattr(g, kind)(y, alpha=self.choice(0.1, 0.5, 1.5))
        if kind == "hard_sigmoid":
            return g.hard_sigmoid(y, alpha=self.choice(0.2, 0.5), beta=0.5)
        if kind == "clamp":
            return g.clamp(y, min=self.choice(-1.0, 0.0), max=self.choice(0.7, 6.0))
        if kind == "residual":
            return g.add(y, self.activations(*shape))
        if kind == "quantize":
            return self.dequantized(y)
        return getattr(g, kind)(y, g.constant(self.floats(*row)))

    def quantized(self, y):
        """How to quantize a value into 8 bits, by a scale that suits its numbers."""
        if y.node is None:
            numbers = self.feeds[y.name]
        else:
            probe = self.g.copy()
            probe.set_outputs([probe.nodes[self.g.nodes.index(y.node)].output], ["probe"])
            numbers = gq.reference(probe, self.feeds)
        scale = float(np.abs(numbers).max(initial=0.0)) * self.choice(1.0, 0.5) / self.choice(127.0, 200.0)
        dtype = self.choice("u8", "s8")
        zp = self.int(0, 255) if dtype == "u8" else self.int(-128, 127)
        scale = float(np.float32(scale if 1e-6 < scale < 1e6 else 1.0))
        return dict(dtype=dtype, scales=self.signed(scale, zeros=False), zps=self.choice([0], [zp]))

    def dequantized(self, y):
        how = self.quantized(y)
        return self.g.dequantize(self.g.quantize(y, **how), scales=how["scales"], zps=how["zps"])

    def windows(self, sizes, kernel, dilate=True):
        """Attributes of windows that fit."""
        count = len(sizes)
        dilations = self.ints(count, 1, 2) if dilate and self.chance(0.3) else [1] * count
        auto = self.choice("none", "none", "none", "same_upper", "same_lower", "valid")
        pads = [self.ints(count, 0, 2) for _ in range(2)]
        spans = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
        for k, (n, span) in enumerate(zip(sizes, spans, strict=True)):  # a window must fit, and meet the source
            pads[0][k], pads[1][k] = min(pads[0][k], span - 1), min(pads[1][k], span - 1)
            if n + pads[0][k] + pads[1][k] < span or auto != "none" and n < span:
                dilations[k], kernel[k] = 1, 1
                pads[0][k] = pads[1][k] = 0
        return dict(strides=self.ints(count, 1, 3), pads_begin=pads[0], pads_end=pads[1], auto_pad=auto,
                    **({"dilations": dilations} if dilate else {}))


@anchor
def matmul(s):
    batch = [] if s.chance(0.7) else s.ints(s.int(1, 2), 1, 3)
    m, k, n = s.int(1, 20), s.int(1, 70), s.int(1, 40)
    ta, tb = s.chance(0.2), s.chance(0.3)
    x = s.activations(*batch, *((k, m) if ta else (m, k)))
    if s.chance(0.2):
        w = s.activations(*batch, *((n, k) if tb else (k, n)))
    else:
        w = s.weights(*((n, k) if tb else (k, n)), axis=0 if tb else 1)
    bias = [s.g.constant(s.floats(n))] if s.chance() else []
    return s.g.matmul(x, w, *bias, transpose_a=ta, transpose_b=tb)


def _image(s):
    """Sizes of an image, a kernel that fits, and a layout."""
    rank = s.choice(1, 2, 2, 2, 3)
    sizes = s.ints(rank, 1, 9 if rank < 3 else 5)
    kernel = [s.int(1, min(3, n)) for n in sizes]
    return sizes, kernel, s.choice("NXC", "NCX")


def _activations(s, sizes, channels, layout):
    return s.activations(s.int(1, 2), *((*sizes, channels) if layout == "NXC" else (channels, *sizes)))


@anchor
def convolution(s):
    sizes, kernel, layout = _image(s)
    c = s.int(1, 12)
    groups = int(s.choice(1, 1, c, s.choice(*[d for d in range(1, c + 1) if c % d == 0])))
    attrs = s.windows(sizes, kernel)
    o = groups * s.int(1, 10)
    x = _activations(s, sizes, c, layout)
    if s.chance():
        w, order = s.weights(o, c // groups, *kernel, axis=0), "OIX"
    else:
        w, order = s.weights(*kernel, c // groups, o, axis=len(kernel) + 1), "XIO"
    bias = [s.g.constant(s.floats(o))] if s.chance() else []
    return s.g.convolution(x, w, *bias, **attrs, groups=groups, data_format=layout, weights_format=order)


@anchor
def conv_transpose(s):
    sizes, kernel, layout = _image(s)
    groups = s.choice(1, 1, 2, 3)
    c, o = groups * s.int(1, 5), s.int(1, 6)
    strides = s.ints(len(sizes), 1, 3)
    more = [s.int(0, v - 1) for v in strides]
    x = _activations(s, sizes, c, layout)
    w = s.g.constant(s.floats(c, o, *kernel)) if not s.integer else s.g.dequantize(
        s.g.constant(s.rng.integers(-128, 128, (c, o, *kernel)).astype(np.int8)), scales=s.signed(0.005))
    auto = s.choice("none", "none", "same_upper", "same_lower", "valid")
    return s.g.conv_transpose(x, w, strides=strides, pads_begin=[0] * len(sizes), pads_end=[0] * len(sizes),
                              dilations=s.ints(len(sizes), 1, 2), groups=groups, data_format=layout,
                              weights_format="IOX", output_padding=more, auto_pad=auto)


@anchor
def pool(s):
    sizes, kernel, layout = _image(s)
    x = _activations(s, sizes, s.int(1, 20), layout)
    if s.chance():
        return s.g.max_pool(x, kernel=kernel, data_format=layout, **s.windows(sizes, kernel))
    exclude = s.chance()
    return s.g.avg_pool(x, exclude_pad=exclude, kernel=kernel, data_format=layout,
                        **s.windows(sizes, kernel, dilate=False))


@anchor
def row(s):
    shape = s.ints(s.int(1, 3), 1, 24)
    x = s.activations(*shape)
    kind = s.choice("softmax", "log_softmax", "layer_norm", "rms_norm", "reduce_mean", "reduce_max", "reduce_sum",
                    "reduce_l2")
    if kind.endswith("softmax"):
        return getattr(s.g, kind)(x, axis=s.int(-len(shape), len(shape) - 1))
    if kind == "layer_norm":
        return s.g.layer_norm(x, *[s.g.constant(s.floats(shape[-1])) for _ in range(2)], keep_stats=False)
    if kind == "rms_norm":
        return s.g.rms_norm(x, s.g.constant(s.floats(shape[-1])))
    axes = sorted(set(s.ints(s.int(1, len(shape)), 0, len(shape) - 1)))
    return getattr(s.g, kind)(x, axes=axes, keep_dims=s.chance())


@anchor
def chain(s):
    shape = s.ints(s.int(1, 4), 1, 9)
    x = s.activations(*shape)
    for _ in range(s.int(1, 3)):
        x = s.post_op(x)
    return x


@anchor
def joined(s):
    shape = s.ints(s.int(1, 4), 1, 6)
    axis = s.int(0, len(shape) - 1)
    xs = [s.activations(*[s.int(1, 6) if k == axis else d for k, d in enumerate(shape)]) for _ in range(s.int(2, 4))]
    return s.g.concat(*xs, axis=axis)


@anchor
def resized(s):
    n, h, w, c = s.int(1, 2), *s.ints(3, 1, 6)
    mode = s.choice("nearest", "linear")
    return s.g.interpolate(s.activations(n, h, w, c), mode=mode, sizes=s.ints(2, 1, 12), data_format="NXC",
                           coordinate_transformation_mode=s.choice("half_pixel", "align_corners"))


def random_graph(seed, *, signs=False):
    """The graph of a seed, and arrays for its inputs; with `signs` scales are also negative or 0."""
    s = Source(seed, signs=signs)
    y = ANCHORS[s.rng.integers(len(ANCHORS))](s)
    y = s.epilogue(y)
    if s.chance(0.3) and y.type.size:  # a second anchor, a matmul, on what the first gives
        y = s.dequantized(y)
        y = s.epilogue(s.g.matmul(y, s.weights(y.type.dims[-1], s.int(1, 20), axis=1)) if y.type.dims else y)
    if s.integer and s.chance(0.85):
        y = s.g.quantize(y, **s.quantized(y))
    if y.node is None or y.node.op.name == "constant":
        y = s.g.relu(y)
    s.g.output(y, name="y")
    return s.g, s.feeds

"""Graphs under construction with random choices, and FAMILIES, in which `family` puts functions of them."""
import graphq as gq

UNARY = {"abs": {}, "clamp": {"min": -0.5, "max": 0.5}, "elu": {"alpha": 0.7}, "exp": {}, "gelu": {}, "hard_sigmoid":
         {"alpha": 0.2, "beta": 0.4}, "hard_swish": {}, "leaky_relu": {"alpha": 0.1}, "mish": {}, "relu": {},
         "round": {}, "sigmoid": {}, "softplus": {}, "square": {}, "tanh": {}}
BINARY = ("add", "divide", "maximum", "minimum", "multiply", "subtract", "squared_difference")
FAMILIES = {}


class Build:
    """A graph under construction, with numbered inputs."""

    def __init__(self, rng):
        self.g, self.rng, self.count = gq.Graph("family"), rng, 0

    def input(self, *shape, dtype="f32"):
        self.count += 1
        return self.g.input(f"t{self.count}", dtype=dtype, shape=shape)

    def some(self, *choices):
        return choices[self.rng.integers(len(choices))]

    def quantized(self, *shape, dtype=None, axis=None, cast=None):
        """An input behind a dequantize, perhaps a cast."""
        dtype = dtype or self.some("u8", "s8")
        q = {"scales": [0.05], "zps": [3]} if axis is None else \
            {"qtype": "per_channel", "axis": axis, "scales": [0.05] * shape[axis], "zps": [0] * shape[axis]}
        y = self.g.dequantize(self.input(*shape, dtype=dtype), **q)
        return y if cast is None else self.g.type_cast(y, dtype=cast)

    def source(self, form, *shape):
        if form == "int8":
            return self.quantized(*shape)
        if form == "int8_bf16":
            return self.quantized(*shape, cast="bf16")
        return self.input(*shape, dtype=form)

    def operand(self, y):
        """A second operand for y: of its shape, of one channel's, a scalar; perhaps dequantized or cast."""
        shape = self.some(y.shape, tuple(1 if k else d for k, d in enumerate(y.shape)), (1,) * len(y.shape),
                          y.shape[-1:])
        if y.dtype == "f32" and self.rng.random() < 0.2:
            return self.quantized(*shape)
        return self.input(*shape, dtype=y.dtype)

    def post(self, y, most=20):
        """A chain of up to `most` unary and binary operations, select, prelu and swish among them."""
        g = self.g
        for _ in range(self.rng.integers(0, most + 1)):
            kind = self.rng.random()
            if kind < 0.45:
                op = self.some(*UNARY)
                y = getattr(g, op)(y, **UNARY[op])
            elif kind < 0.8:
                op, pair = self.some(*BINARY), [y, self.operand(y)]
                if op in ("add", "multiply") and self.rng.random() < 0.5:
                    pair.reverse()
                y = getattr(g, op)(*pair)
            elif kind < 0.87:
                y = g.multiply(g.sigmoid(y), y)
            elif kind < 0.93:
                y = g.select(self.input(*y.shape, dtype="boolean"), y, self.input(1, dtype=y.dtype))
            else:
                y = g.prelu(y, self.input(1, dtype=y.dtype))
        return y

    def finish(self, y, form):
        """The end of a chain: as it is, cast, a smoothing multiply, a quantize."""
        g = self.g
        if form == "int8_bf16" or form == "bf16" and self.rng.random() < 0.5:
            y = g.type_cast(y, dtype="f32") if y.dtype != "f32" else y
        if form.startswith("int8") and self.rng.random() < 0.8:
            if self.rng.random() < 0.3:
                y = g.multiply(y, self.input(y.shape[-1]))
            y = g.quantize(y, dtype=self.some("u8", "s8"), scales=[0.1], zps=[2])
        g.output(y, name="y")
        return g


def family(anchor):
    def declare(f):
        FAMILIES[f.__name__] = lambda rng: (f(Build(rng)), anchor)
        return f
    return declare


def form(b):
    return b.some("f32", "bf16", "f16", "int8", "int8_bf16")

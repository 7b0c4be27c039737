"""Outputs near a tie are those of the f32 operations as they are written, in one order, at every level."""
import numpy as np
import pytest
from levels import at_each_width
from ties import settle_everything

import graphq as gq

RANGES = {"u8": (0, 256), "s8": (-128, 128)}


def integers(rng, dtype, shape):
    return rng.integers(*RANGES[dtype], shape).astype(f"{'u' * (dtype == 'u8')}int8")


@pytest.fixture
def all_near(monkeypatch):
    """Every output is settled by its literal sum."""
    settle_everything(monkeypatch)


def finish(g, y, scale):
    """An epilogue with two quantizes, the second of exact numbers by a chain that a table may replace."""
    y = g.quantize(g.relu(y), dtype="u8", scales=[scale], zps=[3])
    z = g.multiply(g.dequantize(y, scales=[scale], zps=[3]), g.constant(np.float32(0.7)))
    z = g.multiply(g.add(z, g.constant(np.float32(0.1))), g.constant(np.float32(1.1)))
    g.output(g.quantize(z, dtype="s8", scales=[scale], zps=[-100]), name="y")
    return g


def matmul(rng, m, k, n, x="u8", w="s8", transposed=False, bias=False, batch=()):
    g = gq.Graph("matmul")
    a = g.dequantize(g.input("x", shape=(*batch, m, k), dtype=x), scales=[0.013], zps=[7])
    weights = integers(rng, w, (n, k) if transposed else (k, n))
    scales = rng.uniform(0.5e-3, 2e-3, n).tolist()
    b = g.dequantize(g.constant(weights), qtype="per_channel", axis=0 if transposed else 1, scales=scales,
                     zps=[0 if w == "s8" else 120] * n)
    more = [g.constant(rng.normal(size=n).astype(np.float32))] if bias else []
    return finish(g, g.matmul(a, b, *more, transpose_b=transposed), 0.011 * k**0.5)


def convolution(rng, size, channels, outputs, kernel, groups=1, x="u8", strides=(1, 1), pads=1, dilations=(1, 1),
                transposed=False):
    g = gq.Graph("convolution")
    a = g.dequantize(g.input("x", shape=(2, *size, channels), dtype=x), scales=[0.013], zps=[7])
    shape = (channels, outputs // groups, *kernel) if transposed else (outputs, channels // groups, *kernel)
    if transposed:
        b = g.dequantize(g.constant(integers(rng, "s8", shape)), scales=[1.1e-3])
        y = g.conv_transpose(a, b, strides=list(strides), pads_begin=[0, 0], pads_end=[0, 0], dilations=list(dilations),
                             groups=groups, data_format="NXC", weights_format="IOX")
    else:
        b = g.dequantize(g.constant(integers(rng, "s8", shape)), qtype="per_channel", axis=0,
                         scales=rng.uniform(0.5e-3, 2e-3, outputs).tolist())
        y = g.convolution(a, b, g.constant(rng.normal(size=outputs).astype(np.float32)), strides=list(strides),
                          pads_begin=[pads] * 2, pads_end=[pads] * 2, dilations=list(dilations), groups=groups,
                          data_format="NXC", weights_format="OIX")
    return finish(g, y, 0.011 * (np.prod(shape[1:]))**0.5)


MATMULS = {
    "rows": dict(m=13, k=300, n=70), "few columns": dict(m=9, k=700, n=20), "one row": dict(m=1, k=133, n=37),
    "one row, transposed": dict(m=1, k=133, n=37, transposed=True), "one column": dict(m=35, k=140, n=1),
    "s8 and u8": dict(m=20, k=61, n=33, x="s8", w="u8"), "bias": dict(m=7, k=390, n=130, bias=True),
    "batch": dict(m=5, k=40, n=19, batch=(3,)), "several pieces": dict(m=3, k=8311, n=18),
}
CONVOLUTIONS = {
    "3x3": dict(size=(9, 7), channels=20, outputs=35, kernel=(3, 3)),
    "5x5": dict(size=(5, 6), channels=50, outputs=17, kernel=(5, 5), pads=2),
    "1x1": dict(size=(6, 9), channels=70, outputs=18, kernel=(1, 1), pads=0, strides=(2, 1), x="s8"),
    "stem": dict(size=(15, 13), channels=3, outputs=17, kernel=(5, 5), pads=2, strides=(2, 2)),
    "groups": dict(size=(7, 7), channels=12, outputs=24, kernel=(3, 3), groups=4),
    "groups, 1x1": dict(size=(7, 7), channels=16, outputs=16, kernel=(1, 1), groups=4, pads=0),
    "groups, 1x1, wider": dict(size=(5, 6), channels=18, outputs=14, kernel=(1, 1), groups=2, pads=0),
    "groups, one pixel": dict(size=(1, 1), channels=16, outputs=16, kernel=(1, 1), groups=4, pads=0),
    "groups, transposed": dict(size=(5, 4), channels=16, outputs=16, kernel=(1, 1), groups=4, transposed=True),
    "groups, transposed, phases": dict(size=(5, 4), channels=16, outputs=16, kernel=(2, 2), groups=4, strides=(2, 2),
                                       transposed=True),
    "one pixel": dict(size=(1, 1), channels=90, outputs=22, kernel=(1, 1), pads=0),
    "dilated": dict(size=(12, 12), channels=5, outputs=6, kernel=(3, 2), dilations=(2, 3), pads=2),
    "depthwise": dict(size=(9, 11), channels=37, outputs=37, kernel=(3, 3), groups=37, strides=(2, 1)),
    "depthwise, two columns a channel": dict(size=(9, 11), channels=37, outputs=74, kernel=(3, 3), groups=37),
    "depthwise, few": dict(size=(9, 11), channels=5, outputs=5, kernel=(5, 5), groups=5, x="s8"),
    "depthwise, many": dict(size=(5, 6), channels=150, outputs=150, kernel=(3, 3), groups=150),
    "transposed": dict(size=(5, 4), channels=24, outputs=10, kernel=(2, 2), strides=(2, 2), transposed=True),
    "transposed, depthwise": dict(size=(9, 8), channels=37, outputs=37, kernel=(3, 3), strides=(1, 1), groups=37,
                                  transposed=True),
    "transposed, depthwise, two columns a channel": dict(size=(9, 8), channels=37, outputs=74, kernel=(3, 3),
                                                         strides=(2, 2), groups=37, transposed=True),
    "transposed, 3x3": dict(size=(5, 4), channels=8, outputs=20, kernel=(3, 3), strides=(2, 1), transposed=True),
}
GRAPHS = {**{k: (matmul, v) for k, v in MATMULS.items()}, **{k: (convolution, v) for k, v in CONVOLUTIONS.items()}}


def check(graph, level, rng, **options):
    model = gq.compile(graph, isa=level, strict=True, **options)
    value = graph.inputs[0]
    x = integers(rng, value.dtype.name, value.type.dims)
    y = model(x=x)
    assert np.array_equal(y, model.formula(x=x))
    return x, y, model


@pytest.mark.parametrize("case, level", at_each_width(GRAPHS), indirect=["level"])
def test_all_outputs_literal(level, case, all_near):
    make, options = GRAPHS[case]
    rng = np.random.default_rng(3)
    _, y, _ = check(make(rng, **options), level, rng)
    assert np.unique(y).size > 5


TIES = {  # of sums in each order
    "chains": dict(channels=32, outputs=32, groups=1), "quads": dict(channels=32, outputs=32, groups=32),
    "chains, two columns a channel": dict(channels=16, outputs=32, groups=16),
    "taps": dict(channels=16, outputs=32, groups=1, transposed=True),
    "taps, depthwise": dict(channels=32, outputs=32, groups=32, transposed=True),
}


@pytest.mark.parametrize("case, level", at_each_width(TIES), indirect=["level"])
def test_the_order_of_sums_decides_ties(level, case):
    """With the output's scale twice that of the products every odd sum is a tie, but for the roundings of its terms."""
    channels, outputs, groups, transposed = (TIES[case].get(k, False) for k in ("channels", "outputs", "groups",
                                                                                "transposed"))
    rng = np.random.default_rng(1)
    shape = (channels, outputs // groups, 3, 3) if transposed else (outputs, channels // groups, 3, 3)
    g = gq.Graph("ties")
    a = g.dequantize(g.input("x", shape=(1, 20, 20, channels), dtype="u8"), scales=[0.0173], zps=[7])
    b = g.dequantize(g.constant(rng.integers(-2, 3, shape).astype(np.int8)), scales=[1.1e-3])
    lists = dict(strides=[1, 1], pads_begin=[0, 0], pads_end=[0, 0], dilations=[1, 1])
    op = g.conv_transpose if transposed else g.convolution
    y = op(a, b, **lists, groups=groups, data_format="NXC", weights_format="IOX" if transposed else "OIX")
    g.output(g.quantize(y, dtype="s8", scales=[float(np.float32(2 * 0.0173 * 1.1e-3))]), name="y")
    model = gq.compile(g, isa=level, strict=True)
    x = rng.integers(0, 15, (1, 20, 20, channels)).astype(np.uint8)
    got, want = model(x=x), model.formula(x=x)
    assert np.unique(want).size > 50 and np.array_equal(got, want)


def test_a_bias_along_channels_of_batched_matmuls(level):
    rng = np.random.default_rng(2)
    g = gq.Graph("bias")
    a = g.dequantize(g.input("x", shape=(2, 7, 64), dtype="u8"), scales=[0.013], zps=[7])
    b = g.dequantize(g.constant(integers(rng, "s8", (64, 16))), scales=[1.3e-3])
    y = g.bias_add(g.matmul(a, b), g.constant(rng.normal(size=7).astype(np.float32)), data_format="NCX")
    g.output(g.quantize(y, dtype="u8", scales=[0.02], zps=[100]), name="y")
    check(g, level, rng)


def test_three_quantizes_after_a_matmul(level):
    """The second is of one byte, for which a table may stand, and the third of two."""
    rng, m, n = np.random.default_rng(5), 150, 70
    g = gq.Graph("residual")
    a = g.dequantize(g.input("x", shape=(m, 64), dtype="u8"), scales=[0.013], zps=[7])
    b = g.dequantize(g.constant(integers(rng, "s8", (64, n))), scales=[1.3e-3])
    first, second = dict(scales=[0.0171], zps=[11]), dict(scales=[0.0223], zps=[-9])
    y = g.dequantize(g.quantize(g.matmul(a, b), dtype="u8", **first), **first)
    y = g.multiply(g.add(g.multiply(y, g.constant(np.float32(0.7))), g.constant(np.float32(0.1))),
                   g.constant(np.float32(1.1)))
    y = g.dequantize(g.quantize(y, dtype="s8", **second), **second)
    y = g.add(y, g.dequantize(g.input("r", shape=(m, n), dtype="u8"), scales=[0.0071], zps=[100]))
    g.output(g.quantize(g.relu(y), dtype="u8", scales=[0.0193], zps=[5]), name="y")
    model = gq.compile(g, isa=level, strict=True)
    inputs = {"x": integers(rng, "u8", (m, 64)), "r": integers(rng, "u8", (m, n))}
    y = model(**inputs)
    assert np.unique(y).size > 50 and np.array_equal(y, model.formula(**inputs))


FORMS = {
    "add": lambda g, a, b: g.add(a, b), "subtract": lambda g, a, b: g.subtract(a, b),
    "relu": lambda g, a, b: g.relu(g.add(b, a)), "multiply": lambda g, a, b: g.multiply(a, b),
    "maximum": lambda g, a, b: g.maximum(a, b), "twice": lambda g, a, b: g.add(g.subtract(a, b), g.add(a, a)),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtypes", [("s8", "s8", "s8"), ("u8", "u8", "u8"), ("s8", "u8", "s8")])
@pytest.mark.parametrize("end", ["f32", "integer", "another input", "two outputs"])
def test_a_byte_beside_itself_at_another_scale(form, dtypes, end):
    """What one byte decides is looked up, also where a sum of it and of what follows from it is quantized."""
    rng, g = np.random.default_rng(3), gq.Graph("diamond")
    first, second, third = (dict(dtype=t, scales=[s], zps=[100 if t == "u8" else -9])
                            for t, s in zip(dtypes, (0.021, 0.034, 0.0047), strict=True))

    def requantized(x, p):
        return g.dequantize(g.quantize(x, **p), scales=p["scales"], zps=p["zps"])

    a = g.dequantize(g.input("x", shape=(9, 24), dtype="s8"), scales=[2.0**-6], zps=[0])
    b = g.dequantize(g.constant(integers(rng, "s8", (24, 40))), scales=[2.0**-7], zps=[0])
    y = requantized(g.matmul(a, b), first)
    z = FORMS[form](g, requantized(y, second), y)
    if end == "another input":
        r = g.dequantize(g.input("r", shape=(9, 40), dtype="u8"), scales=[0.019], zps=[100])
        z = g.add(requantized(z, third), r)
    g.output(g.quantize(z, **third) if end == "integer" else requantized(z, third), name="z")
    if end == "two outputs":
        g.output(y, name="y")
    model, inputs = gq.compile(g), gq.testing.random_inputs(g)
    got, want = model(inputs), gq.reference(g, inputs)
    for name in want if isinstance(want, dict) else [...]:
        assert np.unique(want[name]).size > 4 and np.array_equal(got[name], want[name])


def cancelling(rng, k, n, kind):
    """Weights of each column that add up to 0; in halves, partial sums become large before they cancel."""
    half = rng.integers(1, 128, (k // 2, n)).astype(np.int8)
    runs = {"halves": k // 2, "blocks": 64}[kind]
    return np.stack([half.reshape(-1, runs, n), -half.reshape(-1, runs, n)], 1).reshape(k, n)


def bright(rng, shape):
    """Activations of 200 to 255."""
    return rng.integers(200, 256, shape).astype(np.uint8)


EPILOGUES = {
    "none": lambda g, y, s: y,
    "clip": lambda g, y, s: g.clamp(y, min=-40 * s, max=40 * s),
    "leaky_relu": lambda g, y, s: g.leaky_relu(y, alpha=1.7),
    "prelu": lambda g, y, s: g.prelu(y, g.constant(np.full(y.type.dims[-1], 0.3, np.float32)), data_format="NXC"),
    "hard_swish": lambda g, y, s: g.multiply(g.hard_swish(g.multiply(y, g.constant(np.float32(0.1 / s)))),
                                             g.constant(np.float32(7 * s))),
    "gelu": lambda g, y, s: g.gelu(y), "elu": lambda g, y, s: g.elu(y, alpha=1.5),
    "sigmoid": lambda g, y, s: g.multiply(g.sigmoid(g.multiply(y, g.constant(np.float32(0.1 / s)))),
                                          g.constant(np.float32(100 * s))),
    "residual": lambda g, y, s: g.add(y, g.dequantize(g.input("r", shape=y.type.dims, dtype="u8"), scales=[3 * s],
                                                      zps=[128])),
    "gate": lambda g, y, s: g.multiply(y, g.dequantize(g.input("r", shape=y.type.dims, dtype="u8"), scales=[0.01])),
}


def bands_are_wide_enough(make, feeds, monkeypatch):
    """Whether a graph gives what it gives when all outputs are settled; and how many those are that differ without."""
    model = gq.compile(make(), strict=True)
    assert "not settled" not in model.explain()
    got = model(**feeds)
    with monkeypatch.context() as patched:
        settle_everything(patched)
        want = gq.compile(make(), strict=True)(**feeds)
        assert np.unique(want).size > 20
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("kind", ["halves", "blocks"])
@pytest.mark.parametrize("k, m, n", [(1024, 256, 256), (16384, 64, 64)])
def test_cancelling_weights(kind, k, m, n, monkeypatch):
    """Partial sums become much larger than sums; before bands followed the weights, 1 of 1,200 outputs differed."""
    rng = np.random.default_rng(0)
    w, x = cancelling(rng, k, n, kind), bright(rng, (m, k))
    step = float((x[:16].astype(float) @ w).std() * 6 / 255 * 2e-4)

    def make():
        g = gq.Graph("cancelling")
        y = g.matmul(g.dequantize(g.input("x", shape=(m, k), dtype="u8"), scales=[0.02]),
                     g.dequantize(g.constant(w), scales=[0.01]))
        g.output(g.quantize(y, dtype="s8", scales=[step]), name="y")
        return g

    bands_are_wide_enough(make, {"x": x}, monkeypatch)


@pytest.mark.parametrize("name", EPILOGUES)
def test_what_follows_a_sum(name, monkeypatch):
    """Each operation carries differences on as far as its bound says."""
    rng, k, m, n = np.random.default_rng(1), 256, 512, 128
    w, x = cancelling(rng, k, n, "halves"), bright(rng, (m, k))
    step = float((x[:16].astype(float) @ w).std() * 6 / 255 * 2e-4)

    def make():
        g = gq.Graph("after")
        y = g.matmul(g.dequantize(g.input("x", shape=(m, k), dtype="u8"), scales=[0.02]),
                     g.dequantize(g.constant(w), scales=[0.01]))
        g.output(g.quantize(EPILOGUES[name](g, y, step), dtype="s8", scales=[step]), name="y")
        return g

    feeds = {v.name: integers(rng, "u8", v.type.dims) for v in make().inputs}
    bands_are_wide_enough(make, feeds | {"x": x}, monkeypatch)


@pytest.mark.parametrize("taps", [3, 5])
def test_depthwise_convolutions_with_a_clip(taps, monkeypatch):
    """Before bands followed the weights, 1 of 100,000 to 800,000 outputs differed."""
    rng, c = np.random.default_rng(2), 192
    w = rng.integers(-127, 128, (c, 1, taps, taps))
    w = (w - np.rint(w.mean((2, 3), keepdims=True))).clip(-128, 127).astype(np.int8)
    scales = rng.uniform(2e-3, 2e-2, c).tolist()

    def make():
        g = gq.Graph("depthwise")
        y = g.convolution(g.dequantize(g.input("x", shape=(1, 64, 64, c), dtype="u8"), scales=[0.017]),
                          g.dequantize(g.constant(w), qtype="per_channel", axis=0, scales=scales), strides=[1, 1],
                          pads_begin=[taps // 2] * 2, pads_end=[taps // 2] * 2, dilations=[1, 1], groups=c,
                          data_format="NXC", weights_format="OIX")
        g.output(g.quantize(g.clamp(y, min=0.0, max=6.0), dtype="u8", scales=[6 / 255]), name="y")
        return g

    bands_are_wide_enough(make, {"x": bright(rng, (1, 64, 64, c))}, monkeypatch)

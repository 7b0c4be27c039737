"""channels_last on networks: how many reorders are left, of what; and against all placements of random graphs."""
from itertools import product

import numpy as np
import pytest

from graphq.ir import Graph
from graphq.ir.verify import verify
from graphq.kernels.families import CHANNELS_LAST
from graphq.passes import canonicalize, channels_last, run_passes
from graphq.passes.channels_last import _Placement
from graphq.passes.layouts import channels_last_form
from graphq.testing import check_same_numbers


class Network:
    """A channels-first network under construction; quantized ones have a quantize and dequantize behind each layer."""

    def __init__(self, quantized, size=12, channels=3):
        self.g, self.rng, self.quantized = Graph("network"), np.random.default_rng(0), quantized
        self.x = self.q(self.g.input("x", dtype="f32", shape=(1, channels, size, size)))

    def q(self, v):
        if not self.quantized:
            return v
        return self.g.dequantize(self.g.quantize(v, dtype="u8", scales=[0.1], zps=[30]), scales=[0.1], zps=[30])

    def conv(self, v, out, k=1, stride=1, groups=1):
        shape = (out, v.shape[1] // groups, k, k)
        if self.quantized:
            w = self.g.dequantize(self.g.constant(self.rng.integers(-9, 10, shape).astype(np.int8)), scales=[0.01])
        else:
            w = self.g.constant(self.rng.standard_normal(shape).astype(np.float32) / 9)
        b = self.g.constant(self.rng.standard_normal(out).astype(np.float32))
        return self.g.convolution(v, w, b, strides=[stride] * 2, pads_begin=[k // 2] * 2, pads_end=[k // 2] * 2,
                                  dilations=[1, 1], groups=groups, data_format="NCX", weights_format="OIX")

    def layer(self, v, out, k=1, stride=1, groups=1):
        return self.q(self.g.relu(self.conv(v, out, k, stride, groups)))

    def pool(self, v, op="max_pool", k=2, **more):
        return self.q(getattr(self.g, op)(v, strides=[k] * 2, pads_begin=[0, 0], pads_end=[0, 0], kernel=[k] * 2,
                                          data_format="NCX", **more))

    def classify(self, v):
        """Global pool, [n, c, 1, 1] -> [n, c], and a dense layer."""
        v = self.pool(v, "avg_pool", v.shape[2], exclude_pad=True)
        w = self.g.constant(self.rng.standard_normal((v.shape[1], 5)).astype(np.float32))
        return self.g.matmul(self.g.static_reshape(v, shape=[1, -1]), w)

    def reorders(self, v):
        """The transposes, by what they read, and the number of reshapes, when `v` is returned; numbers are checked."""
        self.g.output(v, name="y")
        out = self.g.copy()
        assert channels_last(out) > 0
        canonicalize(out)
        verify(out)
        assert not any(n.attrs["data_format"] == "NCX" for n in out.nodes if n.op.name in CHANNELS_LAST)
        check_same_numbers(self.g, out, rtol=1e-5, atol=1e-5)
        return ([str(n.inputs[0].type) for n in out.nodes if n.op.name == "static_transpose"],
                sum(n.op.name == "static_reshape" for n in out.nodes))


@pytest.fixture(params=[False, True], ids=["f32", "u8"])
def net(request):
    return Network(request.param)


def source(net, *dims):
    return f"{'u8' if net.quantized else 'f32'}[{','.join(map(str, dims))}]"


def test_resnet(net):
    """Sums of two branches, one of them a convolution where the size changes; the pool's end is a view."""
    v = net.pool(net.layer(net.x, 8, 7, 2))
    for out, stride in ((8, 1), (16, 2), (16, 1)):
        side = v if v.shape[1] == out else net.q(net.conv(v, out, 1, stride))
        v = net.q(net.g.relu(net.g.add(net.conv(net.layer(net.layer(v, 8), 8, 3, stride), out), side)))
    assert net.reorders(net.classify(v)) == ([source(net, 1, 3, 12, 12)], 1)


def test_depthwise(net):
    v = net.layer(net.x, 8, 3, 2)
    for _ in range(3):
        y = net.layer(net.layer(v, 16), 16, 3, groups=16)
        v = net.q(net.g.add(net.q(net.conv(y, 8)), v))
    assert net.reorders(net.g.clamp(v, min=0, max=6)) == ([source(net, 1, 3, 12, 12), source(net, 1, 6, 6, 8)], 0)


def test_inception(net):
    v = net.layer(net.x, 8, 3)
    branches = [net.layer(v, 4), net.layer(net.layer(v, 4), 6, 3), net.pool(v, k=1)]
    v = net.layer(net.q(net.g.concat(*branches, axis=1)), 6)
    assert net.reorders(v) == ([source(net, 1, 3, 12, 12), source(net, 1, 12, 12, 6)], 0)


def test_feature_pyramid(net):
    """Two levels are returned: each is reordered once."""
    high = net.layer(net.x, 6, 3)
    low = net.layer(net.pool(high), 6, 3)
    up = net.q(net.g.interpolate(low, mode="nearest", sizes=[12, 12], data_format="NCX"))
    net.g.output(net.layer(low, 4), name="low")
    v = net.layer(net.q(net.g.concat(high, up, axis=1)), 4)
    wanted = [source(net, 1, 3, 12, 12), source(net, 1, 6, 6, 4), source(net, 1, 12, 12, 4)]
    assert net.reorders(v) == (wanted, 0)


def test_squeeze_and_excitation(net):
    """The gate is [n, c, 1, 1]; the matmul-made gate of the second block comes as a view."""
    v = net.layer(net.x, 8, 3)
    gate = net.g.sigmoid(net.conv(net.layer(net.pool(v, "avg_pool", 12, exclude_pad=True), 2), 8))
    v = net.q(net.g.multiply(v, gate))
    pooled = net.g.reduce_mean(v, axes=[2, 3])
    dense = net.g.sigmoid(net.g.matmul(pooled, net.g.constant(np.ones((8, 8), np.float32))))
    v = net.g.multiply(net.layer(v, 8, 3), net.g.static_reshape(dense, shape=[1, 8, 1, 1]))
    assert net.reorders(net.classify(net.q(v))) == ([source(net, 1, 3, 12, 12)], 2)


def test_patches(net):
    """A vision transformer's stem: patches become tokens [n, h * w, c] without a reorder."""
    v = net.g.static_reshape(net.conv(net.x, 8, 4, 4), shape=[1, 8, -1])
    tokens = net.g.static_transpose(v, order=[0, 2, 1])
    y = net.g.matmul(tokens, net.g.constant(np.ones((8, 3), np.float32)))
    assert net.reorders(y) == ([source(net, 1, 3, 12, 12)], 1)


def test_no_reorder_where_input_and_output_are_channels_last(net):
    g = net.g
    nhwc = g.input("nhwc", dtype="f32", shape=(1, 8, 8, 4))
    v = net.layer(net.q(g.static_transpose(nhwc, order=[0, 3, 1, 2])), 6, 3)
    assert net.reorders(g.static_transpose(v, order=[0, 2, 3, 1])) == ([], 0)


def test_the_whole_pipeline_and_groups(net):
    """The pass is in PIPELINE; the groups that graph.partitions() makes see the source graph."""
    net.g.output(net.classify(net.layer(net.layer(net.x, 8, 3), 6)), name="y")
    groups = [str(p) for p in net.g.partitions()]
    out = net.g.copy()
    run_passes(out)
    assert sum(n.op.name == "static_transpose" for n in out.nodes) == 1
    check_same_numbers(net.g, out, rtol=1e-5, atol=1e-5)
    assert [str(p) for p in net.g.partitions()] == groups


def random_network(rng):
    """A random graph of few free operations: sums, concats, user transposes, fixed ones, several outputs."""
    g = Graph("random")
    shapes = {"first": (1, 4, 3, 3), "last": (1, 3, 3, 4)}
    values = {"first": [g.input("x", dtype="f32", shape=shapes["first"])],
              "last": [g.input("z", dtype="f32", shape=shapes["last"])]}

    def pick(side="first"):
        return values[side][rng.integers(len(values[side]))]

    for _ in range(rng.integers(4, 9)):
        kind = rng.integers(7)
        if kind <= 1:
            y = g.max_pool(pick(), strides=[1, 1], pads_begin=[1, 1], pads_end=[1, 1], kernel=[3, 3], data_format="NCX")
        elif kind == 2:
            y = g.add(pick(), pick())
        elif kind == 3:
            y = g.reduce_max(g.concat(pick(), pick(), axis=3), axes=[3], keep_dims=True)
            y = g.multiply(y, pick())
        elif kind == 4:
            y = g.matmul(pick(), pick())
        elif kind == 5:
            y = g.static_transpose(pick("last"), order=[0, 3, 1, 2])
        else:
            values["last"].append(g.static_transpose(pick(), order=[0, 2, 3, 1]))
            continue
        values["first"].append(y)
    made = [*values["first"][1:], *values["last"][1:]]
    chosen = dict.fromkeys([made[-1], made[rng.integers(len(made))]])
    g.set_outputs(list(chosen), [f"y{k}" for k in range(len(chosen))])
    g.prune()
    return g


def bytes_moved(g):
    return sum(n.output.type.nbytes for n in g.nodes if n.op.name == "static_transpose")


@pytest.mark.parametrize("seed", range(60))
def test_no_placement_moves_fewer_bytes(seed, monkeypatch):
    """All ways to place the free nodes of a random graph, the given one and wrapped anchors among them."""
    g = random_network(np.random.default_rng(seed))
    if not any(n.op.name in CHANNELS_LAST for n in g.nodes):
        return
    best = g.copy()
    channels_last(best)
    verify(best)
    check_same_numbers(g, best)
    free = [k for k, n in enumerate(g.nodes) if channels_last_form(n) and n.op.name not in CHANNELS_LAST]
    for sides in product((False, True), repeat=len(free)):
        chosen = {k for k, last in zip(free, sides, strict=True) if last}
        monkeypatch.setattr(_Placement, "_cheapest", lambda self, chosen=chosen: {
            n for k, n in enumerate(self.graph.nodes) if k in chosen or n.op.name in CHANNELS_LAST})
        other = g.copy()
        channels_last(other)
        assert bytes_moved(other) >= bytes_moved(best), f"{chosen} moves less"

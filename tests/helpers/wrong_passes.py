"""Passes that are wrong on purpose, each in another way; what `verify="numeric"` must find in a large graph."""
import numpy as np

import graphq as gq
from graphq.passes import ANY, Rewrite, rounds


class DropZeroPoint(Rewrite):
    """dequantize(x, zps=[z]) -> dequantize(x)"""

    def pattern(self, g, x):
        return g.dequantize(x, attrs=ANY)

    def check(self, match):
        return None if any(match.root.attrs["zps"] or ()) else ""

    def replace(self, g, x, match):
        return g.dequantize(x, **{**match.root.attrs, "zps": None})


def swap_subtraction(graph):
    """a - b -> b - a"""
    count = 0
    for node in graph.nodes_of(["subtract"]):
        with graph.before(node):
            new = graph.subtract(*node.inputs[::-1])
        if new.type == node.output.type:
            graph.replace_uses(node.output, new)
            count += 1
    graph.prune()
    return count


def relu_for_all(graph):
    """relu(x), y(x) -> relu(x), y(relu(x)): the second user of x is ignored"""
    count = 0
    for node in graph.nodes_of(["relu"]):
        x = node.inputs[0]
        others = [u for u in x.uses if u.node is not None and u.node.position > node.position]
        if x.node is not None and others:
            graph.replace_uses(x, node.output, others)
            count += 1
    return count


class ReluAsSelect(Rewrite):
    """relu(x) -> x > 0 ? x : 0, which loses NaN"""

    def pattern(self, g, x):
        return g.relu(x)

    def replace(self, g, x):
        zero = g.constant(np.float32(0))
        return g.select(g.greater(x, zero), x, zero)


class NextChannel(Rewrite):
    """dequantize per channel, by the scales of the next channel"""

    def pattern(self, g, x):
        return g.dequantize(x, attrs=ANY, qtype="per_channel")

    def check(self, g, match):
        return "done" if match.root.meta else None

    def replace(self, g, x, match):
        scales = match.root.attrs["scales"]
        y = g.dequantize(x, **{**match.root.attrs, "scales": [*scales[1:], scales[0]]})
        y.node.meta = {"done": True}
        return y


class DropRelu(Rewrite):
    """quantize(relu(x)) -> quantize(x), whatever the zero point"""

    def pattern(self, g, x):
        return g.quantize(g.relu(x), attrs=ANY)

    def replace(self, g, x, match):
        return g.quantize(x, **match.root.attrs)


class MergeScales(Rewrite):
    """dequantize(quantize(x, s), t) -> x, in the hope that s = t and that nothing was rounded"""

    def pattern(self, g, x):
        return g.dequantize(g.quantize(x, attrs=ANY), attrs=ANY)

    def replace(self, g, x):
        return x


class SaturateEarly(Rewrite):
    """quantize(x) to u8 -> quantize(min(x, 127 s)), as if it were s8"""

    def pattern(self, g, x):
        return g.quantize(x, attrs=ANY)

    def check(self, match):
        return "" if match.root.attrs["dtype"] != "u8" or match.root.meta else None

    def replace(self, g, x, match):
        y = g.quantize(g.minimum(x, g.constant(np.float32(127 * match.root.attrs["scales"][0]))), **match.root.attrs)
        y.node.meta = {"done": True}
        return y


def scale_in_place(graph):
    """Change attributes under the hands of everyone, and report nothing."""
    for node in graph.nodes_of(["dequantize"]):
        node.attrs["scales"] = tuple(2 * s for s in node.attrs["scales"])
    return 0


class HalfUp(Rewrite):
    """quantize(x) with ties to even -> floor(x / s + 0.5), ties up"""

    def pattern(self, g, x):
        return g.quantize(x, attrs=ANY)

    def check(self, match):
        return "" if match.root.attrs["qtype"] != "per_tensor" or match.root.meta else None

    def replace(self, g, x, match):
        (scale,) = match.root.attrs["scales"]
        up = g.floor(g.add(g.divide(x, g.constant(np.float32(scale))), g.constant(np.float32(0.5))))
        y = g.quantize(up, **{**match.root.attrs, "scales": [1.0]})
        y.node.meta = {"done": True}
        return y


class BiasAlongRows(Rewrite):
    """x + c -> x + transpose(c) where both broadcast"""

    def pattern(self, g, x, c):
        return g.add(x, c)

    def check(self, x, c):
        fits = c.data is not None and c.data.ndim == 1 and c.data.size > 1 and x.shape[-2:] == (c.data.size,) * 2
        return None if fits else ""

    def replace(self, g, x, c):
        return g.add(x, g.constant(c.data.reshape(-1, 1)))


@rounds(tolerance=1e-5)
def scale_next_channels(graph):
    """multiply(convolution(x, dequantize(w, s)), a) -> convolution(x, dequantize(w, s * a)), a off by one channel"""
    count = 0
    for node in graph.nodes_of(["multiply"]):
        conv, a = node.inputs[0].node, node.inputs[1].data
        if conv is None or conv.op.name != "convolution" or a is None or conv.inputs[1].node is None:
            continue
        x, w, *bias = conv.inputs
        if bias or w.node.op.name != "dequantize" or len(w.node.attrs["scales"]) != a.size:
            continue
        with graph.before(node):
            scales = np.roll(a, 1) * np.array(w.node.attrs["scales"], np.float32)
            scaled = graph.dequantize(w.node.inputs[0], **{**w.node.attrs, "scales": scales.tolist()})
            new = graph.convolution(x, scaled, **conv.attrs)
        graph.replace_uses(node.output, new)
        count += 1
    graph.prune()
    return count


WRONG = (DropZeroPoint(), swap_subtraction, relu_for_all, ReluAsSelect(), NextChannel(), DropRelu(), MergeScales(),
         SaturateEarly(), scale_in_place, HalfUp(), BiasAlongRows(), scale_next_channels)


def residual_network(blocks=8, channels=8, seed=0):
    """A quantized network of residual blocks with all that the wrong passes look for: 18 nodes a block."""
    rng = np.random.default_rng(seed)
    g = gq.Graph("residual")
    windows = dict(strides=[1, 1], pads_begin=[1, 1], pads_end=[1, 1], dilations=[1, 1])

    def floats(*shape):
        return g.constant(rng.normal(size=shape).astype(np.float32))

    def factors(n):
        return rng.uniform(0.5, 2.0, n).astype(np.float32)

    def weights():
        w = g.constant(rng.integers(-128, 128, (3, 3, channels, channels)).astype(np.int8))
        return g.dequantize(w, qtype="per_channel", axis=3, scales=(factors(channels) / 1000).tolist(),
                            zps=[0] * channels)

    def requantized(x, dtype, scale, zp):
        return g.dequantize(g.quantize(x, dtype=dtype, scales=[scale], zps=[zp]), scales=[scale], zps=[zp])

    x = g.dequantize(g.input("image", dtype="u8", shape=(1, channels, channels, channels)), scales=[0.02], zps=[117])
    for block in range(blocks):
        y = g.multiply(g.convolution(x, weights(), **windows), g.constant(factors(channels)))
        y = requantized(g.relu(g.add(y, floats(channels))), "u8", 0.013, 3)
        y = g.subtract(g.convolution(y, weights(), floats(channels), **windows), x)
        x = requantized(g.add(g.relu(y), y), *(("u8", 0.03, 120) if block % 2 else ("s8", 0.03, -3)))
    g.output(x, name="y")
    return g

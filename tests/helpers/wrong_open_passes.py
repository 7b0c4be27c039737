"""Passes that are wrong on purpose in graphs with open dimensions: some for all sizes, some for a few alone."""
import numpy as np
from wrong_passes import DropZeroPoint, HalfUp, MergeScales, ReluAsSelect, swap_subtraction

import graphq as gq
from graphq.passes import ANY, Rewrite


def negate_output(graph):
    """y -> -y for the last output"""
    y = graph.outputs[-1]
    if y.node.op.name == "multiply":
        return 0
    graph.set_outputs([*graph.outputs[:-1], graph.multiply(y, graph.constant(np.float32(-1)))], graph.output_names)
    return 1


class OtherAxis(Rewrite):
    """softmax(x, axis=-1) -> softmax(x, axis=0)"""

    def pattern(self, g, x):
        return g.softmax(x, attrs=ANY, axis=-1)

    def replace(self, g, x):
        return g.softmax(x, axis=0)


class ConcatOtherAxis(Rewrite):
    """concat(x, x, axis=0) -> concat(x, x, axis=1): the types stay [?,?], the sizes do not"""

    def pattern(self, g, x):
        return g.concat(x, x, axis=0)

    def check(self, x):
        return None if x.shape == (None, None) else ""

    def replace(self, g, x):
        return g.concat(x, x, axis=1)


class DropSquareTranspose(Rewrite):
    """transpose(x) -> x where both dimensions are the same: None, among others"""

    def pattern(self, g, x):
        return g.static_transpose(x, order=[1, 0])

    def check(self, x):
        return None if x.shape[0] == x.shape[1] else ""

    def replace(self, g, x):
        return x


class MeanOfOne(Rewrite):
    """reduce_mean over rows of one element -> the element, doubled: wrong for the size 1 alone"""

    def pattern(self, g, x):
        return g.reduce_mean(x, axes=[1], keep_dims=True)

    def check(self, x):
        return None if x.shape[1] == 1 else ""

    def replace(self, g, x):
        return g.add(x, x)


class SumOfNone(Rewrite):
    """reduce_sum over no elements -> ones: wrong for the size 0 alone"""

    def pattern(self, g, x):
        return g.reduce_sum(x, axes=[1], keep_dims=True)

    def check(self, x):
        return None if x.shape[1] == 0 and x.shape[0] is not None else ""

    def replace(self, g, x):
        return g.constant(np.ones((x.shape[0], 1), np.float32))


class OneOfThousand(Rewrite):
    """quantize(x) -> quantize(x + e), e half a step for one of 1,000 columns"""

    def pattern(self, g, x):
        return g.quantize(x, attrs=ANY)

    def check(self, x, match):
        return None if x.shape[-1] == 1000 and not match.root.meta else ""

    def replace(self, g, x, match):
        e = np.zeros(1000, np.float32)
        e[37] = match.root.attrs["scales"][0] / 2
        y = g.quantize(g.add(x, g.constant(e)), **match.root.attrs)
        y.node.meta = {"done": True}
        return y


WRONG_OPEN = (negate_output, OtherAxis(), ConcatOtherAxis(), DropSquareTranspose(), MeanOfOne(), SumOfNone(),
              OneOfThousand(), DropZeroPoint(), MergeScales(), HalfUp(), ReluAsSelect(), swap_subtraction)

OPEN_NETWORK = """graph(x: u8[?,?], y: f32[?,1000]) {
  %0 = dequantize(x, scales=[0.5], zps=[117])
  %1 = relu(%0)
  %2 = static_transpose(%1, order=[1,0])
  %3 = softmax(%2, axis=-1)
  %4 = reduce_mean(%0, axes=[1], keep_dims=true)
  %5 = reduce_sum(%0, axes=[1], keep_dims=true)
  %6 = subtract(%4, %5)
  %7 = subtract(%0, %6)
  %8 = quantize(%7, dtype=s8, scales=[0.3], zps=[3])
  %9 = dequantize(%8, scales=[0.3], zps=[3])
  %10 = quantize(y, dtype=u8, scales=[0.1], zps=[7])
  %11 = concat(%3, %3, axis=0)
  %12 = relu(%9)
  %13 = relu(y)
  return %11, %10, %13, %5, %12
}"""


def open_network():
    return gq.parse(OPEN_NETWORK)

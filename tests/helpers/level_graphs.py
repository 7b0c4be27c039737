"""Graphs of each family whose code depends on the ISA level."""
import numpy as np
from dense import dense
from kernel_digests import LISTS, recurrent

import graphq as gq


def convolution(dtype, channels, groups):
    """A 3 x 3 convolution without padding."""
    return gq.parse(f"graph net(x: {dtype}[1,5,5,64], w: s8[3,3,{channels},64]) {{ %0 = dequantize(x, scales=[0.1], "
                    f"zps=[7])\n %1 = dequantize(w, scales=[0.1])\n %y = convolution(%0, %1, groups={groups}, "
                    f"dilations=[1, 1], {LISTS}) return %y }}")


def padded(channels, groups):
    """A quantized convolution of constant weights with padding and strides."""
    g = gq.Graph("padded")
    weights = g.constant(numbers((3, 3, channels, 24), "s8", 5))
    x = g.input("x", shape=(1, 7, 9, channels * groups), dtype="u8")
    y = g.convolution(g.dequantize(x, scales=[0.02], zps=[99]),
                      g.dequantize(weights, scales=[0.003]), strides=[2, 1], pads_begin=[1, 1], pads_end=[1, 1],
                      dilations=[1, 1], groups=groups)
    g.output(g.quantize(g.clamp(y, min=0.0, max=6.0), dtype="u8", scales=[0.03]), name="y")
    return g


def compressed(dtype, w_dtype):
    """A product by weights of w_dtype with scales and zero points per group; x is f32 if `dtype` is."""
    g, as_numpy = gq.Graph("compressed"), gq.dtypes.as_dtype(w_dtype).numpy
    w = np.arange(66 * 48).reshape(66, 48) % 2**int(w_dtype[1])
    w = g.dynamic_dequantize(g.constant(w.astype(as_numpy)), np.ones((2, 48), np.float32),
                             np.full((2, 48), min(5, 2**int(w_dtype[1]) - 1), w.dtype).astype(as_numpy),
                             qtype="per_group", group_shape=[33, 1])
    x = g.input("x", shape=(3, 66), dtype=dtype)
    x = x if dtype == "f32" else g.dequantize(x, scales=[0.1], zps=[3])
    g.output(g.matmul(x, w), name="y")
    return g


def numbers(shape, dtype, seed):
    """Integers of all sizes, equal with every version of NumPy."""
    x = (np.arange(np.prod(shape), dtype=np.uint64) + np.uint64(seed)) * np.uint64(0x9E3779B97F4A7C15)
    return (x >> np.uint64(40)).astype(np.uint8).view(gq.dtypes.as_dtype(dtype).numpy).reshape(shape)


def rows():
    """softmax and a mean of its rows."""
    return gq.parse("graph rows(x: f32[3,37]) { %0 = softmax(x, axis=-1)\n %y = reduce_mean(%0, axes=[1]) return %y }")


def looked_up():
    """An operation of u8 that takes a table."""
    return gq.parse("graph net(x: u8[3,21]) { %0 = dequantize(x, scales=[0.1])\n %1 = tanh(%0)\n"
                    " %y = quantize(%1, dtype=s8, scales=[0.01]) return %y }")


def of_products():
    """Graphs that multiply bytes."""
    plain = dict(out="f32", residual=False)
    return [dense(5, **plain), dense(3, x="s8", transpose_a=True, **plain), dense(5), recurrent("lstm", True),
            *(make(dtype, *of) for dtype in ("u8", "s8") for make, of in (
                (compressed, ["u4"]), (compressed, ["u8"]), (convolution, [1, 64]), (convolution, [64, 1])))]

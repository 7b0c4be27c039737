"""Compare int8 convolutions with ONNX Runtime and oneDNN, for channels-last images in and out.

    python benchmarks/conv.py [--threads 1 2] [--isa LEVEL] [--case NAME ...] [--json FILE] [--roofline FILE.png]

The layers multiply u8 by s8 per output channel, add an f32 bias, apply ReLU and requantize to u8, at batch 1. The
variant s8 has s8 images in and out. The engines take turns; a ratio above 1 means that graphq is faster. Results may
differ by one step, because engines round differently.
"""
from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import partial

import peers
import timing
from peers import ONEDNN, ORT, Call, Layer
from timing import Case

import graphq as gq
from graphq.dtypes import Name
from graphq.kernels.target import LevelName


@dataclass(frozen=True)
class Geometry:
    """A square convolution from `ic` x `size` x `size` to `oc` channels, with a kernel of `kernel` x `kernel`."""

    ic: int
    size: int
    oc: int
    kernel: int
    stride: int = 1
    pad: int = 0
    groups: int = 1

    @property
    def out(self) -> int:
        """Height and width of the result."""
        return (self.size + 2 * self.pad - self.kernel) // self.stride + 1


CASES = {
    "conv_3x3_64": Geometry(64, 56, 64, 3, pad=1),
    "conv_1x1_256": Geometry(256, 56, 64, 1),
    "conv_3x3_256": Geometry(256, 14, 256, 3, pad=1),
    "conv_stem_7x7": Geometry(3, 224, 64, 7, stride=2, pad=3),
    "dw_3x3_s2": Geometry(96, 112, 96, 3, stride=2, pad=1, groups=96),
    "dw_3x3": Geometry(576, 14, 576, 3, pad=1, groups=576),
}


def graphq_call(o: Layer, c: Geometry, threads: int, isa: LevelName | None) -> Call:
    """Compile the layer with graphq."""
    g = gq.Graph("case")
    x = g.dequantize(g.input("x", shape=o.x.shape, dtype=o.dtype), scales=[o.x_scale], zps=[o.x_zp])
    w = g.dequantize(g.constant(o.w, name="w"), qtype="per_channel", axis=0, scales=o.w_scales.tolist())
    y = g.convolution(x, w, strides=[c.stride] * 2, pads_begin=[c.pad] * 2, pads_end=[c.pad] * 2, dilations=[1, 1],
                      groups=c.groups, data_format="NXC", weights_format="OIX")
    y = g.relu(g.bias_add(y, o.bias, data_format="NXC"))
    g.output(g.quantize(y, dtype=o.dtype, scales=[o.y_scale], zps=[o.y_zp]), name="y")
    return partial(gq.compile(g, threads=threads, isa=isa, strict=True), {"x": o.x})


def quantized(name: str, threads: int, isa: LevelName | None, *, dtype: Name) -> Case:
    """Build a case: u8 or s8, bias, ReLU, requantized."""
    c = CASES[name]
    shape = (c.oc, c.ic // c.groups, c.kernel, c.kernel)
    o = Layer.random((1, c.size, c.size, c.ic), shape, 0, dtype)
    onnx: list[peers.Node] = [
        ("Conv", ["xf", "wf", "bf"], "a", {"strides": [c.stride] * 2, "pads": [c.pad] * 4, "group": c.groups}),
        ("Relu", ["a"], "r", {})]
    results = c.out * c.out * c.oc
    return Case(graphq_call(o, c, threads, isa),
                {ORT: peers.onnxruntime_call(o, onnx, threads, channels_last=True),
                 ONEDNN: peers.onednn_convolution(o, c.stride, c.pad, c.groups, threads)},
                results * c.kernel * c.kernel * (c.ic // c.groups), o.x.nbytes + o.w.nbytes + 8 * c.oc + results)


VARIANTS: timing.Variants = {dtype: partial(quantized, dtype=dtype) for dtype in ("u8", "s8")}

if __name__ == "__main__":
    sys.exit(timing.run(timing.arguments(__doc__, list(CASES), list(VARIANTS), ["u8"]), VARIANTS))

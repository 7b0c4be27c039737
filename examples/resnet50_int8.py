"""ResNet-50 in int8: built with the graph API, compiled, explained and timed.

    python examples/resnet50_int8.py [--threads 1 2] [--explain] [--peer resnet50_u8.onnx]

The example shows how to build a network, that every operation gets into an integer partition, and the speed. The
network has the true shapes (He et al. 2016, stride in the 3x3 convolutions; batch 1, 224 x 224, 4.1 G
multiply-accumulates) and random weights, so its answers mean nothing. Activations are u8, weights s8 with one scale per
output channel, biases f32. Image and weights have channels first, as in most files; graphq transposes the image once.

`--peer` also times ONNX Runtime and OpenVINO, if installed, on an ONNX file of the same network, in turns.
"""
from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

import graphq as gq

STAGES = ((64, 256, 3, 1), (128, 512, 4, 2), (256, 1024, 6, 2), (512, 2048, 3, 2))
"""Inner channels, outer channels, blocks, and the stride of the first block."""


@dataclass(frozen=True)
class Tensor:
    """A u8 value with its scale and zero point: it means scale * (value - zp)."""

    value: gq.Value
    scale: float
    zp: int = 0


class Network:
    """Add quantized layers to a graph."""

    def __init__(self, seed: int) -> None:
        self.g, self.random = gq.Graph("resnet50"), np.random.default_rng(seed)

    def real(self, x: Tensor) -> gq.Value:
        """The f32 value of a tensor."""
        return self.g.dequantize(x.value, scales=[x.scale], zps=[x.zp])

    def quantized(self, y: gq.Value, peak: float) -> Tensor:
        """Quantize a value from 0 to `peak` to u8; larger numbers saturate."""
        return Tensor(self.g.quantize(y, dtype="u8", scales=[peak / 255], zps=[0]), peak / 255)

    def weights(self, shape: tuple[int, ...], gain: float) -> gq.Value:
        """Draw normal weights (He et al. 2015) times `gain`, quantized symmetrically per output channel (axis 0)."""
        w = self.random.standard_normal(shape, np.float32) * (gain * np.sqrt(2 / np.prod(shape[1:])))
        scales = np.abs(w).reshape(shape[0], -1).max(axis=1) / 127
        w8 = np.rint(w / scales.reshape(-1, *[1] * (w.ndim - 1))).astype(np.int8)
        return self.g.dequantize(self.g.constant(w8), qtype="per_channel", axis=0, scales=scales.tolist())

    def convolution(self, x: Tensor, channels: int, kernel: int = 1, stride: int = 1, gain: float = 1.0) -> gq.Value:
        """Add a convolution with bias and an f32 result, padded to ceil(size / stride)."""
        w = self.weights((channels, x.value.type.dims[1], kernel, kernel), gain)
        bias = self.g.constant(self.random.standard_normal(channels, np.float32) * np.float32(0.1))
        return self.g.convolution(self.real(x), w, bias, strides=[stride] * 2, pads_begin=[kernel // 2] * 2,
                                  pads_end=[kernel // 2] * 2, dilations=[1, 1], data_format="NCX", weights_format="OIX")

    def block(self, x: Tensor, inner: int, outer: int, stride: int) -> Tensor:
        """relu(1x1 -> 3x3 -> 1x1 + shortcut)"""
        z = self.quantized(self.g.relu(self.convolution(x, inner)), 4)
        z = self.quantized(self.g.relu(self.convolution(z, inner, 3, stride)), 4)
        shortcut = x
        if x.value.type.dims[1] != outer:
            y = self.convolution(x, outer, stride=stride, gain=0.7)
            shortcut = Tensor(self.g.quantize(y, dtype="u8", scales=[8 / 255], zps=[128]), 8 / 255, 128)
        y = self.convolution(z, outer, gain=0.5)
        return self.quantized(self.g.relu(self.g.add(y, self.real(shortcut))), 6)


def resnet50(seed: int = 0) -> gq.Graph:
    """Build the network: image f32[1,3,224,224] -> scores f32[1,1000]."""
    net = Network(seed)
    g = net.g
    image = g.input("image", shape=(1, 3, 224, 224), dtype="f32")
    x = Tensor(g.quantize(image, dtype="u8", scales=[0.02], zps=[128]), 0.02, 128)
    x = net.quantized(g.relu(net.convolution(x, 64, 7, 2)), 4)
    y = g.max_pool(net.real(x), kernel=[3, 3], strides=[2, 2], pads_begin=[1, 1], pads_end=[1, 1], data_format="NCX")
    x = net.quantized(y, 4)
    for inner, outer, blocks, stride in STAGES:
        for k in range(blocks):
            x = net.block(x, inner, outer, stride if k == 0 else 1)
    y = g.avg_pool(net.real(x), kernel=[7, 7], strides=[1, 1], pads_begin=[0, 0], pads_end=[0, 0], exclude_pad=True,
                   data_format="NCX")
    x = net.quantized(g.static_reshape(y, shape=[1, 2048], special_zero=False), 4)
    w = net.weights((1000, 2048), 0.7)
    y = g.matmul(net.real(x), w, g.constant(np.zeros(1000, np.float32)), transpose_b=True)
    scores = g.quantize(y, dtype="u8", scales=[8 / 255], zps=[128])
    g.output(g.dequantize(scores, scales=[8 / 255], zps=[128]), name="scores")
    return g


def peers(path: str, image: np.ndarray, threads: int) -> dict[str, Callable[[], object]]:
    """An ONNX file with one input, in each runtime that is installed."""
    calls: dict[str, Callable[[], object]] = {}
    try:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        feed = {session.get_inputs()[0].name: image}
        calls["ONNX Runtime"] = lambda: session.run(None, feed)
    except ImportError:
        print("ONNX Runtime is not installed (pip install onnxruntime)")
    try:
        import openvino

        request = openvino.Core().compile_model(path, "CPU", {"INFERENCE_NUM_THREADS": threads}).create_infer_request()
        calls["OpenVINO"] = lambda: request.infer([image])
    except ImportError:
        print("OpenVINO is not installed (pip install openvino)")
    return calls


def alternate(calls: dict[str, Callable[[], object]], rounds: int = 8, each: int = 6) -> dict[str, float]:
    """Median milliseconds of each function. The functions take turns; the first call of each turn is not counted."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            call()
            for _ in range(each):
                start = time.perf_counter()
                call()
                times[name].append(1e3 * (time.perf_counter() - start))
    return {name: statistics.median(t) for name, t in times.items()}


def main() -> None:
    """Build, compile, check, time."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--explain", action="store_true", help="print all partitions and steps")
    parser.add_argument("--peer", metavar="FILE", help="an ONNX file of the same network for the other runtimes")
    options = parser.parse_args()

    image = np.random.default_rng(1).standard_normal((1, 3, 224, 224), np.float32)
    g = resnet50()
    start = time.perf_counter()
    model = gq.compile(g, strict=True)
    first = model(image=image)
    print(f"compiled and first result in {time.perf_counter() - start:.2f} s")
    report = model.explain()
    print(report if options.explain else report.splitlines()[0])
    same = np.array_equal(first, model.formula(image=image))
    print(f"equal to its NumPy formula: {same}; class {first.argmax()}, op-by-op reference "
          f"{gq.reference(g, image=image).argmax()}")
    for threads in options.threads:
        model = gq.compile(g, threads=threads)
        calls: dict[str, Callable[[], object]] = {"graphq": partial(model, image=image)}
        calls |= peers(options.peer, image, threads) if options.peer else {}
        times = alternate(calls)
        ours = times["graphq"]
        print(f"{threads} thread{'s' * (threads > 1)}: " + ", ".join(
            f"{name} {t:.2f} ms" + (f" ({t / ours:.2f}x)" if name != "graphq" else "") for name, t in times.items()))


if __name__ == "__main__":
    main()

"""Networks of PyTorch in int8: train a CNN and an encoder, run them in several ways, and compare accuracy and time.

    python examples/torch_int8.py [--seconds 1.0] [--epochs 12] [--threads 1] [--without inductor]

The data are scikit-learn's digits (1797 pictures of 8x8 pixels, inside that package). It needs the packages torch and
scikit-learn; ways whose package is missing are left out: torchao for PT2E, onnxruntime for ONNX Runtime, a C++ compiler
for inductor. All ways are timed in turns in one process, and the median is printed. `--without` leaves out networks
and ways whose name has a text.
"""
from __future__ import annotations

import argparse
import importlib.util
import shutil
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

import graphq as gq
import graphq.torch

Way = Callable[[torch.Tensor], torch.Tensor]

TRAINING = 1347
"""The number of pictures to train with; the other 450 measure the accuracy."""


class Block(nn.Module):
    """A depthwise and a pointwise convolution, with a sum."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.dw = nn.Conv2d(channels, channels, 3, padding=1, groups=channels)
        self.bn = nn.BatchNorm2d(channels)
        self.pw = nn.Conv2d(channels, channels, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The block's result for channels of pixels."""
        return torch.relu(x + self.pw(torch.relu(self.bn(self.dw(x)))))


class Cnn(nn.Module):
    """A small convolutional network for pictures of 8x8 pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 32, 3, padding=1)
        self.blocks = nn.Sequential(Block(32), Block(32))
        self.down = nn.Conv2d(32, 64, 3, stride=2, padding=1)
        self.head = nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Scores of the ten digits for pictures."""
        y = torch.relu(self.down(self.blocks(torch.relu(self.stem(x)))))
        return self.head(y.mean((2, 3)))


class Layer(nn.Module):
    """A layer of an encoder: attention, and two linear layers."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The layer's result for tokens."""
        n, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).reshape(n, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(n, length, width)
        x = x + self.out(y)
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))


class Encoder(nn.Module):
    """An encoder that reads the 16 squares of 2x2 pixels of a picture."""

    def __init__(self, width: int = 128) -> None:
        super().__init__()
        self.patches = nn.Linear(4, width)
        self.position = nn.Parameter(torch.randn(16, width) / 10)
        self.layers = nn.Sequential(Layer(width, 4), Layer(width, 4))
        self.head = nn.Linear(width, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Scores of the ten digits for pictures."""
        squares = x.reshape(-1, 4, 2, 4, 2).transpose(2, 3).reshape(-1, 16, 4)
        return self.head(self.layers(self.patches(squares) + self.position).mean(1))


def train(net: nn.Module, x: torch.Tensor, labels: torch.Tensor, epochs: int) -> nn.Module:
    """Train with Adam; returns the network in eval mode."""
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
    for _ in range(epochs):
        for part in torch.randperm(len(x)).split(64):
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(x[part]), labels[part]).backward()
            optimizer.step()
        schedule.step()
    return net.eval()


def pt2e(net: nn.Module, example: torch.Tensor, batches: torch.Tensor, shapes: Any) -> nn.Module:
    """Quantize by PyTorch's own flow, PT2E, with the quantizer for x86 CPUs."""
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
    from torchao.quantization.pt2e.quantizer import x86_inductor_quantizer as x86

    quantizer = x86.X86InductorQuantizer().set_global(x86.get_default_x86_inductor_quantization_config())
    exported = torch.export.export(net, (example,), dynamic_shapes=shapes, strict=True)
    prepared = prepare_pt2e(exported.module(), quantizer)
    for batch in batches.split(len(example)):
        prepared(batch)
    return convert_pt2e(prepared)


def onnx_runtime(graph: gq.Graph, threads: int) -> Way:
    """Run a graph's ONNX file by ONNX Runtime."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = threads, 3
    with tempfile.TemporaryDirectory() as folder:
        gq.save_onnx(graph, Path(folder) / "model.onnx")
        session = onnxruntime.InferenceSession(Path(folder) / "model.onnx", options)
    name = session.get_inputs()[0].name
    return lambda x: torch.from_numpy(session.run(None, {name: x.numpy()})[0])


def ways(net: nn.Module, calibration: torch.Tensor, batch: int,
         threads: int) -> Iterator[tuple[str, Callable[[], Way]]]:
    """Each way to run the network: its name, and a function that prepares it."""
    example, shapes = calibration[:max(batch, 2)], ({0: torch.export.Dim("n")},)
    f32 = gq.from_torch(torch.export.export(net, (example,), dynamic_shapes=shapes))
    inductor, runtime, torchao = (shutil.which("g++"), *map(importlib.util.find_spec, ("onnxruntime", "torchao")))

    yield "eager f32", lambda: net
    yield "graphq f32", lambda: graphq.torch.compile(net, (example,), dynamic_shapes=shapes, threads=threads)
    yield "graphq f32, torch.compile", lambda: torch.compile(net, backend="graphq", options={"threads": threads})
    if inductor:
        yield "inductor f32", lambda: torch.compile(net)
    if runtime:
        yield "ONNX Runtime f32", lambda: onnx_runtime(f32, threads)
    # with weights of 7 bits, no engine saturates or slows down on x86 CPUs without VNNI
    int8 = gq.quantization.quantize(f32, calibration.split(batch), gq.quantization.Scheme(weight_bits=7))
    yield "graphq int8", lambda: graphq.torch.compile(int8, threads=threads)
    if runtime:
        yield "ONNX Runtime int8", lambda: onnx_runtime(int8, threads)
    if torchao:
        converted = pt2e(net, example, calibration, shapes)

        def quantized() -> Way:
            exported = torch.export.export(converted, (example,), dynamic_shapes=shapes)
            return graphq.torch.compile(exported, threads=threads)

        yield "graphq PT2E int8", quantized
        if inductor:
            from torchao.quantization.pt2e.lowering import lower_pt2e_quantized_to_x86

            yield "inductor PT2E int8", lambda: lower_pt2e_quantized_to_x86(converted, (calibration[:batch],))


def left_out(name: str, options: argparse.Namespace) -> bool:
    """Whether the user leaves out a network or a way to run it."""
    return any(text in name for text in options.without)


def measure(found: dict[str, Way], x: torch.Tensor, seconds: float) -> dict[str, float]:
    """The median time of a call of each way, which all run in turns."""
    times: dict[str, list[float]] = {name: [] for name in found}
    end = time.perf_counter() + seconds * len(found)
    while time.perf_counter() < end or len(times["eager f32"]) < 3:
        for name, way in found.items():
            way(x)  # the first call finds cold caches
            start = time.perf_counter()
            for _ in range(5):
                way(x)
            times[name].append((time.perf_counter() - start) / 5)
    return {name: statistics.median(t) for name, t in times.items()}


def compare(title: str, net: nn.Module, data: tuple[torch.Tensor, ...], batch: int,
            options: argparse.Namespace) -> None:
    """Train a network, run it in all ways, and print a table."""
    if left_out(title, options):
        return
    x, labels, tests, wanted = data
    net = train(net, x, labels, options.epochs)
    found: dict[str, Way] = {}
    first: dict[str, float] = {}
    right: dict[str, float] = {}
    with torch.no_grad():
        for name, prepare in ways(net, x[:64], batch, options.threads):
            if left_out(name, options):
                continue
            start = time.perf_counter()
            try:
                way = prepare()
                way(tests[:batch])
            except Exception as e:
                if "graphq" in name:
                    raise
                print(f"{name} is left out, because this engine raises {type(e).__name__}")
                continue
            found[name], first[name] = way, time.perf_counter() - start
            whole = len(tests) // batch * batch
            answers = torch.cat([way(part) for part in tests[:whole].split(batch)])
            right[name] = (answers.argmax(1) == wanted[:whole]).float().mean().item()
        took = measure(found, tests[:batch], options.seconds)
    print(f"\n{title}, batch {batch}, threads: {options.threads}")
    print(f"{'':26s} accuracy    first call    a call    against eager")
    for name, t in took.items():
        print(f"{name:26s} {right[name]:7.2%} {first[name]:10.2f} s {1e3 * t:8.3f} ms {took['eager f32'] / t:10.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare ways to run networks of PyTorch in int8.")
    parser.add_argument("--seconds", type=float, default=1.0, help="time to measure each way (default 1)")
    parser.add_argument("--epochs", type=int, default=12, help="passes over the training data (default 12)")
    parser.add_argument("--threads", type=int, default=1, help="threads of every way (default 1)")
    parser.add_argument("--without", action="append", default=[], help="leave out names with this text")
    options = parser.parse_args()
    warnings.simplefilter("ignore")  # of torch.export and torchao
    torch.manual_seed(0)
    torch.set_num_threads(options.threads)
    pixels, numbers = load_digits(return_X_y=True)
    x = torch.from_numpy(pixels.astype(np.float32).reshape(-1, 1, 8, 8) / 16)
    labels = torch.from_numpy(numbers)
    data = x[:TRAINING], labels[:TRAINING], x[TRAINING:], labels[TRAINING:]
    compare("CNN", Cnn(), data, 1, options)
    compare("encoder of 16 tokens", Encoder(), data, 8, options)


if __name__ == "__main__":
    main()

"""Build the f32 network of an ONNX file in PyTorch, with one function for each ONNX operator.

Values between QuantizeLinear and DequantizeLinear stay in f32. QuantizeLinear after a sum becomes a clamp if the
smallest number it can express is 0, because quantizers leave such clamps (ReLU, ReLU6) to it. The sizes of the sample
inputs are fixed, so everything that follows from sizes and constants is computed once, when the network is built.
"""
from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
import torch.nn.functional as F
from onnx import helper, numpy_helper

Tensor = Any
Ints = list[int] | None
SUMS = {"Conv", "ConvTranspose", "Gemm", "MatMul", "Add", "Sub", "BatchNormalization"}
PYTHON = {"Reshape": (1,), "Expand": (1,), "Unsqueeze": (1,), "Squeeze": (1,), "ReduceMean": (1,),
          "Slice": (1, 2, 3, 4), "Clip": (1, 2), "Resize": (1, 2, 3), "Pow": (1,), "QuantizeLinear": (1, 2)}
"""The operands that are constants, and that PyTorch takes as Python's numbers and lists, by operator."""


def _pads(pads: Ints, rank: int) -> tuple[list[int], Ints]:
    """Symmetric padding, and what `F.pad` has to add first if ONNX's pads differ between begin and end."""
    pads = pads or [0] * (2 * rank)
    begin, end = pads[:rank], pads[rank:]
    if begin == end:
        return begin, None
    return [0] * rank, [p for k in reversed(range(rank)) for p in (begin[k], end[k])]


def conv(x: Tensor, w: Tensor, b: Tensor = None, *, strides: Ints = None, dilations: Ints = None, pads: Ints = None,
         group: int = 1, kernel_shape: Ints = None) -> Tensor:
    """Convolve images."""
    pad, first = _pads(pads, 2)
    x = x if first is None else F.pad(x, first)
    return F.conv2d(x, w, b, strides or 1, pad, dilations or 1, group)


def conv_transpose(x: Tensor, w: Tensor, b: Tensor = None, *, strides: Ints = None, dilations: Ints = None,
                   pads: Ints = None, group: int = 1, kernel_shape: Ints = None) -> Tensor:
    """Convolve images with strides on the output."""
    return F.conv_transpose2d(x, w, b, strides or 1, (pads or [0, 0])[:2], 0, group, dilations or 1)


def max_pool(x: Tensor, *, kernel_shape: list[int], strides: Ints = None, pads: Ints = None, ceil_mode: int = 0,
             storage_order: int = 0) -> Tensor:
    """Maximum of each window."""
    pad, first = _pads(pads, 2)
    x = x if first is None else F.pad(x, first, value=-torch.inf)
    return F.max_pool2d(x, kernel_shape, strides or 1, pad, 1, bool(ceil_mode))


def average_pool(x: Tensor, *, kernel_shape: list[int], strides: Ints = None, pads: Ints = None, ceil_mode: int = 0,
                 count_include_pad: int = 0) -> Tensor:
    """Mean of each window."""
    pad, _ = _pads(pads, 2)
    return F.avg_pool2d(x, kernel_shape, strides or 1, pad, bool(ceil_mode), bool(count_include_pad))


def gemm(a: Tensor, b: Tensor, c: Tensor = None, *, transA: int = 0, transB: int = 0, alpha: float = 1.0,
         beta: float = 1.0) -> Tensor:
    """Matrix product of weights and rows, plus a bias."""
    y = F.linear(a.T if transA else a, b if transB else b.T, c if beta == 1 else None)
    return y if alpha == 1 else alpha * y


def reshape(x: Tensor, shape: list[int], *, allowzero: int = 0) -> Tensor:
    """Reshape; a 0 keeps the size."""
    return x.reshape([x.shape[k] if d == 0 else d for k, d in enumerate(shape)])


def unsqueeze(x: Tensor, dims: Ints = None, *, axes: Ints = None) -> Tensor:
    """Insert dimensions of size 1."""
    for axis in sorted(dims or axes or []):
        x = x.unsqueeze(axis)
    return x


def sliced(x: Tensor, starts: list[int], ends: list[int], axes: Ints = None,
           steps: Ints = None) -> Tensor:
    """Take a range of each axis."""
    for axis, start, end in zip(axes or range(len(starts)), starts, ends, strict=True):
        size = x.shape[axis]
        start, end = (max(0, k + size) if k < 0 else min(k, size) for k in (start, end))
        x = x.narrow(axis, start, max(0, end - start))
    return x


def resize(x: Tensor, roi: object = None, scales: list[float] | None = None, sizes: Ints = None, *,
           mode: bytes = b"nearest", **_: Any) -> Tensor:
    """Enlarge images."""
    size = [int(s * n) for s, n in zip(scales, x.shape, strict=True)][2:] if scales else (sizes or [])[2:]
    return F.interpolate(x, size, mode="nearest" if mode == b"nearest" else "bilinear")


def gather(x: Tensor, index: Tensor, *, axis: int = 0) -> Tensor:
    """Take elements along an axis."""
    if index.ndim == 0:
        return x.select(axis, int(index))
    return F.embedding(index, x) if axis == 0 and x.ndim == 2 and x.is_floating_point() else \
        x.index_select(axis, index.reshape(-1)).reshape(*x.shape[:axis], *index.shape, *x.shape[axis + 1:])


def softmax(x: Tensor, *, axis: int = -1) -> Tensor:
    """Exponentials that sum to 1 along an axis."""
    return x.softmax(axis)


def dequantize(x: Tensor, scale: Tensor, zero: Tensor = None, *, axis: int = 1) -> Tensor:
    """Compute f32 numbers from integers; values that are in f32 stay."""
    if x.is_floating_point():
        return x
    shape = [-1 if k == axis % x.ndim else 1 for k in range(x.ndim)] if scale.ndim and scale.numel() > 1 else [1]
    shift = 0 if zero is None else zero.float().reshape(shape)
    return (x.float() - shift) * scale.reshape(shape)


def clamp_quantized(x: Tensor, scale: float, zero: int) -> Tensor:
    """Clamp to what a quantize to u8 with zero point 0 can express."""
    return x.clamp(0, scale * 255)


def mean(x: Tensor, dims: Ints = None, *, axes: Ints = None, keepdims: int = 1) -> Tensor:
    """Mean along axes."""
    return x.mean(dims or axes, keepdim=bool(keepdims))


def cast(x: Tensor, *, to: int) -> Tensor:
    """Convert to another element type."""
    return x.to(TYPES[to])


TYPES: dict[int, torch.dtype] = {
    onnx.TensorProto.FLOAT: torch.float32, onnx.TensorProto.INT64: torch.int64, onnx.TensorProto.INT32: torch.int32,
    onnx.TensorProto.BOOL: torch.bool}

OPERATORS: dict[str, Callable[..., Tensor]] = {
    "Conv": conv, "ConvTranspose": conv_transpose, "Gemm": gemm, "MatMul": torch.matmul,
    "MaxPool": max_pool, "AveragePool": average_pool, "GlobalAveragePool": lambda x: x.mean((2, 3), keepdim=True),
    "BatchNormalization": lambda x, w, b, m, v, *, epsilon=1e-5, **_: F.batch_norm(x, m, v, w, b, eps=epsilon),
    "LayerNormalization": lambda x, w, b, *, axis=-1, epsilon=1e-5, **_: F.layer_norm(x, x.shape[axis:], w, b, epsilon),
    "Add": torch.add, "Sub": torch.sub, "Mul": torch.mul, "Div": torch.div, "Pow": torch.pow, "Sqrt": torch.sqrt,
    "Erf": torch.erf, "Relu": torch.relu, "Sigmoid": torch.sigmoid, "Softmax": softmax, "ReduceMean": mean,
    "HardSigmoid": lambda x, *, alpha=0.2, beta=0.5: (x * alpha + beta).clamp(0, 1),
    "Clip": lambda x, low=None, high=None: x.clamp(low, high),
    "Where": torch.where, "And": torch.logical_and, "Equal": torch.eq, "GreaterOrEqual": torch.ge, "Cast": cast,
    "Reshape": reshape, "Flatten": lambda x, *, axis=1: x.reshape(x.shape[:axis].numel(), -1),
    "Unsqueeze": unsqueeze, "Squeeze": lambda x, dims=None, *, axes=None: x.squeeze(dims or axes),
    "Transpose": lambda x, *, perm: x.permute(perm), "Slice": sliced, "Gather": gather,
    "Concat": lambda *xs, axis: torch.cat(xs, axis), "Expand": lambda x, shape: x + torch.zeros(shape, dtype=x.dtype),
    "Shape": lambda x, **_: torch.tensor(x.shape), "Range": torch.arange, "Resize": resize,
    "Constant": lambda *, value: torch.from_numpy(numpy_helper.to_array(value).copy()),
    "DequantizeLinear": dequantize, "QuantizeLinear": clamp_quantized}


def images(x: Tensor) -> Tensor:
    """A tensor in the memory order that is faster for convolutions: images and filters with channels last."""
    return x.contiguous(memory_format=torch.channels_last) if x.ndim == 4 and x.is_floating_point() else x


def network(path: Path, feeds: Mapping[str, np.ndarray]) -> torch.fx.GraphModule:
    """The f32 network as a module that takes the model's inputs in order and returns its outputs as a list."""
    model = onnx.load(path).graph
    root, graph = torch.nn.Module(), torch.fx.Graph()
    value: dict[str, Tensor] = {t.name: torch.from_numpy(numpy_helper.to_array(t).copy()) for t in model.initializer}
    value |= {name: torch.from_numpy(x) for name, x in feeds.items()}
    computed = {i.name: graph.placeholder(f"input{k}") for k, i in enumerate(x for x in model.input if x.name in feeds)}
    producer: dict[str, str] = {}

    def operand(name: str, python: bool) -> Any:
        if not name or name in computed:
            return computed.get(name)
        if python:
            return value[name].tolist() if value[name].numel() else None
        if not hasattr(root, attribute := f"constant{list(value).index(name)}"):
            root.register_buffer(attribute, images(value[name]))
        return graph.get_attr(attribute)

    for node in model.node:
        (name,), inputs, kind = node.output, list(node.input), node.op_type
        attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute
                      if a.name != "auto_pad" or a.s != b"NOTSET"}
        producer[name] = kind
        if kind == "QuantizeLinear" and inputs[0] in computed:
            zero = value[inputs[2]]
            if producer.get(inputs[0]) not in SUMS or zero.item() != torch.iinfo(zero.dtype).min:
                value[name], computed[name] = value[inputs[0]], computed[inputs[0]]
                continue
        function, python = OPERATORS[kind], PYTHON.get(kind, ())
        taken = [value.get(x) if k not in python or not x else value[x].tolist() if value[x].numel() else None
                 for k, x in enumerate(inputs)]
        value[name] = function(*taken, **attributes)
        if kind != "Shape" and any(x in computed for x in inputs):
            if value[name] is value[inputs[0]] and inputs[0] in computed:
                computed[name] = computed[inputs[0]]
            else:
                arguments = tuple(operand(x, k in python) for k, x in enumerate(inputs))
                computed[name] = graph.call_function(function, arguments, attributes)
    graph.output([computed[o.name] for o in model.output])
    return torch.fx.GraphModule(root, graph).eval()

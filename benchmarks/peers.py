"""Run single layers in the peers: ONNX Runtime, oneDNN, NumPy's BLAS.

Each function compiles a layer and returns a function without arguments that runs it, or None if the engine is not
installed. oneDNN is called through its C API: a call of a 1 x 16 x 16 layer takes 1.6 us, ctypes included.
"""
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any

import numpy as np
import onednn_library

from graphq.commands.peers import ORT
from graphq.dtypes import Name
from graphq.errors import how_to_install

Call = Callable[[], np.ndarray]
Node = tuple[str, list[str], str, dict[str, Any]]
"""An ONNX operation: type, inputs, output, attributes."""

ONEDNN, NUMPY, EIGHT = "oneDNN", "NumPy", "8-bit weights"
NEEDS = {ORT: ("onnx", "onnxruntime"), NUMPY: ("threadpoolctl",), EIGHT: (), "matplotlib": ("matplotlib",)}


def missing(name: str) -> str | None:
    """A message about missing packages of the engine; None if all are installed."""
    if name == ONEDNN:
        return None if onednn_library.library_path() else f"it needs onednn-cpu-gomp ({how_to_install('bench')})"
    absent = [x for x in NEEDS[name] if find_spec(x) is None]
    return f"it needs {' and '.join(absent)} ({how_to_install('bench')})" if absent else None


@dataclass(frozen=True)
class Layer:
    """A quantized layer: u8 or s8 activations `x`, s8 weights with a scale for each channel of `axis`, f32 bias.

    The result has the dtype of `x`, since ONNX Runtime fuses no other layer. Its lowest integer means 0.
    """

    x: np.ndarray
    w: np.ndarray
    w_scales: np.ndarray
    bias: np.ndarray
    axis: int
    x_zp: int
    y_zp: int
    x_scale: float = 0.02
    y_scale: float = 0.05
    more: Mapping[str, np.ndarray] = field(default_factory=dict)  # more inputs of ONNX Runtime's model

    @property
    def dtype(self) -> Name:
        """graphq's name for the activations' dtype."""
        return "u8" if self.x.dtype == np.uint8 else "s8"

    @classmethod
    def random(cls, x: tuple[int, ...], w: tuple[int, ...], axis: int, dtype: Name = "u8") -> Layer:
        """Draw a random layer, the same for the same shapes and dtype."""
        r = np.random.default_rng(0)
        low, kind = (0, np.uint8) if dtype == "u8" else (-128, np.int8)
        return cls(r.integers(low, low + 256, x, dtype=kind), r.integers(-127, 128, w, dtype=np.int8),
                   r.uniform(1e-4, 4e-4, w[axis]).astype(np.float32), r.standard_normal(w[axis]).astype(np.float32),
                   axis, low + 120, low)


def onnxruntime_call(o: Layer, nodes: Sequence[Node], threads: int, *, opset: int = 17,
                     channels_last: bool = False, constants: Mapping[str, Any] | None = None) -> Call | None:
    """The layer in ONNX Runtime, as a QDQ model that it fuses; `nodes` compute r from xf, wf and bf (f32).

    `constants` are the constants of `nodes`. `channels_last` puts the layer between transposes. ONNX Runtime cancels
    them with its own transposes, and is faster than with channels first. On CPUs without VNNI its sums of u8 by s8
    saturate. An option therefore makes it multiply u8 by u8: slower, but exact like its peers.
    """
    if missing(ORT):
        return None
    import onnxruntime
    from onnx import helper, numpy_helper

    bias_scales = (o.x_scale * o.w_scales).astype(np.float32)  # the bias as s32, as in exported files
    arrays = {"xs": np.float32(o.x_scale), "xz": o.x.dtype.type(o.x_zp), "ys": np.float32(o.y_scale),
              "yz": o.x.dtype.type(o.y_zp), "w": o.w, "ws": o.w_scales, "wz": np.zeros(o.w_scales.shape, np.int8),
              "b": np.rint(o.bias / bias_scales).astype(np.int32), "bs": bias_scales,
              "bz": np.zeros(o.bias.shape, np.int32), **(constants or {})}
    source, result = ("xt", "yt") if channels_last else ("x", "y")
    chain: list[Node] = [("DequantizeLinear", [source, "xs", "xz"], "xf", {}),
                         ("DequantizeLinear", ["w", "ws", "wz"], "wf", {"axis": o.axis}),
                         ("DequantizeLinear", ["b", "bs", "bz"], "bf", {"axis": 0}),
                         *nodes, ("QuantizeLinear", ["r", "ys", "yz"], result, {})]
    if channels_last:
        chain = [("Transpose", ["x"], "xt", {"perm": [0, 3, 1, 2]}), *chain,
                 ("Transpose", ["yt"], "y", {"perm": [0, 2, 3, 1]})]
    feeds = {"x": o.x, **o.more}
    graph = helper.make_graph(
        [helper.make_node(kind, inputs, [output], **attrs) for kind, inputs, output, attrs in chain], "layer",
        [helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape) for n, a in feeds.items()],
        [helper.make_tensor_value_info("y", helper.np_dtype_to_tensor_dtype(o.x.dtype), None)],
        [numpy_helper.from_array(np.asarray(a), name) for name, a in arrays.items()])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = threads, 3
    if o.dtype == "u8":
        options.add_session_config_entry("session.x64quantprecision", "1")
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return lambda: session.run(None, feeds)[0]


def onednn_linear(o: Layer, threads: int) -> Call | None:
    """The layer with a ReLU as an int8 primitive of oneDNN, with packed weights."""
    if missing(ONEDNN):
        return None
    y = np.zeros((o.x.shape[0], o.w.shape[1]), o.x.dtype)
    return _onednn(o, o.x, o.w, y, o.bias[None], 1 << 1, threads)


def onednn_convolution(o: Layer, stride: int, pad: int, groups: int, threads: int) -> Call | None:
    """As `onednn_linear`, for a convolution of channels-last images; weights are (out, in, height, width)."""
    if missing(ONEDNN):
        return None
    n, *sizes, _ = o.x.shape
    outs, *kernel = o.w.shape[0], *o.w.shape[2:]
    out = [(size + 2 * pad - k) // stride + 1 for size, k in zip(sizes, kernel, strict=True)]
    y, w = np.zeros((n, *out, outs), o.x.dtype), o.w
    if groups > 1:
        w = w.reshape(groups, outs // groups, *w.shape[1:])
    call = _onednn(o, np.moveaxis(o.x, -1, 1), w, np.moveaxis(y, -1, 1), o.bias, 1 << 0 | (groups > 1) << 1, threads,
                   (stride, pad))
    return lambda: np.moveaxis(call(), 1, -1)


def _onednn(o: Layer, x: np.ndarray, w: np.ndarray, y: np.ndarray, bias: np.ndarray, w_mask: int, threads: int,
            convolution: tuple[int, int] | None = None) -> Call:
    return onednn_library.layer(x, w, y, bias, w_mask, x_scale=o.x_scale, w_scales=o.w_scales, y_scale=o.y_scale,
                                x_zp=o.x_zp, y_zp=o.y_zp, threads=threads, convolution=convolution)


def numpy_matmul(x: np.ndarray, w: np.ndarray, threads: int) -> Call | None:
    """x @ w in f32 by NumPy's BLAS."""
    if missing(NUMPY):
        return None
    from threadpoolctl import threadpool_limits

    threadpool_limits(threads, "blas")
    return lambda: x @ w

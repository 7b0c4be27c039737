"""Int8 layers as primitives of the oneDNN library, called through its C API (oneDNN 3, `dnnl.h`).

The library is `libdnnl.so.3` from the wheel `onednn-cpu-gomp`, with OpenMP threads. The wheel `onednn` is not used: it
runs on SYCL, and its calls take longer than a small layer.
"""
from __future__ import annotations

import ctypes as c
import sys
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

LIBRARY = "lib/libdnnl.so.3"
"""The library's path in the environment's folder."""
CPU, IN_ORDER, ANY, FORWARD, DIRECT, RELU, WEIGHTS_MD = 1, 1, 1, 96, 1, 0x20, 131
"""dnnl_cpu, dnnl_stream_in_order, dnnl_format_tag_any, dnnl_forward_inference, dnnl_convolution_direct,
dnnl_eltwise_relu, dnnl_query_weights_md."""
SRC, DST, WEIGHTS, BIAS, SCALES, ZERO_POINTS = 1, 17, 33, 41, 4096, 8192
"""DNNL_ARG_*; the last two are DNNL_ARG_ATTR_*."""
DTYPES = {"float32": 3, "int32": 4, "int8": 5, "uint8": 6}
Dims = c.c_int64 * 12


class _Argument(c.Structure):
    _fields_ = [("arg", c.c_int), ("memory", c.c_void_p)]


def library_path() -> Path | None:
    """The path of the library; None if the wheel is not installed."""
    found = Path(sys.prefix) / LIBRARY
    return found if found.exists() else None


@cache
def _library() -> tuple[c.CDLL, c.c_void_p, c.c_void_p]:
    library = c.CDLL(str(library_path()))
    library.dnnl_primitive_desc_query_md.restype = c.c_void_p
    library.dnnl_memory_desc_get_size.restype = c.c_size_t
    engine, stream = c.c_void_p(), c.c_void_p()
    _check(library.dnnl_engine_create(c.byref(engine), CPU, c.c_size_t(0)), "dnnl_engine_create")
    _check(library.dnnl_stream_create(c.byref(stream), engine, IN_ORDER), "dnnl_stream_create")
    return library, engine, stream


def _check(status: int, what: str) -> None:
    if status:
        raise RuntimeError(f"oneDNN: {what} gives status {status}")


def _made(name: str, *arguments: Any) -> c.c_void_p:
    """Call a function that creates an object; returns the object."""
    made = c.c_void_p()
    _check(getattr(_library()[0], name)(c.byref(made), *arguments), name)
    return made


def _description(shape: Sequence[int], dtype: str, strides: Sequence[int] | None) -> c.c_void_p:
    """A memory descriptor; without strides, the library chooses the layout."""
    head = len(shape), Dims(*shape), DTYPES[dtype]
    if strides is None:
        return _made("dnnl_memory_desc_create_with_tag", *head, ANY)
    return _made("dnnl_memory_desc_create_with_strides", *head, Dims(*strides))


class _Memory:
    """An array for the library: its axes are in the library's logical order, with the array's own strides."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array
        self.description = _description(array.shape, array.dtype.name, [s // array.itemsize for s in array.strides])
        self.handle = _handle(self.description, array)


def _handle(description: c.c_void_p, array: np.ndarray) -> c.c_void_p:
    return _made("dnnl_memory_create", description, _library()[1], c.c_void_p(array.ctypes.data))


def layer(x: np.ndarray, w: np.ndarray, y: np.ndarray, bias: np.ndarray, w_mask: int, *, x_scale: float,
          w_scales: np.ndarray, y_scale: float, x_zp: int, y_zp: int, threads: int,
          convolution: tuple[int, int] | None = None) -> Callable[[], np.ndarray]:
    """Make a function that computes `y = quantize(relu(product(x, w) + bias))`, with packed weights.

    The axes of the arrays are in the library's order: matrices, or [n, c, h, w] and [(groups,) o, i, h, w] with
    `convolution` = (stride, pad). `w_mask` selects the axes of w that `w_scales` follow. Raises RuntimeError if oneDNN
    refuses the layer.
    """
    library, engine, stream = _library()
    source, target, offset = _Memory(x), _Memory(y), _Memory(bias)
    numbers = {SCALES | SRC: _Memory(np.array([x_scale], np.float32)), SCALES | WEIGHTS: _Memory(w_scales),
               SCALES | DST: _Memory(np.array([y_scale], np.float32))}
    numbers |= {ZERO_POINTS | a: _Memory(np.array([zp], np.int32)) for a, zp in ((SRC, x_zp), (DST, y_zp)) if zp}
    attributes, after = _made("dnnl_primitive_attr_create"), _made("dnnl_post_ops_create")
    for argument in numbers:
        which, kind = argument & 63, "scales" if argument & SCALES else "zero_points"
        mask = w_mask if which == WEIGHTS else 0
        _check(getattr(library, f"dnnl_primitive_attr_set_{kind}_mask")(attributes, which, mask), kind)
    none = c.c_float(0)
    _check(library.dnnl_post_ops_append_eltwise(after, RELU, none, none), "dnnl_post_ops_append_eltwise")
    _check(library.dnnl_primitive_attr_set_post_ops(attributes, after), "dnnl_primitive_attr_set_post_ops")
    operands = [source.description, _description(w.shape, w.dtype.name, None), offset.description, target.description]
    if convolution is None:
        plan = _made("dnnl_matmul_primitive_desc_create", engine, *operands, attributes)
    else:
        stride, pad = (Dims(v, v) for v in convolution)
        plan = _made("dnnl_convolution_forward_primitive_desc_create", engine, FORWARD, DIRECT, *operands, stride,
                     Dims(0, 0), pad, pad, attributes)
    plain, wanted = _Memory(w), c.c_void_p(library.dnnl_primitive_desc_query_md(plan, WEIGHTS_MD, 0))
    packed = np.zeros(library.dnnl_memory_desc_get_size(wanted) + 64, np.uint8)
    packed = packed[-packed.ctypes.data % 64:]
    weights = _handle(wanted, packed)
    reorder = _made("dnnl_reorder_primitive_desc_create", plain.description, engine, wanted, engine, None)
    _run(_made("dnnl_primitive_create", reorder), {SRC: plain.handle, DST: weights})()
    run = _run(_made("dnnl_primitive_create", plan), {
        SRC: source.handle, WEIGHTS: weights, BIAS: offset.handle, DST: target.handle,
        **{a: memory.handle for a, memory in numbers.items()}})
    set_threads = c.CDLL("libgomp.so.1").omp_set_num_threads
    kept = source, target, offset, packed, numbers

    def call() -> np.ndarray:
        set_threads(threads)
        run()
        return kept[1].array

    return call


def _run(primitive: c.c_void_p, memories: dict[int, c.c_void_p]) -> Callable[[], None]:
    library, _, stream = _library()
    arguments = (_Argument * len(memories))(*[_Argument(a, m.value) for a, m in memories.items()])
    execute, count = library.dnnl_primitive_execute, len(memories)

    def run() -> None:
        status = execute(primitive, stream, count, arguments)
        if status:
            _check(status, "dnnl_primitive_execute")

    return run
